"""`statecore replay FILE...`: whether what processes wrote down is what their tables and the invariants allow.

Exit code 0: every line is allowed. 1: one is not; it is named by file and number. 2: the command line is wrong, or a
file cannot be read. 4: there was no line at all, so that nothing is known.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from statecore.cli import UsageError
from statecore.wire import unstructure

from ..journals.files import SUFFIX
from ..journals.replaying import Replay, replayed
from .console import Block, Grid, count, show

ALLOWED: Final = 0
FOUND: Final = 1
NOTHING_READ: Final = 4


def register(commands: Any) -> None:
    """The command `replay` is known to the parser."""
    parser = commands.add_parser("replay", help="hold journals against the tables and the invariants")
    parser.add_argument("paths", metavar="FILE", nargs="+", type=Path, help=f"a journal, or a directory of *{SUFFIX}")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--plain", action="store_true", help="no tables with lines, also on a terminal")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """The exit code; the report is on standard output."""
    done = replayed(read_journals(args.paths))
    if args.json:
        print(json.dumps(as_json(done), indent=2))
    else:
        show(tell(done), plain=True if args.plain else None)
    return exit_code(done)


def exit_code(done: Replay) -> int:
    if not done.allowed:
        return FOUND
    return ALLOWED if done.lines else NOTHING_READ


def read_journals(paths: Iterable[Path]) -> dict[str, bytes]:
    """The bytes of these files, and of the journals in these directories, by path; UsageError for what is neither."""
    found: dict[str, bytes] = {}
    read: set[Path] = set()  # a file that is named twice is one file
    for path in paths:
        files = sorted(path.rglob(f"*{SUFFIX}")) if path.is_dir() else [path]
        if not files:
            raise UsageError(f"{path} holds no file *{SUFFIX}")
        for file in files:
            if file.resolve() in read:
                continue
            read.add(file.resolve())
            try:
                found[str(file)] = file.read_bytes()
            except OSError as error:
                raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    return found


def as_json(done: Replay) -> dict[str, Any]:
    """The whole result as one JSON object."""
    return {
        "type": "replay",
        "allowed": done.allowed,
        **unstructure(done),
        "findings": [
            {"rule": each.rule, "file": each.place.file, "line": each.place.line, "problem": each.problem}
            for each in done.findings
        ],
    }


def tell(done: Replay) -> Iterator[Block]:
    """The result in words: what is wrong, what is not known, and what was seen of each table."""
    processes = "1 process" if len(done.processes) == 1 else f"{len(done.processes)} processes"
    read = f"{count(done.lines, 'line')} of {processes} in {count(done.files, 'file')}"
    if not done.lines and done.allowed:
        yield f"{read}: nothing to judge"
    elif done.allowed:
        yield f"{read}: all allowed"
    else:
        yield f"{read}: not allowed"
        for finding in done.findings:
            yield f"  {finding}"
        if done.more:
            yield f"  and {done.more} more"
    for place in done.torn:
        yield f"  note: {place} was cut short, and is not read"
    if done.missing:
        yield f"  note: {count(done.missing, 'line')} missing: rotated away, or lost on a slow or full disk"
    if done.midway:
        yield f"  note: {count(done.midway, 'machine')} first seen after their beginning, and taken as they stood"
    rows = tuple(
        (name, str(seen.lines), str(seen.refused), str(seen.machines), f"{seen.cells} of {seen.all_cells}")
        for name, seen in done.tables.items()
    )
    yield Grid("seen", ("table", "lines", "refused", "machines", "cells"), rows, right=frozenset({1, 2, 3, 4}))
