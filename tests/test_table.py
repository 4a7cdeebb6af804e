"""Tables are checked when they are defined: total, reachable, ended, and every fault named with its mend."""

from __future__ import annotations

from enum import Enum, StrEnum, auto
from types import ModuleType
from typing import Any

import pytest

from statecore import DefinitionError, Table, go, refuse, stay, when
from statecore.table import Go, Refuse, Stay, leaves
from statecore.testing import assert_no_repeated_keys, repeated_keys
from tests import sample_tables
from tests.sample_tables import ACCOUNT, HANDOFF, LAMP, Account, Finished, Handoff, Lamp, Withdrawn


class S(StrEnum):
    A = auto()
    B = auto()


class T(StrEnum):
    A = auto()
    B = auto()
    C = auto()


class Moved:
    pass


class Ended:
    pass


def never(data: object, event: object) -> bool:
    return False


def table(cells: Any, initial: Any = S.A, final: Any = (S.B,), **more: Any) -> Table[Any, Any]:
    return Table("sample", initial=initial, final=final, cells=cells, **more)


GOOD: dict[S, dict[type, Any]] = {
    S.A: {Moved: go(S.B), Ended: refuse("too_early")},
    S.B: {Moved: refuse("ended"), Ended: stay()},
}


OTHER: dict[Any, Any] = {**GOOD, T.C: {}}


def but(state: S, event: type, cell: Any) -> dict[S, dict[type, Any]]:
    """GOOD with one cell replaced."""
    return {each: {**row, event: cell} if each is state else row for each, row in GOOD.items()}


def test_a_declared_table_shows_its_states_events_and_cells() -> None:
    """Everything that was declared can be read again: states in the enum's order, events as they first appear."""
    assert HANDOFF.name == "handoff"
    assert HANDOFF.states == (Handoff.RUNNING, Handoff.RETAINED, Handoff.RELEASED)
    assert [event.__name__ for event in HANDOFF.events] == ["Finished", "Acknowledged"]
    assert HANDOFF.final == {Handoff.RELEASED}
    assert isinstance(HANDOFF.cells[Handoff.RUNNING][Finished], Go)
    assert repr(LAMP) == "<Table lamp: 2 states, 2 events>"


def test_leaves_are_all_branches_of_a_guarded_cell() -> None:
    """A guard within a guard still shows each way in which the cell can end."""
    cell = ACCOUNT.cells[Account.OPEN][Withdrawn]
    assert [type(leaf) for leaf in leaves(cell)] == [Stay, Go, Refuse]


def test_allowed_names_the_events_that_have_a_way_forward() -> None:
    """An event counts as allowed if any branch goes or stays, whatever the guard says."""
    assert HANDOFF.allowed(Handoff.RUNNING) == ("Finished",)
    assert HANDOFF.allowed(Handoff.RETAINED) == ("Finished", "Acknowledged")
    assert LAMP.allowed(Lamp.ON) == ("Pressed",)


@pytest.mark.parametrize(
    ("cells", "more", "culprit", "mend"),
    [
        ({S.A: GOOD[S.A]}, {}, "state b has no row", "declare go, stay or refuse"),
        ({S.A: GOOD[S.A], S.B: {Moved: stay()}}, {}, "cell (b, Ended) is missing", "declare go, stay or refuse(code)"),
        (OTHER, {}, "row <T.C: 'c'> is no state", "states are a, b"),
        (but(S.A, Moved, go(T.B)), {}, "unknown target <T.B: 'b'>", "go to one of a, b"),
        (but(S.A, Moved, Go("b")), {}, "unknown target 'b'", "go to one of a, b"),  # type: ignore[arg-type]
        (but(S.A, Moved, stay()), {}, "state a is a dead end", "declare it in final="),
        (but(S.B, Moved, go(S.A)), {}, "final state b goes to a", "take it out of final="),
        (GOOD, {"final": ()}, "state b is a dead end", "declare it in final="),
        (GOOD, {"final": (T.B,)}, "final <T.B: 'b'> is no state", "states are a, b"),
        (GOOD, {"initial": S.B}, "state a is unreachable from b", "add a go to it"),
        (GOOD, {"initial": "a"}, "initial 'a' is no member of an Enum", "give State.<NAME>"),
        (GOOD, {"data": 3}, "data 3 is not callable", "give a type or a function"),
        (but(S.A, Ended, refuse), {}, "is no cell", "use go(...), stay(...), refuse(code) or when(...)"),
        (but(S.A, Ended, None), {}, "cell (a, Ended): None is no cell", "use go(...)"),
        (but(S.A, Ended, refuse("Too early")), {}, "refusal code 'Too early'", "lower case"),
        (but(S.A, Ended, refuse("")), {}, "refusal code ''", "lower case"),
        (but(S.A, Ended, Refuse("x", 3)), {}, "detail 3", "give text"),  # type: ignore[arg-type]
        (but(S.A, Ended, stay(3)), {}, "do 3 is not callable", "give do(data, event)"),  # type: ignore[arg-type]
        (but(S.A, Ended, when("x", stay(), otherwise=stay())), {}, "guard 'x' is not callable", "give guard"),  # type: ignore[arg-type]
        (but(S.A, Ended, when(never, stay(), otherwise=go(T.A))), {}, "otherwise: unknown target", "go to one of"),
        ({S.A: {"moved": go(S.B)}, S.B: {}}, {}, "event 'moved' in row a is no class", "use the event's class"),
        ({S.A: {}, S.B: {}}, {}, "no event is declared", "give at least one cell"),
    ],
)
def test_a_wrong_declaration_names_culprit_and_mend(cells: Any, more: dict[str, Any], culprit: str, mend: str) -> None:
    """Each way to declare a table wrongly is found when it is defined, and the message says what and how to mend it."""
    with pytest.raises(DefinitionError) as caught:
        table(cells, **more)
    assert culprit in str(caught.value)
    assert mend in str(caught.value)
    assert "sample" in str(caught.value)


def test_two_event_classes_of_the_same_name_are_refused() -> None:
    """Names go to journals and refusals, so two classes may not share one."""
    other = type("Moved", (), {})
    with pytest.raises(DefinitionError, match="two event classes are named Moved"):
        table({S.A: {Moved: go(S.B), other: stay()}, S.B: {Moved: stay(), other: stay()}})


def test_rows_given_as_pairs_show_repeated_keys() -> None:
    """A dict display loses a repeated key silently; pairs do not, and both repeats are named."""
    rows = [(S.A, GOOD[S.A]), (S.B, GOOD[S.B])]
    assert table(rows).states == (S.A, S.B)
    with pytest.raises(DefinitionError, match="state a has two rows; merge them"):
        table([*rows, rows[0]])
    with pytest.raises(DefinitionError, match=r"cell \(b, Moved\) is declared twice; keep one"):
        table([rows[0], (S.B, [(Moved, stay()), (Ended, stay()), (Moved, refuse("ended"))])])


def test_a_key_repeated_in_a_dict_display_is_found_in_the_source() -> None:
    """What no run can see is seen in the source: the line and the key that repeats."""
    source = "cells = {\n  S.A: {Moved: go(S.B),\n        Moved: stay()},\n  S.B: {Moved: stay()},\n  **more}\n"
    assert repeated_keys(source) == [(3, "Moved")]
    assert_no_repeated_keys(sample_tables)


def test_a_module_with_a_repeated_key_is_refused(tmp_path: Any) -> None:
    """The check of a module names it and the line."""
    path = tmp_path / "twice.py"
    path.write_text("CELLS = {'a': 1,\n  'a': 2}\n")
    module = ModuleType("twice")
    module.__file__ = str(path)
    with pytest.raises(DefinitionError, match="twice: 'a' again in line 2"):
        assert_no_repeated_keys(module)


def test_a_further_initial_state_makes_its_state_reachable() -> None:
    """A machine may be born in another state than its first; both count as starts, and others are refused."""
    cells = {S.A: {Ended: stay()}, S.B: {Ended: stay()}}
    both = table(cells, also_initial={S.B}, final={S.A, S.B})
    assert both.start(state=S.B).state is S.B
    with pytest.raises(DefinitionError, match="b is no initial state"):
        table(GOOD).start(state=S.B)
    with pytest.raises(DefinitionError, match=r"also_initial <T.A: 'a'> is no state"):
        table(GOOD, also_initial={T.A})


def test_states_need_not_be_strings() -> None:
    """Any enum makes states."""

    class Number(Enum):
        ONE = 1
        TWO = 2

    cells = {Number.ONE: {Moved: go(Number.TWO)}, Number.TWO: {Moved: go(Number.ONE)}}
    made = Table("n", initial=Number.ONE, cells=cells)
    assert made.step(made.start(), Moved())[0].state is Number.TWO
