"""The free list: connections are used again, never shared, never leaked, and their errors are httpx's."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpcore
import httpx
import pytest

from participants.net.asyncio_streams import AsyncioBackend
from participants.net.client import make_client
from participants.net.transport import ERRORS, BoundedTransport, FreeListTransport, TooManyInFlight
from tests.both_loops import on_both_loops
from tests.plain_server import Asked, PlainServer, Said, address_that_refuses, plain_server

ALL_HANG_S = 120.0  # a bound on a test that would hang for ever, not a speed


async def echo(asked: Asked) -> Said:
    return Said(parts=[asked.body or b"ok"])


async def never(asked: Asked) -> Said | None:
    await anyio.sleep_forever()
    return None


@on_both_loops
async def test_a_free_connection_is_used_again() -> None:
    """Requests that follow each other share one connection, and it is the one used last."""
    async with plain_server(echo) as server:
        transport = FreeListTransport()
        async with make_client(transport) as client:
            for number in range(5):
                reply = await client.post(server.url, content=f"{number}")
                assert reply.text == f"{number}"
            assert (server.opened, transport.idle_connections, transport.busy_connections) == (1, 1, 0)
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(client.get, server.url)
            last = transport._free[next(iter(transport._free))][-1]
            taken = await transport._take(next(iter(transport._free)))
            assert taken is last
            await transport._close(taken)
        await server.until(lambda: server.open == 0)


@on_both_loops
async def test_a_reply_is_streamed_and_its_connection_is_busy_until_it_is_closed() -> None:
    """Parts of a body arrive before the rest is sent; the connection is free only after the last one."""
    rest = anyio.Event()

    async def halves(asked: Asked) -> Said:
        return Said(parts=[b"first", b"second"], hold=rest)

    async with plain_server(halves) as server:
        transport = FreeListTransport()
        async with make_client(transport) as client:
            async with client.stream("GET", server.url) as reply:
                parts = reply.aiter_raw()
                assert await anext(parts) == b"first"
                assert (transport.busy_connections, transport.idle_connections) == (1, 0)
                rest.set()
                assert [part async for part in parts] == [b"second"]
            assert (transport.busy_connections, transport.idle_connections) == (0, 1)


@on_both_loops
async def test_a_reply_left_in_the_middle_costs_its_connection() -> None:
    """Closing a reply before its end closes the connection: what is left of the body never meets another request."""

    async def halves(asked: Asked) -> Said:
        return Said(parts=[b"first", b"never sent"], hold=anyio.Event() if asked.target == "/half" else None)

    async with plain_server(halves) as server:
        transport = FreeListTransport()
        async with make_client(transport) as client:
            async with client.stream("GET", server.url + "/half"):
                pass
            assert (transport.busy_connections, transport.idle_connections) == (0, 0)
            await server.until(lambda: server.open == 0)
            assert (await client.get(server.url)).content == b"firstnever sent"


@on_both_loops
async def test_a_streamed_request_body_reaches_the_server() -> None:
    """A body that comes in parts is sent in parts and arrives whole."""

    async def parts() -> AsyncIterator[bytes]:
        for part in (b"a", b"bc", b""):
            yield part

    async with plain_server(echo) as server, make_client() as client:
        assert (await client.post(server.url, content=parts())).content == b"abc"


@on_both_loops
async def test_https_is_spoken_to_a_server_that_is_known() -> None:
    """With a context that trusts it, requests go and connections are used again; without, the connection fails."""
    pem = Path(__file__).parent / "data" / "localhost.pem"  # made for this test, and used for nothing else
    of_the_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_the_server.load_cert_chain(pem)
    trusting = ssl.create_default_context(cafile=str(pem))
    async with plain_server(echo, tls=of_the_server) as server:
        transport = FreeListTransport(ssl_context=trusting)
        async with make_client(transport) as client:
            for _ in range(3):
                assert (await client.post(server.url, content=b"x" * 200_000)).content == b"x" * 200_000
            assert (server.opened, transport.idle_connections) == (1, 1)
        async with make_client() as client:
            with pytest.raises(httpx.ConnectError):
                await client.get(server.url)


@on_both_loops
async def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    """`connection: close` and a close while idle are both noticed: the next request gets a new connection."""

    async def close(asked: Asked) -> Said:
        return Said(close=asked.target == "/last")

    async with plain_server(close) as server:
        transport = FreeListTransport()
        async with make_client(transport) as client:
            await client.get(server.url + "/last")
            assert transport.idle_connections == 0
            await client.get(server.url)
            assert server.opened == 2
    async with plain_server(echo) as server, make_client(FreeListTransport(keepalive_expiry_s=0)) as client:
        await client.get(server.url)
        await client.get(server.url)
        assert server.opened == 2, "an expired connection was used again"


@on_both_loops
async def test_idle_connections_are_bounded_over_all_origins() -> None:
    """With room for two, the connection that was idle longest is closed, whichever server it leads to."""
    async with plain_server(echo) as first, plain_server(echo) as second:
        transport = FreeListTransport(max_idle=2)
        async with make_client(transport) as client:
            await client.get(first.url)
            async with client.stream("GET", second.url) as one, client.stream("GET", second.url) as two:
                await one.aread()
                await two.aread()
            await first.until(lambda: first.open == 0)
            assert (transport.idle_connections, second.open) == (2, 2)
            await client.get(first.url)
            await second.until(lambda: second.open == 1)
            assert transport.idle_connections == 2
        none_idle = FreeListTransport(max_idle=0)
        async with make_client(none_idle) as client:
            await client.get(first.url)
            assert none_idle.idle_connections == 0


@on_both_loops
async def test_an_expired_connection_of_a_gone_server_is_closed_by_other_traffic() -> None:
    """Nobody asks the gone server again; its connection is closed all the same, when another one is given back."""
    transport = FreeListTransport()
    async with make_client(transport) as client, plain_server(echo) as standing:
        async with plain_server(echo) as gone:
            await client.get(gone.url)
        await client.get(standing.url)
        assert transport.idle_connections == 1


@on_both_loops
async def test_errors_are_those_of_httpx_and_say_where() -> None:
    """A refused connection, a server that closes unanswered, garbage, a slow reply: each has its class in httpx."""

    async def closes(asked: Asked) -> None:
        return None

    async with address_that_refuses() as address, make_client() as client:
        with pytest.raises(httpx.ConnectError, match=address.removeprefix("http://")):
            await client.get(address)
    async with plain_server(closes) as server, make_client() as client:
        with pytest.raises(httpx.RemoteProtocolError, match="disconnected"):
            await client.get(server.url)
    async with plain_server(never) as server, make_client() as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.get(server.url, timeout=httpx.Timeout(None, read=0.01))
        for address in ("ftp://example.invalid/", "http:///nowhere"):
            with pytest.raises(httpx.UnsupportedProtocol):
                await client.get(address)


def test_every_error_of_httpcore_has_one_of_httpx() -> None:
    """No exception class of httpcore leaves unnamed, and each is the class of the same name where there is one."""
    known = [value for value in vars(httpcore).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(known) >= 15
    for error in known:
        assert ERRORS[error] is getattr(httpx, error.__name__, httpx.NetworkError)


@on_both_loops
async def test_more_requests_than_the_bound_are_not_sent() -> None:
    """The third request of a client for two is refused by name, at once, and the place of one that ended is free."""
    async with (
        plain_server(never) as server,
        make_client(max_in_flight=2) as client,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(2):
            tasks.start_soon(client.get, server.url)
        await server.until(lambda: len(server.asked) == 2)
        with pytest.raises(TooManyInFlight, match="2 requests") as refused:
            await client.get(server.url)
        assert refused.value.limit == 2
        tasks.cancel_scope.cancel()
    async with plain_server(echo) as server, make_client(max_in_flight=1) as client:
        for _ in range(3):
            await client.get(server.url)
        with pytest.raises(httpx.UnsupportedProtocol):
            await client.get("ftp://example.invalid/")
        await client.get(server.url)
    with pytest.raises(ValueError, match="at least 1"):
        make_client(max_in_flight=0)


@on_both_loops
async def test_a_client_keeps_no_cookies() -> None:
    """What one session's reply sets is not sent by another session's request."""

    async def baker(asked: Asked) -> Said:
        return Said(headers=[("set-cookie", "session=1; Path=/")])

    async with plain_server(baker) as server, make_client() as client:
        assert (await client.get(server.url)).headers["set-cookie"].startswith("session=1")
        await client.get(server.url)
        assert [asked.headers.get("cookie") for asked in server.asked] == [None, None]


@on_both_loops
async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that the environment names is not asked."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    async with plain_server(echo) as server, make_client() as client:
        assert (await client.get(server.url)).status_code == 200


@on_both_loops
async def test_closing_a_transport_ends_what_is_under_way() -> None:
    """Requests under way fail with an error of httpx, idle connections close, and a new request is refused."""
    async with plain_server(never) as server:
        transport = FreeListTransport()
        failed: list[Exception] = []

        async def ask() -> None:
            try:
                await transport.handle_async_request(httpx.Request("GET", server.url))
            except httpx.TransportError as error:
                failed.append(error)

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask)
            await server.until(lambda: len(server.asked) == 3)
            await transport.aclose()
        assert len(failed) == 3
        assert (transport.busy_connections, transport.idle_connections) == (0, 0)
        with pytest.raises(RuntimeError, match="closed"):
            await transport.handle_async_request(httpx.Request("GET", server.url))


@on_both_loops
async def test_connections_are_opened_in_batches_for_each_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than three are being opened to one server at once; another server does not wait behind them."""
    opening: dict[int, int] = {}
    most: dict[int, int] = {}

    def counted(backend: type[httpcore.AsyncNetworkBackend]) -> None:
        connect = backend.connect_tcp

        async def connect_tcp(self: httpcore.AsyncNetworkBackend, host: str, port: int, *rest: Any) -> Any:
            opening[port] = opening.get(port, 0) + 1
            most[port] = max(most.get(port, 0), opening[port])
            try:
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
                return await connect(self, host, port, *rest)
            finally:
                opening[port] -= 1

        monkeypatch.setattr(backend, "connect_tcp", connect_tcp)

    counted(httpcore.TrioBackend)
    counted(AsyncioBackend)
    async with plain_server(echo) as one, plain_server(echo) as other:
        transport = FreeListTransport(max_connecting=3)
        async with make_client(transport) as client, anyio.create_task_group() as tasks:
            for _ in range(12):
                tasks.start_soon(client.get, one.url)
                tasks.start_soon(client.get, other.url)
        assert list(most.values()) == [3, 3]
        assert one.opened > 3


class _Storm:
    """1,200 requests, three of four cut off: after some turns of the loop, when they have arrived, or in the body."""

    def __init__(self, server: PlainServer, client: httpx.AsyncClient, arrived: dict[str, anyio.Event]) -> None:
        self.server = server
        self.arrived = arrived
        self.client = client
        self.done = 0
        self.cut = 0

    async def request(self, number: int) -> None:
        kind = number % 4
        with anyio.CancelScope() as scope:
            if kind == 0:
                assert (await self.client.post(self.server.url, content=b"x" * number)).status_code == 200
                self.done += 1
            elif kind == 1:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self.cut_after, scope, number // 4 % 60)
                    await self.client.post(self.server.url + "/parked", content=b"y")
            elif kind == 2:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self.cut_when_arrived, scope, f"/parked/{number}")
                    await self.client.get(f"{self.server.url}/parked/{number}")
            else:
                async with self.client.stream("GET", self.server.url + "/half") as reply:
                    async for _part in reply.aiter_raw():
                        scope.cancel()
        self.cut += scope.cancelled_caught

    async def cut_after(self, scope: anyio.CancelScope, turns: int) -> None:
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        scope.cancel()

    async def cut_when_arrived(self, scope: anyio.CancelScope, target: str) -> None:
        await self.arrived[target].wait()
        scope.cancel()


@on_both_loops
async def test_a_storm_of_cancelled_requests_leaks_no_connection() -> None:
    """After 1,200 requests of which 900 are cut off at varied moments, the client works and every connection is known.

    httpx's own pool is dead after this: the places of requests that were cut off while connecting stay taken.
    """

    arrived = {f"/parked/{number}": anyio.Event() for number in range(1200)}

    async def script(asked: Asked) -> Said:
        if asked.target in arrived:
            arrived[asked.target].set()
        if asked.target.startswith("/parked"):
            await anyio.sleep_forever()
        return Said(parts=[b"first", b"last"], hold=anyio.Event() if asked.target == "/half" else None)

    transport = FreeListTransport()
    bound = BoundedTransport(transport, 2000)
    with anyio.fail_after(ALL_HANG_S):
        async with plain_server(script) as server, httpx.AsyncClient(transport=bound, timeout=None) as client:
            storm = _Storm(server, client, arrived)
            async with anyio.create_task_group() as tasks:
                for number in range(1200):
                    tasks.start_soon(storm.request, number)
            assert (storm.done, storm.cut) == (300, 900)
            assert (transport.busy_connections, bound.in_flight) == (0, 0)
            await server.until(lambda: server.open == transport.idle_connections)
            opened = server.opened
            async with anyio.create_task_group() as tasks:
                for _ in range(100):
                    tasks.start_soon(client.get, server.url)
            assert server.opened - opened <= 100
            assert transport.busy_connections == 0
            await server.until(lambda: server.open == transport.idle_connections)
        assert (transport.busy_connections, transport.idle_connections) == (0, 0)
