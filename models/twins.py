"""Worlds with something taken out: failing twins without a protective rule, and worlds in which less goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

from statecore import Cell, Go, Table
from statecore.table import Guard, When, leaves
from statecore.world import World

S = TypeVar("S", bound=Enum)
D = TypeVar("D")
W = TypeVar("W", bound=World)


def without_rule(table: Table[S, D], cells: Mapping[tuple[S, type], Cell]) -> Table[S, D]:
    """The table with `cells` in place of its own; KeyError if it has no such cell.

    A final state that the twin leaves is no longer declared final, and a state that nothing leads to any more is let
    pass as one to start in.
    """
    rows: dict[S, dict[type, Cell]] = {state: dict(row) for state, row in table.cells.items()}
    for (state, event), cell in cells.items():
        if event not in rows[state]:
            raise KeyError(f"table {table.name!r} has no cell ({state}, {event.__name__})")
        rows[state][event] = cell
    left = {state for (state, _), cell in cells.items() if any(isinstance(leaf, Go) for leaf in leaves(cell))}
    make: Any = Table
    changed: Table[S, D] = make(
        table.name,
        data=table.data,
        initial=table.initial,
        also_initial=table.states,
        final=table.final - left,
        cells=rows,
        doc=table.doc,
    )
    return changed


def without_guard(table: Table[S, D], guard: Guard) -> Table[S, D]:
    """The table as if `guard` never held, in every cell; KeyError if no cell asks it."""
    changed: dict[tuple[S, type], Cell] = {}
    for state, row in table.cells.items():
        for event, cell in row.items():
            without = _without(cell, guard)
            if without is not cell:
                changed[state, event] = without
    if not changed:
        raise KeyError(f"no cell of table {table.name!r} asks {guard.__name__}")
    return without_rule(table, changed)


def _without(cell: Cell, guard: Guard) -> Cell:
    """The cell itself where it does not ask."""
    if not isinstance(cell, When):
        return cell
    if cell.guard is guard:
        return _without(cell.otherwise, guard)
    inner, otherwise = _without(cell.cell, guard), _without(cell.otherwise, guard)
    if inner is cell.cell and otherwise is cell.otherwise:
        return cell
    return When(cell.guard, inner, otherwise)


def without_faults(*kept: str) -> Callable[[type[W]], type[W]]:
    """Decorate a world: it has no fault actions but these. ValueError for a name that is none of its fault actions."""

    def decorate(world: type[W]) -> type[W]:
        faults = {name for name, each in world.actions_.items() if each.fault}
        if unknown := set(kept) - faults:
            raise ValueError(f"{world.__name__} has no fault action {', '.join(sorted(unknown))}")
        world.actions_ = {name: each for name, each in world.actions_.items() if name in kept or not each.fault}
        return world

    return decorate
