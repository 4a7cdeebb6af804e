"""How a server starts and ends an application: what a real server and the in-memory one do alike.

Rules (docs/reference/protocol.md section 14, *Serving*): an application that raises in startup has failed to start,
which real servers do not take for a failure; whoever stops a server has what it holds let go first, since a
server waits for its requests, and a held request waits for the gate. A lifespan that breaks later is said too: servers
log it at most, and some lose it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Final

from statecore.errors import StatecoreError
from statecore.exception_groups import single

from ..net.http import ASGIApp, Message, Receive, Scope, Send

STARTUP_COMPLETE: Final = "lifespan.startup.complete"
STARTUP_FAILED: Final = "lifespan.startup.failed"
SHUTDOWN: Final = "lifespan.shutdown"
SHUTDOWN_FAILED: Final = "lifespan.shutdown.failed"
NO_REASON: Final = "the application gave no reason"


class StartupFailed(StatecoreError):
    """A server did not start; the message names it and says why."""

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(server, reason)
        self.server = server
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.server} did not start: {self.reason}"


class LifespanBroken(StatecoreError):
    """A server was up, and its application's lifespan broke: while it served, or at its end."""

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(server, reason)
        self.server = server
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.server} did not end well: {self.reason}"


class StrictLifespan:
    """The application, where not coming up is always said: `failure` is why, or None; `broken` is what went wrong
    later, and `on_broken` is called if that was before the end.

    An application that raises in startup, or ends its lifespan without having started, sends startup.failed. `required`
    false is for applications without a lifespan: then nothing of it is sent to them.
    """

    def __init__(self, app: ASGIApp, *, required: bool = True, on_broken: Callable[[], None] = lambda: None) -> None:
        self.app = app
        self.required = required
        self.failure: str | None = None
        self.broken: str | None = None
        self.started = False
        self._ending = False
        self._on_broken = on_broken

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self.app(scope, receive, send)
        elif self.required:
            await self._run(scope, receive, send)
        else:
            await _nothing_to_do(receive, send)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def asked() -> Message:
            message = await receive()
            self._ending = self._ending or message["type"] == SHUTDOWN
            return message

        async def watched(message: Message) -> None:
            reason = str(message.get("message", "")) or NO_REASON
            if message["type"] == STARTUP_COMPLETE:
                self.started = True
            elif message["type"] == STARTUP_FAILED and self.failure is None:
                self.failure = reason
            elif message["type"] == SHUTDOWN_FAILED:
                self._broke(reason)
                return  # a server that objects to it here would hide what the application raises next
            await send(message)

        try:
            await self.app(scope, asked, watched)
        except Exception as error:
            cause = single(error)
            if self.started:
                self._broke(f"{type(cause).__name__}: {cause}")
                raise
            if self.failure is None:
                self.failure = f"the application raised in startup: {type(cause).__name__}: {cause}"
        else:
            if self.started:
                if self.broken is None and not self._ending:
                    self._broke("its lifespan ended by itself")
                return
            if self.failure is None:
                self.failure = "the application has no lifespan"
        # Said by us, and where the application has said it before: what a server raises there may have been caught.
        await send({"type": STARTUP_FAILED, "message": self.failure})

    def _broke(self, reason: str) -> None:
        """The newest reason stands: an exception comes after the message about it, and says more."""
        self.broken = reason
        if not self._ending:
            self._on_broken()


async def _nothing_to_do(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def before_shutdown(app: ASGIApp) -> None:
    """The application's `before_shutdown()` was called, and awaited if it asks for it; nothing if it has none.

    A participant refuses there what it holds, so that held requests end and the server can.
    """
    hook = getattr(app, "before_shutdown", None)
    if callable(hook):
        result = hook()
        if inspect.isawaitable(result):
            await result
