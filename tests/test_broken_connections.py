"""A tool call whose connection breaks and is sent again: to whom it may be, and where its caller stands (S33, S61)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from participants.coordination.agreement import agree, gather
from participants.gym.agent import GymAgent
from participants.identity import EpisodeId
from participants.servers.modes import Mode
from participants.servers.peers import Peer
from participants.servers.policy_model import PolicyModel
from participants.serving.testing import Fault, once
from statecore.wire import digest
from tests.gym_like import Chatter, Counter, gym_counter
from tests.scenario_fleet import commit, parts, run_body
from tests.served_kinds import Fleet, run, settle
from tests.test_refused_callers import Job, adds_five, increments, with_job
from tests.whole_job import Turnstile, WholeJob
from tests.whole_job import run as run_job

BROKEN = [Fault(refuse=True), Fault(lose_request=True)]


@pytest.mark.parametrize("fault", BROKEN, ids=["refused", "lost"])
def test_an_agent_that_was_refused_after_a_broken_connection_stands(fault: Fault) -> None:
    """The refusal is final for the sending that nobody heard of as well, so the agent stands where its session does and
    is saved there. Covers: I35, I92, S61.
    """
    go_on = trio.Event()

    async def test(job: Job) -> None:
        await job.start(adds_five(go_on))
        job.callers.run()
        await settle()
        await job.close_tools()
        job.fleet.network.faults = once(fault, path="/increment")
        go_on.set()
        await trio.sleep(1)
        assert await job.phase("simple_agent", "prepare") == "prepared"
        await commit(job.fleet, "ck", "tools", "simple_agent")
        found = parts(job.fleet, "ck", [("agent", "simple_agent"), ("resources", "tools")])
        agreed = agree(gather(found)[EpisodeId("r1")], digest(run_body()["task"]))
        assert agreed.agrees, agreed.reason
        for server in ("tools", "simple_agent"):
            assert await job.phase(server, "resume") == "idle"
        await trio.sleep(30)
        assert job.result == [5]

    with_job(test)


@pytest.mark.parametrize("fault", [*BROKEN, Fault(lose_reply=True)], ids=["refused", "lost", "applied"])
def test_a_call_whose_connection_broke_is_under_way_until_it_is_known_what_came_of_it(fault: Fault) -> None:
    """It may have been applied, so its loop does not stand meanwhile, whatever another task of it waits for; and
    it is applied once. Covers: I24, I35, I57, S33.
    """
    go_on = trio.Event()
    generated = trio.Event()

    async def play(tools: Peer, boundary: Callable[[], Awaitable[bool]]) -> Any:
        said: list[int] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waits, tools)
            await go_on.wait()
            await increments(said, tools)(5)
        await boundary()
        return said

    async def waits(tools: Peer) -> None:
        assert tools.around_model is not None
        await tools.around_model(generated.wait)

    async def test(job: Job) -> None:
        await job.start(play)
        job.callers.run()
        await settle()
        job.fleet.network.faults = once(fault, path="/increment")
        go_on.set()
        await settle()
        assert await job.phase("simple_agent", "prepare", within_s=0.1) == "preparing"
        assert await job.phase("simple_agent", "prepare", within_s=5) == "prepared"
        assert await job.phase("simple_agent", "resume") == "idle"
        generated.set()
        await settle()
        assert job.result == [5]

    with_job(test)


@pytest.mark.parametrize("mode", [Mode.EXPORT_RESTORE, Mode.DRAIN_ONLY, Mode.RESTART_ONLY])
def test_a_server_that_records_no_replies_is_asked_once(mode: Mode) -> None:
    """A server of Gym's whose sessions start over keeps no reply, so a call that it may have applied is not sent to it
    again: its execution is lost. One that keeps them answers from its record. Covers: I57, S33.
    """

    async def test(fleet: Fleet) -> None:
        config, counter, gate = fleet.config("policy_model", "tools"), Counter(), Turnstile()
        tools = gym_counter(config, fleet.seams("tools"), counter, mode=mode)
        transport = fleet.network.transport("simple_agent")
        agent = GymAgent(
            "simple_agent", config, cookie="Chatter___simple_agent", seams=fleet.seams("agent"), transport=transport
        )
        policy = PolicyModel("policy_model", config, gate.generate, seams=fleet.seams("policy"), transport=transport)
        await fleet.start("policy_model", policy.app())
        await fleet.start("tools", tools.wrap(counter.app()))
        await fleet.start("simple_agent", agent.wrap(Chatter().app()))
        fleet.network.faults = once(Fault(lose_reply=True), server="tools", path="/add")
        gate.allow("r1", 2)
        body = {"question": "r1", "turns": 2, "_ng_rollout_id": "r1", "_ng_attempt_index": 0}
        reply = await fleet.post("simple_agent", "/run", body)
        if mode is Mode.EXPORT_RESTORE:
            assert (reply.status_code, counter.calls.count("/add")) == (200, 2)
            assert reply.json()["reward"] == 3
        else:
            assert (reply.status_code, reply.json()["error"]["code"]) == (502, "participant_lost")
            assert counter.calls.count("/add") == 1

    run(test)


@pytest.mark.parametrize("restored", [False, True])
def test_an_episode_that_was_restored_asks_again_as_any_other(*, restored: bool) -> None:
    """Its session has the position that was recorded when it was seeded. Covers: I57, S33."""

    async def test(job: WholeJob) -> None:
        job.turnstile.allow("A", 1)
        if restored:
            async with job.coordinator() as first, trio.open_nursery() as nursery:
                recovered = await first.recover()
                nursery.start_soon(first.run_batch, recovered.runnable(job.dispatches(2, "A")))
                await settle()
                assert (await first.checkpoint()).published
                nursery.cancel_scope.cancel()
                assert job.launcher is not None
                job.launcher.kill()
        job.turnstile.allow("A", 2)
        job.network.faults = once(Fault(lose_reply=True), server="tools", path="/verify", source="env")
        async with job.coordinator() as second:
            recovered = await second.recover()
            report = await second.run_batch(recovered.runnable(job.dispatches(2, "A")))
        assert report.lost == {}
        assert job.trainer is not None
        assert job.trainer.accepted["A"]["reward"] == 3
        assert job.turnstile.seen == [("A", 1), ("A", 2)]

    run_job(test)
