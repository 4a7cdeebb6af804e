"""A shelf at random: its table beside a plain list, saved and loaded at any moment."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from participants import attrs_codec
from participants.skeleton.machine import MAX_THINGS, Put, Sealed, Shelf, ShelfState, Taken, moved
from statecore import Refused

CODEC = attrs_codec(Shelf)


class ShelfRules(RuleBasedStateMachine):
    """Any calls in any order; `things` and `sealed` are what they should come to."""

    def __init__(self) -> None:
        super().__init__()
        self.shelf = Shelf()
        self.things: list[str] = []
        self.sealed = False

    def step(self, event: object) -> str:
        """The code of the refusal, or ""."""
        try:
            self.shelf = moved(self.shelf, event)
        except Refused as refused:
            return refused.code
        return ""

    @rule(thing=st.text(max_size=5))
    def put(self, thing: str) -> None:
        code = self.step(Put(thing))
        if self.sealed or len(self.things) == MAX_THINGS:
            assert code == ("sealed" if self.sealed else "full")
        else:
            assert code == ""
            self.things.append(thing)

    @rule()
    def take(self) -> None:
        code = self.step(Taken())
        if self.sealed or not self.things:
            assert code == ("sealed" if self.sealed else "empty")
        else:
            assert code == ""
            self.things.pop()

    @rule()
    def seal(self) -> None:
        assert self.step(Sealed()) == ""
        self.sealed = True

    @rule()
    def come_back(self) -> None:
        """A checkpoint and a new process."""
        self.shelf = CODEC.load(CODEC.export(self.shelf))

    @invariant()
    def is_as_it_should_be(self) -> None:
        state = ShelfState.SEALED if self.sealed else ShelfState.OPEN
        assert self.shelf == Shelf(state, tuple(self.things))


ShelfRules.TestCase.settings = settings(max_examples=50, stateful_step_count=20, deadline=None)
TestShelf = ShelfRules.TestCase
