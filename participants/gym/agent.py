"""A Gym agent as a participant: Gym's own loop, which stops at our boundaries and goes on from them.

`/run` runs in the server's own task group, as every `/run` of ours does, and outlives its callers. What the loop needs to
go on is the transcript of its calls (`transcript`). docs/reference/protocol.md sections 4, 6 and 7.
"""

from __future__ import annotations

from typing import Any, Final

from ..identity import EpisodeId
from ..net.http import REQUEST_KEY, ASGIApp, Incoming, Receive, Scope, Send, encode_body, replay
from ..servers.agent import RUN_PATH, SESSION_KEY, Agent
from ..servers.agent_session import LiveSession
from ..servers.asgi import Shell
from ..servers.executions import never
from .inner import PathKept, as_sent, with_body
from .loop import Loop
from .session_cookies import AGENT_SESSION_ID, GymCookies
from .transcript import Transcript

RUN: Final = "run"
ACTIVATION: Final = "activation"


class GymAgent(Agent):
    """The participant around a Gym agent server; `cookie` is the key of its session cookie."""

    def __init__(self, name: str, settings: Any, *, cookie: str, **options: Any) -> None:
        super().__init__(name, settings, **options)
        self.cookies = GymCookies(cookie, AGENT_SESSION_ID)

    def wrap(self, app: ASGIApp) -> ASGIApp:
        return PathKept(Shell(self, _Loops(self, app))) if self.settings.enabled else app


class _Loops:
    """Gym's application inside of the shell: what belongs to a session runs as a loop of it."""

    def __init__(self, agent: GymAgent, app: ASGIApp) -> None:
        self.agent = agent
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        live: LiveSession | None = scope.get(SESSION_KEY) if scope["type"] == "http" else None
        if live is None:
            await self.app(as_sent(scope) if scope["type"] == "http" else scope, receive, send)
            return
        request: Incoming = scope[REQUEST_KEY]
        body = request.body
        inner = as_sent(scope)
        if request.path == RUN_PATH:
            body = as_gym_runs(request.value, body, live.episode)
            inner = with_body(inner, body)
        async with self.agent.session(scope) as session:
            transcript = session.restored(Transcript) or Transcript()
            loop = Loop(session, self.app, dict(inner), self.agent.name, transcript)
            with loop.handler(RUN if request.path == RUN_PATH else ACTIVATION).under_way():
                await self.app(inner, replay(body, never), send)


def as_gym_runs(value: Any, body: bytes, episode: EpisodeId) -> bytes:
    """The body of a `/run` as Gym's agents take it: the task's own fields at the top, the execution beside them.

    A caller that sends Gym's own form already is passed on as it is.
    """
    if not isinstance(value, dict) or "episode_id" not in value or not isinstance(value.get("task"), dict):
        return body
    named = {"_ng_rollout_id": episode.rollout_id, "_ng_attempt_index": episode.attempt}
    return encode_body({**value["task"], **named})
