"""Journals held against tables and invariants: what really ran is allowed, each planted line is found."""

from __future__ import annotations

import argparse
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import trio

from participants.commands import replay as command
from participants.coordination.coordinator import Published
from participants.journals.reading import Place, series_of
from participants.journals.replaying import IDENTITY, OBSERVERS, Replay, replayed
from participants.machines.tables import TABLES
from statecore.cli import UsageError
from statecore.journal import Journal
from statecore.wire import canonical
from tests.whole_job import WholeJob, run, settle

Fields = dict[str, Any]


@cache
def a_job() -> tuple[bytes, ...]:
    """The journal of a job: two rollouts, a checkpoint while both stand, a crash, and a second life to the end."""
    lines: list[bytes] = []

    async def two_lives(job: WholeJob) -> None:
        job.journal = journal = Journal(None, job.clock)
        for rollout in ("a", "b"):
            job.turnstile.allow(rollout, 1)
        async with job.coordinator() as coordinator:
            recovered = await coordinator.recover()
            async with trio.open_nursery() as tasks:
                tasks.start_soon(coordinator.run_batch, recovered.runnable(job.dispatches(2, "a", "b")))
                await settle()
                assert isinstance(await coordinator.checkpoint(timeout_s=60), Published)
                tasks.cancel_scope.cancel()
        job.turnstile.allow("a", 2)
        job.turnstile.allow("b", 2)
        async with job.coordinator() as coordinator:
            recovered = await coordinator.recover()
            assert not (await coordinator.run_batch(recovered.runnable())).lost
            assert isinstance(await coordinator.checkpoint(timeout_s=60), Published)
        lines.extend(journal.lines)

    run(two_lives)
    return tuple(lines)


def told(lines: list[Fields]) -> bytes:
    """A journal of these lines, numbered anew."""
    return b"".join(canonical({**line, "seq": number}) + b"\n" for number, line in enumerate(lines, start=1))


def lines_of_a_job() -> list[Fields]:
    return [json.loads(line) for line in a_job()]


def line(
    machine: str, state: str, event: str, after: str, *, clock: float = 5.0, refused: str = "", **ids: Any
) -> Fields:
    who = {"process": "tools", "incarnation": "i1", "epoch": 1, "checkpoint_id": None}
    return {
        "machine": machine, "state": state, "event": event, "next": after, "clock": clock, "refused": refused or None,
        "ids": who | ids,
    }  # fmt: skip


def replay_of(*lines: Fields) -> Replay:
    return replayed({"journal.jsonl": told(list(lines))})


# --- what really ran


def test_a_whole_job_is_allowed() -> None:
    """Nothing is found in what really ran, and it went through every table but that of a death."""
    done = replayed({"journal": b"".join(a_job())})
    assert done.findings == ()
    assert {name for name, seen in done.tables.items() if seen.lines} == set(TABLES) - {"deployment"}
    assert (done.lines, done.missing, done.midway, done.torn) == (len(a_job()), 0, 0, ())
    assert len(done.processes) == 10, "five processes in each of two lives"
    assert set(IDENTITY) == set(TABLES), "every machine can be told from others of its table"


def test_a_line_that_is_left_out_is_missed() -> None:
    """Without any one line by which a machine moved on, that machine's next line does not join.

    A participant's own beginning is the exception: it is born in two states.
    """
    lines = lines_of_a_job()
    moving = [number for number, each in enumerate(lines) if each["state"] not in (each["next"], "born")]
    for number in moving[::12]:
        if not _is_last_of_its_machine(lines[number], lines):
            done = replayed({"journal": told(lines[:number] + lines[number + 1 :])})
            assert "order" in {each.rule for each in done.findings}, lines[number]


def _is_last_of_its_machine(given: Fields, lines: list[Fields]) -> bool:
    """Whether nothing after it shows where its machine stands."""
    names = ("process", "incarnation", *IDENTITY[given["machine"]])
    same = [
        each
        for each in lines
        if each["machine"] == given["machine"] and all(each["ids"].get(n) == given["ids"].get(n) for n in names)
    ]
    return same[-1] == given


# --- tables and order


def test_the_first_line_that_no_table_allows_is_named_with_what_would_be() -> None:
    """File, line, cell, and what the table has there."""
    good = line("gate", "open", "Arrived", "open")
    bad = line("gate", "quiet", "Arrived", "open")
    done = replay_of(good, line("gate", "open", "CloseRequested", "quiet"), bad)
    assert not done.allowed
    first = done.findings[0]
    assert (first.rule, first.place) == ("table", Place("journal.jsonl", 3))
    assert "(quiet, Arrived)" in first.problem and "it allows: refuse too_many_held, stay" in first.problem


def test_lines_of_one_machine_join() -> None:
    """A machine begins where it ended, and in an initial state; machines with other ids are others."""
    assert replay_of(line("gate", "open", "CloseRequested", "quiet"), line("gate", "open", "Arrived", "open")).findings
    assert replay_of(line("gate", "quiet", "CloseRequested", "quiet")).findings[0].rule == "order"
    other = line("gate", "open", "Arrived", "open", incarnation="i2", epoch=2)
    assert replay_of(line("gate", "open", "CloseRequested", "quiet"), other).allowed
    again = [line("attempt", "queued", "Dispatched", "running", rollout_id="a", attempt=0)] * 2
    assert replay_of(*again).allowed, "an execution that failed is begun anew"
    ticket = [line("model_call", "admitted", "Completed", "completed_durable", ticket="t1")] * 2
    assert not replay_of(*ticket).allowed, "a call is not"


def test_what_was_rotated_away_is_not_held_against_anybody() -> None:
    """Without its beginning a journal is judged from what it has: machines are taken as they are first seen."""
    lines = a_job()
    whole = replayed({"journal": b"".join(lines)})
    for start in range(1, len(lines), max(1, len(lines) // 30)):
        done = replayed({"journal": b"".join(lines[start:])})
        assert done.allowed, done.findings[0]
        assert done.missing == start and done.lines == whole.lines - start
    middle = replayed({"journal": b"".join(lines[:50] + lines[90:])})
    assert (middle.allowed, middle.missing) == (True, 40)
    assert middle.midway


def test_files_of_a_series_are_one_journal() -> None:
    """Rotated files join in the order of their numbers; the torn end of each is told, and damage is found."""
    lines = a_job()
    first, second = b"".join(lines[:100]), b"".join(lines[100:])
    done = replayed({"d/x.000010.jsonl": second, "d/x.000009.jsonl": first})
    assert (done.allowed, done.missing, done.lines) == (True, 0, len(lines))
    torn = replayed({"x.000009.jsonl": first + b'{"clo', "x.000010.jsonl": second[:-3]})
    assert torn.allowed
    assert torn.torn == (Place("x.000009.jsonl", 101), Place("x.000010.jsonl", len(lines) - 100))
    damaged = replayed({"x.000009.jsonl": b"what?\n" + first})
    assert str(damaged.findings[0]).startswith("x.000009.jsonl:1: journal: is no line of a journal")
    doubled = replayed({"x.jsonl": lines[0] + lines[0]})
    assert "line number 1 comes after 1" in doubled.findings[0].problem
    assert [each.name for each in series_of({"a": b"", "b.000001.jsonl": b"", "b.000002.jsonl": b""})] == ["a", "b"]


def test_several_processes_are_merged_by_their_clocks() -> None:
    """Whatever file a line is in, and in whatever order the files are given."""
    by_process: dict[str, list[Fields]] = {}
    for each in lines_of_a_job():
        by_process.setdefault(each["ids"]["process"] + each["ids"]["incarnation"], []).append(each)
    files = {f"{name}.000001.jsonl": told(lines) for name, lines in by_process.items()}
    for order in (files, dict(reversed(files.items()))):
        done = replayed(order)
        assert (done.findings, done.lines, len(done.processes)) == ((), len(a_job()), 10)


# --- invariants: each has a history that it allows and one that it finds

A: Fields = {"rollout_id": "a", "attempt": 1, "session": "run"}
COORDINATOR: Fields = {"process": "coordinator", "incarnation": "c1", "rollout_id": "a"}


def participant(state: str, event: str, after: str, checkpoint_id: str = "ck-1") -> Fields:
    return line("participant", state, event, after, checkpoint_id=checkpoint_id)


def gate(state: str, event: str, after: str, **ids: Any) -> Fields:
    return line("gate", state, event, after, **ids)


def attempt(state: str, event: str, after: str, **ids: Any) -> Fields:
    return line("attempt", state, event, after, **(A | ids))


def session(state: str, event: str, after: str, revision: int | None, operation: str | None = None) -> Fields:
    return line("resource_session", state, event, after, session="s", revision=revision, operation=operation)


def entry(state: str, event: str, after: str) -> Fields:
    return line("ledger_entry", state, event, after, **COORDINATOR)


def begun(number: int) -> Fields:
    return line("attempt", "queued", "Dispatched", "running", **COORDINATOR, attempt=number)


def published() -> list[Fields]:
    """What a coordinator writes down of a checkpoint, up to its publication."""
    steps = [
        ("idle", "CheckpointRequested", "freezing"), ("freezing", "DispatchFrozen", "preparing"),
        ("preparing", "AllPrepared", "committing"), ("committing", "AllCommitted", "settling"),
        ("settling", "AllSettled", "saving"), ("saving", "HalfSaved", "validating"),
        ("validating", "DirectoryPublished", "published"),
    ]  # fmt: skip
    return [line("transaction", *step, **COORDINATOR, checkpoint_id="ck-1") for step in steps]


PREPARE = participant("idle", "PrepareRequested", "preparing")
READY = participant("preparing", "ReadinessReached", "prepared")
WRITTEN = participant("prepared", "PartWritten", "committed")
RESUME = participant("prepared", "ResumeRequested", "idle")
CLOSES = gate("open", "CloseRequested", "quiet")
OPENS = gate("quiet", "OpenRequested", "open")
RUNS = attempt("queued", "Dispatched", "running")
STANDS = attempt("running", "Parked", "parked", boundary=3)
GOES_ON = attempt("parked", "Released", "running")
SEEDED = session("absent", "Seeded", "live", None)
RECEIVED = entry("live", "Received", "received")
SAVED = entry("received", "Saved", "saved")
RELEASED = [
    line("handoff", "running", "Finished", "retained", **A),
    line("handoff", "retained", "Acknowledged", "released", **A),
]
LATER = line("heartbeat", "alive", "Answered", "alive", clock=60.0, **COORDINATOR)

RETIRES = line("participant", "idle", "RetireRequested", "idle", retired=[["a", 1]])

HISTORIES: dict[str, tuple[list[Fields], list[Fields]]] = {
    "I13": ([PREPARE, READY, WRITTEN], [PREPARE, READY, participant("prepared", "PartWritten", "committed", "ck-2")]),
    "I14": ([PREPARE, READY, RESUME], [PREPARE, READY, RESUME, PREPARE]),
    "I16": (
        [PREPARE, CLOSES, READY, RESUME, OPENS, participant("idle", "ResumeRequested", "idle")],
        [gate("open", "Arrived", "open"), PREPARE, READY],
    ),
    "I17": ([PREPARE, CLOSES, READY, RESUME, OPENS], [PREPARE, CLOSES, READY, OPENS]),
    "I24": ([RUNS, STANDS, PREPARE, READY, RESUME, GOES_ON], [RUNS, STANDS, PREPARE, READY, GOES_ON]),
    "I6": (
        [RUNS, attempt("queued", "Dispatched", "running", attempt=2)],
        [attempt("queued", "Dispatched", "running", attempt=2), RUNS],
    ),
    "I8": (
        [RETIRES, attempt("queued", "Dispatched", "running", attempt=2)],
        [RETIRES, RUNS],
    ),
    "I33": (
        [RUNS, STANDS, attempt("parked", "Parked", "parked", boundary=4)],
        [RUNS, STANDS, attempt("parked", "Parked", "parked", boundary=2)],
    ),
    "I36": (
        [SEEDED, session("live", "Mutated", "live", 0, "m1"), session("live", "Mutated", "live", 1, "m1"),
         session("live", "Used", "live", 1), session("live", "Used", "live", 1)],
        [SEEDED, session("live", "Mutated", "live", 0, "m1"), session("live", "Used", "live", 2)],
    ),
    "I3": ([begun(0), begun(1)], [begun(1), begun(0)]),
    "I65": (
        [RECEIVED, attempt("queued", "Restored", "restored", **COORDINATOR | {"rollout_id": "b"})],
        [RECEIVED, attempt("queued", "Restored", "restored", **COORDINATOR)],
    ),
    "I68": ([RECEIVED, entry("received", "Received", "received")], [RECEIVED, SAVED, RECEIVED]),
    "I54": (
        [attempt("queued", "Restored", "restored", attempt=2, **COORDINATOR),
         attempt("queued", "Restored", "restored", attempt=2)],
        [attempt("queued", "Restored", "restored", attempt=2, **COORDINATOR),
         attempt("queued", "Restored", "restored", attempt=1)],
    ),
    "I67": ([RECEIVED, SAVED, *RELEASED, LATER], [RECEIVED, *RELEASED, LATER]),
    "I96": (
        [LATER, line("heartbeat", "alive", "Answered", "alive", **COORDINATOR | {"incarnation": "c2"}, epoch=2),
         CLOSES, gate("open", "Arrived", "open", incarnation="i2")],
        [LATER, line("heartbeat", "alive", "Answered", "alive", **COORDINATOR | {"incarnation": "c2"}, clock=61.0)],
    ),
    "I41": ([*published(), PREPARE, READY, WRITTEN], [*published(), PREPARE, READY, RESUME]),
}  # fmt: skip
"""By invariant: a history that it allows, and one that breaks it."""


@pytest.mark.parametrize("number", [each.number for each in OBSERVERS])
def test_each_invariant_is_seen_to_be_broken(number: str) -> None:
    """Its observer allows the one history and finds the other, and no other observer speaks of either.

    Covers: I3, I6, I8, I13, I14, I16, I17, I24, I33, I36, I41, I54, I65, I67, I68, I96.
    """
    allowed, broken = HISTORIES[number]
    assert replay_of(*allowed).findings == ()
    found = [each for each in replay_of(*broken).findings if each.rule != "order"]
    assert [each.rule for each in found] == [number], found


def test_what_is_missing_breaks_no_invariant() -> None:
    """With lines gone before each broken history's last line, nothing is claimed that was not seen."""
    for number, (_, broken) in HISTORIES.items():
        lines = [{**each, "seq": place + 100 * (place == len(broken))} for place, each in enumerate(broken, start=1)]
        data = b"".join(canonical(each) + b"\n" for each in lines)
        found = [each.rule for each in replayed({"journal": data}).findings]
        assert found == [] or number in KNOWN_ACROSS_A_GAP, (number, found)


def test_a_session_that_began_in_lines_that_are_gone_may_have_applied_anything() -> None:
    """A repeated operation is no finding where its first application may be in the missing lines; else it is."""
    repeated = [session("live", "Mutated", "live", 5, "m1"), session("live", "Used", "live", 5)]
    for first, begins, expected in ((1, [SEEDED], ["I36"]), (9, [SEEDED], ["I36"]), (9, [], [])):
        lines = [{**each, "seq": first + place} for place, each in enumerate([*begins, *repeated])]
        found = replayed({"journal": b"".join(canonical(each) + b"\n" for each in lines)}).findings
        assert [each.rule for each in found if each.rule != "order"] == expected


KNOWN_ACROSS_A_GAP = {"I14", "I6", "I33", "I3", "I65", "I68", "I54", "I96"}
"""Numbers and ids that may never come back, whatever happened in between."""


def test_ids_of_any_form_are_read() -> None:
    """A journal is a file like any other: what stands in it may be anything, and is judged or passed over."""
    lines = [each for _, broken in HISTORIES.values() for each in broken]
    anything: tuple[Any, ...] = ([], [[]], [["a"]], {"x": []}, -1, 1e300, True, "", None)
    for odd in anything:
        strange = [{**each, "ids": dict.fromkeys(each["ids"], odd)} for each in lines]
        assert replayed({"journal": told(strange)}).lines == len(lines)
        for name in ("process", "retired", "attempt", "revision", "rollout_id", "epoch"):
            one = [{**each, "ids": each["ids"] | {name: odd}} for each in lines]
            assert replayed({"journal": told(one)}).lines == len(lines)


# --- the command


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    return parser.parse_args(["replay", *arguments])


def test_the_command_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 0 for what is allowed, 1 with file and line for what is not, 4 where there was nothing; as JSON too."""
    good, bad, empty = (tmp_path / name for name in ("good.jsonl", "bad.jsonl", "empty.jsonl"))
    good.write_bytes(b"".join(a_job()))
    bad.write_bytes(told([PREPARE, WRITTEN]) + b'{"cut')
    empty.write_bytes(b"")
    assert command.run(parsed(str(good))) == 0
    said = capsys.readouterr().out
    assert f"{len(a_job())} lines of 10 processes in 1 file: all allowed" in said and "0 of 42" in said
    assert command.run(parsed(str(tmp_path))) == 1
    said = capsys.readouterr().out
    assert f"{bad}:2: order: participant of tools stood in preparing, not in prepared" in said
    assert f"{bad}:3 was cut short" in said
    assert command.run(parsed("--json", str(bad))) == 1
    value = json.loads(capsys.readouterr().out)
    assert (value["type"], value["allowed"], value["lines"]) == ("replay", False, 2)
    assert value["findings"][0]["line"] == 2 and value["tables"]["participant"]["cells"] == 2
    assert command.run(parsed(str(empty))) == 4
    assert "nothing to judge" in capsys.readouterr().out


def test_a_file_that_is_named_twice_is_one(tmp_path: Path) -> None:
    """By its path, by another one, or with its directory: it is not another process that did the same."""
    file = tmp_path / "job.jsonl"
    file.write_bytes(b"".join(a_job()))
    (tmp_path / "beside").mkdir()
    assert len(command.read_journals([tmp_path, file, tmp_path / "beside/../job.jsonl"])) == 1


def test_what_cannot_be_read_is_a_wrong_command_line(tmp_path: Path) -> None:
    """A file that is not there, and a directory without a journal."""
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(UsageError, match=str(path)):
            command.run(parsed(str(path)))
