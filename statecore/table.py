"""Declare a machine: for every state and every event one cell, *go*, *stay* or *refuse*, checked when it is defined.

Rules (docs/reference/protocol.md section 4):

* total: a missing cell is a `DefinitionError`; a guarded cell names its *otherwise*, so totality survives guards;
* every state is reachable from the initial one; a state without a way out is declared final, a final one has none;
* events are classes, told apart by name; `do(data, event)` returns `(data, effects)`, `guard(data, event)` a bool;
* nothing here performs anything: `statecore.machine` makes the step from what is declared here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar

from attrs import frozen

from .errors import DefinitionError

__all__ = [
    "Cell",
    "Declaration",
    "Do",
    "Go",
    "Guard",
    "Refuse",
    "Rows",
    "Stay",
    "When",
    "go",
    "leaves",
    "refuse",
    "stay",
    "when",
]

S = TypeVar("S", bound=Enum)
Do: TypeAlias = Callable[[Any, Any], tuple[Any, Sequence[Any]]]
Guard: TypeAlias = Callable[[Any, Any], bool]
Detail: TypeAlias = str | Callable[[Any, Any], str]

_CODE = re.compile(r"[a-z][a-z0-9_]*\Z")


@frozen
class Go:
    """The event leads to `target`, after `do`."""

    target: Enum
    do: Do | None = None


@frozen
class Stay:
    """The event is accepted and the state stays (an idempotent replay, or only the data changes)."""

    do: Do | None = None


@frozen
class Refuse:
    """The event is refused with `code`; nothing changes. `detail` is text or `detail(data, event)`."""

    code: str
    detail: Detail = ""


@frozen
class When:
    """`cell` if the guard holds, `otherwise` if not."""

    guard: Guard
    cell: Go | Stay | Refuse | When
    otherwise: Go | Stay | Refuse | When


Cell: TypeAlias = Go | Stay | Refuse | When
# Inner keys are event classes (a Mapping is invariant in its keys). Pairs are accepted too, to find repeated ones.
Rows: TypeAlias = Mapping[S, Mapping[Any, Cell]]


def go(target: Enum, do: Do | None = None) -> Go:
    """A cell that leads to `target`; `do(data, event) -> (data, effects)`."""
    return Go(target, do)


def stay(do: Do | None = None) -> Stay:
    """A cell that accepts the event without changing the state."""
    return Stay(do)


def refuse(code: str, detail: Detail = "") -> Refuse:
    """A cell that refuses the event with a named code."""
    return Refuse(code, detail)


def when(guard: Guard, cell: Cell, *, otherwise: Cell) -> When:
    """A cell decided by `guard(data, event)`; both branches are cells and may be guarded again."""
    return When(guard, cell, otherwise)


def leaves(cell: Cell) -> Iterator[Go | Stay | Refuse]:
    """Every branch at which the cell can end, in the order they are written."""
    if isinstance(cell, When):
        yield from leaves(cell.cell)
        yield from leaves(cell.otherwise)
    else:
        yield cell


class Declaration(Generic[S]):
    """A checked declaration: states, events and a cell for each pair.

    A machine starts in `initial`; one that may be born in other states names them in `also_initial`.
    `states` are all members of the initial state's enum, in its order; `events` all event classes, in the order they
    first appear; `cells[state][event]` the cell. Raises `DefinitionError` naming culprit and mend.
    """

    def __init__(
        self,
        name: str,
        *,
        initial: S,
        also_initial: Iterable[S] = (),
        final: Iterable[S] = (),
        cells: Rows[S],
        doc: str = "",
    ) -> None:
        if not isinstance(initial, Enum):
            raise DefinitionError(f"table {name!r}: initial {initial!r} is no member of an Enum; give State.<NAME>")
        self.name = name
        self.doc = doc
        self.initial: S = initial
        self.states: tuple[S, ...] = tuple(type(initial))
        self.also_initial: frozenset[S] = frozenset(also_initial)
        self.final: frozenset[S] = frozenset(final)
        self.cells: dict[S, dict[type, Cell]] = self._rows(cells)
        self.events: tuple[type, ...] = self._event_classes()
        self._check_totality()
        for state, row in self.cells.items():
            for event, cell in row.items():
                self._check_cell(f"cell ({state}, {event.__name__})", cell)
        self._check_graph()
        self._allowed = {state: self._ways_forward(row) for state, row in self.cells.items()}

    def allowed(self, state: S) -> tuple[str, ...]:
        """Names of the events that have a *go* or *stay* branch in `state`."""
        return self._allowed[state]

    def _ways_forward(self, row: dict[type, Cell]) -> tuple[str, ...]:
        return tuple(e.__name__ for e in self.events if any(not isinstance(leaf, Refuse) for leaf in leaves(row[e])))

    def _is_state(self, state: object) -> bool:
        """By class and not by value: members of two StrEnums with the same text are equal."""
        return type(state) is type(self.initial)

    def _fail(self, culprit: str, mend: str) -> DefinitionError:
        return DefinitionError(f"table {self.name!r}: {culprit}; {mend}")

    def _rows(self, cells: Any) -> dict[S, dict[type, Cell]]:
        """The rows as dicts; pairs may be given instead of mappings, and then a repeated key is found."""
        rows: dict[S, dict[type, Cell]] = {}
        for state, row in _pairs(cells):
            if not self._is_state(state):
                raise self._fail(f"row {state!r} is no state", f"states are {_names(self.states)}")
            if state in rows:
                raise self._fail(f"state {state} has two rows", "merge them into one")
            rows[state] = {}
            for event, cell in _pairs(row):
                if not isinstance(event, type):
                    raise self._fail(f"event {event!r} in row {state} is no class", "use the event's class as the key")
                if event in rows[state]:
                    raise self._fail(f"cell ({state}, {event.__name__}) is declared twice", "keep one of them")
                rows[state][event] = cell
        return rows

    def _event_classes(self) -> tuple[type, ...]:
        seen: dict[str, type] = {}
        for row in self.cells.values():
            for event in row:
                other = seen.setdefault(event.__name__, event)
                if other is not event:
                    raise self._fail(
                        f"two event classes are named {event.__name__} ({other.__module__} and {event.__module__})",
                        "rename one: names go to journals, diagrams and refusals",
                    )
        if not seen:
            raise self._fail("no event is declared", "give at least one cell")
        return tuple(seen.values())

    def _check_totality(self) -> None:
        for state in self.states:
            if state not in self.cells:
                raise self._fail(f"state {state} has no row", "declare go, stay or refuse for each of its events")
            for event in self.events:
                if event not in self.cells[state]:
                    raise self._fail(
                        f"cell ({state}, {event.__name__}) is missing", "declare go, stay or refuse(code) for it"
                    )

    def _check_cell(self, where: str, cell: object) -> None:
        if isinstance(cell, When):
            if not callable(cell.guard):
                raise self._fail(f"{where}: guard {cell.guard!r} is not callable", "give guard(data, event) -> bool")
            self._check_cell(where, cell.cell)
            self._check_cell(f"{where}, otherwise", cell.otherwise)
        elif isinstance(cell, Refuse):
            if not isinstance(cell.code, str) or not _CODE.match(cell.code):
                raise self._fail(f"{where}: refusal code {cell.code!r}", "use lower case letters, digits and _")
            if not isinstance(cell.detail, str) and not callable(cell.detail):
                raise self._fail(f"{where}: detail {cell.detail!r}", "give text or detail(data, event) -> str")
        elif isinstance(cell, (Go, Stay)):
            if cell.do is not None and not callable(cell.do):
                raise self._fail(f"{where}: do {cell.do!r} is not callable", "give do(data, event) -> (data, effects)")
            if isinstance(cell, Go) and not self._is_state(cell.target):
                raise self._fail(f"{where}: unknown target {cell.target!r}", f"go to one of {_names(self.states)}")
        else:
            raise self._fail(f"{where}: {cell!r} is no cell", "use go(...), stay(...), refuse(code) or when(...)")

    def _targets(self, state: S) -> set[S]:
        """States that a *go* leads to from `state`, itself left out."""
        found = {leaf.target for cell in self.cells[state].values() for leaf in leaves(cell) if isinstance(leaf, Go)}
        return {other for other in self.states if other in found} - {state}

    def _check_graph(self) -> None:
        for state in self.final:
            if not self._is_state(state):
                raise self._fail(f"final {state!r} is no state", f"states are {_names(self.states)}")
        for state in self.also_initial:
            if not self._is_state(state):
                raise self._fail(f"also_initial {state!r} is no state", f"states are {_names(self.states)}")
        starts = {self.initial} | self.also_initial
        reached, todo = set(starts), list(starts)
        while todo:
            for target in self._targets(todo.pop()) - reached:
                reached.add(target)
                todo.append(target)
        for state in self.states:
            if state not in reached:
                raise self._fail(f"state {state} is unreachable from {self.initial}", "add a go to it, or remove it")
            out = self._targets(state)
            if state in self.final and out:
                raise self._fail(
                    f"final state {state} goes to {_names(sorted(out, key=self.states.index))}",
                    "a final state only stays or refuses; take it out of final=",
                )
            if state not in self.final and not out:
                raise self._fail(f"state {state} is a dead end", "add a go out of it, or declare it in final=")


def _pairs(rows: Any) -> Iterable[tuple[Any, Any]]:
    return rows.items() if isinstance(rows, Mapping) else rows


def _names(states: Iterable[Enum]) -> str:
    return ", ".join(str(state) for state in states)
