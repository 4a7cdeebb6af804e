"""Checkpointing off: the whole job runs as it does on, without a control plane, an identity or a bookkeeping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from participants.identity import EPOCH_HEADER, OPERATION_HEADER, RECEIPT_HEADER, RUN_PREFIX
from participants.net.http import ASGIApp
from participants.servers.agent import Agent
from participants.servers.resources import Mode
from participants.serving.testing import Call, InMemoryNetwork
from participants.settings import Settings
from statecore.seams import MemoryDisk
from tests.small_job import counter_resources, counting_agent, counting_environment, plain_policy, seams, settings

Maker = Callable[..., ASGIApp]
NAMES = ("policy_model", "tools", "simple_agent", "env")
RUN = {"episode_id": {"rollout_id": "p1", "attempt": 0}, "task": {"question": "why", "turns": 3}}


async def job(network: InMemoryNetwork, config: Settings) -> httpx.Response:
    """The reply of one rollout; its servers stay up."""
    disk = MemoryDisk()
    makers: dict[str, Maker] = {"tools": counter_resources, "simple_agent": counting_agent, "env": counting_environment}
    for name, make in makers.items():
        app = make(config, seams(disk, name), network.transport(name))
        await network.start(name, app, lifespan=config.enabled)
    await network.start("policy_model", plain_policy(), lifespan=False)
    async with network.client() as client:
        return await client.post(network.url("env") + "/run", json=RUN)


def urls(network: InMemoryNetwork) -> dict[str, str]:
    return {name: network.url(name) for name in NAMES}


@pytest.mark.trio
async def test_s04_off_gives_the_same_result_and_sends_nothing_of_ours() -> None:
    """Reward and conversation are those of the job with checkpointing on; no receipt, identity, operation id or epoch
    is sent, no control route is there, and the sessions are closed. Covers: I76.
    """
    sent: list[Call] = []
    async with InMemoryNetwork() as network:
        on = await job(network, settings(servers=urls(network)))
        assert RECEIPT_HEADER in on.headers
    async with InMemoryNetwork(faults=sent.append) as network:
        off = await job(network, Settings(servers=urls(network)))
        assert off.json() == on.json()
        assert RECEIPT_HEADER not in off.headers
        for call in sent:
            assert not call.path.startswith(RUN_PREFIX)
            assert not {OPERATION_HEADER, EPOCH_HEADER} & set(call.request.headers)
        assert [call.path for call in sent if call.server == "tools"][-1] == "/close_session"
        async with network.client() as client:
            for name in ("tools", "simple_agent", "env"):
                reply = await client.get(network.url(name) + "/ng-control/v1/checkpoint/status")
                assert reply.status_code == 404
        assert network.errors == []


@pytest.mark.trio
async def test_a_restart_only_agent_uses_the_sessions_of_its_episode() -> None:
    """Nothing of it is saved, and its tools are the episode's all the same."""

    def restarting(config: Settings, *args: Any) -> Any:
        original = Agent.__init__

        def init(self: Agent, *names: Any, **options: Any) -> None:
            original(self, *names, **options, mode=Mode.RESTART_ONLY)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Agent, "__init__", init)
            return counting_agent(config, *args)

    async with InMemoryNetwork() as network:
        config, disk = settings(servers=urls(network)), MemoryDisk()
        makers: dict[str, Maker] = {"tools": counter_resources, "simple_agent": restarting, "env": counting_environment}
        for name, make in makers.items():
            await network.start(name, make(config, seams(disk, name), network.transport(name)))
        await network.start("policy_model", plain_policy(), lifespan=False)
        async with network.client() as client:
            reply = await client.post(network.url("env") + "/run", json=RUN)
        assert reply.json()["reward"] == 6, reply.text
