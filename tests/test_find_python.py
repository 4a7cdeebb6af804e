"""The script that finds an interpreter for make: one that is new enough, or words that say what was tried."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FIND = Path(__file__).parent.parent / ".ci" / "find_python.sh"


def find(**changes: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "LEAST")} | changes
    return subprocess.run(["bash", str(FIND)], capture_output=True, text=True, check=False, env=environ)


def test_an_interpreter_that_is_named_is_taken() -> None:
    """Its path is printed, and nothing else."""
    found = find(PYTHON=sys.executable)
    assert (found.returncode, found.stdout.strip()) == (0, sys.executable)


def test_where_none_is_new_enough_it_says_so() -> None:
    """Exit status 1, the version that was asked for, and each that was tried with its own."""
    found = find(PYTHON=sys.executable, LEAST="99")
    assert (found.returncode, found.stdout) == (1, "")
    version = ".".join(map(str, sys.version_info[:3]))
    assert "No Python 3.99 or newer that can make a virtual environment was found" in found.stderr
    assert f"{sys.executable}: Python {version}" in found.stderr
