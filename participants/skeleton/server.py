"""The server: decode, one step of the table, encode. What a checkpoint needs of it is the participant's.

`python -m participants.serving participants.skeleton.server:make` serves it, configured by `STATECORE_*`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from attrs import frozen
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from participants import Mode, Resources, Seams, Settings, Verify, attrs_codec
from participants.skeleton.machine import Put, Sealed, Shelf, Taken, moved
from statecore import Refused, WireError, WireErrors
from statecore.wire import parse, structure

B = TypeVar("B")


@frozen
class PutBody:
    thing: str


async def at_once() -> None:
    """Nothing is waited for."""


def make(
    settings: Settings | None = None,
    seams: Seams | None = None,
    *,
    name: str = "shelf",
    before: Callable[[], Awaitable[None]] = at_once,
) -> ASGIApp:
    """The application behind its participant; with checkpointing off the application alone.

    `before` is awaited inside of each step: what takes time there holds up a checkpoint.
    """
    sessions: Resources[Shelf] = Resources(
        name,
        Settings.from_env() if settings is None else settings,
        mode=Mode.EXPORT_RESTORE,
        codec=attrs_codec(Shelf),
        verify=Verify.REPLAY,
        seams=seams,
    )

    async def seed(request: Request) -> Response:
        return await sessions.seed(request.scope, Shelf())

    async def put(request: Request) -> Response:
        body = await read(request, PutBody)
        return body if isinstance(body, Response) else await step(request, Put(body.thing))

    async def take(request: Request) -> Response:
        return await step(request, Taken())

    async def seal(request: Request) -> Response:
        return await step(request, Sealed())

    async def step(request: Request, event: object) -> Response:
        """What came of the event. A refusal of the table is an answer: the rollout goes on with it."""
        async with sessions.mutate(request.scope) as change:
            if not change.repeated:  # else the recorded reply is sent again
                await before()
                try:
                    change.state = moved(change.state, event)
                    change.reply = {"things": list(change.state.things), "refused": None}
                except Refused as refused:
                    change.reply = {"things": list(change.state.things), "refused": refused.code}
        return change.response()

    async def look(request: Request) -> Response:
        async with sessions.read(request.scope) as seen:
            seen.reply = {"things": list(seen.state.things), "state": seen.state.state.value}
        return seen.response()

    async def verify(request: Request) -> Response:
        async with sessions.verify(request.scope) as check:
            if not check.repeated:
                check.reply = {"reward": float(len(check.state.things))}
        return check.response()

    async def close(request: Request) -> Response:
        return await sessions.close(request.scope)

    handlers = {
        "/seed_session": seed,
        "/put": put,
        "/take": take,
        "/seal": seal,
        "/look": look,
        "/verify": verify,
        "/close_session": close,
    }
    routes = [Route(path, handler, methods=["POST"]) for path, handler in handlers.items()]
    app: Any = sessions.wrap(Starlette(routes=routes))
    return app  # type: ignore[no-any-return]


async def read(request: Request, kind: type[B]) -> B | Response:
    """The body as it must be, or the answer to one that is not."""
    try:
        return structure(parse(await request.body()), kind)
    except (WireError, WireErrors) as error:
        return JSONResponse({"error": {"code": "bad_body", "detail": str(error)}}, 422)
