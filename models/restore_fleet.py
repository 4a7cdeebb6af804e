"""The servers of a world of restores: an agent that runs executions, and a tools server with their sessions.

Both are born closed with their epoch. A turn is one step here, since `models.resources_session` looks into it: the
agent's call is admitted, applied and heard of. docs/reference/protocol.md sections 3, 6, 7 and 11.
"""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import evolve

from models.restore_parts import (
    NOTHING,
    TASK_DIGEST,
    Kept,
    Run,
    execution,
    fences_of,
    marks_of,
)
from models.server import GRACE_S, Server, tell
from participants.machines.attempt import ATTEMPT, AttemptState, Completed, Dispatched, Parked, Released
from participants.machines.control import (
    PARTICIPANT,
    Control,
    LeaseExpired,
    Phase,
    is_data_of_other_life,
    new_process,
)
from participants.machines.gate import GATE, CloseRequested, GateData
from participants.machines.resource_session import (
    RESOURCE_SESSION,
    Mutated,
    Seeded,
    SessionData,
    SessionState,
    Thawed,
    Used,
)
from participants.records.positions import OtherSession, later
from participants.servers.agent_session import check_claim
from participants.servers.peers import Heard, heard
from statecore import Refused, Snapshot, Table
from statecore.world import World, action, param, slot, volatile, wire

NAMES = ("agent", "tools")


def born(name: str, epoch: int) -> Server:
    """A process that its launcher has just started: closed until it is restored or resumed."""
    closed, _ = GATE.step(GATE.start(GateData(max_held=2)), CloseRequested())
    return Server(new_process(name, epoch=epoch, epoch_required=True, lease_grace_s=GRACE_S), closed)


def opened(name: str, epoch: int) -> Server:
    """One that was opened already, with nothing to restore."""
    control = Control(incarnation=name, epoch=epoch, epoch_required=True, lease_grace_s=GRACE_S)
    return Server(PARTICIPANT.start(control), GATE.start(GateData(max_held=2)))


class RestoreFleetWorld(World):
    """One rollout at one agent and one tools server."""

    PARTICIPANT: ClassVar[Table[Phase, Control]] = PARTICIPANT

    turns = param(2)

    epoch: int = slot(1)
    over: int = slot(-1)  # the highest attempt that this life has left behind

    agent: Server = slot(opened("agent-1", 1))
    runs: tuple[Run, ...] = volatile((), of="agent")
    agent_marks: tuple[int, int] = volatile(NOTHING, of="agent")
    tools: Server = slot(opened("tools-1", 1))
    kept: tuple[Kept, ...] = volatile((), of="tools")
    tools_marks: tuple[int, int] = volatile(NOTHING, of="tools")

    late: tuple[int, int] | None = wire(None)  # a `/run` on its way: attempt, epoch

    # --- what happens at the servers

    @action(over=(0, 1))
    def turn(self, number: int) -> object:
        """The execution calls its tool; at a boundary only while the agent is open."""
        run = self._moving(number)
        if len(run.turns) == self.turns or (run.turns and not self.agent.is_open) or not self.tools.is_open:
            return False
        operation = f"{self.epoch}.{run.attempt}.{len(run.turns) + 1}"
        try:
            kept = self._mutate(run, operation)
        except Refused as refused:
            self._end_run(run, self._meaning(refused.code))
            return None
        try:
            position = later(run.position, kept.position)
        except OtherSession:
            self._end_run(run, Heard.LOST)
            return None
        self._put_run(evolve(run, turns=(*run.turns, operation), position=position))
        return None

    @action(over=(0, 1))
    def finish(self, number: int) -> object:
        """Its handler returns: the result exists at the agent."""
        run = self._moving(number)
        if len(run.turns) < self.turns:
            return False
        machine, _ = ATTEMPT.step(run.machine, Completed())
        self._put_run(evolve(run, machine=machine, ended="result"))
        return None

    @action(over=(0, 1))
    def park(self, number: int) -> object:
        """It stands at a boundary while the agent is closed; the last turn is no boundary."""
        run = self._moving(number)
        if self.agent.is_open or not 0 < len(run.turns) < self.turns:
            return False
        machine, _ = ATTEMPT.step(run.machine, Parked())
        self._put_run(evolve(run, machine=machine))
        return None

    @action
    def arrive_late(self) -> object:
        """A copy of a `/run` arrives, at whoever is there now."""
        if self.late is None:
            return False
        attempt, epoch = self.late
        self.late = None
        try:
            self._run(attempt, epoch)
        except Refused:
            return None
        return None

    @action(over=NAMES)
    def expire(self, name: str) -> object:
        """A lease ends."""
        control = self._server(name).control.data
        if control.lease_until is None:
            return False
        self._tell(name, LeaseExpired(control.checkpoint_id or ""))
        return None

    # --- helpers

    def _run(self, attempt: int, epoch: int) -> None:
        """What the agent's server does with a `/run`: joined, claimed, begun, or Refused."""
        if self._is_of_other_life(self.agent, epoch):
            raise Refused("stale_epoch", self.epoch, attempt)
        fences = fences_of(self.agent_marks)
        self._check_fences(fences, attempt)
        mine = self._find(attempt)
        if mine is not None and not mine.unclaimed:
            return
        if not self.agent.is_open:
            raise Refused("admission_closed", self.agent.phase, attempt)
        self._claim(attempt, mine)
        if attempt <= self.over:
            self.fail("I6")
        fences.accept(execution(attempt))
        self.agent_marks = marks_of(fences)
        if mine is None:
            self._stop_runs_below(attempt)
            mine = Run(attempt)
            self.runs = (*self.runs, mine)
        machine, _ = ATTEMPT.step(mine.machine, Dispatched())
        self._put_run(evolve(mine, machine=machine))

    def _check_fences(self, fences: Any, attempt: int) -> None:
        fences.check(execution(attempt))

    def _claim(self, attempt: int, mine: Run | None) -> None:
        """Whether it may begin here, as the agents that run decide it."""
        unclaimed = [execution(run.attempt) for run in self.runs if run.unclaimed]
        check_claim(execution(attempt), TASK_DIGEST, unclaimed, None if mine is None else TASK_DIGEST)

    def _stop_runs_below(self, attempt: int) -> None:
        self.runs = tuple(run for run in self.runs if run.attempt >= attempt)

    def _mutate(self, run: Run, operation: str) -> Kept:
        """The session after the call; made by the first one."""
        if self._is_of_other_life(self.tools, self.epoch):
            raise Refused("stale_epoch", self.epoch, run.attempt)
        fences = fences_of(self.tools_marks)
        self._check_fences(fences, run.attempt)
        if run.attempt <= self.over:
            self.fail("I6")
        fences.accept(execution(run.attempt))
        self.tools_marks = marks_of(fences)
        self.kept = tuple(each for each in self.kept if each.attempt >= run.attempt)
        mine = next((each for each in self.kept if each.attempt == run.attempt), None)
        if mine is None:
            if run.turns:
                raise Refused("session_lost", "absent", run.attempt)
            mine = Kept(run.attempt, RESOURCE_SESSION.start(SessionData(max_operations=4)))
            self.kept = (*self.kept, mine)
        if not run.turns:
            mine = self._step(mine, Seeded(f"{self.epoch:016x}{run.attempt:016x}", operation))
        self._step(mine, Used())
        mine = self._step(self._session(run.attempt), Mutated(operation))
        self.kept = _with(self.kept, evolve(mine, turns=(*mine.turns, operation)))
        return self._session(run.attempt)

    def _meaning(self, code: str) -> Heard:
        """What the agent makes of a refusal."""
        return heard(409, code)

    def _end_run(self, run: Run, meant: Heard) -> None:
        """No server, no result (I97); what the agent takes for a reply is the application's, and it gives up."""
        if meant is Heard.REPLY:
            machine, _ = ATTEMPT.step(run.machine, Completed())
            self._put_run(evolve(run, machine=machine, ended="result"))
        else:
            self._put_run(evolve(run, ended="over" if meant is Heard.OVER else "lost"))

    def _retire(self, name: str, attempts: tuple[int, ...]) -> None:
        """These attempts and all below are fenced at a server, and nothing of them is left there."""
        fences = fences_of(self.agent_marks if name == "agent" else self.tools_marks)
        fences.retire(execution(each) for each in attempts)
        if name == "agent":
            self.agent_marks = marks_of(fences)
            self.runs = tuple(run for run in self.runs if not fences.is_over(execution(run.attempt)) or run.ended)
        else:
            self.tools_marks = marks_of(fences)
            self.kept = tuple(each for each in self.kept if not fences.is_over(execution(each.attempt)))

    def _is_of_other_life(self, where: Server, epoch: int) -> bool:
        return is_data_of_other_life(where.control.data, epoch)

    def _server(self, name: str) -> Server:
        return self.agent if name == "agent" else self.tools

    def _tell(self, name: str, event: Any) -> None:
        """A control event; when it opens the agent, what stood there moves again."""
        before = self._server(name)
        after, _ = tell(before, event, self.PARTICIPANT, GATE)
        opens = after.is_open and not before.is_open
        if name == "agent":
            self.agent = after
            for run in self.runs if opens else ():
                if run.machine.state in (AttemptState.PARKED, AttemptState.COMMITTED):
                    machine, _ = ATTEMPT.step(run.machine, Released())
                    self._put_run(evolve(run, machine=machine))
        else:
            self.tools = after
            for each in self.kept if opens else ():
                self._step(each, Thawed())

    def _moving(self, number: int) -> Run:
        if number >= len(self.runs) or not self.runs[number].moves:
            raise Refused("nothing_moves", "", number)
        return self.runs[number]

    def _find(self, attempt: int) -> Run | None:
        return next((run for run in self.runs if run.attempt == attempt), None)

    def _put_run(self, changed: Run) -> None:
        self.runs = tuple(changed if run.attempt == changed.attempt else run for run in self.runs)

    def _session(self, attempt: int) -> Kept:
        return next(each for each in self.kept if each.attempt == attempt)

    def _step(self, kept: Kept, event: object) -> Kept:
        machine: Snapshot[SessionState, SessionData]
        machine, _ = RESOURCE_SESSION.step(kept.machine, event)
        kept = evolve(kept, machine=machine)
        self.kept = _with(self.kept, kept)
        return kept


def _with(kept: tuple[Kept, ...], changed: Kept) -> tuple[Kept, ...]:
    return tuple(changed if each.attempt == changed.attempt else each for each in kept)
