"""Breadth-first search as one writes it in an afternoon: tuples in a set, level by level; no trace, only its length."""

from __future__ import annotations

from collections.abc import Callable

from .result import Found, main
from .two_phase import State, TwoPhase


def explore(model: TwoPhase) -> Found:
    """Every state; until one is inconsistent, or has no step and is no end."""
    consistent, successors = model.consistent, model.successors
    seen: set[State] = {model.start}
    level, depth, generated = [model.start], 0, 1
    while level:
        depth += 1
        following = []
        for state in level:
            found = successors(state)
            if not found and not model.done(state):
                return Found(len(seen), generated, depth - 1)
            generated += len(found)
            for after in found:
                if after not in seen:
                    if not consistent(after):
                        return Found(len(seen) + 1, generated, depth)
                    seen.add(after)
                    following.append(after)
        level = following
    return Found(len(seen), generated)


def search(model: str, n: int) -> Callable[[], Found]:
    made = TwoPhase(n, planted=model == "planted")
    return lambda: explore(made)


if __name__ == "__main__":
    main(search)
