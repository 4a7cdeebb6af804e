"""The page on conformance does what it says: its file is a suite that passes, and says what its driver cannot do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from participants.conformance import Driver
from participants.conformance.command import chosen
from tests.conform_broken import BROKEN
from tests.test_docs import DOCS, ROOT, blocks, read

PAGE = DOCS / "how-to/conform.md"


def test_the_suite_of_the_page_runs(tmp_path: Path) -> None:
    """One test per check; those that need a blocker, and the one that does not apply, are skipped with the reason."""
    ((name, text),) = ((name, text) for name, text in blocks(PAGE, "python") if name is not None)
    (tmp_path / name).write_text(text)
    words = ["-m", "pytest", name, "-q", "-rs", "-p", "no:cacheprovider", "-k", "restore or blockers or closed"]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "not tried: needs a driver with blocking()" in ran.stdout
    assert "does not apply: its executions do not start over" in ran.stdout
    found = re.search(r"(\d+) passed, (\d+) skipped", ran.stdout)
    assert found is not None and int(found[1]) >= 8 and int(found[2]) == 2, ran.stdout


def test_the_driver_of_the_page_is_one(tmp_path: Path) -> None:
    """As the command line takes it."""
    (text,) = (text for name, text in blocks(PAGE, "python") if name is None)
    (tmp_path / "notes.py").write_text(text)
    assert isinstance(chosen(f"{tmp_path / 'notes.py'}:Notes", None), Driver)


def test_the_number_of_broken_servers_is_the_one_that_is_told() -> None:
    """So that a double that is taken out is taken out of the page as well."""
    assert f"{len(BROKEN)} servers with one rule taken out each" in " ".join(read(PAGE).split())
