"""Ghost slots decide nothing: whatever an action does to the other slots must follow from the other slots alone.

Each run of an action is noted by what it read without the ghosts, in order. Two runs that read the same, as far as one
of them went, and did something else are the proof that a ghost made the difference. A step that breaks a property by
itself (`fail`) is left out: that is what ghosts are for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import DefinitionError

__all__ = ["Ghosts"]

Path = tuple[tuple[int, int], ...]
Done = tuple[bool, tuple[tuple[int, int], ...]]


class Ghosts:
    """What was read and done so far, by action; `ghosts` are the numbers of the slots with that role."""

    def __init__(self, ghosts: frozenset[int], names: tuple[str, ...]) -> None:
        self.ghosts = ghosts
        self.names = names
        self._ended: dict[tuple[str, Path], Done] = {}
        self._went_on: dict[tuple[str, Path], set[Done]] = {}

    def look(self, where: str, reads: Sequence[tuple[int, int]], outcome: Any) -> None:
        """DefinitionError if this run and an earlier one of the action differ by what a ghost held."""
        path = tuple(read for read in reads if read[0] not in self.ghosts)
        done = outcome.enabled, tuple(write for write in outcome.writes if write[0] not in self.ghosts)
        for length in range(len(path)):
            here = where, path[:length]
            self._went_on.setdefault(here, set()).add(done)
            self._same(where, self._ended.get(here, done), done)
        self._same(where, self._ended.setdefault((where, path), done), done)
        for other in self._went_on.get((where, path), ()):
            self._same(where, other, done)

    def _same(self, where: str, one: Done, other: Done) -> None:
        if one != other:
            names = ", ".join(self.names[slot] for slot in sorted(self.ghosts))
            raise DefinitionError(
                f"{where} depends on a ghost slot ({names}): with the same values in all other slots it once did one "
                "thing and once another; ghosts record what happened, and only properties (and fail) may look at them"
            )
