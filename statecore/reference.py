"""The reference exploration: plain breadth-first search over every reachable state of a world.

Simple on purpose (it is the oracle of any faster one): states are tuples in a dict, each found once, with the step that
found it. Breadth first means that the trace to a violation is as short as any.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from .errors import DefinitionError, InvariantBroken
from .findings import Exploration, Limits, Violation
from .properties import Kind, Property
from .seams import Clock
from .world import State, Step, World

__all__ = ["explore"]


class _Broken:
    """Queued in place of a state: the step to it broke a property of the transition."""

    def __init__(self, name: str) -> None:
        self.name = name


Found = dict[Any, tuple[Any, Step | None]]
Edges = list[tuple[State, Step, State]]


def explore(world: World, limits: Limits | None = None, clock: Clock | None = None) -> Exploration:
    """Every reachable state visited, or the shortest way to one that breaks a property, or a limit reached."""
    limits = limits or Limits()
    if limits.seconds is not None and clock is None:
        raise DefinitionError("a limit in seconds needs a clock")
    declared = {kind: [p for p in world.properties_.values() if p.kind is kind] for kind in Kind}
    result = Exploration(fired={name: 0 for name in world.actions_})
    unseen = {p.name: p for p in declared[Kind.SOMETIMES]}
    edges: Edges | None = [] if declared[Kind.RECOVERABLE] else None
    steps = list(world.steps())
    start = _hashable(world, world.values)
    found: Found = {start: (None, None)}
    queue = deque([(start, 1)])
    stop_at = clock.monotonic() + limits.seconds if clock and limits.seconds is not None else None
    capped = None

    while queue and result.violation is None and result.limit is None:
        state, level = queue.popleft()
        result.depth = level
        if broken := _broken(world, state, declared[Kind.ALWAYS]):
            result.violation = _violation(found, state, broken.name, broken.covers)
            break
        for name in [name for name, p in unseen.items() if world.holds(p)]:
            del unseen[name]
        if limits.depth is not None and level >= limits.depth:
            capped = f"depth {limits.depth}"
            continue
        enabled = False
        for step, act in steps:
            world.put(state)
            try:
                if not world.act(act, step.args):
                    continue
                after: Any = _hashable(world, world.values)
            except InvariantBroken as failure:
                after = _Broken(failure.property_name)
            enabled = True
            result.generated += 1
            result.fired[step.name] += 1
            if edges is not None and after.__class__ is tuple:
                edges.append((state, step, after))
            if after not in found:
                found[after] = (state, step)
                queue.append((after, level + 1))
        if not enabled and not _any(world, state, declared[Kind.FINAL]):
            result.violation = _violation(found, state, "deadlock", ())
        elif len(found) > limits.states:
            result.limit = f"{limits.states} states"
        elif stop_at is not None and clock is not None and clock.monotonic() >= stop_at:
            result.limit = f"{limits.seconds} seconds"

    result.limit = result.limit or capped
    result.distinct = sum(state.__class__ is tuple for state in found)
    result.unseen = tuple(unseen)
    result.never_fired = tuple(name for name, times in result.fired.items() if not times)
    result.unchecked = tuple(p.name for kind in (Kind.EVENTUALLY, Kind.LEADS_TO) for p in declared[kind])
    result.checked = tuple(p.name for kind in (Kind.ALWAYS, Kind.RECOVERABLE) for p in declared[kind])
    if edges is not None and result.violation is None and result.limit is None:
        result.violation = _unrecoverable(world, found, edges, declared[Kind.RECOVERABLE])
    return result


def _hashable(world: World, state: State) -> State:
    try:
        hash(state)
    except TypeError:
        for name, value in zip(world.slots_, state, strict=True):
            try:
                hash(value)
            except TypeError as error:
                raise DefinitionError(f"slot {name!r} holds {value!r}, which cannot be hashed: {error}") from None
    return state


def _broken(world: World, state: Any, always: list[Property]) -> Property | None:
    """The first property that `state` breaks; `world` stands in it afterwards."""
    if isinstance(state, _Broken):
        return Property(Kind.ALWAYS, state.name, lambda _: False, (state.name,))
    world.put(state)
    return next((p for p in always if not world.holds(p)), None)


def _any(world: World, state: State, declared: list[Property]) -> bool:
    world.put(state)
    return any(world.holds(p) for p in declared)


def _violation(found: Found, state: Any, name: str, covers: tuple[str, ...]) -> Violation:
    """The way back from `state` to the initial one, turned round."""
    steps: list[Step] = []
    states: list[State] = [] if isinstance(state, _Broken) else [state]
    before, step = found[state]
    while step is not None:
        steps.append(step)
        states.append(before)
        before, step = found[before]
    return Violation(name, covers, tuple(reversed(steps)), tuple(reversed(states)))


def _unrecoverable(world: World, found: Found, edges: Edges, declared: list[Property]) -> Violation | None:
    """The nearest state from which one of the properties can never be reached again without faults."""
    for each in declared:
        before: dict[State, list[State]] = {}
        for state, step, after in edges:
            if not step.fault and (each.by is None or step.name in each.by):
                before.setdefault(after, []).append(state)
        good: set[State] = set()
        todo = [state for state in found if _any(world, state, [each])]
        while todo:
            state = todo.pop()
            if state not in good:
                good.add(state)
                todo += before.get(state, ())
        stuck = next((state for state in found if state not in good), None)
        if stuck is not None:
            return _violation(found, stuck, each.name, each.covers)
    return None
