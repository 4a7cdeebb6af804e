"""The how-to on testing running code does what it says: its test fails as it shows, and its mend is one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/how-to/test-running-code.md").read_text(encoding="utf-8")
FILE = re.compile(r"<!-- file: (?P<name>[\w.]+) -->\n```python\n(?P<text>.*?)\n```", re.DOTALL)
FILES = {found["name"]: found["text"] + "\n" for found in FILE.finditer(PAGE)}
QUICK = """
from hypothesis import Phase, settings
settings.register_profile(
    "quick",
    derandomize=True,
    max_examples=50,
    phases=[Phase.generate, Phase.shrink],
    database=None,
    deadline=None,
    print_blob=False,
)
settings.load_profile("quick")
"""
"""All that Hypothesis would decide by itself: where it sees that it is in CI, it prints more."""
INVARIANT = "state.nobody_loses_the_key()"
"""Printed after every step; the page shows it once."""
WRONG, RIGHT = "if self.lease is not None and self.lease.who == lease.who:", "if self.lease is lease:"


def run(directory: Path) -> tuple[int, str]:
    """pytest's exit code for the page's test, always with the same examples, and what it prints."""
    for name, text in {**FILES, "conftest.py": QUICK}.items():
        (directory / name).write_text(text, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "_hypothesis_pytestplugin", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout


def test_it_is_found_with_the_steps_that_the_page_shows(tmp_path: Path) -> None:
    """The least failing example has the steps of the page."""
    code, printed = run(tmp_path)
    assert code == 1, printed
    (shown,) = re.findall(r"```text\n(.*?)\n```", PAGE, re.DOTALL)
    steps = [line.removeprefix("E").strip() for line in printed.splitlines() if line.startswith("E ")]
    wanted = shown.splitlines()
    assert wanted[0] in steps
    found = [line for line in steps[steps.index(wanted[1]) :] if line != INVARIANT]
    wanted = [line for line in wanted[1:] if line != INVARIANT]
    assert sorted(found) == sorted(wanted)  # initializers come in any order; the key may be given back earlier


def test_the_mend_of_the_page_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the line that the page gives, the same test passes."""
    assert RIGHT in PAGE
    assert FILES["door.py"].count(WRONG) == 1
    monkeypatch.setitem(FILES, "door.py", FILES["door.py"].replace(WRONG, RIGHT))
    code, printed = run(tmp_path)
    assert code == 0, printed
