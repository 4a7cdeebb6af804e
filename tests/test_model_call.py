"""A model call's two lifetimes: its one disposition for a cut, and its response (protocol.md sections 4, 6 and 10)."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from participants.machines.model_call import (
    MODEL_CALL,
    RESPONSE,
    AdmissionClosed,
    AdmissionOpened,
    CallerLeft,
    CallState,
    Completed,
    Failed,
    LeftOut,
    NeverStarted,
    PrefixFrozen,
    ResponseReady,
    ResponseReleased,
    ResponseSent,
    ResponseState,
)
from statecore import Refused, Snapshot, Table

DISPOSITIONS = {
    Completed(): CallState.COMPLETED_DURABLE,
    Failed(): CallState.FAILED_DURABLE,
    PrefixFrozen(): CallState.DURABLE_PREFIX,
    NeverStarted(): CallState.NEVER_STARTED,
    LeftOut(): CallState.EXCLUDED,
}
LATER = (CallState.DURABLE_PREFIX, CallState.NEVER_STARTED, CallState.EXCLUDED)


def after(table: Table[Any, Any], *events: Any) -> Snapshot[Any, Any]:
    """The machine after all of `events`, none of them refused."""
    machine = table.start()
    for event in events:
        machine, _ = table.step(machine, event)
    return machine


def code(table: Table[Any, Any], machine: Snapshot[Any, Any], event: Any) -> str:
    with pytest.raises(Refused) as caught:
        table.step(machine, event)
    return caught.value.code


def test_a_frozen_call_has_exactly_one_disposition() -> None:
    """Whichever comes first stands for this checkpoint; no second one replaces it. Covers: I25"""
    for first, second in permutations(DISPOSITIONS, 2):
        disposed = after(MODEL_CALL, AdmissionClosed(), first)
        assert disposed.state is DISPOSITIONS[first]
        try:
            again, _ = MODEL_CALL.step(disposed, second)
        except Refused as refused:
            assert refused.code in ("already_disposed", "call_ended")
        else:
            assert again.state is disposed.state


def test_only_frozen_calls_are_cut() -> None:
    """While admission is open a call has no disposition but its end. Covers: I25"""
    admitted = after(MODEL_CALL)
    for event in (PrefixFrozen(), NeverStarted(), LeftOut()):
        assert code(MODEL_CALL, admitted, event) == "not_frozen"
    assert after(MODEL_CALL, AdmissionClosed(), AdmissionOpened()) == admitted


@pytest.mark.parametrize("cut", [event for event, state in DISPOSITIONS.items() if state in LATER], ids=str)
@pytest.mark.parametrize("end", [Completed(), Failed()], ids=str)
def test_a_call_that_ends_after_its_cut_ends_for_the_next_checkpoint(cut: Any, end: Any) -> None:
    """Its disposition stands until the opening; then it is what it has become. Covers: I25"""
    ended = after(MODEL_CALL, AdmissionClosed(), cut, end)
    assert ended.state is DISPOSITIONS[cut]
    assert code(MODEL_CALL, ended, end) == "call_ended"
    assert MODEL_CALL.step(ended, AdmissionOpened())[0].state is DISPOSITIONS[end]
    assert after(MODEL_CALL, AdmissionClosed(), cut, AdmissionOpened()) == after(MODEL_CALL)


def test_an_ended_call_is_in_no_later_cut() -> None:
    """Closing and opening pass it by; it ends once."""
    for end in (Completed(), Failed()):
        ended = after(MODEL_CALL, end)
        for event in (AdmissionClosed(), AdmissionOpened()):
            assert MODEL_CALL.step(ended, event)[0] == ended
        assert code(MODEL_CALL, ended, end) == "call_ended"
        assert code(MODEL_CALL, ended, LeftOut()) == "already_disposed"


def test_a_response_is_held_while_the_server_is_closed() -> None:
    """It leaves only after the opening, and is sent at once if the server is open. Covers: I24"""
    held = after(RESPONSE, ResponseReady(closed=True))
    assert held.state is ResponseState.HELD
    assert code(RESPONSE, held, ResponseSent()) == "held"
    delivered = after(RESPONSE, ResponseReady(closed=True), ResponseReleased(), ResponseSent())
    assert delivered.state is ResponseState.DELIVERED
    assert after(RESPONSE, ResponseReady(closed=False), ResponseSent()) == delivered
    assert code(RESPONSE, after(RESPONSE), ResponseSent()) == "not_ready"


def test_a_caller_that_left_gets_nothing() -> None:
    """From wherever it stood, the response is abandoned and never sent; a delivered one stays delivered."""
    before: list[tuple[Any, ...]] = [(), (ResponseReady(closed=True),), (ResponseReady(closed=False),)]
    for events in before:
        abandoned = after(RESPONSE, *events, CallerLeft())
        assert abandoned.state is ResponseState.ABANDONED
        for event in (ResponseSent(), ResponseReady()):
            assert code(RESPONSE, abandoned, event) == "response_ended"
    delivered = after(RESPONSE, ResponseReady(), ResponseSent())
    assert RESPONSE.step(delivered, CallerLeft())[0] == delivered
