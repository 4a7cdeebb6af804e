"""A simulated process: it has a clock, dice and a view of the disk of its own, and ends from one moment to the next.

Rules: code of an ended process may run on until it looks up (a `finally` block, a shielded part), since it is a task
like any other; nothing that it does then has an effect: its disk refuses, its messages go nowhere, what it says of
itself is not believed. So the end is that of SIGKILL, seen from outside.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from ..errors import StatecoreError
from ..seams import SeededEntropy


class ProcessEnded(StatecoreError):
    """Whoever does this belongs to a process that is gone."""


class DriftingClock:
    """The simulation's time as one machine sees it: wall time off by `offset_s`, each second `1 + drift` long."""

    def __init__(self, wall_at_start: float, offset_s: float = 0.0, drift: float = 0.0) -> None:
        self._wall_at_start = wall_at_start + offset_s
        self._rate = 1.0 + drift

    def time(self) -> float:
        return self._wall_at_start + self._rate * trio.current_time()

    def monotonic(self) -> float:
        return self._rate * trio.current_time()


class Process:
    """One process, `alive` until `kill`. What is to happen at its end is added to `at_end`, and happens at once."""

    def __init__(self, name: str, clock: DriftingClock, entropy: SeededEntropy) -> None:
        self.name = name
        self.clock = clock
        self.entropy = entropy
        self.alive = True
        self.at_end: list[Callable[[], None]] = []

    def kill(self) -> None:
        """It is gone; a second time nothing happens."""
        if self.alive:
            self.alive = False
            for each in self.at_end:
                each()

    def check_alive(self) -> None:
        """Raises ProcessEnded if it is gone."""
        if not self.alive:
            raise ProcessEnded(self.name)
