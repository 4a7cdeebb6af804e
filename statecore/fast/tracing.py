"""Actions and properties run one at a time, with a record of what they read, in order, and what they wrote.

An action must be a function of the slots that it reads. Some runs are made twice, in the hope of catching one that is
not; values that it was given are looked at again, to catch one that changes them in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..errors import DefinitionError, InvariantBroken
from ..findings import noted
from ..symmetry import Symmetry
from ..world import Action, Role, World
from .ghosts import Ghosts
from .intern import SlotValues

__all__ = ["Outcome", "Run", "Tracer"]

TWICE_AT_FIRST = 200
TWICE_LATER = 8
"""So many first runs of an action are made twice, and of later ones each eighth."""


class Outcome(NamedTuple):
    """Not enabled (or a property that holds), or the slots written, or the name of what the step breaks."""

    enabled: bool
    writes: tuple[tuple[int, int], ...] = ()
    breaks: str | None = None


class Run(NamedTuple):
    """Which slots were read, in order, and what came of it."""

    reads: tuple[int, ...]
    outcome: Outcome


HELD = Outcome(False)
BROKEN = Outcome(True)


class Tracer:
    """Runs the world's functions on given states; `slots` are the values that slots have had so far."""

    def __init__(self, world: World, symmetry: Symmetry | None = None) -> None:
        self.world = world
        self.slots = _tables(world, symmetry)
        self.start = tuple(slot.id_of(value) for slot, value in zip(self.slots, world.values, strict=True))
        self.calls = 0
        ghosts = frozenset(n for n, each in enumerate(world.slots_.values()) if each.role is Role.GHOST)
        self._ghosts = Ghosts(ghosts, tuple(world.slots_)) if ghosts else None
        self._numbers = {name: number for number, name in enumerate(world.slots_)}
        self._traced: Any = _traced(world, self.slots)
        self._untouched = dict(self._traced.__dict__)

    def values(self, ids: tuple[int, ...]) -> tuple[Any, ...]:
        """What the slots hold in the state of these numbers."""
        return tuple(slot.values[number] for slot, number in zip(self.slots, ids, strict=True))

    def act(self, number: int, where: str, action: Action, args: tuple[Any, ...], ids: tuple[int, ...]) -> Run:
        """A run of an action; `where` names it, and its number tells it from others with the same name."""

        def call(world: Any) -> Outcome:
            try:
                enabled = world.act(action, args)
            except InvariantBroken as failure:
                return Outcome(True, breaks=failure.property_name)
            if not enabled:
                return HELD
            writes = []
            for name, value in world.__dict__["_writes"].items():
                number = self._numbers[name]
                writes.append((number, self.slots[number].id_of(value)))
            writes.sort()
            return Outcome(True, tuple(writes))

        run = self._run(where, call, ids)
        if self._ghosts is not None and run.outcome.breaks is None:
            self._ghosts.look(number, where, [(slot, ids[slot]) for slot in run.reads], run.outcome)
        return run

    def holds(self, where: str, predicate: Callable[[Any], object], ids: tuple[int, ...]) -> Run:
        """A run of a predicate, which `where` names; the outcome is `enabled` where it is false."""
        return self._run(where, lambda world: HELD if world.holds(predicate) else BROKEN, ids)

    def check_unchanged(self) -> None:
        """Every value of every slot is still what it was when it was met."""
        for slot in self.slots:
            for number in range(len(slot)):
                slot.check_unchanged(number, "something")

    def _run(self, where: str, call: Callable[[Any], Outcome], ids: tuple[int, ...]) -> Run:
        self.calls += 1
        run = self._once(where, call, ids)
        if self.calls <= TWICE_AT_FIRST or self.calls % TWICE_LATER == 0:
            for slot in run.reads:
                self.slots[slot].check_unchanged(ids[slot], where)
            self.compare(where, run, self._once(where, call, ids), ids)
        return run

    def _once(self, where: str, call: Callable[[Any], Outcome], ids: tuple[int, ...]) -> Run:
        store = self._traced.__dict__
        store.clear()
        store.update(self._untouched)
        reads: dict[int, None] = {}
        store["_ids"], store["_reads"], store["_writes"] = ids, reads, {}
        try:
            outcome = call(self._traced)
        except Exception as error:
            noted(error, where, self.world, self.values(ids))
            raise
        return Run(tuple(reads), outcome)

    def compare(self, where: str, first: Run, second: Run, ids: tuple[int, ...]) -> None:
        """DefinitionError if two runs from one state differ."""
        if first == second:
            return
        names = list(self.world.slots_)
        if first.reads != second.reads:
            one, two = (", ".join(names[slot] for slot in run.reads) or "nothing" for run in (first, second))
            how = f"read {one}, and then {two}"
        else:
            how = f"{self._told(first)}, and then {self._told(second)}"
        raise DefinitionError(
            f"{where} is not a function of the slots that it reads: twice from the same state "
            f"({_state(self.world, self.values(ids))}) it {how}; keep all that matters in slots"
        )

    def _told(self, run: Run) -> str:
        outcome = run.outcome
        if outcome.breaks is not None:
            return f"broke {outcome.breaks}"
        if not outcome.enabled:
            return "was not enabled (or held)"
        names = list(self.world.slots_)
        wrote = (f"{names[slot]} = {self.slots[slot].values[number]!r}" for slot, number in outcome.writes)
        return f"wrote {', '.join(wrote) or 'nothing'}"


def _tables(world: World, symmetry: Symmetry | None) -> list[SlotValues]:
    """A table of values for each slot; slots that correspond to each other have one together."""
    names = list(world.slots_)
    tables = [SlotValues(name) for name in names]
    for groups in () if symmetry is None else symmetry.groups:
        for slots in zip(*groups, strict=True):
            shared = SlotValues(" or ".join(names[slot] for slot in slots))
            for slot in slots:
                tables[slot] = shared
    return tables


def _state(world: World, values: tuple[Any, ...]) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in zip(world.slots_, values, strict=True))


class _Reader:
    """A slot of the traced world. It is asked only while the world's `__dict__` has no value of that name: it notes the
    read and puts the value there, where it is found again, as is what a run writes."""

    def __init__(self, name: str, number: int, slot: SlotValues) -> None:
        self.name = name
        self.slot_values = slot.values
        self.number = number

    def __get__(self, world: Any, owner: Any) -> Any:
        store = world.__dict__
        store["_reads"][self.number] = None
        value = store[self.name] = self.slot_values[store["_ids"][self.number]]
        return value


def _traced(world: World, slots: list[SlotValues]) -> World:
    """The same world with slots that record; reads of what the run itself wrote are none."""
    kind = type(world)

    def assign(self: Any, name: str, value: object) -> None:
        store = self.__dict__
        if name not in kind.slots_ or store["_locked"]:
            kind.__setattr__(self, name, value)  # which says what is wrong
        store["_writes"][name] = store[name] = value

    def put(self: Any, state: tuple[Any, ...]) -> None:
        if self.__dict__["_locked"]:
            kind.put(self, state)  # which says what is wrong
        written = dict(zip(kind.slots_, state, strict=True))
        self.__dict__["_writes"].update(written)
        self.__dict__.update(written)

    def mark(self: Any) -> dict[str, Any]:
        return dict(self.__dict__["_writes"])

    def back(self: Any, mark: dict[str, Any]) -> None:
        store = self.__dict__
        for name in store["_writes"]:
            del store[name]
        store["_writes"] = mark
        store.update(mark)

    each = enumerate(zip(kind.slots_, slots, strict=True))
    members: dict[str, Any] = {name: _Reader(name, number, slot) for number, (name, slot) in each}
    members |= {"__setattr__": assign, "put": put, "_mark": mark, "_back": back}
    members["values"] = property(lambda self: tuple(getattr(self, name) for name in kind.slots_))
    # What hides the slots here is no part of the world, so it is there only after the class has collected its own.
    traced: Any = type(kind.__name__, (kind,), {"__module__": kind.__module__})
    for name, member in members.items():
        setattr(traced, name, member)
    made: World = object.__new__(traced)
    made.__dict__.update({name: value for name, value in world.__dict__.items() if name not in kind.slots_})
    return made
