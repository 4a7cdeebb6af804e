"""`python -m participants.demo`: the command `statecore demo`, also where the entry points are not installed."""

from __future__ import annotations

import argparse
import sys

from statecore.cli import UsageError

from .command import register


def main() -> int:
    """The exit code of the process's command line."""
    parser = argparse.ArgumentParser(prog="statecore")
    register(parser.add_subparsers(required=True))
    args = parser.parse_args(["demo", *sys.argv[1:]])
    try:
        return int(args.run(args))
    except UsageError as error:
        print(f"statecore: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
