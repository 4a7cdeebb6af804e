"""What is done to a job in one kill run: drawn from a seed, so that the same seed does the same again. Pure.

Every run is a number. Its first blow is taken from a list of all kinds and moments, gone through one after the other in
an order that looks random, so that so many runs in a row meet each pair once; all else is drawn.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from attrs import evolve, frozen

from participants.demo.moments import Moment
from participants.demo.plan import Options, Plan, make_plan
from participants.demo.servers import MODULES
from statecore.wire import canonical

JOBS: Final = 4
"""So many different jobs there are; the undisturbed run of each is made once and serves all runs of that job."""
PACE: Final = 0.6
STAGGER_S: Final = 0.3


class Kind(StrEnum):
    """What is hit. The five after ALL are one server each, whose coordinator lives and starts all of them anew.

    ZOMBIE: the coordinator is stopped with SIGSTOP and goes on later, when it has a successor. FROZEN: one server is,
    and its coordinator is killed. PAUSED: one server is, for a moment, and its coordinator lives.
    """

    COORDINATOR = "coordinator"
    ALL = "all"
    POLICY = "policy"
    AGENT = "agent"
    GAME = "game"
    ENVIRONMENT = "environment"
    JUDGE = "judge"
    ZOMBIE = "zombie"
    FROZEN = "frozen"
    PAUSED = "paused"


SERVERS: Final = frozenset({Kind.POLICY, Kind.AGENT, Kind.GAME, Kind.ENVIRONMENT, Kind.JUDGE})
ENDS_THE_LIFE: Final = frozenset({Kind.COORDINATOR, Kind.ALL, Kind.ZOMBIE, Kind.FROZEN})


class Start(StrEnum):
    """Moments of a start, besides those of a checkpoint: the base is recorded, the servers are up, the first of them
    has its restored state, the first of them is open."""

    CLAIMED = "claimed"
    STARTED = "started"
    RESTORED = "restored"
    OPENED = "opened"


When = str
"""The value of a Moment or of a Start."""
WHENS: Final[tuple[When, ...]] = tuple(each.value for each in (*Moment, *Start))
STARTS: Final = frozenset(each.value for each in Start)


class Wakes(StrEnum):
    """When whoever was stopped goes on: its successor has claimed, is running, or has ended the job."""

    CLAIMED = "claimed"
    RUNNING = "running"
    ENDED = "ended"


@frozen(kw_only=True)
class Blow:
    """One blow. `checkpoint`: so many of its life's checkpoints come before (of a start: of no matter).

    `late_s`: so much later than the moment. `server`: which one is stopped. `wakes`, `pause_s`: until when.
    """

    kind: Kind
    when: When
    checkpoint: int = 0
    late_s: float = 0.0
    server: str = ""
    wakes: Wakes = Wakes.RUNNING
    pause_s: float = 0.0

    def __str__(self) -> str:
        which = "" if self.when in STARTS else f" of checkpoint {self.checkpoint + 1}"
        late = f" and {1000 * self.late_s:.0f} ms" if self.late_s else ""
        server = f" {self.server}" if self.server else ""
        wakes = ""
        if self.kind is Kind.PAUSED:
            wakes = f" for {1000 * self.pause_s:.0f} ms"
        elif self.kind in (Kind.ZOMBIE, Kind.FROZEN):
            wakes = f", wakes when its successor is {self.wakes}"
        return f"{self.kind}{server} at {self.when}{which}{late}{wakes}"

    @property
    def signal(self) -> str:
        return "SIGSTOP, SIGCONT" if self.kind in (Kind.ZOMBIE, Kind.FROZEN, Kind.PAUSED) else "SIGKILL"


@frozen(kw_only=True)
class Run:
    """One kill run: its blows in order. `every_s`: how long a life waits between two checkpoints.

    `fault`: a rule that is taken out on purpose, as by `statecore demo --break`.
    """

    seed: int
    job: int
    blows: tuple[Blow, ...]
    every_s: float
    fault: str = ""

    @property
    def lives(self) -> tuple[tuple[Blow, ...], ...]:
        """The blows by the life that they fall into: each life but the last has one that ends it, its last one."""
        lives: list[tuple[Blow, ...]] = [()]
        for blow in self.blows:
            lives[-1] = (*lives[-1], blow)
            if blow.kind in ENDS_THE_LIFE:
                lives.append(())
        return tuple(lives)


def pairs(kinds: Sequence[Kind]) -> list[tuple[Kind, When]]:
    """Each kind with each moment, in a fixed order in which neighbours have little in common."""
    every = [(kind, when) for kind in kinds for when in WHENS]
    random.Random("kinds and moments").shuffle(every)
    return _spread(every, len(kinds))


def _spread(every: list[tuple[Kind, When]], width: int) -> list[tuple[Kind, When]]:
    """The same, so that soon after the beginning each kind and each moment has been met."""
    kinds: dict[Kind, int] = {}
    whens: dict[When, int] = {}
    left, ordered = list(every), []
    while left:
        best = min(left, key=lambda pair: kinds.get(pair[0], 0) * len(WHENS) + whens.get(pair[1], 0) * width)
        left.remove(best)
        ordered.append(best)
        kinds[best[0]] = kinds.get(best[0], 0) + 1
        whens[best[1]] = whens.get(best[1], 0) + 1
    return ordered


def draw(seed: int, kinds: Sequence[Kind] = tuple(Kind)) -> Run:
    """The run of this number; the same for the same number and kinds."""
    dice = random.Random(f"kill run {seed}")
    every = pairs(kinds)
    blows = [_blow(*every[seed % len(every)], dice)]
    if blows[0].when == Start.RESTORED or (blows[0].when in STARTS and dice.random() < 0.5):
        enders = [kind for kind in kinds if kind in ENDS_THE_LIFE] or [Kind.ALL]
        blows.insert(0, _blow(dice.choice(enders), dice.choice((Moment.PUBLISHED.value, Moment.IDLE.value)), dice))
    while len(blows) < 3 and dice.random() < 0.3:
        blows.append(_blow(*dice.choice(every), dice))
    return Run(seed=seed, job=dice.randrange(JOBS), blows=tuple(blows), every_s=round(dice.uniform(0.2, 0.9), 2))


def _blow(kind: Kind, when: When, dice: random.Random) -> Blow:
    blow = Blow(
        kind=kind,
        when=when,
        checkpoint=0 if when in STARTS else dice.randrange(2),
        late_s=round(dice.choice((0.0, 0.0, 0.002, 0.01, 0.05)) * dice.uniform(0.5, 1.0), 4),
        wakes=dice.choice(list(Wakes)),
    )
    if when == Start.CLAIMED and kind not in (Kind.COORDINATOR, Kind.ZOMBIE):
        blow = evolve(blow, late_s=round(dice.uniform(0.05, 1.5), 2))  # there are servers by then
    if kind in (Kind.FROZEN, Kind.PAUSED):
        blow = evolve(blow, server=dice.choice(sorted(MODULES)))
    return evolve(blow, pause_s=round(dice.uniform(0.1, 4.0), 2)) if kind is Kind.PAUSED else blow


def job(number: int, fault: str = "") -> Plan:
    """The job of this number: two groups, mixed games, a few turns each, thinking a little."""
    plan = make_plan(Options(rollouts=6, turns=4, seed=1000 + number))
    return evolve(plan, pace=PACE, stagger_s=STAGGER_S, fault=fault)


def put(path: Path, value: Any) -> None:
    """The file is there, whole, with this value."""
    new = path.with_suffix(".new")
    new.write_bytes(canonical(value))
    new.rename(path)
