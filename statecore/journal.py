"""What happened, one JSON line per event, appended and never changed; and a check of it against the tables.

A line is canonical JSON: `{"clock": 12.5, "event": "Finished", "ids": {...}, "machine": "handoff", "next": "retained",
"refused": null, "seq": 3, "state": "running"}`. `clock` is wall time in seconds, `seq` counts the lines of this journal
from 1. A refused event may be written too, with its code. `replay` names the first line that no table allows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from attrs import frozen

from .errors import JournalError, WireError, WireErrors
from .machine import Table
from .seams import Clock
from .table import Go, Refuse, Stay, leaves
from .wire import canonical, parse, structure

__all__ = ["MAX_KEPT_LINES", "MAX_LINE_BYTES", "Journal", "Line", "Replayed", "fault", "read_line", "replay"]

MAX_LINE_BYTES = 16_384
"""A longer line is refused when written and when read."""
MAX_KEPT_LINES = 10_000
"""A journal without a writer keeps the newest lines, so many."""

Ids = Mapping[str, Any]


@frozen
class Line:
    """One line, read back."""

    seq: int
    clock: float
    machine: str
    state: str
    event: str
    next: str
    ids: dict[str, Any]
    refused: str | None = None


@frozen
class Replayed:
    """A journal that its tables allow: `lines` of it; `torn` if a crash cut the last one short."""

    lines: int
    torn: bool


class Journal:
    """Lines go to `write`, each whole and with its newline; without `write` the newest are kept in `lines`."""

    def __init__(
        self, write: Callable[[bytes], None] | None, clock: Clock, *, max_kept_lines: int = MAX_KEPT_LINES
    ) -> None:
        self._write = write
        self._clock = clock
        self._kept: deque[bytes] = deque(maxlen=max_kept_lines)
        self._seq = 0

    @property
    def lines(self) -> tuple[bytes, ...]:
        """The newest lines, if there is no writer."""
        return tuple(self._kept)

    @property
    def written(self) -> int:
        """How many lines were recorded."""
        return self._seq

    def state(self) -> dict[str, Any]:
        """How it stands, for people: lines recorded, lines lost on their way, and why."""
        return {"lines": self._seq, "lost": self.dropped, "problem": ""}

    def close(self) -> None:
        """Nothing more is recorded; a journal of lines in memory has nothing to do for that."""

    @property
    def dropped(self) -> int:
        """How many lines were not kept, because of the bound."""
        return 0 if self._write else self._seq - len(self._kept)

    def record(
        self, machine: str, state: object, event: object, next: object, ids: Ids, *, refused: str | None = None
    ) -> None:
        """One line more. States may be enum members or their values, the event an object, its class or its name.

        Raises WireError for ids that are no plain JSON, JournalError for a line that is too long; then none is written.
        """
        line = {
            "clock": float(self._clock.time()),
            "event": _event_name(event),
            "ids": dict(ids),
            "machine": machine,
            "next": _plain(next),
            "refused": refused,
            "seq": self._seq + 1,
            "state": _plain(state),
        }
        data = canonical(line) + b"\n"
        if len(data) > MAX_LINE_BYTES:
            raise JournalError(self._seq + 1, f"is {len(data)} bytes long; the bound is {MAX_LINE_BYTES}")
        self._seq += 1
        if self._write is None:
            self._kept.append(data)
        else:
            self._write(data)


def _plain(state: object) -> Any:
    return state.value if isinstance(state, Enum) else state


def _event_name(event: object) -> str:
    if isinstance(event, str):
        return event
    return event.__name__ if isinstance(event, type) else type(event).__name__


def replay(
    lines: bytes | Iterable[bytes | str],
    tables: Iterable[Table[Any, Any]] | Mapping[str, Table[Any, Any]],
    identity: Sequence[str] = (),
) -> Replayed:
    """How many lines were read, all of them allowed by the tables; else JournalError naming the first that is not.

    `lines` is a journal's bytes, or its lines. A table is found by the line's machine. With `identity` (names of ids,
    say `("process", "rollout_id")`) lines of one machine with equal ids must join: each begins where the last ended.
    """
    by_name = dict(tables) if isinstance(tables, Mapping) else {table.name: table for table in tables}
    stands: dict[bytes, str] = {}
    torn = isinstance(lines, bytes) and bool(lines) and not lines.endswith(b"\n")
    count = 0
    for count, line in enumerate(_parsed(_split(lines, torn)), start=1):
        if problem := fault(line, by_name):
            raise JournalError(count, problem)
        if identity:
            key = canonical([line.machine, *(line.ids.get(name) for name in identity)])
            before = stands.get(key, line.state)
            if before != line.state:
                raise JournalError(count, f"{line.machine} stood in {before}, not in {line.state}")
            stands[key] = line.next
    return Replayed(count, torn)


def _split(lines: bytes | Iterable[bytes | str], torn: bool) -> Iterable[bytes | str]:
    if not isinstance(lines, bytes):
        return lines
    parts = lines.split(b"\n")
    return parts[:-1]  # what follows the last newline is nothing, or torn


def _parsed(lines: Iterable[bytes | str]) -> Iterator[Line]:
    for number, line in enumerate(lines, start=1):
        yield read_line(line, number)


def read_line(line: bytes | str, number: int) -> Line:
    """The line, read back; JournalError with its number for what is none."""
    if len(line) > MAX_LINE_BYTES:
        raise JournalError(number, f"is {len(line)} bytes long; the bound is {MAX_LINE_BYTES}")
    try:
        return structure(parse(line), Line)
    except (WireError, WireErrors) as error:
        raise JournalError(number, f"is no line of a journal: {error}") from None


def fault(line: Line, tables: Mapping[str, Table[Any, Any]]) -> str | None:
    """Why no table allows what the line says, and what its table would; None for a line that is allowed."""
    table = tables.get(line.machine)
    if table is None:
        return f"no table is named {line.machine!r}"
    state = next((each for each in table.states if each.value == line.state), None)
    event = next((each for each in table.events if each.__name__ == line.event), None)
    if state is None or event is None:
        return f"table {table.name!r} has no cell ({line.state}, {line.event})"
    allowed: list[str] = []
    for leaf in leaves(table.cells[state][event]):
        refused, target = None, line.state
        if isinstance(leaf, Refuse):
            refused = leaf.code
        elif isinstance(leaf, Go):
            target = leaf.target.value
        if (refused, target) == (line.refused, line.next):
            return None
        allowed.append(f"refuse {refused}" if refused else "stay" if isinstance(leaf, Stay) else f"go {target}")
    done = f"refuses it with {line.refused}" if line.refused else f"leads to {line.next}"
    cell = f"cell ({line.state}, {line.event}) of table {table.name!r}"
    return f"no branch of {cell} {done}; it allows: {', '.join(dict.fromkeys(allowed))}"
