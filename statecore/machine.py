"""Run a declared machine: a snapshot and a pure step. Guards first, commit last, effects returned and never performed.

Rules: `step` is the only door; a refused event raises `Refused` and leaves the given snapshot as it was (it is
immutable); effects come back as a tuple in the order they are owed. The hot path is one look-up in a table compiled
when the machine is defined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from types import NoneType
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar, cast, overload

from attrs import frozen

from .errors import DefinitionError, Refused
from .table import Cell, Declaration, Go, Refuse, Rows, Stay, When

__all__ = ["Snapshot", "Table"]

S = TypeVar("S", bound=Enum)
D = TypeVar("D")


@frozen(repr=False)
class Snapshot(Generic[S, D]):
    """A machine at rest: `state` and one value of `data`. Immutable; hashable if its data is."""

    state: S
    data: D

    def __repr__(self) -> str:
        return f"Snapshot({self.state}, {self.data!r})"


# Writes to a new Snapshot without its __init__: frozen attrs classes pay twice for object.__setattr__.
_new: Callable[[type], Any] = object.__new__
_set_state: Callable[[Any, Any], None] = Snapshot.__dict__["state"].__set__
_set_data: Callable[[Any, Any], None] = Snapshot.__dict__["data"].__set__

# A compiled cell: (code, a, b, c). What a, b and c are depends on the code.
_STAY, _GO, _STAY_DO, _GO_DO, _REFUSE, _WHEN = range(6)
Op: TypeAlias = tuple[int, Any, Any, Any]


class _Default:
    """The mark of an argument left out."""


_DEFAULT = _Default()


class Table(Declaration[S], Generic[S, D]):
    """A total machine over `states` and `events`; `start` makes a snapshot, `step` the next one.

    `data` makes the first data (a type or a function without arguments); without it the data is None.
    Raises `DefinitionError` when defined wrongly (see `Declaration`).
    """

    @overload
    def __init__(
        self: Table[S, None],
        name: str,
        *,
        initial: S,
        also_initial: Iterable[S] = ...,
        final: Iterable[S] = ...,
        cells: Rows[S],
        doc: str = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        *,
        data: Callable[[], D],
        initial: S,
        also_initial: Iterable[S] = ...,
        final: Iterable[S] = ...,
        cells: Rows[S],
        doc: str = ...,
    ) -> None: ...

    def __init__(
        self,
        name: str,
        *,
        data: Callable[[], Any] = NoneType,
        initial: S,
        also_initial: Iterable[S] = (),
        final: Iterable[S] = (),
        cells: Rows[S],
        doc: str = "",
    ) -> None:
        super().__init__(name, initial=initial, also_initial=also_initial, final=final, cells=cells, doc=doc)
        if not callable(data):
            raise self._fail(f"data {data!r} is not callable", "give a type or a function that makes the first data")
        self.data = data
        self._ops: dict[S, dict[type, Op]] = {
            state: {event: _compile(cell) for event, cell in row.items()} for state, row in self.cells.items()
        }

    def _put(self, state: S, event: type, cell: Cell) -> None:
        """The table has this cell from now on, unchecked: only for `statecore.mutation`, which puts its own back."""
        self.cells[state][event] = cell
        self._ops[state][event] = _compile(cell)

    def __repr__(self) -> str:
        return f"<Table {self.name}: {len(self.states)} states, {len(self.events)} events>"

    def start(self, data: D | _Default = _DEFAULT, *, state: S | None = None) -> Snapshot[S, D]:
        """A snapshot in the initial state (or in `state`, one of `also_initial`), with `data` or the first data."""
        if state is not None and state is not self.initial and state not in self.also_initial:
            raise self._fail(f"{state} is no initial state", "declare it in also_initial=")
        return Snapshot(state or self.initial, self.data() if isinstance(data, _Default) else data)

    def step(self, snapshot: Snapshot[S, D], event: object) -> tuple[Snapshot[S, D], tuple[Any, ...]]:
        """The snapshot after `event`, and the effects that are owed, in order; `snapshot` itself never changes.

        Raises `Refused` where the cell refuses, `DefinitionError` for a state or event that the table does not declare.
        """
        try:
            code, a, b, c = self._ops[snapshot.state][event.__class__]
        except (KeyError, TypeError):
            raise self._undeclared(snapshot, event) from None
        while code == 5:  # _WHEN
            code, a, b, c = b if a(snapshot.data, event) else c
        if code == 0:  # _STAY
            return snapshot, ()
        if code == 1:  # _GO
            data = snapshot.data
            if data is None:
                return b  # type: ignore[no-any-return]  # made when compiled: nothing in it can differ
            after = _new(Snapshot)
            _set_state(after, a)
            _set_data(after, data)
            return after, ()
        if code == 4:  # _REFUSE
            self._refuse(snapshot, event, a)
        data, effects = b(snapshot.data, event)
        after = _new(Snapshot)
        _set_state(after, snapshot.state if code == 2 else a)
        _set_data(after, data)
        return after, effects if effects.__class__ is tuple else tuple(effects)

    def _refuse(self, snapshot: Snapshot[S, D], event: object, cell: Refuse) -> NoReturn:
        detail = cell.detail if isinstance(cell.detail, str) else cell.detail(snapshot.data, event)
        raise Refused(cell.code, snapshot.state, event, self.allowed(snapshot.state), detail)

    def _undeclared(self, snapshot: Snapshot[S, D], event: object) -> DefinitionError:
        if snapshot.state not in self.cells:
            return self._fail(f"{snapshot.state!r} is no state of it", f"states are {', '.join(map(str, self.states))}")
        names = ", ".join(declared.__name__ for declared in self.events)
        return self._fail(f"event {event!r} is not declared", f"give an instance of one of: {names}; or add its cells")


def _compile(cell: Cell) -> Op:
    if isinstance(cell, When):
        return _WHEN, cell.guard, _compile(cell.cell), _compile(cell.otherwise)
    if isinstance(cell, Refuse):
        return _REFUSE, cell, None, None
    if isinstance(cell, Stay):
        return (_STAY, None, None, None) if cell.do is None else (_STAY_DO, None, cell.do, None)
    assert isinstance(cell, Go)
    if cell.do is None:
        return _GO, cell.target, (cast("Snapshot[Any, None]", Snapshot(cell.target, None)), ()), None
    return _GO_DO, cell.target, cell.do, None
