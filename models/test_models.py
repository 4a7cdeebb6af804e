"""The models are explored again and give what models/MANIFEST.toml pins: verdicts, counts, shortest counterexamples."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from models import (
    checkpoint_twins,
    deployment_twins,
    epochs_twins,
    handing_out_twins,
    handoff_twins,
    judge_twins,
    lease_and_publish_twins,
    model_hold_twins,
    participant_twins,
    resources_session_twins,
    restore_twins,
    rules,
    units_twins,
)
from models.checkpoint import CheckpointWorld, TwoRollouts
from models.twins import without_faults, without_guard, without_rule
from participants.machines.control import PARTICIPANT, is_other_process
from participants.machines.gate import is_last
from participants.machines.handoff import HANDOFF, Finished, Handoff, Received
from statecore import stay
from statecore.report import check
from statecore.world import World

MANIFEST = tomllib.loads((Path(__file__).parent / "MANIFEST.toml").read_text())


def world_of(entry: dict[str, Any]) -> type[World]:
    """The class that an entry names as `module:Class`, or that a function there makes of what the entry says."""
    module, _, name = entry["world"].partition(":")
    found = getattr(importlib.import_module(module), name)
    if "make" in entry:
        found = found(**entry["make"])
    assert isinstance(found, type) and issubclass(found, World)
    return found


def name_of(entry: dict[str, Any]) -> str:
    given = {**entry.get("make", {}), **entry.get("params", {})}
    given |= {key: entry[key] for key in ("symmetry",) if key in entry}
    params = ",".join(f"{key}={value}" for key, value in given.items())
    world: str = entry["world"]
    return world.partition(":")[2] + (f"[{params}]" if params else "")


def entries(kind: str) -> list[Any]:
    """All entries of a kind; those that say `slow` run with `make models` and are deselected elsewhere."""
    return [
        pytest.param(entry, id=name_of(entry), marks=[pytest.mark.slow] if entry.get("slow") else [])
        for entry in MANIFEST[kind]
    ]


@pytest.mark.parametrize("entry", entries("model"))
def test_a_model_gives_what_is_pinned(entry: dict[str, Any]) -> None:
    """Explored to the end: verdict, distinct and generated states and depth are the pinned ones. What a model covers is
    said at its properties.
    """
    symmetry = entry.get("symmetry", True)
    report = check(world_of(entry), max_states=entry.get("max_states", 1_000_000), symmetry=symmetry, **entry["params"])
    found = {
        "verdict": str(report.verdict),
        "distinct": report.distinct,
        "generated": report.generated,
        "depth": report.depth,
    }
    assert found == {key: entry[key] for key in found}, report.story()


@pytest.mark.parametrize("entry", entries("twin"))
def test_a_twin_fails_as_pinned(entry: dict[str, Any]) -> None:
    """Without its rule a world breaks the pinned property, in as few steps as pinned: the check can fail."""
    symmetry, most = entry.get("symmetry", True), entry.get("max_states", 1_000_000)
    report = check(world_of(entry), symmetry=symmetry, max_states=most, **entry.get("params", {}))
    assert report.violation is not None, f"{entry['removes']}: taken out, and nothing breaks\n{report.story()}"
    assert (report.violation.name, len(report.trace)) == (entry["breaks"], entry["steps"]), report.story()


def test_every_twin_is_pinned() -> None:
    """No twin is written and then forgotten: each is in the manifest, once."""
    pinned = [entry["world"] for entry in MANIFEST["twin"]]
    for module in (
        checkpoint_twins,
        deployment_twins,
        epochs_twins,
        handing_out_twins,
        handoff_twins,
        judge_twins,
        lease_and_publish_twins,
        model_hold_twins,
        participant_twins,
        resources_session_twins,
        restore_twins,
        units_twins,
    ):
        for twin in module.TWINS:
            assert pinned.count(f"{module.__name__}:{twin.__name__}") == 1
    assert len({(entry["world"], name_of(entry)) for entry in MANIFEST["twin"]}) == len(pinned)


def test_every_rule_is_validated_or_said_not_to_be() -> None:
    """A protective rule has a twin that fails without it, or it is written down why none does."""
    assert rules.open_rules(rules.load()) == []


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        ('rules = ["none-of-ours"]', "not in rules.toml: none-of-ours"),
        ('rules = ["a"]\n[[unvalidated]]\nrule = "a"\nwhy = "-"', "both validated and unvalidated: a"),
        ('[[unvalidated]]\nrule = "a"\nwhy = "-"\n[[unvalidated]]\nrule = "a"\nwhy = "."', "unvalidated twice"),
        ('[[unvalidated]]\nrule = "c"\nwhy = "-"', "not in rules.toml: c"),
    ],
)
def test_a_manifest_that_contradicts_the_rules_is_an_error(tmp_path: Path, manifest: str, problem: str) -> None:
    """A rule that is misspelt, or that is said to be validated and not to be, is found."""
    with pytest.raises(ValueError, match=problem):
        rules.load(*written(tmp_path, manifest))


def test_a_rule_that_nothing_is_said_of_is_found(tmp_path: Path) -> None:
    """One with a twin, one that is unvalidated, one that is awaited, and one that was forgotten."""
    manifest = 'rules = ["a"]\n[[unvalidated]]\nrule = "b"\nwhy = "-"'
    found = rules.load(*written(tmp_path, manifest, "a", "b", "c", "d", awaited=["c"]))
    assert rules.open_rules(found) == ["d"]
    assert [(rule.twins[0].steps if rule.twins else None, rule.unvalidated) for rule in found[:2]] == [
        (3, None),
        (None, "-"),
    ]


def written(path: Path, manifest: str, *keys: str, awaited: Sequence[str] = ()) -> tuple[Path, Path]:
    """A manifest with one twin, and a list of rules."""
    (path / "manifest.toml").write_text(
        f'[[twin]]\nworld = "m:T"\nremoves = "it"\nbreaks = "p"\nsteps = 3\n{manifest}\n'
    )
    rows = "\n".join(f'{key} = {{ section = "1", text = "-" }}' for key in keys or ("a", "b"))
    (path / "rules.toml").write_text(f"awaited = {list(awaited)}\n[rules]\n{rows}\n")
    return path / "manifest.toml", path / "rules.toml"


def test_the_checkpoint_world_covers_what_it_says() -> None:
    """Its properties name the invariants that they check."""
    covered = {number for each in CheckpointWorld.properties_.values() for number in each.covers}
    assert {"I13", "I16", "I17", "I20", "I21", "I24", "I35", "I65", "S32", "S59"} <= covered


def test_a_twin_changes_only_cells_that_exist() -> None:
    """A rule that is taken out must have been there."""
    changed = without_rule(HANDOFF, {(Handoff.RELEASED, Finished): stay()})
    assert changed.cells[Handoff.RELEASED][Finished] == stay()
    assert {state: changed.cells[state] for state in list(changed.cells)[:2]} == {
        state: HANDOFF.cells[state] for state in list(HANDOFF.cells)[:2]
    }
    with pytest.raises(KeyError, match=r"no cell \(running, Received\)"):
        without_rule(HANDOFF, {(Handoff.RUNNING, Received): stay()})


def test_less_goes_wrong_in_a_world_without_faults() -> None:
    """Only the faults that are named are left, and all that is no fault; a name that is no fault is an error."""
    left = {name for name, each in TwoRollouts.actions_.items() if each.fault}
    assert left == {"coordinator_dies", "power_fails", "server_dies"}
    steps = {name for name, each in CheckpointWorld.actions_.items() if not each.fault}
    assert {name for name, each in TwoRollouts.actions_.items() if not each.fault} == steps
    with pytest.raises(ValueError, match="has no fault action begin, nothing"):
        without_faults("nothing", "begin", "power_fails")(CheckpointWorld)


def test_a_twin_is_without_a_guard_that_was_there() -> None:
    """In every cell that asked it, also inside another guard; a guard that nobody asks cannot be taken out."""
    changed = without_guard(PARTICIPANT, is_other_process)
    cells = [(state, event, cell) for state, row in PARTICIPANT.cells.items() for event, cell in row.items()]
    asked = {(state, event) for state, event, cell in cells if "is_other_process" in repr(cell)}
    assert asked
    assert "is_other_process" not in repr(changed.cells)
    assert all(changed.cells[state][event] == cell for state, event, cell in cells if (state, event) not in asked)
    with pytest.raises(KeyError, match="no cell of table 'participant' asks is_last"):
        without_guard(PARTICIPANT, is_last)
