"""Small worlds made at random, for holding two searches against each other: slots, guarded steps, kinds of properties.

A condition is a few (slot, value) pairs that must all hold, read in order and only as far as needed. A step changes
slots to constants or to the next value round, may copy one slot to another, and may break a property itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen
from hypothesis import strategies as st

from statecore.properties import always, final, recoverable, sometimes
from statecore.world import World, action, slot

Condition = tuple[tuple[int, int], ...]


@frozen
class Guarded:
    """A step: where it is enabled, what it does, and where it breaks a property itself."""

    when: Condition
    constants: tuple[tuple[int, int], ...]
    turned: tuple[int, ...]
    copied: tuple[tuple[int, int], ...]
    fault: bool
    breaks: Condition | None


@frozen
class Plan:
    """A world to be made."""

    sizes: tuple[int, ...]
    steps: tuple[Guarded, ...]
    never: tuple[Condition, ...]
    seen: tuple[Condition, ...]
    reached: tuple[tuple[Condition, tuple[str, ...] | None], ...]
    ends: Condition | None


def _all(world: World, condition: Condition) -> bool:
    return all(getattr(world, f"s{number}") == value for number, value in condition)


def _act(plan: Plan, guarded: Guarded) -> Callable[[World], bool]:
    def act(world: World) -> bool:
        if not _all(world, guarded.when):
            return False
        if guarded.breaks is not None and _all(world, guarded.breaks):
            world.fail("I0")
        for number, value in guarded.constants:
            setattr(world, f"s{number}", value % plan.sizes[number])
        for number in guarded.turned:
            setattr(world, f"s{number}", (getattr(world, f"s{number}") + 1) % plan.sizes[number])
        for source, target in guarded.copied:
            setattr(world, f"s{target}", getattr(world, f"s{source}") % plan.sizes[target])
        return True

    return act


def _holds(condition: Condition, wanted: bool) -> Callable[[World], bool]:
    return lambda world: _all(world, condition) is wanted


def world_of(plan: Plan) -> type[World]:
    """The class of the planned world."""
    members: dict[str, Any] = {f"s{number}": slot(0) for number in range(len(plan.sizes))}
    for number, guarded in enumerate(plan.steps):
        function = _act(plan, guarded)
        function.__name__ = f"act{number}"
        members[function.__name__] = action(fault=guarded.fault)(function)
    declared: list[tuple[str, Any, Callable[[World], bool]]] = []
    declared += [(f"never{n}", always, _holds(each, False)) for n, each in enumerate(plan.never)]
    declared += [(f"seen{n}", sometimes, _holds(each, True)) for n, each in enumerate(plan.seen)]
    may = {f"act{number}" for number, each in enumerate(plan.steps) if not each.fault}
    for n, (each, by) in enumerate(plan.reached):
        allowed = None if by is None else tuple(name for name in by if name in may)
        declared.append((f"reached{n}", recoverable(by=allowed), _holds(each, True)))
    if plan.ends is not None:
        declared.append(("ends", final, _holds(plan.ends, True)))
    for name, kind, predicate in declared:
        predicate.__name__ = name
        members[name] = kind(predicate)
    return type("Random", (World,), members)


def conditions(slots: int, least: int = 0) -> st.SearchStrategy[Condition]:
    pair = st.tuples(st.integers(0, slots - 1), st.integers(0, 3))
    return st.lists(pair, min_size=least, max_size=3).map(tuple)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    sizes = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=5)))
    number = st.integers(0, len(sizes) - 1)
    some = conditions(len(sizes))
    rare = conditions(len(sizes), least=2)
    steps = draw(
        st.lists(
            st.builds(
                Guarded,
                when=some,
                constants=st.lists(st.tuples(number, st.integers(0, 4)), max_size=2).map(tuple),
                turned=st.lists(number, max_size=2).map(tuple),
                copied=st.lists(st.tuples(number, number), max_size=1).map(tuple),
                fault=st.booleans(),
                breaks=st.one_of(st.none(), st.none(), st.none(), rare),
            ),
            min_size=1,
            max_size=6,
        )
    )
    by = st.one_of(st.none(), st.lists(st.integers(0, 5).map(lambda n: f"act{n}"), min_size=1, max_size=3).map(tuple))
    return Plan(
        sizes,
        tuple(steps),
        tuple(draw(st.lists(rare, max_size=2))),
        tuple(draw(st.lists(some, max_size=2))),
        tuple(draw(st.lists(st.tuples(some, by), max_size=2))),
        draw(st.one_of(st.just(()), st.none(), some)),
    )
