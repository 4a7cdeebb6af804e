"""Failing twins of the session world: each without one protective rule, or without the few that cover each other."""

from __future__ import annotations

from attrs import evolve

from models.resources_session import SessionWorld
from models.session_parts import Kept, Reply, Sending, Trail
from models.twins import without_rule
from participants.machines.resource_session import RESOURCE_SESSION, Mutated, SessionState, advance
from participants.records.positions import Position
from statecore import Refused, stay
from statecore.properties import always
from statecore.world import param, volatile


class PositionsOnlyCount(SessionWorld):
    """S46: a position is the number of mutations and nothing else, as a peer of another make gives it.

    The server dies alone, a late seed makes an empty session, and its revision 1 is taken for the revision 1 that was
    lost: by the agent, which goes on in it, and by the comparison of the records.
    """

    def _answer(self, kept: Kept, sending: Sending) -> Reply:
        return evolve(SessionWorld._answer(self, kept, sending), position=Position(kept.position.revision))


class _OneIdentity(SessionWorld):
    """A seed draws nothing: all sessions of the rollout have one id and one incarnation."""

    def _identity(self) -> tuple[str, str]:
        return "s", "1" * 32

    @always
    def an_agent_that_parks_stands_where_its_session_stands(self) -> bool:
        return True  # it parks in front of a session that is another one of the same name


class SeededUnderOneIdentity(_OneIdentity):
    """S60, with cookies: a seed draws no identity, so the cookie of the lost session is good for the new one.

    Histories do not help: the verdict names revision 0, which may be an older reply of the session that was known.
    """

    cookies = param(True)


class SeededUnderOneIdentityAndPublished(_OneIdentity, PositionsOnlyCount):
    """S60 once more, as a checkpoint has it: revision 2 = 2, and the continuation has lost its first turn.

    For this either rule is enough: histories tell the two apart, and so do identities, since a cookie names one.
    """

    cookies = param(True)
    turns = param(3)

    @always
    def a_result_is_of_all_turns(self) -> bool:
        return True

    @always
    def equal_positions_are_equal_histories(self) -> bool:
        return True


class MadeAgainWhenUnknown(PositionsOnlyCount):
    """S60, with cookies: a call makes the session that its server does not know, and positions have no history.

    Either rule alone is enough: an agent that knows a history does not take the new session for its own.
    """

    cookies = param(True)

    def _find(self, sending: Sending) -> Kept:
        try:
            return SessionWorld._find(self, sending)
        except Refused:
            if any(kept.attempt == sending.attempt for kept in self.book):
                raise  # there is one, and the cookie names another
            return self._seed(sending)


class LostAndSeededAgain(SessionWorld):
    """S60: an agent whose session is lost seeds another one and goes on."""

    def _lose(self) -> None:
        self.trail, self.replies, self.calls = None, (), ()


class LastReplyStands(SessionWorld):
    """I35, with two calls at once: the position of the reply that comes last is taken, though it may be the older."""

    width = param(2)
    cookies = param(True)

    def _note(self, reply: Reply) -> None:
        assert reply.position is not None
        session_id = reply.session_id if self.trail is None else self.trail.session_id
        self.trail = Trail(session_id, reply.position)


class SentAgainIsAppliedAgain(SessionWorld):
    """S38: an operation that was applied is not known again; a slow call and its repetition both count."""

    SESSION = without_rule(RESOURCE_SESSION, {(SessionState.LIVE, Mutated): stay(do=advance)})


class OneReplyIsKept(SessionWorld):
    """S38: the replies that are kept do not reach back as far as a copy that is on its way."""

    max_operations = param(1)


class RefusedForThisSendingOnly(SessionWorld):
    """S61: a refusal is forgotten; an earlier sending is applied behind the back of an agent that has parked."""

    refuses = param(True)
    checkpoints = param(2)
    deaths = param(0)

    def _check_final(self, sending: Sending) -> None:
        return


class RefusedThoughApplied(SessionWorld):
    """S61: a closed server refuses also what it has applied already."""

    refuses = param(True)

    def _is_done(self, sending: Sending) -> bool:
        return False


class RefusedWhileInside(SessionWorld):
    """S61: a sending is refused while an earlier one of the same call is inside, and will be applied."""

    refuses = param(True)

    def _is_inside(self, sending: Sending) -> bool:
        return False


class ParksBehindItsBoundary(SessionWorld):
    """S61, with two calls at once: an agent that was refused parks, though the other call of its turn was applied."""

    refuses = param(True)
    width = param(2)
    faults = param(0)
    deaths = param(0)

    @property
    def _may_stand(self) -> bool:
        return not self.calls


class ReadOnArrival(SessionWorld):
    """S21: the position of a reply is read when its request arrives, before it has the session's lock."""

    came_at: Position | None = volatile(None, of="tools")

    def _arrive(self, sending: Sending) -> object:
        answer = SessionWorld._arrive(self, sending)
        if self.inside and self.inside[-1][0] == sending:
            self.came_at = self._kept(self.inside[-1][1]).position
        return answer

    def _answer(self, kept: Kept, sending: Sending) -> Reply:
        reply = SessionWorld._answer(self, kept, sending)
        return evolve(reply, position=self.came_at) if sending.what == "op" else reply


TWINS = (
    PositionsOnlyCount,
    SeededUnderOneIdentity,
    SeededUnderOneIdentityAndPublished,
    MadeAgainWhenUnknown,
    LostAndSeededAgain,
    LastReplyStands,
    SentAgainIsAppliedAgain,
    OneReplyIsKept,
    RefusedForThisSendingOnly,
    RefusedThoughApplied,
    RefusedWhileInside,
    ParksBehindItsBoundary,
    ReadOnArrival,
)
