"""What one search found and took, as one line of JSON on standard output."""

from __future__ import annotations

import json
import platform
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

MOST_BYTES = 6 << 30
"""A search that wants more memory than this ends with an error."""


class Stopped(Exception):
    """A search took too long, or failed; the text is why."""


class Found(NamedTuple):
    """What a search found; None is what it does not tell. `held` are the bytes that it says it holds."""

    distinct: int | None
    generated: int | None
    steps: int | None = None  # of the trace to the planted bug
    held: int | None = None


def _memory(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def main(search: Callable[[str, int], Callable[[], Found]], *, version: str = "") -> None:
    """`search(model, n)` makes everything ready; what it returns is measured: seconds, and how far memory grew."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    ready = search(sys.argv[1], int(sys.argv[2]))
    before, began = _memory("VmRSS"), time.perf_counter()
    found = ready()
    seconds = time.perf_counter() - began
    figures: dict[str, Any] = {"seconds": seconds, "bytes": max(0, _memory("VmHWM") - before)}
    print(json.dumps({**found._asdict(), **figures, "version": version, "python": platform.python_version()}))
