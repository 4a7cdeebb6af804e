"""An agent with its model calls, without a coordinator: the part of their world that lives in the servers.

A turn is a model call and a boundary behind its reply. While the model is closed, new calls are held (or turned away
when it can hold no more) and its replies are held; while the agent is closed it holds what arrives. A reply may be lost
on its way, or its caller may give up while the generation goes on, and then the call is sent again: two generations of
one conversation. docs/reference/protocol.md sections 4 to 6 and 14.
"""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import evolve

from models.said import OVER, WORDS, Call, Part, Row, Talk, chain, lineage_of, reply_of, request_of
from models.server import Server, knock, server, tell
from participants.machines.attempt import ATTEMPT, AttemptState, Completed, Dispatched, Parked, PartWritten, Released
from participants.machines.control import PARTICIPANT, Control, LeaseExpired, Phase, ReadinessReached
from participants.machines.control import PartWritten as ServerPartWritten
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
    LeftOut,
    ResponseReady,
    ResponseReleased,
    ResponseSent,
    ResponseState,
    is_left_out,
)
from participants.machines.model_call import Completed as CallCompleted
from participants.machines.model_call import Failed as CallFailed
from participants.servers.conversation import CHAT
from participants.servers.lineage import placed
from participants.servers.peers import Heard, heard
from statecore import Refused, Snapshot, Table
from statecore.properties import always, final, recoverable, sometimes
from statecore.world import World, action, durable, ghost, param, slot, volatile

NAMES = ("model", "agent")


def calls_of(world: TalkingWorld) -> range:
    """The numbers of the calls of one life: as many as may be needed."""
    return range(world.turns + world.mishaps)


def ends_of(world: TalkingWorld) -> list[tuple[int, str]]:
    return [(number, word) for number in calls_of(world) for word in WORDS[: world.words]]


class TalkingWorld(World):
    """One rollout, one agent, one model; up to four calls in a life."""

    PARTICIPANT: ClassVar[Table[Phase, Control]] = PARTICIPANT
    GATE: ClassVar[Table[GateState, GateData]] = GATE
    REPLY_GATE: ClassVar[Table[GateState, GateData]] = GATE  # the agent's, to a reply
    RESPONSE_GATE: ClassVar[Table[GateState, GateData]] = GATE  # the model's, to a response
    ATTEMPT: ClassVar[Table[AttemptState, bool]] = ATTEMPT
    MODEL_CALL: ClassVar[Table[CallState, CallData]] = MODEL_CALL
    RESPONSE: ClassVar[Table[ResponseState, None]] = RESPONSE

    turns = param(2)
    mishaps = param(1)  # replies lost, callers that give up, generations that fail
    max_held = param(1)
    names_parents = param(False)  # as our own agents do
    words = param(2)  # how many a generation chooses from

    model: Server = volatile(make=lambda w: server("model-1", max_held=w.max_held), of="deployment")
    call_0: Call | None = volatile(None, of="deployment")
    call_1: Call | None = volatile(None, of="deployment")
    call_2: Call | None = volatile(None, of="deployment")
    call_3: Call | None = volatile(None, of="deployment")
    rows: tuple[Row, ...] = volatile((), of="deployment")
    late: tuple[Row, ...] = volatile((), of="deployment")  # of calls that ended after they were left out
    agent: Server = volatile(server("agent-1"), of="deployment")
    attempt: Snapshot[AttemptState, bool] = volatile(ATTEMPT.start(), of="deployment")
    loop: str = volatile("new", of="deployment")  # calling, waiting, replied, parked or done
    talk: Talk = volatile(Talk(), of="deployment")
    boundary: Talk | None = volatile(None, of="deployment")
    awaited: int | None = volatile(None, of="deployment")  # the call whose reply the agent waits for
    arrived: int | None = volatile(None, of="deployment")  # whose reply is at the agent, not taken yet
    reply: str | None = volatile(None, of="deployment")  # what it says; None for an error
    life: int = durable(1)
    model_part: Part | None = durable(None)  # of the checkpoint under way
    agent_part: Part | None = durable(None)
    mishaps_left: int = slot(make=lambda w: w.mishaps)
    turned_away: bool = ghost(False)
    moved: bool = ghost(False)  # the conversation grew between prepare and resume

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
        number = next((each for each in calls_of(self) if self._call(each) is None), None)
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
        self._move(self.REPLY_GATE)
        if self.reply is not None:
            self.moved = self.moved or self.agent.phase in (Phase.PREPARED, Phase.COMMITTED)
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

    @action(over=ends_of)
    def end_generation(self, which: tuple[int, str]) -> object:
        """The generation is over: its row is in the ledger before its response is let out."""
        number, word = which
        call = self._call(number)
        if call is None or not call.generates:
            return False
        self._record(number, word)
        self._answer(number, word)
        return None

    @action(fault=True, over=calls_of)
    def fail_generation(self, number: int) -> object:
        """It failed; so says its row, and an error is let out."""
        call = self._call(number)
        if call is None or not call.generates:
            return False
        self._spend_mishap()
        self._record(number, None)
        self._answer(number, None)
        return None

    @action(over=calls_of)
    def release_response(self, number: int) -> object:
        """What was held leaves when the model is open."""
        call = self._call(number)
        if call is None or call.response.state is not ResponseState.HELD:
            return False
        self.model = knock(self.model, Stirred(), self.RESPONSE_GATE)
        response, _ = self.RESPONSE.step(call.response, ResponseReleased())
        self._put(number, evolve(call, response=response))
        return None

    @action(over=calls_of)
    def send_response(self, number: int) -> object:
        """It arrives at the agent."""
        call = self._call(number)
        if call is None or call.over:
            return False
        self._send_off(number, call)
        self.awaited, self.arrived, self.reply = None, number, call.said
        return None

    @action(fault=True, over=calls_of)
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

    # --- decisions that failing twins take out

    def _move(self, gate: Table[GateState, GateData] = GATE) -> None:
        """The agent moves again; refused while it is closed."""
        self.agent = knock(self.agent, Stirred(), gate)
        self.attempt, _ = self.ATTEMPT.step(self.attempt, Released())

    def _place(self, call: Call) -> str | None:
        """The parent of a call that begins."""
        parent, _ = placed(lineage_of(self.rows), call.named, CHAT, request_of(call.asked))
        return parent

    def _dispose(self, cut: Snapshot[CallState, CallData]) -> Snapshot[CallState, CallData]:
        """What the cut makes of a call."""
        return MODEL_CALL.step(cut, LeftOut())[0] if is_left_out(cut) else cut

    def _heard(self, code: str) -> Heard:
        """What a refusal of the model is to the agent's loop."""
        return heard(503, code)

    def _record(self, number: int, said: str | None) -> None:
        """The call has ended, and its row is in the ledger; of one that was left out, at the opening."""
        call = self._call(number)
        assert call is not None and call.cut is not None
        cut, _ = self.MODEL_CALL.step(call.cut, CallFailed() if said is None else CallCompleted())
        length, digests = (0, ()) if said is None else reply_of(call.asked, said)
        row = Row(self._id(number), call.parent, length, digests, call.asked, said)
        self._put(number, evolve(call, cut=cut))
        if cut.data.ended_after_cut:
            self.late = (*self.late, row)
        else:
            self._keep(row)

    def _keep(self, row: Row) -> None:
        """The row is in the ledger before anything else happens."""
        self.rows = (*self.rows, row)

    # --- helpers

    def _hear_refusal(self, code: str) -> None:
        """The model turned the call away: nothing of it is seen, and it is asked again; else it is a turn."""
        if self._heard(code) is Heard.CLOSED:
            self.turned_away = True
            return
        self._move()
        self.talk, self.loop = Talk((*self.talk.said, code), self.talk.last), "replied"

    def _server(self, name: str) -> Server:
        return self.model if name == "model" else self.agent

    def _id(self, number: int) -> str:
        return f"{self.life}.{number}"

    def _call(self, number: int) -> Call | None:
        call: Call | None = getattr(self, f"call_{number}")
        return call

    @property
    def _present(self) -> tuple[tuple[int, Call], ...]:
        """The calls that are at the model, by number."""
        calls = [(number, self._call(number)) for number in calls_of(self)]
        return tuple((number, call) for number, call in calls if call is not None and not call.over)

    def _put(self, number: int, call: Call) -> None:
        setattr(self, f"call_{number}", call)

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
        for number, call in self._present:
            if after.is_open and call.cut is None:
                self._begin(number)

    def _step_cuts(self, event: object) -> None:
        for number, call in self._present:
            if call.cut is not None:
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
            self.model = knock(self.model, Stirred(), self.RESPONSE_GATE)
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

    # --- what must be true

    @always(covers="I23")
    def every_call_is_before_or_after_the_closing(self) -> bool:
        """What the gate counts is what is there: held at the door, settled while it waits, moving while it is sent."""
        calls = [call for _, call in self._present]
        gate = self.model.gate.data
        return (gate.held, gate.active, gate.settled) == (
            sum(call.cut is None for call in calls),
            sum(call.response.state is ResponseState.SENDING for call in calls),
            sum(call.cut is not None and call.response.state is not ResponseState.SENDING for call in calls),
        )

    @always(covers="I24")
    def nothing_moves_between_prepare_and_resume(self) -> bool:
        return not self.moved

    @always(covers="I25")
    def every_frozen_call_is_disposed_of_once(self) -> bool:
        """In a written part are the rows of exactly the calls that were not left out of it."""
        if self.model.phase is not Phase.COMMITTED:
            return True
        kept = {row.call for row in self.rows}
        for number, call in self._present:
            if call.cut is not None:
                durable = call.cut.state in (CallState.COMPLETED_DURABLE, CallState.FAILED_DURABLE)
                left_out = call.cut.state is CallState.EXCLUDED
                if durable is left_out or (self._id(number) in kept) is not durable:
                    return False
        return self.model_part is None or self.model_part.rows == self.rows

    @always(covers="I34")
    def a_written_boundary_has_its_calls(self) -> bool:
        """The lineage that the model wrote for a checkpoint reaches to where the agent's record of it stands."""
        agent, model = self.agent_part, self.model_part
        if agent is None or model is None or agent.checkpoint_id != model.checkpoint_id or agent.boundary is None:
            return True
        return chain(model.rows, agent.boundary.last) is not None

    @always(covers=("I99", "S68"))
    def the_parent_is_the_call_that_is_continued(self) -> bool:
        calls = [(row.parent, row.asked) for row in self.rows]
        calls += [(call.parent, call.asked) for _, call in self._present if call.cut is not None]
        return all(chain(self.rows, parent) == asked for parent, asked in calls)

    @always(covers=("I74", "S9"))
    def only_replies_enter_the_conversation(self) -> bool:
        return set(self.talk.said) <= set(WORDS)

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
        return any(call.response.state is ResponseState.HELD for _, call in self._present)

    @sometimes
    def a_committed_agent_holds_a_reply(self) -> bool:
        return self.agent.phase is Phase.COMMITTED and self.arrived is not None

    @sometimes(covers="I25")
    def a_call_is_left_out_and_ends_afterwards(self) -> bool:
        return self.model.phase is Phase.COMMITTED and len(self.late) > 0

    @sometimes(covers="I25")
    def a_frozen_call_has_failed(self) -> bool:
        return self.model.phase is Phase.COMMITTED and any(
            call.cut is not None and call.cut.state is CallState.FAILED_DURABLE for _, call in self._present
        )

    @sometimes
    def two_generations_of_one_conversation_say_the_same(self) -> bool:
        return any(a.asked == b.asked and a.said == b.said for a, b in zip(self.rows, self.rows[1:], strict=False))

    @sometimes
    def the_older_generation_ends_last(self) -> bool:
        return any(a.asked == b.asked and a.call > b.call for a, b in zip(self.rows, self.rows[1:], strict=False))
