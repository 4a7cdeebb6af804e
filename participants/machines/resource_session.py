"""A session of a resources server: a position that counts its own changes. Pure.

The revision grows by one exactly on a successful mutation (I36), the history names which mutations those were (I81),
and only a seed draws a new incarnation: a session that a server does not know is lost and never made again (S60). A
repeated operation gets its recorded reply and changes nothing. docs/reference/protocol.md sections 3, 4 and 13.
"""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Final

from attrs import evolve, frozen

from statecore import Table, go, refuse, stay, when

from ..records.positions import SEED_HISTORY, Position
from ..records.positions import advance as next_position

OPERATIONS_KEPT: Final = 64


class SessionState(StrEnum):
    ABSENT = auto()
    LIVE = auto()
    FROZEN = auto()
    VERIFYING = auto()
    RESTORED = auto()  # installed under N+1, not used yet
    ENDED = auto()


@frozen
class Operation:
    """An applied operation and its reply, as JSON text."""

    operation_id: str
    reply: str


@frozen
class SessionData:
    """`seed_id` is the operation that seeded it; of the operations the last `max_operations` are kept."""

    position: Position | None = None
    seed_id: str = ""
    operations: tuple[Operation, ...] = ()
    max_operations: int = OPERATIONS_KEPT

    def applied(self, operation_id: str) -> Operation | None:
        """The operation of that id, if it was applied and is remembered."""
        for done in self.operations:
            if done.operation_id == operation_id:
                return done
        return None


@frozen
class Seeded:
    incarnation: str
    seed_id: str = ""


@frozen
class Installed:
    """A checkpoint's record was read back: all three parts of the position are kept."""

    position: Position
    operations: tuple[Operation, ...] = ()


@frozen
class Mutated:
    operation_id: str
    reply: str = ""


@frozen
class Used:
    """The first call under N+1."""


@frozen
class Froze:
    """The server is closed and quiet: what is exported now is what the boundary names (I24)."""


@frozen
class Thawed:
    pass


@frozen
class VerifyStarted:
    pass


@frozen
class VerifySucceeded:
    pass


@frozen
class VerifyFailed:
    pass


@frozen
class Closed:
    """Closed by its caller, or its attempt was retired."""


def is_same_seed(data: SessionData, event: Seeded) -> bool:
    """A seed sent again: by its operation id, or, from callers without one, while nothing has happened yet."""
    if event.seed_id and data.seed_id:
        return event.seed_id == data.seed_id
    return data.position is not None and data.position.revision == 0


def is_repeated(data: SessionData, event: Mutated) -> bool:
    return data.applied(event.operation_id) is not None


def seed(data: SessionData, event: Seeded) -> tuple[SessionData, list[object]]:
    return evolve(data, position=Position(0, SEED_HISTORY, event.incarnation), seed_id=event.seed_id), []


def install(data: SessionData, event: Installed) -> tuple[SessionData, list[object]]:
    return evolve(data, position=event.position, operations=event.operations), []


def advance(data: SessionData, event: Mutated) -> tuple[SessionData, list[object]]:
    if data.position is None:
        raise ValueError("a session without a position cannot advance")
    done = (*data.operations, Operation(event.operation_id, event.reply))[-data.max_operations :]
    position = next_position(data.position, event.operation_id)
    return SessionData(position, data.seed_id, done, data.max_operations), []


_S = SessionState
LOST = refuse("session_lost", detail="this server does not know that session")  # S60
EXISTS = refuse("checkpoint_error", detail="the rollout already has a session here")
NOT_ABSENT = refuse("checkpoint_error", detail="a live session is never replaced")
IS_FROZEN = refuse("session_frozen", detail="the session is frozen for a checkpoint")
BUSY = refuse("session_busy", detail="the session is being verified")
NOT_VERIFYING = refuse("not_verifying")
FIRST_USE = refuse("not_used_yet")

RESOURCE_SESSION = Table(
    "resource_session",
    data=SessionData,
    initial=_S.ABSENT,
    final={_S.ENDED},
    doc="One session of a resources server: protocol.md sections 3, 4 and 13.",
    cells={
        _S.ABSENT: {
            Seeded: go(_S.LIVE, do=seed),
            Installed: go(_S.RESTORED, do=install),
            Mutated: LOST,
            Used: LOST,
            Froze: LOST,
            Thawed: LOST,
            VerifyStarted: LOST,
            VerifySucceeded: LOST,
            VerifyFailed: LOST,
            Closed: LOST,
        },
        _S.LIVE: {
            Seeded: when(is_same_seed, stay(), otherwise=EXISTS),
            Installed: NOT_ABSENT,
            Mutated: when(is_repeated, stay(), otherwise=stay(do=advance)),  # I36
            Used: stay(),
            Froze: go(_S.FROZEN),
            Thawed: stay(),
            VerifyStarted: go(_S.VERIFYING),
            VerifySucceeded: NOT_VERIFYING,
            VerifyFailed: NOT_VERIFYING,
            Closed: go(_S.ENDED),
        },
        _S.FROZEN: {
            Seeded: when(is_same_seed, stay(), otherwise=IS_FROZEN),  # one that was done is answered again
            Installed: NOT_ABSENT,
            Mutated: when(is_repeated, stay(), otherwise=IS_FROZEN),  # I24; an applied one is answered again
            Used: stay(),
            Froze: stay(),
            Thawed: go(_S.LIVE),
            VerifyStarted: IS_FROZEN,
            VerifySucceeded: NOT_VERIFYING,
            VerifyFailed: NOT_VERIFYING,
            Closed: go(_S.ENDED),  # only by retiring: a close request is held
        },
        _S.VERIFYING: {
            Seeded: BUSY,
            Installed: NOT_ABSENT,
            Mutated: BUSY,
            Used: stay(),
            Froze: BUSY,  # prepare waits for it
            Thawed: stay(),
            VerifyStarted: BUSY,
            VerifySucceeded: go(_S.ENDED),
            VerifyFailed: go(_S.LIVE),  # the state is kept after a failed verification
            Closed: go(_S.ENDED),
        },
        _S.RESTORED: {
            Seeded: EXISTS,  # I58: a continuation starts no new session
            Installed: NOT_ABSENT,
            Mutated: FIRST_USE,
            Used: go(_S.LIVE),
            Froze: stay(),  # I62: unclaimed state is exported again
            Thawed: stay(),
            VerifyStarted: FIRST_USE,
            VerifySucceeded: NOT_VERIFYING,
            VerifyFailed: NOT_VERIFYING,
            Closed: go(_S.ENDED),
        },
        _S.ENDED: {
            Seeded: LOST,
            Installed: LOST,
            Mutated: LOST,
            Used: LOST,
            Froze: LOST,
            Thawed: stay(),
            VerifyStarted: LOST,
            VerifySucceeded: LOST,
            VerifyFailed: LOST,
            Closed: stay(),
        },
    },
)
