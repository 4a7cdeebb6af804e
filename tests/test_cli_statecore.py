"""The command line: check and diagram, found files and names, exit codes, and commands that others register."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint, PathDistribution
from pathlib import Path
from typing import Any

import pytest

import statecore
from statecore import cli
from statecore.cli import EXIT_CODES, main
from statecore.explore import Verdict

WORLD = """
from statecore import World, action, always, param, slot
from statecore.properties import sometimes, final
from tests.sample_tables import LAMP as IMPORTED

class Walk(World):
    end: int = param(3)
    at: int = slot(0)

    @action
    def walk(self):
        self.at += 1
        return self.at <= self.end

    @always
    def on_the_line(self):
        return self.at <= 3

    @final
    def home(self):
        return self.at == self.end

class Abstract(World):
    pass
"""

Out = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user stands in the repository."""
    monkeypatch.chdir(Path(__file__).parent.parent)


@pytest.fixture
def world(tmp_path: Path) -> str:
    path = tmp_path / "walking.py"
    path.write_text(WORLD)
    return str(path)


def test_check_says_holds_with_exit_code_0(world: str, capsys: Out) -> None:
    """Without a name every world of the file is checked, and nothing that it only imports."""
    assert main(["check", world]) == 0
    assert capsys.readouterr().out.startswith("Walk(end=3): holds; 4 distinct states, 4 generated, depth 4,")


def test_parameters_are_set_and_a_violation_has_exit_code_1(world: str, capsys: Out) -> None:
    """--set gives a parameter of the world; the shortest trace is printed."""
    assert main(["check", f"{world}:Walk", "--set", "end=5"]) == EXIT_CODES[Verdict.VIOLATED] == 1
    out = capsys.readouterr().out
    assert "Walk(end=5): violated;" in out
    assert "  on_the_line is broken after 4 steps, and no fewer:" in out


def test_not_finished_and_vacuous_have_codes_of_their_own(world: str, tmp_path: Path, capsys: Out) -> None:
    """Four verdicts, four codes, and none of them is that of a wrong command line."""
    assert main(["check", world, "--max-states", "2"]) == EXIT_CODES[Verdict.NOT_FINISHED]
    assert main(["check", world, "--max-depth", "2"]) == EXIT_CODES[Verdict.NOT_FINISHED]
    assert main(["check", world, "--max-seconds", "0"]) == EXIT_CODES[Verdict.NOT_FINISHED]
    vacuous = tmp_path / "vacuous.py"
    vacuous.write_text(WORLD.replace("@always", "@sometimes").replace("self.at <= 3", "self.at > 9"))
    assert main(["check", str(vacuous)]) == EXIT_CODES[Verdict.VACUOUS]
    assert "sometimes on_the_line: never seen" in capsys.readouterr().out
    assert len({*EXIT_CODES.values(), 2}) == 5


def test_several_worlds_are_all_checked_and_the_first_failure_decides(capsys: Out) -> None:
    """A model with its failing twin: both are reported."""
    assert main(["check", "models/two_phase_commit.py"]) == 1
    out = capsys.readouterr().out
    assert "TwoPhaseCommit(n=3): holds; 288 distinct states, 1,146 generated, depth 11" in out
    assert "AbortsAfterPrepare(n=3): violated" in out


def test_a_module_can_be_named_instead_of_a_file(capsys: Out) -> None:
    """package.module:World, importable from the current directory."""
    assert main(["check", "models.two_phase_commit:TwoPhaseCommit", "--json", "--set", "n=3"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["verdict"], value["distinct"], value["params"]) == ("holds", 288, {"n": "3"})


def test_diagram_draws_every_table_or_one(capsys: Out) -> None:
    """A page, the grid alone, or the Mermaid diagram alone."""
    assert main(["diagram", "models/two_phase_commit.py"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("## resource manager\n\n| event |")
    assert "\n## transaction manager\n" in out
    assert main(["diagram", "models/two_phase_commit.py:TRANSACTION", "--grid"]) == 0
    assert capsys.readouterr().out.startswith("| event | open (start) |")
    assert main(["diagram", "models.two_phase_commit:TRANSACTION", "--mermaid"]) == 0
    assert capsys.readouterr().out.startswith('---\ntitle: "transaction manager"\n---\nstateDiagram-v2\n')


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["check", "none.py"], "there is no file none.py"),
        (["check", "no.such.module"], "cannot import no.such.module"),
        (["check", "models/two_phase_commit.py:Nope"], "has no world 'Nope'"),
        (["check", "models/two_phase_commit.py:MANAGER"], "has no world 'MANAGER'"),
        (["check", "tests/sample_tables.py"], "defines no world"),
        (["check", "models/two_phase_commit.py", "--set", "m=3"], "has no parameter 'm' (it has: n)"),
        (["check", "models/two_phase_commit.py", "--set", "n"], "--set n: write NAME=VALUE"),
        (["diagram", "models/two_phase_commit.py:TwoPhaseCommit"], "has no table 'TwoPhaseCommit'"),
        (["diagram", "tests/test_cli_statecore.py"], "defines no table"),
    ],
)
def test_what_is_not_there_is_said_with_exit_code_2(args: list[str], says: str, capsys: Out) -> None:
    """One line on standard error, and nothing on standard output."""
    assert main(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("statecore: ") and says in captured.err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = (", "SyntaxError: '(' was never closed"),
        ("import nowhere_at_all", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        (
            "from statecore import *\nfrom enum import Enum\nS = Enum('S', 'A B')\n"
            "Table('odd', initial=S.A, cells={S.A: {int: go(S.B)}})",
            "DefinitionError: table 'odd': state S.B has no row",
        ),
    ],
)
def test_a_file_that_cannot_be_loaded_is_no_violation(text: str, says: str, tmp_path: Path, capsys: Out) -> None:
    """Exit code 2 and one line that says what is wrong in it; 1 is for a world that does not hold."""
    path = tmp_path / "wrong.py"
    path.write_text(text)
    assert main(["check", str(path)]) == 2
    assert f"statecore: {path} cannot be loaded: {says}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "args", [[], ["fly"], ["check"], ["check", "x.py", "y.py"], ["check", "x.py", "--max-states", "many"]]
)
def test_a_wrong_command_line_exits_with_2(args: list[str], capsys: Out) -> None:
    """As argparse does everywhere."""
    with pytest.raises(SystemExit) as caught:
        main(args)
    assert caught.value.code == 2
    assert "usage: statecore" in capsys.readouterr().err


def test_version(capsys: Out) -> None:
    """--version prints it."""
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"statecore {statecore.__version__}\n"


def greet(subparsers: Any) -> None:
    """A command as another package registers it."""
    parser: argparse.ArgumentParser = subparsers.add_parser("greet", help="says hello")
    parser.add_argument("name")

    def run(args: argparse.Namespace) -> int:
        print(f"hello {args.name}")
        return 7

    parser.set_defaults(run=run)


def test_other_packages_register_commands(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    """An entry of the group adds a parser and a function whose result is the exit code."""
    entry = EntryPoint("greet", f"{__name__}:greet", cli.GROUP)
    monkeypatch.setitem(sys.modules, __name__, sys.modules[greet.__module__])
    monkeypatch.setattr(cli, "entry_points", lambda group: [entry] if group == "statecore.commands" else [])
    assert main(["greet", "you"]) == 7
    assert capsys.readouterr().out == "hello you\n"


@pytest.mark.parametrize("many", [False, True])
def test_an_interrupt_is_one_line(many: bool, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    """Whatever a command was doing, also in a nursery: exit code 130; beside another exception, that one comes out."""

    def interrupted(args: argparse.Namespace) -> int:
        raise BaseExceptionGroup("a nursery's", [KeyboardInterrupt()]) if many else KeyboardInterrupt

    monkeypatch.setattr(cli, "_check", interrupted)
    assert main(["check", "x.py"]) == 130
    assert capsys.readouterr() == ("", "statecore: interrupted\n")

    def broken(args: argparse.Namespace) -> int:
        raise BaseExceptionGroup("a nursery's", [KeyboardInterrupt(), KeyError("a bug")])

    monkeypatch.setattr(cli, "_check", broken)
    with pytest.raises(BaseExceptionGroup):
        main(["check", "x.py"])


@pytest.mark.parametrize("args", [["diagram", "tests.sample_tables"], ["check", "--help"], ["simulate", "--seed", "3"]])
def test_a_reader_who_has_gone_is_no_mistake(args: list[str]) -> None:
    """Its output piped into `head`, a command ends as if by SIGPIPE, without a word."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "statecore.cli", *args]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[1],
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("grouped", [False, True])
def test_another_pipe_that_is_broken_is_a_mistake(grouped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output is read; what broke is a socket, say, or a child's input."""

    def broken(args: argparse.Namespace) -> int:
        error = BrokenPipeError(32, "a child's input")
        raise BaseExceptionGroup("a nursery's", [error]) if grouped else error

    monkeypatch.setattr(cli, "_check", broken)
    with pytest.raises(BaseExceptionGroup if grouped else BrokenPipeError):
        main(["check", "x.py"])


def test_a_command_that_cannot_be_imported_says_why(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    """It is listed and does not take the others down with it."""
    broken = [EntryPoint("gone", "no_such_package.command:register", cli.GROUP)]
    broken += [EntryPoint("empty", "statecore.cli:no_such_function", cli.GROUP)]
    monkeypatch.setattr(cli, "entry_points", lambda group: broken)
    assert main(["gone", "--with", "anything"]) == 2
    assert "statecore: gone is not available: No module named 'no_such_package'" in capsys.readouterr().err
    assert main(["empty"]) == 2
    assert main(["diagram", "models/two_phase_commit.py", "--grid"]) == 0
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "gone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "missing", "mend"),
    [
        ("demo", "gymnasium", " (pip install 'thing[demo]')"),
        ("report", "Fancy_Print.table", " (pip install 'thing[cli]')"),
        ("demo", "six", ""),
        ("demo", "attrs", ""),
    ],
)
def test_a_command_without_its_extra_names_it(
    command: str, missing: str, mend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    """What is missing is looked up among the extras of the command's own distribution, the one of its name first."""
    (tmp_path / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: thing\nVersion: 1\nRequires-Dist: attrs>=23.2\n"
        "Requires-Dist: gymnasium<1.5,>=1.4; extra == 'demo'\nRequires-Dist: gymnasium>=1.4 ; extra == \"all\"\n"
        "Requires-Dist: fancy-print; extra == 'cli'\n"
    )

    class Entry:
        name = command
        dist = PathDistribution(tmp_path)

        def load(self) -> object:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(cli, "entry_points", lambda group: [Entry()])
    assert main([command]) == 2
    assert capsys.readouterr().err == f"statecore: {command} is not available: No module named {missing!r}{mend}\n"


def test_the_public_names_are_all_there() -> None:
    """Everything in __all__ can be imported from statecore, what is heavy when it is first asked for."""
    for name in statecore.__all__:
        assert getattr(statecore, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        statecore.nothing  # noqa: B018


BUGGY = '''
from statecore import World, action, always, recoverable, eventually, slot

def deeper(world):
    return 1 // (world.at - 2)

class Buggy(World):
    at = slot(0)

    @action(fair=True)
    def walk(self):
        self.at = (self.at + 1) % 4

    @always
    def fine(self):
        return True
'''
WALK = "        self.at = (self.at + 1) % 4\n"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (WALK, f"        deeper(self)\n{WALK}", "in action walk of Buggy, in the state at = 2"),
        ("return True", "return deeper(self) < 9", "in property 'fine' of Buggy, in the state at = 2"),
        ("@always", "@recoverable", "in property 'fine' of Buggy, in the state at = 2"),
        ("@always", "@eventually", "in property 'fine' of Buggy, in the state at = 2"),
        ("slot(0)", "slot(make=lambda world: 1 // 0)", "in what slot 'at' of Buggy begins with"),
        ("fair=True", "over=lambda world: (1 // 0,)", "in over= of action walk of Buggy"),
    ],
)
def test_an_exception_in_a_world_is_told_in_few_lines(
    old: str, new: str, says: str, tmp_path: Path, capsys: Out
) -> None:
    """What, where, in which state and in which lines of the user's own file; a code of its own; `check` raises it."""
    path = tmp_path / "buggy.py"
    text = BUGGY.replace(old, new)
    path.write_text(text.replace("return True", "return deeper(self) < 9") if new.startswith("@") else text)
    for engine in ("auto", "fast", "reference"):
        assert main(["check", str(path), "--engine", engine]) == cli.BUG == 5
        captured = capsys.readouterr()
        assert captured.out == ""
        lines = captured.err.splitlines()
        assert lines[0].startswith("statecore: Buggy cannot be explored: ZeroDivisionError: integer division or modulo")
        assert lines[1] == f"  {says}"
        assert all(f'"{path}", line ' in line for line in lines[2:] if line.startswith("  File "))
        assert len(lines) <= 8 and lines[-2].startswith("    ") and "1 // " in captured.err
    module, _ = cli.load_module(str(path))
    with pytest.raises(ZeroDivisionError) as caught:
        statecore.check(module.Buggy)
    assert caught.value.__notes__ == [says]
    assert cli.BUG not in {*EXIT_CODES.values(), 2}


def test_a_world_that_leaves_the_process_does_not_hold(tmp_path: Path, capsys: Out) -> None:
    """Not even with `sys.exit(0)`; and other worlds of the file are checked all the same."""
    path = tmp_path / "buggy.py"
    path.write_text(BUGGY.replace(WALK, f"        raise SystemExit(0)\n{WALK}") + WORLD.replace("param", "param  "))
    assert main(["check", str(path)]) == cli.BUG
    captured = capsys.readouterr()
    assert captured.out.startswith("Walk(end=3): holds;")
    assert captured.err.startswith("statecore: Buggy cannot be explored: SystemExit: 0\n  File ")


def test_a_wrong_declaration_is_one_line(tmp_path: Path, capsys: Out) -> None:
    """A value that cannot be hashed: said with exit code 2, like everything that is declared wrongly."""
    path = tmp_path / "buggy.py"
    path.write_text(BUGGY.replace(WALK, "        self.at = []\n"))
    assert main(["check", str(path)]) == 2
    assert "statecore: slot 'at' holds [], which cannot be hashed" in capsys.readouterr().err


def test_a_mistake_of_our_own_is_no_bug_of_the_world(world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that no file of the user's has a part in comes through as it is."""

    monkeypatch.setattr("statecore.report.verdict", [].pop)
    with pytest.raises(TypeError):
        main(["check", world])


@pytest.mark.parametrize("text", ["x = 1\ny = nothing\n", "import sys\nsys.exit(0)\n", "1 / 0\n"])
def test_a_file_that_raises_is_no_violation_either(text: str, tmp_path: Path, capsys: Out) -> None:
    """Whatever it raises when it is loaded, as a file or as a module: exit code 2, and the line."""
    path = tmp_path / "raises.py"
    path.write_text(text)
    assert main(["check", str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"statecore: {path} cannot be loaded: ")
    assert f'File "{path}", line {len(text.splitlines())}, in <module>' in lines[1]
