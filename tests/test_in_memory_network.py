"""The in-memory network behaves as real servers do where it matters: who runs on, who is cancelled, who hears what."""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable, Mapping

import httpx
import pytest
import trio
import trio.testing

from participants.net.http import ASGIApp, Message, Receive, Scope, Send
from participants.serving.exchange import Exchange
from participants.serving.testing import Call, Fault, InMemoryLauncher, InMemoryNetwork, StartupFailed, once

Handler = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


async def answer(send: Send, body: bytes = b"ok", status: int = 200, headers: Headers | None = None) -> None:
    """A whole response in two messages."""
    await send({"type": "http.response.start", "status": status, "headers": headers or []})
    await send({"type": "http.response.body", "body": body})


class App:
    """An application with a lifespan, whose requests go to `handler`; it writes down what happens to it."""

    def __init__(self, handler: Handler | None = None) -> None:
        self.handler = handler
        self.log: list[str] = []
        self.changed = trio.Event()

    def note(self, what: str) -> None:
        self.log.append(what)
        changed, self.changed = self.changed, trio.Event()
        changed.set()

    async def until(self, what: str) -> None:
        while what not in self.log:
            await self.changed.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.lifespan(receive, send)
            return
        self.note(f"{scope['method']} {scope['path']}")
        try:
            await (self.handler(scope, receive, send) if self.handler is not None else answer(send))
        except trio.Cancelled:
            self.note("cancelled")
            raise
        self.note("ended")

    async def lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            self.note(message["type"])
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return


async def held(scope: Scope, receive: Receive, send: Send) -> None:
    await trio.sleep_forever()


def fails_with(error: BaseException | None, message: str) -> bool:
    return error is not None and message in str(error)


@pytest.mark.trio
async def test_a_request_reaches_the_application_whole() -> None:
    """Method, path, query, headers and body arrive as a real server hands them over, and the reply comes back."""
    seen: list[Scope] = []

    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        message = await receive()
        await answer(send, message["body"], 201, [(b"X-Two", b"1"), (b"x-two", b"2")])

    async with InMemoryNetwork() as network, network.client() as client:
        assert await network.start("policy_model", App(echo)) == "http://policy_model.local"
        reply = await client.post("http://policy_model.local/a%2Fb/c?x=1", content=b"body", headers={"X-One": "1"})
        assert (reply.status_code, reply.content, reply.headers.get_list("x-two")) == (201, b"body", ["1", "2"])
        (scope,) = seen
        assert (scope["type"], scope["method"], scope["path"], scope["raw_path"], scope["query_string"]) == (
            "http",
            "POST",
            "/a/b/c",
            b"/a%2Fb/c",
            b"x=1",
        )
        assert (b"x-one", b"1") in scope["headers"]
        assert network.errors == []


@pytest.mark.trio
async def test_a_lifespan_is_driven_from_startup_to_shutdown() -> None:
    """Startup is complete before the first request, shutdown comes after the last; state reaches the requests."""
    states: list[object] = []

    class Stateful(App):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                scope["state"]["pool"] = "open"
            else:
                states.append(scope["state"])
            await super().__call__(scope, receive, send)

    app = Stateful()
    async with InMemoryNetwork() as network, network.client() as client:
        url = await network.start("tools", app)
        assert app.log == ["lifespan.startup"]
        await client.get(url)
        await network.stop("tools")
        assert app.log == ["lifespan.startup", "GET /", "ended", "lifespan.shutdown"]
        assert states == [{"pool": "open"}]
        assert network.up == ()


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
async def test_a_server_that_does_not_come_up_says_why(app: ASGIApp, reason: str) -> None:
    """startup.failed, an exception in startup and no lifespan at all: start raises, and nothing of it is left."""
    async with InMemoryNetwork() as network, network.client() as client:
        with pytest.raises(StartupFailed, match=f"tools did not start: .*{reason}"):
            await network.start("tools", app)
        assert (network.up, network.errors) == ((), [])
        with pytest.raises(httpx.ConnectError):
            await client.get(network.url("tools"))
        assert await network.start("tools", App()) == network.url("tools")


@pytest.mark.trio
async def test_a_server_may_be_killed_or_given_up_while_it_starts(autojump_clock: trio.testing.MockClock) -> None:
    """A startup that hangs ends with its server or with whoever waits for it, and the name is free again."""

    async def hangs(scope: Scope, receive: Receive, send: Send) -> None:
        await trio.sleep_forever()

    async with InMemoryNetwork() as network, trio.open_nursery() as nursery:

        async def start() -> None:
            with pytest.raises(StartupFailed, match="killed while it started"):
                await network.start("tools", hangs)

        nursery.start_soon(start)
        await trio.testing.wait_all_tasks_blocked()
        network.kill("tools")
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(5):
            await network.start("tools", hangs)
        assert not network.up
        await network.start("tools", App())


@pytest.mark.trio
async def test_an_application_without_a_lifespan_is_served_where_that_is_said() -> None:
    """`lifespan=False` sends it no lifespan events, at the start and at the stop."""

    async def plain(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        await answer(send)

    async with InMemoryNetwork() as network, network.client() as client:
        url = await network.start("plain", plain, lifespan=False)
        assert (await client.get(url)).text == "ok"
        await network.stop("plain")
        assert network.errors == []


@pytest.mark.trio
async def test_a_name_is_given_once() -> None:
    """A second server of a name that is up is refused; a server that is not up cannot be killed."""
    async with InMemoryNetwork() as network:
        await network.start("tools", App())
        with pytest.raises(ValueError, match="'tools' is up already"):
            await network.start("tools", App())
        network.kill("tools")
        with pytest.raises(KeyError):
            network.kill("tools")
    with pytest.raises(RuntimeError, match="async with"):
        await InMemoryNetwork().start("tools", App())


@pytest.mark.trio
async def test_a_handler_runs_on_when_its_caller_leaves() -> None:
    """The caller's cancellation is http.disconnect for the handler, and nothing else: it ends its work."""
    work = trio.Event()

    async def long(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        app.note((await receive())["type"])
        await work.wait()
        await answer(send)

    app = App(long)
    async with InMemoryNetwork() as network, network.client() as client, trio.open_nursery() as nursery:
        url = await network.start("tools", app)
        nursery.start_soon(client.get, url)
        await app.until("GET /")
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await app.until("http.disconnect")
            work.set()
            await app.until("ended")
        assert "cancelled" not in app.log


@pytest.mark.trio
async def test_disconnect_comes_after_the_reply_too() -> None:
    """A handler that asks on after its response was sent hears http.disconnect, as on real servers."""

    async def asks_on(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send)
        app.note((await receive())["type"])
        app.note((await receive())["type"])

    app = App(asks_on)
    async with InMemoryNetwork() as network, network.client() as client:
        await client.get(await network.start("tools", app))
        await app.until("ended")
        assert app.log[-3:-1] == ["http.request", "http.disconnect"]


@pytest.mark.trio
async def test_killing_a_server_breaks_its_callers_and_cancels_its_handlers() -> None:
    """Callers in the middle of a request get a broken connection; the next one is refused; nothing shuts down."""
    app = App(held)
    broken: list[str] = []

    async def ask() -> None:
        try:
            await client.get(url)
        except httpx.RemoteProtocolError as error:
            broken.append(str(error))

    async with InMemoryNetwork() as network, network.client() as client:
        url = await network.start("tools", app)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            assert app.log.count("GET /") == 3
            network.kill("tools")
        assert broken == ["http://tools.local: disconnected without a response: the server was killed"] * 3
        assert app.log.count("cancelled") == 3
        assert "lifespan.shutdown" not in app.log
        with pytest.raises(httpx.ConnectError, match="refused"):
            await client.get(url)


@pytest.mark.trio
async def test_connections_are_cut_between_those_who_are_named() -> None:
    """A cut breaks what is under way between two, and nothing else; whoever watches hears who got an answer."""
    app = App(held)
    seen: list[tuple[str, str]] = []
    broken: list[str] = []

    async def ask(source: str) -> None:
        async with network.client(source) as client:
            try:
                await client.get(network.url("tools"))
            except httpx.RemoteProtocolError:
                broken.append(source)

    async with InMemoryNetwork() as network:
        network.watch = lambda call, what: seen.append((call.source, what))
        await network.start("tools", app)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "agent")
            nursery.start_soon(ask, "environment")
            await trio.testing.wait_all_tasks_blocked()
            network.break_off(lambda source, server: (source, server) == ("agent", "tools"))
            await trio.testing.wait_all_tasks_blocked()
            assert broken == ["agent"]
            nursery.cancel_scope.cancel()
    assert sorted(seen) == [("agent", "breaks"), ("agent", "has"), ("environment", "has")]


@pytest.mark.trio
async def test_a_request_that_a_killed_server_has_not_begun_changes_nothing() -> None:
    """Between the arrival of a request and the handler's first step lies a kill: the handler never runs."""
    app = App()
    async with InMemoryNetwork() as network, network.client() as client:
        url = await network.start("tools", app)

        async def ask() -> None:
            with pytest.raises(httpx.RemoteProtocolError, match="killed"):
                await client.get(url)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while not network._servers["tools"]._exchanges:
                await trio.lowlevel.checkpoint()
            network.kill("tools")
        assert "GET /" not in app.log


@pytest.mark.trio
async def test_a_server_killed_in_the_middle_of_a_body_breaks_the_body() -> None:
    """What was read stays read; the rest is an error of the protocol, not an end."""

    async def half(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await trio.sleep_forever()

    async with InMemoryNetwork() as network, network.client() as client:
        url = await network.start("tools", App(half))
        async with client.stream("GET", url) as reply:
            parts = reply.aiter_raw()
            assert await anext(parts) == b"first"
            network.kill("tools")
            with pytest.raises(httpx.RemoteProtocolError, match="before the whole body"):
                await anext(parts)


@pytest.mark.trio
async def test_a_restart_is_a_fresh_server_under_the_old_name() -> None:
    """The old one's handlers have ended before the new one starts; the same URL leads to the new one."""
    old, new = App(held), App()
    async with InMemoryNetwork() as network, network.client() as client, trio.open_nursery() as nursery:
        url = await network.start("tools", old)

        async def ask() -> None:
            with pytest.raises(httpx.RemoteProtocolError):
                await client.get(url)

        nursery.start_soon(ask)
        await old.until("GET /")
        assert await network.restart("tools", new) == url
        assert old.log[-1] == "cancelled"
        assert (await client.get(url)).text == "ok"
        network.kill("tools")
        assert await network.restart("tools", App()) == url


@pytest.mark.trio
async def test_an_exception_is_a_500_for_the_caller_and_is_kept(autojump_clock: trio.testing.MockClock) -> None:
    """As real servers do: plain text before the response, a broken connection after; the test can see the exception."""

    async def bug(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/late":
            await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] != "/silent":
            raise ZeroDivisionError("a bug")

    async with InMemoryNetwork() as network, network.client() as client:
        url = await network.start("tools", App(bug))
        reply = await client.get(url + "/early")
        assert (reply.status_code, reply.text) == (500, "Internal Server Error")
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(url + "/late")
        assert (await client.get(url + "/silent")).status_code == 500
        assert [(error.server, error.where, type(error.error)) for error in network.errors] == [
            ("tools", "GET /early", ZeroDivisionError),
            ("tools", "GET /late", ZeroDivisionError),
            ("tools", "GET /silent", RuntimeError),
        ]


START: Message = {"type": "http.response.start", "status": 200, "headers": []}
BODY: Message = {"type": "http.response.body", "body": b"12345"}


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([BODY], "before it was started"),
        ([START, START], "started twice"),
        ([START, BODY, BODY], "was complete"),
        ([{"type": "websocket.accept"}], "no message 'websocket.accept'"),
        ([{**START, "headers": [("name", "value")]}], "pair of bytes"),
        ([{**START, "headers": [(b"name", b"a\r\nb: c")]}], "cannot be sent"),
        ([{**START, "headers": [(b"content-length", b"4")]}, BODY], "content-length is 4, and the body has 5"),
        ([{**START, "headers": [(b"content-length", b"6")]}, BODY], "content-length is 6, and the body has 5"),
    ],
)
@pytest.mark.trio
async def test_a_response_that_http_cannot_carry_is_the_applications_error(
    messages: list[Message], problem: str
) -> None:
    """A real server's protocol code refuses these; here they do not pass unseen either."""

    async def wrong(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    async with InMemoryNetwork() as network, network.client() as client:
        url = await network.start("tools", App(wrong))
        try:
            reply = await client.get(url)
        except httpx.RemoteProtocolError:
            reply = None
        assert reply is None or reply.status_code == 500 or reply.content == b"12345"
        (error,) = network.errors
        assert problem in str(error.error)


@pytest.mark.trio
async def test_replies_without_a_body_have_none() -> None:
    """HEAD, 204 and 304: what the application sends as body is not sent, and content-length may name what would be."""

    async def sized(scope: Scope, receive: Receive, send: Send) -> None:
        status = 204 if scope["path"] == "/none" else 200
        await answer(send, b"" if status == 204 else b"12345", status, [(b"content-length", b"5")])

    async with InMemoryNetwork() as network, network.client() as client:
        url = await network.start("tools", App(sized))
        assert (await client.head(url)).content == b""
        assert (await client.get(url + "/none")).content == b""
        assert network.errors == []


@pytest.mark.trio
async def test_a_request_that_http_cannot_carry_is_the_callers_error() -> None:
    """A line break in a header, and a body that is not readable here, never leave the caller."""
    async with InMemoryNetwork() as network, network.client() as client:
        url = await network.start("tools", App())
        with pytest.raises(httpx.LocalProtocolError):
            await client.get(url, headers=[(b"x", b"a\r\nb")])
        request = httpx.Request("POST", url, stream=httpx.SyncByteStream())
        with pytest.raises(TypeError, match="asynchronously"):
            await network.transport().handle_async_request(request)


@pytest.mark.trio
async def test_timeouts_are_kept(autojump_clock: trio.testing.MockClock) -> None:
    """Connect and read timeouts fire in the network's time, for the head of a reply and between parts of a body."""

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        for _ in range(3):
            await trio.sleep(4)
            await send({**BODY, "more_body": True})
        await trio.sleep(30)
        await send(BODY)

    async with InMemoryNetwork() as network, network.client() as client:
        url = await network.start("tools", App(slow))
        parts = 0
        with pytest.raises(httpx.ReadTimeout, match="within 5 s"):
            async with client.stream("GET", url, timeout=httpx.Timeout(None, read=5)) as reply:
                async for _part in reply.aiter_raw():
                    parts += 1
        assert parts == 3
        assert trio.current_time() == pytest.approx(17)
        await network.start("held", App(held))
        with pytest.raises(httpx.ReadTimeout):
            await client.get(network.url("held"), timeout=httpx.Timeout(None, read=100))
        assert trio.current_time() == pytest.approx(117)
        network.faults = lambda call: Fault(connect_s=3)
        with pytest.raises(httpx.ConnectTimeout):
            await client.get(url, timeout=httpx.Timeout(None, connect=2))
        assert trio.current_time() == pytest.approx(119)


@pytest.mark.trio
async def test_a_fast_sender_waits_for_a_slow_reader() -> None:
    """What is sent and not read is bounded: the handler waits, and goes on when its caller reads or leaves."""
    sent = 0

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        await send(START)
        for _ in range(40):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            sent += 1
        await send(BODY)

    app = App(endless)
    async with InMemoryNetwork() as network, network.client() as client:
        async with client.stream("GET", await network.start("tools", app)):
            await trio.testing.wait_all_tasks_blocked()
            assert sent == 3
        await app.until("ended")
        assert sent == 40


@pytest.mark.trio
async def test_faults_are_seen_by_the_right_side(autojump_clock: trio.testing.MockClock) -> None:
    """Refused, lost on the way, lost on the way back, delayed, vanished: who sees what."""
    app = App()
    async with InMemoryNetwork() as network, network.client("agent") as client:
        url = await network.start("tools", app)

        async def ask(fault: Fault, **timeouts: float) -> str:
            network.faults = once(fault, server="tools", path="/step", source="agent")
            app.log.clear()
            try:
                await client.post(url + "/step", timeout=httpx.Timeout(None, **timeouts))
            except httpx.TransportError as error:
                return f"{type(error).__name__} {'seen' if 'POST /step' in app.log else 'unseen'}"
            return "answered"

        assert await ask(Fault(refuse=True)) == "ConnectError unseen"
        assert await ask(Fault(lose_request=True)) == "ReadError unseen"
        assert await ask(Fault(lose_reply=True)) == "ReadError seen"
        assert await ask(Fault(silent=True), read=9) == "ReadTimeout unseen"
        assert await ask(Fault(reply_s=9), read=5) == "ReadTimeout seen"
        assert await ask(Fault(connect_s=1, request_s=2, reply_s=3), connect=2, read=6) == "answered"
        before = trio.current_time()
        assert await ask(Fault(connect_s=1, request_s=2, reply_s=3)) == "answered"
        assert trio.current_time() - before == pytest.approx(6)


@pytest.mark.trio
async def test_what_was_sent_can_come_again(autojump_clock: trio.testing.MockClock) -> None:
    """Whoever is told of each sending can have it come once more, to whoever has the name by then, or to nobody."""
    old, new = App(), App()
    sent: list[tuple[Call, Exchange]] = []
    async with InMemoryNetwork() as network, network.client() as client:
        network.sent = lambda call, exchange: sent.append((call, exchange))
        url = await network.start("tools", old)
        assert (await client.get(url + "/once")).status_code == 200
        for after_s in (5, 15):
            network.send_again(*sent[0], after_s)
        network.kill("tools")
        await trio.sleep(10)
        await network.start("tools", new)
        await trio.sleep(10)
    assert old.log.count("GET /once") == new.log.count("GET /once") == 1
    assert len(sent) == 1


@pytest.mark.trio
async def test_a_late_request_arrives_without_its_caller(autojump_clock: trio.testing.MockClock) -> None:
    """A delayed request and a repeated one reach whoever has the name by then, also after the caller has gone."""
    old, new = App(), App()
    async with InMemoryNetwork() as network, network.client() as client:
        url = await network.start("tools", old)
        network.faults = once(Fault(request_s=10, repeat_s=20))
        with pytest.raises(httpx.ReadTimeout):
            await client.get(url + "/late", timeout=httpx.Timeout(None, read=1))
        await network.restart("tools", new)
        await trio.sleep(15)
        assert new.log == ["lifespan.startup", "GET /late", "ended"]
        await trio.sleep(20)
        assert new.log.count("GET /late") == 2
        network.faults = once(Fault(request_s=10))
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(httpx.RemoteProtocolError, match="gone"):
                    await client.get(url)

            nursery.start_soon(ask)
            await trio.sleep(5)
            network.kill("tools")


@pytest.mark.trio
async def test_a_fault_hook_is_told_what_is_sent() -> None:
    """Source, server, path, request and a running number; `once` fires once, for what it names and nothing else."""
    calls: list[Call] = []

    def hook(call: Call) -> None:
        calls.append(call)

    async with InMemoryNetwork(hook) as network:
        await network.start("tools", App())
        async with network.client("agent") as one, network.client() as other:
            await one.get("http://tools.local/a")
            await other.post("http://tools.local/b")
    assert [(call.source, call.server, call.request.method, call.path, call.number) for call in calls] == [
        ("agent", "tools", "GET", "/a", 1),
        ("", "tools", "POST", "/b", 2),
    ]
    fires = once(Fault(refuse=True), server="tools", path="/b")
    assert [fires(call) for call in (*calls, *calls)] == [None, Fault(refuse=True), None, None]


@pytest.mark.trio
async def test_a_stop_opens_the_gate_and_lets_handlers_end(autojump_clock: trio.testing.MockClock) -> None:
    """before_shutdown is called first, what it releases ends well, what goes on is cut at the graceful timeout."""
    gate = trio.Event()

    async def gated(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/held":
            await gate.wait()
        else:
            await trio.sleep_forever()
        await answer(send)

    class Gated(App):
        async def before_shutdown(self) -> None:
            gate.set()

    app = Gated(gated)
    replies: list[str] = []

    async def ask(path: str) -> None:
        try:
            replies.append((await client.get(url + path)).text)
        except httpx.RemoteProtocolError:
            replies.append("broken")

    async with InMemoryNetwork() as network, network.client() as client, trio.open_nursery() as nursery:
        url = await network.start("tools", app)
        nursery.start_soon(ask, "/held")
        nursery.start_soon(ask, "/for-ever")
        await trio.testing.wait_all_tasks_blocked()
        await network.stop("tools", graceful_s=7)
        assert replies == ["ok", "broken"]
        assert trio.current_time() == pytest.approx(7)
        assert app.log[-2:] == ["cancelled", "lifespan.shutdown"]


@pytest.mark.trio
async def test_a_hook_or_a_lifespan_that_raises_is_kept(autojump_clock: trio.testing.MockClock) -> None:
    """A server is stopped all the same, and the test can see what went wrong."""

    class Broken(App):
        def before_shutdown(self) -> None:
            raise LookupError("no gate")

        async def lifespan(self, receive: Receive, send: Send) -> None:
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            raise LookupError("no end")

    async with InMemoryNetwork() as network:
        await network.start("tools", Broken())
        await network.stop("tools")
        assert [error.where for error in network.errors] == ["before_shutdown", "lifespan"]


@pytest.mark.trio
async def test_a_handler_does_not_see_its_callers_context() -> None:
    """Context variables stay on their side of the network, as between processes."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="the server's")

    async def show(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, variable.get().encode())

    async with InMemoryNetwork() as network, network.client() as client:
        url = await network.start("tools", App(show))
        variable.set("the caller's")
        assert (await client.get(url)).text == "the server's"


@pytest.mark.trio
async def test_servers_call_each_other() -> None:
    """A handler is a caller too, on the same network, and also of its own server."""
    async with InMemoryNetwork() as network, network.client() as client:

        async def relay(scope: Scope, receive: Receive, send: Send) -> None:
            target = "tools" if scope["path"] == "/" else "agent"
            reply = await client.get(f"http://{target}.local/x" if target == "tools" else "http://agent.local/")
            await answer(send, reply.content)

        await network.start("tools", App())
        url = await network.start("agent", App(relay))
        assert (await client.get(url + "/through-myself")).text == "ok"


@pytest.mark.trio
async def test_leaving_the_network_with_an_error_shows_that_error() -> None:
    """What a test raises in the block comes out as it is, in no group, and the servers are gone."""
    app = App()
    with pytest.raises(AssertionError, match="the test failed"):
        async with InMemoryNetwork() as network:
            await network.start("tools", app)
            raise AssertionError("the test failed")
    assert network.up == ()


class Born(App):
    """A server that knows the life it was started in."""

    def __init__(self, epoch: int, urls: Mapping[str, str]) -> None:
        super().__init__()
        self.epoch = epoch
        self.urls = urls


@pytest.mark.trio
async def test_a_launcher_starts_all_servers_of_a_life_or_none() -> None:
    """Each start is fresh, born with its epoch and told all addresses; a failed start leaves nothing up."""
    born: list[Born] = []

    def factory(epoch: int, urls: Mapping[str, str]) -> ASGIApp:
        born.append(Born(epoch, urls))
        return born[-1] if epoch < 3 else says_failed

    async with InMemoryNetwork() as network, network.client() as client:
        launcher = InMemoryLauncher(network, {"tools": factory, "agent": factory})
        urls = await launcher.start(1)
        assert dict(urls) == {"tools": "http://tools.local", "agent": "http://agent.local"}
        launcher.kill("agent")
        assert "agent" not in launcher.up
        await launcher.stop()
        await launcher.start(2)
        assert [(each.epoch, each.urls) for each in born] == [(1, urls), (1, urls), (2, urls), (2, urls)]
        assert (await client.get(urls["agent"])).text == "ok"
        launcher.kill()
        assert not launcher.up
        with pytest.raises(StartupFailed):
            await launcher.start(3)
        assert not network.up
