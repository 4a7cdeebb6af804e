"""Kill runs over real processes: `python -m tests.kill_runs --seed 0 --runs 20`, or `make kill`.

Each run is a job of rollouts that is hit as its seed says (`kill_plan`), once or a few times, by signals to real
processes, and goes on from its files until it ends. Then the servers' own journals, the checkpoints and the results are
held against what must be (`kill_verdict`). One line for each run, a summary, and exit code 1 if anything was found.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from attrs import define, evolve, field, frozen

from participants.demo.faults import FAULTS
from participants.demo.lines import make_directory
from participants.demo.plan import write_plan
from participants.demo.servers import JOURNALS
from participants.demo.worlds import CHECKPOINTS
from statecore.seams import SystemDisk
from statecore.wire import parse, unstructure
from tests.kill_life import FINISHED, NOT_STARTED, OVERTAKEN, Order
from tests.kill_plan import ENDS_THE_LIFE, JOBS, Blow, Kind, Run, Wakes, draw, job, put
from tests.kill_verdict import Orphans, examine

ROOT: Final = Path(__file__).resolve().parent.parent
LIFE_S: Final = 150.0
"""A life that has not ended by then is a finding, and is ended."""
LOOK_S: Final = 0.01
STOP: Final = threading.Event()
"""Set when whoever runs this has had enough."""


@define(eq=False)
class Process:
    """One life's process, waited for so that a stop is seen as well as an end."""

    child: subprocess.Popen[bytes]
    number: int
    blows: tuple[Blow, ...]
    status: int | None = None
    stopped: bool = False

    @property
    def last_blow(self) -> Blow | None:
        """The one that ends it, if one does."""
        return self.blows[-1] if self.blows and self.blows[-1].kind in ENDS_THE_LIFE else None

    def look(self) -> None:
        """What the system says about it now."""
        if self.status is not None:
            return
        pid, status = os.waitpid(self.child.pid, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return
        if os.WIFSTOPPED(status):
            self.stopped = True
        else:
            self.status = self.child.returncode = os.waitstatus_to_exitcode(status)

    def wake(self) -> None:
        if self.stopped:
            self.stopped = False
            os.kill(self.child.pid, signal.SIGCONT)

    def end(self) -> None:
        """It is not running."""
        self.look()
        if self.status is None:
            os.kill(self.child.pid, signal.SIGKILL)
            self.stopped = False
            while self.status is None:
                time.sleep(LOOK_S)
                self.look()


@frozen(kw_only=True)
class Came:
    """What came of one run: nothing found, or what; how long it took, and which of its blows fell."""

    run: Run
    found: tuple[str, ...]
    seconds: float
    dealt: tuple[str, ...]
    lives: int

    def line(self) -> str:
        blows = "; ".join(f"{each} ({each.signal})" for each in self.run.blows)
        missed = len(self.run.blows) - len(self.dealt)
        told = f", {missed} not dealt" if missed else ""
        result = "ok" if not self.found else f"FOUND: {'; '.join(self.found)}"
        return f"seed {self.run.seed:4}  {self.seconds:5.1f} s  {self.lives} lives{told}  {blows}  {result}"


@define(eq=False)
class Field:
    """One run: its directory, its lives one after the other, and who of them still lives or is stopped."""

    run: Run
    home: Path
    token: str = field(factory=lambda: secrets.token_hex(16))
    found: list[str] = field(factory=list)
    lives: list[Process] = field(factory=list)
    orphans: list[Orphans] = field(factory=list)

    def prepare(self) -> None:
        """The plan and the directories are there."""
        disk = SystemDisk()
        for directory in (self.home, self.home / CHECKPOINTS, self.home / JOURNALS):
            make_directory(disk, directory)
        write_plan(disk, self.home, job(self.run.job, self.run.fault))

    def fight(self) -> None:
        """All lives have ended, whoever was stopped was woken, and nothing is left running."""
        with lifeline() as servers_end:
            try:
                for number, blows in enumerate(self.run.lives, start=1):
                    last = self.start(number, blows, servers_end)
                    self.wait_for(last)
                    if last.status == FINISHED:
                        break  # the moment that was to end it never came
                while last.status == NOT_STARTED and not self.found:  # whoever runs a job starts it again
                    last = self.start(last.number + 1, (), servers_end)
                    self.wait_for(last)
                for each in self.lives:
                    self.wake(each)
                for each in self.lives:
                    self.wait_for(each, stops=False)
                for orphans in self.orphans:
                    self.found += orphans.closed(self.token)
            finally:
                for each in self.lives:
                    each.end()
                end_all(self.home)

    def start(self, number: int, blows: tuple[Blow, ...], servers_end: int) -> Process:
        """A life has begun."""
        order = Order(
            home=str(self.home),
            number=number,
            token=self.token,
            lifeline=servers_end,
            every_s=self.run.every_s,
            blows=blows,
        )
        path = self.home / f"order-{number}.json"
        put(path, unstructure(order))
        with (self.home / f"life-{number}.log").open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "tests.kill_life", str(path)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(servers_end,),
            )
        self.lives.append(Process(child, number, blows))
        return self.lives[-1]

    def wait_for(self, life: Process, *, stops: bool = True) -> None:
        """It has ended, or has stopped itself; meanwhile those of before it are woken when it is time."""
        end = time.monotonic() + LIFE_S
        while life.status is None and not (stops and life.stopped):
            if time.monotonic() > end:
                self.found.append(f"life {life.number} has not ended after {LIFE_S:g} s")
                life.end()
                return
            if STOP.is_set():
                raise RuntimeError("interrupted")
            life.look()
            for each in self.lives[:-1]:
                if self.is_time(each, life):
                    self.wake(each)
            time.sleep(LOOK_S)
        if stops:
            self.note_end(life)

    def note_end(self, life: Process) -> None:
        """How a life ended is how it should; its servers, if they live on, are to open by themselves."""
        if life.stopped:
            return
        blow, running = life.last_blow, self.home / f"running-{life.number}.json"
        killed = life.status == -signal.SIGKILL and blow is not None
        hit = life.status == NOT_STARTED and not running.exists() and bool(life.blows)
        if life.status not in (FINISHED, OVERTAKEN) and not killed and not hit:
            self.found.append(f"life {life.number} exited with {life.status}")
        if killed and blow is not None and blow.kind is not Kind.ALL and running.exists():
            self.orphans.append(Orphans(self.home, life.number, time.monotonic()))

    def is_time(self, before: Process, now: Process) -> bool:
        """Whether one that was stopped in life `before` goes on now."""
        blow = before.last_blow
        if before is now or blow is None or now.number == before.number:
            return False
        if blow.wakes is Wakes.CLAIMED:
            return any(start_of(path) == now.number for path in self.home.glob("start-*.json"))
        return blow.wakes is Wakes.RUNNING and (self.home / f"running-{now.number}.json").exists()

    def wake(self, life: Process) -> None:
        """A coordinator, or a server of its, that was stopped, goes on."""
        life.look()
        life.wake()
        frozen_file = self.home / f"frozen-{life.number}.json"
        if frozen_file.exists():
            pid = parse(frozen_file.read_bytes())["pid"]
            frozen_file.rename(frozen_file.with_suffix(".woken"))
            if belongs(pid, self.home):
                os.killpg(pid, signal.SIGCONT)


def start_of(path: Path) -> int:
    return int(parse(path.read_bytes())["life"])


@contextmanager
def lifeline() -> Iterator[int]:
    """The reading end of a pipe; servers that have it end when the block does, or this process."""
    read_end, write_end = os.pipe()
    try:
        yield read_end
    finally:
        os.close(read_end)
        os.close(write_end)


def belongs(pid: int, home: Path) -> bool:
    """Whether this process is there and is of the run with these files."""
    try:
        return str(home).encode() in (Path("/proc") / str(pid) / "environ").read_bytes()
    except OSError:
        return False


def end_all(home: Path) -> None:
    """No server of this run is running: each is known by its root."""
    for _ in range(200):
        mine = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
        mine = [pid for pid in mine if pid != os.getpid() and belongs(pid, home)]
        if not mine:
            return
        for pid in mine:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(LOOK_S)


@define(eq=False)
class Undisturbed:
    """The results of each job when nothing happens to it, each made once."""

    directory: Path
    known: dict[int, Any] = field(factory=dict)
    locks: tuple[threading.Lock, ...] = field(factory=lambda: tuple(threading.Lock() for _ in range(JOBS)))

    def results(self, number: int) -> dict[str, Any]:
        with self.locks[number]:
            if number not in self.known:
                run = Run(seed=-1, job=number, blows=(), every_s=0.0)
                alone = Field(run, self.directory / f"undisturbed-{number}")
                alone.prepare()
                alone.fight()
                if alone.found:
                    raise RuntimeError(f"the undisturbed run of job {number}: {'; '.join(alone.found)}")
                ended = parse((alone.home / "ended-1.json").read_bytes())
                self.known[number] = ended["results"]
            return dict(self.known[number])


def fight(run: Run, directory: Path, undisturbed: Undisturbed) -> Came:
    """What came of this run."""
    expected = undisturbed.results(run.job)
    began = time.monotonic()
    battle = Field(run, directory / f"run-{run.seed:06}")  # no name begins with another: servers are found by it
    battle.prepare()
    battle.fight()
    found = (*battle.found, *examine(battle.home, len(battle.lives), expected))
    dealt = tuple(parse(path.read_bytes())["dealt"] for path in sorted(battle.home.glob("dealt-*.json")))
    if not found:
        shutil.rmtree(battle.home)
    return Came(
        run=run, found=found, seconds=time.monotonic() - began, dealt=dealt, lives=len(battle.lives)
    )


def main(argv: Sequence[str] | None = None) -> int:
    """0: nothing was found. 1: something was, and its files are kept. 2: the command line is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.kill_runs", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the first run (0)")
    parser.add_argument("--runs", type=int, default=20, metavar="N", help="how many (20)")
    parser.add_argument("--kinds", default=",".join(Kind), help="only these, with commas between")
    parser.add_argument(
        "--break", dest="fault", default="", metavar="NUMBER", help="take out a rule, and see that runs find it"
    )
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="so many at a time (2)")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="for the files of runs (a temporary one)")
    args = parser.parse_args(argv)
    unknown = sorted(set(args.kinds.split(",")) - set(Kind))
    if unknown or args.runs < 1 or args.at_once < 1 or args.seed < 0:
        parser.error(f"unknown kinds {unknown}" if unknown else "--runs and --at-once are 1 or more, --seed 0 or more")
    if args.fault and args.fault not in FAULTS:
        parser.error(f"--break {args.fault}: one of {', '.join(FAULTS)}")
    kinds = [Kind(each) for each in args.kinds.split(",")]
    directory = Path(tempfile.mkdtemp(prefix="statecore-kill-") if args.dir is None else args.dir).resolve()
    undisturbed = Undisturbed(directory)
    began = time.monotonic()
    came: list[Came] = []
    with ThreadPoolExecutor(args.at_once) as pool:
        drawn = (
            evolve(draw(seed, kinds), fault=args.fault) for seed in range(args.seed, args.seed + args.runs)
        )
        try:
            for each in pool.map(lambda run: fight(run, directory, undisturbed), drawn):
                came.append(each)
                print(each.line(), flush=True)
        except BaseException:  # interrupted, most likely: nothing that was started is left running
            STOP.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    bad = [each for each in came if each.found]
    for line in summary(came, time.monotonic() - began):
        print(line)
    if bad:
        print(f"the files are in {directory}")
    elif args.dir is None:
        shutil.rmtree(directory)
    return 1 if bad else 0


def summary(came: Sequence[Came], seconds: float) -> Iterator[str]:
    """What all runs come to, in a few lines."""
    first = Counter((each.run.blows[0].kind.value) for each in came)
    moments = Counter((each.run.blows[0].when) for each in came)
    dealt = sum(len(each.dealt) for each in came)
    bad = [each for each in came if each.found]
    yield "kinds: " + ", ".join(f"{kind} {times}" for kind, times in sorted(first.items()))
    yield "moments: " + ", ".join(f"{when} {times}" for when, times in sorted(moments.items()))
    yield (
        f"{len(came)} runs, {sum(each.lives for each in came)} lives, {dealt} blows dealt, {seconds:.0f} s: "
        + (f"{len(bad)} FOUND something: seeds {', '.join(str(each.run.seed) for each in bad)}" if bad else
           "no held turn redone, no result lost or doubled, no server left closed, each equal to its undisturbed run")
    )


def interruptible() -> int:
    """The process: 130 if it was interrupted, and then nothing that it started is left running."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return main()
    except KeyboardInterrupt:
        print("interrupted; nothing is left running", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(interruptible())
