"""The live `transitions` machine: it agrees with the table on every cell, and its known traps are fenced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import transitions

from models.two_phase_commit import MANAGER, TRANSACTION
from statecore import DefinitionError, InvariantBroken, Refused, Snapshot, StatecoreError, Table, go
from statecore.engine import Hooks, Live, agreement, mermaid
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

TABLES: list[Table[Any, Any]] = [HANDOFF, LAMP, ACCOUNT, MANAGER, TRANSACTION]
Hook = Callable[[transitions.EventData], None]


def raising(error: BaseException) -> Hook:
    def hook(event_data: transitions.EventData) -> None:
        raise error

    return hook


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_table_and_transitions_agree_on_every_cell(table: Table[Any, Any]) -> None:
    """Each state, each event, each outcome of the cell's guards: the same next state, effects or refusal."""
    assert agreement(table) >= len(table.states) * len(table.events)


def test_they_agree_on_real_values_too() -> None:
    """With sample snapshots and events the real guards and `do` run on both sides, with equal data and effects."""
    accounts = {
        Snapshot(state, balance): [Withdrawn(amount) for amount in (-1, 0, 5, 6)] + [Closed()]
        for state in Account
        for balance in (0, 5)
    }
    assert agreement(ACCOUNT, accounts) == agreement(ACCOUNT) + 30


def test_a_disagreement_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: a live machine that skips a transition is found, with the cell."""
    honest = Live._trigger
    monkeypatch.setattr(Live, "_trigger", lambda self, event: self.state is not Lamp.ON and honest(self, event))
    with pytest.raises(InvariantBroken, match="transitions refuses what the table allows"):
        agreement(LAMP)


def test_a_wrong_next_state_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A live machine that says something else than the step is found, and the trace holds both answers."""
    monkeypatch.setattr(Live, "snapshot", property(lambda self: Snapshot(Lamp.OFF, None)))
    with pytest.raises(InvariantBroken, match="table 'lamp' and transitions agree"):
        agreement(LAMP)


def test_a_live_machine_sends_events_and_returns_effects() -> None:
    """`send` moves it and returns what is owed; state, data and snapshot show where it stands."""
    live = Live(HANDOFF)
    assert live.snapshot == HANDOFF.start()
    assert live.send(Finished("r1")) == (SendResult("r1"),)
    assert (live.state, live.data) == (Handoff.RETAINED, "r1")
    assert live.send(Finished("r2")) == (SendResult("r1"),)
    assert live.send(Acknowledged("r1")) == ()
    assert live.snapshot == Snapshot(Handoff.RELEASED, "r1")


def test_it_can_start_from_any_snapshot() -> None:
    """A machine is restored by giving its snapshot."""
    assert Live(HANDOFF, snapshot=Snapshot(Handoff.RETAINED, "r1")).send(Acknowledged("r1")) == ()


@pytest.mark.parametrize(
    ("table", "snapshot", "event", "code"),
    [
        (HANDOFF, Snapshot(Handoff.RUNNING, ""), Acknowledged("r1"), "not_finished"),  # nothing leads on from here
        (HANDOFF, Snapshot(Handoff.RETAINED, "r1"), Acknowledged("r2"), "receipt_mismatch"),  # a guard says no
        (LAMP, Snapshot(Lamp.ON, None), Removed(), "fixed_to_the_wall"),  # refused in every state
    ],
)
def test_a_refused_event_leaves_the_machine_equal(
    table: Table[Any, Any], snapshot: Snapshot[Any, Any], event: object, code: str
) -> None:
    """Whatever the reason, the refusal is the table's and nothing has moved."""
    live = Live(table, snapshot=snapshot)
    with pytest.raises(Refused) as caught:
        live.send(event)
    assert caught.value.code == code
    assert live.snapshot == snapshot


def test_hooks_run_in_order_and_see_the_event() -> None:
    """before, on_exit, then the state and data are set, then on_enter, then after; each gets transitions' EventData."""
    seen: list[tuple[str, Any, Any]] = []

    def note(name: str) -> Hook:
        def hook(event_data: transitions.EventData) -> None:
            model: Any = event_data.model
            seen.append((name, model.state, model.data))
            assert event_data.kwargs["event"] == Finished("r1")

        return hook

    hooks = Hooks(
        before={Finished: note("before")},
        on_exit={Handoff.RUNNING: [note("exit 1"), note("exit 2")]},
        on_enter={Handoff.RETAINED: note("enter")},
        after={Finished: note("after")},
    )
    Live(HANDOFF, hooks=hooks).send(Finished("r1"))
    assert seen == [
        ("before", Handoff.RUNNING, ""),
        ("exit 1", Handoff.RUNNING, ""),
        ("exit 2", Handoff.RUNNING, ""),
        ("enter", Handoff.RETAINED, "r1"),
        ("after", Handoff.RETAINED, "r1"),
    ]


def test_a_stay_runs_neither_exit_nor_enter() -> None:
    """A stay is an internal transition: only before and after run, and the data is set in between."""
    seen: list[Any] = []

    def note(event_data: transitions.EventData) -> None:
        model: Any = event_data.model
        seen.append(model.data)

    hooks = Hooks(
        on_enter={Account.OPEN: raising(AssertionError("entered"))},
        on_exit={Account.OPEN: raising(AssertionError("left"))},
        before={Withdrawn: note},
        after={Withdrawn: note},
    )
    assert Live(ACCOUNT, snapshot=Snapshot(Account.OPEN, 5), hooks=hooks).send(Withdrawn(2)) == (Pay(2),)
    assert seen == [5, 3]


@pytest.mark.parametrize("error", [ValueError("a hook's bug"), KeyboardInterrupt()], ids=["Exception", "BaseException"])
@pytest.mark.parametrize(
    "hooks",
    [
        lambda error: Hooks(before={Finished: raising(error)}),
        lambda error: Hooks(on_exit={Handoff.RUNNING: raising(error)}),
        lambda error: Hooks(on_enter={Handoff.RETAINED: raising(error)}),
        lambda error: Hooks(after={Finished: raising(error)}),
    ],
    ids=["before", "on_exit", "on_enter", "after"],
)
def test_a_hook_that_raises_leaves_the_machine_equal(hooks: Any, error: BaseException) -> None:
    """transitions itself has moved the state when on_enter or after raises: here it is put back, and the error comes
    through as it is, KeyboardInterrupt included; the machine can go on."""
    live = Live(HANDOFF, hooks=hooks(error))
    with pytest.raises(type(error)) as caught:
        live.send(Finished("r1"))
    assert caught.value is error
    assert live.snapshot == HANDOFF.start()
    with pytest.raises(Refused, match="not_finished"):
        live.send(Acknowledged("r1"))


def test_transitions_itself_would_have_moved_the_state() -> None:
    """The trap is real: a bare machine stands in the new state after its on_enter callback has raised."""
    bare: Any = transitions.Machine(states=["a", "b"], initial="a", auto_transitions=False)
    bare.add_transition("move", "a", "b")
    bare.on_enter_b(raising(ValueError("a bug")))
    with pytest.raises((ValueError, TypeError)):
        bare.move()
    assert bare.state == "b"


def test_a_do_that_raises_leaves_the_machine_equal() -> None:
    """A bug in `do` comes through before anything has moved."""

    def broken(data: None, event: Pressed) -> tuple[None, tuple[()]]:
        raise ZeroDivisionError

    table = Table(
        "broken", initial=Lamp.OFF, cells={Lamp.OFF: {Pressed: go(Lamp.ON, broken)}, Lamp.ON: {Pressed: go(Lamp.OFF)}}
    )
    live = Live(table)
    with pytest.raises(ZeroDivisionError):
        live.send(Pressed())
    assert live.snapshot == table.start()


def test_a_hook_may_not_send() -> None:
    """It would see a machine half-way; the error says what to do instead, and nothing has moved."""
    live: Live[Lamp, None] = Live(LAMP, hooks=Hooks(after={Pressed: lambda _: bool(live.send(Pressed()))}))
    with pytest.raises(StatecoreError, match="Pressed was sent from within a hook; return it as an effect"):
        live.send(Pressed())
    assert live.state is Lamp.OFF


def test_another_machines_error_in_a_hook_is_no_refusal() -> None:
    """A MachineError of a machine that a hook drives comes through; it is not taken for our own refusal."""
    other: Any = transitions.Machine(states=["a", "b"], initial="b", auto_transitions=False)
    other.add_transition("move", "a", "b")
    live = Live(LAMP, hooks=Hooks(before={Pressed: lambda _: other.move()}))
    with pytest.raises(transitions.MachineError, match="Can't trigger event move"):
        live.send(Pressed())
    assert live.state is Lamp.OFF


def test_a_generated_machine_takes_nothing_more() -> None:
    """transitions takes a second transition for a source and trigger silently; a sealed machine refuses it by name."""
    live = Live(LAMP)
    for change in (
        lambda: live.machine.add_transition("Pressed", "OFF", "OFF"),
        lambda: live.machine.add_states("BROKEN"),
        lambda: live.machine.remove_transition("Pressed"),
    ):
        with pytest.raises(DefinitionError, match="change its table and make a new one"):
            change()  # type: ignore[no-untyped-call]
    assert not hasattr(live._model, "to_ON")  # no auto transitions


def test_callbacks_by_name_are_refused() -> None:
    """A hook is a function, whether it is given here or added to the machine later."""
    with pytest.raises(DefinitionError, match="hook 'shine' of on is not callable; give the function"):
        Hooks(on_enter={Lamp.ON: ["shine"]})  # type: ignore[list-item]
    live = Live(LAMP)
    live.machine.get_state("ON").add_callback("enter", "shine")
    with pytest.raises(DefinitionError, match="callback 'shine' is a name"):
        live.send(Pressed())
    assert live.state is Lamp.OFF


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        (Hooks(on_enter={Handoff.RUNNING: raising(ValueError())}), "on_enter hook .* no state of table 'lamp'"),
        (Hooks(on_exit={"ON": raising(ValueError())}), "on_exit hook for 'ON'"),
        (Hooks(before={Finished: raising(ValueError())}), "before hook for .*Finished.* no event of table 'lamp'"),
        (Hooks(after={"Pressed": raising(ValueError())}), "after hook for 'Pressed'"),
    ],
)
def test_hooks_for_what_is_not_there_are_refused(hooks: Hooks, message: str) -> None:
    """A hook that could never run is a mistake."""
    with pytest.raises(DefinitionError, match=message):
        Live(LAMP, hooks=hooks)


def test_an_undeclared_event_is_a_mistake() -> None:
    """As with the step, an event that the table does not know is no refusal."""
    with pytest.raises(DefinitionError, match="is not declared"):
        Live(LAMP).send(Finished("r1"))


def test_the_mermaid_diagram_shows_states_and_guarded_moves() -> None:
    """It comes from transitions' own engine: a state diagram with title, start, moves, stays and guards."""
    text = mermaid(HANDOFF)
    assert text.startswith('---\ntitle: "handoff"\n---\nstateDiagram-v2\n')
    for line in (
        "RUNNING --> RETAINED: Finished",
        "RETAINED --> RETAINED: Finished [internal]",
        "RETAINED --> RELEASED: Acknowledged [is_exact]",
        "[*] --> RUNNING",
    ):
        assert f"\n  {line}" in text
    assert "OPEN --> FROZEN: Withdrawn [is_positive & !is_covered]" in mermaid(ACCOUNT, title="an account")
