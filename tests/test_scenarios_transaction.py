"""S3, S30, S32, S33, S35, S53, S66: one checkpoint after the other. First the fault, then its absence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import pytest
import trio
import trio.testing
from attrs import frozen

from participants.coordination import phases
from participants.coordination.coordinator import Aborted, CoordinatorSettings, Published
from participants.coordination.deployment import DiscoveryFailed
from participants.coordination.life import Life
from participants.coordination.phases import COMMITTED, Phases
from participants.coordination.transaction_shell import CheckpointRun
from participants.identity import EpisodeId
from participants.net.client import Retries
from participants.records.records import Disposition
from participants.serving.testing import Fault, once
from statecore.seams import LoopClock
from tests.coordinator_world import SmallTrainer, World, a_world, dispatches, refuse, running
from tests.scenario_fleet import seen_by_job
from tests.small_job import WALL
from tests.whole_job import WholeJob, settle

P = ParamSpec("P")
T = TypeVar("T")


def seen(scenario: Callable[Concatenate[World, P], Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
    """What `scenario(world, ...)` saw, under a MockClock that jumps."""

    async def main() -> T:
        async with a_world() as world:
            return await scenario(world, *args, **options)

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


# --- S3


def gives_up(_run: CheckpointRun, error: Exception) -> Any:
    """The fault: what goes wrong in a checkpoint goes wrong in the run."""
    raise error


async def one_refusal(world: World, fail: Callable[..., Any]) -> tuple[str, list[str]]:
    """A server refuses one commit: how the run ends, and whose results the trainer has."""
    trainer, how = world.trainer(), "to its end"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointRun, "_fail", fail)
        try:
            async with running(world.coordinator(trainer), dispatches({"p1": 4})) as (job, _):
                await trio.sleep(1.5)
                world.script("agent", "commit", refuse(409, "invalid_phase"))
                assert not (await job.checkpoint(10)).published
                world.script("agent", "commit", None)
                assert (await job.checkpoint(10)).published
        except* phases.StageFailed as group:
            how = str(group.exceptions[0])[:32]
    return how, trainer.ids


def test_s03_one_failed_control_call_ends_the_run() -> None:
    """S3: a checkpoint that fails is given up, the one before stays in force, the next one is tried; the run goes on.

    Where its failure is the run's, one refusal throws away what was running. Covers: I20.
    """
    assert seen(one_refusal, gives_up) == ("agent: commit: HTTP 409 invalid_", [])
    assert seen(one_refusal, CheckpointRun._fail) == ("to its end", ["p1"])


# --- S30


WITHOUT_A_BOUND = 1e6
"""The fault: clocks may differ by as much as they like."""


async def an_hour_ahead(job: WholeJob, bound_s: float) -> str:
    """The tools server's clock is an hour ahead: what becomes of the start, or of the first checkpoint."""
    job.clocks["tools"] = LoopClock(WALL + 3600.0)
    job.turnstile.allow("r1", 1)
    try:
        async with job.coordinator(settings=CoordinatorSettings(max_clock_skew_s=bound_s)) as coordinator:
            recovered = await coordinator.recover()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(coordinator.run_batch, recovered.runnable(job.dispatches(3, "r1")))
                await settle()
                outcome = await coordinator.checkpoint(60)
                nursery.cancel_scope.cancel()
    except DiscoveryFailed as failed:
        return str(failed)
    assert isinstance(outcome, Aborted)
    return outcome.reason


def test_s30_clock_skew() -> None:
    """S30: deadlines are absolute, so clocks are compared before anything starts, and the server is named.

    Without a bound its leases end as soon as they begin, and no checkpoint ever succeeds. Covers: I18.
    """
    assert "was already resumed" in seen_by_job(an_hour_ahead, WITHOUT_A_BOUND)
    assert "tools: its clock is off by 3600.0 s" in seen_by_job(an_hour_ahead, 5.0)


# --- S32


async def proved_before(run: Phases) -> dict[str, str]:
    """The fault: that everybody has committed is proof enough, though the save came after it."""
    await trio.lowlevel.checkpoint()
    return {member.name: COMMITTED for member in run.life.deployment.members}


async def lease_lost_in_the_save(world: World, prove: Callable[..., Any]) -> tuple[str, int]:
    """A server's lease ends during the save, and its rollout goes on: the outcome, how far that is beyond the part."""
    trainer = world.trainer()
    moved: list[int] = []

    async def slow() -> None:
        fleet = world.deployments.fleet
        held = fleet.episodes[EpisodeId("p1")].turn
        env = fleet.servers["env"]
        assert env.checkpoint_id is not None
        env.reopen(env.checkpoint_id)
        await trio.sleep(3.5)
        moved.append(fleet.episodes[EpisodeId("p1")].turn - held)

    trainer.on_save = slow
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Phases, "prove", prove)
        async with running(world.coordinator(trainer, renew_every_s=30.0), dispatches({"p1": 9})) as (job, _):
            await trio.sleep(1.5)
            outcome = await job.checkpoint(20)
    return type(outcome).__name__, moved[0]


def test_s32_slow_publish_lost_lease() -> None:
    """S32: who is still committed is asked after the last thing was captured; without an answer nothing is published.

    On the word of the commit alone, a checkpoint is published whose rollout has gone on beyond it. Covers: I24.
    """
    assert seen(lease_lost_in_the_save, proved_before) == ("Published", 3)
    assert seen(lease_lost_in_the_save, Phases.prove) == ("Aborted", 3)


# --- S33


ONCE_ONLY = Retries(tries=1)
"""The fault: a call is made once, and what is not answered did not happen."""


async def a_reply_is_lost(world: World, retries: Retries) -> list[str]:
    """The reply to one call of a checkpoint is lost, for each verb in turn: the outcomes."""
    outcomes = []
    coordinator = world.coordinator(world.trainer(), control_retries=retries)
    async with running(coordinator, dispatches({"p1": 60})) as (job, _):
        for verb in ("prepare", "commit", "renew", "resume"):
            await trio.sleep(1.5)
            world.network.faults = once(Fault(lose_reply=True), server="tools", path=verb)
            outcome = await job.checkpoint(20)
            outcomes.append("whole" if isinstance(outcome, Published) and not outcome.unresumed else verb)
    return outcomes


def test_s33_lost_reply_at_any_single_call() -> None:
    """S33: an answer that is lost is asked for again, and every call may come twice: the outcome is the same.

    Made once only, each loss is another outcome. Covers: I15.
    """
    assert seen(a_reply_is_lost, ONCE_ONLY) == ["prepare", "commit", "renew", "resume"]
    assert seen(a_reply_is_lost, Retries(tries=3)) == ["whole"] * 4


# --- S35


async def once_only(life: Life, asked: set[str], members: Any = None) -> tuple[str, ...]:
    """The fault: what was to be acknowledged is remembered, not listed, and forgotten with its first sending."""
    new = {name for name in life.ledger.rollouts if life.ledger.is_saved(name)} - asked
    asked |= new
    return await life_acknowledge(life, members) if new else ()


life_acknowledge = Life.acknowledge


async def acknowledgement_lost(world: World, acknowledge: Callable[..., Any]) -> list[str]:
    """The acknowledgement of a saved result is lost; what is still retained after the next checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Life, "acknowledge", acknowledge)
        async with world.coordinator(world.trainer()) as job:
            recovered = await job.recover()
            await job.run_batch(recovered.runnable(dispatches({"p1": 1})))
            world.network.faults = lambda call: Fault(refuse=True) if call.path.endswith("acknowledge") else None
            assert (await job.checkpoint(20)).published
            world.network.faults = None
            assert (await job.checkpoint(20)).published
            return [each.episode.rollout_id for each in world.deployments.fleet.retained()]


def test_s35_ack_lost() -> None:
    """S35: what is owed is read from the servers' lists each time, so that a lost acknowledgement is made again.

    From memory it is made once, and the server keeps the result for ever. Covers: I66, I67.
    """
    asked: set[str] = set()

    async def from_memory(life: Life, members: Any = None) -> tuple[str, ...]:
        return await once_only(life, asked, members)

    assert seen(acknowledgement_lost, from_memory) == ["p1"]
    assert seen(acknowledgement_lost, Life.acknowledge) == []


# --- S53


class NoTurns:
    """The fault: a result reaches the trainer whenever it comes, also while the trainer saves."""

    async def __aenter__(self) -> None:
        await trio.lowlevel.checkpoint()

    async def __aexit__(self, *_: object) -> None:
        await trio.lowlevel.checkpoint()


class SavesLast(SmallTrainer):
    """A trainer that writes at the end of its save what it has by then."""

    async def save(self, directory: Path, dispositions: Mapping[str, Disposition]) -> None:
        if self.on_save is not None:
            await self.on_save()
        self.on_save = None
        await super().save(directory, dispositions)


@frozen
class Moment:
    """What a checkpoint says of a rollout: in its ledger, and whether its trainer's state has the result."""

    ledger: str
    consumed: bool


async def result_in_the_save(world: World, turns: Callable[[], Any]) -> Moment:
    """A rollout ends while the trainer saves."""
    trainer = SavesLast(world.disk)

    async def slow() -> None:
        fleet = world.deployments.fleet
        late = fleet.episodes[EpisodeId("late")]
        late.turn = 9
        fleet.finish(late)
        late.done.set()
        await trio.sleep(3)

    async with running(world.coordinator(trainer), dispatches({"late": 9})) as (job, _):
        assert job._life is not None
        job._life.hooks = turns()
        await trio.sleep(1.5)
        trainer.on_save = slow
        outcome = await job.checkpoint(20)
        assert isinstance(outcome, Published), outcome.story()
    checkpoint = world.store().read(world.store().published()[-1])
    after = world.trainer()
    await after.load(checkpoint.framework)
    (row,) = checkpoint.ledger
    return Moment(str(row.status), "late" in after.loaded)


def test_s53_the_torn_group() -> None:
    """S53: ledger and trainer's state of a checkpoint are one moment: what comes during the save is in the next one.

    Without turns the trainer has trained on a result that its checkpoint's ledger has never heard of. Covers: I84.
    """
    assert seen(result_in_the_save, NoTurns) == Moment("live", consumed=True)
    assert seen(result_in_the_save, trio.Lock) == Moment("live", consumed=False)


# --- S66


NEVER_ASKED_S = 1e9
"""The fault: a server that nobody happens to call is not looked at."""


async def replaced_unnoticed(job: WholeJob, probe_every_s: float) -> str:
    """A supervisor brings the tools back, empty, and nobody calls them: what is known ten minutes later."""
    settings = CoordinatorSettings(probe_every_s=probe_every_s)
    async with job.coordinator(settings=settings) as coordinator, trio.open_nursery() as nursery:
        recovered = await coordinator.recover()
        nursery.start_soon(coordinator.run_batch, recovered.runnable(job.dispatches(3, "r1")))
        job.turnstile.allow("r1", 1)
        await settle()
        assert job.launcher is not None
        fresh = job.launcher.factories["tools"](1, {each: job.network.url(each) for each in job.network.up})
        await job.network.restart("tools", fresh)
        await trio.sleep(600)
        nursery.cancel_scope.cancel()
    return coordinator.restarts[0].reason if coordinator.restarts else "nothing"


def test_s66_the_restart_that_nobody_noticed() -> None:
    """S66: every server is asked regularly who it is; another process in its name is its death, and all start anew.

    Unless somebody asks, the rollout waits for a session that is gone, and nobody is told. Covers: I97.
    """
    assert seen_by_job(replaced_unnoticed, NEVER_ASKED_S) == "nothing"
    assert "another process answers in its name" in seen_by_job(replaced_unnoticed, 10.0)
