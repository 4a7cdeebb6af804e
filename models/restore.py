"""A deployment that dies and is restored, by the tables and the plan that run. Executable specification.

One rollout over an agent and a tools server, and their coordinator. A server dies alone and somebody brings it back,
empty and closed; the coordinator dies; a restore fails at either server, or its reply is lost; a `/run` comes late; the
coordinator takes a running attempt for lost and tries again; somebody dispatches under a wrong attempt. What a restart
does is planned by `participants.coordination.recovery` from real registry rows, ledger rows and records.

Restarting within a life, asking for status and second attempts are specified and not built; here they are as specified.
docs/reference/protocol.md sections 7, 9 and 11.
"""

from __future__ import annotations

from models.restore_coordinator import ALL, RestoreCoordinatorWorld
from models.restore_fleet import NAMES, born
from models.restore_parts import (
    FIRST_PLAN,
    Kept,
    Plan,
    Run,
    Saved,
    execution,
    fences_of,
    ledger_row,
    marks_of,
    plan_of,
    receipt_of,
)
from models.server import DEADLINE_TS
from participants.coordination.dispatch import other_process
from participants.coordination.recovery import CheckpointRejected
from participants.machines.attempt import (
    ATTEMPT,
    AttemptState,
    Completed,
    Dispatched,
    Restored,
)
from participants.machines.control import (
    PartInstalled,
    Phase,
    RestoreFailed,
    RestoreRequested,
    ResumeRequested,
)
from participants.machines.handoff import Entry, Received
from participants.machines.handoff import Saved as ResultSaved
from participants.machines.resource_session import RESOURCE_SESSION, Installed, SessionData, SessionState
from participants.records.records import Disposition
from statecore import Snapshot
from statecore.properties import always, final, recoverable, sometimes
from statecore.world import action


class RestoreWorld(RestoreCoordinatorWorld):
    """One rollout, one agent, one tools server, one coordinator after the other."""

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
        if self.checkpoint != "open" and not self.giving_up:
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
            self.entry, _ = self.LEDGER_ENTRY.step(self.entry, Received(receipt_of(saved.attempt, self.result).header))
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

    def _may_restore(self, name: str) -> bool:
        waits = self._server(name).phase is Phase.BORN
        return self.stage == "restoring" and self.disk is not None and not self.failed and waits

    def _fenced(self) -> tuple[int, ...]:
        """Which attempts are over before anything is restored."""
        return self.plan.retired

    def _undone(self) -> tuple[int, ...]:
        """Which are over after it."""
        return self.plan.continuations if self.failed else ()

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
