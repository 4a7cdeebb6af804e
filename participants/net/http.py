"""The HTTP border of a server: read a request, refuse it in the words that peers know, answer in JSON.

Error bodies are ``{"error": {"code", "detail"}}``; bodies that do not fit their schema are FastAPI's own form,
``{"detail": [{"type", "loc", "msg"}]}``. Which code goes with which status is one table
(docs/reference/codes.md).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final, TypeVar

from attrs import define, frozen

from statecore import Refused, WireError, WireErrors
from statecore.wire import parse, structure

from ..identity import INCARNATION_HEADER, REFUSED_HEADER, EpisodeId

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Iterable[tuple[str, str]]

T = TypeVar("T")

JSON_TYPE: Final = ("content-type", "application/json")
REQUEST_KEY: Final = "statecore.request"
"""Where in the ASGI scope the request is, once it was read."""

STATUS: Final = {
    "unauthorized": 401,
    "rollout_id_required": 400,
    "invalid_rollout_id": 400,
    "invalid_checkpoint_state": 422,
    "body_too_large": 413,
    "participant_lost": 502,
    "results_full": 503,
    "too_many_held": 503,
    "participant_broken": 503,
    "checkpoint_coordinator_unavailable": 503,
}
"""HTTP status of a refusal's code; every other code is 409."""


class ClientGone(Exception):
    """The caller went away before it got an answer."""


class ParticipantLost(Exception):
    """A server that the rollout needs is gone: that is no result (I97)."""


@frozen
class Answer:
    """What a route answers: a status, a JSON value, extra headers."""

    status: int
    body: Any
    headers: tuple[tuple[str, str], ...] = ()

    def with_header(self, name: str, value: str) -> Answer:
        return Answer(self.status, self.body, (*self.headers, (name, value)))


class RefusedForGood(Refused):
    """A refusal of a sending and all before it, up to number `final_up_to`: none of them will ever be applied."""

    def __init__(self, refused: Refused, final_up_to: int) -> None:
        super().__init__(refused.code, refused.state, refused.event, refused.allowed, refused.detail)
        self.final_up_to = final_up_to


def refusal(refused: Refused) -> Answer:
    """A refusal as peers see it."""
    body = {"error": {"code": refused.code, "detail": refused.detail or refused.code}}
    answer = Answer(STATUS.get(refused.code, 409), body)
    if isinstance(refused, RefusedForGood):
        return answer.with_header(REFUSED_HEADER, str(refused.final_up_to))
    return answer


def code_of(answer: Answer) -> str:
    """The code of an answer that is none, `http_<status>` where it has none."""
    error = answer.body.get("error") if isinstance(answer.body, dict) else None
    return str(error["code"]) if error else f"http_{answer.status}"


def refuse_request(code: str, detail: str) -> Refused:
    """A refusal that no table made: of the request itself (identity, size, token)."""
    return Refused(code, "request", "request", (), detail)


def refusal_in(error: Exception) -> Refused | None:
    """The refusal that an application ended with: its own, or that of a lost server, also inside a group of exceptions
    (of calls that were made at once); None when it is another failure.
    """
    if isinstance(error, Refused):
        return error
    if isinstance(error, ParticipantLost):
        return refuse_request("participant_lost", str(error))
    if isinstance(error, ExceptionGroup):
        return next((found for each in error.exceptions if (found := refusal_in(each)) is not None), None)
    return None


def invalid_body(error: WireError | WireErrors, place: str = "body") -> Answer:
    """422 in FastAPI's form; `loc` starts with where the fault is."""
    found = [{"type": each.kind, "loc": [place, *each.loc], "msg": each.problem} for each in error.errors]
    return Answer(422, {"detail": found})


def read_json(body: bytes, cls: type[T]) -> T:
    """The body as an instance of `cls`; WireError or WireErrors naming the places that do not fit."""
    value = parse(body)
    if type(value) is not dict:
        raise WireError.at((), "Input should be a valid dictionary", "model_attributes_type")
    return structure(value, cls)


def headers_of(scope: Scope) -> dict[str, str]:
    """The request's headers by lower-case name; of a repeated one the last."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


@define(eq=False)
class Incoming:
    """A data request, read: `path` without its prefix, `body` whole.

    `incarnation` is the serving process, named in every reply; `on_refused` is told the code of a refusal that the
    application ends with. `tried` is which sending of its call this is, if its caller counts them; `recorded_only`: it
    was not admitted, and gets the reply that its call has already, or none.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    episode: EpisodeId | None
    scope: Scope
    receive: Receive
    incarnation: str | None = None
    on_refused: Callable[[str], None] = lambda code: None
    tried: int | None = None
    recorded_only: bool = False
    _value: Any = None
    _parsed: bool = False

    @property
    def value(self) -> Any:
        """The body's JSON, None when it is none: not ours to judge, the application reads its own body."""
        if not self._parsed:
            self._parsed = True
            try:
                self._value = parse(self.body) if self.body else None
            except WireError:
                self._value = None
        return self._value

    def replayed(self) -> Receive:
        """A `receive` for the application: the body once more, then what the caller still says."""
        return replay(self.body, self.receive)


async def read_body(receive: Receive, limit: int) -> bytes:
    """The whole body; Refused `body_too_large` beyond `limit` bytes, ClientGone when the caller leaves first."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise refuse_request("body_too_large", f"the body is larger than {limit} bytes")
        if part:
            parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def until_gone(receive: Receive) -> None:
    """Returns when the caller has left (its body must have been read before)."""
    while (await receive())["type"] != "http.disconnect":
        pass


def replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives `body` once more and then what comes after it."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def encode_body(value: Any) -> bytes:
    """A JSON body: compact, UTF-8, keys in their order."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


async def send_answer(send: Send, answer: Answer) -> None:
    await send_bytes(send, answer.status, encode_body(answer.body), (JSON_TYPE, *answer.headers))


async def send_bytes(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """One whole response; `headers` say what `body` is."""
    raw = [(b"content-length", str(len(body)).encode())]
    raw += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def serve(app: ASGIApp, request: Incoming, send: Send) -> None:
    """`app` answers the request; a Refused or a lost server that leaves it becomes the reply that peers know.

    Frameworks turn an exception into a 500 and raise it again: that 500 waits here until it is known which one it was.
    Every reply names the process (`x-statecore-incarnation`), so that its 500 is told from that of a proxy.
    """
    held: list[Message] = []
    started = False

    async def careful(message: Message) -> None:
        nonlocal started
        if message["type"] == "http.response.start":
            if request.incarnation is not None:
                stamp = (INCARNATION_HEADER.encode(), request.incarnation.encode())
                message = {**message, "headers": [*message.get("headers", ()), stamp]}
            if message["status"] == 500:
                held.append(message)
                return
            started = True
        if held:
            held.append(message)
        else:
            await send(message)

    try:
        await app(request.scope, request.replayed(), careful)
    except Exception as error:
        refused = None if started else refusal_in(error)
        if refused is None:
            for message in held:
                await send(message)
            raise
        request.on_refused(refused.code)
        answer = refusal(refused)
        if request.incarnation is not None:
            answer = answer.with_header(INCARNATION_HEADER, request.incarnation)
        await send_answer(send, answer)
        return
    for message in held:
        await send(message)
