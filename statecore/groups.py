"""Interchangeable slots: a world says which of its slots belong together in groups that play the same part.

    class Fleet(World):
        state0 = slot(IDLE); result0 = slot(None); state1 = slot(IDLE); result1 = slot(None)
        rollouts = interchangeable(("state0", "result0"), ("state1", "result1"))

States that differ only in the order of the groups are then explored as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from .errors import DefinitionError

__all__ = ["Interchangeable", "check_groups", "interchangeable"]


@frozen
class Interchangeable:
    """A declaration: `groups` of names of slots; the slots at one place of each group correspond to each other."""

    groups: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        """`3 groups like (state0, result0)`."""
        return f"{len(self.groups)} groups like ({', '.join(self.groups[0])})"


def interchangeable(*groups: str | Sequence[str]) -> Interchangeable:
    """Declare groups of slots that may change places: no action and no property tells one from another.

    Each group is a tuple of names of slots, or one name; the first slots correspond to each other, and so on. What the
    slots hold must not say which group is meant (no numbers of groups, no names of slots). DefinitionError if there are
    fewer than two groups, if they differ in length, or if a slot is there twice.
    """
    named = tuple((group,) if isinstance(group, str) else tuple(group) for group in groups)
    if len(named) < 2:
        raise DefinitionError(f"interchangeable{groups!r}: give at least two groups of slots")
    for group in named:
        if not group or not all(isinstance(name, str) for name in group):
            raise DefinitionError(f"interchangeable: {group!r} is no group; give names of slots")
        if len(group) != len(named[0]):
            raise DefinitionError(f"interchangeable: {group!r} and {named[0]!r} differ in length")
    _no_slot_twice([name for group in named for name in group], "interchangeable")
    return Interchangeable(named)


def check_groups(world: str, declared: Mapping[str, Interchangeable], values: Mapping[str, Any]) -> None:
    """Nothing, if the declarations of a world fit its slots, which begin with `values`; else DefinitionError."""
    for name, each in declared.items():
        for slot in (slot for group in each.groups for slot in group):
            if slot not in values:
                raise DefinitionError(f"{world}.{name}: there is no slot {slot!r} (there are: {', '.join(values)})")
        for group in each.groups[1:]:
            for one, other in zip(each.groups[0], group, strict=True):
                if values[one] != values[other]:
                    raise DefinitionError(
                        f"{world}.{name}: slots {one!r} and {other!r} begin with different values "
                        f"({values[one]!r} and {values[other]!r}), so they are not interchangeable"
                    )
    slots = [slot for each in declared.values() for group in each.groups for slot in group]
    _no_slot_twice(slots, f"{world}: {', '.join(declared)}")


def _no_slot_twice(slots: Sequence[str], where: str) -> None:
    seen = set()
    for slot in slots:
        if slot in seen:
            raise DefinitionError(f"{where}: slot {slot!r} is in two groups; it can only be in one")
        seen.add(slot)
