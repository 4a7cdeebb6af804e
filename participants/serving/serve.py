"""Serving an application on hypercorn's trio worker: in the caller's nursery, or as a process of its own.

Rules (docs/reference/protocol.md section 14, *Serving*): what we start runs on trio. A connection is never closed
because of how many requests it carried, and idle ones outlive the clients' own expiry, so that a client does not send
into a closing connection. An application that does not come up is an error, never a server without a lifespan; a
lifespan that breaks later ends the server, and is an error too: nobody waits for a server that can do nothing. What
is held is let go before the server shuts down, since the server waits for requests and held ones wait for the gate.

As a process: ``python -m participants.serving module:factory --port N --ready-file F``.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import hypercorn.trio
import trio
from attrs import frozen
from hypercorn.config import Config, Sockets
from hypercorn.typing import Framework
from hypercorn.utils import LifespanTimeoutError

from statecore.exception_groups import single

from ..net.http import ASGIApp
from ..net.transport import KEEPALIVE_EXPIRY_S
from .lifespan import LifespanBroken, StartupFailed, StrictLifespan, before_shutdown

__all__ = ["LifespanBroken", "StartupFailed", "main", "serve"]

GRACEFUL_S: Final = 3.0
LIFESPAN_S: Final = 60.0
KEEPALIVE_S: Final = 2.5 * KEEPALIVE_EXPIRY_S
BACKLOG: Final = 2048
MAX_HEADER_BYTES: Final = 64 * 1024
LOG: Final = logging.getLogger(__name__)


async def serve(
    app: ASGIApp,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    fd: int | None = None,
    shutdown: trio.Event,
    name: str = "the server",
    graceful_timeout_s: float = GRACEFUL_S,
    lifespan: bool = True,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """The application was served until `shutdown` was set; what is reported, when it is up, is its URL.

    Port 0 is any free one; `fd` is a bound socket to be used instead. At the end `app.before_shutdown()` is called if
    there is one, no new connection is taken, requests may end for `graceful_timeout_s`, and then the lifespan ends.
    `lifespan` false is for applications that have none. Raises StartupFailed if the address or the application does not
    come up, and LifespanBroken if its lifespan breaks, which ends the server at once; `name` is for their texts.
    """
    broken = trio.Event()
    strict = StrictLifespan(app, required=lifespan, on_broken=broken.set)
    up = _Up(task_status, strict, name)
    listening = _bound(name, host, port, fd)
    try:
        await hypercorn.trio.serve(
            cast(Framework, strict),
            _config(listening, graceful_timeout_s),
            shutdown_trigger=partial(_stopping, app, (shutdown, broken), graceful_timeout_s),
            task_status=cast(Any, up),
            mode="asgi",
        )
    except Exception as error:
        if strict.failure is not None:
            raise StartupFailed(name, strict.failure) from error
        if strict.broken is not None:
            raise LifespanBroken(name, strict.broken) from error
        if isinstance(single(error), LifespanTimeoutError) and not up.reported:
            raise StartupFailed(name, f"its startup took longer than {LIFESPAN_S} s") from error
        raise
    finally:
        listening.close()
    if strict.broken is not None:  # hypercorn may lose it: its task is cancelled while it closes its channels
        raise LifespanBroken(name, strict.broken)


def _bound(name: str, host: str, port: int, fd: int | None) -> socket.socket:
    """A socket that is bound and not yet listening; StartupFailed if the address cannot be had."""
    if fd is not None:
        return socket.socket(fileno=fd)
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise StartupFailed(name, f"cannot serve on {host}:{port}: {error}") from error
    return bound


class _Up:
    """Hypercorn reports a list of addresses; whoever started us wants the one.

    It may do so between an application's failure to start and its own notice of that: then nobody is told.
    """

    def __init__(self, task_status: trio.TaskStatus[str], strict: StrictLifespan, name: str) -> None:
        self._task_status = task_status
        self._strict = strict
        self._name = name
        self.reported = False

    def started(self, binds: list[str]) -> None:
        if self._strict.failure is not None:
            raise StartupFailed(self._name, self._strict.failure)
        self.reported = True
        self._task_status.started(binds[0])


class _Config(Config):
    """Hypercorn's settings, with a socket that is ours: it is closed whatever happens."""

    def __init__(self, listening: socket.socket) -> None:
        listening.setblocking(False)
        self.listening = listening

    def create_sockets(self) -> Sockets:
        return Sockets(secure_sockets=[], insecure_sockets=[self.listening], quic_sockets=[])


def _config(listening: socket.socket, graceful_timeout_s: float) -> Config:
    config = _Config(listening)
    config.keep_alive_max_requests = 10**9
    config.keep_alive_timeout = KEEPALIVE_S
    config.graceful_timeout = graceful_timeout_s
    config.startup_timeout = LIFESPAN_S
    config.shutdown_timeout = LIFESPAN_S
    config.backlog = BACKLOG
    config.h11_max_incomplete_size = MAX_HEADER_BYTES
    config.alpn_protocols = ["http/1.1"]
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = LOG
    return config


async def _stopping(app: ASGIApp, reasons: Sequence[trio.Event], within_s: float) -> None:
    """Returns when the server is to end, what the application holds let go (or a line in the log that says why not)."""
    async with trio.open_nursery() as nursery:
        for reason in reasons:
            nursery.start_soon(_then_cancel, reason, nursery.cancel_scope)
    with trio.move_on_after(within_s) as scope:
        try:
            await before_shutdown(app)
        except Exception:
            LOG.exception("before_shutdown raised; the server ends all the same")
    if scope.cancelled_caught:
        LOG.error("before_shutdown took longer than %s s; the server ends all the same", within_s)


async def _then_cancel(reason: trio.Event, scope: trio.CancelScope) -> None:
    await reason.wait()
    scope.cancel()


# --- as a process


def load(target: str) -> ASGIApp:
    """The application that `module:function` makes; StartupFailed when there is no such function or it raises."""
    module_name, colon, attribute = target.partition(":")
    if not (module_name and colon and attribute):
        raise StartupFailed(target, "an application is named as module:function")
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
        app = factory()
    except Exception as error:
        raise StartupFailed(target, f"{type(error).__name__}: {error}") from error
    if not callable(app):
        raise StartupFailed(target, f"{attribute}() made a {type(app).__name__}, not an ASGI application")
    return cast(ASGIApp, app)


@frozen
class Options:
    """The command line, read."""

    target: str
    host: str
    port: int
    fd: int | None
    ready_fd: int | None
    ready_file: Path | None
    lifeline_fd: int | None
    name: str | None
    graceful_timeout_s: float
    lifespan: bool


def read_options(argv: Sequence[str]) -> Options:
    """The options of a command line; exits with status 2 and the usage when it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m participants.serving", description="Serve an ASGI application.")
    parser.add_argument("target", metavar="module:function", help="what makes the application, without arguments")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 (the default): any free port")
    parser.add_argument("--fd", type=int, help="an inherited bound socket, instead of host and port")
    ready = parser.add_mutually_exclusive_group()
    ready.add_argument("--ready-fd", type=int, help="an inherited descriptor that the URL is written to when it is up")
    ready.add_argument("--ready-file", type=Path, help="a file that the URL is written to when it is up")
    parser.add_argument("--lifeline-fd", type=int, help="an inherited pipe; the server ends when its other end closes")
    parser.add_argument("--name", help="what the process and its messages are called")
    parser.add_argument("--graceful-timeout-s", type=float, default=GRACEFUL_S)
    parser.add_argument("--no-lifespan", dest="lifespan", action="store_false", help="the application has no lifespan")
    return Options(**vars(parser.parse_args(argv)))


async def run(options: Options) -> None:
    """The application was served until SIGTERM, SIGINT or a broken lifeline; a second signal ends it at once."""
    app = load(options.target)
    shutdown = trio.Event()
    async with trio.open_nursery() as nursery:
        up = trio.Event()
        nursery.start_soon(_end_by_signal, shutdown, up, nursery.cancel_scope)
        if options.lifeline_fd is not None:
            nursery.start_soon(_end_with_the_launcher, options.lifeline_fd, shutdown)
        async with trio.open_nursery() as serving:
            url = await serving.start(
                partial(
                    serve,
                    app,
                    host=options.host,
                    port=options.port,
                    fd=options.fd,
                    shutdown=shutdown,
                    name=options.name or options.target,
                    graceful_timeout_s=options.graceful_timeout_s,
                    lifespan=options.lifespan,
                )
            )
            up.set()
            _tell(url, options)
        nursery.cancel_scope.cancel()


async def _end_by_signal(shutdown: trio.Event, up: trio.Event, everything: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _signal in signals:
            if shutdown.is_set() or not up.is_set():
                everything.cancel()
            shutdown.set()


async def _end_with_the_launcher(fd: int, shutdown: trio.Event) -> None:
    async with trio.lowlevel.FdStream(fd) as lifeline:
        while await lifeline.receive_some():
            pass
    shutdown.set()


def _tell(url: str, options: Options) -> None:
    """Whoever waits for this server can read its URL; a file appears with its whole content."""
    if options.ready_fd is not None:
        with open(options.ready_fd, "w", encoding="ascii") as pipe:
            pipe.write(url + "\n")
    elif options.ready_file is not None:
        partial_file = options.ready_file.with_name(options.ready_file.name + ".partial")
        partial_file.write_text(url + "\n", encoding="ascii")
        partial_file.rename(options.ready_file)
    else:
        print(url, flush=True)


def _call_process(name: str) -> None:
    """`ps` shows the name, where the system has a place for it."""
    comm = Path("/proc/self/comm")
    if comm.exists():
        comm.write_text(name[:15], encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """The process: 0 when it was ended on purpose, 1 with the reason on stderr when it did not come up or broke."""
    options = read_options(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if options.name is not None:
        _call_process(options.name)
    try:
        trio.run(run, options)
    except Exception as error:
        cause = single(error)
        if not isinstance(cause, StartupFailed | LifespanBroken):
            raise
        if cause.__cause__ is not None:
            traceback.print_exception(cause.__cause__)
        print(cause, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
