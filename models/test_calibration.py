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
    bakery,
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
from models.lamport_mutex import PAIRS, LamportMutex
from models.paxos_commit import MAJORITIES, MANAGERS, Accepted, Outcome, PaxosCommit, Value
from models.termination_ring import TerminationRing
from models.test_models import MANIFEST, name_of, world_of
from statecore.report import check
from statecore.world import Step, World, action

DATA = Path(__file__).parent / "data" / "tla_published_counts.csv"
MODULES = (
    allocator,
    atomic_commit,
    bakery,
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
    start = entry.get("chosen_start", 0)
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
        for step, act in steps:
            world.put(state)
            if not world.act(act, step.args):
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


def majorities(w: PaxosCommit) -> list[tuple[int, int, tuple[int, ...]]]:
    """Every resource manager, ballot and majority."""
    return [(rm, ballot, each) for rm in MANAGERS for ballot in range(w.ballots) for each in MAJORITIES]


def pairs_of_majorities(w: PaxosCommit) -> list[Any]:
    choices = majorities(w)
    return [(one, other) for one in choices for other in choices if (one[0], other[0]) == MANAGERS]


class DecidesInEveryWay(PaxosCommit):
    """A decision is a step of its own for each majority and ballot that allows it."""

    def accepted(self, choice: tuple[int, int, tuple[int, ...]], value: Value) -> bool:
        rm, ballot, majority = choice
        return all(Accepted(ballot, value) in self.of("acceptor", rm, each).said for each in majority)

    @action(over=pairs_of_majorities)
    def announce_commit(self, choices: Any) -> bool:
        if not all(self.accepted(choice, Value.PREPARED) for choice in choices):
            return False
        self.announced |= {Outcome.COMMIT}
        return True

    @action(over=majorities)
    def announce_abort(self, choice: tuple[int, int, tuple[int, ...]]) -> bool:
        if not self.accepted(choice, Value.ABORTED):
            return False
        self.announced |= {Outcome.ABORT}
        return True


class CountsWhatIsBeyond(LamportMutex):
    """A step to a state beyond the constraint is taken without going there."""

    @action(over=PAIRS)
    def beyond(self, pair: tuple[int, int]) -> bool:
        me, other = pair
        asked = self.head(other, me)
        return asked is not None and asked > 0 and max(asked, self.of("clock", me)) >= self.max_clock


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "config"), [(DecidesInEveryWay, "PaxosCommit.cfg"), (CountsWhatIsBeyond, "MCLamportMutex.cfg")]
)
def test_published_generated_states_of_large_models(world: type[World], config: str) -> None:
    """Counted as the docstrings of these models say, generated states are the published ones too."""
    report = check(world, max_states=2_000_000)
    row = published()[config]
    assert {name: getattr(report, name) for name in COUNTS} == row
