"""A live `transitions` machine, generated from a table: the only file that imports `transitions`.

For those who want its callbacks, its models and its diagrams; the hot path is `Table.step`. Rules:

* **Generated, then sealed.** One transition for each *go* and *stay* branch, its guards as conditions; no auto
  transitions, no callbacks by name, and nothing can be added afterwards (transitions 0.9.3 accepts a second transition
  for the same source and trigger silently, and the first wins: here branches exclude each other).
* **An event happens wholly or not at all.** A refused event leaves the machine equal. transitions has moved the state
  already when an `on_enter` or `after` callback raises; here state and data are put back, the error comes through as it
  is, and no effect is owed. (What hooks that ran before it did outside the machine is theirs to undo.)
* **No `finalize_event`, no `on_exception`.** transitions logs and swallows whatever is raised there, even
  KeyboardInterrupt; hooks are taken for `before`, `after`, `on_enter` and `on_exit` only.
* **Effects are returned, never performed**, and a hook may not send events: it would see a machine half-way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import product
from typing import Any, Generic, TypeVar

import transitions
from attrs import field, frozen
from transitions.extensions import GraphMachine

from .errors import DefinitionError, InvariantBroken, Refused, StatecoreError
from .machine import Snapshot, Table
from .table import Cell, Do, Go, Guard, Refuse, Stay, When, go, refuse, stay, when

__all__ = ["Hooks", "Live", "agreement", "mermaid"]

S = TypeVar("S", bound=Enum)
D = TypeVar("D")

Hook = Callable[[transitions.EventData], bool | None]
"""A hook gets transitions' EventData; the event is `event_data.kwargs["event"]`, the model `event_data.model`."""


def _hook_map(hooks: Mapping[Any, Hook | Sequence[Hook]]) -> dict[Any, tuple[Hook, ...]]:
    found = {key: (value,) if callable(value) else tuple(value) for key, value in hooks.items()}
    for key, each in ((key, each) for key, value in found.items() for each in value):
        if not callable(each):
            raise DefinitionError(f"hook {each!r} of {key} is not callable; give the function, not its name")
    return found


@frozen
class Hooks:
    """A user's callbacks: `on_enter` and `on_exit` by state, `before` and `after` by event class. Callables only."""

    on_enter: Mapping[Any, tuple[Hook, ...]] = field(factory=dict, converter=_hook_map)
    on_exit: Mapping[Any, tuple[Hook, ...]] = field(factory=dict, converter=_hook_map)
    before: Mapping[Any, tuple[Hook, ...]] = field(factory=dict, converter=_hook_map)
    after: Mapping[Any, tuple[Hook, ...]] = field(factory=dict, converter=_hook_map)


class _Model:
    """What transitions drives: `state` is set by it, `data` by us."""

    state: Any

    def __init__(self, data: object) -> None:
        self.data = data
        self.pending: tuple[Any, Any] | None = None


class _Sealed(transitions.Machine):  # type: ignore[misc, unused-ignore]
    """A transitions machine that takes nothing more once it is generated."""

    sealed = False

    def add_transition(self, *args: Any, **kwargs: Any) -> None:
        self._check()
        super().add_transition(*args, **kwargs)

    def add_states(self, *args: Any, **kwargs: Any) -> None:
        self._check()
        super().add_states(*args, **kwargs)

    def remove_transition(self, *args: Any, **kwargs: Any) -> None:
        self._check()
        super().remove_transition(*args, **kwargs)

    @staticmethod
    def resolve_callable(func: Any, event_data: transitions.EventData) -> Any:
        if isinstance(func, str):
            raise DefinitionError(f"callback {func!r} is a name; give the function itself")
        return func

    def _check(self) -> None:
        if self.sealed:
            raise DefinitionError(f"machine {self.name!r} is generated; change its table and make a new one")


class Live(Generic[S, D]):
    """A table running on `transitions`: `send(event)` returns the effects that are owed, `snapshot` is where it stands.

    `machine` is the transitions machine, for reading (`get_triggers`, `get_transitions`, ...).
    """

    def __init__(
        self, table: Table[S, D], *, snapshot: Snapshot[S, D] | None = None, hooks: Hooks | None = None
    ) -> None:
        start = table.start() if snapshot is None else snapshot
        self.table = table
        self._model = _Model(start.data)
        self._sending = False
        self._valid = False
        hooks = hooks or Hooks()
        _check_hooks(table, hooks)
        self.machine = _Sealed(
            model=self._model,
            states=[
                _Sealed.state_cls(
                    state,
                    on_enter=[self._commit, *hooks.on_enter.get(state, ())],
                    on_exit=[*hooks.on_exit.get(state, ())],
                )
                for state in table.states
            ],
            initial=start.state,
            auto_transitions=False,
            send_event=True,
            ignore_invalid_triggers=False,
            prepare_event=self._mark_valid,
            name=table.name,
        )
        for state, event, leaf, guards in _branches(table):
            if isinstance(leaf, Refuse):
                continue
            self.machine.add_transition(
                event.__name__,
                state,
                leaf.target if isinstance(leaf, Go) else None,
                conditions=[self._condition(guard) for guard, wanted in guards if wanted],
                unless=[self._condition(guard) for guard, wanted in guards if not wanted],
                before=[*hooks.before.get(event, ()), self._do(leaf)],
                # A stay enters no state, so it commits here.
                after=[*((self._commit,) if isinstance(leaf, Stay) else ()), *hooks.after.get(event, ())],
            )
        self.machine.sealed = True

    @property
    def state(self) -> S:
        return self._model.state  # type: ignore[no-any-return]

    @property
    def data(self) -> D:
        return self._model.data  # type: ignore[return-value]

    @property
    def snapshot(self) -> Snapshot[S, D]:
        return Snapshot(self.state, self.data)

    def send(self, event: object) -> tuple[Any, ...]:
        """The effects that are owed, in order; the machine has moved on.

        Raises Refused (nothing changed), or whatever a guard, a `do` or a hook raised (nothing changed either).
        """
        if self._sending:
            raise StatecoreError(f"{type(event).__name__} was sent from within a hook; return it as an effect instead")
        before = self.snapshot
        if type(event) not in self.table.events:
            self.table.step(before, event)  # raises DefinitionError
        self._sending, self._valid = True, False
        try:
            moved = self._trigger(event)
            effects = self._model.pending[1] if self._model.pending else ()
        except BaseException:
            self.machine.set_state(before.state, self._model)
            self._model.data = before.data
            raise
        finally:
            self._sending, self._model.pending = False, None
        if not moved:
            self.table.step(before, event)  # raises Refused, as the cell says
            raise InvariantBroken("transitions refuses what the table allows", (before, event))
        return effects

    def _trigger(self, event: object) -> bool:
        transition = self.machine.events.get(type(event).__name__)
        if transition is None:  # an event that every state refuses
            return False
        try:
            return bool(transition.trigger(self._model, event=event))
        except transitions.MachineError:
            if self._valid:  # a hook's own machine, not ours
                raise
            return False

    def _mark_valid(self, event_data: transitions.EventData) -> None:
        self._valid = True

    def _condition(self, guard: Guard) -> Callable[[transitions.EventData], bool]:
        def condition(event_data: transitions.EventData) -> bool:
            return guard(self._model.data, event_data.kwargs["event"])

        return condition

    def _do(self, leaf: Go | Stay) -> Hook:
        def do(event_data: transitions.EventData) -> None:
            if leaf.do is None:
                self._model.pending = (self._model.data, ())
            else:
                data, effects = leaf.do(self._model.data, event_data.kwargs["event"])
                self._model.pending = (data, tuple(effects))

        return do

    def _commit(self, event_data: transitions.EventData) -> None:
        if self._model.pending is not None:
            self._model.data = self._model.pending[0]


def _check_hooks(table: Table[Any, Any], hooks: Hooks) -> None:
    for which, known in (("on_enter", table.states), ("on_exit", table.states)):
        for key in getattr(hooks, which):
            if key not in known:
                raise DefinitionError(f"{which} hook for {key!r}, which is no state of table {table.name!r}")
    for which in ("before", "after"):
        for key in getattr(hooks, which):
            if key not in table.events:
                raise DefinitionError(f"{which} hook for {key!r}, which is no event of table {table.name!r}")


Guards = tuple[tuple[Guard, bool], ...]


def _leaves(cell: Cell, guards: Guards = ()) -> Iterator[tuple[Go | Stay | Refuse, Guards]]:
    """Each branch of the cell with the guards that lead to it and what they must be."""
    if isinstance(cell, When):
        yield from _leaves(cell.cell, (*guards, (cell.guard, True)))
        yield from _leaves(cell.otherwise, (*guards, (cell.guard, False)))
    else:
        yield cell, guards


def _branches(table: Table[Any, Any]) -> Iterator[tuple[Any, type, Go | Stay | Refuse, Guards]]:
    for state, row in table.cells.items():
        for event, cell in row.items():
            for leaf, guards in _leaves(cell):
                yield state, event, leaf, guards


# --- diagrams


def mermaid(table: Table[Any, Any], title: str | None = None) -> str:
    """The table as a Mermaid state diagram, by transitions' own engine: what goes and what stays, with its guards."""
    machine = GraphMachine(
        model=_Model(None),
        states=list(table.states),
        initial=table.initial,
        auto_transitions=False,
        send_event=True,
        graph_engine="mermaid",
        show_conditions=True,
        title=f"title: {json.dumps(title or table.name)}",  # it goes into the front matter as it is
    )
    for state, event, leaf, guards in _branches(table):
        if isinstance(leaf, Refuse):
            continue
        machine.add_transition(
            event.__name__,
            state,
            leaf.target if isinstance(leaf, Go) else None,
            conditions=[guard for guard, wanted in guards if wanted],
            unless=[guard for guard, wanted in guards if not wanted],
        )
    graph = machine.get_combined_graph(force_new=True)
    return str(graph.draw(None))


# --- agreement


def agreement(table: Table[Any, Any], samples: Mapping[Any, Sequence[object]] | None = None) -> int:
    """How many steps were compared; `Table.step` and `transitions` agree on all of them, or InvariantBroken.

    Every cell is tried with every outcome of its guards, the guards and `do` replaced by stand-ins (so no example
    values are needed). With `samples` (snapshot -> events) the real ones are compared too.
    """
    compared = 0
    skeleton, widths = _skeleton(table)
    for state in skeleton.states:
        for event in skeleton.events:
            for outcomes in product((False, True), repeat=widths[state, event]):
                _compare(skeleton, Snapshot(state, outcomes), _blank(event))
                compared += 1
    for snapshot, events in (samples or {}).items():
        for each in events:
            _compare(table, snapshot, each)
            compared += 1
    return compared


def _blank(event: Any) -> object:
    """An instance without its values: enough for a table without guards and `do` of its own."""
    return event.__new__(event)


def _skeleton(table: Table[Any, Any]) -> tuple[Table[Any, tuple[bool, ...]], dict[tuple[Any, type], int]]:
    """The same table with stand-ins: the data says what each guard of the cell answers, effects say which `do` ran."""
    widths: dict[tuple[Any, type], int] = {}

    def stand_in(cell: Cell, where: tuple[Any, type]) -> Cell:
        if isinstance(cell, When):
            number = widths[where]
            widths[where] += 1
            inner = stand_in(cell.cell, where)
            return when(lambda data, event: data[number], inner, otherwise=stand_in(cell.otherwise, where))
        if isinstance(cell, Refuse):
            return refuse(cell.code)
        done = cell.do
        marked: Do | None = None if done is None else lambda data, event: ((*data, True), (done, event))
        return go(cell.target, marked) if isinstance(cell, Go) else stay(marked)

    cells: dict[Any, dict[type, Cell]] = {}
    for state, row in table.cells.items():
        cells[state] = {}
        for event, cell in row.items():
            widths[state, event] = 0
            cells[state][event] = stand_in(cell, (state, event))
    made = Table(
        table.name,
        data=tuple[bool, ...],
        initial=table.initial,
        also_initial=table.also_initial,
        final=table.final,
        cells=cells,
    )
    return made, widths


def _compare(table: Table[Any, Any], snapshot: Snapshot[Any, Any], event: object) -> None:
    live = Live(table, snapshot=snapshot)
    pure = _outcome(lambda: table.step(snapshot, event))
    running = _outcome(lambda: (live.send(event), live.snapshot))
    if isinstance(pure, Refused):
        same = isinstance(running, Refused) and running.args == pure.args and live.snapshot == snapshot
    else:
        same = running == (pure[1], pure[0])
    if not same:
        trace = (snapshot, type(event).__name__, pure, running)
        raise InvariantBroken(f"table {table.name!r} and transitions agree", trace)


def _outcome(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Refused as refused:
        return refused
