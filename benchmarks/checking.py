"""Checking: states a second, bytes a state and time to a planted bug, ours beside others on the same models.

Two-phase commit with N resource managers has counts that are published, so each row says whether it reaches them; the
planted bug is a manager that may abort after it has prepared, and its shortest trace has 2N + 3 steps. The checkpoint
world, with N checkpoints, is written as Python tables, which nobody else can run. Every search is a process of its own,
with one thread; what is measured is the search, without the start of Python and without Spin's compiler. All check that
the managers are consistent; all but Spin and minicheck also that nothing is stuck. Checkers take turns, and begin with
another one in each round. One that is likely to take longer than `BOUND_S` at a size is not asked for it, nor for a
larger one. It takes about four minutes on a machine that has nothing else to do.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import trio
from attrs import field, frozen

from .checkers import spin
from .checkers.result import Stopped
from .measure import markdown, median_interval, table

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".venv-peers/bin/python"
DISTINCT = {3: 288, 4: 1_568, 5: 8_832, 6: 50_816, 7: 296_448, 8: 1_745_408}
SIZES = {"two_phase": (6, 7, 8), "checkpoint": (1, 2, 3), "planted": (3, 5, 6, 8)}
SHORT_SIZES = {"two_phase": (4,), "checkpoint": (1,), "planted": (3,)}
TITLES = {"two_phase": "two-phase commit", "checkpoint": "checkpoint world", "planted": "planted bug"}
ROUNDS = 5
LEAST_ROUNDS = 3
BOUND_S = 30.0
"""No search that is likely to take longer is begun, and one that takes twice as long is stopped."""
ENOUGH_S = 15.0
"""When a checker has spent so much on a size in `LEAST_ROUNDS` rounds, there are no more."""
GROWTH = 6.0
"""So many more states there are with N one higher, about."""
PLANTED_GROWTH = 4
"""So many times the states of the world without it are seen before the planted bug is, at most."""
TELLING_STATES = 100_000
"""With fewer states the memory that a search takes says nothing about a state."""


@frozen
class Checker:
    """One that is measured. `command` is a module of benchmarks.checkers and its arguments; None is Spin."""

    name: str
    models: tuple[str, ...]
    command: tuple[str, ...] | None
    peer: str | None = None
    breadth: bool = False


OURS = Checker("ours, fast engine", ("two_phase", "checkpoint", "planted"), ("ours", "fast"))
DEPTH_FIRST = Checker("Spin, depth first", ("two_phase", "planted"), None)
BREADTH_FIRST = Checker("Spin, breadth first", ("two_phase", "planted"), None, breadth=True)
OWN = (
    OURS,
    Checker("ours, reference search", ("two_phase", "checkpoint", "planted"), ("ours", "reference")),
    Checker("Python by hand", ("two_phase", "planted"), ("by_hand",)),
    Checker("Python loop around the actions", ("checkpoint",), ("ours", "loop")),
)
OTHERS = (
    Checker("musil", ("two_phase", "planted"), ("with_musil",), peer="musil"),
    Checker("minicheck", ("two_phase", "planted"), ("with_minicheck",), peer="minicheck"),
    DEPTH_FIRST,
    BREADTH_FIRST,
)


@frozen
class Cell:
    """A checker at one size: what its searches found, or `why` there are none."""

    checker: str
    model: str
    n: int
    runs: list[dict[str, Any]] = field(factory=list)
    why: str = ""
    built_s: float = 0.0


async def missing(checker: Checker) -> str:
    """Why it cannot run here; empty if it can."""
    if checker.command is None:
        found = spin.missing()
        return f"not installed ({found})" if found else ""
    if checker.peer is None:
        return ""
    if not PEERS.exists():
        return "not installed (make bench-checking)"
    code = f"import importlib.metadata as m; print(m.version({checker.peer!r}))"
    done = await trio.run_process([str(PEERS), "-c", code], check=False, capture_stdout=True, stderr=subprocess.DEVNULL)
    if done.returncode == 0:
        return ""
    version = await trio.run_process([str(PEERS), "--version"], capture_stdout=True)
    return f"not installed ({version.stdout.decode().strip()}; make bench-checking PEERS_PYTHON=another)"


async def search(checker: Checker, model: str, n: int, pan: Path | None) -> dict[str, Any]:
    """One search in a process of its own."""
    with trio.move_on_after(2 * BOUND_S):
        if pan is not None:
            return await spin.run(pan, DISTINCT[n] * (PLANTED_GROWTH if model == "planted" else 1))
        assert checker.command is not None
        module, *arguments = checker.command
        python = sys.executable if checker.peer is None else str(PEERS)
        done = await trio.run_process(
            [python, "-m", f"benchmarks.checkers.{module}", *arguments, model, str(n)],
            cwd=ROOT,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
        )
        if done.returncode:
            raise Stopped(f"failed: {done.stderr.decode().strip().splitlines()[-1]}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found
    raise Stopped(f"stopped after {2 * BOUND_S:.0f} s")


def enough(cell: Cell) -> bool:
    return len(cell.runs) >= LEAST_ROUNDS and sum(run["seconds"] for run in cell.runs) > ENOUGH_S


class Contest:
    """One model: every checker that can run it, at each size."""

    def __init__(self, model: str, sizes: Iterable[int], checkers: list[Checker], directory: Path) -> None:
        self.model = model
        self.checkers = checkers
        self.directory = directory
        self.cells = {(each.name, n): Cell(each.name, model, n) for each in checkers for n in sizes}
        self.pans: dict[tuple[str, int], Path] = {}

    def refuse(self, checker: Checker, n: int, why: str) -> None:
        """No search by it at this size, nor at larger ones."""
        for name, size in self.cells:
            if name == checker.name and size >= n:
                self.cells[name, size] = Cell(name, self.model, size, why=why)

    async def prepare(self) -> None:
        """What is missing is found out, and what has to be compiled is."""
        for name, n in list(self.cells):
            checker = next(each for each in self.checkers if each.name == name)
            if self.cells[name, n].why:
                continue
            if why := await missing(checker):
                self.refuse(checker, n, why)
            elif checker.command is None:
                where = self.directory / f"{self.model}-{n}-{'breadth' if checker.breadth else 'depth'}"
                pan, built_s = await spin.build(where, self.model, n, breadth=checker.breadth)
                self.pans[name, n] = pan
                self.cells[name, n] = Cell(name, self.model, n, built_s=built_s)

    async def round(self, shift: int) -> None:
        shift %= len(self.checkers)
        for checker in self.checkers[shift:] + self.checkers[:shift]:
            last: tuple[int, float] | None = None
            for n in [size for name, size in self.cells if name == checker.name]:
                cell = self.cells[checker.name, n]
                if cell.why or enough(cell):
                    continue
                if not cell.runs and last is not None and last[1] * GROWTH ** (n - last[0]) > BOUND_S:
                    self.refuse(checker, n, f"not asked: likely more than {BOUND_S:.0f} s")
                    break
                try:
                    run = await search(checker, self.model, n, self.pans.get((checker.name, n)))
                except Stopped as stopped:
                    self.refuse(checker, n, str(stopped))
                    break
                cell.runs.append(run)
                print(f"  {checker.name}, {self.model}, N = {n}: {run['seconds']:.2f} s", file=sys.stderr, flush=True)
                last = n, run["seconds"]


async def run(directory: Path, *, short: bool) -> dict[str, Any]:
    """All models; `short` is ours and Python by hand, which need nothing else, on small ones."""
    result: dict[str, Any] = {"load": os.getloadavg()[0], "spin": "", "cells": []}
    if not short and not spin.missing():
        result["spin"] = await spin.version()
    for model, sizes in (SHORT_SIZES if short else SIZES).items():
        checkers = [each for each in (OWN if short else OWN + OTHERS) if model in each.models]
        contest = Contest(model, sizes, checkers, directory)
        await contest.prepare()
        for index in range(1 if short else ROUNDS):
            await contest.round(index)
        result["cells"] += [
            {"checker": c.checker, "model": c.model, "n": c.n, "why": c.why, "built_s": c.built_s, "runs": c.runs}
            for c in contest.cells.values()
        ]
    return result


# --- what is shown

Cells = Mapping[tuple[str, str, int], dict[str, Any]]


def _by_key(results: Mapping[str, Any]) -> Cells:
    return {(each["model"], each["checker"], each["n"]): each for each in results["cells"]}


def _median(cell: Mapping[str, Any], name: str) -> float | None:
    found = [run[name] for run in cell["runs"] if run[name] is not None]
    return statistics.median(found) if found else None


def _expected(cells: Cells, model: str, n: int) -> int | None:
    """The published count; of the checkpoint world, ours by the fast engine."""
    if model == "two_phase":
        return DISTINCT[n]
    ours = cells.get((model, OURS.name, n))
    return None if ours is None or not ours["runs"] else int(ours["runs"][0]["distinct"])


def _count(cells: Cells, cell: Mapping[str, Any]) -> str:
    counts = sorted({run["distinct"] for run in cell["runs"]})
    text = " / ".join(f"{each:,}" for each in counts)
    expected = _expected(cells, cell["model"], cell["n"])
    return text if counts == [expected] else f"{text}, not {expected:,}"


def _rate(cell: Mapping[str, Any], name: str) -> str:
    rates = [run[name] / run["seconds"] for run in cell["runs"] if run[name] is not None]
    if not rates:
        return "not told"
    middle, low, high = (f"{value / 1e6:.3f}" for value in median_interval(rates))
    return f"{middle} ({low} .. {high})" if name == "distinct" else middle


def _explored(cells: Cells, model: str) -> list[list[str]]:
    rows = []
    for cell in sorted((each for key, each in cells.items() if key[0] == model), key=lambda each: each["n"]):
        head = [f"{TITLES[model]}, N = {cell['n']}", cell["checker"]]
        if cell["why"]:
            rows.append([*head, cell["why"], "", "", "", ""])
            continue
        telling = cell["runs"][0]["distinct"] >= TELLING_STATES
        size = statistics.median(run["bytes"] / run["distinct"] for run in cell["runs"])
        rows.append(
            [
                *head,
                _count(cells, cell),
                _rate(cell, "distinct"),
                _rate(cell, "generated"),
                f"{size:.0f}" if telling else "",
                f"{_median(cell, 'seconds'):.2f}",
            ]
        )
    return rows


def _planted(cells: Cells) -> tuple[list[str], list[list[str]]]:
    mine = {key[1:]: each for key, each in cells.items() if key[0] == "planted"}
    sizes = sorted({n for _, n in mine})
    rows = []
    for name in dict.fromkeys(name for name, _ in mine):
        row = [name]
        for n in sizes:
            cell = mine[name, n]
            if cell["why"]:
                row.append(cell["why"])
                continue
            steps = " / ".join(sorted({f"{run['steps']}" for run in cell["runs"]}))
            built = f" + {cell['built_s']:.1f} s" if cell["built_s"] else ""
            row.append(f"{_median(cell, 'seconds'):.3f} s{built}, {steps} steps")
        rows.append(row)
    return ["planted bug", *(f"N = {n} (shortest: {2 * n + 3} steps)" for n in sizes)], rows


def _ratios(cells: Cells) -> list[str]:
    """Rates of the fast engine by those of the others, at the largest size of both; in pairs, as they took turns."""
    lines = []
    for model in ("two_phase", "checkpoint"):
        for name in dict.fromkeys(key[1] for key in cells if key[0] == model and key[1] != OURS.name):
            sizes = [n for m, c, n in cells if (m, c) == (model, name)]
            both = [n for n in sizes if cells[model, name, n]["runs"] and cells[model, OURS.name, n]["runs"]]
            if not both:
                why = cells[model, name, sizes[0]]["why"]
                lines.append(f"fast engine / {name}, {TITLES[model]}: no figure ({why})")
                continue
            n = max(both)
            pairs = zip(cells[model, OURS.name, n]["runs"], cells[model, name, n]["runs"], strict=False)
            ratio, low, high = median_interval(
                [ours["distinct"] / ours["seconds"] / (their["distinct"] / their["seconds"]) for ours, their in pairs]
            )
            lines.append(f"fast engine / {name}, {TITLES[model]}, N = {n}: {ratio:.2f} ({low:.2f} .. {high:.2f})")
    return lines


def _notes(results: Mapping[str, Any], cells: Cells) -> list[str]:
    """Versions, and what the fast engine says that it holds."""
    found: dict[str, str] = {}
    for each in cells.values():
        for run in each["runs"]:
            if run.get("version"):
                found[each["checker"]] = f"{run['version']} (Python {run['python']})"
    lines = [f"{name}: {version}" for name, version in found.items()]
    if results["spin"]:
        lines.append(f"Spin: {results['spin']}, {' '.join(spin.FLAGS)}; -DBFS for breadth first")
    for (model, name, n), cell in cells.items():
        if name == OURS.name and model != "planted" and cell["runs"] and cell["runs"][0]["distinct"] >= TELLING_STATES:
            held = statistics.median(run["held"] / run["distinct"] for run in cell["runs"])
            lines.append(f"{name}, {TITLES[model]}, N = {n}: {held:.0f} bytes a state are held, the rest is passing")
    lines.append(f"load average when it began: {results['load']:.1f}")
    return lines


EXPLORED = ("model", "checker", "distinct states", "M distinct/s (95 %)", "M generated/s", "bytes a state", "seconds")


def show(results: Mapping[str, Any], form: Callable[..., str] = table) -> str:
    """Both tables, the ratios and what was measured with."""
    cells = _by_key(results)
    explored = [row for model in ("two_phase", "checkpoint") for row in _explored(cells, model)]
    lines = [*_ratios(cells), "", *_notes(results, cells)]
    if form is markdown:
        lines = [f"- {line}" if line else "" for line in lines]
    return "\n\n".join([form(EXPLORED, explored), form(*_planted(cells)), "\n".join(lines)])
