"""Slot values as small numbers, and where each slot's number lies in the 64-bit words of a packed state."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DefinitionError

__all__ = ["MOST_VALUES", "Layout", "SlotValues", "Words"]

Words = list[NDArray[np.uint64]]
"""Packed states: one array for each word, all of the same length."""

WORD_BITS = 64
MOST_VALUES = 1 << 20
"""A slot with more values than this stops the exploration: its domain seems to grow without bound."""


class SlotValues:
    """The values that one slot has had, numbered from 0 in the order in which they were met."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: list[Any] = []
        self._looks: list[object] = []
        self._ids: dict[Any, int] = {}

    def __len__(self) -> int:
        return len(self.values)

    def id_of(self, value: Any) -> int:
        """The number of the value, a new one if it is new.

        DefinitionError if it cannot be hashed, or if it is equal to one that was met before and yet another one.
        """
        try:
            found = self._ids.setdefault(value, len(self.values))
        except TypeError as error:
            raise DefinitionError(f"slot {self.name!r} holds {value!r}, which cannot be hashed: {error}") from None
        if found == len(self.values):
            self.values.append(value)
            self._looks.append(_look(value))
        elif not _alike(self.values[found], value):
            raise DefinitionError(
                f"slot {self.name!r} holds {self.values[found]!r} and {value!r}, which are equal and so one state, "
                "but not the same to everyone who looks; keep to one kind of value"
            )
        return found

    def check_unchanged(self, number: int, where: str) -> None:
        """DefinitionError if the value was changed in place since it was met; `where` says what did it."""
        value = self.values[number]
        if _look(value) != self._looks[number]:
            raise DefinitionError(
                f"{where} changes the value of slot {self.name!r} in place (it is {value!r} now); "
                "assign a new value, and keep immutable ones in slots"
            )


def _look(value: Any) -> object:
    """What changes when the value is changed in place: its hash, and what is in it if the hash says nothing of that."""
    by_identity = type(value).__hash__ is object.__hash__ and not isinstance(value, type)
    inside = getattr(value, "__dict__", None) if by_identity else None
    return hash(value) if inside is None else (hash(value), repr(inside))


def _alike(one: Any, other: Any) -> bool:
    """Whether two equal values are of one kind, as `1` and `True` are not."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    return not isinstance(one, tuple) or all(map(_alike, one, other))


class Layout:
    """`widths[slot]` bits at `shift[slot]` of word `word[slot]`: slots in order, none across two words."""

    def __init__(self, widths: list[int]) -> None:
        self.widths = widths
        self.word: list[int] = []
        self.shift: list[int] = []
        self.words = 1
        used = 0
        for width in widths:
            if used + width > WORD_BITS:
                self.words, used = self.words + 1, 0
            self.word.append(self.words - 1)
            self.shift.append(used)
            used += width
        self._places = [
            (word, shift, (1 << width) - 1) for word, shift, width in zip(self.word, self.shift, widths, strict=True)
        ]

    @classmethod
    def roomy(cls, needed: list[int]) -> Layout:
        """A layout with room to grow: as many spare bits a slot as go without another word."""
        tight = cls(needed)
        for spare in (4, 3, 2, 1):
            # What has few values so far is given as much room as what has many.
            wide = cls([max(bits + 1, min(bits + spare, 4)) if spare > 1 else bits + 1 for bits in needed])
            if wide.words == tight.words:
                return wide
        return tight

    def mask(self, slot: int) -> int:
        return ((1 << self.widths[slot]) - 1) << self.shift[slot]

    def capacity(self, slot: int) -> int:
        return 1 << self.widths[slot]

    def column(self, words: Words, slot: int, out: NDArray[np.uint64] | None = None) -> NDArray[np.uint64]:
        """The numbers of one slot; into `out` if there is one."""
        value = np.right_shift(words[self.word[slot]], np.uint64(self.shift[slot]), out=out)
        value &= np.uint64(self.capacity(slot) - 1)
        return value

    def pack(self, ids: tuple[int, ...]) -> list[int]:
        """One state as plain integers, a word each."""
        packed = [0] * self.words
        for slot, number in enumerate(ids):
            packed[self.word[slot]] |= number << self.shift[slot]
        return packed

    def unpack(self, packed: list[int]) -> tuple[int, ...]:
        """The numbers of all slots of one state."""
        return tuple([packed[word] >> shift & mask for word, shift, mask in self._places])

    def repack(self, words: Words, old: Layout) -> Words:
        """States packed by `old`, packed by this one."""
        packed = [np.zeros(len(words[0]), np.uint64) for _ in range(self.words)]
        for slot in range(len(self.widths)):
            packed[self.word[slot]] |= old.column(words, slot) << np.uint64(self.shift[slot])
        return packed
