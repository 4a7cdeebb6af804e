"""One action (or property) as a trie in the order in which it reads slots; plain Python runs once for each new path.

What is read next follows from what has been read. A node is a slot to look at, its children are found by the number of
the slot's value: in a flat array while the slot is small, else in a hash table. A leaf is what the action does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..errors import DefinitionError
from .intern import Layout, Words
from .states import States
from .tracing import Outcome, Run

__all__ = ["Columns", "Leaves", "Trie"]

UNKNOWN, HELD = -1, -2  # children: a number of a node from 0 up, not run yet, not enabled, or -3 - (number of a leaf)
FLAT_MOST = 1 << 20
Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Learn = Callable[[int], tuple[Run, tuple[int, ...]]]
"""A run on the state in that row, and the numbers of the slots' values there."""


class Columns:
    """Some states with the number of each slot's value in a column of its own, taken out when first asked for."""

    def __init__(self, words: Words, layout: Layout) -> None:
        self.words = words
        self.layout = layout
        self.count = len(words[0])
        self._columns: list[Ints | None] = [None] * len(layout.widths)

    def column(self, slot: int) -> Ints:
        found = self._columns[slot]
        if found is None:
            found = self._columns[slot] = self.layout.column(self.words, slot).view(np.int64)
        return found

    def ids(self, row: int) -> tuple[int, ...]:
        """The numbers of all slots in one row."""
        return self.layout.unpack([int(word[row]) for word in self.words])


class Leaves:
    """What a step does to packed states: for each leaf and word, the bits that stay and the bits that are set."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.broken: list[int] = []
        self._numbers: dict[Outcome, int] = {}
        self._packed: tuple[Layout, int, list[tuple[Words, bool]]] | None = None

    def number(self, outcome: Outcome) -> int:
        """Equal outcomes are one leaf."""
        found = self._numbers.setdefault(outcome, len(self.outcomes))
        if found == len(self.outcomes):
            self.outcomes.append(outcome)
            if outcome.breaks is not None:
                self.broken.append(found)
        return found

    def masks(self, layout: Layout) -> list[tuple[Words, bool]]:
        """For each word: the arrays `keep` and `put` by leaf, and whether any leaf changes the word."""
        if self._packed is None or self._packed[0] is not layout or self._packed[1] != len(self.outcomes):
            done = 0
            count = len(self.outcomes)
            keep = np.full((layout.words, count), 0xFFFFFFFFFFFFFFFF, np.uint64)
            put = np.zeros((layout.words, count), np.uint64)
            if self._packed is not None and self._packed[0] is layout:
                done = self._packed[1]
                for word, ((kept, set_), _) in enumerate(self._packed[2]):
                    keep[word, :done], put[word, :done] = kept, set_
            for leaf in range(done, count):
                for slot, number in self.outcomes[leaf].writes:
                    word = layout.word[slot]
                    keep[word, leaf] &= np.uint64(0xFFFFFFFFFFFFFFFF ^ layout.mask(slot))
                    put[word, leaf] |= np.uint64(number << layout.shift[slot])
            changes = [bool((keep[word] != 0xFFFFFFFFFFFFFFFF).any()) for word in range(layout.words)]
            self._packed = (layout, count, [([keep[w], put[w]], changes[w]) for w in range(layout.words)])
        return self._packed[2]

    def apply(self, words: Words, rows: Ints | None, leaves: Ints, layout: Layout) -> Words:
        """The states after the step: of row `rows[i]` by leaf `leaves[i]` (`rows` None: all rows)."""
        after = []
        masks = self.masks(layout)
        for word, ((keep, put), changes) in zip(words, masks, strict=True):
            values = word.take(rows) if rows is not None else word.copy()
            if changes and len(keep) == 1:
                values &= keep[0]
                values |= put[0]
            elif changes:
                values &= keep.take(leaves)
                values |= put.take(leaves)
            after.append(values)
        return after


class Trie:
    """`run` gives the rows in which the action is enabled, and what it does there."""

    def __init__(self, where: str, layout: Layout) -> None:
        self.where = where
        self.leaves = Leaves()
        self._slot: list[int] = []
        self._edges: dict[tuple[int, int], int] = {}
        self._root = UNKNOWN
        self.layout = layout
        self._reset()

    @property
    def bytes(self) -> int:
        """What the arrays take, and about as much as the paths take in Python."""
        return self._flat.nbytes + self._sparse.bytes + self._sparse_child.nbytes + 200 * len(self._edges)

    def relayout(self, layout: Layout) -> None:
        """Slots have more room now."""
        self.layout = layout
        self._reset()
        for node, slot in enumerate(self._slot):
            self._place(node, slot)
        self._arrays()
        for (node, number), child in self._edges.items():
            self._set(node, number, child)

    def run(self, columns: Columns, learn: Learn) -> tuple[Ints | None, Ints]:
        """(rows, leaves): the rows in which it is enabled (None: in all of them), with the leaf of each."""
        if self._root == UNKNOWN:
            self._insert(learn(0))
        count = columns.count
        if self._root < 0:
            leaf = -3 - self._root
            return (None, np.full(count, leaf, np.int64)) if leaf >= 0 else (_NONE, _NONE)
        rows: Ints | None = None
        nodes: Codes | None = None  # None: all at the root
        found_rows: list[Ints] = []
        found: list[Codes] = []
        while True:
            child = self._children(columns, rows, nodes, learn)
            alive = np.flatnonzero(child != HELD)
            if len(alive) != len(child):
                child = child[alive]
                rows = alive if rows is None else rows[alive]
            if not len(child):
                break
            at_leaf = child < 0
            leaves = int(np.count_nonzero(at_leaf))
            if leaves == len(child):
                found_rows.append(rows if rows is not None else np.arange(count))
                found.append(child)
                break
            if leaves:
                done = np.flatnonzero(at_leaf)
                found_rows.append(done if rows is None else rows[done])
                found.append(child[done])
                going = np.flatnonzero(~at_leaf)
                child = child[going]
                rows = going if rows is None else rows[going]
            nodes = child
        if not found:
            return _NONE, _NONE
        if len(found) == 1:
            return found_rows[0], -3 - found[0].astype(np.int64)
        return np.concatenate(found_rows), -3 - np.concatenate(found).astype(np.int64)

    def _children(self, columns: Columns, rows: Ints | None, nodes: Codes | None, learn: Learn) -> Codes:
        """The child of each row's node; none is unknown any more."""
        if len(self._slots) != len(self._slot):  # paths were learnt since: once for all of them, each copies all nodes
            self._arrays()
        first = 0 if nodes is None else int(nodes[0])
        if nodes is None or (nodes == first).all():
            column = columns.column(self._slot[first])
            number = column if rows is None else column.take(rows)
            nodes = None
        else:
            number = self._numbers(columns, rows, nodes)
        child = self._look_up(first, nodes, number)
        unknown = np.flatnonzero(child == UNKNOWN)
        if len(unknown):
            node = np.full(len(unknown), first, np.int64) if nodes is None else nodes[unknown].astype(np.int64)
            edge = node << 32 | number[unknown]
            for one in unknown[np.unique(edge, return_index=True)[1]]:
                self._insert(learn(int(one if rows is None else rows[one])))
            self._arrays()
            child[unknown] = self._look_up(first, None if nodes is None else nodes[unknown], number[unknown])
        return child

    def _numbers(self, columns: Columns, rows: Ints | None, nodes: Codes) -> Ints:
        """What each row has in the slot that its node looks at."""
        slots = self._slots.take(nodes)
        number = np.empty(len(nodes), np.int64)
        for slot in np.flatnonzero(np.bincount(slots)):
            here = np.flatnonzero(slots == slot)
            number[here] = columns.column(int(slot)).take(here if rows is None else rows[here])
        return number

    def _look_up(self, first: int, nodes: Codes | None, number: Ints) -> Codes:
        if nodes is None:
            base = int(self._bases[first])
            if base >= 0:
                return self._flat[base : base + self.layout.capacity(self._slot[first])].take(number)
            return self._look_up_sparse(np.full(len(number), first, np.int64), number)
        bases = self._bases.take(nodes)
        if not self._has_sparse:
            return self._flat.take(bases + number)
        child: Codes = self._flat.take(np.maximum(bases + number, 0))
        sparse = np.flatnonzero(bases < 0)
        child[sparse] = self._look_up_sparse(nodes[sparse].astype(np.int64), number[sparse])
        return child

    def _look_up_sparse(self, nodes: Ints, number: Ints) -> Codes:
        position = self._sparse.find([(nodes << 32 | number).view(np.uint64)])
        return np.where(position < 0, np.int32(UNKNOWN), self._sparse_child.take(position, mode="wrap"))

    def _reset(self) -> None:
        self._flat: Codes = np.full(1 << 8, UNKNOWN, np.int32)
        self._used = 0
        self._base: list[int] = []
        self._sparse = States(1)
        self._sparse_child: Codes = np.full(1 << 8, UNKNOWN, np.int32)
        self._has_sparse = False
        self._arrays()

    def _arrays(self) -> None:
        self._slots = np.array(self._slot, np.int64)
        self._bases = np.array(self._base, np.int64)

    def _place(self, node: int, slot: int) -> None:
        """Room for the node's children."""
        room = self.layout.capacity(slot)
        if node and self._used + room > FLAT_MOST:
            self._base.append(-1 << 40)
            self._has_sparse = True
            return
        if self._used + room > len(self._flat):
            flat = np.full(max(self._used + room, 2 * len(self._flat)), UNKNOWN, np.int32)
            flat[: self._used] = self._flat[: self._used]
            self._flat = flat
        self._base.append(self._used)
        self._used += room

    def _set(self, node: int, number: int, child: int) -> None:
        base = self._base[node]
        if base < 0:
            position = self._sparse.count
            self._sparse.add([np.array([node << 32 | number], np.uint64)])
            if position == len(self._sparse_child):
                self._sparse_child = np.concatenate([self._sparse_child, np.full(position, UNKNOWN, np.int32)])
            self._sparse_child[position] = child
        elif number < self.layout.capacity(self._slot[node]):
            self._flat[base + number] = child

    def _insert(self, learnt: tuple[Run, tuple[int, ...]]) -> None:
        """The path of a run is there."""
        run, ids = learnt
        end = -3 - self.leaves.number(run.outcome) if run.outcome.enabled else HELD
        node, number = -1, 0  # the edge on which the next node hangs; -1: the root
        for slot in run.reads:
            child = self._root if node < 0 else self._edges.get((node, number), UNKNOWN)
            if child == UNKNOWN:
                child = len(self._slot)
                self._slot.append(slot)
                self._place(child, slot)
                self._hang(node, number, child)
            elif child < 0 or self._slot[child] != slot:
                raise self._impure(slot)
            node, number = child, ids[slot]
        there = self._root if node < 0 else self._edges.get((node, number), UNKNOWN)
        if there not in (UNKNOWN, end):
            raise self._impure(None)
        self._hang(node, number, end)

    def _hang(self, node: int, number: int, child: int) -> None:
        if node < 0:
            self._root = child
        else:
            self._edges[node, number] = child
            self._set(node, number, child)

    def _impure(self, slot: int | None) -> DefinitionError:
        went_on = "ended" if slot is None else f"read slot number {slot}"
        return DefinitionError(
            f"{self.where} is not a function of the slots that it reads: after the same reads it once {went_on} and "
            "once did something else; keep all that matters in slots"
        )


_NONE: Ints = np.empty(0, np.int64)
