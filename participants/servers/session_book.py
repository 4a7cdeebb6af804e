"""The sessions of a resources server: which there are, whose they are, and which belonged to attempts that are over.

One session per (rollout, attempt) and server. A session that was retired leaves its id behind, so that a late call with
its cookie is told *stale attempt* and not *lost*, until the coordinator forgets its rollout
(docs/reference/protocol.md section 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Generic, TypeVar

import anyio
from attrs import define, field

from statecore import Snapshot

from ..identity import EpisodeId
from ..journals.recorder import UNRECORDED, StepRecorder
from ..machines.resource_session import RESOURCE_SESSION, Closed, Operation, SessionData, SessionState
from ..net.http import refuse_request
from ..records.positions import Position

S = TypeVar("S")

CLOSES_KEPT: Final = 4096


@define(eq=False)
class Session(Generic[S]):
    """One session, live. `episode` is None for a caller that named no rollout: it is never saved."""

    session_id: str
    episode: EpisodeId | None
    state: S
    machine: Snapshot[SessionState, SessionData]
    steps: StepRecorder = UNRECORDED
    lock: anyio.Lock = field(factory=lambda: anyio.Lock(fast_acquire=True))
    seeded: Operation | None = None
    verified: Operation | None = None

    @property
    def position(self) -> Position:
        position = self.machine.data.position
        assert position is not None, "a session has a position from its seed on"
        return position

    def has_done(self, operation_id: str) -> bool:
        """Whether that call was applied here and has its reply: a mutation, the verification, or the seed."""
        if self.machine.data.applied(operation_id) is not None:
            return True
        if self.verified is not None and self.verified.operation_id == operation_id:
            return True
        is_there = self.machine.state in (SessionState.LIVE, SessionState.FROZEN)
        return is_there and self.seeded is not None and self.seeded.operation_id == operation_id

    def step(self, event: object) -> None:
        position = self.machine.data.position
        self.machine, _ = self.steps.step(
            RESOURCE_SESSION, self.machine, event, self.episode,
            session=self.session_id,
            revision=None if position is None else position.revision,
            operation=getattr(event, "operation_id", None),
        )  # fmt: skip


class SessionBook(Generic[S]):
    """All live sessions, by id and by execution."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session[S]] = {}
        self._by_episode: dict[EpisodeId, Session[S]] = {}
        self._retired: dict[str, EpisodeId] = {}
        self._closed: dict[tuple[EpisodeId | None, str], None] = {}  # the calls that seeded and closed the last of them

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session[S]]:
        """A copy: sessions may come and go meanwhile."""
        return iter(list(self._sessions.values()))

    @property
    def episodes(self) -> Iterable[EpisodeId]:
        """The executions that have a session here."""
        return self._by_episode.keys()

    @property
    def retired_count(self) -> int:
        return len(self._retired)

    def get(self, session_id: str | None) -> Session[S] | None:
        return None if session_id is None else self._sessions.get(session_id)

    def of(self, episode: EpisodeId | None) -> Session[S] | None:
        """The session of this execution."""
        return None if episode is None else self._by_episode.get(episode)

    def owner(self, session_id: str | None) -> EpisodeId | None:
        """Whose session it is, or was before it was retired."""
        session = self.get(session_id)
        if session is not None:
            return session.episode
        return None if session_id is None else self._retired.get(session_id)

    def add(self, session: Session[S]) -> None:
        self._sessions[session.session_id] = session
        if session.episode is not None:
            self._by_episode[session.episode] = session

    def drop(self, session: Session[S]) -> None:
        """It is closed and not here any more."""
        session.step(Closed())
        self._sessions.pop(session.session_id, None)
        if session.episode is not None and self._by_episode.get(session.episode) is session:
            del self._by_episode[session.episode]

    def note_closed(self, session: Session[S], operation_id: str) -> None:
        """This call has closed the session; neither it nor the seed does anything when it is sent again."""
        self._closed[session.episode, operation_id] = None
        if session.seeded is not None and session.seeded.operation_id:
            self._closed[session.episode, session.seeded.operation_id] = None
        while len(self._closed) > CLOSES_KEPT:
            del self._closed[next(iter(self._closed))]

    def has_closed(self, owner: EpisodeId | None, operation_id: str) -> bool:
        """Whether that call has closed a session, or seeded one that was closed, as far as is remembered."""
        return (owner, operation_id) in self._closed

    def retire(self, session: Session[S]) -> None:
        """It is dropped, and its id is remembered as that of an attempt that is over."""
        if session.episode is not None:
            self._retired[session.session_id] = session.episode
        self.drop(session)

    def up_to(self, highest: Mapping[str, int]) -> list[Session[S]]:
        """The sessions of these rollouts' attempts up to the given ones."""
        return [
            session
            for episode, session in self._by_episode.items()
            if episode.attempt <= highest.get(episode.rollout_id, -1)
        ]

    def below(self, episode: EpisodeId) -> list[Session[S]]:
        """The sessions of earlier attempts of this rollout."""
        if episode.attempt > len(self._by_episode):
            return self.up_to({episode.rollout_id: episode.attempt - 1})
        earlier = (self._by_episode.get(EpisodeId(episode.rollout_id, each)) for each in range(episode.attempt))
        return [session for session in earlier if session is not None]

    def forget(self, rollout_ids: Iterable[str]) -> None:
        """What was remembered of these rollouts is gone."""
        gone = set(rollout_ids)
        self._retired = {sid: episode for sid, episode in self._retired.items() if episode.rollout_id not in gone}

    def find(self, cookie: str | None, episode: EpisodeId | None) -> Session[S] | None:
        """The session that the cookie and the prefix name; both must agree (section 3). None when it is not known here.

        Raises Refused `execution_identity_mismatch` when it belongs to another execution than the call, `session_lost`
        when the cookie names a session that is not the rollout's here.
        """
        named, own = self.get(cookie), self.of(episode)
        if named is not None and episode is not None and named.episode != episode:
            owner = "no rollout" if named.episode is None else named.episode.key
            raise refuse_request(
                "execution_identity_mismatch", f"the session belongs to {owner}, the call to {episode.key}"
            )
        if cookie is not None and own is not None and own.session_id != cookie:
            raise refuse_request("session_lost", "the session of that cookie is not the rollout's session here")
        return own if cookie is None else named
