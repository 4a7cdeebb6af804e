"""What a shelf is and what may happen to it, as a table. Pure: no clock, no disk, no await.

A shelf takes things and gives the last one back, up to a bound, until it is sealed. Put your own states and events
here first: the server runs this table, the world explores it, and the tests draw from it.
"""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Final

from attrs import evolve, frozen

from statecore import Snapshot, Table, go, refuse, stay, when

MAX_THINGS: Final = 3


class ShelfState(StrEnum):
    OPEN = auto()
    SEALED = auto()


@frozen
class Shelf:
    """A session's whole state, as it is saved and comes back."""

    state: ShelfState = ShelfState.OPEN
    things: tuple[str, ...] = ()


@frozen
class Put:
    """A thing is to be put on top."""

    thing: str


@frozen
class Taken:
    """The thing on top is to go."""


@frozen
class Sealed:
    """Nothing more is to change."""


Things = tuple[str, ...]


def is_full(things: Things, _event: object) -> bool:
    return len(things) >= MAX_THINGS


def is_empty(things: Things, _event: object) -> bool:
    return not things


def put(things: Things, event: Put) -> tuple[Things, tuple[()]]:
    return (*things, event.thing), ()


def take(things: Things, _event: object) -> tuple[Things, tuple[()]]:
    return things[:-1], ()


SEALED: Final = refuse("sealed", detail="a sealed shelf stays as it is")

SHELF: Final[Table[ShelfState, Things]] = Table(
    "shelf",
    data=tuple,
    initial=ShelfState.OPEN,
    final={ShelfState.SEALED},
    doc="One shelf: a session of this server.",
    cells={
        ShelfState.OPEN: {
            Put: when(is_full, refuse("full"), otherwise=stay(do=put)),
            Taken: when(is_empty, refuse("empty"), otherwise=stay(do=take)),
            Sealed: go(ShelfState.SEALED),
        },
        ShelfState.SEALED: {Put: SEALED, Taken: SEALED, Sealed: stay()},
    },
)


def moved(shelf: Shelf, event: object) -> Shelf:
    """The shelf after `event`; Refused, with the code of its cell, where the table has it so."""
    after, _ = SHELF.step(Snapshot(shelf.state, shelf.things), event)
    return evolve(shelf, state=after.state, things=after.data)
