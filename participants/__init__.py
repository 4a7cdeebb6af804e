"""The checkpoint protocol for Gym servers: participants, coordinator, files. Stands on `statecore`.

What an application embeds and what a trainer drives can be had from here, and is loaded when it is first used: a server
does not load the coordinator, and nothing here loads an extra that it does not need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent import Agent
    from .auxiliary_model import AuxiliaryModel
    from .codecs import Codec, attrs_codec, json_codec
    from .coordinator import Aborted, Coordinator, CoordinatorSettings, Published, Recovered
    from .environment import Environment
    from .launcher import Launcher, ProcessLauncher, ServerSpec
    from .modes import Mode
    from .policy_model import PolicyModel
    from .resources import Resources, Verify
    from .settings import Seams, Settings
    from .trainer import Dispatch, Result, SavesResults, Trainer

_WHERE = {
    "Aborted": "coordinator",
    "Agent": "agent",
    "AuxiliaryModel": "auxiliary_model",
    "Codec": "codecs",
    "Coordinator": "coordinator",
    "CoordinatorSettings": "coordinator",
    "Dispatch": "trainer",
    "Environment": "environment",
    "Launcher": "launcher",
    "Mode": "modes",
    "PolicyModel": "policy_model",
    "ProcessLauncher": "launcher",
    "Published": "coordinator",
    "Recovered": "coordinator",
    "Resources": "resources",
    "Result": "trainer",
    "SavesResults": "trainer",
    "Seams": "settings",
    "ServerSpec": "launcher",
    "Settings": "settings",
    "Trainer": "trainer",
    "Verify": "resources",
    "attrs_codec": "codecs",
    "json_codec": "codecs",
}

__all__ = [
    "Aborted",
    "Agent",
    "AuxiliaryModel",
    "Codec",
    "Coordinator",
    "CoordinatorSettings",
    "Dispatch",
    "Environment",
    "Launcher",
    "Mode",
    "PolicyModel",
    "ProcessLauncher",
    "Published",
    "Recovered",
    "Resources",
    "Result",
    "SavesResults",
    "Seams",
    "ServerSpec",
    "Settings",
    "Trainer",
    "Verify",
    "attrs_codec",
    "json_codec",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
