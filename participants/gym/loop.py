"""An agent's handlers under way: their calls are recorded, answered again after a restore, and stop at boundaries.

The boundary is before each model call but the first: the turn before it is finished, and everything that it learned is
in the transcript. Calls go out through the session's own client, so that they carry the rollout, an operation id and
the epoch, ask again where a server is closed, and make no answer of a server that is gone.
docs/reference/protocol.md sections 4, 6 and 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field

from ..identity import VERIFY_HEADER
from ..net.http import ASGIApp, Scope, refuse_request, replay
from ..servers.agent_records import KeptReply
from ..servers.agent_session import Session
from ..servers.executions import Capture, Response, never
from ..servers.peers import is_model_path
from ..servers.resources import SEED_PATHS
from .handlers import Failing, field_of, kept_of, under_way
from .inner import behind_rollout
from .transcript import Asked, OtherCall, Transcript, digest_of, usage_and


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
    failing: Failing = field(factory=Failing)


@define(eq=False)
class LoopHandler:
    """One handler of a loop, and which of its calls is next."""

    loop: Loop
    track: str
    next: int = 0

    def start_over(self) -> None:
        self.loop.session.start_over()

    async def post(
        self,
        server: str,
        path: str,
        body: bytes,
        cookies: Mapping[str, str],
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """The answer to the next call of this handler: the recorded one, or a new one, which is recorded."""
        self.loop.failing.check()
        with self.loop.failing.noted():
            return await self._answer(server, path, body, cookies, headers)

    async def _answer(
        self, server: str, path: str, body: bytes, cookies: Mapping[str, str], headers: Mapping[str, str] | None
    ) -> Response:
        loop = self.loop
        sent_path, path = path, behind_rollout(path)
        asked = Asked(server, path, digest_of(body))
        if loop.busy and server != loop.own:
            self.start_over()  # calls at once have no order in which they could be answered again
        index, self.next = self.next, self.next + 1
        try:
            known = loop.transcript.answer(self.track, index, asked)
        except OtherCall as other:
            raise refuse_request("participant_lost", f"this loop cannot be continued: {other}") from other
        if known is not None:
            response = known.response()
        else:
            if server == loop.own:
                response = await self._own(sent_path, body, cookies, index)
            else:
                response = await self._peer(server, path, body, cookies, headers)
            if response.is_text:
                loop.transcript = loop.transcript.with_call(self.track, asked, KeptReply.of(response))
            else:
                self.start_over()
            loop.unsaved = True
        if is_model_path(path) and server != loop.own:
            loop.turns += 1
            loop.usage = usage_and(loop.usage, field_of(response.body, "usage"))
        return response

    async def _peer(
        self, server: str, path: str, body: bytes, cookies: Mapping[str, str], headers: Mapping[str, str] | None
    ) -> Response:
        loop = self.loop
        if is_model_path(path) and loop.turns and loop.unsaved:
            items = field_of(body, "input")
            await loop.session.boundary(loop.transcript.to_json(), items=items, usage=loop.usage)
            loop.unsaved = False
        peer = loop.session.client(server)
        if cookies:
            peer.trail.cookies[server] = {**peer.trail.cookies.get(server, {}), **cookies}
        loop.busy = True
        try:
            reply = await peer.post(path, body, headers=headers)
        finally:
            loop.busy = False
        if path in SEED_PATHS and reply.ok and VERIFY_HEADER not in reply.headers:
            self.start_over()  # it takes no part in checkpoints, so what it keeps would be missing
        return kept_of(reply)

    async def _own(self, path: str, body: bytes, cookies: Mapping[str, str], index: int) -> Response:
        """The answer of this server's own route: called here, as a handler of its own inside of this one."""
        capture = Capture()
        with under_way(LoopHandler(self.loop, f"{self.track}/{index}")):
            await self.loop.app(own_scope(self.loop.scope, path, body, cookies), replay(body, never), capture)
        return capture.response


def own_scope(scope: Scope, path: str, body: bytes, cookies: Mapping[str, str]) -> Scope:
    """The scope of a POST that a server makes to a route of its own, made of the one of another request."""
    headers = [
        (b"host", b"self"),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    if cookies:
        value = "; ".join(f"{name}={each}" for name, each in cookies.items())
        headers.append((b"cookie", value.encode("latin-1")))
    return {**scope, "method": "POST", "path": path, "raw_path": path.encode(), "headers": headers}
