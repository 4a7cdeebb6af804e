"""A closed world: slots that hold values, actions that change them, properties that must hold.

Rules:

* a slot holds any hashable value; a snapshot of a declared machine is typical; only slots can be assigned;
* an action reads and writes slots. `return False` drops its writes: it is not enabled here. So does a `Refused` that
  escapes from a table's `step`. Any other exception is a bug in the world and comes through;
* `world.fail("I48")` says that the step being taken breaks a property of a transition;
* faults (lose, duplicate, crash) are actions too, marked `fault=True`; `rpc` and `crash` declare the usual ones
  (`statecore.calls`), and a slot's role says what a crash leaves of it (`statecore.declare`);
* `param` values are fixed for a run; an action `over` a parameter's values is one action for each.

A world can be driven by hand as well (`w = HandoffWorld(); w.finish()`), which is what a replayed trace does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import cached_property
from typing import Any, ClassVar, NoReturn, TypeVar

from attrs import evolve

from .calls import Call, Declared, Late, crash, rpc
from .declare import Action, Param, Role, Slot, State, Step, action, durable, ghost, param, slot, volatile, wire
from .errors import DefinitionError, InvariantBroken, Refused
from .groups import Interchangeable, check_groups, interchangeable
from .properties import Property, truth

__all__ = [
    "Action",
    "Late",
    "Param",
    "Role",
    "Slot",
    "State",
    "Step",
    "World",
    "action",
    "crash",
    "durable",
    "ghost",
    "interchangeable",
    "param",
    "rpc",
    "slot",
    "volatile",
    "wire",
]

T = TypeVar("T")


class World:
    """Base of worlds: declare slots, actions and properties in the class; a subclass may replace any of them."""

    slots_: ClassVar[dict[str, Slot[Any]]] = {}
    params_: ClassVar[dict[str, Param[Any]]] = {}
    actions_: ClassVar[dict[str, Action]] = {}
    properties_: ClassVar[dict[str, Property]] = {}
    symmetries_: ClassVar[dict[str, Interchangeable]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in (each for each in cls.__mro__ if each is cls or not issubclass(each, World)):
            _look_at_names(cls, vars(base))
        collect: tuple[tuple[str, type], ...] = (
            ("slots_", Slot),
            ("params_", Param),
            ("actions_", Action),
            ("properties_", Property),
            ("symmetries_", Interchangeable),
        )
        for where, kind in collect:
            found: dict[str, Any] = {}
            for base in reversed(cls.__mro__):
                for name, value in vars(base).items():
                    before = found.pop(name, None)
                    if isinstance(before, Call):  # what else comes of a call goes with it
                        found = {other: each for other, each in found.items() if other not in before.ways}
                    if isinstance(value, kind):
                        found[name] = _named(value, name)
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
        values["_starts"] = {name: _first_value(self, name, each) for name, each in self.slots_.items()}
        values.update(values["_starts"])
        check_groups(type(self).__name__, self.symmetries_, values["_starts"])
        for each in self.actions_.values():
            each.check(self)
        for declared in self.properties_.values():
            _look_at_actions(self, declared)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self.slots_:
            raise DefinitionError(f"{type(self).__name__} has no slot {name!r}; declare {name} = slot(...)")
        if self._locked:
            raise DefinitionError(f"a property assigns slot {name!r}; properties only read")
        self.__dict__[name] = value

    # What an instance has beside slots and parameters; the last three where the fast search traces it.
    _locked: bool
    _params: dict[str, Any]
    _starts: dict[str, Any]
    _ids: tuple[int, ...]
    _reads: dict[int, Any]
    _writes: dict[str, Any]

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
        if self._locked:
            raise DefinitionError("a property puts the world into another state; properties only read")
        self.__dict__.update(zip(self.slots_, state, strict=True))

    def fail(self, name: str) -> NoReturn:
        """The step being taken breaks property `name`."""
        raise InvariantBroken(name)

    def memory_of(self, process: str) -> tuple[str, ...]:
        """The names of the volatile slots of a process: what it loses when it dies. DefinitionError if it has none."""
        names = tuple(name for name, each in self.slots_.items() if each.of == process)
        if not names:
            known = ", ".join(sorted({each.of for each in self.slots_.values() if each.of})) or "none"
            raise DefinitionError(f"{type(self).__name__} has no volatile slot of {process!r} (some of: {known})")
        return names

    def wipe(self, process: str) -> None:
        """The volatile slots of the process hold their first values again; nothing else changes."""
        for name in self.memory_of(process):
            setattr(self, name, self._starts[name])

    def whole(self, function: Callable[..., T], *args: Any) -> T:
        """What `function(world, *args)` answers; if it raises, what it had written is dropped."""
        before = self._mark()
        try:
            return function(self, *args)
        except BaseException:
            self._back(before)
            raise

    def act(self, taken: Action, args: tuple[Any, ...] = ()) -> bool:
        """Whether the action was enabled; if it was not, nothing changed. Raises what `fail` and bugs raise."""
        before = self._mark()
        try:
            result = taken.function(self, *args)
        except Refused:
            result = False
        except BaseException:
            self._back(before)
            raise
        if result is False:
            self._back(before)
            return False
        if result is not None and result is not True:
            raise DefinitionError(f"action {taken.name} returned {result!r}; return False if not enabled, else nothing")
        return True

    def _mark(self) -> Any:
        """What `_back` needs to drop what is written from now on."""
        return self.values

    def _back(self, mark: Any) -> None:
        self.__dict__.update(zip(self.slots_, mark, strict=True))

    def holds(self, declared: Property | Callable[[Any], object]) -> bool:
        """Whether the predicate is true now; it may only read."""
        values = self.__dict__
        before = values["_locked"]  # a property may ask for another one
        values["_locked"] = True
        try:
            return truth(declared(self))
        finally:
            values["_locked"] = before

    def steps(self) -> Iterator[tuple[Step, Action]]:
        """Every action with each of its arguments, enabled or not."""
        for each in self.actions_.values():
            try:
                values = each.values(self)
            except Exception as error:
                error.add_note(f"in over= of action {each.name} of {type(self).__name__}")
                raise
            for args in values:
                yield Step(each.name, args, each.fault), each


def _look_at_names(cls: type[World], members: Mapping[str, Any]) -> None:
    """DefinitionError if one of these members of a world hides what World uses, or keeps what it once computed."""
    for name, value in members.items():
        own = name in vars(World) or name in World.__annotations__
        if own and not (name.startswith("__") and name.endswith("__")):
            raise DefinitionError(f"{cls.__name__}.{name}: World uses this name itself; choose another")
        if isinstance(value, cached_property):
            raise DefinitionError(f"{cls.__name__}.{name} would keep its value while slots change; make it a property")
        if isinstance(value, Declared) and value.wrong is not None:
            raise DefinitionError(f"{cls.__name__}.{value.wrong}")


def _named(declared: Any, name: str) -> Any:
    """The same under the name that the class gives it: a function that is decorated elsewhere may have any name."""
    if not isinstance(declared, Action | Property) or declared.name == name:
        return declared
    if isinstance(declared, Property):
        return evolve(declared, name=name)
    renamed = copy(declared)
    renamed.name = name
    return renamed


def _look_at_actions(world: World, declared: Property) -> None:
    """DefinitionError if a property names an action that the world does not have, or by which nobody recovers."""
    for word, names in (("by", declared.by), ("fair", declared.fair)):
        for name in names or ():
            where = f"{type(world).__name__}.{declared.name}: {word}={name!r}"
            if name not in world.actions_:
                raise DefinitionError(f"{where} is no action of the world ({', '.join(world.actions_)})")
            if word == "by" and world.actions_[name].fault:
                raise DefinitionError(f"{where} is a fault, and nothing recovers by faults")


def _first_value(world: World, name: str, declared: Slot[Any]) -> Any:
    try:
        return declared.start(world)
    except Exception as error:
        error.add_note(f"in what slot {name!r} of {type(world).__name__} begins with")
        raise
