"""An answer as Gym's handlers read it: what they use of an aiohttp response, made of a reply that is all here."""

from __future__ import annotations

import importlib
import json
from http.cookies import CookieError, SimpleCookie
from typing import Any

from ..servers.executions import Response


class Content:
    """The body as a stream that is read whole."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def read(self, _size: int = -1) -> bytes:
        return self._body


class RequestInfo:
    """What the text of an error names."""

    def __init__(self, method: str, url: str) -> None:
        self.method = method
        self.url = self.real_url = url
        self.headers: dict[str, str] = {}


class GymAnswer:
    """The reply of `server` to a POST at `path`."""

    def __init__(self, server: str, path: str, response: Response) -> None:
        self.status = response.status
        self.reason = ""
        self.headers = dict(response.headers)
        self.content = Content(response.body)
        self.request_info = RequestInfo("POST", f"http://{server}{path}")
        self.history = ()
        self.cookies: SimpleCookie = SimpleCookie()
        for name, value in response.headers:
            if name.lower() == "set-cookie":
                try:
                    self.cookies.load(value)
                except CookieError:
                    continue  # aiohttp too goes on without a cookie that cannot be read

    @property
    def ok(self) -> bool:
        return self.status < 400

    async def read(self) -> bytes:
        return await self.content.read()

    async def text(self) -> str:
        return (await self.read()).decode()

    async def json(self) -> Any:
        return json.loads(await self.read())

    def raise_for_status(self) -> None:
        """aiohttp's own error for a status of 400 or more: Gym's layers know it."""
        if self.ok:
            return
        aiohttp: Any = importlib.import_module("aiohttp")
        raise aiohttp.ClientResponseError(
            self.request_info, self.history, status=self.status, message=self.reason, headers=self.headers
        )

    def release(self) -> None:
        return

    close = release
