"""Our own searches over our own worlds; `python -m benchmarks.checkers.ours fast MODEL N`, or reference, or loop.

`loop` is the search by hand for the one model that has no hand-written form: a loop around the world's own actions
that keeps tuples in a set and looks at no property.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from models.checkpoint import CheckpointWorld
from models.two_phase_slots import two_phase
from statecore import __version__
from statecore.report import check
from statecore.world import State, World

from .result import Found, main

CHECKPOINT_SIZES = {1: {"turns": 2, "faults": 0}, 2: {"turns": 2, "faults": 1}, 3: {"turns": 3, "faults": 1}}
MOST_STATES = 100_000_000


def world(model: str, n: int) -> tuple[type[World], dict[str, Any]]:
    """The class and its parameters. Of two-phase commit `consistent` is checked and that nothing is stuck, as the
    others do; the checkpoint world has all of its properties."""
    if model == "checkpoint":
        return CheckpointWorld, CHECKPOINT_SIZES[n]
    full = two_phase(n, planted=model == "planted")
    return type(full.__name__, (full,), {"all_decided": None}), {}


def around(made: World) -> Found:
    """Tuples in a set."""
    steps = list(made.steps())
    seen: set[State] = {made.values}
    level, generated = [made.values], 1
    while level:
        following = []
        for state in level:
            for step, act in steps:
                made.put(state)
                if made.act(act, step.args):
                    generated += 1
                    after = made.values
                    if after not in seen:
                        seen.add(after)
                        following.append(after)
        level = following
    return Found(len(seen), generated)


def search(engine: str, model: str, n: int) -> Callable[[], Found]:
    given, params = world(model, n)
    if engine == "loop":
        made = given(**params)
        return lambda: around(made)
    import_module(f"statecore.{engine}")  # that importing takes time and memory is no part of the search

    def run() -> Found:
        report = check(given, engine=engine, symmetry=False, max_states=MOST_STATES, **params)
        steps = None if report.violation is None else len(report.trace)
        if report.found.limit or (steps is not None) is not (model == "planted"):
            raise RuntimeError(report.story())
        return Found(report.distinct, report.generated, steps, report.found.bytes)

    return run


if __name__ == "__main__":
    chosen = sys.argv.pop(1)
    main(lambda model, n: search(chosen, model, n), version=__version__)
