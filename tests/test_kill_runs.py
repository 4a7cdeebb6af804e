"""The kill runs themselves: what is drawn, and that their verdict finds what it is there to find.

The runs over real processes are made by `make kill`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from participants.demo.counting import Held
from participants.demo.lines import Event, Line
from participants.demo.servers import MODULES, STEPS
from participants.demo.worlds import CHECKPOINTS
from participants.journals.files import FileJournal
from statecore.seams import FixedClock, SystemDisk
from tests import kill_runs
from tests.kill_plan import ENDS_THE_LIFE, WHENS, Blow, Kind, Run, draw, job, pairs, put
from tests.kill_runs import Came, Undisturbed, main, summary
from tests.kill_verdict import (
    Begun,
    examine,
    lacking,
    of_journals,
    of_steps,
    of_the_end,
    of_zombies,
    starts,
    stood_still,
)

CI_RUNS = 20


def test_a_seed_draws_the_same_run_again() -> None:
    """`make kill SEED=17 RUNS=1` does what run 17 of a long series did."""
    for seed in range(200):
        assert draw(seed) == draw(seed)
    assert draw(17) != draw(18)
    assert len({draw(seed) for seed in range(200)}) == 200


def test_the_runs_of_ci_meet_each_kind_and_each_moment() -> None:
    """Twenty runs: every kind and every moment is met; after all pairs each pair was met."""
    blows = [blow for seed in range(CI_RUNS) for blow in draw(seed).blows]
    assert {blow.kind for blow in blows} == set(Kind)
    assert {blow.when for blow in blows} == set(WHENS)
    every = pairs(tuple(Kind))
    assert len(set(every)) == len(every) == len(Kind) * len(WHENS)
    met = {(blow.kind, blow.when) for seed in range(len(every)) for blow in draw(seed).blows}
    assert met == set(every)


def test_a_life_gets_the_blows_up_to_the_one_that_ends_it() -> None:
    """Servers that die alone leave their life going; whoever hits the coordinator begins another one."""
    kinds = (Kind.AGENT, Kind.PAUSED, Kind.ZOMBIE, Kind.ALL, Kind.POLICY)
    run = Run(seed=0, job=0, blows=tuple(Blow(kind=kind, when="idle") for kind in kinds), every_s=1.0)
    assert [[blow.kind for blow in life] for life in run.lives] == [
        [Kind.AGENT, Kind.PAUSED, Kind.ZOMBIE],
        [Kind.ALL],
        [Kind.POLICY],
    ]
    for seed in range(200):
        lives = draw(seed).lives
        assert all(life[-1].kind in ENDS_THE_LIFE for life in lives[:-1])
    assert Run(seed=0, job=0, blows=(), every_s=1.0).lives == ((),)


def test_only_the_kinds_that_are_asked_for() -> None:
    """`--kinds zombie,frozen` hits with nothing else."""
    for seed in range(100):
        assert {blow.kind for blow in draw(seed, (Kind.ZOMBIE, Kind.FROZEN)).blows} <= {Kind.ZOMBIE, Kind.FROZEN}


def test_jobs_differ() -> None:
    """Each number is another job, always the same one."""
    assert job(1) == job(1)
    assert job(1) != job(2)


def line(event: Event, epoch: int, name: str, turn: int | None, attempt: int = 0) -> Line:
    return Line(event=event, server="x", epoch=epoch, ts=0.0, rollout=name, attempt=attempt, turn=turn)


def test_a_held_turn_that_runs_again_is_found() -> None:
    """Whoever works on a turn that its start went on from, or on a rollout whose result was there."""
    begun = [Begun(1, {}, frozenset()), Begun(2, {"a": 2}, frozenset({"done"}))]
    fine = [line(Event.TURN, 1, "a", 1), line(Event.TURN, 1, "a", 2), line(Event.TURN, 2, "a", 3, 1)]
    assert list(of_journals(fine, begun)) == []
    assert list(of_journals([*fine, line(Event.GENERATION, 2, "a", 2)], begun)) == [
        "held turns redone by epoch 2: a turn 2"
    ]
    assert list(of_journals([*fine, line(Event.STEP, 2, "done", 9)], begun)) == [
        "held turns redone by epoch 2: done turn 9"
    ]


def test_what_is_done_twice_in_one_start_is_found() -> None:
    """A game that takes one step twice in one life; the same step in another life is no matter."""
    begun = [Begun(1, {}, frozenset()), Begun(2, {}, frozenset())]
    once = [line(Event.STEP, 1, "a", 1), line(Event.STEP, 2, "a", 1)]
    assert list(of_journals(once, begun)) == []
    (found,) = of_journals([*once, line(Event.STEP, 1, "a", 1)], begun)
    assert found.startswith("done twice: ")


def test_a_checkpoint_that_lacks_a_finished_turn_is_found(tmp_path: Path) -> None:
    """What was finished when everything stood still is held; what came later need not be."""
    lines = [line(Event.TURN, 1, "a", 1), line(Event.TURN, 1, "a", 2), line(Event.STEP, 1, "a", 3)]
    assert list(lacking("ck", Held({"a": 2}, frozenset()), lines, 1.0)) == []
    assert list(lacking("ck", Held({"a": 1}, frozenset()), lines, 1.0)) == ["ck lacks finished turns: a turn 2"]
    assert list(lacking("ck", Held({}, frozenset()), lines, 0.0)) == []
    said = {"machine": "transaction", "state": "preparing", "next": "committing", "ids": {"checkpoint_id": "ck"}}
    other = {"machine": "transaction", "state": "committing", "next": "settling", "ids": {"checkpoint_id": "ck"}}
    rows = [json.dumps(row | {"clock": clock}) for clock, row in enumerate((said, other), start=7)]
    (tmp_path / "coordinator-1.jsonl").write_text("\n".join(rows) + '\n{"torn')
    assert stood_still(tmp_path) == {"ck": 7.0}


ENDED: dict[str, Any] = {
    "ended": "finished",
    "published": True,
    "stories": [],
    "servers": {"game": "idle"},
    "results": {"a": {"reward": 1.0, "messages": [], "state": None}},
    "lost": [],
    "doubled": [],
}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, ""),
        ({"lost": ["b"]}, "results lost: b"),
        ({"doubled": ["a"]}, "results doubled: a"),
        ({"results": {"a": {"reward": 2.0, "messages": [], "state": None}}}, "NOT equal: a: reward 2 instead of 1"),
        ({"published": False, "stories": ["aborted"]}, "the last checkpoint did not come about: ['aborted']"),
        ({"servers": {"game": "prepared"}}, "servers left closed: {'game': 'prepared'}"),
    ],
)
def test_an_end_that_is_not_right_is_found(changed: dict[str, Any], told: str) -> None:
    """Results, the last checkpoint, and servers that stay closed."""
    assert list(of_the_end(ENDED | changed, ENDED["results"])) == ([told] if told else [])


def test_a_run_without_an_end_is_found(tmp_path: Path) -> None:
    """The last life has said nothing, or that it was overtaken by nobody."""
    assert examine(tmp_path, 1, {}) == ("the last life did not come to the end of its job",)
    put(tmp_path / "ended-1.json", {"ended": "overtaken", "why": "x"})
    assert examine(tmp_path, 1, {}) == ("the last life ended overtaken: x",)


def test_a_zombie_that_ends_as_if_nothing_had_happened_is_found(tmp_path: Path) -> None:
    """Whoever was stopped and has a successor says that it was overtaken, unless all was done before the claim."""
    put(tmp_path / "ended-1.json", {"ended": "overtaken"})
    put(tmp_path / "ended-3.json", {"ended": "finished"})
    (tmp_path / CHECKPOINTS).mkdir()
    put(tmp_path / CHECKPOINTS / "epoch-000004.json", {"epoch": 4, "claimed_ts": 30.0})
    put(tmp_path / CHECKPOINTS / "epoch-000004.base.json", {"start": None})
    for clock, found in [
        (29.0, []),
        (31.0, ["life 3 was stopped, had a successor, and ended as if it had none"]),
    ]:
        line = {"machine": "transaction", "clock": clock, "ids": {"epoch": 3}}
        (tmp_path / "coordinator-3.jsonl").write_text(json.dumps(line) + "\n{torn")
        assert list(of_zombies(tmp_path, 3)) == []
        assert list(of_zombies(tmp_path, 4)) == found
    (tmp_path / CHECKPOINTS / "epoch-000004.json").unlink()
    assert list(of_zombies(tmp_path, 4)) == []  # it has no successor but the one that never claimed


def test_a_step_that_is_not_allowed_is_found(tmp_path: Path) -> None:
    """What servers and coordinators wrote down is held against the tables, and that they did."""
    steps = tmp_path / STEPS
    steps.mkdir()
    for name in ("coordinator", *MODULES):
        journal = FileJournal(SystemDisk(), FixedClock(1.0), steps, name)
        journal.record("gate", "open", "Arrived", "open", {"process": name, "incarnation": "i1"})
        journal.close()
    assert tuple(of_steps(tmp_path)) == ()
    journal = FileJournal(SystemDisk(), FixedClock(2.0), tmp_path, "coordinator-1")
    journal.record("gate", "open", "Arrived", "quiet", {"process": "policy", "incarnation": "i2"})
    journal.close()
    (finding,) = of_steps(tmp_path)
    assert "a step that is not allowed" in finding and "(open, Arrived)" in finding
    for file in steps.glob("agent*"):
        file.unlink()
    assert tuple(of_steps(tmp_path))[1:] == ("nothing was written down by agent",)


def test_starts_are_read_by_epoch(tmp_path: Path) -> None:
    """What each start went on from is as the life wrote it."""
    put(tmp_path / "start-000002.json", {"life": 1, "start": None, "turns": {"a": 1}, "consumed": ["b"]})
    put(tmp_path / "start-000001.json", {"life": 1, "start": None, "turns": {}, "consumed": []})
    assert starts(tmp_path) == [Begun(1, {}, frozenset()), Begun(2, {"a": 1}, frozenset({"b"}))]


@pytest.mark.parametrize(
    "arguments",
    [("--runs", "0"), ("--runs", "x"), ("--seed", "-1"), ("--at-once", "0"), ("--kinds", "nobody"), ("--break", "S1")],
)
def test_a_command_line_that_cannot_be_is_refused(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and nothing is started."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "error" in capsys.readouterr().err


@pytest.mark.parametrize("bad", [False, True])
def test_a_finding_is_said_and_ends_with_1(
    bad: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A line for each run, the seeds that found something in the summary, and their files are kept."""

    def fight(run: Run, directory: Path, _undisturbed: Undisturbed) -> Came:
        found = ("results lost: a",) if bad and run.seed == 8 else ()
        return Came(run=run, found=found, seconds=1.0, dealt=("x",), lives=2)

    monkeypatch.setattr(kill_runs, "fight", fight)
    code = main(["--seed", "7", "--runs", "2", "--dir", str(tmp_path)])
    said = capsys.readouterr().out.splitlines()
    assert code == (1 if bad else 0)
    assert said[0].startswith("seed    7") and said[0].endswith("ok")
    if bad:
        assert said[1].endswith("FOUND: results lost: a")
        assert said[-2].endswith("1 FOUND something: seeds 8")
        assert said[-1] == f"the files are in {tmp_path}"
    else:
        assert said[-1].endswith("each equal to its undisturbed run")


def test_the_summary_counts() -> None:
    """Kinds and moments of the first blows, runs, lives, blows."""
    run = Run(seed=1, job=0, blows=(Blow(kind=Kind.ALL, when="idle"),), every_s=1.0)
    came = [Came(run=run, found=(), seconds=2.0, dealt=("x",), lives=2)] * 3
    lines = list(summary(came, 6.0))
    assert lines[:2] == ["kinds: all 3", "moments: idle 3"]
    assert lines[2].startswith("3 runs, 6 lives, 3 blows dealt, 6 s: ")
