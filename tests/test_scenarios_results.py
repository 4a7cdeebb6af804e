"""S39, S40, S42, S52, S63: what becomes of dispatches and results. First the fault, then its absence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Concatenate, ParamSpec, TypeVar

import httpx
import pytest
import trio
import trio.testing
from attrs import evolve, frozen
from starlette.responses import JSONResponse

from participants.coordination import coordinator as coordinator_module
from participants.coordination import phases
from participants.coordination.coordinator import Coordinator, Published
from participants.coordination.deployment import Member
from participants.coordination.dispatch import Dispatcher
from participants.coordination.ledger import Ledger, rows_of
from participants.coordination.life import Life, _receipts
from participants.identity import EpisodeId
from participants.records.records import LedgerRow, RegistryRow
from tests.coordinator_world import World, a_world, abandoned, dispatches

P = ParamSpec("P")
T = TypeVar("T")


def seen(scenario: Callable[Concatenate[World, P], Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
    """What `scenario(world, ...)` saw, under a MockClock that jumps."""

    async def main() -> T:
        async with a_world() as world:
            return await scenario(world, *args, **options)

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def with_dispatcher(patch: pytest.MonkeyPatch, kind: type[Dispatcher]) -> None:
    patch.setattr(coordinator_module, "Dispatcher", kind)


# --- S39


class NamesAlone(Dispatcher):
    """The fault: whoever answers at a server's address is that server."""

    def _other_process(self, target: str, headers: httpx.Headers) -> str:
        return ""


async def replaced(world: World, kind: type[Dispatcher]) -> list[tuple[int, int]]:
    """Another process of its name answers the first `/run`: attempts and rewards that came to the trainer."""
    answers = iter([JSONResponse({"reward": 0}, headers={"x-statecore-incarnation": "e" * 32})])
    world.script("env", "run", lambda *_: next(answers, None))
    trainer = world.trainer()
    with pytest.MonkeyPatch.context() as patch:
        with_dispatcher(patch, kind)
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            await job.run_batch(recovered.runnable(dispatches({"p1": 1})))
    return [(each.attempt, each.body["reward"]) for each in trainer.accepted]


def test_s39_name_is_not_incarnation() -> None:
    """S39: an answer is of the process that the rollout was given to; another one of its name is a death, no result.

    By name alone, what a stranger says of our rollout is its result. Covers: I97.
    """
    assert seen(replaced, NamesAlone) == [(0, 0)]
    assert seen(replaced, Dispatcher) == [(1, 1)]


# --- S40


def as_it_was_read(
    reading: Ledger, _now: Ledger, settled: dict[str, Any], *more: Any
) -> tuple[tuple[RegistryRow, ...], tuple[LedgerRow, ...]]:
    """The fault: who was handed out after the ledger was read is in no row, though the cursor has gone past it."""
    return rows_of(reading, reading, settled, *more)


async def handed_out_during_a_save(world: World, rows: Callable[..., Any]) -> list[str]:
    """A rollout is handed out while the trainer saves, then everything dies: what waits in the next life."""
    trainer = world.trainer()

    async def play(job: Coordinator) -> None:
        recovered = await job.recover()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job.run_batch, recovered.runnable(dispatches({"p1": 9})))
            await trio.sleep(1.5)

            async def hand_out() -> None:
                job.runnable(dispatches({"q1": 1}))

            trainer.on_save = hand_out
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published), outcome.story()
            nursery.cancel_scope.cancel()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phases, "rows_of", rows)
        await abandoned(world, world.coordinator(trainer), play)
    async with world.coordinator(world.trainer()) as job:
        recovered = await job.recover()
        return sorted(each.rollout_id for each in recovered.runnable().episodes)


def test_s40_the_cursor_ran_ahead() -> None:
    """S40: whoever was handed out by the time the checkpoint is written is in it, and waits in the next life.

    In a checkpoint of what was read before the save it is missing, and the cursor does not hand it out again.
    Covers: I88.
    """
    assert seen(handed_out_during_a_save, as_it_was_read) == ["p1"]
    assert seen(handed_out_during_a_save, rows_of) == ["p1", "q1"]


# --- S42


class AllTogether(Dispatcher):
    """The fault: a rollout without a result is an error, and an error ends the batch."""

    async def _run_one(self, rollout_id: str, lost: dict[str, str], errors: list[Exception]) -> None:
        await super()._run_one(rollout_id, lost, errors)
        if rollout_id in lost:
            raise RuntimeError(lost[rollout_id])


@frozen
class Ended:
    """How a batch ended, and whose results the trainer has."""

    how: str
    results: tuple[str, ...]


async def one_fails(world: World, kind: type[Dispatcher]) -> Ended:
    """Of three rollouts one fails at once, one has ended by then, one still runs."""
    new = [*dispatches({"ok": 1, "slow": 3}), *dispatches({"failed": 2}, fails=[500, "execution_failed"])]
    trainer, how = world.trainer(), "to its end"
    with pytest.MonkeyPatch.context() as patch:
        with_dispatcher(patch, kind)
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            try:
                report = await job.run_batch(recovered.runnable(new))
                assert set(report.lost) == {"failed"}
            except* RuntimeError as group:
                how = str(group.exceptions[0])[:25]
    return Ended(how, tuple(trainer.ids))


def test_s42_one_failing_rollout_throws_away_its_finished_neighbours() -> None:
    """S42: a rollout without a result is in the report, and its neighbours' results come.

    Where it is an error of the batch, whoever was still running has run for nothing. Covers: I68, I97.
    """
    assert seen(one_fails, AllTogether) == Ended("HTTP 500 execution_failed", ("ok",))
    assert seen(one_fails, Dispatcher) == Ended("to its end", ("ok", "slow"))


# --- S52


class Acknowledging(Dispatcher):
    """The fault: what was acknowledged is done with, and nobody keeps it for a trainer that has rolled back."""

    async def redeliver(self, rollout_ids: Iterable[str]) -> None:
        for _ in rollout_ids:
            await trio.lowlevel.checkpoint()


async def rolled_back(world: World, kind: type[Dispatcher]) -> list[str]:
    """A result is saved and released, and the trainer's saved state lacks it: what comes to it after a death."""

    async def play(job: Coordinator) -> None:
        recovered = await job.recover()
        await job.run_batch(recovered.runnable(dispatches({"p1": 2})))
        trainer.accepted.clear()  # it is not trained on yet, so that a saved state does not have it
        assert (await job.checkpoint(20)).published
        assert world.history.released == ["p1"]

    trainer = world.trainer()
    await abandoned(world, world.coordinator(trainer), play)
    after = world.trainer()
    with pytest.MonkeyPatch.context() as patch:
        with_dispatcher(patch, kind)
        async with world.coordinator(after) as job:
            recovered = await job.recover()
            await job.run_batch(recovered.runnable())
    return after.ids


def test_s52_acknowledged_dropped_and_the_trainer_rolled_back() -> None:
    """S52: the ledger keeps a saved result until a durable state of the trainer has it, and hands it over again.

    Where acknowledged is done with, the result is gone with its server, and its rollout is completed. Covers: I67, I87.
    """
    assert seen(rolled_back, Acknowledging) == []
    assert seen(rolled_back, Dispatcher) == ["p1"]


# --- S63


async def only_the_winner(life: Life, member: Member, _problems: list[str]) -> None:
    """The fault: acknowledged is the receipt of the result that stands, and no other one of its rollout."""
    if member.name == "env":
        listed = await member.control.results(timeout_s=30)
        known = {name: each.receipt for name, each in life.ledger.rollouts.items()}
        winners = [each for each in _receipts(listed) if known.get(each.rollout_id) == each]
        await member.control.acknowledge([each.to_json() for each in winners])


async def two_attempts(world: World, acknowledge: Callable[..., Any]) -> list[int]:
    """Two attempts of a rollout have a result each: the attempts whose results are retained after two checkpoints."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Life, "_acknowledge", acknowledge)
        async with world.coordinator(world.trainer()) as job:
            recovered = await job.recover()
            await job.run_batch(recovered.runnable(dispatches({"p1": 1})))
            fleet = world.deployments.fleet
            winner = fleet.episodes[EpisodeId("p1")]
            other = fleet.episodes[EpisodeId("p1", 1)] = evolve(winner, episode=EpisodeId("p1", 1))
            fleet.finish(other)
            for _ in range(2):
                assert (await job.checkpoint(20)).published
            return [each.episode.attempt for each in fleet.retained()]


def test_s63_two_attempts_two_results() -> None:
    """S63: what is retained is acknowledged once its rollout is saved, winner or not.

    Where only the result that stands is acknowledged, the other one is kept for ever. Covers: I69, I75.
    """
    assert seen(two_attempts, only_the_winner) == [1]
    assert seen(two_attempts, Life._acknowledge) == []
