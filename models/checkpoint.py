"""A checkpoint of one rollout over an agent and a tools server, by the tables that run. Executable specification.

What may go wrong here: leases end at any moment, any reply is lost or late, calls of old checkpoints arrive again, a
checkpoint is given up in any phase, the coordinator dies once. It comes back with fresh servers, a claim of its own
(epoch 2) and nothing but the published checkpoint. Worlds have no clock: a lease may end whenever one is held.

docs/reference/protocol.md sections 4 to 7 and 11; the servers and the rollout are in `models.fleet`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import frozen

from models.fleet import NAMES, FleetWorld
from models.server import DEADLINE_TS, knock, server
from participants.machines.attempt import AttemptState, Dispatched, Restored
from participants.machines.control import (
    CommitRequested,
    PartInstalled,
    Phase,
    PrepareRequested,
    RenewRequested,
    RestoreRequested,
    ResumeRequested,
)
from participants.machines.fencing import own_id
from participants.machines.gate import ArrivedImpatient
from participants.machines.transaction import (
    TRANSACTION,
    Aborted,
    AllCommitted,
    AllPrepared,
    AllSettled,
    CheckpointRequested,
    ClaimsRead,
    DirectoryPublished,
    DispatchFrozen,
    Failed,
    HalfSaved,
    ProofGiven,
    ServersResumed,
    Transaction,
    TransactionState,
)
from statecore import Snapshot, Table
from statecore.properties import always, final, recoverable, sometimes
from statecore.world import action, param, slot

RESTORE_ID = own_id("rs", 2, 1)


@frozen(cache_hash=True)
class Draft:
    """What a directory holds: the rollout's row, the positions of its records, and whether its ledger has the result.

    `one_moment` is ghost: when the framework's half was captured, both servers still stood where they committed.
    """

    row: str
    turn: int
    revision: int
    saved: bool
    one_moment: bool


class CheckpointWorld(FleetWorld):
    """One rollout, one agent, one tools server, one coordinator."""

    TRANSACTION: ClassVar[Table[TransactionState, Transaction]] = TRANSACTION

    checkpoints = param(1)  # how many each coordinator begins

    life: int = slot(1)
    coordinator: str = slot("running")  # or dead, or recovering
    begun: int = slot(0)
    tx: Snapshot[TransactionState, Transaction] = slot(TRANSACTION.start())
    heard: frozenset[str] = slot(frozenset())
    ledger: bool = slot(False)
    row: str = slot("")
    draft: Draft | None = slot(None)
    disk: Draft | None = slot(None)

    # --- the rollout

    @action
    def dispatch(self) -> object:
        """The request leaves and is admitted; while a checkpoint is open none leaves (section 6, step 1)."""
        if self.coordinator != "running" or self.tx.state is not TransactionState.IDLE or self.ledger:
            return False
        if self.attempt.state not in (AttemptState.QUEUED, AttemptState.RESTORED):
            return False
        self.agent = knock(self.agent, ArrivedImpatient(), self.GATE)
        self.attempt, _ = self.ATTEMPT.step(self.attempt, Dispatched())
        return None

    @action
    def receive_result(self) -> object:
        """The coordinator has the result (`/run` is asked again until it has)."""
        if self.coordinator != "running" or self.attempt.state is not AttemptState.COMPLETED or self.ledger:
            return False
        self.ledger = True
        return None

    # --- the coordinator's side

    @action
    def begin(self) -> object:
        """A checkpoint begins: dispatch is frozen."""
        if self.coordinator != "running" or self.begun == self.checkpoints:
            return False
        self.begun += 1
        self._decide(CheckpointRequested(own_id("ck", self.life, self.begun)))
        self._decide(DispatchFrozen())
        return None

    @action(over=NAMES)
    def prepare(self, name: str) -> object:
        """Agents first, then resources: for latency, not for correctness (section 6, step 2)."""
        if not self._is(TransactionState.PREPARING) or name in self.heard:
            return False
        if name == "tools" and "agent" not in self.heard:
            return False
        self._send(name, self._call(PrepareRequested, name))
        return None

    @action(over=NAMES)
    def hear(self, name: str) -> object:
        """The answer of a prepare or commit arrives; what it says may be over by now."""
        if name in self.heard or self._server(name).open_id != self.tx.data.checkpoint_id:
            return False
        control = self._server(name).control.data
        prepared = self._is(TransactionState.PREPARING) and control.prepared is not None
        committed = self._is(TransactionState.COMMITTING) and control.committed is not None
        if not prepared and not committed:
            return False
        self.heard |= {name}
        return None

    @action
    def all_prepared(self) -> object:
        if not self._is(TransactionState.PREPARING) or self.heard != frozenset(NAMES):
            return False
        self._decide(AllPrepared())
        return None

    @action(over=NAMES)
    def commit(self, name: str) -> object:
        """To all at once; a server whose readiness has regressed refuses it."""
        if not self._is(TransactionState.COMMITTING) or name in self.heard or not self._server(name).is_quiet:
            return False
        self._send(name, self._call(CommitRequested, name, arguments=self.tx.data.checkpoint_id))
        return None

    @action
    def settle(self) -> object:
        """The registry decides what becomes of the rollout; one that has finished is awaited (steps 5 and 6)."""
        if not self._is(TransactionState.COMMITTING) or self.heard != frozenset(NAMES):
            return False
        if self.attempt.state is AttemptState.COMPLETED and not self.ledger:
            return False
        self.row = self._classify()
        members = frozenset((name, self._server(name).incarnation) for name in NAMES)
        self._decide(AllCommitted(members))
        self._decide(AllSettled())
        return None

    @action
    def save(self) -> object:
        """The framework's half is captured, the ledger with it (step 9)."""
        if not self._is(TransactionState.SAVING):
            return False
        turn, revision = (part.position or 0 if part else 0 for part in (self.agent_part, self.tools_part))
        standing = all(self._stands(name) for name in NAMES)
        self.draft = Draft(self.row, turn, revision, saved=self.ledger, one_moment=standing)
        self._decide(HalfSaved())
        return None

    @action(over=NAMES)
    def prove(self, name: str) -> object:
        """A renew is answered by a server that is committed with this id (section 5)."""
        if self.coordinator != "running" or not self._stands(name):
            return False
        self._send(name, self._call(RenewRequested, name))
        before = self.tx
        self._decide(ProofGiven(name, self._server(name).incarnation))
        return before != self.tx

    @action
    def publish(self) -> object:
        """One rename: the real commit (step 10)."""
        if self.coordinator != "running" or self.draft is None:
            return False
        self._decide(DirectoryPublished())
        self.disk = self.draft
        self._forget()
        return None

    @action
    def read_claims(self) -> object:
        """Nobody else has claimed: on to acknowledging and resuming (step 11)."""
        if not self._is(TransactionState.PUBLISHED):
            return False
        self._decide(ClaimsRead())
        return None

    @action
    def give_up(self) -> object:
        """A deadline, a refusal, a lost server: the checkpoint is aborted, the one before stays in force."""
        if self.coordinator != "running":
            return False
        before = self.tx.state
        self._decide(Failed())
        self._forget()
        return before is not self.tx.state

    @action(over=NAMES)
    def resume(self, name: str) -> object:
        """The end of a checkpoint, and its abort."""
        if not self._ending() or name in self.heard:
            return False
        self._send(name, self._call(ResumeRequested, name))
        self.heard |= {name}
        return None

    @action(fault=True, over=NAMES)
    def lose_resume(self, name: str) -> object:
        """It is not reached; resume goes on through the failure of one server."""
        if not self._ending() or name in self.heard:
            return False
        self.heard |= {name}
        return None

    @action
    def end_checkpoint(self) -> object:
        if not self._ending() or self.heard != frozenset(NAMES):
            return False
        self._decide(ServersResumed() if self._is(TransactionState.RESUMING) else Aborted())
        return None

    # --- what is late, and what dies

    @action(fault=True, over=NAMES)
    def late_prepare(self, name: str) -> object:
        """The newest prepare of the first life arrives again."""
        return self._late(name, PrepareRequested)

    @action(fault=True, over=NAMES)
    def late_resume(self, name: str) -> object:
        """So does a resume, if one was sent."""
        if self.life == 1 and self.coordinator == "running" and not (self._ending() or self._is(TransactionState.IDLE)):
            return False
        return self._late(name, ResumeRequested)

    @action(fault=True)
    def crash(self) -> object:
        """The coordinator dies, and all that is not on the disk with it. Servers run on and help themselves."""
        if self.life != 1 or self.coordinator != "running":
            return False
        self.coordinator, self.tx, self.ledger = "dead", self.TRANSACTION.start(), False
        self._forget()
        return None

    @action
    def recover(self) -> object:
        """A new coordinator claims epoch 2 and starts fresh servers, born closed (section 11)."""
        if self.coordinator != "dead":
            return False
        self.life, self.coordinator, self.begun = 2, "recovering", 0
        self.agent_gone = self.tools_gone = frozenset()
        self.agent, self.tools = server("agent-2", born_with_epoch=2), server("tools-2", born_with_epoch=2)
        self.attempt, self.turn, self.revision, self.calling = self.ATTEMPT.start(), 0, 0, False
        self.ledger = self.disk is not None and self.disk.saved
        return None

    @action(over=NAMES)
    def restore(self, name: str) -> object:
        """The part is read back and installed under the next attempt; its scope is exactly the continue rows."""
        if self.coordinator != "recovering" or self.disk is None or self._server(name).phase is not Phase.BORN:
            return False
        self._send(name, self._call(RestoreRequested, name, RESTORE_ID))
        self._send(name, PartInstalled(RESTORE_ID, deadline_ts=DEADLINE_TS))
        if self.disk.row == "continue" and name == "tools":
            self.revision = self.disk.revision
        elif self.disk.row == "continue":
            self.attempt, _ = self.ATTEMPT.step(self.attempt, Restored())
            self.turn = self.disk.turn
        return None

    @action(over=NAMES)
    def open_restored(self, name: str) -> object:
        """All are restored, or there is nothing to restore: resume opens them."""
        if self.coordinator != "recovering" or name in self.heard:
            return False
        if self.disk is not None and any(self._server(each).phase is Phase.BORN for each in NAMES):
            return False
        self._send(name, self._call(ResumeRequested, name, RESTORE_ID))
        self.heard |= {name}
        return None

    @action
    def end_recovery(self) -> object:
        if self.coordinator != "recovering" or self.heard != frozenset(NAMES):
            return False
        self.coordinator, self.heard = "running", frozenset()
        return None

    # --- helpers

    def _is(self, state: TransactionState) -> bool:
        return self.coordinator == "running" and self.tx.state is state

    def _ending(self) -> bool:
        return self._is(TransactionState.RESUMING) or self._is(TransactionState.ABORTING)

    def _stands(self, name: str) -> bool:
        """The server is committed with the id of the checkpoint under way."""
        where = self._server(name)
        return where.phase is Phase.COMMITTED and where.open_id == self.tx.data.checkpoint_id

    def _classify(self) -> str:
        """The rollout's row in the registry."""
        if self.ledger:
            return "completed"
        if self.attempt.state is AttemptState.QUEUED:
            return "queued"
        turn = self.agent_part.position if self.agent_part else None
        revision = self.tools_part.position if self.tools_part else None
        return "continue" if turn is not None and turn == revision else "fresh"

    def _call(self, kind: Any, name: str, checkpoint_id: str | None = None, **fields: Any) -> Any:
        return kind(
            self.tx.data.checkpoint_id if checkpoint_id is None else checkpoint_id,
            deadline_ts=DEADLINE_TS,
            epoch=self.life,
            incarnation=self._server(name).incarnation,
            **fields,
        )

    def _late(self, name: str, kind: Any) -> object:
        """The first life's newest call of this kind arrives now, at whoever has that name; False if it is refused."""
        if self.life == 1 and self.begun == 0:
            return False
        late = own_id("ck", 1, max(self.begun, 1) if self.life == 1 else self.checkpoints)
        before = self._server(name)
        self._send(name, kind(late, deadline_ts=DEADLINE_TS, epoch=1, incarnation=f"{name}-1"))
        return before != self._server(name)

    def _decide(self, event: Any) -> None:
        """The transaction takes the event; every step of it asks anew who has answered."""
        state = self.tx.state
        self.tx, _ = self.TRANSACTION.step(self.tx, event)
        if self.tx.state is not state:
            self.heard = frozenset()

    def _forget(self) -> None:
        """The directory under way is gone, or has become the published one."""
        self.heard, self.row, self.draft, self.agent_part, self.tools_part = frozenset(), "", None, None, None

    # --- what must be true

    @always(covers="I65")
    def never_both_completed_and_resumable(self) -> bool:
        return self.disk is None or not (self.disk.row == "continue" and self.disk.saved)

    @always(covers="I35")
    def a_continuation_is_of_one_piece(self) -> bool:
        return self.disk is None or self.disk.row != "continue" or self.disk.turn == self.disk.revision > 0

    @always(covers="S32")
    def published_is_one_moment(self) -> bool:
        return self.disk is None or self.disk.one_moment

    @always(covers="S59")
    def an_open_id_is_of_this_life(self) -> bool:
        ours = {RESTORE_ID, *(own_id("ck", self.life, number) for number in range(1, self.begun + 1))}
        open_ids = [where.open_id for where in (self.agent, self.tools) if where.open_id is not None]
        return self.life == 1 or all(open_id in ours for open_id in open_ids)

    @always(covers="I57")
    def nothing_runs_after_its_result_is_in_the_ledger(self) -> bool:
        return not self.ledger or self.attempt.state is not AttemptState.RUNNING

    @recoverable(covers="I69")
    def finished(self) -> bool:
        return self.ledger

    @final
    def result_is_in_the_ledger(self) -> bool:
        return self.ledger

    @sometimes
    def published(self) -> bool:
        return self.disk is not None

    @sometimes
    def published_a_continuation(self) -> bool:
        return self.disk is not None and self.disk.row == "continue"

    @sometimes
    def published_a_completion(self) -> bool:
        return self.disk is not None and self.disk.row == "completed"

    @sometimes
    def aborted(self) -> bool:
        return self.tx.state is TransactionState.ABORTING

    @sometimes
    def a_lease_ended_under_a_running_checkpoint(self) -> bool:
        return self._is(TransactionState.VALIDATING) and not self._stands("agent")

    @sometimes
    def goes_on_where_it_stood(self) -> bool:
        return self.life == 2 and self.attempt.state is AttemptState.RUNNING and self.turn > 0 and self.begun == 0

