"""Failing twins of the checkpoint world: each without one protective rule, each with a counterexample."""

from __future__ import annotations

from attrs import evolve

from models.checkpoint import CheckpointWorld, OverOneMoreServer
from models.fleet import NAMES
from models.twins import without_rule
from models.written import Kept, Known
from participants.machines.attempt import ATTEMPT, AttemptState, Completed
from participants.machines.control import (
    PARTICIPANT,
    STALE,
    Control,
    DisarmLease,
    LeaseExpired,
    OpenAdmission,
    Phase,
    PrepareRequested,
    ResumeRequested,
    already_reopened,
    is_ended,
    open_checkpoint,
)
from participants.machines.gate import GATE, GateState, Stirred, stir
from participants.machines.transaction import (
    TRANSACTION,
    DirectoryPublished,
    ProofGiven,
    TransactionState,
    note_proof,
    read_claims,
)
from participants.records.records import Disposition
from statecore import go, stay, when
from statecore.properties import always
from statecore.world import action, slot


class PublishedWithoutProof(CheckpointWorld):
    """S32: the rename needs nothing but the framework's half."""

    TRANSACTION = without_rule(
        TRANSACTION,
        {
            (TransactionState.VALIDATING, DirectoryPublished): go(TransactionState.PUBLISHED, do=read_claims),
        },
    )


class ProvedTooEarly(CheckpointWorld):
    """S32: a proof that was asked for before the framework's half was captured counts."""

    TRANSACTION = without_rule(
        TRANSACTION, {(TransactionState.SAVING, ProofGiven): stay(do=note_proof)}
    )  # fmt: skip


class StirredWhileClosed(CheckpointWorld):
    """I24: what is quiet may move while its server is closed."""

    GATE = without_rule(
        GATE,
        {(GateState.QUIET, Stirred): go(GateState.DRAINING, do=stir), (GateState.DRAINING, Stirred): stay(do=stir)},
    )


def _open_unfenced(data: Control, _event: object) -> tuple[Control, list[object]]:
    fresh = evolve(data, checkpoint_id=None, lease_until=None, writing=None, prepared=None, committed=None)
    return fresh, [OpenAdmission(), DisarmLease()]


class LeaseEndedWithoutFence(CheckpointWorld):
    """I14: a lease that ends opens the server and forgets the id."""

    PARTICIPANT = without_rule(
        PARTICIPANT,
        {
            (phase, LeaseExpired): go(Phase.IDLE, do=_open_unfenced)
            for phase in (Phase.PREPARING, Phase.PREPARED, Phase.COMMITTED)
        },
    )


class UnseenAbortWithoutFence(CheckpointWorld):
    """I14: an abort that comes before its prepare is answered and forgotten."""

    PARTICIPANT = without_rule(PARTICIPANT, {(Phase.IDLE, ResumeRequested): stay(do=already_reopened)})


class AnyLifeMayPrepare(CheckpointWorld):
    """S59: neither incarnation nor epoch of a prepare is looked at (either alone is enough)."""

    PARTICIPANT = without_rule(
        PARTICIPANT,
        {
            (Phase.IDLE, PrepareRequested): when(
                is_ended, STALE, otherwise=go(Phase.PREPARING, do=open_checkpoint)
            )
        },
    )  # fmt: skip


class DecidedBeforeTheReading(PublishedWithoutProof):
    """I65: the registry decides who continues when parts are read back; the ledger is read later, and has a result.

    Three rules cover each other: one reading for both, the proof (the last turn ran, so a lease had ended), and that
    the directory is validated before it is published. With any of them nothing breaks.
    """

    early: Disposition | None = slot(None)

    @action
    def settle(self) -> object:
        if CheckpointWorld.settle.function(self) is False:
            return False
        self.early = CheckpointWorld._row(self, "a", self.a_known)
        return None

    def _row(self, name: str, known: Known) -> Disposition:
        """A *continue* that was decided stands, whatever the ledger has by now."""
        row, self.early = self.early, None
        return row if row is Disposition.CONTINUE else CheckpointWorld._row(self, name, known)

    def _validates(self, draft: Kept) -> bool:
        return True

    @always
    def published_is_one_moment(self) -> bool:
        return True


class RecordsDecide(OverOneMoreServer):
    """Section 6: a restart continues whatever has records that agree, whatever the registry says.

    Another rule covers it: servers that know of scopes write no record of a rollout that is not to be continued.
    """

    def _continues(self, kept: Kept) -> bool:
        return kept.turn is not None and kept.turn == kept.revision


class CompletedWhileCommittedAndDecidedBefore(DecidedBeforeTheReading):
    """I65 once more, with every proof given: an attempt whose part is committed completes before it is released."""

    TRANSACTION = TRANSACTION
    ATTEMPT = without_rule(ATTEMPT, {(AttemptState.COMMITTED, Completed): go(AttemptState.COMPLETED)})


class AnsweredBeforeSynced(CheckpointWorld):
    """S34: a server answers its commit when its files are there, before their directory is synced."""

    @action(over=NAMES)
    def write_part(self, name: str) -> object:
        if CheckpointWorld.write_part.function(self, name) is False:
            return False
        self._part_written(name)
        return None


TWINS = (
    PublishedWithoutProof,
    ProvedTooEarly,
    StirredWhileClosed,
    LeaseEndedWithoutFence,
    UnseenAbortWithoutFence,
    AnyLifeMayPrepare,
    DecidedBeforeTheReading,
    RecordsDecide,
    CompletedWhileCommittedAndDecidedBefore,
    AnsweredBeforeSynced,
)
