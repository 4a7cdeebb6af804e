"""`statecore demo --break`: each fault that is put back on purpose shows, and says which invariant is broken."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
import trio
from attrs import evolve

from participants.demo.broken_servers import BROKEN
from participants.demo.command import register
from participants.demo.counting import Numbers, Verdict
from participants.demo.faults import FAULTS, Fault, broken_plan
from participants.demo.plan import Options, make_plan
from participants.demo.servers import MODULES
from statecore.cli import UsageError
from tests.demo_world import tell_in_memory

PAGES = Path(__file__).parents[1] / "docs" / "reference"
SMALL = Options(rollouts=8, turns=4)
NOTHING = Verdict(numbers=Numbers((), (), ()), differences={})


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_that_is_put_back_shows(fault: Fault) -> None:
    """The last line has the harm in counts and the number of the invariant."""
    verdict = tell_in_memory(broken_plan(fault, SMALL)).ending.verdict
    assert re.match(
        rf"{fault.number}, put back on purpose, shows: .*\d+.*; against {fault.invariants[0]}\b", fault.line(verdict)
    ), fault.line(verdict)
    assert fault.harm(verdict)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_same_job_without_the_fault_shows_nothing(fault: Fault) -> None:
    """It is the fault that shows, and not how its job is cut."""
    verdict = tell_in_memory(evolve(broken_plan(fault, SMALL), fault="")).ending.verdict
    assert verdict.good, verdict.line()
    assert fault.harm(verdict) == ""


def test_what_does_not_show_is_said() -> None:
    """No fault claims harm that the verdict does not have."""
    for fault in FAULTS.values():
        assert fault.line(NOTHING).startswith(f"{fault.number}, put back on purpose, did not show: ")


def test_scenarios_and_invariants_are_those_of_the_reference() -> None:
    """Each number is on the page that it is looked up on; each broken server is one of the five."""
    scenarios, invariants = ((PAGES / name).read_text() for name in ("scenarios.md", "invariants.md"))
    for fault in FAULTS.values():
        assert f"| {fault.number} |" in scenarios
        for each in fault.invariants:
            assert f"| {each} |" in invariants
    assert {number for number, _ in BROKEN} <= set(FAULTS)
    assert {server for _, server in BROKEN} <= set(MODULES)


def test_a_plan_is_whole_without_the_option() -> None:
    """Nothing is broken unless somebody asks for it."""
    assert make_plan(Options()).fault == ""


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="statecore")
    register(parser.add_subparsers())
    return parser.parse_args(["demo", *arguments])


def test_the_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    """`--break list`: number and what is taken out, a line each, and nothing is started."""
    args = parsed("--break", "list")
    assert args.run(args) == 0
    said = capsys.readouterr().out.splitlines()
    assert [each.split()[0] for each in said] == list(FAULTS)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--break", "S999"), "--break S999: one of S15, S21"),
        (("--break", "s21"), "--break s21: one of"),
        (("--break", "S21", "--kill", "agent"), "leave --kill and --when out"),
        (("--break", "S21", "--when", "idle"), "leave --kill and --when out"),
        (("--break", "S21", "--rollouts", "0"), "--rollouts 0"),
    ],
)
def test_a_command_line_that_cannot_be_is_refused(arguments: tuple[str, ...], told: str) -> None:
    """Before anything is started."""
    args = parsed(*arguments)
    with pytest.raises(UsageError, match=re.escape(told)):
        args.run(args)


@pytest.mark.parametrize("shows", [True, False])
def test_the_exit_code_says_whether_it_shows(
    shows: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """1 when the fault shows, 0 when it does not; the last line is the fault's."""
    numbers = Numbers((("r", 1),), (), ()) if shows else Numbers((), (), ())

    class Ended:
        verdict = evolve(NOTHING, numbers=numbers)

    monkeypatch.setattr(trio, "run", lambda *_arguments: Ended())
    args = parsed("--break", "S15", "--dir", str(tmp_path / "files"))
    assert args.run(args) == (1 if shows else 0)
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith(f"S15, put back on purpose, {'shows' if shows else 'did not show'}: ")
