"""A result from its server to the one ledger, by the sequences that matter (protocol.md section 9)."""

from __future__ import annotations

from typing import Any

import pytest

from participants.machines.handoff import (
    HANDOFF,
    LEDGER_ENTRY,
    AcceptResult,
    Acknowledged,
    Asked,
    DropResult,
    Entry,
    Finished,
    Handoff,
    JoinExecution,
    Kept,
    OweAcknowledgement,
    Received,
    Saved,
    SendResult,
)
from statecore import Refused, Snapshot, Table

RUNNING = HANDOFF.start(Kept("task"))
RETAINED, _ = HANDOFF.step(RUNNING, Finished("r1"))
RELEASED, _ = HANDOFF.step(RETAINED, Acknowledged("r1"))
LIVE = LEDGER_ENTRY.start()
RECEIVED, _ = LEDGER_ENTRY.step(LIVE, Received("r1"))
SAVED, _ = LEDGER_ENTRY.step(RECEIVED, Saved())


def code(table: Table[Any, Any], machine: Snapshot[Any, Any], event: Any) -> str:
    with pytest.raises(Refused) as caught:
        table.step(machine, event)
    return caught.value.code


def test_a_repeated_run_gets_the_one_result() -> None:
    """Running: it joins; retained: the same result with the same receipt; released: it is gone. Covers: I10, I68"""
    assert HANDOFF.step(RUNNING, Asked("task")) == (RUNNING, (JoinExecution(),))
    assert HANDOFF.step(RETAINED, Asked("task")) == (RETAINED, (SendResult("r1"),))
    assert code(HANDOFF, RELEASED, Asked("task")) == "result_released"


def test_another_task_under_the_same_attempt_is_refused() -> None:
    """The attempt belongs to the task it was started with. Covers: I60"""
    for machine in (RUNNING, RETAINED):
        assert code(HANDOFF, machine, Asked("another task")) == "duplicate_execution"


def test_s35_a_result_is_kept_until_its_exact_receipt_comes_back() -> None:
    """No other receipt releases it; the right one does, and once more is answered the same. Covers: I66, S35"""
    assert code(HANDOFF, RETAINED, Acknowledged("r2")) == "receipt_mismatch"
    assert HANDOFF.step(RETAINED, Acknowledged("r1"))[1] == (DropResult("r1"),)
    assert HANDOFF.step(RELEASED, Acknowledged("r1")) == (RELEASED, ())
    assert code(HANDOFF, RELEASED, Acknowledged("r2")) == "receipt_mismatch"
    assert code(HANDOFF, RUNNING, Acknowledged("r1")) == "not_finished"


def test_an_execution_has_one_result() -> None:
    """Finishing again with the same receipt is a repeat, with another one a bug of the caller. Covers: I68"""
    assert HANDOFF.step(RETAINED, Finished("r1")) == (RETAINED, (SendResult("r1"),))
    assert code(HANDOFF, RETAINED, Finished("r2")) == "already_finished"
    assert code(HANDOFF, RELEASED, Finished("r1")) == "result_released"
    assert HANDOFF.step(RUNNING, Finished("r1")) == (RETAINED, (SendResult("r1"),))
    assert RELEASED.state is Handoff.RELEASED


def test_the_first_result_of_a_rollout_stands() -> None:
    """It goes to the framework once; repeats and other attempts' results do not. Covers: I11, I68"""
    assert LEDGER_ENTRY.step(LIVE, Received("r1"))[1] == (AcceptResult("r1"),)
    for receipt in ("r1", "r2"):
        assert LEDGER_ENTRY.step(RECEIVED, Received(receipt)) == (RECEIVED, ())


def test_nothing_is_acknowledged_before_it_is_saved() -> None:
    """Receiving owes nothing, saving does; what was not received cannot be saved. Covers: I67"""
    assert code(LEDGER_ENTRY, LIVE, Saved()) == "not_received"
    assert LEDGER_ENTRY.step(RECEIVED, Saved()) == (SAVED, (OweAcknowledgement("r1"),))
    assert LEDGER_ENTRY.step(SAVED, Saved()) == (SAVED, ())
    assert SAVED.state is Entry.SAVED


def test_s63_the_loser_is_acknowledged_as_well() -> None:
    """Once the rollout is saved, any of its retained results may go, winner or not. Covers: I69, S63"""
    for receipt in ("r1", "r2"):
        assert LEDGER_ENTRY.step(SAVED, Received(receipt)) == (SAVED, (OweAcknowledgement(receipt),))
