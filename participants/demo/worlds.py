"""Where the demo's servers run: as processes of this machine here, in memory in the tests.

A world makes deployments, and at its end nothing of any of them is running.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

import httpx
import trio
from attrs import define, field

from ..serving.launcher import Launcher, ProcessLauncher, ServerSpec
from ..settings import Seams
from .servers import MODULES, STEPS, factory

CHECKPOINTS: Final = "checkpoints"
LOGS: Final = "logs"


class Deployment(Launcher, Protocol):
    """The servers of one life."""

    def kill(self, *names: str) -> None:
        """As SIGKILL to the servers named, or to all, at once; `stop` clears away what is left."""

    @property
    def transport(self) -> Callable[[], httpx.AsyncBaseTransport] | None:
        """Makes what reaches them; None for the network."""

    def told(self) -> str:
        """Who they are, for people."""


class World(Protocol):
    """`token` is the control token of all deployments."""

    seams: Seams
    token: str

    def deployment(self, home: Path) -> Deployment:
        """Servers that are not started yet; plan, checkpoints and journals are below `home`."""

    async def end(self) -> None:
        """Nothing of any deployment is running."""


class Processes(ProcessLauncher):
    """A deployment of processes; they end with the process that started them."""

    transport: Callable[[], httpx.AsyncBaseTransport] | None = None

    def told(self) -> str:
        return f"{len(self.pids)} processes, pids {' '.join(map(str, self.pids.values()))}"


@define(eq=False)
class ProcessWorld:
    """Servers as processes on free ports of this machine."""

    seams: Seams = field(factory=Seams)
    token: str = field(init=False)
    environment: Mapping[str, str] | None = None
    _deployments: list[Processes] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.token = self.seams.entropy.token_hex(16)

    def deployment(self, home: Path) -> Processes:
        env = {
            "STATECORE_ENABLED": "true",
            "STATECORE_ROOT": str(home / CHECKPOINTS),
            "STATECORE_JOURNAL": str(home / STEPS),
        }
        specs = [ServerSpec(name, factory(name), env) for name in MODULES]
        made = Processes(specs, home / LOGS, token=self.token, environment=self.environment, lifeline=True)
        self._deployments.append(made)
        return made

    async def end(self) -> None:
        with trio.CancelScope(shield=True):
            for each in self._deployments:
                each.kill()
                await each.stop()
