"""`statecore gym collect`: rollouts on a fleet of Gym servers, each result once in a file, through any crash.

The servers are those of a Gym configuration; the rest is `participants.collecting`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from statecore.cli import UsageError
from statecore.seams import SystemEntropy

from ..collecting import command as collecting
from ..settings import control_token
from .fleet import DRIVING, ConfigError, GymServer, gym_launcher, read_config, relays_of, servers_of

TOKEN_BYTES: Final = 16

DESCRIPTION: Final = """\
Starts the servers of a Gym configuration, runs each task of a file on them, and writes each result once. Checkpoints
are taken on a timer, on SIGUSR1 (and on), and on SIGTERM or Ctrl-C (and stop). After a crash or a stop the same command
goes on from the last one: finished turns are not paid for again, and what is written stays."""


def add_collect(commands: Any) -> None:
    """The command is known to the parser."""
    parser = commands.add_parser(
        "collect",
        help="collect rollouts from a file of tasks, with checkpoints",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_fleet(parser)
    collecting.add_arguments(parser)
    parser.set_defaults(run=run_collect)


def add_fleet(parser: argparse.ArgumentParser) -> None:
    """Which servers there are."""
    parser.add_argument(
        "--config", action="append", default=[], metavar="FILE", help="a Gym configuration; may be given several times"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="put over the configuration"
    )
    parser.add_argument(
        "--class",
        action="append",
        default=[],
        metavar="NAME=MODULE:CLASS",
        dest="classes",
        help="the class of one of its servers, made checkpointable by you (docs/reference/gym-embedding.md)",
    )
    parser.add_argument("--logs", type=Path, metavar="DIR", help="of the servers (default: logs/ in --checkpoints)")


def run_collect(args: argparse.Namespace) -> int:
    """The exit code."""
    token = control_token() or SystemEntropy().token_hex(TOKEN_BYTES)
    root = args.checkpoints.resolve()
    try:
        config = read_config([Path(each).resolve() for each in args.config], args.overrides)
        launcher = gym_launcher(config, root, args.logs or root / "logs", token=token, classes=classes_of(args.classes))
        servers = servers_of(config)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    args.target = args.target or only_agent(servers)
    return collecting.run(args, launcher, {each.name for each in servers}, token, relays_of(config))


def only_agent(servers: Iterable[GymServer]) -> str:
    """The one server that tasks can go to, or ""."""
    agents = [each.name for each in servers if each.kind in DRIVING]
    return agents[0] if len(agents) == 1 else ""


def classes_of(given: list[str]) -> dict[str, str]:
    """The classes by server name; UsageError for what does not name both."""
    found = dict(each.partition("=")[::2] for each in given)
    if wrong := [name for name, target in found.items() if not (name and ":" in target)]:
        raise UsageError(f"--class {wrong[0]}: write NAME=MODULE:CLASS")
    return found
