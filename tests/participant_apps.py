"""Participants that tests serve in processes of their own: one that shows what it holds, three whose lifespan fails."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from participants.net.http import ASGIApp
from participants.servers.resources import Mode, Resources
from participants.settings import Settings

Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]


def tools(lifespan: Lifespan | None = None) -> ASGIApp:
    """`POST /increment` counts, `POST /hang` never ends, `GET /held` tells how many requests wait at the gate."""
    server: Resources[int] = Resources("tools", Settings.from_env(), mode=Mode.DRAIN_ONLY)

    async def seed(request: Request) -> Response:
        return await server.seed(request.scope, 0)

    async def increment(request: Request) -> Response:
        async with server.mutate(request.scope) as change:
            change.state += 1
            change.reply = {"value": change.state}
        return change.response()

    async def hang(_request: Request) -> Response:
        await anyio.sleep_forever()
        raise AssertionError("unreachable")

    async def held(_request: Request) -> Response:
        return JSONResponse(server.admission.counts.held)

    routes = [Route(f"/{each.__name__}", each, methods=["POST"]) for each in (increment, hang)]
    routes += [Route("/seed_session", seed, methods=["POST"]), Route("/held", held)]
    return server.wrap(Starlette(routes=routes, lifespan=lifespan))


def fails_at_its_start() -> ASGIApp:
    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        if "STATECORE_ROOT" in os.environ:
            raise LookupError("there is no database")
        yield

    return tools(lifespan)


def fails_at_its_end() -> ASGIApp:
    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        raise LookupError("the database cannot be closed")

    return tools(lifespan)


def breaks_while_it_serves() -> ASGIApp:
    """Its lifespan's task dies without a word to the server, as a lease timer would."""
    app = tools()

    async def dies() -> None:
        await anyio.sleep(0.05)
        raise LookupError("the timer died")

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        async with anyio.create_task_group() as group:
            group.start_soon(dies)
            await app(scope, receive, send)

    return wrapped
