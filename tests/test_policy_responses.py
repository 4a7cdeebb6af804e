"""How responses leave a policy model server: streams, foreign applications, callers that go, off, both loops."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import anyio
import httpx
import pytest
import trio
import trio.testing
from attrs import define, field
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from participants.identity import EpisodeId
from participants.net.http import ASGIApp, Incoming, Message, Receive, Scope, Send, refuse_request
from participants.servers.admission import Activity, Admission
from participants.servers.conversation import asked
from participants.servers.delivery import Caller, Delivery
from participants.servers.policy_model import PolicyModel
from participants.servers.upstream import ReplyCutOff
from statecore import Refused
from tests.both_loops import on_both_loops
from tests.policy_server import CHAT, TOKEN, Calls, Generator, assistant, completion, episode, running, settings, user

RESPONSES = "/v1/responses"


@define(eq=False)
class Stream:
    """A callable upstream that streams: each part when the test lets it go."""

    parts: list[bytes]
    gates: list[trio.Event] = field(factory=list)
    ended: list[str] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.gates = [trio.Event() for _ in self.parts]

    async def __call__(self, path: str, body: Any) -> AsyncIterator[bytes]:
        return self._parts()

    async def _parts(self) -> AsyncIterator[bytes]:
        try:
            for gate, part in zip(self.gates, self.parts, strict=True):
                await gate.wait()
                yield part
        finally:
            self.ended.append("closed")

    def let(self, *numbers: int) -> None:
        for number in numbers:
            self.gates[number].set()


def events(*texts: str) -> list[bytes]:
    """The server-sent events of a streamed chat completion, one part each, [DONE] last."""
    deltas = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    return [f"data: {json.dumps(delta)}\n\n".encode() for delta in deltas] + [b"data: [DONE]\n\n"]


# --- streams


@pytest.mark.trio
async def test_a_response_that_has_started_blocks_prepare(autojump_clock: trio.testing.MockClock) -> None:
    """Prepare answers preparing and names the blocker, "" for nobody's call (row 79); the body is whole (row 84)."""
    stream = Stream([b"a", b"b"])
    async with running(stream) as policy, trio.open_nursery() as nursery:
        calls = Calls(nursery, policy)
        calls.start("one", None, path=RESPONSES)
        stream.let(0)
        await trio.sleep(1)
        reply = await policy.done("prepare", "c2", within_s=5)
        report = reply["report"]
        assert (reply["phase"], report["ready"], report["blockers"], report["blocker_count"]) == (
            "preparing",
            False,
            [""],
            1,
        )
        assert report["counts"] == {"inflight": 1, "held": 0, "cut": 0, "cut_failed": 0, "cut_skipped": 0}
        (detail,) = report["blocker_details"]
        assert (detail["rollout_id"], detail["attempt"], detail["waited_s"]) == ("", 0, 6.0)
        assert "/v1/responses has started" in detail["reason"]
        await policy.done("resume", "c2")
        stream.let(1)
        assert (await calls.reply("one")).text == "ab"


@pytest.mark.trio
async def test_prepare_is_ready_when_the_started_response_ends(autojump_clock: trio.testing.MockClock) -> None:
    """The wait for readiness ends with the last byte of what had started; its row is in the part."""
    stream = Stream(events("he", "llo"))
    async with running(stream) as policy, trio.open_nursery() as nursery:
        calls = Calls(nursery, policy)
        calls.start("one", "r1")
        stream.let(0)
        await trio.sleep(1)
        assert (await policy.done("prepare", within_s=2))["report"]["blockers"] == ["r1"]
        stream.let(1, 2)
        assert (await policy.done("prepare", within_s=60))["phase"] == "prepared"
        assert (await calls.reply("one")).text.endswith("[DONE]\n\n")
        reply = await policy.done("commit", checkpoint_dir="ck", episode_ids=[episode("r1")])
        assert reply["episode_ids"] == ["r1"]


@pytest.mark.trio
async def test_a_stream_that_has_not_started_is_held(autojump_clock: trio.testing.MockClock) -> None:
    """Its first part waits for resume, and blocks nothing; the reply is then whole and in order."""
    stream = Stream(events("he", "llo"))
    async with running(stream) as policy, trio.open_nursery() as nursery:
        calls = Calls(nursery, policy)
        calls.start("one", "r1")
        await trio.sleep(1)
        assert (await policy.done("prepare"))["phase"] == "prepared"
        stream.let(0, 1, 2)
        await trio.sleep(60)
        assert calls.replies == {} and await policy.counts() == (1, 1)
        await policy.done("resume")
        reply = await calls.reply("one")
        assert reply.content == b"".join(stream.parts)
        assert reply.headers["content-type"] == "text/event-stream"
        assert reply.headers["x-nemo-gym-model-call-id"] == policy.rows("r1")[0]["model_call_id"]


@pytest.mark.trio
async def test_the_row_of_a_stream_is_there_before_its_last_event(autojump_clock: trio.testing.MockClock) -> None:
    """A caller that has seen [DONE] can go on, though the connection is still open: its call is a row and a parent."""
    stream = Stream([*events("he", "llo"), b"\n"])
    async with running(stream) as policy, trio.open_nursery() as nursery:
        stream.let(0, 1)
        calls = Calls(nursery, policy)
        calls.start("hi", "r1")
        await trio.sleep(1)
        assert policy.rows("r1") == []
        stream.let(2)
        await trio.sleep(1)
        assert calls.replies == {}
        (first,) = policy.rows("r1")
        stream.let(3)
        await calls.reply("hi")
        again = Stream(events("bye"))
        stream.parts, stream.gates = again.parts, again.gates
        again.let(0, 1)
        await policy.chat("r1", [user("hi"), assistant("hello"), user("more")])
        assert policy.rows("r1")[1]["parent_call_id"] == first["model_call_id"]


@pytest.mark.trio
async def test_retire_breaks_a_response_that_has_started(autojump_clock: trio.testing.MockClock) -> None:
    """Half a reply is never ended as if it were whole: the connection breaks, the stream is closed, nothing is kept."""
    stream = Stream(events("he", "llo"))
    async with running(stream) as policy:
        stream.let(0)
        url = f"{policy.url}/ng-rollout/r1{CHAT}"
        async with policy.client.stream("POST", url, json={"messages": [user("hi")]}) as reply:
            assert reply.status_code == 200
            await policy.done("retire", "ret1", episode_ids=[episode("r1")])
            with pytest.raises(httpx.RemoteProtocolError):
                await reply.aread()
        assert stream.ended == ["closed"] and policy.rows("r1") == []
        assert [type(each.error) for each in policy.network.errors] == [ReplyCutOff]


@pytest.mark.trio
async def test_a_stream_that_breaks_is_a_failure(autojump_clock: trio.testing.MockClock) -> None:
    """The caller's connection breaks, and the ledger has a failure row with what broke it."""

    async def upstream(path: str, body: Any) -> AsyncIterator[bytes]:
        async def parts() -> AsyncIterator[bytes]:
            yield events("he")[0]
            raise LookupError("gone")

        return parts()

    async with running(upstream) as policy:
        with pytest.raises(httpx.RemoteProtocolError):
            await policy.chat("r1", [user("hi")])
        assert [row["failure_reason"] for row in policy.rows("r1")] == ["LookupError: gone"]
        assert await policy.counts() == (0, 0)


@pytest.mark.trio
async def test_a_stream_beyond_the_limit_is_no_parent() -> None:
    """Of a stream no more is kept than a body may be long: a longer one is delivered, and nobody's parent."""
    for limit, expected in ((1000, (False, False)), (4000, (False, True))):
        stream = Stream(events("a" * 800, "b" * 800))
        stream.let(0, 1, 2)
        async with running(stream, max_body_bytes=limit) as policy:
            reply = await policy.chat("r1", [user("hi")])
            assert reply.content == b"".join(stream.parts)
            lineage = policy.model.ledger.of(EpisodeId("r1"))
            assert lineage is not None
            found = []
            for text in ("a" * 800, "a" * 800 + "b" * 800):
                conversation = asked(CHAT, {"messages": [user("hi"), assistant(text)]}, {2})
                assert conversation is not None
                found.append(lineage.parent(conversation) is not None)
            assert tuple(found) == expected


# --- one delivery


def incoming(receive: Receive) -> Incoming:
    """A call of nobody's that goes on with `receive`."""
    return Incoming(method="POST", path=CHAT, headers={}, body=b"body", episode=None, scope={}, receive=receive)


class Nothing:
    """A recorder that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, bytes, bool]] = []

    def ended(self, status: int, reply: bytes, streamed: bool) -> None:
        self.told.append((status, reply, streamed))


@pytest.mark.trio
async def test_a_delivery_goes_through_its_states() -> None:
    """Awaited, held while closed, delivered after the opening; or abandoned for good when its attempt is over."""
    for over in (False, True):
        sent: list[Message] = []
        stale = [refuse_request("stale_attempt", "over")] if over else []
        delivery, recorder, admission = one_delivery(sent, stale)
        assert shown(delivery) == "awaited"
        await delivery.send({"type": "http.response.start", "status": 200, "headers": []})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ending, delivery)
            await trio.testing.wait_all_tasks_blocked()
            assert (shown(delivery), sent) == ("held", [])
            assert recorder.told == [(200, b"whole", False)]
            admission.open()
        if not over:
            assert shown(delivery) == "delivered"
            assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
            continue
        assert (shown(delivery), sent) == ("abandoned", [])
        await delivery.send({"type": "http.response.start", "status": 500, "headers": []})
        with pytest.raises(Refused):
            await delivery.send({"type": "http.response.body", "body": b"sorry"})
        assert sent == [] and len(recorder.told) == 1


def shown(delivery: Delivery) -> str:
    return delivery.state.value


def one_delivery(sent: list[Message], refusals: list[Refused]) -> tuple[Delivery, Nothing, Admission]:
    """A delivery whose server is closed; at the opening it is refused with the first of `refusals`, if there is one."""

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        await trio.sleep_forever()
        raise AssertionError

    def check() -> None:
        if refusals and admission.is_open:
            raise refusals[0]

    admission, recorder = Admission(10), Nothing()
    admission.enter_or_refuse()
    activity = Activity(admission, "r1", check)
    activity.settle()
    admission.close()
    request = incoming(receive)
    return Delivery(request, send, admission, activity, recorder, [], 1000), recorder, admission


async def ending(delivery: Delivery) -> None:
    with suppress(Refused):
        await delivery.send({"type": "http.response.body", "body": b"whole"})


@on_both_loops
async def test_all_who_listen_hear_that_the_caller_left() -> None:
    """One disconnect is told to everybody, also when the one who listened first gave up before it came."""
    left, heard = anyio.Event(), list[str]()
    messages = [{"type": "http.disconnect"}]

    async def receive() -> Message:
        await left.wait()
        return messages.pop()

    caller = Caller(incoming(receive))
    assert (await caller.receive())["body"] == b"body"

    async def gone(name: str) -> None:
        await caller.gone()
        heard.append(name)

    async def application() -> None:
        heard.append((await caller.receive())["type"])

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as first:
                async with anyio.create_task_group() as inner:
                    inner.start_soon(gone, "gave up")
                    await anyio.wait_all_tasks_blocked()
                    group.start_soon(gone, "hold")
                    group.start_soon(application)
                    await anyio.wait_all_tasks_blocked()
                    first.cancel()
            await anyio.wait_all_tasks_blocked()
            assert heard == []
            left.set()
    assert sorted(heard) == ["hold", "http.disconnect"]
    assert await caller.receive() == {"type": "http.disconnect"}


# --- applications of other make


def foreign(*, log: list[str], middleware: bool = False) -> ASGIApp:
    """A Starlette application that generates by itself, as people have them."""

    async def chat(request: Request) -> Response:
        body = await request.json()
        said = body["messages"][-1]["content"]
        log.append(said)
        if said == "raise":
            raise LookupError("a bug")
        if said == "text":
            return PlainTextResponse("plain")
        if said == "slow":
            await trio.sleep(10)
        return JSONResponse(completion(said))

    async def responses(request: Request) -> Response:
        async def parts() -> AsyncIterator[str]:
            for text in ("a", "b"):
                yield text
                await trio.sleep(10)

        return StreamingResponse(parts())

    app = Starlette(routes=[Route(CHAT, chat, methods=["POST"]), Route(RESPONSES, responses, methods=["POST"])])
    if middleware:

        async def through(request: Request, call_next: Any) -> Response:
            reply: Response = await call_next(request)
            return reply

        app.add_middleware(BaseHTTPMiddleware, dispatch=through)
    return app


@pytest.mark.trio
@pytest.mark.parametrize("middleware", [False, True])
async def test_an_application_that_is_wrapped_is_held_alike(
    middleware: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """A foreign application's JSON replies are rows and are held whole, also when a middleware cuts them into parts."""
    log: list[str] = []
    async with running(app=foreign(log=log, middleware=middleware)) as policy, trio.open_nursery() as nursery:
        calls = Calls(nursery, policy)
        calls.start("slow", "r1")
        await trio.sleep(1)
        assert (await policy.done("prepare"))["phase"] == "prepared"
        calls.start("new", "r1")
        await trio.sleep(60)
        assert calls.replies == {} and log == ["slow"] and len(policy.rows("r1")) == 1
        await policy.done("resume")
        reply = await calls.reply("slow")
        assert reply.json() == completion("slow")
        assert int(reply.headers["content-length"]) == len(reply.content)
        assert (await calls.reply("new")).json() == completion("new")
        nexts = await policy.chat("r1", [user("slow"), assistant("slow"), user("next")])
        rows = {row["model_call_id"]: row for row in policy.rows("r1")}
        parent = rows[nexts.headers["x-nemo-gym-model-call-id"]]["parent_call_id"]
        assert parent == reply.headers["x-nemo-gym-model-call-id"]


@pytest.mark.trio
async def test_a_foreign_application_that_fails_leaves_a_failure_row(autojump_clock: trio.testing.MockClock) -> None:
    """Its 500 is passed on with our incarnation, its exception reaches the server, and the row says so."""
    async with running(app=foreign(log=[])) as policy:
        reply = await policy.chat("r1", [user("raise")])
        assert (reply.status_code, reply.text) == (500, "Internal Server Error")
        assert reply.headers["x-statecore-incarnation"]
        assert [row["failure_reason"] for row in policy.rows("r1")] == ["HTTP 500"]
        assert [str(each.error) for each in policy.network.errors] == ["a bug"]
        assert (await policy.chat("r1", [user("text")])).text == "plain"


@pytest.mark.trio
async def test_a_foreign_stream_blocks_and_its_caller_may_leave(autojump_clock: trio.testing.MockClock) -> None:
    """A started StreamingResponse blocks; when its caller leaves it blocks no more, and the call is a failure."""
    async with running(app=foreign(log=[])) as policy, trio.open_nursery() as nursery:
        calls = Calls(nursery, policy)
        calls.start("one", "r1", path=RESPONSES)
        await trio.sleep(1)
        assert (await policy.done("prepare", within_s=2))["phase"] == "preparing"
        calls.leave("one")
        assert (await policy.done("prepare", within_s=60))["phase"] == "prepared"
        assert policy.model.report().counts["inflight"] == 0
        assert [row["failure_reason"] for row in policy.rows("r1")] == ["no whole response"]


@pytest.mark.trio
async def test_a_foreign_caller_leaves_while_its_response_is_held(autojump_clock: trio.testing.MockClock) -> None:
    """The application listens for the disconnect as well, and both hear of it: the call is over before resume."""
    async with running(app=foreign(log=[])) as policy, trio.open_nursery() as nursery:
        calls = Calls(nursery, policy)
        for name, path in (("slow", CHAT), ("stream", RESPONSES)):
            await policy.done("prepare", name)
            calls.start(name, "r1", path=path)
            await policy.done("resume", name)
        await trio.sleep(1)
        calls.leave("stream")
        await policy.done("prepare", "c9", within_s=60)
        await trio.sleep(20)
        assert await policy.counts() == (1, 1)
        calls.leave("slow")
        await trio.sleep(1)
        assert await policy.counts() == (0, 0)


@pytest.mark.trio
async def test_retire_reaches_into_a_foreign_application(autojump_clock: trio.testing.MockClock) -> None:
    """Its handler is cancelled and its caller gets stale_attempt, framework or not."""
    async with running(app=foreign(log=[], middleware=True)) as policy, trio.open_nursery() as nursery:
        calls = Calls(nursery, policy)
        calls.start("slow", "r1")
        await trio.sleep(1)
        await policy.done("retire", "ret1", episode_ids=[episode("r1")])
        assert (await calls.reply("slow")).status_code == 409
        assert policy.network.errors == []


@pytest.mark.trio
@pytest.mark.parametrize("own", [None, LookupError("mine")])
async def test_a_refusal_is_no_matter_of_the_application(
    own: Exception | None, autojump_clock: trio.testing.MockClock
) -> None:
    """What ends a response early is our answer, also where the application swallows it or makes its own error of it."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        await trio.sleep(10)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"late"})
        except Exception as error:
            if own is not None:
                raise own from error

    async with running(app=app) as policy, trio.open_nursery() as nursery:
        calls = Calls(nursery, policy)
        calls.start("one", "r1")
        await trio.sleep(5)
        nursery.start_soon(policy.chat, "r1-a1", [user("newer")])
        reply = await calls.reply("one")
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "stale_attempt")
        assert policy.network.errors == []


@pytest.mark.trio
async def test_a_response_that_nobody_ends_is_a_failure() -> None:
    """An application that returns without a whole response leaves a failure row; nothing passes for its reply."""

    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"

    async with running(app=silent) as policy:
        reply = await policy.chat("r1", [user("a")])
        assert reply.status_code == 500 and "x-statecore-incarnation" not in reply.headers
        assert [row["failure_reason"] for row in policy.rows("r1")] == ["no whole response"]
        assert await policy.counts() == (0, 0)


# --- off, and both loops


@pytest.mark.trio
async def test_off_is_off() -> None:
    """With checkpointing off the application is the upstream itself: no header, row, route or gate. Covers: I76."""
    generator = Generator()
    async with running(generator, enabled=False) as policy:
        assert policy.model.app() is policy.model.app()
        reply = await policy.chat("r1", [user("a")])
        assert (reply.status_code, reply.json()) == (200, completion("1: a"))
        assert set(reply.headers) == {"content-type", "content-length"}
        assert len(policy.model.ledger) == 0 and policy.model.participant is None
        for path in ("/ng-control/v1/checkpoint/status", "/ng-control/v1/capabilities"):
            assert (await policy.client.get(policy.url + path, headers=TOKEN)).status_code == 404


class Served:
    """An application whose lifespan runs in a task group of any loop, with a client that calls it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://policy")
        self.shutdown = anyio.Event()
        self.started = anyio.Event()

    async def lifespan(self) -> None:
        messages = iter(["startup", "shutdown"])

        async def receive() -> Message:
            kind = next(messages)
            if kind == "shutdown":
                await self.shutdown.wait()
            return {"type": f"lifespan.{kind}"}

        async def send(message: Message) -> None:
            assert not message["type"].endswith("failed"), message
            self.started.set()

        await self.app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send)


@on_both_loops
async def test_a_checkpoint_works_on_either_loop() -> None:
    """A response and a newcomer are held over a checkpoint and come through; retire ends a running call."""
    go_on, began = anyio.Event(), anyio.Event()

    async def upstream(path: str, body: Any) -> Any:
        if body["messages"][-1]["content"] == "slow":
            began.set()
            await go_on.wait()
        return completion("a")

    model = PolicyModel("policy", settings(), upstream)
    served, replies = Served(model.app()), dict[str, int]()
    arrived = {name: anyio.Event() for name in ("slow", "new", "retired")}

    async def chat(name: str, key: str, text: str) -> None:
        reply = await served.client.post(f"/ng-rollout/{key}{CHAT}", json={"messages": [user(text)]})
        replies[name] = reply.status_code
        arrived[name].set()

    async def control(verb: str, checkpoint_id: str, **body: Any) -> Any:
        body |= {"checkpoint_id": checkpoint_id, "deadline_ts": model.seams.clock.time() + 10}
        reply = await served.client.post(f"/ng-control/v1/checkpoint/{verb}", json=body, headers=TOKEN)
        assert reply.status_code == 200, reply.text
        return reply.json()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(served.lifespan)
            await served.started.wait()
            group.start_soon(chat, "slow", "r1", "slow")
            await began.wait()
            assert (await control("prepare", "c1"))["report"]["counts"]["held"] == 1
            group.start_soon(chat, "new", "r2", "new")
            go_on.set()
            await anyio.wait_all_tasks_blocked()
            assert len(model.ledger) == 1 and replies == {}
            await control("resume", "c1")
            for name in ("slow", "new"):
                await arrived[name].wait()
            assert replies == {"slow": 200, "new": 200}
            go_on, began = anyio.Event(), anyio.Event()
            group.start_soon(chat, "retired", "r3", "slow")
            await began.wait()
            await control("retire", "ret1", episode_ids=[episode("r3")])
            await arrived["retired"].wait()
            assert replies["retired"] == 409
            served.shutdown.set()
