"""One server of an in-memory network: what `testing` starts, stops and kills.

It drives the application's lifespan as a real server does, and runs each request in a nursery of its own: a caller that
leaves does not stop it, and killing the server does. Pure trio.
"""

from __future__ import annotations

import contextvars
from itertools import count
from typing import Final

import trio
from attrs import frozen

from ..net.http import ASGIApp, Message
from .exchange import Exchange
from .lifespan import StrictLifespan, before_shutdown

GRACEFUL_S: Final = 3.0
LIFESPAN_S: Final = 60.0


@frozen
class AppError:
    """An exception that an application let out: a bug, unless the test made it.

    `where` is `GET /path`, `lifespan` or `before_shutdown`.
    """

    server: str
    where: str
    error: Exception


class MemoryServer:
    """One server: its lifespan, its handlers, its connections. `errors` gets what the application lets out."""

    def __init__(self, name: str, app: ASGIApp, lifespan: bool, errors: list[AppError]) -> None:
        self.name = name
        self.accepting = False
        self.ended = trio.Event()
        self._errors = errors
        self._app = app
        self._lifespan = StrictLifespan(app, required=lifespan)
        self._scope = trio.CancelScope()
        self._exchanges: dict[int, Exchange] = {}
        self._numbers = count(1)
        self._started = trio.Event()
        self._stopping = trio.Event()
        self._drained = trio.Event()
        self._lifespan_over = trio.Event()
        self._graceful_s = GRACEFUL_S
        self._state: dict[str, object] = {}

    async def run(self, task_status: trio.TaskStatus[str | None]) -> None:
        """The server runs until it is killed or stopped; what is reported is why it did not start, or None."""
        came_up = False
        try:
            with self._scope:
                async with trio.open_nursery() as outer:
                    outer.start_soon(self._run_lifespan)
                    await self._started.wait()
                    if self._lifespan.failure is None:
                        came_up = True
                        await self._run_handlers(task_status)
                        self._drained.set()
                        with trio.move_on_after(LIFESPAN_S):
                            await self._lifespan_over.wait()
                    outer.cancel_scope.cancel()
        finally:
            self.accepting = False
            self.ended.set()
        if not came_up:
            task_status.started(self._lifespan.failure or "it was killed while it started")

    async def _run_handlers(self, task_status: trio.TaskStatus[str | None]) -> None:
        async with trio.open_nursery() as self._handlers:
            self._context = contextvars.copy_context()  # a handler never sees its caller's context variables
            self.accepting = True
            task_status.started(None)
            await self._stopping.wait()
            self.accepting = False
            try:
                await before_shutdown(self._app)
            except Exception as error:
                self._errors.append(AppError(self.name, "before_shutdown", error))
            self._handlers.cancel_scope.deadline = trio.current_time() + self._graceful_s

    def accept(self, exchange: Exchange) -> None:
        """A handler runs for the exchange."""
        number = next(self._numbers)
        self._exchanges[number] = exchange
        self._context.run(self._handlers.start_soon, self._handle, exchange, number)

    def kill(self) -> None:
        """The connections are broken at once; the tasks end as soon as they look up."""
        self.accepting = False
        self._scope.cancel()
        for exchange in self._exchanges.values():
            exchange.break_off("the server was killed")

    async def stop(self, graceful_s: float) -> None:
        """The server has ended by itself."""
        self._graceful_s = graceful_s
        self._stopping.set()
        await self.ended.wait()

    async def _handle(self, exchange: Exchange, number: int) -> None:
        scope = exchange.scope(client_port=number, state=dict(self._state))
        try:
            await trio.lowlevel.checkpoint()  # a server that was killed before it looked does nothing any more
            await self._app(scope, exchange.receive, exchange.send)
            exchange.check_answered()
        except Exception as error:
            self._errors.append(AppError(self.name, f"{scope['method']} {scope['path']}", error))
            exchange.fail()
        finally:
            del self._exchanges[number]
            exchange.break_off("the server was stopped")

    async def _run_lifespan(self) -> None:
        messages = iter(["lifespan.startup", "lifespan.shutdown"])

        async def receive() -> Message:
            message = next(messages, None)
            if message == "lifespan.shutdown":
                await self._drained.wait()
            elif message is None:
                await trio.sleep_forever()
            return {"type": message}

        async def send(message: Message) -> None:
            await trio.lowlevel.checkpoint()
            if message["type"].startswith("lifespan.startup."):
                self._started.set()
            elif message["type"] == "lifespan.shutdown.complete":
                self._lifespan_over.set()

        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self._state}
        try:
            await self._lifespan(scope, receive, send)
        except Exception as error:
            self._errors.append(AppError(self.name, "lifespan", error))
        finally:
            self._started.set()
            self._lifespan_over.set()
