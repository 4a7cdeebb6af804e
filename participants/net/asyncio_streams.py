"""TCP connections for httpcore on asyncio, none of which is lost when whoever opens it is cancelled.

httpcore's own go through `anyio.connect_tcp`, which before anyio 4.16 drops a connection that was just made when it is
cancelled in that moment: a storm of cancelled requests leaves sockets that nobody owns. asyncio's own
`open_connection` closes what it does not return.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.lowlevel
import httpcore


class AsyncioBackend(httpcore.AsyncNetworkBackend):
    """Opens connections with asyncio alone."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (the signature is httpcore's)
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        local = None if local_address is None else (local_address, 0)
        with _errors(httpcore.ConnectTimeout, httpcore.ConnectError), anyio.fail_after(timeout):
            reader, writer = await asyncio.open_connection(host, port, local_addr=local)
        for option in socket_options or ():
            writer.get_extra_info("socket").setsockopt(*option)
        return AsyncioStream(reader, writer)


class AsyncioStream(httpcore.AsyncNetworkStream):
    """One connection, for one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        with _errors(httpcore.ReadTimeout, httpcore.ReadError), anyio.fail_after(timeout):
            data = await self._reader.read(max_bytes)
        if not data and self._writer.is_closing():
            raise httpcore.ReadError("the connection is closed")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        if self._writer.is_closing():
            raise httpcore.WriteError("the connection is closed")
        with _errors(httpcore.WriteTimeout, httpcore.WriteError), anyio.fail_after(timeout):
            self._writer.write(buffer)
            await self._writer.drain()

    async def aclose(self) -> None:
        """The connection is closed at once: what is not sent yet belongs to a request that nobody waits for."""
        self._writer.transport.abort()
        await anyio.lowlevel.checkpoint()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        try:
            with _errors(httpcore.ConnectTimeout, httpcore.ConnectError), anyio.fail_after(timeout):
                await self._writer.start_tls(ssl_context, server_hostname=server_hostname)
        except BaseException:
            self._writer.transport.abort()
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            return self._reader.at_eof() or _readable(self._writer.get_extra_info("socket"))
        names = {"client_addr": "sockname", "server_addr": "peername"}
        return self._writer.get_extra_info(names.get(info, info))


@contextmanager
def _errors(timed_out: type[Exception], failed: type[Exception]) -> Iterator[None]:
    """A timeout and an error of the connection leave as httpcore's."""
    try:
        yield
    except TimeoutError as error:
        raise timed_out(*error.args) from error
    except OSError as error:
        raise failed(str(error) or type(error).__name__) from error


def _readable(raw: socket.socket) -> bool:
    """Whether there is something to read now: on an idle connection that can only be its end."""
    if raw.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(raw.fileno(), select.POLLIN)
    return bool(poll.poll(0))
