"""The admission gate: who may start, who is held, and when nothing moves any more. Pure.

Closing is atomic with the admission test (I23): every request is before it or after it, since both are steps of this
one machine. A thing that was admitted is *active* until it ends or *settles* (an agent parks at a boundary, or waits
for a model reply); the gate is quiet when nothing is active. While it is closed, newcomers that can wait are held and
those that cannot are refused (docs/reference/protocol.md section 6, *who waits, who is refused*).
"""

from __future__ import annotations

from enum import StrEnum, auto

from attrs import evolve, frozen

from statecore import Cell, Table, go, refuse, stay, when


class GateState(StrEnum):
    OPEN = auto()
    DRAINING = auto()  # closed, something still active
    QUIET = auto()  # closed, nothing active


@frozen
class GateData:
    """How many are active, settled (admitted, but quiet) and held; at most `max_held` are held."""

    active: int = 0
    settled: int = 0
    held: int = 0
    max_held: int = 100_000


@frozen
class Arrived:
    """A request that may be held."""


@frozen
class ArrivedImpatient:
    """A request that must be answered at once: `/run`, a new agent session."""


@frozen
class Left:
    """A held request went away before it was admitted."""


@frozen
class Ended:
    """An active thing ended."""


@frozen
class Settled:
    """An active thing became quiet."""


@frozen
class Stirred:
    """A quiet thing wants to move again."""


@frozen
class SettledEnded:
    """A quiet thing ended without moving again (it was retired)."""


@frozen
class CloseRequested:
    pass


@frozen
class OpenRequested:
    pass


@frozen
class Admit:
    pass


@frozen
class Hold:
    pass


@frozen
class BecameQuiet:
    pass


@frozen
class ReleaseHeld:
    pass


def is_last(data: GateData, _event: object) -> bool:
    return data.active == 1


def has_active(data: GateData, _event: object) -> bool:
    return data.active > 0


def has_settled(data: GateData, _event: object) -> bool:
    return data.settled > 0


def has_held(data: GateData, _event: object) -> bool:
    return data.held > 0


def is_full(data: GateData, _event: object) -> bool:
    return data.held >= data.max_held


Step = tuple[GateData, tuple[object, ...]]


def admit(data: GateData, _event: object) -> Step:
    return GateData(data.active + 1, data.settled, data.held, data.max_held), (Admit(),)


def hold(data: GateData, _event: object) -> Step:
    return GateData(data.active, data.settled, data.held + 1, data.max_held), (Hold(),)


def leave(data: GateData, _event: object) -> Step:
    return GateData(data.active, data.settled, data.held - 1, data.max_held), ()


def end(data: GateData, _event: object) -> Step:
    return GateData(data.active - 1, data.settled, data.held, data.max_held), ()


def end_last(data: GateData, _event: object) -> Step:
    return GateData(data.active - 1, data.settled, data.held, data.max_held), (BecameQuiet(),)


def settle(data: GateData, _event: object) -> Step:
    return GateData(data.active - 1, data.settled + 1, data.held, data.max_held), ()


def settle_last(data: GateData, _event: object) -> Step:
    return GateData(data.active - 1, data.settled + 1, data.held, data.max_held), (BecameQuiet(),)


def stir(data: GateData, _event: object) -> Step:
    return GateData(data.active + 1, data.settled - 1, data.held, data.max_held), (Admit(),)


def end_settled(data: GateData, _event: object) -> Step:
    return GateData(data.active, data.settled - 1, data.held, data.max_held), ()


def release(data: GateData, _event: object) -> Step:
    """The held are let go; each arrives again as a newcomer."""
    return evolve(data, held=0), (ReleaseHeld(),)


def counted_again(*, settled: bool) -> tuple[object, ...]:
    """What happens at the opening to a thing that was excused while the gate was closed (it *ended* there then)."""
    return (ArrivedImpatient(), Settled()) if settled else (ArrivedImpatient(),)


def now_quiet(data: GateData, _event: object) -> Step:
    return data, (BecameQuiet(),)


CLOSED = refuse("admission_closed", detail="admission is closed for a checkpoint")
FULL = refuse("too_many_held", detail="too many requests are held already")
NOTHING_ACTIVE = refuse("nothing_active")
NOTHING_SETTLED = refuse("nothing_settled")
NOTHING_HELD = refuse("nothing_held")

_CLOSED_CELLS: dict[type, Cell] = {
    Arrived: when(is_full, FULL, otherwise=stay(do=hold)),
    ArrivedImpatient: CLOSED,
    Left: when(has_held, stay(do=leave), otherwise=NOTHING_HELD),
    Stirred: CLOSED,  # I24: what is quiet stays quiet until resume
    SettledEnded: when(has_settled, stay(do=end_settled), otherwise=NOTHING_SETTLED),
    OpenRequested: go(GateState.OPEN, do=release),
}

GATE = Table(
    "gate",
    data=GateData,
    initial=GateState.OPEN,
    final=set(),
    doc="Admission to one server: protocol.md sections 4 and 6.",
    cells={
        GateState.OPEN: {
            Arrived: stay(do=admit),
            ArrivedImpatient: stay(do=admit),
            Left: NOTHING_HELD,  # opening has released all
            Ended: when(has_active, stay(do=end), otherwise=NOTHING_ACTIVE),
            Settled: when(has_active, stay(do=settle), otherwise=NOTHING_ACTIVE),
            Stirred: when(has_settled, stay(do=stir), otherwise=NOTHING_SETTLED),
            SettledEnded: when(has_settled, stay(do=end_settled), otherwise=NOTHING_SETTLED),
            CloseRequested: when(has_active, go(GateState.DRAINING), otherwise=go(GateState.QUIET, do=now_quiet)),
            OpenRequested: stay(),
        },
        GateState.DRAINING: {
            **_CLOSED_CELLS,
            Ended: when(is_last, go(GateState.QUIET, do=end_last), otherwise=stay(do=end)),
            Settled: when(is_last, go(GateState.QUIET, do=settle_last), otherwise=stay(do=settle)),
            CloseRequested: stay(),
        },
        GateState.QUIET: {
            **_CLOSED_CELLS,
            Ended: NOTHING_ACTIVE,
            Settled: NOTHING_ACTIVE,
            CloseRequested: stay(),
        },
    },
)
