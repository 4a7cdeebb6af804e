"""Breaks the code on purpose, one place at a time, and asks whether a test notices: `python -m tests.mutants`.

`mutations.toml` beside this file names for each invariant what to change, and which tests must fail then. Each mutation
is made in a copy of the working tree. Exit code 0: with nothing changed all those tests pass, and each mutation makes
at least one of its own fail. Numbers on the command line (`I5 I16`) choose some of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

ROOT: Final = Path(__file__).resolve().parent.parent
LIST: Final = Path(__file__).with_name("mutations.toml")
LONGEST_S: Final = 300
"""A mutation under which the tests do not come to an end in this time is noticed, too."""


@frozen
class Mutation:
    """`old`, which is in `file` once, becomes `new`; then one of the tests in `fails` fails. `says` is for readers."""

    covers: tuple[str, ...]
    says: str
    file: str
    old: str
    new: str
    fails: tuple[str, ...]

    def applied(self, text: str) -> str:
        """The text of the file with the mutation. ValueError if its place is not there, or is there twice."""
        if self.old == self.new or text.count(self.old) != 1:
            raise ValueError(f"{self.says}: {self.file} has {text.count(self.old)} times {self.old!r}")
        return text.replace(self.old, self.new)


def listed() -> tuple[Mutation, ...]:
    """All mutations."""
    told = tomllib.loads(LIST.read_text(encoding="utf-8"))["mutation"]
    return tuple(
        Mutation(tuple(row["covers"]), row["says"], row["file"], row["old"], row["new"], tuple(row["fails"]))
        for row in told
    )


def copied(to: Path) -> None:
    """The files that git knows or would take, as they are now, are below `to`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in names:
        source = ROOT / name
        if name and source.is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            (to / name).write_bytes(source.read_bytes())


def passes(tree: Path, tests: Iterable[str]) -> bool | None:
    """Whether the tests pass in that tree; None if they do not end. RuntimeError if pytest could not run them."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=tree, env=env, capture_output=True, text=True, timeout=LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode not in (0, 1):  # as when what is mutated cannot even be imported: that is no test that notices
        raise RuntimeError(f"pytest exited with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.returncode == 0


def main(numbers: Sequence[str]) -> int:
    chosen = [each for each in listed() if not numbers or set(numbers) & set(each.covers)]
    if not chosen:
        print(f"no mutation covers {', '.join(numbers)}", file=sys.stderr)
        return 2
    survived = []
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        copied(tree)
        if not passes(tree, sorted({test for each in chosen for test in each.fails})):
            print("with nothing changed, the tests do not pass", file=sys.stderr)
            return 1
        for each in chosen:
            path = tree / each.file
            before = path.read_text(encoding="utf-8")
            path.write_text(each.applied(before), encoding="utf-8")
            noticed = passes(tree, each.fails)
            path.write_text(before, encoding="utf-8")
            how = {True: "NOT NOTICED", False: "noticed", None: f"noticed: no end in {LONGEST_S} s"}[noticed]
            print(f"{', '.join(each.covers):<12} {how:<12} {each.says}", flush=True)
            survived += [each] if noticed else []
    print(f"{len(chosen) - len(survived)} of {len(chosen)} mutations are noticed")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
