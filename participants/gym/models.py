"""Gym's model servers as participants: the policy, and those that judge.

Both are shown the paths as they were sent, since Gym files what it captures by the rollout in them. The policy is the
one that agents call; a server that no agent of the configuration names is a judge or a simulator, and is never closed:
a verification that waits for it would keep a checkpoint from getting ready (S1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..net.http import ASGIApp
from ..servers.asgi import Shell
from ..servers.auxiliary_model import AuxiliaryModel
from ..servers.policy_model import PolicyModel
from .inner import AsSent, PathKept


class GymPolicy(PolicyModel):
    """The participant around the model server that agents call."""

    def wrap(self, app: ASGIApp) -> ASGIApp:
        return PathKept(Shell(self, AsSent(app))) if self.settings.enabled else app


class GymAuxiliary(AuxiliaryModel):
    """What is around every other model server: it says its role, and is served always."""

    def wrap(self, app: ASGIApp) -> ASGIApp:
        return PathKept(Shell(self, AsSent(app))) if self.settings.enabled else app


def is_policy(name: str, config: Mapping[str, Any]) -> bool:
    """Whether agents of Gym's global configuration call this model server; so it is where it has no agents at all."""
    called = set(_called_by_agents(config))
    return not called or name in called


def _called_by_agents(config: Mapping[str, Any]) -> Iterator[str]:
    for entry in config.values():
        agents = entry.get("responses_api_agents") if isinstance(entry, Mapping) else None
        for agent in agents.values() if isinstance(agents, Mapping) else ():
            model = agent.get("model_server") if isinstance(agent, Mapping) else None
            if isinstance(model, Mapping) and isinstance(model.get("name"), str):
                yield model["name"]
