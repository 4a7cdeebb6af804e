"""`statecore demo`: the command line.

Exit code 0: no turn that the checkpoint held ran again, no result was lost or doubled, and all equals the undisturbed
run. 1: something of that does not hold, or the demo could not run; with --break: the fault shows, as it should, and 0
if it does not. 2: the command line is wrong. 130: interrupted.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import trio

from statecore.cli import UsageError
from statecore.errors import StatecoreError
from statecore.exception_groups import exceptions_in

from ..commands.console import count, logged_to
from ..serving.lifespan import StartupFailed
from .faults import FAULTS, broken_plan
from .life import DemoError
from .picture import Picture
from .plan import ENVIRONMENTS, MIXED, Kill, Options, Plan, PlanError, When, make_plan
from .story import Ending, tell
from .view import showing
from .worlds import ProcessWorld

NEEDED: Final = ("gymnasium", "hypercorn", "numpy")
INTERRUPTED: Final = 130
LONGEST_S: Final = 1800.0
"""So long a story is told at most, however large its job: nothing waits for ever."""
EXPECTED: Final = (StatecoreError, StartupFailed, OSError)

DESCRIPTION: Final = """\
Runs multi-turn rollouts on five real servers (policy model, judge, agent, Gymnasium game, environment), takes a
checkpoint, kills everything with SIGKILL, and goes on from the files. Then the same job runs undisturbed, to compare.
The last line says what the crash cost, counted from the servers' own journals."""


def register(commands: Any) -> None:
    """The command `demo` is known to the parser."""
    parser = commands.add_parser(
        "demo",
        help="rollouts on real servers: checkpointed, killed with SIGKILL, brought back",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--kill",
        choices=[each.value for each in Kill],
        help="all (the default): every server and the coordinator; coordinator: the servers live on, without anybody; "
        "one server: its coordinator lives, and starts all of them anew",
    )
    parser.add_argument(
        "--when",
        choices=[each.value for each in When],
        help="a phase of a checkpoint (up to prove of the second, so that the first is in force; before-publish is "
        "validate), published (the default): between publication and resume, idle: just after the checkpoint, "
        "later: two turns after it",
    )
    parser.add_argument(
        "--break",
        dest="broken",
        metavar="NUMBER",
        help="take out one rule of the protocol, and see what it is for; `list` tells which there are",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another seed is another job (0)")
    parser.add_argument("--rollouts", type=int, default=12, metavar="R", help="in groups of four (12)")
    parser.add_argument("--turns", type=int, metavar="T", help="of each rollout (between 5 and 8, drawn)")
    parser.add_argument(
        "--env", choices=[MIXED, *ENVIRONMENTS], default=MIXED, help="the game; mixed: another one for each group"
    )
    parser.add_argument("--dir", type=Path, metavar="DIR", help="keep journals, logs and checkpoints there")
    parser.add_argument("--plain", action="store_true", help="lines instead of a live picture")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """The exit code; the story is on standard output."""
    if args.broken == "list":
        for each in FAULTS.values():
            print(f"{each.number}  {each.says}")
        return 0
    if args.broken is not None and args.broken not in FAULTS:
        raise UsageError(f"--break {args.broken}: one of {', '.join(FAULTS)}, or list")
    try:
        options = Options(
            rollouts=args.rollouts,
            turns=args.turns,
            seed=args.seed,
            env=args.env,
            kill=Kill(args.kill or Kill.ALL),
            when=When(args.when or When.PUBLISHED),
        )
    except PlanError as error:
        raise UsageError(str(error)) from error
    fault = None if args.broken is None else FAULTS[args.broken]
    if fault is not None and (args.kill or args.when):
        raise UsageError("--break chooses what is killed and when; leave --kill and --when out")
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"the demo needs {', '.join(missing)}: pip install 'statecore[demo]'")
    directory = _empty(args.dir)
    plan = make_plan(options) if fault is None else broken_plan(fault, options)
    code = _told(plan, options, directory, plain=args.plain)
    if code == 0 and args.dir is None:
        shutil.rmtree(directory)
    return code


def _empty(chosen: Path | None) -> Path:
    """An empty directory: the chosen one, or a temporary one. UsageError when it cannot be had."""
    if chosen is None:
        return Path(tempfile.mkdtemp(prefix="statecore-demo-")).resolve()
    try:
        if chosen.exists() and (not chosen.is_dir() or any(chosen.iterdir())):
            raise UsageError(f"--dir {chosen} is no empty directory; the files of two runs are not mixed")
        chosen.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--dir {chosen}: {error}") from error
    return chosen.resolve()


def _told(plan: Plan, options: Options, directory: Path, *, plain: bool) -> int:
    """The story was told; its last line is the verdict, or on standard error why there is none."""
    code = 1
    try:
        with logged_to(directory / "coordinator.log"):
            ending = trio.run(_interruptible, plan, options, directory, plain)
        if ending is None:
            code = INTERRUPTED
            print(f"interrupted; nothing is left running; its files are in {directory}", file=sys.stderr)
        else:
            code = 0 if ending.verdict.good else 1
            print(ending.verdict.line())
            if plan.fault:
                print(FAULTS[plan.fault].line(ending.verdict))
                code = 1 if FAULTS[plan.fault].harm(ending.verdict) else 0
    except* EXPECTED as errors:
        for error in exceptions_in(errors):
            print(f"statecore demo: {error}", file=sys.stderr)
        print(f"its files are in {directory}", file=sys.stderr)
    return code


async def _interruptible(plan: Plan, options: Options, directory: Path, plain: bool) -> Ending | None:
    """How the story ended; None when a signal ended it, and then nothing is left running."""
    picture = Picture(plan, title=_title(plan, options))
    ending: Ending | None = None
    async with trio.open_nursery() as nursery:

        async def told() -> None:
            nonlocal ending
            async with showing(picture, sys.stdout, plain=plain):
                picture.say(f"the files of this run are in {directory}")
                with trio.move_on_after(LONGEST_S) as bound:
                    ending = await tell(plan, ProcessWorld(), directory, picture)
            if bound.cancelled_caught:
                raise DemoError(f"it has not come to its end within {LONGEST_S:g} s")
            nursery.cancel_scope.cancel()

        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            nursery.start_soon(told)
            async for _signal in signals:
                nursery.cancel_scope.cancel()
    return ending


def _title(plan: Plan, options: Options) -> str:
    counted = f"{count(len(plan.rollouts), 'rollout')}, {count(plan.turns, 'turn')}"
    broken = f", {plan.fault} put back" if plan.fault else ""
    return f"statecore demo: {counted}, seed {options.seed}, kill {plan.kill}, {plan.when}{broken}"
