"""Calls from an agent's session or an environment's episode to other servers, with everything that must travel.

Out go the identity prefix, the epoch, the parent of a model call, the session cookie, and of each other logical call
its operation id and which sending of it this is; back come call ids and positions, which the next boundary names. A
refusal never enters a conversation: a closed server is asked again, and a server that is gone makes no result
(docs/reference/protocol.md sections 3, 6, 7 and 14).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import StrEnum, auto
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final, Protocol, TypeVar

import anyio
import httpx
from attrs import define, field, frozen

from statecore import WireError
from statecore.wire import parse

from ..identity import (
    EPOCH_HEADER,
    INCARNATION_HEADER,
    MODEL_CALL_HEADER,
    OPERATION_HEADER,
    PARENT_CALL_HEADER,
    POSITION_HEADER,
    REFUSED_HEADER,
    RESTART_HEADER,
    REVISION_HEADER,
    SESSION_HEADER,
    TRY_HEADER,
    EpisodeId,
    with_prefix,
)
from ..machines.sendings import tried_from
from ..net.http import encode_body, refuse_request
from ..net.posts import Answered
from ..records.positions import SEED_HISTORY, OtherSession, Position, later, next_history
from ..records.records import PartRef
from .executions import ParticipantLost
from .server import Server

MODEL_PATHS: Final = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
CONNECT_TRIES: Final = 3
CLOSED_WAIT_S: Final = (0.02, 0.5)  # first and longest pause before a closed server is asked again


def is_model_path(path: str) -> bool:
    """Whether a call to this path is a generation."""
    return path.endswith(MODEL_PATHS)


class Heard(StrEnum):
    """What a peer's answer is to the caller's loop."""

    REPLY = auto()  # it goes to the loop
    CLOSED = auto()  # a refusal that passes: ask again, nothing of it is seen (S9, I74)
    OVER = auto()  # this execution was retired
    LOST = auto()  # the peer, or the session there, is gone: no result is made of it (I97)


_HEARD: Final = {
    "admission_closed": Heard.CLOSED,
    "too_many_held": Heard.CLOSED,
    "stale_attempt": Heard.OVER,
    "session_lost": Heard.LOST,
    "stale_incarnation": Heard.LOST,
    "stale_epoch": Heard.LOST,
    "participant_lost": Heard.LOST,
    "participant_broken": Heard.LOST,
}


def heard(status: int, code: str | None = None, *, ours: bool = True) -> Heard:
    """What an answer of this status is, with the code of its error if it has one.

    `ours`: a server of a deployment answered itself. A 5xx of anybody else says that there was nobody to answer.
    """
    if status < 400:
        return Heard.REPLY
    if code in _HEARD:
        return _HEARD[code]
    return Heard.LOST if status >= 500 and not ours else Heard.REPLY


@frozen
class Reply:
    """What a peer answered: `body` is JSON where it is JSON, else the text; header names are in lower case.

    `content` is the body as it came, `set_cookies` the values of the headers of that name.
    """

    status: int
    body: Any
    headers: Mapping[str, str]
    content: bytes = b""
    set_cookies: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


@define(eq=False)
class Trail:
    """What the calls of one execution leave for its next boundary: lineage, positions of parts, cookies.

    `starting_over` are the servers at which its session cannot be continued; they need not keep what they replied.
    """

    last_model_call_id: str | None = None
    lineage_head: str | None = None
    model_calls: int = 0
    positions: dict[tuple[str, str, str], Position] = field(factory=dict)
    sessions: dict[str, str] = field(factory=dict)  # the session at each resources server
    cookies: dict[str, dict[str, str]] = field(factory=dict)
    starting_over: set[str] = field(factory=set)

    def note_call(self, model_call_id: str) -> None:
        """The reply of this model call is now part of the conversation."""
        self.model_calls += 1
        self.lineage_head = next_history(self.lineage_head or SEED_HISTORY, model_call_id, self.model_calls)
        self.last_model_call_id = model_call_id

    def note_position(self, server: str, session_id: str, position: Position) -> None:
        self.sessions[server] = session_id
        self.positions[("resources", server, session_id)] = position

    def note_reply(self, server: str, headers: Mapping[str, str], set_cookies: Iterable[str]) -> None:
        """Positions and cookies of a reply; ParticipantLost when what answered is not the session that was known."""
        for header in set_cookies:
            try:
                named = {name: morsel.value for name, morsel in SimpleCookie(header).items()}
            except CookieError:
                continue  # a cookie that cannot be read is one that is not sent back
            self.cookies.setdefault(server, {}).update(named)
        position = _position(headers)
        if position is not None:
            session_id = headers.get(SESSION_HEADER) or self.sessions.get(server, "")
            try:
                now = later(self.positions.get(("resources", server, session_id)), position)
            except OtherSession as other:  # S60: nothing goes on in a session that is not the one it began in
                raise ParticipantLost(f"{server}: {other}") from other
            self.note_position(server, session_id, now)

    def parts(self) -> tuple[PartRef, ...]:
        return tuple(
            PartRef(kind=kind, instance=instance, key=key, position=position)
            for (kind, instance, key), position in self.positions.items()
        )


T = TypeVar("T")


class Around(Protocol):
    """Makes a call, and knows of its execution what it does meanwhile."""

    def __call__(self, send: Callable[[], Awaitable[T]], /) -> Awaitable[T]: ...


@define(eq=False)
class Peer:
    """One other server, as one execution calls it.

    `around_model` makes the call that waits for a generation: the execution is quiet meanwhile, and a late reply is
    held. `around_other` makes every other call, and is around all its sendings of which nothing came: meanwhile the
    execution moves, whatever else of it waits. `when_refused` returns when a call that was refused for good, with all
    its sendings so far, may be sent again. `on_restart` is told when the server says that its sessions start over.
    """

    host: Server
    name: str
    episode: EpisodeId | None
    trail: Trail
    check: Callable[[], None]
    around_model: Around | None = None
    around_other: Around | None = None
    when_refused: Callable[[], Awaitable[None]] | None = None
    on_restart: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        url = self.host.settings.servers.get(self.name)
        if url is None:
            known = ", ".join(sorted(self.host.settings.servers)) or "none"
            raise LookupError(f"no server {self.name!r} in settings.servers (known: {known})")
        return url.rstrip("/")

    async def post(
        self, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None, operation_id: str | None = None
    ) -> Reply:
        """The peer's answer to one logical call; a closed peer is asked again under the same operation id, as the next
        sending of it.

        `body` is JSON, or bytes that are sent as they are.
        Raises ParticipantLost when the peer is gone or has lost the session, Refused `stale_attempt` when this
        execution is over (here or there).
        """
        content = body if isinstance(body, bytes) else encode_body({} if body is None else body)
        sent = self._headers(path, headers, operation_id)
        pause, tried = CLOSED_WAIT_S[0], 0
        while True:
            self.check()
            answered, tried = await self._send(path, content, sent, tried)
            reply = self._read(answered)
            if reply is not None:
                break
            if self.when_refused is not None and is_final(answered.headers, tried):
                await self.when_refused()
            else:
                await self.host.admission.opened(None if self.episode is None else self.episode.rollout_id)
            await anyio.sleep(pause)
            pause = min(pause * 2, CLOSED_WAIT_S[1])
        self.trail.note_reply(self.name, reply.headers, reply.set_cookies)
        call_id = reply.headers.get(MODEL_CALL_HEADER)
        if call_id is not None and reply.ok:
            self.trail.note_call(call_id)
        if reply.headers.get(RESTART_HEADER) == "1":
            self.trail.starting_over.add(self.name)
            self.on_restart()
        return reply

    def _headers(self, path: str, extra: Mapping[str, str] | None, operation_id: str | None) -> list[tuple[str, str]]:
        headers = [("content-type", "application/json")]
        if extra:
            headers += [(name.lower(), value) for name, value in extra.items()]
        jar = self.trail.cookies.get(self.name)
        if jar:
            headers.append(("cookie", "; ".join([f"{name}={value}" for name, value in jar.items()])))
        if not self.host.settings.enabled:
            return headers
        epoch = self.host.epoch
        if epoch is not None:
            headers.append((EPOCH_HEADER, str(epoch)))
        if not is_model_path(path):
            headers.append((OPERATION_HEADER, operation_id or self.host.seams.entropy.token_hex(16)))
        elif self.trail.last_model_call_id is not None and all(name != PARENT_CALL_HEADER for name, _ in headers):
            headers.append((PARENT_CALL_HEADER, self.trail.last_model_call_id))
        return headers

    async def _send(
        self, path: str, content: bytes, headers: list[tuple[str, str]], tried: int
    ) -> tuple[Answered, int]:
        """What came of the next sending that arrived, and the how manieth it was; `tried` have left already."""
        if is_model_path(path) or self.around_other is None:
            return await self._knock(path, content, headers, tried)
        return await self.around_other(lambda: self._knock(path, content, headers, tried))

    async def _knock(
        self, path: str, content: bytes, headers: list[tuple[str, str]], tried: int
    ) -> tuple[Answered, int]:
        counts = self.host.settings.enabled and not is_model_path(path)
        prefixed = path if self.episode is None or not self.host.settings.enabled else with_prefix(self.episode, path)

        def once() -> Awaitable[Answered]:
            sent = [*headers, (TRY_HEADER, str(tried))] if counts else headers
            return self.host.posts.post(self.url, prefixed, content, sent)

        around = self.around_model if is_model_path(path) else None
        for knock in range(1, CONNECT_TRIES + 1):
            tried += 1
            try:
                return await (once() if around is None else around(once)), tried
            except httpx.ConnectError as error:
                if knock == CONNECT_TRIES:
                    raise ParticipantLost(f"{self.name} cannot be reached: {error}") from error
            except httpx.TransportError as error:  # it may have been applied
                if knock == CONNECT_TRIES or not (counts and self._keeps_replies):
                    why = f"{self.name} did not answer {path}: {type(error).__name__} {error}"
                    raise ParticipantLost(why) from error
            await anyio.sleep(CLOSED_WAIT_S[1])
            self.check()
        raise AssertionError("unreachable")

    @property
    def _keeps_replies(self) -> bool:
        """Whether a session of ours is there that keeps its replies: a call sent again is applied once (S33, I57).

        One that starts over after a restore may be of a server that records nothing.
        """
        if self.name in self.trail.starting_over:
            return False
        session_id = self.trail.sessions.get(self.name)
        position = self.trail.positions.get(("resources", self.name, session_id or ""))
        return position is not None and not position.weak

    def _read(self, answered: Answered) -> Reply | None:
        """The reply, or None when the peer is closed, or has no room to hold the call, and must be asked again."""
        try:
            body: Any = parse(answered.body)
        except WireError:
            body = answered.body.decode("utf-8", "replace")
        code = _code(body) if answered.status >= 400 else None
        headers = answered.headers
        ours = code is not None or INCARNATION_HEADER in headers or not self.host.settings.enabled
        what = heard(answered.status, code, ours=ours)
        if what is Heard.CLOSED:
            return None
        if what is Heard.OVER:
            raise refuse_request("stale_attempt", f"{self.name}: {body['error'].get('detail', '')}")
        if what is Heard.LOST:
            said = code or f"{answered.status} without an error of its own"
            raise ParticipantLost(f"{self.name} answered {said}")
        cookies = tuple(answered.all(b"set-cookie")) if "set-cookie" in headers else ()
        return Reply(answered.status, body, headers, answered.body, cookies)


def is_final(headers: Mapping[str, str], tried: int) -> bool:
    """Whether a refusal with these headers says that none of the `tried` sendings so far will ever be applied."""
    try:
        return tried_from(headers.get(REFUSED_HEADER, "")) >= tried
    except ValueError:
        return False  # of a peer that does not keep what it refused


def _code(body: Any) -> str | None:
    error = body.get("error") if isinstance(body, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, str) else None


def _position(headers: Mapping[str, str]) -> Position | None:
    """The position that a reply names; only the revision, weak, from a peer that gives no more."""
    try:
        if POSITION_HEADER in headers:
            return Position.from_header(headers[POSITION_HEADER])
        if REVISION_HEADER in headers:
            return Position(int(headers[REVISION_HEADER]))
    except ValueError as error:
        raise ParticipantLost(f"a reply names no valid position: {error}") from error
    return None
