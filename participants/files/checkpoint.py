"""A checkpoint that was written: everything that it holds, read back and checked before anything of it is used.

Rules (docs/reference/protocol.md sections 6 to 8): only what `checkpoint.json` names belongs to a checkpoint, and all
that it names is there, plain, below it, with its digest and its count (I42, I44); each part belongs to the server that
it names (I45); no rollout is both completed and resumable, and each is there once (I65); every *continue* row has the
record that it continues from. A record without a *continue* row is ignored. Anything else is InvalidCheckpointState
with the file and the reason, and the checkpoint is taken for damaged as a whole.

Synchronous over a `Disk`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from attrs import frozen

from statecore.seams import Disk
from statecore.wire import digest, parse, sha256_hex, structure

from ..identity import EpisodeId
from ..records._fields import Json, task_digest
from ..records.manifests import CheckpointId, FileRef, GlobalManifest, GymManifest, ParticipantEntry
from ..records.records import Disposition, LedgerRow, LedgerStatus, Part, RegistryRow
from .draft import CHECKPOINT, FRAMEWORK, GYM_MANIFEST, LEDGER, REGISTRY, TOKENS
from .files import InvalidCheckpointState, check_file, invalid_on_error, read_small, require_dir, walk
from .snapshots import GYM, MANIFEST, check_record, part_dir, read_manifest, require_schema, scan_part, split_lines

T = TypeVar("T")
MAX_TOKENS_BYTES = 64 << 20


@frozen
class Checkpoint:
    """A whole checkpoint that validated. `parts` are in the order of `manifest.participants`.

    `framework` is the directory for the framework's `load`; `tokens` the token store's receipt, None without a store.
    Records that were not kept (`keep_records=False`) are empty tuples.
    """

    directory: Path
    manifest: GlobalManifest
    parts: tuple[Part, ...]
    registry: tuple[RegistryRow, ...]
    ledger: tuple[LedgerRow, ...]
    tokens: Json = None

    @property
    def framework(self) -> Path:
        return self.directory / FRAMEWORK

    @property
    def scope(self) -> tuple[EpisodeId, ...]:
        """The executions that a restore continues: exactly the *continue* rows (section 6.6)."""
        return tuple(row.episode for row in self.registry if row.disposition is Disposition.CONTINUE)

    def of_kind(self, kind: str) -> tuple[Part, ...]:
        """The parts of all servers of one kind."""
        return tuple(part for part in self.parts if part.manifest.kind == kind)


def read_checkpoint(
    disk: Disk, directory: Path, *, checkpoint_id: str | None = None, keep_records: bool = True
) -> Checkpoint:
    """The checkpoint in `directory`, every byte that it names read and checked.

    `checkpoint_id` is the id that it must have (a published directory's name). With `keep_records=False` memory does
    not grow with the records. Raises InvalidCheckpointState with the exact file and reason.
    """
    with invalid_on_error(directory):
        require_dir(disk, directory)
        manifest = read_global_manifest(disk, directory, checkpoint_id)
        _check_gym_manifest(disk, directory, manifest)
        owners: list[EpisodeId] = []
        parts = tuple(
            _read_part(disk, directory, manifest, each, owners, keep_records) for each in manifest.participants
        )
        _check_part_dirs(disk, directory, manifest)
        _check_framework(disk, directory, manifest)
        tokens = _tokens(disk, directory, manifest)
        registry = _rows(disk, directory, manifest.registry, REGISTRY, RegistryRow)
        ledger = _rows(disk, directory, manifest.ledger, LEDGER, LedgerRow)
        check_registry(directory / REGISTRY, registry, owners)
        check_ledger(directory / LEDGER, ledger, registry)
    return Checkpoint(directory, manifest, parts, registry, ledger, tokens)


def read_global_manifest(disk: Disk, directory: Path, checkpoint_id: str | None = None) -> GlobalManifest:
    """`checkpoint.json` alone, of the id that it must have; InvalidCheckpointState when it is missing or malformed."""
    path = directory / CHECKPOINT
    if disk.kind(path) is None:
        raise InvalidCheckpointState(f"missing manifest {path}")
    manifest = _manifest(disk, path, GlobalManifest)
    if checkpoint_id is not None and manifest.checkpoint_id != checkpoint_id:
        raise InvalidCheckpointState(f"{path} is of {manifest.checkpoint_id}, not of {checkpoint_id}")
    ours = CheckpointId.parse(manifest.checkpoint_id)
    if ours is not None and ours.epoch != manifest.epoch:
        raise InvalidCheckpointState(f"{path} says epoch {manifest.epoch} for {manifest.checkpoint_id}")
    fixed = [(manifest.gym, GYM_MANIFEST), (manifest.registry, REGISTRY), (manifest.ledger, LEDGER)]
    for ref, expected in [*fixed, (manifest.tokens, TOKENS)]:
        if ref is not None and ref.path != expected:
            raise InvalidCheckpointState(f"{path} names {ref.path!r} where {expected!r} belongs")
    return manifest


def read_results(disk: Disk, directory: Path) -> tuple[str, ...] | None:
    """The rollouts whose result a checkpoint holds, also one that is damaged elsewhere; None where it cannot be told.

    For reports: of a checkpoint that does not validate as a whole nothing else may be used, and nothing of these.
    """
    try:
        with invalid_on_error(directory):
            rows = _rows(disk, directory, read_global_manifest(disk, directory).ledger, LEDGER, LedgerRow)
    except InvalidCheckpointState:
        return None
    return tuple(sorted(row.rollout_id for row in rows if row.status is not LedgerStatus.LIVE))


def _manifest(disk: Disk, path: Path, cls: type[T]) -> T:
    with invalid_on_error(f"{path} is no valid manifest"):
        value: Json = parse(read_small(disk, path))
        require_schema(path, value)
        return structure(value, cls)


def _check_gym_manifest(disk: Disk, directory: Path, manifest: GlobalManifest) -> None:
    check_file(disk, directory, manifest.gym)
    path = directory / GYM_MANIFEST
    gym = _manifest(disk, path, GymManifest)
    if (gym.checkpoint_id, gym.epoch) != (manifest.checkpoint_id, manifest.epoch):
        raise InvalidCheckpointState(f"{path} is of {gym.checkpoint_id} in epoch {gym.epoch}")
    if gym.participants != manifest.participants:
        raise InvalidCheckpointState(f"{path} names other participants than {directory / CHECKPOINT}")


def _read_part(
    disk: Disk,
    directory: Path,
    manifest: GlobalManifest,
    entry: ParticipantEntry,
    owners: list[EpisodeId],
    keep: bool,
) -> Part:
    path = part_dir(directory, entry.kind, entry.name) / MANIFEST
    if directory / entry.manifest != path:
        raise InvalidCheckpointState(f"{directory / CHECKPOINT} names {entry.manifest!r} for {entry.kind}/{entry.name}")
    if disk.kind(path) is not None and sha256_hex(read_small(disk, path)) != entry.sha256:
        raise InvalidCheckpointState(f"{path} does not match its manifest digest")
    part = read_manifest(disk, directory, entry.kind, entry.name)
    if part.checkpoint_id != manifest.checkpoint_id:
        raise InvalidCheckpointState(f"{path} is for {part.checkpoint_id!r}, not for {manifest.checkpoint_id}")
    if part.record_count != entry.record_count:
        raise InvalidCheckpointState(f"{path} has {part.record_count} records, {CHECKPOINT} says {entry.record_count}")
    kept: list[dict[str, Json]] = []
    seen: set[tuple[str, str]] = set()
    problem: InvalidCheckpointState | None = None
    for episode, record in scan_part(disk, directory, part, foreign=True):
        problem = problem or check_record(path.with_name(part.records_file), entry.kind, record, seen)
        if entry.kind == "environment" or (entry.kind == "agent" and record.get("episode") is not None):
            owners.append(episode)
        if keep:
            kept.append(record)
    if problem is not None:
        raise problem
    return Part(part, tuple(kept))


def _check_part_dirs(disk: Disk, directory: Path, manifest: GlobalManifest) -> None:
    """No part is there that no manifest names: a participant's state would silently not be restored."""
    named = {(each.kind, each.name) for each in manifest.participants}
    for kind in disk.listdir(directory / GYM):
        if disk.kind(directory / GYM / kind) != "dir":
            continue
        for name in disk.listdir(directory / GYM / kind):
            path = directory / GYM / kind / name
            if (kind, name) not in named and disk.kind(path / MANIFEST) is not None:
                raise InvalidCheckpointState(f"{path} holds a part that {CHECKPOINT} does not name")


def _check_framework(disk: Disk, directory: Path, manifest: GlobalManifest) -> None:
    root = directory / FRAMEWORK
    require_dir(disk, root)
    for ref in manifest.framework:
        if not ref.path.startswith(f"{FRAMEWORK}/"):
            raise InvalidCheckpointState(f"{directory / CHECKPOINT} names {ref.path!r} as the framework's")
        check_file(disk, directory, ref)
    named = {directory / ref.path for ref in manifest.framework}
    for path in walk(disk, root)[0]:
        if path not in named:
            raise InvalidCheckpointState(f"{path} is not named by {CHECKPOINT}")


def _tokens(disk: Disk, directory: Path, manifest: GlobalManifest) -> Json:
    if manifest.tokens is None:
        return None
    check_file(disk, directory, manifest.tokens)
    return parse(read_small(disk, directory / TOKENS, MAX_TOKENS_BYTES))


def _rows(disk: Disk, directory: Path, ref: FileRef, relative: str, cls: type[T]) -> tuple[T, ...]:
    check_file(disk, directory, ref)
    path = directory / relative
    rows: list[T] = []
    for number, line in enumerate(split_lines(disk, path), 1):
        with invalid_on_error(f"{path} line {number}"):
            rows.append(structure(parse(line), cls))
    if len(rows) != ref.count:
        raise InvalidCheckpointState(f"{path} holds {len(rows)} rows, {CHECKPOINT} says {ref.count}")
    return tuple(rows)


def check_registry(path: Path, registry: Iterable[RegistryRow], owners: list[EpisodeId]) -> None:
    """Each rollout is there once, and what continues has the one record that owns it; else InvalidCheckpointState."""
    held = set(owners)
    if len(held) != len(owners):
        double = next(each for each in owners if owners.count(each) > 1)
        raise InvalidCheckpointState(f"{path}: two records own the episode {double.key}")
    seen: set[str] = set()
    for row in registry:
        if row.rollout_id in seen:
            raise InvalidCheckpointState(f"{path} holds the rollout {row.rollout_id} twice")
        seen.add(row.rollout_id)
        if row.task_digest != task_digest(row.task):
            raise InvalidCheckpointState(f"{path}: the task of {row.rollout_id} does not match its digest")
        if row.disposition is Disposition.CONTINUE and row.episode not in held:
            raise InvalidCheckpointState(f"{path}: {row.episode.key} continues, but no record holds its episode")


def check_ledger(path: Path, ledger: Iterable[LedgerRow], registry: Iterable[RegistryRow]) -> None:
    """Ledger and registry say the same of every rollout, and none is both saved and resumable (I65); else as above."""
    dispositions = {row.rollout_id: row.disposition for row in registry}
    rows: dict[str, LedgerRow] = {}
    for row in ledger:
        if row.rollout_id in rows:
            raise InvalidCheckpointState(f"{path} holds the rollout {row.rollout_id} twice")
        rows[row.rollout_id] = row
        disposition = dispositions.get(row.rollout_id)
        live = row.status is LedgerStatus.LIVE
        if live and disposition is None:
            raise InvalidCheckpointState(f"{path}: {row.rollout_id} is live, but was never dispatched")
        if not live and disposition not in (None, Disposition.COMPLETED):
            raise InvalidCheckpointState(f"{path}: {row.rollout_id} is both {disposition} and {row.status} (I65)")
        if row.receipt is not None and row.body is not None and digest(row.body) != row.receipt.result_sha256:
            raise InvalidCheckpointState(f"{path}: the result of {row.rollout_id} does not match its receipt")
    for rollout_id, disposition in dispositions.items():
        there = rows.get(rollout_id)
        if disposition is Disposition.COMPLETED and (there is None or there.status is LedgerStatus.LIVE):
            raise InvalidCheckpointState(f"{path}: {rollout_id} is completed, but its result is not here")
