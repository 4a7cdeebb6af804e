"""An agent server: the multi-turn loop stays the application's; it can stop and go on at each boundary.

A rollout comes in one of two ways: by the agent's own `/run`, which then owns the episode, or by an environment that
opens a session (`/v1/agent_sessions`) and activates it (`/v1/responses`). Either way the application's handler runs
once and calls `agent.session(scope, task=...)`; after a restore it runs from the top under N+1, gets the state of its
last boundary once, and goes on. docs/reference/protocol.md sections 4, 6, 7, 9 and 14.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final

import anyio
import httpx
from attrs import define, field, frozen

from statecore import WireError, WireErrors
from statecore.wire import structure

from ..identity import ACCESSES_HEADER, ACTIVATION_HEADER, MAX_DIGITS, RESTART_HEADER, EpisodeId, highest_attempts
from ..machines.attempt import AttemptState
from ..net.http import (
    Answer,
    ASGIApp,
    Incoming,
    Message,
    Scope,
    Send,
    headers_of,
    refuse_request,
    replay,
    send_answer,
    send_bytes,
    serve,
)
from ..records.records import AgentRecord, record_json, task_digest
from ..settings import Seams, Settings
from .admission import Activity
from .agent_records import Staged, record_of, staged
from .agent_session import (
    OWN_RUN,
    Access,
    Activation,
    LiveSession,
    Session,
    SessionError,
    check_claim,
    frozen_boundary,
    note_accesses,
    read_accesses,
)
from .cookies import SessionCookies
from .executions import Execution, Executions, handled, never
from .modes import Mode
from .part import Blocker, Json, Report
from .server import Server

RUN_PATH: Final = "/run"
OPEN_PATH: Final = "/v1/agent_sessions"
CLOSE_PATH: Final = "/v1/agent_sessions/close"
ACTIVATE_PATH: Final = "/v1/responses"
ANONYMOUS_PATHS: Final = frozenset({"/aggregate_metrics"})
SESSION_KEY: Final = "statecore.session"


@frozen(kw_only=True)
class OpenSession:
    """Body of `/v1/agent_sessions`."""

    agent_session_id: str
    episode_id: EpisodeId
    task_id: Any = None
    tool_accesses: Any = None
    sandbox_access: Any = None


@frozen(kw_only=True)
class CloseSession:
    agent_session_id: str
    episode_id: EpisodeId


@define(eq=False)
class Serving:
    """A call that a restart-only agent serves now."""

    episode: EpisodeId
    cancel: anyio.CancelScope = field(factory=anyio.CancelScope)
    over: anyio.Event = field(factory=anyio.Event)


class Agent(Server):
    """An agent server. With mode RESTART_ONLY its rollouts are never continued and never block a checkpoint."""

    kind: ClassVar[str] = "agent"
    role: ClassVar[str] = "agent"

    def __init__(
        self,
        name: str,
        settings: Settings,
        *,
        mode: Mode = Mode.EXPORT_RESTORE,
        seams: Seams | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.mode = mode
        self.checkpoint_mode = mode.value
        super().__init__(name, settings, seams=seams, transport=transport)
        self.cookies = SessionCookies(name, settings.cookie_secret)
        self._sessions: dict[tuple[EpisodeId, str], LiveSession] = {}
        self._inflight: set[Serving] = set()  # of a restart-only agent
        self.executions = Executions(
            self, self.seams, epoch=settings.epoch, max_retained_bytes=settings.max_retained_bytes
        )

    # --- what an application calls

    @asynccontextmanager
    async def session(self, scope: Scope, *, task: Any = None, max_steps: int | None = None) -> AsyncIterator[Session]:
        """The session of this request. `task` is the request's JSON; `/run` bodies with a `task` field give that field.

        `max_steps` is the step budget in turns, those before a restore included.
        """
        live: LiveSession | None = scope.get(SESSION_KEY)
        if isinstance(task, dict) and "task" in task and str(scope.get("path", "")).endswith(RUN_PATH):
            task = task["task"]
        state: Any = None
        replayed = False
        if live is not None and live.restored and live.boundary is not None:
            state = live.boundary.value()["state"]
            replayed = state is not None
            live.restored = False
        session = Session(self, live, task, max_steps=max_steps, state=state, replayed=replayed)
        if live is None and "headers" in scope:
            session.use_cookies(_accesses(headers_of(scope)))
        yield session

    # --- requests

    async def data(self, request: Incoming, send: Send, app: ASGIApp) -> None:
        if request.path in ANONYMOUS_PATHS:
            await serve(app, request, send)
            return
        episode = request.episode
        if episode is None:
            detail = (
                "checkpointing requires a rollout id on every agent call: "
                "send _ng_rollout_id or the /ng-rollout/<id> prefix"
            )
            raise refuse_request("rollout_id_required", detail)
        self.fences.check(episode)
        if self.mode is not Mode.EXPORT_RESTORE:
            send = _with_header(send, RESTART_HEADER, "1")
        if self.mode is not Mode.EXPORT_RESTORE and request.path != RUN_PATH:
            await self._restart_only(episode, request, app, send)
        elif request.path == RUN_PATH:
            await self.executions.run(episode, _task(request.value), request, app, send)
        elif request.path == OPEN_PATH:
            await self._open(request, app, send)
        elif request.path == CLOSE_PATH:
            await self._close(request, app, send)
        elif request.path == ACTIVATE_PATH:
            await self._activate(episode, request, app, send)
        else:
            await serve(app, request, send)

    async def _restart_only(self, episode: EpisodeId, request: Incoming, app: ASGIApp, send: Send) -> None:
        """Served also while a checkpoint is open; only new sessions wait for its end."""
        if request.path == OPEN_PATH and not self.admission.is_open:
            raise refuse_request("admission_closed", "admission is closed for a checkpoint")
        self.fences.accept(episode)
        serving = Serving(episode)
        self._inflight.add(serving)
        try:
            with serving.cancel:
                await serve(app, request, send)
        finally:
            self._inflight.discard(serving)
            serving.over.set()
        if serving.cancel.cancelled_caught:
            self.fences.check(episode)

    # an own /run: the two halves that Executions asks for

    def begin(self, execution: Execution) -> None:
        episode = execution.episode
        self.admission.enter_or_refuse()
        try:
            live = self._claim(episode, OWN_RUN, execution.task_digest)
        except BaseException:
            self.admission.leave()
            raise
        live.task = execution.task
        live.restart = live.restart or self.mode is not Mode.EXPORT_RESTORE
        live.begin(Activity(self.admission, episode.rollout_id, self.check(episode)), self.seams.clock.monotonic())
        execution.extras[SESSION_KEY] = live

    def ended(self, execution: Execution) -> None:
        live = self._sessions.pop((execution.episode, OWN_RUN), None)
        if live is not None:
            live.end(completed=execution.retained)

    def _claim(self, episode: EpisodeId, key: str, digest: str) -> LiveSession:
        """The session to run: the restored one, claimed once and for the same task, or a new one (I60, S15)."""
        live = self._sessions.get((episode, key))
        unclaimed = (known.episode for known in self._sessions.values() if known.unclaimed)
        check_claim(episode, digest, unclaimed, None if live is None else live.task_digest)
        if live is None:
            self._retire_below(episode)
            live = self._sessions[episode, key] = LiveSession(episode, key, task_digest=digest, steps=self.steps)
        self.fences.accept(episode)
        return live

    def _retire_below(self, episode: EpisodeId) -> None:
        """The first accepted request of an attempt fences all below it (section 3)."""
        for live in list(self._sessions.values()):
            if live.episode.rollout_id == episode.rollout_id and live.episode.attempt < episode.attempt:
                self._stop(live)

    # sessions of an environment

    async def _open(self, request: Incoming, app: ASGIApp, send: Send) -> None:
        live = self._opened(request)
        cookie = self.cookies.write(live.key)
        await send_answer(send, Answer(200, {"agent_session_id": live.key}, (("set-cookie", cookie),)))

    def _opened(self, request: Incoming) -> LiveSession:
        """The session that the request opens: one that is there, or a new one where admission is open."""
        body = _structured(request, OpenSession)
        episode = body.episode_id
        if (episode, body.agent_session_id) not in self._sessions and not self.admission.is_open:
            raise refuse_request("admission_closed", "session admission is closed for a checkpoint")
        return self._claim(episode, body.agent_session_id, body.task_id if isinstance(body.task_id, str) else "")

    async def _close(self, request: Incoming, app: ASGIApp, send: Send) -> None:
        live = self._to_close(request)
        if live is not None:
            del self._sessions[live.episode, live.key]
        await send_answer(send, Answer(200, {"agent_session_id": _structured(request, CloseSession).agent_session_id}))

    def _to_close(self, request: Incoming) -> LiveSession | None:
        """The session that the request closes, None when it is not here; Refused while it is active."""
        body = _structured(request, CloseSession)
        live = self._sessions.get((body.episode_id, body.agent_session_id))
        if live is not None and live.activity is not None:
            raise refuse_request("checkpoint_error", "the session is active")
        return live

    async def _activate(self, episode: EpisodeId, request: Incoming, app: ASGIApp, send: Send) -> None:
        live = self._session_of(episode, request)
        index = _activation_index(request)
        digest = task_digest(request.value)
        last = live.last
        if index is not None and last is not None and index == last.index:
            await _replied(last, send)  # a repeat gets the earlier reply
            return
        if index is not None and index != live.activations + 1:
            raise refuse_request("activation_out_of_order", f"activation {index} does not follow {live.activations}")
        if live.activity is not None:
            raise refuse_request("checkpoint_error", "the session is busy")
        if (
            live.unclaimed
            and live.payload_digest not in ("", digest)
            and live.answered == live.activations < (index or 0)
        ):
            raise refuse_request(
                "checkpoint_error", f"{episode.key} continues an activation that was given something else"
            )
        accesses = _accesses(request.headers)
        self.admission.enter_or_refuse()
        activity = Activity(self.admission, episode.rollout_id, self.check(episode))
        activation = self._begin_activation(live, activity, request, digest, accesses)
        assert self.group is not None
        self.group.start_soon(self._run_activation, live, activation, request, app)
        await _replied(activation, send)

    def _begin_activation(
        self, live: LiveSession, activity: Activity, request: Incoming, digest: str, accesses: Iterable[Access]
    ) -> Activation:
        note_accesses(live, accesses)
        self.fences.accept(live.episode)
        live.activations += 1
        live.task, live.payload_digest = request.value, digest
        activation = live.last = Activation(live.activations)
        live.begin(activity, self.seams.clock.monotonic())
        return activation

    def _session_of(self, episode: EpisodeId, request: Incoming) -> LiveSession:
        key = self.cookies.read(request.headers.get("cookie"))
        if key is None:
            mine = [live for live in self._sessions.values() if live.episode == episode]
            if len(mine) != 1:
                raise refuse_request(
                    "session_lost", f"{len(mine)} sessions of {episode.key} are here: name one by its cookie"
                )
            return mine[0]
        live = self._sessions.get((episode, key))
        if live is None:
            raise refuse_request("session_lost", "this server does not know that session")
        return live

    async def _run_activation(self, live: LiveSession, activation: Activation, request: Incoming, app: ASGIApp) -> None:
        scope = {**request.scope, SESSION_KEY: live}
        response, own = await handled(app, scope, replay(request.body, never), activation.cancel, live.episode)
        activation.response = response
        if own and response.is_text:
            # what a continuation of the episode needs of this session from here on is the reply, at these positions
            live.boundary = frozen_boundary(live, state=None, items=None, usage=None)
            activation.answered = True
            live.payload_digest = ""  # nothing is under way; what comes next may be something else
        live.end(completed=False)
        if live.machine.state is AttemptState.TOMBSTONED:
            self._sessions.pop((live.episode, live.key), None)
        activation.done.set()

    # --- a Part

    def activities(self) -> Iterable[tuple[EpisodeId | None, Activity]]:
        return [(live.episode, live.activity) for live in self._sessions.values() if live.activity is not None]

    def report(self) -> Report:
        sessions = list(self._sessions.values())
        retained = self.receipts()
        if self.mode is not Mode.EXPORT_RESTORE:
            running = [each.episode.key for each in self._inflight] + [each.episode.key for each in sessions]
            return Report((), {"inflight": len(running)}, sorted(set(running)), retained)
        blockers = [Blocker(each.episode, each.reason, each.since) for each in sessions if each.blocks]
        counts = {"sessions": len(sessions), "at_boundary": sum(each.stands for each in sessions)}
        restarts = sorted({each.episode.key for each in sessions if each.restart})
        return Report(blockers, counts, restarts, retained)

    def status(self) -> Json:
        return {} if self.mode is not Mode.EXPORT_RESTORE else {"accepting": self.admission.is_open}

    def receipts(self) -> list[Json]:
        return [receipt.to_json() for receipt in self.executions.receipts()]

    def acknowledge(self, value: Any) -> Json:
        return self.executions.acknowledge(value)

    def export(self, scope: frozenset[EpisodeId] | None) -> Iterable[Json]:
        for live in list(self._sessions.values()):
            if scope is not None and live.episode not in scope:
                continue
            if live.restart or live.machine.state in (AttemptState.COMPLETED, AttemptState.TOMBSTONED):
                continue
            yield record_json(record_of(live))

    def committed(self, records: Sequence[Json]) -> Json:
        """Names the episodes that this agent's own `/run` drives (S8)."""
        own = sorted(live.episode.key for live in self._sessions.values() if live.key == OWN_RUN)
        return {"own_episodes": own}

    def check_fresh(self, count: int) -> None:
        if self._sessions or self._inflight or self.executions.running():
            raise refuse_request(
                "checkpoint_error", "agent restore requires a process without live sessions or seeds in progress"
            )
        if count and self.mode is not Mode.EXPORT_RESTORE:
            raise refuse_request("checkpoint_error", f"a {self.mode.value} agent cannot restore {count} records")

    def stage(self, records: Sequence[AgentRecord], scope: frozenset[EpisodeId]) -> list[Staged]:
        return [staged(record) for record in records]

    def install(self, staged: Sequence[Staged], scope: frozenset[EpisodeId]) -> Sequence[str]:
        for each in staged:
            live = LiveSession(each.episode, each.key, activations=each.session.activations, steps=self.steps)
            if each.boundary is not None and each.line is not None:
                live.reopen_from(each.boundary, each.line)
            live.task_digest = each.session.task_digest or live.task_digest
            live.payload_digest = each.session.payload_digest
            live.opened = each.session.opened
            live.task = each.own.get("task") if isinstance(each.own, dict) else None
            live.mark_restored()
            if each.session.reply is not None:
                live.last = Activation(each.session.activations, response=each.session.reply.response(), answered=True)
                live.last.done.set()
            self._sessions[each.episode, each.key] = live
        for episode in scope:
            self.fences.accept(episode.successor)
        return [each.episode.key for each in staged]

    async def retire(self, episodes: Sequence[EpisodeId]) -> None:
        highest = highest_attempts(episodes)
        waits = []
        for serving in self._inflight:
            if serving.episode.attempt <= highest.get(serving.episode.rollout_id, -1):
                serving.cancel.cancel()
                waits.append(serving.over)
        for live in list(self._sessions.values()):
            if live.episode.attempt <= highest.get(live.episode.rollout_id, -1):
                if live.last is not None and not live.last.done.is_set():
                    waits.append(live.last.done)
                self._stop(live)
        for done in waits:
            await done.wait()
        await self.executions.retire(episodes)

    def _stop(self, live: LiveSession) -> None:
        """Its loop is cancelled and fenced; nothing of it is kept here once that has ended."""
        live.tombstone()
        if live.last is not None:
            live.last.cancel.cancel()
        if live.key == OWN_RUN:
            self.executions.cancel(live.episode)
        if live.activity is None:
            self._sessions.pop((live.episode, live.key), None)

    def forget(self, rollout_ids: Sequence[str]) -> None:
        self.executions.forget(rollout_ids)


def _task(body: Any) -> Any:
    """The task of a `/run` body; of one without that field everything but the identity."""
    if not isinstance(body, dict):
        raise refuse_request("checkpoint_error", "/run takes a JSON object")
    if "task" in body:
        return body["task"]
    return {name: value for name, value in body.items() if not name.startswith("_ng_") and name != "episode_id"}


def _structured(request: Incoming, cls: type[Any]) -> Any:
    try:
        return structure(request.value, cls)
    except (WireError, WireErrors) as error:
        raise refuse_request("checkpoint_error", str(error)) from error


def _activation_index(request: Incoming) -> int | None:
    text = request.headers.get(ACTIVATION_HEADER)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > MAX_DIGITS or int(text) < 1:
        raise refuse_request("activation_out_of_order", f"{ACTIVATION_HEADER}: {text[:40]!r} is no positive integer")
    return int(text)


def _accesses(headers: Mapping[str, str]) -> Sequence[Access]:
    header = headers.get(ACCESSES_HEADER)
    try:
        return () if header is None else read_accesses(header)
    except (WireError, WireErrors, ValueError) as error:
        raise refuse_request("checkpoint_error", f"{ACCESSES_HEADER}: {error}") from error


async def _replied(activation: Activation, send: Send) -> None:
    await activation.done.wait()
    response = activation.response
    assert response is not None
    await send_bytes(send, response.status, response.body, response.headers)


def _with_header(send: Send, name: str, value: str) -> Send:
    async def stamped(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (name.encode(), value.encode())]}
        await send(message)

    return stamped


__all__ = ["Agent", "Session", "SessionError"]
