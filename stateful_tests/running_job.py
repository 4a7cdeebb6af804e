"""A whole job to do things to: real coordinators and servers in memory, on a disk that loses what was not synced.

Several lives may be there at once: a coordinator that was given up leaves its servers behind, and one that was
overtaken may not know it yet. Each start of servers has addresses of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any, Final

import trio
from attrs import define, field, frozen

from participants.coordination.coordinator import (
    Aborted,
    Coordinator,
    CoordinatorSettings,
    Overtaken,
    Published,
    Recovered,
    Restarted,
    RestartFailed,
)
from participants.coordination.deployment import DiscoveryFailed
from participants.coordination.recovery import Verdict
from participants.coordination.trainer import Dispatch, Result
from participants.files.store import Store, StoreError
from participants.net.client import Retries
from participants.net.http import ASGIApp
from participants.records.manifests import CheckpointId
from participants.records.records import Disposition
from participants.servers.policy_model import PolicyModel
from participants.servers.server import Server
from participants.serving.testing import Call, Fault, InMemoryNetwork, StartupFailed
from participants.settings import Seams, Settings
from statecore.seams import LoopClock, SeededEntropy
from tests.crash_disk import Crash, CrashDisk, Survives
from tests.small_job import TOKEN, WALL, answer, counter_resources, counting_agent, counting_environment, settings

ROOT: Final = Path("/job")
NAMES: Final = ("policy_model", "tools", "simple_agent", "env")
GRACE_S: Final = 5.0
WAY_S: Final = 0.01
"""A request takes so long, and so does a reply: a checkpoint can be met in its middle."""

Maker = Callable[[Settings, Seams, Any], ASGIApp]


@define(eq=False)
class Generations:
    """The model: each generation of a rollout waits until so many turns of it are allowed; who made which is kept."""

    allowed: dict[str, int] = field(factory=dict)
    made: list[tuple[int, str, int]] = field(factory=list)  # (epoch, rollout, turn)
    moved: trio.Event = field(factory=trio.Event)

    def allow(self, rollout: str, turns: int) -> None:
        self.allowed[rollout] = max(turns, self.allowed.get(rollout, 0))
        self.moved.set()
        self.moved = trio.Event()

    async def generate(self, epoch: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
        rollout = body["messages"][0]["content"]
        turn = 1 + sum(each["role"] == "assistant" for each in body["messages"])
        while turn > self.allowed.get(rollout, 0):
            await self.moved.wait()
        self.made.append((epoch, rollout, turn))
        return answer(path, body)


@define(eq=False)
class Trainer:
    """Its state is the results that it accepted, in one file that is synced."""

    disk: CrashDisk
    accepted: dict[str, Any] = field(factory=dict)
    twice: list[str] = field(factory=list)

    async def save(self, directory: Path, dispositions: Mapping[str, Disposition]) -> None:
        await trio.sleep(WAY_S)
        with self.disk.create(directory / "trainer.json") as file:
            file.write(json.dumps(self.accepted).encode())
            file.fsync()
        self.disk.fsync_dir(directory)

    async def load(self, directory: Path) -> None:
        self.accepted = json.loads(self.disk.read(directory / "trainer.json"))

    async def accept(self, result: Result) -> None:
        if result.rollout_id in self.accepted:
            self.twice.append(result.rollout_id)
        self.accepted[result.rollout_id] = result.body["reward"]

    async def consumed(self) -> Set[str]:
        return set(self.accepted)


@frozen
class Address:
    """One server of one start: what it is called on the network, and how it is made anew."""

    where: str
    name: str
    epoch: int
    make: Callable[[], ASGIApp]


@define(eq=False)
class Life:
    """One coordinator with its trainer and the servers that it started; `over` once it has ended, and by what."""

    number: int
    trainer: Trainer
    addresses: list[Address] = field(factory=list)
    coordinator: Coordinator | None = None
    recovered: Recovered | None = None
    work: trio.Nursery | None = None
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    ready: trio.Event = field(factory=trio.Event)
    outcomes: list[Published | Aborted] = field(factory=list)
    checkpointing: bool = False
    batches: int = 0
    lost: dict[str, str] = field(factory=dict)
    over: str = ""

    @property
    def at_work(self) -> bool:
        """Whether it has begun its work, and nothing of it has ended it."""
        ending = self.over or self.scope.cancel_called
        return self.work is not None and not ending and not self.work.cancel_scope.cancel_called

    @property
    def restarts(self) -> tuple[Restarted, ...]:
        return () if self.coordinator is None else self.coordinator.restarts


@define(eq=False)
class OwnServers:
    """The launcher of one life: its servers have addresses of their own at each start."""

    job: Job
    life: Life
    starts: int = 0

    async def start(self, epoch: int) -> Mapping[str, str]:
        self.starts += 1
        where = {name: f"{name}-{self.life.number}-{self.starts}" for name in NAMES}
        urls = {name: InMemoryNetwork.url(each) for name, each in where.items()}
        addresses = [self.job.address(name, where[name], epoch, urls) for name in NAMES]
        self.life.addresses = addresses
        for each in addresses:
            await self.job.network.start(each.where, self.job.made(each))
        return urls

    async def stop(self) -> None:
        for each in self.life.addresses:
            if each.where in self.job.network.up:
                await self.job.network.stop(each.where)


@define(eq=False)
class Strike:
    """A fault to come: at call number `calls` from now of those to a server of that name, or of all, on such a path."""

    calls: int
    name: str
    then: Callable[[Call], Fault | None]
    path: str = ""

    def fits(self, call: Call) -> bool:
        return call.server.startswith(self.name) and call.path.endswith(self.path)


@define(eq=False)
class Job:
    """The root, the network, the model, and all lives so far."""

    network: InMemoryNetwork
    nursery: trio.Nursery
    disk: CrashDisk = field(factory=CrashDisk)
    model: Generations = field(factory=Generations)
    clock: LoopClock = field(factory=lambda: LoopClock(WALL))
    makers: dict[str, Maker] = field(factory=dict)
    tasks: list[Dispatch] = field(factory=list)
    lives: list[Life] = field(factory=list)
    servers: dict[str, Server] = field(factory=dict)  # by address, the newest there
    strikes: list[Strike] = field(factory=list)
    watchers: list[Callable[[Call], object]] = field(factory=list)
    made_so_far: int = 0

    def __attrs_post_init__(self) -> None:
        self.disk.mkdir(ROOT)
        self.disk.fsync_dir("/")
        self.network.faults = self.on_the_way

    # --- servers

    def address(self, name: str, where: str, epoch: int, urls: Mapping[str, str]) -> Address:
        def policy(config: Settings, seams: Seams, transport: Any) -> ASGIApp:
            async def generate(path: str, body: dict[str, Any]) -> dict[str, Any]:
                return await self.model.generate(epoch, path, body)

            return PolicyModel("policy_model", config, generate, seams=seams, transport=transport).app()

        kinds: dict[str, Maker] = {
            "policy_model": policy,
            "tools": counter_resources,
            "simple_agent": counting_agent,
            "env": counting_environment,
            **self.makers,
        }

        def make() -> ASGIApp:
            self.made_so_far += 1
            config = settings(
                servers=dict(urls), epoch=epoch, epoch_required=True, root=ROOT, lease_grace_seconds=GRACE_S
            )
            seams = Seams(self.clock, self.disk, SeededEntropy(f"{where} {self.made_so_far}"))
            return kinds[name](config, seams, self.network.transport(where))

        return Address(where, name, epoch, make)

    def made(self, address: Address) -> ASGIApp:
        app = address.make()
        self.servers[address.where] = app.server  # type: ignore[attr-defined]
        return app

    @property
    def up(self) -> dict[str, Server]:
        """The servers that are up, by address."""
        return {where: self.servers[where] for where in self.network.up if where in self.servers}

    # --- lives

    @property
    def life(self) -> Life | None:
        """The newest one, if it is not over."""
        return self.lives[-1] if self.lives and not self.lives[-1].over else None

    def begin(self) -> Life:
        """Another coordinator starts, whatever became of those before."""
        life = Life(len(self.lives) + 1, Trainer(self.disk))
        self.lives.append(life)
        self.nursery.start_soon(self._live, life)
        return life

    async def _live(self, life: Life) -> None:
        seams = Seams(self.clock, self.disk, SeededEntropy(f"coordinator {life.number}"))
        life.coordinator = Coordinator(
            ROOT,
            OwnServers(self, life),
            life.trainer,
            token=TOKEN,
            settings=CoordinatorSettings(
                restart_delay_s=0.5,
                restart_limit=99,
                run_patience_s=60.0,
                control_retries=Retries(tries=3),
            ),
            seams=seams,
            transport=lambda: self.network.transport(f"coordinator-{life.number}"),
        )
        try:
            with life.scope:
                async with life.coordinator as job:
                    life.recovered = await job.recover()
                    async with trio.open_nursery() as life.work:
                        self.run(life, self.tasks)
                        life.ready.set()
                        await trio.sleep_forever()
            life.over = "given up"
        except* (Overtaken, RestartFailed, DiscoveryFailed, StartupFailed, StoreError, Crash) as group:
            life.over = "; ".join(map(str, group.exceptions))
        finally:
            life.over = life.over or "broken"
            life.work = None
            life.ready.set()

    def run(self, life: Life, tasks: list[Dispatch]) -> None:
        """These rollouts run in that life, if it does not know them yet."""
        assert life.coordinator is not None
        assert life.work is not None
        life.batches += 1
        life.work.start_soon(self._run, life, life.coordinator.runnable(tasks))

    async def _run(self, life: Life, batch: Any) -> None:
        assert life.coordinator is not None
        report = await life.coordinator.run_batch(batch)
        life.lost.update(report.lost)
        life.batches -= 1

    async def checkpoint(self, life: Life, timeout_s: float, stragglers: str) -> None:
        assert life.coordinator is not None
        try:
            life.outcomes.append(await life.coordinator.checkpoint(timeout_s, stragglers=stragglers))
        finally:
            life.checkpointing = False

    # --- what is done to it

    def on_the_way(self, call: Call) -> Fault | None:
        """Every call takes its time; a strike whose turn it is decides otherwise."""
        for watch in self.watchers:
            watch(call)
        fault = None
        for strike in list(self.strikes):
            strike.calls -= strike.fits(call)
            if strike.calls <= 0:
                self.strikes.remove(strike)
                fault = strike.then(call) or fault
        return fault or Fault(request_s=WAY_S, reply_s=WAY_S)

    def kill(self, *where: str) -> None:
        for each in where:
            if each in self.network.up:
                self.network.kill(each)

    def go_down(self, survives: Survives, seed: int) -> None:
        """The machine is gone with all that ran on it, at once; `survives` says what the next one finds on the disk."""
        for life in self.lives:
            life.scope.cancel()
        self.kill(*self.network.up)
        old, self.disk = self.disk, self.disk.after_crash(survives, seed)
        old.crash_at(0)

    def go_down_at(self, operations: int, survives: Survives, seed: int) -> None:
        """So it will be, instead of operation number `operations` of the disk from now, counted from 0."""
        disk, left = self.disk, [operations]

        def fault(operation: str, path: str) -> None:
            left[0] -= 1
            if left[0] < 0 and disk is self.disk:
                self.go_down(survives, seed)
                raise Crash(f"at {operation} {path}")

        disk.fault = fault

    def store(self) -> Store:
        return Store(ROOT, self.disk, SeededEntropy("reader"), self.clock)


def held_turns(job: Job, base: str | None, verdicts: tuple[Verdict, ...]) -> dict[str, int]:
    """By rollout, how many turns the base holds of those that are continued from it."""
    which = None if base is None else CheckpointId.parse(base)
    if which is None:
        return {}
    whole = job.store().read(which)
    totals = {
        (each["episode_id"]["rollout_id"], each["episode_id"]["attempt"]): each["state"]["data"]["value"]
        for part in whole.of_kind("resources")
        for each in part.records
    }
    rows = {row.rollout_id: row for row in whole.registry if row.disposition is Disposition.CONTINUE}
    going_on = [each.rollout_id for each in verdicts if each.disposition is Disposition.CONTINUE]
    # An episode that stands before its first seed goes on without a session, and holds no turn.
    return {each: turns_of(totals.get((each, rows[each].attempt), 0)) for each in going_on}


def turns_of(total: int) -> int:
    """How many turns make this total: each adds its number."""
    turns = 0
    while total > 0:
        turns += 1
        total -= turns
    assert total == 0, "I36: a session's total is of no number of turns"
    return turns
