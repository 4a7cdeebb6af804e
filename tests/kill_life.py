"""One life of a job under fire, as a process of its own: `python -m tests.kill_life FILE`.

FILE says what is to be done to it (`Order`). Signals are sent by this process itself, to itself or to its servers, at
the very moment that was ordered. What it leaves behind are files: the servers of each start and what that start went on
from, its coordinator's journal, and how it ended.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import trio
from attrs import define, frozen

from participants.coordination.coordinator import Coordinator, CoordinatorSettings, Overtaken, RestartFailed
from participants.demo.counting import held_by
from participants.demo.life import Scene, run_rollouts
from participants.demo.moments import Heard, Moments
from participants.demo.picture import Picture
from participants.demo.plan import read_plan
from participants.demo.servers import MODULES, STEPS, factory
from participants.demo.trainer import DemoTrainer
from participants.demo.worlds import LOGS, Processes, ProcessWorld
from participants.files.store import Store
from participants.net.client import ControlClient, ControlError, make_client
from participants.net.transport import FreeListTransport
from participants.serving.launcher import ServerSpec, StartupFailed
from statecore.journal import Journal
from statecore.seams import File
from statecore.wire import parse, structure
from tests.kill_plan import Blow, Kind, Start, When, put

LEASE_GRACE_S: Final = 2.0
DEADLINE_S: Final = 12.0
"""Of a checkpoint, and of a restore."""
TRIES: Final = 6
SETTLED_S: Final = 60.0
"""How long servers may take to be open again, a restart of all of them included."""
AGAIN_S: Final = 0.2
OPEN: Final = "idle"
FINISHED, OVERTAKEN, NOT_STARTED = 0, 3, 4
"""How the process exits."""


@frozen(kw_only=True)
class Order:
    """What this life is told. `number` counts the lives of a run from 1, `lifeline` is a descriptor for the servers."""

    home: str
    number: int
    token: str
    lifeline: int
    every_s: float
    blows: tuple[Blow, ...] = ()


@define(eq=False)
class Launcher:
    """The demo's processes. What each start went on from, and where its servers are, is written before it is used."""

    order: Order
    servers: Processes
    trainer: DemoTrainer
    store: Store
    reached: Callable[[When, int], None]

    @property
    def exited(self) -> Mapping[str, int]:
        return self.servers.exited

    async def start(self, epoch: int) -> Mapping[str, str]:
        base = self.store.claims()[epoch].base
        assert base is not None, "the base is recorded before anything is started"
        held = held_by(None if base.start is None else self.store.read(base.start))
        put(
            Path(self.order.home) / f"start-{epoch:06d}.json",
            {
                "life": self.order.number,
                "start": None if base.start is None else str(base.start),
                "turns": dict(held.turns),
                "consumed": sorted(await self.trainer.consumed()),
            },
        )
        self.reached(Start.CLAIMED, 0)
        urls = await self.servers.start(epoch)
        put(Path(self.order.home) / f"servers-{epoch:06d}.json", dict(urls))
        self.reached(Start.STARTED, 0)
        return urls

    async def stop(self) -> None:
        await self.servers.stop()


@define(eq=False)
class Striker:
    """Deals the blows one after the other, each when its moment comes after the one before."""

    blows: deque[Blow]
    order: Order
    servers: Processes
    nursery: trio.Nursery
    starting: bool = False
    dealt: int = 0

    def reached(self, moment: When, checkpoint: int) -> None:
        """A moment was reached, so many checkpoints after the beginning."""
        self.starting = self.starting or moment is Start.CLAIMED
        if not self.blows or self.blows[0].when != moment or self.blows[0].checkpoint > checkpoint:
            return
        blow = self.blows.popleft()
        if blow.late_s:
            self.nursery.start_soon(self._later, blow)
        else:
            self._deal(blow)

    async def _later(self, blow: Blow) -> None:
        await trio.sleep(blow.late_s)
        self._deal(blow)

    def _deal(self, blow: Blow) -> None:
        self.dealt += 1
        mark = Path(self.order.home) / f"dealt-{self.order.number}-{self.dealt}.json"
        put(mark, {"dealt": str(blow)})
        alive = self._alive()
        if blow.kind is Kind.ALL:
            for pid in alive.values():
                os.killpg(pid, signal.SIGKILL)
        elif blow.kind in (Kind.FROZEN, Kind.PAUSED) and blow.server in alive:
            if blow.kind is Kind.FROZEN:
                put(mark.with_name(f"frozen-{self.order.number}.json"), {"pid": alive[blow.server]})
            os.killpg(alive[blow.server], signal.SIGSTOP)
            if blow.kind is Kind.PAUSED:
                self.nursery.start_soon(self._wake, alive[blow.server], blow.pause_s)
        elif blow.kind in alive:
            os.killpg(alive[blow.kind], signal.SIGKILL)
        if blow.kind in (Kind.ALL, Kind.COORDINATOR, Kind.FROZEN):
            os.kill(os.getpid(), signal.SIGKILL)
        if blow.kind is Kind.ZOMBIE:
            os.kill(os.getpid(), signal.SIGSTOP)

    def _alive(self) -> dict[str, int]:
        exited = self.servers.exited
        return {name: pid for name, pid in self.servers.pids.items() if name not in exited}

    async def _wake(self, pid: int, after_s: float) -> None:
        await trio.sleep(after_s)
        if pid in self._alive().values():
            os.killpg(pid, signal.SIGCONT)


async def live(order: Order) -> int:
    """The exit code of this life."""
    home = Path(order.home)
    world = ProcessWorld()
    seams = world.seams
    scene = Scene(read_plan(seams.disk, home), world, home, Picture(read_plan(seams.disk, home)))
    trainer = scene.trainer()
    environment = {
        "STATECORE_ENABLED": "true",
        "STATECORE_ROOT": str(scene.root),
        "STATECORE_LEASE_GRACE_SECONDS": str(LEASE_GRACE_S),
        "STATECORE_JOURNAL": str(home / STEPS),
    }
    specs = [ServerSpec(name, factory(name), environment) for name in MODULES]
    servers = Processes(specs, home / LOGS, token=order.token, lifeline=order.lifeline)
    async with trio.open_nursery() as nursery:
        striker = Striker(deque(order.blows), order, servers, nursery)
        moments = Moments(striker.reached)
        with seams.disk.create(home / f"coordinator-{order.number}.jsonl") as file:
            coordinator = Coordinator(
                scene.root,
                Launcher(order, servers, trainer, scene.store(), striker.reached),
                trainer,
                token=order.token,
                settings=settings(),
                seams=seams,
                transport=lambda: Heard(FreeListTransport(), partial(answered, striker, moments)),
                journal=Journal(partial(write, file, moments), seams.clock),
            )
            ended, code = "", FINISHED
            try:
                await job(order, scene, coordinator, trainer, striker)
            except* Overtaken as errors:
                ended, code, why = "overtaken", OVERTAKEN, list(map(str, errors.exceptions))
            except* (RestartFailed, StartupFailed) as errors:
                ended, code, why = "not started", NOT_STARTED, list(map(str, errors.exceptions))
            if ended:
                put(home / f"ended-{order.number}.json", {"ended": ended, "why": why})
        nursery.cancel_scope.cancel()
    return code


def settings() -> CoordinatorSettings:
    """Short bounds: a server that was left alone is open again soon, and a dead one is noticed soon."""
    return CoordinatorSettings(
        restore_timeout_s=DEADLINE_S, resume_timeout_s=DEADLINE_S, acknowledge_timeout_s=DEADLINE_S, renew_every_s=2.0
    )


def write(file: File, moments: Moments, data: bytes) -> None:
    """One line of the coordinator's journal."""
    file.write(data)
    moments.line(parse(data))


def answered(striker: Striker, moments: Moments, path: str) -> None:
    """A server has answered; during a start it is a moment of its own."""
    moments.answered(path)
    starts: dict[str, When] = {"restore": Start.RESTORED, "resume": Start.OPENED}
    verb = path.rpartition("/checkpoint/")[2]
    if striker.starting and verb in starts:
        striker.starting = verb != "resume"
        striker.reached(starts[verb], 0)


async def job(
    order: Order, scene: Scene, coordinator: Coordinator, trainer: DemoTrainer, striker: Striker
) -> None:
    """The job has ended, its last checkpoint is in force, and the blow was dealt if its moment came at all."""
    async with coordinator:
        recovered = await coordinator.recover()
        put(
            scene.home / f"running-{order.number}.json",
            {"epoch": recovered.epoch, "from": recovered.checkpoint_id, "failed": recovered.restore_failed},
        )
        ended = trio.Event()

        async def rollouts() -> None:
            await run_rollouts(scene, coordinator, recovered, trainer)
            ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(rollouts)
            while not ended.is_set():
                with trio.move_on_after(order.every_s or math.inf):
                    await ended.wait()
                if order.every_s:
                    await coordinator.checkpoint(timeout_s=DEADLINE_S)
        stories, servers = [], dict[str, str]()
        for _ in range(TRIES):
            restarts = len(coordinator.restarts)
            last = await coordinator.checkpoint(timeout_s=DEADLINE_S)
            stories.append(last.story())
            if last.published and not striker.blows:
                servers = await settled(order, scene)
                if restarts == len(coordinator.restarts):  # else they were started anew since: it is not the last one
                    break
        put(
            scene.home / f"ended-{order.number}.json",
            {
                "ended": "finished",
                "published": last.published,
                "stories": stories,
                "servers": servers or await settled(order, scene),
                "results": trainer.results(),
                "lost": list(trainer.lost()),
                "doubled": list(trainer.doubled()),
            },
        )


async def settled(order: Order, scene: Scene) -> dict[str, str]:
    """The phase of each server once all are open, or what they say when that takes too long.

    The blow may have come at the very end: then the servers are being started anew just now.
    """
    found: dict[str, str] = {}
    with trio.move_on_after(SETTLED_S):
        while not found or any(each != OPEN for each in found.values()):
            found = await states(order, scene)
            await trio.sleep(AGAIN_S)
    return found


async def states(order: Order, scene: Scene) -> dict[str, str]:
    """The phase of each server that the newest start of this life has up."""
    epoch = max(int(path.stem.rpartition("-")[2]) for path in scene.home.glob("servers-*.json"))
    urls = parse((scene.home / f"servers-{epoch:06d}.json").read_bytes())
    seams, found = scene.world.seams, {}
    async with make_client() as client:
        for name, url in urls.items():
            control = ControlClient(
                client, url, order.token, clock=seams.clock, entropy=seams.entropy, epoch=epoch, name=name
            )
            found[name] = await phase(control)
    return found


async def phase(control: ControlClient) -> str:
    """The phase that a server says it is in, or why it says none."""
    try:
        return str((await control.status(timeout_s=5.0)).get("phase"))
    except ControlError as error:
        return OPEN if error.status == 404 else str(error)  # a judge has no phases: it is never closed


def main() -> int:
    """The process."""
    order = structure(parse(Path(sys.argv[1]).read_bytes()), Order)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return trio.run(live, order)


if __name__ == "__main__":
    sys.exit(main())
