"""Symmetry over interchangeable groups of slots: of states that differ only in the order of groups, one is explored.

That one is the canonical state: groups in the order of their values, which are numbered as they are first met (they
need not be orderable). Steps of a canonical state lead to states that are made canonical in turn, so that what is
explored is the world with all arrangements of a state taken for one. This is sound if the world really cannot tell
groups apart; `check` looks at that on a sample of states.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations, product
from typing import Any, NoReturn

from .errors import DefinitionError, InvariantBroken
from .findings import Violation, hashable, noted
from .properties import Kind, Property
from .world import Action, State, Step, World

__all__ = ["Symmetry", "sample"]

SAMPLE = 100
"""So many of the first states, and as many of all, are looked at in other arrangements too: is the world symmetric?"""
LOOKS = 1_000
"""So many other arrangements are looked at in all; where there are more, each state is looked at in other ones."""
ALL_ORDERS = 4
"""Up to so many groups an action that did not fire is tried in every order of them."""

Order = tuple[int, ...]
"""Of each slot, the slot from which it takes its value."""
Steps = Sequence[tuple[Step, Action]]
Leads = dict[tuple[Any, ...], list[Step]]


class Symmetry:
    """What a world declares as interchangeable; `groups`: for each declaration the groups, as numbers of slots."""

    def __init__(self, world: World) -> None:
        number = {name: index for index, name in enumerate(world.slots_)}
        self.declared = dict(world.symmetries_)
        self.groups = [[[number[name] for name in group] for group in each.groups] for each in self.declared.values()]
        self._slots = range(len(number))
        self._numbers: list[list[dict[Any, int]]] = [[{} for _ in groups[0]] for groups in self.groups]
        self._others = [
            (name, self._order(groups, order))
            for name, groups in zip(self.declared, self.groups, strict=True)
            for order in _some_orders(len(groups))
        ]

    @classmethod
    def of(cls, world: World) -> Symmetry | None:
        """The symmetry of a world, if it declares any."""
        return cls(world) if world.symmetries_ else None

    def told(self) -> tuple[tuple[str, str], ...]:
        """Each declaration with what it is over, for reports."""
        return tuple((name, str(each)) for name, each in self.declared.items())

    def canonical(self, state: State) -> State:
        """The one that is explored of all arrangements of the state."""
        values: list[Any] | None = None
        for groups, numbers in zip(self.groups, self._numbers, strict=True):
            keys = [
                tuple([each.setdefault(state[slot], len(each)) for slot, each in zip(group, numbers, strict=True)])
                for group in groups
            ]
            ordered = sorted(keys)
            if ordered == keys:
                continue
            values = list(state) if values is None else values
            for group, source in zip(groups, sorted(range(len(groups)), key=keys.__getitem__), strict=True):
                for slot, other in zip(group, groups[source], strict=True):
                    values[slot] = state[other]
        return state if values is None else tuple(values)

    def check(self, world: World, states: Sequence[State]) -> None:
        """DefinitionError if the world tells groups apart in one of these states or in another arrangement of it.

        In both the same steps must be possible, up to the order of groups, and the same properties hold.
        """
        steps = list(world.steps())
        each = max(1, LOOKS // max(1, len(states)))
        rounds = max(1, -(-len(self._others) // each))
        for number, state in enumerate(states):
            others = [(name, arranged(state, order)) for name, order in self._others[number % rounds :: rounds]]
            others = [(name, other) for name, other in others if other != state]
            if not others:
                continue
            held = _held(world, state)
            leads = self._leads(world, steps, state)
            for name, other in others:
                for one, two in zip(held, _held(world, other), strict=True):
                    if one != two:
                        yes, no = (state, other) if one[1] else (other, state)
                        self._refuse(world, name, f"property {one[0]!r} holds in the state", yes, "but not in", no)
                leads_too = self._leads(world, steps, other)
                if leads.keys() != leads_too.keys() or any(len(leads[key]) != len(leads_too[key]) for key in leads):
                    self._refuse_step(world, name, (state, leads), (other, leads_too))

    def concrete(self, world: World, broken: Violation) -> Violation:
        """The same violation by steps that the world, which stands where it begins, can really take one by one.

        DefinitionError if there are none: the world is not symmetric then.
        """
        steps = list(world.steps())
        taken: list[Step] = []
        states = [world.values]
        for number, step in enumerate(broken.steps, start=1):
            last = number >= len(broken.states)
            wanted = broken.name if last else self.canonical(broken.states[number])
            for each, act in sorted(steps, key=lambda pair: pair[0] != step):  # the same step first
                after = _after(world, each, act, states[-1])
                if after is not None and wanted == (after if isinstance(after, str) else self.canonical(after)):
                    break
            else:
                self._not_shown(world, broken, states[-1])
            taken.append(each)
            if not isinstance(after, str):
                states.append(after)
        if len(states) > len(taken):
            declared = world.properties_.get(broken.name)
            if declared is None:
                fine = any(_after(world, *pair, states[-1]) is not None for pair in steps)
            else:
                fine = _holds(world, declared, states[-1])
            if fine:
                self._not_shown(world, broken, states[-1])
        return Violation(broken.name, broken.covers, tuple(taken), tuple(states))

    def fires(self, world: World, steps: Steps, states: Iterable[State]) -> bool:
        """Whether one of the steps is enabled in one of the states in some other arrangement."""
        orders = list(self.orders())
        return any(
            _after(world, step, act, arranged(state, order)) is not None
            for state in states
            for order in orders
            for step, act in steps
        )

    def orders(self) -> Iterator[Order]:
        """Other arrangements: all of them, or of many groups those in which two have changed places."""
        each = [[self._order(groups, order) for order in _orders(len(groups))] for groups in self.groups]
        for orders in product(*each):
            combined = tuple(self._slots)
            for order in orders:
                combined = arranged(combined, order)
            if combined != tuple(self._slots):
                yield combined

    def _order(self, groups: list[list[int]], order: Sequence[int]) -> Order:
        """The arrangement in which each group has what group number `order[group]` had."""
        source = list(self._slots)
        for group, other in zip(groups, order, strict=True):
            for slot, taken in zip(group, groups[other], strict=True):
                source[slot] = taken
        return tuple(source)

    def _leads(self, world: World, steps: Steps, state: State) -> Leads:
        """Each enabled step by where it leads to, up to the order of groups, and by what it is allowed for."""
        recoverable = [p for p in world.properties_.values() if p.kind is Kind.RECOVERABLE]
        found: Leads = {}
        for step, act in steps:
            after = _after(world, step, act, state)
            if after is not None:
                where = after if isinstance(after, str) else self.canonical(after)
                allowed = tuple(p.by is None or step.name in p.by for p in recoverable)
                found.setdefault((where, step.fault, allowed), []).append(step)
        return found

    def _refuse_step(self, world: World, name: str, one: tuple[State, Leads], two: tuple[State, Leads]) -> NoReturn:
        """Names a step that is possible in one state and has no match in the other."""
        left, right = (Counter({key: len(steps) for key, steps in leads.items()}) for _, leads in (one, two))
        unmatched = [(key, one, two) for key in left - right] + [(key, two, one) for key in right - left]
        key, (state, leads), (other, _) = min(unmatched, key=lambda each: not isinstance(each[0][0], str))
        does = f"breaks {key[0]!r}" if isinstance(key[0], str) else "can be taken"
        first = f"action {leads[key][-1].label} {does} in the state"
        self._refuse(world, name, first, state, "but has no match in", other)

    def _refuse(self, world: World, name: str, first: str, state: State, second: str, other: State) -> NoReturn:
        raise DefinitionError(
            f"{type(world).__name__} says that {name} ({self.declared[name]}) are interchangeable, but it tells them "
            f"apart: {first} {_told(world, state)}, {second} the same with groups in another order "
            f"({_told(world, other)}); mend that, or leave out {name}"
        )

    def _not_shown(self, world: World, broken: Violation, state: State) -> NoReturn:
        names = ", ".join(self.declared)
        raise DefinitionError(
            f"{type(world).__name__} says that {names} are interchangeable, but it tells them apart: {broken.name!r} "
            f"is broken with groups in one order, and not with groups in another (in the state {_told(world, state)})"
        )


def sample(count: int) -> list[int]:
    """The positions of some of `count` states: the first ones, and some of all."""
    return sorted({*range(min(count, SAMPLE)), *range(0, count, max(1, count // SAMPLE))})


def arranged(state: tuple[Any, ...], order: Order) -> tuple[Any, ...]:
    """The state in another arrangement."""
    return tuple([state[slot] for slot in order])


def _some_orders(groups: int) -> list[tuple[int, ...]]:
    """Orders of groups: neighbours changed, all turned by one, reversed."""
    plain = list(range(groups))
    found = []
    for index in range(groups - 1):
        order = plain.copy()
        order[index], order[index + 1] = order[index + 1], order[index]
        found.append(tuple(order))
    found += [(*plain[1:], 0), (groups - 1, *plain[:-1]), tuple(reversed(plain))]
    return list(dict.fromkeys(found))


def _orders(groups: int) -> list[tuple[int, ...]]:
    """The plain order first; all orders, or of many groups those in which two have changed places."""
    if groups <= ALL_ORDERS:
        return list(permutations(range(groups)))
    found = [list(range(groups))]
    for one in range(groups):
        for two in range(one):
            found.append(list(range(groups)))
            found[-1][one], found[-1][two] = two, one
    return [tuple(order) for order in found]


def _held(world: World, state: State) -> list[tuple[str, bool]]:
    """Which of the properties that a search looks at hold in the state."""
    looked_at = (Kind.ALWAYS, Kind.SOMETIMES, Kind.FINAL, Kind.RECOVERABLE)
    return [(p.name, _holds(world, p, state)) for p in world.properties_.values() if p.kind in looked_at]


def _holds(world: World, declared: Property, state: State) -> bool:
    world.put(state)
    try:
        return world.holds(declared)
    except Exception as error:
        noted(error, f"property {declared.name!r}", world, state)
        raise


def _after(world: World, step: Step, act: Action, state: State) -> State | str | None:
    """The state that a step leads to, or the name of what it breaks, or None if it is not enabled."""
    world.put(state)
    try:
        return hashable(world, world.values) if world.act(act, step.args) else None
    except InvariantBroken as failure:
        return failure.property_name
    except DefinitionError:
        raise
    except Exception as error:
        noted(error, f"action {step.label}", world, state)
        raise


def _told(world: World, state: State) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in zip(world.slots_, state, strict=True))
