"""The coordinator's side of the disk: claims, the base, drafts, and publication by one rename.

Rules (docs/reference/protocol.md sections 8 and 11): claims first, create-only; then the base, chosen by the chain and
recorded create-only; publication renames a complete draft onto a name that must not exist, and syncs the root; `LATEST`
may lag and never points at something partial; nothing here makes an empty directory under a final name. After each
publication the claims are read again: who was overtaken stops (I96, I98, S44, S62).

A root needs a file system that all servers see, with hard links, read-after-write and consistent listing. Everything is
synchronous over a `Disk`; shells run it through `on_disk`.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from attrs import frozen

from statecore.errors import StatecoreError
from statecore.seams import Clock, Disk, Entropy
from statecore.wire import parse, structure, unstructure

from ..records._fields import Json
from ..records.manifests import CheckpointId, encode_manifest
from . import chain
from .chain import Base, ChainBroken, Claim, StoreError, base_name, claim_name
from .checkpoint import Checkpoint, read_checkpoint, read_results
from .draft import CHECKPOINT, Draft
from .files import InvalidCheckpointState, make_dirs, read_small, remove_tree, temporary, write_once

__all__ = [
    "ChainBroken",
    "Checkpoint",
    "Draft",
    "InvalidCheckpointState",
    "Publication",
    "PublicationInDoubt",
    "Store",
    "StoreError",
    "Survey",
    "partial_name",
]

MAX_CLAIM_TRIES: Final = 100
LATEST: Final = "LATEST"
_CLAIM = re.compile(r"epoch-([0-9]{6,})\.json\Z")
_PARTIAL = re.compile(r"\.(ck-[0-9]{6,}-[0-9]{6,})\.partial\Z")
SET_ASIDE: Final = re.compile(r"\.(ck-[0-9]{6,}-[0-9]{6,})\.deleted\Z")
_EXISTS: Final = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR})


class PublicationInDoubt(StoreError):
    """The rename was made and may not be durable: a crash decides whether the checkpoint is in force.

    Nothing may be acknowledged on it. After a crash either outcome is right: it is whole, and nothing depends on it.
    """


class EpochTaken(StoreError):
    """Another coordinator has claimed the root: this one is overtaken, and claims nothing more."""


@frozen
class Publication:
    """A checkpoint that is in force. `latest_problem` says why `LATEST` lags, None if it does not."""

    checkpoint_id: CheckpointId
    directory: Path
    latest_problem: str | None = None


@frozen
class Survey:
    """What a root holds: claims by epoch, published checkpoints, those of the newest claim's chain in the order tried,
    those that were overtaken, drafts that were never published, and what retention has set aside and not removed yet.
    """

    claims: tuple[Claim, ...]
    published: tuple[CheckpointId, ...]
    candidates: tuple[CheckpointId, ...]
    overtaken: tuple[CheckpointId, ...]
    partial: tuple[str, ...]
    set_aside: tuple[str, ...]


@frozen
class _BaseFile:
    start: str | None


@contextmanager
def _store_errors(what: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{what}: {error}") from error


def partial_name(checkpoint_id: CheckpointId) -> str:
    """The directory of a checkpoint before its publication."""
    return f".{checkpoint_id}.partial"


def set_aside_name(checkpoint_id: CheckpointId) -> str:
    """The directory of a checkpoint, or of a draft, from the moment on that it is given up until it is removed."""
    return f".{checkpoint_id}.deleted"


class Store:
    """One root directory. Several coordinators may open it; the claims tell them apart."""

    def __init__(self, root: Path, disk: Disk, entropy: Entropy, clock: Clock) -> None:
        self.root = disk.resolve(root)  # participants are given paths below it: absolute, and by no link
        self._disk, self._entropy, self._clock = disk, entropy, clock

    # --- lives

    def claim(self) -> int:
        """This life's epoch: durable, and nobody else's (I96). The loser of a race takes the next number.

        Raises StoreError when the disk fails or the race is lost too often.
        """
        with _store_errors(self.root):
            make_dirs(self._disk, self.root)
            epoch = chain.next_epoch(self._epochs())
            for _ in range(MAX_CLAIM_TRIES):
                with suppress(FileExistsError):
                    self._write_claim(epoch)
                    return epoch
                epoch = chain.next_epoch([epoch])
        raise StoreError(f"{self.root}: lost the race for an epoch {MAX_CLAIM_TRIES} times")

    def claim_after(self, epoch: int) -> int:
        """The claim right after `epoch`, made durable by the owner of that one, for another start of its servers.

        Raises EpochTaken when somebody has claimed since; then nothing is claimed, since that would overtake them.
        """
        with _store_errors(self.root):
            if later := chain.overtaken_by(epoch, self._epochs()):
                raise EpochTaken(f"{self.root}: epoch {later[0]} is claimed by somebody else")
            try:
                self._write_claim(epoch + 1)
            except FileExistsError as error:
                raise EpochTaken(f"{self.root}: epoch {epoch + 1} is claimed by somebody else") from error
        return epoch + 1

    def _write_claim(self, epoch: int) -> None:
        claim = encode_manifest({"epoch": epoch, "claimed_ts": self._clock.time()})
        write_once(self._disk, self.root / claim_name(epoch), [claim], self._entropy)
        self._disk.fsync_dir(self.root)

    def claims(self) -> dict[int, Claim]:
        """Every claim as it is on the disk now. A damaged base file is an error: the chain is never guessed."""
        with _store_errors(self.root):
            return {epoch: self._claim(epoch) for epoch in self._epochs()}

    def published(self) -> tuple[CheckpointId, ...]:
        """The published checkpoints, oldest first, whole or damaged; of any chain."""
        with _store_errors(self.root):
            found = (CheckpointId.parse(name) for name in self._names())
            return tuple(sorted(each for each in found if each and self._disk.kind(self.path(each)) == "dir"))

    def candidates(self, epoch: int) -> tuple[CheckpointId, ...]:
        """What claim `epoch` may start from, in the order to try (section 11). The claim must be made before."""
        return chain.candidates(epoch, self.claims(), self.published())

    def choose(self, epoch: int, damaged: Collection[CheckpointId] = ()) -> chain.Choice:
        """The base of claim `epoch`, by the chain, passing over what is `damaged`. The claim must be made before."""
        claims = self.claims()  # the claims first, then what is published: of two, one sees the other
        return chain.choose(epoch, claims, self.published(), damaged)

    def record_base(self, epoch: int, start: CheckpointId | None) -> None:
        """It is durable what `epoch` started from, once and for all; None is a fresh start.

        Raises StoreError when another base is recorded, or when `start` is no candidate of this claim.
        """
        if start is not None and start not in self.candidates(epoch):
            raise StoreError(f"epoch {epoch} cannot start from {start}: it is not in its chain")
        recorded = self.claims()[epoch].base if epoch in self.claims() else None
        if recorded is not None:
            if recorded.start != start:
                raise StoreError(f"{self.root / base_name(epoch)} already says {recorded.start}, not {start}")
            return
        with _store_errors(self.root / base_name(epoch)):
            content = encode_manifest(unstructure(_BaseFile(None if start is None else str(start))))
            write_once(self._disk, self.root / base_name(epoch), [content], self._entropy)
            self._disk.fsync_dir(self.root)

    def overtaken_by(self, epoch: int) -> tuple[int, ...]:
        """The later claims, read anew: not empty means that this life stops, with no ACK and no resume (I98)."""
        with _store_errors(self.root):
            return chain.overtaken_by(epoch, self._epochs())

    def survey(self) -> Survey:
        """What the root holds, and what a claim made now would start from."""
        claims, published = self.claims(), self.published()
        following = chain.next_epoch(claims)
        tried = chain.candidates(following, claims | {following: Claim(following)}, published)
        partial = tuple(name for name in self._names() if _PARTIAL.match(name))
        set_aside = tuple(name for name in self._names() if SET_ASIDE.match(name))
        overtaken = tuple(each for each in published if each not in tried)
        claimed = tuple(claims[epoch] for epoch in sorted(claims))
        return Survey(claimed, published, tried, overtaken, partial, set_aside)

    # --- checkpoints

    def path(self, checkpoint_id: CheckpointId) -> Path:
        """Where a checkpoint is once it is published."""
        return self.root / str(checkpoint_id)

    def begin(self, checkpoint_id: CheckpointId) -> Draft:
        """An empty draft of this checkpoint; its directory is what the participants are given.

        Raises StoreError when its epoch is not claimed with a base, or the id was used before.
        """
        claim = self.claims().get(checkpoint_id.epoch)
        if claim is None or claim.base is None:
            raise StoreError(f"{checkpoint_id}: epoch {checkpoint_id.epoch} has no claim with a base in {self.root}")
        if self._disk.kind(self.path(checkpoint_id)) is not None:
            raise StoreError(f"{self.path(checkpoint_id)} exists")
        directory = self.root / partial_name(checkpoint_id)
        with _store_errors(directory):
            self._disk.mkdir(directory)
        return Draft(directory, checkpoint_id, self._disk, self._entropy, self._clock)

    def validate(self, draft: Draft) -> Checkpoint:
        """Everything that the finished draft names was read back and agrees; records are not kept in memory."""
        return read_checkpoint(self._disk, draft.directory, checkpoint_id=str(draft.checkpoint_id), keep_records=False)

    def publish(self, draft: Draft) -> Publication:
        """The draft is in force under its final name, by one rename; a crash leaves the old checkpoint or this one.

        Raises StoreError when the name exists or the rename fails (then nothing happened), PublicationInDoubt when the
        rename was made and the root could not be synced. A `LATEST` that could not be written is no error.
        """
        final = self.path(draft.checkpoint_id)
        if self._disk.kind(draft.directory / CHECKPOINT) != "file":
            raise StoreError(f"{draft.directory} has no {CHECKPOINT}: finish it first")
        if self._disk.kind(final) is not None:
            raise StoreError(f"{final} exists")
        try:
            self._disk.rename(draft.directory, final)
        except OSError as error:
            if self._disk.kind(draft.directory) is None and self._disk.kind(final) == "dir":
                raise PublicationInDoubt(f"{final}: {error}") from error
            exists = f"{final} exists" if error.errno in _EXISTS else f"cannot publish {final}: {error}"
            raise StoreError(exists) from error
        try:
            self._disk.fsync_dir(self.root)
        except OSError as error:
            raise PublicationInDoubt(f"{final} is there, but its root could not be synced: {error}") from error
        return Publication(draft.checkpoint_id, final, self._point_latest(draft.checkpoint_id))

    def discard(self, draft: Draft) -> None:
        """The draft of an aborted checkpoint is gone. StoreError when something still writes below it."""
        with _store_errors(draft.directory):
            if self._disk.kind(draft.directory) == "dir":
                remove_tree(self._disk, draft.directory)

    def read(self, checkpoint_id: CheckpointId) -> Checkpoint:
        """A published checkpoint with all its records; InvalidCheckpointState when anything of it is wrong."""
        return read_checkpoint(self._disk, self.path(checkpoint_id), checkpoint_id=str(checkpoint_id))

    def results_of(self, checkpoint_id: CheckpointId) -> tuple[str, ...] | None:
        """The rollouts whose result a damaged checkpoint holds, for a report; None where that cannot be told."""
        return read_results(self._disk, self.path(checkpoint_id))

    def latest(self) -> str | None:
        """What `LATEST` says; it may lag, and nothing is decided by it."""
        path = self.root / LATEST
        with _store_errors(path):
            there = self._disk.kind(path) == "file"
            return read_small(self._disk, path, 1024).decode(errors="replace").strip() if there else None

    def _point_latest(self, checkpoint_id: CheckpointId) -> str | None:
        path = self.root / LATEST
        try:
            newest = max(self._epochs(), default=0)
            if newest > checkpoint_id.epoch:
                return f"{path}: left to epoch {newest}, which has claimed the root"
            with temporary(self._disk, path, [f"{checkpoint_id}\n".encode()], self._entropy) as (temp, _):
                self._disk.rename(temp, path)
            self._disk.fsync_dir(self.root)
        except OSError as error:  # the checkpoint is in force whatever LATEST says
            return f"{path}: {error}"
        return None

    def _names(self) -> list[str]:
        return self._disk.listdir(self.root) if self._disk.kind(self.root) == "dir" else []

    def _epochs(self) -> list[int]:
        found = (_CLAIM.match(name) for name in self._names())
        return [int(each.group(1)) for each in found if each and claim_name(int(each.group(1))) == each.group(0)]

    def _claim(self, epoch: int) -> Claim:
        try:
            value: Json = parse(read_small(self._disk, self.root / claim_name(epoch)))
        except StatecoreError:  # the name is the claim; what it says about the time is for people
            value = None
        claimed_ts = value.get("claimed_ts") if type(value) is dict else None
        return Claim(epoch, claimed_ts if type(claimed_ts) in (int, float) else None, self._base(epoch))

    def _base(self, epoch: int) -> Base | None:
        path = self.root / base_name(epoch)
        if self._disk.kind(path) is None:
            return None
        try:
            start = structure(parse(read_small(self._disk, path)), _BaseFile).start
        except StatecoreError as error:
            raise ChainBroken(f"{path} is damaged: {error}") from error
        found = None if start is None else CheckpointId.parse(start)
        if start is not None and found is None:
            raise ChainBroken(f"{path} names {start!r}, which is no checkpoint of ours")
        return Base(found)
