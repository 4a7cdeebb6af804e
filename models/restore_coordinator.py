"""The coordinator of a world of restores, while it runs: a rollout goes out, is checkpointed, its result comes back.

What an answer of `/run` means is decided by `participants.coordination.dispatch`, what a checkpoint says of the rollout
by `participants.coordination.recovery`. docs/reference/protocol.md sections 6, 7 and 9.
"""

from __future__ import annotations

from typing import Any, ClassVar

import httpx
from attrs import evolve

from models.restore_fleet import NAMES, RestoreFleetWorld
from models.restore_parts import (
    FIRST_PLAN,
    TASK_DIGEST,
    Kept,
    Plan,
    Run,
    Saved,
    Turns,
    execution,
    pieces_of,
    receipt_of,
)
from models.server import DEADLINE_TS
from participants.coordination.agreement import agree
from participants.coordination.dispatch import Answer, Came, other_process, read_run_reply
from participants.coordination.recovery import settle
from participants.identity import RECEIPT_HEADER
from participants.machines.attempt import (
    ATTEMPT,
    AttemptState,
    Completed,
    Dispatched,
    PartWritten,
)
from participants.machines.control import (
    CommitRequested,
    Phase,
    PrepareRequested,
    ReadinessReached,
    ResumeRequested,
    RetireRequested,
)
from participants.machines.control import PartWritten as ServerPartWritten
from participants.machines.fencing import own_id
from participants.machines.handoff import LEDGER_ENTRY, AcceptResult, Entry, Received
from participants.machines.handoff import Saved as ResultSaved
from participants.machines.resource_session import Froze
from participants.records.records import Disposition
from statecore import Refused, Snapshot, Table
from statecore.wire import encode
from statecore.world import action, durable, param, slot

ALL = frozenset(NAMES)


class RestoreCoordinatorWorld(RestoreFleetWorld):
    """One coordinator, its rollout and its checkpoints."""

    LEDGER_ENTRY: ClassVar[Table[Entry, str]] = LEDGER_ENTRY

    checkpoints = param(2)
    deaths = param(1)  # of one server
    crashes = param(1)  # of the coordinator, and everything with it
    faults = param(1)  # failed restores, late and wrong requests, attempts taken for lost

    deaths_left: int = slot(make=lambda world: world.deaths)
    crashes_left: int = slot(make=lambda world: world.crashes)
    faults_left: int = slot(make=lambda world: world.faults)

    stage: str = slot("running")  # fencing, restoring, undoing, opening, and rejected
    members: tuple[str, str] = slot(("agent-1", "tools-1"))  # the processes of this deployment
    troubled: bool = slot(False)  # it knows that the deployment has lost something
    plan: Plan = slot(FIRST_PLAN)
    failed: bool = slot(False)
    heard_of: frozenset[str] = slot(frozenset())

    attempt: int = slot(0)
    execution: Snapshot[AttemptState, bool] = slot(ATTEMPT.start())
    given_to: str = slot("")
    giving_up: bool = slot(False)
    entry: Snapshot[Entry, str] = slot(LEDGER_ENTRY.start())
    result: Turns | None = slot(None)
    owed: bool = slot(False)  # the trainer does not have it yet
    trained: int = slot(0)

    begun: int = slot(0)
    checkpoint: str = slot("")  # open, ending
    agent_part: Run | None = slot(None)
    tools_part: Kept | None = slot(None)
    written: frozenset[str] = slot(frozenset())
    disk: Saved | None = durable(None)

    # --- the rollout, as its coordinator sees it

    @action
    def dispatch(self) -> object:
        """`/run` leaves and is admitted; while a checkpoint is open none leaves."""
        if not self._may_dispatch:
            return False
        self._run(self.attempt, self.epoch)
        self.execution, _ = ATTEMPT.step(self.execution, Dispatched())
        self.given_to = self.agent.incarnation
        return None

    @action(fault=True)
    def leave_copy(self) -> object:
        """A copy of it is on its way."""
        if not self._may_dispatch or self.late is not None or not self._fault():
            return False
        self.late = (self.attempt, self.epoch)
        return None

    @action(fault=True)
    def dispatch_wrongly(self) -> object:
        """Somebody starts the continuation that waits here under the attempt after it."""
        waits = self.execution.state is AttemptState.RESTORED and any(run.unclaimed for run in self.runs)
        if not self._may_dispatch or not waits or not self._fault():
            return False
        try:
            self._run(self.attempt + 1, self.epoch)
        except Refused:
            return None  # it asked for nothing that is there
        return None

    @action
    def receive(self) -> object:
        """The answer of `/run`: a result, or what makes none."""
        run = self._find(self.attempt)
        if self.stage != "running" or self.execution.state is not AttemptState.RUNNING or self.troubled:
            return False
        if run is None or not run.ended:
            return False
        answer = self._answer_of(run)
        if answer.came is not Came.RESULT or answer.receipt is None:
            self.troubled = True
            return None
        self.entry, effects = self.LEDGER_ENTRY.step(self.entry, Received(answer.receipt.header))
        if any(isinstance(effect, AcceptResult) for effect in effects):
            self.result, self.owed = run.turns, True
        self.execution, _ = ATTEMPT.step(self.execution, Completed())
        self.giving_up = False  # it was not lost
        return None

    @action
    def hand_over(self) -> object:
        """The trainer takes the result that is in the ledger."""
        if not self.owed:
            return False
        self.owed, self.trained = False, self.trained + 1
        return None

    @action(fault=True)
    def give_up(self) -> object:
        """The coordinator takes the running attempt for lost."""
        if self.stage != "running" or self.execution.state is not AttemptState.RUNNING or self.giving_up:
            return False
        if self.troubled or self.checkpoint or not self._fault():
            return False
        self.giving_up, self.heard_of = True, frozenset()
        return None

    @action(over=NAMES)
    def retire(self, name: str) -> object:
        """It is ended everywhere first."""
        if not self.giving_up or not self._is_next(name, self.heard_of) or self._server(name).phase is Phase.BORN:
            return False
        self._retire_at(name, (self.attempt,))
        return None

    @action
    def try_again(self) -> object:
        """The next attempt waits to be dispatched."""
        if not self.giving_up or not self._is_retired:
            return False
        self.over, self.giving_up, self.heard_of = self.attempt, False, frozenset()
        self.attempt += 1
        self.execution = ATTEMPT.start()
        return None

    # --- a checkpoint

    @action
    def begin(self) -> object:
        if self.stage != "running" or self.checkpoint or self.begun == self.checkpoints:
            return False
        if self.troubled or self.giving_up:
            return False
        self.begun += 1
        self.checkpoint = "open"
        return None

    @action(over=NAMES)
    def prepare(self, name: str) -> object:
        """The server closes; at the tools nothing is under way between two steps of this world."""
        if self.checkpoint != "open" or self._server(name).phase is not Phase.IDLE:
            return False
        if name == "tools" and self.agent.phase is not Phase.PREPARED:
            return False
        self._tell(name, PrepareRequested(self._checkpoint_id, **self._call(name)))
        if name == "tools":
            self._become_ready(name)
        return None

    @action
    def reach_readiness(self) -> object:
        """Nothing moves at the agent any more."""
        if self.agent.phase is not Phase.PREPARING or any(run.moves for run in self.runs):
            return False
        self._become_ready("agent")
        return None

    @action(over=NAMES)
    def commit(self, name: str) -> object:
        """Its part is written: what it has of the execution in scope."""
        if self.checkpoint != "open" or not self._is_next(name, self.written):
            return False
        if self.tools.phase is not Phase.PREPARED:
            return False
        call = self._call(name)
        self._tell(name, CommitRequested(self._checkpoint_id, arguments="scope", **call))
        self._tell(name, ServerPartWritten(self._checkpoint_id, "scope"))
        self.written |= {name}
        if name == "tools":
            self.tools_part = next((each for each in self.kept if self._in_scope(name, each.attempt)), None)
            return None
        for run in self.runs:
            if self._in_scope(name, run.attempt) and run.machine.state.resumable:
                machine, _ = ATTEMPT.step(run.machine, PartWritten())
                self._put_run(evolve(run, machine=machine))
                self.agent_part = run
        return None

    @action
    def publish(self) -> object:
        """Both have proved that they are still committed; the registry decides, and the ledger is in it."""
        if self.checkpoint != "open" or self.written != ALL or self.members != self._incarnations:
            return False
        if any(self._server(name).phase is not Phase.COMMITTED for name in NAMES):
            return False
        pieces = pieces_of(self.agent_part, self.tools_part)
        row = settle(
            received=self.result is not None,
            sent=self.execution.state is AttemptState.RUNNING,
            retained=any(run.ended == "result" for run in self.runs),
            restarted_by="",
            pieces=pieces,
            agreed=agree(pieces, TASK_DIGEST),
        ).disposition
        waits = self.execution.state is AttemptState.RESTORED and any(run.unclaimed for run in self.runs)
        if waits and row is not Disposition.CONTINUE:
            self.fail("I62")
        self.disk = Saved(row, self.attempt, self.agent_part, self.tools_part, self.result, self.trained)
        if self.entry.state is Entry.RECEIVED:
            self.entry, _ = self.LEDGER_ENTRY.step(self.entry, ResultSaved())
        self._end_checkpoint()
        return None

    @action
    def abort(self) -> object:
        if self.checkpoint != "open":
            return False
        self._end_checkpoint()
        return None

    @action
    def resume(self) -> object:
        """Whoever can be reached opens; a server that died does not know the checkpoint."""
        if self.checkpoint != "ending":
            return False
        for name in reversed(NAMES):
            if self._server(name).phase is not Phase.BORN:
                self._tell(name, ResumeRequested(self._checkpoint_id, **self._call(name)))
        self.checkpoint = ""
        return None

    # --- helpers

    @property
    def _may_dispatch(self) -> bool:
        waits = self.execution.state in (AttemptState.QUEUED, AttemptState.RESTORED)
        return self.stage == "running" and waits and not self.checkpoint and not self.troubled

    def _is_next(self, name: str, done: frozenset[str]) -> bool:
        """The agent comes first: here the order of these calls only takes time (models.checkpoint has them in any)."""
        return name not in done and (name == "agent" or "agent" in done)

    @property
    def _incarnations(self) -> tuple[str, str]:
        return self.agent.incarnation, self.tools.incarnation

    @property
    def _is_retired(self) -> bool:
        return self.heard_of == ALL

    @property
    def _checkpoint_id(self) -> str:
        return own_id("ck", self.epoch, self.begun)

    @property
    def _restore_id(self) -> str:
        return own_id("rs", self.epoch, 1)

    def _call(self, name: str) -> dict[str, Any]:
        """What every control call carries: it is meant for the process that this deployment was started with."""
        return {
            "deadline_ts": DEADLINE_TS,
            "epoch": self.epoch,
            "incarnation": self.members[NAMES.index(name)],
        }

    def _fault(self) -> bool:
        if not self.faults_left:
            return False
        self.faults_left -= 1
        return True

    def _in_scope(self, _name: str, attempt: int) -> bool:
        return attempt == self.attempt and self.result is None

    def _become_ready(self, name: str) -> None:
        for each in self.kept if name == "tools" else ():
            self._step(each, Froze())
        self._tell(name, ReadinessReached(self._checkpoint_id))

    def _end_checkpoint(self) -> None:
        self.checkpoint, self.agent_part, self.tools_part, self.written = "ending", None, None, frozenset()

    def _answer_of(self, run: Run) -> Answer:
        """What the production makes of the reply to this `/run`."""
        if problem := other_process("agent", self.given_to, self.agent.incarnation):
            return Answer(came=Came.NO_RESULT, why=problem)
        receipt = receipt_of(run.attempt, run.turns)
        if run.ended == "result":
            headers = httpx.Headers({RECEIPT_HEADER: receipt.header})
            body = encode({"turns": list(run.turns)})
            return read_run_reply(execution(run.attempt), 200, headers, body, receipt)
        status, code = (409, "stale_attempt") if run.ended == "over" else (502, "participant_lost")
        body = encode({"error": {"code": code, "detail": ""}})
        return read_run_reply(execution(run.attempt), status, httpx.Headers(), body, receipt)

    def _retire_at(self, name: str, attempts: tuple[int, ...], then: str = "") -> None:
        self._tell(name, RetireRequested(self._restore_id, **self._call(name)))
        self._retire(name, attempts)
        self.heard_of |= {name}
        if then and self.heard_of == ALL:
            self.stage, self.heard_of = then, frozenset()
