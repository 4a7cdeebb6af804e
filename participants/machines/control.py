"""The participant machine: one server's part in one checkpoint after the other. Pure.

The table is docs/reference/protocol.md section 5: prepare, commit and restore leave the server closed, resume (which is
also the abort) or the end of the lease opens it (I17). A checkpoint id that has ended can neither close, write nor
reopen again (I14); one id is open at a time (I13); the same call again gets the same answer (I15).

Times are wall-clock seconds and always an input. `born` is a server that its launcher started with an epoch: it is
closed until its first restore or resume (section 11) and calls itself idle on the wire.
"""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Final

from attrs import evolve, field, frozen

from statecore import Cell, Snapshot, Table, go, refuse, stay, when

from .fencing import Ended


class Phase(StrEnum):
    BORN = auto()
    IDLE = auto()
    PREPARING = auto()
    PREPARED = auto()
    COMMITTED = auto()
    RESTORED = auto()
    BROKEN = auto()

    @property
    def wire(self) -> str:
        """The phase as peers know it."""
        return "idle" if self in (Phase.BORN, Phase.BROKEN) else self.value


@frozen
class Answer:
    """A recorded reply: the same call with the same arguments gets it again (I15). `reply` is JSON text."""

    arguments: str
    reply: str


@frozen
class Control:
    """What a participant knows beside its phase.

    `lease_until` is in wall-clock seconds; `writing` are the arguments that a commit under way has pinned; `reading` is
    the restore that is being read or installed (the phase does not show it); `ended` are the ids that are fenced;
    `left_out` are the capture keys of executions that the open checkpoint goes without (section 12).
    """

    incarnation: str = ""
    epoch: int | None = None
    epoch_required: bool = False
    lease_grace_s: float = 600.0
    checkpoint_id: str | None = None
    lease_until: float | None = None
    writing: str | None = None
    reading: str | None = None
    prepared: Answer | None = None
    committed: Answer | None = None
    restored: Answer | None = None
    ended: Ended = field(factory=Ended)
    left_out: frozenset[str] = frozenset()


# --- events: calls (messages) and what happened inside (past tense)


@frozen
class Call:
    """A control call: for which checkpoint, until when, from which life, for which process."""

    checkpoint_id: str
    deadline_ts: float = 0.0
    now: float = 0.0
    epoch: int | None = None
    incarnation: str | None = None


@frozen
class PrepareRequested(Call):
    """`leave_out` are the capture keys of executions that nobody waits for; of several lists the union counts."""

    leave_out: frozenset[str] = frozenset()


@frozen
class CommitRequested(Call):
    arguments: str = ""


@frozen
class RestoreRequested(Call):
    arguments: str = ""


@frozen
class ResumeRequested(Call):
    pass


@frozen
class RenewRequested(Call):
    pass


@frozen
class RetireRequested(Call):
    """Both retire and forget: they change marks, never the phase."""


@frozen
class ReadinessReached:
    checkpoint_id: str
    reply: str = ""


@frozen
class PrepareFailed:
    checkpoint_id: str


@frozen
class PartWritten:
    checkpoint_id: str
    arguments: str = ""
    reply: str = ""


@frozen
class PartInstalled:
    checkpoint_id: str
    arguments: str = ""
    reply: str = ""
    deadline_ts: float = 0.0


@frozen
class RestoreFailed:
    checkpoint_id: str


@frozen
class LeaseExpired:
    checkpoint_id: str


@frozen
class Broke:
    """The server can no longer keep its promises (its lease timer died)."""

    reason: str = ""


# --- effects: owed to the world, performed by the shell in this order


@frozen
class CloseAdmission:
    pass


@frozen
class OpenAdmission:
    pass


@frozen
class LeaveOut:
    """These executions are not waited for until admission opens again, which ends it (S18)."""

    keys: frozenset[str]


@frozen
class AwaitReadiness:
    checkpoint_id: str


@frozen
class WritePart:
    checkpoint_id: str
    arguments: str


@frozen
class ReadPart:
    checkpoint_id: str
    arguments: str


@frozen
class StopWriting:
    """After this no manifest of the checkpoint can appear (I48)."""

    checkpoint_id: str


@frozen
class ArmLease:
    until: float


@frozen
class DisarmLease:
    pass


@frozen
class AnswerAgain:
    reply: str


@frozen
class Reopened:
    """The answer of resume: `idempotent` when nothing was open."""

    idempotent: bool


# --- guards


def is_other_process(data: Control, event: Call) -> bool:
    return event.incarnation is not None and event.incarnation != data.incarnation


def is_other_epoch(data: Control, event: Call) -> bool:
    if data.epoch_required:
        return event.epoch != data.epoch
    return event.epoch is not None and data.epoch is not None and event.epoch < data.epoch


def is_data_of_other_life(data: Control, epoch: int | None) -> bool:
    """Whether a data call that carries `epoch` is of another life; one that carries none is not checked (S45)."""
    if epoch is None or data.epoch is None:
        return False
    return epoch < data.epoch or (data.epoch_required and epoch != data.epoch)


def was_never_open(phase: Phase, is_open: bool) -> bool:
    """Whether the server is closed since its start: it refuses what names a rollout, whoever calls (section 11).

    One that breaks in this state stays in it: what it held, nobody would ever let go.
    """
    return not is_open and phase in (Phase.BORN, Phase.BROKEN)


def is_ended(data: Control, event: Call) -> bool:
    return event.checkpoint_id in data.ended


def is_other(data: Control, event: Call) -> bool:
    return event.checkpoint_id != data.checkpoint_id


def is_late(_data: Control, event: Call) -> bool:
    return event.deadline_ts <= event.now


def is_written_elsewhere(data: Control, event: CommitRequested) -> bool:
    return data.writing is not None and data.writing != event.arguments


def is_same_commit(data: Control, event: CommitRequested) -> bool:
    return data.committed is not None and data.committed.arguments == event.arguments


def is_same_restore(data: Control, event: RestoreRequested) -> bool:
    return data.restored is not None and data.restored.arguments == event.arguments


def is_current(data: Control, event: ReadinessReached | PrepareFailed | PartWritten | LeaseExpired) -> bool:
    return event.checkpoint_id == data.checkpoint_id


def is_current_write(data: Control, event: PartWritten) -> bool:
    return event.checkpoint_id == data.checkpoint_id and event.arguments == data.writing


def leaves_out_more(data: Control, event: PrepareRequested) -> bool:
    return not event.leave_out <= data.left_out


def is_left_out_too_late(data: Control, event: PrepareRequested) -> bool:
    return data.writing is not None and leaves_out_more(data, event)


def is_reading(data: Control, _event: object) -> bool:
    return data.reading is not None


def is_read_by_another(data: Control, event: RestoreRequested) -> bool:
    return data.reading is not None and data.reading != event.checkpoint_id


def is_current_read(data: Control, event: PartInstalled | RestoreFailed) -> bool:
    return event.checkpoint_id == data.reading


# --- what a step does to the data


def _heard(data: Control, event: Call) -> Control:
    """The data after a call that carries an epoch: the highest one seen is remembered (section 11)."""
    if event.epoch is None or (data.epoch is not None and event.epoch <= data.epoch):
        return data
    return evolve(data, epoch=event.epoch)


def _extended(data: Control, deadline_ts: float) -> Control:
    """The lease never shrinks while a checkpoint is open."""
    return evolve(data, lease_until=max(data.lease_until or 0.0, deadline_ts + data.lease_grace_s))


def _until(data: Control) -> float:
    return data.lease_until or 0.0


def _without(data: Control, event: PrepareRequested) -> tuple[Control, list[object]]:
    """The data with all that `event` leaves out, and what is owed for those that are new (a list only grows)."""
    more = event.leave_out - data.left_out
    if not more:
        return data, []
    return evolve(data, left_out=data.left_out | more), [LeaveOut(more)]


def open_checkpoint(data: Control, event: PrepareRequested) -> tuple[Control, list[object]]:
    data = _extended(evolve(_heard(data, event), checkpoint_id=event.checkpoint_id), event.deadline_ts)
    data, owed = _without(data, event)
    return data, [CloseAdmission(), *owed, ArmLease(_until(data)), AwaitReadiness(event.checkpoint_id)]


def wait_longer(data: Control, event: PrepareRequested) -> tuple[Control, list[object]]:
    data, owed = _without(_extended(_heard(data, event), event.deadline_ts), event)
    return data, [*owed, ArmLease(_until(data)), AwaitReadiness(event.checkpoint_id)]


def record_readiness(data: Control, event: ReadinessReached) -> tuple[Control, list[object]]:
    return evolve(data, prepared=Answer("", event.reply)), []


def prepared_again(data: Control, event: PrepareRequested) -> tuple[Control, list[object]]:
    data, owed = _without(data, event)
    return data, [*owed, AnswerAgain(data.prepared.reply if data.prepared else "")]


def begin_writing(data: Control, event: CommitRequested) -> tuple[Control, list[object]]:
    data = _extended(evolve(_heard(data, event), writing=event.arguments), event.deadline_ts)
    return data, [ArmLease(_until(data)), WritePart(event.checkpoint_id, event.arguments)]


def record_part(data: Control, event: PartWritten) -> tuple[Control, list[object]]:
    return evolve(data, committed=Answer(event.arguments, event.reply)), []


def committed_again(data: Control, _event: CommitRequested) -> tuple[Control, list[object]]:
    return data, [AnswerAgain(data.committed.reply if data.committed else "")]


def begin_reading(data: Control, event: RestoreRequested) -> tuple[Control, list[object]]:
    data = evolve(_heard(data, event), reading=event.checkpoint_id)
    return data, [CloseAdmission(), ReadPart(event.checkpoint_id, event.arguments)]


def record_install(data: Control, event: PartInstalled) -> tuple[Control, list[object]]:
    answer = Answer(event.arguments, event.reply)
    data = evolve(data, checkpoint_id=event.checkpoint_id, reading=None, restored=answer)
    data = _extended(data, event.deadline_ts)
    return data, [ArmLease(_until(data))]


def restored_again(data: Control, _event: RestoreRequested) -> tuple[Control, list[object]]:
    return data, [AnswerAgain(data.restored.reply if data.restored else "")]


def open_broken(data: Control, _event: Broke) -> tuple[Control, list[object]]:
    """It may be closed though nothing is open: by a restore under way, which can no longer open it (S25)."""
    return data, [OpenAdmission()]


def break_open(data: Control, _event: Broke) -> tuple[Control, list[object]]:
    """It opens, and whatever it was writing publishes nothing: from here on things move again (I48)."""
    return data, [StopWriting(data.checkpoint_id or ""), OpenAdmission()]


def open_unrestored(data: Control, _event: RestoreFailed) -> tuple[Control, list[object]]:
    return evolve(data, reading=None), [OpenAdmission()]


def stay_unrestored(data: Control, _event: RestoreFailed) -> tuple[Control, list[object]]:
    return evolve(data, reading=None), []


def _closed_book(data: Control, checkpoint_id: str) -> Control:
    return evolve(
        data, checkpoint_id=None, lease_until=None, writing=None, reading=None,
        prepared=None, committed=None, restored=None, ended=data.ended.with_id(checkpoint_id), left_out=frozenset(),
    )  # fmt: skip


def unprepare(data: Control, _event: PrepareFailed) -> tuple[Control, list[object]]:
    """A prepare that broke reopens and does not fence its id: it may be tried again."""
    data = evolve(data, checkpoint_id=None, lease_until=None, left_out=frozenset())
    return data, [OpenAdmission(), DisarmLease()]


def reopen(data: Control, event: ResumeRequested) -> tuple[Control, list[object]]:
    data = _closed_book(_heard(data, event), event.checkpoint_id)
    return data, [StopWriting(event.checkpoint_id), OpenAdmission(), DisarmLease(), Reopened(idempotent=False)]


def fence_only(data: Control, event: ResumeRequested) -> tuple[Control, list[object]]:
    data = evolve(_heard(data, event), ended=data.ended.with_id(event.checkpoint_id))
    return data, [Reopened(idempotent=True)]


def already_reopened(data: Control, _event: ResumeRequested) -> tuple[Control, list[object]]:
    return data, [Reopened(idempotent=True)]


def expire(data: Control, event: LeaseExpired) -> tuple[Control, list[object]]:
    data = _closed_book(data, event.checkpoint_id)
    return data, [StopWriting(event.checkpoint_id), OpenAdmission(), DisarmLease()]


def extend(data: Control, event: Call) -> tuple[Control, list[object]]:
    data = _extended(_heard(data, event), event.deadline_ts)
    return data, [ArmLease(_until(data))]


def hear(data: Control, event: Call) -> tuple[Control, list[object]]:
    return _heard(data, event), []


# --- refusals, with the words that peers see


def _stale_text(_data: Control, event: Call) -> str:
    return f"checkpoint {event.checkpoint_id!r} was already resumed"


def _late_text(_data: Control, event: Call) -> str:
    return f"checkpoint {event.checkpoint_id!r} deadline passed"


def _epoch_text(data: Control, event: Call) -> str:
    return f"this server belongs to epoch {data.epoch}, the call to {event.epoch}"


def _process_text(data: Control, event: Call) -> str:
    return f"the call is for process {event.incarnation}, this is {data.incarnation}"


def _other_text(data: Control, _event: Call) -> str:
    return f"checkpoint {data.checkpoint_id!r} is active"


def _other_commit_text(_data: Control, event: Call) -> str:
    return f"checkpoint {event.checkpoint_id!r} already completed commit with another directory or scope"


def _other_restore_text(_data: Control, event: Call) -> str:
    return f"checkpoint {event.checkpoint_id!r} already completed restore with another directory or scope"


def _writing_text(_data: Control, event: Call) -> str:
    return f"checkpoint {event.checkpoint_id!r} is already being written to another directory or scope"


def _reading_text(data: Control, _event: Call) -> str:
    return f"restore {data.reading!r} is still being read or installed"


STALE: Final = refuse("stale_checkpoint", detail=_stale_text)
LATE: Final = refuse("deadline_exceeded", detail=_late_text)
CONFLICT: Final = refuse("checkpoint_conflict", detail=_other_text)
OTHER_COMMIT: Final = refuse("checkpoint_conflict", detail=_other_commit_text)
OTHER_RESTORE: Final = refuse("checkpoint_conflict", detail=_other_restore_text)
WRITING_ELSEWHERE: Final = refuse("checkpoint_conflict", detail=_writing_text)
READING: Final = refuse("checkpoint_conflict", detail=_reading_text)
TOO_LATE: Final = refuse("invalid_phase", detail="nobody is left out of a part that is written")
ENDED_MEANWHILE: Final = refuse("checkpoint_ended", detail="the checkpoint ended meanwhile")
BROKEN_NOW: Final = refuse("participant_broken", detail="this server's lease timer died; it must be restarted")


def _phase(phase: Phase, hint: str = "") -> Cell:
    return refuse("invalid_phase", detail=f"not valid in phase {phase.wire}{hint}")


def meant(cell: Cell) -> Cell:
    """The call is for this process and this life (S59, section 11); anything else has no effect."""
    return when(
        is_other_process, refuse("stale_incarnation", detail=_process_text),
        otherwise=when(is_other_epoch, refuse("stale_epoch", detail=_epoch_text), otherwise=cell),
    )  # fmt: skip


def fresh(cell: Cell) -> Cell:
    """Nothing is open: an ended id stays ended (I14)."""
    return meant(when(is_ended, STALE, otherwise=cell))


def this(cell: Cell) -> Cell:
    """A checkpoint is open: only its own id may go on (I13)."""
    return fresh(when(is_other, CONFLICT, otherwise=cell))


def in_time(cell: Cell) -> Cell:
    return when(is_late, LATE, otherwise=cell)


def unless_reading(cell: Cell) -> Cell:
    """A restore under way keeps the server closed until it is installed or has failed, whatever comes (I13, I17)."""
    return when(is_reading, READING, otherwise=cell)


def _open_cells(phase: Phase) -> dict[type, Cell]:
    """Resume, renew, retire and lease of every phase in which a checkpoint is open."""
    return {
        ResumeRequested: meant(
            when(
                is_ended,
                stay(do=already_reopened),
                otherwise=when(is_other, CONFLICT, otherwise=go(Phase.IDLE, do=reopen)),
            )
        ),
        RenewRequested: this(stay(do=extend)),
        LeaseExpired: when(is_current, go(Phase.IDLE, do=expire), otherwise=ENDED_MEANWHILE),  # I21
        Broke: go(Phase.BROKEN, do=break_open),  # nobody may wait for a lease that no longer runs
        RestoreFailed: ENDED_MEANWHILE,
        RetireRequested: meant(when(is_other, CONFLICT, otherwise=_phase(phase, "; resume first"))),
    }


PARTICIPANT = Table(
    "participant",
    data=Control,
    initial=Phase.IDLE,
    also_initial={Phase.BORN},
    final={Phase.BROKEN},
    doc="One server in a checkpoint: protocol.md sections 4, 5 and 11.",
    cells={
        Phase.BORN: {  # started by its launcher: closed, of one epoch, and nothing has ended in it yet (section 11)
            PrepareRequested: meant(_phase(Phase.BORN, ": closed since its start; restore or resume first")),
            ReadinessReached: ENDED_MEANWHILE,
            PrepareFailed: ENDED_MEANWHILE,
            CommitRequested: meant(_phase(Phase.BORN)),
            PartWritten: ENDED_MEANWHILE,
            RestoreRequested: meant(in_time(when(is_read_by_another, READING, otherwise=stay(do=begin_reading)))),
            PartInstalled: when(is_current_read, go(Phase.RESTORED, do=record_install), otherwise=ENDED_MEANWHILE),
            # stays closed: nothing was restored (I51)
            RestoreFailed: when(is_current_read, stay(do=stay_unrestored), otherwise=ENDED_MEANWHILE),
            ResumeRequested: meant(unless_reading(go(Phase.IDLE, do=reopen))),
            RenewRequested: meant(_phase(Phase.BORN)),
            RetireRequested: meant(in_time(stay(do=hear))),
            LeaseExpired: ENDED_MEANWHILE,
            Broke: go(Phase.BROKEN),  # never opened, stays shut
        },
        Phase.IDLE: {
            PrepareRequested: fresh(unless_reading(go(Phase.PREPARING, do=open_checkpoint))),
            ReadinessReached: ENDED_MEANWHILE,  # S7: its checkpoint ended while it waited
            PrepareFailed: ENDED_MEANWHILE,
            CommitRequested: fresh(_phase(Phase.IDLE)),
            PartWritten: ENDED_MEANWHILE,
            RestoreRequested: fresh(in_time(when(is_read_by_another, READING, otherwise=stay(do=begin_reading)))),
            PartInstalled: when(is_current_read, go(Phase.RESTORED, do=record_install), otherwise=ENDED_MEANWHILE),
            # S25: a failed restore leaves no server closed
            RestoreFailed: when(is_current_read, stay(do=open_unrestored), otherwise=ENDED_MEANWHILE),
            ResumeRequested: meant(
                when(is_ended, stay(do=already_reopened), otherwise=unless_reading(stay(do=fence_only)))
            ),
            RenewRequested: fresh(_phase(Phase.IDLE)),
            RetireRequested: meant(in_time(stay(do=hear))),
            LeaseExpired: ENDED_MEANWHILE,
            Broke: go(Phase.BROKEN, do=open_broken),
        },
        Phase.PREPARING: {
            PrepareRequested: this(stay(do=wait_longer)),
            ReadinessReached: when(is_current, go(Phase.PREPARED, do=record_readiness), otherwise=ENDED_MEANWHILE),
            PrepareFailed: when(is_current, go(Phase.IDLE, do=unprepare), otherwise=ENDED_MEANWHILE),
            CommitRequested: this(_phase(Phase.PREPARING)),
            PartWritten: ENDED_MEANWHILE,
            RestoreRequested: this(_phase(Phase.PREPARING)),
            PartInstalled: ENDED_MEANWHILE,
            **_open_cells(Phase.PREPARING),
        },
        Phase.PREPARED: {
            PrepareRequested: this(when(is_left_out_too_late, TOO_LATE, otherwise=stay(do=prepared_again))),
            ReadinessReached: when(is_current, stay(), otherwise=ENDED_MEANWHILE),  # two prepares waited
            PrepareFailed: ENDED_MEANWHILE,
            CommitRequested: this(
                in_time(when(is_written_elsewhere, WRITING_ELSEWHERE, otherwise=stay(do=begin_writing)))
            ),
            PartWritten: when(is_current_write, go(Phase.COMMITTED, do=record_part), otherwise=ENDED_MEANWHILE),
            RestoreRequested: this(_phase(Phase.PREPARED)),
            PartInstalled: ENDED_MEANWHILE,
            **_open_cells(Phase.PREPARED),
        },
        Phase.COMMITTED: {
            PrepareRequested: this(when(leaves_out_more, TOO_LATE, otherwise=stay(do=prepared_again))),
            ReadinessReached: when(is_current, stay(), otherwise=ENDED_MEANWHILE),
            PrepareFailed: ENDED_MEANWHILE,
            CommitRequested: this(when(is_same_commit, stay(do=committed_again), otherwise=OTHER_COMMIT)),  # S26
            PartWritten: when(is_current_write, stay(), otherwise=ENDED_MEANWHILE),
            RestoreRequested: this(_phase(Phase.COMMITTED)),
            PartInstalled: ENDED_MEANWHILE,
            **_open_cells(Phase.COMMITTED),
        },
        Phase.RESTORED: {
            **_open_cells(Phase.RESTORED),
            PrepareRequested: this(_phase(Phase.RESTORED)),
            ReadinessReached: ENDED_MEANWHILE,
            PrepareFailed: ENDED_MEANWHILE,
            CommitRequested: this(_phase(Phase.RESTORED)),
            PartWritten: ENDED_MEANWHILE,
            RestoreRequested: this(when(is_same_restore, stay(do=restored_again), otherwise=OTHER_RESTORE)),
            PartInstalled: ENDED_MEANWHILE,
            RetireRequested: meant(when(is_other, CONFLICT, otherwise=in_time(stay(do=extend)))),
        },
        Phase.BROKEN: {
            event: BROKEN_NOW
            for event in (
                PrepareRequested, ReadinessReached, PrepareFailed, CommitRequested, PartWritten, RestoreRequested,
                PartInstalled, RestoreFailed, ResumeRequested, RenewRequested, RetireRequested, LeaseExpired, Broke,
            )
        },
    },
)  # fmt: skip


def new_process(
    incarnation: str, *, epoch: int | None = None, epoch_required: bool = False, lease_grace_s: float = 600.0
) -> Snapshot[Phase, Control]:
    """A process that has just started: born closed, with its epoch, where its launcher requires one; else open."""
    control = Control(
        incarnation=incarnation, epoch=epoch, epoch_required=epoch_required, lease_grace_s=lease_grace_s
    )  # fmt: skip
    return PARTICIPANT.start(control, state=Phase.BORN if epoch_required else Phase.IDLE)
