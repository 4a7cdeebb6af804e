"""`statecore gym`: what this package does with real NeMo Gym servers.

`statecore gym serve COMPONENT` runs one server as Gym's own launcher would, embedded: the whole configuration is in
NEMO_GYM_CONFIG_DICT and the server's name in NEMO_GYM_CONFIG_PATH.
"""

from __future__ import annotations

import argparse
import importlib
from types import ModuleType
from typing import Any

from statecore import DefinitionError
from statecore.cli import UsageError

from ..settings import SettingsError
from .collect import add_collect
from .demo import add_demo
from .embedding import checkpointable, kind_of


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("gym", help="real NeMo Gym servers, made checkpointable")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    serve = commands.add_parser(
        "serve",
        help="run one component of NeMo Gym, as its own app.py does, with checkpoints if they are switched on",
        description="Runs one component of NeMo Gym. Gym's configuration is taken from NEMO_GYM_CONFIG_DICT and "
        "NEMO_GYM_CONFIG_PATH, as its app.py takes it; checkpoints are switched on by the section `checkpoint` of that "
        "configuration or by STATECORE_ENABLED.",
    )
    serve.add_argument(
        "component",
        help="resources_servers/blackjack, or module:Class for a server of your own; checkpointable already or not",
    )
    serve.set_defaults(run=run_serve)
    add_collect(commands)
    add_demo(commands)


def run_serve(args: argparse.Namespace) -> int:
    """The server ran until it was stopped."""
    try:
        cls: Any = server_class(args.component)
        embedded = cls if getattr(cls, "__statecore__", False) else checkpointable(cls)
        embedded.run_webserver()
    except (DefinitionError, SettingsError) as error:
        raise UsageError(str(error)) from error
    return 0


def server_class(component: str) -> type[Any]:
    """The server class that a component names: its folder, or ``module:Class``; UsageError if it names none."""
    module_name, colon, class_name = component.partition(":")
    if not colon:
        module_name = module_name.strip("/").replace("/", ".") + ".app"
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(f"{component}: {error}") from error
    if colon:
        found = getattr(module, class_name, None)
        if not isinstance(found, type):
            raise UsageError(f"{component}: {module_name} has no class {class_name!r}")
        return found
    last = last_of(module)
    if len(last) != 1:
        names = ", ".join(each.__name__ for each in last) or "none"
        raise UsageError(f"{component}: {module_name} has {len(last)} server classes ({names}): name module:Class")
    return last[0]


def last_of(module: ModuleType) -> list[type[Any]]:
    """The server classes that a module defines and derives no other one from."""
    classes = [each for each in vars(module).values() if isinstance(each, type)]
    servers = [each for each in classes if _is_server_of(each, module.__name__)]
    return [each for each in servers if not any(other is not each and issubclass(other, each) for other in servers)]


def _is_server_of(cls: type[Any], module_name: str) -> bool:
    if cls.__module__ != module_name:
        return False
    try:
        kind_of(cls)
    except DefinitionError:
        return False
    return True
