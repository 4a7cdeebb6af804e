"""A table as Markdown: every cell shown, whether it goes, stays or refuses.

Rows are events, columns are states. `page` puts the grid and the Mermaid diagram (from `engine`, through transitions'
own diagram engine) below the table's name and documentation: what `docs/reference` is generated from.
"""

from __future__ import annotations

from typing import Any

from .engine import mermaid
from .machine import Table
from .table import Cell, Go, Refuse, When

__all__ = ["cell_text", "grid", "page"]


def cell_text(cell: Cell) -> str:
    """One cell in words: `go released`, `stay / keep`, `refuse(code)`, `if guard: ... else: ...`."""
    if isinstance(cell, When):
        return f"if {_name(cell.guard)}: {cell_text(cell.cell)}; else {cell_text(cell.otherwise)}"
    if isinstance(cell, Refuse):
        return f"refuse({cell.code})"
    done = f" / {_name(cell.do)}" if cell.do is not None else ""
    return f"go {cell.target.value}{done}" if isinstance(cell, Go) else f"stay{done}"


def grid(table: Table[Any, Any]) -> str:
    """The table as a Markdown grid; initial states are marked `(start)`, final ones `(final)`."""
    head = ["event", *(_state(table, state) for state in table.states)]
    lines = [_row(head), _row(["---"] * len(head))]
    for event in table.events:
        lines.append(_row([event.__name__, *(cell_text(table.cells[state][event]) for state in table.states)]))
    return "\n".join(lines) + "\n"


def page(table: Table[Any, Any], level: int = 2) -> str:
    """A section for the table: heading, documentation, grid, diagram."""
    doc = f"{table.doc.strip()}\n\n" if table.doc else ""
    return f"{'#' * level} {table.name}\n\n{doc}{grid(table)}\n```mermaid\n{mermaid(table)}\n```\n"


def _state(table: Table[Any, Any], state: Any) -> str:
    starts = state is table.initial or state in table.also_initial
    marks = [word for word, is_so in (("start", starts), ("final", state in table.final)) if is_so]
    return f"{state.value} ({', '.join(marks)})" if marks else str(state.value)


def _name(function: Any) -> str:
    """The function's own name; what wraps it (a partial) is looked through."""
    while hasattr(function, "func"):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


