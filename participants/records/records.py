"""What is written down: one record is one rollout, one part, one position.

Rules: a record belongs to exactly one execution and reads back equal, order of keys included (I49), so payloads are
written as they are and never sorted; the one opaque payload comes last; what this project adds travels inside that
payload, never as a new field of a record (docs/reference/protocol.md section 14). Readers are strict, and accept the
optional fields of older peers and records without our payload. Nothing here holds a token array (I47).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar, Final, TypeAlias

from attrs import field, fields, frozen

from statecore.errors import WireError
from statecore.wire import parse, structure, unstructure

from ..identity import EpisodeId
from ._fields import Json, boundary_digest, encode_line, is_rollout_id, is_sha256, not_negative, task_digest
from .manifests import FileRef, GlobalManifest, GymManifest, Manifest, ParticipantEntry
from .payloads import AgentBoundary, AgentSessions, EnvironmentBoundary, ModelRow, PartRef, ResourcesState
from .positions import Agreement, Position, advance, next_history, seed_position

__all__ = [
    "AgentBoundary",
    "AgentRecord",
    "AgentSessions",
    "Agreement",
    "Disposition",
    "EnvironmentBoundary",
    "EnvironmentRecord",
    "FileRef",
    "GlobalManifest",
    "GymManifest",
    "Json",
    "LedgerRow",
    "LedgerStatus",
    "Manifest",
    "ModelRecord",
    "ModelRow",
    "Part",
    "PartRef",
    "ParticipantEntry",
    "Position",
    "Receipt",
    "Record",
    "RegistryRow",
    "ResourcesRecord",
    "ResourcesState",
    "advance",
    "boundary_digest",
    "encode_line",
    "next_history",
    "read_record",
    "record_json",
    "seed_position",
    "task_digest",
]

# --- the four kinds' records, fields in the order they are written


@frozen(kw_only=True)
class EnvironmentRecord:
    """One episode. `boundary` is its last step boundary; null starts over from the input."""

    kind: ClassVar[str] = "environment"
    optional: ClassVar[frozenset[str]] = frozenset()

    episode_id: EpisodeId
    task_digest: str
    boundary: Json = None

    @property
    def identity(self) -> tuple[str, str]:
        """What no two records of one part share."""
        return self.episode_id.key, ""


@frozen(kw_only=True)
class AgentRecord:
    """One agent session. A non-null `episode` means that the agent's own `/run` owns the episode.

    `owner` and `session_id` are read from older peers and not written.
    """

    kind: ClassVar[str] = "agent"
    optional: ClassVar[frozenset[str]] = frozenset({"owner", "session_id"})

    episode_id: EpisodeId
    session_key: str
    boundary: Json = None
    episode: Json = None
    session: Json = None
    owner: str | None = None
    session_id: str | None = None

    @property
    def identity(self) -> tuple[str, str]:
        return self.episode_id.key, self.session_key


@frozen(kw_only=True)
class ResourcesRecord:
    """One session of a resources server. `owner` is read from older peers and not written."""

    kind: ClassVar[str] = "resources"
    optional: ClassVar[frozenset[str]] = frozenset({"owner"})

    episode_id: EpisodeId
    session_id: str
    state: Json
    owner: str | None = None

    @property
    def identity(self) -> tuple[str, str]:
        return self.episode_id.key, self.session_id


def _at_most_one(_instance: object, _attribute: object, value: tuple[Json, ...]) -> None:
    if len(value) > 1:
        raise ValueError(f"an episode has at most one generation cut, not {len(value)}")


@frozen(kw_only=True)
class ModelRecord:
    """The token-free lineage of one episode: `rows` are its calls, oldest first (see `ModelRow`)."""

    kind: ClassVar[str] = "model"
    optional: ClassVar[frozenset[str]] = frozenset()

    episode_id: EpisodeId
    generation_cuts: tuple[Json, ...] = field(default=(), validator=_at_most_one)
    rows: tuple[Json, ...]

    @property
    def identity(self) -> tuple[str, str]:
        return self.episode_id.key, ""


Record: TypeAlias = EnvironmentRecord | AgentRecord | ResourcesRecord | ModelRecord
RECORD_TYPES: Final[Mapping[str, type[Record]]] = {
    each.kind: each for each in (EnvironmentRecord, AgentRecord, ResourcesRecord, ModelRecord)
}


def record_json(record: Record) -> dict[str, Json]:
    """`record` as it is written: its fields in order, optional ones of older peers left out when null."""
    written: dict[str, Json] = {}
    for attribute in fields(type(record)):
        value = getattr(record, attribute.name)
        if attribute.name in record.optional and value is None:
            continue
        if isinstance(value, EpisodeId):
            value = {"rollout_id": value.rollout_id, "attempt": value.attempt}
        written[attribute.name] = list(value) if isinstance(value, tuple) else value
    return written


def read_record(kind: str, value: Json) -> Record:
    """The record of a server of `kind` that `value` is; WireError (or several) with the path of what is wrong."""
    cls = RECORD_TYPES.get(kind)
    if cls is None:
        raise WireError("$", f"there is no kind {kind!r}, only {', '.join(RECORD_TYPES)}", "value_error")
    return structure(value, cls)


# --- results and executions


@frozen(kw_only=True)
class Receipt:
    """Which result of which execution: the one object that is issued, stored and acknowledged (S6, I66).

    `execution_generation` counts the loops of one process for one execution, from 1; `result_identity` is 32 random hex
    digits drawn at finish; `result_sha256` is over the canonical JSON of the body; `epoch` is null without a launcher.
    """

    rollout_id: str = field(validator=is_rollout_id)
    attempt: int = field(validator=not_negative)
    epoch: int | None = None
    execution_generation: int = field(default=1, validator=not_negative)
    result_identity: str
    result_sha256: str = field(validator=is_sha256)

    def to_json(self) -> dict[str, Json]:
        value: dict[str, Json] = unstructure(self)
        return value

    @property
    def header(self) -> str:
        """The value of `x-ng-result-receipt`: compact JSON."""
        return json.dumps(self.to_json(), separators=(",", ":"))

    @classmethod
    def from_header(cls, text: str) -> Receipt:
        """The receipt that the header holds; WireError when it holds none."""
        return structure(parse(text), cls)

    @property
    def episode(self) -> EpisodeId:
        return EpisodeId(self.rollout_id, self.attempt)


class Disposition(StrEnum):
    """What a restart does with a rollout (protocol.md section 6.6)."""

    COMPLETED = "completed"
    CONTINUE = "continue"
    FRESH = "fresh"
    QUEUED = "queued"


@frozen(kw_only=True)
class RegistryRow:
    """One dispatched rollout: its dispatch record (section 13.6), the last attempt, and what a restart does with it.

    `attempt` is the one of the checkpoint (N, not N+1). `data_position` is the framework's own; `unit` names those that
    share state, or null. `reason` says in words why the disposition is what it is.
    """

    rollout_id: str = field(validator=is_rollout_id)
    attempt: int = field(validator=not_negative)
    group: str | None = None
    task: Json
    task_digest: str
    data_position: Json = None
    target: str
    unit: str | None = None
    disposition: Disposition
    reason: str = ""

    def to_json(self) -> dict[str, Json]:
        value: dict[str, Json] = unstructure(self)
        return value

    @property
    def episode(self) -> EpisodeId:
        return EpisodeId(self.rollout_id, self.attempt)


class LedgerStatus(StrEnum):
    """What the coordinator has of a rollout's result."""

    LIVE = "live"
    RECEIVED = "received"
    SAVED = "saved"


@frozen(kw_only=True)
class LedgerRow:
    """One rollout of the ledger. `body` is the result itself where the coordinator keeps it, else null."""

    rollout_id: str = field(validator=is_rollout_id)
    attempt: int = field(validator=not_negative)
    status: LedgerStatus
    receipt: Receipt | None = None
    body: Json = None

    def __attrs_post_init__(self) -> None:
        if self.status is LedgerStatus.LIVE:
            if self.receipt is not None or self.body is not None:
                raise ValueError("a live rollout has no receipt and no result")
        elif self.receipt is None:
            raise ValueError(f"a {self.status} result has a receipt")
        elif (self.receipt.rollout_id, self.receipt.attempt) != (self.rollout_id, self.attempt):
            raise ValueError(f"the receipt is for {self.receipt.episode.key!r}")

    def to_json(self) -> dict[str, Json]:
        value: dict[str, Json] = unstructure(self)
        return value


# --- one participant's part


@frozen
class Part:
    """A part as it was read: its manifest, and its records as plain JSON in the order of the file."""

    manifest: Manifest
    records: tuple[dict[str, Json], ...]

    @property
    def typed(self) -> tuple[Record, ...]:
        """The records as their types; raises WireError for one that is not of this kind's form."""
        return tuple(read_record(self.manifest.kind, each) for each in self.records)
