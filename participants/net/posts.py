"""POSTs of one server to another: whole bodies both ways, straight to the transport.

A turn makes two of these, so what an HTTP client adds around its transport (a request built from parts, an auth flow,
redirects, cookies, a decoder) is most of what they would cost. What is asked of a transport is httpx's own interface.
docs/reference/protocol.md section 6: a connect timeout, and no other.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

import httpx
from attrs import frozen

from .client import MAX_IN_FLIGHT
from .transport import BoundedTransport, FreeListTransport

RawHeaders = list[tuple[bytes, bytes]]
SAFE = "/%:@!$&'()*+,;=-._~?"
"""What stands in a request target as it is; everything else is escaped."""


@frozen
class Answered:
    """A peer's answer: header names as they came."""

    status: int
    raw_headers: RawHeaders
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        """By lower-case name; of a repeated one the last."""
        return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self.raw_headers}

    def all(self, name: bytes) -> list[str]:
        """Every value of a header, in order; `name` in lower case."""
        return [value.decode("latin-1") for key, value in self.raw_headers if key.lower() == name]


@frozen
class _Base:
    """A server's address, parsed once."""

    url: httpx.URL
    host: bytes
    path: str

    @classmethod
    def of(cls, address: str) -> _Base:
        url = httpx.URL(address)
        return cls(url, url.netloc, url.path.rstrip("/"))


class _Content(httpx.AsyncByteStream):
    """A body in one piece."""

    def __init__(self, content: bytes) -> None:
        self._left = [content] if content else []

    def __aiter__(self) -> _Content:
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()


class Posts:
    """Sends POSTs; one more at once than `max_in_flight` raises TooManyInFlight. Raises httpx's transport errors."""

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        connect_timeout_s: float = 5.0,
        max_in_flight: int = MAX_IN_FLIGHT,
    ) -> None:
        self._transport = BoundedTransport(FreeListTransport() if transport is None else transport, max_in_flight)
        self._timeout = {"connect": connect_timeout_s, "read": None, "write": None, "pool": None}
        self._bases: dict[str, _Base] = {}

    async def post(self, address: str, path: str, content: bytes, headers: Iterable[tuple[str, str]]) -> Answered:
        """The answer of the server at `address` to `content` at `path`, read whole."""
        base = self._bases.get(address)
        if base is None:
            base = self._bases[address] = _Base.of(address)
        raw = [(b"host", base.host), (b"content-length", b"%d" % len(content))]
        raw += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        target = quote(base.path + path, safe=SAFE).encode("ascii")
        request = httpx.Request(
            "POST",
            base.url,
            headers=raw,
            stream=_Content(content),
            extensions={"timeout": self._timeout, "target": target},
        )
        response = await self._transport.handle_async_request(request)
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream), "an asynchronous transport gives an asynchronous reply"
        try:
            body = b"".join([part async for part in stream])
        finally:
            await stream.aclose()
        return Answered(response.status_code, response.headers.raw, body)

    async def aclose(self) -> None:
        await self._transport.aclose()


def target_of(request: httpx.Request) -> bytes:
    """The request target, path and query, of a request to a transport."""
    target: bytes = request.extensions.get("target", request.url.raw_path)
    return target
