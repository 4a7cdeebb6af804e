"""The recipe for CI does what it says: its script, from a project with nothing but worlds, as a CI would run it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILE = re.compile(r"<!-- file: (?P<name>[\w./-]+) -->\n```\w*\n(?P<text>.*?)\n```", re.DOTALL)
SCRIPT = "ci/check-models.sh"
WORKFLOW = ".github/workflows/models.yml"


def files(page: str) -> dict[str, str]:
    """The files that a how-to gives, by name."""
    text = (ROOT / "docs/how-to" / page).read_text(encoding="utf-8")
    return {found["name"]: found["text"] + "\n" for found in FILE.finditer(text)}


RECIPE = files("run-checks-in-ci.md")
WORLD = files("check-your-own-participant-kind.md")["models/notes.py"]
BROKEN = WORLD.replace("is not GateState.QUIET:", "is GateState.OPEN:")
SIZED = (
    WORLD.replace("notes = slot(0)", "notes = slot(0)\n    most = param(3)\n    pytest_sizes = ({}, {'most': 2})")
    .replace("self.gate.data.held == 3:", "self.gate.data.held == self.most:")
    .replace("always, leads_to, ", "always, leads_to, param, ")
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with the recipe and one world; its `pytest` and `statecore` are those of this Python."""
    for name, text in {**RECIPE, "models/notes.py": WORLD}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "bin").mkdir()
    for name, module in {"pytest": "pytest -p statecore.pytest_plugin", "statecore": "statecore.cli"}.items():
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    return tmp_path


def run(project: Path, script: str = SCRIPT) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "PATH": f"{project / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    return subprocess.run(
        ["sh", script], cwd=project, env=env, capture_output=True, text=True, timeout=120, check=False
    )


def put(project: Path, text: str) -> None:
    assert text != WORLD
    (project / "models/notes.py").write_text(text, encoding="utf-8")


def found(project: Path) -> set[str]:
    return {each.name for each in (project / "found").iterdir()}


def reported(project: Path) -> dict[str, bool]:
    """The worlds of JUnit's report, and whether each holds."""
    cases = ElementTree.parse(project / "found/models.xml").getroot().iter("testcase")
    return {str(case.get("name")): case.find("failure") is None for case in cases}


def test_the_workflow_runs_the_script_and_keeps_what_it_found() -> None:
    """The two forms of the recipe are one."""
    assert re.findall(r"- run: (.+)", RECIPE[WORKFLOW]) == ['pip install "statecore[check]" pytest', f"sh {SCRIPT}"]
    assert "path: found/\n" in RECIPE[WORKFLOW] and "if: always()" in RECIPE[WORKFLOW]


def test_what_holds_passes(project: Path) -> None:
    """Exit code 0, the report with its counts, and no counterexample; what an earlier run left is gone."""
    (project / "found").mkdir()
    (project / "found/old.json").write_text("{}", encoding="utf-8")
    done = run(project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert found(project) == {"models.xml"} and reported(project) == {"Notes": True}
    properties = ElementTree.parse(project / "found/models.xml").getroot().iter("property")
    assert {each.get("name"): each.get("value") for each in properties}["distinct"] == "40"


def test_a_counterexample_is_kept(project: Path) -> None:
    """Exit code 1; the steps as JSON, and a test that fails until the world is mended."""
    put(project, BROKEN)
    done = run(project)
    assert done.returncode == 1, done.stdout + done.stderr
    name = "models_notes_py_Notes"
    assert found(project) == {"models.xml", f"{name}.json", f"test_{name}.py"} and reported(project) == {"Notes": False}
    told = json.loads((project / f"found/{name}.json").read_text(encoding="utf-8"))
    assert told["verdict"] == "violated" and told["trace"] == ["ask", "prepare", "commit", "write"]
    (project / "replay.sh").write_text("pytest -q found\n", encoding="utf-8")
    assert "1 failed" in run(project, "replay.sh").stdout
    (project / "models/notes.py").write_text(WORLD, encoding="utf-8")
    assert "1 passed" in run(project, "replay.sh").stdout


def test_the_size_that_fails_is_the_one_that_is_told(project: Path) -> None:
    """Of two sizes one breaks: its parameter is given on."""
    rule = "return self.committed in (None, self.notes)"
    put(project, SIZED.replace(rule, f"{rule} and self.notes < 3"))
    done = run(project)
    assert done.returncode == 1, done.stdout + done.stderr
    assert reported(project) == {"Notes": False, "Notes[most=2]": True}
    put(project, SIZED.replace(rule, f"{rule} and (self.most == 3 or self.notes < 2)"))
    done = run(project)
    assert done.returncode == 1 and reported(project) == {"Notes": True, "Notes[most=2]": False}, done.stdout
    (told,) = (project / "found").glob("*.json")
    assert json.loads(told.read_text(encoding="utf-8"))["params"] == {"most": "2"}, told.name


@pytest.mark.parametrize(("limit", "says"), [("states=1000000", "states=9"), ("seconds=300", "seconds=0")])
def test_a_limit_that_is_reached_fails(project: Path, limit: str, says: str) -> None:
    """Not finished is not *holds*, and there is no counterexample to keep."""
    script = RECIPE[SCRIPT]
    assert script.count(limit) == 1
    (project / SCRIPT).write_text(script.replace(limit, says), encoding="utf-8")
    done = run(project)
    assert done.returncode == 1, done.stdout + done.stderr
    assert found(project) == {"models.xml", "models_notes_py_Notes.json"}
    told = json.loads((project / "found/models_notes_py_Notes.json").read_text(encoding="utf-8"))
    assert told["verdict"] == "not_finished"


@pytest.mark.parametrize(
    ("text", "code"), [("from statecore import nothing_of_this_name\n", 2), ("from statecore import World\n", 5)]
)
def test_where_nothing_was_checked_nothing_passes(project: Path, text: str, code: int) -> None:
    """A file that cannot be imported, and a directory without any world."""
    put(project, text)
    done = run(project)
    assert done.returncode == code, done.stdout + done.stderr
