"""A network in memory, for tests: ASGI servers with a lifespan, that can be killed, and faults on the way.

As on real servers, and unlike httpx's ASGITransport: a handler runs in its *server's* nursery, so a caller that leaves
does not stop it (it sees http.disconnect); killing a server ends its handlers and breaks the callers' connections; an
application's exception is a 500 for the caller and is kept in `errors`; connect and read timeouts are honoured; a
response that does not fit its content-length, or a header that cannot be sent, is the application's error.

Pure trio, no threads and no real sleep: with a MockClock an hour passes at once, and the order of events depends on
nothing but trio's own. What it cannot show: `finally` blocks and shielded parts of a killed server still run.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import Final
from urllib.parse import unquote

import httpx
import trio
from attrs import frozen

from ..net.client import make_client
from ..net.http import ASGIApp
from ..net.posts import target_of
from .exchange import Exchange
from .lifespan import StartupFailed
from .memory_server import GRACEFUL_S, AppError, MemoryServer

__all__ = ["AppError", "Call", "Fault", "InMemoryLauncher", "InMemoryNetwork", "StartupFailed", "once"]

_HTTP11: Final = {"http_version": b"HTTP/1.1"}

Factory = Callable[[int, Mapping[str, str]], ASGIApp]
"""Makes a server's application from the epoch and the URLs of all servers by name."""


@frozen
class Call:
    """One sending, as a fault hook sees it: from whom, to which server, which request; `number` counts from 1."""

    source: str
    server: str
    request: httpx.Request
    number: int

    @property
    def path(self) -> str:
        return unquote(target_of(self.request).partition(b"?")[0].decode("ascii"))


@frozen
class Fault:
    """What happens to one sending. Times are seconds; all that is not said happens as usual.

    `refuse`: no connection. `connect_s`: the connection takes so long. `lose_request`: the connection breaks before the
    server has the request. `silent`: the request vanishes and nothing ever answers. `request_s`: the server gets the
    request so much later, whether its caller still waits or not, and whoever has the server's name by then gets it.
    `repeat_s`: the server gets the request once more, so much after the first time, and nobody hears the answer.
    `lose_reply`: the server answers, and the connection breaks instead of bringing it. `reply_s`: the reply takes so
    long.
    """

    refuse: bool = False
    connect_s: float = 0.0
    lose_request: bool = False
    silent: bool = False
    request_s: float = 0.0
    repeat_s: float | None = None
    lose_reply: bool = False
    reply_s: float = 0.0


FaultHook = Callable[[Call], Fault | None]
Watch = Callable[[Call, str], None]
"""Told of a sending when its server has it (`has`), and when its caller has an answer (`answered`, with the status) or
an error instead (`breaks`)."""
NO_FAULT: Final = Fault()


def once(fault: Fault, *, server: str | None = None, path: str = "", source: str | None = None) -> FaultHook:
    """A hook that does `fault` to the first call to `server`, from `source`, whose path ends with `path`."""
    left = [fault]

    def hook(call: Call) -> Fault | None:
        fits = server in (None, call.server) and source in (None, call.source) and call.path.endswith(path)
        return left.pop() if fits and left else None

    return hook


class InMemoryNetwork:
    """Servers by name, reached as ``http://<name>.local``; used as `async with InMemoryNetwork() as network`.

    `faults` is asked about every sending and may be set at any time. `errors` holds what applications let out. Leaving
    the block kills all servers.
    """

    def __init__(self, faults: FaultHook | None = None) -> None:
        self.faults = faults
        self.watch: Watch = lambda call, what: None
        self.errors: list[AppError] = []
        self._servers: dict[str, MemoryServer] = {}
        self._nursery: trio.Nursery | None = None
        self._numbers = count(1)
        self.sent: Callable[[Call, Exchange], None] = lambda call, exchange: None
        self._under_way: dict[int, tuple[Call, Exchange]] = {}

    async def __aenter__(self) -> InMemoryNetwork:
        self._manager = self._open()
        return await self._manager.__aenter__()

    async def __aexit__(self, *exc: object) -> bool | None:
        return await self._manager.__aexit__(*exc)  # type: ignore[arg-type]

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[InMemoryNetwork]:
        failed: Exception | None = None
        async with trio.open_nursery() as self._nursery:
            try:
                yield self
            except Exception as error:  # raised again below, where no nursery wraps it into a group
                failed = error
            for name in self.up:
                self.kill(name)
            self._nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed

    @staticmethod
    def url(name: str) -> str:
        """The address of the server with that name, whether it is up or not."""
        return f"http://{name}.local"

    def transport(self, source: str = "") -> httpx.AsyncBaseTransport:
        """A transport for clients; `source` is who fault hooks are told the calls come from."""
        return _Transport(self, source)

    def client(self, source: str = "") -> httpx.AsyncClient:
        """A client as `make_client` makes it, on this network."""
        return make_client(self.transport(source))

    async def start(self, name: str, app: ASGIApp, *, lifespan: bool = True) -> str:
        """The server is up, its startup is complete; returns its URL. Raises StartupFailed; ValueError if it is up.

        `lifespan` false is for applications that have none.
        """
        if name in self._servers:
            raise ValueError(f"a server {name!r} is up already: kill or stop it, or restart it")
        if self._nursery is None:
            raise RuntimeError("use `async with InMemoryNetwork() as network`")
        server = MemoryServer(name, app, lifespan, self.errors)
        self._servers[name] = server
        try:
            failure: str | None = await self._nursery.start(server.run)
        except BaseException:
            self._servers.pop(name, None)
            raise
        if failure is not None:
            self._servers.pop(name, None)
            raise StartupFailed(name, failure)
        return self.url(name)

    def kill(self, name: str) -> None:
        """As kill -9: the server is gone at once, its callers' connections are broken, its handlers are cancelled.

        Raises KeyError when no such server is up.
        """
        self._servers.pop(name).kill()

    async def stop(self, name: str, *, graceful_s: float = GRACEFUL_S) -> None:
        """As SIGTERM: no new requests, gate opened, handlers may end for `graceful_s`, then the lifespan ends."""
        await self._servers.pop(name).stop(graceful_s)

    async def restart(self, name: str, app: ASGIApp, *, lifespan: bool = True) -> str:
        """A fresh server under the same name, the old one (if it was up) killed."""
        old = self._servers.get(name)
        if old is not None:
            self.kill(name)
            await old.ended.wait()
        return await self.start(name, app, lifespan=lifespan)

    @property
    def up(self) -> tuple[str, ...]:
        """The names of the servers that are up."""
        return tuple(self._servers)

    def break_off(self, between: Callable[[str, str], bool]) -> None:
        """Connections break whose caller and server are `between`; whoever waited for an answer there hears of it."""
        for call, exchange in tuple(self._under_way.values()):
            if between(call.source, call.server):
                exchange.break_off("the connection was cut")

    def send_again(self, call: Call, exchange: Exchange, after_s: float) -> None:
        """Whoever has that server's name by then gets this request once more, and nobody hears the answer."""
        assert self._nursery is not None
        self._nursery.start_soon(self._deliver_after, after_s, call, exchange.repeated())

    # what the transport asks for

    def _call(self, source: str, request: httpx.Request) -> tuple[Call, Fault]:
        call = Call(source, request.url.host.removesuffix(".local"), request, next(self._numbers))
        return call, (self.faults(call) if self.faults is not None else None) or NO_FAULT

    def _server(self, name: str) -> MemoryServer | None:
        server = self._servers.get(name)
        return server if server is not None and server.accepting else None

    def _deliver(self, call: Call, exchange: Exchange) -> None:
        server = self._server(call.server)
        if server is None:
            exchange.break_off("the server is gone")
        else:
            self.watch(call, "has")
            server.accept(exchange)

    async def _deliver_after(self, delay_s: float, call: Call, exchange: Exchange) -> None:
        await trio.sleep(delay_s)
        self._deliver(call, exchange)

    def _send(self, call: Call, exchange: Exchange, fault: Fault) -> None:
        """The request is on its way, once or more often."""
        assert self._nursery is not None
        self.sent(call, exchange)
        if fault.repeat_s is not None:
            again = exchange.repeated()
            self._nursery.start_soon(self._deliver_after, fault.request_s + fault.repeat_s, call, again)
        if fault.request_s > 0:
            self._nursery.start_soon(self._deliver_after, fault.request_s, call, exchange)
        else:
            self._deliver(call, exchange)


class _Transport(httpx.AsyncBaseTransport):
    """What a client sends goes to the network."""

    def __init__(self, network: InMemoryNetwork, source: str) -> None:
        self._network = network
        self._source = source

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        where = f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"
        timeouts = request.extensions.get("timeout", {})
        call, fault = self._network._call(self._source, request)
        try:
            return await self._answered(call, fault, timeouts, where)
        except httpx.TransportError:
            self._network.watch(call, "breaks")
            raise

    async def _answered(
        self, call: Call, fault: Fault, timeouts: Mapping[str, float | None], where: str
    ) -> httpx.Response:
        request = call.request
        with _within(timeouts.get("connect"), httpx.ConnectTimeout, where):
            await trio.sleep(fault.connect_s)
        if fault.refuse or self._network._server(call.server) is None:
            raise httpx.ConnectError(f"{where}: connection refused")
        exchange = Exchange(request, await _body(request), where)
        if fault.lose_request:
            raise httpx.ReadError(f"{where}: the connection broke")
        if not fault.silent:
            self._network._send(call, exchange, fault)
        self._network._under_way[call.number] = call, exchange
        try:
            with _within(timeouts.get("read"), httpx.ReadTimeout, where):
                status, headers = await exchange.head()
                await trio.sleep(fault.reply_s)
            if fault.lose_reply:
                raise httpx.ReadError(f"{where}: the connection broke")
        except BaseException:
            exchange.leave()
            raise
        finally:
            del self._network._under_way[call.number]
        self._network.watch(call, f"answered {status}")
        return httpx.Response(
            status, headers=headers, stream=_Parts(exchange, timeouts.get("read"), where), extensions=dict(_HTTP11)
        )


class _Parts(httpx.AsyncByteStream):
    """The body of a reply, read as it comes."""

    def __init__(self, exchange: Exchange, timeout_s: float | None, where: str) -> None:
        self._exchange = exchange
        self._timeout_s = timeout_s
        self._where = where

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        await trio.lowlevel.checkpoint()
        with _within(self._timeout_s, httpx.ReadTimeout, self._where):
            part = await self._exchange.part()
        if part is None:
            raise StopAsyncIteration
        return part

    async def aclose(self) -> None:
        self._exchange.leave()


async def _body(request: httpx.Request) -> bytes:
    if not isinstance(request.stream, AsyncIterable):
        raise TypeError(f"the body of {request.method} {request.url} cannot be read asynchronously")
    for name, value in request.headers.raw:
        if {*name, *value} & {*b"\r\n\0"}:
            raise httpx.LocalProtocolError(f"the header {name!r}: {value!r} cannot be sent")
    return b"".join([part async for part in request.stream])


@contextmanager
def _within(timeout_s: float | None, error: type[httpx.TimeoutException], where: str) -> Iterator[None]:
    """The block takes no longer than `timeout_s`, or raises `error`."""
    with trio.move_on_after(math.inf if timeout_s is None else timeout_s) as scope:
        yield
    if scope.cancelled_caught:
        raise error(f"{where}: no answer within {timeout_s} s")


class InMemoryLauncher:
    """A `launcher.Launcher` whose servers live in a network.

    `factories` are called at each start, with the epoch and the URLs of all servers by name.
    """

    def __init__(self, network: InMemoryNetwork, factories: Mapping[str, Factory]) -> None:
        self.network = network
        self.factories = dict(factories)

    async def start(self, epoch: int) -> Mapping[str, str]:
        """All servers are up, born with `epoch`; none is if one fails, and then StartupFailed is raised."""
        urls = {name: self.network.url(name) for name in self.factories}
        try:
            for name, factory in self.factories.items():
                await self.network.start(name, factory(epoch, urls))
        except BaseException:
            self.kill()
            raise
        return urls

    async def stop(self) -> None:
        """All servers of this launcher that are still up have ended."""
        async with trio.open_nursery() as nursery:
            for name in self.up:
                nursery.start_soon(self.network.stop, name)

    def kill(self, *names: str) -> None:
        """As kill -9 to the servers named, or to all."""
        for name in names or self.up:
            self.network.kill(name)

    @property
    def up(self) -> tuple[str, ...]:
        """The names of this launcher's servers that are up."""
        return tuple(name for name in self.factories if name in self.network.up)
