"""What a command prints: lines and grids, by rich on a terminal that has it, aligned text everywhere else."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO, TypeAlias

from attrs import frozen


@frozen
class Grid:
    """Rows under headings. Columns in `right` (by number) are aligned to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()


Block: TypeAlias = str | Grid


def show(blocks: Iterable[Block], out: TextIO | None = None, *, plain: bool | None = None) -> None:
    """All blocks are on `out` (standard output); by rich if it is there and `plain` is false (None: no terminal)."""
    out = sys.stdout if out is None else out
    if plain is None:
        plain = not out.isatty()
    if plain or not _show_rich(blocks := list(blocks), out):
        _show_plain(blocks, out)


def _show_plain(blocks: Iterable[Block], out: TextIO) -> None:
    for block in blocks:
        if isinstance(block, str):
            out.write(f"{block}\n")
            continue
        out.write(f"\n{block.title}\n")
        widths = [max(map(len, column)) for column in zip(block.columns, *block.rows, strict=True)]
        for row in (block.columns, tuple("-" * width for width in widths), *block.rows):
            out.write(f"  {_aligned(row, widths, block.right)}\n")


def _aligned(row: Sequence[str], widths: Sequence[int], right: frozenset[int]) -> str:
    cells = (
        cell.rjust(width) if i in right else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join(cells).rstrip()


def _show_rich(blocks: Iterable[Block], out: TextIO) -> bool:
    """False when rich is not installed; then nothing was printed."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    console = Console(file=out, highlight=False)
    for block in blocks:
        if isinstance(block, str):
            console.print(Text(block))
            continue
        table = Table(title=Text(block.title), title_justify="left")
        for i, column in enumerate(block.columns):
            table.add_column(column, justify="right" if i in block.right else "left", overflow="fold")
        for row in block.rows:
            table.add_row(*map(Text, row))
        console.print(table)
    return True


def size(size_bytes: int) -> str:
    """A size for people: `0 B`, `1.2 kB`, `3.4 MB`."""
    value, unit = float(size_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def moment(ts: float | None) -> str:
    """Unix seconds for people, in UTC; `?` for None and for what is no moment."""
    try:
        return "?" if ts is None else datetime.fromtimestamp(ts, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, OSError, ValueError):
        return "?"


def count(number: int, noun: str) -> str:
    """`1 rollout`, `2 rollouts`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """What the coordinator logs goes to a file: the terminal is for what a person wants to see."""
    logger = logging.getLogger("statecore")
    handler, level = logging.FileHandler(path, encoding="utf-8"), logger.level
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()
