"""A participant server of a world: its control half and its gate, run by the tables that run in production.

`tell` is the server's shell without HTTP: one step of PARTICIPANT, and what it owes to the gate is done at once, in
order. What is left over (write, read, await readiness, answers) is the world's to do.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from attrs import evolve, frozen

from participants.machines.control import PARTICIPANT, CloseAdmission, Control, OpenAdmission, Phase, new_process
from participants.machines.gate import (
    GATE,
    Admit,
    Arrived,
    CloseRequested,
    GateData,
    GateState,
    OpenRequested,
    ReleaseHeld,
)
from statecore import Snapshot, Table

GRACE_S = 1.0
DEADLINE_TS = 1.0  # worlds have no clock: every call has the same deadline, in time

CLOSED_PHASES = frozenset({Phase.BORN, Phase.PREPARING, Phase.PREPARED, Phase.COMMITTED, Phase.RESTORED})


@frozen(cache_hash=True)
class Server:
    """One process: where its participant machine and its admission gate stand."""

    control: Snapshot[Phase, Control]
    gate: Snapshot[GateState, GateData]

    @property
    def phase(self) -> Phase:
        return self.control.state

    @property
    def open_id(self) -> str | None:
        return self.control.data.checkpoint_id

    @property
    def incarnation(self) -> str:
        return self.control.data.incarnation

    @property
    def is_open(self) -> bool:
        return self.gate.state is GateState.OPEN

    @property
    def is_quiet(self) -> bool:
        return self.gate.state is GateState.QUIET


def server(incarnation: str, *, born_with_epoch: int | None = None, max_held: int = 2) -> Server:
    """A process that just started: open, or born closed with the epoch that its launcher gave it."""
    gate = GATE.start(GateData(max_held=max_held))
    control = new_process(
        incarnation, epoch=born_with_epoch, epoch_required=born_with_epoch is not None, lease_grace_s=GRACE_S
    )  # fmt: skip
    if control.state is Phase.BORN:
        gate, _ = GATE.step(gate, CloseRequested())
    return Server(control, gate)


@cache
def tell(
    target: Server, event: Any, table: Table[Phase, Control] = PARTICIPANT, gate: Table[GateState, GateData] = GATE
) -> tuple[Server, tuple[Any, ...]]:
    """The server after a control event, and the effects that are not the gate's; raises Refused."""
    control, effects = table.step(target.control, event)
    owed = []
    after = evolve(target, control=control)
    for effect in effects:
        if isinstance(effect, CloseAdmission):
            after = knock(after, CloseRequested(), gate)
        elif isinstance(effect, OpenAdmission):
            after = knock(after, OpenRequested(), gate)
        else:
            owed.append(effect)
    return after, tuple(owed)


@cache
def knock(target: Server, event: Any, table: Table[GateState, GateData] = GATE) -> Server:
    """The server after an event of its gate; whatever it held arrives again when it opens. Raises Refused."""
    held = target.gate.data.held
    gate, effects = table.step(target.gate, event)
    if any(isinstance(effect, ReleaseHeld) for effect in effects):
        for _ in range(held):
            gate, _ = table.step(gate, Arrived())
    return evolve(target, gate=gate)


def admits(target: Server) -> bool:
    """Whether a request that may be held would be admitted now."""
    return any(isinstance(effect, Admit) for effect in GATE.step(target.gate, Arrived())[1])
