"""Gym's own records of a rollout are made behind the embedded layer too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .control import Hands, named
from .job import counter_task, fleet_of

SERVERS = ["policy_model", "counter", "counter_agent"]


def test_what_gym_captures_of_a_rollout_is_captured(tmp_path: Path) -> None:
    """With Gym's observability on, its model server files each call under the rollout, and its agent returns the
    trajectory: they know the rollout by the prefix of paths, which the layer takes off and shows them all the same.
    """
    captured = tmp_path / "captured"
    captured.mkdir()
    overrides: dict[str, dict[str, Any]] = {
        "": {"observability_enabled": True, "model_call_capture_dir": str(captured)}
    }
    with fleet_of(SERVERS, tmp_path, overrides=overrides) as fleet:
        fleet.up()
        with Hands(fleet) as hands:
            reply = hands.post("counter_agent", "/run", named(counter_task(), "seen", 1))
    assert reply.status_code == 200, reply.text
    assert reply.json()["reward"] == 1.0
    trajectory = reply.json()["ng_trajectory"]
    assert (len(trajectory["turns"]), len(trajectory["tool_calls"])) == (4, 3)
    filed = [path for path in captured.rglob("*") if path.is_file() and "seen-a1" in path.name]
    assert filed and sum(path.read_text().count('"resp_') for path in filed) >= 4
