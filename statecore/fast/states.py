"""Every state found so far, in the order found: a column for each word, and a hash table of their positions.

Comparison is exact at any width: the table says where to look, and whole words are compared. A state takes 8 bytes a
word, and 8 to 16 in the table, or up to 32 if it is of one word. Everything is done for many states at once, without a
loop over states, and in the order of their hashes, which is that of their places in the table: so what is equal is side
by side, and the table is gone through from the first place to the last.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .intern import Words

__all__ = ["MOST_STATES", "States", "unlike"]

MOST_STATES = 2**31 - 2**22
"""Positions are 32-bit; whoever adds sees to it that there are no more."""

_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93))
_BACK = tuple(np.uint64(pow(int(odd), -1, 1 << 64)) for odd in _MIX)
_HALF = np.uint64(32)
PIECE = 1 << 14
"""So many are hashed at a time, which a processor keeps at hand from one operation to the next."""
Index = NDArray[np.int32]


class States:
    """Grows by `add`; `find` says where states are."""

    def __init__(self, words: int) -> None:
        self.count = 0
        self.columns: Words = [np.empty(1 << 10, np.uint64) for _ in range(words)]
        self._set_bits(12)

    def _set_bits(self, bits: int) -> None:
        self._bits = bits
        self._table: Index = np.full(1 << bits, -1, np.int32)
        self._shift = np.uint64(64 - bits)
        self._last = (1 << bits) - 1

    @property
    def bytes(self) -> int:
        """What states and table take; room that is set aside for more is not counted until it is used."""
        return self.count * 8 * len(self.columns) + self._table.nbytes

    def words(self, begin: int, end: int) -> Words:
        """The states from position `begin` up to `end`; views."""
        return [column[begin:end] for column in self.columns]

    def at(self, position: int) -> list[int]:
        """One state as plain integers."""
        return [int(column[position]) for column in self.columns]

    def add(self, new: Words) -> None:
        """All of them are there; equal ones once."""
        # In the order of their hashes, which is that of their places in the table. It is quickest to sort hashes alone.
        if len(new) == 1:
            mixed = _mixed(new)
            mixed.sort()
            differs = np.ones(len(mixed), bool)
            differs[1:] = mixed[1:] != mixed[:-1]
            mixed = mixed.take(differs.nonzero()[0])
            new = [_unmixed(mixed)]
        else:
            rows = unlike(new)
            new = [word.take(rows) for word in new]
            mixed = _mixed(new)
        self._make_room(len(mixed))
        table, columns = self._table, self.columns
        place = self._places(mixed)
        while True:
            free = (table.take(place) < 0).nonzero()[0]
            if len(free):
                # Who wrote last has the place; the others look again at what is there now.
                claim = np.arange(self.count, self.count + len(free), dtype=np.int32)
                wanted = place.take(free)
                table[wanted] = claim
                won = (table.take(wanted) == claim).nonzero()[0]
                end = self.count + len(won)
                if len(won) < len(free):
                    table[wanted.take(won)] = claim[: len(won)]
                    free = free.take(won)
                for column, word in zip(columns, new, strict=True):
                    word.take(free, out=column[self.count : end], mode="clip")
                self.count = end
                rest = np.ones(len(place), bool)
                rest[free] = False
                left = rest.nonzero()[0]
                place, new = place.take(left), [word.take(left) for word in new]
            position = table.take(place)
            differs = columns[0].take(position) != new[0]
            for column, word in zip(columns[1:], new[1:], strict=True):
                differs |= column.take(position) != word
            left = differs.nonzero()[0]
            if not len(left):
                return
            # What lost a place to another state looks at the next one, as does what met another state there.
            place = (place.take(left) + 1) & self._last
            new = [word.take(left) for word in new]

    def find(self, wanted: Words) -> Index:
        """The position of each, -1 where it is not there."""
        place = self._places(_mixed(wanted))
        found = position = self._table.take(place)
        rows: NDArray[np.int64] | None = None  # those that are still looked for; None: all
        while True:
            differs = self.columns[0].take(position, mode="wrap") != wanted[0]
            for column, word in zip(self.columns[1:], wanted[1:], strict=True):
                differs |= column.take(position, mode="wrap") != word
            differs &= position >= 0
            left = differs.nonzero()[0]
            if not len(left):
                return found
            rows = left if rows is None else rows.take(left)
            place, wanted = (place.take(left) + 1) & self._last, [word.take(left) for word in wanted]
            position = self._table.take(place)
            found[rows] = position

    def replace(self, words: Words) -> None:
        """The same states in the same order, packed anew."""
        self.columns = [np.empty(max(1 << 10, self.count * 2), np.uint64) for _ in words]
        for column, word in zip(self.columns, words, strict=True):
            column[: self.count] = word
        self._table.fill(-1)
        self._fill(np.arange(self.count, dtype=np.int32))

    def _places(self, mixed: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Where in the table to begin to look."""
        return (mixed >> self._shift).view(np.int64)

    def _make_room(self, more: int) -> None:
        need = self.count + more
        if need > len(self.columns[0]):
            for number, column in enumerate(self.columns):
                self.columns[number] = np.empty(need * 2, np.uint64)
                self.columns[number][: self.count] = column[: self.count]
        bits = self._bits
        while need * 3 > 2 << bits or self.count * 2 > 1 << bits:
            bits += 2 if len(self.columns) == 1 else 1  # rarely, if there is memory for it
        if bits != self._bits:
            # In the order of their places, so that those in the larger table follow each other too.
            order = self._table.take((self._table >= 0).nonzero()[0])
            self._set_bits(bits)
            self._fill(order)

    def _fill(self, order: Index) -> None:
        """The table, which is empty, gets all states, which differ from each other."""
        table = self._table
        for begin in range(0, self.count, 1 << 18):
            position = order[begin : begin + (1 << 18)]
            place = self._places(_mixed([column.take(position) for column in self.columns]))
            while len(place):
                free = (table.take(place) < 0).nonzero()[0]
                table[place.take(free)] = position.take(free)
                left = (table.take(place) != position).nonzero()[0]
                place, position = (place.take(left) + 1) & self._last, position.take(left)


def unlike(words: Words) -> NDArray[np.int64]:
    """Rows in which all different states are, in no order; one that is there more than once seldom has two rows."""
    order = (words[0] if len(words) == 1 else _mixed(words)).argsort()
    differs = np.zeros(len(order), bool)
    differs[:1] = True
    for word in words:
        ordered = word.take(order)
        differs[1:] |= ordered[1:] != ordered[:-1]
    return order.take(differs.nonzero()[0])


def _mixed(words: Words) -> NDArray[np.uint64]:
    """A hash of each state; those of one word have different ones, from which `_unmixed` gets the word back."""
    hashes = np.empty_like(words[0])
    for begin in range(0, len(hashes), PIECE):
        piece = [word[begin : begin + PIECE] for word in words]
        mixed = np.multiply(piece[0], _MIX[0], out=hashes[begin : begin + PIECE])
        for word in piece[1:]:
            mixed ^= mixed >> _HALF
            mixed += word
            mixed *= _MIX[0]
        mixed ^= mixed >> _HALF
        mixed *= _MIX[1]
    return hashes


def _unmixed(mixed: NDArray[np.uint64]) -> NDArray[np.uint64]:
    word = mixed * _BACK[1]
    word ^= word >> _HALF
    word *= _BACK[0]
    return word
