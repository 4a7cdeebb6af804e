"""A world for tests of the coordinator: a disk, a network, small servers, a trainer; coordinators come and go."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from attrs import define, field
from starlette.responses import Response

from participants.coordination.coordinator import Coordinator, CoordinatorSettings
from participants.coordination.trainer import Dispatch, Result
from participants.files.store import Store
from participants.net.client import Retries
from participants.records.records import Disposition
from participants.serving.testing import Call, InMemoryNetwork
from participants.settings import Seams
from participants.telemetry import Telemetry, installed_telemetry
from statecore.journal import Journal
from statecore.seams import LoopClock, MemoryDisk, SeededEntropy
from tests.small_fleet import TOKEN, Deployments, FakeServer, Reply

ROOT = Path("/job")
WALL = 1_790_000_000.0


@define(eq=False)
class SmallTrainer:
    """A trainer whose state is the list of results it accepted; `on_save` runs inside its save."""

    disk: MemoryDisk
    accepted: list[Result] = field(factory=list)
    loaded: list[str] = field(factory=list)
    dispositions: list[dict[str, Disposition]] = field(factory=list)
    on_save: Callable[[], Any] | None = None

    async def save(self, directory: Path, dispositions: Mapping[str, Disposition]) -> None:
        self.dispositions.append(dict(dispositions))
        names = [each.rollout_id for each in self.accepted] + self.loaded
        if self.on_save is not None:
            await self.on_save()
        with self.disk.create(directory / "state.json") as file:
            file.write(json.dumps(names).encode())
            file.fsync()

    async def load(self, directory: Path) -> None:
        self.loaded = json.loads(self.disk.read(directory / "state.json"))

    async def accept(self, result: Result) -> None:
        await trio.lowlevel.checkpoint()
        self.accepted.append(result)

    async def consumed(self) -> set[str]:
        return {*self.loaded, *(each.rollout_id for each in self.accepted)}

    @property
    def ids(self) -> list[str]:
        return sorted(each.rollout_id for each in self.accepted)


@define(eq=False)
class World:
    """A disk, a network and a launcher; coordinators come and go."""

    network: InMemoryNetwork
    deployments: Deployments
    seams: Seams
    disk: MemoryDisk
    journal: Journal

    @property
    def history(self) -> Any:
        return self.deployments.history

    def script(self, server: str, verb: str, script: Callable[[FakeServer, Reply], Any] | None) -> None:
        """`script` answers this verb of this server, or returns None to let it answer itself."""
        self.history.scripts.pop((server, verb), None)
        if script is not None:
            self.history.scripts[server, verb] = script

    def coordinator(self, trainer: Any, **settings: Any) -> Coordinator:
        settings = {"control_retries": Retries(tries=3), "run_patience_s": 60.0, **settings}
        return Coordinator(
            ROOT,
            self.deployments,
            trainer,
            token=TOKEN,
            settings=CoordinatorSettings(**settings),
            seams=self.seams,
            transport=lambda: self.network.transport("coordinator"),
            journal=self.journal,
        )

    def trainer(self) -> SmallTrainer:
        return SmallTrainer(self.disk)

    def count(self, rollout_id: str) -> int:
        """How many turns of this rollout were played in all."""
        return sum(each == rollout_id for each, _ in self.history.played)

    def store(self) -> Store:
        return Store(ROOT, self.disk, self.seams.entropy, self.seams.clock)


@asynccontextmanager
async def a_world(
    *, disk: MemoryDisk | None = None, telemetry: Telemetry | None = None, **deployments: Any
) -> AsyncIterator[World]:
    disk, clock = disk or MemoryDisk(), LoopClock(WALL)
    async with InMemoryNetwork() as network, trio.open_nursery() as nursery:
        journal = Journal(None, clock)
        yield World(
            network,
            Deployments(network, clock, disk, nursery, **deployments),
            Seams(clock, disk, SeededEntropy(7), telemetry or installed_telemetry()),
            disk,
            journal,
        )
        nursery.cancel_scope.cancel()


def dispatches(turns: Mapping[str, int], **task: Any) -> list[Dispatch]:
    return [Dispatch(name, {"turns": count, **task}, "env") for name, count in turns.items()]


async def abandoned(world: World, coordinator: Coordinator, body: Callable[[Coordinator], Any]) -> None:
    """`body` runs, then the coordinator is cancelled as it stands and all servers are killed."""
    with trio.CancelScope() as scope:
        async with coordinator as job:
            await body(job)
            scope.cancel()
            await trio.sleep_forever()
    world.deployments.kill()


@asynccontextmanager
async def running(
    coordinator: Coordinator, new: Iterable[Dispatch] = ()
) -> AsyncIterator[tuple[Coordinator, list[Any]]]:
    """A recovered coordinator with its batch running; the reports come into the list."""
    reports: list[Any] = []
    async with coordinator as job, trio.open_nursery() as nursery:
        recovered = await job.recover()
        batch = recovered.runnable(new)

        async def run() -> None:
            reports.append(await job.run_batch(batch))

        nursery.start_soon(run)
        yield job, reports


def refuse(status: int, code: str) -> Callable[[FakeServer, Reply], Response]:
    return lambda server, _body: server.refuse(status, code)


def is_call(call: Call, server: str, verb: str) -> bool:
    """Whether this is that verb of that server."""
    return call.server == server and call.path.endswith(verb)
