"""A fleet of Gym servers from a Gym configuration: what there is to start, and the launcher that starts it.

The configuration is read by Gym's own parser, as its command line does: files, what they include, and overrides. Every
server in it becomes a process, embedded, at an address that the launcher reserves; the addresses in the configuration
are not used. The head server is not started: nothing here asks it. Nor are environment servers that only relay `/run`
to an agent (`legacy_agent`, which Gym itself adds for agents that have none): rollouts go to the agent.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from statecore.errors import StatecoreError

from ..serving.launcher import ProcessLauncher, ServerSpec
from .configuration import KINDS, servers_in

CONFIG_VARIABLE: Final = "NEMO_GYM_CONFIG_DICT"
DRIVING: Final = frozenset({"responses_api_agents", "environment_servers"})
"""Kinds that answer `/run`."""
RELAY: Final = "legacy_agent"
PROCESS: Final = "participants.gym.process"
READY_TIMEOUT_S: Final = 180.0
"""Gym's imports take seconds, and all servers of a fleet import at once."""
STOP_TIMEOUT_S: Final = 5.0


class ConfigError(StatecoreError):
    """The configuration cannot be run; the message says what is wrong with it. Nothing was started."""


@frozen
class GymServer:
    """A server of a configuration. `component` is what `statecore gym serve` takes."""

    name: str
    kind: str
    component: str


def read_config(paths: Sequence[Path | str], overrides: Iterable[str] = ()) -> dict[str, Any]:
    """The configuration that these files make with `overrides` (``a.b.c=value``), as plain values.

    Raises ConfigError for what Gym's parser refuses.
    """
    omegaconf: Any = importlib.import_module("omegaconf")
    gym: Any = importlib.import_module("nemo_gym.global_config")
    container = omegaconf.OmegaConf
    try:
        given = container.merge(
            container.create({"config_paths": [str(path) for path in paths]}), container.from_dotlist(list(overrides))
        )
        parsed = gym.GlobalConfigDictParser().parse_no_environment(given)
        found: dict[str, Any] = container.to_container(parsed, resolve=True)
    except Exception as error:  # the parser's own errors have no common base but this one
        raise ConfigError(f"{type(error).__name__}: {str(error).strip()}") from error
    return found


def servers_of(config: Mapping[str, Any], classes: Mapping[str, str] | None = None) -> tuple[GymServer, ...]:
    """The servers to start, those that are called first. `classes` names a server's own class, by name.

    Raises ConfigError when there is none, when one is declared twice over, and for a class of one that is not there.
    """
    classes = dict(classes or {})
    found: list[GymServer] = []
    names: set[str] = set()
    for name, kind, implementation, _ in servers_in(config):
        if name in names:
            raise ConfigError(f"{name} is more than one server: {kind}/{implementation} is another")
        names.add(name)
        if implementation != RELAY:
            found.append(GymServer(name, kind, classes.pop(name, f"{kind}/{implementation}")))
    if classes:
        raise ConfigError(f"a class is given for {', '.join(sorted(classes))}, which is no server of the configuration")
    if not found:
        raise ConfigError(f"there is no server in it: nothing has one of {', '.join(KINDS)}")
    return tuple(sorted(found, key=lambda each: KINDS.index(each.kind)))


def relays_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The environment servers that only relay to an agent, and which agent each relays to."""
    return {
        name: said["agent_server"]["name"]
        for name, _, implementation, said in servers_in(config)
        if implementation == RELAY
    }


def addressed(config: Mapping[str, Any], urls: Mapping[str, str]) -> dict[str, Any]:
    """The configuration with these servers at these addresses (``http://host:port``)."""
    placed = dict(config)
    for name, url in urls.items():
        host, _, port = url.removeprefix("http://").rpartition(":")
        ((kind, implementations),) = ((kind, config[name][kind]) for kind in KINDS if kind in config[name])
        at = {"host": host.strip("[]"), "port": int(port)}
        placed[name] = {**config[name], kind: {impl: {**each, **at} for impl, each in implementations.items()}}
    return placed


def gym_launcher(
    config: Mapping[str, Any],
    root: Path,
    log_dir: Path,
    *,
    token: str,
    classes: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    lease_grace_s: float | None = None,
) -> ProcessLauncher:
    """A launcher for all servers of `config`, with checkpointing on; they end when this process does.

    `root` is the root of the checkpoints. What `environment` has is put over the environment of this process. Raises
    ConfigError as `servers_of` does.
    """
    own = {
        CONFIG_VARIABLE: json.dumps(config),
        "PYTHONUNBUFFERED": "1",
        "STATECORE_ENABLED": "true",
        "STATECORE_ROOT": str(root),
        **({} if lease_grace_s is None else {"STATECORE_LEASE_GRACE_SECONDS": str(lease_grace_s)}),
        **(environment or {}),
    }
    specs = [ServerSpec(each.name, each.component, own, PROCESS) for each in servers_of(config, classes)]
    return ProcessLauncher(
        specs,
        log_dir,
        token=token,
        ready_timeout_s=READY_TIMEOUT_S,
        stop_timeout_s=STOP_TIMEOUT_S,
        lifeline=True,
    )
