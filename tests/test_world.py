"""Worlds: slots, parameters, actions and faults; an action that is not enabled leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest

from statecore import DefinitionError, InvariantBroken
from statecore.properties import Kind, Property, always, eventually, final, leads_to, recoverable, sometimes
from statecore.world import World, action, param, slot
from tests.sample_tables import ACCOUNT, LAMP, Pressed, Removed, Withdrawn


class Counter(World):
    """Counts up to a limit, and a fault that sets it back."""

    limit: int = param(3)
    value: int = slot(0)
    seen: frozenset[int] = slot(make=lambda w: frozenset({w.limit}))

    @action
    def count(self) -> bool:
        self.value += 1
        self.seen |= {self.value}
        return self.value <= self.limit

    @action(fault=True, over=lambda w: range(w.limit))
    def fall(self, to: int) -> bool | None:
        if to >= self.value:
            return False
        self.value = to
        return None

    @always(covers=["I1", "I2"])
    def bounded(self) -> bool:
        return self.value <= self.limit


def test_a_world_begins_with_its_slots_and_parameters() -> None:
    """Slots hold their first values, made from parameters where declared so; parameters can be set."""
    assert Counter().values == (0, frozenset({3}))
    w = Counter(limit=5)
    assert (w.limit, w.params, w.values) == (5, {"limit": 5}, (0, frozenset({5})))


def test_actions_change_slots_and_say_whether_they_were_enabled() -> None:
    """Called by hand an action answers True, or False when it is not enabled here."""
    w = Counter(limit=1)
    assert w.count() is True
    assert w.values == (1, frozenset({1}))
    assert w.fall(0) is True
    assert w.value == 0


def test_a_false_return_drops_the_writes() -> None:
    """An action may write first and find out later that it is not enabled."""
    w = Counter(limit=0)
    before = w.values
    assert w.count() is False
    assert w.values == before


def test_an_escaping_refusal_means_not_enabled() -> None:
    """So the guards of a table need not be written twice; writes before the refusal are dropped."""

    class Lamps(World):
        lamp: Any = slot(LAMP.start())
        tries: int = slot(0)

        @action
        def remove(self) -> None:
            self.tries += 1
            self.lamp, _ = LAMP.step(self.lamp, Removed())

        @action
        def press(self) -> None:
            self.lamp, _ = LAMP.step(self.lamp, Pressed())

    w = Lamps()
    assert (w.remove(), w.tries) == (False, 0)
    assert w.press() is True


def test_a_bug_in_an_action_comes_through_and_drops_its_writes() -> None:
    """Only Refused means not enabled: any other error is raised, a mistaken event too."""

    class Broken(World):
        account: Any = slot(ACCOUNT.start())
        value: int = slot(0)

        @action
        def divide(self) -> None:
            self.value = 1
            self.value = 1 // 0

        @action
        def mistake(self) -> None:
            self.account, _ = ACCOUNT.step(self.account, Pressed())

        @action
        def answer(self) -> object:
            return "yes"

        @action
        def break_it(self) -> None:
            self.fail("I48")

    w = Broken()
    with pytest.raises(ZeroDivisionError):
        w.divide()
    assert w.value == 0
    with pytest.raises(DefinitionError, match=r"Pressed.* is not declared"):
        w.mistake()
    with pytest.raises(DefinitionError, match="action answer returned 'yes'; return False if not enabled"):
        w.answer()
    with pytest.raises(InvariantBroken, match="I48"):
        w.break_it()


def test_only_declared_slots_can_be_assigned() -> None:
    """A misspelt slot is named, and a parameter stays as it is."""
    w = Counter()
    with pytest.raises(DefinitionError, match=r"Counter has no slot 'vaule'; declare vaule = slot"):
        w.vaule = 3
    with pytest.raises(DefinitionError, match="no slot 'limit'"):
        w.limit = 3


def test_properties_only_read() -> None:
    """A predicate that assigns a slot is a mistake; afterwards the world can be changed again."""

    class Writes(Counter):
        @always
        def bounded(self) -> bool:
            self.value = 0
            return True

    w = Writes()
    with pytest.raises(DefinitionError, match="a property assigns slot 'value'; properties only read"):
        w.holds(Writes.bounded)
    assert w.count() is True
    assert w.holds(lambda world: world.value == 1)


def test_steps_list_each_action_with_each_of_its_values() -> None:
    """An action over values is one step for each, with a readable label, and faults are marked."""
    steps = [(step.label, step.fault) for step, _ in Counter(limit=2).steps()]
    assert steps == [("count", False), ("fall(0)", True), ("fall(1)", True)]


def test_a_subclass_replaces_and_removes_by_name() -> None:
    """A failing twin overrides an action or a property; setting one to None takes it out."""

    class Twin(Counter):
        bounded = None  # type: ignore[assignment]

        @action
        def count(self) -> None:
            self.value += 1

    assert "bounded" not in Twin.properties_
    assert Twin.actions_["count"] is not Counter.actions_["count"]
    assert list(Twin.slots_) == list(Counter.slots_)
    w = Twin(limit=0)
    assert w.count() and w.value == 1


def test_wrong_worlds_are_refused() -> None:
    """No slots or actions, unknown parameters, and names that the base needs itself."""

    class Empty(World):
        value: int = slot(0)

    with pytest.raises(DefinitionError, match="Empty needs at least one slot"):
        Empty()
    with pytest.raises(DefinitionError, match=r"Counter has no parameter 'limt' \(it has: limit\)"):
        Counter(limt=3)
    with pytest.raises(DefinitionError, match=r"Clash\.values: World uses this name itself"):

        class Clash(World):
            values: int = slot(0)  # type: ignore[assignment]


def test_declared_properties_say_what_they_are() -> None:
    """Kind, name, the invariants covered, and what each kind adds; plain and with arguments alike."""

    def p(world: Any) -> bool:
        return bool(world)

    def q(world: Any) -> bool:
        return not world

    assert always(p) == Property(Kind.ALWAYS, "p", p)
    assert always(covers="I67")(p).covers == ("I67",)
    assert sometimes(covers=["I1", "I2"])(p) == Property(Kind.SOMETIMES, "p", p, ("I1", "I2"))
    assert recoverable(p).by is None
    assert recoverable(by="press", covers="I20")(p) == Property(Kind.RECOVERABLE, "p", p, ("I20",), by=("press",))
    assert eventually(fair=["a", "b"])(p).fair == ("a", "b")
    assert (eventually(p).kind, final(p).kind, final()(p).kind) == (Kind.EVENTUALLY, Kind.FINAL, Kind.FINAL)
    declared = leads_to(q, covers="I3")(p)
    assert (declared.kind, declared.to, declared.covers, declared.fair) == (Kind.LEADS_TO, q, ("I3",), None)
    assert always(p)(1) is True and always(p)(0) is False
    with pytest.raises(DefinitionError, match="not callable"):
        always(covers="I1")("p")  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="give the predicate that must follow"):
        leads_to("q")  # type: ignore[arg-type]
    for wrong in (True, [p], 3):
        with pytest.raises(DefinitionError, match="names nothing; give a name, or several in a list"):
            eventually(fair=wrong)(p)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="action p: by=3; say in a word who acts"):
        action(by=3)(p)  # type: ignore[call-overload]


def test_a_withdrawal_in_a_world_uses_the_table_as_it_is() -> None:
    """The same step as in production decides."""

    class Bank(World):
        account: Any = slot(ACCOUNT.start(5))

        @action(over=(3, 9))
        def withdraw(self, amount: int) -> None:
            self.account, _ = ACCOUNT.step(self.account, Withdrawn(amount))

    w = Bank()
    assert w.withdraw(3) and w.account.data == 2
