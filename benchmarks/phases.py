"""Time per phase of a checkpoint of R parked rollouts, on real servers, with the real coordinator.

Every rollout stands at a turn (the policy never answers the next one), so nothing waits for work to end: what is
measured is the machinery. Beside it stands one sequential write of the same bytes with one fsync, the least that any
design pays.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import httpx
import trio

from participants.coordination.coordinator import Coordinator, Published
from participants.coordination.trainer import Dispatch, Result
from participants.records.records import Disposition
from participants.serving.launcher import ProcessLauncher, ServerSpec

from .measure import table

TOKEN = "bench"
NAMES = ("policy_model", "tools", "agent", "env")
STOP_AT = 3
TURNS = 5


class NoTrainer:
    """A framework's half of one small file."""

    async def save(self, directory: Path, dispositions: Mapping[str, Disposition]) -> None:
        (directory / "state").write_bytes(b"0")

    async def load(self, directory: Path) -> None:
        (directory / "state").read_bytes()

    async def accept(self, result: Result) -> None:
        raise RuntimeError(f"{result.rollout_id} was to stand still")

    async def consumed(self) -> Set[str]:
        return set()


class KnownServers:
    """A launcher that remembers where its servers are."""

    def __init__(self, launcher: ProcessLauncher) -> None:
        self.launcher = launcher
        self.urls: Mapping[str, str] = {}

    async def start(self, epoch: int) -> Mapping[str, str]:
        self.urls = await self.launcher.start(epoch)
        return self.urls

    async def stop(self) -> None:
        await self.launcher.stop()


async def until_parked(rollouts: int, urls: Mapping[str, str]) -> None:
    """Every rollout waits for the turn that is never answered."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(trust_env=False) as client:
        while True:
            reply = await client.get(urls["policy_model"] + "/ng-control/v1/checkpoint/status", headers=headers)
            agent = await client.get(urls["agent"] + "/ng-control/v1/checkpoint/status", headers=headers)
            waiting = reply.json()["report"]["counts"]["inflight"]
            if waiting == rollouts and agent.json()["report"]["counts"]["at_boundary"] == rollouts:
                return
            await trio.sleep(0.2)


def plain_write(directory: Path, size: int) -> float:
    """Seconds of one sequential write of `size` bytes with one fsync."""
    path = directory / "plain"
    block = b"x" * (1 << 20)
    start = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        left = size
        while left > 0:
            left -= file.write(block[: min(left, len(block))])
        os.fsync(file.fileno())
    seconds = time.perf_counter() - start
    path.unlink()
    return seconds


def size_of(directory: Path) -> tuple[int, int]:
    """(files, bytes) below a directory."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return len(files), sum(path.stat().st_size for path in files)


async def measure(directory: Path, rollouts: int, repeats: int) -> dict[str, Any]:
    """`repeats` checkpoints of `rollouts` parked rollouts, then a kill and a restore."""
    root = directory / f"root-{rollouts}"
    root.mkdir(parents=True)
    env = {"STATECORE_ENABLED": "true", "STATECORE_ROOT": str(root), "BENCH_STOP_AT": str(STOP_AT)}

    def launcher() -> KnownServers:
        specs = [ServerSpec(name, f"benchmarks.servers:{name}", env) for name in NAMES]
        return KnownServers(ProcessLauncher(specs, directory / f"log-{rollouts}", token=TOKEN, lifeline=True))

    servers = launcher()
    outcomes: list[Published] = []
    plain: list[float] = []
    async with Coordinator(root, servers, NoTrainer(), token=TOKEN) as job:
        recovered = await job.recover()
        dispatches = [Dispatch(f"r{index}", {"turns": TURNS}, "env") for index in range(rollouts)]
        batch = recovered.runnable(dispatches)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job.run_batch, batch)
            await until_parked(rollouts, servers.urls)
            for _ in range(repeats):
                outcome = await job.checkpoint(timeout_s=120)
                if not isinstance(outcome, Published):
                    raise RuntimeError(outcome.story())
                outcomes.append(outcome)
                files, size = size_of(root / outcome.checkpoint_id)
                plain.append(plain_write(directory, size))
            nursery.cancel_scope.cancel()
    restoring = launcher()
    start = time.perf_counter()
    async with Coordinator(root, restoring, NoTrainer(), token=TOKEN) as job:
        recovered = await job.recover()
        restore_s = time.perf_counter() - start
        continued = recovered.count(Disposition.CONTINUE)
    names = [phase.name for phase in outcomes[0].phases]
    phases = {name: statistics.median(_seconds(each, name) for each in outcomes) for name in names}
    return {
        "rollouts": rollouts,
        "repeats": repeats,
        "files": files,
        "bytes": size,
        "phases_s": phases,
        "total_s": statistics.median(each.seconds for each in outcomes),
        "plain_write_s": statistics.median(plain),
        "recover_s": restore_s,
        "continued": continued,
    }


def _seconds(outcome: Published, name: str) -> float:
    return sum(phase.seconds for phase in outcome.phases if phase.name == name)


async def run(directory: Path, *, short: bool) -> list[dict[str, Any]]:
    """R = 100 and R = 1,000."""
    sizes = (50, 200) if short else (100, 1000)
    return [await measure(directory, size, 3 if short else 7) for size in sizes]


def show(results: list[dict[str, Any]]) -> str:
    names = list(results[0]["phases_s"])
    header = ["phase (median ms)", *(f"R = {each['rollouts']}" for each in results)]
    rows: list[list[object]] = [[name, *(f"{each['phases_s'][name] * 1e3:.1f}" for each in results)] for name in names]
    rows.append(["whole checkpoint", *(f"{each['total_s'] * 1e3:.1f}" for each in results)])
    rows.append(["one plain write of its bytes", *(f"{each['plain_write_s'] * 1e3:.1f}" for each in results)])
    rows.append(["files", *(each["files"] for each in results)])
    rows.append(["MB", *(f"{each['bytes'] / 1e6:.2f}" for each in results)])
    rows.append(["recover, servers started anew", *(f"{each['recover_s'] * 1e3:.0f}" for each in results)])
    rows.append(["rollouts continued", *(each["continued"] for each in results)])
    return table(header, rows)
