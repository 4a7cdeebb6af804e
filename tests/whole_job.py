"""The whole job in memory, for tests: the real coordinator over the small job's real servers, with a trainer.

Every generation waits at a turnstile that the test opens, so a rollout stands exactly where a test wants it to stand.
"""

from __future__ import annotations

import json
from collections import Counter as Tally
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any

import httpx
import trio
import trio.testing
from attrs import define, field

from participants.coordination.coordinator import Coordinator, CoordinatorSettings
from participants.coordination.trainer import Dispatch, Result
from participants.files.store import Store
from participants.net.http import ASGIApp
from participants.records.records import Disposition
from participants.servers.policy_model import PolicyModel
from participants.serving.testing import InMemoryLauncher, InMemoryNetwork
from participants.settings import Seams, Settings
from participants.telemetry import Telemetry, installed_telemetry
from statecore.journal import Journal
from statecore.seams import LoopClock, MemoryDisk, SeededEntropy
from tests.small_job import TOKEN, WALL, answer, counter_resources, counting_agent, counting_environment, settings

ROOT = Path("/job")
NAMES = ("policy_model", "tools", "simple_agent", "env")

Maker = Callable[[Settings, Seams, httpx.AsyncBaseTransport], ASGIApp]


@define(eq=False)
class Turnstile:
    """Generations by rollout: each waits until the test has let that many of its rollout pass."""

    allowed: dict[str, int] = field(factory=dict)
    generated: Tally[str] = field(factory=Tally)
    seen: list[tuple[str, int]] = field(factory=list)
    moved: trio.Event = field(factory=trio.Event)

    def allow(self, rollout: str, turns: int) -> None:
        """The rollout may take so many turns in all."""
        self.allowed[rollout] = turns
        self.moved.set()
        self.moved = trio.Event()

    async def generate(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        rollout = body["messages"][0]["content"]
        said = len([each for each in body["messages"] if each["role"] == "assistant"])
        while said >= self.allowed.get(rollout, 0):
            await self.moved.wait()
        self.generated[rollout] += 1
        self.seen.append((rollout, said + 1))
        return answer(path, body)


@define(eq=False)
class PlainTrainer:
    """A trainer whose whole state is the results that it accepted, in one file."""

    disk: MemoryDisk
    accepted: dict[str, Any] = field(factory=dict)
    deliveries: list[str] = field(factory=list)
    before_save: Any = None

    async def save(self, directory: Path, dispositions: Mapping[str, Disposition]) -> None:
        if self.before_save is not None:
            await self.before_save()
        with self.disk.create(directory / "trainer.json") as file:
            file.write(json.dumps(self.accepted).encode())

    async def load(self, directory: Path) -> None:
        self.accepted = json.loads(self.disk.read(directory / "trainer.json"))

    async def accept(self, result: Result) -> None:
        self.deliveries.append(result.rollout_id)
        self.accepted[result.rollout_id] = result.body

    async def consumed(self) -> Set[str]:
        return set(self.accepted)


@define(eq=False)
class WholeJob:
    """One disk and one network over all lives; `coordinator` makes a new one and what it needs.

    `makers` are servers made otherwise, or more of them, by name; `trainer_kind` is the class of each life's trainer.
    """

    network: InMemoryNetwork
    makers: dict[str, Maker] = field(factory=dict)
    trainer_kind: type[PlainTrainer] = PlainTrainer
    disk: MemoryDisk = field(factory=MemoryDisk)
    turnstile: Turnstile = field(factory=Turnstile)
    clock: LoopClock = field(factory=lambda: LoopClock(WALL))
    clocks: dict[str, LoopClock] = field(factory=dict)  # those of their own, by server or "coordinator"
    telemetry: Telemetry = field(factory=installed_telemetry)
    journal: Journal | None = None
    lives: int = 0
    made: int = 0
    launcher: InMemoryLauncher | None = None
    trainer: PlainTrainer | None = None
    servers: dict[str, Any] = field(factory=dict)  # the newest server of each name

    def __attrs_post_init__(self) -> None:
        if self.disk.kind(ROOT) is None:
            self.disk.mkdir(ROOT)

    def coordinator(self, **changes: Any) -> Coordinator:
        """A new life: nothing of an older one but the files."""
        self.lives += 1
        self.trainer = self.trainer_kind(self.disk)
        names = (*NAMES, *(name for name in self.makers if name not in NAMES))
        self.launcher = InMemoryLauncher(self.network, {name: self._factory(name) for name in names})
        options: dict[str, Any] = {
            "token": TOKEN,
            "settings": CoordinatorSettings(),
            "seams": self._seams("coordinator"),
            "transport": lambda: self.network.transport("coordinator"),
        }
        return Coordinator(ROOT, self.launcher, self.trainer, **(options | changes))

    def _seams(self, name: str, process: str = "") -> Seams:
        """What a process of that name gets; no two `process`es of one name draw the same."""
        clock = self.clocks.get(name, self.clock)
        entropy = SeededEntropy(f"{name}{process}-{self.lives}")
        return Seams(clock, self.disk, entropy, self.telemetry, self.journal)

    def _factory(self, name: str) -> Any:
        kinds: dict[str, Maker] = {
            "policy_model": self._policy,
            "tools": counter_resources,
            "simple_agent": counting_agent,
            "env": counting_environment,
            **self.makers,
        }

        def make(epoch: int, urls: Mapping[str, str]) -> Any:
            self.made += 1
            config = settings(servers=dict(urls), epoch=epoch, epoch_required=True, root=ROOT)
            app = kinds[name](config, self._seams(name, f"-{self.made}"), self.network.transport(name))
            self.servers[name] = getattr(app, "server", None)
            return app

        return make

    def _policy(self, config: Any, seams: Seams, transport: Any) -> Any:
        return PolicyModel("policy_model", config, self.turnstile.generate, seams=seams, transport=transport).app()

    def marks(self, name: str) -> int:
        """How many rollouts this server has marked as over."""
        return len(self.servers[name].fences.retired)

    def store(self) -> Store:
        """The root as a reader sees it."""
        return Store(ROOT, self.disk, SeededEntropy("reader"), self.clock)

    def dispatches(self, turns: int, *rollouts: str) -> list[Dispatch]:
        return [Dispatch(each, {"question": each, "turns": turns}, "env") for each in rollouts]


async def settle() -> None:
    """Everything that can run without time passing has run."""
    await trio.testing.wait_all_tasks_blocked(0.0)


def run(test: Any, disk: MemoryDisk | None = None) -> None:
    """Runs `test(job)` under a MockClock that jumps; its files are on `disk`."""

    async def main() -> None:
        async with InMemoryNetwork() as network:
            await test(WholeJob(network, disk=disk or MemoryDisk()))
            assert not network.errors, network.errors

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
