"""S41: what is taken for a checkpoint. First the fault, then its absence."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import count
from pathlib import Path

from participants.files.checkpoint import Checkpoint
from participants.files.draft import REGISTRY, Draft
from participants.files.snapshots import split_lines
from participants.files.store import Publication, Store
from participants.records.manifests import CheckpointId
from participants.records.records import RegistryRow
from statecore.seams import FixedClock
from statecore.wire import parse, structure
from tests.checkpoints import ENTROPY, ROOT, finished
from tests.crash_disk import Crash, CrashDisk, Survives

# --- S41


class ByExistence(Store):
    """The fault: a checkpoint is written under its name, and a directory with that name is a checkpoint."""

    def begin(self, checkpoint_id: CheckpointId) -> Draft:
        self._disk.mkdir(self.path(checkpoint_id))
        return Draft(self.path(checkpoint_id), checkpoint_id, self._disk, self._entropy, self._clock)

    def publish(self, draft: Draft) -> Publication:
        self._disk.fsync_dir(self.root)
        return Publication(draft.checkpoint_id, draft.directory)

    def read(self, checkpoint_id: CheckpointId) -> Checkpoint:
        """What is there."""
        directory = self.path(checkpoint_id)
        rows: list[RegistryRow] = []
        if self._disk.kind(directory / REGISTRY) is not None:
            rows = [structure(parse(line), RegistryRow) for line in split_lines(self._disk, directory / REGISTRY)]
        return Checkpoint(directory, None, (), tuple(rows), ())  # type: ignore[arg-type]


def store(kind: type[Store], disk: CrashDisk) -> Store:
    return kind(Path(ROOT), disk, ENTROPY, FixedClock(1_790_000_000.0))


def write(kind: type[Store], disk: CrashDisk, epoch: int, sequence: int) -> None:
    """A checkpoint in which two rollouts continue."""
    made = store(kind, disk)
    made.publish(finished(disk, made, epoch, sequence, rollouts=2))


def taken(kind: type[Store]) -> dict[Survives, Counter[tuple[str, int]]]:
    """After a crash at every third operation of writing a second checkpoint: what a new life takes, and how much of it.

    Counted are (its id, how many rollouts it continues), by what of the unsynced survives.
    """
    disk = CrashDisk()
    disk.mkdir(ROOT, parents=True)
    epoch = store(kind, disk).claim()
    store(kind, disk).record_base(epoch, None)
    write(kind, disk, epoch, 1)
    found: dict[Survives, Counter[tuple[str, int]]] = {Survives.EVERYTHING: Counter(), Survives.NAMES: Counter()}
    for operation in count(step=3):
        crashing = disk.after_crash(Survives.EVERYTHING)
        crashing.crash_at(operation)
        with suppress(Crash):
            write(kind, crashing, epoch, 2)
            return found
        for survives, counted in found.items():
            successor = store(kind, crashing.after_crash(survives))
            newest = successor.candidates(successor.claim())[0]
            counted[str(newest), len(successor.read(newest).scope)] += 1
    raise AssertionError("unreachable")


def test_s41_the_half_written_directory_that_looked_complete() -> None:
    """S41: a checkpoint has its name from one rename, after its last file; whatever the crash, a whole one is taken.

    By existence, a directory that was only begun is the newest checkpoint, and every rollout in flight is gone.
    Covers: I41, I42, I44.
    """
    first, second = ("ck-000001-000001", 2), ("ck-000001-000002", 2)
    for counted in taken(ByExistence).values():
        assert counted["ck-000001-000002", 0] > 10
    for counted in taken(Store).values():
        assert counted[first] > 10
        assert set(counted) <= {first, second}
