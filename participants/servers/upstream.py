"""What stands behind a model server: a base URL that speaks the API, or a Python callable; a bare ASGI application.

Status and body of the upstream's errors are passed on as they are. An upstream that is lost before its reply began is a
502 `upstream_lost`; one lost in the middle of a reply breaks the connection, since half a reply is none. Only headers
that concern the generation travel. Runs on trio and asyncio.
"""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
from attrs import frozen

from statecore import DefinitionError, Refused, StatecoreError, WireError, WireErrors
from statecore.wire import parse

from ..identity import split_prefix
from ..net.client import make_client
from ..net.http import (
    JSON_TYPE,
    REQUEST_KEY,
    Answer,
    ASGIApp,
    ClientGone,
    Incoming,
    Receive,
    Scope,
    Send,
    encode_body,
    invalid_body,
    read_body,
    refusal,
    send_answer,
    send_bytes,
)
from ..net.transport import TooManyInFlight

Call = Callable[[str, Any], Any]
"""`(path, body)` gives the reply: an object, an async iterator of bytes to stream, or an awaitable of one of them."""

LIVENESS: Final = frozenset({"/", "/livez", "/readyz", "/healthz", "/health"})
NOT_FOUND: Final = Answer(404, {"detail": "Not Found"})
FORWARDED: Final = frozenset(
    {
        b"accept",
        b"anthropic-beta",
        b"anthropic-version",
        b"authorization",
        b"content-type",
        b"openai-beta",
        b"openai-organization",
        b"openai-project",
        b"traceparent",
        b"tracestate",
        b"x-api-key",
        b"x-request-id",
    }
)
"""Request headers that reach the upstream; identity, cookies and what belongs to one connection do not."""
NOT_RETURNED: Final = frozenset(
    {
        b"connection",
        b"content-encoding",
        b"content-length",
        b"date",
        b"keep-alive",
        b"proxy-authenticate",
        b"server",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers of a reply that belong to the upstream's connection or encoding; this server sets its own."""

log = logging.getLogger("statecore.participants")


class UpstreamError(StatecoreError):
    """Raised by a callable upstream: the caller gets this status and this JSON body, as it would from a server."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body


class ReplyCutOff(StatecoreError):
    """A reply that had begun cannot be ended: its connection is broken, so that nobody takes the half for the whole."""


@frozen
class Asked:
    """A request for the upstream: `path` without prefix, `value` is the body's JSON where it was read already."""

    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    value: Any


class Upstream(ABC):
    """A model behind a bare ASGI application; liveness it answers itself."""

    def __init__(self, max_body_bytes: int) -> None:
        self.max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
        elif scope["path"] in LIVENESS and scope["method"] in ("GET", "HEAD"):
            await send_answer(send, Answer(200, {"status": "ok"}))
        else:
            await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            asked = await self._asked(scope, receive)
        except ClientGone:
            return
        except Refused as refused:
            await send_answer(send, refusal(refused))
            return
        if asked.path.startswith("/ng-control/"):
            await send_answer(send, NOT_FOUND)  # a control route that this server does not have is not the upstream's
        else:
            await self.answer(asked, send)

    async def _asked(self, scope: Scope, receive: Receive) -> Asked:
        read: Incoming | None = scope.get(REQUEST_KEY)
        if read is not None:
            path, body, value = read.path, read.body, read.value
        else:
            body, value, path = await read_body(receive, self.max_body_bytes), None, scope["path"]
            with suppress(ValueError):  # a malformed key names nobody; the path stays as it is
                path = split_prefix(path)[1]
        return Asked(scope["method"], path, scope.get("query_string", b""), scope["headers"], body, value)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self.close()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    @abstractmethod
    async def answer(self, asked: Asked, send: Send) -> None:
        """The upstream's reply is sent."""

    async def close(self) -> None:
        """Nothing of it is open any more."""
        return


class HttpUpstream(Upstream):
    """Any base URL that speaks the API, such as ``http://127.0.0.1:9000/v1``; what follows ``/v1/`` is appended to it.

    Paths without ``/v1/`` go to where the base's own ``/v1`` would be. `api_key` replaces the caller's Authorization. A
    `transport` that is handed in is closed by whoever made it.
    """

    def __init__(
        self, url: str, *, api_key: str | None, transport: httpx.AsyncBaseTransport | None, max_body_bytes: int
    ) -> None:
        super().__init__(max_body_bytes)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
            raise DefinitionError(f"upstream {url!r}: give a base URL such as http://127.0.0.1:9000/v1, or a callable")
        self.url = url.rstrip("/")
        self._transport = transport
        self._client: httpx.AsyncClient | None = None
        self._key = None if api_key is None else (b"authorization", f"Bearer {api_key}".encode())

    def target(self, path: str, query: bytes) -> str:
        """The upstream's URL for a path of ours."""
        _, found, behind = path.partition("/v1/")
        url = f"{self.url}/{behind}" if found else self.url.removesuffix("/v1") + path
        return f"{url}?{query.decode('latin-1')}" if query else url

    async def answer(self, asked: Asked, send: Send) -> None:
        if self._client is None:
            self._client = make_client(self._transport)
        headers = [pair for pair in asked.headers if pair[0].lower() in FORWARDED]
        if self._key is not None:
            headers = [pair for pair in headers if pair[0].lower() != b"authorization"] + [self._key]
        headers.append((b"accept-encoding", b"identity"))
        url = self.target(asked.path, asked.query)
        request = self._client.build_request(asked.method, url, content=asked.body or None, headers=headers)
        try:
            response = await self._client.send(request, stream=True)
        except TooManyInFlight as error:
            await send_answer(send, Answer(503, {"error": {"code": "too_many_held", "detail": str(error)}}))
        except httpx.TransportError as error:
            await self._lost(send, error)
        else:
            async with aclosing(response):
                await self._pass_on(response, send)

    async def _lost(self, send: Send, error: httpx.TransportError) -> None:
        detail = f"{self.url} is lost: {type(error).__name__} {error}".rstrip()
        await send_answer(send, Answer(502, {"error": {"code": "upstream_lost", "detail": detail}}))

    async def _pass_on(self, response: httpx.Response, send: Send) -> None:
        """The reply as it is: whole where it is JSON, else part by part, begun with its first part."""
        pairs = [(name.lower(), value) for name, value in response.headers.raw if name.lower() not in NOT_RETURNED]
        head = {"type": "http.response.start", "status": response.status_code, "headers": pairs}
        if comes_whole(response.status_code, response.headers.get("content-type", "")):
            try:
                body = await response.aread()
            except httpx.TransportError as error:
                await self._lost(send, error)
                return
            pairs.append((b"content-length", str(len(body)).encode()))
            await send(head)
            await send({"type": "http.response.body", "body": body, "more_body": False})
            return
        begun = False
        try:
            async for part in response.aiter_bytes():
                if not begun:
                    begun = True
                    await send(head)
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except httpx.TransportError as error:
            if begun:
                raise ReplyCutOff(f"{self.url} was lost in the middle of a reply: {error}") from error
            await self._lost(send, error)
            return
        if not begun:
            await send(head)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None and self._transport is None:
            await client.aclose()


class CallableUpstream(Upstream):
    """A Python callable `(path, body)`; it runs on the server's own loop, so a synchronous one must not block."""

    def __init__(self, call: Call, *, max_body_bytes: int) -> None:
        super().__init__(max_body_bytes)
        self._call = call

    async def answer(self, asked: Asked, send: Send) -> None:
        if asked.method != "POST":
            await send_answer(send, NOT_FOUND)
            return
        try:
            value = parse(asked.body) if asked.value is None else asked.value
            if type(value) is not dict:
                raise WireError.at((), "Input should be a valid dictionary", "model_attributes_type")
        except (WireError, WireErrors) as error:
            await send_answer(send, invalid_body(error))
            return
        parts: AsyncIterator[bytes] | None = None
        part = b""
        try:
            reply = self._call(asked.path, value)
            if inspect.isawaitable(reply):
                reply = await reply
            if isinstance(reply, AsyncIterator):
                parts = reply
                part = await anext(parts, b"")
            else:
                body = encode_body(_object(reply))
        except UpstreamError as error:
            await send_answer(send, Answer(error.status, error.body))
        except Exception as error:  # one call's failure is its own (S42)
            log.exception("the upstream callable failed at %s", asked.path)
            detail = f"{type(error).__name__}: {error}"
            await send_answer(send, Answer(500, {"error": {"code": "upstream_failed", "detail": detail}}))
        else:
            if parts is None:
                await send_bytes(send, 200, body, (JSON_TYPE,))
            else:
                await _stream(part, parts, send)


def _object(reply: Any) -> Mapping[str, Any]:
    if not isinstance(reply, Mapping):
        raise TypeError(f"an upstream gives an object or an async iterator of bytes, not {type(reply).__name__}")
    return reply


async def _stream(part: bytes, parts: AsyncIterator[bytes], send: Send) -> None:
    """The first part, which is there already, and those that follow, as server-sent events."""
    headers = [(b"content-type", b"text/event-stream")]
    try:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": part, "more_body": True})
        async for more in parts:
            await send({"type": "http.response.body", "body": more, "more_body": True})
    finally:
        close = getattr(parts, "aclose", None)
        if close is not None:
            await close()
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def comes_whole(status: int, content_type: str) -> bool:
    """Whether a reply is sent in one piece: an error, or one JSON document."""
    kind = content_type.partition(";")[0].strip().lower()
    return status >= 400 or kind == "application/json" or kind.endswith("+json")


def upstream_app(
    upstream: str | Call,
    *,
    api_key: str | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
    max_body_bytes: int,
) -> ASGIApp:
    """The application of an upstream: a base URL or a callable; DefinitionError when it is neither."""
    if isinstance(upstream, str):
        return HttpUpstream(upstream, api_key=api_key, transport=transport, max_body_bytes=max_body_bytes)
    if not callable(upstream):
        raise DefinitionError(f"upstream {upstream!r}: give a base URL such as http://127.0.0.1:9000/v1, or a callable")
    if api_key is not None:
        raise DefinitionError("upstream_api_key is for a base URL; a callable brings its own key")
    return CallableUpstream(upstream, max_body_bytes=max_body_bytes)
