"""`statecore inspect DIR`: a checkpoint, or a root with all its checkpoints, in plain words. Reads only.

Exit code 0: valid. 1: damaged; the first thing that is wrong is named with its file. 2: the command line names no
checkpoint and no root. docs/reference/protocol.md section 8 says what the files are.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from statecore.cli import UsageError
from statecore.seams import Disk, SystemClock, SystemDisk, SystemEntropy
from statecore.wire import unstructure

from ..records.manifests import CheckpointId
from ..records.records import Disposition
from .console import Block, Grid, count, moment, show, size
from .inspection import CheckpointView, PublishedView, RootView, is_checkpoint, is_root, view_checkpoint, view_root

OK = "ok"
HINT_LEVELS = 2


def register(commands: Any) -> None:
    """The command `inspect` is known to the parser."""
    parser = commands.add_parser("inspect", help="say what a checkpoint holds, and whether it is whole")
    parser.add_argument("directory", metavar="DIR", type=Path, help="one checkpoint, or a root with checkpoints")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--plain", action="store_true", help="no tables with lines, also on a terminal")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """The exit code; the report is on standard output."""
    disk = SystemDisk()
    directory = disk.resolve(args.directory)
    if disk.kind(directory) != "dir":
        raise UsageError(f"{args.directory} is no directory")
    view: CheckpointView | RootView
    if is_checkpoint(disk, directory):
        view = view_checkpoint(disk, directory, _expected_id(directory))
        damaged = view.problem is not None
    elif is_root(disk, directory):
        view = view_root(disk, directory, SystemClock(), SystemEntropy())
        damaged = view.damaged
    else:
        raise UsageError(
            f"{args.directory} holds neither a checkpoint (checkpoint.json) nor a root (epoch-*.json)"
            + "".join(f"; there is a root at {each}" for each in _roots_below(disk, directory))
        )
    if args.json:
        kind = "checkpoint" if isinstance(view, CheckpointView) else "root"
        print(json.dumps({"type": kind, "valid": not damaged} | unstructure(view), indent=2))
    else:
        blocks = tell_checkpoint(view) if isinstance(view, CheckpointView) else tell_root(view)
        show(blocks, plain=True if args.plain else None)
    return 1 if damaged else 0


def _roots_below(disk: Disk, directory: Path, levels: int = HINT_LEVELS) -> Iterator[Path]:
    """The roots at most so many levels below, for who gave the directory of a whole run."""
    for name in disk.listdir(directory):
        path = directory / name
        if disk.kind(path) == "dir":
            if is_root(disk, path):
                yield path
            elif levels > 1:
                yield from _roots_below(disk, path, levels - 1)


def _expected_id(directory: Path) -> str | None:
    """The id in the directory's own name, which its manifest must agree with; a copy may be named otherwise."""
    name = directory.name.removeprefix(".").removesuffix(".partial")
    return name if CheckpointId.parse(name) is not None else None


def tell_checkpoint(view: CheckpointView) -> Iterator[Block]:
    """The checkpoint in words: what it is, who wrote it, and what a restart does with each rollout."""
    name = view.checkpoint_id or Path(view.directory).name
    published = not Path(view.directory).name.endswith(".partial")
    wrong = "DAMAGED, and never restored" if view.damaged else "CANNOT BE READ, and a start that needs it is refused"
    yield f"{name}: {'valid' if view.problem is None else wrong if published else 'unfinished'}"
    if view.problem is not None:
        yield f"  {view.problem}"
    if not published:
        yield "  it was not published: no restart looks at it"
    if view.checkpoint_id is None:
        return
    policy = "" if view.policy_version is None else ", policy of life {}, step {}".format(*view.policy_version)
    yield f"  written {moment(view.created_ts)} in epoch {view.epoch}{policy}"
    yield f"  {count(view.file_count, 'file')}, {size(view.size_bytes)}"
    found = view.dispositions
    shares = ", ".join(f"{found[each]} {each}" for each in Disposition)
    turns = sum(each.turns or 0 for each in view.rollouts if each.disposition == Disposition.CONTINUE)
    yield f"  {count(len(view.rollouts), 'rollout')}: {shares}; {count(turns, 'turn')} held for those that continue"
    yield Grid(
        "participants",
        ("kind", "name", "mode", "records", "size", "digests"),
        tuple((e.kind, e.name, e.mode, str(e.records), size(e.size_bytes), e.problem or OK) for e in view.parts),
        right=frozenset({3, 4}),
    )
    yield Grid(
        "coordinator, framework, tokens",
        ("file", "files", "rows", "size", "digests"),
        tuple(
            (e.name, str(e.files), "" if e.rows is None else str(e.rows), size(e.size_bytes), e.problem or OK)
            for e in view.files
        ),
        right=frozenset({1, 2, 3}),
    )
    yield Grid(
        "rollouts",
        ("rollout", "attempt", "group", "a restart", "turns held", "size", "why"),
        tuple(
            (
                e.rollout_id,
                str(e.attempt),
                e.group or "",
                _in_words(e.disposition),
                "" if e.turns is None else str(e.turns),
                size(e.size_bytes),
                e.reason,
            )
            for e in view.rollouts
        ),
        right=frozenset({1, 4, 5}),
    )


def _in_words(disposition: str) -> str:
    words = {
        Disposition.COMPLETED: "keeps its result",
        Disposition.CONTINUE: "continues it",
        Disposition.FRESH: "starts it over",
        Disposition.QUEUED: "starts it",
    }
    return words[Disposition(disposition)]


def tell_root(view: RootView) -> Iterator[Block]:
    """The root in words: what a start made now would restore, the lives, the checkpoints."""
    if view.problem is not None:
        yield f"{view.directory}: BROKEN, and nothing is restored from it"
        yield f"  {view.problem}"
    else:
        yield f"{view.directory}: a start made now {_start(view)}"
    if view.latest is not None:
        lags = f"; it lags, {view.restored} is newer" if _newer(view.restored, view.latest) else ""
        yield f"  LATEST says {view.latest}{lags}"
    for name in view.partial:
        yield f"  {name} was never published"
    yield Grid(
        "lives",
        ("epoch", "claimed", "started from"),
        tuple(
            (str(e.epoch), moment(e.claimed_ts), "void: it never said" if e.void else e.start or "nothing: fresh")
            for e in view.claims
        ),
        right=frozenset({0}),
    )
    yield Grid(
        "published checkpoints",
        ("checkpoint", "written", "servers", "rollouts", "size", "standing", "digests"),
        tuple(_published_row(view, each) for each in reversed(view.published)),
        right=frozenset({2, 3, 4}),
    )


def _newer(name: str | None, than: str) -> bool:
    """Both are ids of ours, and the first is the later one."""
    first, second = CheckpointId.parse(name or ""), CheckpointId.parse(than)
    return first is not None and second is not None and first > second


def _start(view: RootView) -> str:
    candidates = {each.checkpoint_id: each for each in view.published if each.standing == "candidate"}
    passed = ", ".join(each.checkpoint_id for each in reversed(view.published) if _passed_over(view, each))
    if view.restored is not None:
        return f"would restore {view.restored}" + (f", since {passed} is DAMAGED" if passed else "")
    if view.refused is None:
        return "would begin from nothing"
    if candidates[view.refused].damaged:
        return f"is refused: every checkpoint of the chain is DAMAGED ({passed})"
    return f"is refused: {view.refused} CANNOT BE READ, which is no damage, and nothing older is taken in its place"


def _passed_over(view: RootView, each: PublishedView) -> bool:
    """A start made now would find it damaged, and try the one before."""
    stops = view.restored or view.refused
    return each.standing == "candidate" and each.damaged and not _newer(stops, each.checkpoint_id)


def _published_row(view: RootView, each: PublishedView) -> tuple[str, ...]:
    standing = {
        "candidate": "would be restored" if each.checkpoint_id == view.restored else "older, kept to fall back to",
        "overtaken": "overtaken: never restored",
        "unknown": "unknown: the chain is broken",
    }[each.standing]
    if _passed_over(view, each):
        standing = "damaged: passed over"
    elif each.standing == "candidate" and each.problem is not None:
        standing = "refuses a start" if each.checkpoint_id == view.refused else "older, of no use"
    return (
        each.checkpoint_id,
        moment(each.created_ts),
        str(each.participants),
        str(each.rollouts),
        size(each.size_bytes),
        standing,
        each.problem or OK,
    )
