"""One attempt of a rollout, as the coordinator's registry and an agent's session know it. Pure.

Queued, running, parked at a boundary, committed (its part is in a written checkpoint), running again; at the end
completed or tombstoned, never both completed and resumable (I65): an attempt whose part is committed is released before
it may complete. A continuation waits as *restored* until it is claimed, once (I60): opening its server does not start
it, and a claim that was turned away leaves it a continuation (the data: whether a claim of it may still be undone).
docs/reference/protocol.md sections 3, 4, 6 and 7.
"""

from __future__ import annotations

from enum import StrEnum, auto

from attrs import frozen

from statecore import Table, go, refuse, stay, when


class AttemptState(StrEnum):
    QUEUED = auto()
    RESTORED = auto()  # a continuation that nobody has claimed yet
    RUNNING = auto()
    PARKED = auto()
    COMMITTED = auto()
    COMPLETED = auto()
    TOMBSTONED = auto()

    @property
    def resumable(self) -> bool:
        """Whether a checkpoint may continue it."""
        return self in (AttemptState.RESTORED, AttemptState.PARKED, AttemptState.COMMITTED)


@frozen
class Dispatched:
    """Its request leaves, also again; for a restored attempt the continuation is claimed (I60)."""


@frozen
class TurnedAway:
    """`/run` was answered `admission_closed`: it never started and is sent again under the same number (I3)."""


@frozen
class Restored:
    """A checkpoint's record was installed under this attempt."""


@frozen
class Parked:
    """It stands at a boundary while a checkpoint is open."""


@frozen
class PartWritten:
    """Its record is in a written part."""


@frozen
class Released:
    """Its server is open again: resume, abort or the end of the lease."""


@frozen
class Completed:
    """Its result exists."""


@frozen
class Tombstoned:
    """It, and every attempt below it, is fenced (I6, I8)."""


def is_unclaimed(claim_may_fail: bool, _event: TurnedAway) -> bool:
    return claim_may_fail


def note_claim(_claim_may_fail: bool, _event: Dispatched) -> tuple[bool, tuple[()]]:
    return True, ()


def note_start(_claim_may_fail: bool, _event: Parked) -> tuple[bool, tuple[()]]:
    return False, ()


NOT_STARTED = refuse("not_started")
NOT_PARKED = refuse("not_parked")
STANDING = refuse("parked", detail="it stands at a boundary; release it first (I65)")
COMPLETE = refuse("already_completed")
STALE = refuse("stale_attempt", detail="this attempt was retired")
STARTED = refuse("already_started")

_S = AttemptState

def may_stand(*, waiting: int, refused: int, sent: int, calling: int) -> bool:
    """Whether a loop may stand between two boundaries, by how many of its calls are what.

    `waiting` for a model reply, or parked; `refused` for good; `calling` anybody else. `sent` since the boundary, but
    for those that were refused for good: each may have been applied, and then its session is past the boundary (S61).
    """
    return not calling and bool(waiting or (refused and not sent))


ATTEMPT = Table(
    "attempt",
    data=bool,
    initial=_S.QUEUED,
    final={_S.COMPLETED, _S.TOMBSTONED},
    doc="One attempt of a rollout: protocol.md sections 3, 4 and 6.",
    cells={
        _S.QUEUED: {
            Dispatched: go(_S.RUNNING),
            TurnedAway: stay(),
            Restored: go(_S.RESTORED),
            Parked: NOT_STARTED,
            PartWritten: NOT_STARTED,
            Released: stay(),
            Completed: NOT_STARTED,
            Tombstoned: go(_S.TOMBSTONED),
        },
        _S.RESTORED: {
            Dispatched: go(_S.RUNNING, do=note_claim),
            TurnedAway: stay(),
            Restored: stay(),
            Parked: NOT_STARTED,
            PartWritten: stay(),  # I62: it is in the next checkpoint as what it is
            Released: stay(),
            Completed: NOT_STARTED,
            Tombstoned: go(_S.TOMBSTONED),
        },
        _S.RUNNING: {
            Dispatched: stay(),  # a repeated /run joins the one execution (I10)
            TurnedAway: when(is_unclaimed, go(_S.RESTORED), otherwise=go(_S.QUEUED)),
            Restored: STARTED,
            Parked: go(_S.PARKED, do=note_start),
            PartWritten: NOT_PARKED,
            Released: stay(),
            Completed: go(_S.COMPLETED),
            Tombstoned: go(_S.TOMBSTONED),
        },
        _S.PARKED: {
            Dispatched: stay(),  # a repeated /run joins the one execution where it stands (I10, I24)
            TurnedAway: stay(),
            Restored: STARTED,
            Parked: stay(),
            PartWritten: go(_S.COMMITTED),
            Released: go(_S.RUNNING),
            Completed: STANDING,
            Tombstoned: go(_S.TOMBSTONED),
        },
        _S.COMMITTED: {
            Dispatched: stay(),
            TurnedAway: stay(),
            Restored: STARTED,
            Parked: stay(),
            PartWritten: stay(),
            Released: go(_S.RUNNING),
            Completed: STANDING,  # I65
            Tombstoned: go(_S.TOMBSTONED),
        },
        _S.COMPLETED: {
            Dispatched: COMPLETE,  # I68: each result once
            TurnedAway: COMPLETE,
            Restored: COMPLETE,
            Parked: COMPLETE,
            PartWritten: COMPLETE,  # I65
            Released: stay(),
            Completed: stay(),
            Tombstoned: stay(),  # I70: retiring does not destroy a result
        },
        _S.TOMBSTONED: {
            Dispatched: STALE,
            TurnedAway: STALE,
            Restored: STALE,
            Parked: STALE,
            PartWritten: STALE,
            Released: stay(),
            Completed: STALE,
            Tombstoned: stay(),
        },
    },
)
