"""S1, S2, S10, S13, S37: what happens to a whole job. First the fault, then its absence."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from attrs import define, evolve, frozen

from participants.coordination import coordinator as coordinator_module
from participants.coordination.coordinator import Aborted, Coordinator, Published
from participants.coordination.dispatch import Answer, Dispatcher, _Patience
from participants.coordination.ledger import Rollout
from participants.coordination.outcomes import Batch, Blocker, Recovered
from participants.coordination.trainer import Dispatch
from participants.identity import EpisodeId
from participants.net.http import ASGIApp
from participants.records.records import Disposition, task_digest
from participants.servers.agent import Agent
from participants.servers.auxiliary_model import AuxiliaryModel
from participants.servers.environment import Environment
from participants.servers.executions import Execution
from participants.servers.part import Json, Report
from participants.servers.policy_model import PolicyModel
from participants.settings import Seams, Settings
from tests.scenario_fleet import seen_by_job
from tests.small_job import counter_resources, counting_agent, counting_environment
from tests.whole_job import PlainTrainer, WholeJob, settle

Server = Callable[..., Any]


def kill(job: WholeJob, nursery: trio.Nursery) -> None:
    """All servers at once, and the coordinator's tasks in `nursery`: nothing is sent any more."""
    assert job.launcher is not None
    nursery.cancel_scope.cancel()
    job.launcher.kill()


# --- S1


def score(_path: str, _body: Any) -> Any:
    return {"choices": [{"message": {"role": "assistant", "content": "good"}}]}


class InheritedRole(PolicyModel):
    """The fault: a judge is a model server, and has the role that model servers have."""


@frozen
class Judged:
    """What came of a checkpoint while a tool needed the judge, who held the call, and the reward in the end."""

    outcome: str
    blockers: tuple[str, ...]
    reward: int


async def judged(job: WholeJob, kind: Server) -> Judged:
    """A tool call under way asks the judge once the policy model is closed."""
    slow = trio.Event()

    async def ask_the_judge() -> None:
        await slow.wait()
        url = job.network.url("judge") + "/v1/chat/completions"
        reply = await job.network.client("tools").post(url, json={"messages": []})
        assert reply.json() == score("", {})

    def judge(config: Settings, with_seams: Seams, transport: httpx.AsyncBaseTransport) -> ASGIApp:
        app: ASGIApp = kind("judge", config, score, seams=with_seams, transport=transport).app()
        return app

    job.makers |= {"judge": judge, "tools": partial(counter_resources, before=ask_the_judge)}
    job.turnstile.allow("r1", 2)
    async with job.coordinator() as coordinator, trio.open_nursery() as nursery:
        recovered = await coordinator.recover()
        nursery.start_soon(coordinator.run_batch, recovered.runnable(job.dispatches(2, "r1")))
        await settle()
        nursery.start_soon(after, 1.0, slow)
        outcome = await coordinator.checkpoint(timeout_s=60)
    blockers = outcome.blockers if isinstance(outcome, Aborted) else ()
    assert job.trainer is not None
    return Judged(
        type(outcome).__name__, tuple(each.rollout_id for each in blockers), job.trainer.accepted["r1"]["reward"]
    )


async def after(seconds: float, event: trio.Event) -> None:
    await trio.sleep(seconds)
    event.set()


def test_s01_judge_taken_for_a_policy() -> None:
    """S1: a judge says that it is one, is never paused, and the call that needs it ends, so its rollout parks.

    A judge that inherits the policy's role is closed with it: the tool waits for the judge, the rollout never parks,
    and no checkpoint succeeds while judges are asked. Covers: I73.
    """
    assert seen_by_job(judged, InheritedRole) == Judged("Aborted", ("r1",), reward=3)
    assert seen_by_job(judged, AuxiliaryModel) == Judged("Published", (), reward=3)


# --- S2


class KeptLive(Environment):
    """The fault: a rollout counts as running until its result is acknowledged."""

    def ended(self, execution: Execution) -> None:
        if not execution.retained:
            super().ended(execution)

    def acknowledge(self, value: Any) -> Json:
        answer = super().acknowledge(value)
        for receipt in answer["acknowledged"]:
            self._episodes.pop(EpisodeId(receipt["rollout_id"], receipt["attempt"])).end()
        return answer


async def half_a_group(job: WholeJob, kind: type[Environment]) -> list[str]:
    """r1 of a group has finished, r2 stands at its first boundary: what two checkpoints come to."""
    job.makers["env"] = partial(counting_environment, kind=kind)
    group = [evolve(each, group="g1") for each in job.dispatches(2, "r1", "r2")]
    told = []
    async with job.coordinator() as coordinator, trio.open_nursery() as nursery:
        recovered = await coordinator.recover()
        job.turnstile.allow("r1", 2)
        job.turnstile.allow("r2", 1)
        nursery.start_soon(coordinator.run_batch, recovered.runnable(group))
        await settle()
        for _ in range(2):
            outcome = await coordinator.checkpoint(timeout_s=60)
            if isinstance(outcome, Published):
                counts = outcome.counts
                told.append(f"{counts[Disposition.COMPLETED]} completed, {counts[Disposition.CONTINUE]} continue")
            else:
                told.append(", ".join(f"{each.server} waits for {each.rollout_id}" for each in outcome.blockers))
        nursery.cancel_scope.cancel()
    return told


def test_s02_group_waits_block_snapshots() -> None:
    """S2: a result that waits for its prompt group is retained, and a checkpoint has it as completed.

    Where a rollout counts as running until its result is acknowledged, it blocks every checkpoint, and a checkpoint is
    what would acknowledge it. Covers: I66, I69.
    """
    assert seen_by_job(half_a_group, KeptLive) == ["env waits for r1"] * 2
    assert seen_by_job(half_a_group, Environment) == ["1 completed, 1 continue"] * 2


# --- S10


class SilentAgent(Agent):
    """The fault: a report that says that something moves, and not what."""

    def report(self) -> Report:
        return evolve(super().report(), blockers=())


async def blocked(job: WholeJob, kind: type[Agent]) -> tuple[Blocker, ...]:
    """The tool of r2 takes longer than a checkpoint may: whom the aborted checkpoint names."""
    slow = trio.Event()

    async def before() -> None:
        if job.turnstile.generated["r2"]:
            await slow.wait()

    job.makers |= {
        "tools": partial(counter_resources, before=before),
        "simple_agent": partial(counting_agent, kind=kind),
    }
    async with job.coordinator() as coordinator, trio.open_nursery() as nursery:
        recovered = await coordinator.recover()
        nursery.start_soon(coordinator.run_batch, recovered.runnable(job.dispatches(2, "r1", "r2")))
        job.turnstile.allow("r1", 1)
        await settle()
        job.turnstile.allow("r2", 1)
        await settle()
        outcome = await coordinator.checkpoint(timeout_s=60)
        assert isinstance(outcome, Aborted), outcome.story()
        nursery.cancel_scope.cancel()
    return outcome.blockers


def test_s10_invisible_blockers() -> None:
    """S10: a checkpoint that does not get ready says which rollout it waits for, where, why and for how long.

    From a report without blockers nobody learns more than that a server is not ready. Covers: I18.
    """
    assert seen_by_job(blocked, SilentAgent) == (Blocker(server="simple_agent", reason="it does not say why"),)
    (named,) = seen_by_job(blocked, Agent)
    assert (named.server, named.rollout_id, named.attempt) == ("simple_agent", "r2", 0)
    assert named.reason == "its loop runs"
    assert named.waited_s is not None and 55 < named.waited_s <= 60


# --- S13


class TombstonesExclude:
    """The fault, for any kind: a rollout with a tombstone is left out of every commit."""

    fences: Any

    def export(self, scope: frozenset[EpisodeId] | None) -> Iterable[Json]:
        for record in super().export(scope):  # type: ignore[misc]
            if record["episode_id"]["rollout_id"] not in self.fences.passed:
                yield record


class ExcludingAgent(TombstonesExclude, Agent):
    pass


class ExcludingEnvironment(TombstonesExclude, Environment):
    pass


async def twice(
    job: WholeJob, agent: type[Agent] = Agent, environment: type[Environment] = Environment
) -> list[tuple[int, int, int]]:
    """A checkpoint, a crash, one more turn, a checkpoint: (continued, agents' records, environments') in each."""
    job.makers |= {
        "simple_agent": partial(counting_agent, kind=agent),
        "env": partial(counting_environment, kind=environment),
    }
    found = []
    new = job.dispatches(5, "r1", "r2")
    for turns in (2, 3):
        async with job.coordinator() as coordinator, trio.open_nursery() as nursery:
            recovered = await coordinator.recover()
            for rollout in ("r1", "r2"):
                job.turnstile.allow(rollout, turns)
            nursery.start_soon(coordinator.run_batch, recovered.runnable(new))
            await settle()
            outcome = await coordinator.checkpoint(timeout_s=60)
            assert isinstance(outcome, Published), outcome.story()
            kill(job, nursery)
        checkpoint = job.store().read(job.store().published()[-1])
        agents, environments = (len(checkpoint.of_kind(kind)[0].records) for kind in ("agent", "environment"))
        found.append((outcome.counts[Disposition.CONTINUE], agents, environments))
    return found


def test_s13_second_checkpoint_after_a_restore_is_empty() -> None:
    """S13: what is fenced and what a commit leaves out are two sets; the checkpoint after a restore is whole.

    Where tombstones exclude, attempt 0's keeps attempt 1 out of every later checkpoint. Covers: I8, I62.
    """
    assert seen_by_job(twice, Agent, ExcludingEnvironment) == [(2, 2, 2), (0, 2, 0)]
    assert seen_by_job(twice, ExcludingAgent) == [(2, 2, 2), (0, 0, 2)]
    assert seen_by_job(twice) == [(2, 2, 2), (2, 2, 2)]


# --- S37


class RecordsLate(Dispatcher):
    """The fault: a dispatch is recorded when its first answer comes, after its request has left."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._unrecorded: dict[str, Dispatch] = {}

    def runnable(self, new_dispatches: Iterable[Dispatch]) -> Batch:
        known = super().runnable(())
        self._unrecorded |= {each.rollout_id: each for each in new_dispatches}
        new = tuple(EpisodeId(name) for name in self._unrecorded)
        self._handed_out |= set(self._unrecorded)
        return Batch(known.episodes + new)

    async def _until_final(self, rollout_id: str) -> Answer:
        dispatch = self._unrecorded.pop(rollout_id, None)
        if dispatch is None:
            return await super()._until_final(rollout_id)
        rollout = Rollout(dispatch=dispatch, digest=task_digest(dispatch.task))
        answer = await self._ask(rollout, _Patience(self._life), self._life.serving)
        ledger, _ = self._life.ledger.registered([dispatch])
        self._life.note(ledger.dispatched([rollout_id]))
        return answer


@define(eq=False)
class CursorTrainer(PlainTrainer):
    """A trainer whose saved state holds its data cursor as well: what is behind it is not handed out again."""

    data: tuple[Dispatch, ...] = ()
    cursor: int = 0

    def next_batch(self) -> list[Dispatch]:
        batch, self.cursor = list(self.data[self.cursor :]), len(self.data)
        return batch

    async def save(self, directory: Path, dispositions: Mapping[str, Disposition]) -> None:
        await super().save(directory, dispositions)
        with self.disk.create(directory / "cursor.json") as file:
            file.write(json.dumps(self.cursor).encode())

    async def load(self, directory: Path) -> None:
        await super().load(directory)
        self.cursor = json.loads(self.disk.read(directory / "cursor.json"))


@asynccontextmanager
async def life(job: WholeJob) -> AsyncIterator[tuple[Coordinator, Recovered, CursorTrainer]]:
    """A coordinator that has recovered, with its trainer, whose data is one rollout."""
    async with job.coordinator() as coordinator:
        trainer = job.trainer
        assert isinstance(trainer, CursorTrainer)
        trainer.data = tuple(job.dispatches(3, "r1"))
        yield coordinator, await coordinator.recover(), trainer


@frozen
class Traced:
    """What the second life knows of the rollout, and whether its result came in the end."""

    verdicts: tuple[tuple[str, str], ...]
    results: tuple[str, ...]


async def without_a_trace(job: WholeJob, kind: type[Dispatcher]) -> Traced:
    """A checkpoint falls into the first turn of a rollout just dispatched, then everything dies."""
    job.trainer_kind = CursorTrainer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator_module, "Dispatcher", kind)
        async with life(job) as (coordinator, recovered, trainer), trio.open_nursery() as nursery:
            nursery.start_soon(coordinator.run_batch, recovered.runnable(trainer.next_batch()))
            await settle()
            outcome = await coordinator.checkpoint(timeout_s=60)
            assert isinstance(outcome, Published), outcome.story()
            kill(job, nursery)
        job.turnstile.allow("r1", 3)
        async with life(job) as (coordinator, recovered, trainer):
            await coordinator.run_batch(recovered.runnable(trainer.next_batch()))
            verdicts = tuple((each.rollout_id, str(each.disposition)) for each in recovered.verdicts)
            return Traced(verdicts, tuple(trainer.accepted))


def test_s37_the_accepted_run_that_left_no_trace() -> None:
    """S37: a dispatch is in the registry before its request leaves: after a crash it is fresh, and its result comes.

    Recorded with its first answer, it is in no checkpoint before that, and the cursor has gone past it: nobody runs it
    again, and nobody is told. Covers: I12, I88.
    """
    assert seen_by_job(without_a_trace, RecordsLate) == Traced((), ())
    assert seen_by_job(without_a_trace, Dispatcher) == Traced((("r1", "fresh"),), ("r1",))
