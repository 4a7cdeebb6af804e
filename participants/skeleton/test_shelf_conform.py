"""The shelf's server keeps the protocol: each check of `statecore conform` is a test, with a server of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import trio

from participants import Seams, Settings
from participants.conformance import ConformanceSuite, Driver, Subject, Target
from participants.conformance.drivers import post
from participants.identity import EpisodeId
from participants.serving.testing import InMemoryNetwork
from participants.skeleton.server import make
from statecore.seams import LoopClock, MemoryDisk, SeededEntropy

ROOT = Path("/job")


class ShelfDriver(Driver):
    """How a rollout uses the server, how it takes long, and how another process takes its place."""

    def __init__(self, network: InMemoryNetwork) -> None:
        self.network = network
        self.disk = MemoryDisk()
        self.disk.mkdir(ROOT)
        self.clock = LoopClock(1_790_000_000.0)
        self.processes = 0
        self.begun = trio.Event()
        self.goes_on: trio.Event | None = None

    async def up(self) -> Target:
        """A new process; nothing of an older one but the files."""
        self.processes += 1
        seams = Seams(clock=self.clock, disk=self.disk, entropy=SeededEntropy(self.processes))
        settings = Settings(enabled=True, control_auth_token="token", root=ROOT, cookie_secret="secret")
        url = await self.network.restart("shelf", make(settings, seams, before=self.before))
        transport = self.network.transport()
        return Target(url=url, token="token", root=ROOT, transport=transport, seams=seams, driver=self)

    async def before(self) -> None:
        """What takes time inside of a step."""
        if self.goes_on is not None:
            self.begun.set()
            await self.goes_on.wait()

    async def start(self, server: Subject, episode: EpisodeId) -> None:
        await self.touch(server, episode)

    async def touch(self, server: Subject, episode: EpisodeId) -> httpx.Response:
        seeded = await post(server, episode, "/seed_session", {})
        return seeded if seeded.status_code != 200 else await post(server, episode, "/put", {"thing": "a"})

    @asynccontextmanager
    async def blocking(self, server: Subject, episode: EpisodeId) -> AsyncIterator[None]:
        goes_on, self.begun = trio.Event(), trio.Event()
        self.goes_on = goes_on
        server.background(self.touch, server, episode)
        await self.begun.wait()
        self.goes_on = None
        try:
            yield
        finally:
            goes_on.set()

    @asynccontextmanager
    async def fresh(self) -> AsyncIterator[Target]:
        yield await self.up()


class TestConformance(ConformanceSuite):
    test_export_restore_a_restart_is_named = None  # it exports
    test_bad_input_acknowledgements_that_are_none = None  # it answers no /run, so that it keeps no results

    @asynccontextmanager
    async def server(self) -> AsyncIterator[Target]:
        async with InMemoryNetwork() as network:
            yield await ShelfDriver(network).up()
            assert not network.errors, network.errors
