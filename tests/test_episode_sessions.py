"""The agent sessions of an episode: named once they are open, with a record each, closed when the episode ends."""

from __future__ import annotations

from functools import partial

import trio

from participants.coordination.agreement import agree, gather
from participants.identity import EpisodeId
from participants.records.records import EnvironmentBoundary
from participants.servers.resources import Verify
from participants.serving.testing import Fault
from statecore.wire import digest
from tests.scenario_fleet import Callers, commit, crash, parts, restore, run_body, seen, start
from tests.served_kinds import Fleet, settle
from tests.small_job import counter_resources
from tests.whole_job import Turnstile

ALL = ("env", "policy_model", "simple_agent", "tools")
PARTS = (("environment", "env"), ("model", "policy_model"), ("agent", "simple_agent"), ("resources", "tools"))


async def a_checkpoint(fleet: Fleet, policy: Turnstile, turns: int) -> None:
    """r1 of that many turns stands in a checkpoint, and all servers are gone."""
    tools = partial(counter_resources, verify=Verify.REPLAY)
    await start(fleet, policy, *ALL, tools=tools)
    fleet.network.faults = lambda call: Fault(silent=True) if call.path.endswith("/verify") else None
    async with trio.open_nursery() as nursery:
        Callers(fleet, nursery).run("env", turns=turns)
        await settle()
        await commit(fleet, "ck", *ALL)
        crash(fleet, nursery)
    fleet.network.faults = None
    await start(fleet, policy, *ALL, tools=tools)


def test_a_session_without_its_record_is_not_continued() -> None:
    """An environment's record whose agent session has no record would start over on a used tool. Covers: I34, I55."""

    async def scenario(fleet: Fleet) -> tuple[bool, bool, str]:
        policy = Turnstile()
        policy.allow("r1", 1)
        await a_checkpoint(fleet, policy, turns=3)
        task = digest(run_body()["task"])
        whole = agree(gather(parts(fleet, "ck", PARTS))[EpisodeId("r1")], task)
        without = [each for each in PARTS if each[0] != "agent"]
        lacking = agree(gather(parts(fleet, "ck", without))[EpisodeId("r1")], task)
        return whole.agrees, lacking.agrees, lacking.reason

    assert seen(scenario) == (True, False, "env has a session at simple_agent, which has no record of it")


def test_a_session_that_is_not_open_yet_is_not_named() -> None:
    """An agent that was closed before it opened the session leaves an episode that can be continued. Covers: I34."""

    async def scenario(fleet: Fleet) -> tuple[dict[str, object], bool]:
        await start(fleet, Turnstile(), *ALL)
        async with trio.open_nursery() as nursery:
            await fleet.control("simple_agent", "prepare")
            Callers(fleet, nursery).run("env")
            await settle()
            await commit(fleet, "ck", *ALL)
            crash(fleet, nursery)
        found = parts(fleet, "ck", PARTS)
        boundary = EnvironmentBoundary.read(found[0].records[0]["boundary"])
        assert boundary is not None
        agreed = agree(gather(found)[EpisodeId("r1")], digest(run_body()["task"]))
        return dict(boundary.sessions), agreed.agrees

    assert seen(scenario) == ({}, True)


def test_the_sessions_of_a_continued_episode_are_closed_at_its_end() -> None:
    """Also when its activation was answered before the checkpoint and is not sent again. Covers: I75."""

    async def scenario(fleet: Fleet) -> tuple[int, float, int]:
        policy = Turnstile()
        policy.allow("r1", 2)
        await a_checkpoint(fleet, policy, turns=2)
        await restore(fleet, "ck", *ALL)
        finished = await fleet.post("env", "/run", run_body(1, turns=2))
        counts = (await fleet.status("simple_agent"))["report"]["counts"]
        return policy.generated["r1"], finished.json()["reward"], counts["sessions"]

    assert seen(scenario) == (2, 3, 0)
