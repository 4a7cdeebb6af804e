"""A checkpoint while it is being written: `.ck-<epoch>-<seq>.partial/`, whose last file is `checkpoint.json`.

Rules (docs/reference/protocol.md section 8): the participants write their parts below it; the aggregate Gym manifest
comes after all of their manifests were read back; the global one after Gym, registry, ledger, framework and token store
(I41); within a step all data files are durable before the manifest that names them, and the directory after it; no
file is ever written over, and none is made for a single rollout (I50). Nothing here makes the final name.

Synchronous over a `Disk`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from attrs import evolve, frozen

from statecore.errors import StatecoreError
from statecore.seams import Clock, Disk, Entropy

from ..records._fields import Json, encode_line
from ..records.manifests import CheckpointId, FileRef, GlobalManifest, GymManifest, ParticipantEntry, encode_manifest
from ..records.records import LedgerRow, Manifest, RegistryRow
from .files import Digest, InvalidCheckpointState, hashed, invalid_on_error, require_file, walk, write_once
from .snapshots import GYM, MANIFEST, part_dir, read_manifest

GYM_MANIFEST: Final = "gym/manifest.json"
REGISTRY: Final = "coordinator/registry.jsonl"
LEDGER: Final = "coordinator/ledger.jsonl"
FRAMEWORK: Final = "framework"
TOKENS: Final = "tokens/receipt.json"
CHECKPOINT: Final = "checkpoint.json"


@frozen(kw_only=True)
class Committed:
    """A participant's commit reply: who answered, in which mode, and the manifest it says it wrote (None: not said)."""

    kind: str
    name: str
    mode: str
    manifest: Mapping[str, Json] | None = None


class DraftIncomplete(StatecoreError):
    """A step of writing a checkpoint was asked for before one that it needs; nothing was written."""


class Draft:
    """One checkpoint being written below `directory`, step by step, each step once.

    `write_gym`, `write_coordinator`, `seal_framework`, `write_tokens` in any order, then `finish`. Every step raises
    InvalidCheckpointState when what it finds does not agree, or when the disk fails; the checkpoint is then aborted.
    """

    def __init__(
        self, directory: Path, checkpoint_id: CheckpointId, disk: Disk, entropy: Entropy, clock: Clock
    ) -> None:
        self.directory = directory
        self.checkpoint_id = checkpoint_id
        self._disk, self._entropy, self._clock = disk, entropy, clock
        self._participants: tuple[ParticipantEntry, ...] = ()
        self._gym: FileRef | None = None
        self._coordinator: tuple[FileRef, FileRef] | None = None
        self._framework: tuple[FileRef, ...] | None = None
        self._tokens: FileRef | None = None

    @property
    def framework_dir(self) -> Path:
        """Where the framework's hook writes; the directory is there and belongs to it until `seal_framework`."""
        path = self.directory / FRAMEWORK
        with invalid_on_error(path):
            if self._disk.kind(path) is None:
                self._disk.mkdir(path)
        return path

    def write_gym(self, committed: Iterable[Committed]) -> GymManifest:
        """`gym/manifest.json` names every part; each one was read back: its manifest, its records' digest (I41, I44).

        Raises InvalidCheckpointState when a part is missing, damaged, of another checkpoint or life, or not what its
        server's commit reply said.
        """
        with invalid_on_error(self.directory / GYM):
            entries = tuple(sorted(map(self._part, committed), key=lambda entry: (entry.kind, entry.name)))
            gym = GymManifest(
                checkpoint_id=str(self.checkpoint_id), epoch=self.checkpoint_id.epoch, participants=entries
            )
            if not entries:
                self._disk.mkdir(self.directory / GYM)
            self._gym = self._write(GYM_MANIFEST, [gym.encode()])
            self._disk.fsync_dir(self.directory / GYM)
        self._participants = entries
        return gym

    def write_coordinator(self, registry: Iterable[RegistryRow], ledger: Iterable[LedgerRow]) -> None:
        """`coordinator/registry.jsonl` and `ledger.jsonl` are durable, one row per rollout each."""
        with invalid_on_error(self.directory / "coordinator"):
            self._disk.mkdir(self.directory / "coordinator")
            self._coordinator = (
                self._write_rows(REGISTRY, (row.to_json() for row in registry)),
                self._write_rows(LEDGER, (row.to_json() for row in ledger)),
            )
            self._disk.fsync_dir(self.directory / "coordinator")

    def seal_framework(self) -> tuple[FileRef, ...]:
        """All that the framework's hook wrote is durable and named by digest. From now on it must not change."""
        with invalid_on_error(self.framework_dir):
            files, directories = walk(self._disk, self.framework_dir)
            for path in files:
                self._disk.fsync(path)
            for path in directories:
                self._disk.fsync_dir(path)
            self._framework = tuple(self._ref(path, hashed(self._disk, path)) for path in files)
        return self._framework

    def write_tokens(self, receipt: Json) -> None:
        """`tokens/receipt.json` holds the token store's receipt for this checkpoint.

        InvalidCheckpointState when the receipt names another checkpoint.
        """
        named = receipt.get("checkpoint_id") if type(receipt) is dict else None
        if named not in (None, str(self.checkpoint_id)):
            raise InvalidCheckpointState(f"the token store's receipt is for {named!r}, not for {self.checkpoint_id}")
        with invalid_on_error(self.directory / TOKENS):
            self._disk.mkdir((self.directory / TOKENS).parent)
            self._tokens = self._write(TOKENS, [encode_manifest(receipt)])
            self._disk.fsync_dir((self.directory / TOKENS).parent)

    def finish(self, policy_version: tuple[int, int] | None = None) -> GlobalManifest:
        """`checkpoint.json` is there, after everything that it names; the draft can be validated and published.

        `policy_version` is (trainer life, step). Raises DraftIncomplete when a step before it is missing.
        """
        if self._gym is None or self._coordinator is None or self._framework is None:
            raise DraftIncomplete(f"{self.checkpoint_id}: write_gym, write_coordinator, seal_framework, then finish")
        manifest = GlobalManifest(
            checkpoint_id=str(self.checkpoint_id),
            epoch=self.checkpoint_id.epoch,
            created_ts=self._clock.time(),
            participants=self._participants,
            gym=self._gym,
            registry=self._coordinator[0],
            ledger=self._coordinator[1],
            framework=self._framework,
            tokens=self._tokens,
            policy_version=policy_version,
        )
        with invalid_on_error(self.directory):
            for path in walk(self._disk, self.directory)[1]:
                self._disk.fsync_dir(path)
            self._write(CHECKPOINT, [manifest.encode()])
            self._disk.fsync_dir(self.directory)
        return manifest

    def _part(self, committed: Committed) -> ParticipantEntry:
        manifest = read_manifest(self._disk, self.directory, committed.kind, committed.name)
        directory = part_dir(self.directory, committed.kind, committed.name)
        self._check_part(directory, manifest, committed)
        path = directory / MANIFEST
        digest = hashed(self._disk, path)
        return ParticipantEntry(
            kind=committed.kind,
            name=committed.name,
            mode=committed.mode,
            manifest=path.relative_to(self.directory).as_posix(),
            sha256=digest.sha256,
            record_count=manifest.record_count,
        )

    def _check_part(self, directory: Path, manifest: Manifest, committed: Committed) -> None:
        path = directory / MANIFEST
        if committed.manifest is not None and manifest.to_json() != dict(committed.manifest):
            raise InvalidCheckpointState(f"{path} is not the manifest that {committed.name} answered")
        if manifest.checkpoint_id != str(self.checkpoint_id):
            raise InvalidCheckpointState(f"{path} is for {manifest.checkpoint_id!r}, not for {self.checkpoint_id}")
        if manifest.epoch not in (None, self.checkpoint_id.epoch):
            raise InvalidCheckpointState(f"{path} is of epoch {manifest.epoch}, not of {self.checkpoint_id.epoch}")
        records = directory / manifest.records_file
        require_file(self._disk, records)
        if hashed(self._disk, records).sha256 != manifest.records_sha256:
            raise InvalidCheckpointState(f"{records} does not match its manifest digest")

    def _write_rows(self, relative: str, rows: Iterable[Json]) -> FileRef:
        count = 0

        def lines() -> Iterator[bytes]:
            nonlocal count
            for row in rows:
                count += 1
                yield encode_line(row)

        return evolve(self._write(relative, lines()), count=count)

    def _write(self, relative: str, pieces: Iterable[bytes]) -> FileRef:
        path = self.directory / relative
        return self._ref(path, write_once(self._disk, path, pieces, self._entropy))

    def _ref(self, path: Path, digest: Digest) -> FileRef:
        relative = path.relative_to(self.directory).as_posix()
        return FileRef(path=relative, sha256=digest.sha256, size_bytes=digest.size_bytes)
