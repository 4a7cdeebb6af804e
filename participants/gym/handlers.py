"""Which Gym handler makes a call: known by the context it runs in, since Gym's client is one for a whole server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from statecore import Refused, WireError
from statecore.wire import parse

from ..servers.executions import ParticipantLost, Response
from ..servers.peers import Reply

Json = dict[str, object]


class Handler(Protocol):
    """A handler of Gym's under way whose calls are recorded."""

    async def post(self, server: str, path: str, body: bytes, cookies: Mapping[str, str]) -> Response:
        """The answer to its next call."""

    def start_over(self) -> None:
        """It makes a call that cannot be recorded: its rollout is not continued."""


_UNDER_WAY: ContextVar[Handler | None] = ContextVar("statecore.gym.handler", default=None)


def handler_under_way() -> Handler | None:
    """The handler that makes this call, if it is one whose calls are recorded."""
    return _UNDER_WAY.get()


@contextmanager
def under_way(handler: Handler) -> Iterator[None]:
    """Calls that are made inside are this handler's."""
    token = _UNDER_WAY.set(handler)
    try:
        yield
    finally:
        _UNDER_WAY.reset(token)


class Failing:
    """What must not become an answer: Gym's handlers make results of exceptions, and conversations of error bodies.

    Once something of a rollout is lost, every further call says so, and so does whoever takes its result (I97).
    """

    def __init__(self) -> None:
        self.why: Refused | ParticipantLost | None = None

    def check(self) -> None:
        if self.why is not None:
            raise self.why

    @contextmanager
    def noted(self) -> Iterator[None]:
        """What is raised inside and is no answer is kept, and raised again."""
        try:
            yield
        except (Refused, ParticipantLost) as error:
            self.why = self.why or error
            raise


def kept_of(reply: Reply) -> Response:
    """A peer's reply as a handler may read it again: status, body, kind of content and cookies."""
    headers = [("content-type", reply.headers.get("content-type", "application/json"))]
    headers += [("set-cookie", value) for value in reply.set_cookies]
    return Response(reply.status, tuple(headers), reply.content)


def field_of(body: bytes, name: str) -> object:
    """A field of a JSON object, None where there is none."""
    try:
        value = parse(body)
    except WireError:
        return None
    return value.get(name) if isinstance(value, dict) else None
