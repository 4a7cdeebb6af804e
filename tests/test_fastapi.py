"""Embedded in FastAPI: handlers return our responses as they are, and refusals keep their codes."""

from __future__ import annotations

import json

from attrs import evolve, frozen
from fastapi import FastAPI, Request, Response

from participants import Agent, Mode, Resources, attrs_codec
from participants.identity import POSITION_HEADER, RECEIPT_HEADER
from participants.net.http import ASGIApp
from tests.served_kinds import Fleet, run


@frozen
class Counter:
    value: int = 0


def agent_app(fleet: Fleet) -> ASGIApp:
    agent = Agent("agent", fleet.config(), seams=fleet.seams("agent"))
    api = FastAPI()

    @api.post("/run")
    async def run_loop(request: Request) -> Response:
        async with agent.session(request.scope, task=await request.json()) as session:
            await session.boundary({"turn": 1})
            return session.finish({"asked": session.task["question"]})

    return agent.wrap(api)


def tools_app(fleet: Fleet) -> ASGIApp:
    tools: Resources[Counter] = Resources(
        "tools", fleet.config(), codec=attrs_codec(Counter), mode=Mode.EXPORT_RESTORE, seams=fleet.seams("tools")
    )
    api = FastAPI()

    @api.post("/seed_session")
    async def seed(request: Request) -> Response:
        return await tools.seed(request.scope, Counter())

    @api.post("/increment")
    async def increment(request: Request) -> Response:
        body = await request.json()
        async with tools.mutate(request.scope) as change:
            if not change.repeated:
                change.state = evolve(change.state, value=change.state.value + body["by"])
                change.reply = {"value": change.state.value}
        return change.response()

    return tools.wrap(api)


def test_an_agent_in_fastapi_hands_its_result_over_with_a_receipt() -> None:
    """`session.finish` is a response that FastAPI sends as it is. Covers: I66."""

    async def test(fleet: Fleet) -> None:
        await fleet.start("agent", agent_app(fleet))
        reply = await fleet.post("agent", "/run", {"episode_id": {"rollout_id": "r1"}, "task": {"question": "why"}})
        assert (reply.status_code, reply.json()) == (200, {"asked": "why"})
        assert json.loads(reply.headers[RECEIPT_HEADER])["rollout_id"] == "r1"
        wrong = await fleet.post("agent", "/run", {"episode_id": {"rollout_id": "r1"}, "task": {"question": "what"}})
        assert wrong.json()["error"]["code"] == "duplicate_execution"

    run(test)


def test_a_tool_in_fastapi_moves_its_position_and_refuses_by_code() -> None:
    """A refusal that leaves a FastAPI handler is the refusal that peers know, not its 500. Covers: I74."""

    async def test(fleet: Fleet) -> None:
        await fleet.start("tools", tools_app(fleet))
        lost = await fleet.post("tools", "/ng-rollout/r1/increment", {"by": 1})
        assert (lost.status_code, lost.json()["error"]["code"]) == (409, "session_lost")
        await fleet.post("tools", "/ng-rollout/r1/seed_session")
        moved = await fleet.post("tools", "/ng-rollout/r1/increment", {"by": 2})
        assert moved.json() == {"value": 2}
        assert moved.headers[POSITION_HEADER].startswith("1.")

    run(test)
