"""The embedded layer on asyncio: all four kinds under uvicorn, in processes of their own.

What we start ourselves runs on hypercorn's trio worker and is tested elsewhere; this is the other half of section 14.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

HERE = Path(__file__).parent
TOKEN = "tok"
AUTH = {"authorization": f"Bearer {TOKEN}"}
NAMES = {"policy_model": "policy", "tools": "tools", "simple_agent": "agent", "env": "env"}
CONTROL = "/ng-control/v1/checkpoint/"
START_S = 60.0
RUN = {"episode_id": {"rollout_id": "r1"}, "task": {"question": "go", "turns": 3}}


class Servers:
    """The running processes and calls to them."""

    def __init__(self, urls: dict[str, str], processes: dict[str, subprocess.Popen[bytes]]) -> None:
        self.urls = urls
        self.processes = processes
        self.client = httpx.Client(timeout=60, trust_env=False)

    def post(self, name: str, path: str, body: Any) -> httpx.Response:
        return self.client.post(self.urls[name] + path, json=body)

    def control(self, name: str, verb: str, checkpoint_id: str, **body: Any) -> dict[str, Any]:
        body = {"checkpoint_id": checkpoint_id, "deadline_ts": time.time() + 60} | body
        reply = self.client.post(self.urls[name] + CONTROL + verb, json=body, headers=AUTH)
        assert reply.status_code == 200, reply.text
        return dict(reply.json())


@contextmanager
def uvicorn_servers(root: Path) -> Iterator[Servers]:
    """All four kinds under uvicorn on sockets that are bound before; ended by SIGTERM, then for sure."""
    with ExitStack() as stack:
        sockets = {name: stack.enter_context(socket.create_server(("127.0.0.1", 0))) for name in NAMES}
        urls = {name: f"http://127.0.0.1:{each.getsockname()[1]}" for name, each in sockets.items()}
        environ = os.environ | {
            "STATECORE_ENABLED": "true",
            "STATECORE_CONTROL_AUTH_TOKEN": TOKEN,
            "STATECORE_ROOT": str(root),
            "STATECORE_SERVERS": json.dumps(urls),
        }
        processes: dict[str, subprocess.Popen[bytes]] = {}
        for name, factory in NAMES.items():
            number = sockets[name].fileno()
            command = [
                sys.executable,
                "-m",
                "uvicorn",
                f"tests.uvicorn_apps:{factory}",
                "--factory",
                "--fd",
                str(number),
            ]
            command += ["--lifespan", "on", "--log-level", "warning", "--timeout-graceful-shutdown", "2"]
            process = subprocess.Popen(command, cwd=HERE.parent, env=environ, pass_fds=[number])
            stack.callback(end, process)
            processes[name] = process
        servers = Servers(urls, processes)
        stack.callback(servers.client.close)
        for name in NAMES:
            wait_until_up(servers, name)
        yield servers


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until_up(servers: Servers, name: str) -> None:
    """The sockets are bound already, so a request waits by itself until its server accepts."""
    reply = servers.client.get(servers.urls[name] + CONTROL + "status", headers=AUTH, timeout=START_S)
    assert reply.status_code == 200, reply.text


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def test_the_four_kinds_stop_save_and_go_on_under_uvicorn(root: Path) -> None:
    """A rollout is held at a cut, its parts are written, and after resume it ends as an undisturbed one. Covers:
    I24.
    """
    with uvicorn_servers(root) as servers, ThreadPoolExecutor() as pool:
        undisturbed = servers.post("env", "/run", RUN | {"episode_id": {"rollout_id": "r0"}}).json()
        for name in ("env", "policy_model", "simple_agent", "tools"):
            assert servers.control(name, "prepare", "c1")["phase"] == "prepared"
        refused = servers.post("env", "/run", RUN)
        assert refused.json()["error"]["code"] == "admission_closed"
        held = pool.submit(servers.post, "tools", "/ng-rollout/r2/seed_session", {})
        for name in NAMES:
            done = servers.control(name, "commit", "c1", checkpoint_dir=str(root / "ck"), episode_ids=[])
            assert done["phase"] == "committed"
        assert not held.done()
        for name in ("tools", "policy_model", "simple_agent", "env"):
            assert servers.control(name, "resume", "c1")["idempotent"] is False
        assert held.result(30).status_code == 200
        continued = servers.post("env", "/run", RUN)
        assert continued.json() == undisturbed
        assert "x-ng-result-receipt" in continued.headers
    manifests = sorted(path.parent.name for path in (root / "ck").rglob("manifest.json"))
    assert manifests == sorted(NAMES)


def test_a_lease_reopens_a_server_on_asyncio(root: Path) -> None:
    """The lease timer runs in uvicorn's loop as well: nobody resumes, and the held call is served. Covers: I21."""
    os.environ["STATECORE_LEASE_GRACE_SECONDS"] = "0.2"
    try:
        with uvicorn_servers(root) as servers:
            servers.control("tools", "prepare", "c1", deadline_ts=time.time() + 0.2)
            assert servers.post("tools", "/ng-rollout/r1/seed_session", {}).status_code == 200
            status = servers.client.get(servers.urls["tools"] + CONTROL + "status", headers=AUTH).json()
            assert status["phase"] == "idle"
    finally:
        del os.environ["STATECORE_LEASE_GRACE_SECONDS"]
