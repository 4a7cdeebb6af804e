"""A world of many slots: forty counters up to `top`, of which at most two are ever above zero.

A state takes more than 64 bits. How many there are is known: 1 + 40t + 780t² for a top of t; and since nothing tells
one counter from another, 1 + t + t(t + 1)/2 if their order is not told apart.
"""

from __future__ import annotations

from typing import Any

from statecore.properties import always, recoverable, sometimes
from statecore.world import World, action, interchangeable, param, slot

__all__ = ["NAMES", "ManySlots"]

NAMES = [f"c{number:02}" for number in range(40)]


class Counters(World):
    """What all counters have in common."""

    top: int = param(8)
    raised: int = slot(0)

    @action(over=NAMES)
    def count(self, name: str) -> bool:
        value: int = getattr(self, name)
        if value == self.top or (value == 0 and self.raised == 2):
            return False
        self.raised += value == 0
        setattr(self, name, value + 1)
        return True

    @action(over=NAMES)
    def clear(self, name: str) -> bool:
        if getattr(self, name) < self.top:
            return False
        self.raised -= 1
        setattr(self, name, 0)
        return True

    @always
    def at_most_two(self) -> bool:
        return self.raised <= 2

    @sometimes
    def two(self) -> bool:
        return self.raised == 2

    @recoverable
    def none(self) -> bool:
        return self.raised == 0


ManySlots: Any = type(
    "ManySlots",
    (Counters,),
    {"__module__": __name__, **{name: slot(0) for name in NAMES}, "counters": interchangeable(*NAMES)},
)
