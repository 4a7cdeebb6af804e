"""Searches that are stopped at any moment, and runs of actions that only look alike."""

from __future__ import annotations

from typing import Any

import pytest

from statecore import DefinitionError
from statecore.explore import Verdict
from statecore.properties import always, leads_to, recoverable
from statecore.report import check
from statecore.world import World, action, ghost, interchangeable, slot


def _stopped_at(moment: int, *, together: bool) -> tuple[type[World], list[int]]:
    """A world in which somebody presses Ctrl-C when its functions are called for that time; and how often they were."""
    calls = [0]

    def one_more() -> None:
        calls[0] += 1
        if calls[0] == moment:
            raise KeyboardInterrupt

    class Clocks(World):
        one: int = slot(0)
        two: int = slot(0)
        either = interchangeable("one", "two")

        @action(over=["one", "two"], fair=True)
        def turn(self, which: str) -> None:
            one_more()
            setattr(self, which, (getattr(self, which) + 1) % 3)

        @always
        def small(self) -> bool:
            one_more()
            return self.one + self.two < 5

        @recoverable
        def home(self) -> bool:
            one_more()
            return self.one == self.two == 0

        @leads_to(lambda world: world.one != 2)
        def moves_on(self) -> bool:
            one_more()
            return self.one == 2

    if not together:
        Clocks.symmetries_ = {}
    return Clocks, calls


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("engine", ["auto", "reference", "fast"])
def test_ctrl_c_at_any_moment_is_not_finished(engine: str, together: bool) -> None:
    """Whatever the search is at, and whichever search it is, the report is of what was found until then."""
    world, calls = _stopped_at(0, together=together)
    assert check(world, engine=engine).verdict is Verdict.HOLDS
    for moment in range(1, calls[0] + 1):
        world, _ = _stopped_at(moment, together=together)
        report = check(world, engine=engine)
        assert (report.verdict, report.found.limit) == (Verdict.NOT_FINISHED, "Ctrl-C"), moment
        assert "stopped at the limit of Ctrl-C" in report.story()


class Ghostly(World):
    """A switch and what really happened."""

    one: int = slot(0)
    two: int = slot(0)
    out: int = slot(0)
    applied: bool = ghost(False)

    @action
    def one_on(self) -> None:
        self.one = 1

    @action
    def two_on(self) -> None:
        self.two = 1

    @action
    def apply(self) -> None:
        self.applied = True

    @always
    def fine(self) -> bool:
        return self.out < 2


class LooksElsewhere(Ghostly):
    """The ghost says at which of two slots it looks."""

    @action
    def go(self) -> object:
        here = self.one if self.applied else self.two
        if not here:
            return False
        self.out = 1
        return None


class LooksElsewhereFirst(Ghostly):
    """The same after it has looked at another slot."""

    @action
    def go(self) -> None:
        if self.out == 0:
            self.out = self.one if self.applied else self.two


@pytest.mark.parametrize("world", [LooksElsewhere, LooksElsewhereFirst])
def test_a_ghost_that_says_where_to_look_decides(world: type[World]) -> None:
    """The runs read no slot in common, and yet both could have begun in one state, where they differ."""
    with pytest.raises(DefinitionError, match=r"action go depends on a ghost slot \(applied\)"):
        check(world)


class Same:
    """Two of them are told apart, but not by their text."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __str__(self) -> str:
        return "same"


def test_actions_of_one_label_are_not_taken_for_one() -> None:
    """Values whose text is the same make steps of their own: that they differ is not due to a ghost."""

    class Writes(Ghostly):
        @action(over=[Same(0), Same(1), 1, "1"])
        def put_out(self, value: Any) -> None:
            self.out = value.number if isinstance(value, Same) else len(str(value)) - 1

    assert check(Writes).verdict is Verdict.HOLDS


def test_a_write_of_what_is_there_is_no_write() -> None:
    """With the ghost or without it the slot is 1 afterwards, so nothing follows from the ghost."""

    class Writes(Ghostly):
        @action
        def keep(self) -> object:
            if self.applied:
                if self.out != 1:
                    return False
                return None
            if self.out != 1:
                return False
            self.out = 1
            return None

        @action
        def raise_it(self) -> None:
            self.out = 1

    assert check(Writes).verdict is Verdict.HOLDS


class Kept:
    """Equal only to itself."""

    def __init__(self) -> None:
        self.number = 0


class Grows(World):
    """It changes what a slot holds, which is the same object all the time."""

    box: Any = slot(make=lambda world: Kept())

    @action
    def grow(self) -> None:
        self.box.number = min(self.box.number + 1, 4)

    @always
    def small(self) -> bool:
        return bool(self.box.number < 3)


@pytest.mark.parametrize("engine", ["auto", "fast"])
def test_an_object_that_is_changed_in_place_is_found_by_what_is_in_it(engine: str) -> None:
    """Its hash stays as it is, and so the world would seem to have one state."""
    with pytest.raises(DefinitionError, match="action grow changes the value of slot 'box' in place"):
        check(Grows, engine=engine)


@pytest.mark.parametrize(("one", "other"), [(1, True), (0, 0.0), ((0, 1), (0, True))])
def test_values_that_are_equal_and_yet_others_are_named(one: Any, other: Any) -> None:
    """They are one state, whichever was there first; what looks at their kind would not be a function of the state."""

    class Mixed(World):
        value: Any = slot(one)
        done: bool = slot(False)

        @action
        def change(self) -> None:
            self.value = other
            self.done = True

        @always
        def as_it_was(self) -> bool:
            return repr(self.value) == repr(one)

    with pytest.raises(DefinitionError, match="slot 'value' holds .* which are equal and so one state"):
        check(Mixed, engine="fast")
