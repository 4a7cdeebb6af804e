"""Starting and stopping the servers of a deployment: the interface, and processes on this machine.

Rules (docs/reference/protocol.md sections 7 and 11): all servers of a deployment start and stop together; every start
is an epoch of its own, and each process is born with it and refuses to run without (I96). Ports are taken by the
launcher and handed over as sockets, so that each server knows all addresses before any is up and no other program can
take one. Each server is a process group of its own: SIGTERM first, then SIGKILL to the whole group after a bound. If a
start fails or is cancelled, nothing is left running.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Protocol

import trio
from attrs import field, frozen, validators

from ..settings import TOKEN_VARIABLE
from .lifespan import StartupFailed

__all__ = ["Launcher", "ProcessLauncher", "ServerSpec", "StartupFailed"]

READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 10.0
TAIL_BYTES: Final = 4096


class Launcher(Protocol):
    """What a coordinator needs of whoever runs the servers."""

    async def start(self, epoch: int) -> Mapping[str, str]:
        """All servers are up, born with `epoch`; their URLs by name. Raises if one is not, and then none is left."""

    async def stop(self) -> None:
        """No server of this launcher is running any more."""


@frozen
class ServerSpec:
    """One server: its name, what makes its application (``module:function``), what is added to its environment.

    `module` is what runs it, with the options of ``python -m participants.serving``: it serves at the address that
    ``STATECORE_SERVERS`` has for its name, writes a line to ``--ready-fd`` when it does, and ends when what it has as
    ``--lifeline-fd`` closes. `factory` is its own to read.
    """

    name: str = field(validator=validators.matches_re(r"[A-Za-z0-9][A-Za-z0-9._-]*"))
    factory: str
    env: Mapping[str, str] = field(factory=dict)
    module: str = "participants.serving"


class _Running:
    """A process that was started, and its group."""

    def __init__(self, spec: ServerSpec, process: trio.Process, log: Path, log_start: int) -> None:
        self.spec = spec
        self.process = process
        self._log = log
        self._log_start = log_start
        self._swept = False

    def send_signal(self, number: signal.Signals) -> None:
        """The signal went to the whole group, if any of it is left."""
        if not self._swept:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def poll(self) -> int | None:
        """The exit status; when there is one, nothing of the group is left, and its number is not used again."""
        status = self.process.poll()
        if status is not None:
            self.send_signal(signal.SIGKILL)
            self._swept = True
        return status

    async def end(self, first: signal.Signals, within_s: float) -> None:
        """The server has ended, by `first` if that is enough, and so have all that it started."""
        self.send_signal(first)
        with trio.move_on_after(within_s):
            await self.process.wait()
        self.send_signal(signal.SIGKILL)
        await self.process.wait()
        self.poll()

    def tail(self) -> str:
        """The end of what this process wrote, as text."""
        with self._log.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(self._log_start, size - TAIL_BYTES))
            return log.read().decode("utf-8", "replace").strip() or "(nothing)"


class ProcessLauncher:
    """Servers as processes of this machine, each `python -m participants.serving` of its factory.

    `environment` is what they all inherit (default: this process's); over it come the spec's own, the epoch, `token` if
    there is one, and ``STATECORE_SERVERS``, a JSON map from name to URL. The output of each is appended to
    ``<log_dir>/<name>.log``. `ready_timeout_s` bounds the start, `stop_timeout_s` how long SIGTERM may take. With
    `lifeline` the servers end when this process does; without it they outlive it, and reopen by their leases. It may be
    the reading end of a pipe that somebody else holds: then they outlive this process and end when that one does.
    """

    def __init__(
        self,
        specs: Sequence[ServerSpec],
        log_dir: Path,
        *,
        token: str | None = None,
        host: str = "127.0.0.1",
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        ready_timeout_s: float = READY_TIMEOUT_S,
        stop_timeout_s: float = STOP_TIMEOUT_S,
        lifeline: bool | int = False,
    ) -> None:
        names = [spec.name for spec in specs]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a launcher needs servers, each with a name of its own, not {names}")
        self.specs = tuple(specs)
        self.log_dir = log_dir
        self.host = host
        self.cwd = cwd
        self.ready_timeout_s = ready_timeout_s
        self.stop_timeout_s = stop_timeout_s
        self.lifeline = lifeline
        self._token = token
        self._environment = environment
        self._running: dict[str, _Running] = {}
        self._lifelines = ExitStack()

    @property
    def pids(self) -> dict[str, int]:
        """The process (and process group) of each server that was started and not stopped, dead or alive."""
        return {name: each.process.pid for name, each in self._running.items()}

    @property
    def exited(self) -> dict[str, int]:
        """The servers among them that have ended, with their exit status (negative: the signal that ended them)."""
        found = {name: each.poll() for name, each in self._running.items()}
        return {name: status for name, status in found.items() if status is not None}

    def log(self, name: str) -> Path:
        """Where the output of a server goes."""
        return self.log_dir / f"{name}.log"

    async def start(self, epoch: int) -> Mapping[str, str]:
        """All servers are up; their URLs by name.

        Raises StartupFailed, which names the server and ends with the last of its log, and RuntimeError while servers
        of the start before are not stopped. When it raises or is cancelled, none that it started is left running.
        """
        if self._running:
            raise RuntimeError(f"stop the servers of the start before first: {', '.join(self._running)}")
        up = False
        try:
            urls = await self._start(epoch)
            up = True
        finally:
            if not up:
                with trio.CancelScope(shield=True):
                    await self._end(signal.SIGKILL)
        return urls

    async def stop(self) -> None:
        """All servers have ended: by SIGTERM, or by SIGKILL if that takes too long, and with all they started."""
        with trio.CancelScope(shield=True):
            await self._end(signal.SIGTERM)

    def kill(self, *names: str) -> None:
        """SIGKILL went to the groups of the servers named, or of all, at once; `stop` clears away what is left.

        Raises KeyError for a server that was not started.
        """
        for each in [self._running[name] for name in names or self._running]:
            each.send_signal(signal.SIGKILL)

    async def _start(self, epoch: int) -> Mapping[str, str]:
        self.log_dir.mkdir(parents=True, exist_ok=True)
        with ExitStack() as ours:
            ready: dict[str, int] = {}
            with ExitStack() as theirs:  # our copies of what the servers inherit; with them open no end would be seen
                sockets = {spec.name: theirs.enter_context(_reserved(self.host)) for spec in self.specs}
                urls = {name: _url(reserved) for name, reserved in sockets.items()}
                for spec in self.specs:
                    ready[spec.name], told = _pipe(ours, theirs)
                    inherited = {"--fd": sockets[spec.name].fileno(), "--ready-fd": told}
                    if type(self.lifeline) is int:
                        inherited["--lifeline-fd"] = self.lifeline
                    elif self.lifeline:
                        inherited["--lifeline-fd"], _held = _pipe(theirs, self._lifelines)
                    await self._spawn(spec, self._env(spec, epoch, urls), inherited)
            failures: list[StartupFailed] = []
            async with trio.open_nursery() as nursery:
                for name, pipe in ready.items():
                    nursery.start_soon(self._until_ready, name, pipe, failures, nursery.cancel_scope)
        if failures:
            raise failures[0]
        return urls

    async def _spawn(self, spec: ServerSpec, env: Mapping[str, str], inherited: Mapping[str, int]) -> None:
        command = [sys.executable, "-m", spec.module, spec.factory, "--name", spec.name]
        for option, fd in inherited.items():
            command += [option, str(fd)]
        path = self.log(spec.name)
        with path.open("ab") as log:
            log_start = log.tell()
            try:
                process = await trio.lowlevel.open_process(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=tuple(inherited.values()),
                    env=dict(env),
                    cwd=self.cwd,
                )
            except OSError as error:
                raise StartupFailed(spec.name, f"no process: {error}") from error
        self._running[spec.name] = _Running(spec, process, path, log_start)

    def _env(self, spec: ServerSpec, epoch: int, urls: Mapping[str, str]) -> dict[str, str]:
        env = dict(os.environ if self._environment is None else self._environment)
        env.update(spec.env)
        env["STATECORE_EPOCH"] = str(epoch)
        env["STATECORE_EPOCH_REQUIRED"] = "true"
        env["STATECORE_SERVERS"] = json.dumps(dict(urls), sort_keys=True)
        if self._token is not None:
            env[TOKEN_VARIABLE] = self._token
        return env

    async def _until_ready(
        self, name: str, pipe: int, failures: list[StartupFailed], everything: trio.CancelScope
    ) -> None:
        """The server said that it is up; else its failure is in the list and nobody waits any longer."""
        running = self._running[name]
        problem = f"it is not up after {self.ready_timeout_s:g} s"
        with trio.move_on_after(self.ready_timeout_s):
            if await _read_line(pipe):
                return
            problem = f"it exited with status {await running.process.wait()}"
        failures.append(StartupFailed(name, f"{problem}; the end of {self.log(name)}:\n{running.tail()}"))
        everything.cancel()

    async def _end(self, first: signal.Signals) -> None:
        self._lifelines.close()
        async with trio.open_nursery() as nursery:
            for each in self._running.values():
                nursery.start_soon(each.end, first, self.stop_timeout_s)
        self._running.clear()


async def _read_line(pipe: int) -> bool:
    """Whether a whole line came before the other end closed."""
    while True:
        await trio.lowlevel.wait_readable(pipe)
        data = os.read(pipe, TAIL_BYTES)
        if not data or data.endswith(b"\n"):
            return bool(data)


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """The reading and the writing end of a pipe, each closed by its stack."""
    read_end, write_end = os.pipe()
    reader.callback(os.close, read_end)
    writer.callback(os.close, write_end)
    return read_end, write_end


def _reserved(host: str) -> socket.socket:
    """A socket bound to a free port: nobody else gets it, and connections are refused until somebody listens.

    The server may listen on it, or on a socket of its own with the same address, which the option allows.
    """
    reserved = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, 0))
    except OSError:
        reserved.close()
        raise
    return reserved


def _url(reserved: socket.socket) -> str:
    host, port = reserved.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
