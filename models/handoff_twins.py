"""Failing twins of the handoff world: each without one protective rule, each with a counterexample."""

from __future__ import annotations

from models.handoff import HandoffWorld
from models.twins import without_rule
from participants.machines.handoff import (
    HANDOFF,
    LEDGER_ENTRY,
    Acknowledged,
    Entry,
    Finished,
    Handoff,
    Received,
    drop,
    keep,
    owe,
    take,
)
from statecore import go, stay, when
from statecore.world import action


class AcknowledgedBeforeSaved(HandoffWorld):
    """I67: what the ledger has received is acknowledged, saved or not."""

    LEDGER_ENTRY = without_rule(LEDGER_ENTRY, {(Entry.RECEIVED, Received): stay(do=owe)})


class DroppedWhenSent(HandoffWorld):
    """I66: the server keeps nothing once its response has left."""

    HANDOFF = without_rule(HANDOFF, {(Handoff.RUNNING, Finished): go(Handoff.RELEASED, do=keep)})


class AnyReceiptReleases(HandoffWorld):
    """I66: an acknowledgement need not name the exact receipt."""

    HANDOFF = without_rule(HANDOFF, {(Handoff.RETAINED, Acknowledged): go(Handoff.RELEASED, do=drop)})


class TakenTwice(HandoffWorld):
    """I68: every result that arrives goes to the trainer."""

    LEDGER_ENTRY = without_rule(LEDGER_ENTRY, {(Entry.RECEIVED, Received): stay(do=take)})


def _is_the_winner(held: str, event: Received) -> bool:
    return event.receipt == held


class LoserNeverAcknowledged(HandoffWorld):
    """S63: only the result that stands is acknowledged."""

    LEDGER_ENTRY = without_rule(
        LEDGER_ENTRY, {(Entry.SAVED, Received): when(_is_the_winner, stay(do=owe), otherwise=stay())}
    )  # fmt: skip


class AcknowledgedFromMemory(HandoffWorld):
    """S35: the acknowledgement is sent once, right after the save, and nobody lists."""

    @action
    def acknowledge(self) -> object:
        return False

    @action
    def save(self) -> object:
        if HandoffWorld.save.function(self) is False:
            return False
        self._take(self.disk)
        return None


TWINS = (
    AcknowledgedBeforeSaved,
    DroppedWhenSent,
    AnyReceiptReleases,
    TakenTwice,
    LoserNeverAcknowledged,
    AcknowledgedFromMemory,
)
