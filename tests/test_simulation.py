"""Simulated jobs: one seed, one history; nothing is found in the code as it is."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import pytest
import trio

from participants.simulation.command import SECONDS
from participants.simulation.job import job
from participants.simulation.plan import draw_plan, expected
from participants.simulation.story import story
from statecore import cli
from statecore.simulate import (
    CrashDisk,
    Dice,
    EndlessRun,
    History,
    Outcome,
    Process,
    ProcessEnded,
    SchedulerUnknown,
    Simulation,
    SimulationError,
    histories,
    journals_in,
    lines_of,
    run,
    scheduling,
    series,
)
from tests.simulated_worlds import breaks, chatters, ends_badly, exits, interrupts, leaves, sleeps, waits

SEEDS = (0, 3, 5, 7, 8, 13)


@pytest.fixture(scope="module")
def outcomes() -> dict[int, Outcome]:
    return {seed: run(job, seed) for seed in SEEDS}


# --- the job


def test_simulated_jobs_are_as_they_must_be(outcomes: dict[int, Outcome]) -> None:
    """A few whole jobs under all that their seeds draw; each has a crash, and together they have every kind of trouble.

    Covers: I3, I6, I9, I10, I11, I17, I20, I21, I24, I34, I35, I41, I42, I43, I44, I50, I51, I57, I61, I63, I65, I67,
    I68, I74, I75, I77, I84, I85, I96, I98.
    """
    for seed, outcome in outcomes.items():
        assert outcome.problems == (), seed
        assert outcome.counts["crashes"] > 0, seed
    troubles = "power lost", "messages lost", "messages doubled", "messages left over"
    for what in ("checkpoints published", "checkpoints aborted", *troubles):
        assert sum(outcome.counts.get(what, 0) for outcome in outcomes.values()) > 0, what


def test_one_seed_has_one_history(outcomes: dict[int, Outcome]) -> None:
    """A seed gives the same history again, byte for byte, and another seed another one."""
    assert run(job, 3) == outcomes[3]
    assert len({outcome.history for outcome in outcomes.values()}) == len(outcomes)


def test_hashes_of_strings_change_no_history(
    outcomes: dict[int, Outcome], capsys: pytest.CaptureFixture[str]
) -> None:
    """Another process, which hashes strings in its own way, has the same history; the command compares them."""
    assert cli.main(["simulate", "--seed", "5", "--times", "1", "--jobs", "1", "--json"]) == 0
    digest = hashlib.sha256(outcomes[5].history).hexdigest()
    assert json.loads(capsys.readouterr().out)["histories"] == {digest: 1}


def test_what_must_come_of_a_rollout_is_computed_beside_the_run() -> None:
    """The expected results are a function of the plan alone, and each has the turns that were planned."""
    plan = draw_plan(Dice("a plan"))
    wanted = expected(plan)
    assert wanted == expected(plan)
    assert [each["turns"] for each in wanted.values()] == [each.turns for each in plan.rollouts]


def test_a_history_is_told_as_a_story(outcomes: dict[int, Outcome]) -> None:
    """Who, when and what, with faults marked; file operations only if everything is asked for."""
    told = list(story(outcomes[3].history))
    assert any(" ! " in line and "dies" in line for line in told)
    assert not any("fsync /job" in line for line in told)
    everything = list(story(outcomes[3].history, everything=True))
    assert len(everything) > len(told) and any("fsync" in line for line in everything)
    assert all(line["at"] >= 0 for line in lines_of(outcomes[3].history))


def test_the_journals_of_coordinators_can_be_taken_out(outcomes: dict[int, Outcome]) -> None:
    """What coordinators wrote into their own journals is in the history as they wrote it."""
    journals = journals_in(outcomes[3].history)
    assert any(name.startswith("coordinator") for name in journals)
    for written in journals.values():
        numbers = [json.loads(line)["seq"] for line in written.splitlines()]
        assert numbers == list(range(1, len(numbers) + 1))


# --- the simulator itself


def test_order_is_the_seeds() -> None:
    """Two timers fire in an order that the seed alone decides, and both orders come about."""
    orders = {tuple(line["who"] for line in lines_of(run(waits, seed).history)) for seed in range(20)}
    assert orders == {("a", "b"), ("b", "a")}


def test_tasks_that_race_run_in_the_order_of_the_seed() -> None:
    """Whom one event wakes at once runs in an order that the seed decides: trio's own dice do not."""

    async def race(simulation: Simulation) -> None:
        gate = trio.Event()

        async def runner(name: str) -> None:
            await gate.wait()
            simulation.history.tell(name, "runs")

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(runner, f"r{number}")
            await trio.sleep(1)
            gate.set()

    histories = [run(race, seed).history for seed in (*range(10), *range(10))]
    assert histories[:10] == histories[10:]
    assert len(set(histories)) > 1


def test_a_trio_without_its_private_names_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """If trio no longer has what orders its tasks, a simulation says so before it begins."""
    monkeypatch.setattr(scheduling, "SWITCH", "_NOT_THERE")
    with pytest.raises(SchedulerUnknown, match=r"trio .* has no trio\._core\._run\._NOT_THERE"):
        run(waits, 0)


def test_an_exception_is_a_problem_and_tells_where() -> None:
    """What a world raises is the outcome's, with the place; a world that does not end is a problem too."""
    (problem,) = run(breaks, 2).problems
    assert problem.rule == "exception" and "KeyError: 'a bug' (breaks, line " in problem.text
    (problem,) = run(sleeps, 0, longest_s=10).problems
    assert str(problem) == "ends: the run had not come to its end after 10 s of virtual time"
    (problem,) = run(ends_badly, 0, longest_s=10).problems
    assert problem.rule == "exception" and "ValueError: at its end" in problem.text


def test_a_run_that_goes_round_in_circles_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A history has a bound, and a run that comes to it is over, and says so."""
    monkeypatch.setattr("statecore.simulate.history.MAX_LINES", 20)
    history = History(lambda: 0.0)
    with pytest.raises(EndlessRun):
        while True:
            history.tell("a", "b")
    (problem,) = run(chatters, 0).problems
    assert problem.rule == "exception" and "EndlessRun: more than 20 lines" in problem.text


def test_an_ended_process_does_nothing_any_more() -> None:
    """Its disk refuses whatever it does, and what it had open is closed."""

    async def world(simulation: Simulation) -> None:
        process = simulation.process("p")
        disk = simulation.disk.view(process)
        with disk.create("/file") as file:
            file.write(b"there")
            process.kill()
            with pytest.raises(ProcessEnded):
                file.write(b"no")
            with pytest.raises(ProcessEnded):
                disk.read("/file")
            with pytest.raises(ProcessEnded):
                disk.rename("/file", "/other")
        assert simulation.disk.now.read("/file") == b"there"

    assert run(world, 0).problems == ()


def test_a_disk_fails_as_its_trouble_says() -> None:
    """A failed write may leave a part, a failed sync fails for good, a lost power takes what was not synced."""

    async def world(simulation: Simulation) -> None:
        disk = simulation.disk.view(simulation.process("p"))
        trouble: dict[str, str] = {}
        simulation.disk.trouble = lambda process, operation, path: trouble.get(operation)
        with disk.create("/file") as file:
            trouble["write"] = "ENOSPC"
            with pytest.raises(OSError, match="no space left"):
                file.write(b"1234")
            assert disk.read("/file") == b"12"
            trouble.clear()
            trouble["fsync"] = "EIO"
            with pytest.raises(OSError, match="input/output error"):
                file.fsync()
            trouble.clear()
            with pytest.raises(OSError, match="an earlier fsync of it failed"):
                file.fsync()
        assert isinstance(simulation.disk.now, CrashDisk)

    assert run(world, 0).problems == ()


def test_clocks_of_processes_drift() -> None:
    """A process has wall time of its own, and its seconds are longer or shorter than those of others."""

    async def world(simulation: Simulation) -> None:
        one, other = simulation.process("a"), simulation.process("b", offset_s=2.0, drift=0.01)
        assert isinstance(one, Process)
        await trio.sleep(100)
        assert round(other.clock.time() - one.clock.time(), 6) == 3.0
        assert round(other.clock.monotonic() - one.clock.monotonic(), 6) == 1.0

    assert run(world, 0).problems == ()


# --- many seeds


def test_a_series_counts_and_keeps_what_failed() -> None:
    """Every seed is played once, on one process or several, and the failed ones are named."""
    for jobs in (1, 2):
        kept: list[Outcome] = []
        came = series(breaks, first=3, seeds=7, jobs=jobs, failed=kept.append)
        assert came.done == 7 and not came.good
        assert sorted(outcome.seed for outcome in kept) == [5, 8]
        assert came.failed == kept
    with pytest.raises(ValueError, match="a bound"):
        series(breaks)


def test_a_seed_that_ends_its_process_fails_alone() -> None:
    """All other seeds are played, also those that were under way beside it."""
    came = series(exits, seeds=9, jobs=2)
    assert came.done == 9
    (failed,) = came.failed
    assert failed.seed == 5 and "has died" in str(failed.problems)
    with pytest.raises(SimulationError, match="has died"):
        histories(exits, 5, 1)


def test_a_world_that_exits_is_a_problem_of_its_seed() -> None:
    """In this process as in another one, and the series goes on."""
    for jobs in (1, 2):
        came = series(leaves, seeds=9, jobs=jobs)
        assert came.done == 9
        assert [(each.seed, "SystemExit: 3" in str(each.problems)) for each in came.failed] == [(1, True)]


def test_ctrl_c_ends_a_series_with_what_came_of_it() -> None:
    """Nothing that was played is lost; the command says it too, and exits with 130."""
    came = series(interrupts, seeds=9, jobs=1)
    assert came.interrupted and came.good and came.done == 2


def test_the_command_that_is_interrupted_says_what_came_until_then(capsys: pytest.CaptureFixture[str]) -> None:
    """Also as JSON, and although not one seed was played to its end."""
    arguments = ["simulate", "tests/simulated_worlds.py:interrupts", "--jobs", "1"]
    assert cli.main([*arguments, "--seeds", "9"]) == 130
    told = capsys.readouterr()
    assert told.out.startswith("2 seeds in ") and told.err.endswith("statecore: interrupted\n")
    assert cli.main([*arguments, "--from", "2", "--seeds", "9", "--json"]) == 130
    summary: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert summary["interrupted"] and summary["seeds"] == 0


def test_who_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    """The processes that play end with the one that gave them the seeds, in the middle of a seed too."""
    text = "from statecore.simulate import series; from tests.simulated_worlds import holds_a_lock as world\n"
    command = [sys.executable, "-c", f"{text}if __name__ == '__main__': series(world, seeds=8, jobs=2)"]
    env = {**os.environ, "LOCKS": str(tmp_path)}
    with subprocess.Popen(command, cwd=Path(__file__).parents[1], env=env, start_new_session=True) as giving:
        try:
            wait_for(lambda: sum(each.read_text() == "locked" for each in tmp_path.iterdir()) == 2)
            giving.kill()
            for each in list(tmp_path.iterdir()):
                with each.open() as file:
                    wait_for(partial(is_free, file))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(giving.pid, signal.SIGKILL)


def wait_for(come: Callable[[], bool]) -> None:
    """It has come about, which has to be soon: other processes do it, in real time."""
    until = time.monotonic() + 30
    while not come():
        assert time.monotonic() < until
        time.sleep(0.01)


def is_free(file: TextIO) -> bool:
    """Nobody holds the lock on it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_a_world_that_other_processes_do_not_find_is_refused() -> None:
    """A function inside of another one cannot be given to them."""

    async def inside(simulation: Simulation) -> None:
        await sleeps(simulation)

    with pytest.raises(SimulationError, match="a function of a module"):
        series(inside, seeds=2, jobs=2)
    with pytest.raises(SimulationError, match="a function of a module"):
        histories(inside, 0, 1)


def test_the_command_keeps_failing_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It exits with 1, names the seeds and the command that replays one, and writes them to a file."""
    world = tmp_path / "world.py"
    check = "simulation.check(simulation.seed != 1, 'mine', lambda: 'one')"
    world.write_text(f"async def world(simulation):\n    {check}\n")
    kept = tmp_path / "failed.jsonl"
    arguments = ["simulate", str(world), "--seeds", "3", "--jobs", "1", "--failed", str(kept)]
    assert cli.main(arguments) == 1
    told = capsys.readouterr()
    assert f"again: statecore simulate {world} --seed 1" in told.err
    assert "3 seeds in" in told.out and "failed: 1;" in told.out
    assert [json.loads(line)["seed"] for line in kept.read_text().splitlines()] == [1]
    assert cli.main(["simulate", str(world), "--seed", "0"]) == 0
    assert cli.main(["simulate", str(world), "--seed", "1"]) == 1
    assert "VIOLATED mine: one" in capsys.readouterr().out
    assert cli.main(["simulate", str(world), "--seed", "0", "--times", "2", "--jobs", "1"]) == 0  # in another process
    assert "2 times the history" in capsys.readouterr().out
    assert cli.main([*arguments[:-2], "--failed", str(tmp_path / "other.jsonl"), "--json"]) == 1
    summary: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert summary["seeds"] == 3 and [each["seed"] for each in summary["failed"]] == [1]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--seeds", "0"], "--seeds 0: more than 0"),
        (["--minutes", "-1"], "--minutes -1.0: more than 0"),
        (["--seed", "1", "--seeds", "2"], "--seed replays one seed"),
        (["--seed", "1", "--from", "2"], "--seed replays one seed"),
        (["--seed", "1", "--jobs", "2"], "leave --jobs out"),
        (["--journal", "x"], "go with --seed"),
        (["--times", "2"], "go with --seed"),
        (["missing.py"], "missing.py"),
        (["--seed", "1", "--times", "2", "--all"], "leave --journal and --all out"),
        (["--seeds", "1", "--failed", "nowhere/at/all"], "No such file or directory"),
        (["--seeds", "1", "--failed", "."], "Is a directory"),
        (["--minutes", "1e-12", "--jobs", "1"], "too short for one seed"),
    ],
)
def test_a_wrong_command_line_is_said(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and what is wrong."""
    assert cli.main(["simulate", *arguments]) == 2
    assert why in capsys.readouterr().err
    assert SECONDS > 0
