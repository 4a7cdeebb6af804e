"""A shelf's server is asked everything that the protocol demands: one test for each check, on a server of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx
import trio

from participants import Seams, Settings
from participants.conformance import ConformanceSuite, Driver, Subject, Target
from participants.identity import EpisodeId, with_prefix
from participants.serving.testing import InMemoryNetwork
from participants.skeleton.server import make
from statecore.seams import LoopClock, MemoryDisk, SeededEntropy


class Shelves(Driver):
    """Servers in memory, one process after the other on the same files, and how a rollout is made on them."""

    network: InMemoryNetwork
    disk: MemoryDisk
    processes = 0
    slow: trio.Event | None = None  # while it is there, a step waits for it
    waits: trio.Event

    async def begin(self, network: InMemoryNetwork) -> Target:
        """The first process, with nothing of any test before."""
        self.network, self.disk, self.slow = network, MemoryDisk(), None
        self.disk.mkdir("/job")
        return await self.up()

    async def up(self) -> Target:
        self.processes += 1
        seams = Seams(LoopClock(1_790_000_000.0), self.disk, SeededEntropy(self.processes))
        settings = Settings(enabled=True, control_auth_token="token", root=Path("/job"), cookie_secret="secret")
        url = await self.network.restart("shelf", make(settings, seams, before=self.before))
        return Target(
            url=url, token="token", root=Path("/job"), transport=self.network.transport("conform"), seams=seams
        )

    async def before(self) -> None:
        if self.slow is not None:
            self.waits.set()
            await self.slow.wait()

    async def start(self, server: Subject, episode: EpisodeId) -> None:
        reply = await self.touch(server, episode)
        assert reply.status_code == 200, reply.text

    async def touch(self, server: Subject, episode: EpisodeId) -> httpx.Response:
        seeded = await server.client.post(server.url + with_prefix(episode, "/seed_session"), json={})
        if seeded.status_code != 200:
            return seeded
        return await server.client.post(server.url + with_prefix(episode, "/put"), json={"thing": "a"})

    @asynccontextmanager
    async def blocking(self, server: Subject, episode: EpisodeId) -> AsyncIterator[None]:
        slow = self.slow = trio.Event()
        self.waits = trio.Event()
        server.background(self.touch, server, episode)
        await self.waits.wait()
        self.slow = None  # it alone waits
        try:
            yield
        finally:
            slow.set()

    @asynccontextmanager
    async def _fresh(self) -> AsyncIterator[Target]:
        yield await self.up()

    def fresh(self) -> AbstractAsyncContextManager[Target]:
        return self._fresh()


class TestShelfConforms(ConformanceSuite):
    driver = Shelves()

    @asynccontextmanager
    async def server(self) -> AsyncIterator[Target]:
        async with InMemoryNetwork() as network:
            yield await self.driver.begin(network)
