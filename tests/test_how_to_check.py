"""The how-to on checking one's own kind does what it says: from an empty directory, with its files and its commands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/how-to/check-your-own-participant-kind.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(?:<!-- file: (?P<file>[\w./-]+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)\n```", re.DOTALL)
FILES = {found["file"]: found["text"] + "\n" for found in BLOCK.finditer(PAGE) if found["file"]}
(TWIN,) = (found["text"] for found in BLOCK.finditer(PAGE) if found["language"] == "python" and not found["file"])
WORLD = "models/notes.py"
COMMANDS = [found["text"].removeprefix("$ ") for found in BLOCK.finditer(PAGE) if found["language"] == "console"]


def run(line: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """A command of the page; `statecore` and `pytest` are those of this project and this Python."""
    program, *arguments = shlex.split(line)
    command = {
        "statecore": [sys.executable, "-m", "statecore.cli", *arguments],
        "pytest": [sys.executable, "-m", "pytest", "-p", "statecore.pytest_plugin", *arguments],
    }[program]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=120, check=False)


def steady(text: str) -> str:
    """An output without the times in it."""
    return re.sub(r"\d+\.\d+ ?s(, [\d,]+ states/s)?", "# s", text).strip()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n\n{TWIN}\n" if name == WORLD else text, encoding="utf-8")
    return tmp_path


def test_the_world_has_no_more_than_forty_lines() -> None:
    """Of code: what a newcomer has to write."""
    assert len([line for line in FILES[WORLD].splitlines() if line.strip()]) <= 40


def test_its_commands_print_what_it_shows(directory: Path) -> None:
    """Both checks and the run of pytest; the exit codes are those of the page."""
    assert [line.split()[0] for line in COMMANDS] == ["statecore", "statecore", "pytest"]
    codes = []
    for text in COMMANDS:
        line, shown = text.split("\n", 1)
        done = run(line, directory)
        codes.append(done.returncode)
        assert steady(done.stdout) == steady(shown), done.stdout + done.stderr
    assert codes == [0, 1, 0]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("GateState.QUIET", "GateState.DRAINING", "nothing_moves_while_committed is broken after 4 steps"),
        ("(OpenRequested(), *[Arrived()] * self.gate.data.held)", "()", "accepting is broken after 1 step"),
        ("(OpenRequested(), *[Arrived()] * self.gate.data.held)", "[OpenRequested()]", ""),
        ('by="server", fair=True', 'by="server"', "draining never comes: nothing need happen after 2 steps"),
        ("CloseRequested())", "OpenRequested())", "sometimes a_request_is_held: never seen"),
    ],
)
def test_its_rules_can_break(directory: Path, old: str, new: str, says: str) -> None:
    """Each property of the world fails under a mutation of its own; a rule without a property is not checked."""
    assert FILES[WORLD].count(old) == 1
    (directory / WORLD).write_text(FILES[WORLD].replace(old, new), encoding="utf-8")
    done = run(f"statecore check {WORLD} --max-states 5000", directory)
    assert says in done.stdout and (done.returncode == 0) is (not says), done.stdout + done.stderr


def test_the_written_test_of_the_page_fails_until_the_world_is_mended(directory: Path) -> None:
    """`--pytest` as the page has it."""
    (directory / "tests").mkdir()
    command = f"statecore check {WORLD}:CommitsTooEarly --pytest tests/test_found.py"
    assert run(command, directory).returncode == 1
    assert "1 failed" in run("pytest -q tests/test_found.py", directory).stdout
    text = (directory / WORLD).read_text()
    (directory / WORLD).write_text(text.replace("is GateState.OPEN:", "is not GateState.QUIET:"), encoding="utf-8")
    assert "1 passed" in run("pytest -q tests/test_found.py", directory).stdout
