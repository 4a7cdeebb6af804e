"""The list of mutations is right as far as can be seen without making them: `make mutations` does that."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from docs.generators import marks
from tests.mutants import ROOT, Mutation, listed

MUTATIONS = listed()


@cache
def functions(file: str) -> frozenset[str]:
    """The names of all functions in a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(
        each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def name_of(mutation: Mutation) -> str:
    return f"{mutation.covers[0]}: {mutation.says}"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=name_of)
def test_a_mutation_has_its_place_and_its_tests(mutation: Mutation) -> None:
    """What it changes is in its file once, it still parses then, and the tests that must notice are there."""
    text = (ROOT / mutation.file).read_text(encoding="utf-8")
    ast.parse(mutation.applied(text))
    for test in mutation.fails:
        file, *names = test.partition("[")[0].split("::")
        assert names[-1] in functions(file), test


@pytest.mark.parametrize("mutation", MUTATIONS, ids=name_of)
def test_a_mutation_is_of_code_that_is_shipped_and_noticed_by_tests_that_say_so(mutation: Mutation) -> None:
    """It changes no test, and the tests that notice are in files that are marked with the numbers it covers."""
    assert mutation.file.startswith(("statecore/", "participants/"))
    for number in mutation.covers:
        marked = {path for paths in marks.places()[number].values() for path in paths}
        assert marked & {test.partition("::")[0] for test in mutation.fails}, number


def test_every_invariant_that_is_checked_is_shown_to_fail() -> None:
    """A mark that no change of the code can move would say nothing: each number has a mutation, or a failing twin."""
    numbers = {each for each in marks.places() if each.startswith("I")}
    assert numbers - set(marks.shown_to_fail()) == set()


def test_a_place_that_is_not_there_is_an_error() -> None:
    """A mutation of code that has changed since is no mutation."""
    mutation = Mutation(("I1",), "nothing", "a.py", "x = 1", "x = 2", ())
    assert mutation.applied("x = 1\n") == "x = 2\n"
    for text in ("x = 3\n", "x = 1\nx = 1\n"):
        with pytest.raises(ValueError, match=r"nothing: a.py has \d times 'x = 1'"):
            mutation.applied(text)


def test_the_copy_that_is_mutated_is_the_tree(tmp_path: Path) -> None:
    """Files that git knows are in it, as they are now."""
    from tests.mutants import copied

    copied(tmp_path)
    assert (tmp_path / "tests" / "mutants.py").read_bytes() == (ROOT / "tests" / "mutants.py").read_bytes()
    assert not (tmp_path / ".git").exists()
