"""A table with one thing wrong in one cell, for asking whether tests notice. Pure but for `applied`.

A test suite that holds a table must fail when a cell leads elsewhere, refuses with another code, refuses no longer,
asks no longer, or does not do what it does. `mutations` gives every such table once, as a cell to put in place of the
table's own; `applied` puts it there for a while, so that everything that has the table sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final

from attrs import evolve, frozen

from .machine import Table
from .table import Cell, Go, Refuse, Stay, When, leaves

__all__ = ["CellMutation", "applied", "mutations"]

OTHERWISE: Final = "not "


@frozen
class CellMutation:
    """`table`'s cell for `state` and `event` is `cell` instead. `says` names the change, and under which guards."""

    table: Table[Any, Any]
    state: Enum
    event: type
    says: str
    cell: Cell

    @property
    def key(self) -> str:
        """One line that no other mutation of any table has: ``table state Event: what is changed``."""
        return f"{self.table.name} {self.state.value} {self.event.__name__}: {self.says}"


def mutations(table: Table[Any, Any]) -> tuple[CellMutation, ...]:
    """Every mutation of every cell, in the order of states and events.

    Of a *go*: each other target, and to stay. Of a *stay*: each other state as a target. Of a *refuse*: another code of
    the table, and to be accepted. Of a guard: that it always holds, and that it never does. Of what is done: that it
    is not.
    """
    codes = sorted({leaf.code for row in table.cells.values() for each in row.values() for leaf in _refusals(each)})
    found = []
    for state, row in table.cells.items():
        for event, cell in row.items():
            changed = _Changes(table, state, codes)
            found += [CellMutation(table, state, event, says, each) for says, each in changed.of(cell, ())]
    return tuple(found)


@contextmanager
def applied(mutation: CellMutation) -> Iterator[None]:
    """Inside, the very table has the mutated cell; afterwards its own again. For one thread."""
    table, state, event = mutation.table, mutation.state, mutation.event
    own = table.cells[state][event]
    table._put(state, event, mutation.cell)
    try:
        yield
    finally:
        table._put(state, event, own)


def _refusals(cell: Cell) -> Iterator[Refuse]:
    return (leaf for leaf in leaves(cell) if isinstance(leaf, Refuse))


@frozen
class _Changes:
    """The changes of one cell. `under` are the guards on the way to a part of it."""

    table: Table[Any, Any]
    state: Enum
    codes: list[str]

    def of(self, cell: Cell, under: tuple[str, ...]) -> Iterator[tuple[str, Cell]]:
        """(what is changed, the whole cell changed so)."""
        if isinstance(cell, When):
            name = _name(cell.guard)
            yield self._told(f"as if {name} always held", under), cell.cell
            yield self._told(f"as if {name} never held", under), cell.otherwise
            for says, each in self.of(cell.cell, (*under, name)):
                yield says, evolve(cell, cell=each)
            for says, each in self.of(cell.otherwise, (*under, OTHERWISE + name)):
                yield says, evolve(cell, otherwise=each)
        else:
            for says, each in self._of_leaf(cell):
                yield self._told(says, under), each

    def _of_leaf(self, leaf: Go | Stay | Refuse) -> Iterator[tuple[str, Cell]]:
        if isinstance(leaf, Refuse):
            if len(self.codes) > 1:
                other = self.codes[(self.codes.index(leaf.code) + 1) % len(self.codes)]
                yield f"refuses with {other} instead of {leaf.code}", evolve(leaf, code=other)
            yield f"accepts what it refuses with {leaf.code}", Stay()
            return
        stands = leaf.target if isinstance(leaf, Go) else self.state
        for target in self.table.states:
            if target is not stands:
                other_leaf: Cell = Stay(leaf.do) if target is self.state else Go(target, leaf.do)
                yield f"leads to {target.value} instead of {stands.value}", other_leaf
        if leaf.do is not None:
            yield f"does not do {_name(leaf.do)}", evolve(leaf, do=None)

    def _told(self, says: str, under: tuple[str, ...]) -> str:
        return f"{says} ({', '.join(under)})" if under else says


def _name(of: Callable[..., Any]) -> str:
    return getattr(of, "__name__", type(of).__name__)
