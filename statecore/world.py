"""A closed world: slots that hold values, actions that change them, properties that must hold.

Rules:

* a slot holds any hashable value; a snapshot of a declared machine is typical; only slots can be assigned;
* an action reads and writes slots. `return False` drops its writes: it is not enabled here. So does a `Refused` that
  escapes from a table's `step`. Any other exception is a bug in the world and comes through;
* `world.fail("I48")` says that the step being taken breaks a property of a transition;
* faults (lose, duplicate, crash) are actions too, marked `fault=True`;
* `param` values are fixed for a run; an action `over` a parameter's values is one action for each.

A world can be driven by hand as well (`w = HandoffWorld(); w.finish()`), which is what a replayed trace does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Generic, NoReturn, TypeVar, cast, overload

from attrs import frozen

from .errors import DefinitionError, InvariantBroken, Refused
from .properties import Property

__all__ = ["Action", "Slot", "Step", "World", "action", "param", "slot"]

T = TypeVar("T")
State = tuple[Any, ...]


class Slot(Generic[T]):
    """A declared slot: `initial`, or what `make(world)` gives (it may read parameters)."""

    def __init__(self, initial: T | None, make: Callable[[Any], T] | None) -> None:
        self.initial = initial
        self.make = make

    def start(self, world: World) -> Any:
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
    return cast(T, Slot(initial, make))


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
        if by is not None and not isinstance(by, str):
            raise DefinitionError(f"action {function.__name__}: by={by!r}; say in a word who acts")
        self.function = function
        self.name = function.__name__
        self.fault = fault
        self.over = over
        self.fair = fair
        self.by = by
        self.__doc__ = function.__doc__

    def values(self, world: World) -> Iterable[tuple[Any, ...]]:
        """The arguments it is tried with; one empty tuple for an action without any."""
        if self.over is None:
            return ((),)
        given = self.over(world) if callable(self.over) else self.over
        return tuple((value,) for value in given)

    def __get__(self, world: World | None, owner: type[World]) -> Any:
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
        return f"{self.name}({', '.join(map(str, self.args))})" if self.args else self.name


class World:
    """Base of worlds: declare slots, actions and properties in the class; a subclass may replace any of them."""

    slots_: ClassVar[dict[str, Slot[Any]]] = {}
    params_: ClassVar[dict[str, Param[Any]]] = {}
    actions_: ClassVar[dict[str, Action]] = {}
    properties_: ClassVar[dict[str, Property]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, value in vars(cls).items():
            if isinstance(value, (Slot, Param, Action, Property)) and hasattr(World, name):
                raise DefinitionError(f"{cls.__name__}.{name}: World uses this name itself; choose another")
        collect: tuple[tuple[str, type], ...] = (
            ("slots_", Slot),
            ("params_", Param),
            ("actions_", Action),
            ("properties_", Property),
        )
        for where, kind in collect:
            found: dict[str, Any] = {}
            for base in reversed(cls.__mro__):
                for name, value in vars(base).items():
                    found.pop(name, None)
                    if isinstance(value, kind):
                        found[name] = value
            setattr(cls, where, found)

    def __init__(self, **params: Any) -> None:
        if not self.slots_ or not self.actions_:
            raise DefinitionError(f"{type(self).__name__} needs at least one slot(...) and one @action")
        for name in params:
            if name not in self.params_:
                known = ", ".join(self.params_) or "none"
                raise DefinitionError(f"{type(self).__name__} has no parameter {name!r} (it has: {known})")
        values = self.__dict__
        values["_locked"] = False
        values["_params"] = {name: params.get(name, each.default) for name, each in self.params_.items()}
        values.update(values["_params"])
        values.update({name: each.start(self) for name, each in self.slots_.items()})

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self.slots_:
            raise DefinitionError(f"{type(self).__name__} has no slot {name!r}; declare {name} = slot(...)")
        if self._locked:
            raise DefinitionError(f"a property assigns slot {name!r}; properties only read")
        self.__dict__[name] = value

    _locked: bool
    _params: dict[str, Any]

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of this run, by name."""
        return dict(self._params)

    @property
    def values(self) -> State:
        """What the slots hold, in the order they are declared."""
        values = self.__dict__
        return tuple([values[name] for name in self.slots_])

    def put(self, state: State) -> None:
        """The slots hold `state`."""
        self.__dict__.update(zip(self.slots_, state, strict=True))

    def fail(self, name: str) -> NoReturn:
        """The step being taken breaks property `name`."""
        raise InvariantBroken(name)

    def act(self, taken: Action, args: tuple[Any, ...] = ()) -> bool:
        """Whether the action was enabled; if it was not, nothing changed. Raises what `fail` and bugs raise."""
        before = self.values
        try:
            result = taken.function(self, *args)
        except Refused:
            result = False
        except BaseException:
            self.put(before)
            raise
        if result is False:
            self.put(before)
            return False
        if result is not None and result is not True:
            raise DefinitionError(f"action {taken.name} returned {result!r}; return False if not enabled, else nothing")
        return True

    def holds(self, declared: Property | Callable[[Any], object]) -> bool:
        """Whether the predicate is true now; it may only read."""
        self.__dict__["_locked"] = True
        try:
            return bool(declared(self))
        finally:
            self.__dict__["_locked"] = False

    def steps(self) -> Iterator[tuple[Step, Action]]:
        """Every action with each of its arguments, enabled or not."""
        for each in self.actions_.values():
            for args in each.values(self):
                yield Step(each.name, args, each.fault), each
