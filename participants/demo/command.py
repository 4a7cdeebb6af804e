"""`statecore demo`: the command line.

Exit code 0: no turn that the checkpoint held ran again, no result was lost or doubled, and all equals the undisturbed
run. 1: something of that does not hold, or the demo could not run. 2: the command line is wrong. 130: interrupted.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import trio

from statecore.cli import UsageError
from statecore.errors import StatecoreError

from ..commands.console import count
from ..serving.lifespan import StartupFailed
from .picture import Picture
from .plan import ENVIRONMENTS, MIXED, Kill, Options, Plan, PlanError, When, make_plan
from .story import Ending, tell
from .view import showing
from .worlds import ProcessWorld

NEEDED: Final = ("gymnasium", "hypercorn", "numpy")
INTERRUPTED: Final = 130
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
        default=Kill.ALL.value,
        help="all (the default): every server and the coordinator; coordinator: the servers live on, without anybody; "
        "one server: its coordinator lives, and starts all of them anew",
    )
    parser.add_argument(
        "--when",
        choices=[each.value for each in When],
        default=When.PUBLISHED.value,
        help="a phase of a checkpoint (up to prove of the second, so that the first is in force; before-publish is "
        "validate), published (the default): between publication and resume, idle: just after the checkpoint, "
        "later: two turns after it",
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
    try:
        options = Options(
            rollouts=args.rollouts,
            turns=args.turns,
            seed=args.seed,
            env=args.env,
            kill=Kill(args.kill),
            when=When(args.when),
        )
    except PlanError as error:
        raise UsageError(str(error)) from error
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"the demo needs {', '.join(missing)}: pip install 'statecore[demo]'")
    directory = _empty(args.dir)
    code = _told(options, directory, plain=args.plain)
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


def _told(options: Options, directory: Path, *, plain: bool) -> int:
    """The story was told; its last line is the verdict, or on standard error why there is none."""
    code = 1
    try:
        with _logged(directory / "coordinator.log"):
            ending = trio.run(_interruptible, options, directory, plain)
        if ending is None:
            code = INTERRUPTED
            print(f"interrupted; nothing is left running; its files are in {directory}", file=sys.stderr)
        else:
            code = 0 if ending.verdict.good else 1
            print(ending.verdict.line())
    except* EXPECTED as errors:
        for error in _leaves(errors):
            print(f"statecore demo: {error}", file=sys.stderr)
        print(f"its files are in {directory}", file=sys.stderr)
    return code


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    """What the coordinator logs goes to a file: the terminal is the picture's."""
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


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


async def _interruptible(options: Options, directory: Path, plain: bool) -> Ending | None:
    """How the story ended; None when a signal ended it, and then nothing is left running."""
    plan = make_plan(options)
    picture = Picture(plan, title=_title(plan, options))
    ending: Ending | None = None
    async with trio.open_nursery() as nursery:

        async def told() -> None:
            nonlocal ending
            async with showing(picture, sys.stdout, plain=plain):
                picture.say(f"the files of this run are in {directory}")
                ending = await tell(plan, ProcessWorld(), directory, picture)
            nursery.cancel_scope.cancel()

        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            nursery.start_soon(told)
            async for _signal in signals:
                nursery.cancel_scope.cancel()
    return ending


def _title(plan: Plan, options: Options) -> str:
    counted = f"{count(len(plan.rollouts), 'rollout')}, {count(plan.turns, 'turn')}"
    return f"statecore demo: {counted}, seed {options.seed}, kill {options.kill}, {options.when}"
