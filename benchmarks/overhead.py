"""Overhead per turn with no checkpoint going on: checkpointing on, switched off, and the bare loop, interleaved.

*Off* is the same application with checkpointing switched off. *Bare* is the loop as somebody would write it who has no
checkpoints: plain Starlette handlers, and httpx's client over the same connections.
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
KINDS = ("on", "off", "bare")


@frozen
class Figure:
    """Microseconds per turn of one batch: wall, and CPU of the three servers together."""

    wall_us: float
    cpu_us: float


class Fleet:
    """Three server processes: with checkpointing `on`, `off`, or `bare`."""

    def __init__(self, directory: Path, *, kind: str) -> None:
        self.kind = kind
        self.enabled = kind == "on"
        env = {"STATECORE_ENABLED": str(self.enabled).lower(), "STATECORE_ROOT": str(directory)}
        prefix = "plain_" if kind == "bare" else ""
        specs = [ServerSpec(name, f"benchmarks.servers:{prefix}{name}", env) for name in NAMES]
        self.launcher = ProcessLauncher(specs, directory / kind, token=TOKEN, lifeline=True)
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

    async def _tidy(self, rollout_ids: list[str]) -> None:
        """What a coordinator does after a checkpoint: results are acknowledged, rollouts ended and forgotten."""
        clock = SystemClock()
        async with make_client() as client:
            for name, url in self.urls.items():
                control = ControlClient(
                    client, url, TOKEN, name=name, clock=clock, entropy=SystemEntropy(), epoch=EPOCH
                )
                if name == "agent":
                    await control.acknowledge((await control.results())["receipts"])
                episodes = [{"rollout_id": each} for each in rollout_ids]
                common = {"checkpoint_id": "rs-000001-000001"}
                await control.call("retire", common | {"episode_ids": episodes}, clock.time() + 30)
                await control.call("forget", common | {"rollout_ids": rollout_ids}, clock.time() + 30)

    async def batch(self, rollouts: int, turns: int) -> Figure:
        """`rollouts` rollouts of `turns` turns at once; what is left of them is cleared away, untimed."""
        self.batches += 1
        names = [f"b{self.batches}-{index}" for index in range(rollouts)]
        cpu, wall = cpu_seconds(self.launcher.pids.values()), time.perf_counter()
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(self._run, name, turns)
        wall, cpu = time.perf_counter() - wall, cpu_seconds(self.launcher.pids.values()) - cpu
        if self.enabled:
            await self._tidy(names)
        return Figure(wall / (rollouts * turns) * 1e6, cpu / (rollouts * turns) * 1e6)

    async def _run(self, rollout_id: str, turns: int) -> None:
        body = {"episode_id": {"rollout_id": rollout_id}, "task": {"turns": turns, "seed": True}}
        reply = await self.client.post(self.urls["agent"] + "/run", json=body)
        if reply.status_code != 200 or reply.json() != {"turns": turns}:
            raise RuntimeError(f"{rollout_id} answered {reply.status_code}: {reply.text}")


async def compare(directory: Path, *, rollouts: int, turns: int, rounds: int) -> dict[str, Any]:
    """Ratios on/off and on/bare of wall and CPU per turn, with the medians behind them."""
    fleets = [Fleet(directory, kind=kind) for kind in KINDS]
    figures: list[dict[str, Figure]] = []
    try:
        for fleet in fleets:
            await fleet.start()
        for fleet in fleets:
            await fleet.batch(rollouts, max(2, turns // 4))  # connections and caches
        for index in range(rounds):
            shift = index % len(fleets)
            order = fleets[shift:] + fleets[:shift]
            figures.append({fleet.kind: await fleet.batch(rollouts, turns) for fleet in order})
    finally:
        with trio.CancelScope(shield=True):
            for fleet in fleets:
                await fleet.launcher.stop()
                await fleet.client.aclose()
    result: dict[str, Any] = {"rollouts": rollouts, "turns": turns, "rounds": rounds}
    for name in ("wall_us", "cpu_us"):
        found = {kind: [getattr(each[kind], name) for each in figures] for kind in KINDS}
        result[name] = {kind: median_interval(found[kind]) for kind in KINDS} | {
            f"on/{kind}": median_interval([a / b for a, b in zip(found["on"], found[kind], strict=True)])
            for kind in ("off", "bare")
        }
    return result


async def run(directory: Path, *, short: bool) -> list[dict[str, Any]]:
    """Both sizes: one rollout at a time, and 32 at once."""
    rounds = 3 if short else 15
    sizes = ((1, 100 if short else 400), (32, 8 if short else 30))
    return [await compare(directory, rollouts=r, turns=t, rounds=rounds) for r, t in sizes]


def show(results: list[dict[str, Any]]) -> str:
    rows = []
    for each in results:
        for name in ("wall_us", "cpu_us"):
            figures = each[name]
            row = [f"{each['rollouts']} rollouts, {name[:-3]}", *(f"{figures[kind][0]:.0f}" for kind in KINDS)]
            for kind in ("off", "bare"):
                ratio, low, high = (100 * (value - 1) for value in figures[f"on/{kind}"])
                row.append(f"{ratio:+.1f} % ({low:+.1f} .. {high:+.1f})")
            rows.append(row)
    header = ("us per turn", *KINDS, "on against off (95 %)", "on against bare (95 %)")
    return table(header, rows)
