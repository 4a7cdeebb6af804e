"""Explore every reachable state of a world, by whichever search fits.

`reference` is plain breadth-first search: the oracle, and good for small worlds. `fast` works on many states at once
and needs numpy (the extra `check`). `auto` begins with the reference and goes over to the fast one when a world turns
out to be larger; a small world is explored by both, and they must agree. Whichever it was is in what it found.

Where a world declares slots `interchangeable`, both explore only one state of those that differ in the order of groups
(`symmetry`). That the world really tells none from another is looked at on a sample of what was found, and a
counterexample is made one of the world itself, step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum, auto
from importlib.util import find_spec

from attrs import define, evolve

from . import reference
from .errors import DefinitionError
from .findings import CTRL_C, Exploration, Limits, Progress, Verdict, Violation, verdict
from .seams import Clock
from .symmetry import Symmetry
from .world import World

__all__ = ["Engine", "Exploration", "Limits", "Progress", "Verdict", "Violation", "explore", "verdict"]

SMALL_STATES = 500
SMALL_DEPTH = 100
"""A level costs the fast search some time whatever is in it, so deep and thin worlds are not explored twice."""
NO_NUMPY = "explored by the reference search, since numpy is not installed (pip install 'statecore[check]')"


class Engine(StrEnum):
    """Which search explores."""

    AUTO = auto()
    FAST = auto()
    REFERENCE = auto()


def explore(
    world: World,
    limits: Limits | None = None,
    clock: Clock | None = None,
    *,
    engine: Engine | str = Engine.AUTO,
    progress: Callable[[Progress], None] | None = None,
    symmetry: bool = True,
) -> Exploration:
    """What the search found; the world stands where it stood before.

    `symmetry` is used where it is declared, unless it is False. DefinitionError if `engine` is none, if it is `fast`
    and numpy is not there, or if the world is declared wrongly, which it is too if it is not as symmetric as it says.
    """
    if engine not in tuple(Engine):
        raise DefinitionError(f"there is no engine {engine!r}; choose one of {', '.join(Engine)}")
    start = world.values
    try:
        search = _Search(world, limits or Limits(), clock, progress, Symmetry.of(world) if symmetry else None)
        return search.run(Engine(engine))
    finally:
        world.put(start)


@define
class _Search:
    """What is asked, and a world that stands where it begins."""

    world: World
    limits: Limits
    clock: Clock | None
    progress: Callable[[Progress], None] | None
    symmetry: Symmetry | None

    def run(self, engine: Engine) -> Exploration:
        """What the engine finds; what `auto` finds if it is that."""
        there = find_spec("numpy") is not None
        if engine is Engine.FAST and not there:
            raise DefinitionError("the fast engine needs numpy: pip install 'statecore[check]', or take another engine")
        if engine is Engine.REFERENCE or not there:
            found = self._checked(self._reference(self.limits))
            found.notes = (*found.notes, NO_NUMPY) if engine is Engine.AUTO else found.notes
            return found
        return self._checked(self._fast(self.limits)) if engine is Engine.FAST else self._auto()

    def _auto(self) -> Exploration:
        """What the reference finds if the world is small, else what the fast search finds."""
        limits, clock = self.limits, self.clock
        began = clock.monotonic() if clock and limits.seconds is not None else 0.0
        found = self._reference(evolve(limits, states=min(limits.states, SMALL_STATES)))
        if found.limit == f"{SMALL_STATES} states" and limits.states > SMALL_STATES:
            left = limits
            if clock and limits.seconds is not None:
                left = evolve(limits, seconds=max(0.0, limits.seconds - (clock.monotonic() - began)))
            found = self._checked(self._fast(left))
            if found.limit == f"{left.seconds} seconds":
                found.limit = f"{limits.seconds} seconds"
            return found
        found = self._checked(found)
        if found.limit is None and found.depth <= SMALL_DEPTH:
            from . import fast

            other = fast.explore(self.world, symmetry=self.symmetry)
            if other.limit == CTRL_C:
                found.limit = CTRL_C
            else:
                _agree(self.world, found, other)
        return found

    def _reference(self, limits: Limits) -> Exploration:
        start = self.world.values
        found = reference.explore(self.world, limits, self.clock, self.progress, self.symmetry)
        self.world.put(start)
        return found

    def _fast(self, limits: Limits) -> Exploration:
        from . import fast

        return fast.explore(self.world, limits, self.clock, self.progress, self.symmetry)

    def _checked(self, found: Exploration) -> Exploration:
        """What was found, if the world is as symmetric as it says; a counterexample is made one of the world itself."""
        if self.symmetry is not None:
            start = self.world.values
            broken, found.violation = found.violation, None
            try:
                self.symmetry.check(self.world, found.sample)
                self.world.put(start)
                if broken is not None:
                    found.violation = self.symmetry.concrete(self.world, broken)
            except KeyboardInterrupt:
                found.limit = found.limit or CTRL_C
            self.world.put(start)
        return found


def _agree(world: World, one: Exploration, other: Exploration) -> None:
    """DefinitionError if two searches found different things."""
    same = verdict(one) is verdict(other)
    if one.violation is None and same:
        counts = (one.distinct, one.generated, one.depth)
        same = counts == (other.distinct, other.generated, other.depth)
        # Under symmetry each search has an order of its own, and which of several like actions fires depends on it.
        same = same and (one.fired == other.fired or bool(one.symmetry))
    if not same:
        raise DefinitionError(
            f"two searches of {type(world).__name__} differ ({one.distinct} and {other.distinct} distinct states, "
            f"{one.generated} and {other.generated} generated): some action or property is not a function of the slots"
        )
