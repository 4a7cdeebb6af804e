"""A Gym agent as a participant: Gym's own loop, which stops at our boundaries and goes on from them.

`/run` runs in the server's own task group, as every `/run` of ours does, and outlives its callers. What the loop needs
to go on is the transcript of its calls (`transcript`). Sessions that an environment opens are kept twice, by Gym and by
us; after a restore Gym's half is opened again, by the body that opened it. Gym's loop calls a session's tools past its
own client, at the addresses that it was given: it is given ours. docs/reference/protocol.md sections 4, 6 and 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final

from statecore.wire import parse, sha256_hex

from ..identity import EpisodeId
from ..net.http import (
    REQUEST_KEY,
    ASGIApp,
    Incoming,
    Receive,
    Scope,
    Send,
    encode_body,
    refuse_request,
    replay,
    send_bytes,
)
from ..servers.agent import OPEN_PATH, RUN_PATH, SESSION_KEY, Agent
from ..servers.agent_session import LiveSession
from ..servers.asgi import Shell
from ..servers.executions import ParticipantLost, Response, never
from .handlers import under_way
from .inner import PathKept, as_sent, captured, with_body
from .likeness import server_of, without_addresses
from .loop import Loop, LoopHandler, own_scope
from .session_cookies import AGENT_SESSION_ID, GymCookies
from .transcript import Transcript

RUN: Final = "run"
ACTIVATION: Final = "activation"
TOOLS_PATH: Final = "/ng-statecore/tools/"
"""Where Gym's loop finds the tools of a session: ``<session>/<access>/<tool>`` behind it."""


class GymAgent(Agent):
    """The participant around a Gym agent server; `cookie` is the key of its session cookie."""

    def __init__(self, name: str, settings: Any, *, cookie: str, **options: Any) -> None:
        super().__init__(name, settings, **options)
        self.cookies = GymCookies(cookie, AGENT_SESSION_ID)
        self.handlers: dict[str, tuple[LiveSession, LoopHandler]] = {}  # of activations under way, by session
        self._open_in_gym: set[tuple[EpisodeId, str]] = set()

    def wrap(self, app: ASGIApp) -> ASGIApp:
        return PathKept(Shell(self, _Loops(self, app))) if self.settings.enabled else app

    async def data(self, request: Incoming, send: Send, app: ASGIApp) -> None:
        if request.path.startswith(TOOLS_PATH):
            await self._tool(request, send)
        else:
            await super().data(request, send, app)

    async def retire(self, episodes: Sequence[EpisodeId]) -> None:
        await super().retire(episodes)
        self._open_in_gym = {each for each in self._open_in_gym if each in self._sessions}

    # --- sessions of an environment

    async def _open(self, request: Incoming, app: ASGIApp, send: Send) -> None:
        live = self._opened(request)
        asked = parse(without_addresses(request.body, self.settings.servers))
        is_new = live.opened is None
        if is_new:
            live.opened = asked
        response = await self._in_gym(live, asked, request.scope, app)  # of one sent again Gym says if it is the same
        if is_new and not 200 <= response.status < 300:
            self._sessions.pop((live.episode, live.key), None)
        await send_bytes(send, response.status, response.body, response.headers)

    async def _in_gym(self, live: LiveSession, opened: Any, scope: Scope, app: ASGIApp) -> Response:
        """Gym's reply to the opening of a session: its half is there, with the addresses of tools that are ours."""
        opening, all_ours = self._with_our_tools(live, opened)
        if not all_ours:
            live.restart = True  # its loop calls somebody past us
        body = encode_body(opening)
        response = await captured(app, own_scope(scope, OPEN_PATH, body, {}), body)
        if 200 <= response.status < 300:
            self._open_in_gym.add((live.episode, live.key))
        return response

    def _with_our_tools(self, live: LiveSession, opened: Any) -> tuple[dict[str, Any], bool]:
        """The body that opened the session, for this attempt and with our addresses; and whether all tools have one."""
        own = self.settings.servers.get(self.name, "").rstrip("/")
        accesses, all_ours = [], True
        for access in opened.get("tool_accesses") or ():
            server = server_of(str(access.get("base_url"))) if access.get("kind") == "direct_http" else None
            all_ours = all_ours and bool(own) and server in self.settings.servers
            ours = {"base_url": f"{own}{TOOLS_PATH}{token_of(live)}/{access['name']}"} if all_ours else {}
            accesses.append({**access, **ours})
        episode = {"rollout_id": live.episode.rollout_id, "attempt": live.episode.attempt}
        return {**opened, "episode_id": episode, "tool_accesses": accesses}, all_ours

    async def reopened(self, live: LiveSession, scope: Scope, app: ASGIApp) -> None:
        """Gym has its half of the session, also in a process that has only restored it."""
        if live.opened is None or (live.episode, live.key) in self._open_in_gym:
            return
        response = await self._in_gym(live, live.opened, scope, app)
        if not 200 <= response.status < 300:
            raise ParticipantLost(f"{self.name}: the session cannot be opened again: HTTP {response.status}")

    async def _close(self, request: Incoming, app: ASGIApp, send: Send) -> None:
        await self._given_up(request)
        live = self._to_close(request)
        if live is not None:
            await self.reopened(live, request.scope, app)
        response = await captured(app, request.scope, request.body)
        if live is not None and 200 <= response.status < 300:
            self._sessions.pop((live.episode, live.key), None)
            self._open_in_gym.discard((live.episode, live.key))
        await send_bytes(send, response.status, response.body, response.headers)

    async def _given_up(self, request: Incoming) -> None:
        """An activation whose episode closes its session is over: on a plain server it ended when its caller left."""
        named = request.value if isinstance(request.value, dict) else {}
        live = self._sessions.get((request.episode, str(named.get("agent_session_id")))) if request.episode else None
        if live is not None and live.last is not None and not live.last.done.is_set():
            live.last.cancel.cancel()
            await live.last.done.wait()

    async def _tool(self, request: Incoming, send: Send) -> None:
        """A tool call of an activation's loop: made as every call of it, under the next number of its transcript.

        What is no answer is none here either: the loop fails when it comes back, whatever it makes of this one.
        """
        token, _, rest = request.path.removeprefix(TOOLS_PATH).partition("/")
        access_name, _, tool = rest.partition("/")
        live, handler = self.handlers.get(token, (None, None))
        if live is None or handler is None:
            raise refuse_request("session_lost", "no activation of that session is under way")
        access = next(each for each in live.opened["tool_accesses"] if each["name"] == access_name)
        server = server_of(str(access["base_url"]))
        assert server is not None, "only the tools of servers that are known are given our address"
        headers = {name: str(value) for name, value in (access.get("headers") or {}).items()}
        try:
            response = await handler.post(server, f"/{tool}", request.body, cookies_of(request), headers)
        except ParticipantLost as lost:
            raise refuse_request("participant_lost", str(lost)) from lost
        await send_bytes(send, response.status, response.body, response.headers)


class _Loops:
    """Gym's application inside of the shell: what belongs to a session runs as a loop of it."""

    def __init__(self, agent: GymAgent, app: ASGIApp) -> None:
        self.agent = agent
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        live: LiveSession | None = scope.get(SESSION_KEY) if scope["type"] == "http" else None
        if live is None:
            await self.app(scope, receive, send)  # Gym's agents know a prefix at `/v1/responses` alone
            return
        request: Incoming = scope[REQUEST_KEY]
        body = request.body
        inner = as_sent(scope)
        is_run = request.path == RUN_PATH
        if is_run:
            body = as_gym_runs(request.value, body, live.episode)
            inner = with_body(inner, body)
        else:
            await self.agent.reopened(live, scope, self.app)
        async with self.agent.session(scope) as session:
            transcript = session.restored(Transcript) or Transcript()
            loop = Loop(session, self.app, dict(inner), self.agent.name, transcript)
            handler = LoopHandler(loop, RUN if is_run else ACTIVATION)
            if not is_run:
                self.agent.handlers[token_of(live)] = live, handler
            try:
                with under_way(handler):
                    await self.app(inner, replay(body, never), send)
            finally:
                if not is_run:
                    self.agent.handlers.pop(token_of(live), None)
            loop.failing.check()


def token_of(live: LiveSession) -> str:
    """The session in a path, whatever its key is made of."""
    return sha256_hex(f"{live.episode.key} {live.key}".encode())[:32]


def as_gym_runs(value: Any, body: bytes, episode: EpisodeId) -> bytes:
    """The body of a `/run` as Gym's agents take it: the task's own fields at the top, the execution beside them.

    A caller that sends Gym's own form already is passed on as it is.
    """
    if not isinstance(value, dict) or "episode_id" not in value or not isinstance(value.get("task"), dict):
        return body
    named = {"_ng_rollout_id": episode.rollout_id, "_ng_attempt_index": episode.attempt}
    return encode_body({**value["task"], **named})


def cookies_of(request: Incoming) -> dict[str, str]:
    """The cookies of a request by name; none of a header that cannot be read."""
    try:
        return {name: each.value for name, each in SimpleCookie(request.headers.get("cookie", "")).items()}
    except CookieError:
        return {}
