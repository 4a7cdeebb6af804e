"""An episode, as the environment's handler drives it: one step after the other, each recorded with its result.

After a restore the handler runs from the top: a step whose result is recorded gives that result and does nothing else,
so the handler must take the same steps in the same order. A *waiting* step has an outside effect and is never cut
inside; a
*replayable* one (an agent's activation, a verification declared replay) counts at the boundary before it (I38).
docs/reference/protocol.md sections 4, 6 and 7.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field
from starlette.responses import JSONResponse, Response

from statecore import Snapshot, StatecoreError
from statecore.wire import canonical, exact

from ..identity import ACCESSES_HEADER, ACTIVATION_HEADER, POSITION_HEADER, SESSION_HEADER, VERIFY_HEADER, EpisodeId
from ..journals.recorder import UNRECORDED, StepRecorder
from ..machines.episode_step import (
    EPISODE_STEP,
    EpisodeEnded,
    EpisodeState,
    Parked,
    Released,
    ReplayBegan,
    ReplyHeld,
    Retired,
    StepEnded,
    WaitBegan,
)
from ..records.positions import Position
from ..records.records import AgentSessions
from .admission import Activity
from .executions import ParticipantLost
from .peers import Peer, Reply, Trail

if TYPE_CHECKING:
    from .environment import Environment


NOT_FOUND: Final = 404


class EpisodeError(StatecoreError):
    """A step failed, or the handler took another step than the one that was recorded; the message says which."""


@define(eq=False)
class LiveEpisode:
    """What the server keeps of an episode."""

    episode: EpisodeId
    task: Any
    task_digest: str
    results: list[Any] = field(factory=list)
    state: Any = None
    sessions: dict[str, AgentSessions] = field(factory=dict)
    restart: bool = False
    activity: Activity | None = None
    since: float = 0.0
    reason: str = "between two steps"
    machine: Snapshot[EpisodeState, int] = field(factory=EPISODE_STEP.start)
    steps: StepRecorder = UNRECORDED

    def step(self, event: object) -> None:
        self.machine, _ = self.steps.step(EPISODE_STEP, self.machine, event, self.episode)

    @property
    def blocks(self) -> bool:
        return self.activity is not None and self.activity.blocks

    def end(self) -> None:
        """Its handler is over."""
        if self.activity is not None:
            self.activity.end()
        if self.machine.state is not EpisodeState.TOMBSTONED:
            if self.machine.state.quiet:
                self.step(Released())
            self.step(EpisodeEnded())

    def tombstone(self) -> None:
        self.step(Retired())


class Call(Awaitable[Any]):
    """One logical call to a peer, sent when it is awaited; `replayable` when a restore may send it again.

    It gives the peer's `Reply`, or plain JSON that was made of one.
    """

    def __init__(self, send: Callable[[], Awaitable[Any]], *, replayable: bool = False) -> None:
        self._send = send
        self.replayable = replayable

    def __await__(self) -> Generator[Any, None, Any]:
        return self._send().__await__()


class ResourcesHandle:
    """A session at a resources server that this episode seeded."""

    def __init__(self, episode: Episode, name: str, access: dict[str, Any]) -> None:
        self.name = name
        self.access = access
        self._episode = episode

    def call(self, path: str, body: Any = None, *, replayable: bool = False) -> Call:
        """A call to one of its routes, to be given to `episode.wait`."""
        peer = self._episode.client(self.name)

        async def send() -> Reply:
            reply = await peer.post(path, body)
            self._note(reply)
            return reply

        return Call(send, replayable=replayable)

    def verify(self, body: Any = None) -> Call:
        """The server's `/verify`; replayable when the server declared it so at the seed."""
        return self.call("/verify", body, replayable=self.access.get("verify") == "replay")

    def _note(self, reply: Reply) -> None:
        if POSITION_HEADER in reply.headers:
            self.access["position"] = reply.headers[POSITION_HEADER]


class Episode:
    """One run of an environment's handler for one episode: what `Environment.episode` gives."""

    def __init__(self, environment: Environment, live: LiveEpisode | None, task: Any) -> None:
        self.task = task
        self._environment = environment
        self._live = live
        self._trail = Trail()
        self._next = 0
        self._handles: dict[str, ResourcesHandle] = {}
        self._opened: set[str] = set()
        self._finished = False
        self._activations: dict[str, int] = {}

    @property
    def id(self) -> EpisodeId | None:
        return None if self._live is None else self._live.episode

    def client(self, name: str) -> Peer:
        """The server of that name, as this episode calls it; use it inside a step."""
        live = self._live
        if live is None:
            return Peer(self._environment, name, None, self._trail, lambda: None)
        return Peer(
            self._environment, name, live.episode, self._trail, self._check,
            when_refused=self._when_refused, on_restart=self.start_over,
        )  # fmt: skip

    async def seed(self, name: str, body: Any = None, *, path: str = "/seed_session") -> ResourcesHandle:
        """A session of this episode at resources server `name`: a waiting step, done once in the life of the
        rollout.
        """

        async def send() -> Any:
            reply = await self.client(name).post(path, body)
            if not reply.ok:
                raise EpisodeError(f"{name} answered the seed with {reply.status}: {reply.body!r}")
            return {
                "cookies": self._trail.cookies.get(name, {}),
                "position": reply.headers.get(POSITION_HEADER),
                "session": reply.headers.get(SESSION_HEADER, ""),
                "verify": reply.headers.get(VERIFY_HEADER, "wait"),
                "restart": self._live is not None and self._live.restart,
                "body": reply.body,
            }

        access = await self._step(f"seed {name}", send, replayable=False)
        self._trail.cookies[name] = dict(access["cookies"])
        if access["position"] is not None:  # also where it was recorded before a restore
            self._trail.note_position(name, access["session"], Position.from_header(access["position"]))
        if access["restart"]:
            self._trail.starting_over.add(name)
        handle = self._handles[name] = ResourcesHandle(self, name, access)
        return handle

    async def activate(self, agent: str, body: Any, *, path: str = "/v1/responses") -> Any:
        """The agent's answer to `body` in its session of this episode: a replayable step, the agent parks inside it.

        Raises EpisodeError when the agent's own answer is no success, ParticipantLost when it is gone.
        """
        sessions = {} if self._live is None else self._live.sessions
        known = sessions.get(agent)
        if known is None:
            known = AgentSessions(session_key=self._environment.seams.entropy.token_hex(16), activations=0)
        done = self._activations.get(agent, 0)

        async def send() -> Any:
            return await self._activated(agent, body, path, known.session_key, done + 1)

        answer = await self._step(f"activate {agent}", send, replayable=True)
        self._activations[agent] = done + 1
        sessions[agent] = AgentSessions(session_key=known.session_key, activations=max(known.activations, done + 1))
        return answer

    async def wait(self, label: str, call: Awaitable[Any]) -> Any:
        """The result of one call with an outside effect, as JSON: a waiting step, never cut inside.

        A `Call` gives its reply's body, any other awaitable its value. One that is declared replayable runs again after
        a restore. The call is not sent when the step's result is recorded already.
        """

        async def send() -> Any:
            result = await call
            if isinstance(result, Reply):
                if not result.ok:
                    raise EpisodeError(f"{label}: the server answered {result.status}: {result.body!r}")
                return result.body
            return result

        try:
            return await self._step(label, send, replayable=isinstance(call, Call) and call.replayable)
        finally:
            if inspect.iscoroutine(call):
                call.close()

    def keep(self, state: Any) -> None:
        """`state` (plain JSON) is kept in the episode's boundary from here on."""
        exact(state)
        if self._live is not None:
            self._live.state = state

    @property
    def state(self) -> Any:
        """What `keep` kept, also after a restore."""
        return None if self._live is None else self._live.state

    def finish(self, result: Any, status: int = 200) -> Response:
        """The rollout's answer; its receipt goes into a header."""
        self._finished = True
        self._check()
        return JSONResponse(result, status)

    # --- inside

    def _check(self) -> None:
        if self._live is not None:
            self._environment.fences.check(self._live.episode)

    async def _when_refused(self) -> None:
        """Its call was refused for good. In a step that is quiet it waits until its server is open; in any other its
        server waits for it, so it asks on.
        """
        live = self._live
        if live is not None and live.activity is not None and live.activity.settled:
            await self._environment.admission.opened(live.episode.rollout_id)

    def start_over(self) -> None:
        live = self._live
        if live is not None and not live.restart:
            live.restart = True
            if live.activity is not None:
                live.activity.exempt()

    async def _step(self, label: str, send: Callable[[], Awaitable[Any]], *, replayable: bool) -> Any:
        """The recorded result of this step, or its result now; each step begins at a boundary, where the episode
        parks.
        """
        live = self._live
        if live is None:
            return await send()
        index, self._next = self._next, self._next + 1
        if index < len(live.results):
            recorded = live.results[index]
            if recorded["step"] != label:
                raise EpisodeError(f"step {index} was {recorded['step']!r} before the restore and is {label!r} now")
            if "failure" in recorded:
                raise EpisodeError(recorded["failure"])
            return recorded["result"]
        await self._boundary(live, label)
        self._check()
        live.step(ReplayBegan() if replayable else WaitBegan())
        live.since, live.reason = self._environment.seams.clock.monotonic(), f"step {label!r}"
        try:
            result = await (self._replayable(live, send) if replayable else send())
            canonical(result)
        except EpisodeError as error:  # its handler may go on without it, and must be able to after a restore too
            self._step_ended(live, {"step": label, "failure": str(error)})
            raise
        self._step_ended(live, {"step": label, "result": result})
        return result

    def _step_ended(self, live: LiveEpisode, recorded: dict[str, Any]) -> None:
        live.results.append(recorded)
        live.step(StepEnded())
        live.since, live.reason = self._environment.seams.clock.monotonic(), "between two steps"

    async def _boundary(self, live: LiveEpisode, label: str) -> None:
        if self._environment.admission.is_open or live.restart or live.activity is None:
            return
        live.step(Parked())
        live.since, live.reason = self._environment.seams.clock.monotonic(), f"parked before {label!r}"
        live.activity.settle()
        await live.activity.stir()
        live.step(Released())

    async def _replayable(self, live: LiveEpisode, send: Callable[[], Awaitable[Any]]) -> Any:
        """Quiet while it runs; a reply that comes while the server is closed is recorded only after it opened (I24)."""
        activity = live.activity
        assert activity is not None
        activity.settle()
        try:
            result = await send()
        except Exception:
            await self._reply_held(live, activity)
            raise
        await self._reply_held(live, activity)
        return result

    async def _reply_held(self, live: LiveEpisode, activity: Activity) -> None:
        if not self._environment.admission.is_open and not live.restart:
            live.step(ReplyHeld())
            await activity.stir()
            live.step(Released())
        else:
            await activity.stir()

    async def _activated(self, agent: str, body: Any, path: str, key: str, index: int) -> Any:
        peer = self.client(agent)
        live = self._live
        if live is not None and agent not in self._opened:
            episode_id = {"rollout_id": live.episode.rollout_id, "attempt": live.episode.attempt}
            opening = {"agent_session_id": key, "episode_id": episode_id, "task_id": live.task_digest}
            reply = await peer.post("/v1/agent_sessions", opening)
            if reply.status == NOT_FOUND:
                self.start_over()  # an agent that saves nothing
            elif not reply.ok:
                raise EpisodeError(f"{agent} opened no session: {reply.status} {reply.body!r}")
            else:  # now it has a record there
                live.sessions.setdefault(agent, AgentSessions(session_key=key, activations=0))
            self._opened.add(agent)
        accesses = canonical({name: handle.access | {"body": None} for name, handle in self._handles.items()})
        headers = {ACCESSES_HEADER: accesses.decode("ascii", "strict")}
        if live is not None:
            headers[ACTIVATION_HEADER] = str(index)
        reply = await peer.post(path, body, headers=headers)
        if not reply.ok:
            raise EpisodeError(f"{agent} answered {reply.status}: {reply.body!r}")
        return reply.body

    async def close(self) -> None:
        """The sessions that this episode opened are closed; one that cannot be reached is left to its server."""
        live = self._live
        if live is None:
            for name in self._handles:
                await self._quietly(name, "/close_session", {})
            return
        if live.machine.state in (EpisodeState.ENDED, EpisodeState.TOMBSTONED):
            return
        between = live.machine.state is EpisodeState.RUNNING  # else its handler failed inside a step
        if between:
            live.step(WaitBegan())
        live.reason = "closes its sessions"
        episode_id = {"rollout_id": live.episode.rollout_id, "attempt": live.episode.attempt}
        for agent, session in live.sessions.items():
            body = {"agent_session_id": session.session_key, "episode_id": episode_id}
            await self._quietly(agent, "/v1/agent_sessions/close", body)
        for name in self._handles:
            await self._quietly(name, "/close_session", {})
        if between:
            live.step(StepEnded())

    async def _quietly(self, name: str, path: str, body: Any) -> None:
        try:
            await self.client(name).post(path, body)
        except ParticipantLost as lost:
            self._environment.log.warning("%s: %s", self.id, lost)
