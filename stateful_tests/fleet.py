"""A coordinator that checkpoints three rollouts, publishes, dies and recovers: random, on the pure tables.

The rules of `ControlRules` and `RolloutRules` go on in between, so leases end, calls come late and servers conflict
while it works. A crash takes everything but the published checkpoint; fresh servers are born closed, every attempt is a
new one. docs/reference/protocol.md sections 5 to 7 and 11.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from models.server import Server, server
from participants.identity import EpisodeId
from participants.machines import attempt as tries
from participants.machines import handoff as results
from participants.machines import resource_session as sessions
from participants.machines import transaction as tx
from participants.machines.attempt import AttemptState
from participants.machines.control import (
    CommitRequested,
    PartInstalled,
    PartWritten,
    Phase,
    PrepareRequested,
    ReadinessReached,
    RenewRequested,
    RestoreRequested,
    ResumeRequested,
)
from participants.machines.handoff import Entry, Handoff
from participants.machines.resource_session import SessionState
from participants.machines.transaction import TransactionState
from participants.records.positions import Position
from statecore import Refused
from stateful_tests.control_rules import NAMES, SCOPES, Known
from stateful_tests.rollout_rules import ROLLOUTS, Rollout, RolloutRules

BEFORE_PUBLISHING = (
    TransactionState.PREPARING,
    TransactionState.COMMITTING,
    TransactionState.SETTLING,
    TransactionState.SAVING,
    TransactionState.VALIDATING,
)


@frozen
class Draft:
    """A checkpoint: a row for each rollout, what its records hold, and the results that its ledger has."""

    rows: dict[str, str]
    records: dict[str, tuple[int, int]]  # the agent's: attempt and turn
    positions: dict[str, Position]  # the tools server's
    saved: dict[str, str]


class Fleet(RolloutRules):
    """Checkpoints and crashes over the rollouts of `RolloutRules`."""

    def __init__(self) -> None:
        super().__init__()
        self.tx = self.tables.transaction.start()
        self.parts: dict[str, tuple[str, dict[str, Any]]] = {}
        self.rows: dict[str, str] = {}
        self.draft: Draft | None = None
        self.published: Draft | None = None
        self.one_moment = False

    def on_change(self, name: str, before: Server, after: Server) -> None:
        """Captures a part when it is written."""
        super().on_change(name, before, after)
        if before.phase is Phase.PREPARED and after.phase is Phase.COMMITTED:
            self.parts[name] = (after.open_id or "", self._records(name))

    def _records(self, name: str) -> dict[str, Any]:
        """What the server's part holds: executions that stand at a boundary, sessions where they are."""
        found: dict[str, Any] = {}
        for rollout_id, rollout in self.rollouts.items():
            for each in rollout.executions:
                if self.is_left_out(rollout_id, each):
                    continue
                if name == "agent" and each.at.state.resumable and each.turn:
                    each.at, _ = self.tables.attempt.step(each.at, tries.PartWritten())
                    found[rollout_id] = (each.number, each.turn)
                elif name == "tools" and each.session.state in (SessionState.FROZEN, SessionState.RESTORED):
                    found[rollout_id] = each.session.data.position
        return found

    # --- the coordinator

    def decide(self, event: Any) -> bool:
        """Whether the transaction took the event."""
        try:
            self.tx, _ = self.tables.transaction.step(self.tx, event)
        except Refused:
            return False
        return True

    def stands(self, name: str) -> bool:
        """The server is committed with the checkpoint under way."""
        where = self.servers[name]
        return where.phase is Phase.COMMITTED and where.open_id == self.tx.data.checkpoint_id

    def _in(self, *states: TransactionState) -> bool:
        return self.tx.state in states

    @precondition(lambda self: self._in(TransactionState.IDLE))
    @rule()
    def begin(self) -> None:
        self.parts, self.rows, self.draft = {}, {}, None
        assert self.decide(tx.CheckpointRequested(self.new_id()))
        assert self.decide(tx.DispatchFrozen())

    @precondition(lambda self: self._in(TransactionState.PREPARING))
    @rule()
    def prepare_all(self) -> None:
        """Prepare everywhere; whoever is quiet says so."""
        checkpoint_id = self.tx.data.checkpoint_id
        for name in NAMES:
            self.send(name, self.call(PrepareRequested, name, checkpoint_id))
            where = self.servers[name]
            if where.phase is Phase.PREPARING and where.is_quiet and where.open_id == checkpoint_id:
                self.send(name, ReadinessReached(checkpoint_id, self.new_reply()))
        holding = [self.servers[name].open_id == checkpoint_id for name in NAMES]
        if all(holding) and all(self.servers[name].phase is Phase.PREPARED for name in NAMES):
            assert self.decide(tx.AllPrepared())

    @precondition(lambda self: self._in(TransactionState.PREPARING))
    @rule()
    def go_without_stragglers(self) -> None:
        """Servers that still wait are told not to wait for what moves there (section 12)."""
        moving = [
            EpisodeId(name, each.number).key
            for name, each in self.everything()
            if each.at.state is AttemptState.RUNNING or each.calling == "admitted"
        ]
        for name in NAMES:
            if self.servers[name].phase is Phase.PREPARING:
                self.leave_out(name, frozenset(moving))

    @precondition(lambda self: self._in(TransactionState.COMMITTING))
    @rule()
    def commit_all(self) -> None:
        """Commit everywhere; if all have, the registry decides what becomes of each rollout."""
        checkpoint_id = self.tx.data.checkpoint_id
        for name in NAMES:
            event = self.call(CommitRequested, name, checkpoint_id, arguments=SCOPES[0])
            if self.servers[name].is_quiet and self.send(name, event) is not None and not self.stands(name):
                self.send(name, PartWritten(checkpoint_id, SCOPES[0], self.new_reply()))
        if all(self.stands(name) and self.parts.get(name, ("",))[0] == checkpoint_id for name in NAMES):
            members = frozenset((name, self.servers[name].incarnation) for name in NAMES)
            assert self.decide(tx.AllCommitted(members))

    @precondition(lambda self: self._in(TransactionState.SETTLING))
    @rule()
    def settle(self) -> None:
        """Who has finished is awaited; then each rollout has its row."""
        for name, rollout in self.rollouts.items():
            finished = [each for each in rollout.executions if each.result.state is Handoff.RETAINED]
            if finished:
                self._receive(rollout, finished[-1])
            self.rows[name] = self._row(name, rollout)
        assert self.decide(tx.AllSettled())

    def _row(self, name: str, rollout: Rollout) -> str:
        if rollout.entry.state is not Entry.LIVE:
            return "completed"
        record, position = self.parts["agent"][1].get(name), self.parts["tools"][1].get(name)
        if record is not None and position is not None and record == (rollout.newest.number, position.revision):
            return "continue"
        return "queued" if rollout.newest.at.state is AttemptState.QUEUED else "fresh"

    @precondition(lambda self: self._in(TransactionState.SAVING))
    @rule()
    def save(self) -> None:
        """The framework's half: the ledger is read in one piece."""
        saved = {name: each.entry.data for name, each in self.rollouts.items() if each.entry.state is not Entry.LIVE}
        self.draft = Draft(dict(self.rows), self.parts["agent"][1], self.parts["tools"][1], saved)
        self.one_moment = all(self.stands(name) for name in NAMES)
        assert self.decide(tx.HalfSaved())

    @precondition(lambda self: self._in(TransactionState.SAVING, TransactionState.VALIDATING))
    @rule()
    def prove_all(self) -> None:
        """A renew to each server that still stands; before the half is captured it proves nothing (S32)."""
        for name in NAMES:
            if self.stands(name):
                self.send(name, self.call(RenewRequested, name, self.tx.data.checkpoint_id))
                self.decide(tx.ProofGiven(name, self.servers[name].incarnation))

    @precondition(lambda self: self._in(TransactionState.VALIDATING))
    @rule()
    def publish(self) -> None:
        """One rename: what is published never says of one rollout both that it is done and that it goes on (I65)."""
        if not self.decide(tx.DirectoryPublished()):
            return
        draft = self.draft
        assert draft is not None
        assert self.one_moment, "S32: a server had moved on before the framework's half was captured"
        for name, row in draft.rows.items():
            if row == "continue":
                assert name not in draft.saved, f"I65: {name} is both completed and resumable"
                assert draft.records[name][1] == draft.positions[name].revision, f"I35: {name} is of two pieces"
        self.published = draft
        assert not self.decide(tx.Failed("too late")), "S3: what is published was given up"
        assert self.decide(tx.ClaimsRead())
        for name in draft.saved:
            rollout = self.rollouts[name]
            rollout.entry, _ = self.tables.ledger_entry.step(rollout.entry, results.Saved())
            if self.operations % 2:  # or the acknowledgement is lost, and a later list finds it
                self.acknowledge_from_the_list(name)

    @precondition(lambda self: self.tx.state in BEFORE_PUBLISHING)
    @rule()
    def fail(self) -> None:
        """A deadline passes: what is not published yet is given up, and the checkpoint before stays in force (S3)."""
        assert self.decide(tx.Failed("a deadline"))

    @precondition(lambda self: self._in(TransactionState.RESUMING, TransactionState.ABORTING))
    @rule(lost=st.sampled_from([None, None, None, *NAMES]))
    def resume_all(self, lost: str | None) -> None:
        """The end of a checkpoint, and its abort; one server may not be reached."""
        for name in NAMES:
            if name != lost:
                self.send(name, self.call(ResumeRequested, name, self.tx.data.checkpoint_id))
                holding = self.servers[name].open_id
                assert holding != self.tx.data.checkpoint_id, f"I20: {name} is still closed by its checkpoint"
        resuming = self._in(TransactionState.RESUMING)
        assert self.decide(tx.ServersResumed() if resuming else tx.Aborted())

    @rule(
        steps=st.integers(4, 9),
        lost=st.sampled_from([None, None, None, *NAMES]),
        when=st.integers(0, 8),
        straggler=st.sampled_from([None, None, *ROLLOUTS]),
    )
    def checkpoint(self, steps: int, lost: str | None, when: int, straggler: str | None) -> None:
        """Several steps of a checkpoint in a row, everybody parking as soon as they can, or all but one, and then it
        goes on without that one; one lease may end under it.
        """
        each_step: dict[TransactionState, Callable[[], None]] = {
            TransactionState.IDLE: self.begin,
            TransactionState.PREPARING: self.prepare_all,
            TransactionState.COMMITTING: self.commit_all,
            TransactionState.SETTLING: self.settle,
            TransactionState.SAVING: self.save,
            TransactionState.VALIDATING: self.prove_all,
            TransactionState.RESUMING: lambda: self.resume_all(None),
            TransactionState.ABORTING: lambda: self.resume_all(None),
        }
        for number in range(steps):
            if number == when and lost is not None:
                self.expire(lost)
            if self._in(TransactionState.VALIDATING):
                self.publish()
            if self.tx.state in each_step:
                each_step[self.tx.state]()
            for name in ROLLOUTS:
                if name != straggler:
                    self.end_call(name)
                    self.park(name)
            if straggler is not None and self._in(TransactionState.PREPARING):
                self.go_without_stragglers()

    # --- the end of a life

    @precondition(lambda self: self.published is not None or self.numbered > 2)
    @rule()
    def crash_and_recover(self) -> None:
        """Everything dies; fresh servers are restored from the published checkpoint, every attempt is a new one."""
        self.life += 1
        self.tx, base = self.tables.transaction.start(), self.published
        for name in NAMES:
            self.processes[name] += 1
            self.servers[name] = server(f"{name}-{self.processes[name]}", born_with_epoch=self.life)
            self.known[name] = Known(epoch=self.life)
        for name, rollout in self.rollouts.items():
            self._recover(name, rollout, base)
        restore_id = self.new_id("rs")
        for name in NAMES:
            if base is not None:
                self.send(name, self.call(RestoreRequested, name, restore_id, arguments="x"))
                self.send(name, PartInstalled(restore_id, "x", self.new_reply(), self.now + 60))
        for name in ROLLOUTS:
            self.dispatch(name)  # too early: turned away
        for name in NAMES:
            self.send(name, self.call(ResumeRequested, name, restore_id))
            assert self.servers[name].is_open

    def _recover(self, name: str, rollout: Rollout, base: Draft | None) -> None:
        """The rollout as the published checkpoint has it: completed, continued as N+1, or fresh (section 7)."""
        number = rollout.newest.number + 1
        if base is not None and base.rows[name] == "continue":
            number = base.records[name][0] + 1
        each = self.execution(number)
        rollout.entry, rollout.trained, rollout.executions = self.tables.ledger_entry.start(), [], [each]
        rollout.acknowledged = set()
        if base is not None and name in base.saved:
            for event in (results.Received(base.saved[name]), results.Saved()):
                rollout.entry, _ = self.tables.ledger_entry.step(rollout.entry, event)
            rollout.trained = [base.saved[name]]
        elif base is not None and base.rows[name] == "continue":
            each.at, _ = self.tables.attempt.step(each.at, tries.Restored())
            each.session, _ = self.tables.session.step(each.session, sessions.Installed(base.positions[name]))
            each.turn = base.records[name][1]

    # --- what must be true

    @invariant()
    def what_is_written_to_go_on_does_not_complete(self) -> None:
        """I65: while a part says that an attempt goes on, that attempt has no result."""
        agent = self.servers["agent"]
        checkpoint_id, records = self.parts.get("agent", ("", {}))
        if agent.phase is not Phase.COMMITTED or agent.open_id != checkpoint_id:
            return
        for name, (number, _) in records.items():
            for each in self.rollouts[name].executions:
                completed = each.at.state is AttemptState.COMPLETED
                assert not completed or each.number != number, f"I65: {name} completed, and its part says it goes on"

    @invariant()
    def what_is_released_is_saved(self) -> None:
        """I67: only results of rollouts that a published checkpoint holds are released."""
        for name, rollout in self.rollouts.items():
            saved = self.published is not None and name in self.published.saved
            released = any(each.result.state is Handoff.RELEASED for each in rollout.executions)
            assert saved or not released, f"I67: {name}"
