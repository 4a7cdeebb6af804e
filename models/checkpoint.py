"""Checkpoints of one or two rollouts over an agent and a tools server, by the tables that run.

What may go wrong here: leases end at any moment; any call, to a server or of `/run`, is late, lost, doubled, or loses
its answer; a checkpoint is given up in any phase; a process dies, or everything at once with what was not
synced. A coordinator comes back with a claim of its own, fresh servers and nothing but the published checkpoint. What
decides is what decides in production: which executions are cut, what the registry says of each, whether a directory
validates, what a restart does (`models.written`). `faults` and `crashes` bound how often; leases are not bounded.

docs/reference/protocol.md sections 4 to 8 and 11; the servers and the rollouts are in `models.fleet`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from attrs import evolve

from models.fleet import NAMES, FleetWorld, ids
from models.server import DEADLINE_TS, knock, server
from models.twins import without_faults
from models.written import Kept, Known, in_scope, is_valid, known_again, read_back, restarted, settled
from participants.coordination.recovery import CheckpointRejected
from participants.machines.attempt import AttemptState, Dispatched, Restored
from participants.machines.control import (
    CommitRequested,
    PartInstalled,
    Phase,
    PrepareRequested,
    RenewRequested,
    RestoreRequested,
    ResumeRequested,
    is_data_of_other_life,
)
from participants.machines.fencing import own_id
from participants.machines.gate import ArrivedImpatient, Ended, GateState, Left
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
from participants.records.records import Disposition
from statecore import Refused, Snapshot, Table
from statecore.properties import always, final, recoverable, sometimes
from statecore.world import action, crash, durable, ghost, interchangeable, param, rpc, slot, volatile

_T = TransactionState
ABORTABLE = frozenset({_T.PREPARING, _T.COMMITTING, _T.SETTLING, _T.SAVING, _T.VALIDATING})


class CheckpointWorld(FleetWorld):
    """An agent, a tools server, a coordinator, and the disk that they share."""

    TRANSACTION: ClassVar[Table[TransactionState, Transaction]] = TRANSACTION

    checkpoints = param(1)  # how many each coordinator begins
    crashes = param(1)  # how many processes die, or how often all do

    crashes_left: int = slot(make=lambda world: world.crashes)
    coordinator: str = slot("running")  # or dead, recovering, or rejected: the newest checkpoint cannot be used
    begun: int = volatile(0, of="coordinator")
    tx: Snapshot[TransactionState, Transaction] = volatile(TRANSACTION.start(), of="coordinator")
    heard: frozenset[str] = volatile(frozenset(), of="coordinator")
    a_known: Known = volatile(Known(), of="coordinator")
    b_known: Known = volatile(Known(), of="coordinator")
    a_draft: Kept | None = slot(None)  # in a directory under its temporary name
    b_draft: Kept | None = slot(None)
    renamed: bool = slot(False)  # it has its final name; a power failure decides whether it keeps it
    a_disk: Kept | None = durable(None)  # in the newest published checkpoint
    b_disk: Kept | None = durable(None)
    moment: bool = ghost(True)  # both servers stood where they committed when the framework's half was captured
    disk_moment: bool = ghost(True)

    # --- the rollouts

    def _run_call(self, name: str) -> object:
        known = self._known(name)
        if self.coordinator != "running" or known.received or known.lost:
            return False
        if not known.sent:
            if self.tx.state is not _T.IDLE:
                return False  # dispatch is frozen; what is out already is asked again if its connection breaks
            self._note(name, self._registered(known.dispatched))
        return self.life

    def _run_handle(self, name: str, life: int) -> object:
        if is_data_of_other_life(self.agent.control.data, life):
            return "stale"
        if self._loop(name).attempt.state in (AttemptState.QUEUED, AttemptState.RESTORED):
            self.agent = knock(self.agent, ArrivedImpatient(), self.GATE)
        if self._loop(name).attempt.state is AttemptState.COMPLETED:
            return "result"
        self._step(name, Dispatched())
        return "joined"

    def _run_reply(self, name: str, answer: object) -> object:
        known = self._known(name)
        if isinstance(answer, Refused):  # turned away: it never started, and goes again under the same number
            self._note(name, self._registered(known.turned_away))
        elif answer == "result":
            self._note(name, self._registered(known.with_result))
        return None

    run = rpc(
        _run_call, _run_handle, _run_reply, over=ids, late="late", budget="faults_left", by="coordinator"
    )  # fmt: skip

    @action(over=ids)
    def receive_result(self, name: str) -> object:
        """The answer of `/run` comes, whenever it likes."""
        known = self._known(name)
        if self.coordinator != "running" or not known.sent or known.received or known.lost:
            return False
        if self._loop(name).attempt.state is not AttemptState.COMPLETED:
            return False
        self._note(name, self._registered(known.with_result))
        return None

    @action(fault=True, over=ids)
    def run_given_up(self, name: str) -> object:
        """Nobody has answered for long: it is taken for lost, and has no result in this life (I97)."""
        known = self._known(name)
        if not self.crashes_left or self.coordinator != "running" or not known.sent or known.received or known.lost:
            return False
        self.crashes_left -= 1
        self._note(name, self._registered(known.given_up))
        return None

    # --- the coordinator's side

    @action
    def begin(self) -> object:
        """A checkpoint begins: dispatch is frozen."""
        if self.coordinator != "running" or self.begun == self.checkpoints or self.renamed:
            return False
        self.begun += 1
        self._decide(CheckpointRequested(own_id("ck", self.life, self.begun)))
        self._decide(DispatchFrozen())
        return None

    def _prepare_call(self, name: str) -> object:
        """Agents first, then resources: for latency, not for correctness (section 6, step 2)."""
        if not self._is(_T.PREPARING) or name in self.heard or (name == "tools" and "agent" not in self.heard):
            return False
        return self._call(PrepareRequested, name)

    def _commit_call(self, name: str) -> object:
        if not self._is(_T.COMMITTING) or name in self.heard:
            return False
        return self._call(CommitRequested, name, arguments=self.tx.data.checkpoint_id)

    def _commit_handle(self, name: str, request: CommitRequested) -> object:
        """A server whose readiness has regressed refuses."""
        if not self._server(name).is_quiet:
            return False
        self._send(name, request)
        return True

    def _renew_call(self, name: str) -> object:
        if not (self._is(_T.SAVING) or self._is(_T.VALIDATING)) or self.renamed:
            return False
        return self._call(RenewRequested, name)

    def _resume_call(self, name: str) -> object:
        if not self._ending() or name in self.heard:
            return False
        return self._call(ResumeRequested, name)

    def _handle(self, name: str, request: Any) -> None:
        self._send(name, request)

    def _refusal_fails(self, name: str, answer: object) -> object:
        """The answer proper comes with readiness, or when the part is written; a refusal is not asked about again."""
        if isinstance(answer, Refused) or answer is False:
            self._give_up()
        return None

    def _proved(self, name: str, answer: object) -> object:
        if isinstance(answer, Refused):
            self._give_up()
            return None
        before = self.tx
        self._decide(ProofGiven(name, self._incarnation(name)))
        return before != self.tx

    def _resumed(self, name: str, answer: object) -> None:
        """Refused or not: resume goes on through the failure of one server."""
        self.heard |= {name}

    prepare = rpc(_prepare_call, _handle, _refusal_fails, over=NAMES, late="late", budget="faults_left")
    commit = rpc(_commit_call, _commit_handle, _refusal_fails, over=NAMES, late="late", budget="faults_left")
    renew = rpc(_renew_call, _handle, _proved, over=NAMES, late="late", budget="faults_left")
    resume = rpc(_resume_call, _handle, _resumed, over=NAMES, late="late", budget="faults_left")

    @action(over=NAMES)
    def hear(self, name: str) -> object:
        """The answer of a prepare or commit arrives; what it says may be over by now."""
        where = self._server(name)
        if name in self.heard or where.open_id != self.tx.data.checkpoint_id:
            return False
        if where.incarnation != self._incarnation(name):
            return False
        control = where.control.data
        if self._is(_T.PREPARING) and control.prepared is not None:
            self._note_report(name)
        elif not self._is(_T.COMMITTING) or control.committed is None:
            return False
        self.heard |= {name}
        return None

    @action
    def all_prepared(self) -> object:
        """The scope is chosen, and is told with the commit."""
        if not self._is(_T.PREPARING) or self.heard != frozenset(NAMES):
            return False
        self._decide(AllPrepared())
        for name in ids(self):
            self._note(name, evolve(self._known(name), in_scope=in_scope(self._known(name))))
        return None

    @action
    def settle(self) -> object:
        """The parts are read back; whose result is on its way has been waited for, long enough or not (step 5)."""
        if not self._is(_T.COMMITTING) or self.heard != frozenset(NAMES):
            return False
        self._decide(AllCommitted(frozenset((name, self._incarnation(name)) for name in NAMES)))
        self._decide(AllSettled())
        for name in ids(self):
            self._note(name, self._registered(partial(read_back, self._known(name), *self._records(name))))
        return None

    @action
    def save(self) -> object:
        """The framework's half is captured, the ledger with it in one reading, and the registry decides (step 9)."""
        if not self._is(_T.SAVING):
            return False
        for name in ids(self):
            known = self._known(name)
            turn, revision = self._records(name)
            kept = Kept(known.rollout.attempt, self._row(name, known), turn, revision, saved=known.received)
            setattr(self, f"{name}_draft", kept)
        self.moment = all(self._stands(name) for name in NAMES)
        self._decide(HalfSaved())
        return None

    @action
    def rename(self) -> object:
        """Validated and proved, the directory gets its final name: the real commit (step 10)."""
        if self.renamed or self.a_draft is None or not self._is(_T.VALIDATING):
            return False
        self.TRANSACTION.step(self.tx, DirectoryPublished())  # refused without every proof: nothing is renamed
        if not all(self._validates(draft) for draft in (self.a_draft, self.b_draft) if draft is not None):
            self._give_up()
        else:
            self.renamed = True
        return None

    @action
    def sync_root(self) -> object:
        """The name is durable. From now on there is something to acknowledge."""
        if not self.renamed:
            return False
        self._decide(DirectoryPublished())
        self._published()
        return None

    @action(fault=True)
    def sync_root_fails(self) -> object:
        """It is in doubt whether the name is durable: the checkpoint fails, nothing is acknowledged, and yet it is
        there, if no power failure takes it away.
        """
        if not self._spend() or not self.renamed or not self._is(_T.VALIDATING):
            return False
        self._decide(Failed())
        return None

    @action
    def read_claims(self) -> object:
        """Nobody else has claimed: on to acknowledging and resuming (step 11)."""
        if not self._is(_T.PUBLISHED):
            return False
        self._decide(ClaimsRead())
        return None

    @action
    def give_up(self) -> object:
        """A deadline, a lost server: the checkpoint is aborted, the one before stays in force."""
        if self.tx.state not in ABORTABLE or self.renamed:
            return False
        self._give_up()
        return None

    @action(fault=True, over=NAMES)
    def never_resumed(self, name: str) -> object:
        """It is not reached; it reopens by its lease."""
        if not self._spend() or not self._ending() or name in self.heard:
            return False
        self.heard |= {name}
        return None

    @action
    def end_checkpoint(self) -> object:
        if not self._ending() or self.heard != frozenset(NAMES):
            return False
        self._decide(ServersResumed() if self._is(_T.RESUMING) else Aborted())
        for name in ids(self):
            self._note(name, self._registered(self._known(name).released))
        return None

    # --- what dies, and what comes after

    def _ends(self) -> object:
        """What was under its final name is found there; servers run on and help themselves."""
        if self.coordinator not in ("running", "recovering"):
            return False
        self.coordinator = "dead"
        if self.renamed:
            self._published()
        self._clear()
        return None

    coordinator_dies = crash("coordinator", budget="crashes_left", then=_ends)

    @action(fault=True, over=("the name is kept", "the name is lost"))
    def power_fails(self, name: str) -> object:
        """Everything dies, and what was not synced may be gone: the final name, or a part's."""
        if not self.crashes_left or self.coordinator not in ("running", "recovering"):
            return False
        if not self.renamed and name == "the name is lost":
            return False
        self.crashes_left -= 1
        if name == "the name is lost":
            self.renamed = False
        elif self.renamed and self.synced != frozenset(NAMES):
            for each in ids(self):
                setattr(self, f"{each}_draft", evolve(getattr(self, f"{each}_draft"), whole=False))
        self.wipe("coordinator")
        return self._ends()

    @action(fault=True, over=NAMES)
    def server_dies(self, name: str) -> object:
        """Its supervisor starts another process in its place: born closed, of the same epoch, empty."""
        if not self.crashes_left or self.coordinator != "running":
            return False
        self.crashes_left -= 1
        if name == "agent":
            for each in ids(self):
                self._abandon_call(each)
        self.wipe(name)
        setattr(self, name, server(f"{name}-{self.life}-again", born_with_epoch=self.life))
        return None

    @action
    def restart(self) -> object:
        """A server was lost, or a rollout: the job is started again as a whole (section 7)."""
        gone = any(self._server(name).incarnation != self._incarnation(name) for name in NAMES)
        if self.coordinator != "running" or not (gone or any(self._known(name).lost for name in ids(self))):
            return False
        self.wipe("coordinator")
        return self._ends()

    @action
    def recover(self) -> object:
        """A new coordinator claims an epoch and starts fresh servers, born closed (section 11)."""
        if self.coordinator != "dead":
            return False
        self.wipe("agent")
        self.wipe("tools")
        self.life += 1
        self.coordinator, self.gone = "recovering", frozenset()
        self.agent = server(f"agent-{self.life}", born_with_epoch=self.life)
        self.tools = server(f"tools-{self.life}", born_with_epoch=self.life)
        try:
            for name in ids(self):
                self._note(name, self._known_again(self._disk(name)))
        except CheckpointRejected:
            self.coordinator = "rejected"
        return None

    def _restore_call(self, name: str) -> object:
        if self.coordinator != "recovering" or self.a_disk is None or self._server(name).phase is not Phase.BORN:
            return False
        return self._call(RestoreRequested, name, own_id("rs", self.life, 1))

    def _restore_handle(self, name: str, request: RestoreRequested) -> None:
        """The part is read back and installed under the next attempt; its scope is exactly the continue rows."""
        self._send(name, request)
        self._send(name, PartInstalled(request.checkpoint_id, deadline_ts=DEADLINE_TS))
        for each in ids(self):
            kept = self._disk(each)
            if kept is None or not self._continues(kept):
                continue
            if name == "tools":
                setattr(self, f"{each}_session", kept.revision)
            else:
                self._step(each, Restored())
                self._set(each, evolve(self._loop(each), turn=kept.turn or 0))

    def _restored(self, name: str, answer: object) -> None:
        """Its answer is what the next one waits for."""

    restore = rpc(_restore_call, _restore_handle, _restored, over=NAMES, late="late", budget="faults_left")

    def _open_call(self, name: str) -> object:
        """All are restored, or there is nothing to restore: resume opens them."""
        if self.coordinator != "recovering" or name in self.heard:
            return False
        if self.a_disk is not None and any(self._server(each).phase is Phase.BORN for each in NAMES):
            return False
        return self._call(ResumeRequested, name, own_id("rs", self.life, 1))

    open_restored = rpc(_open_call, _handle, _resumed, over=NAMES, late="late", budget="faults_left")

    @action
    def end_recovery(self) -> object:
        if self.coordinator != "recovering" or self.heard != frozenset(NAMES):
            return False
        self.coordinator, self.heard = "running", frozenset()
        return None

    # --- helpers

    def _is(self, state: TransactionState) -> bool:
        """Whether the checkpoint under way is in this state; with the coordinator there is none."""
        return self.tx.state is state

    def _ending(self) -> bool:
        return self._is(_T.RESUMING) or self._is(_T.ABORTING)

    def _stands(self, name: str) -> bool:
        """The server is committed with the id of the checkpoint under way."""
        where = self._server(name)
        return where.phase is Phase.COMMITTED and where.open_id == self.tx.data.checkpoint_id

    def _known(self, name: str) -> Known:
        return self.a_known if name == "a" else self.b_known

    def _note(self, name: str, known: Known) -> None:
        setattr(self, f"{name}_known", known)

    def _disk(self, name: str) -> Kept | None:
        return self.a_disk if name == "a" else self.b_disk

    def _incarnation(self, name: str) -> str:
        """The process that this life's coordinator knows by that name."""
        return f"{name}-{self.life}"

    def _note_report(self, name: str) -> None:
        """A prepare's report says which results the server retains."""
        for each in ids(self) if name == "agent" else ():
            if self._loop(each).attempt.state is AttemptState.COMPLETED:
                self._note(each, evolve(self._known(each), retained=True))

    def _row(self, name: str, known: Known) -> Disposition:
        """What the registry says of a rollout, by the same reading of the ledger that is written beside it."""
        return settled(known, *self._records(name))

    def _validates(self, draft: Kept) -> bool:
        return is_valid(draft)

    def _continues(self, kept: Kept) -> bool:
        """Whether a restore has it in its scope."""
        return restarted(kept).disposition is Disposition.CONTINUE

    def _known_again(self, kept: Kept | None) -> Known:
        """What a new coordinator knows of a rollout; the trainer hands out again what no checkpoint knows."""
        return Known() if kept is None else known_again(kept)

    def _registered(self, change: Callable[[], Known]) -> Known:
        """What is known now. The ledger takes whatever can happen: a refusal would be the end of a run."""
        try:
            return change()
        except Refused:
            self.fail("I11")

    def _call(self, kind: Any, name: str, checkpoint_id: str | None = None, **fields: Any) -> Any:
        return kind(
            self.tx.data.checkpoint_id if checkpoint_id is None else checkpoint_id,
            deadline_ts=DEADLINE_TS,
            epoch=self.life,
            incarnation=self._incarnation(name),
            **fields,
        )

    def _abandon_call(self, name: str) -> None:
        """The agent is gone: a tool call that is there ends for nobody, or was never admitted."""
        if self._loop(name).call != "there":
            return
        if self.tools.gate.state is not GateState.OPEN and self.tools.gate.data.held:
            self.tools = knock(self.tools, Left(), self.GATE)
        else:
            self.tools = knock(self.tools, Ended(), self.GATE)
            self._apply(name, self._loop(name).turn + 1)

    def _decide(self, event: Any) -> None:
        """The transaction takes the event; every step of it asks anew who has answered."""
        state = self.tx.state
        self.tx, _ = self.TRANSACTION.step(self.tx, event)
        if self.tx.state is not state:
            self.heard = frozenset()

    def _give_up(self) -> None:
        self._decide(Failed())
        self._clear()

    def _published(self) -> None:
        """The directory under way is the newest checkpoint."""
        self.a_disk, self.b_disk, self.disk_moment = self.a_draft, self.b_draft, self.moment
        self._clear()

    def _clear(self) -> None:
        """There is no directory under way."""
        self.renamed, self.a_draft, self.b_draft, self.moment = False, None, None, True
        self.a_records, self.b_records = (None, None), (None, None)
        self.written, self.synced = frozenset(), frozenset()
        for name in ids(self):
            self._note(name, evolve(self._known(name), in_scope=False, retained=False, restart=False))

    # --- what must be true

    @always(covers="I65")
    def never_both_completed_and_resumable(self) -> bool:
        kept = [self._disk(name) for name in ids(self)]
        return not any(each and each.saved and each.disposition is Disposition.CONTINUE for each in kept)

    @always(covers=("I41", "I65"))
    def what_is_captured_validates(self) -> bool:
        """Validation finds damage and nothing else: no checkpoint is given up for what its own coordinator wrote."""
        return all(self._validates(each) for each in (self.a_draft, self.b_draft) if each is not None)

    @always(covers="I35")
    def a_continuation_is_of_one_piece(self) -> bool:
        return all(
            each is None or each.disposition is not Disposition.CONTINUE or each.turn == each.revision
            for each in (self._disk(name) for name in ids(self))
        )

    @always(covers="S32")
    def published_is_one_moment(self) -> bool:
        return self.disk_moment

    @always(covers=("S59", "I6"))
    def an_open_id_is_of_this_life(self) -> bool:
        ours = {own_id("rs", self.life, 1), *(own_id("ck", self.life, each + 1) for each in range(self.checkpoints))}
        open_ids = [where.open_id for where in (self.agent, self.tools) if where.open_id is not None]
        return self.coordinator == "dead" or all(open_id in ours for open_id in open_ids)

    @always(covers=("I57", "I65"))
    def nothing_runs_after_its_result_is_in_the_ledger(self) -> bool:
        return all(
            not self._known(name).received or self._loop(name).attempt.state is not AttemptState.RUNNING
            for name in ids(self)
        )

    @always(covers=("I3", "I54"))
    def every_life_has_an_attempt_of_its_own(self) -> bool:
        """N restored is N+1, and so is what starts over; what has a result keeps its number."""
        return all(
            known.received or kept is None or known.rollout.attempt == kept.attempt + 1
            for known, kept in ((self._known(name), self._disk(name)) for name in ids(self))
            if self.coordinator == "recovering"
        )

    @always(covers=("I42", "I44", "I52"))
    def the_newest_checkpoint_can_be_used(self) -> bool:
        return self.coordinator != "rejected"

    @always(covers="I57")
    def turn_and_session_agree(self) -> bool:
        """A call is never applied twice, and none is missing: the session is where the conversation is, or one call
        further while its answer is on its way."""
        return all(
            loop.attempt.state is not AttemptState.PARKED or self._agrees(name, loop.turn)
            for name, loop in ((each, self._loop(each)) for each in ids(self))
        )

    def _agrees(self, name: str, turn: int) -> bool:
        lost = self.tools.incarnation != self._incarnation("tools")
        return lost or self.coordinator != "running" or getattr(self, f"{name}_session") == turn

    @recoverable(covers=("I69", "S33"))
    def finished(self) -> bool:
        return all(self._known(name).received for name in ids(self))

    @final
    def results_are_in_the_ledger(self) -> bool:
        return all(self._known(name).received for name in ids(self))

    @sometimes
    def published_a_continuation(self) -> bool:
        return Disposition.CONTINUE in self._dispositions()

    @sometimes
    def published_a_completion(self) -> bool:
        return Disposition.COMPLETED in self._dispositions()

    @sometimes(covers="S2")
    def published_without_a_result_that_is_retained(self) -> bool:
        return any(
            self._loop(name).attempt.state is AttemptState.COMPLETED and not self._known(name).received
            for name, kept in zip(ids(self), self._dispositions(), strict=True)
            if kept is Disposition.FRESH
        )

    def _dispositions(self) -> list[Disposition | None]:
        """What the newest checkpoint says of each rollout."""
        return [None if kept is None else kept.disposition for kept in map(self._disk, ids(self))]

    @sometimes
    def aborted(self) -> bool:
        return self.tx.state is _T.ABORTING

    @sometimes
    def a_lease_ended_under_a_running_checkpoint(self) -> bool:
        return self._is(_T.VALIDATING) and not self._stands("agent")

    @sometimes
    def goes_on_where_it_stood(self) -> bool:
        return self.life > 1 and self.begun == 0 and any(
            loop.attempt.state is AttemptState.RUNNING and loop.turn > 0 for loop in map(self._loop, ids(self))
        )

    @sometimes(covers="S34")
    def goes_on_though_a_checkpoint_is_in_doubt(self) -> bool:
        return self.renamed and self._is(_T.IDLE)

    @sometimes
    def a_server_was_lost(self) -> bool:
        return self.coordinator == "running" and self.agent.incarnation != self._incarnation("agent")


@without_faults("coordinator_dies", "power_fails", "server_dies")
class TwoRollouts(CheckpointWorld):
    """Two rollouts share the servers. Every call arrives once and is answered: wrong goes what dies, and leases end.

    With calls that go wrong as well there are some ten million states and more.
    """

    rollouts = param(2)
    faults = param(0)

    one_for_the_other = interchangeable(*(
        (name, *(f"{name}_{what}" for what in ("session", "records", "known", "draft", "disk"))) for name in ("a", "b")
    ))  # fmt: skip

    goes_on_though_a_checkpoint_is_in_doubt: Any = None

    @sometimes
    def one_continues_and_one_is_completed(self) -> bool:
        return {*self._dispositions()} == {Disposition.CONTINUE, Disposition.COMPLETED}


class OverOneMoreServer(CheckpointWorld):
    """Every turn uses a third server as well, which cannot export its state: after a restart the rollout starts over.

    Nothing waits for that server (section 2, *restart*). The agent's record is written all the same, as an agent writes
    it that does not know of scopes.
    """

    third: bool = volatile(False, of="third")  # it has state of rollout a

    def _apply(self, name: str, operation: int) -> None:
        CheckpointWorld._apply(self, name, operation)
        self.third = self.third or operation == 1

    def _note_report(self, name: str) -> None:
        CheckpointWorld._note_report(self, name)
        if name == "agent" and self.a.turn > 0:
            self._note("a", evolve(self.a_known, restart=True))

    @action
    def recover(self) -> object:
        if CheckpointWorld.recover.function(self) is False:
            return False
        self.wipe("third")
        return None

    @always(covers="I35")
    def a_conversation_has_all_the_state_that_it_is_about(self) -> bool:
        return self.third or self.a.turn == 0 or self.a.attempt.state is AttemptState.RESTORED

    published_a_continuation: Any = None  # there is none, and
    goes_on_where_it_stood: Any = None

    @sometimes
    def published_with_a_record_that_is_not_continued(self) -> bool:
        kept = self.a_disk
        return kept is not None and kept.disposition is Disposition.FRESH and kept.turn == kept.revision is not None

    @sometimes
    def starts_over(self) -> bool:
        return self.life > 1 and self.a_disk is not None and self.a.turn > 0
