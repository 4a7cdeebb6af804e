"""The admission gate: closing is atomic with the admission test, and counts stay counts (protocol.md section 6)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants.machines.gate import (
    GATE,
    Admit,
    Arrived,
    ArrivedImpatient,
    BecameQuiet,
    CloseRequested,
    Ended,
    GateData,
    GateState,
    Hold,
    Left,
    OpenRequested,
    ReleaseHeld,
    Settled,
    SettledEnded,
    Stirred,
)
from statecore import Refused, Snapshot

Machine = Snapshot[GateState, GateData]


def after(*events: Any, start: GateData | None = None) -> Machine:
    """The gate after all of `events`, none of them refused."""
    machine = GATE.start(start or GateData())
    for event in events:
        machine, _ = GATE.step(machine, event)
    return machine


def code(machine: Machine, event: Any) -> str:
    with pytest.raises(Refused) as caught:
        GATE.step(machine, event)
    return caught.value.code


def owed(machine: Machine, event: Any) -> list[Any]:
    return list(GATE.step(machine, event)[1])


events = st.sampled_from([kind() for kind in GATE.events])


@given(st.lists(events, max_size=60), st.integers(0, 3))
def test_counts_are_never_negative_and_quiet_means_nothing_active(tried: list[Any], max_held: int) -> None:
    """After any events: no count below zero, the held bounded, none held while open, quiet if closed with none active.

    Covers: I23, I75
    """
    machine = GATE.start(GateData(max_held=max_held))
    for event in tried:
        try:
            machine, effects = GATE.step(machine, event)
        except Refused:
            continue
        data = machine.data
        assert min(data.active, data.settled, data.held) >= 0 and data.held <= max_held
        if machine.state is GateState.OPEN:
            assert data.held == 0
        else:
            assert (machine.state is GateState.QUIET) == (data.active == 0)
        if Admit() in effects:
            assert machine.state is GateState.OPEN, "admitted by a closed gate"


@given(st.lists(events, max_size=60))
def test_becoming_quiet_is_said_exactly_once_per_closing(tried: list[Any]) -> None:
    """Whoever waits for the gate to be quiet is told when it becomes so, and not again. Covers: I23"""
    machine = GATE.start()
    for event in tried:
        before = machine
        try:
            machine, effects = GATE.step(machine, event)
        except Refused:
            continue
        became = machine.state is GateState.QUIET and before.state is not GateState.QUIET
        assert (BecameQuiet() in effects) == became


def test_before_the_closing_or_after_it() -> None:
    """A request is admitted before the closing, or held after it: never both, never neither. Covers: I23"""
    open_gate, closed = after(), after(CloseRequested())
    assert owed(open_gate, Arrived()) == owed(open_gate, ArrivedImpatient()) == [Admit()]
    assert owed(closed, Arrived()) == [Hold()]
    assert code(closed, ArrivedImpatient()) == "admission_closed"


def test_closing_drains_what_was_admitted() -> None:
    """The last active thing that ends or settles makes it quiet; with nothing active it is quiet at once."""
    assert owed(after(), CloseRequested()) == [BecameQuiet()]
    draining = after(Arrived(), Arrived(), CloseRequested())
    assert draining.state is GateState.DRAINING
    one_left = after(Arrived(), Arrived(), CloseRequested(), Ended())
    assert one_left.state is GateState.DRAINING
    for last in (Ended(), Settled()):
        assert owed(one_left, last) == [BecameQuiet()]
        assert after(Arrived(), CloseRequested(), last).state is GateState.QUIET


def test_what_is_quiet_stays_quiet_while_it_is_closed() -> None:
    """A settled thing may not move again before the opening; it may end (it was retired). Covers: I24"""
    quiet = after(Arrived(), Settled(), CloseRequested())
    assert quiet.state is GateState.QUIET and code(quiet, Stirred()) == "admission_closed"
    assert after(Arrived(), Settled(), CloseRequested(), SettledEnded()).data == GateData()
    assert after(Arrived(), Settled(), CloseRequested(), OpenRequested(), Stirred()).data.active == 1


def test_opening_releases_everybody_who_is_held() -> None:
    """All arrive again as newcomers; one that left while held was never admitted. Covers: I20"""
    closed = after(CloseRequested(), Arrived(), Arrived(), Left())
    assert closed.data.held == 1
    assert owed(closed, OpenRequested()) == [ReleaseHeld()]
    opened, _ = GATE.step(closed, OpenRequested())
    assert opened == after() and code(opened, Left()) == "nothing_held"


def test_held_requests_are_bounded() -> None:
    """The one above the bound is refused and counts nowhere. Covers: I75"""
    full = after(CloseRequested(), Arrived(), Arrived(), start=GateData(max_held=2))
    assert code(full, Arrived()) == "too_many_held"
    assert full.data.held == 2


def test_repeated_closing_and_opening_change_nothing() -> None:
    """Closing a closed gate and opening an open one are answered as done. Covers: I15"""
    for closed in (after(CloseRequested()), after(Arrived(), CloseRequested())):
        assert GATE.step(closed, CloseRequested()) == (closed, ())
    assert GATE.step(after(Arrived()), OpenRequested()) == (after(Arrived()), ())


def test_what_was_never_admitted_cannot_end() -> None:
    """Ends, settlings and departures without their beginning are refused by name."""
    for machine in (after(), after(CloseRequested())):
        assert code(machine, Ended()) == code(machine, Settled()) == "nothing_active"
        assert code(machine, SettledEnded()) == "nothing_settled"
        assert code(machine, Left()) == "nothing_held"
    assert code(after(), Stirred()) == "nothing_settled"
