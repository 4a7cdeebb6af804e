"""The hand-written model, explored by musil (PyPI): guards and effects over tuples."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any

from .result import Found, main
from .two_phase import TwoPhase


def search(model: str, n: int) -> Callable[[], Found]:
    musil: Any = import_module("musil")
    made = TwoPhase(n, planted=model == "planted")
    actions = [musil.Action(*each) for each in made.steps()]
    invariants = {"consistent": made.consistent}
    given = musil.Model(init=[made.start], actions=actions, invariants=invariants, terminal=made.done)

    def run() -> Found:
        found = musil.check(given, max_states=100_000_000)
        if found.truncated or (found.kind, found.ok) not in ((None, True), ("invariant", False)):
            raise RuntimeError(f"musil says: {found}")
        return Found(found.states_explored, None, None if found.ok else len(found.action_names))

    return run


if __name__ == "__main__":
    main(search, version=version("musil"))
