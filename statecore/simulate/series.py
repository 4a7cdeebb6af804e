"""Many seeds on many cores: what came of each, how fast it goes, and which of them failed.

Each core has a process that plays one seed after the other. If such a process itself dies (it is killed, or runs out of
memory), the seeds that were under way are played again, one after the other: the one that ends its process fails.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import pickle
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Final

from attrs import define, evolve, field, frozen

from ..seams import Clock, SystemClock
from .run import Outcome, Problem, SimulationError, World, run

TOLD_EVERY_S: Final = 0.5
TURN: Final = 4
"""So many seeds a process is given at once."""
NO_COUNTS: Final[Mapping[str, int]] = {}


@frozen(kw_only=True)
class Progress:
    """How far a series is. `of` is None when only the time bounds it."""

    done: int
    of: int | None
    failed: int
    seconds: float
    left_s: float | None
    counts: Mapping[str, int]

    @property
    def rate(self) -> float:
        """Seeds a second."""
        return self.done / self.seconds if self.seconds else 0.0


@define(kw_only=True)
class Series:
    """What came of a series. `failed` are outcomes without their history, which a replay gives again.

    `interrupted` says that it was ended by Ctrl-C, before its bound.
    """

    done: int = 0
    seconds: float = 0.0
    jobs: int = 1
    counts: Counter[str] = field(factory=Counter)
    virtual_s: float = 0.0
    failed: list[Outcome] = field(factory=list)
    interrupted: bool = False

    @property
    def good(self) -> bool:
        return not self.failed

    @property
    def rate(self) -> float:
        """Seeds a second."""
        return self.done / self.seconds if self.seconds else 0.0


def cores() -> int:
    """How many processes a series has if nobody says."""
    return multiprocessing.cpu_count()


def series(
    world: World,
    *,
    first: int = 0,
    seeds: int | None = None,
    seconds: float | None = None,
    jobs: int | None = None,
    told: Callable[[Progress], None] = lambda progress: None,
    failed: Callable[[Outcome], None] = lambda outcome: None,
    clock: Clock | None = None,
) -> Series:
    """The seeds from `first` on were played, `seeds` of them, or as many as begin within `seconds`; one bound at least.

    `world` has to be a function of a module, so that other processes find it. `failed` is told of each seed with
    problems as soon as it is known, `told` now and then of all. Ctrl-C ends it early, and what came is returned.
    ValueError without a bound, SimulationError for a world that other processes do not find.
    """
    if seeds is None and seconds is None:
        raise ValueError("a series needs a bound: a number of seeds, or a time")
    clock = clock or SystemClock()
    came = Series(jobs=jobs or cores())
    watch = _Watch(came, seeds, seconds, clock, told, failed)
    try:
        if came.jobs == 1:
            for seed in watch.seeds(first):
                watch.came_of(_play(world, seed, 1))
        else:
            _on_cores(world, first, watch)
    except KeyboardInterrupt:
        came.interrupted = True
    came.seconds = watch.passed
    return came


def histories(world: World, seed: int, times: int, *, jobs: int | None = None) -> Counter[str]:
    """The seed was played so many times, in several processes; how often which history came, by its SHA-256.

    One seed has one history: there is one entry. Each process hashes strings in its own way.
    """
    jobs = min(times, jobs or cores())
    shares = [times // jobs + (number < times % jobs) for number in range(jobs)]
    came: Counter[str] = Counter()
    _check_found(world)
    with _pool(jobs) as pool:
        try:
            for digests in pool.map(_digests, [world] * jobs, [seed] * jobs, shares):
                came.update(digests)
        except BrokenProcessPool as error:
            raise SimulationError(f"a process that played seed {seed} has died: {error}") from error
    return came


def _digests(world: World, seed: int, times: int) -> list[str]:
    return [hashlib.sha256(run(world, seed).history).hexdigest() for _ in range(times)]


def _check_found(world: World) -> None:
    try:
        pickle.dumps(world)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise SimulationError(f"other processes cannot be given {world!r}; make it a function of a module") from error


def _pool(processes: int) -> ProcessPoolExecutor:
    """Processes that end without a word on an interrupt at the terminal, which reaches them too, and with this one."""
    return ProcessPoolExecutor(
        processes, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_the_others
    )


def _end_with_the_others() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()


def _end_with_parent() -> None:
    """Whoever is killed closes no pool, and the pool's processes would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    signal.raise_signal(signal.SIGTERM)


def _on_cores(world: World, first: int, watch: _Watch) -> None:
    _check_found(world)
    turns = watch.seeds(first, TURN)
    while under_way := _until_one_dies(world, first, watch, turns):
        seeds = [begin + number for begin in sorted(under_way) for number in range(watch.size(first, begin))]
        while seeds:
            seeds = _one_by_one(world, seeds, watch)


def _until_one_dies(world: World, first: int, watch: _Watch, turns: Iterator[int]) -> set[int]:
    """The turns that were under way when a process died; none when all are over."""
    under_way: set[int] = set()
    running: dict[Future[list[Outcome]], int] = {}
    with _pool(watch.came.jobs) as pool:
        try:
            while True:
                while len(running) < 2 * watch.came.jobs and (seed := next(turns, None)) is not None:
                    under_way.add(seed)
                    running[pool.submit(_play, world, seed, watch.size(first, seed))] = seed
                if not running:
                    return under_way
                done, _ = wait(running, timeout=TOLD_EVERY_S, return_when=FIRST_COMPLETED)
                watch.tell()
                for each in done:
                    watch.came_of(each.result())
                    under_way.remove(running.pop(each))
        except BrokenProcessPool:
            return under_way
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _one_by_one(world: World, seeds: list[int], watch: _Watch) -> list[int]:
    """What is left of the seeds behind the one that ended the process, which has failed."""
    with _pool(1) as pool:
        for number, seed in enumerate(seeds):
            try:
                watch.came_of(pool.submit(_play, world, seed, 1).result())
            except BrokenProcessPool as error:
                problem = Problem("exception", f"the process that played seed {seed} has died: {error}")
                dead = Outcome(seed=seed, problems=(problem,), history=b"", counts=NO_COUNTS, virtual_s=0.0)
                watch.came_of([dead])
                return seeds[number + 1 :]
    return []


def _play(world: World, first: int, number: int) -> list[Outcome]:
    """The outcomes of so many seeds, without their histories."""
    return [evolve(run(world, seed), history=b"") for seed in range(first, first + number)]


class _Watch:
    """Counts, and knows when a series is over."""

    def __init__(
        self,
        came: Series,
        wanted: int | None,
        seconds: float | None,
        clock: Clock,
        told: Callable[[Progress], None],
        failed: Callable[[Outcome], None],
    ) -> None:
        self.came = came
        self._wanted, self._seconds, self._clock, self._told, self._failed = wanted, seconds, clock, told, failed
        self._began = clock.monotonic()
        self._next_told = 0.0

    @property
    def passed(self) -> float:
        return self._clock.monotonic() - self._began

    def seeds(self, first: int, step: int = 1) -> Iterator[int]:
        """The seeds that begin a turn, as long as the bounds allow another one."""
        seed = first
        while (self._wanted is None or seed < first + self._wanted) and (
            self._seconds is None or self.passed < self._seconds
        ):
            yield seed
            seed += step

    def size(self, first: int, seed: int) -> int:
        """How many seeds the turn that begins with `seed` has."""
        return TURN if self._wanted is None else min(TURN, first + self._wanted - seed)

    def came_of(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            self.came.done += 1
            self.came.virtual_s += outcome.virtual_s
            self.came.counts.update(outcome.counts)
            if not outcome.good:
                self.came.failed.append(outcome)
                self._failed(outcome)
        self.tell()

    def tell(self) -> None:
        passed = self.passed
        if passed < self._next_told:
            return
        self._next_told = passed + TOLD_EVERY_S
        done, left = self.came.done, [] if self._seconds is None else [max(0.0, self._seconds - passed)]
        if self._wanted is not None and done:
            left.append(passed / done * (self._wanted - done))
        self._told(
            Progress(
                done=done,
                of=self._wanted,
                failed=len(self.came.failed),
                seconds=passed,
                left_s=min(left, default=None),
                counts=self.came.counts,
            )
        )
