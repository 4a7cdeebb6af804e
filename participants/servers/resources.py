"""A resources server: sessions whose state counts its own changes, and the verifier.

The application's routes call `seed`, `mutate`, `read`, `verify` and `close`; each works under the lock of its session,
so that the position is read where the state is (I37, S21). A mutation that raises leaves the state untouched, a
repeated operation gets its recorded reply. While a checkpoint is open everything that would change a session is held;
what was accepted before runs to its end. A call whose caller counts its sendings gets its recorded reply also then,
waits for a sending that runs, and where it is refused it is refused for good (S61). docs/reference/protocol.md sections
2, 3, 4, 6 and 13.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum, auto
from typing import Any, ClassVar, Final, Generic, TypeVar

import anyio
import httpx
from attrs import define, field, frozen
from starlette.responses import JSONResponse, Response

from statecore import DefinitionError, Refused, WireError, WireErrors
from statecore.wire import encode, parse

from ..files.snapshots import InvalidCheckpointState
from ..identity import (
    OPERATION_HEADER,
    POSITION_HEADER,
    RESTART_HEADER,
    REVISION_HEADER,
    SESSION_HEADER,
    VERIFY_HEADER,
    EpisodeId,
    highest_attempts,
)
from ..machines.resource_session import (
    RESOURCE_SESSION,
    Froze,
    Installed,
    Mutated,
    Operation,
    Seeded,
    SessionData,
    SessionState,
    Thawed,
    Used,
    VerifyFailed,
    VerifyStarted,
    VerifySucceeded,
)
from ..machines.sendings import Fate, Sending, fate
from ..net.http import (
    REQUEST_KEY,
    ASGIApp,
    Incoming,
    Message,
    RefusedForGood,
    Scope,
    Send,
    encode_body,
    headers_of,
    refuse_request,
    serve,
    until_gone,
)
from ..records.positions import Position
from ..records.records import ResourcesRecord, ResourcesState, record_json
from ..settings import Seams, Settings
from .admission import Activity, wait_or_gone
from .codecs import Codec, CodecError, check_codec, undo_of
from .cookies import SessionCookies
from .modes import Mode
from .part import Blocker, Json, Report
from .refusals import Refusals
from .server import Server
from .session_book import Session, SessionBook

__all__ = ["Change", "Mode", "Resources", "Session", "Verify"]

S = TypeVar("S")

SEED_PATHS: Final = frozenset({"/seed_session", "/reset"})
VERIFY_PATH: Final = "/verify"
CLOSE_PATH: Final = "/close_session"
PASSING: Final = frozenset({"admission_closed", "too_many_held"})
"""Refusals that say nothing of the call: it is to be sent again."""


class Verify(StrEnum):
    """Whether a verification may run again after a restore (REPLAY), or is never cut (WAIT)."""

    WAIT = auto()
    REPLAY = auto()


@define(eq=False)
class Change(Generic[S]):
    """A mutation under way: change `state` and set `reply`, unless it is `repeated`, then `reply` is the recorded
    one. `headers` say where the session stands, read under its lock when the block ends (I37, S21).
    """

    session: Session[S]
    operation_id: str
    headers: dict[str, str] | None = None
    repeated: bool = False
    reply: Any = None

    @property
    def state(self) -> S:
        return self.session.state

    @state.setter
    def state(self, value: S) -> None:
        self.session.state = value

    def response(self, status: int = 200) -> Response:
        """The reply with the position that the session had when the block ended; RuntimeError inside the block."""
        if self.headers is None:
            raise RuntimeError("response() is called after the block: inside it the position is still the one before")
        return JSONResponse(self.reply, status, headers=self.headers)


@define(eq=False)
class Serving:
    """A call that was admitted and runs: whose, which path, since when (monotonic seconds), which operation."""

    whose: EpisodeId | None
    path: str
    since: float
    activity: Activity
    operation_id: str | None
    cancel: anyio.CancelScope = field(factory=anyio.CancelScope)
    over: anyio.Event | None = None  # somebody waits for its end


@frozen
class Staged(Generic[S]):
    """A record of a checkpoint, read and decoded, not installed yet."""

    session_id: str
    episode: EpisodeId
    state: S
    position: Position
    operations: tuple[Operation, ...]


class Resources(Server, Generic[S]):
    """The sessions of one resources server.

    `mode` EXPORT_RESTORE needs a `codec`, and the first seed and the first mutation prove it by export, import and
    compare (S11); a codec that cannot is refused there. `verify` REPLAY lets `/verify` pass while a checkpoint is open.
    """

    kind: ClassVar[str] = "resources"
    role: ClassVar[str] = "resources"

    def __init__(
        self,
        name: str,
        settings: Settings,
        *,
        codec: Codec[S] | None = None,
        mode: Mode = Mode.RESTART_ONLY,
        verify: Verify = Verify.WAIT,
        seams: Seams | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if mode is Mode.EXPORT_RESTORE and codec is None:
            raise DefinitionError(
                f"resources server {name!r}: mode export_restore needs a codec= for its sessions' state"
            )
        self.mode = mode
        self.codec = codec
        self.verify_policy = verify
        self.checkpoint_mode = mode.value
        super().__init__(name, settings, seams=seams, transport=transport)
        self.cookies = SessionCookies(name, settings.cookie_secret)
        self._book: SessionBook[S] = SessionBook()
        self._inflight: set[Serving] = set()
        self.refusals = Refusals(self.settings.max_held)
        self._proved: set[bool] = set()

    # --- what an application calls

    async def seed(self, scope: Scope, state: S, reply: Any = None) -> Response:
        """A session with `state` at revision 0, bound to its rollout and its cookie; a seed sent again finds it.

        `reply` is the JSON body (an empty object by default). A stateless server makes no session.
        """
        request = self._request(scope)
        headers = {VERIFY_HEADER: self.verify_policy.value} if self.settings.enabled else {}
        if self.settings.enabled and self.mode.wire == "restart_only":
            headers[RESTART_HEADER] = "1"
        body = {} if reply is None else reply
        if self.mode is Mode.STATELESS:
            return JSONResponse(body, headers=headers)
        self._prove(state)
        session = self._seeded(request, state, body)
        if session.seeded is not None:
            body = parse(session.seeded.reply)
        cookie = self.cookies.write(session.session_id)
        if self.settings.enabled:
            headers |= self._position(session) | {SESSION_HEADER: session.session_id}
        return JSONResponse(body, headers=headers | {"set-cookie": cookie})

    @asynccontextmanager
    async def mutate(self, scope: Scope) -> AsyncIterator[Change[S]]:
        """One mutation under the session's lock: a new position if the block ends, an untouched state if it raises.

        Raises Refused `session_lost` for a session that this server does not know, `execution_identity_mismatch` when
        cookie and prefix name different ones.
        """
        request = self._request(scope)
        session = self._find(request)
        operation_id = _operation(request) or self.seams.entropy.token_hex(16)
        async with session.lock:
            self._use(session, request)
            change = Change(session, operation_id)
            done = session.machine.data.applied(operation_id)
            if done is not None:
                change.repeated, change.reply = True, parse(done.reply)
                yield change
                self._end(change)
                return
            check_admitted(request)
            undo = None if self.codec is None else undo_of(self.codec, session.state)
            try:
                yield change
                self._prove(session.state, moved=True)
                session.step(Mutated(operation_id, encode(change.reply).decode()))
            except BaseException:
                if undo is not None:
                    session.state = undo()
                raise
            self.refusals.done(session.episode, operation_id)
            self._end(change)

    @asynccontextmanager
    async def read(self, scope: Scope) -> AsyncIterator[Change[S]]:
        """A look at the session under its lock: the position stays (I36)."""
        request = self._request(scope)
        check_admitted(request)
        session = self._find(request)
        async with session.lock:
            self._use(session, request)
            change = Change(session, "")
            yield change
            self.refusals.done(session.episode, _operation(request) or "")
            self._end(change)

    @asynccontextmanager
    async def verify(self, scope: Scope) -> AsyncIterator[Change[S]]:
        """A verification under the session's lock.

        With Verify.WAIT the session ends if the block ends, and is kept if it raises; a verification sent again gets
        the recorded reply. With Verify.REPLAY the session stays until it is closed, since a restore verifies again.
        """
        request = self._request(scope)
        session = self._find(request)
        operation_id = _operation(request) or ""
        async with session.lock:
            change = Change(session, operation_id)
            if session.verified is not None and operation_id == session.verified.operation_id:
                change.repeated, change.reply = True, parse(session.verified.reply)
                yield change
                self._end(change)
                return
            check_admitted(request)
            self._use(session, request)
            if self.verify_policy is Verify.REPLAY:
                yield change
                self._end(change)
                return
            session.step(VerifyStarted())
            try:
                yield change
            except BaseException:
                session.step(VerifyFailed())
                raise
            session.verified = Operation(operation_id, encode(change.reply).decode())
            session.step(VerifySucceeded())
            self.refusals.done(session.episode, operation_id)
            self._end(change)

    async def close(self, scope: Scope) -> Response:
        """The session is gone; so is one that was not there."""
        request = self._request(scope)
        if request.recorded_only:
            return JSONResponse({})
        session = self._known(request)
        if session is not None:
            async with session.lock:
                self._closed(session, request)
        return JSONResponse({})

    def _closed(self, session: Session[S], request: Incoming) -> None:
        """The session is gone by this request, whose record stays."""
        self._book.drop(session)
        if session.episode is not None:
            self.refusals.over(session.episode)
        if request.tried is not None:
            self._book.note_closed(session, _operation(request) or "")

    async def export_session(self, session_id: str) -> tuple[Position, bytes]:
        """The position of one live session and its state's bytes, read in one piece under its lock (section 13.8)."""
        session = self._book.get(session_id)
        if session is None or self.codec is None:
            raise refuse_request("session_lost", f"session {session_id!r} is not here, or cannot be exported")
        async with session.lock:
            return session.position, encode(self._state_of(session))

    # --- sessions

    def _prove(self, state: S, *, moved: bool = False) -> None:
        """The codec can do what the mode claims (S11): shown on the first state that is seeded, and on the first one
        that a mutation made, since what a codec forgets may not show before something has `moved`.
        """
        if moved in self._proved or self.codec is None or self.mode is not Mode.EXPORT_RESTORE:
            return
        if not self.settings.enabled:
            return  # nothing will be exported (I76)
        try:
            check_codec(self.codec, state)
        except CodecError as error:
            raise refuse_request(
                "checkpoint_error", f"mode export_restore does not hold for this state: {error}"
            ) from error
        self._proved.add(moved)

    def _seeded(self, request: Incoming, state: S, reply: Any) -> Session[S]:
        episode, operation_id = request.episode, _operation(request) or ""
        event = Seeded(self.seams.entropy.token_hex(16), operation_id)
        known = self._book.of(episode)
        if known is not None:
            known.step(event)  # the same seed again, or Refused
            return known
        self.check_may_seed(request, episode)
        machine = RESOURCE_SESSION.start(SessionData(max_operations=self.settings.max_operations))
        session = Session(self.seams.entropy.token_hex(16), episode, state, machine, self.steps)
        session.step(event)
        if self.settings.enabled:
            session.seeded = Operation(operation_id, encode_body(reply).decode())  # as the response has it
        self._book.add(session)
        self.refusals.done(episode, operation_id)
        return session

    def check_may_seed(self, request: Incoming, episode: EpisodeId | None) -> None:
        """A seed that found no session may make one; Refused if it came for its record, or late."""
        check_admitted(request)
        if episode is not None:
            self.fences.check(episode)  # it may have been retired since it was admitted (I8)
        if request.tried is not None and self._book.has_closed(episode, _operation(request) or ""):
            raise refuse_request("session_lost", "this seed is late: its session was closed")

    def _request(self, scope: Scope) -> Incoming:
        """The request as the shell read it; with checkpointing off one that names its session by cookie only."""
        found: Incoming | None = scope.get(REQUEST_KEY)
        if found is not None:
            return found
        return Incoming(scope["method"], scope["path"], headers_of(scope), b"", None, scope, _no_body)

    def _known(self, request: Incoming) -> Session[S] | None:
        return self._book.find(self.cookies.read(request.headers.get("cookie")), request.episode)

    def _find(self, request: Incoming) -> Session[S]:
        session = self._known(request)
        if session is None:
            raise refuse_request("session_lost", "this server does not know that session")  # S60: never made again
        return session

    def _end(self, change: Change[S]) -> None:
        """The block has ended, and its lock is still held."""
        change.headers = self._position(change.session)

    def _position(self, session: Session[S]) -> dict[str, str]:
        """The headers that say where a session stands; none with checkpointing off (I76)."""
        if not self.settings.enabled:
            return {}
        position = session.position
        return {REVISION_HEADER: str(position.revision), POSITION_HEADER: position.header}

    def _use(self, session: Session[S], request: Incoming) -> None:
        """The caller may act on it now: it was not retired while its lock was waited for (I6)."""
        if session.episode is not None:
            self.fences.check(session.episode)
        if self._book.get(session.session_id) is None:
            raise refuse_request("session_lost", "this server does not know that session")
        if not request.recorded_only:
            session.step(Used())

    def _state_of(self, session: Session[S]) -> Json:
        assert self.codec is not None
        data = session.machine.data
        return ResourcesState(
            codec=self.codec.name,
            position=session.position,
            operations=[{"operation_id": each.operation_id, "reply": parse(each.reply)} for each in data.operations],
            data=self.codec.export(session.state),
        ).to_json()

    # --- requests

    async def data(self, request: Incoming, send: Send, app: ASGIApp) -> None:
        owner = self._owner(request)
        if owner is not None and request.path != CLOSE_PATH:
            self.fences.check(owner)
        passes = request.path == VERIFY_PATH and self.verify_policy is Verify.REPLAY
        if passes or (self.mode is Mode.RESTART_ONLY and request.path not in SEED_PATHS):
            await serve(app, request, send)
            return
        closing = request.path == CLOSE_PATH
        sending = self._sending(request)
        if sending is None:
            activity = await self.admitted(request, owner, fenced=not closing)
        else:
            entered = await self._entered(sending, request, fenced=not closing)
            if entered is None:
                request.recorded_only = True
                await serve(app, request, send)
                return
            activity = entered
        if request.episode is not None and not closing:
            for passed in self._book.below(request.episode):  # section 3
                self._book.retire(passed)
            if request.episode.attempt and len(self.refusals):
                self.refusals.over(EpisodeId(request.episode.rollout_id, request.episode.attempt - 1))
        serving = Serving(owner, request.path, self.seams.clock.monotonic(), activity, _operation(request))
        self._inflight.add(serving)
        try:
            with serving.cancel:
                await serve(app, request, send)
            if sending is not None and self.mode is Mode.STATELESS:
                self.refusals.done(owner, sending.operation_id)  # nothing was applied, and nothing will be recorded
        finally:
            self._inflight.discard(serving)
            activity.end()
            if serving.over is not None:
                serving.over.set()
        if serving.cancel.cancelled_caught and owner is not None:
            self.fences.check(owner)

    def _owner(self, request: Incoming) -> EpisodeId | None:
        """Whose call it is: it says so, or its cookie does."""
        return request.episode or self._book.owner(self.cookies.read(request.headers.get("cookie")))

    def _sending(self, request: Incoming) -> Sending | None:
        """Which sending of its call this is; None where nobody counts them."""
        if request.tried is None:
            return None
        return Sending(self._owner(request), _operation(request) or "", request.tried)

    def turned_away(self, request: Incoming, refused: Refused) -> Refused:
        """A sending that is counted is refused for good, with all before it (S61)."""
        sending = self._sending(request)
        return refused if sending is None else RefusedForGood(refused, self.refusals.refuse(sending))

    async def _entered(self, sending: Sending, request: Incoming, *, fenced: bool) -> Activity | None:
        """The call as it was admitted; None when it was applied, and is answered from its record.

        Else this sending is refused, and all before it. That says that nothing of the call was applied or runs, which
        is asked last.
        """
        while True:
            meant, running = self._fate(sending, request)
            if meant is Fate.ANSWER:
                return None
            if running is not None and meant is Fate.WAIT:
                running.over = running.over or anyio.Event()
                await wait_or_gone(running.over, lambda: until_gone(request.receive))
                if fenced and sending.owner is not None:
                    self.fences.check(sending.owner)
                continue
            try:
                return await self.admitted(
                    request, sending.owner, fenced=fenced, also=lambda: self.refusals.check(sending)
                )
            except Refused as refused:
                if refused.code not in PASSING:
                    raise
                if self._fate(sending, request)[0] is Fate.ENTER:
                    raise self.turned_away(request, refused) from refused

    def _fate(self, sending: Sending, request: Incoming) -> tuple[Fate, Serving | None]:
        """What becomes of this sending, and which sending of its call runs, if one does."""
        if self.admission.is_open:
            return fate(is_open=True, applied=False, inside=False), None
        if request.path == CLOSE_PATH:
            applied = self._book.has_closed(sending.owner, sending.operation_id)
        else:
            session = self._known(request)
            applied = session is not None and session.has_done(sending.operation_id)
        running = next(
            (
                each
                for each in self._inflight
                if each.operation_id == sending.operation_id and each.whose == sending.owner
            ),
            None,
        )
        return fate(is_open=False, applied=applied, inside=running is not None), running

    # --- a Part

    def activities(self) -> Iterable[tuple[EpisodeId | None, Activity]]:
        return [(each.whose, each.activity) for each in self._inflight]

    def report(self) -> Report:
        restarts: list[str] = []
        if self.mode.wire == "restart_only":
            restarts = sorted(episode.key for episode in self._book.episodes)
        counts = {"inflight": len(self._inflight), "sessions": len(self._book)}
        # of a restart_only server these are seeds
        blockers = [
            Blocker(each.whose, f"{each.path} runs", each.since) for each in self._inflight if each.activity.blocks
        ]
        return Report(blockers, counts, restarts)

    def status(self) -> Json:
        return {
            "mode": self.mode.wire,
            "verify": self.verify_policy.value,
            "retired_sessions": self._book.retired_count,
        }

    def export(self, scope: frozenset[EpisodeId] | None) -> Iterable[Json]:
        if self.mode is not Mode.EXPORT_RESTORE:
            return
        for session in self._book:
            episode = session.episode
            if episode is None or (scope is not None and episode not in scope):
                continue
            state = self._state_of(session)  # a verified one too: its episode may stand between verdict and result
            yield record_json(ResourcesRecord(episode_id=episode, session_id=session.session_id, state=state))

    def check_fresh(self, count: int) -> None:
        if len(self._book) or self._inflight:
            raise refuse_request(
                "checkpoint_error", "resources restore requires a process without sessions or calls in flight"
            )
        if count and self.mode is not Mode.EXPORT_RESTORE:
            raise refuse_request("checkpoint_error", f"a {self.mode.value} server cannot restore {count} records")

    def stage(self, records: Sequence[ResourcesRecord], scope: frozenset[EpisodeId]) -> list[Staged[S]]:
        staged = [self._decoded(record) for record in records]
        if len({each.episode for each in staged}) != len(staged):
            raise InvalidCheckpointState("two records claim one rollout: one session per rollout and server")
        return staged

    def _decoded(self, record: ResourcesRecord) -> Staged[S]:
        where = f"session {record.session_id!r} of {record.episode_id.key}"
        assert self.codec is not None
        try:
            state = ResourcesState.read(record.state)
            if state is None or state.codec != self.codec.name:
                raise InvalidCheckpointState(f"{where} was not written by codec {self.codec.name!r}")
            operations = tuple(_operation_record(each) for each in state.operations)
            return Staged(
                record.session_id, record.episode_id.successor, self.codec.load(state.data), state.position, operations
            )
        except (WireError, WireErrors, CodecError) as error:
            raise InvalidCheckpointState(f"{where}: {error}") from error

    def install(self, staged: Sequence[Staged[S]], scope: frozenset[EpisodeId]) -> Sequence[str]:
        for each in staged:
            machine = RESOURCE_SESSION.start(SessionData(max_operations=self.settings.max_operations))
            session = Session(each.session_id, each.episode, each.state, machine, self.steps)
            session.step(Installed(each.position, each.operations))
            self._book.add(session)
        for episode in scope:
            self.fences.accept(episode.successor)
        return [each.episode.key for each in staged]

    def prepared(self, left_out: frozenset[str]) -> None:
        if self.mode is not Mode.EXPORT_RESTORE:
            return  # nothing of it is exported, so nothing needs to stand still
        for session in self._book:
            if session.episode is not None and session.episode.key in left_out:
                continue  # a call of it may be under way
            if session.machine.state is not SessionState.ENDED:
                session.step(Froze())

    def opened(self) -> None:
        for session in self._book:
            session.step(Thawed())

    async def retire(self, episodes: Sequence[EpisodeId]) -> None:
        highest = highest_attempts(episodes)
        for episode in episodes:
            self.refusals.over(episode)
        for serving in self._inflight:  # a call that never ends would keep its session for ever
            if serving.whose is not None and serving.whose.attempt <= highest.get(serving.whose.rollout_id, -1):
                serving.cancel.cancel()
        for session in self._book.up_to(highest):
            async with session.lock:  # what runs in it has ended, then nothing of it is left
                self._book.retire(session)

    def forget(self, rollout_ids: Sequence[str]) -> None:
        marks = {each: self.fences.retired[each] for each in rollout_ids if each in self.fences.retired}
        left = sorted(session.episode.key for session in self._book.up_to(marks) if session.episode is not None)
        if left:
            raise refuse_request("retire_incomplete", f"sessions of retired attempts are still here: {left}")
        self._book.forget(rollout_ids)


def _operation(request: Incoming) -> str | None:
    return request.headers.get(OPERATION_HEADER)


def check_admitted(request: Incoming) -> None:
    """Nothing is done for a request that came only for the record of its call, and finds none."""
    if request.recorded_only:
        raise refuse_request("admission_closed", "the call was answered, and its record is gone")


async def _no_body() -> Message:
    """With checkpointing off the application reads its own body."""
    return {"type": "http.disconnect"}


def _operation_record(value: Any) -> Operation:
    if type(value) is not dict or set(value) != {"operation_id", "reply"} or type(value["operation_id"]) is not str:
        raise WireError.at(("operations",), "an operation has operation_id and reply", "dict_type")
    return Operation(value["operation_id"], encode(value["reply"]).decode())
