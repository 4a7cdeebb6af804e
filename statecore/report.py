"""Check a world and say what was found: a verdict, the counts behind it, and a counterexample as text.

`check(SomeWorld, rollouts=2).assert_holds()` is how a test uses it; `story()` is what a person reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen

from .errors import InvariantBroken, StatecoreError
from .explore import Engine, Exploration, Limits, Progress, Verdict, Violation, explore, verdict
from .liveness import settle
from .seams import Clock, SystemClock
from .trace import lines as trace_lines
from .trace import plain
from .world import World

__all__ = ["NotShown", "Report", "check"]


class NotShown(StatecoreError):
    """No counterexample was found, and yet the world was not shown to hold: not finished, or vacuous."""


@frozen
class Report:
    """What a check found; `seconds` is how long it took, `slots` the names of the values in a trace's states."""

    world: str
    params: dict[str, Any]
    slots: tuple[str, ...]
    verdict: Verdict
    found: Exploration
    seconds: float

    @property
    def distinct(self) -> int:
        """Reachable states, each counted once; under symmetry one for all that differ in the order of groups."""
        return self.found.distinct

    @property
    def generated(self) -> int:
        """The initial state and every enabled step."""
        return self.found.generated

    @property
    def depth(self) -> int:
        """Levels; the initial state is the first."""
        return self.found.depth

    @property
    def violation(self) -> Violation | None:
        """The broken property with the shortest way to it."""
        return self.found.violation

    @property
    def trace(self) -> tuple[str, ...]:
        """The labels of the steps to the violation; empty if there is none."""
        return () if self.violation is None else tuple(step.label for step in self.violation.steps)

    def assert_holds(self) -> Report:
        """This report, if the verdict is *holds*; else InvariantBroken with the story, or NotShown saying why."""
        if self.violation is not None:
            raise InvariantBroken(self.violation.name, self.story())
        if self.verdict is not Verdict.HOLDS:
            raise NotShown(self.story())
        return self

    def story(self) -> str:
        """All of it in words: verdict, counts, what was missed, and the trace with what each step changed."""
        trace = [] if self.violation is None else trace_lines(self.slots, self.violation)
        return "\n".join([self._head(), *self._reasons(), *trace])

    def to_json(self) -> dict[str, Any]:
        """The same as plain JSON, for machines to read; slot values as text."""
        broken = self.violation
        return {
            "format": 1,
            "world": self.world,
            "params": {name: str(value) for name, value in self.params.items()},
            "verdict": self.verdict.value,
            "distinct": self.distinct,
            "generated": self.generated,
            "depth": self.depth,
            "seconds": self.seconds,
            "limit": self.found.limit,
            "unseen": list(self.found.unseen),
            "never_fired": list(self.found.never_fired),
            "unchecked": list(self.found.unchecked),
            "checked": list(self.found.checked),
            "fired": dict(self.found.fired),
            "engine": self.found.engine,
            "bytes": self.found.bytes,
            "notes": list(self.found.notes),
            "symmetry": {name: over for name, over in self.found.symmetry},
            "violation": None if broken is None else {"property": broken.name, "covers": list(broken.covers)},
            "trace": list(self.trace),
            **plain(self.slots, broken),
        }

    def _head(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in self.params.items())
        rate = f"{self.distinct / self.seconds:,.0f} states/s" if self.seconds > 0 else "at once"
        size = ""
        if self.found.engine == Engine.FAST and self.found.bytes is not None:
            size = f", {self.found.bytes / max(1, self.distinct):.0f} bytes a state"
        return (
            f"{self.world}({values}): {self.verdict.value.replace('_', ' ')}; {self.distinct:,} distinct states, "
            f"{self.generated:,} generated, depth {self.depth}, {self.seconds:.2f} s, {rate}{size}"
        )

    def _reasons(self) -> list[str]:
        found = self.found
        lines = [f"  stopped at the limit of {found.limit}"] if found.limit else []
        lines += [f"  {note}" for note in found.notes]
        lines += [f"  symmetry: {name}, {over}, in any order count as one" for name, over in found.symmetry]
        # A search that stopped early has not seen everything, so what it missed says nothing.
        if self.verdict in (Verdict.HOLDS, Verdict.VACUOUS, Verdict.NOT_FINISHED):
            lines += [f"  sometimes {name}: never seen" for name in found.unseen]
            lines += [f"  action {name}: never fired" for name in found.never_fired]
            lines += [f"  {name}: not checked, since not all was explored" for name in found.unchecked]
            lines += [] if found.checked else ["  nothing is declared that must hold"]
        return lines


def check(
    world: type[World],
    *,
    max_states: int = 1_000_000,
    max_depth: int | None = None,
    max_seconds: float | None = None,
    max_memory: int | None = None,
    engine: Engine | str = Engine.AUTO,
    progress: Callable[[Progress], None] | None = None,
    clock: Clock | None = None,
    symmetry: bool = True,
    **params: Any,
) -> Report:
    """The report of a search through every reachable state of `world(**params)`, within the limits.

    `engine` is auto, fast or reference (see `statecore.explore`); `max_memory` is in bytes; `progress` is told now and
    then how far it is; `symmetry=False` explores each order of what is declared interchangeable. Stopped by a limit or
    by Ctrl-C, the report is of what was found until then.
    """
    made = world(**params)
    clock = clock or SystemClock()
    started = clock.monotonic()
    limits = Limits(max_states, max_depth, max_seconds, max_memory)
    found = explore(made, limits, clock, engine=engine, progress=progress, symmetry=symmetry)
    settle(made, found, limits, clock, spent=clock.monotonic() - started)
    return Report(
        world.__name__, made.params, tuple(world.slots_), verdict(found), found, clock.monotonic() - started
    )
