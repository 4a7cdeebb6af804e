"""Which rollouts stand and fall together. Pure.

A unit is a rollout, or all rollouts that share mutable state (I86). A server says in its capabilities what it shares
(`sharing`); of several servers the one that shares most decides. Rules (docs/reference/protocol.md sections 6, 12 and
13): if one member of a unit that is not completed starts fresh, all such members do, or its turns are played twice in a
state that another one goes on with (S69); a straggler is left out with its whole unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from ..records.records import Disposition

EVERYBODY: Final = "everybody"


class Sharing(StrEnum):
    """Among whom a server's mutable state is shared; each one includes those before it."""

    PRIVATE = "private"
    EPISODE = "episode"
    GROUP = "group"
    GLOBAL = "global"


def widest(declared: Iterable[str]) -> Sharing:
    """What a deployment shares: a server that says nothing ("") nothing, one with a word of its own everything."""
    order = list(Sharing)
    known = {str(each): each for each in order} | {"": Sharing.PRIVATE}
    return max((known.get(each, Sharing.GLOBAL) for each in declared), key=order.index, default=Sharing.PRIVATE)


def unit_of(group: str | None, sharing: Sharing) -> str | None:
    """The name of a rollout's unit; None where it is alone in it."""
    if sharing is Sharing.GLOBAL:
        return EVERYBODY
    return group if sharing is Sharing.GROUP else None


def torn(found: Mapping[str, tuple[Disposition, str | None]]) -> dict[str, str]:
    """The rollouts that are not continued though their own parts agree, each with the fresh member of its unit.

    `found` has of every rollout what would become of it alone, and its unit. A queued member has no part in the state
    yet, a completed one no longer: they tear nothing.
    """
    fresh: dict[str, str] = {}
    for rollout_id, (disposition, unit) in found.items():
        if disposition is Disposition.FRESH and unit is not None:
            fresh.setdefault(unit, rollout_id)
    return {
        rollout_id: fresh[unit]
        for rollout_id, (disposition, unit) in found.items()
        if disposition is Disposition.CONTINUE and unit is not None and unit in fresh
    }


def whole_units(stragglers: Iterable[str], units: Mapping[str, str | None]) -> frozenset[str]:
    """The stragglers with everybody in their units: who is left out of a checkpoint (section 12)."""
    stragglers = frozenset(stragglers)
    left_out = {units.get(each) for each in stragglers} - {None}
    return stragglers | {rollout_id for rollout_id, unit in units.items() if unit in left_out}
