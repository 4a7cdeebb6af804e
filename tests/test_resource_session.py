"""A session of a resources server: its position counts its own mutations (protocol.md sections 3, 4 and 13)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants.machines.resource_session import (
    OPERATIONS_KEPT,
    RESOURCE_SESSION,
    Closed,
    Froze,
    Installed,
    Mutated,
    Operation,
    Seeded,
    SessionData,
    SessionState,
    Thawed,
    Used,
    VerifyFailed,
    VerifyStarted,
    VerifySucceeded,
)
from participants.records.positions import SEED_HISTORY, Position, next_history
from statecore import Refused, Snapshot

Machine = Snapshot[SessionState, SessionData]
ONE, OTHER = "11" * 16, "22" * 16


def after(*events: Any, start: SessionData | None = None) -> Machine:
    """The session after all of `events`, none of them refused."""
    machine = RESOURCE_SESSION.start(start or SessionData())
    for event in events:
        machine, _ = RESOURCE_SESSION.step(machine, event)
    return machine


def code(machine: Machine, event: Any) -> str:
    with pytest.raises(Refused) as caught:
        RESOURCE_SESSION.step(machine, event)
    return caught.value.code


LIVE = after(Seeded(ONE, "seed-1"))
FROZEN = after(Seeded(ONE, "seed-1"), Mutated("op-1", "{}"), Froze())
events = st.one_of(
    st.builds(Mutated, st.sampled_from(["op-1", "op-2", "op-3"])),
    st.sampled_from([kind() for kind in RESOURCE_SESSION.events if kind not in (Seeded, Installed, Mutated)]),
    st.builds(Seeded, st.sampled_from([ONE, OTHER]), st.sampled_from(["", "seed-1", "seed-2"])),
)


@given(st.lists(events, max_size=40))
def test_the_revision_counts_successful_mutations_and_nothing_else(tried: list[Any]) -> None:
    """Whatever comes: +1 and one link of history for a new operation, else the same position. Covers: I36, I81"""
    machine = LIVE
    for event in tried:
        before = machine.data
        try:
            machine, _ = RESOURCE_SESSION.step(machine, event)
        except Refused:
            continue
        position, old = machine.data.position, before.position
        assert position is not None and old is not None and position.incarnation == ONE
        if isinstance(event, Mutated) and before.applied(event.operation_id) is None:
            revision = old.revision + 1
            assert position == Position(revision, next_history(old.history, event.operation_id, revision), ONE)
        else:
            assert position == old


def test_a_repeated_operation_is_answered_from_its_record() -> None:
    """It changes nothing, also while the session is frozen; its reply is remembered. Covers: I15, I36, I57"""
    applied = after(Seeded(ONE), Mutated("op-1", '{"value": 1}'))
    assert RESOURCE_SESSION.step(applied, Mutated("op-1", "another reply"))[0] == applied
    assert applied.data.applied("op-1") == Operation("op-1", '{"value": 1}')
    assert RESOURCE_SESSION.step(FROZEN, Mutated("op-1"))[0] == FROZEN


def test_remembered_operations_are_bounded() -> None:
    """The last 64 are kept, or as many as configured. Covers: I75"""
    many = [Mutated(f"op-{number}") for number in range(OPERATIONS_KEPT + 6)]
    data = after(Seeded(ONE), *many).data
    assert len(data.operations) == OPERATIONS_KEPT == 64
    assert data.applied("op-5") is None and data.applied("op-6") is not None
    assert len(after(Seeded(ONE), *many, start=SessionData(max_operations=2)).data.operations) == 2


def test_a_seed_sent_again_makes_no_second_session() -> None:
    """The same seed is answered as done; another one, or a late one after a mutation, is refused."""
    assert RESOURCE_SESSION.step(LIVE, Seeded(OTHER, "seed-1"))[0] == LIVE
    assert code(LIVE, Seeded(OTHER, "seed-2")) == "checkpoint_error"
    assert RESOURCE_SESSION.step(after(Seeded(ONE)), Seeded(OTHER))[0] == after(Seeded(ONE))
    assert code(after(Seeded(ONE), Mutated("op-1")), Seeded(OTHER)) == "checkpoint_error"


def test_s60_a_session_that_is_not_known_is_lost() -> None:
    """Nothing but a seed or a restore makes one; after its end nothing makes it again. Covers: S60"""
    absent, ended = after(), after(Seeded(ONE), Closed())
    for event in (Mutated("op-1"), Used(), VerifyStarted()):
        assert code(absent, event) == code(ended, event) == "session_lost"
    assert code(ended, Seeded(OTHER, "seed-2")) == code(ended, Installed(Position(0))) == "session_lost"
    assert RESOURCE_SESSION.step(ended, Closed())[0] == ended


def test_a_frozen_session_takes_no_mutation_seed_or_verification() -> None:
    """What is exported is what the boundary names; thawed it goes on from there. Covers: I24, I37, S55"""
    for event in (Mutated("op-2"), Seeded(OTHER), VerifyStarted()):
        assert code(FROZEN, event) == "session_frozen"
    thawed, _ = RESOURCE_SESSION.step(FROZEN, Thawed())
    assert thawed.data == FROZEN.data and thawed.state is SessionState.LIVE


def test_a_restore_keeps_the_whole_position() -> None:
    """Revision, history and incarnation are those of the record; only its first use makes it live. Covers: I61, I62"""
    position = Position(7, "ab" * 16, OTHER)
    restored = after(Installed(position, (Operation("op-7", "{}"),)))
    assert restored.data.position == position and restored.data.applied("op-7")
    assert RESOURCE_SESSION.step(restored, Froze())[0] == restored
    assert code(restored, Mutated("op-8")) == code(restored, VerifyStarted()) == "not_used_yet"
    used, _ = RESOURCE_SESSION.step(restored, Used())
    assert used.data == restored.data and used.state is SessionState.LIVE
    for machine in (LIVE, FROZEN, restored):
        assert code(machine, Installed(position)) == "checkpoint_error"


def test_a_continuation_seeds_no_new_session() -> None:
    """A restored session refuses every seed. Covers: I58"""
    assert code(after(Installed(Position(0, SEED_HISTORY, OTHER))), Seeded(ONE, "seed-1")) == "checkpoint_error"


def test_verification_ends_the_session_only_when_it_succeeds() -> None:
    """While it runs nothing else moves and nothing is frozen; after a failure the state is kept."""
    verifying, _ = RESOURCE_SESSION.step(LIVE, VerifyStarted())
    for event in (Mutated("op-1"), Froze(), Seeded(ONE, "seed-1"), VerifyStarted()):
        assert code(verifying, event) == "session_busy"
    assert RESOURCE_SESSION.step(verifying, VerifyFailed())[0] == LIVE
    assert RESOURCE_SESSION.step(verifying, VerifySucceeded())[0].state is SessionState.ENDED
    assert code(LIVE, VerifySucceeded()) == code(LIVE, VerifyFailed()) == "not_verifying"


def test_a_weak_position_cannot_count_on() -> None:
    """A position without history has nothing to go on from: an error, never a made-up history. Covers: I81"""
    weak = after(Installed(Position(3)), Used())
    with pytest.raises(ValueError, match="no history"):
        RESOURCE_SESSION.step(weak, Mutated("op-1"))
