"""One simulated run: a world is played from a seed, in virtual time, and what it did and broke is told.

A world is an async function of a `Simulation`. It makes processes, lets them talk over a network of its own (the one of
`participants.simulation` for HTTP) and to one shared disk, draws its faults from the simulation's dice, and says what
did not hold with `violated`. Virtual time passes only while every task waits, and then to the next timer; every message
is such a timer, and no two of them are due at one moment. So one message or timer is let go at a time.
"""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import trio
import trio.testing
from attrs import frozen

from ..errors import StatecoreError
from ..exception_groups import exceptions_in
from .crash_disk import Survives
from .dice import Dice
from .disks import SharedDisk
from .history import History
from .process import DriftingClock, Process
from .scheduling import tasks_in_order_of

WALL: Final = 1_790_000_000.0
LONGEST_S: Final = 20_000.0
"""So much virtual time a run may take, unless it is told otherwise."""
SURVIVES: Final = (Survives.NOTHING, Survives.EVERYTHING, Survives.NAMES, Survives.SOME, Survives.SOME)


@frozen
class Problem:
    """Something that must never be so. `rule` is the number of an invariant, or one word."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


@frozen(kw_only=True)
class Outcome:
    """What came of a seed. `history` is the whole run, line by line; `counts` what happened how often."""

    seed: int
    problems: tuple[Problem, ...]
    history: bytes
    counts: Mapping[str, int]
    virtual_s: float

    @property
    def good(self) -> bool:
        return not self.problems


class Simulation:
    """What a world is given: its dice, its history, its disk, and processes."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = Dice(f"simulation {seed}")
        self.history = History(trio.current_time)
        self.counts: Counter[str] = Counter()
        self.problems: list[Problem] = []
        self.disk = SharedDisk()
        self.disk.told = self._changed
        self._due: set[float] = set()
        self._times = self.dice.of("due")

    # --- processes

    def process(self, name: str, *, offset_s: float = 0.0, drift: float = 0.0) -> Process:
        """A new process, whose clock is off by so much; its dice are those of its name."""
        return Process(name, DriftingClock(WALL, offset_s, drift), self.dice.of(f"process {name}").entropy)

    def lose_power(self) -> None:
        """The disk as the next boot finds it; every process must have ended before."""
        dice = self.dice.of(f"power {self.counts['power lost']}")
        survives = dice.pick(SURVIVES)
        self.counts["power lost"] += 1
        self.history.tell("disk", "power lost", survives=survives.value)
        self.disk.lose_power(survives, dice.whole(0, 1 << 30))

    def _changed(self, who: str, operation: str, path: str) -> None:
        self.counts["disk operations"] += 1
        self.history.tell(who, operation, path=path)

    # --- time

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return trio.current_time()

    def due_in(self, seconds: float) -> float:
        """So many seconds, or a very little more: nothing else that was asked for here is due at the same moment."""
        now = trio.current_time()
        if len(self._due) > 4096:
            self._due = {each for each in self._due if each >= now}
        at = now + seconds
        while at in self._due:
            at = math.nextafter(at, math.inf)
        self._due.add(at)
        return at - now

    # --- what is found

    def count(self, what: str, number: int = 1) -> None:
        """It has happened so often more."""
        self.counts[what] += number

    def violated(self, rule: str, text: str) -> None:
        """The run is not as it must be; it goes on, so that everything else is looked at too."""
        self.problems.append(Problem(rule, text))
        self.history.tell("simulation", "violated", rule=rule, text=text)

    def ended_by(self, rule: str, text: str) -> None:
        """The last violation: why the run is over before its end."""
        self.problems.append(Problem(rule, text))
        self.history.conclude("simulation", "violated", rule=rule, text=text)

    def check(self, holds: bool, rule: str, text: Callable[[], str]) -> None:
        """`violated` unless it holds."""
        if not holds:
            self.violated(rule, text())


World = Callable[[Simulation], Awaitable[None]]
"""Plays one run. What it raises is a problem, an exit too; only an interrupt ends everything."""


def run(world: World, seed: int, *, longest_s: float = LONGEST_S) -> Outcome:
    """The world was played from this seed to its end, or for `longest_s` of virtual time, which is a problem too.

    Everything in it derives from the seed: a second call has an equal outcome.
    """
    with tasks_in_order_of(f"tasks {seed}"), _nothing_collected():
        return trio.run(_played, world, seed, longest_s, clock=trio.testing.MockClock(autojump_threshold=0))


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """The garbage collector does not run inside: when it would depends on what else the interpreter has in memory."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


async def _played(world: World, seed: int, longest_s: float) -> Outcome:
    simulation = Simulation(seed)
    bound = trio.move_on_after(longest_s)
    try:
        with bound:
            await world(simulation)
    except BaseException as error:
        if not all(isinstance(each, Exception | SystemExit) for each in exceptions_in(error)):
            raise
        simulation.ended_by("exception", _told(error))
    else:
        if bound.cancelled_caught:
            simulation.ended_by("ends", f"the run had not come to its end after {longest_s:g} s of virtual time")
    return Outcome(
        seed=seed,
        problems=tuple(simulation.problems),
        history=simulation.history.data,
        counts={name: simulation.counts[name] for name in sorted(simulation.counts)},
        virtual_s=round(trio.current_time(), 6),
    )


def _told(error: BaseException) -> str:
    """The exceptions in a group of groups, with where each came from."""
    return "; ".join(map(_told_alone, exceptions_in(error)))


def _told_alone(error: BaseException) -> str:
    place: Any = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = "" if place is None else f" ({place.tb_frame.f_code.co_qualname}, line {place.tb_lineno})"
    return f"{type(error).__name__}: {error}{where}"


class SimulationError(StatecoreError):
    """A simulation cannot be made like that; the message says what to change."""
