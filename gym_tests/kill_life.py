"""One life of rollouts on Gym servers under fire, as a process of its own: `python -m gym_tests.kill_life FILE`.

FILE says what is to be done to it (`Order`). Signals are sent by this process itself, at the very moment that was
ordered. What it leaves behind are files: what each start went on from and how much the model had been asked by then,
the same of each checkpoint's standstill, and how it ended.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio
from attrs import define, frozen

from participants import Coordinator, CoordinatorSettings, Dispatch, Published
from participants.coordination.coordinator import RestartFailed
from participants.demo.moments import Heard, Moment, Moments
from participants.files.store import Store
from participants.gym.fleet import gym_launcher
from participants.net.transport import FreeListTransport
from participants.serving.launcher import ProcessLauncher, StartupFailed
from statecore.journal import Journal
from statecore.seams import SystemClock, SystemDisk, SystemEntropy
from statecore.wire import parse, structure
from tests.kill_plan import Start, put

from .fleet import configuration
from .job import Keeper, compared
from .kill_plan import TURNS, Blow, Game, Victim, rollouts, servers, target

CHECKPOINTS, LOGS, STEPS, MODEL_LOG = "checkpoints", "logs", "steps", "model.jsonl"
DEADLINE_S: Final = 60.0
"""Of a checkpoint. Nothing here waits that long unless something is wrong, or the machine is very busy."""
TRIES: Final = 6
LOOK_S: Final = 0.01
FINISHED, NOT_STARTED = 0, 4
"""How the process exits."""
CLASSES: Final = {Game.BLACKJACK: {"blackjack": "gym_tests.dealt_blackjack:DealtBlackjack"}}


@frozen(kw_only=True)
class Order:
    """What this life is told; `number` counts the lives of a run from 1. `every_turns` 0: it takes no checkpoint."""

    home: str
    number: int
    token: str
    upstream: str
    game: Game
    every_turns: int
    blows: tuple[Blow, ...] = ()


@define(eq=False)
class Asked:
    """How much the model was asked so far, as bytes and as lines of its log."""

    path: Path

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    @property
    def turns(self) -> int:
        return self.path.read_bytes().count(b"\n")


@define(eq=False)
class Launcher:
    """The servers. What each start went on from is written, and how much the model was asked before it could begin."""

    order: Order
    servers: ProcessLauncher
    store: Store
    asked: Asked
    reached: Callable[[str, int], None]

    @property
    def exited(self) -> Mapping[str, int]:
        return self.servers.exited

    async def start(self, epoch: int) -> Mapping[str, str]:
        base = self.store.claims()[epoch].base
        assert base is not None, "the base is recorded before anything is started"
        self.reached(Start.CLAIMED, 0)
        urls = await self.servers.start(epoch)
        put(
            Path(self.order.home) / f"start-{epoch:06d}.json",
            {"base": None if base.start is None else str(base.start), "asked": self.asked.size},
        )
        self.reached(Start.STARTED, 0)
        return urls

    async def stop(self) -> None:
        await self.servers.stop()


@define(eq=False)
class Striker:
    """Deals the blows one after the other, each when its moment comes after the one before."""

    blows: deque[Blow]
    order: Order
    servers: ProcessLauncher
    asked: Asked
    nursery: trio.Nursery
    starting: bool = False
    dealt: int = 0

    def reached(self, moment: str, checkpoint: int) -> None:
        """A moment was reached, so many checkpoints after the beginning."""
        self.starting = self.starting or moment == Start.CLAIMED
        blow = self.blows[0] if self.blows else None
        if blow is None or blow.checkpoint > checkpoint:
            return
        if blow.when == TURNS and moment == Moment.IDLE:
            self.nursery.start_soon(self._after, partial(self._turns, self.asked.turns + blow.turns), blow)
        elif blow.when == moment and blow.late_s:
            self.nursery.start_soon(self._after, partial(trio.sleep, blow.late_s), blow)
        elif blow.when == moment:
            self._deal(blow)
        else:
            return
        self.blows.popleft()

    def answered(self, path: str) -> None:
        """A server has answered; the first of each kind in a start is a moment of its own."""
        starts = {"restore": Start.RESTORED, "resume": Start.OPENED}
        verb = path.rpartition("/checkpoint/")[2]
        if self.starting and verb in starts:
            self.starting = verb != "resume"
            self.reached(starts[verb].value, 0)

    async def _turns(self, number: int) -> None:
        while self.asked.turns < number:  # noqa: ASYNC110 - another process writes them
            await trio.sleep(LOOK_S)

    async def _after(self, wait: Callable[[], Awaitable[None]], blow: Blow) -> None:
        await wait()
        self._deal(blow)

    def _deal(self, blow: Blow) -> None:
        alive = {name: pid for name, pid in self.servers.pids.items() if name not in self.servers.exited}
        victims = list(alive) if blow.victim is Victim.ALL else [servers(self.order.game)[blow.victim]]
        hit = [name for name in victims if name in alive]
        self.dealt += 1
        mark = Path(self.order.home) / f"dealt-{self.order.number}-{self.dealt}.json"
        put(mark, {"dealt": str(blow), "hit": hit, "asked": self.asked.size})
        for name in hit:
            os.killpg(alive[name], signal.SIGKILL)
        if blow.victim is Victim.ALL:
            os.kill(os.getpid(), signal.SIGKILL)


async def live(order: Order) -> int:
    """The exit code of this life."""
    home, disk = Path(order.home), SystemDisk()
    root, asked = home / CHECKPOINTS, Asked(home / MODEL_LOG)
    fleet = gym_launcher(
        configuration(servers(order.game).values(), order.upstream),
        root,
        home / LOGS,
        token=order.token,
        classes=CLASSES.get(order.game),
        environment={"STATECORE_JOURNAL": str(home / STEPS)},
    )
    store, keeper = Store(root, disk, SystemEntropy(), SystemClock()), Keeper()
    async with trio.open_nursery() as nursery:
        striker = Striker(deque(order.blows), order, fleet, asked, nursery)
        moments = Moments(striker.reached)

        def answered(path: str) -> None:
            moments.answered(path)
            striker.answered(path)

        file = disk.create(home / f"coordinator-{order.number}.jsonl")  # it ends with this process

        def write(line: bytes) -> None:
            file.write(line)
            said = parse(line)
            if (said["machine"], said["state"], said["next"]) == ("transaction", "preparing", "committing"):
                put(home / f"stood-{said['ids']['checkpoint_id']}.json", {"asked": asked.size})
            moments.line(said)

        job = Coordinator(
            root,
            Launcher(order, fleet, store, asked, striker.reached),
            keeper,
            token=order.token,
            settings=CoordinatorSettings(probe_every_s=1.0, probe_misses=2, renew_every_s=2.0),
            transport=lambda: Heard(FreeListTransport(), answered),
            journal=Journal(write, SystemClock()),
        )
        code, ended = FINISHED, {}
        try:
            ended = await through(order, job, keeper, striker)
        except* (RestartFailed, StartupFailed) as errors:
            code, ended = NOT_STARTED, {"ended": "not started", "why": list(map(str, errors.exceptions))}
        put(home / f"ended-{order.number}.json", ended)
        nursery.cancel_scope.cancel()
    return code


async def through(order: Order, job: Coordinator, keeper: Keeper, striker: Striker) -> dict[str, Any]:
    """All rollouts have ended, the last checkpoint is in force, and the blows were dealt if their moments came."""
    lost: dict[str, str] = {}
    async with job:
        await job.recover()
        ended = trio.Event()

        async def run() -> None:
            new = [Dispatch(name, task, target(order.game)) for name, task in rollouts(order.game).items()]
            report = await job.run_batch(job.runnable(each for each in new if each.rollout_id not in keeper.results))
            lost.update(report.lost)
            ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            while order.every_turns and await more_turns(striker.asked, order.every_turns, ended):
                await job.checkpoint(timeout_s=DEADLINE_S)
        stories: list[str] = []
        for _ in range(TRIES if order.every_turns else 0):
            last = await job.checkpoint(timeout_s=DEADLINE_S)
            stories.append(last.story())
            if isinstance(last, Published) and not striker.blows:
                break
        return {
            "ended": "finished",
            "published": not stories or isinstance(last, Published),
            "stories": stories,
            "results": {name: compared(result) for name, result in keeper.results.items()},
            "lost": lost,
        }


async def more_turns(asked: Asked, number: int, ended: trio.Event) -> bool:
    """So many turns more were begun (True), or all rollouts have ended before that."""
    wanted = asked.turns + number
    while not ended.is_set() and asked.turns < wanted:
        with trio.move_on_after(LOOK_S):
            await ended.wait()
    return not ended.is_set()


def main(argv: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return trio.run(live, structure(parse(Path(argv[0]).read_bytes()), Order))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
