"""The example that this project shows first: declare, step, check. It says what it promises, and its twin fails."""

from __future__ import annotations

import pytest

from statecore import InvariantBroken, Snapshot, Verdict, World, action, always, check, recoverable, slot
from tests.sample_tables import HANDOFF, Acknowledged, Finished, Handoff, SendResult


class HandoffWorld(World):
    """A server that keeps a result, a network that loses messages, a trainer that saves and acknowledges."""

    server: Snapshot[Handoff, str] = slot(HANDOFF.start())
    wire: frozenset[SendResult] = slot(frozenset())
    saved: bool = slot(False)

    @action
    def finish(w) -> None:
        w.server, owed = HANDOFF.step(w.server, Finished("r1"))
        w.wire |= set(owed)

    @action(fault=True)
    def crash_of_the_network(w) -> None:
        w.wire = frozenset()

    @action
    def save(w) -> None:
        w.saved = w.saved or SendResult("r1") in w.wire

    @action
    def acknowledge(w) -> bool | None:
        if not w.saved:
            return False
        w.server, _ = HANDOFF.step(w.server, Acknowledged("r1"))
        return None

    @always(covers="I67")
    def kept_until_saved(w) -> bool:
        return w.saved or w.server.state is not Handoff.RELEASED

    @recoverable(covers="I69")
    def released(w) -> bool:
        return w.server.state is Handoff.RELEASED


class AcknowledgesUnsaved(HandoffWorld):
    """The twin without `if not w.saved`."""

    @action
    def acknowledge(w) -> None:
        w.server, _ = HANDOFF.step(w.server, Acknowledged("r1"))


def test_the_example_holds() -> None:
    """Seven reachable states, a result kept until it is saved, and released in the end. Covers: I67, I69"""
    report = check(HandoffWorld).assert_holds()
    assert (report.verdict, report.distinct) == (Verdict.HOLDS, 7)


def test_its_twin_acknowledges_before_it_has_saved() -> None:
    """Without the guard the result is released unsaved, after two steps and no fewer. Covers: I67"""
    report = check(AcknowledgesUnsaved)
    assert report.verdict is Verdict.VIOLATED
    assert report.trace == ("finish", "acknowledge")
    assert report.violation is not None
    assert (report.violation.name, report.violation.covers) == ("kept_until_saved", ("I67",))
    with pytest.raises(InvariantBroken, match=r"kept_until_saved \(I67\) is broken after 2 steps"):
        report.assert_holds()


def test_the_trace_replays_by_hand() -> None:
    """A world is driven by hand with the same actions, and ends in the broken state."""
    w = AcknowledgesUnsaved()
    assert w.finish() and w.acknowledge()
    assert not w.holds(AcknowledgesUnsaved.kept_until_saved)
    assert HandoffWorld().acknowledge() is False
