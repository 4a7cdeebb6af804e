"""From which states a good one can be reached by steps that are allowed: backward search, without keeping the graph.

Most states are settled by going through all of them once from the last to the first and once the other way, each time
asking whether some allowed step leads to a state that is settled. All properties are asked about at once, and the
steps that settled most states of late are tried first, so that most of them need not be tried. Only what is left then
is searched along edges.
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
AT_ONCE = 8
"""So many properties are asked about at once: each has a bit of a byte for each state."""


def stuck(
    expander: Expander, declared: Sequence[Property], stopped: Callable[[], bool]
) -> tuple[int, Property] | None:
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

    def settled(self, stopped: Callable[[], bool]) -> Bits | None:
        """The bits, all that can be set; None if `stopped`."""
        count = len(self.bits)
        chunks = list(range(0, count, CHUNK))
        for begin in chunks:
            columns = self.expander.columns(begin, min(begin + CHUNK, count))
            for bit, each in enumerate(self.declared):
                here = np.full(columns.count, 1 << bit, np.uint8)
                here[self.expander.false(each.name, each, columns)] = 0
                self.bits[begin : begin + columns.count] |= here
        for order in (reversed(chunks), chunks):
            changed = False
            for begin in order:
                changed |= self._settle(begin, min(begin + CHUNK, count))
                if stopped():
                    return None
            if not changed or not (self.bits != self.all).any():
                break
        else:
            for bit in range(len(self.declared)):
                self._search(bit)
        return self.bits

    def _settle(self, begin: int, end: int) -> bool:
        """Whether bits of the range were set that were not before."""
        bits = self.bits
        todo = begin + np.flatnonzero(bits[begin:end] != self.all)
        columns: Columns | None = None
        gained = dict.fromkeys(self.allowed, 0)
        for number in sorted(self.gain, key=self.gain.__getitem__, reverse=True):
            if not len(todo):
                break
            may = self.allowed[number]
            if columns is None:
                columns = self._columns(todo)
            for fired in self.expander.each(columns, [number]):
                rows, after = self._after(columns, fired, self.bits[todo] & may != may)
                here = todo[rows]
                old = bits[here]
                new = old | bits[after] & may
                bits[here] = new
                gained[number] = int(np.count_nonzero(new != old))
            if gained[number]:
                left = np.flatnonzero(bits[todo] != self.all)
                if len(left) * 4 < 3 * len(todo):
                    todo, columns = todo[left], None
        for number, times in gained.items():
            self.gain[number] = self.gain[number] / 2 + times
        return any(gained.values())

    def _search(self, bit: int) -> None:
        """The bit is set wherever it can be, along all the steps out of states in which it is not."""
        mask = 1 << bit
        todo = np.flatnonzero(self.bits & mask == 0)
        allowed = [number for number, bits in self.allowed.items() if bits & mask]
        sources: list[NDArray[np.int32]] = []
        targets: list[NDArray[np.int32]] = []
        for begin in range(0, len(todo), CHUNK):
            here = todo[begin : begin + CHUNK]
            columns = self._columns(here)
            for fired in self.expander.each(columns, allowed):
                rows, after = self._after(columns, fired, None)
                sources.append(here[rows].astype(np.int32))
                targets.append(after.astype(np.int32))
        if not sources:
            return
        source, target = np.concatenate(sources), np.concatenate(targets)
        fresh = np.unique(source[self.bits[target] & mask != 0])
        order = np.argsort(target, kind="stable")
        source, target = source[order], target[order]
        while len(fresh):
            self.bits[fresh] |= mask
            first = np.searchsorted(target, fresh, "left")
            lengths = np.searchsorted(target, fresh, "right") - first
            edges = np.repeat(first - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
            before = source[edges]
            fresh = np.unique(before[self.bits[before] & mask == 0])

    def _columns(self, positions: Ints) -> Columns:
        words = [column.take(positions) for column in self.expander.states.columns]
        return Columns(words, self.expander.layout)

    def _after(self, columns: Columns, fired: Fired, wanted: NDArray[np.bool_] | None) -> tuple[Ints, Ints]:
        """Rows, of those wanted (None: all), from which the step leads on, and the positions that it leads to."""
        number, rows, leaves = fired
        if wanted is not None:
            some = (wanted if rows is None else wanted.take(rows)).nonzero()[0]
            rows, leaves = some if rows is None else rows.take(some), leaves.take(some)
        rows, after = self.expander.after(columns, (number, rows, leaves))
        return np.arange(columns.count) if rows is None else rows, self.expander.states.find(after).astype(np.int64)
