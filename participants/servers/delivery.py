"""The response of one model call on its way out: its row first, then the gate, then the wire.

While the server is closed a response that has not started is held until it opens; one that has started runs on and
blocks the checkpoint. A reply that comes whole is kept until it is complete; a stream is begun with its first part, and
its row is there before the part after which its caller may take it for complete.
docs/reference/protocol.md sections 4, 6 and 10.
"""

from __future__ import annotations

from typing import Final, Protocol

import anyio

from statecore import Snapshot

from ..journals.recorder import UNRECORDED, StepRecorder
from ..machines.model_call import RESPONSE, CallerLeft, ResponseReady, ResponseReleased, ResponseSent, ResponseState
from ..net.http import Incoming, Message, Send, until_gone
from .admission import Activity, Admission
from .conversation import is_last
from .upstream import comes_whole

READY: Final = ResponseReady(closed=False)
READY_WHILE_CLOSED: Final = ResponseReady(closed=True)
RELEASED: Final = ResponseReleased()
SENT: Final = ResponseSent()
LEFT: Final = CallerLeft()
FIRST: Final = RESPONSE.start()


class Caller:
    """What the caller still says, for everybody who listens: its body once more, then that it has left."""

    def __init__(self, request: Incoming) -> None:
        self._request = request
        self._given = False
        self._left = False
        self._lock: anyio.Lock | None = None

    async def receive(self) -> Message:
        """An ASGI `receive`."""
        if not self._given:
            self._given = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        await self.gone()
        return {"type": "http.disconnect"}

    async def gone(self) -> None:
        """Returns when the caller has left. One listens on the connection at a time, all are told."""
        if self._lock is None:
            self._lock = anyio.Lock()
        async with self._lock:
            if not self._left:
                await until_gone(self._request.receive)
                self._left = True


class Recorder(Protocol):
    """Where the outcome of a generation goes before its response leaves."""

    def ended(self, status: int, reply: bytes, streamed: bool) -> None:
        """The generation is over and its row, if it gets one, is in the ledger."""


class Delivery:
    """One response: `send` is an ASGI `send` for the application; `headers` go onto it.

    `begun`: something of it has left. `failure`: what ended it early, also for applications that swallow exceptions.
    """

    def __init__(
        self,
        request: Incoming,
        send: Send,
        admission: Admission,
        activity: Activity,
        recorder: Recorder,
        headers: list[tuple[bytes, bytes]],
        max_collected_bytes: int,
        *,
        steps: StepRecorder = UNRECORDED,
        ticket: str = "",
    ) -> None:
        self.caller = Caller(request)
        self.failure: Exception | None = None
        self.begun = False
        self._path = request.path
        self._episode = request.episode
        self._send = send
        self._admission = admission
        self._activity = activity
        self._recorder = recorder
        self._headers = headers
        self._max_collected_bytes = max_collected_bytes
        self._steps = steps
        self._ticket = ticket
        self._machine: Snapshot[ResponseState, None] = FIRST
        self._head: Message | None = None
        self._whole = False
        self._events = False
        self._parts: list[bytes] = []
        self._collected_bytes = 0
        self._recorded = False

    @property
    def state(self) -> ResponseState:
        return self._machine.state

    async def send(self, message: Message) -> None:
        """Takes the application's next message; raises ClientGone or Refused where nobody is to get it."""
        if message["type"] == "http.response.start":
            self._begin(message)
        elif message["type"] == "http.response.body":
            part, more = message.get("body", b""), message.get("more_body", False)
            if not more:
                await self._finish(part)
            elif self._whole:
                self._parts.append(part)
            else:
                await self._go_on(part)

    def abandon(self) -> None:
        """Nothing more of it is sent."""
        self._step(LEFT)

    def _step(self, event: object) -> None:
        self._machine, _ = self._steps.step(RESPONSE, self._machine, event, self._episode, ticket=self._ticket)

    def _begin(self, message: Message) -> None:
        headers = list(message.get("headers", ()))
        kind = next((value for name, value in headers if name.lower() == b"content-type"), b"").decode("latin-1")
        self._whole = comes_whole(message["status"], kind)
        self._events = kind.startswith("text/event-stream")
        self._head = {**message, "headers": headers + self._headers}

    async def _go_on(self, part: bytes) -> None:
        """A part of a stream has left; the first one only when the server is open."""
        self._collect(part)
        if is_last(self._path, part):
            self._record()
        if not self.begun:
            await self._release()
        await self._send({"type": "http.response.body", "body": part, "more_body": True})

    async def _finish(self, part: bytes) -> None:
        """The response is complete: recorded, then let out, then delivered."""
        if self.begun:
            self._collect(part)
            self._record()
        else:
            self._parts.append(part)
            self._record()
            await self._release()
            part = b"".join(self._parts)
        await self._send({"type": "http.response.body", "body": part, "more_body": False})
        self._step(SENT)

    def _collect(self, part: bytes) -> None:
        """The part of a stream is kept until the stream has ended, up to a bound; beyond it nothing can be inferred."""
        self._collected_bytes += len(part)
        if self._collected_bytes > self._max_collected_bytes:
            self._parts.clear()
        else:
            self._parts.append(part)

    def _record(self) -> None:
        if not self._recorded:
            self._recorded = True
            status = 500 if self._head is None else self._head["status"]
            self._recorder.ended(status, b"".join(self._parts), self._events)

    async def _release(self) -> None:
        """The response may leave, and has started to; raises ClientGone or Refused where nobody is to get it."""
        assert self._head is not None, "a body without a start"
        self._step(READY if self._admission.is_open else READY_WHILE_CLOSED)
        try:
            await self._activity.stir(self.caller.gone)
        except Exception as failure:
            self.failure = failure
            self.abandon()
            raise
        self._step(RELEASED)
        self.begun = True
        await self._send(self._head)
