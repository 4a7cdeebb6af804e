"""What is made of a counterexample: text, JSON, a sequence diagram, and a test that fails in the same way."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from models.two_phase_commit import AbortsAfterPrepare, TwoPhaseCommit
from statecore import DefinitionError, InvariantBroken, World, action, check, param, slot
from statecore.cli import main
from statecore.properties import always
from statecore.retrace import retrace, step_names, world_at, written_test
from statecore.seams import FixedClock
from statecore.sequence import sequence
from statecore.targets import UsageError
from statecore.trace import shown

ROOT = Path(__file__).resolve().parent.parent
Out = pytest.CaptureFixture[str]

WORLDS = '''
from statecore import World, action, param, slot
from statecore.properties import always, eventually, final, leads_to, recoverable


class Walk(World):
    end = param(3)
    at = slot(0)

    @action(fair=True, by="walker")
    def walk(self):
        if self.at >= self.end:
            return False
        self.at += 1

    @action(fault=True)
    def fall(self):
        if self.at == 0:
            return False
        self.at = 0


class TooFar(Walk):
    @always(covers="I1")
    def near(self):
        return self.at < 3


class Jumps(Walk):
    @action(over=("up", "down"))
    def jump(self, where):
        if self.at == 2 and where == "down":
            self.fail("I2")
        return False


class Stops(Walk):
    fall = None


class NoWayBack(Walk):
    @recoverable
    def home(self):
        return self.at == 0


class NeverArrives(Walk):
    @eventually
    def arrives(self):
        return self.at == self.end


class NeverComesBack(Walk):
    @action
    def stand(self):
        pass

    @leads_to(lambda w: w.at == 0)
    def comes_back(self):
        return self.at == self.end
'''
BREAKS = {
    "TooFar": ("near", None),
    "Jumps": ("I2", None),
    "Stops": ("deadlock", None),
    "NoWayBack": ("home", None),
    "NeverArrives": ("arrives", 0),
    "NeverComesBack": ("comes_back", 3),
}


@pytest.fixture
def worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "models" / "walks.py"
    path.parent.mkdir()
    path.write_text(WORLDS)
    return path


def run_pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={directory}", *arguments]
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=60, check=False)


# --- the written test


def test_the_written_test_fails_as_the_check_did_and_passes_when_the_world_is_mended(
    worlds: Path, capsys: Out
) -> None:
    """Every kind of violation: safety, a step that fails, deadlock, recoverable, and both kinds of liveness."""
    out = worlds.parent.parent / "test_found.py"
    assert main(["check", str(worlds), "--pytest", str(out)]) == 4  # Walk itself declares nothing: vacuous, and first
    assert capsys.readouterr().err == f"statecore: {out} is written\n"
    done = run_pytest(out.parent, "test_found.py")
    assert done.returncode == 1, done.stdout + done.stderr
    for world, (name, _) in BREAKS.items():
        assert f"FAILED test_found.py::test_{world}_{name} - " in done.stdout
        assert re.search(rf"InvariantBroken: {name} is broken by:\nE +{world}\(end=3\):", done.stdout)
    assert "6 failed" in done.stdout

    mended = WORLDS.replace("self.at < 3", "True").replace('self.fail("I2")', "pass").replace("fall = None", "pass")
    mended = mended.replace("return self.at == 0\n", "return True\n").replace("w.at == 0", "True")
    worlds.write_text(mended.replace("return self.at == self.end\n\n\nclass", "return True\n\n\nclass"))
    done = run_pytest(out.parent, "test_found.py")
    assert "6 passed" in done.stdout, done.stdout


def test_the_written_test_is_clean_python(worlds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the file relative to itself, its steps and the story in comments, and only parameters that were set."""
    world = world_at(worlds, "TooFar")
    report = check(world, end=4)
    assert written_test(str(worlds), [(world, report)], worlds.parent / "test_out.py").splitlines() == [
        '"""Counterexamples of `statecore check`, replayed: a test fails as long as its steps break the property."""',
        "",
        "from pathlib import Path",
        "",
        "from statecore.retrace import retrace, world_at",
        "",
        "",
        "def test_TooFar_near() -> None:",
        "    # near (I1) is broken after 3 steps, and no fewer:",
        "    #    0  start: at = 0",
        "    #    1  walk: at = 1",
        "    #    2  walk: at = 2",
        "    #    3  walk: at = 3",
        "    retrace(",
        '        world_at(Path(__file__).parent / "walks.py", "TooFar"),',
        "        [",
        '            "walk",',
        '            "walk",',
        '            "walk",',
        "        ],",
        '        breaks="near",',
        "        params={'end': 4},",
        "    )",
    ]
    assert "world_at(\"models.two_phase_commit\", \"AbortsAfterPrepare\")" in written_test(
        "models.two_phase_commit", [(AbortsAfterPrepare, check(AbortsAfterPrepare))], Path("test_out.py")
    )


def test_a_module_can_be_replayed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`package.module:World` as the target: nine steps of two-phase commit, executed as a test of its own."""
    monkeypatch.chdir(ROOT)
    out = tmp_path / "test_out.py"
    assert main(["check", "models.two_phase_commit:AbortsAfterPrepare", "--pytest", str(out)]) == 1
    done = run_pytest(tmp_path, "test_out.py")
    assert "InvariantBroken: consistent is broken by:" in done.stdout and "1 failed" in done.stdout


def test_without_a_counterexample_nothing_is_written(worlds: Path, capsys: Out, monkeypatch: Any) -> None:
    """And a file from before is left as it is."""
    monkeypatch.chdir(ROOT)
    out = worlds.parent / "test_out.py"
    out.write_text("mine")
    assert main(["check", "models/two_phase_commit.py:TwoPhaseCommit", "--pytest", str(out)]) == 0
    assert "is not written: no counterexample" in capsys.readouterr().err
    assert out.read_text() == "mine"


@pytest.mark.parametrize("out", ["none/test_out.py", "test_out.txt", "", "."])
def test_a_place_that_cannot_be_written_is_said_at_once(worlds: Path, out: str, capsys: Out) -> None:
    """Exit code 2, before anything is explored."""
    assert main(["check", str(worlds), "--pytest", str(worlds.parent / out)]) == 2
    assert "name a .py file in a directory that is there" in capsys.readouterr().err


def test_a_parameter_that_is_no_literal_cannot_be_written(worlds: Path) -> None:
    """It is named; nothing wrong is written in its place."""

    class Odd(World):
        limit: Any = param(None)
        at: int = slot(0)

        @action
        def move(self) -> None:
            self.at = 1

        @always
        def still(self) -> bool:
            return self.at == 0

    report = check(Odd, limit=object)
    with pytest.raises(UsageError, match=r"parameter limit=<class 'object'> cannot be written down as a literal"):
        written_test("somewhere", [(Odd, report)], Path("test_out.py"))


def test_a_written_test_that_says_nothing_any_more_is_an_error(worlds: Path) -> None:
    """A step, a property or a file that is gone: written anew or deleted, but never passed by."""
    world = world_at(worlds, "TooFar")
    with pytest.raises(DefinitionError, match=r"TooFar has no step 'fly'; check it again and write this test anew"):
        retrace(world, ["walk", "fly"], breaks="near")
    with pytest.raises(DefinitionError, match="TooFar has no property 'far'"):
        retrace(world, ["walk"], breaks="far")
    with pytest.raises(DefinitionError, match="loop=2: there are 1 steps"):
        retrace(world, ["walk"], breaks="near", loop=2)
    with pytest.raises(DefinitionError, match="has no parameter 'n'"):
        retrace(world, [], breaks="near", params={"n": 1})
    with pytest.raises(UsageError, match="has no world 'Nope'"):
        world_at(worlds, "Nope")
    with pytest.raises(UsageError, match="there is no file"):
        world_at(worlds.parent / "gone.py", "TooFar")
    assert retrace(world, ["fall"], breaks="near") is False
    assert retrace(world, ["walk"], breaks="near") is True


@pytest.mark.parametrize("name", BREAKS)
def test_a_retraced_counterexample_tells_the_same_story(worlds: Path, name: str) -> None:
    """Same property, same steps, same values as the check."""
    world = world_at(worlds, name)
    report = check(world)
    broken = report.violation
    assert broken is not None and (broken.name, broken.loop) == BREAKS[name]
    taken = [
        next(key for key, (each, _) in step_names(world()).items() if each == step) for step in broken.steps
    ]  # fmt: skip
    by_step = len(broken.states) == len(broken.steps)
    with pytest.raises(InvariantBroken) as caught:
        retrace(world, taken, breaks=broken.name, loop=broken.loop, by_step=by_step)
    assert caught.value.property_name == broken.name
    assert str(caught.value).splitlines()[2:] == report.story().splitlines()[1:]


def test_a_round_that_is_broken_open_or_unfair_breaks_nothing(worlds: Path) -> None:
    """A lasso counts only if it comes back, never has what must come, and fairness owes it nothing."""
    arrives = world_at(worlds, "NeverArrives")
    assert retrace(arrives, ["walk"], breaks="arrives", loop=0)  # does not come back
    assert retrace(arrives, ["walk"] * 3, breaks="arrives", loop=3)  # has it
    assert retrace(arrives, ["walk"], breaks="arrives", loop=1)  # walking is fair, and enabled for ever
    back = world_at(worlds, "NeverComesBack")
    assert retrace(back, ["stand"], breaks="comes_back", loop=0)  # what it answers never was


def test_steps_have_one_name_in_every_run() -> None:
    """Sets in a steady order, texts in quotes, and equal names told apart."""

    @frozen
    class Twin:
        def __repr__(self) -> str:
            return "twin"

    class Many(World):
        at: int = slot(0)

        @action(over=(1, "1", frozenset({"b", "a"}), Twin(), Twin()))
        def take(self, what: object) -> None:
            self.at = 1

    assert list(step_names(Many())) == ["take(1)", "take('1')", "take({'a', 'b'})", "take(twin)", "take(twin) #2"]


# --- the sequence diagram


def told(name: str, worlds: Path, **params: Any) -> str:
    world = world_at(worlds, name)
    return sequence(world, check(world, **params))


def test_a_diagram_shows_who_acts_and_what_changes(worlds: Path) -> None:
    """A declared actor has a lifeline; an action without one is drawn at the first slot that it changes."""
    assert told("NoWayBack", worlds).splitlines() == [
        "sequenceDiagram",
        "    participant p0 as walker",
        "    participant p1 as at",
        "    Note over p1: 0",
        "    Note over p0: 1. walk",
        "    p0->>p1: at = 1",
        "    Note over p0,p1: home is broken",
    ]
    assert told("Stops", worlds, end=0).splitlines() == [
        "sequenceDiagram",
        "    participant p0 as at",
        "    Note over p0: 0",
        "    Note over p0: deadlock is broken",
    ]
    assert sequence(TwoPhaseCommit, check(TwoPhaseCommit)) == ""


def test_a_diagram_shows_loops_and_faults(worlds: Path) -> None:
    """What goes round for ever stands in a loop, faults are crossed arrows, a step that fails is only noted."""
    assert told("NeverArrives", worlds).splitlines()[4:] == [
        "    loop for ever",
        "    Note over p0: 1. walk",
        "    p0->>p1: at = 1",
        "    Note over p1: 2. fall [fault]",
        "    p1-xp1: at = 0",
        "    end",
        "    Note over p0,p1: arrives never comes",
    ]
    assert told("NeverComesBack", worlds).splitlines()[-2:] == [
        "    Note over p0,p1: for ever: nothing happens any more",
        "    Note over p0,p1: comes_back never comes",
    ]
    assert "    Note over p0,p1: 3. jump(down)" in told("Jumps", worlds).splitlines()


def test_a_diagram_holds_no_text_that_mermaid_reads_as_syntax() -> None:
    """Semicolons, hashes, angle brackets and line ends are escaped; long values are cut."""

    class Texts(World):
        said: str = slot("")

        @action(over=("a;b#c<d>\n", "x" * 200))
        def say(self, what: str) -> None:
            self.said = what

        @always
        def end(self) -> bool:
            return not self.said

    text = sequence(Texts, check(Texts))
    assert "Note over p0: 1. say(a#59;b#35;c#lt;d#gt;\\n)" in text
    assert text.splitlines()[-1] == "    Note over p0: (end) is broken"

    class Long(Texts):
        @action(over=("x" * 200,))
        def say(self, what: str) -> None:
            self.said = what

    assert max(map(len, sequence(Long, check(Long)).splitlines())) < 100


def test_the_command_prints_diagrams_alone(worlds: Path, capsys: Out) -> None:
    """Standard output is what a diagram's file holds; the story goes to standard error; not together with --json."""
    assert main(["check", f"{worlds}:TooFar", "--mermaid"]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("sequenceDiagram\n")
    assert captured.err.startswith("TooFar(end=3): violated;")
    with pytest.raises(SystemExit, match="2"):
        main(["check", str(worlds), "--mermaid", "--json"])


# --- JSON


def test_the_json_is_complete_and_stable(worlds: Path) -> None:
    """All of a report, with its format number; what is pinned here is what a reader may rely on."""
    value = check(world_at(worlds, "NeverArrives"), clock=FixedClock(0.0)).to_json()
    expected = {
        "format": 1,
        "world": "NeverArrives",
        "params": {"end": "3"},
        "verdict": "violated",
        "distinct": 4,
        "generated": 7,
        "depth": 4,
        "seconds": 0.0,
        "limit": None,
        "unseen": [],
        "never_fired": [],
        "unchecked": [],
        "checked": ["arrives"],
        "fired": {"walk": 3, "fall": 3},
        "violation": {"property": "arrives", "covers": []},
        "trace": ["walk", "fall"],
        "start": {"at": "0"},
        "steps": [
            {"number": 1, "label": "walk", "action": "walk", "args": [], "fault": False, "changes": {"at": "1"}},
            {"number": 2, "label": "fall", "action": "fall", "args": [], "fault": True, "changes": {"at": "0"}},
        ],
        "loop": 0,
    }
    assert expected.items() <= json.loads(json.dumps(value)).items()
    jumps = check(world_at(worlds, "Jumps")).to_json()
    assert (jumps["steps"][-1]["args"], jumps["steps"][-1]["changes"]) == (["'down'"], None)
    holds = check(TwoPhaseCommit).to_json()
    assert (holds["violation"], holds["start"], holds["steps"], holds["loop"]) == (None, None, [], None)


def test_values_are_shown_the_same_in_every_run() -> None:
    """Sets inside of values too; what has a text of its own keeps it."""

    @frozen
    class Box:
        held: frozenset[str]

    @frozen
    class Named:
        name: str

        def __repr__(self) -> str:
            return f"<{self.name}>"

    assert shown(Box(frozenset({"b", "a"}))) == "Box(held={'a', 'b'})"
    assert shown((Named("x"), Box(frozenset()))) == "(<x>, Box(held={}))"
