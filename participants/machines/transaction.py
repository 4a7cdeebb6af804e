"""The checkpoint transaction: the coordinator's side of one checkpoint. Pure.

Every phase before *published* can fail, and then the checkpoint before stays in force; after publishing nothing fails
any more, it only goes on (S3). Publishing needs a proof of each participant that was asked for after the framework's
half was captured (S32). docs/reference/protocol.md sections 4 to 6 and 11.
"""

from __future__ import annotations

from enum import StrEnum, auto

from attrs import evolve, frozen

from statecore import Cell, Table, go, refuse, stay, when


class TransactionState(StrEnum):
    IDLE = auto()
    FREEZING = auto()
    PREPARING = auto()
    COMMITTING = auto()
    SETTLING = auto()
    SAVING = auto()
    VALIDATING = auto()
    PUBLISHED = auto()
    RESUMING = auto()
    ABORTING = auto()
    STOPPED = auto()  # overtaken by another coordinator's claim


@frozen
class Transaction:
    """`members` are (name, incarnation) of those that committed, `proved` of those that proved it after the save."""

    checkpoint_id: str = ""
    members: frozenset[tuple[str, str]] = frozenset()
    proved: frozenset[tuple[str, str]] = frozenset()
    reason: str = ""


@frozen
class CheckpointRequested:
    checkpoint_id: str


@frozen
class DispatchFrozen:
    pass


@frozen
class AllPrepared:
    pass


@frozen
class AllCommitted:
    members: frozenset[tuple[str, str]] = frozenset()


@frozen
class AllSettled:
    pass


@frozen
class HalfSaved:
    """The framework's half is captured: nothing captured later enters the checkpoint."""


@frozen
class ProofGiven:
    """This participant answered, asked after `HalfSaved`, that it is in `phase` with this id; by this process.

    The process that committed and has this id open is still committed. Who shows no incarnation must say so itself.
    """

    name: str
    incarnation: str
    phase: str = "committed"


@frozen
class DirectoryPublished:
    """The rename onto the final name happened: the real commit."""


@frozen
class ClaimsRead:
    overtaken: bool = False


@frozen
class ServersResumed:
    pass


@frozen
class Failed:
    reason: str = ""


@frozen
class Aborted:
    pass


@frozen
class FreezeDispatch:
    checkpoint_id: str


@frozen
class PrepareServers:
    checkpoint_id: str


@frozen
class CommitServers:
    checkpoint_id: str


@frozen
class SettleExecutions:
    checkpoint_id: str


@frozen
class SaveHalf:
    checkpoint_id: str


@frozen
class CollectProofs:
    checkpoint_id: str


@frozen
class ReadClaims:
    pass


@frozen
class AcknowledgeResults:
    pass


@frozen
class ResumeServers:
    """In the order resources, model, agents, environment; going on through failures."""

    checkpoint_id: str


@frozen
class ThawDispatch:
    pass


def is_proved(data: Transaction, _event: DirectoryPublished) -> bool:
    return data.proved == data.members


def has_members(_data: Transaction, event: AllCommitted) -> bool:
    return bool(event.members)


def is_member(data: Transaction, event: ProofGiven) -> bool:
    return (event.name, event.incarnation) in data.members


def is_committed(_data: Transaction, event: ProofGiven) -> bool:
    return event.phase == "committed"


def is_overtaken(_data: Transaction, event: ClaimsRead) -> bool:
    return event.overtaken


Step = tuple[Transaction, list[object]]


def begin(_data: Transaction, event: CheckpointRequested) -> Step:
    return Transaction(event.checkpoint_id), [FreezeDispatch(event.checkpoint_id)]


def prepare(data: Transaction, _event: DispatchFrozen) -> Step:
    return data, [PrepareServers(data.checkpoint_id)]


def commit(data: Transaction, _event: AllPrepared) -> Step:
    return data, [CommitServers(data.checkpoint_id)]


def settle(data: Transaction, event: AllCommitted) -> Step:
    return evolve(data, members=event.members), [SettleExecutions(data.checkpoint_id)]


def save(data: Transaction, _event: AllSettled) -> Step:
    return data, [SaveHalf(data.checkpoint_id)]


def prove(data: Transaction, _event: HalfSaved) -> Step:
    return data, [CollectProofs(data.checkpoint_id)]


def note_proof(data: Transaction, event: ProofGiven) -> Step:
    return evolve(data, proved=data.proved | {(event.name, event.incarnation)}), []


def read_claims(data: Transaction, _event: DirectoryPublished) -> Step:
    return data, [ReadClaims()]


def acknowledge_and_resume(data: Transaction, _event: ClaimsRead) -> Step:
    return data, [AcknowledgeResults(), ResumeServers(data.checkpoint_id), ThawDispatch()]


def abort(data: Transaction, event: Failed) -> Step:
    return evolve(data, reason=event.reason), [ResumeServers(data.checkpoint_id), ThawDispatch()]


def clear(_data: Transaction, _event: object) -> Step:
    return Transaction(), []


_T = TransactionState
OUT_OF_ORDER = refuse("out_of_order")
RUNNING = refuse("checkpoint_running", detail="one checkpoint at a time")
PUBLISHED_ALREADY = refuse("published", detail="a published checkpoint is not aborted")
OVERTAKEN = refuse("overtaken", detail="another coordinator has claimed the root")
STRANGER = refuse("not_a_member", detail="the proof is not by the process that committed")
REOPENED = refuse("not_committed", detail="the participant is not committed with this checkpoint")
NOBODY = refuse("nobody_committed", detail="a checkpoint of no participant proves nothing")
UNPROVED = refuse("unproved", detail="a participant has not proved that it is still committed")

_EVENTS = (
    DispatchFrozen, AllPrepared, AllCommitted, AllSettled, HalfSaved, ProofGiven, DirectoryPublished, ClaimsRead,
    ServersResumed, Aborted,
)  # fmt: skip


def _row(**expected: Cell) -> dict[type, Cell]:
    """A row in which everything that is not named is out of order."""
    cells: dict[type, Cell] = {event: OUT_OF_ORDER for event in _EVENTS}
    cells |= {CheckpointRequested: RUNNING, Failed: go(_T.ABORTING, do=abort)}
    by_name = {event.__name__: event for event in (*_EVENTS, CheckpointRequested, Failed)}
    cells |= {by_name[name]: cell for name, cell in expected.items()}
    return cells


TRANSACTION = Table(
    "transaction",
    data=Transaction,
    initial=_T.IDLE,
    final={_T.STOPPED},
    doc="One checkpoint, seen by its coordinator: protocol.md sections 4 to 6 and 11.",
    cells={
        _T.IDLE: _row(CheckpointRequested=go(_T.FREEZING, do=begin), Failed=OUT_OF_ORDER),
        _T.FREEZING: _row(DispatchFrozen=go(_T.PREPARING, do=prepare)),
        _T.PREPARING: _row(AllPrepared=go(_T.COMMITTING, do=commit)),
        _T.COMMITTING: _row(AllCommitted=when(has_members, go(_T.SETTLING, do=settle), otherwise=NOBODY)),
        _T.SETTLING: _row(AllSettled=go(_T.SAVING, do=save)),
        _T.SAVING: _row(HalfSaved=go(_T.VALIDATING, do=prove)),  # a proof before this does not count (S32)
        _T.VALIDATING: _row(
            ProofGiven=when(is_member, when(is_committed, stay(do=note_proof), otherwise=REOPENED), otherwise=STRANGER),
            DirectoryPublished=when(is_proved, go(_T.PUBLISHED, do=read_claims), otherwise=UNPROVED),
        ),
        _T.PUBLISHED: _row(
            ClaimsRead=when(is_overtaken, go(_T.STOPPED), otherwise=go(_T.RESUMING, do=acknowledge_and_resume)),
            Failed=PUBLISHED_ALREADY,
        ),
        _T.RESUMING: _row(ServersResumed=go(_T.IDLE, do=clear), Failed=PUBLISHED_ALREADY),
        _T.ABORTING: _row(Aborted=go(_T.IDLE, do=clear), Failed=stay()),
        _T.STOPPED: {event: OVERTAKEN for event in (*_EVENTS, CheckpointRequested, Failed)},  # I98
    },
)
