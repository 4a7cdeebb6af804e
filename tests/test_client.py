"""The control client: what it sends, when it sends again, and what it says when it gives up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import anyio
import httpx
import pytest
import trio
import trio.testing

from participants.net import client as client_module
from participants.net.client import ControlClient, ControlError, Retries, make_client
from statecore.errors import StatecoreError
from statecore.seams import LoopClock, SeededEntropy
from tests.both_loops import on_both_loops
from tests.plain_server import Asked, Said, address_that_refuses, plain_server

T = 1_790_000_000.0
FIRST, SECOND = "11" * 16, "22" * 16
HANG = "hang"
Outcome = httpx.Response | Exception | str


def reply(status: int = 200, incarnation: str | None = FIRST, **body: Any) -> httpx.Response:
    """A reply as our servers give it."""
    shown = {} if incarnation is None else {"incarnation": incarnation, "epoch": 2, "server_ts": T}
    return httpx.Response(status, json={**body, **shown})


def refusal(status: int, code: str = "checkpoint_conflict", incarnation: str | None = FIRST) -> httpx.Response:
    return reply(status, incarnation, error={"code": code, "detail": "the reason"})


class Scripted(httpx.AsyncBaseTransport):
    """Answers the calls one after another from a list; the last one is repeated for ever."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.requests: list[httpx.Request] = []
        self.times: list[float] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        self.requests.append(request)
        self.times.append(anyio.current_time())
        outcome = self.outcomes[0] if len(self.outcomes) == 1 else self.outcomes.pop(0)
        if outcome is HANG:
            await anyio.sleep_forever()
        if isinstance(outcome, Exception):
            raise outcome
        assert isinstance(outcome, httpx.Response)
        return httpx.Response(outcome.status_code, headers=outcome.headers, content=outcome.content)

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.requests]

    def sent(self, header: str) -> list[str | None]:
        return [request.headers.get(header) for request in self.requests]


def control(transport: httpx.AsyncBaseTransport, **changes: Any) -> ControlClient:
    return ControlClient(
        make_client(transport),
        "http://tools.local/",
        "s3cret",
        clock=LoopClock(T),
        entropy=SeededEntropy(7),
        name="tools",
        **changes,
    )


@on_both_loops
async def test_a_call_is_one_post_with_what_the_protocol_asks_for() -> None:
    """Verb, body, deadline, token and epoch go out; the reply's object comes back."""
    transport = Scripted(reply(phase="prepared"))
    server = control(transport, epoch=2)
    assert (await server.call("prepare", {"checkpoint_id": "ck-1"}, T + 60))["phase"] == "prepared"
    (request,) = transport.requests
    assert (request.method, request.url.path) == ("POST", "/ng-control/v1/checkpoint/prepare")
    assert transport.bodies == [{"checkpoint_id": "ck-1", "deadline_ts": T + 60}]
    assert request.headers["authorization"] == "Bearer s3cret"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["x-statecore-epoch"] == "2"


@on_both_loops
async def test_calls_are_meant_for_the_incarnation_that_was_learned_first() -> None:
    """GET status and capabilities name none; all else names the first one seen, until the coordinator turns to another.

    Covers: S59
    """
    transport = Scripted(reply(phase="idle"))
    server = control(transport)
    await server.status()
    await server.capabilities()
    assert (server.incarnation, server.server_epoch, server.server_ts, server.restarted) == (FIRST, 2, T, False)
    await server.call("renew", {"checkpoint_id": "ck-1"}, T + 60)
    await server.results()
    assert transport.sent("x-statecore-incarnation") == [None, None, FIRST, FIRST]
    assert transport.sent("x-statecore-epoch") == [None] * 4
    transport.outcomes = [refusal(409, "stale_incarnation", SECOND)]
    with pytest.raises(ControlError, match="stale_incarnation"):
        await server.call("prepare", {"checkpoint_id": "ck-1"}, T + 60)
    assert (server.incarnation, server.seen_incarnation, server.restarted) == (FIRST, SECOND, True)
    with pytest.raises(ControlError):
        await server.call("prepare", {"checkpoint_id": "ck-1"}, T + 60)
    assert transport.sent("x-statecore-incarnation")[4:] == [FIRST, FIRST]


@on_both_loops
async def test_an_incarnation_that_is_given_is_sent_at_once() -> None:
    """The successor of a coordinator, or a test, may know it beforehand; a foreign server shows none."""
    transport = Scripted(reply(incarnation=None, phase="idle"))
    server = control(transport, incarnation=FIRST)
    await server.call("resume", {"checkpoint_id": "ck-1"}, T + 60)
    assert transport.sent("x-statecore-incarnation") == [FIRST]
    assert (server.seen_incarnation, server.server_epoch, server.restarted) == (None, None, False)


RETRIED: Sequence[Outcome] = [
    httpx.ConnectError("refused"),
    httpx.ConnectTimeout("slow"),
    httpx.ReadError("reset"),
    httpx.WriteError("reset"),
    httpx.RemoteProtocolError("disconnected"),
    httpx.Response(500, text="Internal Server Error"),
    httpx.Response(500, json={"error": {"code": "x", "detail": "no incarnation"}}),
    httpx.Response(502, text="Bad Gateway"),
    refusal(502),
    refusal(503, "checkpoint_coordinator_unavailable"),
    refusal(504),
]


@pytest.mark.parametrize("failure", RETRIED, ids=lambda failure: f"{type(failure).__name__}-{failure}"[:40])
@pytest.mark.trio
async def test_what_may_pass_is_sent_again(autojump_clock: trio.testing.MockClock, failure: Outcome) -> None:
    """After two such failures the third sending is answered; each is the same call, later than the one before."""
    transport = Scripted(failure, failure, reply(phase="prepared"))
    server = control(transport, retries=Retries(tries=3))
    assert (await server.call("prepare", {"checkpoint_id": "ck-1"}, T + 60))["phase"] == "prepared"
    assert len({json.dumps(body) for body in transport.bodies}) == 1
    first, second = (later - earlier for earlier, later in zip(transport.times, transport.times[1:], strict=False))
    assert 0.05 <= first <= 0.1 <= second <= 0.2


@pytest.mark.parametrize("failure", RETRIED, ids=lambda failure: f"{type(failure).__name__}-{failure}"[:40])
@pytest.mark.trio
async def test_sending_again_is_bounded(autojump_clock: trio.testing.MockClock, failure: Outcome) -> None:
    """When the tries are used up the error says so, and names server, verb and what came."""
    transport = Scripted(failure)
    with pytest.raises(ControlError, match=r"^tools: commit: .*\(sent 4 times\)$") as gave_up:
        await control(transport).call("commit", {"checkpoint_id": "ck-1"}, T + 60)
    assert len(transport.requests) == gave_up.value.tries == 4
    ours = isinstance(failure, httpx.Response) and "incarnation" in failure.text and failure.status_code != 500
    assert gave_up.value.transport is not ours
    assert gave_up.value.status == (failure.status_code if isinstance(failure, httpx.Response) else None)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 500])
@pytest.mark.trio
async def test_a_refusal_is_never_sent_again(autojump_clock: trio.testing.MockClock, status: int) -> None:
    """The first refusal is the answer, with its code."""
    transport = Scripted(refusal(status, "the_code"))
    with pytest.raises(ControlError, match=f"HTTP {status} the_code: the reason$") as refused:
        await control(transport).call("commit", {"checkpoint_id": "ck-1"}, T + 60)
    assert len(transport.requests) == 1
    error = refused.value
    assert (error.status, error.code, error.detail, error.transport) == (status, "the_code", "the reason", False)
    assert isinstance(error, StatecoreError)


@pytest.mark.parametrize("garbage", [b"<html>hello</html>", b"[]", b"", b'{"a":1,"a":2}'])
@pytest.mark.trio
async def test_garbage_is_named_and_never_sent_again(garbage: bytes) -> None:
    """A 200 that is no JSON object: the error names the server, the verb and what came."""
    transport = Scripted(httpx.Response(200, content=garbage))
    with pytest.raises(ControlError, match="tools: status: HTTP 200 garbage_reply") as refused:
        await control(transport).status()
    assert len(transport.requests) == 1
    assert repr(garbage.decode()) in refused.value.detail


@on_both_loops
async def test_a_compressed_reply_is_garbage() -> None:
    """Control replies are asked for as they are; one that is packed all the same could unpack to any size."""
    packed = httpx.MockTransport(
        lambda request: httpx.Response(200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(b"x"))
    )
    with pytest.raises(ControlError, match="in the encoding 'gzip'"):
        await control(packed).status()


@on_both_loops
async def test_a_reply_over_the_bound_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends without end is left, and its connection is closed."""

    async def endless(asked: Asked) -> Said:
        return Said(parts=[b"x" * 65536] * 64 + [b"end"], hold=anyio.Event())

    monkeypatch.setattr(client_module, "MAX_REPLY_BYTES", 100_000)
    async with plain_server(endless) as plain, make_client() as client:
        server = ControlClient(client, plain.url, "t", clock=LoopClock(T), entropy=SeededEntropy(1))
        with pytest.raises(ControlError, match="more than 100000 bytes"):
            await server.status()
        await plain.until(lambda: plain.open == 0)


@pytest.mark.trio
async def test_a_call_takes_no_longer_than_its_deadline_and_the_grace(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A server that never answers is given up at the deadline plus five seconds, after one try: a transport error.

    Covers: I18
    """
    transport = Scripted(HANG)
    with pytest.raises(ControlError, match=r"timeout: no answer within 65 s$") as gave_up:
        await control(transport).call("prepare", {"checkpoint_id": "ck-1"}, T + 60)
    assert trio.current_time() == pytest.approx(65.0)
    assert (gave_up.value.transport, len(transport.requests)) == (True, 1)


@pytest.mark.trio
async def test_a_past_deadline_is_sent_once_with_the_grace(autojump_clock: trio.testing.MockClock) -> None:
    """Prepare past its deadline has an answer (routes.md section 2), so it is asked; nothing is tried again."""
    transport = Scripted(HANG)
    with pytest.raises(ControlError, match="within 5 s"):
        await control(transport).call("prepare", {"checkpoint_id": "ck-1"}, T - 100)
    assert len(transport.requests) == 1
    assert trio.current_time() == pytest.approx(5.0)
    transport = Scripted(httpx.ConnectError("refused"))
    with pytest.raises(ControlError, match=r"ConnectError: refused$"):
        await control(transport).call("prepare", {"checkpoint_id": "ck-1"}, T - 100)
    assert len(transport.requests) == 1


@pytest.mark.trio
async def test_no_try_begins_after_the_deadline(autojump_clock: trio.testing.MockClock) -> None:
    """With tries to spare, sending again still stops at the deadline. Covers: I18"""
    transport = Scripted(httpx.ConnectError("refused"))
    retries = Retries(tries=1000, first_delay_s=1.0, factor=1.0)
    with pytest.raises(ControlError):
        await control(transport, retries=retries).call("commit", {"checkpoint_id": "ck-1"}, T + 10)
    assert 10 <= len(transport.requests) <= 21
    assert transport.times[-1] < 10


@pytest.mark.trio
async def test_preparing_is_sent_again_only_where_asked(autojump_clock: trio.testing.MockClock) -> None:
    """`preparing` is an answer; with `until_prepared` it is asked again, and returned when tries are used up."""
    transport = Scripted(reply(phase="preparing"), reply(phase="preparing"), reply(phase="prepared"))
    server = control(transport)
    assert (await server.call("prepare", {"checkpoint_id": "ck-1"}, T + 60))["phase"] == "preparing"
    assert len(transport.requests) == 1
    again = await server.call("prepare", {"checkpoint_id": "ck-1"}, T + 60, until_prepared=True)
    assert (again["phase"], len(transport.requests)) == ("prepared", 3)
    never = Scripted(reply(phase="preparing"))
    last = await control(never).call("prepare", {"checkpoint_id": "ck-1"}, T + 60, until_prepared=True, tries=2)
    assert (last["phase"], len(never.requests)) == ("preparing", 2)


@pytest.mark.trio
async def test_waits_differ_by_seed_and_never_exceed_their_bound(autojump_clock: trio.testing.MockClock) -> None:
    """Backoff doubles up to its maximum, with up to a half taken off at random."""
    retries = Retries()
    assert [retries.delay_s(sent, 0.0) for sent in (1, 2, 3, 6, 500)] == [0.1, 0.2, 0.4, 2.0, 2.0]
    assert retries.delay_s(1, 0.999) == pytest.approx(0.05, rel=0.01)
    with pytest.raises(ValueError, match="tries"):
        Retries(tries=0)
    with pytest.raises(ValueError, match="grace_s"):
        Retries(grace_s=0)


@pytest.mark.trio
async def test_a_wrong_call_is_refused_before_it_is_sent() -> None:
    """An unknown verb and two deadlines are mistakes of the caller; so is a body that is no plain JSON."""
    transport = Scripted(reply())
    server = control(transport)
    with pytest.raises(ValueError, match="'pause' is not a verb"):
        await server.call("pause", {}, T + 60)
    with pytest.raises(ValueError, match="the body says deadline_ts"):
        await server.call("renew", {"deadline_ts": T}, T + 60)
    with pytest.raises(StatecoreError, match=r"\$\.episode_ids"):
        await server.call("retire", {"episode_ids": ("tuple",)}, T + 60)
    assert transport.requests == []


@pytest.mark.trio
async def test_receipts_are_acknowledged_in_batches() -> None:
    """2,500 receipts go out as 1,000, 1,000 and 500, and the lists of the replies are joined."""
    receipts = [{"rollout_id": f"r{number}"} for number in range(2500)]

    class Ledger(Scripted):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            listed = json.loads(await request.aread())["receipts"]
            self.outcomes = [reply(acknowledged=listed[1:], unknown=listed[:1], mismatched=[])]
            return await super().handle_async_request(request)

    transport = Ledger()
    merged = await control(transport).acknowledge(receipts)
    assert [len(body["receipts"]) for body in transport.bodies] == [1000, 1000, 500]
    assert {request.url.path for request in transport.requests} == {"/ng-control/v1/results/acknowledge"}
    assert [len(merged[name]) for name in ("acknowledged", "unknown", "mismatched")] == [2497, 3, 0]
    assert await control(transport).acknowledge([]) == {"acknowledged": [], "unknown": [], "mismatched": []}
    with pytest.raises(ControlError, match="'acknowledged' should be a list"):
        await control(Scripted(reply(acknowledged=3))).acknowledge(receipts)


@pytest.mark.trio
async def test_the_retained_results_are_listed() -> None:
    """GET results answers with the receipts, and 404 of a foreign server is an error with that status."""
    transport = Scripted(reply(receipts=[{"rollout_id": "r"}]))
    assert (await control(transport).results())["receipts"] == [{"rollout_id": "r"}]
    assert (transport.requests[0].method, transport.requests[0].url.path) == ("GET", "/ng-control/v1/results")
    with pytest.raises(ControlError) as foreign:
        await control(Scripted(httpx.Response(404, json={"detail": "Not Found"}))).results()
    assert (foreign.value.status, foreign.value.code, foreign.value.transport) == (404, "http_404", False)


@on_both_loops
async def test_a_control_call_passes_150_parked_data_requests() -> None:
    """Data requests that are held on a server do not delay a control call to it: it has connections of its own."""

    async def script(asked: Asked) -> Said:
        if asked.target == "/v1/responses":
            await anyio.sleep_forever()
        return Said(parts=[b'{"phase":"idle"}'])

    async with plain_server(script) as plain, make_client() as data, make_client() as own:
        server = ControlClient(own, plain.url, "t", clock=LoopClock(T), entropy=SeededEntropy(1))
        async with anyio.create_task_group() as tasks:
            for _ in range(150):
                tasks.start_soon(data.post, plain.url + "/v1/responses")
            await plain.until(lambda: len(plain.asked) == 150)
            assert (await server.status())["phase"] == "idle"
            assert (await server.call("prepare", {"checkpoint_id": "ck-1"}, T + 60))["phase"] == "idle"
            tasks.cancel_scope.cancel()


@on_both_loops
async def test_a_server_that_is_not_there_is_a_transport_error() -> None:
    """A refused connection, and a connection closed unanswered, name the server and say no HTTP answer came."""

    async def closes(asked: Asked) -> None:
        return None

    once = Retries(tries=1)
    async with address_that_refuses() as address, make_client() as client:
        server = ControlClient(client, address, "t", clock=LoopClock(T), entropy=SeededEntropy(1), retries=once)
        with pytest.raises(ControlError, match=f"^{address}: status: no HTTP answer no_answer: ConnectError") as gone:
            await server.status()
        assert (gone.value.transport, gone.value.status) == (True, None)
    async with plain_server(closes) as plain, make_client() as client:
        server = ControlClient(client, plain.url, "t", clock=LoopClock(T), entropy=SeededEntropy(1), retries=once)
        with pytest.raises(ControlError, match="RemoteProtocolError") as closed:
            await server.status()
        assert closed.value.transport


@on_both_loops
async def test_leaving_a_call_leaves_nothing_behind() -> None:
    """A control call that its caller gives up is cancelled, and the next one works."""

    async def script(asked: Asked) -> Said:
        if asked.method == "POST":
            await anyio.sleep_forever()
        return Said(parts=[b'{"phase":"idle"}'])

    async with plain_server(script) as plain, make_client() as client:
        server = ControlClient(client, plain.url, "t", clock=LoopClock(T), entropy=SeededEntropy(1))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.call, "prepare", {"checkpoint_id": "ck-1"}, T + 60)
            await plain.until(lambda: len(plain.asked) == 1)
            tasks.cancel_scope.cancel()
        await plain.until(lambda: plain.open == 0)
        assert (await server.status())["phase"] == "idle"
