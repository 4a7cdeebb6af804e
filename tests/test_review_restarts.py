"""Restarts of all servers beside everything else that a life does: results on their way, stragglers, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock

from participants.coordination.coordinator import Aborted, Coordinator, Published
from participants.coordination.ledger import Ledger
from participants.coordination.outcomes import Restarted
from participants.coordination.recovery import Verdict
from participants.coordination.restart_plan import plan_restart
from participants.coordination.trainer import Dispatch, Result
from participants.records.records import Disposition
from participants.serving.testing import Fault
from tests.coordinator_world import SmallTrainer, World, a_world, dispatches, is_call, running
from tests.small_fleet import Deployments, FakeServer, Reply

SOON = {"probe_every_s": 0.5}


def die(world: World, name: str = "tools") -> None:
    assert world.deployments.launcher is not None
    world.deployments.launcher.kill(name)


async def restarted(job: Coordinator, times: int = 1) -> Restarted:
    with trio.fail_after(2000):
        while len(job.restarts) < times:  # noqa: ASYNC110 (in virtual time)
            await trio.sleep(0.5)
    return job.restarts[times - 1]


@define(eq=False)
class Keeper(SmallTrainer):
    """Keeps results outside its state, each after `takes_s`."""

    takes_s: float = 30.0
    kept: dict[str, Result] = field(factory=dict)

    async def save_result(self, result: Result) -> Result:
        await trio.sleep(self.takes_s)
        return self.kept.setdefault(result.rollout_id, result)


@pytest.mark.trio
async def test_a_result_that_is_saved_while_the_servers_are_restored_stands(autojump_clock: MockClock) -> None:
    """It came before the death and enters the ledger between the plan of the restart and its end. Covers: I67, I68."""
    async with a_world() as world:
        trainer = Keeper(world.disk)
        async with running(world.coordinator(trainer, **SOON), dispatches({"p1": 3, "p2": 90})) as (job, reports):
            await trio.sleep(1.5)
            assert (await job.checkpoint(20)).published
            await trio.sleep(2)
            world.network.faults = lambda call: Fault(reply_s=60.0) if is_call(call, "tools", "restore") else None
            die(world)
            report = await restarted(job)
            world.network.faults = None
            assert report.count(Disposition.CONTINUE) == 2, "it was planned before the result was there"
            assert trainer.ids == ["p1"]
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published), outcome.story()
            assert outcome.counts[Disposition.COMPLETED] == 1
            assert {"rollout_id": "p1", "attempt": 1} in world.history.bodies("tools", "retire")[-1]["episode_ids"]
        assert reports[0].delivered == 2
        assert world.count("p1") == 3
        assert trainer.ids == ["p1", "p2"] == sorted(trainer.kept)


@define(eq=False)
class Slow(Deployments):
    """A launcher whose later starts, and whose stops, take their time; `stubborn`: they cannot be cancelled."""

    stubborn: bool = False
    starting: bool = False
    overlaps: int = 0

    async def start(self, epoch: int) -> Mapping[str, str]:
        if self.fleets:
            await self._takes_its_time()
        return await super().start(epoch)

    async def stop(self) -> None:
        await self._takes_its_time()
        await super().stop()

    async def _takes_its_time(self) -> None:
        self.overlaps += self.starting
        self.starting = True
        try:
            with trio.CancelScope(shield=self.stubborn):
                await trio.sleep(20)
        finally:
            self.starting = False


@pytest.mark.trio
@pytest.mark.parametrize("stubborn", [False, True], ids=["can be cancelled", "cannot"])
@pytest.mark.parametrize("after_s", [5.0, 25.0], ids=["stopping", "starting"])
async def test_the_block_is_left_while_the_servers_are_restarted(
    autojump_clock: MockClock, stubborn: bool, after_s: float
) -> None:
    """Whatever the launcher is doing is over, then it stops what is there, once more and alone; nothing is up."""
    async with a_world() as world:
        old = world.deployments
        world.deployments = Slow(old.network, old.clock, old.disk, old.nursery, stubborn=stubborn)
        async with world.coordinator(world.trainer(), **SOON) as job:
            recovered = await job.recover()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(job.run_batch, recovered.runnable(dispatches({"p1": 60})))
                await trio.sleep(2)
                die(world)
                await trio.sleep(2 + after_s)
                nursery.cancel_scope.cancel()
        assert world.network.up == ()
        assert world.deployments.overlaps == 0
        async with world.coordinator(trainer := world.trainer(), **SOON) as job:
            assert (await job.run_batch((await job.recover()).runnable(dispatches({"p1": 2})))).delivered == 1
        assert trainer.ids == ["p1"], "what it may have claimed on its way out is in nobody's way"


@define(eq=False)
class Thoughtful(SmallTrainer):
    """Takes a restart to heart."""

    reports: list[Restarted] = field(factory=list)

    async def restarted(self, report: Restarted) -> None:
        await trio.sleep(300)
        self.reports.append(report)


@pytest.mark.trio
async def test_a_death_while_the_framework_hears_of_the_last_one(autojump_clock: MockClock) -> None:
    """The servers are watched all the same: others are started at once, and restored when the framework has a moment.

    Covers: S66.
    """
    async with a_world() as world:
        trainer = Thoughtful(world.disk)
        async with world.coordinator(trainer, **SOON) as job:
            await job.recover()
            await trio.sleep(2)
            die(world)
            await restarted(job)
            await trio.sleep(2)
            die(world, "env")
            await trio.sleep(10)
            assert len(world.deployments.fleets) == 3
            assert trainer.reports == []
            await trio.sleep(700)
            assert len(job.restarts) == 2
        assert trainer.reports == list(job.restarts)


@pytest.mark.trio
async def test_a_retirement_is_of_one_deployment(autojump_clock: MockClock) -> None:
    """The attempt that a restart gives once more was never retired there: its own end is an end. Covers: I6, I96."""
    async with a_world() as world:
        new = dispatches({"p1": 3}, turn_s=20.0, fails=[500, "execution_failed"])
        async with running(world.coordinator(world.trainer(), **SOON), new) as (job, reports):
            await trio.sleep(15)
            assert (await job.checkpoint(20)).published
            die(world)
            assert (await restarted(job)).count(Disposition.CONTINUE) == 1
            await trio.sleep(2)

            def stops_answering(_server: FakeServer, _body: Reply) -> None:
                silent = ("status", "prepare")
                world.network.faults = lambda call: (
                    Fault(silent=True) if call.server == "tools" and call.path.endswith(silent) else None
                )

            world.script("env", "retire", stops_answering)
            outcome = await job.checkpoint(15, stragglers="retire")
            assert isinstance(outcome, Aborted)
            assert "tools is dead" in outcome.reason
            world.network.faults = None
            world.script("env", "retire", None)
            report = await restarted(job, 2)
            assert [(each.disposition.value, each.next_attempt) for each in report.verdicts] == [("continue", 1)]
        assert reports[0].lost["p1"].startswith("HTTP 500 execution_failed")
        assert [body["episode_id"]["attempt"] for body in world.history.bodies("env", "run")] == [0, 1, 1]


@pytest.mark.trio
async def test_a_server_dies_while_a_straggler_is_retired(autojump_clock: MockClock) -> None:
    """The straggler was ended for a checkpoint that nobody gets any more: it goes on with the others. Covers: I97."""
    async with a_world() as world:
        new = [*dispatches({"p1": 2}, turn_s=30.0), *dispatches({"p2": 60})]
        async with running(world.coordinator(world.trainer(), **SOON), new) as (job, reports):
            await trio.sleep(25)
            assert (await job.checkpoint(20)).published
            await trio.sleep(5)
            world.network.faults = lambda call: Fault(reply_s=1.0) if is_call(call, "agent", "retire") else None

            def dies(server: FakeServer, _body: Reply) -> None:
                world.script("tools", "retire", None)
                die(world, server.name)

            world.script("tools", "retire", dies)
            outcome = await job.checkpoint(10, stragglers="retire")
            assert isinstance(outcome, Aborted)
            world.network.faults = None
            report = await restarted(job)
            assert report.count(Disposition.CONTINUE) == 2
        assert (reports[0].delivered, reports[0].lost) == (2, {})


@pytest.mark.trio
async def test_a_continuation_that_nobody_has_sent_is_retired_with_its_unit(autojump_clock: MockClock) -> None:
    """There is no `/run` of it whose answer would tell; it starts over as the others do, and is named. Covers: I86."""
    async with a_world() as world:
        world.script("tools", "capabilities", lambda *_: {"sharing": "group"})
        new = [Dispatch("p1", {"turns": 2, "turn_s": 30.0}, "env", group="g"), *dispatches({"p3": 90})]
        new += [Dispatch("p2", {"turns": 40}, "env", group="g")]
        async with running(world.coordinator(world.trainer(), **SOON), new) as (job, reports):
            await trio.sleep(25)
            assert (await job.checkpoint(20)).published
        assert reports[0].delivered == 3
        trainer = world.trainer()
        world.script("env", "run", refuse_p2)
        async with running(world.coordinator(trainer, **SOON), ()) as (job, reports):
            await trio.sleep(2)
            outcome = await job.checkpoint(10, stragglers="retire")
            assert isinstance(outcome, Published), outcome.story()
            assert set(outcome.retired) == {"p1", "p2"}
            assert "p2" in outcome.story()
            world.script("env", "run", None)
        attempts = [body["episode_id"] for body in world.history.bodies("env", "run")]
        assert {"rollout_id": "p2", "attempt": 2} in attempts
        assert reports[0].delivered == 3


def refuse_p2(server: FakeServer, body: Reply) -> Any:
    return server.refuse(409, "admission_closed") if body["episode_id"]["rollout_id"] == "p2" else None


@pytest.mark.trio
async def test_a_checkpoint_waits_through_a_second_death(autojump_clock: MockClock) -> None:
    """The servers were open for a moment and gone again: it waits for the rest of its time."""
    async with a_world() as world, running(world.coordinator(world.trainer()), dispatches({"p1": 60})) as (job, _):
        await trio.sleep(1.5)
        life, _ = job._living()
        life.up.close()

        async def opens_twice() -> None:
            await trio.sleep(5)
            life.up.open()
            life.up.close()
            await trio.sleep(5)
            life.up.open()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(opens_twice)
            began = trio.current_time()
            assert (await job.checkpoint(20)).published
            assert trio.current_time() - began >= 10


@pytest.mark.trio
async def test_a_result_outlives_a_restart_that_gives_its_number_again(autojump_clock: MockClock) -> None:
    """The same checkpoint is restored twice, and between the two the continuation has ended. Covers: I68, I96."""
    async with a_world() as world:
        trainer = Keeper(world.disk)
        async with running(world.coordinator(trainer, **SOON), dispatches({"p1": 4, "p2": 90})) as (job, reports):
            await trio.sleep(1.5)
            assert (await job.checkpoint(20)).published
            die(world)
            await restarted(job)
            await trio.sleep(4)
            die(world)
            report = await restarted(job, 2)
            assert [each.next_attempt for each in report.verdicts] == [1, 1]
        assert (reports[0].delivered, trainer.ids) == (2, ["p1", "p2"])


def test_a_fresh_start_is_above_what_a_restart_went_back_behind() -> None:
    """A continuation may have a number that was given before; the next fresh start has not. Covers: I3."""
    ledger, _ = Ledger().registered(dispatches({"p1": 1}))
    for _ in range(3):
        ledger = ledger.dispatched(["p1"]).retried("p1")
    (fresh,) = plan_restart(None, ledger, consumed=set(), present=frozenset()).verdicts
    assert fresh.next_attempt == 4
    continued = Verdict("p1", Disposition.CONTINUE, 0, 1)
    ledger = ledger.restarted([continued])
    assert (ledger["p1"].attempt, ledger["p1"].highest) == (1, 3)
    plan = plan_restart(None, ledger, consumed=set(), present=frozenset())
    assert plan.verdicts[0].next_attempt == 4
    assert plan.retire[0].attempt == 3
    assert ledger.dispatched(["p1"]).retried("p1")["p1"].attempt == 4
