"""A small HTTP/1.1 server for tests of clients: runs on trio and asyncio, and counts its connections.

What it answers is a script: an async function of one request. It may wait for ever; it is cancelled when the client
leaves.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.abc
import h11
from anyio.streams.tls import TLSListener
from attrs import define, field, frozen


@frozen
class Asked:
    """One request, wholly read. `connection` counts from 1, `nth` is which request of this connection it is."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int
    nth: int


@frozen
class Said:
    """What is answered: `parts` are sent one by one; `hold` is awaited before the last of them."""

    status: int = 200
    parts: Sequence[bytes] = (b"{}",)
    headers: Sequence[tuple[str, str]] = ()
    hold: anyio.Event | None = None
    close: bool = False


Script = Callable[[Asked], Awaitable[Said | None]]
"""None closes the connection unanswered."""


@define(eq=False)
class PlainServer:
    """Serves `script`; `open` is how many connections stand, `opened` how many there ever were."""

    script: Script
    url: str = ""
    open: int = 0
    opened: int = 0
    asked: list[Asked] = field(factory=list)
    _changed: anyio.Event = field(factory=anyio.Event)

    async def until(self, condition: Callable[[], bool]) -> None:
        """The condition, about this server or what its script keeps, holds."""
        while not condition():
            await self._changed.wait()

    def changed(self) -> None:
        """Whoever waits in `until` looks again."""
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def connection(self, stream: anyio.abc.ByteStream) -> None:
        self.open += 1
        self.opened += 1
        number = self.opened
        self.changed()
        try:
            async with stream:
                await self._requests(stream, number)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, h11.RemoteProtocolError):
            return  # the client is gone, or broke off in the middle of a request
        finally:
            self.open -= 1
            self.changed()

    async def _requests(self, stream: anyio.abc.ByteStream, number: int) -> None:
        conn = h11.Connection(h11.SERVER)
        nth = 0
        while (head := await _request_head(conn, stream)) is not None:
            nth += 1
            body = await _request_body(conn, stream)
            headers = {name.decode(): value.decode() for name, value in head.headers}
            asked = Asked(head.method.decode(), head.target.decode(), headers, body, number, nth)
            self.asked.append(asked)
            self.changed()
            early: list[bytes] = []  # the next request, when it comes before this one is over for us
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_leave_with_the_client, stream, tasks.cancel_scope, early)
                said = await self.script(asked)
                if said is not None:
                    with suppress(anyio.BrokenResourceError):  # the client left in the middle of the answer
                        await _answer(conn, stream, said)
                tasks.cancel_scope.cancel()
            if conn.our_state is not h11.DONE:
                return
            conn.start_next_cycle()
            if early:
                conn.receive_data(early[0])


async def _leave_with_the_client(stream: anyio.abc.ByteStream, scope: anyio.CancelScope, early: list[bytes]) -> None:
    try:
        early.append(await stream.receive())
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        scope.cancel()


async def _next(conn: h11.Connection, stream: anyio.abc.ByteStream) -> h11.Event | type[h11.PAUSED]:
    while (event := conn.next_event()) is h11.NEED_DATA:
        try:
            conn.receive_data(await stream.receive())
        except anyio.EndOfStream:
            conn.receive_data(b"")
    return event  # type: ignore[return-value]


async def _request_head(conn: h11.Connection, stream: anyio.abc.ByteStream) -> h11.Request | None:
    event = await _next(conn, stream)
    return event if isinstance(event, h11.Request) else None


async def _request_body(conn: h11.Connection, stream: anyio.abc.ByteStream) -> bytes:
    body = b""
    while isinstance(event := await _next(conn, stream), h11.Data):
        body += bytes(event.data)
    return body


async def _answer(conn: h11.Connection, stream: anyio.abc.ByteStream, said: Said) -> None:
    headers = [*said.headers, ("transfer-encoding", "chunked")]
    if said.close:
        headers.append(("connection", "close"))
    await stream.send(conn.send(h11.Response(status_code=said.status, headers=headers)) or b"")
    for number, part in enumerate(said.parts, 1):
        if said.hold is not None and number == len(said.parts):
            await said.hold.wait()
        await stream.send(conn.send(h11.Data(data=part)) or b"")
    await stream.send(conn.send(h11.EndOfMessage()) or b"")


class _Handshakes(TLSListener):
    """A client that does not trust the server leaves in the middle of the handshake: no error of the server."""

    @staticmethod
    async def handle_handshake_error(exc: BaseException, stream: anyio.abc.AnyByteStream) -> None:
        await anyio.aclose_forcefully(stream)
        if not isinstance(exc, Exception):
            raise exc


@asynccontextmanager
async def plain_server(script: Script, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[PlainServer]:
    """A server on a free port of the loopback, gone when the block ends; with `tls` it speaks https."""
    server = PlainServer(script)
    tcp = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0, backlog=2048)
    port = tcp.extra(anyio.abc.SocketAttribute.local_port)
    server.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
    listener: anyio.abc.Listener[anyio.abc.ByteStream] = (
        tcp if tls is None else _Handshakes(tcp, tls, standard_compatible=False)
    )
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, server.connection)
        yield server
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def address_that_refuses() -> AsyncIterator[str]:
    """An address whose port is taken, and where nobody listens."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
