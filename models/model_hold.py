"""An agent with its model calls over checkpoints, by the tables that run. Executable specification.

A turn is a model call and a boundary behind its reply. While the model is closed, new calls are held (or turned away
when it can hold no more) and its replies are held; while the agent is closed it holds what arrives. Every accepted call
is disposed of at the cut. A reply may be lost on its way, or its caller may give up while the generation goes on, and
then the call is sent again: two generations of one conversation. Each says one of two words, so both may say the same.
The deployment dies once; what a restart continues is the newest published checkpoint.

What servers and coordinator decide without I/O is theirs: the parent of a call (`placed`), which conversation a reply
makes (`continuations`), what an answer is to a loop (`heard`), what a cut disposes of (`disposed`), whether a boundary
and a lineage agree (`agree`) and what the registry says of it (`settle`). The coordinator itself is as much of it as
opens, closes and publishes: its machine is in `models.checkpoint`. docs/reference/protocol.md sections 4, 6, 7 and 14.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

from attrs import evolve, frozen

from models.server import DEADLINE_TS, Server, knock, server, tell
from participants.coordination.agreement import Pieces, agree
from participants.coordination.recovery import settle
from participants.identity import EpisodeId
from participants.machines.attempt import ATTEMPT, AttemptState, Completed, Dispatched, Parked, PartWritten, Released
from participants.machines.attempt import Restored as AttemptRestored
from participants.machines.control import (
    PARTICIPANT,
    CommitRequested,
    Control,
    LeaseExpired,
    PartInstalled,
    Phase,
    PrepareRequested,
    ReadinessReached,
    RestoreRequested,
    ResumeRequested,
)
from participants.machines.control import PartWritten as ServerPartWritten
from participants.machines.fencing import own_id
from participants.machines.gate import (
    GATE,
    Arrived,
    ArrivedImpatient,
    Ended,
    GateData,
    GateState,
    Left,
    Settled,
    SettledEnded,
    Stirred,
)
from participants.machines.model_call import (
    MODEL_CALL,
    RESPONSE,
    AdmissionClosed,
    AdmissionOpened,
    CallData,
    CallerLeft,
    CallState,
    ResponseReady,
    ResponseReleased,
    ResponseSent,
    ResponseState,
    disposed,
)
from participants.machines.model_call import Completed as CallCompleted
from participants.machines.model_call import Failed as CallFailed
from participants.records.records import AgentBoundary, AgentRecord, Disposition, ModelRecord, ModelRow
from participants.servers.conversation import CHAT, continuations
from participants.servers.lineage import Entry, Lineage, placed
from participants.servers.peers import Heard, heard
from statecore import Refused, Snapshot, Table
from statecore.properties import always, final, recoverable, sometimes
from statecore.wire import encode
from statecore.world import World, action, param, slot

NAMES = ("model", "agent")
WORDS = ("yes", "no")
TASK = "task"
EPISODE = EpisodeId("r1")
CALLS = range(3)
AWAITED = RESPONSE.start()
RESTORE_ID = own_id("rs", 2, 1)
Words = tuple[str, ...]


@frozen(cache_hash=True)
class Talk:
    """The agent's conversation: what was said in it, and the call whose reply came last."""

    said: Words = ()
    last: str | None = None


@frozen(cache_hash=True)
class Row:
    """A row of the model's ledger; what the call was asked with and what it said is ghost."""

    call: str
    parent: str | None
    length: int
    digests: tuple[str, ...]
    asked: Words
    said: str | None


@frozen(cache_hash=True)
class Call:
    """A model call at the model: `cut` is None while it is held at the door, `caller` False when nobody waits for it.

    `said` is its reply once it is there, None for an error.
    """

    asked: Words
    named: str | None
    caller: bool = True
    parent: str | None = None
    cut: Snapshot[CallState, CallData] | None = None
    response: Snapshot[ResponseState, None] = AWAITED
    said: str | None = None
    over: bool = False

    @property
    def generates(self) -> bool:
        return self.cut is not None and self.response.state is ResponseState.AWAITED


OVER = Call((), None, over=True)


@frozen(cache_hash=True)
class Part:
    """A written part: for which checkpoint, and the agent's boundary (if it has a record) or the model's rows."""

    checkpoint_id: str
    record: bool = False
    boundary: Talk | None = None
    rows: tuple[Row, ...] = ()


@frozen(cache_hash=True)
class Published:
    """What a checkpoint says of the rollout, and the records behind it."""

    row: Disposition
    boundary: Talk | None
    rows: tuple[Row, ...]


def request_of(asked: Words) -> dict[str, Any]:
    """What the agent sends: the task, then `next` behind every reply."""
    messages = [{"role": "user", "content": TASK}]
    for word in asked:
        messages += [{"role": "assistant", "content": word}, {"role": "user", "content": "next"}]
    return {"messages": messages}


@cache
def reply_of(asked: Words, said: str) -> tuple[int, tuple[str, ...]]:
    """Where the conversation stands after that reply: how many items, and their digest."""
    _, conversation = placed(None, None, CHAT, request_of(asked))
    assert conversation is not None
    reply = encode({"choices": [{"message": {"role": "assistant", "content": said}}]})
    return continuations(conversation, CHAT, reply, False)


@cache
def lineage_of(rows: tuple[Row, ...]) -> Lineage:
    """The rows as the model server keeps them; only read."""
    lineage = Lineage()
    for row in rows:
        lineage.add(Entry(ModelRow(model_call_id=row.call, parent_call_id=row.parent), row.length, row.digests))
    return lineage


@cache
def pieces_of(part: Part, rows: tuple[Row, ...]) -> Pieces:
    """The records of both parts."""
    if not part.record:
        return Pieces()
    boundary = None
    if part.boundary is not None:
        boundary = AgentBoundary(
            boundary_index=len(part.boundary.said), previous=None, task_digest=TASK, data_position=None,
            last_model_call_id=part.boundary.last, lineage_head=None, parts=(), items=None, usage=None, cookies={},
            steps_used=len(part.boundary.said), elapsed_s=0.0, state=None,
        ).to_json()  # fmt: skip
    agent = AgentRecord(episode_id=EPISODE, session_key="run", boundary=boundary, episode={})
    written = tuple(ModelRow(model_call_id=row.call, parent_call_id=row.parent).to_json() for row in rows)
    return Pieces(agents=(("agent", agent),), models=(("model", ModelRecord(episode_id=EPISODE, rows=written)),))


class HoldWorld(World):
    """One rollout, one agent, one model."""

    PARTICIPANT: ClassVar[Table[Phase, Control]] = PARTICIPANT
    GATE: ClassVar[Table[GateState, GateData]] = GATE
    ATTEMPT: ClassVar[Table[AttemptState, bool]] = ATTEMPT
    MODEL_CALL: ClassVar[Table[CallState, CallData]] = MODEL_CALL
    RESPONSE: ClassVar[Table[ResponseState, None]] = RESPONSE

    turns = param(2)
    checkpoints = param(1)
    mishaps = param(1)  # replies lost, callers that give up, generations that fail
    crashes = param(1)
    max_held = param(1)
    names_parents = param(False)  # as our own agents do

    model: Server = slot(make=lambda w: server("model-1", max_held=w.max_held))
    agent: Server = slot(server("agent-1"))
    attempt: Snapshot[AttemptState, bool] = slot(ATTEMPT.start())
    loop: str = slot("new")  # calling, waiting, replied, parked or done
    talk: Talk = slot(Talk())
    boundary: Talk | None = slot(None)
    awaited: int | None = slot(None)  # the call whose reply the agent waits for
    arrived: int | None = slot(None)  # whose reply is at the agent, not taken yet
    reply: str | None = slot(None)  # what it says; None for an error
    call_0: Call | None = slot(None)
    call_1: Call | None = slot(None)
    call_2: Call | None = slot(None)
    rows: tuple[Row, ...] = slot(())
    late: tuple[Row, ...] = slot(())  # of calls that ended after they were left out
    model_part: Part | None = slot(None)
    agent_part: Part | None = slot(None)
    coordinator: str = slot("idle")  # open, ending, dead or recovering
    begun: int = slot(0)
    resumed: frozenset[str] = slot(frozenset())
    disk: Published | None = slot(None)
    life: int = slot(1)
    mishaps_left: int = slot(make=lambda w: w.mishaps)
    crashes_left: int = slot(make=lambda w: w.crashes)
    turned_away: bool = slot(False)  # ghost

    # --- the agent's loop

    @action
    def dispatch(self) -> object:
        """Its `/run` is admitted: a new rollout, or the continuation that was restored."""
        if self.loop != "new":
            return False
        self.agent = knock(self.agent, ArrivedImpatient(), self.GATE)
        self.attempt, _ = self.ATTEMPT.step(self.attempt, Dispatched())
        self.loop = "calling"
        return None

    @action
    def call(self) -> object:
        """The next turn's call leaves, or the same one again: its reply was lost, was an error, or took too long."""
        number = next((each for each in CALLS if self._call(each) is None), None)
        again = self.loop == "waiting" and self.awaited is None and self.arrived is None
        if number is None or not (again or self.loop == "calling"):
            return False
        if again:
            self._move()
        self._stand()
        self.loop, held = "waiting", self.model.gate.data.held
        try:
            self.model = knock(self.model, Arrived(), self.GATE)
        except Refused as refused:
            self._hear_refusal(refused.code)
            return None
        self.awaited = number
        self._put(number, Call(self.talk.said, self.talk.last if self.names_parents else None))
        if self.model.gate.data.held == held:
            self._begin(number)
        return None

    @action
    def take_reply(self) -> object:
        """The reply that has arrived enters the conversation, when the agent is open; an error does not."""
        if self.arrived is None:
            return False
        self._move()
        if self.reply is not None:
            if self.agent.phase in (Phase.PREPARED, Phase.COMMITTED):
                self.fail("I24")
            self.talk = Talk((*self.talk.said, self.reply), self._id(self.arrived))
            self.loop = "replied"
        else:
            self._stand()
        self.arrived = self.reply = None
        return None

    @action
    def reach_boundary(self) -> object:
        """The turn is completed: the agent goes on, parks while it is closed, or is done."""
        if self.loop != "replied":
            return False
        if len(self.talk.said) == self.turns:
            self.attempt, _ = self.ATTEMPT.step(self.attempt, Completed())
            self.agent = knock(self.agent, Ended(), self.GATE)
            self.loop = "done"
            return None
        self.boundary = self.talk
        self.loop = "calling"
        if not self.agent.is_open:
            self._stand()
            self.loop = "parked"
        return None

    @action
    def unpark(self) -> object:
        """It goes on when it is open."""
        if self.loop != "parked":
            return False
        self._move()
        self.loop = "calling"
        return None

    @action(fault=True)
    def give_up_waiting(self) -> object:
        """It waits no longer for this reply; a call that was held was never admitted, one that generates runs on."""
        call = None if self.awaited is None else self._call(self.awaited)
        if self.awaited is None or call is None or call.response.state is ResponseState.SENDING:
            return False
        self._spend_mishap()
        if call.cut is None:
            self.model = knock(self.model, Left(), self.GATE)
            self._put(self.awaited, OVER)
        elif call.response.state is ResponseState.HELD:
            self._abandon(self.awaited, call)
        else:
            self._put(self.awaited, evolve(call, caller=False))
        self.awaited = None
        return None

    # --- the model's side

    @action(over=[(number, word) for number in CALLS for word in WORDS])
    def end_generation(self, which: tuple[int, str]) -> object:
        """The generation is over: its row is in the ledger before its response is let out."""
        number, word = which
        call = self._call(number)
        if call is None or not call.generates:
            return False
        self._record(number, word)
        self._answer(number, word)
        return None

    @action(fault=True, over=CALLS)
    def fail_generation(self, number: int) -> object:
        """It failed; so says its row, and an error is let out."""
        call = self._call(number)
        if call is None or not call.generates:
            return False
        self._spend_mishap()
        self._record(number, None)
        self._answer(number, None)
        return None

    @action(over=CALLS)
    def release_response(self, number: int) -> object:
        """What was held leaves when the model is open."""
        call = self._call(number)
        if call is None or call.response.state is not ResponseState.HELD:
            return False
        self.model = knock(self.model, Stirred(), self.GATE)
        response, _ = self.RESPONSE.step(call.response, ResponseReleased())
        self._put(number, evolve(call, response=response))
        return None

    @action(over=CALLS)
    def send_response(self, number: int) -> object:
        """It arrives at the agent."""
        call = self._call(number)
        if call is None or call.over:
            return False
        self._send_off(number, call)
        self.awaited, self.arrived, self.reply = None, number, call.said
        return None

    @action(fault=True, over=CALLS)
    def lose_response(self, number: int) -> object:
        """It is lost on its way."""
        call = self._call(number)
        if call is None or call.over:
            return False
        self._spend_mishap()
        self._send_off(number, call)
        self.awaited = None
        return None

    # --- the servers' side of a checkpoint

    @action(over=NAMES)
    def reach_readiness(self, name: str) -> object:
        """Nothing moves any more; the model's accepted calls are frozen."""
        where = self._server(name)
        if where.phase is not Phase.PREPARING or not where.is_quiet:
            return False
        if name == "model":
            self._step_cuts(AdmissionClosed())
        self._tell(name, ReadinessReached(where.open_id or ""))
        return None

    @action(over=NAMES)
    def write_part(self, name: str) -> object:
        """The part is written: the agent's record of its last boundary, or the model's rows."""
        control = self._server(name).control
        if control.state is not Phase.PREPARED or control.data.writing is None:
            return False
        checkpoint_id = control.data.checkpoint_id or ""
        self._tell(name, ServerPartWritten(checkpoint_id, control.data.writing))
        if name == "model":
            self.model_part = Part(checkpoint_id, rows=self.rows)
        elif self.attempt.state.resumable:
            self.attempt, _ = self.ATTEMPT.step(self.attempt, PartWritten())
            self.agent_part = Part(checkpoint_id, record=True, boundary=self.boundary)
        else:
            self.agent_part = Part(checkpoint_id)
        return None

    @action(over=NAMES)
    def expire(self, name: str) -> object:
        """A lease ends; no fault action, since it is how a server helps itself (I21)."""
        control = self._server(name).control.data
        if control.lease_until is None:
            return False
        self._tell(name, LeaseExpired(control.checkpoint_id or ""))
        return None

    # --- the coordinator's side

    @action
    def begin(self) -> object:
        if self.coordinator != "idle" or self.begun == self.checkpoints:
            return False
        self.coordinator, self.begun = "open", self.begun + 1
        return None

    @action(over=NAMES)
    def prepare(self, name: str) -> object:
        """In any order: the protocol's is for latency, not for correctness (section 6, step 2)."""
        if self.coordinator != "open" or self._server(name).open_id is not None:
            return False
        self._tell(name, self._to(name, PrepareRequested))
        return None

    @action(over=NAMES)
    def commit(self, name: str) -> object:
        """When both are prepared; a server whose readiness has regressed refuses it."""
        if self.coordinator != "open" or not all(self._stands(each, Phase.PREPARED, Phase.COMMITTED) for each in NAMES):
            return False
        where = self._server(name)
        if not where.is_quiet or where.phase is Phase.COMMITTED or where.control.data.writing is not None:
            return False
        self._tell(name, self._to(name, CommitRequested, arguments="all"))
        if name == "model":
            for number in CALLS:
                call = self._call(number)
                if call is not None and call.cut is not None:
                    self._put(number, evolve(call, cut=disposed(call.cut)))
        return None

    @action
    def publish(self) -> object:
        """Both have proved that they stand where they committed (S32); the registry decides what the rollout is."""
        if self.coordinator != "open" or not all(self._stands(each, Phase.COMMITTED) for each in NAMES):
            return False
        assert self.agent_part is not None and self.model_part is not None
        row = self._classify(pieces_of(self.agent_part, self.model_part.rows))
        self.disk = Published(row, self.agent_part.boundary, self.model_part.rows)
        self._end_open()
        return None

    @action
    def give_up(self) -> object:
        """A deadline, a refusal: the checkpoint is aborted, the one before stays in force."""
        if self.coordinator != "open":
            return False
        self._end_open()
        return None

    @action(over=NAMES)
    def resume(self, name: str) -> object:
        """In any order; what is not reached opens by its lease."""
        if self.coordinator != "ending" or name in self.resumed:
            return False
        self._tell(name, self._to(name, ResumeRequested))
        self._note_resumed(name)
        return None

    @action(fault=True)
    def crash(self) -> object:
        """The deployment dies, and everything that is not published with it."""
        if self.crashes_left == 0 or self.coordinator in ("dead", "recovering"):
            return False
        self.crashes_left -= 1
        self.coordinator, self.life, self.resumed = "dead", 2, frozenset()
        self.model = server("model-2", born_with_epoch=2, max_held=self.max_held)
        self.agent = server("agent-2", born_with_epoch=2)
        self.attempt, self.loop, self.talk, self.boundary = self.ATTEMPT.start(), "new", Talk(), None
        self.awaited = self.arrived = self.reply = self.call_0 = self.call_1 = self.call_2 = None
        self.rows = self.late = ()
        self.model_part = self.agent_part = None
        return None

    @action
    def restore(self) -> object:
        """Fresh servers have installed what is published: lineage and boundary under the next attempt."""
        if self.coordinator != "dead":
            return False
        self.coordinator = "recovering"
        if self.disk is not None:
            for name in NAMES:
                self._tell(name, self._to(name, RestoreRequested, RESTORE_ID))
                self._tell(name, PartInstalled(RESTORE_ID, deadline_ts=DEADLINE_TS))
        if self.disk is not None and self.disk.row is Disposition.CONTINUE:
            self.attempt, _ = self.ATTEMPT.step(self.attempt, AttemptRestored())
            self.talk, self.boundary = self.disk.boundary or Talk(), self.disk.boundary
            self.rows = self.disk.rows
        elif self.disk is not None and self.disk.row is Disposition.COMPLETED:
            self.loop = "done"
        return None

    @action(over=NAMES)
    def open_restored(self, name: str) -> object:
        """All are restored, or there is nothing to restore: resume opens them, in any order."""
        if self.coordinator != "recovering" or name in self.resumed:
            return False
        self._tell(name, self._to(name, ResumeRequested, RESTORE_ID))
        self._note_resumed(name)
        return None

    # --- decisions that failing twins take out

    def _move(self) -> None:
        """The agent moves again; refused while it is closed."""
        self.agent = knock(self.agent, Stirred(), self.GATE)
        self.attempt, _ = self.ATTEMPT.step(self.attempt, Released())

    def _place(self, call: Call) -> str | None:
        """The parent of a call that begins."""
        parent, _ = placed(lineage_of(self.rows), call.named, CHAT, request_of(call.asked))
        return parent

    def _hear_refusal(self, code: str) -> None:
        """The model turned the call away: nothing of it is seen, it is asked again (S9)."""
        assert heard(503, code) is Heard.CLOSED
        self.turned_away = True

    def _record(self, number: int, said: str | None) -> None:
        """The call has ended, and its row is in the ledger; of one that was left out, at the opening."""
        call = self._call(number)
        assert call is not None and call.cut is not None
        cut, _ = self.MODEL_CALL.step(call.cut, CallFailed() if said is None else CallCompleted())
        length, digests = (0, ()) if said is None else reply_of(call.asked, said)
        row = Row(self._id(number), call.parent, length, digests, call.asked, said)
        if cut.data.ended_after_cut:
            self.late = (*self.late, row)
        else:
            self.rows = (*self.rows, row)
        self._put(number, evolve(call, cut=cut))

    def _classify(self, pieces: Pieces) -> Disposition:
        """The rollout's row in the registry."""
        settled = settle(
            received=self.attempt.state is AttemptState.COMPLETED,
            sent=self.loop != "new",
            retained=False,
            restarted_by="",
            pieces=pieces,
            agreed=agree(pieces, TASK),
        )
        return settled.disposition

    # --- helpers

    def _server(self, name: str) -> Server:
        return self.model if name == "model" else self.agent

    def _stands(self, name: str, *phases: Phase) -> bool:
        where = self._server(name)
        return where.phase in phases and where.open_id == self._checkpoint_id

    @property
    def _checkpoint_id(self) -> str:
        return own_id("ck", self.life, self.begun)

    def _id(self, number: int) -> str:
        return f"{self.life}.{number}"

    def _call(self, number: int) -> Call | None:
        call: Call | None = getattr(self, f"call_{number}")
        return call

    def _put(self, number: int, call: Call) -> None:
        setattr(self, f"call_{number}", call)

    def _to(self, name: str, kind: Any, checkpoint_id: str | None = None, **fields: Any) -> Any:
        return kind(
            checkpoint_id or self._checkpoint_id,
            deadline_ts=DEADLINE_TS,
            epoch=self.life,
            incarnation=self._server(name).incarnation,
            **fields,
        )

    def _tell(self, name: str, event: Any) -> None:
        """The server takes the event. The model's cuts are over before it opens; then what it held is admitted."""
        before = self._server(name)
        after, _ = tell(before, event, self.PARTICIPANT, self.GATE)
        if name == "agent":
            self.agent = after
            return
        if after.is_open and not before.is_open:
            self._step_cuts(AdmissionOpened())
            self.rows, self.late = self.rows + self.late, ()
        self.model = after
        for number in CALLS:
            call = self._call(number)
            if after.is_open and call is not None and call.cut is None and not call.over:
                self._begin(number)

    def _step_cuts(self, event: object) -> None:
        for number in CALLS:
            call = self._call(number)
            if call is not None and call.cut is not None:
                cut, _ = self.MODEL_CALL.step(call.cut, event)
                self._put(number, evolve(call, cut=cut))

    def _begin(self, number: int) -> None:
        """The call is admitted: it generates, which blocks nothing."""
        call = self._call(number)
        assert call is not None
        self.model = knock(self.model, Settled(), self.GATE)
        self._put(number, evolve(call, parent=self._place(call), cut=self.MODEL_CALL.start()))

    def _answer(self, number: int, said: str | None) -> None:
        """The response is ready: it leaves, is held while the model is closed, or nobody is there to get it."""
        call = self._call(number)
        assert call is not None
        if not call.caller:
            self._abandon(number, call)
            return
        response, _ = self.RESPONSE.step(call.response, ResponseReady(closed=not self.model.is_open))
        if response.state is ResponseState.SENDING:
            self.model = knock(self.model, Stirred(), self.GATE)
        self._put(number, evolve(call, response=response, said=said))

    def _abandon(self, number: int, call: Call) -> None:
        self.RESPONSE.step(call.response, CallerLeft())
        self.model = knock(self.model, SettledEnded(), self.GATE)
        self._put(number, OVER)

    def _send_off(self, number: int, call: Call) -> None:
        self.RESPONSE.step(call.response, ResponseSent())
        self.model = knock(self.model, Ended(), self.GATE)
        self._put(number, OVER)

    def _stand(self) -> None:
        self.agent = knock(self.agent, Settled(), self.GATE)
        self.attempt, _ = self.ATTEMPT.step(self.attempt, Parked())

    def _spend_mishap(self) -> None:
        if self.mishaps_left == 0:
            raise Refused("no_mishaps_left", "", "")
        self.mishaps_left -= 1

    def _end_open(self) -> None:
        self.coordinator, self.model_part, self.agent_part = "ending", None, None

    def _note_resumed(self, name: str) -> None:
        self.resumed |= {name}
        if self.resumed == frozenset(NAMES):
            self.coordinator, self.resumed = "idle", frozenset()

    def _chain(self, rows: tuple[Row, ...], last: str | None) -> Words | None:
        """What was said along the parents of `last`; None when one of them is not there."""
        said: list[str] = []
        known = {row.call: row for row in rows}
        while last is not None:
            row = known.get(last)
            if row is None or row.said is None or len(said) > len(known):
                return None
            said.append(row.said)
            last = row.parent
        return tuple(reversed(said))

    # --- what must be true

    @always(covers="I23")
    def every_call_is_before_or_after_the_closing(self) -> bool:
        """What the gate counts is what is there: held at the door, settled while it waits, moving while it is sent."""
        calls = [call for call in map(self._call, CALLS) if call is not None and not call.over]
        gate = self.model.gate.data
        return (gate.held, gate.active, gate.settled) == (
            sum(call.cut is None for call in calls),
            sum(call.response.state is ResponseState.SENDING for call in calls),
            sum(call.cut is not None and call.response.state is not ResponseState.SENDING for call in calls),
        )

    @always(covers="I25")
    def every_frozen_call_is_disposed_of_once(self) -> bool:
        """In a written part are the rows of exactly the calls that were not left out of it."""
        if self.model.phase is not Phase.COMMITTED:
            return True
        kept = {row.call for row in self.rows}
        for number in CALLS:
            call = self._call(number)
            if call is not None and call.cut is not None:
                durable = call.cut.state in (CallState.COMPLETED_DURABLE, CallState.FAILED_DURABLE)
                left_out = call.cut.state is CallState.EXCLUDED
                if durable is left_out or (self._id(number) in kept) is not durable:
                    return False
        return self.model_part is None or self.model_part.rows == self.rows

    @always(covers="I34")
    def a_written_boundary_has_its_calls(self) -> bool:
        """The lineage that the model wrote for a checkpoint reaches to where the agent's record of it stands."""
        agent, model = self.agent_part, self.model_part
        if agent is None or model is None or agent.boundary is None:
            return True
        return self._chain(model.rows, agent.boundary.last) is not None

    @always(covers=("I99", "S68"))
    def the_parent_is_the_call_that_is_continued(self) -> bool:
        return all(self._chain(self.rows, row.parent) == row.asked for row in self.rows)

    @always(covers=("I59", "S12"))
    def the_chain_is_the_conversation(self) -> bool:
        """What training would see is what the agent goes on with, also behind a restore."""
        return self._chain(self.rows, self.talk.last) == self.talk.said

    @always(covers=("I74", "S9"))
    def only_replies_enter_the_conversation(self) -> bool:
        return set(self.talk.said) <= set(WORDS)

    @always(covers="I57")
    def a_boundary_that_was_cut_is_continued(self) -> bool:
        """No finished turn is paid for again because parts do not fit."""
        return self.disk is None or self.disk.boundary is None or self.disk.row is Disposition.CONTINUE

    @recoverable(covers="I20")
    def the_rollout_ends(self) -> bool:
        return self.loop == "done"

    @final
    def it_is_done(self) -> bool:
        return self.loop == "done"

    # --- what must be possible

    @sometimes
    def a_call_meets_a_closed_model(self) -> bool:
        return self.turned_away or self.model.gate.data.held > 0

    @sometimes
    def the_model_holds_a_reply(self) -> bool:
        return any(call is not None and call.response.state is ResponseState.HELD for call in map(self._call, CALLS))

    @sometimes
    def a_committed_agent_holds_a_reply(self) -> bool:
        return self.agent.phase is Phase.COMMITTED and self.arrived is not None

    @sometimes(covers="I25")
    def a_call_is_left_out_and_ends_afterwards(self) -> bool:
        return self.model.phase is Phase.COMMITTED and len(self.late) > 0

    @sometimes(covers="I25")
    def a_frozen_call_has_failed(self) -> bool:
        return self.model.phase is Phase.COMMITTED and any(
            call is not None and call.cut is not None and call.cut.state is CallState.FAILED_DURABLE
            for call in map(self._call, CALLS)
        )

    @sometimes
    def two_generations_of_one_conversation_say_the_same(self) -> bool:
        return any(a.asked == b.asked and a.said == b.said for a, b in zip(self.rows, self.rows[1:], strict=False))

    @sometimes
    def the_older_generation_ends_last(self) -> bool:
        return any(a.asked == b.asked and a.call > b.call for a, b in zip(self.rows, self.rows[1:], strict=False))

    @sometimes(covers="I59")
    def one_chain_goes_across_a_restore(self) -> bool:
        return any(row.call[0] != row.parent[0] for row in self.rows if row.parent is not None)

    @sometimes
    def a_restored_call_was_generated_before(self) -> bool:
        """Two generations of one conversation, one on either side of a restore."""
        return any(a.asked == b.asked and a.call[0] != b.call[0] for a in self.rows for b in self.rows)
