"""Servers of all kinds on an in-memory network, and control calls to them, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import trio
import trio.testing
from attrs import evolve

from participants.net.http import ASGIApp
from participants.serving.testing import InMemoryNetwork
from participants.telemetry import installed_telemetry
from statecore.seams import LoopClock, MemoryDisk
from tests.small_job import ROOT, TOKEN, WALL, counter_resources, counting_agent, counting_environment, seams, settings

CONTROL = "/ng-control/v1/checkpoint/"
AUTH = {"authorization": f"Bearer {TOKEN}"}


class Fleet:
    """An in-memory network with one disk; `post` and `control` speak to its servers, which `telemetry` watches."""

    def __init__(self, network: InMemoryNetwork) -> None:
        self.telemetry = installed_telemetry()
        self.network = network
        self.disk = MemoryDisk()
        self.disk.mkdir(ROOT)
        self.client = network.client("test")
        self.life = 0
        self.clock = LoopClock(WALL)

    def config(self, *servers: str, **changes: Any) -> Any:
        return settings(servers={name: self.network.url(name) for name in servers}, **changes)

    def seams(self, name: str) -> Any:
        return evolve(seams(self.disk, f"{name}-{self.life}"), telemetry=self.telemetry)

    def now(self) -> float:
        """The wall time that all servers see."""
        return self.clock.time()

    async def start(self, name: str, app: ASGIApp) -> None:
        self.life += 1
        if name in self.network.up:
            await self.network.stop(name)
        await self.network.start(name, app)

    async def post(self, server: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        json = {} if body is None else body
        return await self.client.post(self.network.url(server) + path, json=json, **options)

    async def status(self, server: str) -> dict[str, Any]:
        reply = await self.client.get(self.network.url(server) + CONTROL + "status", headers=AUTH)
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    async def control(
        self, server: str, verb: str, checkpoint_id: str = "c1", *, within_s: float = 1000.0, **body: Any
    ) -> httpx.Response:
        headers = AUTH | body.pop("headers", {})
        body = {"checkpoint_id": checkpoint_id, "deadline_ts": self.now() + within_s} | body
        return await self.client.post(self.network.url(server) + CONTROL + verb, json=body, headers=headers)

    async def whole_job(self, policy: Callable[[], ASGIApp]) -> None:
        """Environment, agent, tools and the given policy model, started."""
        names = ("policy_model", "tools", "simple_agent", "env")
        config = self.config(*names)
        await self.start("policy_model", policy())
        await self.start("tools", counter_resources(config, self.seams("tools"), self.network.transport("tools")))
        await self.start("simple_agent", counting_agent(config, self.seams("agent"), self.network.transport("agent")))
        await self.start("env", counting_environment(config, self.seams("env"), self.network.transport("env")))


@asynccontextmanager
async def fleet() -> AsyncIterator[Fleet]:
    async with InMemoryNetwork() as network:
        yield Fleet(network)


def run(test: Callable[[Fleet], Awaitable[None]]) -> None:
    """Runs `test` under a MockClock that jumps: hours pass at once, nothing depends on this machine's speed."""

    async def main() -> None:
        async with fleet() as made:
            await test(made)
            assert not made.network.errors, made.network.errors

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def settle() -> None:
    """Everything that can run without time passing has run."""
    await trio.testing.wait_all_tasks_blocked(0.0)
