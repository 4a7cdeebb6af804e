"""A shelf on its server, over checkpoints and crashes: every order of calls, explored to the end.

The gate is the one that every server here has, the shelf is the table that the server runs. `statecore check` says
whether the rules hold in every state that can be reached, or shows the shortest way to one in which they do not.
"""

from __future__ import annotations

from contextlib import suppress

from participants.machines.gate import GATE, Arrived, CloseRequested, Ended, GateState, OpenRequested
from participants.skeleton.machine import MAX_THINGS, Put, Sealed, Shelf, ShelfState, Taken, moved
from statecore import Refused, World, action, always, recoverable, slot, sometimes


class ShelfWorld(World):
    """One session and one server: calls come one at a time, checkpoints and a crash come in between."""

    gate = slot(GATE.start())
    shelf = slot(Shelf())
    asked: object = slot(None)  # the call that was admitted and has not ended
    committed: Shelf | None = slot(None)  # what the open checkpoint has
    published: Shelf | None = slot(None)  # what a restart goes on from
    crashes = slot(0)

    @action(by="agent", over=(Put("a"), Put("b"), Taken(), Sealed()))
    def ask(self, event: object) -> bool | None:
        if self.asked is not None or self.gate.state is not GateState.OPEN:
            return False  # a call to a closed server waits, and comes again when it opens
        self.gate, _ = GATE.step(self.gate, Arrived())
        self.asked = event
        return None

    @action(by="server")
    def answer(self) -> bool | None:
        if self.asked is None:
            return False
        with suppress(Refused):  # an answer like any other; the shelf stays as it is
            self.shelf = moved(self.shelf, self.asked)
        self.gate, _ = GATE.step(self.gate, Ended())
        self.asked = None
        return None

    @action(by="coordinator")
    def prepare(self) -> None:
        self.gate, _ = GATE.step(self.gate, CloseRequested())

    @action(by="coordinator")
    def commit(self) -> bool | None:
        if self.gate.state is not GateState.QUIET:
            return False  # something still moves
        self.committed = self.shelf
        return None

    @action(by="coordinator")
    def publish(self) -> bool | None:
        if self.committed is None:
            return False
        self.published = self.committed
        return None

    @action(by="coordinator")
    def resume(self) -> None:
        self.committed = None
        self.gate, _ = GATE.step(self.gate, OpenRequested())

    @action(by="nobody", fault=True)
    def crash(self) -> bool | None:
        if self.published is None or self.crashes:
            return False
        self.crashes += 1
        self.gate, self.asked, self.committed = GATE.start(), None, None
        self.shelf = self.published
        return None

    @always
    def nothing_moves_while_committed(self) -> bool:
        return self.committed is None or self.committed == self.shelf

    @always
    def it_is_never_over_full(self) -> bool:
        return len(self.shelf.things) <= MAX_THINGS

    @sometimes
    def it_is_full(self) -> bool:
        return len(self.shelf.things) == MAX_THINGS

    @sometimes
    def a_sealed_one_came_back(self) -> bool:
        return self.crashes > 0 and self.shelf.state is ShelfState.SEALED

    @recoverable
    def accepting(self) -> bool:
        return self.gate.state is GateState.OPEN and self.asked is None
