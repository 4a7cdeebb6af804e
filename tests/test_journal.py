"""The journal: one exact line per event, bounded, and held against the tables afterwards."""

from __future__ import annotations

import json
from typing import Any

import pytest

from statecore import JournalError, Refused, WireError
from statecore.journal import MAX_LINE_BYTES, Journal, Replayed, replay
from statecore.machine import Snapshot, Table
from statecore.seams import FixedClock
from tests.sample_tables import ACCOUNT, HANDOFF, LAMP, Account, Acknowledged, Closed, Finished, Handoff, Lamp, Pressed

TABLES: list[Table[Any, Any]] = [HANDOFF, LAMP, ACCOUNT]


def run(journal: Journal, table: Table[Any, Any], events: list[object], **ids: Any) -> Snapshot[Any, Any]:
    """The machine after the events, each written down, refused ones too."""
    snapshot = table.start()
    for event in events:
        try:
            after, _ = table.step(snapshot, event)
        except Refused as refused:
            journal.record(table.name, snapshot.state, event, snapshot.state, ids, refused=refused.code)
        else:
            journal.record(table.name, snapshot.state, event, after.state, ids)
            snapshot = after
    return snapshot


def line(**changes: Any) -> str:
    """A good line with some fields changed, or left out if None is given as Ellipsis."""
    fields: dict[str, Any] = {
        "clock": 1.0,
        "event": "Finished",
        "ids": {},
        "machine": "handoff",
        "next": "retained",
        "refused": None,
        "seq": 1,
        "state": "running",
    }
    return json.dumps({key: value for key, value in {**fields, **changes}.items() if value is not ...})


def test_a_line_holds_machine_state_event_next_ids_and_clock() -> None:
    """Canonical JSON and a newline, written whole; the clock is the one handed in."""
    written: list[bytes] = []
    journal = Journal(written.append, FixedClock(12.5))
    journal.record("handoff", Handoff.RUNNING, Finished("r1"), Handoff.RETAINED, {"rollout_id": "p7_g2", "attempt": 1})
    assert written == [
        b'{"clock":12.5,"event":"Finished","ids":{"attempt":1,"rollout_id":"p7_g2"},"machine":"handoff",'
        b'"next":"retained","refused":null,"seq":1,"state":"running"}\n'
    ]
    assert (journal.lines, journal.dropped) == ((), 0)


def test_names_may_be_given_instead_of_objects() -> None:
    """An event by its class or its name, a state by its value: the same line."""
    journal = Journal(None, FixedClock(0.0))
    for event in (Finished("r1"), Finished, "Finished"):
        journal.record("handoff", "running", event, "retained", {})
    assert len({each[each.index(b"event") : each.index(b"seq")] for each in journal.lines}) == 1


def test_without_a_writer_the_newest_lines_are_kept() -> None:
    """So many and no more; what was dropped is counted."""
    journal = Journal(None, FixedClock(0.0), max_kept_lines=3)
    run(journal, LAMP, [Pressed()] * 5)
    assert [json.loads(each)["seq"] for each in journal.lines] == [3, 4, 5]
    assert journal.dropped == 2


def test_a_line_that_is_too_long_or_not_exact_is_not_written() -> None:
    """The bound and the rules of the wire hold for ids; the next line is numbered as if nothing had been."""
    written: list[bytes] = []
    journal = Journal(written.append, FixedClock(0.0))
    with pytest.raises(JournalError, match=f"the bound is {MAX_LINE_BYTES}"):
        journal.record("lamp", Lamp.OFF, Pressed(), Lamp.ON, {"x": "y" * MAX_LINE_BYTES})
    with pytest.raises(WireError, match=r"\$\.ids\.x: tuple is no plain JSON"):
        journal.record("lamp", Lamp.OFF, Pressed(), Lamp.ON, {"x": (1,)})
    journal.record("lamp", Lamp.OFF, Pressed(), Lamp.ON, {})
    assert [json.loads(each)["seq"] for each in written] == [1]


def test_what_really_ran_is_allowed_by_its_tables() -> None:
    """A journal of several machines, refusals included, replays; whole, by lines, and by lines of text."""
    journal = Journal(None, FixedClock(0.0))
    events = [Acknowledged("r1"), Finished("r1"), Finished("r1"), Acknowledged("r2"), Acknowledged("r1")]
    assert run(journal, HANDOFF, events, rollout_id="a").state is Handoff.RELEASED
    run(journal, LAMP, [Pressed(), Pressed()])
    run(journal, ACCOUNT, [Closed(), Closed()])
    data = b"".join(journal.lines)
    assert replay(data, TABLES, ["rollout_id"]) == Replayed(9, torn=False)
    assert replay(journal.lines, {table.name: table for table in TABLES}) == Replayed(9, torn=False)
    assert replay(data.decode().splitlines(), TABLES) == Replayed(9, torn=False)
    assert replay(b"", TABLES) == Replayed(0, torn=False)


def test_a_line_cut_short_by_a_crash_is_told_apart() -> None:
    """A process that was killed may leave half a line at the end: it is reported and not taken for damage."""
    journal = Journal(None, FixedClock(0.0))
    run(journal, LAMP, [Pressed(), Pressed()])
    data = b"".join(journal.lines)
    assert replay(data[:-5], TABLES) == Replayed(1, torn=True)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"next": "released"}, r"no branch of cell \(running, Finished\) of table 'handoff' leads to released"),
        ({"next": "running"}, "leads to running"),
        ({"next": "gone"}, "leads to gone"),
        ({"refused": "not_finished"}, "refuses it with not_finished"),
        ({"event": "Acknowledged", "next": "running"}, "leads to running"),  # refused there, and not said so
        ({"event": "Acknowledged", "next": "retained", "refused": "not_finished"}, "refuses it with not_finished"),
        ({"event": "Acknowledged", "next": "running", "refused": "other"}, "refuses it with other"),
        ({"event": "Vanished"}, r"has no cell \(running, Vanished\)"),
        ({"state": "asleep"}, r"has no cell \(asleep, Finished\)"),
        ({"machine": "toaster"}, "no table is named 'toaster'"),
        ({"clock": "now"}, r"is no line of a journal: \$\.clock"),
        ({"seq": ...}, r"is no line of a journal: \$\.seq: is required"),
        ({"more": 1}, r"is no line of a journal: \$\.more"),
        ({"ids": [1]}, r"is no line of a journal: \$\.ids"),
    ],
)
def test_the_first_line_that_no_table_allows_is_named(changes: dict[str, Any], says: str) -> None:
    """Its number and what is wrong with it; the lines before are fine, the one after does not matter."""
    with pytest.raises(JournalError, match=says) as caught:
        replay([line(), line(**changes), "not even JSON"], TABLES)
    assert caught.value.line == 2
    assert str(caught.value).startswith("line 2: ")


@pytest.mark.parametrize("bad", ["{}", "", "not json", "[]", '{"seq":NaN}', b"\xff", "x" * (MAX_LINE_BYTES + 1)])
def test_a_damaged_line_is_named(bad: str | bytes) -> None:
    """Whatever stands there, it is a JournalError with the number of the line."""
    with pytest.raises(JournalError, match="line 1: "):
        replay([bad], TABLES)


def test_a_torn_line_in_the_middle_is_damage() -> None:
    """Only the last line may be cut short."""
    whole = line().encode()
    with pytest.raises(JournalError, match="line 1: is no line of a journal"):
        replay(whole[:-5] + b"\n" + whole + b"\n", TABLES)


def test_lines_of_one_machine_must_join() -> None:
    """With the ids that make an identity given, a gap between two lines of the same machine is found; without, not."""
    lines = [
        line(ids={"rollout_id": "a", "call": 1}),
        line(ids={"rollout_id": "b", "call": 2}),
        line(ids={"rollout_id": "a", "call": 3}, state="running"),
    ]
    assert replay(lines, TABLES).lines == 3
    with pytest.raises(JournalError, match="line 3: handoff stood in retained, not in running"):
        replay(lines, TABLES, ["rollout_id"])


def test_a_guarded_cell_allows_each_of_its_branches() -> None:
    """The data is not in the journal, so any branch will do, and nothing else."""
    closed = dict(machine="account", event="Closed", state="open")
    assert replay([line(**closed, next=Account.CLOSED.value)], TABLES).lines == 1
    assert replay([line(**closed, next="open", refused="not_empty")], TABLES).lines == 1
    with pytest.raises(JournalError, match="leads to frozen"):
        replay([line(**closed, next="frozen")], TABLES)
