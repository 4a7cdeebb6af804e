"""HTTP connections on a free list: taking one and giving one back cost the same however many are open.

Rules (docs/reference/protocol.md sections 5 and 6): a connection belongs to one request at a time; one whose request
did not end is closed and never given to another; idle ones are bounded and expire before the server closes them;
connections are opened in batches, so that a connect timeout speaks of the server and not of our own queue. Runs on trio
and asyncio.

Why not httpx's own pool: it walks all connections at every request, and it keeps the place of a request that was
cancelled while connecting. We cancel requests by design.
"""

from __future__ import annotations

import ssl
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from typing import Final
from weakref import WeakValueDictionary

import anyio
import httpcore
import httpx
import trio

from statecore.errors import StatecoreError

from .asyncio_streams import AsyncioBackend

KEEPALIVE_EXPIRY_S: Final = 30.0
MAX_IDLE: Final = 1024
MAX_CONNECTING: Final = 100

_Origin = tuple[bytes, bytes, int]
_PORTS: Final = {b"http": 80, b"https": 443}

ERRORS: Final[dict[type[Exception], type[httpx.TransportError]]] = {
    httpcore.TimeoutException: httpx.TimeoutException,
    httpcore.ConnectTimeout: httpx.ConnectTimeout,
    httpcore.ReadTimeout: httpx.ReadTimeout,
    httpcore.WriteTimeout: httpx.WriteTimeout,
    httpcore.PoolTimeout: httpx.PoolTimeout,
    httpcore.NetworkError: httpx.NetworkError,
    httpcore.ConnectError: httpx.ConnectError,
    httpcore.ReadError: httpx.ReadError,
    httpcore.WriteError: httpx.WriteError,
    httpcore.ProxyError: httpx.ProxyError,
    httpcore.UnsupportedProtocol: httpx.UnsupportedProtocol,
    httpcore.ProtocolError: httpx.ProtocolError,
    httpcore.LocalProtocolError: httpx.LocalProtocolError,
    httpcore.RemoteProtocolError: httpx.RemoteProtocolError,
    httpcore.ConnectionNotAvailable: httpx.NetworkError,
}
"""What each error of httpcore is called in httpx; a class that is not listed is what its nearest listed base is."""


class TooManyInFlight(StatecoreError):
    """A client has as many requests under way as it may; this one was not sent. `limit` is that number."""

    def __init__(self, limit: int, request: httpx.Request) -> None:
        super().__init__(limit, request)
        self.limit = limit
        self.request = request

    def __str__(self) -> str:
        tried = f"{self.request.method} {self.request.url}"
        return f"{tried} was not sent: {self.limit} requests of this client are under way, which is its limit"


@contextmanager
def _as_httpx(where: str) -> Iterator[None]:
    """An error of httpcore leaves as the same error of httpx, and says where it happened."""
    try:
        yield
    except Exception as error:
        known = next((ERRORS[base] for base in type(error).__mro__ if base in ERRORS), None)
        if known is None:
            raise
        raise known(f"{where}: {str(error) or type(error).__name__}") from error


def _on_trio() -> bool:
    try:
        trio.lowlevel.current_trio_token()
    except RuntimeError:
        return False
    return True


class _BatchedBackend(httpcore.AsyncNetworkBackend):
    """Opens at most `limit` connections to one address at once; waiting for a place is not in the connect timeout."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._places: WeakValueDictionary[tuple[str, int], anyio.Semaphore] = WeakValueDictionary()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (the signature is httpcore's)
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        loop = httpcore.TrioBackend() if _on_trio() else AsyncioBackend()
        places = self._places.setdefault((host, port), anyio.Semaphore(self._limit))
        async with places:
            return await loop.connect_tcp(host, port, timeout, local_address, socket_options)


class FreeListTransport(httpx.AsyncBaseTransport):
    """Requests go out on connections that are free, the one used last first; a new one is opened when none is.

    `max_idle` bounds the idle connections over all origins (the one idle longest is closed first), `keepalive_expiry_s`
    is how long one may be idle, `max_connecting` how many are opened at once to one origin. Raises httpx's errors. A
    reply is streamed; its connection is free again when the reply is closed and its request and its body have ended,
    and is closed else.
    """

    def __init__(
        self,
        *,
        max_idle: int = MAX_IDLE,
        keepalive_expiry_s: float = KEEPALIVE_EXPIRY_S,
        max_connecting: int = MAX_CONNECTING,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.max_idle = max_idle
        self.keepalive_expiry_s = keepalive_expiry_s
        self._ssl_context = ssl_context
        self._backend = _BatchedBackend(max_connecting)
        self._free: dict[_Origin, deque[httpcore.AsyncHTTPConnection]] = {}
        self._idle: OrderedDict[httpcore.AsyncHTTPConnection, _Origin] = OrderedDict()  # idle longest first
        self._busy: set[httpcore.AsyncHTTPConnection] = set()
        self._closed = False

    @property
    def busy_connections(self) -> int:
        """How many connections carry a request, or a reply that is not closed yet."""
        return len(self._busy)

    @property
    def idle_connections(self) -> int:
        """How many connections are open and free."""
        return len(self._idle)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        port = _PORTS.get(url.raw_scheme)
        if port is None or not url.raw_host:
            raise httpx.UnsupportedProtocol(f"{url} is not an http or https address with a host")
        if self._closed:
            raise RuntimeError(f"{request.method} {url} was not sent: this transport is closed")
        if not isinstance(request.stream, AsyncIterable):
            raise TypeError(f"the body of {request.method} {url} cannot be read asynchronously")
        origin = (url.raw_scheme, url.raw_host, url.port or port)
        body = _RequestBody(request.stream)
        where = f"{url.scheme}://{url.netloc.decode('ascii')}"
        message = httpcore.Request(
            method=request.method,
            url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=body,
            extensions=request.extensions,
        )
        connection = await self._take(origin)
        try:
            with _as_httpx(where):
                reply = await connection.handle_async_request(message)
        except BaseException:
            await self._close(connection)
            raise
        finally:
            await body.aclose()
        return httpx.Response(
            status_code=reply.status,
            headers=reply.headers,
            stream=_ReplyStream(self, connection, origin, reply, where),
            extensions=reply.extensions,
        )

    async def aclose(self) -> None:
        """All connections are closed; a request under way on one of them fails with httpx.ReadError."""
        self._closed = True
        connections = [*self._idle, *self._busy]
        self._idle.clear()
        self._free.clear()
        for connection in connections:
            await self._close(connection)

    async def _take(self, origin: _Origin) -> httpcore.AsyncHTTPConnection:
        """A connection to `origin` that nobody else has: a free one that still stands, or one not yet opened."""
        while (free := self._free.get(origin)) is not None:
            connection = free.pop()
            self._forget_idle(connection, origin)
            if not connection.is_closed() and not connection.has_expired():
                self._busy.add(connection)
                return connection
            await self._close(connection)
        scheme, host, port = origin
        if scheme == b"https" and self._ssl_context is None:
            self._ssl_context = httpx.create_ssl_context(trust_env=False)
        connection = httpcore.AsyncHTTPConnection(
            origin=httpcore.Origin(scheme, host, port),
            ssl_context=self._ssl_context,
            keepalive_expiry=self.keepalive_expiry_s,
            network_backend=self._backend,
        )
        self._busy.add(connection)
        return connection

    async def _give_back(self, connection: httpcore.AsyncHTTPConnection, origin: _Origin) -> None:
        """The connection is free if its request ended and there is room; one that was idle too long is closed."""
        if self._closed or self.max_idle < 1 or not connection.is_idle():
            await self._close(connection)
            return
        self._busy.discard(connection)
        self._free.setdefault(origin, deque()).append(connection)
        self._idle[connection] = origin
        oldest, its_origin = next(iter(self._idle.items()))
        if len(self._idle) > self.max_idle or oldest.has_expired():
            self._free[its_origin].popleft()  # an origin's oldest is at its left end, as it is first in `_idle`
            self._forget_idle(oldest, its_origin)
            await self._close(oldest)

    def _forget_idle(self, connection: httpcore.AsyncHTTPConnection, origin: _Origin) -> None:
        del self._idle[connection]
        if not self._free[origin]:
            del self._free[origin]

    async def _close(self, connection: httpcore.AsyncHTTPConnection) -> None:
        self._busy.discard(connection)
        with anyio.CancelScope(shield=True):
            await connection.aclose()


class _RequestBody:
    """A request's body; it can be given up in the middle.

    httpcore leaves its iterator where the sending was cut off, and trio warns of the async generator left behind.
    """

    def __init__(self, stream: AsyncIterable[bytes]) -> None:
        self._stream = stream
        self._parts: AsyncIterator[bytes] | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._parts = self._stream.__aiter__()
        return self._parts

    async def aclose(self) -> None:
        if isinstance(self._parts, AsyncGenerator):
            with anyio.CancelScope(shield=True):
                await self._parts.aclose()


class _ReplyStream(httpx.AsyncByteStream):
    """The body of a reply; closing it settles what becomes of the connection."""

    def __init__(
        self,
        transport: FreeListTransport,
        connection: httpcore.AsyncHTTPConnection,
        origin: _Origin,
        reply: httpcore.Response,
        where: str,
    ) -> None:
        self._transport = transport
        if not isinstance(reply.stream, AsyncIterable):
            raise TypeError("httpcore gave a reply that cannot be read asynchronously")
        self._connection = connection
        self._origin = origin
        self._reply = reply
        self._parts = reply.stream
        self._where = where
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx(self._where):
            async for part in self._parts:
                yield part

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        with anyio.CancelScope(shield=True):
            try:
                await self._reply.aclose()
            finally:
                await self._transport._give_back(self._connection, self._origin)


class BoundedTransport(httpx.AsyncBaseTransport):
    """At most `limit` requests of `inner` are under way, each until its reply is closed; one more is not sent.

    Raises TooManyInFlight at once: whoever is over the bound must hear of it, and not wait behind held requests.
    """

    def __init__(self, inner: httpx.AsyncBaseTransport, limit: int) -> None:
        self.inner = inner
        self.limit = limit
        self.in_flight = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.in_flight >= self.limit:
            raise TooManyInFlight(self.limit, request)
        self.in_flight += 1
        try:
            reply = await self.inner.handle_async_request(request)
        except BaseException:
            self.in_flight -= 1
            raise
        if not isinstance(reply.stream, httpx.AsyncByteStream):
            raise TypeError(f"{type(self.inner).__name__} gave a reply that cannot be read asynchronously")
        reply.stream = _CountedStream(self, reply.stream)
        return reply

    async def aclose(self) -> None:
        await self.inner.aclose()


class _CountedStream(httpx.AsyncByteStream):
    def __init__(self, bound: BoundedTransport, inner: httpx.AsyncByteStream) -> None:
        self._bound = bound
        self._inner = inner
        self._counted = True

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._inner.__aiter__()

    async def aclose(self) -> None:
        if self._counted:
            self._counted = False
            self._bound.in_flight -= 1
            await self._inner.aclose()
