"""One session of a resources server and the agent that uses it, by the tables that run. Executable specification.

The agent seeds its session, takes turns of one or more tool calls, and has the outcome verified. What may go wrong: a
sending is late, comes twice, is taken for dead while it still runs; a reply is lost; the server dies alone and comes
back empty; everything dies; leases end at any moment. A checkpoint closes the server, freezes and exports the session
at a position; a restore installs it under the next attempt.

The world asks for less than the agents that run: they send the session's cookie with every call (`cookies`), and give
an execution up when a reply is lost; here calls may name their rollout alone and are sent again under their operation
id. `refuses`: the server has no room to hold a call, so that a closed one refuses what was not applied and does not
run, for this sending and all before it, and the agent parks where it stood. docs/reference/protocol.md sections 3, 4,
6, 7 and 13.
"""

from __future__ import annotations

from attrs import evolve

from models.server import DEADLINE_TS
from models.session_agent import SessionAgentWorld
from models.session_parts import (
    TASK,
    Kept,
    Saved,
    Sending,
    fences_of,
    marks_of,
    pieces_of,
    start_session,
)
from models.session_server import tools_process
from participants.coordination.agreement import Agreed, agree
from participants.coordination.recovery import settle
from participants.machines.attempt import (
    ATTEMPT,
    AttemptState,
    Completed,
    Dispatched,
    PartWritten,
    Restored,
)
from participants.machines.control import (
    CommitRequested,
    Phase,
    PrepareRequested,
    ReadinessReached,
    ResumeRequested,
)
from participants.machines.control import PartWritten as ServerPartWritten
from participants.machines.fencing import own_id
from participants.machines.resource_session import (
    Froze,
    Installed,
    SessionState,
)
from participants.records.positions import Agreement
from participants.records.records import Disposition
from statecore.properties import always, final, recoverable, sometimes
from statecore.world import action, durable, param, slot


class SessionWorld(SessionAgentWorld):
    """One rollout, one agent, one resources server, one coordinator."""

    checkpoints = param(1)
    deaths = param(1)  # of the server alone, or of everything

    deaths_left: int = slot(make=lambda world: world.deaths)

    begun: int = slot(0)
    checkpoint: str = slot("")  # preparing, committing, resuming
    agent_part: Saved | None = slot(None)
    tools_part: Kept | None = slot(None)
    tools_written: bool = slot(False)
    disk: Saved | None = durable(None)

    # --- a checkpoint

    @action
    def begin(self) -> object:
        """The agent is asked to park; the server's prepare may come before it has."""
        if self.checkpoint or self.begun == self.checkpoints or self.lost:
            return False
        self.begun += 1
        self.checkpoint, self.agent_closed = "preparing", True
        return None

    @action
    def prepare(self) -> object:
        if self.checkpoint != "preparing" or self.tools.phase is not Phase.IDLE:
            return False
        self._tell(PrepareRequested(self._id, deadline_ts=DEADLINE_TS))
        return None

    @action
    def reach_readiness(self) -> object:
        """Nothing is inside any more: the sessions freeze."""
        if self.tools.phase is not Phase.PREPARING or not self.tools.is_quiet:
            return False
        for kept in self.book:
            if kept.machine.state is not SessionState.ENDED:
                self._keep(kept, Froze())
        self._tell(ReadinessReached(self._id))
        return None

    @action
    def all_prepared(self) -> object:
        if self.checkpoint != "preparing" or self.tools.phase is not Phase.PREPARED or not self._stands:
            return False
        self.checkpoint = "committing"
        return None

    @action
    def commit_agent(self) -> object:
        """Its record is its last boundary."""
        if self.checkpoint != "committing" or self.agent_part is not None or not self._stands:
            return False
        if self.loop.state.resumable:
            self.loop, _ = ATTEMPT.step(self.loop, PartWritten())
            self.agent_part = Saved("continue", self.attempt, self.boundary, None)
        else:
            self.agent_part = Saved("", self.attempt, None, None)
        return None

    @action
    def commit_tools(self) -> object:
        """The session's record is what it is now."""
        if self.checkpoint != "committing" or self.tools_written or self.tools.phase is not Phase.PREPARED:
            return False
        self._tell(CommitRequested(self._id, deadline_ts=DEADLINE_TS, arguments=self._id))
        self._tell(ServerPartWritten(self._id, self._id))
        mine = [kept for kept in self.book if kept.attempt == self.attempt]
        self.tools_written, self.tools_part = True, (mine[0] if mine else None)
        return None

    @action
    def publish(self) -> object:
        """Both stand where they committed; the rollout's row says whether its parts agree."""
        part = self.agent_part
        if self.checkpoint != "committing" or part is None or not self.tools_written:
            return False
        if self.tools.phase is not Phase.COMMITTED or not self._stands:
            return False
        pieces = pieces_of(part.attempt, part.boundary, self.tools_part) if part.row else pieces_of(0, None, None)
        row = settle(
            received=self.result is not None,
            sent=True,
            retained=False,
            restarted_by="",
            pieces=pieces,
            agreed=self._agree(part, self.tools_part),
        ).disposition
        self.disk = Saved(str(row), part.attempt, part.boundary, self.tools_part, self.result)
        self._end()
        return None

    @action
    def give_up(self) -> object:
        """A deadline, a refusal, a lost server."""
        if self.checkpoint not in ("preparing", "committing"):
            return False
        self._end()
        return None

    @action
    def resume(self) -> object:
        """The server opens, then the agent; the checkpoint is over."""
        if self.checkpoint != "resuming":
            return False
        self._tell(ResumeRequested(self._id, deadline_ts=DEADLINE_TS))
        self.checkpoint = ""
        self._release()
        return None

    @action
    def expire_agent(self) -> object:
        """So does the agent's."""
        if not self.agent_closed or not self.checkpoint:
            return False
        self._release()
        return None

    # --- what dies

    @action(fault=True)
    def tools_die(self) -> object:
        """The server alone: somebody brings it back at once, open and empty."""
        if not self.deaths_left or self.result is not None:
            return False
        self.deaths_left -= 1
        self._new_tools()
        self.calls = tuple(evolve(call, where="unanswered") if call.where == "inside" else call for call in self.calls)
        return None

    @action(fault=True)
    def all_die(self) -> object:
        if not self.deaths_left:
            return False
        self.deaths_left -= 1
        self._restart()
        return None

    @action
    def restart(self) -> object:
        """An execution was lost with its session: the deployment starts again from what is published."""
        if not self.lost:
            return False
        self._restart()
        return None

    def _restart(self) -> None:
        """The next life: fresh servers, the session installed under the next attempt, everything opened."""
        self.wipe("agent")
        self.life += 1
        self._new_tools()
        self.checkpoint, self.agent_part, self.tools_part, self.tools_written = "", None, None, False
        saved = self.disk
        if saved is None:
            self.attempt = 0
            return
        self.attempt = saved.attempt + 1
        if saved.row == Disposition.COMPLETED:
            self.loop, _ = ATTEMPT.step(self.loop, Dispatched())
            self.loop, _ = ATTEMPT.step(self.loop, Completed())
            self.result = saved.result
            return
        fences = fences_of(self.marks)
        if saved.row == Disposition.CONTINUE and saved.boundary is not None and saved.session is not None:
            machine, _ = self.SESSION.step(
                start_session(self.max_operations),
                Installed(saved.session.position, saved.session.machine.data.operations),
            )
            session = Kept(saved.session.session_id, self.attempt, machine, saved.session.state)
            self.book = (session,)
            self.loop, _ = ATTEMPT.step(self.loop, Restored())
            self.boundary, self.conversation = saved.boundary, saved.boundary.conversation
            self.trail = saved.boundary.trail
            fences.accept(session.episode)
        else:
            fences.retire([Sending("", 0, saved.attempt, "", 0, "").episode])
        self.marks = marks_of(fences)

    def _new_tools(self) -> None:
        self.wipe("tools")
        self.replies = ()
        self.tools = tools_process(f"tools-{self.life}.{self.deaths_left}", self.life, 0 if self.refuses else 2)

    # --- helpers

    @property
    def _id(self) -> str:
        return own_id("ck", self.life, self.begun)

    def _end(self) -> None:
        self.checkpoint, self.agent_part, self.tools_part, self.tools_written = "resuming", None, None, False

    def _agree(self, part: Saved, session: Kept | None) -> Agreed:
        return agree(pieces_of(part.attempt, part.boundary, session), TASK)

    # --- what must be true

    @always(covers=("I35", "S46", "S60"))
    def a_continuation_is_of_one_piece(self) -> bool:
        """By content: what the agent remembers of its tools is what was applied to its session."""
        saved = self.disk
        if saved is None or saved.row != Disposition.CONTINUE:
            return True
        return (
            saved.boundary is not None
            and saved.session is not None
            and (sorted(saved.boundary.conversation) == sorted(saved.session.state))
        )

    @always(covers=("I35", "I92", "S61"))
    def an_agent_that_parks_stands_where_its_session_stands(self) -> bool:
        """Its boundary names the position of its session, while both stand still."""
        if self.loop.state not in (AttemptState.PARKED, AttemptState.COMMITTED) or self.boundary is None:
            return True
        if self.tools.phase not in (Phase.PREPARED, Phase.COMMITTED):
            return True
        named = self.boundary.trail
        return all(
            kept.position.compared(named.position) is not Agreement.DIFFERENT
            for kept in self.book
            if kept.session_id == named.session_id
        )

    @always(covers="I97")
    def a_result_is_of_all_turns(self) -> bool:
        """The verdict is over the operations of all turns, each applied once."""
        return self.result is None or len(set(self.result)) == len(self.result) == self.turns * self.width

    @always(covers="I81")
    def equal_positions_are_equal_histories(self) -> bool:
        named = self.boundary
        return named is None or all(
            sorted(kept.state) == sorted(named.conversation)
            for kept in self.book
            if kept.position == named.trail.position
        )

    @recoverable(covers="I20")
    def finished(self) -> bool:
        return self.result is not None

    @final
    def has_a_result(self) -> bool:
        return self.result is not None

    @sometimes
    def published_a_continuation(self) -> bool:
        return self.disk is not None and self.disk.row == Disposition.CONTINUE

    @sometimes
    def a_restored_session_is_used(self) -> bool:
        return self.attempt > 0 and any(kept.machine.state is SessionState.LIVE for kept in self.book)

    @sometimes
    def two_sendings_of_one_call_are_inside(self) -> bool:
        return len(self.inside) == 2 and self.inside[0][0].operation == self.inside[1][0].operation

    @sometimes
    def a_late_seed_made_an_empty_session(self) -> bool:
        return self.drawn > 1 and self.life == 1 and bool(self.conversation) and len(self.book) == 1

    @sometimes
    def lost_its_session(self) -> bool:
        return self.lost
