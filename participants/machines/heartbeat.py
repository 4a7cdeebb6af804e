"""Whether a server lives, as its coordinator knows it. Pure.

Rules (docs/reference/protocol.md section 7): a process is dead when it has answered nothing for several periods in a
row, when its launcher says that it has ended, or when another process answers in its name: a restart that nobody asked
for has lost everything, whether somebody calls it or not (S66). Dead is final: the deployment starts anew (I97).
"""

from __future__ import annotations

from enum import StrEnum, auto

from attrs import evolve, frozen

from statecore import Table, go, stay, when


class Heartbeat(StrEnum):
    ALIVE = auto()
    LATE = auto()
    DEAD = auto()


@frozen(cache_hash=True)
class Pulse:
    """`incarnation` is the process that counts, "" of a peer that shows none; `silent` of `allowed` periods passed."""

    incarnation: str = ""
    allowed: int = 3
    silent: int = 0


@frozen
class Answered:
    """A reply of whatever kind came in the server's name; `incarnation` is "" where it shows none."""

    incarnation: str = ""


@frozen
class PeriodPassed:
    """A whole period, and no answer in it."""


@frozen
class Exited:
    """Whoever started the process says that it has ended."""

    status: int


@frozen
class DeclareDead:
    """The whole deployment is to be started anew."""

    reason: str


def is_same(pulse: Pulse, event: Answered) -> bool:
    """Nothing shows that another process answered; a peer of another make shows no incarnation."""
    return pulse.incarnation in ("", event.incarnation) or not event.incarnation


def is_last(pulse: Pulse, _event: PeriodPassed) -> bool:
    return pulse.silent + 1 >= pulse.allowed


Step = tuple[Pulse, list[object]]


def calm(pulse: Pulse, _event: Answered) -> Step:
    return evolve(pulse, silent=0), []


def count(pulse: Pulse, _event: PeriodPassed) -> Step:
    return evolve(pulse, silent=pulse.silent + 1), []


def declare_replaced(pulse: Pulse, event: Answered) -> Step:
    return pulse, [DeclareDead(f"another process answers in its name ({event.incarnation}, not {pulse.incarnation})")]


def declare_silent(pulse: Pulse, _event: PeriodPassed) -> Step:
    silent = pulse.silent + 1
    return evolve(pulse, silent=silent), [DeclareDead(f"it has not answered for {silent} periods in a row")]


def declare_ended(pulse: Pulse, event: Exited) -> Step:
    return pulse, [DeclareDead(f"its process has ended with status {event.status}")]


_H = Heartbeat
REPLACED = go(_H.DEAD, do=declare_replaced)
SILENT = go(_H.DEAD, do=declare_silent)
ENDED = go(_H.DEAD, do=declare_ended)

HEARTBEAT = Table(
    "heartbeat",
    data=Pulse,
    initial=_H.ALIVE,
    final={_H.DEAD},
    doc="Whether one server lives, seen by its coordinator: protocol.md section 7.",
    cells={
        _H.ALIVE: {
            Answered: when(is_same, stay(do=calm), otherwise=REPLACED),
            PeriodPassed: when(is_last, SILENT, otherwise=go(_H.LATE, do=count)),
            Exited: ENDED,
        },
        _H.LATE: {
            Answered: when(is_same, go(_H.ALIVE, do=calm), otherwise=REPLACED),
            PeriodPassed: when(is_last, SILENT, otherwise=stay(do=count)),
            Exited: ENDED,
        },
        _H.DEAD: {Answered: stay(), PeriodPassed: stay(), Exited: stay()},  # what comes late revives nobody
    },
)
