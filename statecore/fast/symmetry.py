"""Packed states made canonical, many at a time: the groups of each declaration are sorted by the numbers they hold.

Slots that correspond have one table of values and one width, so what a group holds is an integer, its key (of several
words, if a group has more than 64 bits); its last slot counts most. Numbers of values never change, so neither does the
order, whatever the layout.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from ..symmetry import Order, Symmetry
from .intern import Layout, Words

__all__ = ["Canonical", "arranged"]

KEY_BITS = 64
NETWORK_MOST = 16
"""Up to so many groups are sorted by comparing columns; more of them row by row."""

WORD_ONES = (1 << 64) - 1
Column = NDArray[np.uint64]


@frozen
class _Piece:
    """Some bits of a group: where they are in a state, and where in the group's key."""

    word: int
    shift: int
    mask: int
    key_word: int
    key_shift: int

    def continued_by(self, other: _Piece) -> bool:
        """Whether the next bits of the key are the next ones of the state too."""
        return (self.word, self.key_word, self.shift - self.key_shift) == (
            other.word,
            other.key_word,
            other.shift - other.key_shift,
        )


class Canonical:
    """Makes states of one world canonical, in whatever layout they are."""

    def __init__(self, symmetry: Symmetry) -> None:
        self.symmetry = symmetry
        self._networks = [_network(len(groups)) for groups in symmetry.groups]
        self._pieces: tuple[Layout, list[list[list[_Piece]]]] | None = None

    def __call__(self, words: Words, layout: Layout) -> Words:
        """The canonical states, in the same order and in the same arrays."""
        if self._pieces is None or self._pieces[0] is not layout:
            self._pieces = layout, [[_pieces(group, layout) for group in groups] for groups in self.symmetry.groups]
        if len(words[0]):
            for pieces, network in zip(self._pieces[1], self._networks, strict=True):
                self._sort(words, pieces, network)
        return words

    def _sort(self, words: Words, pieces: list[list[_Piece]], network: list[tuple[int, int]]) -> None:
        """The groups of one declaration are in order in each state."""
        keys = [_keys(words, group) for group in pieces]
        rows = np.flatnonzero(_unsorted(keys))
        if not len(rows):
            return
        keys = [[word.take(rows) for word in key] for key in keys]
        if len(keys[0]) > 1:
            keys = _sorted_long(keys)
        elif network:
            _sort_columns([key[0] for key in keys], network)
        else:
            table = np.sort(np.stack([key[0] for key in keys], axis=1), axis=1)
            keys = [[column] for column in table.T]
        for number, word in enumerate(words):
            pairs = [(piece, key) for group, key in zip(pieces, keys, strict=True) for piece in group]
            mine = [(piece, key) for piece, key in pairs if piece.word == number]
            if mine:
                others = WORD_ONES - sum(piece.mask << piece.shift for piece, _ in mine)
                values = word.take(rows) & np.uint64(others)
                for piece, key in mine:
                    part = key[piece.key_word] >> np.uint64(piece.key_shift)
                    part &= np.uint64(piece.mask)
                    part <<= np.uint64(piece.shift)
                    values |= part
                word[rows] = values


def arranged(words: Words, order: Order, layout: Layout) -> Words:
    """The states in another arrangement."""
    after = [np.zeros(len(words[0]), np.uint64) for _ in words]
    for slot, source in enumerate(order):
        after[layout.word[slot]] |= layout.column(words, source) << np.uint64(layout.shift[slot])
    return after


def _pieces(group: list[int], layout: Layout) -> list[_Piece]:
    """The bits of a group, from the lowest of its key to the highest; what lies side by side is one piece."""
    pieces: list[_Piece] = []
    key_word = used = 0
    for slot in group:
        width = layout.widths[slot]
        if used + width > KEY_BITS:
            key_word, used = key_word + 1, 0
        word, shift = layout.word[slot], layout.shift[slot]
        piece = _Piece(word, shift, (1 << width) - 1, key_word, used)
        if pieces and pieces[-1].continued_by(piece):
            last = pieces.pop()
            piece = evolve(last, mask=last.mask | layout.mask(slot) >> last.shift)
        pieces.append(piece)
        used += width
    return pieces


def _keys(words: Words, group: list[_Piece]) -> list[Column]:
    """The key of a group in each state: its words, the one that counts most last."""
    key: list[Column] = []
    for piece in group:
        part = words[piece.word] >> np.uint64(piece.shift)
        part &= np.uint64(piece.mask)
        part <<= np.uint64(piece.key_shift)
        if piece.key_word == len(key):
            key.append(part)
        else:
            key[piece.key_word] |= part
    return key


def _unsorted(keys: list[list[Column]]) -> NDArray[np.bool_]:
    """Whether some group has a higher key than the next one."""
    found = np.zeros(len(keys[0][0]), bool)
    for one, two in pairwise(keys):
        higher = one[0] > two[0]
        for low, high in zip(one[1:], two[1:], strict=True):
            higher = (low > high) | ((low == high) & higher)
        found |= higher
    return found


def _network(groups: int) -> list[tuple[int, int]]:
    """Pairs to compare and exchange, one after the other, which sort so many (Batcher 1968); none for very many."""
    pairs: list[tuple[int, int]] = []
    if groups > NETWORK_MOST:
        return pairs
    half = 1
    while half < groups:
        step = half
        while step >= 1:
            for first in range(step % half, groups - step, 2 * step):
                for low in range(first, min(first + step, groups - step)):
                    if low // (half * 2) == (low + step) // (half * 2):
                        pairs.append((low, low + step))
            step //= 2
        half *= 2
    return pairs


def _sort_columns(columns: list[Column], network: list[tuple[int, int]]) -> None:
    """The columns are in order in each row."""
    for low, high in network:
        less = np.minimum(columns[low], columns[high])
        np.maximum(columns[low], columns[high], out=columns[high])
        columns[low][:] = less


def _sorted_long(keys: list[list[Column]]) -> list[list[Column]]:
    """Keys of several words, in order in each row."""
    tables = [np.stack(words, axis=1) for words in zip(*keys, strict=True)]
    order = np.lexsort(tables, axis=1)
    tables = [np.take_along_axis(table, order, axis=1) for table in tables]
    return [[table[:, group] for table in tables] for group in range(len(keys))]
