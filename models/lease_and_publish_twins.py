"""Failing twins of the lease world: each without one protective rule, or a smallest set that cover each other."""

from __future__ import annotations

from models.lease_and_publish import LeaseWorld, NamelessWorld
from models.twins import without_rule
from participants.machines.control import (
    PARTICIPANT,
    CommitRequested,
    Phase,
    PrepareRequested,
    RenewRequested,
    extend,
)
from participants.machines.transaction import (
    TRANSACTION,
    DirectoryPublished,
    ProofGiven,
    TransactionState,
    is_member,
    note_proof,
    read_claims,
)
from statecore import go, refuse, stay, when
from statecore.properties import always
from statecore.world import param

UNPROVED = without_rule(
    TRANSACTION,
    {(TransactionState.VALIDATING, DirectoryPublished): go(TransactionState.PUBLISHED, do=read_claims)},
)  # fmt: skip


class PublishedWithoutProof(LeaseWorld):
    """S32: nothing is proved; a process that has committed dies before the framework's half is captured."""

    TRANSACTION = UNPROVED


class ByItsHarm(LeaseWorld):
    """Shown is only what has moved in between, not who no longer stood."""

    @always
    def all_stood_when_it_was_captured(self) -> bool:
        return True


class OwnClockOnly(ByItsHarm):
    """No twin: nothing is proved, and the coordinator trusts its own clock. It is enough where all clocks are one."""

    TRANSACTION = UNPROVED


class ProofOnly(LeaseWorld):
    """No twin: everything is proved, and the coordinator looks at no clock. It is enough, whatever the clocks say."""

    ahead = param(2)

    def _is_in_time(self) -> bool:
        return True


class OwnClockWhereClocksDiffer(OwnClockOnly):
    """S32, S30: the same, where the servers' clocks are ahead by more than the grace."""

    ahead = param(2)


class NeitherProofNorClock(OwnClockOnly):
    """S32: where all clocks are one, the proof and the coordinator's own deadline cover each other; here is neither."""

    def _is_in_time(self) -> bool:
        return True


class ProvedTooEarly(ByItsHarm):
    """S32: an answer to a renew that was sent while the framework was still saving counts as a proof."""

    TRANSACTION = without_rule(
        TRANSACTION, {(TransactionState.SAVING, ProofGiven): stay(do=note_proof)}
    )  # fmt: skip

    ahead = param(2)


class ProvedInAnyPhase(ByItsHarm):
    """S32: a server answers a renew whether a checkpoint is open there or not; the right process proves nothing."""

    PARTICIPANT = without_rule(PARTICIPANT, {(Phase.IDLE, RenewRequested): stay(do=extend)})
    ahead = param(2)


class NamelessAndInAnyPhase(NamelessWorld):
    """S32: the answer to a renew is a proof whatever phase the server is in, and no incarnation says whose it is."""

    TRANSACTION = without_rule(
        TRANSACTION,
        {
            (TransactionState.VALIDATING, ProofGiven): when(
                is_member, stay(do=note_proof), otherwise=refuse("not_a_member")
            )
        },
    )


class PrepareIsNotAnsweredAgain(LeaseWorld):
    """S33: a prepare is answered once; who lost the answer is refused, and loses the checkpoint."""

    PARTICIPANT = without_rule(
        PARTICIPANT, {(Phase.PREPARED, PrepareRequested): refuse("invalid_phase")}
    )  # fmt: skip


class CommitIsNotAnsweredAgain(LeaseWorld):
    """S33: the same of a commit."""

    PARTICIPANT = without_rule(
        PARTICIPANT, {(Phase.COMMITTED, CommitRequested): refuse("invalid_phase")}
    )  # fmt: skip


TWINS = (
    PublishedWithoutProof,
    NamelessAndInAnyPhase,
    OwnClockWhereClocksDiffer,
    NeitherProofNorClock,
    ProvedTooEarly,
    ProvedInAnyPhase,
    PrepareIsNotAnsweredAgain,
    CommitIsNotAnsweredAgain,
)
