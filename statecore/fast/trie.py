"""One action (or property) as a trie in the order in which it reads slots; plain Python runs once for each new path.

What is read next follows from what has been read. A node is a slot to look at, its children are found by the number of
the slot's value: in a flat array while the slot is small, else in a hash table. A leaf is what the action does.

A trie is gone through a level at a time, for all rows that are still on their way. At the root, where most rows drop
out, the rows with a certain value are asked for by many actions and found once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..errors import DefinitionError
from .intern import Layout, Words
from .states import States, unlike
from .tracing import Outcome, Run

__all__ = ["Columns", "Leaves", "Trie"]

# A child is a number of a node from 0 up, not enabled, a leaf (-2 - its number), or not run yet, which is the least.
HELD, LEAF, UNKNOWN = -1, -2, -(2**31)
FLAT_MOST = 1 << 20
FEW = 16
"""Up to so many values of the first slot, their rows are looked at one value after the other."""
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
        self._numbers: Ints = np.empty((len(layout.widths), self.count), np.int64)
        self.there: set[int] = set()
        """The slots whose columns have been taken out."""
        self.flat: Ints = self._numbers.reshape(-1)
        """All columns one after the other: that of slot n begins at n * count. Only what was asked for is in it."""
        self._where: dict[tuple[int, int], Ints] = {}

    def column(self, slot: int) -> Ints:
        column: Ints = self._numbers[slot]
        if slot not in self.there:
            self.layout.column(self.words, slot, column.view(np.uint64))
            self.there.add(slot)
        return column

    def where(self, slot: int, number: int) -> Ints:
        """The rows in which the slot has that value; many actions ask for the same."""
        rows = self._where.get((slot, number))
        if rows is None:
            rows = self._where[slot, number] = (self.column(slot) == number).nonzero()[0]
        return rows

    def unlike(self, slots: set[int]) -> Columns:
        """Some of the states, among them one for each combination of values that these slots have here."""
        masks = [0] * len(self.words)
        for slot in slots:
            masks[self.layout.word[slot]] |= self.layout.mask(slot)
        parts = [word & np.uint64(mask) for word, mask in zip(self.words, masks, strict=True) if mask]
        rows = unlike(parts)
        return Columns([word.take(rows) for word in self.words], self.layout)

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

    def apply(self, before: Words, leaves: Ints, layout: Layout) -> tuple[Words, NDArray[np.bool_]]:
        """The states after the step, of row i by leaf `leaves[i]`, and in which rows they are others than before."""
        after = []
        changed: NDArray[np.bool_] | None = None
        for word, ((keep, put), changes) in zip(before, self.masks(layout), strict=True):
            if not changes:
                after.append(word)
                continue
            if len(keep) == 1:
                values = word & keep[0]
                values |= put[0]
            else:
                values = keep.take(leaves)
                values &= word
                values |= put.take(leaves)
            after.append(values)
            differs = values != word
            changed = differs if changed is None else changed | differs
        return after, np.zeros(len(leaves), bool) if changed is None else changed


class Trie:
    """`run` gives the rows in which the action is enabled, and what it does there."""

    def __init__(self, where: str, layout: Layout) -> None:
        self.where = where
        self.leaves = Leaves()
        self._slot: list[int] = []
        self._edges: dict[int, int] = {}  # node << 32 | number of the value: child
        self._root = UNKNOWN
        self.layout = layout
        self._reset()

    @property
    def bytes(self) -> int:
        """What the arrays take, and about as much as the paths take in Python."""
        return self._flat.nbytes + self._sparse.bytes + self._sparse_child.nbytes + 200 * len(self._edges)

    def relayout(self, layout: Layout) -> None:
        """Slots have more room now."""
        before, self.layout = self.layout, layout
        if all(layout.capacity(slot) == before.capacity(slot) for slot in self.reads):
            return
        self._reset()
        for node, slot in enumerate(self._slot):
            self._place(node, slot)
        edges = np.fromiter(self._edges, np.int64, len(self._edges))
        children = np.fromiter(self._edges.values(), np.int32, len(self._edges))
        places = self._bases.take(edges >> 32) + (edges & _NUMBER)
        flat = places >= 0
        self._flat[places[flat]] = children[flat]
        if self._has_sparse:
            self._set_sparse(edges[~flat], children[~flat])

    def run(self, columns: Columns, learn: Learn) -> tuple[Ints | None, Ints]:
        """(rows, leaves): the rows in which it is enabled (None: in all of them), with the leaf of each."""
        if self._root == UNKNOWN:
            self._insert(learn(0))
        count = columns.count
        if self._root < 0:
            return (None, np.full(count, LEAF - self._root, np.int64)) if self._root <= LEAF else (_NONE, _NONE)
        rows: Ints | None = None
        node, nodes = self._root, None  # the node of all rows, or each row's
        found_rows: list[Ints] = []
        found: list[Codes] = []
        if self.layout.capacity(self._slot[node]) <= FEW:
            started = self._start(columns, learn, found_rows, found)
            if started is None:
                return self._joined(found_rows, found)
            rows, node, nodes = started
        while True:
            child = self._children(columns, rows, node, nodes, learn)
            alive = (child != HELD).nonzero()[0]
            if not len(alive):
                break
            if len(alive) != len(child):
                child = child.take(alive)
                rows = alive if rows is None else rows.take(alive)
            least, most = int(child.min()), int(child.max())
            if most < 0:
                found_rows.append(np.arange(count) if rows is None else rows)
                found.append(child)
                break
            if least < 0:
                going = child >= 0
                done = (~going).nonzero()[0]
                found_rows.append(done if rows is None else rows.take(done))
                found.append(child.take(done))
                left = going.nonzero()[0]
                child = child.take(left)
                rows = left if rows is None else rows.take(left)
                least = int(child.min())
            node, nodes = most, None if least == most else child.astype(np.int64)
        return self._joined(found_rows, found)

    def _joined(self, rows: list[Ints], found: list[Codes]) -> tuple[Ints, Ints]:
        """Rows and leaves in one array each."""
        if not found:
            return _NONE, _NONE
        all_rows = rows[0] if len(rows) == 1 else np.concatenate(rows)
        if len(self.leaves.outcomes) == 1:
            return all_rows, np.zeros(len(all_rows), np.int64)
        return all_rows, np.subtract(LEAF, found[0] if len(found) == 1 else np.concatenate(found), dtype=np.int64)

    def _start(
        self, columns: Columns, learn: Learn, found_rows: list[Ints], found: list[Codes]
    ) -> tuple[Ints, int, Ints | None] | None:
        """The first step, if the slot at the root has few values: leaves are put into `found`, and what goes on is
        given back, if anything does: rows and their nodes, as one or each."""
        slot = self._slot[self._root]
        going: list[tuple[Ints, int]] = []
        for number, known in enumerate(self._flat[: self.layout.capacity(slot)].tolist()):
            if known == HELD:
                continue
            rows = columns.where(slot, number)
            if not len(rows):
                continue
            if known == UNKNOWN:
                self._insert(learn(int(rows[0])))
            child = self._edges[self._root << 32 | number]
            if child >= 0:
                going.append((rows, child))
            elif child != HELD:
                found_rows.append(rows)
                found.append(np.full(len(rows), child, np.int32))
        if not going:
            return None
        if len(going) == 1:
            return (*going[0], None)
        nodes = np.repeat([node for _, node in going], [len(rows) for rows, _ in going])
        return np.concatenate([rows for rows, _ in going]), going[0][1], nodes

    def _children(self, columns: Columns, rows: Ints | None, node: int, nodes: Ints | None, learn: Learn) -> Codes:
        """The child of each row's node; none is unknown any more."""
        if nodes is None:
            number = columns.column(self._slot[node])
            if rows is not None:
                number = number.take(rows)
        else:
            assert rows is not None or len(nodes) == columns.count
            for slot in self.reads - columns.there:
                columns.column(slot)
            number = self._slots.take(nodes)
            number *= columns.count
            number += np.arange(columns.count) if rows is None else rows
            number = columns.flat.take(number)
        child = self._look_up(node, nodes, number)
        if child.min() == UNKNOWN:
            unknown = (child == UNKNOWN).nonzero()[0]
            edge = number.take(unknown)
            edge |= node << 32 if nodes is None else nodes.take(unknown) << 32
            for one in unknown[unlike([edge.view(np.uint64)])]:
                self._insert(learn(int(one if rows is None else rows[one])))
            child[unknown] = self._look_up(node, None if nodes is None else nodes.take(unknown), number.take(unknown))
        return child

    def _look_up(self, node: int, nodes: Ints | None, number: Ints) -> Codes:
        """The child for the number of each row's value at the node of all rows, or at each row's."""
        if nodes is None:
            base = int(self._bases[node])
            if base >= 0:
                return self._flat[base : base + self.layout.capacity(self._slot[node])].take(number)
            return self._look_up_sparse(np.full(len(number), node, np.int64), number)
        place = self._bases.take(nodes)
        place += number
        if not self._has_sparse:
            return self._flat.take(place)
        child: Codes = self._flat.take(np.maximum(place, 0))
        sparse = (place < 0).nonzero()[0]
        child[sparse] = self._look_up_sparse(nodes.take(sparse), number.take(sparse))
        return child

    def _look_up_sparse(self, nodes: Ints, number: Ints) -> Codes:
        position = self._sparse.find([(nodes << 32 | number).view(np.uint64)])
        return np.where(position < 0, np.int32(UNKNOWN), self._sparse_child.take(position, mode="wrap"))

    def _reset(self) -> None:
        self._flat: Codes = np.full(1 << 8, UNKNOWN, np.int32)
        self._used = 0
        self._slots: Ints = np.empty(1 << 4, np.int64)  # of each node: the slot that it looks at,
        self._bases: Ints = np.empty(1 << 4, np.int64)  # and where its children begin
        self.reads: set[int] = set()
        """The slots that nodes look at."""
        self._sparse = States(1)
        self._sparse_child: Codes = np.full(1 << 8, UNKNOWN, np.int32)
        self._has_sparse = False

    def _place(self, node: int, slot: int) -> None:
        """Room for the node's children."""
        if node == len(self._slots):
            self._slots, self._bases = (np.concatenate([of, np.empty_like(of)]) for of in (self._slots, self._bases))
        self._slots[node] = slot
        self.reads.add(slot)
        room = self.layout.capacity(slot)
        if node and self._used + room > FLAT_MOST:
            self._bases[node] = _NOT_FLAT
            self._has_sparse = True
            return
        if self._used + room > len(self._flat):
            flat = np.full(max(self._used + room, 2 * len(self._flat)), UNKNOWN, np.int32)
            flat[: self._used] = self._flat[: self._used]
            self._flat = flat
        self._bases[node] = self._used
        self._used += room

    def _set_sparse(self, edges: Ints, children: Codes) -> None:
        keys = [edges.view(np.uint64)]
        self._sparse.add(keys)
        if self._sparse.count > len(self._sparse_child):
            room = np.full(2 * self._sparse.count, UNKNOWN, np.int32)
            room[: len(self._sparse_child)] = self._sparse_child
            self._sparse_child = room
        self._sparse_child[self._sparse.find(keys)] = children

    def _insert(self, learnt: tuple[Run, tuple[int, ...]]) -> None:
        """The path of a run is there."""
        run, ids = learnt
        end = LEAF - self.leaves.number(run.outcome) if run.outcome.enabled else HELD
        node, number = -1, 0  # the edge on which the next node hangs; -1: the root
        for slot in run.reads:
            child = self._root if node < 0 else self._edges.get(node << 32 | number, UNKNOWN)
            if child == UNKNOWN:
                child = len(self._slot)
                self._slot.append(slot)
                self._place(child, slot)
                self._hang(node, number, child)
            elif child < 0 or self._slot[child] != slot:
                raise self._impure(slot)
            node, number = child, ids[slot]
        there = self._root if node < 0 else self._edges.get(node << 32 | number, UNKNOWN)
        if there not in (UNKNOWN, end):
            raise self._impure(None)
        self._hang(node, number, end)

    def _hang(self, node: int, number: int, child: int) -> None:
        if node < 0:
            self._root = child
            return
        edge = node << 32 | number
        self._edges[edge] = child
        base = int(self._bases[node])
        if base < 0:
            self._set_sparse(np.array([edge]), np.array([child], np.int32))
        elif number < self.layout.capacity(self._slot[node]):
            self._flat[base + number] = child

    def _impure(self, slot: int | None) -> DefinitionError:
        went_on = "ended" if slot is None else f"read slot number {slot}"
        return DefinitionError(
            f"{self.where} is not a function of the slots that it reads: after the same reads it once {went_on} and "
            "once did something else; keep all that matters in slots"
        )


_NONE: Ints = np.empty(0, np.int64)
_NOT_FLAT = -(1 << 40)
_NUMBER = (1 << 32) - 1
