"""Models that nobody here wrote give the counts that their authors published, and say where they differ and why."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from models import (
    allocator,
    atomic_commit,
    checkpoint_coordination,
    commit_backup,
    commit_consensus,
    lamport_mutex,
    paxos_commit,
    peterson,
    termination_ring,
)
from models.atomic_commit import AtomicCommit
from models.commit_backup import Announced, CommitBackup, Resource
from models.termination_ring import TerminationRing
from models.test_models import MANIFEST, name_of, world_of
from statecore.world import Step, World

DATA = Path(__file__).parent / "data" / "tla_published_counts.csv"
MODULES = (
    allocator,
    atomic_commit,
    checkpoint_coordination,
    commit_backup,
    commit_consensus,
    lamport_mutex,
    paxos_commit,
    peterson,
    termination_ring,
)
COUNTS = ("distinct", "generated", "depth")
CALIBRATED = [entry for entry in MANIFEST["model"] if "published" in entry]


def published() -> dict[str, dict[str, int]]:
    """What was published, by the name of the configuration."""
    lines = [line for line in DATA.read_text().splitlines() if not line.startswith("#")]
    return {row["config"]: {name: int(row[name]) for name in COUNTS} for row in csv.DictReader(lines)}


@pytest.mark.parametrize("entry", CALIBRATED, ids=name_of)
def test_what_is_pinned_is_what_was_published(entry: dict[str, Any]) -> None:
    """The distinct states always are; the rest where the entry says so, and only there."""
    start = int(entry.get("chosen_start", False))
    row = published()[entry["published"]]
    equal = [name for name in COUNTS if entry[name] - start == row[name]]
    assert equal == entry["equal"]
    assert "distinct" in equal


def test_every_world_here_is_pinned() -> None:
    """No model and no twin of the calibration is written and then forgotten: each is in the manifest."""
    pinned = {world_of(entry) for entry in (*MANIFEST["model"], *MANIFEST["twin"])}
    for module in MODULES:
        own = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
        forgotten = [each.__name__ for each in own if issubclass(each, World) and each not in pinned]
        assert not forgotten, f"{module.__name__}: {forgotten}"


def taken(world: World) -> Iterator[Step]:
    """Every enabled step of every reachable state; while it is handed out, the world stands in the state before it."""
    start = world.values
    seen, found = {start}, [start]
    steps = list(world.steps())
    for state in found:
        for step, action in steps:
            world.put(state)
            if not world.act(action, step.args):
                continue
            after = world.values
            if after not in seen:
                seen.add(after)
                found.append(after)
            world.put(state)
            yield step


def ways_of_the_ring(w: TerminationRing, step: Step) -> int:
    """A token is handed on since its node rests, or is stained, or the token is stained."""
    if step.name == "probe":
        return w.token_stained + w.stained[0]
    if step.name == "hand_on":
        return (not w.active[w.token]) + w.stained[w.token] + w.token_stained
    return 1


def ways_of_the_backup(w: CommitBackup, step: Step) -> int:
    """Every manager that has committed allows every manager to follow; each that gave up allows an abort."""
    if step.name in ("choose_commit", "backup_chooses_commit"):
        ways = 1
        for each in w.resources:
            ways *= (each is Resource.PREPARED) + w.resources.count(Resource.COMMITTED)
        return ways
    if step.name in ("choose_abort", "backup_chooses_abort"):
        return w.resources.count(Resource.ABORTED) + w.resources.count(Resource.FAILED)
    if step.name == "abort":
        return (w.resources[step.args[0]] is Resource.WORKING) + (w.announced is Announced.ABORT)
    return 1


def ways_of_the_votes(w: AtomicCommit, step: Step) -> int:
    """Each vote against is a way to decide to abort."""
    return max(1, w.received.count(False)) if step.name == "decide" else 1


@pytest.mark.parametrize(
    ("world", "ways", "config", "start"),
    [
        (TerminationRing, ways_of_the_ring, "EWD840.cfg", 1),
        (CommitBackup, ways_of_the_backup, "2PCwithBTM.cfg", 0),
        (AtomicCommit, ways_of_the_votes, "ACP_SB_TLC.cfg", 1),
    ],
)
def test_published_generated_states_count_ways(
    world: type[World], ways: Callable[[Any, Step], int], config: str, start: int
) -> None:
    """Where generated states differ, counting a step once for each way in which its guard is true gives them."""
    made = world()
    assert 1 + sum(ways(made, step) for step in taken(made)) - start == published()[config]["generated"]
