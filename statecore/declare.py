"""What a world declares: slots, each with a role, parameters, and actions. `statecore.world` puts them together.

The role of a slot says what a crash does to it, and who may look at it:

* `slot`: no role; actions alone say what becomes of it;
* `volatile(of="agent")`: the memory of a process; lost, that is set back to its first value, when the process crashes;
* `durable`: on a disk, and there after a crash; what was written and not yet synced belongs into a volatile slot beside
  it, and a step of its own syncs it;
* `wire`: in flight between processes; no crash touches it;
* `ghost`: what really happened, kept for properties alone: no action may depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum, auto
from typing import Any, Generic, TypeVar, cast, overload

from attrs import frozen

from .errors import DefinitionError

__all__ = [
    "Action",
    "Param",
    "Role",
    "Slot",
    "State",
    "Step",
    "action",
    "durable",
    "ghost",
    "param",
    "slot",
    "volatile",
    "wire",
]

T = TypeVar("T")
State = tuple[Any, ...]


class Role(StrEnum):
    """What a crash does to a slot, and who may look at it."""

    PLAIN = auto()
    VOLATILE = auto()
    DURABLE = auto()
    WIRE = auto()
    GHOST = auto()


class Slot(Generic[T]):
    """A declared slot: `initial`, or what `make(world)` gives (it may read parameters); `of` is its process."""

    def __init__(self, initial: T | None, make: Callable[[Any], T] | None, role: Role, of: str | None = None) -> None:
        self.initial = initial
        self.make = make
        self.role = role
        self.of = of

    def start(self, world: Any) -> Any:
        return self.initial if self.make is None else self.make(world)


class Param(Generic[T]):
    """A declared parameter with its default."""

    def __init__(self, default: T) -> None:
        self.default = default


@overload
def slot(initial: T) -> T: ...
@overload
def slot(*, make: Callable[[Any], T]) -> T: ...
def slot(initial: T | None = None, *, make: Callable[[Any], T] | None = None) -> T:
    """Declare a slot; to a type checker it is the value that it holds."""
    return cast(T, Slot(initial, make, Role.PLAIN))


@overload
def volatile(initial: T, *, of: str) -> T: ...
@overload
def volatile(*, of: str, make: Callable[[Any], T]) -> T: ...
def volatile(initial: T | None = None, *, of: str, make: Callable[[Any], T] | None = None) -> T:
    """Declare a slot in the memory of process `of`: `world.wipe(of)`, and so a `crash(of)`, sets it back."""
    if not isinstance(of, str) or not of:
        raise DefinitionError(f"volatile(of={of!r}): name the process that holds it")
    return cast(T, Slot(initial, make, Role.VOLATILE, of))


@overload
def durable(initial: T) -> T: ...
@overload
def durable(*, make: Callable[[Any], T]) -> T: ...
def durable(initial: T | None = None, *, make: Callable[[Any], T] | None = None) -> T:
    """Declare a slot that outlives every process: what is on a disk and synced."""
    return cast(T, Slot(initial, make, Role.DURABLE))


@overload
def wire(initial: T) -> T: ...
@overload
def wire(*, make: Callable[[Any], T]) -> T: ...
def wire(initial: T | None = None, *, make: Callable[[Any], T] | None = None) -> T:
    """Declare a slot for what is in flight: it belongs to no process, and no crash touches it."""
    return cast(T, Slot(initial, make, Role.WIRE))


@overload
def ghost(initial: T) -> T: ...
@overload
def ghost(*, make: Callable[[Any], T]) -> T: ...
def ghost(initial: T | None = None, *, make: Callable[[Any], T] | None = None) -> T:
    """Declare a slot that records what really happened, for properties.

    Actions write it, and may `fail` by it; whether they are enabled, and what else they write, must not depend on it.
    The fast search holds that, with a DefinitionError that names the action.
    """
    return cast(T, Slot(initial, make, Role.GHOST))


def param(default: T) -> T:
    """Declare a parameter: `check(SomeWorld, rollouts=3)` sets it for a run."""
    return cast(T, Param(default))


class Action:
    """A declared action. `over(world)` gives the values it is tried with, each as its own action.

    `fair`: it is not put off for ever while it stays enabled. `by`: who acts, for diagrams.
    """

    def __init__(
        self, function: Callable[..., object], fault: bool, over: Any, fair: bool = False, by: str | None = None
    ) -> None:
        self.name: str = getattr(function, "__name__", "action")  # until a class gives it one
        if not callable(function):
            raise DefinitionError(f"action {function!r} is not callable; decorate a function of the world")
        if by is not None and not isinstance(by, str):
            raise DefinitionError(f"action {self.name}: by={by!r}; say in a word who acts")
        self.function = function
        self.fault = fault
        self.over = self._values(over)
        self.fair = fair
        self.by = by
        self.__doc__ = function.__doc__

    def _values(self, over: Any) -> Any:
        """Values that can be gone through again and again."""
        if over is None or callable(over):
            return over
        if not isinstance(over, Iterable):
            raise DefinitionError(f"action {self.name}: over={over!r}; give values, or a function of the world")
        return tuple(over)

    def values(self, world: Any) -> Iterable[tuple[Any, ...]]:
        """The arguments it is tried with; one empty tuple for an action without any."""
        if self.over is None:
            return ((),)
        given = self.over(world) if callable(self.over) else self.over
        return tuple((value,) for value in given)

    def check(self, world: Any) -> None:
        """DefinitionError if the world lacks what the action needs; asked when a world is made."""

    def __get__(self, world: Any, owner: type) -> Any:
        if world is None:
            return self
        return lambda *args: world.act(self, args)


@overload
def action(function: Callable[..., object]) -> Action: ...
@overload
def action(
    *, fault: bool = ..., over: Any = ..., fair: bool = ..., by: str | None = ...
) -> Callable[[Callable[..., object]], Action]: ...
def action(
    function: Callable[..., object] | None = None,
    *,
    fault: bool = False,
    over: Any = None,
    fair: bool = False,
    by: str | None = None,
) -> Any:
    """Declare an action: `fault` marks one that nobody wants, `over` (values, or `over(world)`) repeats it.

    `fair=True` is weak fairness: as long as it stays enabled it is not put off for ever; nothing else is bound to
    happen. `by="coordinator"` says who acts; diagrams show it.
    """

    def declare(given: Callable[..., object]) -> Action:
        return Action(given, fault, over, fair, by)

    return declare if function is None else declare(function)


@frozen
class Step:
    """One action with its arguments: an edge of the explored graph. `label` is `deliver(2)`."""

    name: str
    args: tuple[Any, ...]
    fault: bool

    @property
    def label(self) -> str:
        return f"{self.name}({', '.join(printable(str(each)) for each in self.args)})" if self.args else self.name


def printable(text: str) -> str:
    """The text in one line that can be written anywhere: what cannot be printed is escaped."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


