"""One server dies: the others are stopped with it, all start anew, and the trainer notices nothing but a pause.

Real servers in memory, in virtual time: each kind of server dies in each phase of a checkpoint and outside of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import trio
from attrs import define, field

from participants.coordination.coordinator import Aborted, Coordinator, Published
from participants.coordination.outcomes import Restarted
from participants.coordination.trainer import Result
from participants.records.records import Disposition
from statecore.journal import Journal
from statecore.wire import parse
from tests.whole_job import NAMES, PlainTrainer, WholeJob, run, settle

TURNS = {"short": 1, "middle": 3, "long": 5}
REWARDS = {"short": 1, "middle": 6, "long": 15}
PHASES = ("freezing", "preparing", "committing", "settling", "saving", "validating", "published", "resuming", "idle")


@define(eq=False)
class Attentive(PlainTrainer):
    """A trainer that keeps receipts and hears of restarts."""

    reports: list[Restarted] = field(factory=list)
    receipts: list[tuple[str, int, int | None]] = field(factory=list)

    async def accept(self, result: Result) -> None:
        await super().accept(result)
        self.receipts.append((result.rollout_id, result.attempt, result.receipt.epoch))

    async def restarted(self, report: Restarted) -> None:
        self.reports.append(report)


@define(eq=False)
class InPhase:
    """A journal in memory that does something once, when a checkpoint enters a phase."""

    phase: str = ""
    then: Callable[[], object] | None = None
    lines: list[dict[str, Any]] = field(factory=list)

    def __call__(self, data: bytes) -> None:
        line = parse(data)
        self.lines.append(line)
        if line["machine"] == "transaction" and line["next"] == self.phase and line["state"] != self.phase:
            then, self.then = self.then, None
            if then is not None:
                then()

    def of(self, machine: str) -> list[tuple[str, str]]:
        return [(line["state"], line["next"]) for line in self.lines if line["machine"] == machine]


@define(eq=False)
class Story:
    """A job of three rollouts, told step by step; `outcomes` of its checkpoints, `report` of its batch."""

    job: WholeJob
    coordinator: Coordinator
    seen: InPhase
    outcomes: list[Published | Aborted] = field(factory=list)
    report: Any = None

    @property
    def trainer(self) -> Attentive:
        assert isinstance(self.job.trainer, Attentive)
        return self.job.trainer

    def kill(self, name: str) -> None:
        assert self.job.launcher is not None
        self.job.launcher.kill(name)

    async def allow(self, **turns: int) -> None:
        for name, count in turns.items():
            self.job.turnstile.allow(name, count)
        await settle()

    async def checkpoint(self) -> Published | Aborted:
        self.outcomes.append(await self.coordinator.checkpoint(timeout_s=60))
        return self.outcomes[-1]

    async def until_restarted(self, times: int = 1) -> Restarted:
        with trio.fail_after(1000):
            while len(self.coordinator.restarts) < times:  # noqa: ASYNC110 (in virtual time)
                await trio.sleep(1)
        return self.coordinator.restarts[-1]


async def tell(job: WholeJob, body: Callable[[Story], Any], *, then: Callable[[Story], Any] | None = None) -> Story:
    """`body` runs beside the batch; then all turns are allowed, the batch ends, and a last checkpoint is published."""
    job.trainer_kind = Attentive
    seen = InPhase()
    async with job.coordinator(journal=Journal(seen, job.clock)) as coordinator:
        recovered = await coordinator.recover()
        story = Story(job, coordinator, seen)

        async def run_batch() -> None:
            story.report = await coordinator.run_batch(recovered.runnable(rollouts(job)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_batch)
            await body(story)
            await story.allow(**TURNS)
        if then is not None:
            await then(story)
        assert isinstance(await story.checkpoint(), Published), story.outcomes[-1].story()
    return story


def rollouts(job: WholeJob) -> list[Any]:
    return [each for name, turns in TURNS.items() for each in job.dispatches(turns, name)]


def ends_well(story: Story) -> None:
    """Every result once, equal to the undisturbed run, each under a name of its own, and all of them saved."""
    assert story.report.delivered == 3, story.report
    assert {name: body["reward"] for name, body in story.trainer.accepted.items()} == REWARDS
    assert sorted(story.trainer.deliveries) == sorted(TURNS)
    assert len(set(story.trainer.receipts)) == 3
    store = story.job.store()
    newest = store.read(store.published()[-1])
    assert {row.rollout_id: row.disposition for row in newest.registry} == dict.fromkeys(TURNS, Disposition.COMPLETED)
    assert [name for name in story.job.disk.listdir("/job") if name.endswith(".partial")] == []


def turns_played_twice(job: WholeJob) -> set[tuple[str, int]]:
    return {turn for turn, times in Counter(job.turnstile.seen).items() if times > 1}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("phase", PHASES)
def test_s65_a_server_dies_in_a_phase_of_a_checkpoint(name: str, phase: str) -> None:
    """What the checkpoint in force holds is not played again, results that came stay, nothing is lost or doubled.

    Covers: I65, I68, I96, I97.
    """

    async def body(story: Story) -> None:
        await story.allow(short=1, middle=1, long=2)
        assert isinstance(await story.checkpoint(), Published)
        await story.allow(middle=2, long=3)
        story.seen.phase, story.seen.then = phase, lambda: story.kill(name)
        outcome = await story.checkpoint()
        assert outcome.published or phase not in ("published", "resuming", "idle")
        report = await story.until_restarted()
        base = story.outcomes[1 if outcome.published else 0].checkpoint_id
        assert report.checkpoint_id == base
        assert (report.count(Disposition.CONTINUE), report.count(Disposition.COMPLETED)) == (2, 1)
        assert name in report.reason

    async def test(job: WholeJob) -> None:
        story = await tell(job, body)
        ends_well(story)
        assert story.trainer.reports == list(story.coordinator.restarts)
        assert turns_played_twice(job) <= ({("middle", 2), ("long", 3)} if not story.outcomes[1].published else set())
        assert sorted(job.store().claims()) == [1, 2]

    run(test)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("published", [True, False], ids=["after a checkpoint", "before any"])
def test_s65_a_server_dies_while_rollouts_run(name: str, published: bool) -> None:
    """Between checkpoints: those that had ended stay completed, the others go on from what is published.

    Covers: I67, I97.
    """

    async def body(story: Story) -> None:
        await story.allow(middle=1, long=2)
        if published:
            assert isinstance(await story.checkpoint(), Published)
        await story.allow(short=1, long=3)
        assert story.trainer.deliveries == ["short"]
        story.kill(name)
        report = await story.until_restarted()
        going_on = 2 if published else 0
        assert (report.count(Disposition.CONTINUE), report.count(Disposition.FRESH)) == (going_on, 2 - going_on)
        assert report.count(Disposition.COMPLETED) == 1

    async def test(job: WholeJob) -> None:
        story = await tell(job, body)
        ends_well(story)
        held = {("middle", 1), ("long", 1), ("long", 2)}
        again = turns_played_twice(job)
        assert again <= ({("long", 3)} if published else held | {("long", 3)})
        assert not (published and again & held)

    run(test)


@pytest.mark.parametrize("name", NAMES)
def test_s66_a_restart_that_nobody_noticed(name: str) -> None:
    """Somebody brings a server back, empty, at the same address, and nobody happens to call it: it is found anyway.

    No call is on its way to it; the next probe shows another process. Covers: I97.
    """

    async def body(story: Story) -> None:
        await story.allow(middle=1, long=2)
        assert isinstance(await story.checkpoint(), Published)
        job = story.job
        assert job.launcher is not None
        fresh = job.launcher.factories[name](1, {each: job.network.url(each) for each in NAMES})
        await job.network.restart(name, fresh)
        began = trio.current_time()
        report = await story.until_restarted()
        assert "another process answers in its name" in report.reason and name in report.reason
        assert trio.current_time() - began < 25
        assert report.count(Disposition.CONTINUE) == 2

    async def test(job: WholeJob) -> None:
        ends_well(await tell(job, body))
        assert turns_played_twice(job) == set()

    run(test)


def test_s66_nothing_runs_and_a_server_is_replaced() -> None:
    """All rollouts have ended; the death is noticed, and the results are in the next checkpoint."""

    async def after(story: Story) -> None:
        story.kill("tools")
        report = await story.until_restarted()
        assert (report.checkpoint_id, report.count(Disposition.COMPLETED)) == (None, 3)

    async def body(_story: Story) -> None:
        await settle()

    async def test(job: WholeJob) -> None:
        ends_well(await tell(job, body, then=after))

    run(test)


def test_s64_one_checkpoint_restored_twice_by_one_coordinator() -> None:
    """Each start is an epoch of its own, so N+1 of the one is told from N+1 of the other. Covers: I96."""

    async def body(story: Story) -> None:
        await story.allow(short=1, middle=1, long=2)
        assert isinstance(await story.checkpoint(), Published)
        for times, name in enumerate(("env", "policy_model"), 1):
            story.kill(name)
            report = await story.until_restarted(times)
            assert report.epoch == 1 + times
            assert {each.next_attempt for each in report.verdicts} == {None, 1}
        await story.allow(middle=2)

    async def test(job: WholeJob) -> None:
        story = await tell(job, body)
        ends_well(story)
        assert turns_played_twice(job) == set()
        assert {receipt[1:] for receipt in story.trainer.receipts} == {(0, 1), (1, 3)}
        claims = job.store().claims()
        assert [None if each.base is None else str(each.base.start) for each in claims.values()] == [
            "None",
            "ck-000001-000002",
            "ck-000001-000002",
        ]
        assert story.seen.of("deployment").count(("restoring", "serving")) == 2

    run(test)
