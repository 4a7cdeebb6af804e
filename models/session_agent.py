"""The agent of a session world: it seeds its session, takes turns of one or more tool calls, and has them verified.

A call without an answer is on its way, inside the server, or unanswered, that is taken for dead; then it is sent again
under its operation id. Of several answers any may be the first. docs/reference/protocol.md sections 4, 6 and 7.
"""

from __future__ import annotations

from attrs import evolve

from models.session_parts import Boundary, Call, Reply, Sending, Trail
from models.session_server import SessionServerWorld
from participants.machines.attempt import (
    ATTEMPT,
    AttemptState,
    Completed,
    Dispatched,
    Parked,
    Released,
    may_stand,
)
from participants.records.positions import OtherSession, later
from participants.servers.peers import Heard, heard
from statecore import Refused, Snapshot
from statecore.world import action, param, volatile


class SessionAgentWorld(SessionServerWorld):
    """One execution of a rollout, over one resources server."""

    turns = param(2)
    width = param(1)  # tool calls of a turn, sent at once
    cookies = param(False)

    loop: Snapshot[AttemptState, bool] = volatile(ATTEMPT.start(), of="agent")
    agent_closed: bool = volatile(False, of="agent")
    conversation: tuple[str, ...] = volatile((), of="agent")
    trail: Trail | None = volatile(None, of="agent")
    boundary: Boundary | None = volatile(None, of="agent")
    refusals: int = volatile(0, of="agent")  # sendings of the present call that were refused
    lost: bool = volatile(False, of="agent")
    result: tuple[str, ...] | None = volatile(None, of="agent")

    # --- the agent

    @action
    def dispatch(self) -> object:
        """The execution begins, or goes on where it was restored."""
        if self.agent_closed or self.loop.state not in (AttemptState.QUEUED, AttemptState.RESTORED):
            return False
        self.loop, _ = ATTEMPT.step(self.loop, Dispatched())
        return None

    @action
    def begin_turn(self) -> object:
        """The seed, the tool calls of the next turn, or the verification leave."""
        if self.loop.state is not AttemptState.RUNNING or self.calls or self.lost:
            return False
        if self.agent_closed and self.boundary is not None and self._done < self.turns and self._may_stand:
            return False  # it parks
        if self.refusals and not self.tools.is_open:
            return False  # it waits; how often it asks meanwhile makes no difference
        if self.trail is None:
            names = [("seed", "seed")]
        elif self._done == self.turns:
            names = [("verify", "verify")]
        else:
            names = [("op", f"{self._done + 1}{mark}") for mark in "abc"[: self.width]]
        calls = (Call(what, f"{self.life}.{name}", self.refusals + 1, "out") for what, name in names)
        self.calls = tuple(call for call in calls if call.operation not in self.conversation)
        return None

    @action
    def park(self) -> object:
        """It stands at a boundary, with nothing under way."""
        if not self.agent_closed or self.lost or self.boundary is None or self._done == self.turns:
            return False
        if not self._may_stand:
            return False
        if self.loop.state is not AttemptState.RUNNING:
            return False
        self.loop, _ = ATTEMPT.step(self.loop, Parked())
        return None

    @action(over=(0, 1))
    def hear(self, number: int) -> object:
        """An answer reaches the agent: of several that are on their way any may be the first."""
        if number >= len(self.replies):
            return False
        reply = self.replies[number]
        self.replies = _without(self.replies, number)
        self._take(reply)
        return None

    @action(over=(0, 1))
    def send_again(self, number: int) -> object:
        """A call that was taken for dead is sent again under its operation id."""
        call = self._call(number, "unanswered")
        self._set(number, evolve(call, where="out", tried=call.tried + 1))
        return None

    # --- the server, from outside

    @action(over=(0, 1))
    def arrive(self, number: int) -> object:
        """A sending arrives: it is admitted, held (that is: not yet), refused, or answered at once."""
        call = self._call(number, "out")
        self._set(number, evolve(call, where="inside"))
        return self._arrive(self._sending(call))

    @action(fault=True, over=(0, 1))
    def delay(self, number: int) -> object:
        """It is on its way for so long that it is taken for dead."""
        call = self._call(number, "out")
        self._set(number, evolve(call, where="unanswered"))
        return self._leave(self._sending(call))

    @action(fault=True, over=(0, 1))
    def double(self, number: int) -> object:
        """A copy of it is left on its way."""
        return self._leave(self._sending(self._call(number, "out")))

    @action(fault=True, over=(0, 1))
    def take_for_dead(self, number: int) -> object:
        """It is inside, and slow: its caller does not believe in it any more."""
        call = self._call(number, "inside")
        self._fault()
        self._set(number, evolve(call, where="unanswered"))
        self.replies = tuple(each for each in self.replies if each.operation != call.operation)
        return None

    @action(fault=True, over=(0, 1))
    def lose_reply(self, number: int) -> object:
        """It was done, and the answer does not arrive."""
        if number >= len(self.replies):
            return False
        self._fault()
        lost = self.replies[number]
        self.replies = _without(self.replies, number)
        self.calls = tuple(
            evolve(call, where="unanswered") if call.operation == lost.operation else call for call in self.calls
        )
        return None

    # --- helpers

    @property
    def _done(self) -> int:
        """Completed turns."""
        return len(self.conversation) // self.width

    @property
    def _may_stand(self) -> bool:
        """At its boundary, or refused for good in the turn behind it, by the rule that runs."""
        at = () if self.boundary is None else self.boundary.conversation
        sent = len(self.conversation) - len(at)
        waiting = int(not self.refusals)
        return may_stand(waiting=waiting, refused=1 - waiting, sent=sent, calling=len(self.calls))

    @property
    def _stands(self) -> bool:
        """The agent is closed, and nothing of the rollout moves."""
        return self.agent_closed and self.loop.state is not AttemptState.RUNNING

    def _call(self, number: int, where: str) -> Call:
        if number >= len(self.calls) or self.calls[number].where != where:
            raise Refused("not_here", where, number)
        return self.calls[number]

    def _set(self, number: int, call: Call) -> None:
        self.calls = (*self.calls[:number], call, *self.calls[number + 1 :])

    def _sending(self, call: Call) -> Sending:
        cookie = self.trail.session_id if self.cookies and self.trail is not None else ""
        return Sending(call.what, self.life, self.attempt, call.operation, call.tried, cookie)

    def _take(self, reply: Reply) -> None:
        """What the agent makes of an answer."""
        call = next(call for call in self.calls if call.operation == reply.operation)
        self.calls = tuple(each for each in self.calls if each != call)
        meant = heard(409, reply.code) if reply.code else Heard.REPLY
        self.refusals = max(self.refusals, call.tried) if meant is Heard.CLOSED else self._refusals_after(call)
        if meant in (Heard.LOST, Heard.OVER):
            self._lose()
        if meant is not Heard.REPLY or reply.code:  # a verification that failed is asked for again
            return
        try:
            self._note(reply)
        except OtherSession:
            self._lose()
            return
        if call.what == "verify":
            self.loop, _ = ATTEMPT.step(self.loop, Completed())
            self.result = reply.seen
            return
        if call.what == "op":
            self.conversation = tuple(sorted((*self.conversation, call.operation), key=_turn_of))
            if len(self.conversation) % self.width == 0 and self._done < self.turns:
                assert self.trail is not None
                self.boundary = Boundary(self._done, self.trail, self.conversation)

    def _refusals_after(self, answered: Call) -> int:
        """Sendings are counted until the turn is complete: another call of it may have been refused."""
        is_last = answered.what != "op" or (len(self.conversation) + 1) % self.width == 0
        return 0 if is_last else self.refusals

    def _note(self, reply: Reply) -> None:
        """The position that a reply names, as the agents that run take it."""
        assert reply.position is not None
        known = None if self.trail is None else self.trail.position
        session_id = reply.session_id if self.trail is None else self.trail.session_id
        self.trail = Trail(session_id, later(known, reply.position))

    def _lose(self) -> None:
        """A lost session is no result: the execution ends (I97)."""
        self.lost, self.calls, self.replies = True, (), ()

    def _release(self) -> None:
        self.agent_closed = False
        if self.loop.state in (AttemptState.PARKED, AttemptState.COMMITTED):
            self.loop, _ = ATTEMPT.step(self.loop, Released())


def _turn_of(operation: str) -> str:
    return operation.partition(".")[2]


def _without(replies: tuple[Reply, ...], number: int) -> tuple[Reply, ...]:
    return (*replies[:number], *replies[number + 1 :])
