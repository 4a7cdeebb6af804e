"""Every kind of server and a trainer as their users write them, with nothing but the front doors imported.

`test_api_page.py` runs them as processes; the declaring and checking half of the page is `test_handoff_example.py`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Set
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from participants import (
    Agent,
    AuxiliaryModel,
    Coordinator,
    Dispatch,
    Disposition,
    Environment,
    Launcher,
    Mode,
    PolicyModel,
    Resources,
    Result,
    Settings,
    attrs_codec,
)

TURNS = 3


# --- an agent: the loop stays yours


@frozen
class Chat:
    """A conversation; `turn` asks the model and does what it says."""

    messages: list[dict[str, Any]]
    turns: int = 0

    @classmethod
    def start(cls, task: dict[str, Any]) -> Chat:
        return cls([{"role": "user", "content": task["question"]}])

    @property
    def done(self) -> bool:
        return self.turns == TURNS

    def result(self) -> dict[str, Any]:
        return {"messages": self.messages}

    async def turn(self, model: Any, tools: Any) -> Chat:
        said = (await model.post("/v1/chat/completions", {"messages": self.messages})).body["choices"][0]["message"]
        counted = (await tools.post("/increment", {"by": int(said["content"])})).body
        return Chat([*self.messages, said, {"role": "tool", "content": str(counted["value"])}], self.turns + 1)


def simple_agent() -> ASGIApp:
    agent = Agent("simple_agent", Settings.from_env())

    async def run(request: Request) -> Response:
        async with agent.session(request.scope, task=await request.json()) as session:
            chat = session.restored(Chat) or Chat.start(session.task)
            model, tools = session.client("policy_model"), session.client("tools")
            while True:
                chat = await chat.turn(model, tools)
                if chat.done:
                    return session.finish(chat.result())
                await session.boundary(chat)

    return agent.wrap(Starlette(routes=[Route("/v1/responses", run, methods=["POST"])]))


# --- a resources server: state that counts its own changes


@define
class Counter:
    value: int


def tools() -> ASGIApp:
    counter = Resources("tools", Settings.from_env(), codec=attrs_codec(Counter), mode=Mode.EXPORT_RESTORE)

    async def seed(request: Request) -> Response:
        return await counter.seed(request.scope, Counter(value=0))

    async def increment(request: Request) -> Response:
        body = await request.json()
        async with counter.mutate(request.scope) as change:
            if not change.repeated:
                change.state.value += body["by"]
                change.reply = {"value": change.state.value}
        return change.response()

    async def verify(request: Request) -> Response:
        async with counter.verify(request.scope) as change:
            if not change.repeated:
                change.reply = {"reward": change.state.value}
        return change.response()

    paths = {"/seed_session": seed, "/increment": increment, "/verify": verify}
    return counter.wrap(Starlette(routes=[Route(path, each, methods=["POST"]) for path, each in paths.items()]))


# --- the other kinds


def answer(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The next number to add is how often the assistant has spoken, and one."""
    said = sum(message["role"] == "assistant" for message in body["messages"])
    return {"choices": [{"message": {"role": "assistant", "content": str(said + 1)}}]}


def policy_model() -> ASGIApp:
    return PolicyModel("policy_model", Settings.from_env(), upstream=answer).app()


def judge() -> ASGIApp:
    return AuxiliaryModel("judge", Settings.from_env(), upstream=answer).app()


def env() -> ASGIApp:
    environment = Environment("env", Settings.from_env())

    async def play(request: Request) -> Response:
        async with environment.episode(request.scope, task=await request.json()) as episode:
            session = await episode.seed("tools")
            said = await episode.activate("simple_agent", episode.task)
            return episode.finish(await episode.wait("verify", session.verify(said)))

    return environment.wrap(Starlette(routes=[Route("/run", play, methods=["POST"])]))


# --- a trainer, and a checkpoint driven from it


@define(eq=False)
class Counting:
    """A trainer whose state is the rewards it has got; a step is a result."""

    rewards: dict[str, int] = field(factory=dict)
    stories: list[str] = field(factory=list)
    stepped: trio.Event = field(factory=trio.Event)

    def next_batch(self) -> list[Dispatch]:
        return [Dispatch(f"r{number}", {"question": f"r{number}"}, "env") for number in range(2)]

    async def every_two_results(self) -> AsyncIterator[int]:
        while len(self.rewards) < 2:
            await self.stepped.wait()
        yield len(self.rewards)

    async def save(self, directory: Path, dispositions: Mapping[str, Disposition]) -> None:
        (directory / "rewards.json").write_text(json.dumps(self.rewards))

    async def load(self, directory: Path) -> None:
        self.rewards = json.loads((directory / "rewards.json").read_text())

    async def accept(self, result: Result) -> None:
        self.rewards[result.rollout_id] = result.body["reward"]
        self.stepped.set()
        self.stepped = trio.Event()

    async def consumed(self) -> Set[str]:
        return set(self.rewards)


async def train(trainer: Counting, launcher: Launcher, root: Path) -> None:
    async with Coordinator(root, launcher, trainer) as job, trio.open_nursery() as nursery:
        recovered = await job.recover()
        trainer.stories.append(recovered.story())
        batch = recovered.runnable(trainer.next_batch())
        nursery.start_soon(job.run_batch, batch)
        async for _ in trainer.every_two_results():
            outcome = await job.checkpoint(timeout_s=60)
            trainer.stories.append(outcome.story())
