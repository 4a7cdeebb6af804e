"""The conformance suite against servers of every kind on real sockets: `make conform`.

The servers are those of the tests in memory, each served by hypercorn on a port of its own, on the machine's clock and
disk. One line each; exit code 1 if one does not conform, or if anything was not tried.
"""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from attrs import define, field

from participants.commands.console import show
from participants.conformance import Report, Rules, conform
from participants.conformance.report import summary, tell
from participants.net.http import ASGIApp
from participants.serving.serve import serve
from participants.settings import Seams
from statecore.seams import SystemClock, SystemDisk
from tests.conform_kinds import KINDS, Looping
from tests.small_job import settings

REAL = Rules(moment_s=0.1, lease_s=0.5, max_wait_s=10.0)


@define(eq=False)
class Sockets:
    """What a driver's fleet is, on real sockets; also its own `network`: a server of a name is replaced by the next."""

    root: Path
    nursery: trio.Nursery
    clock: SystemClock = field(factory=SystemClock)
    disk: SystemDisk = field(factory=SystemDisk)
    life: int = 0
    _ports: dict[str, int] = field(factory=dict)
    _stops: dict[str, tuple[trio.Event, trio.Event]] = field(factory=dict)

    @property
    def network(self) -> Sockets:
        return self

    def url(self, name: str) -> str:
        """An address that stays that of the name."""
        if name not in self._ports:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self._ports[name] = free.getsockname()[1]
        return f"http://127.0.0.1:{self._ports[name]}"

    def transport(self, _source: str) -> None:
        """That of its own which each client makes."""

    def seams(self, _name: str) -> Seams:
        return Seams(clock=self.clock, disk=self.disk)

    def config(self, *servers: str, **changes: Any) -> Any:
        urls = {name: self.url(name) for name in servers}
        return settings(servers=urls, root=self.root, lease_grace_seconds=1.0, **changes)

    async def start(self, name: str, app: ASGIApp) -> None:
        await self.restart(name, app)

    async def restart(self, name: str, app: ASGIApp) -> None:
        if name in self._stops:
            stop, stopped = self._stops[name]
            stop.set()
            await stopped.wait()
        stop, stopped = self._stops[name] = trio.Event(), trio.Event()

        async def run(task_status: trio.TaskStatus[str]) -> None:
            port = int(self.url(name).rpartition(":")[2])
            await serve(app, port=port, shutdown=stop, graceful_timeout_s=0.1, name=name, task_status=task_status)
            stopped.set()

        await self.nursery.start(run)

    def stop(self) -> None:
        for stop, _ in self._stops.values():
            stop.set()


@asynccontextmanager
async def sockets() -> AsyncIterator[Sockets]:
    with tempfile.TemporaryDirectory() as folder:
        root = SystemDisk().resolve(folder)
        async with trio.open_nursery() as nursery:
            made = Sockets(root, nursery)
            yield made
            made.stop()


async def served(kind: str, *only: str) -> Report:
    """What comes of a server of that kind on a real socket."""
    found: list[Report] = []
    async with sockets() as fleet:
        name, cls = KINDS[kind]
        made: Any = cls(fleet, name, root=fleet.root)  # type: ignore[arg-type]
        if isinstance(made, Looping):
            await made.others()
        await made.up()
        found.append(await conform(made.target(), made, rules=REAL, only=only))
    return found[0]


def main(*only: str) -> int:
    worst = 0
    for kind in KINDS:
        began = SystemClock().monotonic()
        report = trio.run(served, kind, *only)
        print(f"{summary(report)} ({SystemClock().monotonic() - began:.1f} s)", flush=True)
        if report.untried or report.failed:
            show(tell(report), plain=True)
            worst = 1
    return worst


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
