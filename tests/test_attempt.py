"""One attempt of a rollout: continued once, never both completed and resumable (protocol.md sections 3 to 7)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants.machines.attempt import (
    ATTEMPT,
    AttemptState,
    Completed,
    Dispatched,
    Parked,
    PartWritten,
    Released,
    Restored,
    Tombstoned,
    TurnedAway,
)
from statecore import Refused, Snapshot


def after(*events: Any) -> Snapshot[AttemptState, bool]:
    """The attempt after all of `events`, none of them refused."""
    machine = ATTEMPT.start()
    for event in events:
        machine, _ = ATTEMPT.step(machine, event)
    return machine


def code(machine: Snapshot[AttemptState, bool], event: Any) -> str:
    with pytest.raises(Refused) as caught:
        ATTEMPT.step(machine, event)
    return caught.value.code


RUNNING = (Dispatched(),)
COMMITTED = (Dispatched(), Parked(), PartWritten())


def test_a_checkpoint_and_on() -> None:
    """Queued, running, parked, committed, running again, completed."""
    assert after(*RUNNING, Parked()).state is AttemptState.PARKED
    assert after(*COMMITTED).state is AttemptState.COMMITTED
    assert after(*COMMITTED, Released(), Completed()).state is AttemptState.COMPLETED


def test_never_both_completed_and_resumable() -> None:
    """What stands at a boundary does not complete, what is completed neither parks nor is written. Covers: I65"""
    assert code(after(*RUNNING, Parked()), Completed()) == "parked"
    assert code(after(*COMMITTED), Completed()) == "parked"
    completed = after(*RUNNING, Completed())
    for event in (Parked(), PartWritten(), Restored(), Dispatched(), TurnedAway()):
        assert code(completed, event) == "already_completed"
    assert not completed.state.resumable


@given(st.lists(st.sampled_from([kind() for kind in ATTEMPT.events]), max_size=40))
def test_completed_and_tombstoned_are_for_ever(tried: list[Any]) -> None:
    """Whatever comes, an attempt that has ended stays as it ended. Covers: I6, I65, I70"""
    machine = ATTEMPT.start()
    for event in tried:
        before = machine
        try:
            machine, _ = ATTEMPT.step(machine, event)
        except Refused:
            continue
        if before.state in ATTEMPT.final:
            assert machine == before


def test_a_repeated_run_moves_nothing() -> None:
    """It joins the one execution: running stays running, what stands at a boundary stands on. Covers: I10, I24"""
    for machine in (after(*RUNNING), after(*RUNNING, Parked()), after(*COMMITTED)):
        assert ATTEMPT.step(machine, Dispatched())[0].state is machine.state


def test_what_comes_again_moves_nothing() -> None:
    """Standing at a boundary, being written, and the opening of a server twice; a late refusal of its `/run`, and an
    opening for what does not stand. Covers: I15
    """
    for machine, events in {
        after(): (TurnedAway(), Released()),
        after(*RUNNING): (Released(),),
        after(*RUNNING, Parked()): (TurnedAway(), Parked()),
        after(*COMMITTED): (TurnedAway(), Parked(), PartWritten()),
        after(*RUNNING, Completed()): (Released(), Completed()),
    }.items():
        for event in events:
            assert ATTEMPT.step(machine, event)[0].state is machine.state, event


def test_what_has_not_happened_is_not_taken() -> None:
    """A boundary, a part or a result of what does not run, a part of what does not stand, a restore of what runs."""
    for event in (Parked(), PartWritten(), Completed()):
        assert code(after(), event) == "not_started"
    assert code(after(*RUNNING), PartWritten()) == "not_parked"
    for events in (RUNNING, (*RUNNING, Parked()), COMMITTED):
        assert code(after(*events), Restored()) == "already_started"


def test_turned_away_is_sent_again_under_the_same_number() -> None:
    """`admission_closed` puts it back to where it was before the dispatch. Covers: I3"""
    assert after(*RUNNING, TurnedAway()).state is AttemptState.QUEUED
    assert after(*RUNNING, TurnedAway(), Dispatched()).state is AttemptState.RUNNING


def test_a_continuation_waits_until_it_is_claimed_once() -> None:
    """Opening its server does not start it, a checkpoint meanwhile finds it as it is. Covers: I60, I62"""
    waiting = after(Restored())
    assert waiting.state is AttemptState.RESTORED and waiting.state.resumable
    for event in (Released(), PartWritten(), TurnedAway(), Restored()):
        assert after(Restored(), event) == waiting
    assert code(waiting, Parked()) == code(waiting, Completed()) == "not_started"
    assert after(Restored(), Dispatched()).state is AttemptState.RUNNING
    assert code(after(Restored(), Dispatched()), Restored()) == "already_started"


def test_a_claim_that_was_turned_away_leaves_a_continuation() -> None:
    """It does not start over; once it has run to a boundary its claim cannot be undone any more. Covers: I60"""
    assert after(Restored(), Dispatched(), TurnedAway()).state is AttemptState.RESTORED
    assert after(Restored(), Dispatched(), Parked(), Released(), TurnedAway()).state is AttemptState.QUEUED


def test_i06_a_tombstoned_attempt_does_nothing_any_more() -> None:
    """Every request of it is stale; opening a server and retiring it again are no requests. Covers: I6, I7"""
    for events in ((), RUNNING, (*RUNNING, Parked()), COMMITTED, (Restored(),)):
        dead = after(*events, Tombstoned())
        assert dead.state is AttemptState.TOMBSTONED
        for event in (Dispatched(), TurnedAway(), Restored(), Parked(), PartWritten(), Completed()):
            assert code(dead, event) == "stale_attempt"
        assert ATTEMPT.step(dead, Released())[0] == ATTEMPT.step(dead, Tombstoned())[0] == dead


def test_retiring_does_not_destroy_a_result() -> None:
    """A completed attempt stays completed. Covers: I70"""
    completed = after(*RUNNING, Completed())
    assert ATTEMPT.step(completed, Tombstoned())[0] == completed
