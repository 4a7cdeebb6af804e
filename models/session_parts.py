"""What the world of one resources session is made of: sendings, sessions, boundaries, and what is written of them.

A session's own state is the list of the operations that were applied to it, so that two sessions are compared by
content and not by count. Records are the production's, so that agreement is decided by the code that runs.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from participants.coordination.agreement import Pieces
from participants.identity import EpisodeId
from participants.machines.resource_session import RESOURCE_SESSION, Operation, SessionData, SessionState
from participants.machines.sendings import Sending as CallSending
from participants.records.positions import Position
from participants.records.records import (
    AgentBoundary,
    AgentRecord,
    PartRef,
    ResourcesRecord,
    ResourcesState,
    task_digest,
)
from participants.servers.agent_session import OWN_RUN
from participants.servers.fences import Fences
from participants.servers.refusals import Refusals
from participants.servers.session_book import Session, SessionBook
from statecore import Snapshot

ROLLOUT = "r"
TASK = task_digest({"n": 1})
Ids = tuple[str, ...]


@frozen(cache_hash=True)
class Sending:
    """One sending of a call: of which life and attempt, which logical call, the how manieth, for which session."""

    what: str  # seed, op or verify
    epoch: int
    attempt: int
    operation: str
    tried: int
    cookie: str  # "": the session is found by the rollout alone
    copy: bool = False  # nobody waits for its answer

    @property
    def episode(self) -> EpisodeId:
        return EpisodeId(ROLLOUT, self.attempt)

    @property
    def counted(self) -> CallSending:
        """As the server's refusals know it."""
        return CallSending(self.episode, self.operation, self.tried)


@frozen(cache_hash=True)
class Call:
    """A logical call of the agent that has no answer yet: on its way, inside, or unanswered (taken for dead)."""

    what: str
    operation: str
    tried: int
    where: str  # out, inside, unanswered


@frozen(cache_hash=True)
class Reply:
    """An answer on its way back. `code` is "" or that of a refusal, `seen` what a verdict is based on."""

    operation: str
    code: str = ""
    position: Position | None = None
    session_id: str = ""
    seen: Ids = ()


@frozen(cache_hash=True)
class Kept:
    """A session at the server. `state` is the application's own: what was applied, in order."""

    session_id: str
    attempt: int
    machine: Snapshot[SessionState, SessionData]
    state: Ids = ()
    verified: str = ""  # the operation whose verdict stands

    @property
    def episode(self) -> EpisodeId:
        return EpisodeId(ROLLOUT, self.attempt)

    @property
    def position(self) -> Position:
        position = self.machine.data.position
        assert position is not None
        return position


@frozen(cache_hash=True)
class Trail:
    """What the agent has heard of its session."""

    session_id: str
    position: Position


@frozen(cache_hash=True)
class Boundary:
    """The agent's newest boundary: how many turns, the position that it names, and the conversation so far."""

    turn: int
    trail: Trail
    conversation: Ids


@frozen(cache_hash=True)
class Saved:
    """A published checkpoint: the rollout's row, its records, and its result if it has one."""

    row: str
    attempt: int
    boundary: Boundary | None
    session: Kept | None
    result: Ids | None = None


def fences_of(marks: tuple[int, int]) -> Fences:
    """The server's fences for the one rollout, from (retired, passed)."""
    fences = Fences()
    fences.retired[ROLLOUT], fences.passed[ROLLOUT] = marks
    return fences


def marks_of(fences: Fences) -> tuple[int, int]:
    return fences.retired[ROLLOUT], fences.passed[ROLLOUT]


def book_of(kept: tuple[Kept, ...]) -> SessionBook[Any]:
    """The production's book with these sessions."""
    book: SessionBook[Any] = SessionBook()
    for each in kept:
        session: Session[Any] = Session(each.session_id, each.episode, None, each.machine)
        seed_id = each.machine.data.seed_id
        session.seeded = Operation(seed_id, "{}") if seed_id else None
        session.verified = Operation(each.verified, "{}") if each.verified else None
        book.add(session)
    return book


def refusals_of(refused: frozenset[CallSending], floor: int, limit: int) -> Refusals:
    """The server's refusals, of the highest sending of each call that was refused and the floor of all others."""
    refusals = Refusals(limit)
    refusals.floor = floor
    for sending in sorted(refused, key=lambda each: (each.owner, each.operation_id)):
        refusals.refuse(sending)
    return refusals


def start_session(max_operations: int) -> Snapshot[SessionState, SessionData]:
    return RESOURCE_SESSION.start(SessionData(max_operations=max_operations))


def pieces_of(attempt: int, boundary: Boundary | None, session: Kept | None) -> Pieces:
    """The records of the execution, as the two servers write them."""
    agents: tuple[tuple[str, AgentRecord], ...] = ()
    resources: tuple[tuple[str, ResourcesRecord], ...] = ()
    episode = EpisodeId(ROLLOUT, attempt)
    if boundary is not None:
        record = AgentRecord(
            episode_id=episode,
            session_key=OWN_RUN,
            boundary=_boundary_json(boundary),
            episode={"task_digest": TASK},
        )
        agents = (("agent", record),)
    if session is not None:
        operations = [{"operation_id": each.operation_id, "reply": {}} for each in session.machine.data.operations]
        state = ResourcesState(codec="list", position=session.position, operations=operations, data=list(session.state))
        kept = ResourcesRecord(episode_id=session.episode, session_id=session.session_id, state=state.to_json())
        resources = (("tools", kept),)
    return Pieces(agents=agents, resources=resources)


def _boundary_json(boundary: Boundary) -> Any:
    part = PartRef(kind="resources", instance="tools", key=boundary.trail.session_id, position=boundary.trail.position)
    return AgentBoundary(
        boundary_index=boundary.turn - 1,
        previous=None,
        task_digest=TASK,
        data_position=None,
        last_model_call_id=None,
        lineage_head=None,
        parts=(part,),
        items=list(boundary.conversation),
        usage=None,
        cookies={},
        steps_used=boundary.turn,
        elapsed_s=0.0,
        state=None,
    ).to_json()
