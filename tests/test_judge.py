"""Auxiliary model servers: a judge is never paused and never taken for a policy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import trio
import trio.testing

from participants.net.client import ControlClient
from participants.servers.auxiliary_model import AuxiliaryModel
from participants.servers.policy_model import PolicyModel
from participants.settings import Seams, Settings, SettingsError
from statecore import DefinitionError
from statecore.seams import LoopClock, SeededEntropy
from tests.policy_server import CHAT, TOKEN, WALL, Calls, Generator, Policy, completion, running, settings, user

CHECKPOINT = "/ng-control/v1/checkpoint"
VERBS = ("prepare", "commit", "restore", "resume", "renew", "retire", "forget")


@asynccontextmanager
async def judge_beside(policy: Policy, upstream: Any = None, **more: Any) -> AsyncIterator[str]:
    """A judge on the policy's network; its URL."""
    seams = Seams(clock=LoopClock(WALL), entropy=SeededEntropy(5))
    judge = AuxiliaryModel("judge", settings(**more), upstream or Generator(), seams=seams)
    yield await policy.network.start("judge", judge.app())


async def ask(client: httpx.AsyncClient, url: str, path: str = CHAT, **headers: str) -> httpx.Response:
    return await client.post(url + path, json={"messages": [user("score")]}, headers=headers)


@pytest.mark.trio
async def test_s1_a_judge_is_never_taken_for_a_policy(autojump_clock: trio.testing.MockClock) -> None:
    """While the policy is closed its calls are held and the judge goes on answering; its role says why. Covers: I73."""
    async with running(Generator()) as policy, trio.open_nursery() as nursery, judge_beside(policy) as judge:
        roles = {}
        for url in (policy.url, judge):
            reply = await policy.client.get(f"{url}/ng-control/v1/capabilities", headers=TOKEN)
            roles[reply.json()["instance"]] = (reply.json()["kind"], reply.json()["instance_role"])
        assert roles == {"policy": ("model", "policy"), "judge": ("model", "auxiliary")}
        await policy.done("prepare")
        calls = Calls(nursery, policy)
        calls.start("held", "r1")
        for path in (CHAT, f"/ng-rollout/r1{CHAT}"):
            assert (await ask(policy.client, judge, path)).json()["choices"]
        await trio.sleep(60)
        assert calls.replies == {}
        await policy.done("resume")
        assert (await calls.reply("held")).status_code == 200


@pytest.mark.trio
async def test_a_judge_has_no_checkpoint_routes() -> None:
    """Every checkpoint route is 404 in the recorded form (row 5), and nothing of it reaches the upstream."""
    generator = Generator()
    async with running(Generator()) as policy, judge_beside(policy, generator) as judge:
        reply = await policy.client.get(f"{judge}{CHECKPOINT}/status", headers=TOKEN)
        assert (reply.status_code, reply.json()) == (404, {"detail": "Not Found"})
        for verb in VERBS:
            body = {"checkpoint_id": "c1", "deadline_ts": WALL + 60}
            reply = await policy.client.post(f"{judge}{CHECKPOINT}/{verb}", json=body, headers=TOKEN)
            assert (reply.status_code, reply.json()) == (404, {"detail": "Not Found"})
        assert (await policy.client.get(f"{judge}/ng-control/v1/results", headers=TOKEN)).status_code == 404
        assert generator.calls == []


@pytest.mark.trio
async def test_capabilities_want_the_token() -> None:
    """Without the token a judge says nothing of itself; a control client that has it learns the role."""
    async with running(Generator()) as policy, judge_beside(policy) as judge:
        assert (await policy.client.get(f"{judge}/ng-control/v1/capabilities")).status_code == 401
        clock, entropy = LoopClock(WALL), SeededEntropy(1)
        client = ControlClient(policy.client, judge, "tok", clock=clock, entropy=entropy, epoch=None)
        assert (await client.capabilities())["instance_role"] == "auxiliary"


@pytest.mark.trio
async def test_a_judge_knows_no_attempts_and_no_epochs() -> None:
    """It answers for any attempt and any life, and puts no call id on its replies: no chain leads through a judge."""
    async with running(Generator()) as policy, judge_beside(policy, epoch=4, epoch_required=True) as judge:
        for path in (f"/ng-rollout/r1-a3{CHAT}", f"/ng-rollout/r1{CHAT}", CHAT):
            reply = await ask(policy.client, judge, path, **{"x-statecore-epoch": "3"})
            assert reply.status_code == 200
            assert "x-nemo-gym-model-call-id" not in reply.headers
        assert (await ask(policy.client, judge, f"/ng-rollout/bad!id{CHAT}")).status_code == 400


@pytest.mark.trio
async def test_a_judge_that_fails_answers_with_an_error() -> None:
    """A judge's failure is an HTTP error of its upstream, never a refusal of ours."""

    async def upstream(path: str, body: Any) -> Any:
        raise LookupError("no rubric")

    async with running(Generator()) as policy, judge_beside(policy, upstream) as judge:
        reply = await ask(policy.client, judge)
        assert (reply.status_code, reply.json()["error"]["code"]) == (500, "upstream_failed")


@pytest.mark.trio
async def test_off_a_judge_is_its_upstream() -> None:
    """With checkpointing off there are no capabilities either, and the replies are the same. Covers: I76."""
    async with running(Generator()) as policy, judge_beside(policy, enabled=False) as judge:
        assert (await policy.client.get(f"{judge}/ng-control/v1/capabilities", headers=TOKEN)).status_code == 404
        assert (await ask(policy.client, judge)).json() == completion("1: score")


def test_a_judge_wants_a_name_and_settings_like_the_others() -> None:
    """A bad name, settings without a token and an upstream that cannot be one are refused when it is made."""
    with pytest.raises(DefinitionError, match="server name"):
        AuxiliaryModel("my judge", settings(), Generator())
    with pytest.raises(SettingsError, match="no control token"):
        AuxiliaryModel("judge", settings(control_auth_token=None), Generator())
    with pytest.raises(DefinitionError, match="base URL"):
        AuxiliaryModel("judge", Settings(), 7)  # type: ignore[arg-type]
    assert (PolicyModel.role, AuxiliaryModel.role) == ("policy", "auxiliary")
