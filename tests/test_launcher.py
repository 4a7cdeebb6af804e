"""Processes that are started together, know each other, and are all gone afterwards."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
import trio

from participants.net.client import make_client
from participants.serving.launcher import Launcher, ProcessLauncher, ServerSpec, StartupFailed

ROOT = Path(__file__).parent.parent
APPS = "tests.served_apps"
HANG_S = 120.0  # a bound on a test that would hang for ever, not a speed


def launcher(log_dir: Path, *servers: str, **changes: object) -> ProcessLauncher:
    """A launcher for applications of `served_apps`: `name=function` each."""
    specs = []
    for server in servers:
        name, _, function = server.partition("=")
        specs.append(ServerSpec(name, f"{APPS}:{function or 'plain'}", {"OWN": f"{name}'s"}))
    return ProcessLauncher(specs, log_dir, cwd=ROOT, **changes)  # type: ignore[arg-type]


def is_alive(pid: int) -> bool:
    """Whether there is a process of that number that is not a zombie."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


async def until_gone(pid: int) -> None:
    """The process has ended: one that is not our child, so that nobody tells us."""
    while is_alive(pid):  # noqa: ASYNC110
        await trio.sleep(0.01)


async def born(client: httpx.AsyncClient, url: str) -> Mapping[str, str]:
    """What the server at `url` was born with."""
    answer: Mapping[str, str] = (await client.get(url)).json()
    return answer


@pytest.mark.trio
async def test_servers_start_together_born_with_an_epoch_and_all_addresses(tmp_path: Path) -> None:
    """Each has the epoch, the token, the map of all URLs and its own environment; each is its own process group.

    Covers: I96
    """
    deployment: Launcher = launcher(tmp_path, "agent", "tools", token="s3cret")
    assert isinstance(deployment, ProcessLauncher)
    with trio.fail_after(HANG_S):
        try:
            urls = await deployment.start(7)
            assert set(urls) == {"agent", "tools"}
            async with make_client() as client:
                for name, url in urls.items():
                    answer = await born(client, url)
                    assert answer["STATECORE_EPOCH"] == "7"
                    assert answer["STATECORE_EPOCH_REQUIRED"] == "true"
                    assert answer["NEMO_GYM_CHECKPOINT_CONTROL_TOKEN"] == "s3cret"
                    assert answer["OWN"] == f"{name}'s"
                    assert json.loads(answer["STATECORE_SERVERS"]) == urls
                    assert int(answer["pid"]) == deployment.pids[name] == os.getpgid(deployment.pids[name])
            pids = deployment.pids
        finally:
            await deployment.stop()
        assert [is_alive(pid) for pid in pids.values()] == [False, False]
        assert (deployment.pids, deployment.exited) == ({}, {})
        assert "ended well" in deployment.log("tools").read_text()
        await deployment.stop()


@pytest.mark.trio
async def test_every_start_is_a_fresh_life(tmp_path: Path) -> None:
    """The next start has the next epoch and other processes; two starts without a stop are refused."""
    deployment = launcher(tmp_path, "tools")
    with trio.fail_after(HANG_S):
        try:
            first = dict(await deployment.start(1))
            before = deployment.pids
            with pytest.raises(RuntimeError, match="stop the servers of the start before first: tools"):
                await deployment.start(2)
            assert deployment.pids == before
            await deployment.stop()
            async with make_client() as client:
                with pytest.raises(httpx.ConnectError):
                    await client.get(first["tools"])
                urls = await deployment.start(2)
                assert (await born(client, urls["tools"]))["STATECORE_EPOCH"] == "2"
            assert deployment.pids != before
        finally:
            await deployment.stop()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raises", "LookupError: no token in the configuration"),
        ("fails_to_start", "LookupError: no root in the configuration"),
        ("dies_at_start", "exited with status -9; the end of .*these are my last words"),
    ],
)
@pytest.mark.trio
async def test_a_server_that_dies_at_start_ends_the_start(tmp_path: Path, function: str, said: str) -> None:
    """The error names the server and quotes its log, of this start only; no other server is left."""
    deployment = launcher(tmp_path, "agent", f"tools={function}", "policy")
    deployment.log("tools").write_text("the life before\n")
    with trio.fail_after(HANG_S):
        with pytest.raises(StartupFailed, match=f"(?s)^tools did not start: .*{said}") as failed:
            await deployment.start(1)
    assert "the life before" not in str(failed.value)
    assert deployment.log("tools").read_text().startswith("the life before\n")
    assert deployment.pids == {}


@pytest.mark.trio
async def test_a_server_that_is_never_ready_ends_the_start(tmp_path: Path) -> None:
    """The bound on readiness is one for all, and nothing is left."""
    deployment = launcher(tmp_path, "tools=never_ready", ready_timeout_s=0.2)
    with trio.fail_after(HANG_S):
        with pytest.raises(StartupFailed, match=r"tools did not start: it is not up after 0.2 s"):
            await deployment.start(1)
    assert deployment.pids == {}


@pytest.mark.trio
async def test_a_start_that_is_cancelled_leaves_nothing_running(tmp_path: Path) -> None:
    """Whoever gives up waiting finds all processes gone."""
    deployment = launcher(tmp_path, "agent", "tools=never_ready")
    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deployment.start, 1)
            while len(deployment.pids) < 2:  # noqa: ASYNC110
                await trio.sleep(0.01)
            pids = deployment.pids
            nursery.cancel_scope.cancel()
    assert [is_alive(pid) for pid in pids.values()] == [False, False]
    assert deployment.pids == {}


@pytest.mark.trio
async def test_a_command_that_cannot_run_is_a_failed_start(tmp_path: Path) -> None:
    """No process could be made: the error names the server; what was started before it is gone."""
    deployment = ProcessLauncher([ServerSpec("tools", f"{APPS}:plain")], tmp_path, cwd=tmp_path / "missing")
    with pytest.raises(StartupFailed, match="tools did not start: no process: "):
        await deployment.start(1)


@pytest.mark.trio
async def test_a_kill_is_sigkill_to_all_at_once(tmp_path: Path) -> None:
    """All servers end by the signal, with nothing said in their logs; one can be killed alone."""
    deployment = launcher(tmp_path, "agent", "tools", "policy")
    with trio.fail_after(HANG_S):
        try:
            urls = await deployment.start(1)
            deployment.kill("tools")
            await until_gone(deployment.pids["tools"])
            assert deployment.exited == {"tools": -signal.SIGKILL}
            async with make_client() as client:
                assert (await client.get(urls["agent"])).status_code == 200
                with pytest.raises(httpx.ConnectError):
                    await client.get(urls["tools"])
            deployment.kill()
            for pid in deployment.pids.values():
                await until_gone(pid)
            assert set(deployment.exited.values()) == {-signal.SIGKILL}
            with pytest.raises(KeyError):
                deployment.kill("nobody")
        finally:
            await deployment.stop()
    assert "ended well" not in deployment.log("agent").read_text()


@pytest.mark.trio
async def test_what_a_server_started_ends_with_it(tmp_path: Path) -> None:
    """SIGKILL goes to the whole group: a child that ignores SIGTERM does not outlive its server."""
    child = tmp_path / "child"
    spec = ServerSpec("tools", f"{APPS}:ignores_sigterm_with_a_child", {"CHILD": str(child)})
    deployment = ProcessLauncher([spec], tmp_path, cwd=ROOT)
    with trio.fail_after(HANG_S):
        await deployment.start(1)
        pid = int(child.read_text())
        assert is_alive(pid)
        await deployment.stop()
        await until_gone(pid)


@pytest.mark.trio
async def test_a_server_that_does_not_end_is_killed_after_the_bound(tmp_path: Path) -> None:
    """SIGTERM is not enough for it; stop returns all the same, and also to a caller that is cancelled."""
    deployment = launcher(tmp_path, "tools=deaf", stop_timeout_s=0.2)
    with trio.fail_after(HANG_S):
        await deployment.start(1)
        pid = deployment.pids["tools"]
        with trio.CancelScope() as scope:
            scope.cancel()
            await deployment.stop()
        assert not is_alive(pid)


@pytest.mark.trio
async def test_servers_on_a_lifeline_end_with_their_launcher(tmp_path: Path) -> None:
    """With `lifeline`, the end of the launcher's process (here: of the pipe) ends the servers; without it does not."""
    deployment = launcher(tmp_path, "agent", "tools", lifeline=True)
    with trio.fail_after(HANG_S):
        try:
            await deployment.start(1)
            deployment._lifelines.close()
            for pid in deployment.pids.values():
                await until_gone(pid)
            assert set(deployment.exited.values()) == {0}
        finally:
            await deployment.stop()
    assert "ended well" in deployment.log("agent").read_text()


@pytest.mark.parametrize("names", [[], ["tools", "tools"]])
def test_servers_have_names_of_their_own(tmp_path: Path, names: list[str]) -> None:
    """No server at all, and two of one name, are mistakes of the caller."""
    with pytest.raises(ValueError, match="name of its own"):
        launcher(tmp_path, *names)


@pytest.mark.parametrize("name", ["", "../tools", "a b", "-x"])
def test_a_name_is_fit_for_a_file(name: str) -> None:
    """A server's log is a file of its name."""
    with pytest.raises(ValueError, match="name"):
        ServerSpec(name, "module:function")
