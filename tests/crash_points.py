"""Every point of a restore and a checkpoint where something can go wrong, one by one: `python -m tests.crash_points`.

A life of the whole job is restored from an older one's checkpoint, goes on, takes a checkpoint, and goes on to its end.
Its file operations and its messages are numbered, and the life is lived once for each number and each thing that can
happen there: the operation fails, the machine is gone and the disk has kept this or that, the request or the reply is
lost, the request comes twice, its server dies, all processes die, with what was not synced or without it. Then a next
life, undisturbed, must find the old checkpoint or the new one in force and bring the job to its right end. Real servers
of all kinds in memory, the real code for files on a disk that forgets, virtual time.
"""

from __future__ import annotations

import argparse
import copy
import errno
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from enum import StrEnum
from functools import cache
from typing import Any, Final

import trio
import trio.testing
from attrs import define, frozen

from participants.coordination.coordinator import Published
from participants.files.checkpoint import Checkpoint
from participants.records.manifests import CheckpointId
from participants.records.payloads import AgentBoundary
from participants.records.records import AgentRecord, Disposition
from participants.serving.testing import Call, Fault, InMemoryNetwork
from statecore.errors import StatecoreError
from statecore.simulate import Crash, CrashDisk, Survives
from tests.whole_job import ROOT, WholeJob, settle

TURNS: Final = {"short": 1, "middle": 3, "long": 4, "late": 2}
REWARDS: Final = {name: turns * (turns + 1) // 2 for name, turns in TURNS.items()}
OLD: Final = "ck-000001-000002"
NEW: Final = "ck-000002-000002"
NONE: Final = "none"
"""No checkpoint is in force."""
WAIT_S: Final = 5.0
PATIENCE_S: Final = 3_000.0
"""Virtual: leases, deadlines and restarts have long ended by then."""


class What(StrEnum):
    """What happens at a point; those of files first. A machine that is gone leaves a disk as `Survives` says."""

    EIO = "the operation fails: EIO"
    ENOSPC = "the operation fails: ENOSPC"
    SYNCED = "the machine is gone, what was synced is there"
    WRITTEN = "the machine is gone, what was written is there"
    NAMES = "the machine is gone, all names and what was synced are there"
    TORN = "the machine is gone, some of what was not synced is there"
    REQUEST_LOST = "the request is lost"
    REPLY_LOST = "the reply is lost"
    TWICE = "the request comes twice"
    SERVER_DIES = "its server dies"
    ALL_DIE = "all processes die"
    POWER = "the power is gone, what was synced is there"


ERRORS: Final = {What.EIO: errno.EIO, What.ENOSPC: errno.ENOSPC}
SURVIVES: Final = {
    What.SYNCED: Survives.NOTHING,
    What.WRITTEN: Survives.EVERYTHING,
    What.NAMES: Survives.NAMES,
    What.TORN: Survives.SOME,
}
FAULTS: Final = {
    What.REQUEST_LOST: Fault(lose_request=True),
    What.REPLY_LOST: Fault(lose_reply=True),
    What.TWICE: Fault(repeat_s=0.3),
}
OF_FILES: Final = (*ERRORS, *SURVIVES)
OF_MESSAGES: Final = (*FAULTS, What.SERVER_DIES, What.ALL_DIE, What.POWER)
LOST: Final = {**SURVIVES, What.POWER: Survives.NOTHING}


@frozen
class Point:
    """The `number`-th file operation (from 1) of the life, or its `number`-th message, and `what` happens there."""

    what: What
    number: int

    @property
    def is_of_files(self) -> bool:
        return self.what in OF_FILES

    def __str__(self) -> str:
        return f"{'file operation' if self.is_of_files else 'message'} {self.number}: {self.what}"


@frozen(kw_only=True)
class Came:
    """What came of it: at which operation or call it struck ("" if the life has none of that number), which checkpoint
    was in force for the next life, and what was wrong.
    """

    point: Point
    place: str
    in_force: str
    found: tuple[str, ...]


@define(eq=False)
class Strike:
    """Counts operations and messages of one life, and strikes once."""

    point: Point
    job: WholeJob
    disk: CrashDisk
    machine: trio.CancelScope
    operations: int = 0
    messages: int = 0
    place: str = ""

    def on_disk(self, operation: str, path: str) -> None:
        self.operations += 1
        if not self.point.is_of_files or self.operations != self.point.number:
            return
        self.place = f"{operation} {path}"
        if self.point.what in ERRORS:
            raise OSError(ERRORS[self.point.what], self.point.what.value, path)
        self._all_die()
        self.disk.crash_at(0)
        raise Crash(str(self.point))

    def on_network(self, call: Call) -> Fault | None:
        self.messages += 1
        if self.point.is_of_files or self.messages != self.point.number:
            return None
        self.place = f"{call.source} to {call.server} {call.path}"
        if self.point.what in (What.ALL_DIE, What.POWER):
            self._all_die()
            if self.point.what is What.POWER:
                self.disk.crash_at(0)
        elif self.point.what is What.SERVER_DIES and call.server in self.job.network.up:
            self.job.network.kill(call.server)
        return FAULTS.get(self.point.what)

    def _all_die(self) -> None:
        for name in self.job.network.up:
            self.job.network.kill(name)
        self.machine.cancel()


# --- lives


@cache
def older_life() -> CrashDisk:
    """What the first life left: one result is saved, two rollouts stand in their middle."""
    disk = CrashDisk()
    disk.mkdir(ROOT)
    disk.fsync_dir(ROOT.parent)  # whoever sets up a root sees to that

    async def main(job: WholeJob) -> None:
        async with job.coordinator() as coordinator, trio.open_nursery() as nursery:
            recovered = await coordinator.recover()
            nursery.start_soon(coordinator.run_batch, recovered.runnable(dispatches(job, "short", "middle", "long")))
            await allowed(job, short=1, middle=1, long=2)
            outcome = await coordinator.checkpoint()
            assert isinstance(outcome, Published) and outcome.checkpoint_id == OLD, outcome.story()
            nursery.cancel_scope.cancel()
            kill_all(job)

    played(disk, 0, main)
    return disk.after_kill()


async def struck_life(job: WholeJob, strike: Strike) -> bool:
    """The life that is disturbed, as far as it gets; whether its checkpoint was published, as far as it knows."""
    published = False
    try:
        with strike.machine:
            async with job.coordinator() as coordinator, trio.open_nursery() as nursery:
                recovered = await coordinator.recover()
                nursery.start_soon(coordinator.run_batch, recovered.runnable(dispatches(job, "late")))
                await allowed(job, middle=2, long=3, late=1)
                outcome = await coordinator.checkpoint(timeout_s=60)
                published = isinstance(outcome, Published)
                await allowed(job, **TURNS)
                nursery.cancel_scope.cancel()
    except* Crash:
        pass  # the machine is gone, whoever noticed first
    except* (OSError, StatecoreError):
        pass  # a start that is refused: the next life has to do it
    kill_all(job)
    return published


async def last_life(job: WholeJob) -> tuple[str, list[str]]:
    """Which checkpoint was in force, and what is wrong."""
    found = []
    seen = len(job.turnstile.seen)
    for name, turns in TURNS.items():
        job.turnstile.allow(name, turns)
    async with job.coordinator() as coordinator:
        recovered = await coordinator.recover()
        in_force = recovered.checkpoint_id or NONE
        held = held_turns(job, in_force)
        trainer = job.trainer
        assert trainer is not None
        loaded = set(trainer.accepted)
        report = await coordinator.run_batch(recovered.runnable(dispatches(job, *TURNS)))
        if report.lost:
            found.append(f"the last life lost {report.lost}")
        outcome = await coordinator.checkpoint(timeout_s=60)
        if not isinstance(outcome, Published):
            found.append(outcome.story())
        rewards = {name: body["reward"] for name, body in trainer.accepted.items()}
        if rewards != REWARDS:
            found.append(f"the trainer has {rewards}")
        found += [f"{name} was delivered again" for name in loaded & set(trainer.deliveries)]
        times = Counter(trainer.deliveries)
        found += [f"{name} was delivered {times[name]} times" for name in times if times[name] > 1]
        kill_all(job)
    for rollout, turn in job.turnstile.seen[seen:]:
        if turn <= held.get(rollout, 0):
            found.append(f"turn {turn} of {rollout}, which {in_force} held, ran again")
    return in_force, found


def came_of(point: Point) -> Came:
    """The life is struck at that point, and the next one looks at what is left."""
    old = older_life()
    disk = copy.deepcopy(old)
    found: list[str] = []
    told: list[Any] = []

    async def first(job: WholeJob) -> None:
        strike = Strike(point, job, disk, trio.CancelScope())
        disk.fault, job.network.faults = strike.on_disk, strike.on_network
        held = held_turns(job, OLD)
        published = await struck_life(job, strike)
        told.extend([strike.place, published])
        for rollout, turn in job.turnstile.seen:
            if turn <= held.get(rollout, 0):
                found.append(f"turn {turn} of {rollout}, which {OLD} held, ran again")

    async def second(job: WholeJob) -> None:
        in_force, wrong = await last_life(job)
        told.append(in_force)
        found.extend(wrong)

    played(disk, 1, first)
    gone = point.what in LOST and bool(told[0])
    left = disk.after_crash(LOST[point.what], point.number) if gone else disk.after_kill()
    left.fault = lambda operation, path: None
    played(left, 2, second)
    place, published, in_force = told
    if in_force == NONE:
        found.append("no checkpoint is in force")
    if published and in_force == OLD:
        found.append("it was published, and the old one is in force")
    return Came(point=point, place=place, in_force=in_force, found=tuple(dict.fromkeys(found)))


def played(disk: CrashDisk, lives: int, main: Callable[[WholeJob], Any]) -> None:
    """One life on this disk, in virtual time. What servers let out of their handlers is a finding, but for a crash."""

    async def run() -> None:
        async with InMemoryNetwork() as network:
            anything: Any = disk
            job = WholeJob(network, disk=anything, lives=lives)
            with trio.fail_after(PATIENCE_S):
                await main(job)
            wrong = [each for each in network.errors if not isinstance(each.error, Crash)]
            assert not wrong, wrong

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def kill_all(job: WholeJob) -> None:
    for name in job.network.up:
        job.network.kill(name)


def held_turns(job: WholeJob, checkpoint_id: str) -> dict[str, int]:
    """How many turns the checkpoint holds of each rollout that it continues."""
    which = CheckpointId.parse(checkpoint_id)
    if which is None:
        return {}
    checkpoint: Checkpoint = job.store().read(which)
    going_on = {each.rollout_id for each in checkpoint.registry if each.disposition is Disposition.CONTINUE}
    found: dict[str, int] = {}
    for part in checkpoint.parts:
        for record in part.typed:
            boundary = AgentBoundary.read(record.boundary) if isinstance(record, AgentRecord) else None
            if boundary is not None and record.episode_id.rollout_id in going_on:
                found[record.episode_id.rollout_id] = boundary.boundary_index
    return found


def dispatches(job: WholeJob, *names: str) -> list[Any]:
    return [each for name in names for each in job.dispatches(TURNS[name], name)]


async def allowed(job: WholeJob, **turns: int) -> None:
    """These rollouts may take so many turns, and have had the time for it."""
    for name, count in turns.items():
        job.turnstile.allow(name, count)
    await trio.sleep(WAIT_S)
    await settle()


# --- all of them


def points(every: int = 1) -> Iterator[Point]:
    """Every `every`-th point, of each kind of thing that can happen."""
    counted = count()
    for index, what in enumerate((*OF_FILES, *OF_MESSAGES)):
        last = counted[what in OF_FILES]
        yield from (Point(what, number) for number in range(1 + index % every, last + 1, every))


@cache
def count() -> dict[bool, int]:
    """How many file operations (true) and messages (false) the undisturbed life has."""
    disk = copy.deepcopy(older_life())
    counted: dict[bool, int] = {}

    async def main(job: WholeJob) -> None:
        strike = Strike(Point(What.EIO, 0), job, disk, trio.CancelScope())
        disk.fault, job.network.faults = strike.on_disk, strike.on_network
        assert await struck_life(job, strike)
        counted.update({True: strike.operations, False: strike.messages})

    played(disk, 1, main)
    return counted


def main(argv: Sequence[str] | None = None) -> int:
    """0: at every point it was right. 1: at some it was not."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash_points", description=__doc__)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every Nth point only (1)")
    parser.add_argument("--jobs", type=int, default=2, metavar="K", help="so many at a time (2)")
    kinds = ", ".join(What.__members__)
    parser.add_argument("--point", nargs=2, metavar=("WHAT", "NUMBER"), help=f"one alone; WHAT is one of {kinds}")
    args = parser.parse_args(argv)
    if args.every < 1 or args.jobs < 1:
        parser.error("--every and --jobs are 1 or more")
    if args.point is not None and (args.point[0] not in What.__members__ or not args.point[1].isdigit()):
        parser.error(f"--point {' '.join(args.point)}: one of {kinds}, and a number")
    logging.getLogger("statecore").addHandler(logging.NullHandler())  # what goes wrong on purpose is not to be printed
    began = time.monotonic()
    one = [] if args.point is None else [Point(What[args.point[0]], int(args.point[1]))]
    chosen = one or list(points(args.every))
    in_force: Counter[str] = Counter()
    wrong = 0
    with ProcessPoolExecutor(args.jobs) as pool:
        for came in pool.map(came_of, chosen, chunksize=8):
            in_force[came.in_force] += 1
            wrong += bool(came.found)
            if came.found or args.point is not None:
                print(f"{came.point} ({came.place}), {came.in_force}: {'; '.join(came.found) or 'right'}", flush=True)
    counted = count()
    print(
        f"{counted[True]} file operations and {counted[False]} messages, {len(chosen)} points, "
        f"{', '.join(f'{which} in force {times} times' for which, times in sorted(in_force.items()))}, "
        f"{time.monotonic() - began:.0f} s: {f'{wrong} WRONG' if wrong else 'all right'}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
