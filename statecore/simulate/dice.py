"""What a simulation draws: every number comes from its seed, and from nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ..seams import SeededEntropy

T = TypeVar("T")


class Dice:
    """Dice that fall the same way for the same seed.

    `of(name)` are other dice: what they show does not depend on how often these were thrown, so that one part of a
    world can be changed and the others still draw what they drew. `entropy` are the same dice for who draws ids.
    """

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        self.entropy = SeededEntropy(seed)

    def of(self, name: str) -> Dice:
        """Dice of their own for what is called `name`."""
        return Dice(f"{self.seed}/{name}")

    def chance(self, probability: float) -> bool:
        """True in that share of all throws; nothing is drawn for 0, so that what never happens costs nothing."""
        return probability > 0 and self.entropy.random() < probability

    def between(self, low: float, high: float) -> float:
        """A number from `low` up to `high`."""
        return low + (high - low) * self.entropy.random()

    def whole(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return low + int((high - low + 1) * self.entropy.random())

    def pick(self, among: Sequence[T]) -> T:
        """One of them; what is listed twice comes twice as often."""
        return among[int(len(among) * self.entropy.random())]
