"""The ASGI shell of a server: lifespan, control routes, who is calling, and on to the kind.

Order of every request: token (control) or identity (data), then admission, then the application. What mutates a rollout
needs an identity; probes, docs and metrics never do (S20). The wrapper owns one task group for as long as the lifespan
runs and refuses to serve without it, since leases and executions live in it (docs/reference/protocol.md section 14).
Works on trio and asyncio.
"""

from __future__ import annotations

import hmac
import logging
from typing import Any, Final, Protocol
from urllib.parse import unquote

import anyio
import anyio.abc
from attrs import evolve

from statecore import Refused, WireError, WireErrors
from statecore.wire import parse

from ..files.snapshots import InvalidCheckpointState
from ..identity import (
    EPOCH_HEADER,
    INCARNATION_HEADER,
    MAX_DIGITS,
    OPERATION_HEADER,
    RUN_PREFIX,
    TRY_HEADER,
    EpisodeId,
    IdentityMismatch,
    agreed,
    from_body,
    from_headers,
    split_prefix,
)
from ..machines.control import is_data_of_other_life
from ..machines.sendings import tried_from
from ..net.http import (
    REQUEST_KEY,
    Answer,
    ASGIApp,
    ClientGone,
    Incoming,
    Message,
    Receive,
    Scope,
    Send,
    code_of,
    headers_of,
    invalid_body,
    read_body,
    read_json,
    refusal,
    refuse_request,
    send_answer,
)
from ..settings import Seams, Settings
from ..signals import CHECKPOINT_ID, ERROR, REFUSALS, SERVED, SERVER, STATUS, VERB
from ..telemetry import NO_SPAN, Span
from .admission import Admission
from .calls import VERBS, VerbCall
from .part import Json
from .participant import Participant

CONTROL: Final = "/ng-control/v1/checkpoint"
CAPABILITIES: Final = "/ng-control/v1/capabilities"
RESULTS: Final = "/ng-control/v1/results"
ACKNOWLEDGE: Final = "/ng-control/v1/results/acknowledge"
PROBES: Final = frozenset(
    {"/", "/livez", "/readyz", "/healthz", "/health", "/docs", "/redoc", "/openapi.json", "/metrics"}
)
EPISODE_PATHS: Final = frozenset({"/run", "/v1/agent_sessions", "/v1/agent_sessions/close"})
"""Where a body's `episode_id` is always an identity; elsewhere one of another form is the application's own."""
BODY_MARKS: Final = (b"_ng_rollout_id", b"episode_id", b"\\u00")
"""What a body that names an execution holds: a field of ours, or one whose name is escaped."""
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
DETAIL: Final = 500
"""So much of an answer that is none is told to whoever watches."""

log = logging.getLogger("statecore.participants")


class Served(Protocol):
    """What the shell needs of a server: its settings, its control plane, and where data requests go."""

    name: str
    settings: Settings
    seams: Seams
    incarnation: str
    participant: Participant | None
    admission: Admission
    group: anyio.abc.TaskGroup | None

    async def stopped(self) -> None: ...

    def stamp(self, reply: Json) -> Json: ...

    def capabilities(self) -> Json: ...

    async def data(self, request: Incoming, send: Send, app: ASGIApp) -> None: ...

    def turned_away(self, request: Incoming, refused: Refused) -> Refused: ...

    def receipts(self) -> list[Json] | None: ...

    def acknowledge(self, value: Any) -> Json: ...


class Shell:
    """A server's application behind its control plane: what `wrap` returns when checkpointing is on."""

    def __init__(self, server: Served, app: ASGIApp) -> None:
        self.server = server
        self.app = app
        self._over = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif scope["type"] != "http":
            await self.app(scope, receive, send)
        elif self.server.group is None:
            never = "this server was started without the ASGI lifespan; checkpointing needs it"
            detail = "this server's lifespan is over; it must be restarted" if self._over else never
            await send_answer(send, Answer(503, {"error": {"code": "lifespan_missing", "detail": detail}}))
        else:
            await self._http(scope, receive, send)

    def before_shutdown(self) -> None:
        """Requests that are held are told that this server is lost, so that it can end; the gate stays shut (I24)."""
        self.server.admission.end()

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application's lifespan inside ours; whatever goes wrong at the start is said, never raised."""
        told = False

        async def tell(message: Message) -> None:
            nonlocal told
            told = told or message["type"].startswith("lifespan.startup")
            await send(message)

        try:
            async with anyio.create_task_group() as group:
                self.server.group = group
                if self.server.participant is not None:
                    self.server.participant.start(group)
                await self._inner_lifespan(scope, receive, tell)
                group.cancel_scope.cancel()
        except Exception as error:
            log.exception("%s: lifespan failed", self.server.name)
            if told:
                raise
            await send({"type": "lifespan.startup.failed", "message": f"{type(error).__name__}: {error}"})
        finally:
            self.server.group = None
            self._over = True
            with anyio.CancelScope(shield=True):
                await self.server.stopped()

    async def _inner_lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the application's lifespan, or a bare one for an application that has none."""
        state = {"asked": False}

        async def ask() -> Message:
            state["asked"] = True
            return await receive()

        try:
            await self.app(scope, ask, send)
        except Exception:
            if state["asked"]:
                raise
        if state["asked"]:
            return
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        try:
            if path.startswith("/ng-control/v1/") and self._is_ours(path):
                await send_answer(send, await self._control(scope, receive, path))
            else:
                await self._data(scope, receive, send)
        except ClientGone:
            return
        except Refused as refused:
            self._refused(refused.code)
            await send_answer(send, refusal(refused).with_header(INCARNATION_HEADER, self.server.incarnation))

    def _refused(self, code: str) -> None:
        """A request was refused; whoever watches is told."""
        self.server.seams.telemetry.add(REFUSALS, 1, {ERROR: code, SERVER: self.server.name})

    def _is_ours(self, path: str) -> bool:
        if path == CAPABILITIES:
            return True
        if self.server.participant is None:
            return False
        if path in (RESULTS, ACKNOWLEDGE):
            return self.server.receipts() is not None
        return path.startswith(CONTROL + "/")

    # --- control

    async def _control(self, scope: Scope, receive: Receive, path: str) -> Answer:
        """The answer to a control call, in a span below the caller's if that sent one along."""
        headers = headers_of(scope)
        verb = path.rpartition("/")[2]
        if verb not in SERVED:
            return await self._controlled(NO_SPAN, scope["method"], path, headers, receive)
        named = {VERB: verb, SERVER: self.server.name}
        with self.server.seams.telemetry.span(SERVED[verb], named, carrier=headers) as span:
            answer = await self._controlled(span, scope["method"], path, headers, receive)
            span.set(STATUS, answer.status)
            if answer.status >= 400:
                code = code_of(answer)
                span.fail(code, str(answer.body)[:DETAIL])
                self._refused(code)
            return answer

    async def _controlled(
        self, span: Span, method: str, path: str, headers: dict[str, str], receive: Receive
    ) -> Answer:
        try:
            self._check_token(headers)
            answer = await self._route(span, method, path, headers, receive)
        except Refused as refused:
            answer = refusal(refused)
        except InvalidCheckpointState as error:
            answer = Answer(422, {"error": {"code": "invalid_checkpoint_state", "detail": str(error)}})
        except (WireError, WireErrors) as error:
            answer = invalid_body(error)
        except ClientGone:
            raise
        except Exception as error:  # said in our words: a server that answers so is not lost
            log.exception("%s: %s failed", self.server.name, path)
            answer = Answer(500, {"error": {"code": "internal_error", "detail": f"{type(error).__name__}: {error}"}})
        body = self.server.stamp(answer.body) if answer.status == 200 else answer.body
        return evolve(answer, body=body).with_header(INCARNATION_HEADER, self.server.incarnation)

    def _check_token(self, headers: dict[str, str]) -> None:
        token = self.server.settings.control_auth_token or ""
        given = headers.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(given, f"Bearer {token}".encode()):
            raise refuse_request("unauthorized", "missing or invalid checkpoint control bearer token")

    async def _route(
        self, span: Span, method: str, path: str, headers: dict[str, str], receive: Receive
    ) -> Answer:
        verb = path.removeprefix(CONTROL + "/")
        reading = verb == "status" or path in (CAPABILITIES, RESULTS)
        if not reading and verb not in VERBS and path != ACKNOWLEDGE:
            return Answer(404, {"detail": "Not Found"})
        if method != ("GET" if reading else "POST"):
            return Answer(405, {"detail": "Method Not Allowed"}, (("allow", "GET" if reading else "POST"),))
        if path == CAPABILITIES:
            return Answer(200, self.server.capabilities())
        participant = self.server.participant
        assert participant is not None
        if path in (RESULTS, ACKNOWLEDGE):
            _check_process(headers, participant)
        if path == RESULTS:
            return Answer(200, {"receipts": self.server.receipts()})
        if verb == "status":
            return Answer(200, participant.status())
        body = await read_body(receive, self.server.settings.max_body_bytes)
        if path == ACKNOWLEDGE:
            _check_epoch(headers, participant)
            return Answer(200, self.server.acknowledge(parse(body)))
        call = read_json(body, VERBS[verb])
        span.set(CHECKPOINT_ID, call.checkpoint_id)
        self._check_deadline(call, participant)
        epoch = _epoch(headers)
        incarnation = headers.get(INCARNATION_HEADER)
        return Answer(200, await participant.perform(call, epoch=epoch, incarnation=incarnation))

    def _check_deadline(self, call: VerbCall, participant: Participant) -> None:
        ahead = call.deadline_ts - participant.seams.clock.time()
        limit = self.server.settings.max_deadline_s
        if ahead > limit:
            problem = f"Input should be at most {limit:g} seconds ahead of this server's clock"
            raise WireError.at(("deadline_ts",), problem, "less_than_equal")

    # --- data

    async def _data(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        named, path = _prefixed(scope)
        inner = scope if named is None else {**scope, "path": path, "raw_path": path.encode()}
        if scope["method"] in READING or path in PROBES:
            await self.app(inner, receive, send)
            return
        participant = self.server.participant
        if participant is not None:
            _check_epoch(headers, participant)
        body = await read_body(receive, self.server.settings.max_body_bytes)
        incarnation = self.server.incarnation
        request = Incoming(scope["method"], path, headers, body, None, inner, receive, incarnation, self._refused)
        episode = request.episode = _identify(named, request)
        try:
            request.tried = _tried(headers)
        except WireError as error:
            await send_answer(_named(send, incarnation), invalid_body(error, "header"))
            return
        inner[REQUEST_KEY] = request
        if participant is not None and participant.born_closed and episode is not None:
            unborn = refuse_request("admission_closed", "this server is closed until its first restore or resume")
            raise self.server.turned_away(request, unborn)
        await self.server.data(request, _named(send, incarnation), self.app)


def _named(send: Send, incarnation: str) -> Send:
    """A `send` whose reply names the process, whoever made the reply (I97)."""
    name = INCARNATION_HEADER.encode()

    async def named(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            if all(key.lower() != name for key, _ in headers):
                message = {**message, "headers": [*headers, (name, incarnation.encode())]}
        await send(message)

    return named


def _prefixed(scope: Scope) -> tuple[EpisodeId | None, str]:
    """Who the path names, and the path behind the prefix; judged by the raw path, so that an escaped slash is no
    slash.
    """
    path: str = scope["path"]
    if not path.startswith(RUN_PREFIX):
        return None, path
    raw = scope.get("raw_path")
    key = unquote(raw.decode("latin-1")[len(RUN_PREFIX) :].partition("/")[0]) if raw else None
    try:
        if key is not None:
            EpisodeId.from_key(key)
        return split_prefix(path)
    except ValueError as error:
        raise refuse_request("invalid_rollout_id", str(error)) from error


def _identify(named: EpisodeId | None, request: Incoming) -> EpisodeId | None:
    """The one execution that prefix, headers and body name (I5). A body that names none is not read for it."""
    try:
        spoken = None
        if any(mark in request.body for mark in BODY_MARKS):
            spoken = from_body(request.value, strict=request.path in EPISODE_PATHS)
        return agreed((named, from_headers(request.headers), spoken))
    except IdentityMismatch as error:
        raise refuse_request("execution_identity_mismatch", str(error)) from error
    except ValueError as error:
        raise refuse_request("invalid_rollout_id", str(error)) from error


def _epoch(headers: dict[str, str]) -> int | None:
    text = headers.get(EPOCH_HEADER)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > MAX_DIGITS:
        raise refuse_request("stale_epoch", f"{EPOCH_HEADER}: {text[:40]!r} is no epoch")
    return int(text)


def _check_process(headers: dict[str, str], participant: Participant) -> None:
    """A call about results that is meant for another process is refused, as the verbs are (S59)."""
    meant, here = headers.get(INCARNATION_HEADER), participant.incarnation
    if meant is not None and meant != here:
        raise refuse_request("stale_incarnation", f"the call is for process {meant[:40]}, this is {here}")


def _tried(headers: dict[str, str]) -> int | None:
    """Which sending of its call this is, None from a caller that does not count; WireError where that says nothing."""
    text = headers.get(TRY_HEADER)
    if text is None:
        return None
    try:
        tried = tried_from(text)
    except ValueError as error:
        raise WireError.at((TRY_HEADER,), str(error), "int_parsing") from error
    if not headers.get(OPERATION_HEADER):
        raise WireError.at((OPERATION_HEADER,), f"Field required beside {TRY_HEADER}", "missing")
    return tried


def _check_epoch(headers: dict[str, str], participant: Participant) -> None:
    """A data call or an acknowledgement of another life is refused where it says so (S45, I98).

    One that carries no epoch is not checked.
    """
    sent, control = _epoch(headers), participant.control
    if is_data_of_other_life(control, sent):
        raise refuse_request("stale_epoch", f"this server belongs to epoch {control.epoch}, the call to {sent}")
