"""The demo's five servers: policy model, judge, agent, game (Gymnasium) and environment; each writes its own journal.

Each has a module of its own, so that a process imports only what it serves. A function with a `Place` makes the
application, also for servers in memory; the one without is the factory of the process: its settings come from the
environment, and the plan lies beside the checkpoint root.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import httpx
from attrs import frozen

from ..net.http import ASGIApp
from ..settings import Seams, Settings, SettingsError
from .lines import ServerJournal
from .plan import Plan, read_plan

CHAT_PATH: Final = "/v1/chat/completions"
JOURNALS: Final = "journals"
STEPS: Final = "steps"
"""Where the processes write down the steps of their machines."""
MODULES: Final[Mapping[str, str]] = {
    "policy": "model_servers",
    "judge": "model_servers",
    "agent": "agent_server",
    "game": "game_server",
    "environment": "environment_server",
}
"""The servers by name, as the launcher and the servers' clients know them, and the module that has each."""


@frozen(kw_only=True)
class Place:
    """What a server of the demo is made of."""

    plan: Plan
    settings: Settings
    seams: Seams
    journals: Path
    transport: httpx.AsyncBaseTransport | None = None

    def journal(self, server: str) -> ServerJournal:
        return ServerJournal(self.seams.disk, self.journals, server, self.settings.epoch, self.seams.clock)


def factory(name: str) -> str:
    """What the launcher gives the process of this server."""
    return f"{__package__}.{MODULES[name]}:{name}"


def app(name: str, place: Place) -> ASGIApp:
    """The application of this server; with the fault of the plan, if it has one that is this server's."""
    if place.plan.fault:
        from .broken_servers import BROKEN

        broken = BROKEN.get((place.plan.fault, name))
        if broken is not None:
            return broken(place)
    module = importlib.import_module(f".{MODULES[name]}", __package__)
    made: ASGIApp = getattr(module, f"{name}_app")(place)
    return made


def process_place() -> Place:
    """The place of this process; SettingsError when `statecore demo` has not started it."""
    settings = Settings.from_env()
    if settings.root is None:
        raise SettingsError("a server of the demo needs STATECORE_ROOT; `statecore demo` starts it")
    seams = Seams()
    home = settings.root.parent
    return Place(plan=read_plan(seams.disk, home), settings=settings, seams=seams, journals=home / JOURNALS)
