"""Gym's own application, as the embedded layer calls it: with the path as it came, and its whole reply at hand.

Gym recovers the rollout from a prefix of the path, which our shell takes off; so the path is remembered outside and put
back inside. What Gym's handlers raise becomes the reply that Gym's own outermost layer would make of it.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from ..identity import RUN_PREFIX
from ..net.http import JSON_TYPE, ASGIApp, Incoming, Receive, Scope, Send, encode_body, replay
from ..servers.executions import Capture, Response, never

log = logging.getLogger("statecore.participants.gym")

PATH_KEY: Final = "statecore.gym.path"


class PathKept:
    """Outside of the shell: the path as the caller sent it stays known."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, PATH_KEY: (scope["path"], scope.get("raw_path"))}
        await self.app(scope, receive, send)


class AsSent:
    """Inside of the shell: Gym sees the path as the caller sent it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(as_sent(scope), receive, send)


def behind_rollout(path: str) -> str:
    """A path of Gym's without the rollout that it may begin with; what asks for a capture of tokens stays."""
    if not path.startswith(RUN_PREFIX):
        return path
    return "/" + path.removeprefix(RUN_PREFIX).partition("/")[2]


def as_sent(scope: Scope) -> Scope:
    """The scope as Gym is to see it: the path of a request is the caller's again."""
    if PATH_KEY not in scope:
        return scope
    path, raw = scope[PATH_KEY]
    return {**scope, "path": path, "raw_path": path.encode() if raw is None else raw}


async def answered(app: ASGIApp, request: Incoming) -> Response:
    """Gym's reply to a request, whatever its handler does; a caller that leaves does not end it."""
    return await captured(app, as_sent(request.scope), request.body)


async def captured(app: ASGIApp, scope: Scope, body: bytes) -> Response:
    """The reply of `app` to `body`; an exception is a 500 with its text, as Gym itself answers it."""
    capture = Capture()
    try:
        await app(scope, replay(body, never), capture)
    except Exception as error:
        log.exception("%s failed", scope["path"])
        return Response(500, (JSON_TYPE,), encode_body(repr(error)))
    return capture.response


def with_body(scope: Scope, body: bytes) -> Scope:
    """The scope of the same request with another body."""
    headers: list[Any] = [(name, value) for name, value in scope["headers"] if name.lower() != b"content-length"]
    return {**scope, "headers": [*headers, (b"content-length", str(len(body)).encode())]}
