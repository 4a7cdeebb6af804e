"""The resources server of a session world: how a request is admitted, gets the session's lock, is applied and answered.

It is the shell of `participants.servers.resources` without HTTP: the gate, the fences, the book of sessions and the
session's own machine are the production's. A request that is held stays with its caller: here that is an action that is
not enabled yet. docs/reference/protocol.md sections 3, 4 and 6.
"""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import evolve

from models.server import GRACE_S, Server, knock, tell
from models.session_parts import Call, Kept, Reply, Sending, book_of, fences_of, marks_of, start_session
from participants.machines.control import PARTICIPANT, LeaseExpired, is_data_of_other_life, new_process
from participants.machines.gate import GATE, Arrived, Ended, GateData
from participants.machines.resource_session import (
    RESOURCE_SESSION,
    Closed,
    Mutated,
    Seeded,
    SessionData,
    SessionState,
    Thawed,
    Used,
    VerifyFailed,
    VerifyStarted,
    VerifySucceeded,
)
from statecore import Refused, Table
from statecore.properties import always
from statecore.world import World, action, param, slot, volatile, wire

NOTHING = (-1, -1)


def tools_process(incarnation: str, epoch: int) -> Server:
    """A process that just started, open: whoever started it is not our launcher, and gave it its epoch."""
    return Server(new_process(incarnation, epoch=epoch, lease_grace_s=GRACE_S), GATE.start(GateData(max_held=2)))


class SessionServerWorld(World):
    """One resources server, with the calls that wait for it and what is on its way to and from it."""

    SESSION: ClassVar[Table[SessionState, SessionData]] = RESOURCE_SESSION

    faults = param(1)  # sendings that are late, doubled or taken for dead, replies lost, verifications failed
    refuses = param(False)
    max_operations = param(4)

    life: int = slot(1)
    attempt: int = slot(0)
    faults_left: int = slot(make=lambda world: world.faults)
    drawn: int = slot(0)  # session identities so far
    calls: tuple[Call, ...] = volatile((), of="agent")

    tools: Server = slot(tools_process("tools-1", 1))
    book: tuple[Kept, ...] = volatile((), of="tools")
    inside: tuple[tuple[Sending, str], ...] = volatile((), of="tools")  # in the order in which they get the lock
    marks: tuple[int, int] = volatile(NOTHING, of="tools")
    refused: frozenset[tuple[str, int]] = volatile(frozenset(), of="tools")  # (operation, highest sending)

    late: Sending | None = wire(None)
    replies: tuple[Reply, ...] = wire(())

    @action
    def arrive_late(self) -> object:
        """The copy arrives, at whoever is there now."""
        sending = self.late
        if sending is None:
            return False
        self.late = None
        return self._arrive(sending)

    @action
    def apply(self) -> object:
        """Who has waited longest for the session's lock gets it; a verification begins."""
        if not self.inside:
            return False
        sending, session_id = self.inside[0]
        if any(each.session_id == session_id and each.machine.state is SessionState.VERIFYING for each in self.book):
            return False  # the lock is held
        try:
            kept = self._use(sending, session_id)
        except Refused as refused:
            self._leave_inside(Reply(sending.operation, refused.code), sending)
            return None
        if sending.what == "verify":
            if kept.verified == sending.operation:
                self._leave_inside(self._answer(kept, sending), sending)
                return None
            self._keep(kept, VerifyStarted())
            return None
        if sending.attempt < self.attempt:
            self.fail("I6")
        before = kept.position
        kept = self._keep(kept, Mutated(sending.operation))
        if kept.position != before:
            kept = self._replace(evolve(kept, state=(*kept.state, sending.operation)))
        self._leave_inside(self._answer(kept, sending), sending)
        return None

    @action
    def verify(self) -> object:
        """A verdict over the state as it is; the session ends with it."""
        sending, kept = self._verifying()
        kept = self._replace(evolve(self._keep(kept, VerifySucceeded()), verified=sending.operation))
        self._leave_inside(self._answer(kept, sending), sending)
        return None

    @action(fault=True)
    def fail_to_verify(self) -> object:
        """The verification breaks: the session is what it was."""
        sending, kept = self._verifying()
        self._fault()
        self._keep(kept, VerifyFailed())
        self._leave_inside(Reply(sending.operation, "verify_failed"), sending)
        return None

    @action
    def expire(self) -> object:
        """The server's lease ends."""
        if self.tools.control.data.lease_until is None:
            return False
        self._tell(LeaseExpired(self.tools.open_id or ""))
        return None

    # --- helpers

    def _arrive(self, sending: Sending) -> object:
        """What the server's shell does with a request; False while it holds it."""
        try:
            if is_data_of_other_life(self.tools.control.data, sending.epoch):
                raise Refused("stale_epoch", self.life, sending)
            fences = fences_of(self.marks)
            fences.check(sending.episode)
            if not self.tools.is_open:
                if not self.refuses or self._is_inside(sending):
                    return False
                self._answer_closed(sending)
                return None
            self._check_final(sending)
            fences.accept(sending.episode)
            self.marks = marks_of(fences)
            self._retire_below(sending)
            if sending.what == "seed":
                kept = self._seed(sending)
                self._reply(self._answer(kept, sending), sending)
                return None
            session_id = self._find(sending).session_id
        except Refused as refused:
            self._reply(Reply(sending.operation, refused.code), sending)
            return None
        self.tools = knock(self.tools, Arrived(), GATE)
        self.inside = (*self.inside, (sending, session_id))
        return None

    def _is_inside(self, sending: Sending) -> bool:
        """A call of which a sending was admitted is never refused: it waits, and then has been applied."""
        return any(other.operation == sending.operation for other, _ in self.inside)

    def _answer_closed(self, sending: Sending) -> None:
        """Applied already: the recorded reply. Anything else is refused, now and for every earlier sending of it."""
        if sending.what == "op":
            kept = self._find(sending)
            if kept.machine.data.applied(sending.operation) is not None:
                self._reply(self._answer(kept, sending), sending)
                return
        self._refuse(sending)

    def _refuse(self, sending: Sending) -> None:
        mine = {each for each in self.refused if each[0] == sending.operation}
        highest = max([sending.tried, *(tried for _, tried in mine)])
        self.refused = (self.refused - mine) | {(sending.operation, highest)}
        self._reply(Reply(sending.operation, "admission_closed"), sending)

    def _check_final(self, sending: Sending) -> None:
        """A sending that was refused, or is older than one that was, is refused for good (S61)."""
        if any(operation == sending.operation and sending.tried <= tried for operation, tried in self.refused):
            raise Refused("admission_closed", "refused", sending)

    def _seed(self, sending: Sending) -> Kept:
        """A session of its own identity, or the one that this very seed has made."""
        known = book_of(self.book).of(sending.episode)
        if known is not None:
            kept = self._kept(known.session_id)
            return self._keep(kept, Seeded("0" * 32, sending.operation))
        session_id, incarnation = self._identity()
        machine, _ = self.SESSION.step(start_session(self.max_operations), Seeded(incarnation, sending.operation))
        kept = Kept(session_id, sending.attempt, machine)
        self.book = (*self.book, kept)
        return kept

    def _identity(self) -> tuple[str, str]:
        """A session id and an incarnation that no other session has."""
        self.drawn += 1
        return f"s{self.drawn}", f"{self.drawn:032x}"

    def _find(self, sending: Sending) -> Kept:
        found = book_of(self.book).find(sending.cookie or None, sending.episode)
        if found is None:
            raise Refused("session_lost", "absent", sending)
        return self._kept(found.session_id)

    def _kept(self, session_id: str) -> Kept:
        for kept in self.book:
            if kept.session_id == session_id:
                return kept
        raise Refused("session_lost", "absent", session_id)

    def _use(self, sending: Sending, session_id: str) -> Kept:
        """It has the lock: it was not retired while it waited for it."""
        fences_of(self.marks).check(sending.episode)
        kept = self._kept(session_id)
        if kept.verified and kept.verified == sending.operation:
            return kept
        return self._keep(kept, Used())

    def _verifying(self) -> tuple[Sending, Kept]:
        if not self.inside:
            raise Refused("nothing_inside", "", "verify")
        sending, session_id = self.inside[0]
        kept = self._kept(session_id)
        if sending.what != "verify" or kept.machine.state is not SessionState.VERIFYING:
            raise Refused("not_verifying", "", "verify")
        return sending, kept

    def _retire_below(self, sending: Sending) -> None:
        book = book_of(self.book)
        for passed in book.below(sending.episode):
            kept = self._kept(passed.session_id)
            self._keep(kept, Closed())
            self.book = tuple(each for each in self.book if each.session_id != passed.session_id)

    def _keep(self, kept: Kept, event: object) -> Kept:
        machine, _ = self.SESSION.step(kept.machine, event)
        return self._replace(evolve(kept, machine=machine))

    def _replace(self, kept: Kept) -> Kept:
        self.book = tuple(kept if each.session_id == kept.session_id else each for each in self.book)
        return kept

    def _answer(self, kept: Kept, sending: Sending) -> Reply:
        seen = kept.state if sending.what == "verify" else ()
        return Reply(sending.operation, "", kept.position, kept.session_id if sending.what == "seed" else "", seen)

    def _leave_inside(self, reply: Reply, sending: Sending) -> None:
        self.inside = self.inside[1:]
        self.tools = knock(self.tools, Ended(), GATE)
        self._reply(reply, sending)

    def _reply(self, reply: Reply, sending: Sending) -> None:
        """It travels back if somebody still waits for this very sending."""
        if sending.copy or sending.epoch != self.life:
            return
        for call in self.calls:
            waits = (call.operation, call.tried, call.where) == (sending.operation, sending.tried, "inside")
            if waits and all(each.operation != reply.operation for each in self.replies):
                self.replies = (*self.replies, reply)

    def _tell(self, event: Any) -> None:
        was_open = self.tools.is_open
        self.tools, _ = tell(self.tools, event, PARTICIPANT, GATE)
        if self.tools.is_open and not was_open:
            for kept in self.book:
                self._keep(kept, Thawed())

    def _leave(self, sending: Sending) -> object:
        if self.late is not None:
            return False
        self._fault()
        self.late = evolve(sending, copy=True)
        return None

    def _fault(self) -> None:
        if not self.faults_left:
            raise Refused("no_faults_left", 0, "fault")
        self.faults_left -= 1

    # --- what must be true

    @always(covers=("I36", "I57"))
    def each_operation_is_applied_once(self) -> bool:
        return all(kept.position.revision == len(kept.state) == len(set(kept.state)) for kept in self.book)
