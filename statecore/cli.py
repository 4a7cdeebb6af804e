"""The `statecore` command: finds its subcommands by the entry-point group `statecore.commands`.

An entry is a function `register(subparsers)` that adds a parser and sets `run`, a function of the parsed arguments that
returns the exit code. Three are built in: `check` explores worlds, `diagram` draws tables, `mutate` breaks them.
A command whose code cannot be imported is listed, and says why when it is called; where an optional extra brings what
is missing, it names the extra.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from . import __version__
from .diagram import grid, page
from .engine import mermaid
from .errors import DefinitionError
from .exception_groups import exceptions_in
from .explore import Engine, Progress, Verdict
from .findings import CTRL_C
from .machine import Table
from .mistakes import told
from .mutate import register as _register_mutate
from .report import Report, check
from .retrace import written_test
from .sequence import sequence
from .targets import UsageError, load_module
from .world import World

__all__ = ["BUG", "EXIT_CODES", "GROUP", "UsageError", "load_module", "main"]

GROUP = "statecore.commands"
PROGRESS_EVERY_S = 2.0
EXIT_CODES = {Verdict.HOLDS: 0, Verdict.VIOLATED: 1, Verdict.NOT_FINISHED: 3, Verdict.VACUOUS: 4}
"""Of `check`; 2 is a wrong command line, as everywhere, or a wrong declaration. Of several worlds the first that does
not hold decides."""
PIPE_CLOSED = 141
INTERRUPTED = 130
"""As a shell says it: whoever read the output has gone (`| head`); Ctrl-C, unless a command ends otherwise then."""
BUG = 5
"""Of `check`: an action or a property of the world raised an exception, so that nothing is known of it."""

Subparsers = Any  # argparse's own class for this is private


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the command line `argv` (of the process, if None).

    130 where it is interrupted, unless a command ends otherwise then; 141 where nobody reads its output any more.
    """
    parser = argparse.ArgumentParser(prog="statecore", description="Declared state machines: check, draw, inspect.")
    parser.add_argument("--version", action="version", version=f"statecore {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _register_check(commands)
    _register_diagram(commands)
    _register_mutate(commands)
    for entry in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        _register(commands, entry)
    try:
        try:
            return _run(parser, argv)
        finally:
            sys.stdout.flush()  # here, where it is known what to do about it; also of what --help prints
    except UsageError as error:
        print(f"statecore: {error}", file=sys.stderr)
        return 2
    except (BrokenPipeError, KeyboardInterrupt, BaseExceptionGroup) as error:
        every = list(exceptions_in(error))
        if all(isinstance(each, KeyboardInterrupt) for each in every):
            print("statecore: interrupted", file=sys.stderr)
            return INTERRUPTED
        if all(isinstance(each, BrokenPipeError) for each in every) and _nobody_reads():
            return PIPE_CLOSED
        raise


def _run(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    args, rest = parser.parse_known_args(argv)
    if rest and args.run is not _unavailable:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return int(args.run(args))


def _nobody_reads() -> bool:
    """Whether it is standard output that is broken; then what is still to be written has another place to go."""
    try:
        descriptor = sys.stdout.fileno()
    except OSError:  # it has none, so it is no pipe
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    return True


def _register(commands: Subparsers, entry: EntryPoint) -> None:
    """The entry's own parser, or one that says why there is none."""
    try:
        register: Callable[[Subparsers], None] = entry.load()
    except (ImportError, AttributeError) as error:
        why = f"{error}{_mend(entry, error)}"
        parser = commands.add_parser(entry.name, help=f"(not available: {why})".replace("%", "%%"))
        parser.set_defaults(run=_unavailable, reason=f"{entry.name} is not available: {why}")
    else:
        register(commands)


def _mend(entry: EntryPoint, error: Exception) -> str:
    """How to get what is missing, if an extra of its own distribution brings it (the extra of its name first)."""
    missing = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if entry.dist is None or not missing:
        return ""
    extras = {
        extra
        for requirement in entry.dist.requires or ()
        if _normal(re.split(r"[^A-Za-z0-9._-]", requirement)[0]) == _normal(missing)
        for extra in re.findall(r"""extra\s*==\s*['"]([^'"]+)['"]""", requirement)
    }
    if not extras:
        return ""
    extra = entry.name if entry.name in extras else min(extras)
    return f" (pip install '{entry.dist.name}[{extra}]')"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _unavailable(args: argparse.Namespace) -> int:
    raise UsageError(args.reason)


def _named(module: ModuleType, name: str | None, wanted: Callable[[Any], bool], what: str) -> list[Any]:
    """The object of that name, or all that the module itself defines."""
    if name is not None:
        found = getattr(module, name, None)
        if not wanted(found):
            raise UsageError(f"{_place(module)} has no {what} {name!r}")
        return [found]
    every = list({id(value): value for value in vars(module).values() if wanted(value)}.values())  # by one name each
    own = [value for value in every if not isinstance(value, type) or value.__module__ == module.__name__]
    if not own:
        raise UsageError(f"{_place(module)} defines no {what}")
    return own


def _place(module: ModuleType) -> str:
    """Where the module came from, for messages."""
    return module.__file__ or module.__name__


# --- check


def _register_check(commands: Subparsers) -> None:
    codes = ", ".join(f"{code} {verdict.value.replace('_', ' ')}" for verdict, code in EXIT_CODES.items())
    parser = commands.add_parser(
        "check",
        help="explore every reachable state of a world",
        epilog=(
            f"Exit code: {codes}, 2 wrong command line or declaration, {BUG} an exception in an action or a property; "
            "of several worlds the first that does not hold decides."
        ),
    )
    parser.add_argument("target", metavar="FILE.py[:World]", help="without a name, every world in the file")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the world")
    parser.add_argument("--max-states", type=int, default=1_000_000, metavar="N", help="distinct states (1,000,000)")
    parser.add_argument("--max-depth", type=int, metavar="N", help="levels; the initial state is the first")
    parser.add_argument("--max-seconds", type=float, metavar="S", help="how long to search (no bound)")
    parser.add_argument("--max-memory", type=int, metavar="MB", help="megabytes that states may take")
    parser.add_argument("--engine", choices=[*Engine], default=Engine.AUTO, help="which search (auto)")
    parser.add_argument("--no-symmetry", action="store_true", help="tell interchangeable slots apart")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object per world")
    form.add_argument("--mermaid", action="store_true", help="counterexamples as sequence diagrams")
    parser.add_argument("--pytest", metavar="OUT.py", help="write a test that replays the counterexamples")
    parser.set_defaults(run=_check)


def _check(args: argparse.Namespace) -> int:
    out = None if args.pytest is None else _writable(args.pytest)
    module, name = load_module(args.target)
    params = dict(map(_parameter, args.set))
    worlds: list[type[World]] = _named(module, name, _is_world, "world")
    codes: list[int] = []
    broken: list[tuple[type[World], Report]] = []
    for world in worlds:
        unknown = [each for each in params if each not in world.params_]
        if unknown:
            known = ", ".join(world.params_) or "none"
            raise UsageError(f"{world.__name__} has no parameter {unknown[0]!r} (it has: {known})")
        found = _checked(args, world, params)
        codes.append(found if isinstance(found, int) else EXIT_CODES[found.verdict])
        if not isinstance(found, int) and found.violation is not None:
            broken.append((world, found))
        if not isinstance(found, int) and found.found.limit == CTRL_C:
            left = ", ".join(each.__name__ for each in worlds[len(codes) :])
            if left:
                print(f"statecore: not explored after Ctrl-C: {left}", file=sys.stderr)
            break
    if out is not None:
        if broken:
            out.write_text(written_test(args.target.partition(":")[0], broken, out), encoding="utf-8")
        print(f"statecore: {out} {'is written' if broken else 'is not written: no counterexample'}", file=sys.stderr)
    return next((code for code in codes if code), 0)


def _checked(args: argparse.Namespace, world: type[World], params: dict[str, Any]) -> Report | int:
    """The report, which is shown, or an exit code where there is none and why is said."""
    try:
        report = check(
            world,
            max_states=args.max_states,
            max_depth=args.max_depth,
            max_seconds=args.max_seconds,
            max_memory=None if args.max_memory is None else args.max_memory * 1_000_000,
            engine=args.engine,
            progress=_Told(world.__name__),
            symmetry=not args.no_symmetry,
            **params,
        )
    except DefinitionError as error:
        print("\n  ".join([f"statecore: {error}", *getattr(error, "__notes__", ())]), file=sys.stderr)
        return 2
    except (Exception, SystemExit) as error:
        why = told(error)
        if why is None:
            raise
        print(f"statecore: {world.__name__} cannot be explored: {why}", file=sys.stderr)
        return BUG
    _show(args, world, report)
    return report


class _Told:
    """Says on standard error how far a long search is, every few seconds."""

    def __init__(self, world: str) -> None:
        self.world = world
        self.next_s = PROGRESS_EVERY_S

    def __call__(self, now: Progress) -> None:
        if now.seconds < self.next_s:
            return
        self.next_s = now.seconds + PROGRESS_EVERY_S
        print(
            f"{self.world}: {now.distinct:,} states after {now.seconds:.0f} s ({now.distinct / now.seconds:,.0f}/s), "
            f"level {now.depth} with {now.frontier:,}, {now.bytes / 1e6:,.0f} MB",
            file=sys.stderr,
            flush=True,
        )


def _show(args: argparse.Namespace, world: type[World], report: Report) -> None:
    """The report in the form asked for; a diagram stands alone on standard output."""
    if args.mermaid:
        print(report.story(), file=sys.stderr, flush=True)
        print(sequence(world, report), end="", flush=True)
    else:
        print(json.dumps(report.to_json()) if args.json else report.story(), flush=True)


def _writable(given: str) -> Path:
    """The path of a test to write. Raises UsageError before anything is explored in vain."""
    path = Path(given)
    if path.suffix != ".py" or not path.parent.is_dir() or path.is_dir():
        raise UsageError(f"--pytest {given}: name a .py file in a directory that is there")
    return path


def _is_world(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, World) and bool(value.actions_)


def _parameter(text: str) -> tuple[str, Any]:
    """(name, value) of `name=value`; the value is JSON, or else text."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"--set {text}: write NAME=VALUE")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


# --- diagram


def _register_diagram(commands: Subparsers) -> None:
    parser = commands.add_parser("diagram", help="draw a table as a Markdown grid and a Mermaid diagram")
    parser.add_argument("target", metavar="FILE.py[:TABLE]", help="without a name, every table in the file")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--mermaid", action="store_true", help="the Mermaid diagram alone")
    form.add_argument("--grid", action="store_true", help="the grid alone")
    parser.set_defaults(run=_diagram)


def _diagram(args: argparse.Namespace) -> int:
    module, name = load_module(args.target)
    tables: Iterable[Table[Any, Any]] = _named(module, name, lambda value: isinstance(value, Table), "table")
    draw = mermaid if args.mermaid else grid if args.grid else page
    print("\n".join(draw(table).rstrip("\n") + "\n" for table in tables), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
