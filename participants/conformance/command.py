"""`statecore conform URL`: whether a running server keeps the protocol, asked over HTTP and nothing else.

Exit code 0: everything that was tried is as it is written; what was not tried is named, and is never called right. 1:
there are findings, or nothing could be tried. 2: the command line is wrong, there is no token or the server refuses it,
or the server is in use. 3: nothing answers there, or nothing that takes part. 130: interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from statecore.targets import UsageError, load_module

from ..commands.console import show
from ..commands.doctor import add_token, checked_urls, found_token, printable, seconds
from ..commands.examination import Answers, examine
from ..commands.findings import UNAUTHORIZED, of_error
from ..net.client import make_client
from .check import Group, every_check
from .drivers import DRIVERS, made_of
from .report import Report, Result, Row, as_json, tell
from .runner import InUse, conform
from .said import NotConforming
from .subject import Rules
from .target import Driver, Target

TIMEOUT_S: Final = 5.0
UNREACHABLE: Final = 3
IN_USE: Final = 2


def register(commands: Any) -> None:
    """The command `conform` is known to the parser."""
    parser = commands.add_parser(
        "conform",
        help="drive a running server through checkpoints, and say where it does not keep the protocol",
        epilog="Exit code: 0 conforms, 1 findings, 2 wrong command line or token or a server in use, 3 not reachable.",
    )
    parser.add_argument("url", metavar="URL", help="the base address of the server")
    add_token(parser)
    parser.add_argument(
        "--root", type=Path, metavar="DIR", help="the server's checkpoint root, if its files can be read here: it is"
        " committed into a directory of its own there, which is removed at the end",
    )  # fmt: skip
    parser.add_argument(
        "--driver", metavar="KIND|MODULE:NAME",
        help=f"how rollouts are made on it: {', '.join(DRIVERS)}, or a Driver of yours in a module or FILE.py",
    )  # fmt: skip
    parser.add_argument(
        "--task", metavar="JSON", help="what the driver of a kind sends: the task of a /run, the messages of a model, "
        "or [PATH, BODY] of a tool call",
    )  # fmt: skip
    parser.add_argument(
        "--only", action="append", default=[], metavar="GROUP[/CHECK]",
        help=f"ask this group or check alone (may be given several times); groups: {', '.join(Group)}",
    )  # fmt: skip
    parser.add_argument(
        "--max-wait", type=seconds, default=Rules().max_wait_s, metavar="S",
        help="how long a lease may be waited for that cannot be made shorter (%(default)g s)",
    )  # fmt: skip
    parser.add_argument("--yes", action="store_true", help="also if rollouts are on it, which are held and parked then")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--verbose", action="store_true", help="say as it goes what is asked, and what does not apply")
    parser.add_argument("--plain", action="store_true", help="no tables with lines, also on a terminal")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """The exit code; the report is on standard output."""
    (url,) = checked_urls([args.url])
    target = Target(url=url, token=found_token(args.token, args.token_env), root=args.root)
    if args.root is not None and not (args.root.is_absolute() and args.root.is_dir()):
        raise UsageError(f"--root {args.root}: name a directory that is there, by its absolute path")
    driver = chosen(args.driver, args.task)
    unknown = sorted(set(args.only) - {*map(str, Group), *every_check()})
    if unknown:
        raise UsageError(f"--only {unknown[0]}: there is no such group or check; groups are {', '.join(Group)}")
    told = _tell_row if args.verbose and not args.json else lambda row: None
    asked = partial(
        ask, target, driver, only=args.only, rules=Rules(max_wait_s=args.max_wait), live=args.yes, on_row=told
    )
    found = trio.run(asked)  # if it is interrupted, what had been begun on the server is ended by then
    if isinstance(found, tuple):
        code, why = found
        print(f"statecore: {printable(why)}", file=sys.stderr)
        return code
    if args.json:
        print(json.dumps(as_json(found), indent=2))
    else:
        show(tell(found, verbose=args.verbose), plain=True if args.plain else None)
    return 0 if found.conforms else 1


async def ask(target: Target, driver: Driver, **options: Any) -> Report | tuple[int, str]:
    """The report, or an exit code and why there is none."""
    answers = await _examined(target)
    if answers.error is not None:
        finding = of_error(answers.error)
        code = UNREACHABLE if answers.error.status not in UNAUTHORIZED else IN_USE
        return code, f"{target.url}: {finding.problem}; {finding.mend}"
    if answers.unknown_role:
        return 1, f"{target.url}: {answers.unknown_role}"
    if answers.introduction is None:
        return UNREACHABLE, f"{target.url} takes no part in checkpoints: it has neither capabilities nor a status"
    try:
        return await conform(target, driver, **options)
    except InUse as error:
        return IN_USE, f"{target.url}: {error}"
    except NotConforming as error:
        return 1, f"{target.url} does not conform: {error}"


async def _examined(target: Target) -> Answers:
    async with make_client(target.transport, connect_timeout_s=TIMEOUT_S) as client:
        (answers,) = await examine(
            (target.url,), token=target.token, client=client, seams=target.seams, timeout_s=TIMEOUT_S
        )
        return answers


def chosen(name: str | None, task: str | None) -> Driver:
    """The driver of that name. Raises UsageError."""
    try:
        given = None if task is None else json.loads(task)
    except ValueError as error:
        raise UsageError(f"--task {task!r} is not JSON: {error}") from None
    if name is None or name in DRIVERS:
        if name is None and task is not None:
            raise UsageError("--task is for a driver: give --driver too")
        return Driver() if name is None else made_of(name, given)
    module, member = load_module(name)
    found = getattr(module, member or "", None)
    if isinstance(found, type) and issubclass(found, Driver):
        found = found()
    if not isinstance(found, Driver):
        raise UsageError(f"--driver {name}: name a Driver, or a class of one, as MODULE:NAME or FILE.py:NAME")
    return found


def _tell_row(row: Row) -> None:
    result = row.result if row.result is not Result.OK else f"{row.result}, {row.calls} calls"
    print(f"{row.check.full_name}: {result}", file=sys.stderr, flush=True)


