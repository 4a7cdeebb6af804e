"""A Gym resources server as a participant: its own routes and its own session cookie, our admission and our records.

A session is bound to its rollout when it is seeded; tools name it by the cookie alone. What a handler does to its state
is one change of position, whatever it replies: the reply of an operation that is sent again is the recorded one, also
that of a seed. A call runs to its end when its caller leaves, since half a change has no position.
docs/reference/protocol.md sections 2, 3, 4, 6 and 13.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio

from statecore import Refused, WireError
from statecore.wire import encode, parse, structure, unstructure

from ..identity import OPERATION_HEADER, RESTART_HEADER, SESSION_HEADER, VERIFY_HEADER, EpisodeId, highest_attempts
from ..machines.resource_session import (
    RESOURCE_SESSION,
    Mutated,
    Operation,
    Seeded,
    SessionData,
    VerifyFailed,
    VerifyStarted,
    VerifySucceeded,
)
from ..net.http import REQUEST_KEY, ASGIApp, Incoming, Receive, Scope, Send, refuse_request, send_bytes
from ..servers.agent_records import KeptReply
from ..servers.asgi import Shell
from ..servers.executions import Response
from ..servers.modes import Mode
from ..servers.resources import CLOSE_PATH, SEED_PATHS, VERIFY_PATH, Resources, Staged, Verify, check_admitted
from ..servers.session_book import Session
from ..settings import Seams, Settings
from .held import Held, Slot
from .inner import PathKept, answered, as_sent
from .session_cookies import GymCookies


class GymResources(Resources[Slot]):
    """The participant around `server`, an instance of a Gym resources server.

    `held` says where its sessions are; None for a server without a codec. `cookie` is the key of its session cookie.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        server: Any,
        *,
        held: Held | None,
        cookie: str,
        mode: Mode,
        verify: Verify = Verify.WAIT,
        seams: Seams | None = None,
    ) -> None:
        codec = None if held is None else held.codec
        super().__init__(name, settings, codec=codec, mode=mode, verify=verify, seams=seams)
        self.cookies = self.gym_cookies = GymCookies(cookie)
        self._server = server
        self._held = held
        self._seeding: dict[EpisodeId, anyio.Lock] = {}
        self._running: set[tuple[EpisodeId | None, anyio.CancelScope]] = set()

    def wrap(self, app: ASGIApp) -> ASGIApp:
        return PathKept(Shell(self, _Sessions(self, app))) if self.settings.enabled else app

    # --- one request, admitted

    async def serve_session(self, request: Incoming, app: ASGIApp, send: Send) -> None:
        """Gym's reply to an admitted request, with where its session stands."""
        if request.path in SEED_PATHS:
            response = await self._seed(request, app)
        elif self.mode is not Mode.EXPORT_RESTORE:
            response = await self._call(request, app)
        elif request.path == VERIFY_PATH:
            response = await self._verify(request, app)
        elif request.path == CLOSE_PATH:
            response = await self._close(request, app)
        else:
            response = await self._change(request, app)
        await send_bytes(send, response.status, response.body, response.headers)

    async def _seed(self, request: Incoming, app: ASGIApp) -> Response:
        episode = request.episode
        headers = [(VERIFY_HEADER, self.verify_policy.value)]
        if self.mode.wire == "restart_only":
            headers.append((RESTART_HEADER, "1"))
        if self.mode is Mode.STATELESS or episode is None:
            return _with(await self._call(request, app), headers)
        lock = self._seeding.setdefault(episode, anyio.Lock())
        async with lock:
            try:
                session, response = await self._session_seeded(episode, request, app)
            finally:
                if not lock.statistics().tasks_waiting:  # else the next seed would not wait for those
                    del self._seeding[episode]
        if session is not None:
            headers += [*self._position(session).items(), (SESSION_HEADER, session.session_id)]
        return _with(response, headers)

    async def _session_seeded(
        self, episode: EpisodeId, request: Incoming, app: ASGIApp
    ) -> tuple[Session[Slot] | None, Response]:
        """The session, if the seed made one, and Gym's reply; for a seed that is sent again those of the first."""
        operation_id = request.headers.get(OPERATION_HEADER, "")
        seed = Seeded(self.seams.entropy.token_hex(16), operation_id)
        known = self._book.of(episode)
        if known is not None:
            known.step(seed)  # the same seed again, or Refused
            assert known.seeded is not None, "only a seed of this process is sent again, and it is recorded"
            return known, _kept(known.seeded)
        self.check_may_seed(request, episode)
        response = await self._call(request, app)
        session_id = self.gym_cookies.set_in(response.headers)
        if not 200 <= response.status < 300 or session_id is None:
            return None, response
        machine = RESOURCE_SESSION.start(SessionData(max_operations=self.settings.max_operations))
        session = Session(session_id, episode, self._state(session_id), machine, self.steps)
        with self._codec_holds():
            self._prove(session.state)
        session.step(seed)
        session.seeded = Operation(operation_id, _keep(response))
        self._book.add(session)
        self.refusals.done(episode, operation_id)
        return session, response

    async def _change(self, request: Incoming, app: ASGIApp) -> Response:
        session = self._session(request)
        if session is None:  # a caller without a rollout: nothing of it is ever saved
            return await self._call(request, app)
        operation_id = request.headers.get(OPERATION_HEADER) or self.seams.entropy.token_hex(16)
        async with session.lock:
            self._use(session, request)
            done = session.machine.data.applied(operation_id)
            if done is not None:
                return self._standing(session, _kept(done))
            check_admitted(request)
            response = await self._call(request, app)
            self._note_state(session)
            session.step(Mutated(operation_id, _keep(response)))
            self.refusals.done(session.episode, operation_id)
            return self._standing(session, response)

    async def _verify(self, request: Incoming, app: ASGIApp) -> Response:
        session = self._session(request)
        if session is None:
            return await self._call(request, app)
        operation_id = request.headers.get(OPERATION_HEADER, "")
        async with session.lock:
            if session.verified is not None and operation_id == session.verified.operation_id:
                return self._standing(session, _kept(session.verified))
            check_admitted(request)
            self._use(session, request)
            if self.verify_policy is Verify.REPLAY:
                return self._standing(session, await self._call(request, app))
            session.step(VerifyStarted())
            response = await self._call(request, app)
            self._note_state(session)
            if 200 <= response.status < 300:
                session.verified = Operation(operation_id, _keep(response))
                session.step(VerifySucceeded())
                self.refusals.done(session.episode, operation_id)
            else:
                session.step(VerifyFailed())
            return self._standing(session, response)

    async def _close(self, request: Incoming, app: ASGIApp) -> Response:
        operation_id = request.headers.get(OPERATION_HEADER)
        if request.recorded_only or (operation_id and self._book.has_closed(self._owner(request), operation_id)):
            return _closed(request)
        session = self._known(request)
        if session is None:
            return await self._call(request, app)
        async with session.lock:
            if self._book.get(session.session_id) is not session:  # an earlier sending of it has closed it meanwhile
                return _closed(request)
            response = await self._call(request, app)
            if 200 <= response.status < 300:
                self._closed(session, request)
            return response

    async def _call(self, request: Incoming, app: ASGIApp) -> Response:
        """Gym's reply. Nothing but the end of its attempt cuts it short."""
        whose = request.episode or self._book.owner(self.cookies.read(request.headers.get("cookie")))
        running = (whose, anyio.CancelScope(shield=True))
        self._running.add(running)
        try:
            with running[1]:
                return await answered(app, request)
        finally:
            self._running.discard(running)
        assert whose is not None, "only an attempt that is over is cancelled"
        self.fences.check(whose)
        raise AssertionError("unreachable")

    # --- sessions

    def _session(self, request: Incoming) -> Session[Slot] | None:
        """The session of this request; None for a caller that names no rollout and none of our sessions.

        Refused `session_lost` for a rollout that has none here: it is never made again (S60).
        """
        session = self._known(request)
        if session is None and request.episode is not None:
            raise refuse_request("session_lost", "this server does not know that session")
        return session

    def _state(self, session_id: str) -> Slot:
        return Slot(None) if self._held is None else self._held.get(self._server, session_id)

    def _note_state(self, session: Session[Slot]) -> None:
        """What Gym's handler has made of the state is the session's; it can be exported, or nobody goes on with it."""
        session.state = self._state(session.session_id)
        with self._codec_holds():
            self._prove(session.state, moved=True)

    @contextmanager
    def _codec_holds(self) -> Iterator[None]:
        """A codec that does not hold says so in words that no loop takes for a tool's answer."""
        try:
            yield
        except Refused as refused:
            raise refuse_request("participant_broken", refused.detail) from refused

    def _standing(self, session: Session[Slot], response: Response) -> Response:
        return _with(response, self._position(session).items())

    # --- a Part

    def install(self, staged: Sequence[Staged[Slot]], scope: frozenset[EpisodeId]) -> Sequence[str]:
        if self._held is not None:
            for each in staged:
                self._held.put(self._server, each.session_id, each.state)
        return super().install(staged, scope)

    async def retire(self, episodes: Sequence[EpisodeId]) -> None:
        highest = highest_attempts(episodes)
        for whose, running in self._running:
            if whose is not None and whose.attempt <= highest.get(whose.rollout_id, -1):
                running.cancel()
        gone = [session.session_id for session in self._book.up_to(highest)]
        await super().retire(episodes)
        for session_id in gone if self._held is not None else ():
            assert self._held is not None
            self._held.drop(self._server, session_id)


class _Sessions:
    """Gym's application inside of the shell."""

    def __init__(self, resources: GymResources, app: ASGIApp) -> None:
        self.resources = resources
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request: Incoming | None = scope.get(REQUEST_KEY)
        if request is None:
            await self.app(as_sent(scope), receive, send)
        else:
            await self.resources.serve_session(request, self.app, send)


def _with(response: Response, headers: Any) -> Response:
    return Response(response.status, (*response.headers, *headers), response.body)


def _closed(request: Incoming) -> Response:
    """What Gym answers to a close: whose session it was, as the caller said."""
    said = request.value if isinstance(request.value, dict) else {}
    body = {name: said[name] for name in ("resources_session_id",) if name in said}
    return Response(200, (("content-type", "application/json"),), encode(body))


def _keep(response: Response) -> str:
    """A reply as a recorded operation holds it."""
    if not response.is_text:
        detail = "a reply that is no text cannot be kept, and this call not be repeated"
        raise refuse_request("participant_broken", detail)
    return encode(unstructure(KeptReply.of(response))).decode()


def _kept(operation: Operation) -> Response:
    try:
        return structure(parse(operation.reply), KeptReply).response()
    except WireError as error:
        raise refuse_request("participant_broken", f"the recorded reply cannot be read: {error}") from error
