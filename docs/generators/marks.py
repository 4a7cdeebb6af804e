"""The pages of numbered statements, with where each is checked: read from the marks in tests and models.

A mark is `Covers: I24, S9` in a docstring, a docstring that begins with `S9:`, `covers="I24"` at a property of a world,
or a test named `test_s09_...` or `test_s42_s65_...`.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from .conformance import asked

ROOT: Final = Path(__file__).resolve().parents[2]
STATEMENTS: Final = Path(__file__).with_name("statements.toml")
SUITES: Final = {"models": "every reachable state", "stateful_tests": "at random", "tests": "by example"}
_COVERS = re.compile(r"Covers:\s*([^\"]*)", re.DOTALL)
_NUMBER = re.compile(r"\b([IS])(\d+)(?:\s*-\s*[IS]?(\d+))?\b")
_FIRST = re.compile(r"([IS]\d+(?:, [IS]\d+)*):")
_SCENARIOS = re.compile(r"test_((?:s\d\d?_)+)")
_DOUBLE = re.compile(r"The fault[^:]*: ([^.\"]+)")


@cache
def told() -> dict[str, Any]:
    return tomllib.loads(STATEMENTS.read_text(encoding="utf-8"))


def invariants() -> str:
    """The page of invariants."""
    parts = [
        "# Invariants",
        "What must hold, by number; code, tests and models cite these numbers. The columns say where a number is\n"
        "checked, read from the marks in the suites: in *every reachable state* of a small world, *at random* on\n"
        "running code, *by example*; *of a running server* by a [check](conformance.md) that is made over HTTP.\n"
        "**gap**: nothing is marked as checking it. The last column says under which\n"
        "change of the code a check of it fails: `make mutations` makes it and runs the tests; *without* is a rule\n"
        "that a model's failing twin lacks. `make docs` reads the marks again.",
    ]
    checked = 0
    numbers = 0
    for section in told()["invariants"].values():
        rows = [each for each in section if each != "title"]
        numbers += len(rows)
        checked += sum(bool(places().get(each)) for each in rows)
        parts += [f"## {section['title']}", _table(rows, section, shown_to_fail())]
    later = sum(name.startswith("I") and not places().get(name) for name in told()["later"])
    gaps = numbers - checked - later
    parts.insert(2, f"{checked} of {numbers} are checked; {later} wait for what is not built, {gaps} are gaps.")
    return "\n\n".join(parts) + "\n"


def scenarios() -> str:
    """The page of scenarios."""
    rows = list(told()["scenarios"])
    return "\n\n".join([
        "# Scenarios",
        "Ways in which checkpoints of this kind have gone wrong, by number; code and tests cite these numbers, which\n"
        "have holes. What is checked where, and under which change of the code a check fails, is told as on the page\n"
        "of [invariants](invariants.md); *with* is what a double does in whose company a test first goes wrong.",
        _table(rows, told()["scenarios"], shown_to_go_wrong()),
    ]) + "\n"  # fmt: skip


def _table(numbers: list[str], statements: dict[str, str], shown: dict[str, list[str]]) -> str:
    head = ["number", "statement", *SUITES.values(), "of a running server", "fails when"]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for number in numbers:
        found = places().get(number, {})
        cells = [", ".join(map(_link, sorted(found.get(suite, ())))) for suite in SUITES]
        if not found:
            later = told()["later"].get(number)
            cells[0] = "**gap**" if later is None else f"not built: {later}"
        cells.append("[asked](conformance.md)" if number in asked() else "")
        cells.append("; ".join(shown.get(number, ())))
        lines.append(f"| {number} | {statements[number]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def shown_to_fail() -> dict[str, list[str]]:
    """number -> what is changed so that a check of it fails: mutations of the code, and failing twins of models."""
    from models.test_models import MANIFEST, world_of
    from tests.mutants import listed

    found: dict[str, list[str]] = defaultdict(list)
    for mutation in listed():
        for number in mutation.covers:
            found[number].append(mutation.says)
    for twin in MANIFEST["twin"]:
        declared = world_of(twin).properties_.get(twin["breaks"])
        for number in (twin["breaks"],) if declared is None else declared.covers:
            found[number].append(f"without: {twin['removes']}")
    return dict(found)


def shown_to_go_wrong() -> dict[str, list[str]]:
    """scenario -> as above, and the faults of the doubles in the tests of scenarios."""
    found = {number: list(each) for number, each in shown_to_fail().items()}
    for path in sorted((ROOT / "tests").glob("test_scenarios_*.py")):
        _, *parts = re.split(r"^# --- (S\d+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for number, text in zip(parts[::2], parts[1::2], strict=True):
            found.setdefault(number, []).extend(f"with: {' '.join(each.split())}" for each in _DOUBLE.findall(text))
    return found


def _link(path: str) -> str:
    return f"[{Path(path).stem.removeprefix('test_')}](../../{path})"


@cache
def places() -> dict[str, dict[str, set[str]]]:
    """number -> suite -> files with a mark of it. ValueError for a number that there is no statement for."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    known = {each for section in told()["invariants"].values() for each in section} | set(told()["scenarios"])
    for suite in SUITES:
        for path in sorted((ROOT / suite).rglob("*.py")):
            relative = path.relative_to(ROOT).as_posix()
            for number in marks(ast.parse(path.read_text(encoding="utf-8")), in_a_world=suite == "models"):
                if number not in known:
                    raise ValueError(f"{relative} covers {number}, which has no statement")
                found[number][suite].add(relative)
    return found


def marks(tree: ast.AST, *, in_a_world: bool) -> Iterator[str]:
    """Every number that a module marks as covered; properties count where worlds are models and not tests of worlds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node) or ""
            for text in _COVERS.findall(docstring):
                yield from numbers_in(text.split("\n\n")[0])
            if first := _FIRST.match(docstring):
                yield from numbers_in(first[1])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from scenarios_in(node.name)
        if in_a_world and isinstance(node, ast.keyword) and node.arg == "covers":
            for leaf in ast.walk(node.value):
                if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str):
                    yield from numbers_in(leaf.value)


def scenarios_in(name: str) -> Iterator[str]:
    """The scenarios that a test is named after: `test_s09_...`, `test_s42_s65_...`."""
    if named := _SCENARIOS.match(name):
        for each in named[1].split("_")[:-1]:
            yield f"S{int(each[1:])}"


def numbers_in(text: str) -> Iterator[str]:
    """`I13-I15, S9` one by one."""
    for letter, first, last in _NUMBER.findall(text):
        for number in range(int(first), int(last or first) + 1):
            yield f"{letter}{number}"
