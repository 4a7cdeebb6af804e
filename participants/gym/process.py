"""One Gym server as a process of a launcher: ``python -m participants.gym.process COMPONENT --name NAME ...``.

It takes the options of ``python -m participants.serving``. Gym's own `run_webserver` serves; this module puts the
addresses of all servers into Gym's configuration, says when the server can be reached, and ends it with its launcher.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from ..settings import Settings
from .command import run_serve
from .fleet import CONFIG_VARIABLE, addressed

NAME_VARIABLE = "NEMO_GYM_CONFIG_PATH"
LOOK_EVERY_S = 0.05
END_WITHIN_S = 10.0


def main(argv: Sequence[str] | None = None) -> int:
    """The server ran until it was stopped; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m participants.gym.process", description=__doc__.partition("\n")[0])
    parser.add_argument("component")
    parser.add_argument("--name", required=True, help="of the server, in Gym's configuration")
    parser.add_argument("--fd", type=int, help="an inherited socket that keeps the address until the server has it")
    parser.add_argument("--ready-fd", type=int, help="an inherited descriptor that the URL is written to when it is up")
    parser.add_argument("--lifeline-fd", type=int, help="an inherited pipe; the server ends when its other end closes")
    args = parser.parse_args(argv)
    urls = Settings.from_env().servers
    config = addressed(json.loads(os.environ[CONFIG_VARIABLE]), urls)
    os.environ[CONFIG_VARIABLE], os.environ[NAME_VARIABLE] = json.dumps(config), args.name
    if args.lifeline_fd is not None:
        threading.Thread(target=_end_with, args=(args.lifeline_fd,), daemon=True).start()
    if args.ready_fd is not None:
        threading.Thread(target=_say_when_up, args=(urls[args.name], args.ready_fd), daemon=True).start()
    return run_serve(args)


def _end_with(lifeline: int) -> None:
    """Returns never: when nobody holds the other end any more, the server ends, by force if it takes too long."""
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(END_WITHIN_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _say_when_up(url: str, ready: int) -> None:
    """The URL is on `ready` as soon as somebody listens there: this server, since nobody else can have the address."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    while True:
        with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=1):
            break
        threading.Event().wait(LOOK_EVERY_S)
    os.write(ready, url.encode() + b"\n")
    os.close(ready)


if __name__ == "__main__":
    sys.exit(main())
