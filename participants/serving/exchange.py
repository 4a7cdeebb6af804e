"""One request and its reply in memory, between the task of its caller and the task of its handler.

Either side may go first: a caller that leaves is `http.disconnect` to the handler, and what the handler still sends
goes nowhere; a handler that ends, or is killed, before its reply is whole is a broken connection to the caller. A reply
that HTTP could not carry (a second start, a header with a line break, more or less body than content-length says)
raises in the handler, as a real server's protocol code does. Pure trio; used by `testing`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import unquote

import httpx
import trio

from ..net.http import Message, Scope
from ..net.posts import target_of

MAX_BUFFERED_BYTES: Final = 256 * 1024
NO_BODY_STATUS: Final = frozenset({204, 304})
_FORBIDDEN: Final = frozenset(b"\r\n\0")

Headers = list[tuple[bytes, bytes]]


class Exchange:
    """A request with its whole `body`; `where` is the server's address, for error texts.

    `heard` false: nobody waits for the reply, it is taken and dropped.
    """

    def __init__(self, request: httpx.Request, body: bytes, where: str, *, heard: bool = True) -> None:
        self._request = request
        self._body = body
        self._where = where
        self._heard = heard
        self._asked = False  # the handler has received the request
        self._gone = False  # the caller has left
        self._broken: str | None = None
        self._head: tuple[int, Headers] | None = None
        self._parts: deque[bytes] = deque()
        self._buffered = 0
        self._expected: int | None = None
        self._sent = 0
        self._complete = False
        self._changed = trio.lowlevel.ParkingLot()

    def repeated(self) -> Exchange:
        """The same request once more, whose reply nobody hears."""
        return Exchange(self._request, self._body, self._where, heard=False)

    # the caller's side

    async def head(self) -> tuple[int, Headers]:
        """Status and headers of the reply; httpx.RemoteProtocolError if the connection breaks before."""
        while self._head is None:
            if self._broken is not None:
                raise httpx.RemoteProtocolError(f"{self._where}: disconnected without a response: {self._broken}")
            await self._changed.park()
        return self._head

    async def part(self) -> bytes | None:
        """The next part of the body, None at its end; httpx.RemoteProtocolError if the connection breaks before."""
        while not self._parts:
            if self._broken is not None:
                raise httpx.RemoteProtocolError(f"{self._where}: closed before the whole body was sent: {self._broken}")
            if self._complete:
                return None
            await self._changed.park()
        part = self._parts.popleft()
        self._buffered -= len(part)
        self._changed.unpark_all()
        return part

    def leave(self) -> None:
        """The caller is gone, or has all it wanted; the handler sees http.disconnect."""
        self._gone = True
        self._parts.clear()
        self._changed.unpark_all()

    # the handler's side

    def scope(self, client_port: int, state: dict[str, Any]) -> Scope:
        """The ASGI scope of the request."""
        url = self._request.url
        raw_path, _, query = target_of(self._request).partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self._request.method,
            "scheme": url.scheme,
            "path": unquote(raw_path.decode("ascii")),
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in self._request.headers.raw],
            "client": ("127.0.0.1", client_port),
            "server": (url.host, url.port or 80),
            "state": state,
            "extensions": {},
        }

    async def receive(self) -> Message:
        """The request, then http.disconnect as soon as the caller has left or the reply is whole."""
        await trio.lowlevel.checkpoint()
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        while not (self._gone or self._complete or self._broken is not None):
            await self._changed.park()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """The message is on its way, or dropped if the caller has left; waits while too much is not read yet."""
        await trio.lowlevel.checkpoint()
        if self._gone or self._broken is not None:
            return
        if message["type"] == "http.response.start":
            self._start(message)
        elif message["type"] == "http.response.body":
            self._more(bytes(message.get("body", b"")), bool(message.get("more_body", False)))
        else:
            raise RuntimeError(f"an HTTP response has no message {message['type']!r}")
        self._changed.unpark_all()
        while self._buffered >= MAX_BUFFERED_BYTES and not (self._gone or self._broken is not None):
            await self._changed.park()

    def _start(self, message: Message) -> None:
        if self._head is not None:
            raise RuntimeError("the response was started twice")
        headers = _checked(message.get("headers", ()))
        lengths = [int(value) for name, value in headers if name == b"content-length"]
        self._expected = lengths[0] if lengths else None
        self._head = (int(message["status"]), headers)

    def _more(self, part: bytes, more: bool) -> None:
        if self._head is None:
            raise RuntimeError("the response has a body before it was started")
        if self._complete:
            raise RuntimeError("the response was complete, and more of it was sent")
        if self._request.method != "HEAD" and self._head[0] not in NO_BODY_STATUS:
            self._sent += len(part)
            if self._expected is not None and (
                self._sent > self._expected or (not more and self._sent < self._expected)
            ):
                raise RuntimeError(f"content-length is {self._expected}, and the body has {self._sent} bytes")
            if part and self._heard:
                self._parts.append(part)
                self._buffered += len(part)
        self._complete = not more

    def check_answered(self) -> None:
        """Raises RuntimeError if the handler has ended without a whole reply to a caller that is still there."""
        if not (self._complete or self._gone or self._broken is not None):
            raise RuntimeError("the handler ended without a whole response")

    def fail(self) -> None:
        """What real servers do for an exception: a plain 500 if no reply was started, else a broken connection."""
        if self._head is None and not self._gone and self._broken is None:
            self._head = (500, [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"21")])
            self._parts.append(b"Internal Server Error")
            self._complete = True
            self._changed.unpark_all()
        else:
            self.break_off("the handler raised")

    def break_off(self, reason: str) -> None:
        """The connection is broken, unless the whole reply is on its way."""
        if not self._complete and self._broken is None:
            self._broken = reason
            self._changed.unpark_all()


def _checked(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers with lower-case names; raises for what cannot be sent."""
    checked: Headers = []
    for name, value in headers:
        if not isinstance(name, bytes) or not isinstance(value, bytes):
            raise TypeError(f"a header is a pair of bytes, not {(name, value)!r}")
        if not name or _FORBIDDEN & {*name, *value}:
            raise ValueError(f"the header {name!r}: {value!r} cannot be sent")
        checked.append((name.lower(), value))
    return checked
