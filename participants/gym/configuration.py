"""Gym's global configuration: which servers it has, of which kind, and what is said of each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

KINDS: Final = ("responses_api_models", "resources_servers", "responses_api_agents", "environment_servers")
"""Kinds of servers as a configuration names them, those that are called before those that call."""


def servers_in(config: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Any]]:
    """Name, kind, implementation and settings of each server; a name comes twice if it is declared twice over."""
    for name, entry in config.items():
        for kind in KINDS:
            implementations = entry.get(kind) if isinstance(entry, Mapping) else None
            for implementation, said in implementations.items() if isinstance(implementations, Mapping) else ():
                yield name, kind, implementation, said
