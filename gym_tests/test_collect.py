"""Collecting on real Gym servers, as a user does it: killed, stopped, started again; and the demo."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from gym_tests import collect_kills

from .fleet import free_ports

HANG_S = 400.0  # a bound on what would hang for ever, not a speed


def test_a_collection_that_is_killed_again_and_again_has_every_task_once(tmp_path: Path) -> None:
    """SIGKILL to its whole process at random moments; `make gym-deep` does it with 20 kills and 200 tasks."""
    outcome = collect_kills.run(tmp_path, kills=3, tasks=24, seed=5)
    assert outcome.good, f"seed 5: {outcome.line()}\n{(tmp_path / 'collect.log').read_text()[-4000:]}"


def test_a_collection_checkpoints_and_stops_by_signals_and_the_same_command_goes_on(tmp_path: Path) -> None:
    """SIGUSR1: a checkpoint, and on. SIGTERM: a checkpoint, and exit code 3; meanwhile nobody else may write there."""
    with collect_kills.prepared(tmp_path, tasks=12, turn_s=2.0):
        life = collect_kills.Life(tmp_path, "--every", "0")
        while not (tmp_path / "results.jsonl.lock").exists() and life.process.poll() is None:
            time.sleep(0.05)
        other = collect_kills.Life(tmp_path)
        assert other.process.wait(HANG_S) == 1
        assert "another collector writes to" in other.said()
        life.until("\nepoch 1")
        life.process.send_signal(signal.SIGUSR1)
        life.until("\nck-000001-")
        assert life.process.poll() is None, life.said()
        life.process.send_signal(signal.SIGTERM)
        assert life.process.wait(HANG_S) == 3, life.said()
        assert "the same command goes on from here" in life.said()
        some = collect_kills.rows_of(tmp_path)
        assert len(some) < 12
        again = collect_kills.Life(tmp_path)
        assert again.process.wait(HANG_S) == 0, again.said()
    rows = collect_kills.rows_of(tmp_path)
    assert rows[: len(some)] == some
    assert sorted(row["_ng_rollout_id"] for row in rows) == sorted(f"{number}-0" for number in range(12))
    assert {row["reward"] for row in rows} == {1.0}


def last_line_of_the_demo(*options: str) -> str:
    """It ended well, and held turns that were none of them run again."""
    done = subprocess.run(
        [sys.executable, "-m", "statecore.cli", "gym", "demo", "--rollouts", "6", *options],
        capture_output=True,
        text=True,
        timeout=3 * HANG_S,
        check=False,
    )
    last = done.stdout.splitlines()[-1]
    assert done.returncode == 0, done.stdout + done.stderr
    assert last.startswith("held turns run again: 0 of ")
    assert not last.startswith("held turns run again: 0 of 0;")
    return last


def test_the_demo_on_gym_servers_ends_with_nothing_redone() -> None:
    """Everything is killed; the last line is the verdict, and the exit code says the same."""
    assert last_line_of_the_demo().endswith("all equal the undisturbed run")


def test_the_demo_takes_a_model_behind_a_url(tmp_path: Path) -> None:
    """`--upstream` is any model that speaks the Responses API, here one in a process of its own: it is asked for the
    turns, and since a real one need not say the same twice, nothing is compared.
    """
    (port,) = free_ports(1)
    log = tmp_path / "model.jsonl"
    log.touch()
    model = subprocess.Popen([sys.executable, "-m", "gym_tests.upstream", str(port), str(log)])
    try:
        last = last_line_of_the_demo("--upstream", f"http://127.0.0.1:{port}/v1", "--model", "any")
    finally:
        model.kill()
        model.wait()
    assert "results lost: 0; doubled: 0; not compared" in last
    assert len(log.read_text().splitlines()) >= 6
