"""A rollout over an agent and a tools server, without a coordinator: the part of a world that lives in the servers.

A turn is a tool call and a boundary behind it; at a boundary the agent goes on, parks if it is closed, or is done. The
revision of the tools session counts its mutations; turn and revision agree whenever nothing is in flight. Leases end at
any moment: worlds have no clock. docs/reference/protocol.md sections 4 to 6.
"""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import frozen

from models.server import CLOSED_PHASES, Server, knock, server, tell
from participants.machines.attempt import ATTEMPT, AttemptState, Completed, Parked, PartWritten, Released
from participants.machines.control import PARTICIPANT, Control, LeaseExpired, Phase, ReadinessReached, ResumeRequested
from participants.machines.control import PartWritten as ServerPartWritten
from participants.machines.gate import GATE, Arrived, Ended, GateData, GateState, Settled, SettledEnded, Stirred
from statecore import Snapshot, Table
from statecore.properties import always, recoverable, sometimes
from statecore.world import World, action, param, slot

NAMES = ("agent", "tools")


@frozen(cache_hash=True)
class Part:
    """A written part: for which checkpoint, and at which position its record stands (None: no record)."""

    checkpoint_id: str
    position: int | None


class FleetWorld(World):
    """One rollout, one agent, one tools server."""

    PARTICIPANT: ClassVar[Table[Phase, Control]] = PARTICIPANT
    GATE: ClassVar[Table[GateState, GateData]] = GATE
    ATTEMPT: ClassVar[Table[AttemptState, bool]] = ATTEMPT

    turns = param(2)

    agent: Server = slot(server("agent-1"))
    tools: Server = slot(server("tools-1"))
    attempt: Snapshot[AttemptState, bool] = slot(ATTEMPT.start())
    turn: int = slot(0)
    calling: bool = slot(False)
    revision: int = slot(0)
    agent_part: Part | None = slot(None)
    tools_part: Part | None = slot(None)
    agent_gone: frozenset[str] = slot(frozenset())  # ghosts: the ids that have ended there
    tools_gone: frozenset[str] = slot(frozenset())

    # --- the rollout

    @action
    def call_tool(self) -> object:
        """The agent calls its tool; behind a boundary only while it is open, else it parks."""
        at_boundary = self.turn > 0
        if self.attempt.state is not AttemptState.RUNNING or self.calling or self.turn == self.turns:
            return False
        if at_boundary and not self.agent.is_open:
            return False
        self.tools = knock(self.tools, Arrived(), self.GATE)
        self.calling = True
        return None

    @action
    def end_tool_call(self) -> object:
        """The mutation is applied and its reply is there: the session and the conversation are one further."""
        if not self.calling:
            return False
        self.tools = knock(self.tools, Ended(), self.GATE)  # refused while it is held
        self.calling = False
        self.revision += 1
        if self.attempt.state is AttemptState.RUNNING:
            self.turn += 1
        return None

    @action
    def park(self) -> object:
        """The agent stands at its boundary while it is closed; the last turn is no boundary."""
        if self.agent.is_open or self.calling or not 0 < self.turn < self.turns:
            return False
        if self.attempt.state is not AttemptState.RUNNING:
            return False
        self.agent = knock(self.agent, Settled(), self.GATE)
        self.attempt, _ = self.ATTEMPT.step(self.attempt, Parked())
        return None

    @action
    def unpark(self) -> object:
        """The agent goes on when it is open."""
        if self.attempt.state not in (AttemptState.PARKED, AttemptState.COMMITTED):
            return False
        self.agent = knock(self.agent, Stirred(), self.GATE)
        self.attempt, _ = self.ATTEMPT.step(self.attempt, Released())
        return None

    @action
    def complete(self) -> object:
        """The turn was the last one: the result exists at the agent."""
        if self.calling or self.turn == 0:
            return False
        standing = self.attempt.state in (AttemptState.PARKED, AttemptState.COMMITTED)
        before, (self.attempt, _) = self.attempt, self.ATTEMPT.step(self.attempt, Completed())
        if before == self.attempt:
            return False
        self.agent = knock(self.agent, SettledEnded() if standing else Ended(), self.GATE)
        return None

    # --- the servers' side

    @action(over=NAMES)
    def reach_readiness(self, name: str) -> object:
        """Nothing moves any more."""
        where = self._server(name)
        if where.phase is not Phase.PREPARING or not where.is_quiet:
            return False
        self._send(name, ReadinessReached(where.open_id or ""))
        return None

    @action(over=NAMES)
    def write_part(self, name: str) -> object:
        """The part is written: the agent's record if it stands at a boundary, the session's if there is one."""
        control = self._server(name).control
        if control.state is not Phase.PREPARED or control.data.writing is None:
            return False
        self._send(name, ServerPartWritten(control.data.checkpoint_id or "", control.data.writing))
        if name == "tools":
            self.tools_part = Part(control.data.checkpoint_id or "", self.revision)
        elif self.attempt.state.resumable:
            self.attempt, _ = self.ATTEMPT.step(self.attempt, PartWritten())
            self.agent_part = Part(control.data.checkpoint_id or "", self.turn)
        else:
            self.agent_part = Part(control.data.checkpoint_id or "", None)
        return None

    @action(over=NAMES)
    def expire(self, name: str) -> object:
        """A lease ends; no fault action, since it is how a server helps itself (I21)."""
        control = self._server(name).control.data
        if control.lease_until is None:
            return False
        self._send(name, LeaseExpired(control.checkpoint_id or ""))
        return None

    # --- helpers

    def _server(self, name: str) -> Server:
        return self.agent if name == "agent" else self.tools

    def _send(self, name: str, event: Any) -> None:
        """The server takes the event; an id that has ended there changes nothing (I14), and only an end opens (I17)."""
        before = self._server(name)
        after, _ = tell(before, event, self.PARTICIPANT, self.GATE)
        gone = self.agent_gone if name == "agent" else self.tools_gone
        if event.checkpoint_id in gone and after != before:
            self.fail("I14")
        if isinstance(event, (ResumeRequested, LeaseExpired)):
            if name == "agent":
                self.agent_gone |= {event.checkpoint_id}
            else:
                self.tools_gone |= {event.checkpoint_id}
        elif after.is_open and not before.is_open:
            self.fail("I17")
        if name == "agent":
            self.agent = after
        else:
            self.tools = after

    # --- what must be true

    @always(covers="I13")
    def an_open_id_is_alone_and_has_not_ended(self) -> bool:
        return all(
            (where.open_id is not None) == (where.phase not in (Phase.IDLE, Phase.BORN))
            and (where.open_id is None or where.open_id not in where.control.data.ended)
            for where in (self.agent, self.tools)
        )

    @always(covers=("I16", "I17"))
    def phase_and_admission_agree(self) -> bool:
        return all(where.is_open != (where.phase in CLOSED_PHASES) for where in (self.agent, self.tools))

    @always(covers="I24")
    def nothing_moves_at_a_committed_agent(self) -> bool:
        return self.agent.phase is not Phase.COMMITTED or self.attempt.state is not AttemptState.RUNNING

    @recoverable(covers=("I20", "I21"), by="expire")
    def accepting_by_itself(self) -> bool:
        return all(where.is_open or where.phase is Phase.BORN for where in (self.agent, self.tools))

    @recoverable(covers="I20")
    def accepting(self) -> bool:
        return self.agent.is_open and self.tools.is_open

    @sometimes
    def a_tool_call_is_held(self) -> bool:
        return self.tools.gate.data.held > 0
