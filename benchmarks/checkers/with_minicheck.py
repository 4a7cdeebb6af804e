"""The hand-written model, explored by minicheck (PyPI), which goes on to the end when it has found a violation."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any

from .result import Found, main
from .two_phase import ABORTED, COMMITTED, State, TwoPhase


def search(model: str, n: int) -> Callable[[], Found]:
    minicheck: Any = import_module("minicheck")
    made = TwoPhase(n, planted=model == "planted")
    managers = [f"manager{each}" for each in range(n)]

    def consistent(values: dict[str, int]) -> bool:
        found = [values[each] for each in managers]
        return COMMITTED not in found or ABORTED not in found

    def transitions(state: State) -> list[tuple[str, State]]:
        return [("step", after) for after in made.successors(state)]

    given = minicheck.Protocol(
        name=model,
        candidate=False,
        fields=(*managers, "sent", "heard", "decided"),
        initial=made.start,
        transitions=transitions,
        invariants={"consistent": consistent},
    )

    def run() -> Found:
        found = minicheck.check_safety(given, max_states=100_000_000)
        verdict = found["properties"]["consistent"]
        if not found["exhaustive"]:
            raise RuntimeError(f"minicheck says: {found}")
        return Found(found["reachable_states"], None, None if verdict["holds"] else len(verdict["counterexample"]) - 1)

    return run


if __name__ == "__main__":
    main(search, version=version("minicheck"))
