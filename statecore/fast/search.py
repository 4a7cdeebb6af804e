"""Breadth-first search over whole frontiers: the same answers as the reference search, many states at a time.

States are kept in the order in which they are found, so a level is a range of positions, and no state has a note of
where it came from: the way to it is found backwards, level by level, and so is as short as any. Verdict, counts and the
length of a counterexample are those of the reference; where several are equally short, it may be another one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from ..errors import DefinitionError
from ..findings import CTRL_C, Exploration, Limits, Progress, Violation
from ..properties import Kind, Property
from ..seams import Clock
from ..symmetry import Symmetry, sample
from ..world import State, Step, World
from .expand import CHUNK, Expander
from .recover import stuck
from .states import MOST_STATES
from .symmetry import arranged
from .trie import Columns

__all__ = ["explore"]

GROWING_LEVELS = 8
GROWING_VALUES = 64


def explore(
    world: World,
    limits: Limits | None = None,
    clock: Clock | None = None,
    progress: Callable[[Progress], None] | None = None,
    symmetry: Symmetry | None = None,
) -> Exploration:
    """Every reachable state visited, or a shortest way to one that breaks a property, or a limit reached.

    With `symmetry` canonical states only; the way is one of canonical states too, which a step leads to up to order.
    DefinitionError for an action that is not a function of what it reads, for a value that cannot be hashed or was
    changed in place. Ctrl-C is a limit too.
    """
    limits = limits or Limits()
    if limits.seconds is not None and clock is None:
        raise DefinitionError("a limit in seconds needs a clock")
    return _Search(world, limits, clock, progress, symmetry).run()


class _Search:
    def __init__(
        self,
        world: World,
        limits: Limits,
        clock: Clock | None,
        progress: Callable[[Progress], None] | None,
        symmetry: Symmetry | None,
    ) -> None:
        self.world = world
        self.symmetry = symmetry
        self.limits = limits
        self.clock = clock
        self.progress = progress
        self.began = clock.monotonic() if clock else 0.0
        self.expander = Expander(world, symmetry)
        self.otherwise: set[str] = set()  # actions that fire where groups are in another order
        self.declared = {kind: [p for p in world.properties_.values() if p.kind is kind] for kind in Kind}
        self.unseen = {p.name: p for p in self.declared[Kind.SOMETIMES]}
        self.levels = [0]  # the first position of each
        self.values: list[list[int]] = []  # how many each slot had when each level was begun
        self.result = Exploration(fired={name: 0 for name in world.actions_}, engine="fast")
        self.failed: tuple[int, int, str] | None = None  # position, step, what it breaks
        self.begin = self.end = 0

    def run(self) -> Exploration:
        result, symmetry = self.result, self.symmetry
        try:
            self._levels()
            if result.violation is None and result.limit is None:
                self._recoverable()
            if symmetry is not None and result.violation is None and result.limit is None:
                self._fired_otherwise(symmetry)
        except KeyboardInterrupt:
            result.limit, self.begin = CTRL_C, 0  # states may just have been packed anew, so none is shown
        try:
            self.expander.check_pure()
        except KeyboardInterrupt:
            result.limit = CTRL_C
        result.distinct = self.expander.states.count
        result.bytes = self.expander.bytes
        result.unseen = tuple(self.unseen)
        result.never_fired = tuple(n for n, times in result.fired.items() if not times and n not in self.otherwise)
        result.unchecked = tuple(p.name for kind in (Kind.EVENTUALLY, Kind.LEADS_TO) for p in self.declared[kind])
        result.checked = tuple(p.name for kind in (Kind.ALWAYS, Kind.RECOVERABLE) for p in self.declared[kind])
        result.notes = self._growing() if result.limit is not None else ()
        if symmetry is not None:
            result.symmetry = symmetry.told()
            result.sample = tuple(map(self._state, sample(self.begin)))  # of those that were expanded
        return result

    def _fired_otherwise(self, symmetry: Symmetry) -> None:
        """An action that no canonical state enables, but another arrangement of one does, has fired too."""
        expander = self.expander
        silent = [n for n, (step, _) in enumerate(expander.steps) if not self.result.fired[step.name]]
        for begin in range(0, expander.states.count if silent else 0, CHUNK):
            words = expander.states.words(begin, min(begin + CHUNK, expander.states.count))
            for order in symmetry.orders():
                columns = Columns(arranged(words, order, expander.layout), expander.layout)
                self.otherwise |= {expander.steps[number][0].name for number, _, _ in expander.each(columns, silent)}
                silent = [number for number in silent if expander.steps[number][0].name not in self.otherwise]
                if not silent:
                    return

    def _levels(self) -> None:
        states = self.expander.states
        capped = None
        self.begin, self.end = 0, states.count
        while self.begin < self.end:
            self.result.depth += 1
            if self._failed():
                return
            self.values.append([len(slot) for slot in self.expander.tracer.slots])
            last = self.limits.depth is not None and self.result.depth >= self.limits.depth
            for begin in range(self.begin, self.end, CHUNK):
                columns = self.expander.columns(begin, min(begin + CHUNK, self.end))
                if self._seen(begin, columns):
                    return
                if not last and self._expanded(begin, columns):
                    return
                if self._stopped():
                    # What was found on the way and needs no more search is said.
                    if self.failed is not None:
                        self.result.depth += 1
                        self._failed()
                    return
            if last:
                capped = f"depth {self.limits.depth}"
                break
            self.begin, self.end = self.end, states.count
            self.levels.append(self.begin)
        if self.failed is not None and capped is None:
            self.result.depth += 1
            self._failed()
        self.result.limit = capped if self.result.violation is None else None

    def _seen(self, begin: int, columns: Columns) -> bool:
        """Whether a property that must always hold is broken in one of these states; what is seen is noted."""
        first: tuple[int, Property] | None = None
        for each in self.declared[Kind.ALWAYS]:
            if self.expander.true_in_all(each, columns):
                continue
            row = int(self.expander.false(each, columns).min())
            if first is None or row < first[0]:
                first = row, each
        if first is not None:
            self.result.violation = self._violation(begin + first[0], first[1].name, first[1].covers)
            return True
        for name, each in list(self.unseen.items()):
            if len(self.expander.false(each, columns)) < columns.count:
                del self.unseen[name]
        return False

    def _expanded(self, begin: int, columns: Columns) -> bool:
        """Whether one of these states is a deadlock; where its steps lead to is found."""
        expander, result = self.expander, self.result
        columns, fired = expander.fired(begin, columns)
        enabled = np.zeros(columns.count, bool)
        for each in fired:
            number, rows, leaves = each
            if rows is None:
                enabled[:] = True
            elif not enabled.all():
                enabled[rows] = True
            result.generated += len(leaves)
            result.fired[expander.steps[number][0].name] += len(leaves)
            if self.failed is None and (found := expander.broken(each)) is not None:
                self.failed = begin + found[0], number, found[1]
            _, after = expander.after(columns, each)
            expander.found(after)
        if begin + columns.count == self.end:
            expander.look_up()
        dead = np.flatnonzero(~enabled)
        for each_final in self.declared[Kind.FINAL]:
            if len(dead):
                of_dead = Columns([word[dead] for word in columns.words], columns.layout)
                dead = dead[expander.false(each_final, of_dead)]
        if len(dead):
            result.violation = self._violation(begin + int(dead.min()), "deadlock", ())
        return bool(len(dead))

    def _failed(self) -> bool:
        """Whether a step of the level before broke a property itself."""
        if self.failed is None:
            return False
        position, number, name = self.failed
        way = self._violation(position, name, (name,))
        step = self.expander.steps[number][0]
        self.result.violation = Violation(name, (name,), (*way.steps, step), way.states)
        return True

    def _stopped(self) -> bool:
        """Whether a limit is reached; whoever wants to know hears how far it is."""
        result, limits = self.result, self.limits
        if self.expander.states.count + self.expander.waiting > limits.states:
            self.expander.look_up()
        count = self.expander.states.count
        now = self.clock.monotonic() if self.clock else 0.0
        if count > limits.states:
            result.limit = f"{limits.states} states"
        elif count > MOST_STATES:
            result.limit = f"{MOST_STATES} states, the most there is room for"
        elif limits.seconds is not None and now - self.began >= limits.seconds:
            result.limit = f"{limits.seconds} seconds"
        elif limits.memory is not None and self.expander.bytes > limits.memory:
            result.limit = f"{limits.memory} bytes of memory"
        else:
            result.limit = self.expander.too_many_values()
        if self.progress is not None:
            self.progress(Progress(count, self.end - self.begin, result.depth, now - self.began, self.expander.bytes))
        return result.limit is not None

    def _recoverable(self) -> None:
        found = stuck(self.expander, self.declared[Kind.RECOVERABLE], self._stopped)
        if found is not None:
            position, broken = found
            self.result.violation = self._violation(position, broken.name, broken.covers)

    def _violation(self, position: int, name: str, covers: tuple[str, ...]) -> Violation:
        """The way to the state, found backwards: in each level the first state that has a step to the next one."""
        level = max(number for number, first in enumerate(self.levels) if first <= position)
        steps: list[Step] = []
        states: list[State] = [self._state(position)]
        while level:
            level -= 1
            position, step = self._before(position, self.levels[level], self.levels[level + 1])
            steps.append(step)
            states.append(self._state(position))
        return Violation(name, covers, tuple(reversed(steps)), tuple(reversed(states)))

    def _before(self, position: int, begin: int, end: int) -> tuple[int, Step]:
        """The first state of the level with a step to that state, and the step."""
        expander = self.expander
        wanted = expander.states.at(position)
        for first in range(begin, end, CHUNK):
            columns = expander.columns(first, min(first + CHUNK, end))
            best: tuple[int, int] | None = None
            for fired in expander.each(columns, range(len(expander.steps))):
                rows, after = expander.after(columns, fired)
                same = np.logical_and.reduce([word == one for word, one in zip(after, wanted, strict=True)])
                if same.any():
                    row = int(np.flatnonzero(same).min()) if rows is None else int(rows[same].min())
                    best = min(best or (row, fired[0]), (row, fired[0]))
            if best is not None:
                return first + best[0], expander.steps[best[1]][0]
        raise AssertionError("every state but the first was found by a step from the level before")

    def _state(self, position: int) -> State:
        return self.expander.tracer.values(self.expander.layout.unpack(self.expander.states.at(position)))

    def _growing(self) -> tuple[str, ...]:
        """Slots that got new values in each of the last levels: which, how many, the newest."""
        notes = []
        if len(self.values) > GROWING_LEVELS:
            for number, slot in enumerate(self.expander.tracer.slots):
                sizes = [*(counts[number] for counts in self.values[-GROWING_LEVELS:]), len(slot)]
                if len(slot) >= GROWING_VALUES and all(one < two for one, two in pairwise(sizes)):
                    newest = ", ".join(map(repr, slot.values[-3:]))
                    notes.append(
                        f"slot {slot.name!r} has {len(slot):,} values and seems to grow without bound; "
                        f"the newest: {newest}"
                    )
        return tuple(dict.fromkeys(notes))  # slots that correspond have their values together
