"""Failing twins of the world of the data cursor: each without one protective rule, each with a counterexample."""

from __future__ import annotations

from models.handing_out import HandingOutWorld, Ids, registered, rows
from statecore.world import action


class RegisteredWhenSent(HandingOutWorld):
    """S37: a rollout is registered when its first request leaves, and not when it is handed out."""

    @action
    def hand_out(self) -> object:
        if self.cursor == self.tasks:
            return False
        name = f"p{self.cursor}"
        self.waiting += () if name in self.known else (name,)
        self.cursor += 1
        return None

    @action
    def send(self) -> object:
        first = self.waiting[:1]
        if HandingOutWorld.send.function(self) is False:
            return False
        self.known, _ = registered(self.known, first)
        return None


class RowsOfTheReadingOnly(HandingOutWorld):
    """S40: who is registered after the ledger was read has no row, though the cursor that is saved is behind it."""

    def _rows(self, reading: Ids) -> Ids:
        return rows(reading, reading)


TWINS = (RegisteredWhenSent, RowsOfTheReadingOnly)
