"""The policy model server: admission to the generation backend, and the lineage of every call.

A new generation is held while the server is closed; one that was admitted before runs on, and its response is held. A
generation does not block a checkpoint, a response that has started does. Each call that was frozen at a closing gets
exactly one disposition (I25): its row is in the checkpoint, or it is left out and generated again. Without rows for
calls that name no rollout. docs/reference/protocol.md sections 4, 6 and 10.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Final

import anyio
import httpx
from attrs import define, field, frozen

from statecore import DefinitionError, Snapshot, WireError
from statecore.wire import sha256_hex

from ..identity import INCARNATION_HEADER, MODEL_CALL_HEADER, PARENT_CALL_HEADER, EpisodeId, highest_attempts
from ..machines.model_call import (
    MODEL_CALL,
    AdmissionClosed,
    AdmissionOpened,
    CallData,
    CallState,
    Completed,
    Failed,
    LeftOut,
    is_left_out,
)
from ..net.http import ASGIApp, Incoming, Send, invalid_body, refuse_request, send_answer, serve
from ..records.records import ModelRecord, ModelRow
from ..settings import Seams, Settings
from .admission import Activity
from .conversation import MODEL_PATHS, Conversation, continuations
from .delivery import Delivery
from .lineage import Entry, Ledger, Staged, placed, staged, staging_keys
from .part import Blocker, Json, Report
from .server import Server
from .upstream import Call, ReplyCutOff, upstream_app

CALL_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
NO_SCOPE: Final = "model commit needs the episode_ids the controller continues from this checkpoint"
NOT_FRESH: Final = "model restore requires a freshly started model server; this one has served calls"
CLOSED: Final = AdmissionClosed()
OPENED: Final = AdmissionOpened()
COMPLETED: Final = Completed()
FAILED: Final = Failed()
FIRST: Final = MODEL_CALL.start()
CALL_HEADER: Final = MODEL_CALL_HEADER.encode()
PROCESS_HEADER: Final = INCARNATION_HEADER.encode()


@frozen
class Origin:
    """What is known of a rollout's call before it generates, for its row."""

    episode: EpisodeId
    model_call_id: str
    parent_call_id: str | None
    request_digest: str
    policy_version: tuple[int, int] | None
    conversation: Conversation | None

    def row(self, epoch: int | None, staging_key: str | None, failure_reason: str | None) -> ModelRow:
        return ModelRow(
            model_call_id=self.model_call_id,
            capture_key=self.episode.key,
            parent_call_id=self.parent_call_id,
            request_digest=self.request_digest,
            staging_key=staging_key,
            policy_version=self.policy_version,
            epoch=epoch,
            failure_reason=failure_reason,
        )


@define(eq=False)
class ModelCall:
    """One admitted call: its two machines (the other is its delivery's), where it runs, and its origin if it has one.

    `admitted_at` is in wall-clock seconds, `since` in monotonic ones.
    """

    server: PolicyModel
    ticket_id: str
    request: Incoming
    activity: Activity
    origin: Origin | None
    admitted_at: float
    since: float
    cut: Snapshot[CallState, CallData]
    scope: anyio.CancelScope = field(factory=anyio.CancelScope)
    over: anyio.Event | None = None
    delivery: Delivery | None = None

    @property
    def episode(self) -> EpisodeId | None:
        return self.request.episode

    def step(self, event: object) -> Snapshot[CallState, CallData]:
        """The machine of its generation after `event`."""
        self.cut, _ = self.server.steps.step(MODEL_CALL, self.cut, event, self.episode, ticket=self.ticket_id)
        return self.cut

    def ended(self, status: int, reply: bytes, streamed: bool) -> None:
        """The generation is over; its row, if it has one, is in the ledger before anything of the response leaves."""
        if not 200 <= status < 300:
            self.failed(f"HTTP {status}")
            return
        length, digests = 0, tuple[str, ...]()
        if self.origin is not None and self.origin.conversation is not None:
            length, digests = continuations(self.origin.conversation, self.request.path, reply, streamed)
        self.server.recorded(self, COMPLETED, length, digests)

    def failed(self, reason: str) -> None:
        """The generation has failed; its failure row is in the ledger, unless the call had ended before."""
        self.server.recorded(self, FAILED, failure_reason=reason)


class PolicyModel(Server):
    """The policy model server of a job.

    `upstream` is a base URL that speaks the API, or a callable (see `upstream.py`); `app` needs it, `wrap` for an
    application that generates itself does not. `policy_version`, a pair (trainer life, step), goes into the rows of
    the calls that are admitted from then on (S51). `staging_key` names the token store's row of a completed call.
    """

    kind: ClassVar[str] = "model"
    role: ClassVar[str] = "policy"
    concurrency: ClassVar[str] = "any number of calls at once"

    def __init__(
        self,
        name: str,
        settings: Settings,
        upstream: str | Call | None = None,
        *,
        upstream_api_key: str | None = None,
        staging_key: Callable[[EpisodeId, str], str | None] | None = None,
        seams: Seams | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(name, settings, seams=seams, transport=transport)
        self._upstream: ASGIApp | None = None
        if upstream is not None:
            limit = settings.max_body_bytes
            self._upstream = upstream_app(upstream, api_key=upstream_api_key, transport=transport, max_body_bytes=limit)
        self.ledger = Ledger()
        self._staging_key = staging_key
        self._policy_version: tuple[int, int] | None = None
        self._calls: dict[str, ModelCall] = {}
        self._tickets = 0
        self._late: list[tuple[EpisodeId, Entry]] = []  # ended after they were left out: no part of that checkpoint
        self._left_out = 0

    def app(self) -> ASGIApp:
        """The upstream behind this server; with checkpointing off just that."""
        if self._upstream is None:
            raise DefinitionError(f"model server {self.name!r}: give upstream=, or wrap an application of your own")
        return self.wrap(self._upstream)

    @property
    def policy_version(self) -> tuple[int, int] | None:
        """(trainer life, step) of the weights that generate now."""
        return self._policy_version

    @policy_version.setter
    def policy_version(self, value: tuple[int, int] | None) -> None:
        if value is not None and (len(value) != 2 or any(type(each) is not int or each < 0 for each in value)):
            raise ValueError(f"a policy version is (trainer life, step), both 0 or more, not {value!r}")
        self._policy_version = value

    # --- calls

    async def data(self, request: Incoming, send: Send, app: ASGIApp) -> None:
        if request.method != "POST" or not request.path.endswith(MODEL_PATHS):
            await serve(app, request, send)
            return
        parent = request.headers.get(PARENT_CALL_HEADER)
        if parent is not None and not CALL_ID.match(parent):
            fault = WireError.at((PARENT_CALL_HEADER,), f"does not match {CALL_ID.pattern}", "string_pattern_mismatch")
            await send_answer(send, invalid_body(fault, "header"))
            return
        call = self._begin(request, await self.admitted(request), parent)
        try:
            await self._run(call, send, app)
        finally:
            del self._calls[call.ticket_id]
            call.activity.end()
            if call.over is not None:
                call.over.set()

    def _begin(self, request: Incoming, activity: Activity, parent: str | None) -> ModelCall:
        """The call was admitted: it generates, which blocks nothing."""
        activity.settle()
        self._tickets += 1
        clock, episode = self.seams.clock, request.episode
        origin = None if episode is None else self._origin(request, episode, parent)
        now, since = clock.time(), clock.monotonic()
        call = ModelCall(self, f"t{self._tickets}", request, activity, origin, now, since, FIRST)
        self._calls[call.ticket_id] = call
        return call

    def _origin(self, request: Incoming, episode: EpisodeId, parent: str | None) -> Origin:
        """The call's place in the ledger; what is there of earlier attempts is over."""
        if episode.attempt:
            self.ledger.drop(episode.rollout_id, episode.attempt - 1)
        parent, conversation = placed(self.ledger.of(episode), parent, request.path, request.value)
        digest = sha256_hex(request.body) if conversation is None else conversation.digest
        call_id = f"call-{self.seams.entropy.token_hex(12)}"
        return Origin(episode, call_id, parent, digest, self._policy_version, conversation)

    async def _run(self, call: ModelCall, send: Send, app: ASGIApp) -> None:
        request = call.request
        headers = [] if call.origin is None else [(CALL_HEADER, call.origin.model_call_id.encode())]
        if request.incarnation is not None:
            headers.append((PROCESS_HEADER, request.incarnation.encode()))
        limit = self.settings.max_body_bytes
        delivery = call.delivery = Delivery(
            request, send, self.admission, call.activity, call, headers, limit,
            steps=self.steps, ticket=call.ticket_id,
        )  # fmt: skip
        reason = "no whole response"
        try:
            with call.scope:
                await app(request.scope, delivery.caller.receive, delivery.send)
            if delivery.failure is not None:  # the application swallowed it
                raise delivery.failure
            if call.scope.cancelled_caught:
                self._cut_off(call, delivery)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            if delivery.failure is not None and delivery.failure is not error:
                raise delivery.failure from None
            raise
        finally:
            call.failed(reason)  # unless it has ended already
            delivery.abandon()

    def _cut_off(self, call: ModelCall, delivery: Delivery) -> None:
        """Raises what the caller of a retired call gets: 409, or a broken connection once the response had started."""
        assert call.episode is not None, "only a rollout's call is retired"
        if delivery.begun:
            raise ReplyCutOff(f"{call.episode.key} was retired while its response was being sent")
        self.fences.check(call.episode)

    def recorded(
        self,
        call: ModelCall,
        outcome: Completed | Failed,
        length: int = 0,
        digests: tuple[str, ...] = (),
        failure_reason: str | None = None,
    ) -> None:
        """The call's generation has ended, once, and its row is in the ledger (of one left out, at the opening)."""
        if call.cut.state in MODEL_CALL.final or call.cut.data.ended_after_cut:
            return
        origin, row = call.origin, None
        if origin is not None:
            key = None
            if failure_reason is None and self._staging_key is not None:
                key = self._staging_key(origin.episode, origin.model_call_id)
            row = origin.row(self.epoch, key, failure_reason)
        cut = call.step(outcome)
        if origin is None or row is None or self.fences.is_over(origin.episode):
            return
        entry = Entry(row, length, digests)
        if cut.data.ended_after_cut:
            self._late.append((origin.episode, entry))
        else:
            self.ledger.add(origin.episode, entry)

    # --- a Part

    def activities(self) -> Iterable[tuple[EpisodeId | None, Activity]]:
        return [(call.episode, call.activity) for call in self._calls.values()]

    def report(self) -> Report:
        blockers = [
            Blocker(call.episode, f"a response to {call.request.path} has started and is still being sent", call.since)
            for call in self._calls.values()
            if call.activity.blocks
        ]
        held = 0 if self.admission.is_open else sum(call.activity.settled for call in self._calls.values())
        counts = {"inflight": len(self._calls), "held": held, "cut": 0, "cut_failed": 0, "cut_skipped": 0}
        return Report(blockers, counts)

    def status(self) -> Json:
        return {"restored_generation_cuts": []}

    def prepared(self, left_out: frozenset[str]) -> None:
        """The accepted calls are frozen: all that are here, since nobody was admitted after the closing."""
        for call in self._calls.values():
            call.step(CLOSED)

    def opened(self) -> None:
        """Cuts are over; calls that ended after theirs get their rows, before their responses are let out."""
        for call in self._calls.values():
            call.step(OPENED)
        late, self._late = self._late, []
        for episode, entry in late:
            if not self.fences.is_over(episode):
                self.ledger.add(episode, entry)

    def check_scope(self, scope: frozenset[EpisodeId] | None) -> None:
        """A commit begins: every frozen call without a row is left out of it, to be generated again (I25)."""
        if scope is None:
            raise refuse_request("checkpoint_error", NO_SCOPE)
        for call in self._calls.values():
            if is_left_out(call.cut):
                call.step(LeftOut())
        self._left_out = sum(call.cut.state is CallState.EXCLUDED for call in self._calls.values())

    def export(self, scope: frozenset[EpisodeId] | None) -> Iterable[Json]:
        return self.ledger.records(scope or ())

    def committed(self, records: Sequence[Json]) -> Json:
        keys, by_episode = staging_keys(records)
        return {"staging_keys": keys, "staging_keys_by_episode": by_episode, "left_out_calls": self._left_out}

    def check_fresh(self, count: int) -> None:
        if self._tickets:
            raise refuse_request("checkpoint_error", NOT_FRESH)

    def stage(self, records: Sequence[ModelRecord], scope: frozenset[EpisodeId]) -> list[Staged]:
        return staged(records)

    def install(self, staged: Sequence[Staged], scope: frozenset[EpisodeId]) -> Sequence[str]:
        """The rows are under N+1, as they were; a generation cut of another make is dropped: its call runs again."""
        self.ledger.install(staged, scope)
        for episode in scope:
            self.fences.accept(episode.successor)
        return [each.episode.successor.key for each in staged]

    async def retire(self, episodes: Sequence[EpisodeId]) -> None:
        highest = highest_attempts(episodes)
        for rollout_id, attempt in highest.items():
            self.ledger.drop(rollout_id, attempt)
        running = [
            call
            for call in self._calls.values()
            if call.episode is not None and call.episode.attempt <= highest.get(call.episode.rollout_id, -1)
        ]
        for call in running:
            call.over = call.over or anyio.Event()
            call.scope.cancel()
        for call in running:
            assert call.over is not None
            await call.over.wait()
