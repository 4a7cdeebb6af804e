"""pytest collects worlds that ask for it, and only those; once each; and JUnit's report has them."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

MODEL = '''
from statecore import World, action, always, param, sometimes, slot


class Walk(World):
    """A walker on a ring."""

    pytest_sizes = ({"end": 3}, {"end": 5})
    end = param(3)
    at = slot(0)

    @action
    def walk(self):
        self.at = (self.at + 1) % self.end

    @always
    def near(self):
        return self.at < self.end


class TooFar(Walk):
    @always
    def near(self):
        return self.at < 4


class Base(Walk):
    __test__ = False


class Abstract(World):
    pass
'''
SIZES = '({"end": 3}, {"end": 5})'


def run(directory: Path, *arguments: str, cached: bool = False) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-v", "-p", "statecore.pytest_plugin"]
    command += [] if cached else ["-p", "no:cacheprovider"]
    command += ["--import-mode=importlib", "-W", "error", f"--rootdir={directory}", *arguments]
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=60, check=False)


def outcomes(done: subprocess.CompletedProcess[str]) -> list[str]:
    """`file::name OUTCOME` of each test, in order."""
    lines = [line for line in done.stdout.splitlines() if "::" in line and line.endswith("%]")]
    return [line.split(" [")[0].rstrip() for line in lines]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\nstatecore_worlds = models/*.py\n")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "ring.py").write_text(MODEL)
    return tmp_path


def test_worlds_of_matching_files_are_tests(project: Path) -> None:
    """`pytest models/`: one test for each world and size; a failure is the story, with no traceback; JUnit has all."""
    done = run(project, "models", "--junit-xml=out.xml")
    assert done.returncode == 1, done.stdout + done.stderr
    assert outcomes(done) == [
        "models/ring.py::Walk[end=3] PASSED",
        "models/ring.py::Walk[end=5] PASSED",
        "models/ring.py::TooFar[end=3] PASSED",
        "models/ring.py::TooFar[end=5] FAILED",
    ]
    assert "near is broken by:\nTooFar(end=5): violated;" in done.stdout
    assert "   4  walk: at = 4" in done.stdout and "Traceback" not in done.stdout and "runtest" not in done.stdout
    suite = ElementTree.parse(project / "out.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "1", "0")
    cases = list(suite.iter("testcase"))
    assert (cases[1].get("classname"), cases[1].get("name")) == ("models.ring", "Walk[end=5]")
    found = {each.get("name"): each.get("value") for each in cases[1].iter("property")}
    assert found == {"verdict": "holds", "distinct": "5", "generated": "6", "depth": "5"}
    assert "walk: at = 4" in (cases[3][1].text or "")


def test_one_world_is_picked_and_nothing_is_collected_twice(project: Path) -> None:
    """By file, by name, by -k; a file that is named itself, or is a module of tests too, has each world once."""
    assert len(outcomes(run(project, "models/ring.py"))) == 4
    assert outcomes(run(project, "models/ring.py::Walk[end=5]")) == ["models/ring.py::Walk[end=5] PASSED"]
    both = MODEL.replace("pytest_sizes", "__test__ = True\n    pytest_sizes") + "\n\ndef test_plain():\n    pass\n"
    (project / "models" / "ring.py").unlink()
    (project / "models" / "test_ring.py").write_text(both)
    names = outcomes(run(project, "-k", "Walk or plain"))
    assert sorted(names) == [
        "models/test_ring.py::Walk[end=3] PASSED",
        "models/test_ring.py::Walk[end=5] PASSED",
        "models/test_ring.py::test_plain PASSED",
    ]


def test_the_size_that_failed_is_run_again_alone(project: Path) -> None:
    """`--last-failed` knows a world by its size, too."""
    assert len(outcomes(run(project, "models", cached=True))) == 4
    assert outcomes(run(project, "models", "--last-failed", cached=True)) == ["models/ring.py::TooFar[end=5] FAILED"]


def test_elsewhere_only_what_says_so_itself_is_collected(tmp_path: Path) -> None:
    """Worlds in modules of tests are left alone, `Test...` by name or not, inherited or imported, unless one asks."""
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (tmp_path / "ring.py").write_text(MODEL.replace("pytest_sizes", "__test__ = True\n    pytest_sizes"))
    (tmp_path / "test_it.py").write_text(
        "from ring import Walk\n"
        "class TestRing(Walk):\n    pass\n"
        "class Asked(Walk):\n    __test__ = True\n    pytest_sizes = ({'end': 2},)\n"
        "class Twin(Asked):\n    pass\n"
        "def test_plain():\n    assert Walk\n"
    )
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(outcomes(done)) == ["test_it.py::Asked[end=2] PASSED", "test_it.py::test_plain PASSED"]


def test_what_is_not_shown_fails(project: Path) -> None:
    """A limit of the ini file, vacuity, and a world that cannot be explored: each says why."""
    (project / "models" / "ring.py").write_text(
        MODEL.replace(SIZES, '({"end": 3}, {"ende": 5}, {"end": 900})').replace("at < 4", "at < 999")
        + "class Vacuous(Walk):\n    pytest_sizes = ({},)\n    @sometimes\n    def far(self):\n        return False\n"
        + "class Buggy(Vacuous):\n    @always\n    def near(self):\n        return 1 // self.at\n"
    )
    ini = project / "pytest.ini"
    ini.write_text(ini.read_text() + "statecore_max_states = 300\nstatecore_max_seconds = 60\n")
    done = run(project, "models", "-k", "not TooFar")
    assert [line.split("::")[1] for line in outcomes(done)] == [
        "Walk[end=3] PASSED",
        "Walk[ende=5] FAILED",
        "Walk[end=900] FAILED",
        "Vacuous FAILED",
        "Buggy FAILED",
    ]
    assert "Walk has no parameter 'ende' (it has: end)" in done.stdout
    assert "Walk(end=900): not finished;" in done.stdout and "stopped at the limit of 300 states" in done.stdout
    assert "sometimes far: never seen" in done.stdout
    assert "ZeroDivisionError" in done.stdout and "return 1 // self.at" in done.stdout


@pytest.mark.parametrize(
    ("model", "ini", "says"),
    [
        (MODEL.replace(SIZES, "3"), "", "Walk.pytest_sizes is 3; give a tuple of dicts"),
        (MODEL.replace(SIZES, "()"), "", "Walk.pytest_sizes is (); give a tuple of dicts"),
        ("import no_such_module\n", "", "No module named 'no_such_module'"),
        (MODEL, "statecore_max_states = many\n", "statecore_max_states = many: give a number"),
    ],
)
def test_mistakes_are_named(project: Path, model: str, ini: str, says: str) -> None:
    """In sizes, in imports, in limits: an error, and never a pass."""
    (project / "models" / "ring.py").write_text(model)
    (project / "pytest.ini").write_text((project / "pytest.ini").read_text() + ini)
    done = run(project, "models")
    assert done.returncode != 0
    assert says in done.stdout + done.stderr


def test_it_is_registered_by_its_entry_point() -> None:
    """Under the module's own name, so that `-p` and the entry point are one plugin."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"statecore.pytest_plugin": "statecore.pytest_plugin"}
