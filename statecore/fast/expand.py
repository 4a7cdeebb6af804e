"""What every step does to many states at once, and how packed states are laid out as slots get new values.

What steps lead to is gathered and looked up together, up to a level at a time: in most worlds many steps lead to the
same state, and equal ones are cheaper to find by sorting than one by one in a table of all states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ..properties import Property
from ..symmetry import Symmetry
from ..world import Action, Step, World
from .intern import MOST_VALUES, Layout, Words
from .states import States
from .symmetry import Canonical
from .tracing import Run, Tracer
from .trie import Columns, Ints, Trie

__all__ = ["BATCH", "CHUNK", "Expander", "Fired"]

CHUNK = 1 << 15
"""States are looked at so many at a time."""

BATCH = 1 << 18
"""So many states at least are looked up together, if a level has as many: equal ones among them are seen at once."""

DEEP = 6
"""A property that looks at so many slots is asked once for all states of a chunk that are alike in them."""

Fired = tuple[int, Ints | None, Ints]
"""The number of a step, the rows in which it is enabled (None: all), and the leaf of each."""


class Expander:
    """The tries of a world's steps and properties, over one layout that grows."""

    def __init__(self, world: World, symmetry: Symmetry | None = None) -> None:
        self.world = world
        self.tracer = Tracer(world, symmetry)
        self._canonical = None if symmetry is None else Canonical(symmetry)
        self.layout = Layout.roomy(self._needed())
        self.states = States(self.layout.words)
        self.states.add([np.array([word], np.uint64) for word in self.layout.pack(self.tracer.start)])
        self.steps: list[tuple[Step, Action]] = list(world.steps())
        self.tries = [Trie(f"action {step.label}", self.layout) for step, _ in self.steps]
        self._found: list[Words] = []
        self.waiting = 0
        """How many of those found are not looked up yet; there may be equal ones among them."""
        self._predicates: dict[str, Trie] = {}
        self._first: dict[int, tuple[tuple[int, ...], Run]] = {}

    @property
    def bytes(self) -> int:
        """What states and tries take."""
        return self.states.bytes + sum(trie.bytes for trie in (*self.tries, *self._predicates.values()))

    def too_many_values(self) -> str | None:
        """The slot, if there is one, whose values are too many."""
        for slot in self.tracer.slots:
            if len(slot) > MOST_VALUES:
                newest = ", ".join(map(repr, slot.values[-3:]))
                return f"{MOST_VALUES} values of slot {slot.name!r}: it seems to grow without bound (newest: {newest})"
        return None

    def columns(self, begin: int, end: int) -> Columns:
        """The states from position `begin` up to `end`."""
        return Columns(self.states.words(begin, end), self.layout)

    def fired(self, begin: int, columns: Columns) -> tuple[Columns, list[Fired]]:
        """What is enabled in the states from `begin` on, and these in a layout into which all fits that it does."""
        fired = list(self.each(columns, range(len(self.steps))))
        if self.grow():
            columns = self.columns(begin, begin + columns.count)
        return columns, fired

    def each(self, columns: Columns, numbers: range | list[int]) -> Iterator[Fired]:
        """Step by step, what is enabled in some states; steps that are enabled nowhere are left out."""
        for number in numbers:
            rows, leaves = self.tries[number].run(columns, self._learner(number, columns))
            if len(leaves):
                yield number, rows, leaves

    def after(self, columns: Columns, fired: Fired) -> tuple[Ints | None, Words]:
        """The other states that a step leads to, and from which rows (None: all).

        Rows in which it changes nothing or breaks a property are left out. What is given back is not to be changed in
        place: words that the step does not change may be those of `columns`.
        """
        number, rows, leaves = fired
        known = self.tries[number].leaves
        if known.broken:
            fine = (~np.isin(leaves, known.broken)).nonzero()[0]
            rows, leaves = fine if rows is None else rows.take(fine), leaves.take(fine)
        before = columns.words if rows is None else [word.take(rows) for word in columns.words]
        after, changed = known.apply(before, leaves, self.layout)
        others = changed.nonzero()[0]
        if len(others) < len(changed):
            rows, after = others if rows is None else rows.take(others), [word.take(others) for word in after]
        if self._canonical is not None:
            after = self._canonical([word.copy() for word in after], self.layout)
        return rows, after

    def found(self, words: Words) -> None:
        """These states are reachable. Many are looked up together, so that `states` may not have them yet."""
        self._found.append(words)
        self.waiting += len(words[0])
        if self.waiting >= BATCH:
            self.look_up()

    def look_up(self) -> None:
        """All that was found is among the states."""
        if self._found:
            self.states.add([np.concatenate(words) for words in zip(*self._found, strict=True)])
            self._found, self.waiting = [], 0

    def broken(self, fired: Fired) -> tuple[int, str] | None:
        """The first row in which the step breaks a property, and its name."""
        number, rows, leaves = fired
        trie = self.tries[number]
        if not trie.leaves.broken:
            return None
        found = np.flatnonzero(np.isin(leaves, trie.leaves.broken))
        if not len(found):
            return None
        first = int(found[0]) if rows is None else int(found[np.argmin(rows[found])])
        name = trie.leaves.outcomes[int(leaves[first])].breaks
        assert name is not None
        return (first if rows is None else int(rows[first])), name

    def false(self, declared: Property, columns: Columns) -> Ints:
        """The rows in which the property is false, in no order."""
        rows, _ = self._asked(self._trie_of(declared), declared, columns)
        return np.arange(columns.count) if rows is None else rows

    def true_in_all(self, declared: Property, columns: Columns) -> bool:
        """Whether the property is true in all rows; one that looks at many is asked once for those alike."""
        trie = self._trie_of(declared)
        while len(trie.reads) >= DEEP:
            before = len(trie.reads)
            _, leaves = self._asked(trie, declared, columns.unlike(trie.reads))
            if len(leaves) or len(trie.reads) == before:  # it may turn out to look at still more
                return not len(leaves)
        return not len(self._asked(trie, declared, columns)[1])

    def _trie_of(self, declared: Property) -> Trie:
        trie = self._predicates.get(declared.name)
        if trie is None:
            trie = self._predicates[declared.name] = Trie(f"property {declared.name!r}", self.layout)
        return trie

    def _asked(self, trie: Trie, declared: Property, columns: Columns) -> tuple[Ints | None, Ints]:
        def learn(row: int) -> tuple[Run, tuple[int, ...]]:
            ids = columns.ids(row)
            return self.tracer.holds(trie.where, declared, ids), ids

        return trie.run(columns, learn)

    def grow(self) -> bool:
        """Whether slots had got more values than there was room for; now there is room, and states are packed anew."""
        if all(len(slot) <= self.layout.capacity(number) for number, slot in enumerate(self.tracer.slots)):
            return False
        self.look_up()
        old, self.layout = self.layout, Layout.roomy(self._needed())
        self.states.replace(self.layout.repack(self.states.words(0, self.states.count), old))
        for trie in (*self.tries, *self._predicates.values()):
            trie.relayout(self.layout)
        return True

    def check_pure(self) -> None:
        """DefinitionError if an action does something else now than when it was first run, or values were changed."""
        for number, (ids, run) in self._first.items():
            self.tracer.compare(self.tries[number].where, run, self._act(number, ids), ids)
        self.tracer.check_unchanged()

    def _learner(self, number: int, columns: Columns) -> Callable[[int], tuple[Run, tuple[int, ...]]]:
        def learn(row: int) -> tuple[Run, tuple[int, ...]]:
            ids = columns.ids(row)
            run = self._act(number, ids)
            if number not in self._first or (run.outcome.enabled and not self._first[number][1].outcome.enabled):
                self._first[number] = (ids, run)
            return run, ids

        return learn

    def _act(self, number: int, ids: tuple[int, ...]) -> Run:
        step, action = self.steps[number]
        return self.tracer.act(number, self.tries[number].where, action, step.args, ids)

    def _needed(self) -> list[int]:
        """The bits that each slot needs."""
        return [max(1, (len(slot) - 1).bit_length()) for slot in self.tracer.slots]
