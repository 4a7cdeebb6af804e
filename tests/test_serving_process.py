"""Participants as real processes: how they end, by SIGTERM, by themselves, by SIGKILL, and without a lifespan."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trio
from attrs import define

from participants.net.client import make_client
from participants.serving.launcher import ProcessLauncher, ServerSpec
from tests.test_launcher import is_alive, until_gone

ROOT = Path(__file__).parent.parent
CONTROL = "/ng-control/v1/checkpoint/"
AUTH = {"authorization": "Bearer tok"}
HANG_S = 120.0  # a bound on a test that would hang for ever, not a speed
R1 = "/ng-rollout/r1"


@define(eq=False)
class Served:
    """A process that serves, and a client for it."""

    process: trio.Process
    url: str
    client: httpx.AsyncClient
    log: Path

    async def post(self, path: str, **options: object) -> httpx.Response:
        return await self.client.post(self.url + path, **options)  # type: ignore[arg-type]

    async def ended(self) -> int:
        """The exit status, once there is one."""
        return await self.process.wait()

    @property
    def said(self) -> str:
        return self.log.read_text()


@asynccontextmanager
async def served(tmp_path: Path, factory: str, *options: str) -> AsyncIterator[Served]:
    """`participants.serving.serve` in a process of its own, up; killed when the block ends, if it still runs."""
    ready, log = tmp_path / "ready", tmp_path / "log"
    command = [sys.executable, "-m", "participants.serving", f"tests.participant_apps:{factory}"]
    command += ["--ready-file", str(ready), "--name", "tools", *options]
    environ = os.environ | {
        "STATECORE_ENABLED": "true",
        "STATECORE_CONTROL_AUTH_TOKEN": "tok",
        "STATECORE_ROOT": str(tmp_path),
    }
    with trio.fail_after(HANG_S), log.open("wb") as output:
        process = await trio.lowlevel.open_process(
            command, cwd=ROOT, env=environ, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            while not ready.exists() and process.poll() is None:  # noqa: ASYNC110 (another process makes it)
                await trio.sleep(0.01)
            async with make_client() as client:
                yield Served(process, ready.read_text().strip() if ready.exists() else "", client, log)
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()


@pytest.mark.trio
async def test_held_requests_are_let_go_at_sigterm_and_the_process_ends_well(tmp_path: Path) -> None:
    """In the middle of a checkpoint: held callers are told so, nothing moves, the status is 0. Covers: I24"""
    replies: list[httpx.Response] = []
    async with served(tmp_path, "tools", "--graceful-timeout-s", str(HANG_S)) as server:
        seeded = await server.post(f"{R1}/seed_session", json={})
        cookie = {"cookie": seeded.headers["set-cookie"].partition(";")[0]}
        body = {"checkpoint_id": "c1", "deadline_ts": time.time() + HANG_S}
        prepared = await server.post(CONTROL + "prepare", json=body, headers=AUTH)
        assert prepared.json()["phase"] == "prepared", prepared.text

        async def increment() -> None:
            replies.append(await server.post(f"{R1}/increment", json={}, headers=cookie))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(increment)
            while (await server.client.get(server.url + "/held")).json() < 3:  # noqa: ASYNC110 (of another process)
                await trio.sleep(0.01)
            assert replies == []
            server.process.send_signal(signal.SIGTERM)
        assert await server.ended() == 0
        assert [reply.json()["error"]["code"] for reply in replies] == ["participant_lost"] * 3  # behind the cut
        assert server.said == ""


@pytest.mark.trio
async def test_a_request_without_end_costs_the_graceful_timeout_and_no_more(tmp_path: Path) -> None:
    """Its caller's connection breaks, the process has status 0 all the same."""
    async with served(tmp_path, "tools", "--graceful-timeout-s", "0.2") as server:
        async with trio.open_nursery() as nursery:

            async def hang() -> None:
                with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
                    await server.post(f"{R1}/hang", json={})

            nursery.start_soon(hang)
            while await _inflight(server) < 1:  # noqa: ASYNC110 (of another process)
                await trio.sleep(0.01)
            server.process.send_signal(signal.SIGTERM)
        assert await server.ended() == 0


async def _inflight(server: Served) -> int:
    status = await server.client.get(server.url + CONTROL + "status", headers=AUTH)
    return int(status.json()["report"]["counts"]["inflight"])


@pytest.mark.trio
async def test_a_participant_whose_lifespan_fails_at_its_start_says_why_and_exits_1(tmp_path: Path) -> None:
    """The application's own reason is the end of the log, and nothing was said to be ready."""
    async with served(tmp_path, "fails_at_its_start") as server:
        assert (await server.ended(), server.url) == (1, "")
        assert "tools did not start: " in server.said
        assert server.said.rstrip().endswith("LookupError: there is no database")


@pytest.mark.trio
async def test_a_lifespan_that_fails_at_its_end_is_not_lost(tmp_path: Path) -> None:
    """Whether hypercorn hears of it or not, the process says it and has status 1."""
    async with served(tmp_path, "fails_at_its_end") as server:
        server.process.send_signal(signal.SIGTERM)
        assert await server.ended() == 1
        assert "tools did not end well: " in server.said
        assert server.said.rstrip().endswith("LookupError: the database cannot be closed")


@pytest.mark.trio
async def test_a_lifespan_that_breaks_ends_its_server(tmp_path: Path) -> None:
    """Nobody is left waiting for a process that answers 503 for ever: its death is seen, and it says why."""
    async with served(tmp_path, "breaks_while_it_serves") as server:
        assert await server.ended() == 1
        assert server.said.rstrip().splitlines()[-1] == "tools did not end well: LookupError: the timer died"


@pytest.mark.trio
async def test_without_the_lifespan_every_request_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Control, data and probes: 503, our code, what is missing; the process ends well."""
    async with served(tmp_path, "tools", "--no-lifespan") as server:
        asked = [
            await server.client.get(server.url + CONTROL + "status", headers=AUTH),
            await server.post(f"{R1}/seed_session", json={}),
            await server.client.get(server.url + "/held"),
        ]
        for reply in asked:
            assert reply.status_code == 503
            error = json.loads(reply.content)["error"]
            assert error["code"] == "lifespan_missing"
            assert error["detail"] == "this server was started without the ASGI lifespan; checkpointing needs it"
        server.process.send_signal(signal.SIGTERM)
        assert await server.ended() == 0


def _children(pid: int) -> str:
    """The processes that it has started, where the system tells."""
    return "".join(each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/children"))


@pytest.mark.trio
async def test_kill_9_leaves_nothing(tmp_path: Path) -> None:
    """A server has no process beside its own; after SIGKILL nobody listens there."""
    async with served(tmp_path, "tools") as server:
        assert (await server.client.get(server.url + "/held")).json() == 0
        assert _children(server.process.pid) == ""
        server.process.kill()
        assert await server.ended() == -signal.SIGKILL
        with pytest.raises(httpx.ConnectError):
            await server.client.get(server.url + "/held")


@pytest.mark.trio
async def test_a_launchers_kill_9_takes_what_a_server_started(tmp_path: Path) -> None:
    """The signal goes to the whole group: a child that ignores SIGTERM ends with its server."""
    child = tmp_path / "child"
    spec = ServerSpec("tools", "tests.served_apps:ignores_sigterm_with_a_child", {"CHILD": str(child)})
    deployment = ProcessLauncher([spec], tmp_path, cwd=ROOT)
    with trio.fail_after(HANG_S):
        try:
            await deployment.start(1)
            pid = int(child.read_text())
            assert is_alive(pid)
            deployment.kill()
            await until_gone(pid)
            await until_gone(deployment.pids["tools"])
        finally:
            await deployment.stop()
