"""The resources server of a session world: how a request is admitted, gets the session's lock, is applied and answered.

It is the shell of `participants.servers.resources` without HTTP: the gate, the fences, the book of sessions and the
session's own machine are the production's. A request that is held stays with its caller: here that is an action that is
not enabled yet. docs/reference/protocol.md sections 3, 4 and 6.
"""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import evolve

from models.server import GRACE_S, Server, admits, knock, tell
from models.session_parts import Call, Kept, Reply, Sending, book_of, fences_of, marks_of, refusals_of, start_session
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
from participants.machines.sendings import Fate, fate
from participants.machines.sendings import Sending as CallSending
from participants.servers.refusals import Refusals
from participants.servers.resources import PASSING
from statecore import Refused, Table
from statecore.properties import always
from statecore.world import World, action, param, slot, volatile, wire

NOTHING = (-1, -1)


def tools_process(incarnation: str, epoch: int, max_held: int = 2) -> Server:
    """A process that just started, open: whoever started it is not our launcher, and gave it its epoch."""
    gate = GATE.start(GateData(max_held=max_held))
    return Server(new_process(incarnation, epoch=epoch, lease_grace_s=GRACE_S), gate)


class SessionServerWorld(World):
    """One resources server, with the calls that wait for it and what is on its way to and from it."""

    SESSION: ClassVar[Table[SessionState, SessionData]] = RESOURCE_SESSION

    faults = param(1)  # sendings that are late, doubled or taken for dead, replies lost, verifications failed
    refuses = param(False)  # it has no room to hold a call
    max_operations = param(4)
    max_refused = param(4)  # calls whose refusals are remembered one by one

    life: int = slot(1)
    attempt: int = slot(0)
    faults_left: int = slot(make=lambda world: world.faults)
    drawn: int = slot(0)  # session identities so far
    calls: tuple[Call, ...] = volatile((), of="agent")

    tools: Server = slot(make=lambda world: tools_process("tools-1", 1, 0 if world.refuses else 2))
    book: tuple[Kept, ...] = volatile((), of="tools")
    inside: tuple[tuple[Sending, str], ...] = volatile((), of="tools")  # in the order in which they get the lock
    marks: tuple[int, int] = volatile(NOTHING, of="tools")
    refused: frozenset[CallSending] = volatile(frozenset(), of="tools")  # of each call the highest
    floor: int = volatile(0, of="tools")

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
            self._note_done(sending)
        self._leave_inside(self._answer(kept, sending), sending)
        return None

    @action
    def verify(self) -> object:
        """A verdict over the state as it is; the session ends with it."""
        sending, kept = self._verifying()
        kept = self._replace(evolve(self._keep(kept, VerifySucceeded()), verified=sending.operation))
        self._note_done(sending)
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
            meant = self._fate(sending)
            if meant is Fate.WAIT:
                return False
            if meant is Fate.ANSWER:
                self._reply(self._answer(self._find(sending), sending), sending)
                return None
            self._check_final(sending)
            if not admits(self.tools):
                return False
            fences.accept(sending.episode)
            self.marks = marks_of(fences)
            self._retire_below(sending)
            if sending.what == "seed":
                kept = self._seed(sending)
                self._reply(self._answer(kept, sending), sending)
                return None
            session_id = self._find(sending).session_id
        except Refused as refused:
            if refused.code in PASSING and self._fate(sending) is Fate.ENTER:
                self._refuse(sending)
            self._reply(Reply(sending.operation, refused.code), sending)
            return None
        self.tools = knock(self.tools, Arrived(), GATE)
        self.inside = (*self.inside, (sending, session_id))
        return None

    def _fate(self, sending: Sending) -> Fate:
        """What becomes of it, by the rule that runs."""
        applied, inside = self._is_done(sending), self._is_inside(sending)
        return fate(is_open=self.tools.is_open, applied=applied, inside=inside)

    def _is_inside(self, sending: Sending) -> bool:
        """A sending of the same call was admitted, and has not ended."""
        return any(other.operation == sending.operation for other, _ in self.inside)

    def _is_done(self, sending: Sending) -> bool:
        """The call was applied, and has its record."""
        found = book_of(self.book).find(sending.cookie or None, sending.episode)
        return found is not None and found.has_done(sending.operation)

    def _refuse(self, sending: Sending) -> None:
        """It is refused, and every earlier sending of its call (S61)."""
        refusals = self._refusals()
        tried = refusals.refuse(sending.counted)
        refused = {each for each in self.refused if each.operation_id != sending.operation}
        refused.add(evolve(sending.counted, tried=tried))
        self.floor = refusals.floor
        self.refused = frozenset(each for each in refused if each.tried > self.floor)

    def _check_final(self, sending: Sending) -> None:
        """A sending that was refused, or is older than one that was, is refused for good (S61)."""
        self._refusals().check(sending.counted)

    def _refusals(self) -> Refusals:
        return refusals_of(self.refused, self.floor, self.max_refused)

    def _note_done(self, sending: Sending) -> None:
        """It was applied: what comes of it late finds the record."""
        self.refused = frozenset(each for each in self.refused if each.operation_id != sending.operation)

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
        self._note_done(sending)
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
