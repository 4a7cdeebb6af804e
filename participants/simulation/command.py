"""`statecore simulate`: the command line.

Exit code 0: every seed was as it must be. 1: some seed was not; the file says which, and each has its command. 2: the
command line is wrong. 130: interrupted, with what came of it until then.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from statecore.cli import UsageError
from statecore.simulate import (
    Outcome,
    Progress,
    Series,
    Simulation,
    SimulationError,
    World,
    cores,
    histories,
    run,
    series,
)
from statecore.targets import load_module

from .job import job
from .story import story

FAILED_FILE: Final = "simulate-failed.jsonl"
SECONDS: Final = 60.0
EVERY_S: Final = 5.0
PROBLEMS_TOLD: Final = 3
DESCRIPTION: Final = """\
Plays whole jobs in one process and in virtual time: the real coordinator and servers, on a network that loses, delays,
doubles and cuts, on disks that fail and lose what was not synced, with processes that die at any moment. A seed is a
job; the same seed is the same history, byte for byte. Without bounds it plays for a minute."""


def register(commands: Any) -> None:
    """The command `simulate` is known to the parser."""
    parser = commands.add_parser(
        "simulate",
        help="whole jobs in virtual time, under every fault that a seed draws",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("world", nargs="?", metavar="FILE.py:NAME", help="a world of your own instead of our job")
    parser.add_argument("--seeds", type=int, metavar="N", help="so many")
    parser.add_argument("--minutes", type=float, metavar="M", help="for so long")
    parser.add_argument("--from", type=int, dest="first", metavar="S", help="the first seed (0)")
    parser.add_argument("--jobs", type=int, metavar="K", help="processes (one for each core)")
    parser.add_argument("--failed", type=Path, default=Path(FAILED_FILE), metavar="FILE", help=f"({FAILED_FILE})")
    parser.add_argument("--seed", type=int, metavar="S", help="replay this one as a story")
    parser.add_argument("--times", type=int, metavar="N", help="with --seed: play it N times and compare the histories")
    parser.add_argument("--all", action="store_true", help="with --seed: file operations too")
    parser.add_argument("--journal", type=Path, metavar="FILE", help="with --seed: the whole history as JSON lines")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")
    parser.add_argument("--plain", action="store_true", help="lines instead of a bar")
    parser.set_defaults(run=run_command)


def run_command(args: argparse.Namespace) -> int:
    """The exit code."""
    _check(args)
    world = _world(args.world)
    try:
        if args.seed is None:
            return _series(args, world)
        return _replay(args, world) if args.times is None else _compare(args, world)
    except SimulationError as error:
        raise UsageError(str(error)) from error


def _check(args: argparse.Namespace) -> None:
    for name in ("seeds", "minutes", "jobs", "times"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise UsageError(f"--{name} {value}: more than 0")
    if args.seed is not None and (args.seeds, args.minutes, args.first) != (None, None, None):
        raise UsageError("--seed replays one seed; leave --seeds, --minutes and --from out")
    if args.seed is not None and args.times is None and args.jobs is not None:
        raise UsageError("--seed is played in this process; leave --jobs out, or give --times")
    if args.times is not None and (args.journal is not None or args.all):
        raise UsageError("--times compares histories and shows none; leave --journal and --all out")
    if args.seed is None and (args.journal is not None or args.all or args.times is not None):
        raise UsageError("--journal, --all and --times go with --seed")


def _world(target: str | None) -> World:
    if target is None:
        return job
    _loaded(target)
    return _Written(target)


@frozen
class _Written:
    """The world that `target` names, which every process that is given it loads for itself."""

    target: str

    async def __call__(self, simulation: Simulation) -> None:
        await _loaded(self.target)(simulation)


@functools.cache
def _loaded(target: str) -> World:
    module, name = load_module(target)
    found = getattr(module, name or "world", None)
    if not callable(found):
        raise UsageError(f"{target}: {module.__file__} has no function {name or 'world'!r}")
    world: World = found
    return world


# --- one seed


def _replay(args: argparse.Namespace, world: World) -> int:
    outcome = run(world, args.seed)
    if args.journal is not None:
        try:
            args.journal.write_bytes(outcome.history)
        except OSError as error:
            raise UsageError(f"--journal {args.journal}: {error}") from error
    if args.json:
        print(json.dumps(_as_json(outcome)))
    else:
        for line in story(outcome.history, everything=args.all):
            print(line)
        print(f"seed {outcome.seed}: {_verdict(outcome)}, {outcome.virtual_s:.1f} s of virtual time")
        for problem in outcome.problems:
            print(f"  {problem}")
    return 0 if outcome.good else 1


def _compare(args: argparse.Namespace, world: World) -> int:
    """The seed was played several times; whether it has one history."""
    came = histories(world, args.seed, args.times, jobs=args.jobs)
    if args.json:
        print(json.dumps({"seed": args.seed, "times": args.times, "histories": dict(came)}))
    else:
        for digest, times in came.most_common():
            print(f"seed {args.seed}: {times} times the history with SHA-256 {digest}")
    return 0 if len(came) == 1 else 1


def _verdict(outcome: Outcome) -> str:
    return "as it must be" if outcome.good else f"{len(outcome.problems)} problems"


def _as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "seed": outcome.seed,
        "good": outcome.good,
        "problems": [{"rule": each.rule, "text": each.text} for each in outcome.problems],
        "virtual_s": outcome.virtual_s,
        "counts": dict(outcome.counts),
    }


# --- many


def _series(args: argparse.Namespace, world: World) -> int:
    seconds = None if args.minutes is None else 60 * args.minutes
    if args.seeds is None and seconds is None:
        seconds = SECONDS
    again = _again(args)
    with _failures(args.failed) as keep, _told(args) as told:

        def failed(outcome: Outcome) -> None:
            keep(outcome)
            print(f"seed {outcome.seed} failed; again: {again} --seed {outcome.seed}", file=sys.stderr)
            for problem in outcome.problems[:PROBLEMS_TOLD]:
                print(f"  {problem}", file=sys.stderr)

        came = series(
            world,
            first=args.first or 0,
            seeds=args.seeds,
            seconds=seconds,
            jobs=args.jobs or cores(),
            told=told,
            failed=failed,
        )
    if not came.done and not came.interrupted:
        raise UsageError(f"--minutes {args.minutes}: too short for one seed")
    if args.json:
        print(json.dumps(_summary(came)))
    else:
        print(_line(came))
        if came.failed:
            seeds = ", ".join(map(str, sorted(each.seed for each in came.failed)))
            print(f"failed: {seeds}; kept in {args.failed}; each again with: {again} --seed SEED")
    if came.interrupted:
        raise KeyboardInterrupt
    return 0 if came.good else 1


def _again(args: argparse.Namespace) -> str:
    return "statecore simulate" + (f" {args.world}" if args.world else "")


def _line(came: Series) -> str:
    return (
        f"{came.done} seeds in {came.seconds:.1f} s ({came.rate:.1f}/s on {came.jobs} processes, "
        f"{came.virtual_s / 3600:.1f} h of virtual time): {_happened(came.counts)}; {len(came.failed)} failed"
    )


def _happened(counts: Mapping[str, int]) -> str:
    """The few numbers that say whether anything was tried."""
    faults = sum(number for name, number in counts.items() if name.startswith("messages "))
    told = {
        "crashes": counts.get("crashes", 0),
        "power losses": counts.get("power lost", 0),
        "faults of messages": faults,
        "of disks": counts.get("disk faults", 0),
        "checkpoints": counts.get("checkpoints published", 0),
    }
    return ", ".join(f"{number} {name}" for name, number in told.items())


def _summary(came: Series) -> dict[str, Any]:
    return {
        "seeds": came.done,
        "seconds": round(came.seconds, 3),
        "processes": came.jobs,
        "virtual_s": round(came.virtual_s, 3),
        "counts": {name: came.counts[name] for name in sorted(came.counts)},
        "failed": [_as_json(each) for each in came.failed],
        "interrupted": came.interrupted,
    }


@contextmanager
def _failures(path: Path) -> Iterator[Callable[[Outcome], None]]:
    """Keeps failed seeds in the file, one JSON object a line, as they come; no file without any."""

    def keep(outcome: Outcome) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(_as_json(outcome)) + "\n")

    _check_writable(path)
    yield keep


def _check_writable(path: Path) -> None:
    """Said before anything is played, and not when the first seed has failed."""
    there = path.exists()
    try:
        path.open("a", encoding="utf-8").close()
        if not there:
            path.unlink()
    except OSError as error:
        raise UsageError(f"--failed {path}: {error}") from error


@contextmanager
def _told(args: argparse.Namespace) -> Iterator[Callable[[Progress], None]]:
    """What shows the progress: a bar on a terminal, lines elsewhere, nothing with --json."""
    if args.json:
        yield lambda progress: None
    elif args.plain or not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield _Lines()
    else:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True)
        with Bar(BarColumn(), TextColumn("{task.description}"), console=console, transient=True) as bar:
            task = bar.add_task("", total=1.0)

            def show(progress: Progress) -> None:
                spent = progress.seconds / (progress.seconds + progress.left_s) if progress.left_s is not None else 0.0
                bar.update(task, completed=spent, description=_progress(progress))

            yield show


class _Lines:
    """A line now and then."""

    def __init__(self) -> None:
        self._next_s = EVERY_S

    def __call__(self, progress: Progress) -> None:
        if progress.seconds >= self._next_s:
            self._next_s = progress.seconds + EVERY_S
            print(_progress(progress), file=sys.stderr, flush=True)


def _progress(progress: Progress) -> str:
    of = "" if progress.of is None else f" of {progress.of}"
    left = "" if progress.left_s is None else f", {progress.left_s:.0f} s left"
    happened = _happened(progress.counts)
    return f"{progress.done}{of} seeds, {progress.rate:.1f}/s{left}, {progress.failed} failed; {happened}"
