"""What checkpoints cost on real Gym servers: ``python -m gym_tests.bench`` prints tables; nothing here is asserted.

Overhead: 32 rollouts at once on two fleets of the same servers, one with checkpoints switched on and one with them
switched off, batch by batch in turns; ratios are formed pair by pair. Standstill: checkpoints of 32 rollouts that are
under way, from the call to all parked, and from the call to all going on.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from benchmarks.measure import median_interval, table
from participants import Coordinator, Dispatch, Published
from participants.gym.demo import GAMES, config_of, task_of
from participants.gym.fleet import gym_launcher
from participants.gym.upstream import Model, scripted, spec
from participants.net.client import ControlClient, make_client
from participants.serving.launcher import ProcessLauncher
from statecore.seams import SystemClock, SystemEntropy

from .job import Keeper

TOKEN = "bench"
GAME = GAMES[0]
PARKED = ("freeze", "prepare")


def task(number: int) -> dict[str, Any]:
    return task_of(GAME, number, planned=True)


def turns(number: int) -> int:
    """How many turns of the policy rollout `number` takes: its calls, and its last word."""
    assert scripted({"input": []})["output"][0]["type"] == "message"
    return len(GAME.calls(number)) + 1


class Fleet:
    """Model, tools and agent of the counter, with checkpoints on or off."""

    def __init__(self, folder: Path, url: str, *, on: bool) -> None:
        self.on = on
        root = folder / ("on" if on else "off")
        root.mkdir()
        config = config_of(url, "scripted", "none", GAMES[:1])
        environment = {"STATECORE_ENABLED": str(on).lower()}
        self.launcher = gym_launcher(config, root, root / "logs", token=TOKEN, environment=environment)
        self.urls: Mapping[str, str] = {}
        self.batches = 0
        self.client = make_client()

    async def start(self) -> None:
        self.urls = await self.launcher.start(1)
        for name, url in self.urls.items() if self.on else ():
            clock = SystemClock()
            control = ControlClient(
                self.client, url, TOKEN, name=name, clock=clock, entropy=SystemEntropy(), epoch=1
            )
            await control.call("resume", {"checkpoint_id": "rs-000001-000001"}, clock.time() + 30)

    async def batch(self, rollouts: int) -> float:
        """Milliseconds per turn, over rollouts that run at once."""
        self.batches += 1
        spent: list[float] = []

        async def one(number: int) -> None:
            body = {**task(number), "_ng_rollout_id": f"{number}-{self.batches}", "_ng_attempt_index": 0}
            began = trio.current_time()
            reply = await self.client.post(f"{self.urls['counter_agent']}/run", json=body)
            spent.append((trio.current_time() - began) / turns(number))
            assert reply.status_code == 200 and reply.json()["reward"] == 1.0, reply.text

        async with trio.open_nursery() as nursery:
            for number in range(rollouts):
                nursery.start_soon(one, number)
        return 1000 * sum(spent) / len(spent)

    async def stop(self) -> None:
        await self.client.aclose()
        await self.launcher.stop()


async def overhead(folder: Path, url: str, rollouts: int, rounds: int) -> list[list[str]]:
    on, off = Fleet(folder, url, on=True), Fleet(folder, url, on=False)
    try:
        for fleet in (on, off):
            await fleet.start()
            await fleet.batch(rollouts)  # connections, imports, caches
        pairs = []
        for number in range(rounds):
            first, second = (on, off) if number % 2 else (off, on)
            one, other = await first.batch(rollouts), await second.batch(rollouts)
            pairs.append((one, other) if first is on else (other, one))
    finally:
        for fleet in (on, off):
            await fleet.stop()
    ratio, low, high = median_interval([a / b for a, b in pairs])
    with_ms, without_ms = median_interval([a for a, _ in pairs])[0], median_interval([b for _, b in pairs])[0]
    added = f"{100 * (ratio - 1):+.1f} % ({100 * (low - 1):+.1f} to {100 * (high - 1):+.1f})"
    return [[f"{without_ms:.0f} ms", f"{with_ms:.0f} ms", added, str(rounds)]]


async def standstill(folder: Path, url: str, rollouts: int, checkpoints: int) -> list[list[str]]:
    root = folder / "job"
    root.mkdir()
    launcher = gym_launcher(config_of(url, "scripted", "none", GAMES[:1]), root, root / "logs", token=TOKEN)
    done: list[Published] = []
    async with Coordinator(root, launcher, Keeper(), token=TOKEN) as job:
        await job.recover()
        async with trio.open_nursery() as nursery:

            async def feed(lane: int) -> None:
                for number in range(1_000_000):
                    one = Dispatch(f"{lane}-{number}", task(lane), "counter_agent")
                    await job.run_batch(job.runnable([one]))

            for lane in range(rollouts):
                nursery.start_soon(feed, lane)
            await trio.sleep(2.0)
            for _ in range(checkpoints):
                outcome = await job.checkpoint()
                assert isinstance(outcome, Published), outcome.story()
                done.append(outcome)
                await trio.sleep(1.0)
            nursery.cancel_scope.cancel()
    parked = [sum(each.seconds for each in outcome.phases if each.name in PARKED) for outcome in done]
    still = [outcome.seconds for outcome in done]
    return [[_seconds(parked), _seconds(still), str(checkpoints)]]


def _seconds(values: Sequence[float]) -> str:
    return f"{median_interval(values)[0]:.2f} s (to {max(values):.2f} s)"


async def measure(folder: Path, args: argparse.Namespace) -> None:
    for delay_s in args.delay:
        place = folder / f"{delay_s:g}"
        place.mkdir()
        told = Model(log=str(place / "model.jsonl"), delay_s=delay_s)
        model = ProcessLauncher([spec(told)], place / "model", lifeline=True)
        url = f"{(await model.start(1))['model']}/v1"
        try:
            print(f"\nmodel {1000 * delay_s:g} ms a turn, {args.rollouts} rollouts at once")
            rows = await overhead(place, url, args.rollouts, args.rounds)
            print(table(["a turn, off", "on", "added", "pairs"], rows))
            rows = await standstill(place, url, args.rollouts, args.checkpoints)
            print(table(["call to all parked", "call to all going on", "checkpoints"], rows), flush=True)
        finally:
            await model.stop()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gym_tests.bench")
    parser.add_argument("--rollouts", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--checkpoints", type=int, default=10)
    parser.add_argument("--delay", type=float, nargs="*", default=[1.0, 0.0], help="of the model, in seconds")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="gym-bench-") as folder:
        trio.run(measure, Path(folder), args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
