"""The step: pure, guards first, the state last, effects in order; a refused event leaves everything equal."""

from __future__ import annotations

import copy
import pickle

import pytest
from attrs import frozen
from attrs.exceptions import FrozenInstanceError
from hypothesis import given
from hypothesis import strategies as st

from statecore import DefinitionError, Refused, Snapshot, StatecoreError, Table, go
from tests.sample_tables import (
    ACCOUNT,
    HANDOFF,
    LAMP,
    Account,
    Acknowledged,
    Closed,
    Finished,
    Handoff,
    Lamp,
    Pay,
    Pressed,
    Removed,
    SendResult,
    Withdrawn,
)


def test_start_is_the_initial_state_with_the_first_data() -> None:
    """A machine begins where its table says, with data of its own if given."""
    assert HANDOFF.start() == Snapshot(Handoff.RUNNING, "")
    assert HANDOFF.start("r0") == Snapshot(Handoff.RUNNING, "r0")
    assert LAMP.start() == Snapshot(Lamp.OFF, None)


def test_a_step_returns_the_next_snapshot_and_the_effects_owed() -> None:
    """The given snapshot stays as it was; what comes back holds the new state, the new data and the effects."""
    before = HANDOFF.start()
    after, owed = HANDOFF.step(before, Finished("r1"))
    assert (after, owed) == (Snapshot(Handoff.RETAINED, "r1"), (SendResult("r1"),))
    assert before == Snapshot(Handoff.RUNNING, "")


def test_a_repeat_stays_and_owes_the_same_answer() -> None:
    """A stay keeps the state and may owe effects again. Covers: I68"""
    kept, _ = HANDOFF.step(HANDOFF.start(), Finished("r1"))
    again, owed = HANDOFF.step(kept, Finished("r2"))
    assert (again, owed) == (kept, (SendResult("r1"),))


def test_a_plain_stay_returns_the_same_snapshot() -> None:
    """Nothing changes, so nothing is made."""
    done = Snapshot(Handoff.RELEASED, "r1")
    assert HANDOFF.step(done, Acknowledged("other")) == (done, ())


def test_a_go_without_do_keeps_the_data() -> None:
    """The data goes along into the new state; a table without data holds None."""
    assert HANDOFF.step(Snapshot(Handoff.RETAINED, "r1"), Acknowledged("r1"))[0] == Snapshot(Handoff.RELEASED, "r1")
    assert LAMP.step(LAMP.start(), Pressed()) == (Snapshot(Lamp.ON, None), ())


def test_guards_decide_and_may_be_nested() -> None:
    """Each branch of a guard within a guard is taken when its guards say so."""
    rich = Snapshot(Account.OPEN, 10)
    assert ACCOUNT.step(rich, Withdrawn(4)) == (Snapshot(Account.OPEN, 6), (Pay(4),))
    assert ACCOUNT.step(rich, Withdrawn(11)) == (Snapshot(Account.FROZEN, 10), ())
    with pytest.raises(Refused, match="not_positive"):
        ACCOUNT.step(rich, Withdrawn(0))


def test_a_refusal_tells_code_state_event_and_what_is_allowed() -> None:
    """The error has all of it as attributes and in its text, the detail included."""
    event = Withdrawn(12)
    with pytest.raises(Refused) as caught:
        ACCOUNT.step(Snapshot(Account.FROZEN, 10), event)
    refused = caught.value
    assert (refused.code, refused.state, refused.event) == ("not_covered", Account.FROZEN, event)
    assert (refused.allowed, refused.detail) == (("Withdrawn",), "2 missing")
    assert str(refused) == "not_covered: Withdrawn refused in state frozen: 2 missing (allowed here: Withdrawn)"
    assert isinstance(refused, StatecoreError)


def test_a_refusal_with_nothing_allowed_says_so() -> None:
    """The text never ends in an empty list."""
    assert str(Refused("gone", Lamp.OFF, "Pressed")) == "gone: Pressed refused in state off (allowed here: nothing)"


@given(st.sampled_from(list(Account)), st.integers(-5, 20), st.integers(-5, 20) | st.none())
def test_a_step_is_pure_and_leaves_the_snapshot_equal(state: Account, balance: int, amount: int | None) -> None:
    """The same snapshot and event give the same answer, and the snapshot never changes, refused or not."""
    snapshot = Snapshot(state, balance)
    event = Closed() if amount is None else Withdrawn(amount)
    before = copy.deepcopy(snapshot)
    answers = []
    for _ in range(2):
        try:
            answers.append(repr(ACCOUNT.step(snapshot, event)))
        except Refused as refused:
            answers.append(repr(refused))
        assert snapshot == before
    assert answers[0] == answers[1]


def test_an_undeclared_event_is_a_mistake_and_no_refusal() -> None:
    """An event that the table does not know is named, with those that it knows; a subclass is another event."""

    @frozen
    class Louder(Finished):
        pass

    for event in ("Finished", None, Pressed(), Louder("r1")):
        with pytest.raises(DefinitionError, match="is not declared; give an instance of one of: Finished, Ack"):
            HANDOFF.step(HANDOFF.start(), event)


def test_a_state_of_another_table_is_a_mistake() -> None:
    """A snapshot that does not belong to the table is named."""
    with pytest.raises(DefinitionError, match="is no state of it; states are running, retained, released"):
        HANDOFF.step(Snapshot(Lamp.OFF, ""), Finished("r1"))  # type: ignore[arg-type]


def test_a_snapshot_is_frozen_hashable_slotted_and_cheap_to_copy() -> None:
    """It can be a key, cannot be changed, takes no other attributes, and survives copy and pickle."""
    kept, _ = HANDOFF.step(HANDOFF.start(), Finished("r1"))
    assert {kept: 1}[Snapshot(Handoff.RETAINED, "r1")] == 1
    assert repr(kept) == "Snapshot(retained, 'r1')"
    with pytest.raises(FrozenInstanceError):
        kept.state = Handoff.RUNNING  # type: ignore[misc]
    with pytest.raises((FrozenInstanceError, AttributeError)):
        kept.other = 1  # type: ignore[attr-defined]
    assert not hasattr(kept, "__dict__")
    assert pickle.loads(pickle.dumps(kept)) == kept
    assert copy.deepcopy(kept) == kept


def test_what_a_do_raises_comes_through_and_changes_nothing() -> None:
    """A bug in a `do` is no refusal; the snapshot is as it was."""

    def broken(data: None, event: Pressed) -> tuple[None, tuple[()]]:
        raise ZeroDivisionError("a bug")

    cells = {Lamp.OFF: {Pressed: go(Lamp.ON, broken)}, Lamp.ON: {Pressed: go(Lamp.OFF)}}
    table = Table("broken", initial=Lamp.OFF, cells=cells)
    start = table.start()
    with pytest.raises(ZeroDivisionError):
        table.step(start, Pressed())
    assert start == Snapshot(Lamp.OFF, None)


def test_a_refused_event_without_data_leaves_it_equal_too() -> None:
    """The fast path for tables without data refuses as any other."""
    with pytest.raises(Refused, match="fixed_to_the_wall"):
        LAMP.step(LAMP.start(), Removed())
