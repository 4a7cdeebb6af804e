"""What is shown of the job, as values: per rollout its turns, the phase of the checkpoint, and what happened when.

It is drawn from what the servers' journals say and what the story tells it; it decides and counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum, auto
from typing import Final

import trio
from attrs import define, field, frozen

from ..coordination.recovery import Verdict
from ..machines.transaction import TransactionState
from ..records.records import Disposition
from .counting import Held
from .lines import Event, Line
from .plan import Plan

STANDS: Final = frozenset(
    {
        TransactionState.COMMITTING,
        TransactionState.SETTLING,
        TransactionState.SAVING,
        TransactionState.VALIDATING,
        TransactionState.PUBLISHED,
    }
)
WORDS: Final = {Disposition.CONTINUE: "goes on", Disposition.FRESH: "starts over", Disposition.QUEUED: "starts"}


class Cell(StrEnum):
    """One turn: OPEN is not finished, DONE finished, HELD in the checkpoint, LOST finished and gone with the crash,
    REDONE lost and finished again, BROKEN held and yet run again (never)."""

    OPEN = auto()
    DONE = auto()
    HELD = auto()
    LOST = auto()
    REDONE = auto()
    BROKEN = auto()


class Tone(StrEnum):
    """What kind of thing happened."""

    PLAIN = auto()
    GOOD = auto()
    CHECKPOINT = auto()
    CRASH = auto()
    BAD = auto()


@define(eq=False)
class Row:
    """One rollout. `done` are turns finished in this life, `held` how many the checkpoint in force has."""

    rollout_id: str
    env_id: str
    turns: int
    held: int = 0
    done: set[int] = field(factory=set)
    lost: set[int] = field(factory=set)
    redone: set[int] = field(factory=set)
    broken: set[int] = field(factory=set)
    status: str = ""
    reward: float | None = None

    def cell(self, turn: int) -> Cell:
        if turn in self.broken:
            return Cell.BROKEN
        if turn in self.redone:
            return Cell.REDONE
        if turn <= self.held:
            return Cell.HELD
        if turn in self.done:
            return Cell.DONE
        return Cell.LOST if turn in self.lost else Cell.OPEN

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(self.cell(turn) for turn in range(1, self.turns + 1))

    def finished(self, turn: int, crashed: bool) -> None:
        """This turn was finished; `crashed`: after the crash, so that it may be one that was there before."""
        self.done.add(turn)
        if crashed and turn <= self.held:
            self.broken.add(turn)
        elif turn in self.lost:
            self.redone.add(turn)


@frozen
class Happened:
    """Something worth a line: seconds since the beginning, a text, and its tone."""

    at_s: float
    text: str
    tone: Tone


@define(eq=False)
class Picture:
    """The job as it stands. `told` is called with everything that happened; `now` gives seconds.

    `ended`: nothing of this life is running any more, so that no further turn will be finished in it.
    """

    plan: Plan
    now: Callable[[], float] = trio.current_time
    told: Callable[[Happened], None] = lambda happened: None
    title: str = ""
    headline: str = ""
    rows: dict[str, Row] = field(init=False)
    happened: list[Happened] = field(factory=list)
    checkpoint_id: str = ""
    phases: list[tuple[TransactionState, float]] = field(factory=list)
    phase: TransactionState | None = None
    epoch: int | None = None
    crashed: bool = False
    ended: bool = False
    _phase_since: float = 0.0
    _began: float = field(init=False)
    _changed: trio.Event = field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self._began = self.now()
        self.rows = {each.rollout_id: Row(each.rollout_id, each.env_id, each.turns) for each in self.plan.rollouts}

    @property
    def elapsed_s(self) -> float:
        return self.now() - self._began

    @property
    def finished_turns(self) -> int:
        """Of this life."""
        return sum(len(row.done) for row in self.rows.values())

    @property
    def results(self) -> int:
        """How many rollouts have their result."""
        return sum(row.reward is not None for row in self.rows.values())

    async def until(self, condition: Callable[[], bool]) -> None:
        """The condition, about this picture, holds."""
        while not condition():
            await self._changed.wait()

    # --- what the journals say

    def saw(self, line: Line) -> None:
        """One line of a server's journal; those of another life than the present one change nothing."""
        row = self.rows.get(line.rollout)
        if row is None or line.epoch != self.epoch:
            return
        if line.event is Event.TURN and line.turn is not None:
            row.finished(line.turn, self.crashed)
            row.status = row.status or "plays"
        elif line.event is Event.RESULT:
            row.reward = line.reward
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # --- what the story says

    def rollouts_ended(self) -> None:
        """All rollouts of this life have ended, with a result or without."""
        self.ended = True
        self._notify()

    def say(self, text: str, tone: Tone = Tone.PLAIN) -> None:
        happened = Happened(self.elapsed_s, text, tone)
        self.happened.append(happened)
        self.told(happened)

    def entered(self, checkpoint_id: str, phase: TransactionState) -> None:
        """The checkpoint is in this phase now, and has left the one before."""
        if checkpoint_id != self.checkpoint_id:
            self.checkpoint_id, self.phases, self.phase = checkpoint_id, [], None
        if self.phase is not None:
            self.phases.append((self.phase, self.now() - self._phase_since))
        self.phase, self._phase_since = phase, self.now()

    def left_checkpoint(self) -> None:
        """No checkpoint is under way."""
        self.phase = None

    @property
    def stands(self) -> bool:
        """Every rollout waits for a checkpoint to end."""
        return self.phase in STANDS

    def in_force(self, held: Held) -> None:
        """These turns are safe."""
        for name, row in self.rows.items():
            row.held = held.turns.get(name, 0)

    def killed(self, held: Held) -> None:
        """The life is over; `held` is what the checkpoint in force has, and all else of it is lost."""
        self.epoch, self.crashed, self.ended = None, True, False
        self.in_force(held)
        for name, row in self.rows.items():
            row.lost = {turn for turn in row.done if turn > row.held}
            row.done = set()
            row.reward = row.reward if name in held.completed else None
            row.status = "on disk" if row.held else "lost" if row.lost or row.status else ""

    def restored(self, verdicts: Iterable[Verdict]) -> None:
        """What a restart made of each rollout."""
        for row in self.rows.values():
            row.status = ""
        for verdict in verdicts:
            word = WORDS.get(verdict.disposition)
            if word is not None and verdict.rollout_id in self.rows:
                self.rows[verdict.rollout_id].status = f"{word}, attempt {verdict.next_attempt}"
