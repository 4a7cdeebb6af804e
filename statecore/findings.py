"""What an exploration is asked and what it answers: limits, counts, a violation with the way to it, a verdict.

Stopped early is *not finished*, never *holds*; and nothing checked, a `sometimes` unseen or an action that never fired
is *vacuous*.
"""

from __future__ import annotations

from enum import StrEnum, auto

from attrs import define, field, frozen

from .errors import DefinitionError
from .world import State, Step, World

__all__ = ["CTRL_C", "Exploration", "Limits", "Progress", "Verdict", "Violation", "hashable", "noted", "verdict"]

CTRL_C = "Ctrl-C"
"""The limit that somebody sets who wants no more of it."""


class Verdict(StrEnum):
    """What an exploration says."""

    HOLDS = auto()
    VIOLATED = auto()
    NOT_FINISHED = auto()
    VACUOUS = auto()


@frozen
class Limits:
    """Where a search stops: distinct states, levels (the initial state is level 1), seconds of the clock given, bytes.

    The bytes are those that the search reckons its states to take; it looks at them now and then.
    """

    states: int = 1_000_000
    depth: int | None = None
    seconds: float | None = None
    memory: int | None = None


@frozen
class Progress:
    """How far a search is: states found, states in the level it is at, that level, seconds gone, bytes taken."""

    distinct: int
    frontier: int
    depth: int
    seconds: float
    bytes: int


@frozen
class Violation:
    """A broken property: `steps` lead from the initial state to it, `states` are the values before and after each.

    `loop`: None, or the number of the state at which a behaviour that goes round for ever begins again.
    """

    name: str
    covers: tuple[str, ...]
    steps: tuple[Step, ...]
    states: tuple[State, ...]
    loop: int | None = None


@define
class Exploration:
    """What was found. `generated` counts the initial state and every enabled step; `depth` counts levels.

    `engine` says which search it was, `bytes` what its states took if it knows, `notes` what else a reader should know.
    `symmetry`: by name, the groups of slots whose order did not matter; then of states that differ in it only one is
    counted, and `sample` is some of them, by which to see whether the world is symmetric.
    """

    distinct: int = 0
    generated: int = 1
    depth: int = 0
    violation: Violation | None = None
    limit: str | None = None
    unseen: tuple[str, ...] = ()
    never_fired: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    fired: dict[str, int] = field(factory=dict)
    engine: str = "reference"
    bytes: int | None = None
    notes: tuple[str, ...] = ()
    symmetry: tuple[tuple[str, str], ...] = ()
    sample: tuple[State, ...] = field(default=(), repr=False)


def noted(error: BaseException, where: str, world: World, state: State) -> None:
    """The error carries a note that says in which action or property it happened, and in which state."""
    values = ", ".join(f"{name} = {value!r}" for name, value in zip(world.slots_, state, strict=True))
    error.add_note(f"in {where} of {type(world).__name__}, in the state {values}")


def hashable(world: World, state: State) -> State:
    """The state; DefinitionError, which names the slot, if a value in it cannot be hashed."""
    try:
        hash(state)
    except TypeError:
        for name, value in zip(world.slots_, state, strict=True):
            try:
                hash(value)
            except TypeError as error:
                raise DefinitionError(f"slot {name!r} holds {value!r}, which cannot be hashed: {error}") from None
    return state


def verdict(result: Exploration) -> Verdict:
    """Violated before not finished before vacuous; *holds* only if all was explored and all declared was checked."""
    if result.violation is not None:
        return Verdict.VIOLATED
    if result.limit is not None or result.unchecked:
        return Verdict.NOT_FINISHED
    if result.unseen or result.never_fired or not result.checked:
        return Verdict.VACUOUS
    return Verdict.HOLDS
