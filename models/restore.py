"""A deployment that dies and is restored, by the tables and the plan that run. Executable specification.

One rollout over an agent and a tools server, and their coordinator. A server dies alone and somebody brings it back,
empty and closed; the coordinator dies; a restore fails at either server, or its reply is lost; a `/run` comes late; the
coordinator takes a running attempt for lost and tries again; somebody dispatches under a wrong attempt. What a restart
does is planned by `participants.coordination.recovery` from real registry rows, ledger rows and records.

Restarting within a life, asking for status and second attempts are specified and not built; here they are as specified.
docs/reference/protocol.md sections 7, 9 and 11.
"""

from __future__ import annotations

from typing import Any, ClassVar

import httpx
from attrs import evolve

from models.restore_fleet import NAMES, RestoreFleetWorld, born
from models.restore_parts import (
    FIRST_PLAN,
    TASK_DIGEST,
    Kept,
    Plan,
    Run,
    Saved,
    Turns,
    execution,
    fences_of,
    ledger_row,
    marks_of,
    pieces_of,
    plan_of,
    receipt_of,
)
from models.server import DEADLINE_TS
from participants.coordination.agreement import agree
from participants.coordination.dispatch import Answer, Came, other_process, read_run_reply
from participants.coordination.recovery import CheckpointRejected, settle
from participants.identity import RECEIPT_HEADER
from participants.machines.attempt import (
    ATTEMPT,
    AttemptState,
    Completed,
    Dispatched,
    PartWritten,
    Restored,
)
from participants.machines.control import (
    CommitRequested,
    PartInstalled,
    Phase,
    PrepareRequested,
    ReadinessReached,
    RestoreFailed,
    RestoreRequested,
    ResumeRequested,
    RetireRequested,
)
from participants.machines.control import PartWritten as ServerPartWritten
from participants.machines.fencing import own_id
from participants.machines.handoff import LEDGER_ENTRY, AcceptResult, Entry, Received
from participants.machines.handoff import Saved as ResultSaved
from participants.machines.resource_session import RESOURCE_SESSION, Froze, Installed, SessionData, SessionState
from participants.records.records import Disposition
from statecore import Refused, Snapshot, Table
from statecore.properties import always, final, recoverable, sometimes
from statecore.wire import encode
from statecore.world import action, durable, param, slot

ALL = frozenset(NAMES)


class RestoreWorld(RestoreFleetWorld):
    """One rollout, one agent, one tools server, one coordinator after the other."""

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
    checkpoint: str = slot("")  # preparing, committing, ending
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
        if not self._may_dispatch or self.execution.state is not AttemptState.RESTORED or not self._fault():
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
        self.checkpoint = "preparing"
        return None

    @action(over=NAMES)
    def prepare(self, name: str) -> object:
        if self.checkpoint != "preparing" or self._server(name).phase is not Phase.IDLE:
            return False
        if name == "tools" and self.agent.phase is not Phase.PREPARED:
            return False
        self._tell(name, PrepareRequested(self._checkpoint_id, **self._call(name)))
        return None

    @action(over=NAMES)
    def reach_readiness(self, name: str) -> object:
        """Nothing moves any more."""
        if self._server(name).phase is not Phase.PREPARING:
            return False
        if name == "agent" and any(run.moves for run in self.runs):
            return False
        for each in self.kept if name == "tools" else ():
            self._step(each, Froze())
        self._tell(name, ReadinessReached(self._checkpoint_id))
        return None

    @action
    def all_prepared(self) -> object:
        if self.checkpoint != "preparing" or any(self._server(name).phase is not Phase.PREPARED for name in NAMES):
            return False
        self.checkpoint = "committing"
        return None

    @action(over=NAMES)
    def commit(self, name: str) -> object:
        """Its part is written: what it has of the execution in scope."""
        if self.checkpoint != "committing" or not self._is_next(name, self.written):
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
        if self.checkpoint != "committing" or self.written != ALL or self.members != self._incarnations:
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
        if self.checkpoint not in ("preparing", "committing"):
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

    # --- what dies, and who notices

    @action(fault=True, over=NAMES)
    def die(self, name: str) -> object:
        """One server dies alone; somebody brings it back, empty, and closed since it was not restored."""
        if self.stage != "running" or not self.deaths_left or self.result is not None:
            return False
        self.deaths_left -= 1
        self._replace(name)
        return None

    @action(fault=True)
    def die_in_call(self) -> object:
        """The tools server dies while an execution calls it."""
        if self.stage != "running" or not self.deaths_left or not any(run.moves for run in self.runs):
            return False
        self.deaths_left -= 1
        self._replace("tools")
        run = next(run for run in self.runs if run.moves)
        self._end_run(run, self._meaning("participant_lost"))
        return None

    @action
    def ask_status(self) -> object:
        """Every process says who it is, at a fixed period."""
        if self.stage != "running" or self.troubled or self._incarnations == self.members:
            return False
        self.troubled = True
        return None

    @action(over=NAMES)
    def be_refused(self, name: str) -> object:
        """A control call is answered by a process that it was not meant for: a checkpoint and a retire find a death."""
        if self._server(name).incarnation in self.members or self.troubled:
            return False
        if self.checkpoint not in ("preparing", "committing") and not self.giving_up:
            return False
        self.troubled = True
        return None

    @action
    def be_answered_by_another(self) -> object:
        """`/run`, sent or asked for again, is answered by another process; whatever it says is no result."""
        done = self.execution.state is AttemptState.COMPLETED
        if self.stage != "running" or self.troubled or self.checkpoint or self.giving_up or done:
            return False
        self.troubled = bool(other_process("agent", self.members[0], self.agent.incarnation))
        return self.troubled

    @action
    def restart(self) -> object:
        """The deployment starts again under the same coordinator: its ledger is in force."""
        if self.stage != "running" or not self.troubled:
            return False
        self._start(live=True)
        return None

    @action(fault=True)
    def crash(self) -> object:
        """The coordinator dies; its successor has what is published."""
        if not self.crashes_left:
            return False
        self.crashes_left -= 1
        saved = self.disk
        self.result, self.trained = (None, 0) if saved is None else (saved.result, saved.trained)
        self.owed = self.result is not None and not self.trained  # it is delivered again (I87)
        self.entry = self.LEDGER_ENTRY.start()
        if self.result is not None and saved is not None:
            self.entry, _ = self.LEDGER_ENTRY.step(
                self.entry, Received(receipt_of(saved.attempt, self.result).header)
            )
            self.entry, _ = self.LEDGER_ENTRY.step(self.entry, ResultSaved())
        self._start(live=False)
        return None

    # --- a restore

    @action(over=NAMES)
    def fence(self, name: str) -> object:
        """The attempts that a restore does not fence are retired, before anything is restored."""
        if self.stage != "fencing" or not self._is_next(name, self.heard_of):
            return False
        self._retire_at(name, self._fenced(), "opening" if self.disk is None else "restoring")
        return None

    @action(over=NAMES)
    def restore(self, name: str) -> object:
        """The server has installed its records of the scope under the next attempt."""
        if not self._may_restore(name):
            return False
        self._install(name)
        return None

    @action(fault=True, over=NAMES)
    def fail_to_restore(self, name: str) -> object:
        """It cannot: nothing is installed there."""
        if not self._may_restore(name):
            return False
        if not self._fault():
            return False
        self._tell(name, RestoreRequested(self._restore_id, **self._call(name)))
        self._tell(name, RestoreFailed(self._restore_id))
        self.failed = True
        return None

    @action(fault=True, over=NAMES)
    def lose_restore_reply(self, name: str) -> object:
        """It has, and the coordinator never hears of it."""
        if not self._may_restore(name):
            return False
        if not self._fault():
            return False
        self._install(name)
        self.failed = True
        return None

    @action
    def end_restoring(self) -> object:
        """All have, or one has not."""
        if self.stage != "restoring":
            return False
        if not self.failed and any(self._server(name).phase is Phase.BORN for name in NAMES):
            return False
        self.stage = "undoing" if self._undone() else "opening"
        return None

    @action(over=NAMES)
    def undo(self, name: str) -> object:
        """After a failure what is restored anywhere is retired everywhere."""
        if self.stage != "undoing" or not self._is_next(name, self.heard_of):
            return False
        self._retire_at(name, self._undone(), "opening")
        return None

    @action(over=NAMES)
    def open(self, name: str) -> object:
        """The server is open; with the last one the rollout waits to be dispatched."""
        if self.stage != "opening" or name in self.heard_of:
            return False
        if name == "agent" and "tools" not in self.heard_of:  # what is called opens before who calls it
            return False
        self._tell(name, ResumeRequested(self._restore_id, **self._call(name)))
        self.heard_of |= {name}
        if self.heard_of == ALL:
            self._go_on()
        return None

    # --- helpers

    @property
    def _may_dispatch(self) -> bool:
        waits = self.execution.state in (AttemptState.QUEUED, AttemptState.RESTORED)
        return self.stage == "running" and waits and not self.checkpoint and not self.troubled

    def _is_next(self, name: str, done: frozenset[str]) -> bool:
        """The agent comes first: here the order of these calls only takes time (models.checkpoint has them in any)."""
        return name not in done and (name == "agent" or "agent" in done)

    def _may_restore(self, name: str) -> bool:
        waits = self._server(name).phase is Phase.BORN
        return self.stage == "restoring" and self.disk is not None and not self.failed and waits

    @property
    def _incarnations(self) -> tuple[str, str]:
        return self.agent.incarnation, self.tools.incarnation

    @property
    def _is_retired(self) -> bool:
        return self.heard_of == ALL

    def _fenced(self) -> tuple[int, ...]:
        """Which attempts are over before anything is restored."""
        return self.plan.retired

    def _undone(self) -> tuple[int, ...]:
        """Which are over after it."""
        return self.plan.continuations if self.failed else ()

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

    def _replace(self, name: str) -> None:
        """Another process of the same name, in the same epoch."""
        self.wipe(name)
        fresh = born(f"{name}-{self.epoch}'", self.epoch)
        if name == "agent":
            self.agent = fresh
        else:
            self.tools = fresh

    def _start(self, *, live: bool) -> None:
        """Fresh servers under a claim of their own, and a plan of what becomes of the rollout."""
        for name in NAMES:
            self.wipe(name)
        try:
            self.plan = self._plan(live=live)
            self.stage = "fencing" if self._fenced() else "opening" if self.disk is None else "restoring"
        except CheckpointRejected:
            self.stage = "rejected"  # nobody guesses
        self.epoch += 1
        self.agent, self.tools = born(f"agent-{self.epoch}", self.epoch), born(f"tools-{self.epoch}", self.epoch)
        self.members = self._incarnations
        self.failed, self.heard_of = False, frozenset()
        self.troubled, self.giving_up, self.given_to = False, False, ""
        self._end_checkpoint()
        self.checkpoint = ""
        self.over = self.plan.attempt

    def _plan(self, *, live: bool) -> Plan:
        """From the newest checkpoint and the ledger in force; without a checkpoint the rollout starts over."""
        if self.disk is not None:
            return self._plan_from(self.disk, live=live)
        if not live:
            return FIRST_PLAN
        if self.result is not None:
            return Plan(Disposition.COMPLETED, self.attempt, None, False, (self.attempt,), (), None)
        again = self.attempt + 1
        return Plan(Disposition.FRESH, self.attempt, again, False, (self.attempt,), (), again)

    def _plan_from(self, saved: Saved, *, live: bool) -> Plan:
        row = ledger_row(saved.attempt, self.result, saved=self.entry.state is Entry.SAVED)
        return plan_of(saved, row, consumed=self.trained > 0, live=live)

    def _retire_at(self, name: str, attempts: tuple[int, ...], then: str = "") -> None:
        self._tell(name, RetireRequested(self._restore_id, **self._call(name)))
        self._retire(name, attempts)
        self.heard_of |= {name}
        if then and self.heard_of == ALL:
            self.stage, self.heard_of = then, frozenset()

    def _install(self, name: str) -> None:
        """One server's restore, as its shell does it."""
        self._tell(name, RestoreRequested(self._restore_id, **self._call(name)))
        self._tell(name, PartInstalled(self._restore_id, deadline_ts=DEADLINE_TS))
        saved = self.disk
        if saved is None or not self.plan.scope or saved.run is None or saved.session is None:
            return
        fences = fences_of(self.agent_marks if name == "agent" else self.tools_marks)
        fences.accept(execution(saved.attempt).successor)
        if name == "agent":
            machine, _ = ATTEMPT.step(ATTEMPT.start(), Restored())
            self.runs = (Run(saved.attempt + 1, machine, saved.run.turns, saved.run.position),)
            self.agent_marks = marks_of(fences)
        else:
            data = saved.session.machine.data
            assert data.position is not None
            fresh: Snapshot[SessionState, SessionData] = RESOURCE_SESSION.start(SessionData(max_operations=4))
            installed, _ = RESOURCE_SESSION.step(fresh, Installed(data.position, data.operations))
            self.kept = (Kept(saved.attempt + 1, installed, saved.session.turns),)
            self.tools_marks = marks_of(fences)

    def _go_on(self) -> None:
        """The coordinator runs: the rollout is completed, or waits under its next attempt."""
        self.stage, self.heard_of = "running", frozenset()
        following = self.plan.next_if_failed if self.failed else self.plan.next_attempt
        self.execution = ATTEMPT.start()
        if following is None:
            self.attempt = max(self.plan.attempt, 0)
            self.execution, _ = ATTEMPT.step(self.execution, Dispatched())
            self.execution, _ = ATTEMPT.step(self.execution, Completed())
            return
        self.over, self.attempt = max(self.over, following - 1), following
        if self.plan.disposition is Disposition.CONTINUE and not self.failed:
            self.execution, _ = ATTEMPT.step(self.execution, Restored())

    # --- what must be true

    @always(covers="I65")
    def never_both_completed_and_resumable(self) -> bool:
        return self.disk is None or not (self.disk.row is Disposition.CONTINUE and self.disk.result is not None)

    @always(covers=("I97", "S65"))
    def a_result_is_of_all_turns(self) -> bool:
        return self.result is None or len(self.result) == self.turns

    @always(covers="I11")
    def only_the_newest_attempt_moves(self) -> bool:
        """Of a rollout that is being dispatched again nothing older moves."""
        return self.stage != "running" or all(run.attempt == self.attempt for run in self.runs if run.moves)

    @always(covers="I68")
    def trained_on_once(self) -> bool:
        return self.trained <= 1

    @always(covers="I57")
    def nothing_runs_after_its_result_is_in_the_ledger(self) -> bool:
        return self.result is None or not any(run.moves for run in self.runs)

    @always(covers=("I57", "S15"))
    def what_was_restored_does_not_run_again(self) -> bool:
        """While a continuation is in force no execution of the rollout is behind it."""
        if self.plan.disposition is not Disposition.CONTINUE or self.failed or self.disk is None:
            return True
        paid = len(self.disk.run.turns) if self.disk.run is not None else 0
        continued = self.plan.next_attempt
        waits = self.execution.state is AttemptState.RESTORED
        return all(len(run.turns) >= paid for run in self.runs if run.moves and (waits or run.attempt == continued))

    @always(covers="I51")
    def restored_everywhere_or_nowhere(self) -> bool:
        """Once everything is open, a continuation at the agent has its session."""
        if self.stage != "running" or self._incarnations != self.members:
            return True
        return all(any(each.attempt == run.attempt for each in self.kept) for run in self.runs if run.unclaimed)

    @recoverable(covers=("I20", "S25", "S66"))
    def accepting(self) -> bool:
        return self.agent.is_open and self.tools.is_open

    @recoverable(covers="I69")
    def finished(self) -> bool:
        return self.trained == 1 and self.stage == "running"

    @final
    def has_its_result(self) -> bool:
        return self.trained == 1 and self.stage == "running"

    @sometimes
    def published_a_continuation(self) -> bool:
        return self.disk is not None and self.disk.row is Disposition.CONTINUE

    @sometimes
    def published_a_restored_continuation_again(self) -> bool:
        return self.disk is not None and self.disk.run is not None and self.disk.run.unclaimed

    @sometimes
    def a_result_outlives_its_deployment(self) -> bool:
        return self.epoch > 1 and self.plan.disposition is Disposition.COMPLETED and self.stage == "running"

    @sometimes
    def goes_on_where_it_stood(self) -> bool:
        return any(run.moves and run.turns and run.turns[0][0] != str(self.epoch) for run in self.runs)

    @sometimes
    def starts_over_after_a_failed_restore(self) -> bool:
        return self.failed and self.stage == "running" and any(run.moves for run in self.runs)

    @sometimes
    def tried_again_in_one_life(self) -> bool:
        return self.epoch == 1 and self.attempt == 1

    @sometimes
    def found_a_restart_that_nobody_called(self) -> bool:
        return self.troubled and self._incarnations != self.members
