"""Worlds as pytest and the command find them: made by calls, of two names, stopped by Ctrl-C."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from statecore.cli import main
from tests.test_pytest_plugin import run

WORLDS = """
from statecore import World, action, always, slot


class Ring(World):
    at = slot(0)

    @action
    def walk(self):
        self.at = (self.at + 1) % 3

    @always
    def near(self):
        return self.at < 3


Other = Ring


def ring(size):
    return type(f"Ring{size}", (Ring,), {"__module__": __name__, "near": always(lambda w: w.at < size)})


Ring2, Ring9 = ring(2), ring(9)


class Writes(Ring):
    @always
    def near(self):
        self.at = 0
        return True
"""
STOPPED = """
from statecore import World, action, always, slot


class Stopped(World):
    at = slot(0)

    @action
    def walk(self):
        raise KeyboardInterrupt

    @always
    def near(self):
        return True


class Next(Stopped):
    @action
    def walk(self):
        pass
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "pytest.ini").write_text("[pytest]\nstatecore_worlds = worlds/*.py\n")
    (tmp_path / "worlds").mkdir()
    (tmp_path / "worlds" / "rings.py").write_text(WORLDS)
    return tmp_path


def test_pytest_checks_worlds_that_a_call_made(project: Path) -> None:
    """They have no line of their own in the file, which does not stop the run; a world of two names is one."""
    done = run(project, "-rA")
    told = [line.rpartition("::")[2] for line in done.stdout.splitlines() if line.startswith(("PASSED", "FAILED"))]
    assert [each.partition(" ")[0] for each in told] == ["Ring", "Ring9", "Ring2", "Writes"]
    assert "INTERNALERROR" not in done.stdout + done.stderr
    assert done.returncode == 1


def test_pytest_says_where_a_mistake_is(project: Path) -> None:
    """The property and the state are part of what went wrong."""
    done = run(project, "-k", "Writes")
    assert "a property assigns slot 'at'; properties only read" in done.stdout
    assert "in property 'near' of Writes, in the state at = 0" in done.stdout


def test_ctrl_c_stops_the_run_of_tests(project: Path) -> None:
    """It was not meant for one world alone; what was found until then is told."""
    (project / "worlds" / "rings.py").write_text(STOPPED)
    done = run(project)
    assert done.returncode == 2
    assert "KeyboardInterrupt" in done.stdout
    assert "stopped at the limit of Ctrl-C" in done.stdout
    assert "Next PASSED" not in done.stdout


def test_the_command_checks_a_world_of_two_names_once(project: Path, capsys: Any) -> None:
    """As it is found first."""
    assert main(["check", str(project / "worlds" / "rings.py"), "--json"]) == 1
    out = capsys.readouterr().out
    assert [json.loads(line)["world"] for line in out.splitlines()] == ["Ring", "Ring2", "Ring9"]


def test_ctrl_c_leaves_the_other_worlds_alone(project: Path, capsys: Any) -> None:
    """The report is of the world that was explored; the others are named."""
    (project / "worlds" / "rings.py").write_text(STOPPED)
    assert main(["check", str(project / "worlds" / "rings.py"), "--json"]) == 3
    out, err = capsys.readouterr()
    assert [(json.loads(line)["verdict"], json.loads(line)["limit"]) for line in out.splitlines()] == [
        ("not_finished", "Ctrl-C")
    ]
    assert "statecore: not explored after Ctrl-C: Next" in err
