"""Explore every reachable state of a world, by whichever search fits.

`reference` is plain breadth-first search: the oracle, and good for small worlds. `fast` works on many states at once
and needs numpy (the extra `check`). `auto` begins with the reference and goes over to the fast one when a world turns
out to be larger; a small world is explored by both, and they must agree. Whichever it was is in what it found.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum, auto
from importlib.util import find_spec

from attrs import evolve

from . import reference
from .errors import DefinitionError
from .findings import Exploration, Limits, Progress, Verdict, Violation, verdict
from .seams import Clock
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
) -> Exploration:
    """What the search found; the world stands where it stood before.

    DefinitionError if `engine` is none, if it is `fast` and numpy is not there, or if the world is declared wrongly.
    """
    if engine not in tuple(Engine):
        raise DefinitionError(f"there is no engine {engine!r}; choose one of {', '.join(Engine)}")
    start = world.values
    try:
        return _explore(world, limits or Limits(), clock, Engine(engine), progress)
    finally:
        world.put(start)


def _explore(
    world: World,
    limits: Limits,
    clock: Clock | None,
    engine: Engine,
    progress: Callable[[Progress], None] | None,
) -> Exploration:
    there = find_spec("numpy") is not None
    if engine is Engine.FAST and not there:
        raise DefinitionError("the fast engine needs numpy: pip install 'statecore[check]', or take another engine")
    if engine is Engine.REFERENCE or not there:
        found = reference.explore(world, limits, clock, progress)
        found.notes = (*found.notes, NO_NUMPY) if engine is Engine.AUTO else found.notes
        return found
    from . import fast

    if engine is Engine.FAST:
        return fast.explore(world, limits, clock, progress)
    start = world.values
    began = clock.monotonic() if clock and limits.seconds is not None else 0.0
    found = reference.explore(world, evolve(limits, states=min(limits.states, SMALL_STATES)), clock, progress)
    world.put(start)
    if found.limit == f"{SMALL_STATES} states" and limits.states > SMALL_STATES:
        left = limits
        if clock and limits.seconds is not None:
            left = evolve(limits, seconds=max(0.0, limits.seconds - (clock.monotonic() - began)))
        found = fast.explore(world, left, clock, progress)
        if found.limit == f"{left.seconds} seconds":
            found.limit = f"{limits.seconds} seconds"
        return found
    if found.limit is None and found.depth <= SMALL_DEPTH:
        _agree(world, found, fast.explore(world))
    return found


def _agree(world: World, one: Exploration, other: Exploration) -> None:
    """DefinitionError if two searches found different things."""
    same = verdict(one) is verdict(other)
    if one.violation is None and same:
        counts = (one.distinct, one.generated, one.depth, one.fired)
        same = counts == (other.distinct, other.generated, other.depth, other.fired)
    if not same:
        raise DefinitionError(
            f"two searches of {type(world).__name__} differ ({one.distinct} and {other.distinct} distinct states, "
            f"{one.generated} and {other.generated} generated): some action or property is not a function of the slots"
        )
