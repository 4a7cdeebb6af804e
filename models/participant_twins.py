"""Failing twins of the participant worlds: each without one protective rule, each with a counterexample."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from models.participant import DeploymentWorld, OpenParticipantWorld, ParticipantWorld
from models.server import Server, server
from models.server_process import ProcessWorld
from models.twins import without_guard, without_rule
from participants.machines.control import (
    PARTICIPANT,
    STALE,
    CommitRequested,
    Control,
    DisarmLease,
    LeaseExpired,
    OpenAdmission,
    PartInstalled,
    PartWritten,
    Phase,
    PrepareRequested,
    ReadinessReached,
    Reopened,
    RestoreFailed,
    ResumeRequested,
    WritePart,
    begin_writing,
    committed_again,
    fresh,
    in_time,
    is_current,
    is_current_read,
    is_current_write,
    is_ended,
    is_other_epoch,
    is_other_process,
    is_same_commit,
    is_written_elsewhere,
    open_checkpoint,
    record_install,
    record_part,
    record_readiness,
    stay_unrestored,
    this,
    unless_reading,
)
from participants.machines.gate import GATE, Arrived, GateState, admit
from participants.records.manifests import Manifest
from statecore import go, refuse, stay, when
from statecore.properties import always
from statecore.world import action, volatile


class DeadCallsCloseTheSuccessor(OpenParticipantWorld):
    """S59: whom a control call was meant for is not looked at; nobody gave this process an epoch that could help."""

    PARTICIPANT = without_guard(PARTICIPANT, is_other_process)


class DeadCallsOpenTheSuccessor(ParticipantWorld):
    """S59: the same; born closed, it is safe from a prepare, and a late resume opens it before it was restored."""

    PARTICIPANT = without_guard(PARTICIPANT, is_other_process)


class AnyProcessMayBeMeant(DeploymentWorld):
    """No twin: whom a call was meant for is not looked at, and its epoch is enough here."""

    PARTICIPANT = without_guard(PARTICIPANT, is_other_process)


class AnyEpochMayBeMeant(DeploymentWorld):
    """No twin: the epoch of a control call is not looked at, and whom it was meant for is enough here."""

    PARTICIPANT = without_guard(PARTICIPANT, is_other_epoch)


class AnyLifeMayCall(DeploymentWorld):
    """S59: neither is looked at; they cover each other."""

    PARTICIPANT = without_guard(AnyEpochMayBeMeant.PARTICIPANT, is_other_process)


class AnyEpochMayCall(ParticipantWorld):
    """S59: the epoch of a control call is not looked at, and an overtaken coordinator has found the new process."""

    PARTICIPANT = without_guard(PARTICIPANT, is_other_epoch)


class BornWithoutItsEpoch(ParticipantWorld):
    """The process learns its epoch from the first call that carries one: here an overtaken coordinator's."""

    def started(self, incarnation: str, epoch: int) -> Server:
        born = server(incarnation, born_with_epoch=epoch)
        control = evolve(born.control, data=evolve(born.control.data, epoch=None, epoch_required=False))
        return evolve(born, control=control)


class BornOpenWithoutItsEpoch(ParticipantWorld):
    """The same, and it is born open: the first dispatch of the old life is enough."""

    def started(self, incarnation: str, epoch: int) -> Server:
        return server(incarnation)


class BornOpen(ParticipantWorld):
    """The process knows its epoch, and serves from its start; shown by what becomes of its restore."""

    def started(self, incarnation: str, epoch: int) -> Server:
        born = server(incarnation)
        return evolve(
            born, control=evolve(born.control, data=evolve(born.control.data, epoch=epoch, epoch_required=True))
        )

    @always
    def nothing_of_the_life_before_runs(self) -> bool:
        return True


class ParkRequestsOutlive(ParticipantWorld):
    """S18: closing asks what moves to park; opening lets go on what has parked, and forgets nobody's request."""

    asked: bool = volatile(False, of="server")

    def _happen(self, event: Any) -> None:
        was_open = self.server.is_open
        super()._happen(event)
        if was_open and not self.server.is_open and self.rollout == "moving":
            self.asked = True
        if not was_open and self.server.is_open and self.rollout == "standing":
            self.asked = False

    def _parks(self) -> bool:
        return self.asked

    @action
    def go_on(self) -> object:
        return False if self.asked else ProcessWorld.go_on.function(self)


class AnyManifestIsTheAnswer(ParticipantWorld):
    """S24: a manifest that is there is the answer of a commit, whosever it is."""

    def _is_this_commit(self, there: bytes, manifest: Manifest) -> bool:
        return True


class ManifestsWithoutTheirProcess(ParticipantWorld):
    """S24: a manifest names no process; another server of that name, that holds the same, cannot be told apart."""

    def _extra(self, incarnation: str) -> dict[str, Any]:
        return {"epoch": self.epoch}


class CommitIsNotAnsweredAgain(ParticipantWorld):
    """S33: a commit is answered once; who lost the answer is refused."""

    PARTICIPANT = without_rule(
        PARTICIPANT, {(Phase.COMMITTED, CommitRequested): refuse("invalid_phase")}
    )  # fmt: skip


class ResumeIsNotAnsweredAgain(ParticipantWorld):
    """S33: a resume is answered once; who lost the answer is told that the id is stale."""

    PARTICIPANT = without_rule(
        PARTICIPANT, {(Phase.IDLE, ResumeRequested): when(is_ended, STALE, otherwise=stay())}
    )  # fmt: skip


class AnotherDirectoryIsWritten(ParticipantWorld):
    """S26: a second commit with another directory is written as well, while the first one is being written."""

    PARTICIPANT = without_guard(PARTICIPANT, is_written_elsewhere)


class AnotherDirectoryIsAccepted(ParticipantWorld):
    """S26: the same, when the first one has been written."""

    PARTICIPANT = without_rule(
        PARTICIPANT,
        {
            (Phase.COMMITTED, CommitRequested): this(
                when(is_same_commit, stay(do=committed_again), otherwise=in_time(go(Phase.PREPARED, do=begin_writing)))
            )
        },
    )  # fmt: skip


class FailedRestoreStaysClosed(OpenParticipantWorld):
    """S25: a restore that fails leaves a server closed that nobody has born closed, and no lease runs."""

    PARTICIPANT = without_rule(
        PARTICIPANT,
        {(Phase.IDLE, RestoreFailed): when(is_current_read, stay(do=stay_unrestored), otherwise=STALE)},
    )

    @always
    def phase_and_admission_agree(self) -> bool:
        return True


def _install_without_lease(data: Control, event: PartInstalled) -> tuple[Control, list[object]]:
    after, _ = record_install(data, event)
    return evolve(after, lease_until=None), []


class RestoredWithoutLease(ParticipantWorld):
    """S25: what is restored waits for a resume without a lease; its coordinator dies, and it is closed for ever."""

    PARTICIPANT = without_rule(
        PARTICIPANT,
        {
            (phase, PartInstalled): when(
                is_current_read, go(Phase.RESTORED, do=_install_without_lease), otherwise=STALE
            )
            for phase in (Phase.BORN, Phase.IDLE)
        },
    )


def _ended(data: Control, event: Any) -> Control:
    return evolve(
        data, checkpoint_id=None, lease_until=None, writing=None, prepared=None, committed=None, restored=None,
        ended=data.ended.with_id(event.checkpoint_id),
    )  # fmt: skip


def _reopen_and_write_on(data: Control, event: Any) -> tuple[Control, list[object]]:
    return _ended(data, event), [OpenAdmission(), DisarmLease(), Reopened(idempotent=False)]


class WriteOutlivesItsCheckpoint(ParticipantWorld):
    """I48: the end of a checkpoint does not stop what is being written."""

    PARTICIPANT = without_rule(
        PARTICIPANT,
        {(Phase.PREPARED, LeaseExpired): when(is_current, go(Phase.IDLE, do=_reopen_and_write_on), otherwise=STALE)},
    )


class PrepareAnswersForWhatHasEnded(ParticipantWorld):
    """S7: a prepare that still waits is ready, whether its checkpoint is still open or not."""

    PARTICIPANT = without_rule(
        PARTICIPANT, {(Phase.IDLE, ReadinessReached): go(Phase.PREPARED, do=record_readiness)}
    )  # fmt: skip


class PreparedBeforeItIsQuiet(ParticipantWorld):
    """I24: what moves when admission closes is not waited for."""

    def _is_ready(self) -> bool:
        return True


class AdmittedWhileClosed(ParticipantWorld):
    """I23: what arrives behind the closing is admitted when nothing moves."""

    GATE = without_rule(GATE, {(GateState.QUIET, Arrived): go(GateState.DRAINING, do=admit)})


def _record_and_open(data: Control, event: PartWritten) -> tuple[Control, list[object]]:
    after, _ = record_part(data, event)
    return after, [OpenAdmission()]


class OpenOnceItIsWritten(ParticipantWorld):
    """I17: a server goes on as soon as its part is written; with that its checkpoint is no longer one moment."""

    PARTICIPANT = without_rule(
        PARTICIPANT,
        {
            (Phase.PREPARED, PartWritten): when(
                is_current_write, go(Phase.COMMITTED, do=_record_and_open), otherwise=STALE
            )
        },
    )


def _prepare_and_write(data: Control, event: PrepareRequested) -> tuple[Control, list[object]]:
    after, effects = open_checkpoint(data, event)
    return after, [*effects, WritePart(event.checkpoint_id, event.checkpoint_id)]


class PrepareWrites(ParticipantWorld):
    """I40: a prepare begins to write, and backing out is no longer free."""

    PARTICIPANT = without_rule(
        PARTICIPANT,
        {(Phase.IDLE, PrepareRequested): fresh(unless_reading(go(Phase.PREPARING, do=_prepare_and_write)))},
    )


TWINS = (
    AdmittedWhileClosed,
    OpenOnceItIsWritten,
    PrepareWrites,
    DeadCallsCloseTheSuccessor,
    DeadCallsOpenTheSuccessor,
    AnyLifeMayCall,
    AnyEpochMayCall,
    BornWithoutItsEpoch,
    BornOpenWithoutItsEpoch,
    BornOpen,
    ParkRequestsOutlive,
    AnyManifestIsTheAnswer,
    ManifestsWithoutTheirProcess,
    CommitIsNotAnsweredAgain,
    ResumeIsNotAnsweredAgain,
    AnotherDirectoryIsWritten,
    AnotherDirectoryIsAccepted,
    FailedRestoreStaysClosed,
    RestoredWithoutLease,
    WriteOutlivesItsCheckpoint,
    PrepareAnswersForWhatHasEnded,
    PreparedBeforeItIsQuiet,
)
