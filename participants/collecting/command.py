"""A collection as a command: its arguments, its signals, its exit codes. Whoever has servers gives the launcher.

SIGUSR1: a checkpoint, and on. SIGTERM, or Ctrl-C: a checkpoint, and the end; the same command goes on from there. A
second Ctrl-C ends it without one. Exit code 0: every task has a result; 1: some have none, or it could not run; 3: it
was stopped before the end; 130: it was interrupted.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Final, TextIO

import trio

from statecore.cli import UsageError
from statecore.errors import StatecoreError
from statecore.exception_groups import single

from ..commands.console import count
from ..coordination.coordinator import Coordinator, CoordinatorSettings
from ..coordination.stragglers import Stragglers
from ..serving.launcher import Launcher
from ..serving.lifespan import StartupFailed
from ..settings import Seams
from .collector import Ask, Collector, CollectSettings, Ending, collect
from .output import OutputFile
from .progress import Lines, Numbers, showing
from .tasks import InputError, Tasks, read_tasks

OK: Final = 0
FAILED: Final = 1
STOPPED: Final = 3
INTERRUPTED: Final = 130
LOST_TOLD: Final = 10
SIGNALS: Final = {signal.SIGUSR1: Ask.CHECKPOINT, signal.SIGTERM: Ask.STOP, signal.SIGINT: Ask.STOP}
EXPECTED: Final = (StatecoreError, StartupFailed, OSError)


class Interrupted(Exception):
    """Ctrl-C came a second time."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What every collection has."""
    parser.add_argument("--input", type=Path, required=True, metavar="FILE", help="the tasks, one in each line")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="where each result goes, once")
    parser.add_argument("--checkpoints", type=Path, required=True, metavar="DIR", help="the root of the checkpoints")
    parser.add_argument("--target", default="", metavar="NAME", help="the server for tasks that name none")
    parser.add_argument("--repeats", type=_positive, default=1, metavar="N", help="so often is each task run (1)")
    parser.add_argument("--limit", type=_positive, metavar="N", help="take the first N tasks only")
    parser.add_argument("--concurrency", type=_positive, default=32, metavar="N", help="so many run at once (32)")
    parser.add_argument(
        "--every", type=_seconds, default=300.0, metavar="S", help="seconds between checkpoints (300); 0: none"
    )
    parser.add_argument("--timeout", type=_positive_seconds, default=60.0, metavar="S", help="of a checkpoint (60 s)")
    parser.add_argument(
        "--stragglers",
        choices=[each.value for each in Stragglers],
        default=Stragglers.LEAVE_OUT.value,
        help="what a checkpoint does about rollouts that do not stand in time (leave_out)",
    )
    parser.add_argument("--keep", type=_at_least_two, default=2, metavar="N", help="so many checkpoints are kept (2)")
    parser.add_argument("--plain", action="store_true", help="lines instead of a bar")


def run(
    args: argparse.Namespace,
    launcher: Launcher,
    names: Iterable[str],
    token: str,
    relays: Mapping[str, str] | None = None,
) -> int:
    """The exit code. `names` are the servers that the launcher starts, `relays` other names for them (`Tasks`)."""
    seams = Seams()
    tasks = tasks_of(args, relays)
    if unknown := [each for each in tasks.targets if each not in names]:
        raise UsageError(f"{args.input}: tasks go to {', '.join(unknown)}, which is no server of this deployment")
    try:
        args.checkpoints.mkdir(parents=True, exist_ok=True)
        output = OutputFile(seams.disk, seams.disk.resolve(args.output)).open()
    except EXPECTED as error:
        return _failed(str(error))
    try:
        numbers = Numbers(len(tasks), seams.clock, before=len(output.standing))
        with showing(numbers, sys.stdout, plain=args.plain) as watcher:
            if output.torn:
                watcher.say("what a crash had left of a line was taken away from the output")
            collector = Collector(tasks, output, seams.disk, watcher)
            ending = trio.run(_collect, args, launcher, token, collector, seams)
        return told(ending, watcher, sys.stdout)
    except Exception as error:
        cause = single(error)
        if isinstance(cause, Interrupted):
            return INTERRUPTED
        if not isinstance(cause, EXPECTED):
            raise
        return _failed(str(cause))
    finally:
        output.close()


def tasks_of(args: argparse.Namespace, relays: Mapping[str, str] | None = None) -> Tasks:
    """The tasks that the arguments name; UsageError when they cannot be read."""
    try:
        text = args.input.read_bytes()
        return read_tasks(text, repeats=args.repeats, limit=args.limit, target=args.target, relays=relays)
    except (OSError, InputError) as error:
        raise UsageError(f"--input {args.input}: {error}") from error


async def _collect(
    args: argparse.Namespace, launcher: Launcher, token: str, collector: Collector, seams: Seams
) -> Ending:
    settings = CollectSettings(concurrency=args.concurrency, every_s=args.every or None, timeout_s=args.timeout)
    bounds = CoordinatorSettings(
        max_running=args.concurrency, stragglers=Stragglers(args.stragglers), keep_checkpoints=args.keep
    )
    tell, asked = trio.open_memory_channel[Ask](math.inf)
    try:
        async with trio.open_nursery() as nursery:
            with trio.open_signal_receiver(*SIGNALS) as signals:
                nursery.start_soon(_listen, signals, tell)
                job = Coordinator(args.checkpoints, launcher, collector, token=token, settings=bounds, seams=seams)
                async with job:
                    ending = await collect(job, collector, settings, asked.receive)
                nursery.cancel_scope.cancel()
        return ending
    finally:
        with trio.CancelScope(shield=True):
            await launcher.stop()  # also when it was interrupted


async def _listen(signals: AsyncIterator[int], tell: trio.MemorySendChannel[Ask]) -> None:
    """What signals ask for is told; a second Ctrl-C ends everything at once, wherever it stands."""
    interrupts = 0
    async for number in signals:
        interrupts += number == signal.SIGINT
        if interrupts > 1:
            raise Interrupted
        tell.send_nowait(SIGNALS[signal.Signals(number)])


def told(ending: Ending, watcher: Lines, out: TextIO) -> int:
    """The exit code, and the last lines."""
    numbers = watcher.numbers
    missing = numbers.total - numbers.done
    print(numbers.story(), file=out)
    for rollout_id, why in list(ending.lost.items())[:LOST_TOLD]:
        print(f"no result: {rollout_id}: {why}", file=out)
    if len(ending.lost) > LOST_TOLD:
        print(f"and {len(ending.lost) - LOST_TOLD} more", file=out)
    if not ending.checkpoint.published:
        print("the last checkpoint failed; what it would have held runs again", file=out)
    if ending.stopped and missing:
        print(f"stopped with {count(missing, 'task')} left; the same command goes on from here", file=out)
        return STOPPED
    if missing:
        print(f"{count(missing, 'task')} without a result; the same command tries them again", file=out)
        return FAILED
    return OK


def _failed(why: str) -> int:
    print(f"statecore: {why}", file=sys.stderr)
    return FAILED


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value


def _at_least_two(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"must be at least 2, not {text}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds, not {text}")
    return value


def _positive_seconds(text: str) -> float:
    if not (value := _seconds(text)):
        raise argparse.ArgumentTypeError(f"must be more than 0 s, not {text}")
    return value
