"""Ghost slots decide nothing: whatever an action does to the other slots must follow from the other slots alone.

Each run of an action is noted by what it read without the ghosts, in order. Two runs that could have begun in the same
state, since no slot had one value in the one and another in the other, and that did something else there, are the proof
that a ghost made the difference. A step that breaks a property by itself (`fail`) is left out: that is what ghosts are
for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import define, field

from ..errors import DefinitionError

__all__ = ["Ghosts"]

Reads = tuple[tuple[int, int], ...]
Done = tuple[bool, tuple[tuple[int, int], ...]]


@define(eq=False)
class _Node:
    """The runs that have read so far the same: those that ended here, and by slot and value what was read next."""

    ended: list[tuple[Reads, Done]] = field(factory=list)
    next: dict[int, dict[int, _Node]] = field(factory=dict)


class Ghosts:
    """What was read and done so far, by action; `ghosts` are the numbers of the slots with that role."""

    def __init__(self, ghosts: frozenset[int], names: tuple[str, ...]) -> None:
        self.ghosts = ghosts
        self.names = names
        self._known: set[tuple[int, Reads, Done]] = set()
        self._roots: dict[int, _Node] = {}

    def look(self, step: int, where: str, reads: Sequence[tuple[int, int]], outcome: Any) -> None:
        """DefinitionError if this run and an earlier one of the same step differ by what a ghost held."""
        path = tuple(read for read in reads if read[0] not in self.ghosts)
        done = outcome.enabled, tuple(write for write in outcome.writes if write[0] not in self.ghosts)
        if (step, path, done) in self._known:
            return
        self._known.add((step, path, done))
        root = self._roots.setdefault(step, _Node())
        mine = dict(path)
        for other, was_done in _alike(root, mine):
            both = mine | dict(other)
            if _changes(done, both) != _changes(was_done, both):
                self._refuse(where)
        node = root
        for slot, number in path:
            node = node.next.setdefault(slot, {}).setdefault(number, _Node())
        node.ended.append((path, done))

    def _refuse(self, where: str) -> None:
        names = ", ".join(self.names[slot] for slot in sorted(self.ghosts))
        raise DefinitionError(
            f"{where} depends on a ghost slot ({names}): with the same values in all other slots it once did one "
            "thing and once another; ghosts record what happened, and only properties (and fail) may look at them"
        )


def _alike(node: _Node, mine: Mapping[int, int]) -> Iterator[tuple[Reads, Done]]:
    """The runs below a node that could have begun in the state that is known in part."""
    todo = [node]
    while todo:
        node = todo.pop()
        yield from node.ended
        for slot, children in node.next.items():
            if slot not in mine:
                todo += children.values()
            elif mine[slot] in children:
                todo.append(children[mine[slot]])


def _changes(done: Done, state: Mapping[int, int]) -> Done:
    """What was done without the writes of what was there before."""
    enabled, writes = done
    return enabled, tuple((slot, number) for slot, number in writes if state.get(slot) != number)
