"""Overhead per turn with no checkpoint going on: the same servers with checkpointing on and off, in interleaved pairs.

A turn is a POST to the policy model (no thinking time) and a POST to a tool, with agent, tool and policy in a process
each on hypercorn's trio worker. Ratios are formed pair by pair, so a machine whose speed drifts does not matter.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio
from attrs import frozen

from participants.net.client import ControlClient, make_client
from participants.serving.launcher import ProcessLauncher, ServerSpec
from statecore.seams import SystemClock, SystemEntropy

from .measure import cpu_seconds, median_interval, table

TOKEN = "bench"
NAMES = ("policy_model", "tools", "agent")
EPOCH = 1


@frozen
class Figure:
    """Microseconds per turn of one batch: wall, and CPU of the three servers together."""

    wall_us: float
    cpu_us: float


class Fleet:
    """Three server processes, with checkpointing on or off."""

    def __init__(self, directory: Path, *, enabled: bool) -> None:
        self.enabled = enabled
        env = {"STATECORE_ENABLED": str(enabled).lower(), "STATECORE_ROOT": str(directory)}
        specs = [ServerSpec(name, f"benchmarks.servers:{name}", env) for name in NAMES]
        self.launcher = ProcessLauncher(specs, directory / ("on" if enabled else "off"), token=TOKEN, lifeline=True)
        self.urls: Mapping[str, str] = {}
        self.batches = 0
        self.client = make_client()

    async def start(self) -> None:
        self.urls = await self.launcher.start(EPOCH)
        if not self.enabled:
            return
        clock = SystemClock()
        async with make_client() as client:
            for name, url in self.urls.items():
                control = ControlClient(
                    client, url, TOKEN, name=name, clock=clock, entropy=SystemEntropy(), epoch=EPOCH
                )
                await control.call("resume", {"checkpoint_id": "rs-000001-000001"}, clock.time() + 30)

    async def batch(self, rollouts: int, turns: int) -> Figure:
        """`rollouts` rollouts of `turns` turns at once."""
        self.batches += 1
        cpu, wall = cpu_seconds(self.launcher.pids.values()), time.perf_counter()
        async with trio.open_nursery() as nursery:
            for index in range(rollouts):
                nursery.start_soon(self._run, f"b{self.batches}-{index}", turns)
        wall, cpu = time.perf_counter() - wall, cpu_seconds(self.launcher.pids.values()) - cpu
        return Figure(wall / (rollouts * turns) * 1e6, cpu / (rollouts * turns) * 1e6)

    async def _run(self, rollout_id: str, turns: int) -> None:
        body = {"episode_id": {"rollout_id": rollout_id}, "task": {"turns": turns, "seed": True}}
        reply = await self.client.post(self.urls["agent"] + "/run", json=body)
        if reply.status_code != 200 or reply.json() != {"turns": turns}:
            raise RuntimeError(f"{rollout_id} answered {reply.status_code}: {reply.text}")


async def compare(directory: Path, *, rollouts: int, turns: int, pairs: int) -> dict[str, Any]:
    """Ratios on/off of wall and CPU per turn, with the medians behind them."""
    on, off = Fleet(directory, enabled=True), Fleet(directory, enabled=False)
    figures: list[tuple[Figure, Figure]] = []
    try:
        await on.start()
        await off.start()
        for fleet in (on, off):
            await fleet.batch(rollouts, max(2, turns // 4))  # connections and caches
        for index in range(pairs):
            order = (on, off) if index % 2 == 0 else (off, on)
            found = {fleet.enabled: await fleet.batch(rollouts, turns) for fleet in order}
            figures.append((found[True], found[False]))
    finally:
        with trio.CancelScope(shield=True):
            for fleet in (on, off):
                await fleet.launcher.stop()
                await fleet.client.aclose()
    result: dict[str, Any] = {"rollouts": rollouts, "turns": turns, "pairs": pairs}
    for name in ("wall_us", "cpu_us"):
        ratios = [getattr(a, name) / getattr(b, name) for a, b in figures]
        added = [getattr(a, name) - getattr(b, name) for a, b in figures]
        result[name] = {
            "off": median_interval([getattr(b, name) for _, b in figures]),
            "ratio": median_interval(ratios),
            "added": median_interval(added),
        }
    return result


async def run(directory: Path, *, short: bool) -> list[dict[str, Any]]:
    """Both sizes: one rollout at a time, and 32 at once."""
    pairs = 3 if short else 15
    sizes = ((1, 100 if short else 400), (32, 8 if short else 30))
    return [await compare(directory, rollouts=r, turns=t, pairs=pairs) for r, t in sizes]


def show(results: list[dict[str, Any]]) -> str:
    rows = []
    for each in results:
        for name in ("wall_us", "cpu_us"):
            ratio, low, high = each[name]["ratio"]
            rows.append(
                (
                    f"{each['rollouts']} rollouts, {name[:-3]}",
                    f"{each[name]['off'][0]:.0f}",
                    f"{each[name]['added'][0]:+.0f}",
                    f"{(ratio - 1) * 100:+.1f} %",
                    f"{(low - 1) * 100:+.1f} .. {(high - 1) * 100:+.1f} %",
                    each["pairs"],
                )
            )
    header = ("per turn", "off us", "added us", "median of ratios", "95 % interval", "pairs")
    return table(header, rows)
