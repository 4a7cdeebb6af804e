"""A pytest plugin: every server class of a Gym component that is imported from here on is its embedded subclass."""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from participants.gym.command import last_of
from participants.gym.embedding import checkpointable

KINDS = ("resources_servers.", "responses_api_agents.", "responses_api_models.", "environment_servers.")


class _Embedding(Loader):
    """Loads a component's module as it is, and then puts embedded classes in place of the ones it defines."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self.inner.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self.inner.exec_module(module)
        for cls in last_of(module):
            setattr(module, cls.__name__, checkpointable(cls))


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not (name.startswith(KINDS) and name.endswith(".app")):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Embedding(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
