"""The framework's data cursor and the registry of rollouts: nobody behind a saved cursor is missing.

The framework moves its cursor and hands out rollouts at any moment, also while a checkpoint is made: after the ledger
was read, and before or after its cursor was saved. Then everything dies, and the cursor and the registry are what the
newest checkpoint holds. docs/reference/protocol.md sections 6 and 13.
"""

from __future__ import annotations

from functools import cache

from attrs import frozen

from participants.coordination.ledger import Ledger, rows_of
from participants.coordination.trainer import Dispatch
from statecore.properties import always, final, recoverable, sometimes
from statecore.world import World, action, crash, durable, ghost, param, slot, volatile

Ids = tuple[str, ...]


@frozen(cache_hash=True)
class Saved:
    """A checkpoint: how far the cursor was, and of whom there is a row."""

    cursor: int
    rows: Ids


@cache
def registered(known: Ids, handed_out: Ids) -> tuple[Ids, Ids]:
    """Who is known after these were handed out, and who of them was not known before (I12)."""
    ledger, new = _ledger(known).registered(Dispatch(name, f"task of {name}", "agent") for name in handed_out)
    return tuple(ledger.rollouts), tuple(episode.rollout_id for episode in new)


@cache
def rows(reading: Ids, now: Ids) -> Ids:
    """Of whom a checkpoint has a row."""
    registry, _ = rows_of(_ledger(reading), _ledger(now), {})
    return tuple(row.rollout_id for row in registry)


def _ledger(known: Ids) -> Ledger:
    ledger, _ = Ledger().registered(Dispatch(name, f"task of {name}", "agent") for name in known)
    return ledger


class HandingOutWorld(World):
    """A framework with a list of tasks, a coordinator in the same process, a disk."""

    tasks = param(3)
    crashes = param(1)

    crashes_left: int = slot(make=lambda world: world.crashes)
    cursor: int = volatile(0, of="job")  # the task that is handed out next
    known: Ids = volatile((), of="job")
    waiting: Ids = volatile((), of="job")  # to be sent
    reading: Ids | None = volatile(None, of="job")  # a checkpoint is under way, and these were known when it was read
    saved: int | None = volatile(None, of="job")  # the cursor in it
    disk: Saved | None = durable(None)
    ran: frozenset[str] = ghost(frozenset())  # whose first request has left, in this life

    def _resumed(self) -> object:
        """Cursor and registry are those of the newest checkpoint; who has a row waits to be sent again."""
        self.ran = frozenset()
        if self.disk is not None:
            self.cursor, self.known, self.waiting = self.disk.cursor, self.disk.rows, self.disk.rows
        return None

    crash = crash("job", budget="crashes_left", then=_resumed)

    @action
    def hand_out(self) -> object:
        """The cursor moves and the rollout is registered, in one step; who is known already is left out."""
        if self.cursor == self.tasks:
            return False
        self.known, new = registered(self.known, (f"p{self.cursor}",))
        self.waiting += new
        self.cursor += 1
        return None

    @action
    def send(self) -> object:
        """The first request of a rollout leaves; none while a checkpoint is made."""
        if not self.waiting or self.reading is not None:
            return False
        if self.waiting[0] in self.ran:
            self.fail("I12")
        self.ran |= {self.waiting[0]}
        self.waiting = self.waiting[1:]
        return None

    @action
    def read(self) -> object:
        """The ledger is read in one piece."""
        if self.reading is not None:
            return False
        self.reading = self.known
        return None

    @action
    def save(self) -> object:
        """The framework saves its half, the cursor with it, some time after the reading."""
        if self.reading is None or self.saved is not None:
            return False
        self.saved = self.cursor
        return None

    @action
    def publish(self) -> object:
        """Registry and ledger are written, and all of it is in force."""
        if self.reading is None or self.saved is None:
            return False
        self.disk = Saved(self.saved, self._rows(self.reading))
        self.reading, self.saved = None, None
        return None

    @action
    def give_up(self) -> object:
        if self.reading is None:
            return False
        self.reading, self.saved = None, None
        return None

    def _rows(self, reading: Ids) -> Ids:
        return rows(reading, self.known)

    @always(covers=("S37", "S40"))
    def nobody_behind_the_cursor_is_missing(self) -> bool:
        return self.disk is None or {f"p{each}" for each in range(self.disk.cursor)} <= {*self.disk.rows}

    @recoverable(covers=("S37", "S40"))
    def every_task_has_been_sent(self) -> bool:
        return self.ran == {f"p{each}" for each in range(self.tasks)}

    @final
    def nothing_is_left_to_do(self) -> bool:
        return self.ran == {f"p{each}" for each in range(self.tasks)}

    @sometimes
    def handed_out_between_the_reading_and_the_save(self) -> bool:
        return self.saved is not None and self.reading is not None and len(self.reading) < self.saved

    @sometimes(covers="I12")
    def handed_out_again(self) -> bool:
        """The cursor rolled back behind a rollout that has a row."""
        return self.cursor < len(self.known)
