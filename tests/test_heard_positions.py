"""Positions as callers hear of them: replies overtake one another, and a session may be another one of the same name.

Both stories were found by exploring `models.resources_session`.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from participants.identity import OPERATION_HEADER, POSITION_HEADER, SESSION_HEADER
from participants.net.http import ASGIApp
from participants.records.positions import SEED_HISTORY, OtherSession, Position, advance, later
from participants.servers.codecs import attrs_codec
from participants.servers.executions import ParticipantLost
from participants.servers.peers import Trail
from participants.servers.resources import Mode, Resources
from tests.served_kinds import Fleet, run, settle
from tests.small_job import Counter

SEEDED = Position(0, SEED_HISTORY, "1" * 32)
FIRST = advance(SEEDED, "a")
SECOND = advance(FIRST, "b")
SEEDED_AGAIN = Position(0, SEED_HISTORY, "2" * 32)


def headers(position: Position, session_id: str = "") -> dict[str, str]:
    return {POSITION_HEADER: position.header} | ({SESSION_HEADER: session_id} if session_id else {})


def test_the_later_of_two_positions_stands_whichever_is_heard_first() -> None:
    """Two calls of one turn at once: a boundary names the position behind both. Covers: I35."""
    assert later(None, FIRST) == FIRST
    assert later(FIRST, SECOND) == later(SECOND, FIRST) == SECOND
    assert later(SECOND, SECOND) == SECOND
    assert later(Position(2), Position(1)) == Position(2)
    trail = Trail()
    for position in (SEEDED, SECOND, FIRST):
        trail.note_reply("tools", headers(position, "s" if position is SEEDED else ""), ())
    assert [part.position for part in trail.parts()] == [SECOND]


@pytest.mark.parametrize("heard", [advance(SEEDED_AGAIN, "b"), advance(SEEDED, "b")], ids=["incarnation", "history"])
def test_a_position_of_another_history_is_no_position_of_the_session(heard: Position) -> None:
    """A server came back empty and a late seed made a session: revision 1 is not revision 1. Covers: I81, I97, S60."""
    with pytest.raises(OtherSession):
        later(FIRST, heard)
    trail = Trail()
    trail.note_reply("tools", headers(SEEDED, "s"), ())
    trail.note_reply("tools", headers(FIRST), ())
    with pytest.raises(ParticipantLost, match="tools"):
        trail.note_reply("tools", headers(heard), ())
    assert [part.position for part in trail.parts()] == [FIRST]


def slow_to_answer(fleet: Fleet, answered: trio.Event, *, early: bool) -> ASGIApp:
    """Tools that take their time between a mutation and its reply; `early` answers inside the block."""
    tools: Resources[Any] = Resources(
        "tools", fleet.config(), codec=attrs_codec(Counter), mode=Mode.EXPORT_RESTORE, seams=fleet.seams("tools")
    )

    async def seed(request: Request) -> Response:
        return await tools.seed(request.scope, Counter(0))

    async def add(request: Request) -> Response:
        async with tools.mutate(request.scope) as change:
            change.state = Counter(change.state.value + 1)
            change.reply = {"value": change.state.value}
            if early:
                return change.response()
        if change.reply == {"value": 1}:
            await answered.wait()
        return change.response()

    routes = {"/seed_session": seed, "/add": add}
    return tools.wrap(Starlette(routes=[Route(path, handler, methods=["POST"]) for path, handler in routes.items()]))


def test_a_reply_names_the_position_behind_its_own_mutation() -> None:
    """It is read under the lock, not when the response is made. Covers: I37, S21."""

    async def test(fleet: Fleet) -> None:
        answered = trio.Event()
        await fleet.start("tools", slow_to_answer(fleet, answered, early=False))
        await fleet.post("tools", "/ng-rollout/r1/seed_session")
        found: dict[str, str] = {}

        async def add(name: str) -> None:
            reply = await fleet.post("tools", "/ng-rollout/r1/add", headers={OPERATION_HEADER: name})
            found[name] = reply.headers[POSITION_HEADER].partition(".")[0]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(add, "a")
            await settle()
            await add("b")
            answered.set()
        assert found == {"a": "1", "b": "2"}

    run(test)


def test_a_reply_inside_the_block_is_an_error_and_changes_nothing() -> None:
    """Inside it the position is the one before, and a boundary that named it could never be continued. Covers: I36."""

    async def test(fleet: Fleet) -> None:
        await fleet.start("tools", slow_to_answer(fleet, trio.Event(), early=True))
        await fleet.post("tools", "/ng-rollout/r1/seed_session")
        assert (await fleet.post("tools", "/ng-rollout/r1/add")).status_code == 500
        assert [type(error.error).__name__ for error in fleet.network.errors] == ["RuntimeError"]
        fleet.network.errors.clear()

    run(test)
