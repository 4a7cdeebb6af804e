"""The scenarios that are shown: each has one test named after it, which says what it is about and what it covers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from docs.generators import marks
from tests.mutants import listed

WAITING = {"S5", "S12", "S14", "S27", "S36", "S51"}
"""Scenarios of what is not built yet: several workers, the token store."""

SHOWN = (
    1, 2, 3, 6, 7, 8, 9, 10, 11, 13, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 28, 29, 30, 31, 32, 33, 34, 35,
    37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 52, 53, 55, 57, 59, 60, 61, 62, 63, 64, 65, 66, 67, 69,
)  # fmt: skip
"""Scenarios that went wrong elsewhere: here each first goes wrong in a double, and then does not."""

TEST = re.compile(r"test_s(\d\d)_[a-z0-9_]+\Z")
NUMBER = re.compile(r"S(\d+)[:,]")


def scenario_tests() -> dict[str, str]:
    """The docstrings of all scenario tests, by name."""
    found: dict[str, str] = {}
    for path in sorted(Path(__file__).parent.glob("test_scenarios_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found[node.name] = ast.get_docstring(node) or ""
    return found


def test_every_scenario_that_is_shown_has_one_test_named_after_it() -> None:
    """The list above is exact, in both directions."""
    numbers = [TEST.match(name) for name in scenario_tests()]
    assert all(numbers), scenario_tests().keys()
    assert sorted(int(each[1]) for each in numbers if each is not None) == list(SHOWN)


def test_every_scenario_test_says_its_number_and_what_it_covers() -> None:
    """The docstring begins with the number in the name, and names invariants."""
    for name, docstring in scenario_tests().items():
        said, named = NUMBER.match(docstring), TEST.match(name)
        assert said is not None and named is not None and int(said[1]) == int(named[1]), name
        assert re.search(r"Covers: I\d", docstring), name


def test_every_scenario_test_has_a_double_with_its_fault() -> None:
    """Beside each double, its docstring or a comment says which fault was put in."""
    for path in sorted(Path(__file__).parent.glob("test_scenarios_*.py")):
        text = path.read_text(encoding="utf-8")
        for section in re.split(r"^# --- (?=S)", text, flags=re.MULTILINE)[1:] or [text]:
            assert "The fault" in section, f"{path.name}: {section[:40]}"


def named() -> dict[str, set[str]]:
    """scenario -> the tests of running code that are named after it, as `tests/file.py::name`."""
    found: dict[str, set[str]] = {}
    for suite in ("tests", "stateful_tests"):
        for path in sorted((marks.ROOT / suite).glob("test_*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    for number in marks.scenarios_in(node.name):
                        found.setdefault(number, set()).add(f"{suite}/{path.name}::{node.name}")
    return found


def test_every_scenario_has_a_test_of_the_running_code_named_after_it() -> None:
    """All numbers of the list, but those that wait for what is not built."""
    numbers = set(marks.told()["scenarios"])
    assert numbers - set(named()) == WAITING - set(named())
    assert numbers >= WAITING


def test_every_scenario_is_first_shown_to_go_wrong() -> None:
    """In a double, or by a mutation of the code that a test named after it notices: `make mutations` makes that."""
    tests, doubled = named(), {f"S{number}" for number in SHOWN}
    mutated = {
        number
        for mutation in listed()
        for number in mutation.covers
        if tests.get(number, set()) & {each.partition("[")[0] for each in mutation.fails}
    }
    assert set(marks.told()["scenarios"]) - doubled - mutated == WAITING
