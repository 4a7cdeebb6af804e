"""A mapping that never changes, of which a changed copy costs little however large it is. Pure.

A coordinator changes one of thousands of rollouts at a time and keeps older readings of all of them (S53); copying
everything at each change would take time that grows with the square of their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

V = TypeVar("V")

CHUNK: Final = 64


class SharedMap(Mapping[str, V]):
    """The items of a mapping, in their order; `changed` makes a copy that shares all chunks without a change."""

    __slots__ = ("_chunk_of", "_chunks")

    def __init__(self, items: Mapping[str, V] | None = None) -> None:
        self._chunk_of: dict[str, int] = {}
        self._chunks: list[dict[str, V]] = []
        if items:
            self._append(dict(items))

    def changed(self, items: Mapping[str, V]) -> SharedMap[V]:
        """These values under these keys; keys that are new come behind all others, in their order."""
        copy: SharedMap[V] = SharedMap()
        copy._chunk_of, copy._chunks = self._chunk_of, list(self._chunks)
        own: set[int] = set()
        new: dict[str, V] = {}
        for key, value in items.items():
            number = self._chunk_of.get(key)
            if number is None:
                new[key] = value
                continue
            if number not in own:
                own.add(number)
                copy._chunks[number] = dict(copy._chunks[number])
            copy._chunks[number][key] = value
        if new:
            copy._chunk_of = dict(self._chunk_of)
            copy._append(new)
        return copy

    def _append(self, new: dict[str, V]) -> None:
        """New keys are behind all others; no chunk that another map shares is touched."""
        if self._chunks and len(self._chunks[-1]) < CHUNK:
            new = self._chunks.pop() | new
        keys = list(new)
        for start in range(0, len(keys), CHUNK):
            chunk = {key: new[key] for key in keys[start : start + CHUNK]}
            self._chunk_of.update(dict.fromkeys(chunk, len(self._chunks)))
            self._chunks.append(chunk)

    def __getitem__(self, key: str) -> V:
        return self._chunks[self._chunk_of[key]][key]

    def __iter__(self) -> Iterator[str]:
        for chunk in self._chunks:
            yield from chunk

    def __len__(self) -> int:
        return len(self._chunk_of)

    def __repr__(self) -> str:
        return f"SharedMap({dict(self)!r})"
