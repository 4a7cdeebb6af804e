"""The reference exploration: plain breadth-first search over every reachable state of a world.

Simple on purpose (it is the oracle of any faster one): states are tuples in a dict, each found once, with the step that
found it. Breadth first means that the trace to a violation is as short as any.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from .errors import DefinitionError, InvariantBroken
from .findings import CTRL_C, Exploration, Limits, Progress, Violation, hashable, noted
from .properties import Kind, Property
from .seams import Clock
from .symmetry import Symmetry, sample
from .world import Action, State, Step, World

__all__ = ["explore"]


class _Broken:
    """Queued in place of a state: the step to it broke a property of the transition."""

    def __init__(self, name: str) -> None:
        self.name = name


Found = dict[Any, tuple[Any, Step | None]]
Edges = list[tuple[State, Step, State]]


PROGRESS_STATES = 1_000
"""Whoever wants to know hears how far it is after so many states each."""
DICT_ENTRY_BYTES = 230
EDGE_BYTES = 72


def explore(
    world: World,
    limits: Limits | None = None,
    clock: Clock | None = None,
    progress: Callable[[Progress], None] | None = None,
    symmetry: Symmetry | None = None,
) -> Exploration:
    """Every reachable state visited, or the shortest way to one that breaks a property, or a limit reached.

    With `symmetry` canonical states only; the way is one of canonical states too, which a step leads to up to order.
    Ctrl-C is a limit too; the world stands in any state afterwards.
    """
    limits = limits or Limits()
    if limits.seconds is not None and clock is None:
        raise DefinitionError("a limit in seconds needs a clock")
    search = _Search(world, limits, clock, progress, symmetry)
    try:
        search.run()
    except KeyboardInterrupt:
        search.result.limit = CTRL_C
    return search.settled()


class _Search:
    def __init__(
        self,
        world: World,
        limits: Limits,
        clock: Clock | None,
        progress: Callable[[Progress], None] | None,
        symmetry: Symmetry | None,
    ) -> None:
        self.world, self.limits, self.clock, self.progress = world, limits, clock, progress
        self.symmetry = symmetry
        self.expanded = 0
        self.otherwise: set[str] = set()  # actions that fire where groups are in another order
        self.began = clock.monotonic() if clock else 0.0
        self.tell_at = PROGRESS_STATES
        self.declared = {kind: [p for p in world.properties_.values() if p.kind is kind] for kind in Kind}
        self.result = Exploration(fired={name: 0 for name in world.actions_})
        self.unseen = {p.name: p for p in self.declared[Kind.SOMETIMES]}
        self.edges: Edges | None = [] if self.declared[Kind.RECOVERABLE] else None
        start = self._state()
        self.found: Found = {start: (None, None)}
        self.queue: deque[tuple[Any, int]] = deque([(start, 1)])

    def run(self) -> None:
        """Until all is visited, a property is broken, or a limit reached."""
        result, limits, queue = self.result, self.limits, self.queue
        steps = list(self.world.steps())
        capped = None
        while queue and result.violation is None and result.limit is None:
            state, level = queue.popleft()
            result.depth = level
            if broken := _broken(self.world, state, self.declared[Kind.ALWAYS]):
                result.violation = _violation(self.found, state, broken.name, broken.covers)
                return
            for name in [name for name, p in self.unseen.items() if _holds(self.world, state, p)]:
                del self.unseen[name]
            if limits.depth is not None and level >= limits.depth:
                capped = f"depth {limits.depth}"
            elif not self._expand(state, level, steps) and not _any(self.world, state, self.declared[Kind.FINAL]):
                result.violation = _violation(self.found, state, "deadlock", ())
            else:
                result.limit = self._limit()
        result.limit = result.limit or capped
        if self.edges is not None and result.violation is None and result.limit is None:
            result.violation = _unrecoverable(self.world, self.found, self.edges, self.declared[Kind.RECOVERABLE])
        if self.symmetry is not None and result.violation is None and result.limit is None:
            self._fired_otherwise(self.symmetry, steps)

    def _fired_otherwise(self, symmetry: Symmetry, steps: list[tuple[Step, Action]]) -> None:
        """An action that no canonical state enables, but another arrangement of one does, has fired too."""
        for name in [name for name, times in self.result.fired.items() if not times]:
            if symmetry.fires(self.world, [pair for pair in steps if pair[0].name == name], self.found):
                self.otherwise.add(name)

    def _expand(self, state: State, level: int, steps: list[tuple[Step, Action]]) -> bool:
        """Whether any step is enabled; where each leads to is found."""
        enabled = False
        self.expanded += 1
        for step, act in steps:
            self.world.put(state)
            try:
                if not self.world.act(act, step.args):
                    continue
                after: Any = self._state()
            except InvariantBroken as failure:
                after = _Broken(failure.property_name)
            except Exception as error:
                noted(error, f"action {step.label}", self.world, state)
                raise
            enabled = True
            self.result.generated += 1
            self.result.fired[step.name] += 1
            if self.edges is not None and after.__class__ is tuple:
                self.edges.append((state, step, after))
            if after not in self.found:
                self.found[after] = (state, step)
                self.queue.append((after, level + 1))
        return enabled

    def _state(self) -> State:
        """Where the world stands, or the state that is explored for it."""
        state = hashable(self.world, self.world.values)
        return state if self.symmetry is None else self.symmetry.canonical(state)

    def _limit(self) -> str | None:
        """The limit that is reached, if one is."""
        limits, count = self.limits, len(self.found)
        now = self.clock.monotonic() if self.clock else 0.0
        if self.progress is not None and count >= self.tell_at:
            self.tell_at = count + PROGRESS_STATES
            gone = now - self.began
            self.progress(Progress(count, len(self.queue), self.result.depth, gone, self._bytes()))
        if count > limits.states:
            return f"{limits.states} states"
        if limits.seconds is not None and now - self.began >= limits.seconds:
            return f"{limits.seconds} seconds"
        if limits.memory is not None and self._bytes() > limits.memory:
            return f"{limits.memory} bytes of memory"
        return None

    def _bytes(self) -> int:
        """About what states and edges take: tuples and their entries in the dict; not the slots' values."""
        state = sys.getsizeof(next(iter(self.found))) + DICT_ENTRY_BYTES
        return len(self.found) * state + len(self.edges or ()) * EDGE_BYTES

    def settled(self) -> Exploration:
        """The result, with all that is counted at the end."""
        result, declared = self.result, self.declared
        result.distinct = sum(state.__class__ is tuple for state in self.found)
        result.bytes = self._bytes()
        result.unseen = tuple(self.unseen)
        result.never_fired = tuple(n for n, times in result.fired.items() if not times and n not in self.otherwise)
        result.unchecked = tuple(p.name for kind in (Kind.EVENTUALLY, Kind.LEADS_TO) for p in declared[kind])
        result.checked = tuple(p.name for kind in (Kind.ALWAYS, Kind.RECOVERABLE) for p in declared[kind])
        if self.symmetry is not None:
            states = list(self.found)  # those that were expanded first, in this order
            result.symmetry = self.symmetry.told()
            result.sample = tuple([states[position] for position in sample(self.expanded)])
        return result


def _broken(world: World, state: Any, always: list[Property]) -> Property | None:
    """The first property that `state` breaks; `world` stands in it afterwards."""
    if isinstance(state, _Broken):
        return Property(Kind.ALWAYS, state.name, lambda _: False, (state.name,))
    world.put(state)
    return next((p for p in always if not _holds(world, state, p)), None)


def _any(world: World, state: State, declared: list[Property]) -> bool:
    world.put(state)
    return any(_holds(world, state, p) for p in declared)


def _holds(world: World, state: State, declared: Property) -> bool:
    """Whether the world, which is in `state`, has the property."""
    try:
        return world.holds(declared)
    except Exception as error:
        noted(error, f"property {declared.name!r}", world, state)
        raise


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
