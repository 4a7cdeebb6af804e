"""Failing twins of the handoff world: each without one protective rule, each with a counterexample."""

from __future__ import annotations

from attrs import evolve

from models.handoff import HandoffWorld, StoreOutside
from models.twins import without_rule
from participants.machines.handoff import (
    GONE,
    HANDOFF,
    LEDGER_ENTRY,
    Acknowledged,
    Asked,
    Entry,
    Finished,
    Handoff,
    Kept,
    Received,
    drop,
    keep,
    owe,
    take,
)
from participants.records.records import LedgerRow
from statecore import Snapshot, go, stay, when
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
    def publish(self) -> object:
        if HandoffWorld.publish.function(self) is False:
            return False
        if self.stands:
            self._take(self.stands)
        return None


class ServerIsTheKeeper(HandoffWorld):
    """S52: a checkpoint says which result is saved and does not hold it; its server, or the trainer, has it anyhow."""

    def _row(self) -> LedgerRow:
        return evolve(HandoffWorld._row(self), body=None)


class GivenAwayWhenPublished(HandoffWorld):
    """S52: the ledger gives a result away with the first checkpoint that holds it, whatever the trainer's state holds.

    Two rules cover each other here: a checkpoint is also refused when the trainer's state lacks what nobody else keeps.
    """

    def _contradicts(self) -> bool:
        return False

    @action
    def publish(self) -> object:
        if HandoffWorld.publish.function(self) is False:
            return False
        self.body = False
        return None


class RetainedIsNotQuiet(HandoffWorld):
    """S2: an execution whose result has not been acknowledged counts as one that still moves."""

    def _active(self, server: Snapshot[Handoff, Kept] | None) -> int:
        return 1 if server is not None and server.state is not Handoff.RELEASED else 0


class AnsweredOnce(HandoffWorld):
    """S33: `/run` again is not answered with the result whose response was lost."""

    HANDOFF = without_rule(HANDOFF, {(Handoff.RETAINED, Asked): GONE})


class ReplacedOutside(StoreOutside):
    """The store keeps what came last: a call of a coordinator that is dead replaces what its successor trained on."""

    def _keep(self, name: str) -> str:
        self.store = name
        return name


class OwnResultTaken(StoreOutside):
    """The store keeps the first result, and the coordinator does not look at its answer."""

    def _keep(self, name: str) -> str:
        StoreOutside._keep(self, name)
        return name


class InTheLedgerBeforeTheStoreAnswers(StoreOutside):
    """What comes is in the ledger at once, and so in a checkpoint, before it is known whether it stands."""

    def _arrive(self, name: str) -> None:
        self._take(name)


TWINS = (
    AcknowledgedBeforeSaved,
    DroppedWhenSent,
    AnyReceiptReleases,
    TakenTwice,
    LoserNeverAcknowledged,
    AcknowledgedFromMemory,
    ServerIsTheKeeper,
    GivenAwayWhenPublished,
    RetainedIsNotQuiet,
    AnsweredOnce,
    ReplacedOutside,
    OwnResultTaken,
    InTheLedgerBeforeTheStoreAnswers,
)
