"""Collects: hands tasks to the coordinator, keeps each result in the output, and checkpoints when it is time. trio.

A `Collector` is the framework's half (docs/reference/integration-contract.md): its state is a cursor into the tasks and
the results that it has accepted, and rolls back with the checkpoint; the output does not. So a result that was written
after the checkpoint in force stands when its rollout runs again (S63), and a task that was not in it is not run again
at all. `collect` is the loop, and ends when every task has a result, when it is asked to stop, or by an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Set
from enum import StrEnum, auto
from pathlib import Path
from typing import Final

import trio
from attrs import define, field, frozen, validators

from statecore.seams import Disk, on_disk
from statecore.wire import canonical, parse, structure, unstructure

from ..coordination.coordinator import Coordinator
from ..coordination.outcomes import Aborted, Batch, Published, Recovered, Restarted
from ..coordination.trainer import Dispatch, Result
from ..records.records import Disposition
from .output import OutputError, OutputFile, standing_elsewhere
from .tasks import InputError, Tasks

STATE_FILE: Final = "collector.json"
AHEAD: Final = 2
"""So many times the rollouts that may run at once are known to the coordinator: each checkpoint holds all that is."""


@frozen(kw_only=True)
class CollectSettings:
    """How to collect. Times in seconds.

    `concurrency`: so many rollouts run at once. `every_s`: a checkpoint so long after the one before has ended, None
    for none but those that are asked for. `timeout_s` bounds a checkpoint. `final_tries`: how often the checkpoint
    before an end is tried.
    """

    concurrency: int = field(default=32, validator=validators.ge(1))
    every_s: float | None = field(default=300.0)
    timeout_s: float = field(default=60.0, validator=validators.gt(0))
    final_tries: int = field(default=3, validator=validators.ge(1))

    @every_s.validator
    def _is_an_interval(self, _attribute: object, value: float | None) -> None:
        if value is not None and not value > 0:
            raise ValueError(f"every_s must be greater than 0, or None, not {value}")


class Ask(StrEnum):
    """What somebody may ask for while it runs."""

    CHECKPOINT = auto()
    STOP = auto()
    """A checkpoint, and then the end."""


@frozen
class State:
    """All that is saved: whose tasks they are, how many were handed out, whose results were accepted."""

    tasks: str
    cursor: int
    accepted: tuple[str, ...]


@frozen(kw_only=True)
class Ending:
    """How it ended: `stopped` on request, before the end; `lost` are rollouts without a result, each with the reason.

    `checkpoint` is what came of the last one.
    """

    stopped: bool
    lost: Mapping[str, str]
    checkpoint: Published | Aborted


class Watcher:
    """What is told while it runs; a subclass shows it. Nothing here waits."""

    def recovered(self, recovered: Recovered) -> None:
        """It begins, or goes on from a checkpoint."""

    def result(self, result: Result) -> None:
        """A result is in the output, and was not before."""

    def checkpoint(self, outcome: Published | Aborted) -> None:
        """A checkpoint has ended."""

    def restarted(self, report: Restarted) -> None:
        """All servers were started anew, since one had died."""


@define(eq=False)
class Collector:
    """The framework's half of a collection, and its output. A `Trainer` with `save_result`; one for one coordinator."""

    tasks: Tasks
    output: OutputFile
    disk: Disk
    watcher: Watcher = field(factory=Watcher)
    cursor: int = 0
    _digest: str = field(init=False)  # of all tasks, made once
    _accepted: set[str] = field(factory=set)
    _writing: trio.Lock = field(factory=trio.Lock)

    def __attrs_post_init__(self) -> None:
        self._digest = self.tasks.digest

    # --- what the coordinator calls

    async def save(self, directory: Path, dispositions: Mapping[str, Disposition]) -> None:
        state = State(self._digest, self.cursor, tuple(sorted(self._accepted)))
        await on_disk(self.disk, self._write, directory / STATE_FILE, canonical(unstructure(state)))

    def _write(self, path: Path, content: bytes) -> None:
        with self.disk.create(path) as file:
            file.write(content)
            file.fsync()

    async def load(self, directory: Path) -> None:
        """InputError when the checkpoint is of other tasks; OutputError when the output lacks what it counts."""
        state = structure(parse(await on_disk(self.disk, self.disk.read, directory / STATE_FILE)), State)
        if state.tasks != self._digest:
            raise InputError("the checkpoint is of other tasks, repeats or target; give it a directory of its own")
        if gone := sorted(set(state.accepted) - self.output.standing.keys()):
            lacks = f"lacks {len(gone)} results that the checkpoint counts ({gone[0]} is the first)"
            mend = "bring the file back, or begin anew with another directory of checkpoints"
            raise OutputError(f"{self.output.path} {lacks}; {mend}")
        self.cursor, self._accepted = state.cursor, set(state.accepted)

    async def save_result(self, result: Result) -> Result:
        async with self._writing:
            new = result.rollout_id not in self.output.standing
            standing = await on_disk(self.disk, self.output.keep, result)
        if new:
            self.watcher.result(result)
        return standing

    async def accept(self, result: Result) -> None:
        self._accepted.add(result.rollout_id)

    async def consumed(self) -> Set[str]:
        return set(self._accepted)

    async def restarted(self, report: Restarted) -> None:
        self.watcher.restarted(report)

    # --- what the loop asks

    def check_output(self) -> None:
        """Each row of the output is of one of these tasks; OutputError else. Before anything runs."""
        known = {self.tasks.rollout_id(number): number for number in range(len(self.tasks))}
        for rollout_id in self.output.standing:
            number = known.get(rollout_id)
            if number is None or standing_elsewhere(self.output.standing, self.tasks.dispatch(number)):
                raise OutputError(
                    f"{self.output.path} has a result of another task as {rollout_id}; name another output"
                )

    def take(self, most: int) -> tuple[Dispatch, ...]:
        """The next tasks that have no result yet, at most so many; the cursor is behind them. Does not wait (S40)."""
        taken: list[Dispatch] = []
        while len(taken) < most and self.cursor < len(self.tasks):
            if self.tasks.rollout_id(self.cursor) not in self.output.standing:
                taken.append(self.tasks.dispatch(self.cursor))
            self.cursor += 1
        return tuple(taken)


async def collect(
    job: Coordinator,
    collector: Collector,
    settings: CollectSettings,
    asked: Callable[[], Awaitable[Ask]],
) -> Ending:
    """Every task has a result in the output, or `asked` has returned `Ask.STOP` and what runs is in a checkpoint.

    `asked` returns whenever somebody asks for something, and is called again. The coordinator's `max_running` bounds
    what runs at once. Raises OutputError before anything runs, and what `recover`, `run_batch` and `checkpoint` raise,
    the latter two in an ExceptionGroup.
    """
    collector.check_output()
    recovered = await job.recover()
    collector.watcher.recovered(recovered)
    run = _Run(job, collector, settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.feed, recovered)
        nursery.start_soon(run.keep_time)
        nursery.start_soon(run.listen, asked)
        await run.over.wait()
        last = await run.save_at_the_end()  # what runs goes on meanwhile: its results are awaited, or its turns saved
        nursery.cancel_scope.cancel()
    return Ending(stopped=run.stopping, lost=dict(run.lost), checkpoint=last)


class _Run:
    """One collection under way."""

    def __init__(self, job: Coordinator, collector: Collector, settings: CollectSettings) -> None:
        self.over = trio.Event()
        self.stopping = False
        self.lost: dict[str, str] = {}
        self._job, self._collector, self._settings = job, collector, settings
        self._running = 0
        self._room = trio.Event()
        self._saving = trio.Lock()

    async def feed(self, recovered: Recovered) -> None:
        """What the checkpoint had goes out, and tasks behind it as others end, until there are none."""
        async with trio.open_nursery() as nursery:
            batch = recovered.runnable()
            while True:
                for episode in (*batch.episodes, *self._next().episodes):
                    self._running += 1
                    nursery.start_soon(self._run_one, Batch((episode,)))
                if not self._running:
                    break
                await self._room.wait()
                self._room, batch = trio.Event(), Batch()
        self.over.set()

    def _next(self) -> Batch:
        """More tasks, if there is room; the cursor moves and they are registered: no await between (S40)."""
        room = 0 if self.stopping else AHEAD * self._settings.concurrency - self._running
        return self._job.runnable(self._collector.take(room)) if room > 0 else Batch()

    async def _run_one(self, batch: Batch) -> None:
        report = await self._job.run_batch(batch)
        self.lost.update(report.lost)
        self._running -= 1
        self._room.set()

    async def keep_time(self) -> None:
        """A checkpoint every so often."""
        while self._settings.every_s is not None:
            await trio.sleep(self._settings.every_s)
            await self._save()

    async def listen(self, asked: Callable[[], Awaitable[Ask]]) -> None:
        """What is asked for is done."""
        while True:
            if await asked() is Ask.STOP:
                self.stopping = True
                self.over.set()
            else:
                await self._save()

    async def save_at_the_end(self) -> Published | Aborted:
        """What came of the last checkpoint; one that fails is tried again."""
        for _ in range(self._settings.final_tries - 1):
            if (outcome := await self._save()).published:
                return outcome
        return await self._save()

    async def _save(self) -> Published | Aborted:
        async with self._saving:
            outcome = await self._job.checkpoint(self._settings.timeout_s)
            self._collector.watcher.checkpoint(outcome)
        return outcome
