"""Servers of every kind in memory as the conformance suite asks them: a target, and the driver of its rollouts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import trio
from attrs import define, field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from participants.conformance import Driver, Report, Rules, Subject, Target, conform
from participants.identity import EpisodeId, with_prefix
from participants.net.http import ASGIApp
from participants.servers.auxiliary_model import AuxiliaryModel
from participants.servers.modes import Mode
from participants.servers.policy_model import PolicyModel
from participants.servers.resources import Resources
from participants.settings import Seams, Settings
from statecore.seams import SeededEntropy
from tests.served_kinds import Fleet, run
from tests.small_job import ROOT, TOKEN, answer, counter_resources, counting_agent, counting_environment

Transport = httpx.AsyncBaseTransport
Before = Callable[..., Awaitable[None]]
RULES = Rules(max_wait_s=3600.0)
Maker = Callable[..., ASGIApp]
"""Makes a server from settings, seams, a transport, and what it awaits inside of a step."""


@define(eq=False)
class Kind(Driver):
    """A server of one kind, called `name`, which can be started afresh; `make` may be a broken maker."""

    fleet: Fleet
    name: str = ""
    make: Maker | None = None
    config: dict[str, Any] = field(factory=dict)
    options: dict[str, Any] = field(factory=dict)
    root: Path = ROOT
    slow: trio.Event | None = None
    held: trio.Event = field(factory=trio.Event)

    def target(self) -> Target:
        seams = Seams(clock=self.fleet.clock, disk=self.fleet.disk, entropy=SeededEntropy(f"conform-{self.fleet.life}"))
        network = self.fleet.network
        transport = network.transport("conform")
        return Target(
            url=network.url(self.name), token=TOKEN, root=self.root, transport=transport, seams=seams, driver=self
        )

    async def up(self) -> Target:
        """A process that has served nothing, in the place of one that was there."""
        config = self.fleet.config("policy_model", "tools", "simple_agent", "env", **self.config)
        seams, transport = self.fleet.seams(self.name), self.fleet.network.transport(self.name)
        self.fleet.life += 1
        await self.fleet.network.restart(self.name, (self.make or self.made)(config, seams, transport, self.before))
        return self.target()

    def made(self, config: Settings, seams: Seams, transport: Transport, before: Before) -> ASGIApp:
        raise NotImplementedError

    def fresh(self) -> AbstractAsyncContextManager[Target]:
        return self._fresh()

    @asynccontextmanager
    async def _fresh(self) -> AsyncIterator[Target]:
        yield await self.up()

    async def before(self, *_question: str) -> None:
        """What a server does inside of a step: it may take long."""
        if self.slow is not None:
            self.held.set()
            await self.slow.wait()

    @asynccontextmanager
    async def blocking(self, server: Subject, episode: EpisodeId) -> AsyncIterator[None]:
        slow, self.held = trio.Event(), trio.Event()
        self.slow = slow
        server.background(self.work, server, episode)
        await self.held.wait()
        self.slow = None
        try:
            yield
        finally:
            slow.set()

    async def work(self, server: Subject, episode: EpisodeId) -> None:
        """Something of the execution that takes until it is let go."""
        await self.touch(server, episode)


class Tools(Kind):
    """A resources server: sessions that count."""

    def made(self, config: Settings, seams: Seams, transport: Transport, before: Before) -> ASGIApp:
        return counter_resources(config, seams, transport, before=before, **self.options)

    async def start(self, server: Subject, episode: EpisodeId) -> None:
        reply = await self.touch(server, episode)
        assert reply.status_code == 200, reply.text

    async def touch(self, server: Subject, episode: EpisodeId) -> httpx.Response:
        """The seed makes the session, or finds it again."""
        seeded = await server.client.post(server.url + with_prefix(episode, "/seed_session"), json={})
        if seeded.status_code != 200:
            return seeded
        return await server.client.post(server.url + with_prefix(episode, "/increment"), json={"by": 2})


class Search(Kind):
    """A stateless resources server: it answers, and keeps nothing."""

    def made(self, config: Settings, seams: Seams, transport: Transport, before: Before) -> ASGIApp:
        server: Resources[None] = Resources(self.name, config, seams=seams, mode=Mode.STATELESS)

        async def search(_request: Request) -> Response:
            await before()
            return JSONResponse({"found": []})

        return server.wrap(Starlette(routes=[Route("/search", search, methods=["POST"])]))

    async def start(self, server: Subject, episode: EpisodeId) -> None:
        await self.touch(server, episode)

    async def touch(self, server: Subject, episode: EpisodeId) -> httpx.Response:
        return await server.client.post(server.url + with_prefix(episode, "/search"), json={"for": "anything"})


class Policy(Kind):
    """A policy model server, whose streamed replies may stop in their middle."""

    def made(self, config: Settings, seams: Seams, transport: Transport, before: Before) -> ASGIApp:
        return PolicyModel(self.name, config, self.generate, seams=seams, transport=transport).app()

    async def generate(self, path: str, body: dict[str, Any]) -> Any:
        return self.stream() if path.endswith("/v1/responses") else answer(path, body)

    async def stream(self) -> AsyncIterator[bytes]:
        yield b"one "
        await self.before()
        yield b"two"

    async def start(self, server: Subject, episode: EpisodeId) -> None:
        reply = await self.touch(server, episode)
        assert reply.status_code == 200, reply.text

    async def touch(self, server: Subject, episode: EpisodeId) -> httpx.Response:
        path = with_prefix(episode, "/v1/chat/completions")
        return await server.client.post(server.url + path, json={"messages": [{"role": "user", "content": "?"}]})

    async def work(self, server: Subject, episode: EpisodeId) -> None:
        await server.client.post(server.url + with_prefix(episode, "/v1/responses"), json={"input": "?"})


@define(eq=False)
class Looping(Kind):
    """What the kinds that answer `/run` share: a whole fleet, whose generations after the first turn never come."""

    stands: trio.Event = field(factory=trio.Event)

    async def generate(self, path: str, body: dict[str, Any]) -> Any:
        if len(body["messages"]) > 1:
            self.stands.set()
            await trio.sleep_forever()
        return answer(path, body)

    def agent(self, config: Settings, seams: Seams, transport: Transport, **options: Any) -> ASGIApp:
        return counting_agent(config, seams, transport, **options)

    async def others(self) -> None:
        """The servers that this one calls are up."""
        fleet, config = self.fleet, self.fleet.config("policy_model", "tools", "simple_agent", "env")
        policy = PolicyModel("policy_model", config, self.generate, seams=fleet.seams("policy"))
        await fleet.start("policy_model", policy.app())
        await fleet.start("tools", counter_resources(config, fleet.seams("tools")))
        if self.name != "simple_agent":
            transport = fleet.network.transport("simple_agent")
            await fleet.start("simple_agent", self.agent(config, fleet.seams("agent"), transport))

    async def start(self, server: Subject, episode: EpisodeId) -> None:
        self.stands = trio.Event()
        server.background(self.ask, server, episode, 3)
        await self.stands.wait()

    async def touch(self, server: Subject, episode: EpisodeId) -> httpx.Response:
        return await self.ask(server, episode, 1)

    async def ask(self, server: Subject, episode: EpisodeId, turns: int) -> httpx.Response:
        named = {"rollout_id": episode.rollout_id, "attempt": episode.attempt}
        body = {"episode_id": named, "task": {"question": episode.rollout_id, "turns": turns}}
        return await server.client.post(f"{server.url}/run", json=body)


class Counting(Looping):
    """An agent that owns its episodes."""

    def made(self, config: Settings, seams: Seams, transport: Transport, before: Before) -> ASGIApp:
        return counting_agent(config, seams, transport, seeds=True, before=before)


class Playing(Looping):
    """An environment."""

    def made(self, config: Settings, seams: Seams, transport: Transport, before: Before) -> ASGIApp:
        return counting_environment(config, seams, transport, before=before)


class Judge(Kind):
    """An auxiliary model server."""

    def made(self, config: Settings, seams: Seams, transport: Transport, before: Before) -> ASGIApp:
        return AuxiliaryModel(self.name, config, answer, seams=seams, transport=transport).app()


KINDS: dict[str, tuple[str, type[Kind]]] = {
    "policy model": ("policy_model", Policy),
    "agent": ("simple_agent", Counting),
    "resources": ("tools", Tools),
    "environment": ("env", Playing),
    "stateless resources": ("search", Search),
    "judge": ("judge", Judge),
}


async def standing(fleet: Fleet, kind: str, **options: Any) -> Kind:
    """A server of that kind is up, and all that it calls."""
    name, cls = KINDS[kind]
    made = cls(fleet, name, **options)
    if isinstance(made, Looping):
        await made.others()
    await made.up()
    return made


def conformance(kind: str, *only: str, **options: Any) -> Report:
    """What comes of all checks of such a server, or of these."""
    found: list[Report] = []

    async def test(fleet: Fleet) -> None:
        made = await standing(fleet, kind, **options)
        found.append(await conform(made.target(), rules=RULES, only=only))

    run(test)
    return found[0]
