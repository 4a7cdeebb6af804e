"""The door to the machines: a step and its line, one of the two alone never."""

from __future__ import annotations

import ast
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from participants.coordination.coordinator import Published
from participants.identity import EpisodeId
from participants.journals.recorder import UNRECORDED, Made, StepRecorder
from participants.machines.handoff import HANDOFF, Acknowledged, Finished, Handoff, Kept
from participants.machines.tables import TABLES
from statecore import Refused
from statecore.journal import Journal, replay
from statecore.seams import FixedClock
from tests.whole_job import WholeJob, run

ROOT = Path(__file__).resolve().parent.parent
EPISODE = EpisodeId("r1", 2)
RUNNING = HANDOFF.start(Kept("task"))


def a_recorder() -> tuple[StepRecorder, Journal]:
    journal = Journal(None, FixedClock(5.0))
    return StepRecorder(journal, lambda: {"process": "agent", "epoch": 1}), journal


def lines(journal: Journal) -> list[dict[str, Any]]:
    return [json.loads(line) for line in journal.lines]


def test_a_step_is_the_tables_and_a_line() -> None:
    """The same snapshot and effects as without a journal, and one line with the ids of process and machine."""
    recorder, journal = a_recorder()
    finished = Finished("receipt")
    assert recorder.step(HANDOFF, RUNNING, finished, EPISODE, ticket="t1") == HANDOFF.step(RUNNING, finished)
    assert lines(journal) == [
        {
            "clock": 5.0,
            "event": "Finished",
            "ids": {"process": "agent", "epoch": 1, "ticket": "t1", "rollout_id": "r1", "attempt": 2},
            "machine": "handoff",
            "next": "retained",
            "refused": None,
            "seq": 1,
            "state": "running",
        }
    ]


def test_a_refused_step_is_a_line_with_its_code() -> None:
    """It is raised as ever, and nothing has moved."""
    recorder, journal = a_recorder()
    with pytest.raises(Refused):
        recorder.step(HANDOFF, RUNNING, Acknowledged("receipt"), EPISODE)
    (line,) = lines(journal)
    assert (line["state"], line["next"], line["refused"]) == ("running", "running", "not_finished")


def test_what_is_only_asked_is_no_line_unless_it_is_refused() -> None:
    """A step that is not made did not happen; a refusal did."""
    recorder, journal = a_recorder()
    assert recorder.ask(HANDOFF, RUNNING, Finished("receipt")) == HANDOFF.step(RUNNING, Finished("receipt"))[1]
    assert lines(journal) == []
    with pytest.raises(Refused):
        recorder.ask(HANDOFF, RUNNING, Acknowledged("receipt"))
    assert [line["refused"] for line in lines(journal)] == ["not_finished"]


def test_without_a_journal_nothing_is_made() -> None:
    """Not even the ids: whoever would tell them is not asked."""

    def never() -> dict[str, Any]:
        raise AssertionError("asked")

    for recorder in (UNRECORDED, StepRecorder(None, never)):
        after, _ = recorder.step(HANDOFF, RUNNING, Finished("receipt"), EPISODE)
        assert after.state is Handoff.RETAINED
        recorder.write(Made(HANDOFF, EPISODE, RUNNING, Finished("receipt"), after))
        with pytest.raises(Refused):
            recorder.ask(HANDOFF, RUNNING, Acknowledged("receipt"))


def test_what_cannot_be_written_is_said_once_and_the_step_stands(caplog: pytest.LogCaptureFixture) -> None:
    """Ids that are no JSON, or longer than a line may be, cost the line and not the rollout."""
    recorder, journal = a_recorder()
    with caplog.at_level(logging.WARNING, "statecore.journal"):
        for session in ("s" * 20_000, "\ud800", object()):
            after, _ = recorder.step(HANDOFF, RUNNING, Finished("receipt"), session=session)
            assert after.state is Handoff.RETAINED
    assert (recorder.unwritten, len(caplog.records), lines(journal)) == (3, 1, [])
    recorder.step(HANDOFF, RUNNING, Finished("receipt"))
    assert [line["seq"] for line in lines(journal)] == [1]


def test_no_shell_steps_a_machine_of_its_own() -> None:
    """All go through the one door, so that a journal misses none; the ledger is pure, and hands its steps on."""
    around: set[str] = set()
    for room in ("servers", "serving", "coordination", "gym", "gymnasium", "collecting"):
        for path in (ROOT / "participants" / room).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "step":
                    table = ast.unparse(node.func.value).rpartition(".")[2]
                    if table.isupper():
                        around.add(f"{room}/{path.name}")
    assert around == {"coordination/ledger.py"}


def test_a_whole_job_is_on_record_and_allowed_by_its_tables() -> None:
    """Every machine of a job with a checkpoint and a second life is in the journal, and no line is against a table."""

    async def job_of_two_lives(job: WholeJob) -> None:
        job.journal = journal = Journal(None, job.clock)
        for rollout in ("a", "b"):
            job.turnstile.allow(rollout, 2)
        async with job.coordinator() as coordinator:
            recovered = await coordinator.recover()
            report = await coordinator.run_batch(recovered.runnable(job.dispatches(2, "a", "b")))
            assert not report.lost
            assert isinstance(await coordinator.checkpoint(timeout_s=60), Published)
        async with job.coordinator() as coordinator:
            await coordinator.recover()
        assert replay(journal.lines, TABLES).lines == len(journal.lines)
        said = lines(journal)
        assert {line["machine"] for line in said} == set(TABLES) - {"deployment"}, "its servers did not die"
        for line in said:
            assert line["ids"]["epoch"] in (1, 2) and line["ids"]["incarnation"], line
        assert {line["ids"]["process"] for line in said} == {
            "coordinator", "policy_model", "simple_agent", "tools", "env",
        }  # fmt: skip

    run(job_of_two_lives)
