"""Failing twins of the checkpoint world: each without one protective rule, each with a counterexample."""

from __future__ import annotations

from attrs import evolve

from models.checkpoint import CheckpointWorld
from models.twins import without_rule
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
from statecore import go, stay, when
from statecore.properties import always


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


class CompletedWhileCommitted(CheckpointWorld):
    """I65: an attempt whose part is committed may complete before it is released."""

    ATTEMPT = without_rule(ATTEMPT, {(AttemptState.COMMITTED, Completed): go(AttemptState.COMPLETED)})


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


class PublishedWithoutProofSeenByItsHarm(PublishedWithoutProof):
    """S32 once more, with nothing said about moments: what is published is both completed and resumable (I65)."""

    @always
    def published_is_one_moment(self) -> bool:
        return True


TWINS = (
    PublishedWithoutProof,
    ProvedTooEarly,
    CompletedWhileCommitted,
    StirredWhileClosed,
    LeaseEndedWithoutFence,
    UnseenAbortWithoutFence,
    AnyLifeMayPrepare,
    PublishedWithoutProofSeenByItsHarm,
)
