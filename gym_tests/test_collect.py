"""Collecting on real Gym servers, as a user does it: killed, stopped, started again; and the demo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gym_tests import collect_kills


def test_a_collection_that_is_killed_again_and_again_has_every_task_once(tmp_path: Path) -> None:
    """SIGKILL to its whole process at random moments; `make gym-deep` does it with 20 kills and 200 tasks."""
    outcome = collect_kills.run(tmp_path, kills=3, tasks=24, seed=5)
    assert outcome.good, f"seed 5: {outcome.line()}\n{(tmp_path / 'collect.log').read_text()[-4000:]}"


def test_the_demo_on_gym_servers_ends_with_nothing_redone() -> None:
    """Everything is killed; the last line is the verdict, and the exit code says the same."""
    done = subprocess.run(
        [sys.executable, "-m", "statecore.cli", "gym", "demo", "--rollouts", "6"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    last = done.stdout.splitlines()[-1]
    assert done.returncode == 0, done.stdout + done.stderr
    assert last.startswith("held turns run again: 0 of ")
    assert not last.startswith("held turns run again: 0 of 0;")
    assert last.endswith("all equal the undisturbed run")
