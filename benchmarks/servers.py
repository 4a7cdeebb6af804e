"""The servers that are measured: a policy that answers at once or stops at a turn, a tool with 2 kB of state, an agent.

The same applications run with checkpointing on and off (`STATECORE_ENABLED`); off is the bare HTTP loop.
"""

from __future__ import annotations

import os
from typing import Any

import anyio
from attrs import field, frozen
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from participants.net.client import make_client
from participants.net.http import ASGIApp
from participants.servers.agent import Agent
from participants.servers.codecs import attrs_codec
from participants.servers.environment import Environment
from participants.servers.policy_model import PolicyModel
from participants.servers.resources import Mode, Resources
from participants.settings import Settings

SESSION_BYTES = 2000
TRANSCRIPT_BYTES = 1000
STOP_AT = int(os.environ.get("BENCH_STOP_AT", "0"))
"""The policy never answers this turn (counted from 1); 0: it answers all."""


@frozen
class Session:
    """A session of which a small part changes with each call."""

    value: int = 0
    ballast: str = "s" * SESSION_BYTES


@frozen
class Chat:
    """A conversation of the length that a turn is measured with."""

    messages: list[dict[str, Any]] = field(factory=lambda: [{"role": "user", "content": "q" * TRANSCRIPT_BYTES}])
    turns: int = 0


async def answer(_path: str, body: dict[str, Any]) -> dict[str, Any]:
    if STOP_AT and int(body["turn"]) >= STOP_AT:
        await anyio.sleep(3600)
    return {"choices": [{"message": {"role": "assistant", "content": "1"}}]}


def policy_model() -> ASGIApp:
    return PolicyModel("policy_model", Settings.from_env(), answer).app()


def tools() -> ASGIApp:
    sessions: Resources[Session] = Resources(
        "tools", Settings.from_env(), codec=attrs_codec(Session), mode=Mode.EXPORT_RESTORE
    )

    async def seed(request: Request) -> Response:
        return await sessions.seed(request.scope, Session())

    async def increment(request: Request) -> Response:
        by = (await request.json())["by"]
        async with sessions.mutate(request.scope) as change:
            if not change.repeated:
                change.state = Session(change.state.value + by)
                change.reply = {"value": change.state.value}
        return change.response()

    async def verify(request: Request) -> Response:
        async with sessions.verify(request.scope) as check:
            check.reply = {"reward": check.state.value}
        return check.response()

    async def close(request: Request) -> Response:
        return await sessions.close(request.scope)

    handlers = {"/seed_session": seed, "/increment": increment, "/verify": verify, "/close_session": close}
    return sessions.wrap(Starlette(routes=[Route(path, each, methods=["POST"]) for path, each in handlers.items()]))


def agent() -> ASGIApp:
    loops = Agent("agent", Settings.from_env())

    async def run(request: Request) -> Response:
        async with loops.session(request.scope, task=await request.json()) as session:
            task = session.task
            model, tool = session.client("policy_model"), session.client("tools")
            if task.get("seed"):
                await tool.post("/seed_session")
            chat = session.restored(Chat) or Chat()
            while chat.turns < task["turns"]:
                await model.post("/v1/chat/completions", {"messages": chat.messages, "turn": chat.turns + 1})
                await tool.post("/increment", {"by": 1})
                chat = Chat(chat.messages, chat.turns + 1)
                await session.boundary(chat)
            return session.finish({"turns": chat.turns})

    paths = ("/run", "/v1/responses")
    return loops.wrap(Starlette(routes=[Route(path, run, methods=["POST"]) for path in paths]))


# --- the same loop without statecore: what somebody would write who has no checkpoints


def plain_policy_model() -> ASGIApp:
    async def complete(request: Request) -> Response:
        return JSONResponse(await answer(request.url.path, await request.json()))

    return Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])


def plain_tools() -> ASGIApp:
    sessions: dict[str, Session] = {}

    async def seed(request: Request) -> Response:
        name = (await request.json())["session"]
        sessions[name] = Session()
        response = JSONResponse({})
        response.set_cookie("session", name)
        return response

    async def increment(request: Request) -> Response:
        name = request.cookies["session"]
        session = sessions[name] = Session(sessions[name].value + (await request.json())["by"])
        return JSONResponse({"value": session.value})

    return Starlette(
        routes=[Route("/seed_session", seed, methods=["POST"]), Route("/increment", increment, methods=["POST"])]
    )


def plain_agent() -> ASGIApp:
    client = make_client()
    urls = dict(Settings.from_env().servers)

    async def run(request: Request) -> Response:
        body = await request.json()
        name = body["episode_id"]["rollout_id"]
        await client.post(urls["tools"] + "/seed_session", json={"session": name})
        cookie = {"cookie": f"session={name}"}
        chat = Chat()
        while chat.turns < body["task"]["turns"]:
            asked = {"messages": chat.messages, "turn": chat.turns + 1}
            (await client.post(urls["policy_model"] + "/v1/chat/completions", json=asked)).json()
            (await client.post(urls["tools"] + "/increment", json={"by": 1}, headers=cookie)).json()
            chat = Chat(chat.messages, chat.turns + 1)
        return JSONResponse({"turns": chat.turns})

    return Starlette(routes=[Route("/run", run, methods=["POST"])])


def env() -> ASGIApp:
    episodes = Environment("env", Settings.from_env())

    async def play(request: Request) -> Response:
        async with episodes.episode(request.scope, task=await request.json()) as episode:
            tool = await episode.seed("tools")
            await episode.activate("agent", episode.task)
            verdict = await episode.wait("verify", tool.verify({}))
            return episode.finish({"reward": verdict["reward"]})

    return episodes.wrap(Starlette(routes=[Route("/run", play, methods=["POST"])]))
