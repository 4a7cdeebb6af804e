"""What holds for every machine of the protocol: walked from its start by sample events (protocol.md section 4)."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from statecore import Refused
from statecore.engine import agreement
from statecore.table import Go, Refuse, leaves
from tests.table_walks import Walk, branch, walks

WALKS = walks()
each_table = pytest.mark.parametrize("walk", WALKS.values(), ids=WALKS.keys())


def test_the_machines_of_the_protocol_are_all_here() -> None:
    """Every machine that protocol.md section 4 declares has a table, and these tests walk it."""
    assert sorted(WALKS) == [
        "attempt",
        "deployment",
        "episode_step",
        "gate",
        "handoff",
        "heartbeat",
        "ledger_entry",
        "model_call",
        "participant",
        "resource_session",
        "response",
        "transaction",
    ]


@each_table
def test_every_state_is_walked(walk: Walk) -> None:
    """The sample events reach every declared state, so that what is said below is said of all of them."""
    assert {snapshot.state for snapshot in walk.reached} == set(walk.table.states)
    assert {type(event) for event in walk.events} == set(walk.table.events)


@each_table
def test_every_branch_of_every_cell_is_taken(walk: Walk) -> None:
    """No branch is dead: each *go*, *stay* and *refuse*, under its guards, is the answer to some step."""
    taken: dict[tuple[Any, type], set[int]] = {}
    for snapshot, event in walk.steps():
        cell = walk.table.cells[snapshot.state][type(event)]
        taken.setdefault((snapshot.state, type(event)), set()).add(id(branch(cell, snapshot.data, event)))
    dead = [
        f"{state}, {event.__name__}: {leaf}"
        for state, row in walk.table.cells.items()
        for event, cell in row.items()
        for leaf in leaves(cell)
        if id(leaf) not in taken.get((state, event), ())
    ]
    assert dead == []


@each_table
def test_a_refused_event_leaves_the_machine_equal(walk: Walk) -> None:
    """For every reached snapshot and event: a refusal names code, state, event and way forward, and changes nothing."""
    refused = 0
    for snapshot, event in walk.steps():
        before = copy.deepcopy(snapshot)
        try:
            walk.table.step(snapshot, event)
        except Refused as refusal:
            refused += 1
            assert snapshot == before and hash(snapshot) == hash(before)
            assert re.fullmatch(r"[a-z_]+", refusal.code)
            assert (refusal.state, refusal.event) == (snapshot.state, event)
            assert refusal.allowed == walk.table.allowed(snapshot.state)
            assert str(snapshot.state) in str(refusal) and refusal.event_name in str(refusal)
        assert snapshot == before
    cells = (cell for row in walk.table.cells.values() for cell in row.values())
    assert bool(refused) == any(isinstance(leaf, Refuse) for cell in cells for leaf in leaves(cell))


@each_table
def test_a_step_is_a_function(walk: Walk) -> None:
    """The same snapshot and event give the same snapshot and effects, and the target that the cell names."""
    for snapshot, event in walk.steps():
        leaf = branch(walk.table.cells[snapshot.state][type(event)], snapshot.data, event)
        if isinstance(leaf, Refuse):
            continue
        after, effects = walk.table.step(snapshot, event)
        assert (after, effects) == walk.table.step(copy.deepcopy(snapshot), event)
        assert after.state == (leaf.target if isinstance(leaf, Go) else snapshot.state)
        hash(after)


@each_table
def test_the_table_agrees_with_transitions_on_every_cell(walk: Walk) -> None:
    """A live `transitions` machine made from the table goes, stays and refuses where `step` does."""
    samples = {snapshot: walk.events for snapshot in walk.reached[:: max(1, len(walk.reached) // 40)]}
    assert agreement(walk.table, samples) >= len(walk.table.states) * len(walk.table.events) + len(samples)


@each_table
def test_final_states_are_left_by_nothing(walk: Walk) -> None:
    """From a final state no event leads anywhere."""
    for snapshot, event in walk.steps():
        if snapshot.state in walk.table.final:
            try:
                after, _ = walk.table.step(snapshot, event)
            except Refused:
                continue
            assert after.state == snapshot.state
