"""A Gym environment server as a participant: each call of its episode is a step, with the result on record.

After a restore Gym's own handler runs from the top. A call whose result is on record gets it and goes nowhere; the
agent's activation counts at the boundary before it, and goes on inside the agent. The episode's deadline stands still
while the server is closed. docs/reference/protocol.md sections 4, 6 and 7.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Mapping
from http.cookies import SimpleCookie
from typing import Any, Final

import httpx
from attrs import define, field

from statecore import WireError
from statecore.wire import canonical, parse, structure, unstructure

from ..identity import (
    ACCESSES_HEADER,
    ACTIVATION_HEADER,
    POSITION_HEADER,
    RESTART_HEADER,
    SESSION_HEADER,
    VERIFY_HEADER,
)
from ..net.http import REQUEST_KEY, ASGIApp, Incoming, Receive, Scope, Send, refuse_request, replay
from ..records.records import AgentSessions
from ..servers.agent import CLOSE_PATH, OPEN_PATH
from ..servers.agent_records import KeptReply
from ..servers.asgi import Shell
from ..servers.environment import EPISODE_KEY, Environment
from ..servers.episode import Call, Episode, LiveEpisode
from ..servers.executions import Response, never
from ..servers.modes import Mode
from ..servers.peers import is_model_path
from ..servers.resources import SEED_PATHS
from ..settings import Seams, Settings
from .handlers import Failing, handler_under_way, kept_of, under_way
from .inner import PathKept, as_sent, behind_rollout
from .likeness import new_names, renamed, without_addresses


class GymEnvironment(Environment):
    """The participant around a Gym environment server."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        *,
        mode: Mode = Mode.EXPORT_RESTORE,
        limit_s: float | None = None,
        seams: Seams | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.mode = mode
        self.limit_s = limit_s
        self.checkpoint_mode = mode.value
        self._deadlines: set[Deadline] = set()
        super().__init__(name, settings, seams=seams, transport=transport)

    def wrap(self, app: ASGIApp) -> ASGIApp:
        return PathKept(Shell(self, _Episodes(self, app))) if self.settings.enabled else app

    def _on_change(self) -> None:
        super()._on_change()
        for deadline in self._deadlines:
            deadline.note(self.admission.is_open)

    async def within_limit(self, run: Awaitable[Any]) -> Any:
        """What `run` gives, within its limit of the time for which this server is open (I64).

        Beyond it the failure that Gym makes of its own deadline.
        """
        if self.limit_s is None:
            return await run
        deadline = Deadline(self.limit_s)
        self._deadlines.add(deadline)
        try:
            async with deadline.timeout:
                deadline.note(self.admission.is_open)
                return await run
        except TimeoutError:
            if not deadline.timeout.expired():
                raise
            gym: Any = importlib.import_module("nemo_gym.base_environment_server")
            types: Any = importlib.import_module("nemo_gym.episode_types")
            failure = types.EpisodeFailure(failure_reason="Episode timed out", terminal=False)
            raise gym.HandledEpisodeError(failure) from None
        finally:
            self._deadlines.discard(deadline)


class Deadline:
    """A timeout that stands still while its server is closed. Gym's servers run on asyncio, and so does this."""

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds
        self._runs = False
        self.timeout = asyncio.timeout(None)

    def note(self, is_open: bool) -> None:
        """The server is open, or closed."""
        if is_open == self._runs or self.timeout.expired():
            return
        now = asyncio.get_running_loop().time()
        if is_open:
            self.timeout.reschedule(now + self._left_s)
        else:
            ends = self.timeout.when()
            assert ends is not None, "it runs"
            self._left_s = max(0.0, ends - now)
            self.timeout.reschedule(None)
        self._runs = is_open


@define(eq=False)
class EpisodeHandler:
    """Gym's handler of one episode: its calls are the episode's steps."""

    environment: GymEnvironment
    episode: Episode
    live: LiveEpisode
    failing: Failing = field(factory=Failing)
    _names: dict[str, str] = field(factory=dict)
    _next: int = 0
    _cut: bool = False
    _accesses: dict[str, dict[str, Any]] = field(factory=dict)
    _activations: dict[str, int] = field(factory=dict)

    def start_over(self) -> None:
        self.episode.start_over()

    async def entered(self) -> None:
        """Gym has begun the episode, which may have waited for its turn: until now it stood."""
        activity = self.live.activity
        if activity is not None:
            await activity.stir()

    async def post(self, server: str, path: str, body: bytes, cookies: Mapping[str, str]) -> Response:
        """The answer to the next call of this episode: the recorded one, or a new one, which is recorded."""
        self.failing.check()
        path = behind_rollout(path)
        with self.failing.noted():
            if self._cut:
                return (await self._sent(server, path, renamed(body.decode(), self._names).encode(), cookies))[0]
            try:
                return await self._answer(server, path, body, cookies)
            except asyncio.CancelledError:
                self._cut = True  # by its deadline: it cleans up now, and no step of it can be recorded any more
                self.start_over()
                raise

    async def _answer(self, server: str, path: str, body: bytes, cookies: Mapping[str, str]) -> Response:
        servers = self.environment.settings.servers
        asked = _json(without_addresses(body, servers))
        index, self._next = self._next, self._next + 1
        recorded = index < len(self.live.results)
        if recorded:
            self._recognised(index, asked)
        sent = renamed(body.decode(), self._names).encode()

        async def send() -> dict[str, Any]:
            response, headers = await self._sent(server, path, sent, cookies)
            told = {name: headers[name] for name in TOLD if name in headers}
            said = _json(without_addresses(sent, servers))
            return {"asked": said, "reply": unstructure(KeptReply.of(response)), "told": told}

        label = f"{server} {path}"
        result = await self.episode.wait(label, Call(send, replayable=is_model_path(path)))
        reply = structure(result["reply"], KeptReply)
        if 200 <= reply.status < 300:
            if path in SEED_PATHS:
                self._seeded(server, reply, result["told"])
            elif not recorded:  # after a restore the sessions are back already, as they were at the boundary
                self._held(server, path, asked)
        if is_model_path(path):
            self._activations[server] = self._activations.get(server, 0) + 1
        old = {known: new for new, known in self._names.items()}
        return Response(reply.status, reply.headers, renamed(reply.body, old).encode())

    def _recognised(self, index: int, asked: Any) -> None:
        """The recorded step is this call, under the names that were drawn when it was made."""
        recorded = self.live.results[index]
        names = new_names(recorded["result"]["asked"], asked) if "result" in recorded else None
        if names is None:
            detail = f"this episode cannot be continued: call {index} is another one than it was before the restore"
            raise refuse_request("participant_lost", detail)
        self._names |= {new: old for new, old in names.items() if new != old}

    async def _sent(
        self, server: str, path: str, body: bytes, cookies: Mapping[str, str]
    ) -> tuple[Response, Mapping[str, str]]:
        peer = self.episode.client(server)
        if cookies:
            peer.trail.cookies[server] = {**peer.trail.cookies.get(server, {}), **cookies}
        headers = {}
        if is_model_path(path):
            headers[ACTIVATION_HEADER] = str(self._activations.get(server, 0) + 1)
            headers[ACCESSES_HEADER] = canonical(self._accesses).decode("ascii", "strict")
        reply = await peer.post(path, body, headers=headers)
        if path in SEED_PATHS and reply.ok and VERIFY_HEADER not in reply.headers:
            self.start_over()  # it takes no part in checkpoints, so what it keeps would be missing
        if path == OPEN_PATH and reply.ok and reply.headers.get(RESTART_HEADER) == "1":
            self.start_over()
        return kept_of(reply), reply.headers

    def _seeded(self, server: str, reply: KeptReply, told: Mapping[str, str]) -> None:
        """What the agent is told of a session that this episode has seeded."""
        jar: dict[str, str] = {}
        for name, value in reply.headers:
            if name == "set-cookie":
                jar |= _cookies(value)
        self._accesses[server] = {
            "cookies": jar,
            "position": told.get(POSITION_HEADER),
            "session": told.get(SESSION_HEADER, ""),
            "verify": told.get(VERIFY_HEADER, "wait"),
            "restart": told.get(RESTART_HEADER) == "1",
            "body": None,
        }

    def _held(self, server: str, path: str, asked: Any) -> None:
        """What a checkpoint must find of this episode at an agent; nothing any more where the session is closed."""
        if path == OPEN_PATH:
            key = renamed(str(asked.get("agent_session_id", "")), self._names)
            self.live.sessions.setdefault(server, AgentSessions(session_key=key, activations=0))
        elif path == CLOSE_PATH:
            self.live.sessions.pop(server, None)
        elif is_model_path(path) and server in self.live.sessions:
            known = self.live.sessions[server]
            done = max(known.activations, self._activations.get(server, 0) + 1)
            self.live.sessions[server] = AgentSessions(session_key=known.session_key, activations=done)


TOLD: Final = (POSITION_HEADER, SESSION_HEADER, VERIFY_HEADER, RESTART_HEADER)


class _Episodes:
    """Gym's application inside of the shell: a `/run` is an episode of the environment."""

    def __init__(self, environment: GymEnvironment, app: ASGIApp) -> None:
        self.environment = environment
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        live: LiveEpisode | None = scope.get(EPISODE_KEY) if scope["type"] == "http" else None
        if live is None:
            await self.app(as_sent(scope), receive, send)
            return
        request: Incoming = scope[REQUEST_KEY]
        async with self.environment.episode(scope) as episode:
            handler = EpisodeHandler(self.environment, episode, live)
            if self.environment.mode is not Mode.EXPORT_RESTORE:
                episode.start_over()
            elif live.activity is not None:
                live.activity.settle()  # Gym may let it wait for its turn
            try:
                with under_way(handler):
                    await self.app(as_sent(scope), replay(request.body, never), send)
            finally:
                live.sessions.clear()  # Gym has closed them itself
            await handler.entered()
            handler.failing.check()


def episodes_stand_still(cls: Any) -> None:
    """The `run` of a Gym environment server class keeps to a limit of ours, that stands still while it is closed.

    Gym's own deadline is around it and cannot be moved: it is taken out of the configuration of a server with
    checkpointing on. Gym starts Ray for a server that does not say whether it needs it; environment servers do not.
    """
    its_run = cls.run
    if cls.ray_enabled is None:
        cls.ray_enabled = False

    async def run(self: Any, request: Any, cleanup: Any) -> Any:
        handler = handler_under_way()
        if not isinstance(handler, EpisodeHandler):
            return await its_run(self, request, cleanup)
        await handler.entered()
        return await handler.environment.within_limit(its_run(self, request, cleanup))

    cls.run = run


def _json(body: bytes) -> Any:
    try:
        return parse(body) if body else None
    except WireError as error:
        raise refuse_request("checkpoint_error", f"an episode's call must be JSON to be recorded: {error}") from error


def _cookies(header: str) -> dict[str, str]:
    return {name: each.value for name, each in SimpleCookie(header).items()}
