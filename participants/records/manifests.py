"""Manifests: the files that are written last and say which bytes belong together.

Rules (docs/reference/protocol.md section 8): a part's manifest is the last file of the part, the aggregate comes after
all parts, the global one after Gym, framework and token store (I41); paths are relative to the checkpoint's root, with
no `..`, and every file is named with its digest (I44); kind and instance are named too (I45).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Final

from attrs import field, fields, frozen

from statecore.errors import WireError
from statecore.wire import exact, structure, unstructure

from ._fields import NAME, SCHEMA_VERSION, Json, is_sha256, is_version, not_negative

MAX_CHECKPOINT_ID_LENGTH: Final = 128
_OUR_ID = re.compile(r"ck-([0-9]{6,})-([0-9]{6,})\Z")


def encode_manifest(value: Json) -> bytes:
    """The bytes of a manifest: sorted keys, one space of indent, no newline at the end."""
    exact(value)
    return json.dumps(value, sort_keys=True, indent=1, allow_nan=False).encode("ascii")


def is_relative(_instance: object, _attribute: object, value: str) -> None:
    """An attrs validator: `value` is a path below the checkpoint's root, in its one spelling."""
    path = PurePosixPath(value)
    if not value or path.is_absolute() or ".." in path.parts or str(path) != value or "\\" in value or "\0" in value:
        raise ValueError(f"{value!r} is no relative path without '..'")


def is_checkpoint_id(_instance: object, _attribute: object, value: str) -> None:
    """An attrs validator: `value` is 1 to 128 characters of ``[A-Za-z0-9._-]`` and starts with a letter or digit."""
    if len(value) > MAX_CHECKPOINT_ID_LENGTH or not NAME.match(value):
        raise ValueError(f"{value!r} is no checkpoint id")


def is_name(_instance: object, attribute: object, value: str) -> None:
    """An attrs validator: `value` may be a directory's name (a kind, an instance)."""
    if not NAME.match(value):
        raise ValueError(f"{getattr(attribute, 'name', 'it')} is a plain name, not {value!r}")


@frozen(order=True)
class CheckpointId:
    """One of our checkpoint ids, `ck-<epoch>-<seq>`: ordered by epoch, then by sequence number (section 5)."""

    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"ck-{self.epoch:06d}-{self.seq:06d}"

    @classmethod
    def parse(cls, text: str) -> CheckpointId | None:
        """The id that `text` is, or None when it is not one of ours in its one spelling."""
        found = _OUR_ID.match(text)
        if found is None:
            return None
        parsed = cls(int(found.group(1)), int(found.group(2)))
        return parsed if str(parsed) == text else None


@frozen(kw_only=True)
class Manifest:
    """What a part is: who wrote it for which checkpoint, and which bytes belong to it (wire format, schema version 1).

    `extra` are fields beyond the wire's; ours are `epoch` and `incarnation`.
    """

    schema_version: int = SCHEMA_VERSION
    kind: str
    instance: str
    checkpoint_id: str
    records_file: str
    records_sha256: str
    record_count: int
    extra: Mapping[str, Json] = field(factory=dict)

    def to_json(self) -> dict[str, Json]:
        return {name: getattr(self, name) for name in _MANIFEST_FIELDS} | dict(self.extra)

    def encode(self) -> bytes:
        """The bytes of the file: sorted keys, one space of indent, no newline at the end."""
        return encode_manifest(self.to_json())

    @property
    def epoch(self) -> int | None:
        """The life that wrote it, where it says."""
        epoch = self.extra.get("epoch")
        return epoch if type(epoch) is int else None

    @property
    def incarnation(self) -> str | None:
        """The process that wrote it, where it says."""
        incarnation = self.extra.get("incarnation")
        return incarnation if type(incarnation) is str else None

    @classmethod
    def read(cls, value: Json) -> Manifest:
        """The manifest; unknown fields are kept in `extra`. WireError when a field is missing or has another type."""
        if type(value) is not dict:
            raise WireError("$", f"a manifest is an object, not {type(value).__name__}", "dict_type")
        known = {name: value[name] for name in _MANIFEST_FIELDS if name in value}
        return structure(known | {"extra": {k: v for k, v in value.items() if k not in known}}, cls)


_MANIFEST_FIELDS: Final = tuple(each.name for each in fields(Manifest) if each.name != "extra")


@frozen(kw_only=True)
class FileRef:
    """One file of a checkpoint: where below the root, its bytes' digest and size, and its rows where it has rows."""

    path: str = field(validator=is_relative)
    sha256: str = field(validator=is_sha256)
    size_bytes: int = field(validator=not_negative)
    count: int | None = None


@frozen(kw_only=True)
class ParticipantEntry:
    """One server's part: who it is, its mode at that time, and its manifest below the root with its digest."""

    kind: str = field(validator=is_name)
    name: str = field(validator=is_name)
    mode: str
    manifest: str = field(validator=is_relative)
    sha256: str = field(validator=is_sha256)
    record_count: int = field(validator=not_negative)


def _no_two_alike(_instance: object, _attribute: object, value: tuple[ParticipantEntry, ...]) -> None:
    if double := first_double((each.kind, each.name) for each in value):
        raise ValueError(f"the participant {double[0]}/{double[1]} is there twice")


def first_double(items: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """The first item that was there before, or None."""
    seen: set[tuple[str, str]] = set()
    for item in items:
        if item in seen:
            return item
        seen.add(item)
    return None


@frozen(kw_only=True)
class GymManifest:
    """`gym/manifest.json`: every participant's part, written after all of them validated (I41)."""

    schema_version: int = field(default=SCHEMA_VERSION, validator=is_version)
    checkpoint_id: str = field(validator=is_checkpoint_id)
    epoch: int
    participants: tuple[ParticipantEntry, ...] = field(validator=_no_two_alike)

    def encode(self) -> bytes:
        return encode_manifest(unstructure(self))


@frozen(kw_only=True)
class GlobalManifest:
    """`checkpoint.json`, the last file of a checkpoint: everything that belongs to it, by digest (I41, I44).

    `created_ts` is Unix seconds; `policy_version` is (trainer life, step) or null; `tokens` is null where there is no
    token store. The participants are those of `gym/manifest.json`.
    """

    schema_version: int = field(default=SCHEMA_VERSION, validator=is_version)
    checkpoint_id: str = field(validator=is_checkpoint_id)
    epoch: int
    created_ts: float
    participants: tuple[ParticipantEntry, ...] = field(validator=_no_two_alike)
    gym: FileRef
    registry: FileRef
    ledger: FileRef
    framework: tuple[FileRef, ...]
    tokens: FileRef | None = None
    policy_version: tuple[int, int] | None = None

    def encode(self) -> bytes:
        return encode_manifest(unstructure(self))
