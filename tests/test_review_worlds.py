"""Mistakes in the declaration of a world that would make it say something else than it seems to say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any

import pytest

from statecore import DefinitionError
from statecore.explore import Verdict
from statecore.properties import Property, always, final, recoverable, sometimes
from statecore.report import check
from statecore.world import World, action, crash, rpc, slot, volatile

HIDDEN = ["_starts", "_params", "_locked", "_ids", "_reads", "_writes", "values", "put", "slots_"]


class Turning(World):
    """A number goes round."""

    value: int = slot(0)

    @action
    def turn(self) -> None:
        self.value = (self.value + 1) % 3


@pytest.mark.parametrize("name", HIDDEN)
def test_what_a_world_uses_itself_cannot_be_declared(name: str) -> None:
    """As a slot, as a method or in a class that is mixed in it would be hidden, or hide what the search needs."""
    for value in (slot(0), lambda world: 0, 3):
        with pytest.raises(DefinitionError, match=rf"^Hides\.{name}: World uses this name itself"):
            type("Hides", (Turning,), {name: value})
    mixed = type("Mixed", (), {name: slot(0)})
    with pytest.raises(DefinitionError, match=rf"^Hides\.{name}: World uses this name itself"):
        type("Hides", (mixed, Turning), {})


def test_what_is_computed_once_is_refused() -> None:
    """A cached property would answer in every state with what was true in the first."""
    with pytest.raises(DefinitionError, match=r"^Cached\.twice would keep its value while slots change"):

        class Cached(Turning):
            @cached_property
            def twice(self) -> int:
                return 2 * self.value


async def _waits(world: Any) -> bool:
    return bool(world.value < 2)


def _yields(world: Any) -> Iterable[bool]:
    yield world.value < 2


def _forgets_to_call(world: Any) -> object:
    return world.value.bit_length


@pytest.mark.parametrize("predicate", [_waits, _yields, _forgets_to_call])
@pytest.mark.parametrize("engine", ["auto", "reference", "fast"])
def test_an_answer_that_is_always_true_is_none(predicate: Callable[[Any], object], engine: str) -> None:
    """A coroutine, a generator or a method that nobody calls is true, so such a property would hold in any world."""
    world = type("Holds", (Turning,), {"small": always(predicate)})
    with pytest.raises(DefinitionError, match="which is always true; call it") as caught:
        check(world, engine=engine)
    assert any("property 'small' of Holds" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("engine", ["auto", "reference", "fast"])
def test_a_property_does_not_move_the_world(engine: str) -> None:
    """It can neither put it into another state, nor assign after it has asked for another property."""

    class Puts(Turning):
        @always
        def small(self) -> bool:
            self.put((2,))
            return True

    class AsksFirst(Turning):
        @always
        def small(self) -> bool:
            self.holds(lambda world: True)
            self.value = 2
            return True

    with pytest.raises(DefinitionError, match="a property puts the world into another state"):
        check(Puts, engine=engine)
    with pytest.raises(DefinitionError, match="a property assigns slot 'value'") as caught:
        check(AsksFirst, engine=engine)
    assert any("property 'small' of AsksFirst" in note for note in caught.value.__notes__)


def _recoverable(by: str) -> Property:
    @recoverable(by=by)
    def home(world: Any) -> bool:
        return bool(world.value == 0)

    return home


def test_who_recovers_is_an_action_that_is_no_fault() -> None:
    """A misspelt name would let nobody recover, and the world would seem to be broken."""

    class Dies(Turning):
        memory: int = volatile(0, of="agent")
        die = crash("agent")

    assert check(type("Right", (Turning,), {"home": _recoverable("turn")})).found.violation is None
    with pytest.raises(DefinitionError, match=r"^Wrong\.home: by='trun' is no action of the world \(turn\)$"):
        check(type("Wrong", (Turning,), {"home": _recoverable("trun")}))
    with pytest.raises(DefinitionError, match=r"^Wrong\.home: by='die' is a fault, and nothing recovers by faults$"):
        check(type("Wrong", (Dies,), {"home": _recoverable("die")}))


def test_values_of_an_action_are_gone_through_again_and_again() -> None:
    """An iterator is taken for its values once; what cannot be gone through is refused where it is declared."""

    class Once(World):
        value: int = slot(0)

        @action(over=iter([1, 2]))
        def add(self, number: int) -> None:
            self.value = (self.value + number) % 5

        @always
        def small(self) -> bool:
            return self.value < 5

    assert (check(Once).distinct, check(Once).generated) == (5, 11)
    with pytest.raises(DefinitionError, match="action put_in: over=5; give values, or a function of the world"):

        @action(over=5)
        def put_in(world: Any, number: int) -> None:
            pass


def test_a_call_does_not_take_the_place_of_another_action() -> None:
    """What is declared under a name that one of its ways has would be lost without a word."""
    with pytest.raises(DefinitionError, match=r"^Bank\.pay_reply_lost: rpc pay makes an action of this name"):

        class Bank(World):
            paid: int = slot(0)
            pay = rpc(lambda world: True, lambda world, request: None)

            @action
            def pay_reply_lost(self) -> None:
                self.paid = 1


def test_a_call_that_is_replaced_takes_its_ways_along() -> None:
    """A twin that replaces a call by an action, or by a call without late copies, has none of the old call's ways."""

    class Bank(World):
        paid: int = slot(0)
        late: Any = slot(None)
        pay = rpc(lambda world: True, lambda world, request: None, late="late")

    class Plain(Bank):
        @action
        def pay(self) -> None:
            self.paid = 1

        @final
        def done(self) -> bool:
            return self.paid == 1

    class Never(Bank):
        pay = rpc(lambda world: True, lambda world, request: None)

    assert list(Plain.actions_) == ["pay"]
    assert list(Never.actions_) == ["pay", "pay_reply_lost"]
    assert list(Bank.actions_) == ["pay", "pay_reply_lost", "pay_delayed", "pay_left_behind", "pay_late"]


def test_a_declaration_has_the_name_that_its_class_gives_it() -> None:
    """Functions may be nameless, or have one name together: each property is looked at, each action counted."""

    def moves(step: int) -> Any:
        @action
        def move(world: Any) -> None:
            world.value = (world.value + step) % 5

        return move

    class Nameless(World):
        value: int = slot(0)
        one = moves(1)
        two = moves(2)
        three = action(lambda world: None)
        four = action(partial(lambda world, to: setattr(world, "value", to), to=4))
        fine = always(lambda world: world.value < 5)
        seen = sometimes(lambda world: world.value == 1)
        unseen = sometimes(lambda world: world.value == 9)

    class Broken(Nameless):
        small = always(lambda world: world.value < 2)

    for engine in ("auto", "reference", "fast"):
        report = check(Nameless, engine=engine)
        assert (report.verdict, report.found.unseen) == (Verdict.VACUOUS, ("unseen",))
        assert list(report.found.fired.items()) == [("one", 5), ("two", 5), ("three", 5), ("four", 5)]
        broken = check(Broken, engine=engine)
        assert broken.violation is not None
        assert (broken.violation.name, broken.trace) in [("small", ("two",)), ("small", ("four",))]


def test_a_call_is_declared_once() -> None:
    """Under a second name, also in a subclass, it would lose the first."""

    class Bank(World):
        paid: int = slot(0)
        memory: int = volatile(0, of="agent")
        pay = rpc(lambda world: True, lambda world, request: None)
        die = crash("agent")

    for name, first in (("refund", "pay"), ("leave", "die")):
        with pytest.raises(DefinitionError, match=rf"^Twin\.{name}: it is declared as {first} already"):
            type("Twin", (Bank,), {name: vars(Bank)[first]})
    assert list(Bank.actions_) == [each.name for each in Bank.actions_.values()] == ["pay", "die", "pay_reply_lost"]


def test_what_is_no_function_is_no_action() -> None:
    """It is said where it is declared."""
    with pytest.raises(DefinitionError, match="action 3 is not callable; decorate a function of the world"):
        action(3)  # type: ignore[call-overload]
