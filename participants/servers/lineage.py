"""The ledger of a policy model server: which calls are behind which turn, token-free, per execution. Pure.

A row is there before its response leaves. The parent of a call is the one that its caller names, else the call whose
conversation it continues (I99): of the rows whose conversation, by digest of request and reply, is a prefix of the
request the longest one, of equal ones the newest, else none; never simply the last row (S68). One chain goes across
attempts: a restore puts the rows of attempt N under N+1 as they are (I59, S12).
docs/reference/protocol.md sections 6, 7 and 14.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

from attrs import define, evolve, field, frozen

from statecore import WireError, WireErrors

from ..files.snapshots import InvalidCheckpointState
from ..identity import EpisodeId
from ..records.records import ModelRecord, ModelRow, record_json
from .conversation import Conversation, asked

CONVERSATION: Final = "conversation"
"""The field of a row in which its conversation travels: {"items": how many, "digests": [one per alternative reply]}."""


@frozen
class Entry:
    """A row, and where its conversation stands after the reply: how many items, one digest for each alternative.

    A call that failed, or whose reply has no known form, has no digests and is nobody's parent.
    """

    row: ModelRow
    length: int = 0
    digests: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The row as it is written, its conversation in one extra field."""
        row = self.row.to_json()
        return row | {CONVERSATION: {"items": self.length, "digests": list(self.digests)}} if self.digests else row

    @classmethod
    def read(cls, value: Any) -> Entry:
        """The entry of a row, whoever wrote it; WireError when a known field has another type."""
        row = ModelRow.read(value)
        length, digests = _conversation(row.extra.get(CONVERSATION))
        if not digests:
            return cls(row)
        return cls(evolve(row, extra={k: v for k, v in row.extra.items() if k != CONVERSATION}), length, digests)


def _conversation(value: Any) -> tuple[int, tuple[str, ...]]:
    """Length and digests of a conversation that this project wrote; (0, ()) for anything else."""
    if type(value) is not dict or set(value) != {"items", "digests"}:
        return 0, ()
    length, digests = value["items"], value["digests"]
    if type(length) is not int or type(digests) is not list or any(type(each) is not str for each in digests):
        return 0, ()
    return length, tuple(digests)


@define(eq=False)
class Lineage:
    """The rows of one execution, oldest first."""

    entries: list[Entry] = field(factory=list)
    _calls: dict[str, str] = field(factory=dict)  # conversation digest -> newest call that led there
    _lengths: set[int] = field(factory=set)
    _requests: dict[str, str] = field(factory=dict)  # call -> digest of its request
    _generations: dict[str, list[Entry]] = field(factory=dict)  # digest of a request -> what was generated for it

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        request = entry.row.request_digest
        if request is not None and entry.digests:
            self._requests[entry.row.model_call_id] = request
            self._generations.setdefault(request, []).append(entry)
        for digest in entry.digests:
            self._calls[digest] = entry.row.model_call_id
            self._lengths.add(entry.length)

    @property
    def lengths(self) -> Collection[int]:
        """At which lengths a request can continue one of its conversations."""
        return self._lengths

    def parent(self, conversation: Conversation) -> str | None:
        """The call whose conversation this one continues, or None (I99)."""
        return next((self._calls[each] for each in conversation.prefixes() if each in self._calls), None)

    def generations(self, call: str) -> Sequence[Entry]:
        """All calls that asked what `call` asked, oldest first; none if it is not known, has failed or has no form."""
        return self._generations.get(self._requests.get(call, ""), ())


def placed(lineage: Lineage | None, named: str | None, path: str, body: Any) -> tuple[str | None, Conversation | None]:
    """The parent of a call that begins, and its conversation (None: its form is not known).

    `named` is the parent that its caller names, `lineage` what there is of its execution. Without a name it is the call
    whose conversation it continues, else none; never simply the last one (I99, S68). A caller that asks the same twice
    at once may name the generation that it did not go on with: of several the one that is continued is meant.
    """
    if lineage is None:
        return named, asked(path, body)
    if named is None:
        conversation = asked(path, body, lineage.lengths)
        return (None if conversation is None else lineage.parent(conversation)), conversation
    generations = lineage.generations(named)
    if len(generations) < 2:
        return named, asked(path, body)
    conversation = asked(path, body, {each.length for each in generations})
    prefixes = set() if conversation is None else set(conversation.prefixes())
    continued = [each.row.model_call_id for each in generations if not prefixes.isdisjoint(each.digests)]
    return named if named in continued or not continued else continued[-1], conversation


class Ledger:
    """The lineages of all executions of one server."""

    def __init__(self) -> None:
        self._rollouts: dict[str, dict[int, Lineage]] = {}

    def __len__(self) -> int:
        """How many executions it knows."""
        return sum(map(len, self._rollouts.values()))

    def of(self, episode: EpisodeId) -> Lineage | None:
        return self._rollouts.get(episode.rollout_id, {}).get(episode.attempt)

    def add(self, episode: EpisodeId, entry: Entry) -> None:
        """The row is in the ledger."""
        self._begin(episode).add(entry)

    def _begin(self, episode: EpisodeId) -> Lineage:
        return self._rollouts.setdefault(episode.rollout_id, {}).setdefault(episode.attempt, Lineage())

    def drop(self, rollout_id: str, attempt: int) -> None:
        """Nothing is kept of this attempt and the earlier ones."""
        attempts = self._rollouts.get(rollout_id, {})
        for each in [each for each in attempts if each <= attempt]:
            del attempts[each]
        if not attempts:
            self._rollouts.pop(rollout_id, None)

    def records(self, scope: Iterable[EpisodeId]) -> Iterator[dict[str, Any]]:
        """The records of the executions in `scope` that have any, in the order of their ids."""
        for episode in sorted(scope):
            lineage = self.of(episode)
            if lineage is not None:
                rows = tuple(entry.to_json() for entry in tuple(lineage.entries))
                yield record_json(ModelRecord(episode_id=episode, rows=rows))

    def install(self, staged: Iterable[Staged], scope: Iterable[EpisodeId]) -> None:
        """Every rollout in scope has exactly its staged rows, under N+1 (I54)."""
        for episode in scope:
            self.drop(episode.rollout_id, episode.successor.attempt)
        for each in staged:
            lineage = self._begin(each.episode.successor)
            for entry in each.entries:
                lineage.add(entry)


@frozen
class Staged:
    """The rows of one execution of a checkpoint, read and validated, not installed yet; `episode` is attempt N."""

    episode: EpisodeId
    entries: tuple[Entry, ...]


def staged(records: Sequence[ModelRecord]) -> list[Staged]:
    """The records read; rows without a capture key get their execution's. InvalidCheckpointState for a damaged one."""
    return [Staged(record.episode_id, tuple(_entries(record))) for record in records]


def _entries(record: ModelRecord) -> Iterator[Entry]:
    key = record.episode_id.key
    seen: set[str] = set()
    for number, value in enumerate(record.rows, 1):
        try:
            entry = Entry.read(value)
        except (WireError, WireErrors) as error:
            raise InvalidCheckpointState(f"row {number} of the model record of {key}: {error}") from error
        if entry.row.model_call_id in seen:
            raise InvalidCheckpointState(f"the model record of {key} has call {entry.row.model_call_id!r} twice")
        seen.add(entry.row.model_call_id)
        yield entry if entry.row.capture_key is not None else evolve(entry, row=evolve(entry.row, capture_key=key))


def staging_keys(records: Iterable[dict[str, Any]]) -> tuple[list[str], dict[str, list[str]]]:
    """The token rows that written records name: all of them, and those of each execution by its capture key; sorted."""
    by_episode: dict[str, list[str]] = {}
    for record in records:
        keys = {row["staging_key"] for row in record["rows"] if row.get("staging_key") is not None}
        by_episode[EpisodeId(**record["episode_id"]).key] = sorted(keys)
    return sorted({key for keys in by_episode.values() for key in keys}), by_episode
