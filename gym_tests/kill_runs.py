"""Kill runs on real Gym servers: `python -m gym_tests.kill_runs --seed 0 --runs 10`.

Each run is a fleet for one environment, as small as that allows, whose rollouts are hit as its number says
(`kill_plan`) and go on from their files until all have a result. Then results, checkpoints and the model's log are held
against what must be (`kill_verdict`). One line for each run, a summary, and exit code 1 if anything was found.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
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

from attrs import define, field, frozen

from statecore.wire import parse, unstructure
from tests.kill_plan import put
from tests.kill_runs import end_all

from .fleet import free_ports
from .kill_life import CHECKPOINTS, FINISHED, LOGS, MODEL_LOG, NOT_STARTED, Order
from .kill_plan import Blow, Game, Run, Victim, draw, names, product
from .kill_verdict import Verdict, examine

ROOT: Final = Path(__file__).resolve().parent.parent
LIFE_S: Final = 400.0
"""A life that has not ended by then is a finding, and is ended."""
TURN_S: Final = 0.4
KILLED: Final = -9


@frozen(kw_only=True)
class Came:
    """What came of one run: the verdict, the blows that fell and whom each hit, its lives, how long it took."""

    run: Run
    verdict: Verdict
    dealt: tuple[str, ...]
    lives: int
    seconds: float

    def line(self) -> str:
        missed = len(self.run.blows) - len(self.dealt)
        told = f" ({missed} not dealt)" if missed else ""
        blows = "; ".join(map(str, self.run.blows))
        result = "ok" if not self.verdict.found else f"FOUND: {'; '.join(self.verdict.found)}"
        return (
            f"seed {self.run.seed:3}  {self.seconds:5.1f} s  {self.run.game:9}  {blows}{told}  "
            f"{self.verdict.held} held turns  {result}"
        )


@define(eq=False)
class Field:
    """One run: its directory, the model behind its servers, and its lives one after the other."""

    run: Run
    home: Path
    token: str = field(factory=lambda: secrets.token_hex(16))
    found: list[str] = field(factory=list)
    lives: int = 0

    def fight(self) -> None:
        """All lives have ended and nothing is left running."""
        for each in (self.home, self.home / CHECKPOINTS, self.home / LOGS):
            each.mkdir()
        (self.home / MODEL_LOG).touch()
        with self._model() as url:
            try:
                for blows in self.run.lives:
                    code = self._live(url, blows)
                    if code == FINISHED:
                        break  # the moment that was to end it never came
                while code == NOT_STARTED and not self.found:  # whoever collects starts again
                    code = self._live(url, ())
            finally:
                end_all(self.home)

    @contextmanager
    def _model(self) -> Iterator[str]:
        (port,) = free_ports(1)
        command = [sys.executable, "-m", "gym_tests.upstream", str(port), str(self.home / MODEL_LOG)]
        with (self.home / "model.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env={**_environment(), "UPSTREAM_DELAY": str(TURN_S)}, stdout=log, stderr=log
            )
        try:
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.kill()
            process.wait()

    def _live(self, url: str, blows: tuple[Blow, ...]) -> int:
        """How a life ended."""
        self.lives += 1
        order = Order(
            home=str(self.home),
            number=self.lives,
            token=self.token,
            upstream=url,
            game=self.run.game,
            every_turns=self.run.every_turns,
            blows=blows,
        )
        put(self.home / f"order-{self.lives}.json", unstructure(order))
        with (self.home / f"life-{self.lives}.log").open("wb") as log:
            command = [sys.executable, "-m", "gym_tests.kill_life", str(self.home / f"order-{self.lives}.json")]
            life = subprocess.Popen(command, cwd=ROOT, env=_environment(), stdout=log, stderr=log)
            try:
                code = life.wait(LIFE_S)
            except subprocess.TimeoutExpired:
                self.found.append(f"life {self.lives} has not ended within {LIFE_S:g} s")
                return FINISHED
            finally:
                life.kill()
                life.wait()
        if code not in (FINISHED, NOT_STARTED) and not (code == KILLED and blows and blows[-1].victim is Victim.ALL):
            self.found.append(f"life {self.lives} exited with {code}")
        return code


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("STATECORE_", "NEMO_GYM_"))}


@define(eq=False)
class Undisturbed:
    """The results of each game when nothing happens to its rollouts, each made once."""

    directory: Path
    known: dict[Game, Any] = field(factory=dict)
    locks: dict[Game, threading.Lock] = field(factory=lambda: {game: threading.Lock() for game in Game})

    def results(self, game: Game) -> dict[str, Any]:
        with self.locks[game]:
            if game not in self.known:
                self.known[game] = self._made(game)
            return dict(self.known[game])

    def _made(self, game: Game) -> Any:
        run = Run(seed=-1, game=game, when="", blows=(), every_turns=0)
        alone = Field(run, self.directory / f"undisturbed-{game}")
        alone.fight()
        if found := (*alone.found, *examine(alone.home, alone.lives, names(game), None).found):
            raise RuntimeError(f"the undisturbed run of {game}: {'; '.join(found)}; its files are in {alone.home}")
        return parse((alone.home / "ended-1.json").read_bytes())["results"]


def fight(run: Run, directory: Path, undisturbed: Undisturbed) -> Came:
    """What came of this run; its files stay where something was found."""
    expected = undisturbed.results(run.game)
    began = time.monotonic()
    battle = Field(run, directory / f"run-{run.seed:04}")  # no name begins with another: servers are found by it
    battle.fight()
    verdict = examine(battle.home, battle.lives, names(run.game), expected)
    dealt = tuple(parse(path.read_bytes())["dealt"] for path in sorted(battle.home.glob("dealt-*.json")))
    verdict = Verdict((*battle.found, *verdict.found), verdict.held)
    if not verdict.found:
        shutil.rmtree(battle.home)
    return Came(run=run, verdict=verdict, dealt=dealt, lives=battle.lives, seconds=time.monotonic() - began)


def series(seed: int, runs: int, directory: Path, at_once: int = 2) -> Iterator[Came]:
    """These runs in their order, so many at a time."""
    undisturbed = Undisturbed(directory)
    pool = ThreadPoolExecutor(at_once)
    try:
        yield from pool.map(lambda number: fight(draw(number), directory, undisturbed), range(seed, seed + runs))
    finally:
        pool.shutdown(cancel_futures=True)


def summary(came: Sequence[Came], seconds: float) -> Iterator[str]:
    """What all runs come to, in a few lines."""
    for what, counts in (
        ("environments", Counter(str(each.run.game) for each in came)),
        ("victims", Counter(str(blow.victim) for each in came for blow in each.run.blows)),
        ("moments", Counter(blow.when for each in came for blow in each.run.blows)),
    ):
        yield f"{what}: " + ", ".join(f"{name} {times}" for name, times in sorted(counts.items()))
    lives, blows = sum(each.lives for each in came), sum(len(each.dealt) for each in came)
    told = f"{len(came)} runs, {lives} lives, {blows} blows dealt, {seconds:.0f} s: "
    if bad := [str(each.run.seed) for each in came if each.verdict.found]:
        yield f"{told}{len(bad)} FOUND something: seeds {', '.join(bad)}"
        return
    held = sum(each.verdict.held for each in came)
    yield f"{told}0 of {held} held turns redone, no result lost or doubled, each equal to its undisturbed run"


def main(argv: Sequence[str] | None = None) -> int:
    """0: nothing was found. 1: something was, and its files are kept. 2: the command line is wrong."""
    parser = argparse.ArgumentParser(prog="python -m gym_tests.kill_runs", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the first run (0)")
    parser.add_argument(
        "--runs", type=int, default=10, metavar="N", help="how many (10); 0: each game, victim and moment once"
    )
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="so many at a time (2)")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="for the files of runs (a temporary one)")
    args = parser.parse_args(argv)
    if args.runs < 0 or args.seed < 0 or args.at_once < 1:
        parser.error("--runs and --seed are 0 or more, --at-once 1 or more")
    directory = Path(tempfile.mkdtemp(prefix="gym-kill-") if args.dir is None else args.dir).resolve()
    directory.mkdir(exist_ok=True)
    began = time.monotonic()
    came: list[Came] = []
    for each in series(args.seed, args.runs or len(product()), directory, args.at_once):
        came.append(each)
        print(each.line(), flush=True)
    for line in summary(came, time.monotonic() - began):
        print(line)
    if any(each.verdict.found for each in came):
        print(f"the files are in {directory}")
        return 1
    if args.dir is None:
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
