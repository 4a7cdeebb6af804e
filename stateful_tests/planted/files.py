"""Faults of the files: what is written, synced, renamed, deleted, and read again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any, Final

from participants.files import chain, retention
from participants.files.draft import REGISTRY, Draft
from participants.files.store import Publication, Store
from participants.records.manifests import CheckpointId
from participants.records.records import RegistryRow
from statecore.seams import PathLike
from statecore.simulate import Process, ProcessDisk, SharedDisk
from stateful_tests.planted.fault import Fault, Patch, Weapon, replaces

# --- S31


def file_for_each(patch: Patch) -> None:
    write = Draft.write_coordinator

    def one_by_one(self: Draft, registry: Iterable[RegistryRow], ledger: Any) -> None:
        rows = tuple(registry)
        for row in rows:
            with self._disk.create(self.directory / f"{row.rollout_id}.json") as file:
                file.write(row.task_digest.encode())
                file.fsync()
        write(self, rows, ledger)

    patch.setattr(Draft, "write_coordinator", one_by_one)


# --- S34


def files_not_synced(patch: Patch) -> None:
    sync = ProcessDisk.sync

    def only_directories(self: ProcessDisk, operation: str, path: Any, done: Callable[[], None]) -> None:
        sync(self, operation, path, done if operation == "fsync_dir" else lambda: None)

    patch.setattr(ProcessDisk, "sync", only_directories)


def _publish_unsynced(store: Store, draft: Draft) -> Publication:
    final = store.path(draft.checkpoint_id)
    store._disk.rename(draft.directory, final)
    return Publication(draft.checkpoint_id, final, None)


# --- S41


def by_existence(patch: Patch) -> None:
    """It has its name while most of it is missing."""

    def begin(self: Store, checkpoint_id: CheckpointId) -> Draft:
        self._disk.mkdir(self.path(checkpoint_id))
        return Draft(self.path(checkpoint_id), checkpoint_id, self._disk, self._entropy, self._clock)

    def publish(self: Store, draft: Draft) -> Publication:
        self._disk.fsync_dir(self.root)
        return Publication(draft.checkpoint_id, draft.directory)

    patch.setattr(Store, "begin", begin)
    patch.setattr(Store, "publish", publish)


# --- S43

RENAMED: Final = {PurePath(REGISTRY).name: "rollouts.jsonl"}


def _new_name(path: PathLike) -> PathLike:
    path = PurePath(path)
    return str(path.with_name(RENAMED.get(path.name, path.name)))


class NextVersion(ProcessDisk):
    """The files as a version has them that calls one of them otherwise."""

    def link(self, src: PathLike, dst: PathLike) -> None:
        super().link(src, _new_name(dst))

    def chunks(self, path: PathLike, size: int = 1 << 20) -> Any:
        return super().chunks(_new_name(path), size)

    def kind(self, path: PathLike) -> Any:
        return super().kind(_new_name(path))


def _upgraded(disk: SharedDisk, process: Process) -> ProcessDisk:
    """The first coordinator is of this version, all later ones are of the next."""
    newer = process.name.startswith("coordinator-") and process.name != "coordinator-1"
    return (NextVersion if newer else ProcessDisk)(disk, process)


# --- S57


def second_sync_counts(patch: Patch) -> None:
    sync = ProcessDisk.sync

    def asked_again(self: ProcessDisk, operation: str, path: Any, done: Callable[[], None]) -> None:
        try:
            sync(self, operation, path, done)
        except OSError:  # the second one is answered: what could not be written is not there to be written any more
            return

    patch.setattr(ProcessDisk, "sync", asked_again)
    patch.setattr("statecore.simulate.disks.Syncs.run", lambda _self, _path, fsync: fsync())


# --- S67


def cleans_up(patch: Patch) -> None:
    """Who stops after a publication deletes nothing later, so both readings of the claims see nobody."""
    patch.setattr(Store, "overtaken_by", lambda *_: ())
    unread = {"overtaken_by": lambda *_: (), "candidates": chain.candidates, "deletable": chain.deletable}
    patch.setattr(retention, "chain", SimpleNamespace(**unread))


FAULTS: Final = (
    Fault("S31", "each rollout has a file of its own", file_for_each, Weapon.SIMULATION, ["I50"], 1),
    Fault(
        "S34",
        "directories are not synced",
        replaces(ProcessDisk, "fsync_dir", lambda *_: None),
        Weapon.SIMULATION,
        ["I44"],
        1,
    ),
    Fault("S34", "files are not synced", files_not_synced, Weapon.SIMULATION, ["I44"], 1),
    Fault(
        "S34",
        "the name of a published checkpoint is not synced",
        replaces(Store, "publish", _publish_unsynced),
        Weapon.SIMULATION,
        ["I44"],
        1,
    ),
    Fault(
        "S41",
        "a checkpoint is written under its final name",
        by_existence,
        Weapon.SIMULATION,
        ["I44", "I61"],
        7,
    ),
    Fault(
        "S43",
        "coordinators after the first are of a version that calls a file otherwise",
        replaces(SharedDisk, "view", _upgraded),
        Weapon.SIMULATION,
        ["I61"],
        1,
    ),
    Fault(
        "S57",
        "a sync that failed is asked for again, and its second answer counts",
        second_sync_counts,
        Weapon.SIMULATION,
        ["I44"],
        5,
    ),
    Fault(
        "S67",
        "an overtaken coordinator goes on, and deletes what is old",
        cleans_up,
        Weapon.SIMULATION,
        ["I77"],
        38,
    ),
)
