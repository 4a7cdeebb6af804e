"""A collection on real Gym servers that is killed again and again, as ``python -m gym_tests.collect_kills --kills 20``.

Its whole process is ended by SIGKILL at random moments: one life in four while its servers start, the others some time
after that. The same command goes on. At the end every task is in the output once, with the result that it should have.
Ends by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from participants.gym.demo import GAMES, config_of, task_of
from participants.gym.upstream import Model, spec
from statecore.wire import encode, parse

LONGEST_S = 1800.0
LAST_S = 600.0
STARTING_S, RUNNING_S = 8.0, 6.0
"""A life is killed within so long of its start, or of the moment from which its servers are up."""


@frozen
class Outcome:
    """What came of it: how often each task is in the output, and which have another result than they should."""

    kills: int
    rows: Counter[str]
    wrong: tuple[str, ...]
    tasks: int
    code: int
    seconds: float

    @property
    def good(self) -> bool:
        once = len(self.rows) == self.tasks and set(self.rows.values()) == {1}
        return once and not self.wrong and self.code == 0

    def line(self) -> str:
        twice = sum(number > 1 for number in self.rows.values())
        told = f"{self.kills} kills, {self.tasks} tasks: {self.tasks - len(self.rows)} missing, {twice} twice, "
        return told + f"{len(self.wrong)} wrong; exit code {self.code}; {self.seconds:.0f} s"


def run(folder: Path, *, kills: int, tasks: int, seed: int, every_s: float = 2.0, turn_s: float = 0.2) -> Outcome:
    """The collection ran to its end, with so many kills on its way."""
    dice = random.Random(seed)
    started = time.monotonic()
    done = 0
    with prepared(folder, tasks=tasks, turn_s=turn_s):
        while done < kills and time.monotonic() - started < LONGEST_S:
            starting = dice.random() < 0.25
            moment_s = dice.uniform(0, STARTING_S if starting else RUNNING_S)
            if _life(folder, every_s, moment_s, up=not starting) is not None:
                break  # it came to its end before its turn to be killed
            done += 1
            print(f"killed {done} times, {len(rows_of(folder))} rows", flush=True)
        code = _life(folder, every_s, LAST_S, up=True)
    rows = rows_of(folder)
    wrong = tuple(row["_ng_rollout_id"] for row in rows if row["reward"] != 1.0)
    return Outcome(
        kills=done,
        rows=Counter(row["_ng_rollout_id"] for row in rows),
        wrong=wrong,
        tasks=tasks,
        code=-1 if code is None else code,
        seconds=time.monotonic() - started,
    )


@contextmanager
def prepared(folder: Path, *, tasks: int, turn_s: float) -> Iterator[None]:
    """Tasks and configuration are there, and the model that it names answers."""
    lines = [task_of(GAMES[n % len(GAMES)], n, planned=True) for n in range(tasks)]
    (folder / "tasks.jsonl").write_bytes(b"".join(encode(line) + b"\n" for line in lines))
    with (folder / "model.log").open("wb") as log:
        told = spec(Model(log=str(folder / "model.jsonl"), delay_s=turn_s))
        command = [sys.executable, "-m", told.module, told.factory, "--ready-file", str(folder / "url")]
        model = subprocess.Popen(command, stdout=log, stderr=log, env={**_environment(), **told.env})
    try:
        url = f"{_when_there(folder / 'url', model)}/v1"
        (folder / "config.json").write_text(json.dumps(config_of(url, "scripted", "none")))
        yield
    finally:
        model.send_signal(signal.SIGTERM)
        model.wait()


class Life:
    """A start of the command; what it says goes to ``collect.log``."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "statecore.cli", "gym", "collect", "--config", str(folder / "config.json")]
        command += ["--input", str(folder / "tasks.jsonl"), "--output", str(folder / "results.jsonl")]
        command += ["--checkpoints", str(folder / "checkpoints"), "--concurrency", "6", *options]
        self._path = folder / "collect.log"
        with self._path.open("ab") as log:
            self._begins = log.tell()
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=_environment())

    def said(self) -> str:
        with self._path.open("rb") as log:
            log.seek(self._begins)
            return "\n" + log.read().decode()

    def until(self, text: str) -> None:
        """It has said so, or it has ended."""
        while self.process.poll() is None and text not in self.said():
            time.sleep(0.05)


def _life(folder: Path, every_s: float, within_s: float, *, up: bool) -> int | None:
    """The exit code, None when it was killed so long after its start (`up`: after its servers were up)."""
    life = Life(folder, "--every", str(every_s))
    if up:
        life.until("\nepoch ")
    try:
        return life.process.wait(within_s)
    except subprocess.TimeoutExpired:
        life.process.send_signal(signal.SIGKILL)
        life.process.wait()
        return None


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("STATECORE_", "NEMO_GYM_"))}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of the output."""
    path = folder / "results.jsonl"
    text = path.read_bytes() if path.exists() else b""
    return [parse(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]


def _when_there(path: Path, process: subprocess.Popen[bytes]) -> str:
    while not path.exists():
        if process.poll() is not None:
            raise RuntimeError(f"the model ended with status {process.returncode}")
        time.sleep(0.05)
    return path.read_text().strip()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gym_tests.collect_kills")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="collect-kills-") as folder:
        outcome = run(Path(folder), kills=args.kills, tasks=args.tasks, seed=args.seed)
        if not outcome.good:
            print((Path(folder) / "collect.log").read_text()[-6000:])
    print(f"seed {args.seed}: {outcome.line()}")
    return 0 if outcome.good else 1


if __name__ == "__main__":
    sys.exit(main())
