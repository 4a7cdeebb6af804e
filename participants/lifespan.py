"""How a server starts and ends an application: what a real server and the in-memory one do alike.

Rules (docs/reference/protocol.md section 14, *Serving*): an application that raises in startup has failed to start,
which real servers do not take for a failure; whoever stops a server first lets the application open its gate, since a
server waits for its requests, and a held request waits for the gate.
"""

from __future__ import annotations

import inspect
from typing import Final

from statecore.errors import StatecoreError

from .http import ASGIApp, Message, Receive, Scope, Send

STARTUP_COMPLETE: Final = "lifespan.startup.complete"
STARTUP_FAILED: Final = "lifespan.startup.failed"


class StartupFailed(StatecoreError):
    """A server did not start; the message names it and says why."""

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(server, reason)
        self.server = server
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.server} did not start: {self.reason}"


class StrictLifespan:
    """The application, where not coming up is always said: `failure` is why, or None.

    An application that raises in startup, or ends its lifespan without having started, sends startup.failed. `required`
    false is for applications without a lifespan: then nothing of it is sent to them.
    """

    def __init__(self, app: ASGIApp, *, required: bool = True) -> None:
        self.app = app
        self.required = required
        self.failure: str | None = None
        self.started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self.app(scope, receive, send)
        elif self.required:
            await self._run(scope, receive, send)
        else:
            await _nothing_to_do(receive, send)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def watched(message: Message) -> None:
            if message["type"] == STARTUP_COMPLETE:
                self.started = True
            elif message["type"] == STARTUP_FAILED and self.failure is None:
                self.failure = str(message.get("message", "")) or "the application gave no reason"
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception as error:
            if self.started:
                raise
            if self.failure is None:
                self.failure = f"the application raised in startup: {type(error).__name__}: {error}"
        else:
            if self.started:
                return
            if self.failure is None:
                self.failure = "the application has no lifespan"
        # Said by us, and where the application has said it before: what a server raises there may have been caught.
        await send({"type": STARTUP_FAILED, "message": self.failure})


async def _nothing_to_do(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def before_shutdown(app: ASGIApp) -> None:
    """The application's `before_shutdown()` was called, and awaited if it asks for it; nothing if it has none.

    A participant opens its gate there, so that held requests end and the server can.
    """
    hook = getattr(app, "before_shutdown", None)
    if callable(hook):
        result = hook()
        if inspect.isawaitable(result):
            await result
