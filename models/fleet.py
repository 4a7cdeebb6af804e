"""Rollouts over an agent and a tools server, without a coordinator: the part of a world that lives in the servers.

A turn is a tool call and a boundary behind it; at a boundary the agent goes on, parks if it is closed, or is done. The
revision of a tools session counts its calls; turn and revision agree whenever no call is under way. A call may be on
its way for long, or lose its answer, and is then sent again under the same operation id. Leases end at any moment:
worlds have no clock. docs/reference/protocol.md sections 4 to 6.
"""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import evolve, frozen

from models.server import CLOSED_PHASES, Server, knock, server, tell
from participants.machines.attempt import ATTEMPT, AttemptState, Completed, Parked, PartWritten, Released
from participants.machines.control import (
    PARTICIPANT,
    Control,
    LeaseExpired,
    Phase,
    ReadinessReached,
    ResumeRequested,
    is_data_of_other_life,
)
from participants.machines.control import PartWritten as ServerPartWritten
from participants.machines.gate import GATE, Arrived, Ended, GateData, GateState, Settled, SettledEnded, Stirred
from statecore import Snapshot, Table
from statecore.properties import always, recoverable, sometimes
from statecore.world import Late, World, action, ghost, param, slot, volatile, wire

NAMES = ("agent", "tools")


@frozen(cache_hash=True)
class Loop:
    """A rollout at its agent: its attempt, the turns it has taken, and where its tool call is, if one is under way.

    `call` is "there" from its arrival to its end, "away" while it is to be sent (again).
    """

    attempt: Snapshot[AttemptState, bool]
    turn: int = 0
    call: str = ""


Records = tuple[int | None, int | None]  # where the agent's record of a rollout stands, and the session's


def ids(world: Any) -> tuple[str, ...]:
    """The rollouts of this run."""
    return ("a", "b")[: world.rollouts]


class FleetWorld(World):
    """One or two rollouts, one agent, one tools server."""

    PARTICIPANT: ClassVar[Table[Phase, Control]] = PARTICIPANT
    GATE: ClassVar[Table[GateState, GateData]] = GATE
    ATTEMPT: ClassVar[Table[AttemptState, bool]] = ATTEMPT

    rollouts = param(1)
    turns = param(2)
    faults = param(1)  # how many calls are late, lost or doubled

    life: int = slot(1)
    faults_left: int = slot(make=lambda world: world.faults)
    agent: Server = slot(server("agent-1"))
    tools: Server = slot(server("tools-1"))
    a: Loop = volatile(Loop(ATTEMPT.start()), of="agent")
    a_session: int | None = volatile(None, of="tools")
    a_records: Records = slot((None, None))
    b: Loop = volatile(Loop(ATTEMPT.start()), of="agent")
    b_session: int | None = volatile(None, of="tools")
    b_records: Records = slot((None, None))
    written: frozenset[str] = slot(frozenset())  # whose part is there: its files are, and maybe not their names
    synced: frozenset[str] = slot(frozenset())  # whose part is there after a power failure as well
    late: Late | None = wire(None)  # a call that is still on its way
    gone: frozenset[tuple[str, str]] = ghost(frozenset())  # (server, id) that has ended

    # --- the rollouts

    @action(over=ids, by="agent")
    def call_tool(self, name: str) -> object:
        """The agent calls its tool; behind a boundary only while it is open, else it parks."""
        loop = self._loop(name)
        if loop.attempt.state is not AttemptState.RUNNING or loop.turn == self.turns or loop.call == "there":
            return False
        if loop.turn > 0 and not loop.call and not self.agent.is_open:
            return False
        self._call_arrives(name, loop.turn + 1)
        self._set(name, evolve(loop, call="there"))
        return None

    @action(fault=True, over=ids, by="agent")
    def call_tool_delayed(self, name: str) -> object:
        """The call does not arrive now; it is sent again, and the first sending may come later."""
        if not self._spend():
            return False
        loop = self._loop(name)
        if loop.attempt.state is not AttemptState.RUNNING or loop.turn == self.turns or loop.call:
            return False
        if loop.turn > 0 and not self.agent.is_open:
            return False
        self.late = Late("call", (name,), (self.life, loop.turn + 1))
        self._set(name, evolve(loop, call="away"))
        return None

    @action(fault=True, over=ids, by="tools")
    def call_tool_late(self, name: str) -> object:
        """It comes after all, and nobody waits for its answer: applied if it was not, and refused in another life."""
        if self.late is None or (self.late.call, self.late.args) != ("call", (name,)):
            return False
        life, operation = self.late.request
        self.late = None
        if is_data_of_other_life(self.tools.control.data, life) or not self.tools.is_open:
            return None
        self._apply(name, operation)
        return None

    @action(over=ids, by="tools")
    def end_tool_call(self, name: str) -> object:
        """The call is applied and its answer is there: the session and the conversation are one further."""
        loop = self._loop(name)
        if loop.call != "there":
            return False
        self.tools = knock(self.tools, Ended(), self.GATE)  # refused while it is held
        self._apply(name, loop.turn + 1)
        self._set(name, evolve(loop, turn=loop.turn + 1, call=""))
        return None

    @action(fault=True, over=ids, by="tools")
    def end_tool_call_answer_lost(self, name: str) -> object:
        """It is applied, and the agent does not hear of it: it sends the call again."""
        if not self._spend():
            return False
        loop = self._loop(name)
        if loop.call != "there":
            return False
        self.tools = knock(self.tools, Ended(), self.GATE)
        self._apply(name, loop.turn + 1)
        self._set(name, evolve(loop, call="away"))
        return None

    @action(over=ids, by="agent")
    def park(self, name: str) -> object:
        """The agent stands at its boundary while it is closed; the last turn is no boundary."""
        loop = self._loop(name)
        if self.agent.is_open or loop.call or not 0 < loop.turn < self.turns:
            return False
        if loop.attempt.state is not AttemptState.RUNNING:
            return False
        self.agent = knock(self.agent, Settled(), self.GATE)
        self._step(name, Parked())
        return None

    @action(over=ids, by="agent")
    def unpark(self, name: str) -> object:
        """The agent goes on when it is open."""
        if self._loop(name).attempt.state not in (AttemptState.PARKED, AttemptState.COMMITTED):
            return False
        self.agent = knock(self.agent, Stirred(), self.GATE)
        self._step(name, Released())
        return None

    @action(over=ids, by="agent")
    def complete(self, name: str) -> object:
        """The turn was the last one: the result exists at the agent."""
        loop = self._loop(name)
        if loop.call or loop.turn == 0:
            return False
        standing = loop.attempt.state in (AttemptState.PARKED, AttemptState.COMMITTED)
        self._step(name, Completed())
        if self._loop(name) == loop:
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
        """The files are there: a record of each rollout that stands at a boundary, or of each session there is."""
        control = self._server(name).control
        if control.state is not Phase.PREPARED or control.data.writing is None or name in self.written:
            return False
        for each in ids(self):
            turn, revision = self._records(each)
            if name == "tools":
                self._set_records(each, (turn, getattr(self, f"{each}_session")))
            else:
                loop = self._loop(each)
                self._set_records(each, (loop.turn if loop.attempt.state.resumable else None, revision))
        self.written |= {name}
        return None

    @action(over=NAMES)
    def sync_part(self, name: str) -> object:
        """Their directory is synced: only now does the server answer."""
        control = self._server(name).control
        if control.state is not Phase.PREPARED or control.data.writing is None or name not in self.written:
            return False
        self.synced |= {name}
        self._part_written(name)
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

    def _loop(self, name: str) -> Loop:
        return self.a if name == "a" else self.b

    def _set(self, name: str, loop: Loop) -> None:
        setattr(self, name, loop)

    def _step(self, name: str, event: object) -> None:
        """The rollout's attempt takes the event."""
        loop = self._loop(name)
        attempt, _ = self.ATTEMPT.step(loop.attempt, event)
        self._set(name, evolve(loop, attempt=attempt))

    def _records(self, name: str) -> Records:
        return self.a_records if name == "a" else self.b_records

    def _set_records(self, name: str, records: Records) -> None:
        setattr(self, f"{name}_records", records)

    def _server(self, name: str) -> Server:
        return self.agent if name == "agent" else self.tools

    def _call_arrives(self, name: str, operation: int) -> None:
        """A tool call is admitted or held; one for a session that is no more is not made (`session_lost`)."""
        self.tools = knock(self.tools, Arrived(), self.GATE)

    def _apply(self, name: str, operation: int) -> None:
        """The session takes an operation once: the same again is answered from its recorded reply."""
        session = getattr(self, f"{name}_session")
        if session is None and operation > 1:
            return  # `session_lost`: it is never made again
        setattr(self, f"{name}_session", max(session or 0, operation))

    def _part_written(self, name: str) -> None:
        control = self._server(name).control.data
        self._send(name, ServerPartWritten(control.checkpoint_id or "", control.writing or ""))
        if name == "agent":
            for each in ids(self):
                if self._loop(each).attempt.state.resumable:
                    self._step(each, PartWritten())

    def _spend(self) -> bool:
        """Whether one more fault may come; it is taken."""
        if not self.faults_left:
            return False
        self.faults_left -= 1
        return True

    def _send(self, name: str, event: Any) -> None:
        """The server takes the event; an id that has ended there changes nothing (I14), and only an end opens (I17)."""
        before = self._server(name)
        after, _ = tell(before, event, self.PARTICIPANT, self.GATE)
        if (name, event.checkpoint_id) in self.gone and after != before:
            self.fail("I14")
        if isinstance(event, (ResumeRequested, LeaseExpired)):
            self.gone |= {(name, event.checkpoint_id)}
        elif after.is_open and not before.is_open:
            self.fail("I17")
        setattr(self, name, after)

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
        return self.agent.phase is not Phase.COMMITTED or all(
            self._loop(each).attempt.state is not AttemptState.RUNNING for each in ids(self)
        )

    @recoverable(covers=("I20", "I21"), by="expire")
    def accepting_by_itself(self) -> bool:
        return all(where.is_open or where.phase is Phase.BORN for where in (self.agent, self.tools))

    @recoverable(covers="I20")
    def accepting(self) -> bool:
        return self.agent.is_open and self.tools.is_open

    @sometimes
    def a_tool_call_is_held(self) -> bool:
        return self.tools.gate.data.held > 0
