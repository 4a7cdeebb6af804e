"""The checkpoint protocol for Gym servers: participants, coordinator, files. Stands on `statecore`.

What an application embeds and what a trainer drives can be had from here, and is loaded when it is first used: a server
does not load the coordinator, and nothing here loads an extra that it does not need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .coordination.blocking import BlockingCoordinator, BlockingLauncher, BlockingTrainer, Closed
    from .coordination.coordinator import (
        Aborted,
        Batch,
        BatchReport,
        Coordinator,
        CoordinatorError,
        CoordinatorSettings,
        Overtaken,
        Published,
        Recovered,
        Restarted,
        RestartFailed,
    )
    from .coordination.deployment import DiscoveryFailed
    from .coordination.ledger import KnownRollout
    from .coordination.recovery import CheckpointRejected
    from .coordination.stragglers import Stragglers
    from .coordination.trainer import Dispatch, Disposition, HearsOfRestarts, Result, SavesResults, Trainer
    from .files.store import StoreError
    from .servers.agent import Agent
    from .servers.auxiliary_model import AuxiliaryModel
    from .servers.codecs import Codec, CodecError, attrs_codec, check_codec, json_codec
    from .servers.environment import Environment
    from .servers.modes import Mode
    from .servers.policy_model import PolicyModel
    from .servers.resources import Resources, Verify
    from .serving.launcher import Launcher, ProcessLauncher, ServerSpec, StartupFailed
    from .settings import Seams, Settings, SettingsError

_WHERE = {
    "Aborted": "coordination.coordinator",
    "Agent": "servers.agent",
    "AuxiliaryModel": "servers.auxiliary_model",
    "Batch": "coordination.coordinator",
    "BatchReport": "coordination.coordinator",
    "BlockingCoordinator": "coordination.blocking",
    "BlockingLauncher": "coordination.blocking",
    "BlockingTrainer": "coordination.blocking",
    "CheckpointRejected": "coordination.recovery",
    "Closed": "coordination.blocking",
    "Codec": "servers.codecs",
    "CodecError": "servers.codecs",
    "Coordinator": "coordination.coordinator",
    "CoordinatorError": "coordination.coordinator",
    "CoordinatorSettings": "coordination.coordinator",
    "DiscoveryFailed": "coordination.deployment",
    "Dispatch": "coordination.trainer",
    "Disposition": "coordination.trainer",
    "Environment": "servers.environment",
    "HearsOfRestarts": "coordination.trainer",
    "KnownRollout": "coordination.ledger",
    "Launcher": "serving.launcher",
    "Mode": "servers.modes",
    "Overtaken": "coordination.coordinator",
    "PolicyModel": "servers.policy_model",
    "ProcessLauncher": "serving.launcher",
    "Published": "coordination.coordinator",
    "Recovered": "coordination.coordinator",
    "Resources": "servers.resources",
    "RestartFailed": "coordination.coordinator",
    "Restarted": "coordination.coordinator",
    "Result": "coordination.trainer",
    "SavesResults": "coordination.trainer",
    "Seams": "settings",
    "ServerSpec": "serving.launcher",
    "Settings": "settings",
    "SettingsError": "settings",
    "StartupFailed": "serving.launcher",
    "StoreError": "files.store",
    "Stragglers": "coordination.stragglers",
    "Trainer": "coordination.trainer",
    "Verify": "servers.resources",
    "attrs_codec": "servers.codecs",
    "check_codec": "servers.codecs",
    "json_codec": "servers.codecs",
}

__all__ = [
    "Aborted",
    "Agent",
    "AuxiliaryModel",
    "Batch",
    "BatchReport",
    "BlockingCoordinator",
    "BlockingLauncher",
    "BlockingTrainer",
    "CheckpointRejected",
    "Closed",
    "Codec",
    "CodecError",
    "Coordinator",
    "CoordinatorError",
    "CoordinatorSettings",
    "DiscoveryFailed",
    "Dispatch",
    "Disposition",
    "Environment",
    "HearsOfRestarts",
    "KnownRollout",
    "Launcher",
    "Mode",
    "Overtaken",
    "PolicyModel",
    "ProcessLauncher",
    "Published",
    "Recovered",
    "Resources",
    "RestartFailed",
    "Restarted",
    "Result",
    "SavesResults",
    "Seams",
    "ServerSpec",
    "Settings",
    "SettingsError",
    "StartupFailed",
    "StoreError",
    "Stragglers",
    "Trainer",
    "Verify",
    "attrs_codec",
    "check_codec",
    "json_codec",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
