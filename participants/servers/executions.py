"""One execution per (rollout, attempt), and its result until the exact receipt comes back.

The handler of `/run` is started once, in the server's own task group, and outlives its callers: everybody who asks for
the same attempt gets the one response (I10, I68). Each result has one receipt (S6), is kept until that receipt is
acknowledged (I66), and never blocks a checkpoint or the next attempt (S2). docs/reference/protocol.md section 9.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import anyio
import anyio.abc
from attrs import define, field, frozen

from statecore import Refused, Snapshot, WireError, WireErrors
from statecore.wire import digest, parse, sha256_hex, structure

from ..identity import RECEIPT_HEADER, EpisodeId, highest_attempts
from ..journals.recorder import StepRecorder
from ..machines.handoff import HANDOFF, Acknowledged, Asked, Finished, Handoff, Kept
from ..net.http import (
    JSON_TYPE,
    Answer,
    ASGIApp,
    Incoming,
    Message,
    ParticipantLost,
    Receive,
    Send,
    encode_body,
    refusal,
    refusal_in,
    refuse_request,
    replay,
    send_bytes,
)
from ..records.records import Receipt, task_digest
from ..settings import Seams

__all__ = ["Executions", "ParticipantLost", "Response", "handled", "never"]

log = logging.getLogger("statecore.participants")

MAX_ACKNOWLEDGED_AT_ONCE = 1000


@frozen
class Response:
    """A response as it was captured: sent again to everybody who asks."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def is_text(self) -> bool:
        """Whether the body is UTF-8, so that it can be kept in a record."""
        try:
            self.body.decode()
        except UnicodeDecodeError:
            return False
        return True

    @classmethod
    def of(cls, answer: Answer) -> Response:
        return cls(answer.status, (JSON_TYPE, *answer.headers), encode_body(answer.body))


class Capture:
    """An ASGI `send` that keeps what it is given."""

    def __init__(self) -> None:
        self.status = 500
        self.headers: tuple[tuple[str, str], ...] = ()
        self.parts: list[bytes] = []
        self.complete = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            named = ((k.decode("latin-1").lower(), v.decode("latin-1")) for k, v in message.get("headers", ()))
            self.headers = tuple((k, v) for k, v in named if k != "content-length")
        elif message["type"] == "http.response.body":
            self.parts.append(message.get("body", b""))
            self.complete = not message.get("more_body", False)

    @property
    def response(self) -> Response:
        return Response(self.status, self.headers, b"".join(self.parts))


async def handled(
    app: ASGIApp, scope: Any, receive: Receive, cancel: anyio.CancelScope, episode: EpisodeId
) -> tuple[Response, bool]:
    """The response of a handler that outlives its callers, and whether it is the handler's own.

    What it is not: a refusal, a lost server, an exception or the end of its attempt, each as peers know it (S42, I97).
    """
    capture = Capture()
    try:
        with cancel:
            await app(scope, receive, capture)
        if not cancel.cancelled_caught:
            return capture.response, True
        refused = refuse_request(
            "stale_attempt", f"rollout {episode.rollout_id!r} attempt {episode.attempt} was retired"
        )
        answer = refusal(refused)
    except Exception as error:  # one rollout's failure is its own
        known = refusal_in(error)
        if known is not None:
            return Response.of(refusal(known)), False
        log.exception("rollout %s failed", episode.key)
        answer = Answer(500, {"error": {"code": "execution_failed", "detail": f"{type(error).__name__}: {error}"}})
    return Response.of(answer), False


@define(eq=False)
class Execution:
    """The one execution of an attempt; `response` is there once `done` is set."""

    episode: EpisodeId
    task: Any
    task_digest: str
    generation: int
    handoff: Snapshot[Handoff, Kept]
    cancel: anyio.CancelScope = field(factory=anyio.CancelScope)
    done: anyio.Event = field(factory=anyio.Event)
    response: Response | None = None
    receipt: Receipt | None = None
    extras: dict[str, Any] = field(factory=dict)  # what the host puts into the handler's scope

    @property
    def retained(self) -> bool:
        return self.handoff.state is Handoff.RETAINED


class Host(Protocol):
    """The kind of server around the executions."""

    group: anyio.abc.TaskGroup | None
    steps: StepRecorder

    def begin(self, execution: Execution) -> None:
        """Admission is asked and the restored state, if any, is claimed; Refused when the execution must not begin."""

    def ended(self, execution: Execution) -> None:
        """The handler is over, whatever its outcome."""


class Executions:
    """All executions of one server that are running, retained or failed."""

    def __init__(self, host: Host, seams: Seams, *, epoch: int | None, max_retained_bytes: int) -> None:
        self._host = host
        self._seams = seams
        self._epoch = epoch
        self._max_retained_bytes = max_retained_bytes
        self._retained_bytes = 0
        self._executions: dict[EpisodeId, Execution] = {}
        self._released: dict[EpisodeId, Snapshot[Handoff, Kept]] = {}
        self._generations: dict[EpisodeId, int] = {}

    def get(self, episode: EpisodeId) -> Execution | None:
        return self._executions.get(episode)

    def running(self) -> list[Execution]:
        return [execution for execution in self._executions.values() if not execution.done.is_set()]

    def receipts(self) -> list[Receipt]:
        """The receipts of all retained results."""
        return [each.receipt for each in self._executions.values() if each.retained and each.receipt is not None]

    async def run(self, episode: EpisodeId, task: Any, request: Incoming, app: ASGIApp, send: Send) -> None:
        """`send` gets the response of the one execution of `episode`, which is begun if there is none yet."""
        execution = self._find(episode, task_digest(task))
        if execution is None:
            execution = self._begin(episode, task)
            assert self._host.group is not None
            receive = replay(request.body, never)  # it outlives its caller
            scope = {**request.scope, **execution.extras}
            self._host.group.start_soon(self._execute, execution, app, scope, receive)
        await execution.done.wait()
        response = execution.response
        assert response is not None
        await send_bytes(send, response.status, response.body, response.headers)

    def _find(self, episode: EpisodeId, task: str) -> Execution | None:
        execution = self._executions.get(episode)
        if execution is not None:
            self._host.steps.step(HANDOFF, execution.handoff, Asked(task), episode)
            return execution
        released = self._released.get(episode)
        if released is not None:
            self._host.steps.step(HANDOFF, released, Asked(task), episode)
        return None

    def _begin(self, episode: EpisodeId, task: Any) -> Execution:
        if self._retained_bytes >= self._max_retained_bytes:
            raise refuse_request("results_full", "results wait for their acknowledgement; no new rollout is taken")
        digested = task_digest(task)
        generation = self._generations.get(episode, 0) + 1
        execution = Execution(episode, task, digested, generation, HANDOFF.start(Kept(task_digest=digested)))
        self._host.begin(execution)
        self._generations[episode] = generation
        self._executions[episode] = execution
        return execution

    async def _execute(self, execution: Execution, app: ASGIApp, scope: Any, receive: Receive) -> None:
        response, _ = await handled(app, scope, receive, execution.cancel, execution.episode)
        self._finish(execution, response)

    def _finish(self, execution: Execution, response: Response) -> None:
        if 200 <= response.status < 300 and execution.handoff.state is Handoff.RUNNING:
            response = self._retain(execution, response)
        execution.response = response
        execution.done.set()
        self._host.ended(execution)

    def _retain(self, execution: Execution, response: Response) -> Response:
        """The result has a receipt and is kept until that comes back."""
        receipt = Receipt(
            rollout_id=execution.episode.rollout_id,
            attempt=execution.episode.attempt,
            epoch=self._epoch,
            execution_generation=execution.generation,
            result_identity=self._seams.entropy.token_hex(16),
            result_sha256=_body_digest(response.body),
        )
        finished = Finished(receipt.header)
        execution.handoff, _ = self._host.steps.step(HANDOFF, execution.handoff, finished, execution.episode)
        execution.receipt = receipt
        self._retained_bytes += len(response.body)
        return Response(response.status, (*response.headers, (RECEIPT_HEADER, receipt.header)), response.body)

    def acknowledge(self, value: Any) -> dict[str, Any]:
        """Each exact receipt has released its result; idempotent, in every phase (section 9)."""
        body = structure(value, Acknowledgement)
        sorted_out: dict[str, list[Any]] = {"acknowledged": [], "unknown": [], "mismatched": []}
        for receipt in body.receipts:
            sorted_out[self._acknowledge(receipt)].append(receipt.to_json())
        return sorted_out

    def _acknowledge(self, receipt: Receipt) -> str:
        execution = self._executions.get(receipt.episode)
        released = self._released.get(receipt.episode)
        machine = execution.handoff if execution is not None else released
        if machine is None:
            return "unknown"
        try:
            after, _ = self._host.steps.step(HANDOFF, machine, Acknowledged(receipt.header), receipt.episode)
        except Refused as refused:
            return "mismatched" if refused.code == "receipt_mismatch" else "unknown"
        if execution is not None:
            self._released[receipt.episode] = after
            self._drop(execution)
        return "acknowledged"

    def _drop(self, execution: Execution) -> None:
        if self._executions.get(execution.episode) is execution:
            del self._executions[execution.episode]
            self._generations.pop(execution.episode, None)
        if execution.retained and execution.response is not None:
            self._retained_bytes -= len(execution.response.body)

    async def retire(self, episodes: Sequence[EpisodeId]) -> None:
        """Nothing of these attempts or earlier ones runs. A retained result stays until it is acknowledged (I70)."""
        highest = highest_attempts(episodes)
        for execution in list(self._executions.values()):
            if execution.episode.attempt > highest.get(execution.episode.rollout_id, -1):
                continue
            if not execution.done.is_set():
                execution.cancel.cancel()
                await execution.done.wait()
            if not execution.retained:
                self._drop(execution)

    def cancel(self, episode: EpisodeId) -> None:
        """Its handler ends at its next wait; callers get `stale_attempt`."""
        execution = self._executions.get(episode)
        if execution is not None and not execution.done.is_set():
            execution.cancel.cancel()

    def forget(self, rollout_ids: Iterable[str]) -> None:
        """What is kept only to answer late repeats of these rollouts is gone."""
        gone = set(rollout_ids)
        self._released = {episode: kept for episode, kept in self._released.items() if episode.rollout_id not in gone}


@frozen(kw_only=True)
class Acknowledgement:
    receipts: tuple[Receipt, ...] = field()

    @receipts.validator
    def _bounded(self, _attribute: object, value: tuple[Receipt, ...]) -> None:
        if not 1 <= len(value) <= MAX_ACKNOWLEDGED_AT_ONCE:
            raise ValueError(f"1 to {MAX_ACKNOWLEDGED_AT_ONCE} receipts at once, not {len(value)}")


async def never() -> Message:
    """Nothing more comes: the caller of an execution may have left long ago."""
    await anyio.sleep_forever()
    raise AssertionError("unreachable")


def _body_digest(body: bytes) -> str:
    """The digest of a result: over its canonical JSON, or over the bytes of a body that is none."""
    try:
        return digest(parse(body))
    except (WireError, WireErrors):
        return sha256_hex(body)
