"""S31, S34, S41, S43, S44, S57, S62, S67: what is a checkpoint, and for how long. First the fault, then its absence."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import frozen

from participants.coordination.restoring import claim_and_choose
from participants.files import chain
from participants.files import checkpoint as checkpoint_module
from participants.files.checkpoint import Checkpoint
from participants.files.draft import REGISTRY, Draft
from participants.files.files import UnknownSchema
from participants.files.retention import sweep
from participants.files.snapshots import InvalidCheckpointState, split_lines, write_part
from participants.files.store import Publication, Store
from participants.records.manifests import CheckpointId
from participants.records.records import RegistryRow
from participants.settings import Seams
from statecore.seams import Disk, FixedClock, MemoryDisk
from statecore.wire import parse, structure
from tests.checkpoints import ENTROPY, ROOT, finished, publish, store_on
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


def store(kind: type[Store], disk: Disk) -> Store:
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


# --- S31


class FileForEach(Store):
    """The fault: every rollout has files of its own."""

    def begin(self, checkpoint_id: CheckpointId) -> Draft:
        draft = super().begin(checkpoint_id)
        write = draft.write_coordinator

        def one_by_one(registry: Iterable[RegistryRow], ledger: Any) -> None:
            rows = list(registry)
            for row in rows:
                with self._disk.create(draft.directory / f"{row.rollout_id}.json") as file:
                    file.write(row.task_digest.encode())
            write(rows, ledger)

        draft.write_coordinator = one_by_one  # type: ignore[method-assign]
        return draft


def files(kind: type[Store], rollouts: int) -> int:
    """How many files a checkpoint of so many rollouts has, in front of its last one."""
    disk = MemoryDisk()
    made = store(kind, disk)
    epoch = made.claim()
    made.record_base(epoch, None)
    finished(disk, made, epoch, 1, rollouts=rollouts)
    return sum(f"/.ck-{epoch:06d}" in each for each in disk._files)


def test_s31_files_per_rollout() -> None:
    """S31: two files for each server and a fixed number beside them, however many rollouts there are.

    With files of their own, forty rollouts cost forty times as many operations on names. Covers: I50.
    """
    assert files(FileForEach, 40) >= files(FileForEach, 1) + 39
    assert files(Store, 40) == files(Store, 1)


# --- S34


def every_sync(operation: str, _path: str) -> bool:
    """The fault: the writer does not wait until its files are on the disk."""
    return operation == "fsync"


def no_sync(_operation: str, _path: str) -> bool:
    return False


def left_by_crashes(forgets: Callable[[str, str], bool]) -> Counter[str]:
    """After a crash at every third operation of a second checkpoint, with what was synced: what its successor finds."""
    disk = CrashDisk()
    disk.mkdir(ROOT, parents=True)
    epoch = store(Store, disk).claim()
    store(Store, disk).record_base(epoch, None)
    write(Store, disk, epoch, 1)
    found: Counter[str] = Counter()
    for operation in count(step=3):
        crashing = disk.after_crash(Survives.EVERYTHING)
        crashing.forgets = forgets
        crashing.crash_at(operation)
        try:
            write(Store, crashing, epoch, 2)
            crashed = False
        except Crash:
            crashed = True
        successor = store(Store, crashing.after_crash(Survives.NAMES))
        newest = successor.candidates(successor.claim())[0]
        try:
            successor.read(newest)
            found[str(newest)] += 1
        except InvalidCheckpointState:
            found["half valid"] += 1
        if not crashed:
            return found
    raise AssertionError("unreachable")


def test_s34_crash_at_any_write_fsync_or_rename() -> None:
    """S34: each file is on the disk before its name is, so a crash leaves the old checkpoint or the new one.

    Without the wait, the new one has its name before its content. Covers: I41, I42.
    """
    assert left_by_crashes(every_sync)["half valid"] > 0
    whole = left_by_crashes(no_sync)
    assert set(whole) == {"ck-000001-000001", "ck-000001-000002"}


# --- S43


def of_any_version(disk: Disk, path: Path, cls: type[Any]) -> Any:
    """The fault: a file is read by its fields, whichever version wrote it."""
    return structure(parse(disk.read(path)) | {"schema_version": 1}, cls)


def written_by_the_next(read: Callable[..., Any]) -> str:
    """A later version, which counts attempts otherwise, wrote the newest checkpoint: what this one makes of it."""
    disk = MemoryDisk()
    made = store_on(disk)
    epoch = made.claim()
    made.record_base(epoch, None)
    newest = publish(disk, made, epoch, 1)
    path = f"{made.path(newest)}/checkpoint.json"
    disk._files[path] = bytearray(disk.read(path).replace(b'"schema_version": 1', b'"schema_version": 2'))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_module, "_manifest", read)
        try:
            return f"read: {len(made.read(newest).scope)} to be continued"
        except UnknownSchema as error:
            return str(error)


def test_s43_the_renamed_file() -> None:
    """S43: a file says which version wrote it, and one that cannot be read is refused with what to do.

    Read by its fields, the future is continued as if it were the present. Covers: I44.
    """
    assert written_by_the_next(of_any_version) == "read: 1 to be continued"
    told = written_by_the_next(checkpoint_module._manifest)
    assert told.endswith("has schema version 2, only 1 can be read here: start a newer version, which reads it")


# --- S44


class NewestOfAll(Store):
    """The fault: the newest directory is the newest checkpoint, whoever published it."""

    def choose(self, epoch: int, damaged: Collection[CheckpointId] = ()) -> chain.Choice:
        return chain.Choice(max(self.published()))


def after_the_zombie(kind: type[Store]) -> list[str]:
    """A first life stops right before its second rename, a second one takes over, the first wakes: two later bases."""
    disk = MemoryDisk()
    zombie = store(kind, disk)
    epoch = zombie.claim()
    zombie.record_base(epoch, None)
    publish(disk, zombie, epoch, 1)
    stopped = finished(disk, zombie, epoch, 9)
    bases = []
    for life in (2, 3):
        successor = store(kind, disk)
        claimed = successor.claim()
        bases.append(str(successor.choose(claimed).start))
        if life == 2:
            successor.record_base(claimed, successor.choose(claimed).start)
            zombie.publish(stopped)
    return bases


def test_s44_a_zombie_publishes() -> None:
    """S44: what an overtaken life publishes is in nobody's chain, and nobody starts from it.

    By the newest directory the third life goes back to a future that the second one never had. Covers: I91.
    """
    assert after_the_zombie(NewestOfAll) == ["ck-000001-000001", "ck-000001-000009"]
    assert after_the_zombie(Store) == ["ck-000001-000001", "ck-000001-000001"]


# --- S57


class FailsOnce(MemoryDisk):
    """A disk on which one sync of a directory fails; the system would answer the next one, and write nothing."""

    failing = ""

    def sync(self, operation: str, name: str) -> None:
        if self.failing and name.endswith(self.failing):
            self.failing = ""
            raise OSError(errno.EIO, "lost", name)
        super().sync(operation, name)


class Forgiving(FailsOnce):
    """The fault: a sync that failed is forgotten, and the next one decides."""

    def synced(self, operation: str, name: str) -> None:
        self.sync(operation, name)


def committed_after_a_failed_sync(kind: type[FailsOnce]) -> list[str]:
    """A part is committed three times; the directory's first sync fails: what each commit was answered."""
    disk, answers = kind(), []
    disk.mkdir(ROOT, parents=True)
    disk.failing = "/gym/resources/tools"
    for _ in range(3):
        try:
            write_part(
                disk, ROOT, kind="resources", instance="tools", checkpoint_id="c1", records=(), entropy=ENTROPY
            )  # fmt: skip
            answers.append("durable")
        except InvalidCheckpointState:
            answers.append("refused")
    return answers


def test_s57_fsync_failed_once_and_the_next_one_succeeded() -> None:
    """S57: what could not be synced once is never said to be durable.

    Where the second sync decides, the commit is answered, and what the system dropped is lost. Covers: I44.
    """
    assert committed_after_a_failed_sync(Forgiving) == ["refused", "durable", "durable"]
    assert committed_after_a_failed_sync(FailsOnce) == ["refused"] * 3


# --- S62


class Watched(Store):
    """Something happens right after its claim."""

    then: Callable[[], None]

    def claim(self) -> int:
        epoch = super().claim()
        self.then()
        return epoch


def claims_first(disk: MemoryDisk, then: Callable[[], None]) -> str:
    """As a coordinator starts."""
    successor = Watched(Path(ROOT), disk, ENTROPY, FixedClock(1_790_000_000.0))
    successor.then = then
    begun = trio.run(claim_and_choose, successor, Seams(FixedClock(1_790_000_000.0), disk, ENTROPY))
    assert begun.checkpoint is not None
    return begun.checkpoint.manifest.checkpoint_id


def chooses_first(disk: MemoryDisk, then: Callable[[], None]) -> str:
    """The fault: the base is chosen by what is there, and then claimed."""
    successor = store_on(disk)
    start = max(successor.published())
    then()
    successor.claim()
    return str(start)


@frozen
class Overlap:
    """Whether a life that published beside its successor's start goes on to acknowledge, and that one's base."""

    acknowledges: bool
    base: str


def beside_a_start(start: Callable[[MemoryDisk, Callable[[], None]], str]) -> Overlap:
    """A life publishes, and reads the claims, between the two steps of its successor's start."""
    disk = MemoryDisk()
    older = store_on(disk)
    epoch = older.claim()
    older.record_base(epoch, None)
    publish(disk, older, epoch, 1)
    goes_on = []

    def publish_and_read() -> None:
        publish(disk, older, epoch, 2)
        goes_on.append(not older.overtaken_by(epoch))

    base = start(disk, publish_and_read)
    return Overlap(goes_on[0], base)


def test_s62_the_overtaken_coordinator_acknowledges() -> None:
    """S62: claimed first and chosen then, one of the two sees the other: the older life acknowledges nothing.

    Chosen first, neither does: it acknowledges what its successor's base does not hold. Covers: I98.
    """
    assert beside_a_start(chooses_first) == Overlap(acknowledges=True, base="ck-000001-000001")
    assert beside_a_start(claims_first) == Overlap(acknowledges=False, base="ck-000001-000002")


# --- S67


class NeverOvertaken:
    """The fault: a life that once held the root deletes as if it still did."""

    @staticmethod
    def overtaken_by(_epoch: int, _epochs: object, _own: object = ()) -> tuple[int, ...]:
        return ()


def left_by_the_zombie(overtaken_by: Callable[..., tuple[int, ...]]) -> bool:
    """A second life has fallen back to the first one's oldest checkpoint; the first wakes and sweeps: is that there?"""
    disk = MemoryDisk()
    zombie = store_on(disk)
    epoch = zombie.claim()
    zombie.record_base(epoch, None)
    base, damaged = publish(disk, zombie, epoch, 1), publish(disk, zombie, epoch, 2)
    successor = store_on(disk)
    claimed = successor.claim()
    assert successor.choose(claimed, damaged=(damaged,)).start == base
    successor.record_base(claimed, base)
    for sequence in (3, 4):
        newest = publish(disk, zombie, epoch, sequence)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain, "overtaken_by", overtaken_by)
        sweep(zombie, disk, newest, 2)
    return base in successor.published()


def test_s67_the_zombie_that_cleans_up() -> None:
    """S67: who deletes has read the claims before, and a life that was overtaken deletes nothing.

    One that does not look destroys what its successor stands on. Covers: I77, I98.
    """
    assert not left_by_the_zombie(NeverOvertaken.overtaken_by)
    assert left_by_the_zombie(chain.overtaken_by)
