"""Small things that every written type shares: JSON, validators for attrs fields, and the bytes of one line."""

from __future__ import annotations

import json
import re
from typing import Any, Final, TypeAlias

from statecore.wire import exact, sha256_hex

from ..identity import check_rollout_id

Json: TypeAlias = Any
"""A JSON value: what `statecore.wire.exact` accepts."""

SCHEMA_VERSION: Final = 1
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


def is_rollout_id(_instance: object, _attribute: object, value: str) -> None:
    """An attrs validator: `value` is a rollout id."""
    check_rollout_id(value)


def is_text(_instance: object, attribute: object, value: str) -> None:
    """An attrs validator: `value` is a string."""
    if not isinstance(value, str):
        raise ValueError(f"{getattr(attribute, 'name', 'it')} is text, not {value!r}")


def is_text_or_none(instance: object, attribute: object, value: str | None) -> None:
    """An attrs validator: `value` is a string or None."""
    if value is not None:
        is_text(instance, attribute, value)


def not_negative(_instance: object, attribute: object, value: int) -> None:
    """An attrs validator: `value` is 0 or more."""
    if value < 0:
        raise ValueError(f"{getattr(attribute, 'name', 'it')} is 0 or more, not {value}")


def is_version(_instance: object, _attribute: object, value: int) -> None:
    """An attrs validator: `value` is the one schema version that is read here (S43)."""
    if value != SCHEMA_VERSION:
        raise ValueError(f"schema version {value} is not supported, only {SCHEMA_VERSION}")


def is_sha256(_instance: object, attribute: object, value: str) -> None:
    """An attrs validator: `value` is 64 lower-case hex digits."""
    if not _SHA256.match(value):
        raise ValueError(f"{getattr(attribute, 'name', 'it')} is 64 hex digits, not {value!r}")


def encode_line(value: Json) -> bytes:
    """`value` as the bytes of one record, newline included: keys in their order, ``", "`` and ``": "``, ASCII escapes.

    What would not read back equal (NaN, tuples, keys that are no strings, ...) is a WireError that names the path.
    """
    exact(value)
    return json.dumps(value, allow_nan=False).encode("ascii") + b"\n"


def copied(value: Json) -> Json:
    """An equal JSON value that shares nothing with `value`, keys in their order."""
    return json.loads(json.dumps(value))


def boundary_digest(boundary: Json) -> str:
    """The digest by which the next boundary names this one: sha256 of its bytes as written, without the newline."""
    return sha256_hex(encode_line(boundary)[:-1])


def task_digest(task: Json) -> str:
    """The digest of a task: sha256 hex of its JSON with sorted keys, ``,`` and ``:``, ASCII escapes."""
    exact(task)
    return sha256_hex(json.dumps(task, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii"))
