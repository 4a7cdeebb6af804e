"""A judge or a simulator: a model server that takes no part in checkpoints and is never paused (S1, I73).

It says so: its capabilities name the role `auxiliary`, and it has no checkpoint route, so that no coordinator can take
it for a policy. docs/reference/protocol.md section 2.
"""

from __future__ import annotations

from typing import ClassVar

import httpx

from statecore import DefinitionError

from ..net.http import ASGIApp, Incoming, Send, serve
from ..settings import Seams, Settings
from .part import Report
from .server import Server
from .upstream import Call, upstream_app


class AuxiliaryModel(Server):
    """A model server that is always served. `upstream` as for a `PolicyModel`."""

    kind: ClassVar[str] = "model"
    role: ClassVar[str] = "auxiliary"
    concurrency: ClassVar[str] = "any number of calls at once"
    checkpoint_mode = "stateless"

    def __init__(
        self,
        name: str,
        settings: Settings,
        upstream: str | Call | None = None,
        *,
        upstream_api_key: str | None = None,
        seams: Seams | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(name, settings, seams=seams, transport=transport)
        self._upstream: ASGIApp | None = None
        if upstream is not None:
            limit = settings.max_body_bytes
            self._upstream = upstream_app(upstream, api_key=upstream_api_key, transport=transport, max_body_bytes=limit)

    def _takes_part(self) -> bool:
        return False

    def app(self) -> ASGIApp:
        """The upstream, with capabilities when checkpointing is on."""
        if self._upstream is None:
            raise DefinitionError(f"model server {self.name!r}: give upstream=, or wrap an application of your own")
        return self.wrap(self._upstream)

    async def data(self, request: Incoming, send: Send, app: ASGIApp) -> None:
        await serve(app, request, send)

    def report(self) -> Report:
        return Report((), {})
