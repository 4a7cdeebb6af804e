"""Small symmetric worlds made at random: two families of members that play the same part, and slots of their own.

A condition is about roles: `mine` and `other` are two different members of the first family, `theirs` is one of the
second, `shared` is none of both. A step is there for every choice of members for the roles in it, either as one action
over them or as actions with names of their own; a property asks whether some choice fulfils it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations, product
from typing import Any

from attrs import frozen
from hypothesis import strategies as st

from statecore.groups import interchangeable
from statecore.properties import always, final, recoverable, sometimes
from statecore.world import Action, World, action, slot

VALUES = ("x", 1, None)  # values that have no order among them
ROLES = ("mine", "other", "theirs", "shared")
Shape = tuple[tuple[int, int], tuple[int, int, int]]
"""How many members each family has, and how many slots each member of the two and nobody."""
SHAPES: tuple[Shape, ...] = (
    ((2, 1), (2, 1, 1)),
    ((2, 2), (2, 1, 2)),
    ((3, 1), (1, 1, 2)),
    ((3, 2), (1, 1, 1)),
    ((3, 1), (2, 1, 1)),
    ((4, 1), (1, 1, 1)),
    ((4, 2), (1, 1, 1)),
)  # of which the largest world has 3**8 states
Place = tuple[str, int]  # a role, and the number of one of its slots
Condition = tuple[tuple[Place, Any], ...]
Cast = dict[str, int]  # the member that each role is played by


@frozen
class Guarded:
    """A step: where it is enabled, what it sets or turns to the next value, and where it breaks a property itself."""

    when: Condition
    sets: Condition
    turns: tuple[Place, ...]
    fault: bool
    breaks: Condition | None
    named: bool

    @property
    def roles(self) -> set[str]:
        return {role for (role, _), _ in (*self.when, *self.sets, *(self.breaks or ()))} | {r for r, _ in self.turns}


@frozen
class Plan:
    """A world to be made: of which shape, whether the slots of one member stand together, what happens."""

    shape: Shape
    by_member: bool
    steps: tuple[Guarded, ...]
    never: tuple[Condition, ...]
    seen: tuple[Condition, ...]
    reached: tuple[tuple[Condition, tuple[int, ...] | None], ...]
    ends: Condition | None

    @property
    def members(self) -> tuple[int, int]:
        return self.shape[0]

    @property
    def slots(self) -> tuple[int, int, int]:
        return self.shape[1]

    def name(self, place: Place, cast: Cast) -> str:
        """The slot that is meant."""
        role, number = place
        if role == "shared":
            return f"s{number % self.slots[2]}"
        family = int(role == "theirs")
        return f"{'mt'[family]}{cast[role]}_{number % self.slots[family]}"

    def casts(self, roles: set[str]) -> Iterator[Cast]:
        """Every choice of members for the roles."""
        mine = range(self.members[0]) if "mine" in roles else [0]
        other = range(self.members[0]) if "other" in roles else [-1]
        theirs = range(self.members[1]) if "theirs" in roles else [0]
        for one, two, three in product(mine, other, theirs):
            if one != two or not {"mine", "other"} <= roles:
                yield {"mine": one, "other": two, "theirs": three}


def world_of(plan: Plan) -> type[World]:
    """The class of the planned world."""
    members: dict[str, Any] = {f"s{number}": slot(VALUES[0]) for number in range(plan.slots[2])}
    for family, letter in enumerate("mt"):
        groups = [
            [f"{letter}{member}_{number}" for number in range(plan.slots[family])]
            for member in range(plan.members[family])
        ]
        ordered = groups if plan.by_member else zip(*groups, strict=True)
        members |= {name: slot(VALUES[0]) for group in ordered for name in group}
        if len(groups) > 1:
            members[f"family_{letter}"] = interchangeable(*groups)
    names = []
    for number, guarded in enumerate(plan.steps):
        actions = dict(_actions(plan, number, guarded))
        names.append(tuple(actions))
        members |= actions
    declared: list[tuple[str, Any, Callable[[World], bool]]] = []
    declared += [(f"never{n}", always, _some(plan, each, False)) for n, each in enumerate(plan.never)]
    declared += [(f"seen{n}", sometimes, _some(plan, each, True)) for n, each in enumerate(plan.seen)]
    faults = {name for name, each in members.items() if isinstance(each, Action) and each.fault}
    for n, (each, by) in enumerate(plan.reached):
        allowed = None if by is None else [name for number in by for name in names[number % len(names)]]
        allowed = allowed and [name for name in allowed if name not in faults]
        declared.append((f"reached{n}", recoverable(by=allowed), _some(plan, each, True)))
    if plan.ends is not None:
        declared.append(("ends", final, _some(plan, plan.ends, True)))
    for name, kind, predicate in declared:
        predicate.__name__ = name
        members[name] = kind(predicate)
    return type("Symmetric", (World,), members)


def _actions(plan: Plan, number: int, guarded: Guarded) -> Iterator[tuple[str, Any]]:
    casts = list(plan.casts(guarded.roles))

    def act(world: World, cast: Cast) -> bool:
        if not _all(plan, world, guarded.when, cast):
            return False
        if guarded.breaks is not None and _all(plan, world, guarded.breaks, cast):
            world.fail("I0")
        for place, value in guarded.sets:
            setattr(world, plan.name(place, cast), value)
        for place in guarded.turns:
            name = plan.name(place, cast)
            setattr(world, name, VALUES[(VALUES.index(getattr(world, name)) + 1) % len(VALUES)])
        return True

    if guarded.named:
        for index, cast in enumerate(casts):
            yield f"act{number}_{index}", action(fault=guarded.fault)(_named(f"act{number}_{index}", act, cast))
    elif casts:
        act.__name__ = f"act{number}"
        yield act.__name__, action(fault=guarded.fault, over=casts)(act)


def _named(name: str, act: Callable[[World, Cast], bool], cast: Cast) -> Callable[[World], bool]:
    def named(world: World) -> bool:
        return act(world, cast)

    named.__name__ = name
    return named


def _all(plan: Plan, world: World, condition: Condition, cast: Cast) -> bool:
    return all(getattr(world, plan.name(place, cast)) == value for place, value in condition)


def _some(plan: Plan, condition: Condition, wanted: bool) -> Callable[[World], bool]:
    casts = list(plan.casts({role for (role, _), _ in condition}))
    return lambda world: any(_all(plan, world, condition, cast) for cast in casts) is wanted


def orbits(plan: Plan, world: type[World]) -> int:
    """How many reachable states there are if those that a change of places makes equal are one: by trying them all."""
    made = world()
    steps = list(made.steps())
    names = list(world.slots_)
    found = {made.values}
    todo = [made.values]
    while todo:
        state = todo.pop()
        for step, act in steps:
            made.put(state)
            if made.act(act, step.args) and made.values not in found:
                found.add(made.values)
                todo.append(made.values)
    count = 0
    orders = [list(permutations(range(members))) for members in plan.members]
    while found:
        values = dict(zip(names, found.pop(), strict=True))
        count += 1
        for mine, theirs in product(*orders):
            places = {"m": mine, "t": theirs}
            other = {
                name: values[name if name[0] == "s" else f"{name[0]}{places[name[0]][int(name[1])]}{name[2:]}"]
                for name in names
            }
            found.discard(tuple(other.values()))
    return count


places = st.tuples(st.sampled_from(ROLES), st.integers(0, 2))


def conditions(least: int = 0, most: int = 3, values: tuple[Any, ...] = VALUES) -> st.SearchStrategy[Condition]:
    return st.lists(st.tuples(places, st.sampled_from(values)), min_size=least, max_size=most).map(tuple)


rare = conditions(2, 4, VALUES[1:])  # nothing begins like this

guarded_steps = st.builds(
    Guarded,
    when=conditions(most=2),
    sets=st.lists(st.tuples(places, st.sampled_from(VALUES)), max_size=2).map(tuple),
    turns=st.lists(places, min_size=1, max_size=2).map(tuple),
    fault=st.booleans(),
    breaks=st.one_of(st.none(), st.none(), st.none(), rare),
    named=st.booleans(),
)
plans = st.builds(
    Plan,
    shape=st.sampled_from(SHAPES),
    by_member=st.booleans(),
    steps=st.lists(guarded_steps, min_size=1, max_size=4).map(tuple),
    never=st.lists(rare, max_size=2).map(tuple),
    seen=st.lists(conditions(), max_size=2).map(tuple),
    reached=st.lists(
        st.tuples(conditions(), st.one_of(st.none(), st.lists(st.integers(0, 3), min_size=1, max_size=2).map(tuple))),
        max_size=2,
    ).map(tuple),
    ends=st.one_of(st.just(()), st.just(()), st.none(), conditions()),
)
