"""Declare what must be true of a machine or a world; who checks it is somebody else's matter (`explore`, a test).

* `always`: in every reachable state;
* `sometimes`: in at least one (else the model is vacuous);
* `recoverable`: from every reachable state a state with it can be reached again, without fault actions (AG EF);
* `eventually`, `leads_to`: on every fair behaviour (under weak fairness of the actions named in `fair`, else of those
  that are declared fair themselves);
* `final`: states in which having no next step is no deadlock.

`covers` names the invariants (I13, ...) that the property checks.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Sequence
from enum import StrEnum, auto
from typing import Any, TypeAlias, overload

from attrs import frozen

from .errors import DefinitionError

__all__ = ["Kind", "Predicate", "Property", "always", "eventually", "final", "leads_to", "recoverable", "sometimes"]

Predicate: TypeAlias = Callable[[Any], object]
Names: TypeAlias = str | Sequence[str]
Declare: TypeAlias = "Callable[[Predicate], Property]"


class Kind(StrEnum):
    """What a property says."""

    ALWAYS = auto()
    SOMETIMES = auto()
    EVENTUALLY = auto()
    LEADS_TO = auto()
    RECOVERABLE = auto()
    FINAL = auto()


@frozen
class Property:
    """A declared property: `holds(world)` is its predicate; callable as the predicate itself.

    `covers` the invariants it checks, `by` the names of the actions that may be used to recover (None: all that are no
    faults), `fair` the actions that are weakly fair (None: those declared with `fair=True`), `to` the second predicate
    of *leads to*.
    """

    kind: Kind
    name: str
    holds: Predicate
    covers: tuple[str, ...] = ()
    by: tuple[str, ...] | None = None
    fair: tuple[str, ...] | None = None
    to: Predicate | None = None

    def __call__(self, world: Any) -> bool:
        return truth(self.holds(world))


def truth(answer: object) -> bool:
    """Whether a predicate says yes. DefinitionError for an answer that is true whatever the world is like."""
    if callable(answer) or isinstance(answer, Generator | Coroutine | AsyncGenerator):
        if isinstance(answer, Coroutine):
            answer.close()
        raise DefinitionError(
            f"it answers with {answer!r}, which is always true; "
            "call it, and write predicates with neither yield nor async"
        )
    return bool(answer)


def _names(given: Names) -> tuple[str, ...]:
    names: tuple[Any, ...] = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else ()
    if not all(isinstance(name, str) for name in names) or (not names and not isinstance(given, Iterable)):
        raise DefinitionError(f"{given!r} names nothing; give a name, or several in a list")
    return names


def _declare(kind: Kind, predicate: Predicate | None, covers: Names, **more: Any) -> Any:
    def declare(function: Predicate) -> Property:
        if not callable(function):
            raise DefinitionError(f"{kind} {function!r} is not callable; decorate a predicate of the world")
        return Property(kind, getattr(function, "__name__", str(function)), function, _names(covers), **more)

    return declare if predicate is None else declare(predicate)


@overload
def always(predicate: Predicate) -> Property: ...
@overload
def always(*, covers: Names = ...) -> Declare: ...
def always(predicate: Predicate | None = None, *, covers: Names = ()) -> Property | Declare:
    """It holds in every reachable state."""
    return _declare(Kind.ALWAYS, predicate, covers)  # type: ignore[no-any-return]


@overload
def sometimes(predicate: Predicate) -> Property: ...
@overload
def sometimes(*, covers: Names = ...) -> Declare: ...
def sometimes(predicate: Predicate | None = None, *, covers: Names = ()) -> Property | Declare:
    """It holds in at least one reachable state: the interesting case is really there."""
    return _declare(Kind.SOMETIMES, predicate, covers)  # type: ignore[no-any-return]


@overload
def final(predicate: Predicate) -> Property: ...
@overload
def final() -> Declare: ...
def final(predicate: Predicate | None = None) -> Property | Declare:
    """Where it holds, having no next step is an end and no deadlock."""
    return _declare(Kind.FINAL, predicate, ())  # type: ignore[no-any-return]


@overload
def recoverable(predicate: Predicate) -> Property: ...
@overload
def recoverable(*, covers: Names = ..., by: Names | None = ...) -> Declare: ...
def recoverable(
    predicate: Predicate | None = None, *, covers: Names = (), by: Names | None = None
) -> Property | Declare:
    """From every reachable state a state with it can be reached, by the actions named (never by faults)."""
    allowed = None if by is None else _names(by)
    return _declare(Kind.RECOVERABLE, predicate, covers, by=allowed)  # type: ignore[no-any-return]


@overload
def eventually(predicate: Predicate) -> Property: ...
@overload
def eventually(*, covers: Names = ..., fair: Names | None = ...) -> Declare: ...
def eventually(
    predicate: Predicate | None = None, *, covers: Names = (), fair: Names | None = None
) -> Property | Declare:
    """Every fair behaviour reaches a state with it."""
    weakly = None if fair is None else _names(fair)
    return _declare(Kind.EVENTUALLY, predicate, covers, fair=weakly)  # type: ignore[no-any-return]


def leads_to(to: Predicate, *, covers: Names = (), fair: Names | None = None) -> Declare:
    """Whenever the decorated predicate holds, `to` holds then or later, on every fair behaviour."""
    if not callable(to):
        raise DefinitionError(f"leads_to({to!r}): give the predicate that must follow")
    weakly = None if fair is None else _names(fair)
    return _declare(Kind.LEADS_TO, None, covers, to=to, fair=weakly)  # type: ignore[no-any-return]
