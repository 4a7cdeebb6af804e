"""What a kind of server gives to its control plane: what moves in it, and what it saves and takes back.

docs/reference/protocol.md sections 5 to 7. Everything but `retire` is synchronous, so that a checkpoint sees one
moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from attrs import frozen

from ..identity import EpisodeId
from ..records.records import Record

Json = dict[str, Any]


@frozen
class Blocker:
    """Why a server is not ready: which execution, what it is doing, since when (monotonic seconds)."""

    episode: EpisodeId | None
    reason: str
    since: float


@frozen
class Report:
    """What a kind says of itself: what moves, how many of what, whose rollouts start over."""

    blockers: Sequence[Blocker]
    counts: Mapping[str, int]
    restarts: Sequence[str] = ()
    retained: Sequence[Json] = ()


class Part(Protocol):
    """What a kind of server gives to its control plane. Everything but `retire` is synchronous."""

    @property
    def kind(self) -> str: ...

    def report(self) -> Report: ...

    def status(self) -> Json:
        """The kind's own fields of the status reply."""

    def export(self, scope: frozenset[EpisodeId] | None) -> Iterable[Json]:
        """The records of the executions in `scope` (all, when None); called while nothing moves, maybe from a
        thread.
        """

    def check_scope(self, scope: frozenset[EpisodeId] | None) -> None:
        """A commit with that scope begins; Refused if this kind cannot, and then nothing is pinned."""

    def committed(self, records: Sequence[Json]) -> Json:
        """The kind's own fields of the commit reply. Of `records` a model server sees all, others the episode ids."""

    def check_fresh(self, count: int) -> None:
        """Refused `checkpoint_error` unless this process may restore `count` records (I53)."""

    def stage(self, records: Sequence[Record], scope: frozenset[EpisodeId]) -> Any:
        """The records in scope, read and validated; nothing changes (I52). InvalidCheckpointState for what is
        damaged.
        """

    def install(self, staged: Any, scope: frozenset[EpisodeId]) -> Sequence[str]:
        """Everything staged is in place under N+1; the capture keys of N+1. Does not fail."""

    def leave_out(self, keys: frozenset[str]) -> None:
        """The executions with these capture keys do not block until admission opens again; they are held as others."""

    def prepared(self, left_out: frozenset[str]) -> None:
        """The server is closed and quiet, but for the executions that are left out."""

    def opened(self) -> None:
        """Admission is open again."""

    async def retire(self, episodes: Sequence[EpisodeId]) -> None:
        """Nothing of these attempts, or of earlier ones, runs or is kept."""

    def forget(self, rollout_ids: Sequence[str]) -> None:
        """Nothing is kept to answer late calls of these rollouts; Refused `retire_incomplete` while a retire of them
        that was cut short has left something.
        """
