"""What was tried of Gym's components is what is written down of them."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest
import trio

from participants.gym import components
from participants.gym.components import Known
from participants.servers.modes import Mode

from . import compatibility
from .compatibility import ABSENT, DATA, NOT_UP, NotTried, asked, shipped, tried, with_answers
from .fleet import COMPONENTS, Component


def test_every_known_component_was_tried_on_the_gym_that_is_installed() -> None:
    """With the answers of exactly these in the file; each of them started."""
    written = json.loads(DATA.read_bytes())[importlib.metadata.version("nemo-gym")]
    assert set(written["components"]) == set(tried())
    assert not [name for name, said in written["components"].items() if said["outlook"] in (ABSENT, NOT_UP)]
    assert written["shipped"] == shipped()


def test_a_known_component_that_nothing_here_starts_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the page cannot forget one."""
    known = {**components.RESOURCES, "resources_servers.arena.app:Arena": Known(mode=Mode.STATELESS)}
    monkeypatch.setattr(compatibility, "RESOURCES", known)
    with pytest.raises(NotTried, match="resources_servers/arena"):
        tried()


def test_what_is_absent_or_does_not_start_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the last thing that it said."""
    assert trio.run(asked, "resources_servers/no_such", "no_such", tmp_path / "a") == {"outlook": ABSENT}
    monkeypatch.setitem(COMPONENTS, "choices", Component("resources_servers", "mcqa", {"num_workers": 2}))
    said = trio.run(asked, "resources_servers/mcqa", "choices", tmp_path / "b")
    assert said["outlook"] == NOT_UP
    assert "one worker, not 2" in said["why"]


def test_what_is_written_of_other_versions_and_components_stays() -> None:
    """Only what was asked of this version is written anew."""
    other: dict[str, Any] = {"components": {"a": {}}, "shipped": {}}
    known = {"0.6.0": other, "0.7.0": {"components": {"a": 1, "b": 2}, "shipped": {}}}
    found = json.loads(with_answers(known, "0.7.0", {"b": 3}, {"kind": 4}))
    assert found == {"0.6.0": other, "0.7.0": {"components": {"a": 1, "b": 3}, "shipped": {"kind": 4}}}
    assert json.loads(with_answers({}, "0.7.0", {"b": 3}, {})) == {"0.7.0": {"components": {"b": 3}, "shipped": {}}}
