"""Figures of a run: the machine, medians and their intervals, a table, a JSON file."""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESAMPLES = 4000
TICKS = os.sysconf("SC_CLK_TCK")


def machine() -> dict[str, Any]:
    """What this machine is, as far as it matters to the figures."""
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ""
    )
    memory_kb = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": model or platform.processor() or "unknown",
        "cores": os.cpu_count(),
        "memory_gib": round(memory_kb / 1024**2, 1),
    }


def _lines(path: str) -> Iterable[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else ()


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time that these processes have used so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


def median_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """(median, low, high): the 95 % bootstrap interval of the median, the resampling seeded."""
    drawn = random.Random(seed)
    medians = sorted(statistics.median(drawn.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return statistics.median(values), medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A plain table, columns as wide as they need."""
    cells = [[str(each) for each in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The same as a table of a Markdown page."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in (header, *rows)]
    return "\n".join([lines[0], "|---" * len(header) + "|", *lines[1:]])


def write(path: Path, name: str, figures: Any) -> None:
    """`figures` and the machine in one JSON file."""
    path.mkdir(parents=True, exist_ok=True)
    (path / f"{name}.json").write_text(json.dumps({"machine": machine(), "figures": figures}, indent=1) + "\n")
