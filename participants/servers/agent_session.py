"""An agent's session, as its loop sees it: the conversation's boundaries, and the calls between them.

A boundary is encoded at the call: what the loop does to the value later changes nothing. Boundaries are chained by
digest, the last one is always kept. Between two boundaries the session moves; while it waits for a model reply, and at
a boundary while a checkpoint is open, it stands still (docs/reference/protocol.md sections 4, 6, 13 and 14).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from attrs import define, field, frozen
from starlette.responses import JSONResponse
from starlette.responses import Response as HttpResponse

from statecore import Snapshot, StatecoreError
from statecore.wire import parse, sha256_hex, structure, unstructure

from ..identity import EpisodeId
from ..journals.recorder import UNRECORDED, StepRecorder
from ..machines.attempt import (
    ATTEMPT,
    AttemptState,
    Completed,
    Dispatched,
    Parked,
    Released,
    Restored,
    Tombstoned,
    may_stand,
)
from ..net.http import refuse_request
from ..records._fields import SCHEMA_VERSION, encode_line
from ..records.positions import Position
from ..records.records import AgentBoundary
from ..signals import SERVER, TURNS
from .admission import Activity
from .executions import Response
from .peers import Peer, Trail

if TYPE_CHECKING:
    from .agent import Agent

T = TypeVar("T")

OWN_RUN = "run"
"""Session key of an agent's own `/run`."""


class SessionError(StatecoreError):
    """A session was used in a way that its rules forbid; the message says which."""


@frozen
class Access:
    """A session that the episode opened at a resources server, as it tells the agents that it activates."""

    server: str
    session_id: str
    cookies: Mapping[str, str]
    position: Position | None
    restart: bool


@frozen
class Frozen:
    """The last boundary: its bytes as they will be in a record, and what the next one needs of it."""

    line: bytes
    index: int

    @property
    def digest(self) -> str:
        return sha256_hex(self.line)

    def value(self) -> Any:
        return parse(self.line)


def check_claim(episode: EpisodeId, task_digest: str, unclaimed: Iterable[EpisodeId], known: str | None) -> None:
    """Nothing happens if this execution may begin here. Pure.

    `unclaimed` are continuations that nobody has claimed; `known` is the task of the session that this execution has
    here, None if it has none. Refused for one that would hide a continuation (S15), or go on with another task (I60).
    """
    for other in unclaimed:
        if other.rollout_id == episode.rollout_id and other != episode:
            raise refuse_request("checkpoint_error", f"{other.key} continues a checkpoint and is not claimed yet")
    if known not in (None, task_digest):
        detail = f"episode {episode.key} continues a checkpoint recorded for a different task"
        raise refuse_request("checkpoint_error", detail)


@define(eq=False)
class Activation:
    """One activation of a session's handler; a repeat of the last one gets the same response.

    `answered`: the response is the handler's own, and what an episode that is continued gets instead of running it
    again.
    """

    index: int
    cancel: anyio.CancelScope = field(factory=anyio.CancelScope)
    done: anyio.Event = field(factory=anyio.Event)
    response: Response | None = None
    answered: bool = False


@define(eq=False)
class LiveSession:
    """What the server keeps of a session, over all its activations.

    `activations` counts those begun; `task_digest` is of the rollout's task, `payload_digest` of what this session was
    last given to do. `opened` is the body that opened it, where a loop of another make needs it again.
    """

    episode: EpisodeId
    key: str
    generation: int = 0
    activations: int = 0
    last: Activation | None = None
    boundary: Frozen | None = None
    trail: Trail = field(factory=Trail)
    steps_used: int = 0
    elapsed_s: float = 0.0
    restart: bool = False
    restored: bool = False
    unclaimed: bool = False
    task: Any = None
    task_digest: str = ""
    payload_digest: str = ""
    opened: Any = None
    since: float = 0.0
    reason: str = ""
    activity: Activity | None = None
    machine: Snapshot[AttemptState, bool] = field(factory=ATTEMPT.start)
    steps: StepRecorder = UNRECORDED

    def step(self, event: object) -> None:
        boundary = None if self.boundary is None else self.boundary.index
        self.machine, _ = self.steps.step(
            ATTEMPT, self.machine, event, self.episode, session=self.key, boundary=boundary, restart=self.restart
        )

    @property
    def answered(self) -> int:
        """How many activations were answered."""
        return self.activations if self.last is None or self.last.answered else self.activations - 1

    @property
    def blocks(self) -> bool:
        return self.activity is not None and self.activity.blocks

    @property
    def stands(self) -> bool:
        """Running, and quiet: at a boundary, or waiting for a model reply."""
        return self.activity is not None and self.activity.settled

    def begin(self, activity: Activity, now: float) -> int:
        """Its handler runs: the generation that fences older loops of the same attempt (I9)."""
        self.activity = activity
        self.generation += 1
        self.since, self.reason = now, "its loop runs"
        self.unclaimed = False
        self.step(Released())  # one that stands between two activations
        self.step(Dispatched())
        if self.restart:
            activity.exempt()
        return self.generation

    def settle(self, reason: str, now: float) -> None:
        if self.activity is not None:
            self.activity.settle()
        self.since, self.reason = now, reason
        self.step(Parked())

    async def stir(self, clock: Any) -> None:
        """It moves again, now or when the server opens; time spent standing is not the episode's (I64)."""
        if self.activity is not None:
            await self.activity.stir()
        self.since, self.reason = clock.monotonic(), "its loop runs"
        self.step(Released())

    def end(self, *, completed: bool) -> None:
        """The handler is over: completed, or ready for the next activation."""
        if self.activity is not None:
            self.activity.end()
            self.activity = None
        if self.machine.state is AttemptState.TOMBSTONED:
            return
        if completed:
            self.step(Released())
            self.step(Completed())
        else:
            self.step(Parked())

    def tombstone(self) -> None:
        self.step(Tombstoned())

    def reopen_from(self, boundary: AgentBoundary, line: bytes) -> None:
        """It stands where `boundary` stood (I54, I61): chain, lineage, positions, cookies, budget."""
        self.boundary = Frozen(line, boundary.boundary_index)
        self.trail.last_model_call_id = boundary.last_model_call_id
        self.trail.lineage_head = boundary.lineage_head
        self.trail.cookies = {server: dict(jar) for server, jar in boundary.cookies.items()}
        for part in boundary.parts or ():
            self.trail.note_position(part.instance, part.key, part.position)
        self.steps_used = boundary.steps_used
        self.elapsed_s = boundary.elapsed_s
        self.task_digest = boundary.task_digest

    def mark_restored(self) -> None:
        self.restored = self.unclaimed = True
        self.step(Restored())


class Session:
    """One activation of an agent's loop: what `Agent.session` gives.

    With checkpointing off it is a plain holder of the task: boundaries cost nothing and `finish` is a JSON response.
    """

    def __init__(
        self, agent: Agent, live: LiveSession | None, task: Any, *, max_steps: int | None, state: Any, replayed: bool
    ) -> None:
        self.task = task
        self.max_steps = max_steps
        self._agent = agent
        self._live = live
        self._generation = 0 if live is None else live.generation
        self._state = state
        self._replayed = replayed
        self._finished = False
        self._trail = Trail() if live is None else live.trail
        self._steps = 0
        self._moved_at = self._held_until = agent.seams.clock.monotonic()
        self._waiting = 0  # tasks of this loop that wait for a model reply or are parked
        self._calling = 0  # and all its other calls that are under way
        self._refused = 0  # and those that a closed server has refused for good
        self._sent = 0  # sendings since the last boundary, but those: its sessions may stand elsewhere because of them

    @property
    def episode(self) -> EpisodeId | None:
        return None if self._live is None else self._live.episode

    @property
    def steps_used(self) -> int:
        """Completed turns, those before a restore included (I63)."""
        return self._steps if self._live is None else self._live.steps_used

    @property
    def may_go_on(self) -> bool:
        """Whether the step budget allows another turn."""
        return self.max_steps is None or self.steps_used < self.max_steps

    def restored(self, cls: type[T]) -> T | None:
        """The state that the last boundary held, once; None when the loop starts at the beginning."""
        if not self._replayed:
            return None
        self._replayed = False
        return structure(self._state, cls)

    def use_cookies(self, accesses: Iterable[Access]) -> None:
        """Sessions that an episode opened can be used; nothing else of them is noted, since nothing is saved here."""
        for access in accesses:
            self._trail.cookies[access.server] = dict(access.cookies)

    def client(self, name: str) -> Peer:
        """The server of that name (settings.servers), as this session calls it."""
        live = self._live
        if live is None:
            return Peer(self._agent, name, None, self._trail, lambda: None)
        return Peer(
            self._agent, name, live.episode, self._trail, self._check,
            around_model=self._around_model, around_other=self._around_other, when_refused=self._when_refused,
            on_restart=self.start_over,
        )  # fmt: skip

    async def boundary(self, state: Any, *, items: Any = None, usage: Any = None) -> bool:
        """The turn is completed and `state` is what a continuation starts from; parks here while a checkpoint is open.

        `state` is an attrs object or plain JSON, encoded now. Returns whether the step budget allows another turn; at
        its limit no boundary is written, since nothing would come after it (I63). Raises Refused `stale_attempt` when
        the attempt was retired, SessionError from a loop that a newer one replaced (I9) or after `finish`.
        """
        if self._finished:
            raise SessionError("boundary after finish: the last turn of a rollout is no boundary")
        self._steps += 1
        live = self._live
        if live is None:
            return self.may_go_on
        self._check()
        await self._move(live)
        live.steps_used += 1
        self._agent.seams.telemetry.add(TURNS, 1, {SERVER: self._agent.name})
        if not self.may_go_on:
            return False
        self._freeze(state, items, usage)
        self._sent = self._calling
        if not self._agent.admission.is_open and not live.restart:
            self._waiting += 1
            self._wait(live, "parked at a boundary")
            try:
                await self._stir(live)
            finally:
                self._waiting -= 1
        self._wait(live, "waits for a model reply")
        return True

    def finish(self, result: Any, status: int = 200) -> HttpResponse:
        """The rollout's answer; its receipt goes into a header, and the server keeps it until that is acknowledged."""
        self._finished = True
        self._check()
        return JSONResponse(result, status)

    # --- inside

    def _check(self) -> None:
        live = self._live
        if live is None:
            return
        self._agent.fences.check(live.episode)
        if live.generation != self._generation:
            raise SessionError(f"this loop of {live.episode.key} was replaced by a newer one (I9)")

    def start_over(self) -> None:
        """A part of this rollout cannot be continued: it blocks no checkpoint from here on (section 2)."""
        live = self._live
        if live is not None and not live.restart:
            live.restart = True
            if live.activity is not None:
                live.activity.exempt()

    async def _around_model(self, send: Callable[[], Awaitable[T]]) -> T:
        """Quiet while the generation runs; its reply is held here while the server is closed (section 6)."""
        live = self._live
        assert live is not None
        self._waiting += 1
        self._wait(live, "waits for a model reply")
        try:
            response = await send()
        except Exception:
            await self._stir(live)
            raise
        finally:
            self._waiting -= 1
        await self._stir(live)
        self._wait(live, "waits for another model reply")
        return response

    async def _around_other(self, send: Callable[[], Awaitable[T]]) -> T:
        """It moves while it calls, also where another task of this loop waits (I24)."""
        live = self._live
        assert live is not None
        await self._move(live)
        self._calling += 1
        self._sent += 1
        try:
            return await send()
        finally:
            self._calling -= 1
            self._wait(live, "waits for a model reply")

    async def _when_refused(self) -> None:
        """Its call was refused for good. It stands until its server is open, if it stands where its boundary does."""
        live = self._live
        assert live is not None
        self._sent -= 1
        self._refused += 1
        self._wait(live, "waits for a server that is closed")
        try:
            if live.stands:
                await self._agent.admission.opened(live.episode.rollout_id)
        finally:
            self._refused -= 1

    def _wait(self, live: LiveSession, reason: str) -> None:
        """It stands if what its tasks wait for allows it.

        What other tasks of it do meanwhile stays in memory: whatever leaves it, a call or a boundary, moves first.
        """
        is_over = live.generation != self._generation or live.machine.state is AttemptState.TOMBSTONED
        may = may_stand(waiting=self._waiting, refused=self._refused, sent=self._sent, calling=self._calling)
        if may and not is_over:
            live.settle(reason, self._agent.seams.clock.monotonic())

    async def _move(self, live: LiveSession) -> None:
        """It moves: it did, or it has stood for another task of this loop and its server is open."""
        if live.stands:
            await self._stir(live)

    async def _stir(self, live: LiveSession) -> None:
        """It moves again, and the time for which its server held it is not the episode's (I64)."""
        clock = self._agent.seams.clock
        since = clock.monotonic()
        await live.stir(clock)
        now = clock.monotonic()
        self._moved_at += now - max(since, self._held_until)  # once, however many tasks were held
        self._held_until = now

    def _freeze(self, state: Any, items: Any, usage: Any) -> None:
        live = self._live
        assert live is not None
        now = self._agent.seams.clock.monotonic()
        live.elapsed_s += max(0.0, now - self._moved_at)
        self._moved_at = now
        live.boundary = frozen_boundary(live, state=unstructure(state), items=items, usage=usage)


def frozen_boundary(live: LiveSession, *, state: Any, items: Any, usage: Any) -> Frozen:
    """The next boundary of `live`, as immutable bytes that name the one before."""
    previous = live.boundary
    index = 0 if previous is None else previous.index + 1
    trail = live.trail
    boundary = {  # AgentBoundary, written out: this is the only work of a turn that nobody asked for
        "schema_version": SCHEMA_VERSION,
        "boundary_index": index,
        "previous": None if previous is None else previous.digest,
        "task_digest": live.task_digest,
        "data_position": None,
        "last_model_call_id": trail.last_model_call_id,
        "lineage_head": trail.lineage_head,
        "parts": [
            {"kind": kind, "instance": instance, "key": key, "position": _position(position), "digest": None}
            for (kind, instance, key), position in trail.positions.items()
        ],
        "items": items,
        "usage": usage,
        "cookies": trail.cookies,
        "steps_used": live.steps_used,
        "elapsed_s": round(live.elapsed_s, 6),
        "state": state,
    }
    return Frozen(encode_line(boundary)[:-1], index)


def _position(position: Position) -> dict[str, Any]:
    return {"revision": position.revision, "history": position.history, "incarnation": position.incarnation}


def read_accesses(header: str) -> list[Access]:
    """What the accesses header says; WireError or ValueError when it says nothing that can be used."""
    value = parse(header)
    if type(value) is not dict or any(type(each) is not dict for each in value.values()):
        raise ValueError("accesses are an object of objects, by server")
    return [_access(server, each) for server, each in value.items()]


def _access(server: str, said: Mapping[str, Any]) -> Access:
    session_id, cookies, position = said.get("session", ""), said.get("cookies", {}), said.get("position")
    if type(session_id) is not str or type(cookies) is not dict or type(position) not in (str, type(None)):
        raise ValueError(f"the access to {server} is none")
    if any(type(each) is not str for each in cookies.values()):
        raise ValueError(f"the access to {server} has cookies that are no text")
    at = None if position is None else Position.from_header(position)
    return Access(server, session_id, cookies, at, bool(said.get("restart")))


def note_accesses(live: LiveSession, accesses: Iterable[Access]) -> None:
    """The sessions that the episode opened are part of the boundaries; what this agent knows better stays.

    Of one session the position with more revisions is the newer one: the episode does not see the agent's own calls.
    """
    for access in accesses:
        known = live.trail.positions.get(("resources", access.server, access.session_id))
        live.trail.cookies[access.server] = {**access.cookies, **live.trail.cookies.get(access.server, {})}
        live.restart = live.restart or access.restart
        if access.restart:
            live.trail.starting_over.add(access.server)
        at = access.position
        if at is not None and (known is None or known.incarnation != at.incarnation or known.revision < at.revision):
            live.trail.note_position(access.server, access.session_id, at)
