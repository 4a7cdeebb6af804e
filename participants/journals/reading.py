"""Journals read back: files joined to series, torn ends and missing lines told, all series merged. Pure.

A file whose name ends with a number (`agent-1f.000002.jsonl`) belongs to the series of that name, any other is one by
itself. Within a series the numbers of lines say what is missing: lines that a rotation dropped, or that the disk never
took. Series are merged by the clocks of their lines, each in its own order.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from attrs import define, field, frozen

from statecore import JournalError
from statecore.journal import Line, read_line
from statecore.seams import Disk

from .files import SUFFIX

_NUMBERED: Final = re.compile(r"(.+)\.([0-9]{6,})\.jsonl\Z")

Process: TypeAlias = tuple[str, str]
"""A process by its name and its incarnation."""


@frozen(order=True)
class Place:
    """Where a line stands."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@frozen
class Entry:
    """One line and where it stands; `missing` is how many lines of its series are not there right before it."""

    place: Place
    line: Line
    missing: int = 0

    @property
    def process(self) -> Process:
        """Whose step it is."""
        return str(self.line.ids.get("process", "")), str(self.line.ids.get("incarnation", ""))

    @property
    def accepted(self) -> bool:
        return self.line.refused is None

    def id(self, name: str) -> Any:
        """The id of that name, which can be looked up by; None if the line has none."""
        value = self.line.ids.get(name)
        return str(value) if isinstance(value, (list, dict)) else value

    @property
    def retired(self) -> list[tuple[str, int]]:
        """The executions that a call retires, as (rollout id, attempt)."""
        named = self.line.ids.get("retired")
        pairs = [each for each in named if isinstance(each, list)] if isinstance(named, list) else []
        return [(rollout, attempt) for rollout, attempt in filter(_is_execution, pairs)]


def _is_execution(value: list[Any]) -> bool:
    return len(value) == 2 and type(value[0]) is str and type(value[1]) is int


@define
class Series:
    """The lines of one journal, in order. `torn` are the places of last lines that were cut short, `damaged` of what is
    no line, each with the reason.
    """

    name: str
    entries: list[Entry] = field(factory=list)
    torn: list[Place] = field(factory=list)
    damaged: list[tuple[Place, str]] = field(factory=list)

    @property
    def missing(self) -> int:
        """How many of its lines are not there, as far as their numbers tell."""
        return sum(each.missing for each in self.entries)


def files_in(disk: Disk, directory: Path, process: str = "") -> dict[str, bytes]:
    """The journals in this directory whose names begin with `process`, by path; none if it is not there."""
    if disk.kind(directory) != "dir":
        return {}
    names = [name for name in disk.listdir(directory) if name.startswith(process) and name.endswith(SUFFIX)]
    return {str(directory / name): disk.read(directory / name) for name in names}


def series_of(files: Mapping[str, bytes]) -> list[Series]:
    """The journals in these files, by name."""
    parts: dict[str, list[tuple[int, str]]] = {}
    for name in files:
        numbered = _NUMBERED.match(name)
        series, number = (numbered[1], int(numbered[2])) if numbered else (name, 0)
        parts.setdefault(series, []).append((number, name))
    return [_read(name, {file: files[file] for _, file in sorted(numbers)}) for name, numbers in sorted(parts.items())]


def _read(name: str, files: Mapping[str, bytes]) -> Series:
    series = Series(name)
    expected = 1
    for file, data in files.items():
        parts = data.split(b"\n")
        for number, part in enumerate(parts[:-1], start=1):
            place = Place(file, number)
            try:
                line = read_line(part, number)
            except JournalError as error:
                series.damaged.append((place, error.problem))
                continue
            missing = max(0, line.seq - expected)
            if line.seq < expected:
                series.damaged.append((place, f"line number {line.seq} comes after {expected - 1}"))
            expected = line.seq + 1
            series.entries.append(Entry(place, line, missing))
        if parts[-1]:
            series.torn.append(Place(file, len(parts)))
    return series


def merged(series: list[Series]) -> Iterator[tuple[int, Entry]]:
    """All entries by their clocks, each with the number of its series; a clock that goes back does not reorder it."""
    return (
        (number, entry)
        for _, number, _, entry in heapq.merge(*(_timed(number, each) for number, each in enumerate(series)))
    )


def _timed(number: int, series: Series) -> Iterator[tuple[float, int, int, Entry]]:
    latest = float("-inf")
    for index, entry in enumerate(series.entries):
        latest = max(latest, entry.line.clock)
        yield latest, number, index, entry
