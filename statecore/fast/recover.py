"""From which states a good one can be reached by steps that are allowed: backward search, mostly without the graph.

Most states are settled by going through all of them once from the last to the first, each time asking whether some
allowed step leads to a state that is settled: steps lead on to states found later more often than not. All properties
are asked about at once, and the steps that settled most states of late are tried first, so that most of them need not
be tried. Of what is not settled then, all steps have been tried; along these, which were kept, it is searched backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..properties import Property
from .expand import CHUNK, Expander, Fired
from .trie import Columns, Ints

__all__ = ["stuck"]

Bits = NDArray[np.uint8]
Positions = NDArray[np.int32]
AT_ONCE = 8
"""So many properties are asked about at once: each has a bit of a byte for each state."""


def stuck(expander: Expander, declared: Sequence[Property], stopped: Callable[[], bool]) -> tuple[int, Property] | None:
    """The first property that can never be reached again from some state, and the position of the first such state.

    None if there is none. Steps that are faults are not allowed, nor, if a property names actions, any other ones.
    None too if `stopped`.
    """
    for first in range(0, len(declared), AT_ONCE):
        some = declared[first : first + AT_ONCE]
        settled = _Backward(expander, some).settled(stopped)
        if settled is None:
            return None
        for number, each in enumerate(some):
            left = np.flatnonzero(settled & 1 << number == 0)
            if len(left):
                return int(left[0]), each
    return None


class _Backward:
    """`bits` has, for each state, a bit for each property: set where a state with the property can be reached."""

    def __init__(self, expander: Expander, declared: Sequence[Property]) -> None:
        self.expander = expander
        self.declared = declared
        self.all = (1 << len(declared)) - 1
        self.bits: Bits = np.zeros(expander.states.count, np.uint8)
        self.allowed: dict[int, int] = {}  # step: the bits of the properties for which it may be taken
        for number, (step, _) in enumerate(expander.steps):
            mine = [not step.fault and (each.by is None or step.name in each.by) for each in declared]
            if any(mine):
                self.allowed[number] = sum(1 << bit for bit, may in enumerate(mine) if may)
        self.gain = dict.fromkeys(self.allowed, 0.0)
        """How many states each step settled of late."""
        self.kept: list[tuple[int, Positions, Positions]] = []
        """Steps that did not settle all that they might: the bits that they might, from where, to where."""

    def settled(self, stopped: Callable[[], bool]) -> Bits | None:
        """The bits, all that can be set; None if `stopped`."""
        count = len(self.bits)
        chunks = list(range(0, count, CHUNK))
        for begin in chunks:
            columns = self.expander.columns(begin, min(begin + CHUNK, count))
            for bit, each in enumerate(self.declared):
                here = np.full(columns.count, 1 << bit, np.uint8)
                here[self.expander.false(each, columns)] = 0
                self.bits[begin : begin + columns.count] |= here
        for begin in reversed(chunks):
            self._settle(begin, min(begin + CHUNK, count))
            if stopped():
                return None
        for bit in range(len(self.declared)):
            self._search(1 << bit)
        return self.bits

    def _settle(self, begin: int, end: int) -> None:
        """Bits of the range are set by steps to states that have them."""
        bits = self.bits
        todo = begin + np.flatnonzero(bits[begin:end] != self.all)
        columns: Columns | None = None
        kept: list[tuple[int, Ints, Ints]] = []
        gained = dict.fromkeys(self.allowed, 0)
        for number in sorted(self.gain, key=self.gain.__getitem__, reverse=True):
            may = self.allowed[number]
            wanted = bits.take(todo) & may != may
            if not wanted.any():
                continue
            if columns is None:
                columns = self._columns(todo)
            for fired in self.expander.each(columns, [number]):
                rows, after = self._after(columns, fired, wanted)
                here = todo.take(rows)
                old = bits.take(here)
                new = old | bits.take(after) & may
                bits[here] = new
                gained[number] = int(np.count_nonzero(new != old))
                left = np.flatnonzero(new & may != may)
                kept.append((may, here[left], after[left]))
            if gained[number]:
                left = np.flatnonzero(bits.take(todo) != self.all)
                if len(left) * 4 < 3 * len(todo):
                    todo, columns = todo[left], None
        for may, here, after in kept:
            left = np.flatnonzero(bits[here] & may != may)
            self.kept.append((may, here[left].astype(np.int32), after[left].astype(np.int32)))
        for number, times in gained.items():
            self.gain[number] = self.gain[number] / 2 + times

    def _search(self, bit: int) -> None:
        """The bit is set wherever it can be, backward along the steps that were kept."""
        mine = [(here, after) for may, here, after in self.kept if may & bit]
        if not mine:
            return
        source, target = (np.concatenate(positions).astype(np.int64) for positions in zip(*mine, strict=True))
        fresh = _once(source[self.bits[target] & bit != 0])
        edges = np.sort(target << 32 | source)
        while len(fresh):
            self.bits[fresh] |= bit
            first = np.searchsorted(edges, fresh << 32)
            lengths = np.searchsorted(edges, fresh + 1 << 32) - first
            found = np.repeat(first - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
            before = edges[found] & 0xFFFFFFFF
            fresh = _once(before[self.bits[before] & bit == 0])

    def _columns(self, positions: Ints) -> Columns:
        words = [column.take(positions) for column in self.expander.states.columns]
        return Columns(words, self.expander.layout)

    def _after(self, columns: Columns, fired: Fired, wanted: NDArray[np.bool_]) -> tuple[Ints, Ints]:
        """Rows, of those wanted, from which the step leads on, and the positions that it leads to."""
        number, rows, leaves = fired
        some = (wanted if rows is None else wanted.take(rows)).nonzero()[0]
        rows = some if rows is None else rows.take(some)
        rows, after = self.expander.after(columns, (number, rows, leaves.take(some)))
        return np.arange(columns.count) if rows is None else rows, self.expander.states.find(after).astype(np.int64)


def _once(positions: Ints) -> Ints:
    """Each position once, in order."""
    positions = np.sort(positions)
    return np.concatenate([positions[:1], positions[1:][positions[1:] != positions[:-1]]])
