"""What this project puts into the opaque field of a record: boundaries, session states and ledger rows.

Rules (docs/reference/protocol.md sections 13 and 14): boundary records are immutable bytes chained by digest, frozen at
the call; a boundary names every part at its exact position (I34, I35); a policy version is a pair (S51). A payload that
another make of server wrote is not ours and is not looked into.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import field, fields, frozen

from statecore.errors import WireError
from statecore.wire import structure, unstructure

from ._fields import SCHEMA_VERSION, Json, is_version, not_negative
from .positions import Position


@frozen(kw_only=True)
class PartRef:
    """One part that a boundary names, at exactly this position (I35). `digest` is null in the coordinated mode."""

    kind: str
    instance: str
    key: str
    position: Position
    digest: str | None = None


@frozen(kw_only=True)
class AgentBoundary:
    """The payload of an agent's boundary: all that its loop needs to go on from a completed turn (I32).

    `previous` is the digest of the boundary before, or null for the first. `parts` null: not tracked, []: none used.
    `elapsed_s` does not count parked time (I64).
    """

    schema_version: int = field(default=SCHEMA_VERSION, validator=is_version)
    boundary_index: int = field(validator=not_negative)
    previous: str | None
    task_digest: str
    data_position: Json
    last_model_call_id: str | None
    lineage_head: str | None
    parts: tuple[PartRef, ...] | None
    items: Json
    usage: Json
    cookies: Mapping[str, Mapping[str, str]]
    steps_used: int = field(validator=not_negative)
    elapsed_s: float
    state: Json

    def to_json(self) -> dict[str, Json]:
        """The payload, keys in the order of protocol.md section 14."""
        value: dict[str, Json] = unstructure(self)
        return value

    @classmethod
    def read(cls, value: Json) -> AgentBoundary | None:
        """The payload, or None for a boundary that a peer of another make wrote (then its parts are not tracked).

        One that says it is ours and is malformed, or of another schema version, is a WireError.
        """
        return structure(value, cls) if _is_ours(value, "boundary_index", "parts") else None


@frozen(kw_only=True)
class AgentSessions:
    """An environment's session with one agent, and how many activations of it were begun."""

    session_key: str
    activations: int = field(validator=not_negative)


@frozen(kw_only=True)
class EnvironmentBoundary:
    """The payload of an environment's boundary: the results of the steps before `step_index`, and its own state."""

    schema_version: int = field(default=SCHEMA_VERSION, validator=is_version)
    step_index: int = field(validator=not_negative)
    results: Json
    state: Json
    sessions: Mapping[str, AgentSessions]

    def to_json(self) -> dict[str, Json]:
        value: dict[str, Json] = unstructure(self)
        return value

    @classmethod
    def read(cls, value: Json) -> EnvironmentBoundary | None:
        """As `AgentBoundary.read`."""
        return structure(value, cls) if _is_ours(value, "step_index", "sessions") else None


@frozen(kw_only=True)
class ResourcesState:
    """The payload of a resources session: its position, the replies kept for repeated operations, the codec's data."""

    schema_version: int = field(default=SCHEMA_VERSION, validator=is_version)
    codec: str
    position: Position
    operations: Json
    data: Json

    def to_json(self) -> dict[str, Json]:
        value: dict[str, Json] = unstructure(self)
        return value

    @classmethod
    def read(cls, value: Json) -> ResourcesState | None:
        """As `AgentBoundary.read`."""
        return structure(value, cls) if _is_ours(value, "codec", "position") else None


@frozen(kw_only=True)
class ModelRow:
    """One call of the ledger, token-free. `extra` are fields that only its writer knows; they come back as they were.

    `policy_version` is (trainer life, step), a pair everywhere (S51). A call that failed has `failure_reason` and no
    `staging_key`.
    """

    model_call_id: str
    capture_key: str | None = None
    parent_call_id: str | None = None
    request_digest: str | None = None
    staging_key: str | None = None
    policy_version: tuple[int, int] | None = None
    epoch: int | None = None
    failure_reason: str | None = None
    extra: Mapping[str, Json] = field(factory=dict)

    def to_json(self) -> dict[str, Json]:
        """The row: the first four fields always, the others where they are known, then `extra`."""
        row: dict[str, Json] = {}
        for name in _ROW_FIELDS:
            value = getattr(self, name)
            if value is not None or name in _ROW_ALWAYS:
                row[name] = list(value) if isinstance(value, tuple) else value
        return row | dict(self.extra)

    @classmethod
    def read(cls, value: Json) -> ModelRow:
        """The row, whoever wrote it; WireError when a field that is known here has another type."""
        if type(value) is not dict:
            raise WireError("$", f"a ledger row is an object, not {type(value).__name__}", "dict_type")
        known = {name: value[name] for name in _ROW_FIELDS if name in value}
        return structure(known | {"extra": {k: v for k, v in value.items() if k not in known}}, cls)


_ROW_FIELDS: Final = tuple(each.name for each in fields(ModelRow) if each.name != "extra")
_ROW_ALWAYS: Final = frozenset({"model_call_id", "capture_key", "parent_call_id", "request_digest"})


def _is_ours(value: Json, *marks: str) -> bool:
    return type(value) is dict and "schema_version" in value and all(mark in value for mark in marks)
