"""Journals held against the tables and against the invariants that show in them. Pure.

The first finding is the first line, in the order of all clocks, that no table allows, that does not join the line
before of the same machine, or that breaks an invariant. A machine whose beginning is not in the journals is taken as
it is first seen, and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from attrs import define, field, frozen

from statecore import Table
from statecore.journal import fault

from ..machines.tables import TABLES
from .job_observers import (
    AttemptsRise,
    CompletedIsOver,
    ConsumedOnce,
    EpochsAreOwn,
    OneAttemptComesBack,
    PublishedIsWritten,
    SavedBeforeReleased,
)
from .observers import (
    BoundariesRise,
    EndedStaysEnded,
    GateAgrees,
    Observer,
    OldAttemptsAreStill,
    OneCheckpoint,
    OnlyResumeOpens,
    RetiredStaysOver,
    RevisionByOne,
    StandsStill,
)
from .reading import Entry, Place, Process, Series, merged, series_of

MAX_FINDINGS: Final = 20

OBSERVERS: Final[tuple[type[Observer], ...]] = (
    OneCheckpoint, EndedStaysEnded, GateAgrees, OnlyResumeOpens, StandsStill, OldAttemptsAreStill, RetiredStaysOver,
    BoundariesRise, RevisionByOne, AttemptsRise, CompletedIsOver, ConsumedOnce, OneAttemptComesBack,
    SavedBeforeReleased, EpochsAreOwn, PublishedIsWritten,
)  # fmt: skip

IDENTITY: Final[dict[str, tuple[str, ...]]] = {
    "participant": (),
    "gate": (),
    "attempt": ("rollout_id", "attempt", "session"),
    "model_call": ("ticket",),
    "response": ("ticket",),
    "resource_session": ("session",),
    "episode_step": ("rollout_id", "attempt"),
    "handoff": ("rollout_id", "attempt"),
    "transaction": ("checkpoint_id",),
    "ledger_entry": ("rollout_id",),
    "heartbeat": ("server", "watched"),
    "deployment": (),
}
"""Which ids, beside the process, tell two machines of one table apart. A table that is not here tells them by the
process alone."""
BEGIN_AGAIN: Final = frozenset({"episode_step", "resource_session", "handoff"})
"""What may be begun anew under the same ids in one process, once it has ended: what failed is asked for again. An
`attempt` may from wherever it stood, since a handler that fails takes its session along."""


@frozen
class Finding:
    """What is wrong: `rule` is `journal`, `table`, `order`, or the number of an invariant."""

    rule: str
    place: Place
    problem: str

    def __str__(self) -> str:
        return f"{self.place}: {self.rule}: {self.problem}"


@frozen
class Seen:
    """What was seen of one table: lines, refusals among them, machines, and (state, event) cells of all it has."""

    lines: int
    refused: int
    machines: int
    cells: int
    all_cells: int


@frozen
class Replay:
    """What came of it. `missing` lines were rotated away or lost, `midway` machines were first seen after their
    beginning, `torn` last lines were cut short; `more` findings are not told.
    """

    findings: tuple[Finding, ...]
    more: int
    files: int
    lines: int
    processes: tuple[Process, ...]
    tables: Mapping[str, Seen]
    missing: int
    midway: int
    torn: tuple[Place, ...]

    @property
    def allowed(self) -> bool:
        """Whether nothing is wrong, as far as there are lines."""
        return not self.findings


def replayed(
    files: Mapping[str, bytes],
    tables: Mapping[str, Table[Any, Any]] = TABLES,
    observers: Iterable[type[Observer]] = OBSERVERS,
) -> Replay:
    """The journals in these files (name -> bytes), held against the tables and the invariants."""
    series = series_of(files)
    run = _Run(tables, [each() for each in observers], series)
    for number, entry in merged(series):
        run.see(number, entry)
    run.end()
    findings = sorted(
        [Finding("journal", place, problem) for each in series for place, problem in each.damaged],
        key=lambda f: f.place,
    )
    findings += run.findings
    return Replay(
        findings=tuple(findings[:MAX_FINDINGS]),
        more=max(0, len(findings) - MAX_FINDINGS),
        files=len(files),
        lines=sum(len(each.entries) for each in series),
        processes=tuple(run.processes),
        tables=run.seen(),
        missing=sum(each.missing for each in series),
        midway=run.midway,
        torn=tuple(place for each in series for place in each.torn),
    )


@define
class _Run:
    """One pass over all lines. `known` are the processes of each series; one with missing lines is `partial`."""

    tables: Mapping[str, Table[Any, Any]]
    observers: list[Observer]
    series: list[Series]
    findings: list[Finding] = field(factory=list)
    processes: dict[Process, None] = field(factory=dict)
    midway: int = 0
    known: dict[int, set[Process]] = field(factory=dict)
    partial: set[int] = field(factory=set)
    stands: dict[tuple[Any, ...], str] = field(factory=dict)
    machines: dict[str, set[tuple[Any, ...]]] = field(factory=dict)
    lines: Counter[str] = field(factory=Counter)
    refused: Counter[str] = field(factory=Counter)
    cells: dict[str, set[tuple[str, str]]] = field(factory=dict)

    def see(self, number: int, entry: Entry) -> None:
        line, process = entry.line, entry.process
        known = self.known.setdefault(number, set())
        if entry.missing:
            self.partial.add(number)
            for each in known:
                self._lose(each)
        if process not in known:
            known.add(process)
            if number in self.partial:
                self._lose(process)
        self.processes.setdefault(process)
        problem = fault(line, self.tables)
        if problem is not None:
            self._find("table", entry, problem)
        else:
            self.lines[line.machine] += 1
            self.refused[line.machine] += not entry.accepted
            self.cells.setdefault(line.machine, set()).add((line.state, line.event))
            self._join(entry, is_whole=number not in self.partial)
        for observer in self.observers:
            said = observer.see(entry)
            if said is not None:
                self._find(observer.number, entry, said)

    def end(self) -> None:
        for observer in self.observers:
            for entry, said in observer.end():
                self._find(observer.number, entry, said)

    def seen(self) -> dict[str, Seen]:
        return {
            name: Seen(
                lines=self.lines[name],
                refused=self.refused[name],
                machines=len(self.machines.get(name, ())),
                cells=len(self.cells.get(name, ())),
                all_cells=len(table.states) * len(table.events),
            )
            for name, table in self.tables.items()
        }

    # --- inside

    def _find(self, rule: str, entry: Entry, problem: str) -> None:
        self.findings.append(Finding(rule, entry.place, problem))

    def _lose(self, process: Process) -> None:
        for key in [key for key in self.stands if key[1:3] == process]:
            del self.stands[key]
        for observer in self.observers:
            observer.lost(process)

    def _join(self, entry: Entry, *, is_whole: bool) -> None:
        """A machine's line begins where its last one ended; its first one in an initial state."""
        line, table = entry.line, self.tables[entry.line.machine]
        key = (line.machine, *entry.process, *map(entry.id, IDENTITY.get(line.machine, ())))
        before = self.stands.get(key)
        begins = line.state in {state.value for state in (table.initial, *table.also_initial)}
        machines = self.machines.setdefault(line.machine, set())
        if before is None and not begins and (key in machines or not is_whole):
            self.midway += 1
        elif before is None and not begins:
            self._find("order", entry, f"{_called(key)} is first seen in {line.state}, where none begins")
        elif before not in (None, line.state) and not (begins and self._may_begin_again(table, before)):
            self._find("order", entry, f"{_called(key)} stood in {before}, not in {line.state}")
        machines.add(key)
        self.stands[key] = line.next

    def _may_begin_again(self, table: Table[Any, Any], before: str | None) -> bool:
        ended = before in {state.value for state in table.final}
        return table.name == "attempt" or (ended and table.name in BEGIN_AGAIN)


def _called(key: tuple[Any, ...]) -> str:
    machine, process, _incarnation, *ids = key
    return " ".join(str(each) for each in (machine, *ids, "of", process or "an unnamed process") if each is not None)
