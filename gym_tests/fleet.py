"""Real NeMo Gym servers as processes of this machine, started as Gym's own command line does: the whole configuration
in NEMO_GYM_CONFIG_DICT, the server's name in NEMO_GYM_CONFIG_PATH. Plain ones run the component's own app.py, embedded
ones `statecore gym serve`. A Fleet is a launcher for a coordinator.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import trio
from attrs import frozen

from participants.gym.fleet import addressed

SITE: Final = Path(sysconfig.get_paths()["purelib"])
TOKEN: Final = "tok"
WITHOUT_RAY: Final = """
from environment_servers.{}.app import SingleAgentTurnEnvironmentServer as Server
Server.ray_enabled = False
Server.run_webserver()
"""
"""A plain environment server: Gym starts Ray for it unless it says no, and Ray is not installed here."""
START_S: Final = 300.0
STOP_S: Final = 5.0


@frozen
class Component:
    """A server of a fleet: its kind and implementation as Gym's folders name them, and what its configuration adds."""

    kind: str
    impl: str
    extra: Mapping[str, Any] = {}


def agent(impl: str, resources: str, **extra: Any) -> Component:
    server = {"type": "resources_servers", "name": resources}
    return Component("responses_api_agents", impl, {"resources_server": server, **extra})


MODEL: Final = Component("responses_api_models", "openai_model")
EPISODES: Final = {
    "resources_server": {"type": "resources_servers", "name": "weather"},
    "agent_server": {"type": "responses_api_agents", "name": "weather_agent"},
    "resources_tool_transports": ["direct_http"],
    "max_concurrent_episodes": 8,
    "queue_timeout_seconds": 60,
    "default_episode_timeout_seconds": 120,
    "cleanup_timeout_seconds": 10,
}
COMPONENTS: Final[Mapping[str, Component]] = {
    "policy_model": MODEL,
    "counter": Component("resources_servers", "example_session_state_mgmt"),
    "counter_agent": agent("simple_agent", "counter"),
    "blackjack": Component("resources_servers", "blackjack"),
    "blackjack_agent": agent("gymnasium_agent", "blackjack"),
    "workplace": Component("resources_servers", "workplace_assistant"),
    "workplace_agent": agent("simple_agent", "workplace"),
    "weather": Component("resources_servers", "example_single_tool_call"),
    "weather_agent": agent("simple_agent", "weather"),
    "weather_env": Component("environment_servers", "single_agent_turn", EPISODES),
    "relay": Component("environment_servers", "legacy_agent", {"agent_server": EPISODES["agent_server"]}),
    "choices": Component("resources_servers", "mcqa"),
    "steps": Component("resources_servers", "example_multi_step"),
    "guessing": Component("resources_servers", "example_multi_turn_gymnasium"),
}


def free_ports(number: int) -> list[int]:
    """Ports that were free a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [each.getsockname()[1] for each in sockets]


def row(impl: str, index: int = 0) -> dict[str, Any]:
    """An example task that a component ships."""
    lines = (SITE / "resources_servers" / impl / "data" / "example.jsonl").read_text().splitlines()
    value: dict[str, Any] = json.loads(lines[index])
    return value


def configuration(names: Iterable[str], upstream: str) -> dict[str, Any]:
    """Gym's global configuration of these servers, without their addresses; `upstream` is the model's URL."""
    config: dict[str, Any] = {
        "head_server": {"host": "127.0.0.1", "port": 11000},
        "default_host": "127.0.0.1",
        "dry_run": False,
    }
    for name in names:
        component = COMPONENTS[name]
        server = {"entrypoint": "app.py", **component.extra}
        if component.kind == "resources_servers":
            server["domain"] = "agent"
        elif component.kind == "responses_api_agents":
            server["model_server"] = {"type": "responses_api_models", "name": "policy_model"}
        elif component.kind == "responses_api_models":
            server |= {"openai_base_url": upstream, "openai_api_key": "k", "openai_model": "scripted"}
        config[name] = {component.kind: {component.impl: server}}
    return config


class Fleet:
    """Servers by name, with a scripted upstream that lives as long as the fleet; `start` and `stop` as a launcher's.

    `plain` names the servers that run as Gym made them, `classes` the class (``module:Class``) that is embedded instead
    of the component's own, by server. `overrides` is added to a server's configuration, by name; `settings` to the
    environment of all. `root` is the checkpoint root and must be there.
    """

    def __init__(
        self,
        names: Iterable[str],
        folder: Path,
        *,
        plain: Iterable[str] = (),
        classes: Mapping[str, str] | None = None,
        enabled: bool = True,
        delay_s: float = 0.02,
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.names = tuple(names)
        self.folder = folder
        self.root = folder / "root"
        self.root.mkdir(exist_ok=True)
        self.plain = frozenset(plain)
        self.classes = dict(classes or {})
        self.enabled = enabled
        self.delay_s = delay_s
        self.overrides = dict(overrides or {})
        self.settings = dict(settings or {})
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.model_log = folder / "model.jsonl"
        self.model_log.touch()
        self._upstream: subprocess.Popen[bytes] | None = None
        self._ports: dict[str, int] = {}

    @property
    def urls(self) -> dict[str, str]:
        return {name: f"http://127.0.0.1:{self._ports[name]}" for name in self.names}

    def model_calls(self) -> list[dict[str, Any]]:
        """What the upstream was asked, oldest first."""
        return [json.loads(line) for line in self.model_log.read_text().splitlines()]

    @contextmanager
    def standing(self, turns: int) -> Iterator[None]:
        """Rollouts take so many turns and then wait inside of their next model call; afterwards they go on."""
        self.allow(turns)
        try:
            yield
        finally:
            self.allow(None)

    def allow(self, turns: int | None) -> None:
        """Rollouts take so many turns, or all of them."""
        file = self.model_log.with_suffix(".allowed")
        if turns is None:
            file.unlink(missing_ok=True)
            return
        written = file.with_suffix(".new")
        written.write_text(str(turns))
        written.replace(file)

    # --- a launcher

    async def start(self, epoch: int) -> Mapping[str, str]:
        await trio.to_thread.run_sync(self.up, epoch)
        return self.urls

    async def stop(self) -> None:
        await trio.to_thread.run_sync(self.down)

    # --- for tests that drive servers themselves

    def up(self, epoch: int | None = None) -> None:
        """All servers answer."""
        ports = free_ports(len(self.names) + 1)
        if self._upstream is None:
            self._up = ports[-1]
            self._upstream = self._spawn(
                "upstream",
                [sys.executable, "-m", "gym_tests.upstream", str(self._up), str(self.model_log)],
                {"UPSTREAM_DELAY": str(self.delay_s)},
            )
        self._ports = dict(zip(self.names, ports, strict=False))
        for name in self.names:
            self.spawn(name, epoch)
        self._wait("upstream", f"http://127.0.0.1:{self._up}", self._upstream)
        for name in self.names:
            self._wait(name, self.urls[name], self.processes[name])

    def spawn(self, name: str, epoch: int | None = None) -> None:
        """The server's process was started; it need not answer yet."""
        component = COMPONENTS[name]
        environ = {
            "NEMO_GYM_CONFIG_DICT": json.dumps(self.config()),
            "NEMO_GYM_CONFIG_PATH": name,
            "PYTHONUNBUFFERED": "1",
        }
        if self.enabled:
            environ |= {
                "STATECORE_ENABLED": "true",
                "STATECORE_CONTROL_AUTH_TOKEN": TOKEN,
                "STATECORE_ROOT": str(self.root),
            }
        if epoch is not None:
            environ |= {"STATECORE_EPOCH": str(epoch), "STATECORE_EPOCH_REQUIRED": "true"}
        if name in self.plain and component.kind == "environment_servers":
            command = [sys.executable, "-c", WITHOUT_RAY.format(component.impl)]
        elif name in self.plain:
            command = [sys.executable, str(SITE / component.kind / component.impl / "app.py")]
        else:
            served = self.classes.get(name, f"{component.kind}/{component.impl}")
            command = [sys.executable, "-m", "statecore.cli", "gym", "serve", served]
        self.processes[name] = self._spawn(name, command, environ | self.settings)

    def wait(self, name: str) -> None:
        self._wait(name, self.urls[name], self.processes[name])

    def down(self) -> None:
        """No server is running; the upstream is."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            _ended(process)
        self.processes.clear()

    def kill(self, *names: str) -> None:
        """SIGKILL went to these servers, or to all."""
        for name in names or self.names:
            self.processes[name].send_signal(signal.SIGKILL)
            self.processes[name].wait()

    def close(self) -> None:
        self.down()
        if self._upstream is not None:
            self._upstream.terminate()
            _ended(self._upstream)
            self._upstream = None

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def config(self) -> dict[str, Any]:
        """Gym's global configuration of this fleet."""
        config = addressed(configuration(self.names, f"http://127.0.0.1:{self._up}/v1"), self.urls)
        for name in self.overrides.keys() & config.keys():
            ((kind, implementations),) = config[name].items()
            config[name] = {kind: {impl: {**each, **self.overrides[name]} for impl, each in implementations.items()}}
        return config | dict(self.overrides.get("", {}))

    def _spawn(self, name: str, command: list[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("STATECORE_", "NEMO_GYM_"))}
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command, env=clean | dict(environ), stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )

    def _wait(self, name: str, url: str, process: subprocess.Popen[bytes]) -> None:
        """The server answers; RuntimeError with the end of its log when it has ended or takes too long."""
        end = time.monotonic() + START_S
        while time.monotonic() < end and process.poll() is None:
            try:
                httpx.get(f"{url}/livez", timeout=5, trust_env=False)
            except httpx.TransportError:
                time.sleep(0.05)
            else:
                return
        raise RuntimeError(f"{name} is not up (exit status {process.poll()}):\n{self.log(name)[-4000:]}")


def _ended(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
