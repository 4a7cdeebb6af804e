"""One participant's part of a checkpoint: `gym/<kind>/<instance>/records-<sha256>.jsonl` and its `manifest.json`.

Rules (docs/reference/protocol.md section 8): the manifest is the last file (I41) and what has none is never restored
(I42); what has one never changes (I43): the same commit again is a success, a different one is refused; the manifest
names kind and instance, and another server's part is refused (I45, I46, S24); two files whatever the number of rollouts
(I50, S31); a write that was stopped publishes nothing (I48). Reading checks everything before anything is used (I52).

Everything is synchronous over a `Disk`; shells run it through `on_disk`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from statecore.errors import StatecoreError
from statecore.seams import Disk, Entropy
from statecore.wire import parse, structure

from ..identity import EpisodeId
from ..records._fields import NAME, Json, encode_line
from ..records.records import RECORD_TYPES, Manifest, Part, read_record
from .files import (
    CHUNK_BYTES,
    Digest,
    InvalidCheckpointState,
    StopFlag,
    UnknownSchema,
    WriteStopped,
    hashed,
    invalid_on_error,
    make_dirs,
    never,
    read_small,
    require_dir,
    require_file,
    resolve_below,
    temporary,
    unless_stopped,
)

__all__ = [
    "InvalidCheckpointState",
    "StopFlag",
    "WriteStopped",
    "find_manifest",
    "is_this_commit",
    "part_dir",
    "read_manifest",
    "read_part",
    "resolve_below",
    "scan_part",
    "write_part",
]

MANIFEST: Final = "manifest.json"
GYM: Final = "gym"
MAX_RECORD_BYTES: Final = 256 << 20
_RECORDS_FILE = re.compile(r"records(-[0-9a-f]{64})?\.jsonl\Z")
SUPPORTED_SCHEMAS: Final = frozenset({1})


def part_dir(checkpoint_dir: Path, kind: str, instance: str) -> Path:
    """Where the part of this server is. InvalidCheckpointState when kind or instance is no plain name."""
    for what, name in (("kind", kind), ("instance", instance)):
        if not NAME.match(name):
            raise InvalidCheckpointState(f"the {what} {name!r} is no plain name")
    return checkpoint_dir / GYM / kind / instance


# --- write


def write_part(
    disk: Disk,
    checkpoint_dir: Path,
    *,
    kind: str,
    instance: str,
    checkpoint_id: str,
    records: Iterable[Mapping[str, Json]],
    extra: Mapping[str, Json] | None = None,
    stop: Callable[[], bool] = never,
    sized: Callable[[int], None] = lambda size_bytes: None,
    entropy: Entropy,
) -> Manifest:
    """The part is durable below `checkpoint_dir`, its manifest last; returns that manifest (the commit reply's).

    `extra` are further manifest fields (epoch, incarnation). An equal manifest that is there already is a success.
    `stop` is asked before each record and right before each link; a `StopFlag` closes the gap between the two. `sized`
    is told how many bytes the records have. Raises
    WriteStopped, and InvalidCheckpointState when the directory holds another commit or cannot be written. After an
    error the same call may be made again: nothing of the failed one is read or counted.
    """
    directory = part_dir(checkpoint_dir, kind, instance)

    def described(digest: Digest, count: int) -> Manifest:
        sized(digest.size_bytes)
        return Manifest(
            kind=kind,
            instance=instance,
            checkpoint_id=checkpoint_id,
            records_file=f"records-{digest.sha256}.jsonl",
            records_sha256=digest.sha256,
            record_count=count,
            extra=dict(extra or {}),
        )

    try:
        for each in (checkpoint_dir, directory.parent.parent, directory.parent, directory):
            make_dirs(disk, each)  # from the top, so that a link at any step is refused
        if disk.kind(directory / MANIFEST) is not None:
            manifest = _same_as_there(disk, directory, described(*_hash_only(records, stop)))
        else:
            manifest = _write_new(disk, directory, records, described, stop, entropy)
        for each in (directory, directory.parent, directory.parent.parent, checkpoint_dir):
            disk.fsync_dir(each)
    except OSError as error:
        raise InvalidCheckpointState(f"cannot write {directory}: {error}") from error
    return manifest


def _write_new(
    disk: Disk,
    directory: Path,
    records: Iterable[Mapping[str, Json]],
    described: Callable[[Digest, int], Manifest],
    stop: Callable[[], bool],
    entropy: Entropy,
) -> Manifest:
    lines = _Lines(records, stop)
    with temporary(disk, directory / "records.jsonl", lines, entropy) as (temp, digest):
        manifest = described(digest, lines.count)
        records_path = directory / manifest.records_file
        with unless_stopped(stop):
            linked = _link_records(disk, temp, records_path, digest)
    try:
        with temporary(disk, directory / MANIFEST, [manifest.encode()], entropy) as (temp, _), unless_stopped(stop):
            disk.link(temp, directory / MANIFEST)
    except FileExistsError:
        return _same_as_there(disk, directory, manifest, ours=records_path if linked else None)
    except WriteStopped:
        if linked:
            disk.unlink(records_path)
        raise
    return manifest


class _Lines:
    """The records as lines, encoded one by one, and how many there were."""

    def __init__(self, records: Iterable[Mapping[str, Json]], stop: Callable[[], bool]) -> None:
        self._records, self._stop = records, stop
        self.count = 0

    def __iter__(self) -> Iterator[bytes]:
        for record in self._records:
            if self._stop():
                raise WriteStopped("the checkpoint ended before its part was written")
            line = _encode(record, self.count)
            self.count += 1
            yield line


def _encode(record: Mapping[str, Json], index: int) -> bytes:
    try:
        line = encode_line(record)
    except StatecoreError as error:
        raise InvalidCheckpointState(f"record {index} cannot be written: {error}") from error
    if len(line) > MAX_RECORD_BYTES:
        raise InvalidCheckpointState(f"record {index} has more than {MAX_RECORD_BYTES} bytes")
    return line


def _hash_only(records: Iterable[Mapping[str, Json]], stop: Callable[[], bool]) -> tuple[Digest, int]:
    sha256 = hashlib.sha256()
    size_bytes = 0
    lines = _Lines(records, stop)
    for line in lines:
        sha256.update(line)
        size_bytes += len(line)
    return Digest(sha256.hexdigest(), size_bytes), lines.count


def _link_records(disk: Disk, temp: Path, path: Path, digest: Digest) -> bool:
    """The records are at `path`; True when this call put them there, False when a file with that content was there."""
    try:
        disk.link(temp, path)
    except FileExistsError:
        require_file(disk, path)
        if hashed(disk, path) != digest:
            raise InvalidCheckpointState(f"{path} does not hold what its name says") from None
        return False
    return True


def is_this_commit(there: Json, manifest: Manifest) -> bool:
    """Whether the manifest that is `there` is of this very commit.

    All of it is compared, not the records alone: two servers of one name that hold the same (nothing, say) differ in
    their incarnation, and neither takes the other's part for its own (S24).
    """
    return bool(there == manifest.to_json())


def _same_as_there(disk: Disk, directory: Path, manifest: Manifest, ours: Path | None = None) -> Manifest:
    """The manifest that is there, if it is equal to `manifest` and its records are whole; else refused (I43, S24)."""
    path = directory / MANIFEST
    try:
        there: Json = parse(read_small(disk, path))
    except StatecoreError:
        there = None
    if not is_this_commit(there, manifest):
        if ours is not None and (type(there) is not dict or there.get("records_file") != ours.name):
            disk.unlink(ours)
        raise InvalidCheckpointState(f"{path} already holds a different commit")
    records = directory / manifest.records_file
    require_file(disk, records)
    if hashed(disk, records).sha256 != manifest.records_sha256:
        raise InvalidCheckpointState(f"{records} does not match its manifest digest")
    return manifest


# --- read


def read_manifest(disk: Disk, checkpoint_dir: Path, kind: str, instance: str) -> Manifest:
    """The manifest of this server's part; InvalidCheckpointState if missing, damaged or another's (I42, I45)."""
    directory = part_dir(checkpoint_dir, kind, instance)
    path = directory / MANIFEST
    with invalid_on_error(f"{path} is no valid manifest"):
        for each in (directory.parent.parent, directory.parent, directory):
            if disk.kind(each) is not None:
                require_dir(disk, each)
        if disk.kind(path) is None:
            raise InvalidCheckpointState(f"missing manifest {path}")
        value: Json = parse(read_small(disk, path))
        require_schema(path, value)
        manifest = Manifest.read(value)
    if (manifest.kind, manifest.instance) != (kind, instance):
        raise InvalidCheckpointState(f"{path} belongs to {manifest.kind}/{manifest.instance}, not to {kind}/{instance}")
    if not _RECORDS_FILE.match(manifest.records_file):
        raise InvalidCheckpointState(f"{path} names {manifest.records_file!r}, which is no records file")
    return manifest


def require_schema(path: Path, value: Json) -> None:
    """The file's schema version is one that is read here; UnknownSchema names the version otherwise (S43).

    What says no version at all is damaged: InvalidCheckpointState.
    """
    version = value.get("schema_version") if type(value) is dict else None
    if type(version) is not int:
        raise InvalidCheckpointState(f"{path} has schema version {version!r}, which is none")
    if version not in SUPPORTED_SCHEMAS:
        newest = max(SUPPORTED_SCHEMAS)
        read = "only 1 can be read here" if newest == 1 else f"{min(SUPPORTED_SCHEMAS)} to {newest} can be read here"
        which = "a newer version, which reads it" if version > newest else "the version that wrote it"
        raise UnknownSchema(f"{path} has schema version {version}, {read}: start {which}")


def find_manifest(disk: Disk, checkpoint_dir: Path, kind: str, instance: str) -> Manifest | None:
    """As `read_manifest`, but None where there is no manifest."""
    if disk.kind(part_dir(checkpoint_dir, kind, instance) / MANIFEST) is None:
        return None
    return read_manifest(disk, checkpoint_dir, kind, instance)


def scan_part(
    disk: Disk, checkpoint_dir: Path, manifest: Manifest, *, foreign: bool = False
) -> Iterator[tuple[EpisodeId, dict[str, Json]]]:
    """Every record with its execution, one by one; whoever reads to the end has had all of it checked.

    Digest and count are over the whole file and are tested at the end, so nothing may be installed before (I52). A
    wrong digest is reported before what it may have done to a line. `foreign` lets NaN and infinities pass, which peers
    of other makes write. InvalidCheckpointState names the file, and the line where there is one.
    """
    path = part_dir(checkpoint_dir, manifest.kind, manifest.instance) / manifest.records_file
    sha256 = hashlib.sha256()
    count = 0
    problem: InvalidCheckpointState | None = None
    with invalid_on_error(f"cannot read {path}"):
        require_file(disk, path)
        for line in split_lines(disk, path, sha256.update):
            count += 1
            if problem is not None:
                continue
            try:
                found = _episode_and_record(path, count, line, foreign)
            except InvalidCheckpointState as error:
                problem = error
            else:
                yield found
    if sha256.hexdigest() != manifest.records_sha256:
        raise InvalidCheckpointState(f"{path} does not match its manifest digest")
    if problem is not None:
        raise problem
    if count != manifest.record_count:
        raise InvalidCheckpointState(f"{path} holds {count} records, its manifest says {manifest.record_count}")


def read_part(
    disk: Disk,
    checkpoint_dir: Path,
    *,
    kind: str,
    instance: str,
    scope: Collection[EpisodeId] | None = None,
    foreign: bool = False,
) -> Part:
    """This server's part, every byte of it checked; the records in `scope` (all without one), each of its kind's form.

    Raises InvalidCheckpointState for all that docs/reference/files.md calls invalid, and for two records of one
    session.
    """
    manifest = read_manifest(disk, checkpoint_dir, kind, instance)
    path = part_dir(checkpoint_dir, kind, instance) / manifest.records_file
    kept: list[dict[str, Json]] = []
    seen: set[tuple[str, str]] = set()
    problem: InvalidCheckpointState | None = None
    for episode, record in scan_part(disk, checkpoint_dir, manifest, foreign=foreign):
        if problem is None and (scope is None or episode in scope):
            problem = check_record(path, kind, record, seen)
            kept.append(record)
    if problem is not None:
        raise problem
    return Part(manifest, tuple(kept))


def check_record(
    path: Path, kind: str, record: dict[str, Json], seen: set[tuple[str, str]]
) -> InvalidCheckpointState | None:
    """What is wrong with a record of `kind`, or None; `seen` gets its identity. Unknown kinds are not looked into."""
    if kind not in RECORD_TYPES:
        return None
    try:
        typed = read_record(kind, record)
    except StatecoreError as error:
        return InvalidCheckpointState(f"{path} holds an invalid {kind} record: {error}")
    if typed.identity in seen:
        return InvalidCheckpointState(f"{path} holds two records for {' '.join(filter(None, typed.identity))}")
    seen.add(typed.identity)
    return None


def split_lines(disk: Disk, path: Path, update: Callable[[bytes], None] = lambda chunk: None) -> Iterator[bytes]:
    """The lines of a file without their newlines, one by one; `update` gets every chunk of it. A line is bounded."""
    begun: list[bytes] = []
    size = 0
    for chunk in disk.chunks(path, CHUNK_BYTES):
        update(chunk)
        first, *more = chunk.split(b"\n")
        begun.append(first)
        size += len(first)
        if size > MAX_RECORD_BYTES:
            raise InvalidCheckpointState(f"{path} holds a record of more than {MAX_RECORD_BYTES} bytes")
        if more:
            yield b"".join(begun)
            yield from more[:-1]
            begun, size = [more[-1]], len(more[-1])
    if size:
        yield b"".join(begun)


def _episode_and_record(path: Path, number: int, line: bytes, foreign: bool) -> tuple[EpisodeId, dict[str, Json]]:
    try:
        record: Json = json.loads(line) if foreign else parse(line)
    except (StatecoreError, ValueError, RecursionError) as error:
        raise InvalidCheckpointState(f"{path} line {number} is not JSON: {error}") from error
    if type(record) is not dict or "episode_id" not in record:
        raise InvalidCheckpointState(f"{path} line {number} has no episode_id")
    try:
        return structure(record["episode_id"], EpisodeId), record
    except StatecoreError as error:
        raise InvalidCheckpointState(f"{path} line {number} has no valid episode_id: {error}") from error
