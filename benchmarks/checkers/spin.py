"""Spin on the same model: generated and compiled once for each size, then run as often as one likes."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path
from typing import Any

import trio

from .result import Stopped

MODEL = Path(__file__).with_name("two_phase.pml")
FLAGS = ("-O2", "-DSAFETY", "-DNOREDUCE", "-DMEMLIM=6000")
"""No partial order reduction, so that every state is counted; no compression, which makes it much slower here."""
DEEPEST = 1_000
STORED = re.compile(r"^\s*(\d+) states, stored", re.MULTILINE)
TRANSITIONS = re.compile(r"^\s*(\d+) transitions", re.MULTILINE)
MEMORY = re.compile(r"^\s*([\d.]+)\s+total actual memory usage", re.MULTILINE)


def missing() -> str:
    """What has to be installed first; empty if nothing."""
    absent = [name for name in ("spin", "gcc") if shutil.which(name) is None]
    return f"apt-get install {' '.join(absent)}" if absent else ""


async def version() -> str:
    """That of Spin and of the compiler."""
    spin = await trio.run_process(["spin", "-V"], capture_stdout=True)
    gcc = await trio.run_process(["gcc", "-dumpfullversion"], capture_stdout=True)
    return f"{spin.stdout.decode().split()[2]}, gcc {gcc.stdout.decode().strip()}"


async def build(directory: Path, model: str, n: int, *, breadth: bool) -> tuple[Path, float]:
    """The compiled verifier, and how many seconds it took to make."""
    await trio.Path(directory).mkdir(parents=True)
    began = time.perf_counter()
    planted = ["-DPLANTED"] if model == "planted" else []
    await trio.run_process(["spin", f"-DN={n}", *planted, "-a", str(MODEL)], cwd=directory, capture_stdout=True)
    order = ["-DBFS"] if breadth else []
    await trio.run_process(["gcc", *FLAGS, *order, "-o", "pan", "pan.c"], cwd=directory)
    return directory / "pan", time.perf_counter() - began


async def run(pan: Path, expected: int) -> dict[str, Any]:
    """One search, with a hash table of a place for each of the `expected` states."""
    trail = pan.parent / f"{MODEL.name}.trail"
    trail.unlink(missing_ok=True)
    size = max(16, expected.bit_length())
    began = time.perf_counter()
    done = await trio.run_process(
        [str(pan), f"-m{DEEPEST}", f"-w{size}"], cwd=pan.parent, capture_stdout=True, check=False
    )
    seconds = time.perf_counter() - began
    text = done.stdout.decode()
    found = [pattern.search(text) for pattern in (STORED, TRANSITIONS, MEMORY)]
    if done.returncode or "max search depth too small" in text or "memory limit" in text or None in found:
        raise Stopped(f"failed: pan ended with {done.returncode}: {text.strip().splitlines()[:1]}")
    stored, transitions, megabytes = (float(each[1]) for each in found if each is not None)
    steps = None
    if trail.exists():  # a line for each step, and some that begin with a minus
        steps = sum(not line.startswith("-") for line in trail.read_text().splitlines())
    return {
        "distinct": int(stored),
        "generated": int(transitions),  # Spin counts the initial state among those stored, and so here
        "steps": steps,
        "held": None,
        "seconds": seconds,
        "bytes": megabytes * 1024**2,
    }
