"""What `make bench-checking` compares is the same model, and its table hides nothing."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.checkers import by_hand, ours
from benchmarks.checkers.two_phase import State, TwoPhase
from benchmarks.checking import BREADTH_FIRST, DEPTH_FIRST, DISTINCT, OURS, show
from benchmarks.measure import markdown


@pytest.mark.parametrize("n", [3, 4])
def test_the_model_by_hand_is_ours(n: int) -> None:
    """The published states, as many steps, and the shortest way to the planted bug."""
    found = by_hand.search("two_phase", n)()
    mine = ours.search("reference", "two_phase", n)()
    assert (found.distinct, found.steps) == (DISTINCT[n], None)
    assert (mine.distinct, mine.generated) == (found.distinct, found.generated)
    assert by_hand.search("planted", n)().steps == ours.search("reference", "planted", n)().steps == 2 * n + 3


@pytest.mark.parametrize("planted", [False, True])
def test_its_guards_and_effects_are_its_successors(planted: bool) -> None:
    """The form that a checker of guards and effects gets is the same model, in every state."""
    model = TwoPhase(3, planted=planted)
    steps = model.steps()
    found: list[State] = [model.start]
    for state in found:
        after = sorted(step.apply(state) for step in steps if step.enabled(state))
        assert after == sorted(model.successors(state))
        found += [each for each in dict.fromkeys(after) if each not in found]
    assert len(found) > DISTINCT[3] if planted else len(found) == DISTINCT[3]


def test_the_loop_around_the_actions_finds_what_the_search_does() -> None:
    """It stands in for a search by hand where a model has none."""
    assert ours.search("loop", "two_phase", 3)()[:2] == ours.search("fast", "two_phase", 3)()[:2]


def cell(checker: str, model: str, n: int, *runs: dict[str, Any], why: str = "") -> dict[str, Any]:
    return {"checker": checker, "model": model, "n": n, "why": why, "built_s": 0.0, "runs": list(runs)}


def run(distinct: int, seconds: float, **more: Any) -> dict[str, Any]:
    figures = {"distinct": distinct, "generated": None, "steps": None, "held": 7 * distinct, "bytes": 50 * distinct}
    return {**figures, "seconds": seconds, **more}


def test_its_table_hides_nothing() -> None:
    """A count that differs is named beside the published one, a checker that is missing is in its row, and no ratio is
    made up; the ratio is of what both did."""
    results = {
        "load": 0.5,
        "spin": "",
        "cells": [
            cell(OURS.name, "two_phase", 7, run(296_448, 0.5), run(296_448, 0.5)),
            cell(OURS.name, "two_phase", 8, run(1_745_408, 1.0)),
            cell("a peer", "two_phase", 7, run(296_449, 2.0), run(296_449, 1.0)),
            cell("a peer", "two_phase", 8, why="not asked"),
            cell(DEPTH_FIRST.name, "two_phase", 8, run(1_745_408, 0.8)),
            cell(BREADTH_FIRST.name, "two_phase", 8, why="not installed (apt-get install spin)"),
            cell(OURS.name, "planted", 3, run(450, 0.02, steps=9)),
            cell(DEPTH_FIRST.name, "planted", 3, run(40, 0.01, steps=10), run(40, 0.03, steps=11)),
        ],
    }
    text = show(results, form=markdown)
    assert "| a peer | 296,449, not 296,448 | 0.222 (0.148 .. 0.296) | not told | 50 |" in text
    assert "| two-phase commit, N = 8 | a peer | not asked |" in text
    assert "| two-phase commit, N = 8 | ours, fast engine | 1,745,408 | 1.745 (1.745 .. 1.745) |" in text
    assert "- fast engine / a peer, two-phase commit, N = 7: 3.00 (2.00 .. 4.00)" in text
    assert "- fast engine / Spin, depth first, two-phase commit, N = 8: 0.80 (0.80 .. 0.80)" in text
    assert "- fast engine / Spin, breadth first, two-phase commit: no figure (not installed" in text
    assert "| ours, fast engine | 0.020 s, 9 steps |" in text
    assert "| Spin, depth first | 0.020 s, 10 / 11 steps |" in text
