"""A small job for tests: an agent that counts with a tool, its resources server, an environment, all in memory.

The policy is a pure function of the conversation, so that an undisturbed run and a continued one must be equal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from attrs import field, frozen
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from participants.net.http import ASGIApp
from participants.servers.agent import Agent
from participants.servers.codecs import attrs_codec
from participants.servers.environment import Environment
from participants.servers.peers import Peer
from participants.servers.resources import Mode, Resources, Verify
from participants.settings import Seams, Settings
from statecore.seams import LoopClock, MemoryDisk, SeededEntropy

TOKEN = "tok"
ROOT = Path("/job")
WALL = 1_790_000_000.0


@frozen
class Chat:
    """A conversation and its turn count."""

    messages: list[dict[str, Any]] = field(factory=list)
    turns: int = 0


@frozen
class Counter:
    value: int = 0


def seams(disk: MemoryDisk, seed: int | str) -> Seams:
    return Seams(clock=LoopClock(WALL), disk=disk, entropy=SeededEntropy(seed))


def settings(**changes: Any) -> Settings:
    values: dict[str, Any] = {"enabled": True, "control_auth_token": TOKEN, "root": ROOT}
    return Settings(**(values | changes))


def answer(_path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The scripted policy: the next number to add depends on the conversation alone."""
    said = len([each for each in body["messages"] if each["role"] == "assistant"])
    return {"choices": [{"message": {"role": "assistant", "content": str(said + 1)}}], "usage": {"total_tokens": said}}


def counter_resources(
    config: Settings,
    with_seams: Seams,
    transport: Any = None,
    *,
    kind: Callable[..., Resources[Counter]] = Resources,
    name: str = "tools",
    before: Callable[[], Awaitable[None]] | None = None,
    **options: Any,
) -> ASGIApp:
    """A resources server whose sessions count; `/verify` rewards the count.

    `before` is awaited inside each increment; `kind` is the server's class.
    """
    options = {"mode": Mode.EXPORT_RESTORE, "codec": attrs_codec(Counter), "verify": Verify.WAIT} | options
    counter = kind(name, config, seams=with_seams, transport=transport, **options)

    async def seed(request: Request) -> Response:
        return await counter.seed(request.scope, Counter(0))

    async def increment(request: Request) -> Response:
        by = (await request.json())["by"]
        async with counter.mutate(request.scope) as change:
            if not change.repeated:
                if before is not None:
                    await before()
                change.state = Counter(change.state.value + by)
                change.reply = {"value": change.state.value}
        return change.response()

    async def verify(request: Request) -> Response:
        async with counter.verify(request.scope) as check:
            if not check.repeated:
                check.reply = {"reward": check.state.value}
        return check.response()

    async def close(request: Request) -> Response:
        return await counter.close(request.scope)

    routes = {"/seed_session": seed, "/increment": increment, "/verify": verify, "/close_session": close}
    app = Starlette(routes=[Route(path, handler, methods=["POST"]) for path, handler in routes.items()])
    return counter.wrap(app)


async def turn(chat: Chat, model: Peer, tools: Peer) -> Chat:
    """One turn: ask the model, do what it says."""
    reply = await model.post("/v1/chat/completions", {"messages": chat.messages})
    message = reply.body["choices"][0]["message"]
    done = await tools.post("/increment", {"by": int(message["content"])})
    result = {"role": "tool", "content": str(done.body["value"])}
    return Chat([*chat.messages, message, result], chat.turns + 1)


def counting_agent(
    config: Settings,
    with_seams: Seams,
    transport: Any = None,
    *,
    kind: type[Agent] = Agent,
    name: str = "simple_agent",
    seeds: bool = False,
    max_steps: int | None = None,
    before: Callable[[str], Awaitable[None]] | None = None,
) -> ASGIApp:
    """An agent that takes `task["turns"]` turns; `seeds`: it opens its tool session itself (its own `/run`).

    `before` is awaited before each turn, with the task's question.
    """
    agent = kind(name, config, seams=with_seams, transport=transport)

    async def run(request: Request) -> Response:
        async with agent.session(request.scope, task=await request.json(), max_steps=max_steps) as session:
            model, tools = session.client("policy_model"), session.client("tools")
            chat = session.restored(Chat)
            if chat is None:
                if seeds:
                    await tools.post("/seed_session")
                chat = Chat([{"role": "user", "content": session.task["question"]}])
            while True:
                if before is not None:
                    await before(session.task["question"])
                chat = await turn(chat, model, tools)
                if chat.turns >= session.task["turns"]:
                    return session.finish({"messages": chat.messages})
                if not await session.boundary(chat):
                    return session.finish({"messages": chat.messages, "stopped": True})

    routes = [Route("/v1/responses", run, methods=["POST"]), Route("/run", run, methods=["POST"])]
    return agent.wrap(Starlette(routes=routes))


def counting_environment(
    config: Settings,
    with_seams: Seams,
    transport: Any = None,
    *,
    kind: type[Environment] = Environment,
    before: Callable[[str], Awaitable[None]] | None = None,
) -> ASGIApp:
    """An environment: seed, activate the agent, verify, reward. `before` is a waiting step of its own before that."""
    environment = kind("env", config, seams=with_seams, transport=transport)

    async def play(request: Request) -> Response:
        async with environment.episode(request.scope, task=await request.json()) as episode:
            tools = await episode.seed("tools")
            if before is not None:
                await episode.wait("before", before(episode.task["question"]))
            said = await episode.activate("simple_agent", episode.task)
            verdict = await episode.wait("verify", tools.verify({}))
            return episode.finish({"reward": verdict["reward"], "messages": said["messages"]})

    return environment.wrap(Starlette(routes=[Route("/run", play, methods=["POST"])]))


def plain_policy() -> ASGIApp:
    """The scripted policy without any control plane."""

    async def complete(request: Request) -> Response:
        return JSONResponse(answer(request.url.path, await request.json()))

    paths = ("/v1/chat/completions", "/ng-rollout/{key}/v1/chat/completions")
    return Starlette(routes=[Route(path, complete, methods=["POST"]) for path in paths])
