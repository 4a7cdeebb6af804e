"""Serving on hypercorn: what a real server does, in a nursery and as a process."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from participants.net.client import make_client
from participants.net.http import ASGIApp, Receive, Scope, Send
from participants.net.transport import KEEPALIVE_EXPIRY_S, FreeListTransport
from participants.serving.serve import KEEPALIVE_S, LifespanBroken, StartupFailed, load, read_options, serve

ROOT = Path(__file__).parent.parent
HANG_S = 120.0  # a bound on a test that would hang for ever, not a speed


async def started(nursery: trio.Nursery, app: ASGIApp, shutdown: trio.Event, **options: object) -> str:
    async def run(task_status: trio.TaskStatus[str]) -> None:
        await serve(app, shutdown=shutdown, task_status=task_status, **options)  # type: ignore[arg-type]

    url: str = await nursery.start(run)
    return url


async def echo(request: Request) -> JSONResponse:
    return JSONResponse({"path": request.url.path, "body": (await request.body()).decode()})


def starlette_app() -> Starlette:
    return Starlette(routes=[Route("/{rest:path}", echo, methods=["GET", "POST"])])


class Held:
    """Holds its requests until the gate opens or their callers leave; opens it before shutdown."""

    def __init__(self, *, opens: bool = True) -> None:
        self.gate = trio.Event()
        self.opens = opens
        self.log: list[str] = []
        self.changed = trio.Event()

    def note(self, what: str) -> None:
        self.log.append(what)
        changed, self.changed = self.changed, trio.Event()
        changed.set()

    async def until(self, what: str, times: int = 1) -> None:
        while self.log.count(what) < times:
            await self.changed.wait()

    async def before_shutdown(self) -> None:
        self.note("before_shutdown")
        if self.opens:
            self.gate.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.lifespan(receive, send)
            return
        self.note("request")
        try:
            if scope["path"] == "/watch":
                while (await receive())["type"] != "http.disconnect":
                    pass
                self.note("disconnect")
            await self.gate.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"ok"})
            self.note("ended")
        except trio.Cancelled:
            self.log.append("cancelled")
            raise

    async def lifespan(self, receive: Receive, send: Send) -> None:
        for message in ("startup", "shutdown"):
            await receive()
            self.note(message)
            await send({"type": f"lifespan.{message}.complete"})


@pytest.mark.trio
async def test_an_application_is_served_from_startup_to_shutdown() -> None:
    """The URL is reported when it is up; requests are answered; the shutdown event ends it and its port."""
    shutdown = trio.Event()
    async with make_client() as client, trio.open_nursery() as nursery:
        url = await started(nursery, starlette_app(), shutdown)
        reply = await client.post(url + "/a/b", content=b"body")
        assert reply.json() == {"path": "/a/b", "body": "body"}
        shutdown.set()
    async with make_client() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(url)


@pytest.mark.trio
async def test_a_connection_carries_more_than_a_thousand_requests() -> None:
    """The server does not close a connection for the number of its requests (its default is after 1,000)."""
    shutdown = trio.Event()
    app = Held()
    app.gate.set()
    transport = FreeListTransport()
    async with make_client(transport) as client, trio.open_nursery() as nursery:
        url = await started(nursery, app, shutdown)
        await client.get(url)
        first = set(transport._idle)
        for _ in range(1100):
            await client.get(url)
        assert set(transport._idle) == first
        shutdown.set()


def test_idle_connections_outlive_the_clients_own_expiry() -> None:
    """A client gives an idle connection up before the server closes it under its next request."""
    assert KEEPALIVE_S > KEEPALIVE_EXPIRY_S


async def says_failed(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no token"})


async def raises(scope: Scope, receive: Receive, send: Send) -> None:
    raise LookupError("no root")


async def returns(scope: Scope, receive: Receive, send: Send) -> None:
    return


@pytest.mark.parametrize(
    ("app", "reason"), [(says_failed, "no token"), (raises, "LookupError: no root"), (returns, "has no lifespan")]
)
@pytest.mark.trio
async def test_an_application_that_does_not_come_up_is_not_served(app: ASGIApp, reason: str) -> None:
    """Where hypercorn would serve on with a warning, StartupFailed is raised with the reason."""
    with pytest.raises(StartupFailed, match=f"tools did not start: .*{reason}"):
        await serve(app, shutdown=trio.Event(), name="tools")


@pytest.mark.trio
async def test_a_server_that_fails_to_start_is_never_said_to_be_up() -> None:
    """Hypercorn may report its address before it notices; the order is trio's, so it is tried many times."""
    for _ in range(50):
        said: list[str] = []
        with pytest.raises(ExceptionGroup) as raised:
            async with trio.open_nursery() as nursery:
                said.append(await started(nursery, says_failed, trio.Event(), name="tools"))
        assert said == []
        assert raised.group_contains(StartupFailed, match="tools did not start: no token")


@pytest.mark.trio
async def test_a_startup_without_end_is_a_failed_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound holds for the lifespan's start; hypercorn's own error is named for what it is."""
    monkeypatch.setattr("participants.serving.serve.LIFESPAN_S", 0.05)

    async def hangs(scope: Scope, receive: Receive, send: Send) -> None:
        await trio.sleep_forever()

    with pytest.raises(StartupFailed, match="tools did not start: its startup took longer"):
        await serve(hangs, shutdown=trio.Event(), name="tools")


@pytest.mark.trio
async def test_an_address_that_is_taken_is_a_failed_start() -> None:
    """The error names the address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StartupFailed, match=f"cannot serve on 127.0.0.1:{port}"):
            await serve(starlette_app(), port=port, shutdown=trio.Event())


@pytest.mark.trio
async def test_an_application_without_a_lifespan_is_served_where_that_is_said() -> None:
    """`lifespan=False` sends it no lifespan events."""

    async def plain(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    shutdown = trio.Event()
    async with make_client() as client, trio.open_nursery() as nursery:
        url = await started(nursery, plain, shutdown, lifespan=False)
        assert (await client.get(url)).status_code == 204
        shutdown.set()


@pytest.mark.trio
async def test_held_requests_end_at_shutdown_since_the_gate_is_opened_first() -> None:
    """before_shutdown releases the held requests, they are answered, and only then the lifespan ends."""
    shutdown = trio.Event()
    app = Held()
    replies: list[str] = []

    async def ask() -> None:
        replies.append((await client.get(url)).text)

    with trio.fail_after(HANG_S):
        async with make_client() as client, trio.open_nursery() as nursery:
            url = await started(nursery, app, shutdown, graceful_timeout_s=HANG_S)
            for _ in range(3):
                nursery.start_soon(ask)
            await app.until("request", 3)
            shutdown.set()
    assert replies == ["ok"] * 3
    assert app.log == ["startup", *["request"] * 3, "before_shutdown", *["ended"] * 3, "shutdown"]


@pytest.mark.trio
async def test_requests_that_do_not_end_are_cut_at_the_graceful_timeout() -> None:
    """A gate that stays shut does not keep the server up: the callers see a closed connection, no response."""
    shutdown = trio.Event()
    app = Held(opens=False)
    with trio.fail_after(HANG_S):
        async with make_client() as client, trio.open_nursery() as nursery:
            url = await started(nursery, app, shutdown, graceful_timeout_s=0.05)

            async def ask() -> None:
                with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
                    await client.get(url)

            nursery.start_soon(ask)
            await app.until("request")
            shutdown.set()
    assert app.log[-3:] == ["before_shutdown", "cancelled", "shutdown"]


@pytest.mark.trio
async def test_a_hook_that_raises_or_hangs_does_not_keep_the_server_up(caplog: pytest.LogCaptureFixture) -> None:
    """The log says so, and the server ends."""

    class Raises(Held):
        async def before_shutdown(self) -> None:
            raise LookupError("no gate")

    class Hangs(Held):
        async def before_shutdown(self) -> None:
            await trio.sleep_forever()

    for app, said in ((Raises(), "before_shutdown raised"), (Hangs(), "took longer than 0.05 s")):
        shutdown = trio.Event()
        with trio.fail_after(HANG_S):
            async with trio.open_nursery() as nursery:
                await started(nursery, app, shutdown, graceful_timeout_s=0.05)
                shutdown.set()
        assert said in caplog.text
        assert app.log == ["startup", "shutdown"]


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ("lifespan.startup.complete", "its lifespan ended by itself"),
        ("lifespan.shutdown.failed", "the disk is full"),
    ],
)
@pytest.mark.trio
async def test_a_lifespan_that_ends_while_its_server_serves_ends_the_server(last: str, reason: str) -> None:
    """Nobody asked it to end; the server's caller is told by an exception."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        if last != "lifespan.startup.complete":
            await send({"type": last, "message": "the disk is full"})

    with trio.fail_after(HANG_S), pytest.raises(LifespanBroken, match=f"tools did not end well: {reason}"):
        await serve(app, shutdown=trio.Event(), name="tools")


@pytest.mark.trio
async def test_a_handler_runs_on_when_its_caller_leaves() -> None:
    """As the in-memory network shows it: http.disconnect, no cancellation."""
    shutdown = trio.Event()
    app = Held()
    with trio.fail_after(HANG_S):
        async with make_client() as client, trio.open_nursery() as nursery:
            url = await started(nursery, app, shutdown)
            async with trio.open_nursery() as callers:
                callers.start_soon(client.get, url + "/watch")
                await app.until("request")
                callers.cancel_scope.cancel()
            await app.until("disconnect")
            app.gate.set()
            await app.until("ended")
            shutdown.set()
    assert "cancelled" not in app.log


@pytest.mark.trio
async def test_a_bug_is_a_500_without_our_body(caplog: pytest.LogCaptureFixture) -> None:
    """The caller gets a plain 500, the log the exception, and the next request is served."""
    shutdown = trio.Event()

    async def bug(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError("a bug")

    async with make_client() as client, trio.open_nursery() as nursery:
        url = await started(nursery, bug, shutdown, lifespan=False)
        for _ in range(2):
            assert (await client.get(url)).status_code == 500
        shutdown.set()
    assert "ZeroDivisionError: a bug" in caplog.text


# --- as a process


async def process(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "participants.serving", *arguments]
    with trio.fail_after(HANG_S):
        return await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False, cwd=cwd)


async def content_of(path: Path) -> str:
    """The text of a file, as soon as there is one."""
    while not await trio.Path(path).exists():  # noqa: ASYNC110 (another process makes it)
        await trio.sleep(0.01)
    return (await trio.Path(path).read_text()).strip()


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("tests.served_apps:raises", "LookupError: no token in the configuration"),
        ("tests.served_apps:fails_to_start", "LookupError: no root in the configuration"),
        ("tests.served_apps:not_an_application", "made a str, not an ASGI application"),
        ("tests.served_apps:missing", "has no attribute 'missing'"),
        ("tests.no_such_module:app", "No module named 'tests.no_such_module'"),
        ("tests.served_apps", "named as module:function"),
    ],
)
@pytest.mark.trio
async def test_a_process_that_does_not_come_up_says_why_and_exits_1(factory: str, said: str) -> None:
    """The last line of its output is the reason; nothing was said to be ready."""
    ended = await process(factory)
    assert (ended.returncode, ended.stdout) == (1, b"")
    last_line = ended.stderr.decode().strip().splitlines()[-1]
    assert said in last_line
    assert "did not start" in last_line


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT]])
@pytest.mark.trio
async def test_a_process_serves_until_it_is_told_to_end(tmp_path: Path, signals: list[signal.Signals]) -> None:
    """The URL appears in the ready file when it is up; SIGTERM ends it with status 0, held requests answered."""
    ready = tmp_path / "ready"
    command = [sys.executable, "-m", "participants.serving", "tests.served_apps:plain", "--ready-file", str(ready)]
    with trio.fail_after(HANG_S):
        async with make_client() as client, trio.open_nursery() as nursery:

            async def run(task_status: trio.TaskStatus[trio.Process]) -> None:
                ended = await trio.run_process(
                    [*command, "--name", "tools", "--graceful-timeout-s", str(HANG_S)],
                    cwd=ROOT,
                    capture_stderr=True,
                    task_status=task_status,
                )
                assert b"ZeroDivisionError: boom" in ended.stderr
                assert ended.stderr.endswith(b"ended well\n")

            server: trio.Process = await nursery.start(run)
            url = await content_of(ready)
            assert (await client.get(url + "/a")).json()["pid"] == server.pid
            if sys.platform == "linux":
                assert await content_of(Path(f"/proc/{server.pid}/comm")) == "tools"
            async with client.stream("GET", url + "/boom") as reply:
                assert reply.status_code == 500
            for number in signals:
                server.send_signal(number)


def test_a_command_line_that_is_wrong_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """No factory, or two ways to be ready: usage, status 2."""
    for argv in ([], ["a:b", "--ready-fd", "3", "--ready-file", "f"], ["a:b", "--port", "x"]):
        with pytest.raises(SystemExit) as exit_:
            read_options(argv)
        assert exit_.value.code == 2
        assert "usage: python -m participants.serving" in capsys.readouterr().err
    options = read_options(["a:b"])
    assert (options.host, options.port, options.fd, options.lifespan) == ("127.0.0.1", 0, None, True)


def test_a_factory_is_found_by_its_name() -> None:
    """`module:function` gives what the function makes."""
    assert callable(load("tests.served_apps:plain"))
