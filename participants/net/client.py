"""Calls that go out: the data client, and the coordinator's client for one server's control plane.

Rules (docs/reference/protocol.md sections 3, 5, 6, 9 and 11): control traffic never shares a connection pool with data
traffic, so make one client for each; data calls have a connect timeout and no read timeout; an environment's proxy
settings are never used; no cookie is kept between calls (sessions send their own). Control calls are sent again after
transport errors, 502-504 and, where asked, `preparing`, never after 401, 409 or 422: bounded in number and inside the
deadline (I18). A 5xx that is not ours is a transport error (section 7). anyio: runs on trio and asyncio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http.cookiejar import CookieJar
from typing import Any, Final

import anyio
import httpx
from attrs import field, frozen, validators

from statecore.errors import StatecoreError
from statecore.seams import Clock, Entropy
from statecore.wire import canonical

from ..identity import EPOCH_HEADER, INCARNATION_HEADER
from ..signals import CALL_SECONDS, CALLS, CANCELLED, CHECKPOINT_ID, ERROR, SERVER, TRIES, VERB
from ..telemetry import Attributes, NoTelemetry, Span, Telemetry
from .replies import Answer, Verdict, no_answer, read_reply
from .transport import BoundedTransport, FreeListTransport, TooManyInFlight

__all__ = [
    "CONTROL_PREFIX",
    "ControlClient",
    "ControlError",
    "FreeListTransport",
    "Reply",
    "Retries",
    "TooManyInFlight",
    "make_client",
]

CONTROL_PREFIX: Final = "/ng-control/v1"
VERBS: Final = frozenset({"prepare", "commit", "restore", "resume", "renew", "retire", "forget"})
ACKNOWLEDGE_BATCH: Final = 1000
MAX_REPLY_BYTES: Final = 64 << 20
MAX_IN_FLIGHT: Final = 10_000
ACKNOWLEDGED_LISTS: Final = ("acknowledged", "unknown", "mismatched")

Reply = dict[str, Any]
"""The JSON object of a reply with status 200."""


class ControlError(StatecoreError):
    """A control call has no good answer; nothing is known to have been done if `transport` is true.

    `server` and `verb` say which call; `status` is the HTTP status, None where none came; `code` the server's code, or
    `http_<status>`, `no_answer`, `timeout`, `garbage_reply`; `detail` what came; `transport` whether the server itself
    is in doubt (no answer, or a 5xx that is not ours); `tries` how often the call was sent.
    """

    def __init__(
        self,
        status: int | None,
        code: str,
        detail: str,
        transport: bool = False,
        *,
        server: str = "",
        verb: str = "",
        tries: int = 1,
        incarnation: str | None = None,
    ) -> None:
        super().__init__(status, code, detail, transport, server, verb, tries)
        self.status = status
        self.code = code
        self.detail = detail
        self.transport = transport
        self.server = server
        self.verb = verb
        self.tries = tries
        self.incarnation = incarnation

    @classmethod
    def of(cls, answer: Answer, *, server: str, verb: str, tries: int = 1) -> ControlError:
        """The error that an answer is for whoever called `verb` of `server`."""
        return cls(
            answer.status,
            answer.code,
            answer.detail,
            answer.transport,
            server=server,
            verb=verb,
            tries=tries,
            incarnation=answer.incarnation,
        )

    def __str__(self) -> str:
        status = "no HTTP answer" if self.status is None else f"HTTP {self.status}"
        times = f" (sent {self.tries} times)" if self.tries > 1 else ""
        return f"{self.server}: {self.verb}: {status} {self.code}: {self.detail}{times}"


@frozen
class Retries:
    """How often a control call is sent in all, and how long to wait between: `first_delay_s`, growing by `factor` up to
    `max_delay_s`, each cut down by up to a half at random. A single sending may take the time to the deadline and
    `grace_s` more.
    """

    tries: int = field(default=4, validator=validators.ge(1))
    first_delay_s: float = field(default=0.1, validator=validators.ge(0))
    factor: float = field(default=2.0, validator=validators.ge(1))
    max_delay_s: float = field(default=2.0, validator=validators.ge(0))
    grace_s: float = field(default=5.0, validator=validators.gt(0))

    def delay_s(self, sent: int, jitter: float) -> float:
        """The wait after `sent` sendings; `jitter` is in [0, 1)."""
        growth = self.factor ** min(sent - 1, 64)
        return min(self.first_delay_s * growth, self.max_delay_s) * (1 - jitter / 2)


class _NoCookies(CookieJar):
    """Keeps nothing: two sessions that share a client never see each other's cookies."""

    def extract_cookies(self, response: object, request: object) -> None:
        pass

    def add_cookie_header(self, request: object) -> None:
        pass


def make_client(
    transport: httpx.AsyncBaseTransport | None = None,
    *,
    connect_timeout_s: float = 5.0,
    max_in_flight: int = MAX_IN_FLIGHT,
) -> httpx.AsyncClient:
    """A client with its own connections, a connect timeout, no other timeout, no proxies, no cookies, no redirects.

    `transport` is a FreeListTransport if none is given. One more request than `max_in_flight` raises TooManyInFlight.
    """
    if max_in_flight < 1:
        raise ValueError(f"max_in_flight must be at least 1, not {max_in_flight}")
    return httpx.AsyncClient(
        transport=BoundedTransport(FreeListTransport() if transport is None else transport, max_in_flight),
        timeout=httpx.Timeout(None, connect=connect_timeout_s),
        trust_env=False,
        follow_redirects=False,
        cookies=_NoCookies(),
    )


class ControlClient:
    """The control plane of one server, for one coordinator.

    `client` serves control calls only. The server's `incarnation` is the one that is given, or the first that a reply
    shows; every later call but GET status and capabilities is meant for it, and a fresh process refuses it (S59). What
    the newest reply showed is in `seen_incarnation`, `server_epoch` and `server_ts`; another process of the same name
    needs another client. `on_answer`, if it is set, gets what came of every sending.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        url: str,
        token: str,
        *,
        clock: Clock,
        entropy: Entropy,
        epoch: int | None = None,
        retries: Retries | int | None = None,
        name: str | None = None,
        incarnation: str | None = None,
        timeout_s: float = 60.0,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.name = name or self.url
        self.epoch = epoch
        self.retries = Retries(tries=retries) if isinstance(retries, int) else retries or Retries()
        self.timeout_s = timeout_s
        self.incarnation = incarnation
        self.seen_incarnation: str | None = None
        self.server_epoch: int | None = None
        self.server_ts: float | None = None
        self.on_answer: Callable[[Answer], None] | None = None
        self.clock_offset_s: float | None = None  # as the newest reply showed it: the server's clock is so far ahead
        self._client = client
        self._token = token
        self._clock = clock
        self._entropy = entropy
        self._telemetry = telemetry or NoTelemetry()

    @property
    def restarted(self) -> bool:
        """Whether the newest reply came from another incarnation than the one that calls are meant for."""
        return self.seen_incarnation is not None and self.seen_incarnation != self.incarnation

    async def status(self, *, timeout_s: float | None = None, tries: int | None = None) -> Reply:
        """The reply of GET status; `timeout_s` (default: the client's) bounds all tries, plus the grace."""
        return await self._get("status", "/checkpoint/status", timeout_s, tries)

    async def capabilities(self, *, timeout_s: float | None = None, tries: int | None = None) -> Reply:
        """The reply of GET capabilities; a server that does not have the route raises ControlError with status 404."""
        return await self._get("capabilities", "/capabilities", timeout_s, tries)

    async def call(
        self,
        verb: str,
        body: Mapping[str, Any],
        deadline_ts: float,
        *,
        until_prepared: bool = False,
        tries: int | None = None,
        retry_until_ts: float | None = None,
    ) -> Reply:
        """The reply of POST `verb` with `body` and `deadline_ts` (Unix seconds, the same at each sending).

        `until_prepared`: a reply with phase `preparing` is a reason to send again; when tries or time are used up that
        reply is returned. `retry_until_ts`: until then an answer that was lost is asked for again, also behind the
        deadline, where a prepare is answered too. Raises ControlError; ValueError for an unknown verb or two deadlines.
        """
        if verb not in VERBS:
            raise ValueError(f"{verb!r} is not a verb of the control plane: {', '.join(sorted(VERBS))}")
        if body.get("deadline_ts", deadline_ts) != deadline_ts:
            raise ValueError(f"{verb}: the body says deadline_ts {body['deadline_ts']!r}, the call {deadline_ts!r}")
        request = _Request(verb, "POST", f"/checkpoint/{verb}", {**body, "deadline_ts": deadline_ts})
        again = "preparing" if until_prepared else None
        return await self._send(request, deadline_ts, tries, again=again, retry_until_ts=retry_until_ts)

    async def results(self, *, timeout_s: float | None = None, tries: int | None = None) -> Reply:
        """{"receipts": [...]}: the results that this server still keeps (section 9)."""
        return await self._get("results", "/results", timeout_s, tries, meant_for_one=True)

    async def acknowledge(
        self, receipts: Sequence[Mapping[str, Any]], *, timeout_s: float | None = None, tries: int | None = None
    ) -> dict[str, list[Any]]:
        """The receipts are acknowledged, in batches of at most 1,000; idempotent (section 9).

        Returns {"acknowledged", "unknown", "mismatched"}: lists of receipts, over all batches. If a batch fails, those
        before it are acknowledged and those after it are not; listing again tells.
        """
        merged: dict[str, list[Any]] = {name: [] for name in ACKNOWLEDGED_LISTS}
        deadline_ts = self._deadline(timeout_s)
        for start in range(0, len(receipts), ACKNOWLEDGE_BATCH):
            body = {"receipts": [dict(receipt) for receipt in receipts[start : start + ACKNOWLEDGE_BATCH]]}
            request = _Request("acknowledge", "POST", "/results/acknowledge", body)
            reply = await self._send(request, deadline_ts, tries)
            for name, receipts_so_far in merged.items():
                listed = reply.get(name)
                if not isinstance(listed, list):
                    problem = f"{name!r} should be a list of receipts, but the reply holds {listed!r}"[:300]
                    raise ControlError.of(Answer.garbage(200, problem), server=self.name, verb="acknowledge")
                receipts_so_far.extend(listed)
        return merged

    async def _get(
        self, verb: str, path: str, timeout_s: float | None, tries: int | None, meant_for_one: bool = False
    ) -> Reply:
        request = _Request(verb, "GET", path, None, meant_for_one)
        return await self._send(request, self._deadline(timeout_s), tries)

    def _deadline(self, timeout_s: float | None) -> float:
        return self._clock.time() + (self.timeout_s if timeout_s is None else timeout_s)

    async def _send(
        self,
        request: _Request,
        deadline_ts: float,
        tries: int | None,
        again: str | None = None,
        retry_until_ts: float | None = None,
    ) -> Reply:
        """The JSON object of a good reply, after as many sendings as the rules allow; raises ControlError."""
        began, failed = self._clock.monotonic(), CANCELLED
        try:
            with self._telemetry.span(CALLS[request.verb], self._named(request)) as span:
                reply = await self._send_until_answered(span, request, deadline_ts, tries, again, retry_until_ts)
            failed = ""
            return reply
        except ControlError as error:
            failed = error.code
            raise
        finally:
            attributes = {VERB: request.verb, SERVER: self.name} | ({ERROR: failed} if failed else {})
            self._telemetry.record(CALL_SECONDS, self._clock.monotonic() - began, attributes)

    def _named(self, request: _Request) -> Attributes:
        """What a span says of a call."""
        checkpoint_id = (request.body or {}).get("checkpoint_id")
        named = {} if checkpoint_id is None else {CHECKPOINT_ID: str(checkpoint_id)}
        return {VERB: request.verb, SERVER: self.name, **named}

    async def _send_until_answered(
        self,
        span: Span,
        request: _Request,
        deadline_ts: float,
        tries: int | None,
        again: str | None,
        retry_until_ts: float | None,
    ) -> Reply:
        allowed = self.retries.tries if tries is None else tries
        # From here on the clock that nobody sets: a server that hangs holds nobody up for an hour that came again.
        end = self._clock.monotonic() + max(deadline_ts - self._clock.time(), 0.0)
        last = end if retry_until_ts is None else end + max(retry_until_ts - deadline_ts, 0.0)
        sent = 0
        while True:
            sent += 1
            answer = await self._send_once(request, max(end - self._clock.monotonic(), 0.0) + self.retries.grace_s)
            self._learn(answer)
            waits = again is not None and answer.body is not None and answer.body.get("phase") == again
            if answer.verdict is Verdict.TRY_AGAIN or (answer.verdict is Verdict.ACCEPTED and waits):
                delay_s = self.retries.delay_s(sent, self._entropy.random())
                if sent < allowed and self._clock.monotonic() + delay_s < (end if waits else last):
                    await anyio.sleep(delay_s)
                    continue
            if answer.verdict is Verdict.ACCEPTED and answer.body is not None:
                span.set(TRIES, sent)
                return answer.body
            span.set(TRIES, sent)
            raise ControlError.of(answer, server=self.name, verb=request.verb, tries=sent)

    async def _send_once(self, request: _Request, within_s: float) -> Answer:
        """What came of one sending; never longer than `within_s`."""
        headers = {"authorization": f"Bearer {self._token}", "accept-encoding": "identity"}
        if self.epoch is not None:
            headers[EPOCH_HEADER] = str(self.epoch)
        if request.meant_for_one and self.incarnation is not None:
            headers[INCARNATION_HEADER] = self.incarnation
        self._telemetry.inject(headers)
        content: bytes | None = None
        if request.body is not None:
            headers["content-type"] = "application/json"
            content = canonical(request.body)
        url = f"{self.url}{CONTROL_PREFIX}{request.path}"
        with anyio.move_on_after(within_s):
            try:
                async with self._client.stream(request.method, url, headers=headers, content=content) as reply:
                    return await _read(reply)
            except httpx.TransportError as error:
                return no_answer("no_answer", f"{type(error).__name__}: {error}")
        return no_answer("timeout", f"no answer within {within_s:g} s")

    def _learn(self, answer: Answer) -> None:
        if answer.incarnation is not None:
            self.seen_incarnation = answer.incarnation
            if self.incarnation is None:
                self.incarnation = answer.incarnation
        if answer.epoch is not None:
            self.server_epoch = answer.epoch
        if answer.server_ts is not None:
            self.server_ts = answer.server_ts
            self.clock_offset_s = answer.server_ts - self._clock.time()
        if self.on_answer is not None:
            self.on_answer(answer)


@frozen
class _Request:
    verb: str
    method: str
    path: str
    body: Mapping[str, Any] | None
    meant_for_one: bool = True


async def _read(reply: httpx.Response) -> Answer:
    """What the reply means, read to its end within a bound."""
    encoding = reply.headers.get("content-encoding", "identity")
    if encoding != "identity":
        return Answer.garbage(reply.status_code, f"a body in the encoding {encoding!r}, which was not asked for")
    parts: list[bytes] = []
    size = 0
    with anyio.CancelScope() as reading:  # cancelled and not left: then no async generator stays behind half-read
        async for part in reply.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > MAX_REPLY_BYTES:
                reading.cancel()
    if size > MAX_REPLY_BYTES:
        return Answer.garbage(reply.status_code, f"a body of more than {MAX_REPLY_BYTES} bytes")
    return read_reply(reply.status_code, reply.headers, b"".join(parts))
