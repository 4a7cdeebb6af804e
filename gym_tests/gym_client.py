"""Gym's client for a server that is made in this process and calls nobody."""

from __future__ import annotations

import importlib
from typing import Any


def gym_client() -> Any:
    """A client whose configuration is empty."""
    gym: Any = importlib.import_module("nemo_gym.server_utils")
    omegaconf: Any = importlib.import_module("omegaconf")
    head = gym.BaseServerConfig(host="127.0.0.1", port=1)
    return gym.ServerClient(head_server_config=head, global_config_dict=omegaconf.OmegaConf.create({}))
