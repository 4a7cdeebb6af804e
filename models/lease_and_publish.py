"""One checkpoint after the other over an agent and a tools server, with the time that is left of every lease.

A rollout is under way and has one turn behind it. The coordinator is the transaction that runs; its calls lose their
replies and leave late copies; writes, the save and the rename take their time; clocks differ; a process dies and
another answers in its name. What is published must be one moment of all: the parts, and the framework's half.

Time is counted, nothing else than how much of it is left: `left` is the coordinator's until its deadline, a lease ends
when nothing is left of it, never earlier and maybe later. `ahead` says by how much the servers' clocks are ahead of the
coordinator's, so that its deadlines come early to them. docs/reference/protocol.md sections 5, 6 and 11.
"""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import evolve, frozen

from models.server import CLOSED_PHASES, GRACE_S, Server, knock, server, tell
from participants.machines.control import (
    PARTICIPANT,
    CommitRequested,
    Control,
    LeaseExpired,
    PartWritten,
    Phase,
    PrepareRequested,
    ReadinessReached,
    RenewRequested,
    ResumeRequested,
)
from participants.machines.fencing import own_id
from participants.machines.gate import GATE, Arrived, Ended, GateData, GateState, Settled, Stirred
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
from statecore import Refused, Snapshot, Table
from statecore.properties import always, final, recoverable, sometimes
from statecore.world import Late, World, action, durable, ghost, param, rpc, slot, volatile, wire

NAMES = ("agent", "tools")
SLOW_AND_NOT = tuple((name, slow) for name in NAMES for slow in (False, True))


@frozen(cache_hash=True)
class Draft:
    """What a checkpoint holds: the turns of the agent's part and of the tools' part, and what the ledger knew.

    The others are ghost: the turns that had been played when the framework's half was captured, and whether those that
    had committed still stood then where they committed.
    """

    turn: int
    revision: int
    has_result: bool
    played: int
    all_stood: bool


class LeaseWorld(World):
    """One rollout of two turns, the first of them played; two servers, one coordinator."""

    PARTICIPANT: ClassVar[Table[Phase, Control]] = PARTICIPANT
    GATE: ClassVar[Table[GateState, GateData]] = GATE
    TRANSACTION: ClassVar[Table[TransactionState, Transaction]] = TRANSACTION

    timeout = param(3)  # how long a checkpoint may take, up to its publication
    ahead = param(0)
    checkpoints = param(1)
    faults = param(1)  # replies lost, calls delayed or doubled
    deaths = param(1)

    agent: Server = volatile(of="agent", make=lambda world: knock(server("agent-1"), Arrived()))
    turn: int = volatile(1, of="agent")
    stands: bool = volatile(False, of="agent")  # parked at its boundary
    calling: bool = volatile(False, of="agent")  # a tool call is under way
    tools: Server = volatile(of="tools", make=lambda world: server("tools-1"))
    revision: int = volatile(1, of="tools")
    agent_part: int | None = durable(None)
    tools_part: int | None = durable(None)
    late: Late | None = wire(None)
    faults_left: int = slot(make=lambda world: world.faults)
    died: str = slot("")
    result: str = slot("")  # made, then received
    begun: int = slot(0)
    left: int = slot(0)
    tx: Snapshot[TransactionState, Transaction] = slot(TRANSACTION.start())
    heard: frozenset[str] = slot(frozenset())  # who has answered, in this phase
    draft: Draft | None = slot(None)
    renaming: bool = slot(False)
    disk: Draft | None = durable(None)
    played: int = ghost(1)
    disturbed: bool = ghost(False)  # a lease has ended, a server was not reached, or a process died

    # --- time

    @action
    def tick(self) -> object:
        """A unit of time passes, everywhere at once; what is on its way grows older too."""
        if not self.left and not any(self._lease(name) for name in NAMES):
            return False
        self.left = max(0, self.left - 1)
        for name in NAMES:
            lease = self._lease(name)
            if lease:
                where = self._server(name)
                data = evolve(where.control.data, lease_until=lease - 1.0)
                self._put(name, evolve(where, control=evolve(where.control, data=data)))
        if self.late is not None:
            request = self.late.request
            older = evolve(request, deadline_ts=max(-GRACE_S, request.deadline_ts - 1))
            self.late = evolve(self.late, request=older)
        return None

    @action(over=NAMES)
    def expire(self, name: str) -> object:
        """A lease of which nothing is left ends; no fault action, since it is how a server helps itself (I21)."""
        if self._lease(name) != 0:
            return False
        self._send(name, LeaseExpired(self._server(name).open_id or ""))
        self.disturbed = True
        return None

    # --- the rollout

    @action
    def call_tool(self) -> object:
        """The agent goes on behind its boundary, if its server is open, and calls its tool; maybe that is held."""
        if self.calling or self.stands or self.turn == 2 or self.died or not self.agent.is_open:
            return False
        self.tools = knock(self.tools, Arrived(), self.GATE)
        self.calling = True
        return None

    @action
    def end_turn(self) -> object:
        """The call is applied and answered: session and conversation are one further, and the result is made."""
        if not self.calling or self.died:
            return False
        self.tools = knock(self.tools, Ended(), self.GATE)  # refused while it is held
        self.agent = knock(self.agent, Ended(), self.GATE)
        self.calling = False
        self.turn, self.revision, self.played, self.result = 2, 2, 2, "made"
        return None

    @action
    def receive_result(self) -> object:
        """It is in the ledger."""
        if self.result != "made":
            return False
        self.result = "received"
        return None

    @action
    def park(self) -> object:
        """At its boundary the agent stands while its server is closed."""
        if self.agent.is_open or self.calling or self.stands or self.turn == 2 or self.died == "agent":
            return False
        self.agent = knock(self.agent, Settled(), self.GATE)
        self.stands = True
        return None

    @action
    def go_on(self) -> object:
        if not self.stands:
            return False
        self.agent = knock(self.agent, Stirred(), self.GATE)
        self.stands = False
        return None

    # --- the coordinator's calls

    def _ask_prepare(self, name: str) -> object:
        """Agents first, then resources; sent again until the server is prepared."""
        if not self._may_call(TransactionState.PREPARING, name) or (name == "tools" and "agent" not in self.heard):
            return False
        return self._request(PrepareRequested, name)

    def _serve_prepare(self, name: str, request: Any) -> Phase:
        self._send(name, request)
        if self._server(name).phase is Phase.PREPARING and self._server(name).is_quiet:
            self._send(name, ReadinessReached(request.checkpoint_id))
        return self._server(name).phase

    def _hear_prepare(self, name: str, answer: Any) -> object:
        return self._hear(name, answer, Phase.PREPARED)

    prepare = rpc(
        _ask_prepare, _serve_prepare, _hear_prepare, over=NAMES, late="late", budget="faults_left", by="coordinator"
    )

    def _ask_commit(self, which: tuple[str, bool]) -> object:
        """To all at once; sent again while the part is being written, it waits for the same write."""
        if not self._may_call(TransactionState.COMMITTING, which[0]):
            return False
        return self._request(CommitRequested, which[0], arguments="directory and scope")

    def _serve_commit(self, which: tuple[str, bool], request: Any) -> Phase:
        name, slow = which
        self._send(name, request)
        if not slow:
            self._finish(name)
        return self._server(name).phase

    def _hear_commit(self, which: tuple[str, bool], answer: Any) -> object:
        return self._hear(which[0], answer, Phase.COMMITTED)

    commit = rpc(
        _ask_commit, _serve_commit, _hear_commit, over=SLOW_AND_NOT, late="late", budget="faults_left", by="coordinator"
    )

    def _ask_renew(self, name: str) -> object:
        """While the framework saves, and after it: an answer to one that was sent after it is a proof."""
        if self.renaming or not (self._is(TransactionState.SAVING) or self._is(TransactionState.VALIDATING)):
            return False
        return self._request(RenewRequested, name) if self.left else False

    def _serve_renew(self, name: str, request: Any) -> tuple[str, Phase]:
        self._send(name, request)
        return self._shown(name), self._server(name).phase

    def _hear_renew(self, name: str, answer: Any) -> object:
        """A process that is known needs not say its phase; of one that is not, the status is asked as well."""
        if isinstance(answer, Refused):
            return self._hear_refusal(answer)
        process, phase = answer
        proof = ProofGiven(name, process) if process else ProofGiven(name, process, phase.value)
        try:
            before, (self.tx, _) = self.tx, self.TRANSACTION.step(self.tx, proof)
        except Refused:
            return None  # it is too early to prove anything, or it proves nothing; the lease goes on
        return before != self.tx

    renew = rpc(_ask_renew, _serve_renew, _hear_renew, over=NAMES, late="late", budget="faults_left", by="coordinator")

    def _ask_resume(self, name: str) -> object:
        """The end of a checkpoint, and its abort: to every server that was contacted, answered or not."""
        if not self._ending() or name in self.heard:
            return False
        return self._request(ResumeRequested, name)

    def _serve_resume(self, name: str, request: Any) -> Phase:
        self._send(name, request)
        return self._server(name).phase

    def _hear_resume(self, name: str, answer: Any) -> None:
        self.heard |= {name}  # also if it is refused: resume goes on through the failure of one server

    resume = rpc(
        _ask_resume, _serve_resume, _hear_resume, over=NAMES, late="late", budget="faults_left", by="coordinator"
    )

    # --- the coordinator's own steps

    @action
    def begin(self) -> object:
        if self.begun == self.checkpoints or self.tx.state is not TransactionState.IDLE:
            return False
        self.begun += 1
        self.left = self.timeout
        self._decide(CheckpointRequested(own_id("ck", 1, self.begun)))
        self._decide(DispatchFrozen())
        return None

    @action
    def all_have_prepared(self) -> object:
        return self._go_on(TransactionState.PREPARING, AllPrepared())

    @action
    def all_have_committed(self) -> object:
        members = frozenset((name, self._known(name) or "") for name in NAMES)
        return self._go_on(TransactionState.COMMITTING, AllCommitted(members))

    @action
    def settle(self) -> object:
        if not self._is(TransactionState.SETTLING):
            return False
        self._decide(AllSettled())
        return None

    @action
    def capture_half(self) -> object:
        """The framework's half is captured, with the ledger, in one piece."""
        if not self._is(TransactionState.SAVING) or not self._is_in_time():
            return False
        turn, revision = self.agent_part or 0, self.tools_part or 0
        stood = all(self._server(name).control.data.committed is not None for name in NAMES)
        received = self.result == "received"
        self.draft = Draft(turn, revision, has_result=received, played=self.played, all_stood=stood)
        self._decide(HalfSaved())
        return None

    @action
    def begin_rename(self) -> object:
        """The rename is begun when the table would accept it, and in time; how long it takes nobody knows."""
        if not self._is(TransactionState.VALIDATING) or self.renaming or not self._is_in_time():
            return False
        self.TRANSACTION.step(self.tx, DirectoryPublished())  # refused without every proof
        self.renaming = True
        return None

    @action
    def end_rename(self) -> object:
        """It is there: the real commit."""
        if not self.renaming:
            return False
        self.renaming, self.disk = False, self.draft
        self._decide(DirectoryPublished())
        return None

    @action
    def read_claims(self) -> object:
        if not self._is(TransactionState.PUBLISHED):
            return False
        self._decide(ClaimsRead())
        return None

    @action
    def give_up(self) -> object:
        """Its time is over: it is aborted, and the checkpoint before stays in force."""
        if self.left or self.renaming:
            return False
        before = self.tx.state
        self._decide(Failed())
        return before is not self.tx.state

    @action(fault=True)
    def fail_to_save(self) -> object:
        """The disk or the framework fails; so does a rename."""
        saving = self._is(TransactionState.SAVING) or self._is(TransactionState.VALIDATING)
        if not self.faults_left or not saving:
            return False
        self.faults_left -= 1
        self.renaming = False
        self._decide(Failed())
        return None

    @action(fault=True, over=NAMES)
    def leave_to_its_lease(self, name: str) -> object:
        """A server that is not reached by any resume reopens by itself."""
        if not self._ending() or name in self.heard or not self.faults_left:
            return False
        self.faults_left -= 1
        self.heard |= {name}
        self.disturbed = True
        return None

    @action
    def end_checkpoint(self) -> object:
        if not self._ending() or self.heard != frozenset(NAMES):
            return False
        self._decide(ServersResumed() if self._is(TransactionState.RESUMING) else Aborted())
        self.draft, self.agent_part, self.tools_part, self.left = None, None, None, 0
        return None

    # --- the servers' side

    @action(over=NAMES)
    def finish_write(self, name: str) -> object:
        """A part that took its time is written."""
        return self._finish(name)

    @action(fault=True, over=NAMES)
    def die(self, name: str) -> object:
        """A process dies, and another one comes back in its name, with nothing; the rollout is lost."""
        if self.died or not self.deaths:
            return False
        self.wipe(name)
        self._put(name, server(f"{name}-2"))
        self.died, self.disturbed = name, True
        if name == "agent":
            self.turn = 0
        else:
            self.revision = 0
        return None

    # --- helpers

    def _server(self, name: str) -> Server:
        return self.agent if name == "agent" else self.tools

    def _known(self, name: str) -> str | None:
        """The process that the coordinator's calls are meant for; None where that is not said."""
        return f"{name}-1"

    def _shown(self, name: str) -> str:
        """The process that an answer names."""
        return self._server(name).incarnation

    def _put(self, name: str, where: Server) -> None:
        if name == "agent":
            self.agent = where
        else:
            self.tools = where

    def _lease(self, name: str) -> float | None:
        return self._server(name).control.data.lease_until

    def _send(self, name: str, event: Any) -> None:
        after, _ = tell(self._server(name), event, self.PARTICIPANT, self.GATE)
        self._put(name, after)

    def _finish(self, name: str) -> object:
        """The write under way, if there is one, ends: the part is of the position where the server stands."""
        control = self._server(name).control
        if control.state is not Phase.PREPARED or control.data.writing is None:
            return False
        self._send(name, PartWritten(control.data.checkpoint_id or "", control.data.writing))
        if name == "agent":
            self.agent_part = self.turn
        else:
            self.tools_part = self.revision
        return None

    def _is(self, state: TransactionState) -> bool:
        return self.tx.state is state

    def _ending(self) -> bool:
        return self._is(TransactionState.RESUMING) or self._is(TransactionState.ABORTING)

    def _is_in_time(self) -> bool:
        """The coordinator's own clock."""
        return self.left > 0

    def _may_call(self, state: TransactionState, name: str) -> bool:
        return self._is(state) and name not in self.heard and self.left > 0

    def _request(self, kind: Any, name: str, **fields: Any) -> Any:
        """A call as the server gets it: by its clock, deadlines come early by what it is ahead."""
        deadline = float(self.left - self.ahead)
        return kind(self.tx.data.checkpoint_id, deadline_ts=deadline, incarnation=self._known(name), **fields)

    def _hear(self, name: str, answer: Any, wanted: Phase) -> object:
        if isinstance(answer, Refused):
            return self._hear_refusal(answer)
        if answer is wanted:
            self.heard |= {name}
        return None

    def _hear_refusal(self, refusal: Refused) -> object:
        """It is aborted; nothing but time, a lease or a death may be behind that (S33)."""
        if not self.disturbed and refusal.code != "deadline_exceeded":
            self.fail("S33")
        self._decide(Failed(refusal.code))
        return None

    def _go_on(self, state: TransactionState, event: Any) -> object:
        if not self._is(state) or self.heard != frozenset(NAMES):
            return False
        self._decide(event)
        return None

    def _decide(self, event: Any) -> None:
        """The transaction takes the event; every phase of it asks anew who has answered."""
        state = self.tx.state
        self.tx, _ = self.TRANSACTION.step(self.tx, event)
        if self.tx.state is not state:
            self.heard = frozenset()

    # --- what must be true

    @always(covers=("I24", "I35", "S32"))
    def published_is_one_moment(self) -> bool:
        """Both parts are where the rollout stood when the framework's half was captured."""
        return self.disk is None or self.disk.turn == self.disk.revision == self.disk.played

    @always(covers="S32")
    def all_stood_when_it_was_captured(self) -> bool:
        return self.disk is None or self.disk.all_stood

    @always(covers=("I16", "I17"))
    def phase_and_admission_agree(self) -> bool:
        return all(self._server(name).is_open != (self._server(name).phase in CLOSED_PHASES) for name in NAMES)

    @always(covers="I13")
    def an_open_id_is_alone_and_has_not_ended(self) -> bool:
        return all(
            where.open_id is None or where.open_id not in where.control.data.ended for where in (self.agent, self.tools)
        )

    @recoverable(covers=("I20", "I21"), by=("tick", "expire"))
    def accepting_by_itself(self) -> bool:
        return self.agent.is_open and self.tools.is_open

    @recoverable(covers="S3")
    def no_checkpoint_is_under_way(self) -> bool:
        return self._is(TransactionState.IDLE)

    @final
    def used_up(self) -> bool:
        return self.begun == self.checkpoints and self._is(TransactionState.IDLE)

    @sometimes
    def published(self) -> bool:
        return self.disk is not None and self.disk.turn == 1

    @sometimes
    def published_a_completion(self) -> bool:
        return self.disk is not None and self.disk.has_result

    @sometimes(covers="S32")
    def a_rename_outlasts_the_leases(self) -> bool:
        return self.renaming and self.agent.is_open and self.tools.is_open

    @sometimes(covers="S32")
    def a_lease_ended_under_a_running_checkpoint(self) -> bool:
        return self._is(TransactionState.SAVING) and self.agent.phase is Phase.IDLE

    @sometimes(covers="S32")
    def a_process_dies_during_the_rename(self) -> bool:
        return self.renaming and bool(self.died)

    @sometimes
    def a_write_outlasts_its_checkpoint(self) -> bool:
        return self._is(TransactionState.ABORTING) and self.tools.control.data.writing is not None


class NamelessWorld(LeaseWorld):
    """Servers of another make, which show no incarnation: nothing tells a process from its successor but its phase."""

    def _known(self, name: str) -> str | None:
        return None

    def _shown(self, name: str) -> str:
        return ""

    @always(covers=("I24", "I35", "S32"))
    def published_is_one_moment(self) -> bool:
        """What agrees is. One that died before its prepare takes part with nothing, and the rollout starts fresh."""
        agrees = self.disk is not None and self.disk.turn == self.disk.revision > 0
        return self.disk is None or not agrees or self.disk.turn == self.disk.played

    @sometimes
    def a_successor_is_closed_by_a_late_prepare(self) -> bool:
        return self._is(TransactionState.VALIDATING) and self.agent.phase is Phase.PREPARED and self.died == "agent"
