"""The demo's servers in memory: the story that `statecore demo` tells, on a MockClock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import httpx
import trio
import trio.testing
from attrs import define, field

from participants.demo.picture import Picture
from participants.demo.plan import Plan, read_plan
from participants.demo.servers import JOURNALS, MODULES, STEPS, Place, app
from participants.demo.story import Ending, tell
from participants.demo.worlds import CHECKPOINTS
from participants.net.http import ASGIApp
from participants.serving.testing import InMemoryNetwork
from participants.settings import Seams, Settings
from statecore.seams import LoopClock, MemoryDisk, SeededEntropy

WALL = 1_790_000_000.0
DIRECTORY = Path("/demo")


@define(eq=False)
class MemoryDeployment:
    """Servers in a network that several deployments share; `number` is in the names of theirs."""

    world: MemoryWorld
    home: Path
    number: int
    transport: Callable[[], httpx.AsyncBaseTransport] = field(init=False)
    started: int = 0
    exited: dict[str, int] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.transport = partial(self.world.network.transport, "coordinator")

    def _name(self, server: str) -> str:
        return f"d{self.number}-{server}"

    async def start(self, epoch: int) -> Mapping[str, str]:
        network, world = self.world.network, self.world
        urls = {server: network.url(self._name(server)) for server in MODULES}
        for server in MODULES:
            place = Place(
                plan=read_plan(world.disk, self.home),
                settings=Settings(
                    enabled=True,
                    control_auth_token=world.token,
                    root=self.home / CHECKPOINTS,
                    epoch=epoch,
                    epoch_required=True,
                    servers=urls,
                    journal=self.home / STEPS,
                ),
                seams=world.named(f"{self._name(server)}-{epoch}"),
                journals=self.home / JOURNALS,
                transport=network.transport(server),
            )
            await network.start(self._name(server), world.make(server, place))
        self.started += 1
        return urls

    async def stop(self) -> None:
        self.kill()
        self.exited.clear()

    def kill(self, *names: str) -> None:
        for server in names or MODULES:
            if self._name(server) in self.world.network.up:
                self.world.network.kill(self._name(server))
                self.exited[server] = -9

    def told(self) -> str:
        return f"servers in memory, number {self.number}"


@define(eq=False)
class MemoryWorld:
    """A disk and a network in memory. `make` makes the servers' applications; a test's own may have a fault."""

    network: InMemoryNetwork
    make: Callable[[str, Place], ASGIApp] = app
    disk: MemoryDisk = field(factory=MemoryDisk)
    token: str = "tok"
    seams: Seams = field(init=False)
    deployments: list[MemoryDeployment] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.seams = self.named("coordinator")

    def named(self, name: str) -> Seams:
        return Seams(clock=LoopClock(WALL + trio.current_time()), disk=self.disk, entropy=SeededEntropy(name))

    def deployment(self, home: Path) -> MemoryDeployment:
        made = MemoryDeployment(self, home, len(self.deployments) + 1)
        self.deployments.append(made)
        return made

    async def end(self) -> None:
        for each in self.deployments:
            each.kill()


@define(eq=False)
class Told:
    """A story that was told in memory: how it ended, what was shown, and the files."""

    ending: Ending
    picture: Picture
    disk: MemoryDisk
    deployments: int


def tell_in_memory(plan: Plan, make: Callable[[str, Place], ASGIApp] = app) -> Told:
    """The story of this plan, in memory and without any real waiting."""

    async def main() -> Told:
        async with InMemoryNetwork() as network:
            made = MemoryWorld(network, make)
            picture = Picture(plan)
            ending = await tell(plan, made, DIRECTORY, picture)
            assert network.up == (), "nothing is left running"
            assert not network.errors, network.errors
            return Told(ending, picture, made.disk, sum(each.started for each in made.deployments))

    told: Told = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return told
