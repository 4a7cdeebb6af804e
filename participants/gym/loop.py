"""A Gym handler under way: its calls are recorded, answered from the record after a restore, and stop at boundaries.

The boundary is before each model call but the first: the turn before it is finished, and everything that it learned is in
the transcript. Calls go out through the session's own client, so that they carry the rollout, an operation id and the
epoch, ask again where a server is closed, and make no answer of a server that is gone.
docs/reference/protocol.md sections 4, 6 and 7.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from attrs import define, field

from statecore import WireError
from statecore.wire import parse, unstructure

from ..identity import VERIFY_HEADER, split_prefix
from ..net.http import ASGIApp, Scope, refuse_request
from ..servers.agent_records import KeptReply
from ..servers.agent_session import Session
from ..servers.executions import Capture, Response, never
from ..servers.peers import Reply, is_model_path
from ..servers.resources import SEED_PATHS
from .answer import GymAnswer
from .transcript import Asked, OtherCall, Transcript, digest_of, usage_and

_HANDLER: ContextVar[Handler | None] = ContextVar("statecore.gym.handler", default=None)


def handler_under_way() -> Handler | None:
    """The handler that makes this call, if it is one whose calls are recorded."""
    return _HANDLER.get()


@define(eq=False)
class Loop:
    """One rollout's handlers: a `/run` with what it calls of its own server, or one activation.

    `app` is Gym's application, `scope` the request that began it; `own` is the name of this server.
    """

    session: Session
    app: ASGIApp
    scope: Scope
    own: str
    transcript: Transcript
    usage: Any = None
    turns: int = 0
    unsaved: bool = False
    busy: bool = False

    def handler(self, track: str) -> Handler:
        return Handler(self, track)


@define(eq=False)
class Handler:
    """One handler of a loop, and which of its calls is next."""

    loop: Loop
    track: str
    next: int = field(default=0)

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Calls that are made inside are this handler's."""
        token = _HANDLER.set(self)
        try:
            yield
        finally:
            _HANDLER.reset(token)

    async def post(self, server: str, path: str, body: bytes, cookies: Mapping[str, str]) -> GymAnswer:
        """The answer to the next call of this handler: the recorded one, or a new one, which is recorded."""
        loop = self.loop
        path = split_prefix(path)[1]
        asked = Asked(server, path, digest_of(body))
        if loop.busy and server != loop.own:
            loop.session.start_over()  # calls at once have no order in which they could be answered again
        index, self.next = self.next, self.next + 1
        try:
            known = loop.transcript.answer(self.track, index, asked)
        except OtherCall as other:
            raise refuse_request("participant_lost", f"this loop cannot be continued: {other}") from other
        if known is None:
            response = await self._made(server, path, body, cookies, index)
            if response.is_text:
                loop.transcript = loop.transcript.with_call(self.track, asked, KeptReply.of(response))
            else:
                loop.session.start_over()
            loop.unsaved = True
        else:
            response = known.response()
        if is_model_path(path) and server != loop.own:
            loop.turns += 1
            loop.usage = usage_and(loop.usage, _field(response.body, "usage"))
        return GymAnswer(server, path, response)

    async def _made(self, server: str, path: str, body: bytes, cookies: Mapping[str, str], index: int) -> Response:
        loop = self.loop
        if server == loop.own:
            return await self._own(path, body, cookies, index)
        if is_model_path(path) and loop.turns and loop.unsaved:
            items = _field(body, "input")
            await loop.session.boundary(unstructure(loop.transcript), items=items, usage=loop.usage)
            loop.unsaved = False
        peer = loop.session.client(server)
        if cookies:
            peer.trail.cookies[server] = {**peer.trail.cookies.get(server, {}), **cookies}
        loop.busy = True
        try:
            reply = await peer.post(path, body)
        finally:
            loop.busy = False
        if path in SEED_PATHS and reply.ok and VERIFY_HEADER not in reply.headers:
            loop.session.start_over()  # it takes no part in checkpoints, so what it keeps would be missing
        return _response(reply)

    async def _own(self, path: str, body: bytes, cookies: Mapping[str, str], index: int) -> Response:
        """The answer of this server's own route: called here, as a handler of its own inside of this one."""
        capture = Capture()
        inside = self.loop.handler(f"{self.track}/{index}")
        given = False

        async def receive() -> Any:
            nonlocal given
            if given:
                return await never()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        with inside.under_way():
            await self.loop.app(_scope(self.loop.scope, path, body, cookies), receive, capture)
        return capture.response


def _scope(scope: Scope, path: str, body: bytes, cookies: Mapping[str, str]) -> Scope:
    headers = [
        (b"host", b"self"),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    if cookies:
        value = "; ".join(f"{name}={each}" for name, each in cookies.items())
        headers.append((b"cookie", value.encode("latin-1")))
    return {**scope, "method": "POST", "path": path, "raw_path": path.encode(), "headers": headers}


def _response(reply: Reply) -> Response:
    """A peer's reply as a handler may read it again: status, body, kind of content and cookies."""
    headers = [("content-type", reply.headers.get("content-type", "application/json"))]
    headers += [("set-cookie", value) for value in reply.set_cookies]
    return Response(reply.status, tuple(headers), reply.content)


def _field(body: bytes, name: str) -> Any:
    try:
        value = parse(body)
    except WireError:
        return None
    return value.get(name) if isinstance(value, dict) else None
