"""What stands behind a model server: a base URL or a callable, its errors passed on, its loss said."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
import trio
import trio.testing

from participants.net.client import make_client
from participants.net.http import ASGIApp, Message, Receive, Scope, Send
from participants.servers.upstream import CallableUpstream, HttpUpstream, ReplyCutOff, UpstreamError, upstream_app
from participants.serving.testing import Fault, InMemoryNetwork, once
from tests.policy_server import CHAT, Policy, completion, running, user

LIMIT = 1 << 20
INCARNATION = "x-statecore-incarnation"
Answering = Callable[[Scope, bytes, Send], Awaitable[None]]


class Backend:
    """An HTTP server that a base URL can name: writes down what it is asked and answers by `answer`."""

    def __init__(self, answer: Answering) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str, bytes, dict[str, str], bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.asked.append((scope["method"], scope["path"], scope["query_string"], headers, body))
        await self.answer(scope, body, send)


def saying(status: int, body: bytes, kind: str = "application/json", **headers: str) -> Answering:
    """Always this reply."""
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]

    async def answer(scope: Scope, asked: bytes, send: Send) -> None:
        named = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode()), *pairs]
        await send({"type": "http.response.start", "status": status, "headers": named})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    return answer


async def beside(network: InMemoryNetwork, answer: Answering) -> Backend:
    """A backend on that network, called `vllm`."""
    backend = Backend(answer)
    await network.start("vllm", backend, lifespan=False)
    return backend


REPLY = json.dumps(completion("hello")).encode()


# --- a base URL


@pytest.mark.parametrize(
    ("base", "path", "query", "expected"),
    [
        ("http://h:9000/v1", "/v1/chat/completions", b"", "http://h:9000/v1/chat/completions"),
        ("http://h:9000/v1/", "/v1/models", b"limit=3", "http://h:9000/v1/models?limit=3"),
        ("https://h/openai", "/v1/responses", b"", "https://h/openai/responses"),
        ("https://h/openai/v1", "/any/v1/responses", b"", "https://h/openai/v1/responses"),
        ("http://h:9000/v1", "/tokenize", b"", "http://h:9000/tokenize"),
        ("http://h:9000", "/v1/messages", b"", "http://h:9000/messages"),
    ],
)
def test_a_path_is_appended_behind_v1(base: str, path: str, query: bytes, expected: str) -> None:
    """What follows /v1/ goes behind the base; other paths go to where the base's own /v1 would be."""
    assert HttpUpstream(base, api_key=None, transport=None, max_body_bytes=LIMIT).target(path, query) == expected


@pytest.mark.trio
async def test_a_request_reaches_the_backend_as_it_is() -> None:
    """Path, query and body arrive, with the caller's key and without its identity; the reply comes back as it is."""
    async with InMemoryNetwork() as network:
        backend = await beside(network, saying(200, REPLY, x_request_id="q1", server="vllm"))
        async with running("http://vllm.local/v1", network=network) as policy:
            body = b'{"messages": [ {"role":"user","content":"\xc3\xa4"}]}'
            reply = await policy.client.post(
                f"{policy.url}/ng-rollout/r1{CHAT}?a=b%20c",
                content=body,
                headers={"authorization": "Bearer mine", "cookie": "a=b", "content-type": "application/json"},
            )
        assert (reply.status_code, reply.content) == (200, REPLY)
        assert reply.headers["x-request-id"] == "q1" and "server" not in reply.headers
        (method, path, query, headers, got), *more = backend.asked
        assert (method, path, query, got, more) == ("POST", CHAT, b"a=b%20c", body, [])
        assert (headers["authorization"], headers["accept-encoding"]) == ("Bearer mine", "identity")
        assert not [name for name in headers if name == "cookie" or name.startswith(("x-nemo", "x-statecore"))]


@pytest.mark.trio
async def test_our_own_key_replaces_the_callers() -> None:
    """With upstream_api_key the backend sees that key and nobody else's."""
    async with InMemoryNetwork() as network:
        backend = await beside(network, saying(200, REPLY))
        app = upstream_app("http://vllm.local/v1", api_key="ours", transport=network.transport(), max_body_bytes=LIMIT)
        await network.start("judge", app)
        async with network.client() as client:
            await client.post(f"http://judge.local{CHAT}", json={}, headers={"Authorization": "Bearer mine"})
        assert backend.asked[0][3]["authorization"] == "Bearer ours"


@pytest.mark.trio
@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (400, "application/json", b'{"error": {"message": "too long", "code": 400}}'),
        (429, "application/problem+json; charset=utf-8", b'{"title":"slow down"}'),
        (500, "text/plain", b"boom"),
        (503, "text/html", b""),
    ],
)
async def test_errors_of_the_backend_are_passed_on(status: int, kind: str, body: bytes) -> None:
    """Status, body and headers are the backend's own, with our incarnation; the row says that the call failed."""
    async with InMemoryNetwork() as network:
        await beside(network, saying(status, body, kind, retry_after="3"))
        async with running("http://vllm.local/v1", network=network) as policy:
            reply = await policy.chat("r1", [user("a")])
            assert (reply.status_code, reply.content, reply.headers["content-type"]) == (status, body, kind)
            assert reply.headers["retry-after"] == "3" and reply.headers[INCARNATION]
            assert [row["failure_reason"] for row in policy.rows("r1")] == [f"HTTP {status}"]


async def lost(policy: Policy) -> None:
    """The next call finds the backend lost."""
    reply = await policy.chat("r1", [user("a")])
    assert (reply.status_code, reply.json()["error"]["code"]) == (502, "upstream_lost")
    assert "http://vllm.local/v1 is lost" in reply.json()["error"]["detail"]
    assert reply.headers[INCARNATION]
    assert policy.rows("r1")[-1]["failure_reason"] == "HTTP 502"


@pytest.mark.trio
async def test_a_lost_backend_is_said(autojump_clock: trio.testing.MockClock) -> None:
    """No connection, a broken one and a death while it generates are 502 upstream_lost; then it is served again."""
    async with InMemoryNetwork() as network, running("http://vllm.local/v1", network=network) as policy:
        await lost(policy)
        backend = await beside(network, saying(200, REPLY))
        network.faults = once(Fault(lose_reply=True), server="vllm")
        await lost(policy)

        async def for_ever(scope: Scope, asked: bytes, send: Send) -> None:
            network.kill("vllm")
            await trio.sleep_forever()

        backend.answer = for_ever
        await lost(policy)
        await beside(network, saying(200, REPLY))
        assert (await policy.chat("r1", [user("a")])).status_code == 200


def parts(*texts: bytes, kind: str = "text/event-stream", then: Callable[[], None] = lambda: None) -> Answering:
    """A reply in parts, a second apart; `then` is called before the last one."""

    async def answer(scope: Scope, asked: bytes, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind.encode())]})
        for number, text in enumerate(texts, 1):
            if number == len(texts):
                then()
            await send({"type": "http.response.body", "body": text, "more_body": True})
            await trio.sleep(1)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return answer


@pytest.mark.trio
async def test_a_stream_is_passed_on_as_it_comes(autojump_clock: trio.testing.MockClock) -> None:
    """Each part reaches the caller when the backend has sent it, in order."""
    async with InMemoryNetwork() as network:
        await beside(network, parts(b"data: 1\n\n", b"data: 2\n\n"))
        async with running("http://vllm.local/v1", network=network) as policy:
            arrived: list[tuple[float, bytes]] = []
            start = trio.current_time()
            async with policy.client.stream("POST", f"{policy.url}/ng-rollout/r1{CHAT}", json={}) as reply:
                async for part in reply.aiter_raw():
                    arrived.append((round(trio.current_time() - start, 3), part))
            assert arrived == [(0.0, b"data: 1\n\n"), (1.0, b"data: 2\n\n")]
            assert len(policy.rows("r1")) == 1


@pytest.mark.trio
async def test_a_backend_that_dies_in_the_middle_of_a_stream(autojump_clock: trio.testing.MockClock) -> None:
    """The caller's connection breaks, and the failure row says what was lost; before the first part it is a 502."""
    async with InMemoryNetwork() as network, running("http://vllm.local/v1", network=network) as policy:
        await beside(network, parts(b"data: 1\n\n", b"data: 2\n\n", then=lambda: network.kill("vllm")))
        with pytest.raises(httpx.RemoteProtocolError):
            await policy.chat("r1", [user("a")])
        assert "was lost in the middle of a reply" in policy.rows("r1")[0]["failure_reason"]
        assert [type(each.error) for each in network.errors] == [ReplyCutOff]
        await beside(network, parts(b"data: 1\n\n", then=lambda: network.kill("vllm")))
        await lost(policy)
        await beside(network, parts(b'{"a":', b"1}", kind="application/json", then=lambda: network.kill("vllm")))
        await lost(policy)


@pytest.mark.trio
async def test_a_stream_without_parts_is_an_empty_reply(autojump_clock: trio.testing.MockClock) -> None:
    """A backend that streams nothing gives a whole, empty reply."""
    async with InMemoryNetwork() as network, running("http://vllm.local/v1", network=network) as policy:
        await beside(network, parts())
        reply = await policy.chat("r1", [user("a")])
        assert (reply.status_code, reply.content) == (200, b"")


@pytest.mark.trio
async def test_a_compressed_reply_is_passed_on_plain() -> None:
    """A backend that compresses although nobody asked is understood; length and encoding are of what is sent."""
    async with InMemoryNetwork() as network, running("http://vllm.local/v1", network=network) as policy:
        await beside(network, saying(200, gzip.compress(REPLY), content_encoding="gzip"))
        reply = await policy.chat("r1", [user("a")])
        assert reply.json() == completion("hello")
        assert "content-encoding" not in reply.headers and int(reply.headers["content-length"]) == len(REPLY)


@pytest.mark.trio
async def test_reading_goes_to_the_backend_ungated() -> None:
    """A model list is the backend's, also while the server is closed; control routes and probes never are."""
    async with InMemoryNetwork() as network, running("http://vllm.local/v1", network=network) as policy:
        backend = await beside(network, saying(200, b'{"data": []}'))
        await policy.done("prepare")
        assert (await policy.client.get(f"{policy.url}/v1/models?limit=3")).json() == {"data": []}
        for path in ("/healthz", "/ng-control/v1/other", "/ng-control/v1/generation-cut"):
            await policy.client.get(policy.url + path)
            await policy.client.post(policy.url + path, json={})
        assert [each[:3] for each in backend.asked] == [("GET", "/v1/models", b"limit=3"), ("POST", "/healthz", b"")]


@pytest.mark.trio
async def test_more_requests_than_the_client_may_have_are_refused(autojump_clock: trio.testing.MockClock) -> None:
    """A backend that is full of our own requests is 503 too_many_held for one more."""
    async with InMemoryNetwork() as network, trio.open_nursery() as nursery:
        transport = network.transport("judge")
        app = HttpUpstream("http://vllm.local/v1", api_key=None, transport=transport, max_body_bytes=LIMIT)
        app._client = make_client(transport, max_in_flight=1)
        await beside(network, parts(b'{"a":', b"1}", kind="application/json"))
        url = await network.start("judge", app)
        async with network.client() as client:
            nursery.start_soon(client.post, url + CHAT)
            await trio.sleep(0.5)
            reply = await client.post(url + CHAT)
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "too_many_held")
            await trio.sleep(5)


@pytest.mark.trio
async def test_connections_are_closed_by_whoever_made_them() -> None:
    """At the end of its lifespan a server closes its own connections, and leaves a transport that it was given."""

    class Transport(httpx.AsyncBaseTransport):
        closed = 0

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return httpx.Response(200, json={})

        async def aclose(self) -> None:
            self.closed += 1

    async with InMemoryNetwork() as network, network.client() as client:
        for handed, expected in ((Transport(), 0), (None, 1)):
            app = HttpUpstream("http://vllm.local/v1", api_key=None, transport=handed, max_body_bytes=LIMIT)
            inner = handed or Transport()
            app._client = make_client(inner)
            url = await network.start("judge", app)
            assert (await client.post(url + CHAT)).status_code == 200
            await network.stop("judge")
            assert inner.closed == expected


# --- a callable


async def calling(call: Any, content: bytes = b"{}", path: str = CHAT, method: str = "POST") -> httpx.Response:
    """The reply of a server in front of that callable, checkpointing off."""
    async with InMemoryNetwork() as network, network.client() as client:
        url = await network.start("judge", upstream_app(call, max_body_bytes=LIMIT))
        return await client.request(method, url + path, content=content)


def plain(path: str, body: Any) -> Any:
    return {"path": path, "body": body}


async def awaited(path: str, body: Any) -> Any:
    await trio.lowlevel.checkpoint()
    return {"path": path, "body": body}


@pytest.mark.trio
@pytest.mark.parametrize("call", [plain, awaited])
async def test_a_callable_gets_path_and_body(call: Any) -> None:
    """Synchronous or not, it is given the path without prefix and the JSON body, and its object is the reply."""
    reply = await calling(call, b'{"a": 1}', f"/ng-rollout/r1{CHAT}")
    assert (reply.status_code, reply.json()) == (200, {"path": CHAT, "body": {"a": 1}})
    assert (await calling(call, b"{}", "/ng-rollout/bad!id/v1/x")).json()["path"] == "/ng-rollout/bad!id/v1/x"


async def streaming(path: str, body: Any) -> AsyncIterator[bytes]:
    yield b"data: 1\n\n"
    yield b"data: 2\n\n"


async def empty(path: str, body: Any) -> AsyncIterator[bytes]:
    for part in list[bytes]():
        yield part


@pytest.mark.trio
async def test_a_callable_may_stream() -> None:
    """An async generator is a stream of server-sent events, also an empty one."""
    reply = await calling(streaming)
    assert (reply.text, reply.headers["content-type"]) == ("data: 1\n\ndata: 2\n\n", "text/event-stream")
    assert (await calling(empty)).text == ""


async def busy(path: str, body: Any) -> Any:
    raise UpstreamError(429, {"error": {"message": "slow down"}})


async def busy_stream(path: str, body: Any) -> AsyncIterator[bytes]:
    async for part in empty(path, body):
        yield part
    raise UpstreamError(429, {"error": {"message": "slow down"}})


@pytest.mark.trio
@pytest.mark.parametrize("call", [busy, busy_stream])
async def test_a_callable_answers_with_an_error(call: Any) -> None:
    """UpstreamError is the reply that a server would have given."""
    reply = await calling(call)
    assert (reply.status_code, reply.json()) == (429, {"error": {"message": "slow down"}})


@pytest.mark.trio
@pytest.mark.parametrize(
    ("call", "detail"),
    [
        (lambda path, body: body["missing"], "KeyError: 'missing'"),
        (lambda path, body: 7, "an object or an async iterator of bytes, not int"),
        (lambda path, body: None, "not NoneType"),
        (lambda path, body: {"a": float("nan")}, "ValueError"),
        (lambda path, body: {"a": object()}, "TypeError"),
    ],
)
async def test_a_callable_that_fails_is_a_500_of_ours(call: Any, detail: str) -> None:
    """An exception, or something that is no reply, is 500 upstream_failed and says what it was."""
    reply = await calling(call)
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "upstream_failed")
    assert detail in reply.json()["error"]["detail"]


@pytest.mark.trio
@pytest.mark.parametrize("content", [b"", b"no json", b"[]", b"3", b'{"a": NaN}', b'{"a": 1, "a": 2}', b"\xff"])
async def test_a_body_that_is_no_object_never_reaches_a_callable(content: bytes) -> None:
    """Such a body is 422 in FastAPI's form."""
    reply = await calling(plain, content)
    assert reply.status_code == 422 and reply.json()["detail"][0]["loc"][0] == "body"


@pytest.mark.trio
async def test_what_a_callable_is_not_asked() -> None:
    """Reading is 404, a body beyond the limit 413, probes are answered, and a websocket is closed."""
    assert (await calling(plain, method="GET", path="/v1/models")).status_code == 404
    assert (await calling(plain, b" " * (LIMIT + 1))).status_code == 413
    assert (await calling(plain, method="GET", path="/readyz")).json() == {"status": "ok"}
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    app: ASGIApp = CallableUpstream(plain, max_body_bytes=LIMIT)
    await app({"type": "websocket", "path": "/"}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1000}]


@pytest.mark.trio
async def test_a_caller_that_leaves_before_its_body_is_there_is_no_error() -> None:
    """The request is dropped; nothing raises, nothing is sent."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    app: ASGIApp = CallableUpstream(plain, max_body_bytes=LIMIT)
    await app({"type": "http", "method": "POST", "path": CHAT, "headers": []}, receive, send)
    assert sent == []
