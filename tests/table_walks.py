"""Walks over the protocol's tables: sample events for each, and what can be reached with them.

A walk is breadth-first from the given starts, by the sample events alone, up to a bound of snapshots. It yields what
the tests of all tables need: snapshots that really occur, not made-up ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from attrs import field, frozen

from participants.machines import (
    attempt,
    control,
    deployment,
    episode_step,
    gate,
    handoff,
    heartbeat,
    model_call,
    resource_session,
    transaction,
)
from participants.records.positions import SEED_HISTORY, Position
from statecore import Refused, Snapshot, Table, When
from statecore.table import Cell, Go, Refuse, Stay

BOUND = 4000


@frozen
class Walk:
    """A table with its starting snapshots and the sample events to walk it with."""

    table: Table[Any, Any]
    starts: tuple[Snapshot[Any, Any], ...]
    events: tuple[Any, ...]
    bound: int = BOUND
    _reached: list[Snapshot[Any, Any]] = field(factory=list, init=False, eq=False, repr=False)

    @property
    def reached(self) -> Sequence[Snapshot[Any, Any]]:
        """The snapshots that the samples reach, in breadth-first order, at most `bound`."""
        if not self._reached:
            self._reached.extend(_walk(self))
        return self._reached

    def steps(self) -> Iterator[tuple[Snapshot[Any, Any], Any]]:
        """Every reached snapshot with every sample event."""
        yield from product(self.reached, self.events)


def _walk(walk: Walk) -> list[Snapshot[Any, Any]]:
    found = dict.fromkeys(walk.starts)
    frontier = list(found)
    while frontier and len(found) < walk.bound:
        newer = []
        for snapshot, event in product(frontier, walk.events):
            try:
                after, _ = walk.table.step(snapshot, event)
            except Refused:
                continue
            if after not in found and len(found) < walk.bound:
                found[after] = None
                newer.append(after)
        frontier = newer
    return list(found)


def branch(cell: Cell, data: Any, event: Any) -> Go | Stay | Refuse:
    """The branch at which the cell ends for this data and event."""
    while isinstance(cell, When):
        cell = cell.cell if cell.guard(data, event) else cell.otherwise
    return cell


_NOW = 1000.0


def _calls(kind: Any, **fields: Any) -> list[Any]:
    """The call for two checkpoints in time, too late, for another process, from an older and a newer life."""
    common: dict[str, Any] = {"deadline_ts": 1060.0, "now": _NOW, "epoch": 2} | fields
    return [
        kind("a", **common),
        kind("b", **common),
        kind("a", **(common | {"deadline_ts": 1000.0})),
        kind("a", **(common | {"incarnation": "another"})),
        kind("a", **(common | {"epoch": 1})),
    ]


def _participant() -> Walk:
    c = control
    born = c.Control(incarnation="this", epoch=2, epoch_required=True)
    events: list[Any] = []
    for kind in (c.PrepareRequested, c.ResumeRequested, c.RenewRequested, c.RetireRequested):
        events += _calls(kind)
    events.append(c.PrepareRequested("a", deadline_ts=1060.0, now=_NOW, epoch=2, leave_out=frozenset({"r1"})))
    for commit_or_restore in (c.CommitRequested, c.RestoreRequested):
        events += _calls(commit_or_restore, arguments="here")
        events.append(commit_or_restore("a", deadline_ts=1060.0, now=_NOW, epoch=2, arguments="there"))
    for name in ("a", "b"):
        events += [kind(name) for kind in (c.ReadinessReached, c.PrepareFailed, c.RestoreFailed, c.LeaseExpired)]
        events += [c.PartWritten(name, "here", "written"), c.PartInstalled(name, "here", "installed", 1060.0)]
    events.append(c.PartWritten("a", "there", "written"))
    events.append(c.Broke("the timer died"))
    starts = (c.PARTICIPANT.start(c.Control(incarnation="this")), c.PARTICIPANT.start(born, state=c.Phase.BORN))
    return Walk(c.PARTICIPANT, starts, tuple(events))


def _session() -> Walk:
    r = resource_session
    installed = Position(7, "ab" * 16, "cd" * 16)
    events = (
        r.Seeded("11" * 16, "seed-1"),
        r.Seeded("22" * 16, "seed-2"),
        r.Seeded("33" * 16),
        r.Installed(installed, (r.Operation("op-1", "{}"),)),
        r.Installed(Position(0, SEED_HISTORY, "cd" * 16)),
        r.Mutated("op-1", "{}"),
        r.Mutated("op-2", "{}"),
        r.Used(),
        r.Froze(),
        r.Thawed(),
        r.VerifyStarted(),
        r.VerifySucceeded(),
        r.VerifyFailed(),
        r.Closed(),
    )
    return Walk(r.RESOURCE_SESSION, (r.RESOURCE_SESSION.start(r.SessionData(max_operations=2)),), events, bound=500)


def _transaction() -> Walk:
    t = transaction
    members = frozenset({("agent", "i1"), ("tools", "i2")})
    plain = (
        t.DispatchFrozen, t.AllPrepared, t.AllSettled, t.HalfSaved, t.DirectoryPublished, t.ServersResumed, t.Aborted,
    )  # fmt: skip
    events = (
        *(kind() for kind in plain),
        t.CheckpointRequested("ck-000001-000001"),
        t.AllCommitted(members),
        t.AllCommitted(),
        *(t.ProofGiven(*member) for member in sorted(members)),
        t.ProofGiven("agent", "a successor"),
        *(t.ProofGiven(*member, "preparing") for member in sorted(members)[:1]),
        t.ClaimsRead(),
        t.ClaimsRead(overtaken=True),
        t.Failed("a server is gone"),
    )
    return Walk(t.TRANSACTION, (t.TRANSACTION.start(),), events)


def _simple(table: Table[Any, Any], *more: Any, start: Any = None) -> Walk:
    """A walk whose events need no arguments, and `more`."""
    kinds = {type(event) for event in more}
    plain = tuple(kind() for kind in table.events if kind not in kinds)
    return Walk(table, (table.start() if start is None else start,), (*plain, *more))


def _heartbeat() -> Walk:
    h = heartbeat
    events = (h.Answered("i1"), h.Answered("i2"), h.Answered(), h.PeriodPassed(), h.Exited(-9))
    starts = (h.HEARTBEAT.start(h.Pulse("i1", allowed=3)), h.HEARTBEAT.start(h.Pulse("i1", allowed=1)))
    return Walk(h.HEARTBEAT, starts, events)


def _deployment() -> Walk:
    d = deployment
    plain = (d.Progressed, d.ServersStopped, d.ServersStarted, d.StateRestored)
    events = (
        *(kind() for kind in plain),
        d.ServerDied("env is dead"),
        d.EpochClaimed(1),
        d.EpochClaimed(2),
        d.EpochClaimed(3),
        d.StepFailed("no"),
        d.StepFailed("never", hopeless=True),
    )
    starts = (d.DEPLOYMENT.start(d.Restart(1, allowed=2, limit=2)),)
    return Walk(d.DEPLOYMENT, starts, events)


def _handoff() -> Walk:
    h = handoff
    events = (
        h.Asked("task"),
        h.Asked("another task"),
        *(kind(receipt) for kind in (h.Finished, h.Acknowledged) for receipt in ("r1", "r2")),
    )
    return Walk(h.HANDOFF, (h.HANDOFF.start(h.Kept("task")),), events)


def walks() -> dict[str, Walk]:
    """A walk for every machine of the protocol, by the table's name."""
    ready = (model_call.ResponseReady(False), model_call.ResponseReady(True))
    gate_start = gate.GATE.start(gate.GateData(max_held=2))
    found = [
        _participant(),
        _simple(attempt.ATTEMPT),
        Walk(gate.GATE, (gate_start,), tuple(kind() for kind in gate.GATE.events), bound=300),
        _simple(model_call.MODEL_CALL),
        _simple(model_call.RESPONSE, *ready),
        _session(),
        Walk(
            episode_step.EPISODE_STEP,
            (episode_step.EPISODE_STEP.start(),),
            tuple(kind() for kind in episode_step.EPISODE_STEP.events),
            bound=100,
        ),
        _transaction(),
        _handoff(),
        _heartbeat(),
        _deployment(),
        _simple(handoff.LEDGER_ENTRY, handoff.Received("r1"), handoff.Received("r2")),
    ]
    return {walk.table.name: walk for walk in found}
