"""Interchangeable slots: fewer states, the same verdicts, counterexamples that really happen; mistakes are named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statecore import DefinitionError
from statecore.explore import explore
from statecore.fast import expand, search, symmetry
from statecore.findings import Exploration, Limits, verdict
from statecore.world import World
from tests.symmetric_worlds import Plan, orbits, plans, world_of
from tests.test_fast import replayed

MOST = Limits(states=10_000_000)


def agreed(world: type[World]) -> Exploration:
    """What both searches find with symmetry; the verdict, and how long a counterexample is, are those without it."""
    plain = explore(world(), MOST, engine="reference", symmetry=False)
    one = explore(world(), MOST, engine="reference")
    two = explore(world(), MOST, engine="fast")
    assert (one.symmetry, plain.symmetry) == (two.symmetry, ())
    for found in (one, two):
        assert verdict(found) is verdict(plain)
        assert found.depth == plain.depth
        assert (found.violation is None) is (plain.violation is None)
        if found.violation is not None and plain.violation is not None:
            assert len(found.violation.steps) == len(plain.violation.steps)
            replayed(world(), found.violation)
    if plain.violation is None:
        counts = ("distinct", "generated", "never_fired", "unseen", "checked", "limit")
        assert {name: getattr(one, name) for name in counts} == {name: getattr(two, name) for name in counts}
        assert (one.never_fired, one.unseen) == (plain.never_fired, plain.unseen)
    return two


@settings(max_examples=100, deadline=None)
@given(plan=plans)
def test_symmetry_changes_no_verdict(plan: Plan) -> None:
    """On random worlds: both searches, with and without; states are counted once for all arrangements of them."""
    world = world_of(plan)
    found = agreed(world)
    if found.violation is None:
        assert found.distinct == orbits(plan, world)


@settings(max_examples=60, deadline=None)
@given(plan=plans, bits=st.integers(4, 9), key=st.integers(4, 9), chunk=st.integers(1, 7), most=st.integers(0, 4))
def test_symmetry_in_small_pieces(plan: Plan, bits: int, key: int, chunk: int, most: int) -> None:
    """States and keys of groups of several words, chunks of a few states, sorted by columns or by rows: no difference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("statecore.fast.intern.WORD_BITS", bits)
        patch.setattr(symmetry, "KEY_BITS", key)
        patch.setattr(symmetry, "NETWORK_MOST", most)
        for module in (expand, search):
            patch.setattr(module, "CHUNK", chunk)
        agreed(world_of(plan))
