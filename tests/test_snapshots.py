"""A participant's part of a checkpoint: written once, whole or not at all; read back strictly."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from participants.files.files import StopFlag, WriteStopped, resolve_below
from participants.files.snapshots import InvalidCheckpointState, find_manifest, read_part, write_part
from participants.identity import EpisodeId
from participants.records.records import Manifest
from statecore.seams import Disk, MemoryDisk, SeededEntropy, SystemDisk
from tests.crash_disk import Crash, CrashDisk, Survives

DIR = Path("/snapshots/ckpt")
PART = DIR / "gym/resources/res"
EMPTY = hashlib.sha256(b"").hexdigest()


def record(rollout_id: str, attempt: int = 0, **state: Any) -> dict[str, Any]:
    return {
        "episode_id": {"rollout_id": rollout_id, "attempt": attempt},
        "session_id": f"s-{rollout_id}-{attempt}",
        "state": state,
    }


TWO = [record("r1", z=1, a=2), record("r2", 3)]


def disk_with_dir() -> MemoryDisk:
    disk = MemoryDisk()
    disk.mkdir(DIR, parents=True)
    disk.log.clear()
    return disk


def write(
    disk: Disk,
    records: Any = TWO,
    *,
    checkpoint_id: str = "c1",
    instance: str = "res",
    directory: Path = DIR,
    extra: dict[str, Any] | None = None,
    stop: Callable[[], bool] = lambda: False,
    seed: int = 1,
) -> Manifest:
    return write_part(
        disk,
        directory,
        kind="resources",
        instance=instance,
        checkpoint_id=checkpoint_id,
        records=records,
        extra=extra,
        stop=stop,
        entropy=SeededEntropy(seed),
    )


def read(disk: Disk, **more: Any) -> tuple[dict[str, Any], ...]:
    return read_part(disk, DIR, kind="resources", instance="res", **more).records


def test_every_operation_is_in_its_order() -> None:
    """Directories, records (temporary, fsync, link), the manifest likewise, then the directories. Covers: I41"""
    disk = disk_with_dir()
    manifest = write(disk)
    steps = [(operation, path.replace(str(DIR), "")) for operation, path in disk.log]
    temp, temp_manifest = (path for operation, path in steps if operation == "create")
    records = f"/gym/resources/res/records-{manifest.records_sha256}.jsonl"
    assert temp.startswith("/gym/resources/res/.records.jsonl.")
    assert temp_manifest.startswith("/gym/resources/res/.manifest.json.")
    assert steps == [
        ("mkdir", "/gym"),
        ("fsync_dir", ""),
        ("mkdir", "/gym/resources"),
        ("fsync_dir", "/gym"),
        ("mkdir", "/gym/resources/res"),
        ("fsync_dir", "/gym/resources"),
        ("create", temp),
        ("write", temp),
        ("fsync", temp),
        ("link", records),
        ("unlink", temp),
        ("create", temp_manifest),
        ("write", temp_manifest),
        ("fsync", temp_manifest),
        ("link", "/gym/resources/res/manifest.json"),
        ("unlink", temp_manifest),
        ("fsync_dir", "/gym/resources/res"),
        ("fsync_dir", "/gym/resources"),
        ("fsync_dir", "/gym"),
        ("fsync_dir", ""),
    ]


def test_the_files_are_those_that_other_servers_write() -> None:
    """Name by digest, the bytes of each line, the manifest's form, and nothing else in the directory. Covers: I49"""
    disk = disk_with_dir()
    manifest = write(disk, extra={"epoch": 2, "incarnation": "x"})
    content = "".join(json.dumps(each) + "\n" for each in TWO).encode()
    digest = hashlib.sha256(content).hexdigest()
    assert disk.listdir(PART) == ["manifest.json", f"records-{digest}.jsonl"]
    assert disk.read(PART / manifest.records_file) == content
    expected = {
        "schema_version": 1,
        "kind": "resources",
        "instance": "res",
        "checkpoint_id": "c1",
        "records_file": f"records-{digest}.jsonl",
        "records_sha256": digest,
        "record_count": 2,
        "epoch": 2,
        "incarnation": "x",
    }
    assert manifest.to_json() == expected
    assert disk.read(PART / "manifest.json") == json.dumps(expected, sort_keys=True, indent=1).encode()


def test_what_was_written_reads_back_equal() -> None:
    """Records in their order, keys in theirs; the scope filters, and the digest covers all. Covers: I44, I49"""
    disk = disk_with_dir()
    write(disk)
    assert json.dumps(read(disk)) == json.dumps(TWO)
    assert read(disk, scope=[EpisodeId("r2", 3), EpisodeId("r9")]) == (TWO[1],)
    assert read(disk, scope=[EpisodeId("r2")]) == ()


def test_no_records_are_an_empty_file() -> None:
    """The part of a server that holds nothing is there all the same. Covers: I42"""
    disk = disk_with_dir()
    assert write(disk, []).records_file == f"records-{EMPTY}.jsonl"
    assert read(disk) == ()


def test_s31_files_do_not_grow_with_rollouts() -> None:
    """S31, two files whatever the number; records are streamed, no more than a chunk is held. Covers: I50"""
    disk = disk_with_dir()
    big = "x" * 4000
    held = 0

    def stream() -> Iterator[dict[str, Any]]:
        nonlocal held
        for i in range(1500):
            writes = [path for operation, path in disk.log if operation == "write"]
            held = max(held, i - 256 * len(writes))
            yield record(f"r{i}", pad=big)

    write(disk, stream())
    assert len(disk.listdir(PART)) == 2
    assert held <= 512, "the records wait in memory until the end"
    assert len(read(disk)) == 1500


# --- the same commit, another commit


def test_the_same_commit_again_is_a_success_and_writes_nothing() -> None:
    """Its answer is equal; only the syncs are made again, for the first may have failed. Covers: I15, I43"""
    disk = disk_with_dir()
    first = write(disk)
    before = {name: disk.read(PART / name) for name in disk.listdir(PART)}
    disk.log.clear()
    assert write(disk, seed=2) == first
    assert {operation for operation, _ in disk.log} == {"fsync_dir"}
    assert {name: disk.read(PART / name) for name in disk.listdir(PART)} == before


@pytest.mark.parametrize(
    ("records", "checkpoint_id", "extra"),
    [([record("r1")], "c1", None), (TWO, "c3", None), (TWO, "c1", {"incarnation": "another process"})],
)
def test_a_different_commit_is_refused_and_changes_nothing(
    records: list[dict[str, Any]], checkpoint_id: str, extra: dict[str, Any] | None
) -> None:
    """Other records, another checkpoint or another process: the words of the recorded exchange. Covers: I43"""
    disk = disk_with_dir()
    write(disk)
    before = {name: disk.read(PART / name) for name in disk.listdir(PART)}
    with pytest.raises(InvalidCheckpointState) as error:
        write(disk, records, checkpoint_id=checkpoint_id, extra=extra, seed=2)
    assert str(error.value) == f"{PART}/manifest.json already holds a different commit"
    assert {name: disk.read(PART / name) for name in disk.listdir(PART)} == before


def test_s24_two_servers_with_one_name_never_share_a_part() -> None:
    """S24: by records alone two empty servers get one manifest; the incarnation tells them apart. Covers: I46"""
    disk = disk_with_dir()
    first = write(disk, [], extra=None)
    assert write(disk, [], extra=None, seed=2) == first  # the fault: without incarnations the second gets the first's
    disk = disk_with_dir()
    write(disk, [], extra={"incarnation": "a" * 32})
    with pytest.raises(InvalidCheckpointState, match="already holds a different commit"):
        write(disk, [], extra={"incarnation": "b" * 32}, seed=2)


def test_two_writers_at_once_make_one_commit() -> None:
    """The one that links second is refused, and removes the records that it put there. Covers: I43, I46"""
    disk = disk_with_dir()

    def stream() -> Iterator[dict[str, Any]]:
        yield record("mine")
        write(disk, TWO, seed=2)  # while we are writing, another process commits

    with pytest.raises(InvalidCheckpointState, match="already holds a different commit"):
        write(disk, stream())
    assert read(disk) == tuple(TWO)
    assert len(disk.listdir(PART)) == 2


def test_two_writers_of_the_same_bytes_agree() -> None:
    """The one that comes second finds an equal manifest: success. Covers: I15"""
    disk = disk_with_dir()

    def stream() -> Iterator[dict[str, Any]]:
        yield from TWO
        write(disk, TWO, seed=2)

    assert write(disk, stream()).record_count == 2
    assert len(disk.listdir(PART)) == 2


def test_records_that_a_failed_commit_left_are_used_if_they_are_whole() -> None:
    """A records file without a manifest is no commit; one that lies about its digest is refused. Covers: I42, I44"""
    disk = disk_with_dir()
    manifest = write(disk)
    disk.unlink(PART / "manifest.json")
    assert write(disk, seed=2) == manifest
    disk.unlink(PART / "manifest.json")
    disk.unlink(PART / manifest.records_file)
    with disk.create(PART / manifest.records_file) as file:
        file.write(b"half")
    with pytest.raises(InvalidCheckpointState, match="does not hold what its name says"):
        write(disk, seed=3)


# --- stop


@pytest.mark.parametrize("checks", range(5))
def test_a_stopped_write_publishes_nothing(checks: int) -> None:
    """Asked before each record and before each link; whatever the moment, no manifest and no leftovers. Covers: I48"""
    disk = disk_with_dir()
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > checks

    if checks == 4:
        write(disk, stop=stop)
        assert disk.kind(PART / "manifest.json") == "file"
        return
    with pytest.raises(WriteStopped):
        write(disk, stop=stop)
    assert disk.listdir(PART) == []
    assert write(disk, seed=2).record_count == 2  # a later checkpoint is not hindered


def test_once_stop_returned_no_link_appears() -> None:
    """Setting the flag waits for a link that is being made; afterwards none can be. Covers: I48"""
    flag = StopFlag()
    linking, stopped = threading.Event(), threading.Event()

    class SlowLinks(MemoryDisk):
        def link(self, src: Any, dst: Any) -> None:
            if str(dst).endswith("manifest.json"):
                linking.set()
                assert not stopped.wait(0.05), "the flag was set while the link was being made"
            super().link(src, dst)

    disk = SlowLinks()
    disk.mkdir(DIR, parents=True)
    writer = threading.Thread(target=lambda: write(disk, stop=flag))
    writer.start()
    assert linking.wait(5)
    flag.set()
    stopped.set()
    assert disk.kind(PART / "manifest.json") == "file"
    writer.join()
    with pytest.raises(WriteStopped):
        write(disk, checkpoint_id="c2", stop=flag)


# --- faults of the disk


def operations() -> int:
    disk = CrashDisk()
    disk.mkdir(DIR, parents=True)
    start = len(disk.log)
    write(disk)
    return len(disk.log) - start


@pytest.mark.parametrize("at", range(operations()))
def test_an_operation_that_fails_leaves_no_half_commit_and_the_retry_succeeds(at: int) -> None:
    """A full disk at any operation: refused by name, nothing half valid, the same call again works. Covers: I42"""
    disk = CrashDisk()
    disk.mkdir(DIR, parents=True)
    first = len(disk.log)
    failed: list[str] = []

    def full(operation: str, path: str) -> None:
        if len(disk.log) - first == at and not failed:
            failed.append(f"{operation} {path}")
            raise OSError(errno.ENOSPC, "no space left")

    disk.fault = full
    try:
        write(disk)
    except InvalidCheckpointState as error:
        assert "no space left" in str(error)
        if find_manifest(disk, DIR, "resources", "res") is not None:
            assert read(disk) == tuple(TWO)
    else:
        assert failed[0].startswith("unlink"), "only a name that nobody reads may stay behind"
    assert write(disk, seed=2).record_count == 2
    assert read(disk) == tuple(TWO)


@pytest.mark.parametrize("survives", Survives)
def test_a_crash_at_any_operation_leaves_no_manifest_or_a_whole_part(survives: Survives) -> None:
    """A manifest that is there vouches for everything; what was answered is there. Covers: I41, I42, I44, S34"""
    total = operations()
    for at in range(total + 1):
        disk = CrashDisk()
        disk.mkdir(DIR, parents=True)
        for each in (DIR.parent.parent, DIR.parent):
            disk.fsync_dir(each)
        disk.crash_at(at)
        answered = False
        try:
            write(disk)
            answered = True
        except Crash:
            pass
        for seed in range(8 if survives is Survives.SOME else 1):
            left = disk.after_crash(survives, seed)
            if find_manifest(left, DIR, "resources", "res") is not None:
                assert read(left) == tuple(TWO)
            else:
                assert not answered, f"answered, and lost by a crash at operation {at}"
    assert at == total


class FailsOnce(MemoryDisk):
    """A disk of which one fsync fails; every later one of the same name would succeed and write nothing."""

    def __init__(self, failing: str) -> None:
        super().__init__()
        self.failing = failing

    def sync(self, operation: str, name: str) -> None:
        if self.failing and self.failing in name:
            self.failing = ""
            raise OSError(errno.EIO, "lost", name)
        super().sync(operation, name)


def test_s57_a_file_whose_fsync_failed_is_never_taken_for_durable() -> None:
    """S57: the records' fsync fails; the retry writes another file, and that one is synced. Covers: I44"""
    disk = FailsOnce(".records.jsonl.")
    disk.mkdir(DIR, parents=True)
    with pytest.raises(InvalidCheckpointState, match="lost"):
        write(disk)
    assert disk.listdir(PART) == []
    write(disk, seed=2)
    synced = [path for operation, path in disk.log if operation == "fsync" and ".records" in path]
    created = [path for operation, path in disk.log if operation == "create" and ".records" in path]
    assert len(created) == 2
    assert synced == created[1:]


def test_s57_a_directory_whose_fsync_failed_fails_for_good() -> None:
    """S57: on a naive disk its next fsync succeeds and the commit is answered; ours refuses. Covers: I41"""
    disk = FailsOnce("/gym/resources/res")
    disk.failing = ""
    disk.mkdir(DIR, parents=True)
    write(disk)
    disk.failing = "/gym/resources/res"
    for _ in range(3):
        with pytest.raises(InvalidCheckpointState, match=r"lost|earlier fsync of it failed"):
            write(disk)
    assert write(disk, directory=DIR.parent / "next").record_count == 2  # the next checkpoint is another directory


def test_s57_on_the_real_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S57 with the system's files: after one failed fsync of a directory no later commit into it is answered."""
    disk = SystemDisk()
    directory = tmp_path / "ck"
    fsync, failing = os.fsync, True

    def fails_once(fd: int) -> None:
        nonlocal failing
        if failing and os.path.samestat(os.fstat(fd), os.stat(part)):
            failing = False
            raise OSError(errno.EIO, "lost")
        fsync(fd)

    part = directory / "gym/resources/res"
    part.mkdir(parents=True)
    monkeypatch.setattr("os.fsync", fails_once)
    for _ in range(2):
        with pytest.raises(InvalidCheckpointState, match=r"lost|earlier fsync of it failed"):
            write(disk, directory=directory)


# --- bad input when reading


def damaged(change: Callable[[dict[str, Any]], Any]) -> MemoryDisk:
    disk = disk_with_dir()
    write(disk)
    manifest = json.loads(disk.read(PART / "manifest.json"))
    replaced = change(manifest)
    text = replaced if isinstance(replaced, bytes) else json.dumps(manifest).encode()
    replace(disk, PART / "manifest.json", text)
    return disk


def replace(disk: MemoryDisk, path: Path, content: bytes) -> None:
    disk.unlink(path)
    with disk.create(path) as file:
        file.write(content)


def with_records(content: bytes, **changes: Any) -> MemoryDisk:
    """A part whose records file holds `content`, with a manifest that agrees but for `changes`."""
    disk = disk_with_dir()
    write(disk)
    sha256 = hashlib.sha256(content).hexdigest()
    manifest = json.loads(disk.read(PART / "manifest.json")) | {
        "records_file": "records.jsonl",
        "records_sha256": sha256,
        "record_count": content.count(b"\n"),
    }
    with disk.create(PART / "records.jsonl") as file:
        file.write(content)
    replace(disk, PART / "manifest.json", json.dumps(manifest | changes).encode())
    return disk


def drop(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda manifest: manifest.pop(name) and None


def change(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda manifest: manifest.update(changes)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda manifest: b"{", "no valid manifest"),
        (lambda manifest: b"[]", "schema version"),
        (lambda manifest: b"\xff", "no valid manifest"),
        (change(schema_version=2), "has schema version 2, only 1"),
        (change(schema_version=True), "has schema version True"),
        (change(schema_version=[1]), "schema version"),
        (drop("schema_version"), "has schema version None"),
        (change(kind="agent"), "belongs to agent/res, not to resources/res"),
        (change(instance="other"), "belongs to resources/other"),
        (change(checkpoint_id=7), "checkpoint_id"),
        (drop("record_count"), "record_count"),
        (change(record_count="2"), "record_count"),
        (change(record_count=3), "holds 2 records, its manifest says 3"),
        (change(records_file="../records.jsonl"), "is no records file"),
        (change(records_file="records-abc.jsonl"), "is no records file"),
        (change(records_file="records.jsonl"), "missing file /snapshots/ckpt/gym/resources/res/records.jsonl"),
        (change(records_sha256="0" * 64), "does not match its manifest digest"),
    ],
)
def test_a_damaged_or_foreign_manifest_is_refused(make: Callable[[dict[str, Any]], Any], problem: str) -> None:
    """Not JSON, another schema, another server, wrong types, wrong digest or count. Covers: I44, I45"""
    disk = damaged(make)
    with pytest.raises(InvalidCheckpointState, match=problem):
        read(disk)


def test_a_missing_manifest_is_named_as_in_the_recorded_exchange() -> None:
    """Also where the whole directory is missing; records alone are no checkpoint (S41). Covers: I42"""
    disk = disk_with_dir()
    missing = f"missing manifest {PART}/manifest.json"
    with pytest.raises(InvalidCheckpointState) as error:
        read(disk)
    assert str(error.value) == missing
    write(disk)
    disk.unlink(PART / "manifest.json")
    with pytest.raises(InvalidCheckpointState) as error:
        read(disk)
    assert str(error.value) == missing
    assert find_manifest(disk, DIR, "resources", "res") is None


def test_a_damaged_records_file_is_named_as_in_the_recorded_exchange() -> None:
    """The digest is reported, not what the damage did to a line. Covers: I44"""
    disk = disk_with_dir()
    name = write(disk).records_file
    for content in (b"garbage\n", disk.read(PART / name)[:-10], disk.read(PART / name) + b"{}\n", b""):
        replace(disk, PART / name, content)
        with pytest.raises(InvalidCheckpointState) as error:
            read(disk)
        assert str(error.value) == f"{PART}/{name} does not match its manifest digest"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"no json\n", "line 1 is not JSON"),
        (b"\n", "line 1 is not JSON"),
        (b'{"episode_id": {"rollout_id": "r"}, "session_id": "s", "state": NaN}\n', "line 1 is not JSON"),
        (b"[]\n", "line 1 has no episode_id"),
        (b'{"session_id": "s", "state": 1}\n', "line 1 has no episode_id"),
        (b'{"episode_id": {"rollout_id": "a/b"}, "session_id": "s", "state": 1}\n', "no valid episode_id"),
        (b'{"episode_id": {"rollout_id": "r-a3"}, "session_id": "s", "state": 1}\n', "no valid episode_id"),
        (b'{"episode_id": {"rollout_id": "r", "x": 1}, "session_id": "s", "state": 1}\n', "no valid episode_id"),
        (b'{"episode_id": {"rollout_id": "r"}, "session_id": 4, "state": 1}\n', "invalid resources record"),
        (b'{"episode_id": {"rollout_id": "r"}, "session_id": "s", "state": 1, "n": 1}\n', "invalid resources record"),
        (b'{"episode_id": {"rollout_id": "r"}, "session_id": "s", "state": 1}\n' * 2, "two records for r s"),
    ],
)
def test_a_record_that_is_none_is_refused_with_its_line(content: bytes, problem: str) -> None:
    """Not JSON, no identity, unknown fields, one session twice: nothing is installed. Covers: I49, I52"""
    with pytest.raises(InvalidCheckpointState, match=problem):
        read(with_records(content))


def test_a_record_outside_the_scope_needs_only_an_identity() -> None:
    """Other forms are none of our business there; an identity that is none is. Covers: I49"""
    content = b'{"episode_id": {"rollout_id": "r"}, "state": 1, "from_the_future": true}\n'
    assert read(with_records(content), scope=[EpisodeId("other")]) == ()
    with pytest.raises(InvalidCheckpointState, match="from_the_future"):
        read(with_records(content), scope=[EpisodeId("r")])


def test_the_old_records_name_and_a_file_without_its_last_newline_are_read() -> None:
    """Both were written by older servers."""
    content = json.dumps(TWO[0]).encode()
    assert read(with_records(content, record_count=1)) == (TWO[0],)


def test_a_peer_that_writes_nan_is_read_when_it_is_asked_for() -> None:
    """The coordinator reads other makes' files; a participant restores only what it could write again."""
    content = b'{"episode_id": {"rollout_id": "r"}, "session_id": "s", "state": Infinity}\n'
    (found,) = read(with_records(content), foreign=True)
    assert found["state"] == float("inf")


@pytest.mark.parametrize("bad", [{"state": float("nan")}, {"state": (1, 2)}, {"state": {1: 2}}])
def test_a_record_that_would_not_read_back_equal_is_refused_before_anything_is_there(bad: dict[str, Any]) -> None:
    """The error names the record; the directory holds nothing of it. Covers: I49"""
    disk = disk_with_dir()
    with pytest.raises(InvalidCheckpointState, match="record 1 cannot be written"):
        write(disk, [TWO[0], record("r2") | bad])
    assert disk.listdir(PART) == []


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "a b", "ä"])
def test_a_name_that_is_no_plain_name_is_refused(name: str) -> None:
    """Kinds and instances become directories. Covers: I45"""
    disk = disk_with_dir()
    with pytest.raises(InvalidCheckpointState, match="no plain name"):
        write(disk, instance=name)
    with pytest.raises(InvalidCheckpointState, match="no plain name"):
        read_part(disk, DIR, kind=name, instance="res")
    assert disk.listdir(DIR) == []


# --- directories


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root/ck").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root/inner").symlink_to(tmp_path / "root/ck")
    (tmp_path / "root/file").write_bytes(b"")
    return tmp_path / "root"


def test_a_directory_below_the_root_is_found_by_either_spelling(root: Path) -> None:
    """Absolute below the root, or relative to it; it need not exist."""
    disk = SystemDisk()
    assert resolve_below(disk, root, str(root / "ck")) == root / "ck"
    assert resolve_below(disk, root, "ck/.x.partial") == root / "ck/.x.partial"
    assert resolve_below(disk, str(root), "new/one") == root / "new/one"


def test_a_root_that_is_reached_by_a_link_is_resolved_at_use(root: Path, tmp_path: Path) -> None:
    """The operator's link to the root is fine, and so is either spelling below it."""
    disk = SystemDisk()
    (tmp_path / "alias").symlink_to(root)
    assert resolve_below(disk, tmp_path / "alias", str(tmp_path / "alias/ck")) == root / "ck"
    assert resolve_below(disk, tmp_path / "alias", str(root / "ck")) == root / "ck"


@pytest.mark.parametrize(
    "directory",
    ["", "/", "/etc", "..", "ck/../../elsewhere", "ck/..", "link", "link/x", "inner", "file/x", "file", "a\0b"],
)
def test_a_directory_elsewhere_is_refused(root: Path, directory: str) -> None:
    """Outside, `..`, a symbolic link at any step (also one that stays inside), a file. Covers: I44"""
    with pytest.raises(InvalidCheckpointState):
        resolve_below(SystemDisk(), root, directory)
    with pytest.raises(InvalidCheckpointState):
        resolve_below(SystemDisk(), root, str(root.parent / "root-2"))


def test_a_link_inside_the_part_is_neither_written_through_nor_read(tmp_path: Path) -> None:
    """A symbolic link in the place of a directory, of the manifest or of the records is refused. Covers: I44"""
    disk = SystemDisk()
    target = tmp_path / "target"
    target.mkdir()
    outside = tmp_path / "outside"
    write(disk, directory=outside)
    (target / "gym").symlink_to(outside / "gym")
    with pytest.raises(InvalidCheckpointState, match="no directory"):
        write(disk, directory=target)
    with pytest.raises(InvalidCheckpointState, match="symbolic link"):
        read_part(disk, target, kind="resources", instance="res")
    other = tmp_path / "other"
    part = other / "gym/resources/res"
    name = write(disk, directory=other).records_file
    for each in ("manifest.json", name):
        (part / each).rename(tmp_path / each)
        (part / each).symlink_to(tmp_path / each)
        with pytest.raises(InvalidCheckpointState, match="symbolic link"):
            read_part(disk, other, kind="resources", instance="res")
        (part / each).unlink()
        (tmp_path / each).rename(part / each)


def test_the_real_disk_gives_the_same_files(tmp_path: Path) -> None:
    """The system's files hold the same bytes as the simulated ones, and no temporary name."""
    simulated = disk_with_dir()
    write(simulated)
    write(SystemDisk(), directory=tmp_path)
    part = tmp_path / "gym/resources/res"
    assert {each.name: each.read_bytes() for each in part.iterdir()} == {
        name: simulated.read(PART / name) for name in simulated.listdir(PART)
    }
