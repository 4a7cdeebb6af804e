"""The seams: clocks, randomness and files that are handed in, real and simulated, with the same behaviour."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest
import trio
import trio.testing

from statecore.seams import (
    Clock,
    Disk,
    Entropy,
    FixedClock,
    LoopClock,
    MemoryDisk,
    SeededEntropy,
    SystemClock,
    SystemDisk,
    SystemEntropy,
    on_disk,
)

# --- time


def test_the_system_clock_reads_the_machines_clocks() -> None:
    """Wall and monotonic time lie between two readings of the machine's own."""
    clock: Clock = SystemClock()
    before = (time.time(), time.monotonic())
    now = (clock.time(), clock.monotonic())
    after = (time.time(), time.monotonic())
    assert before <= now <= after


def test_a_fixed_clock_stands_until_it_is_moved() -> None:
    """advance moves both times; set moves the wall, and monotonic time never goes back."""
    clock = FixedClock(1000.0)
    assert (clock.time(), clock.monotonic()) == (1000.0, 0.0)
    clock.advance(5)
    assert (clock.time(), clock.monotonic()) == (1005.0, 5.0)
    clock.set(1010.0)
    assert (clock.time(), clock.monotonic()) == (1010.0, 10.0)
    clock.set(900.0)
    assert (clock.time(), clock.monotonic()) == (900.0, 10.0)


@pytest.mark.trio
async def test_a_loop_clock_follows_mock_time(autojump_clock: trio.testing.MockClock) -> None:
    """Its wall time moves with trio's clock, real time or not."""
    clock = LoopClock(1_790_000_000.0)
    began = clock.monotonic()
    await trio.sleep(3600)
    assert clock.time() == pytest.approx(1_790_003_600.0)
    assert clock.monotonic() - began == pytest.approx(3600.0)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_loop_clock_made_outside_a_loop_starts_at_its_first_reading(backend: str) -> None:
    """On both loops it begins at the wall time that it was given, and goes on from there."""
    clock = LoopClock(50.0)

    async def read() -> tuple[float, float]:
        first = clock.time()
        await anyio.sleep(0.01)
        return first, clock.time()

    first, second = anyio.run(read, backend=backend)
    assert first == 50.0
    assert 50.005 < second < 60.0


# --- randomness


def test_seeded_entropy_repeats_and_system_entropy_does_not() -> None:
    """The same seed gives the same ids and numbers; sizes and ranges are as asked for."""

    def draw(entropy: Entropy) -> list[Any]:
        return [entropy.token_hex(16), entropy.random(), entropy.token_hex(4)]

    assert draw(SeededEntropy(7)) == draw(SeededEntropy(7)) != draw(SeededEntropy(8))
    assert draw(SystemEntropy()) != draw(SystemEntropy())
    for entropy in (SeededEntropy("s"), SystemEntropy()):
        assert len(entropy.token_hex(16)) == 32
        assert all(0.0 <= entropy.random() < 1.0 for _ in range(100))


# --- files


@pytest.fixture(params=["system", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, Path]:
    """A disk and an empty directory on it."""
    if request.param == "system":
        return SystemDisk(), tmp_path
    disk = MemoryDisk()
    disk.mkdir("/top/of/it", parents=True)
    return disk, Path("/top/of/it")


def write(disk: Disk, path: Path, data: bytes) -> None:
    with disk.create(path) as file:
        file.write(data)
        file.fsync()


def test_a_file_is_written_read_and_listed(place: tuple[Disk, Path]) -> None:
    """Writes append; reading gives all of it, whole or in chunks of at most the size asked for."""
    disk, root = place
    with disk.create(root / "b") as file:
        file.write(b"hello ")
        file.write(b"")
        file.write(b"world")
    write(disk, root / "a", b"")
    assert disk.read(root / "b") == b"hello world"
    assert list(disk.chunks(root / "b", 4)) == [b"hell", b"o wo", b"rld"]
    assert list(disk.chunks(root / "a")) == []
    disk.mkdir(root / "d")
    assert disk.listdir(root) == ["a", "b", "d"]


def test_create_never_opens_an_existing_name(place: tuple[Disk, Path]) -> None:
    """A file or a directory of that name refuses it, and keeps what it held."""
    disk, root = place
    write(disk, root / "a", b"1")
    disk.mkdir(root / "d")
    for name in ("a", "d"):
        with pytest.raises(FileExistsError):
            disk.create(root / name)
    assert disk.read(root / "a") == b"1"


def test_append_writes_behind_what_is_there_for_one_writer_at_a_time(place: tuple[Disk, Path]) -> None:
    """The file is made if it is missing; a second writer is refused and changes nothing until the first has closed."""
    disk, root = place
    with disk.append(root / "log") as file:
        file.write(b"one\n")
        file.fsync()
        with pytest.raises(BlockingIOError, match="another writer"):
            disk.append(root / "log")
        file.write(b"two\n")
    assert disk.read(root / "log") == b"one\ntwo\n"
    with disk.append(root / "log") as file:
        file.write(b"three\n")
    assert disk.read(root / "log") == b"one\ntwo\nthree\n"
    with pytest.raises(OSError):
        disk.append(root)
    with pytest.raises(OSError):
        disk.append(root / "missing" / "log")


def test_truncate_leaves_the_first_bytes_and_never_makes_a_file_longer(place: tuple[Disk, Path]) -> None:
    """A size that the file does not have, and a name that is not there, are refused, and nothing has changed."""
    disk, root = place
    write(disk, root / "a", b"hello world")
    disk.truncate(root / "a", 5)
    assert disk.read(root / "a") == b"hello"
    for size in (6, -1):
        with pytest.raises(OSError):
            disk.truncate(root / "a", size)
    with pytest.raises(FileNotFoundError):
        disk.truncate(root / "missing", 0)
    assert disk.read(root / "a") == b"hello"
    with disk.append(root / "a") as file:
        disk.truncate(root / "a", 4)
        file.write(b"!")
    assert disk.read(root / "a") == b"hell!"


def test_a_memory_disk_lets_the_locks_of_dead_processes_go() -> None:
    """Who died without closing locks nobody out, as on the system."""
    disk = MemoryDisk()
    disk.append("/log").write(b"one\n")
    disk.release()
    with disk.append("/log") as file:
        file.write(b"two\n")
    assert disk.read("/log") == b"one\ntwo\n"


def test_link_makes_a_second_name_and_never_replaces_one(place: tuple[Disk, Path]) -> None:
    """Both names hold the same file; an existing one is left alone; what is not there cannot be linked."""
    disk, root = place
    write(disk, root / "a", b"1")
    write(disk, root / "b", b"2")
    disk.link(root / "a", root / "c")
    assert disk.read(root / "c") == b"1"
    with pytest.raises(FileExistsError):
        disk.link(root / "a", root / "b")
    assert disk.read(root / "b") == b"2"
    with pytest.raises(FileNotFoundError):
        disk.link(root / "none", root / "d")
    disk.unlink(root / "a")
    assert disk.read(root / "c") == b"1"
    assert disk.kind(root / "a") is None


def test_rename_replaces_a_file_and_moves_a_directory(place: tuple[Disk, Path]) -> None:
    """As POSIX: a file replaces a file, a directory an empty directory, and a full one refuses."""
    disk, root = place
    write(disk, root / "a", b"1")
    write(disk, root / "b", b"2")
    disk.rename(root / "a", root / "b")
    assert (disk.kind(root / "a"), disk.read(root / "b")) == (None, b"1")
    for name in ("full", "other", "empty"):
        disk.mkdir(root / name)
    write(disk, root / "full" / "x", b"x")
    write(disk, root / "other" / "y", b"y")
    with pytest.raises(OSError, match="not empty"):
        disk.rename(root / "full", root / "other")
    with pytest.raises(NotADirectoryError):
        disk.rename(root / "full", root / "b")
    with pytest.raises(IsADirectoryError):
        disk.rename(root / "b", root / "full")
    disk.rename(root / "full", root / "empty")
    assert disk.read(root / "empty" / "x") == b"x"
    assert disk.kind(root / "full") is None
    with pytest.raises(FileNotFoundError):
        disk.rename(root / "full", root / "z")


def test_what_is_not_there_raises_as_the_system_does(place: tuple[Disk, Path]) -> None:
    """Missing files and parents, files taken for directories, directories taken for files."""
    disk, root = place
    write(disk, root / "a", b"1")
    for missing in (disk.read, disk.unlink, disk.listdir, lambda path: list(disk.chunks(path)), disk.fsync_dir):
        with pytest.raises(FileNotFoundError):
            missing(root / "none")
    with pytest.raises(FileNotFoundError):
        disk.create(root / "none" / "x")
    with pytest.raises(FileNotFoundError):
        disk.mkdir(root / "none" / "x")
    with pytest.raises(NotADirectoryError):
        disk.listdir(root / "a")
    with pytest.raises(OSError):
        disk.read(root)


def test_mkdir_with_parents_may_exist_and_without_may_not(place: tuple[Disk, Path]) -> None:
    """parents makes what is missing and is content with what is there."""
    disk, root = place
    disk.mkdir(root / "x" / "y", parents=True)
    disk.mkdir(root / "x" / "y", parents=True)
    assert disk.kind(root / "x" / "y") == "dir"
    with pytest.raises(FileExistsError):
        disk.mkdir(root / "x")
    write(disk, root / "f", b"")
    with pytest.raises((FileExistsError, NotADirectoryError)):
        disk.mkdir(root / "f" / "g", parents=True)


def test_fsync_and_rmdir_by_name(place: tuple[Disk, Path]) -> None:
    """A file or directory can be synced by its name; a directory is removed if it is empty."""
    disk, root = place
    write(disk, root / "a", b"1")
    disk.fsync(root / "a")
    disk.fsync_dir(root)
    with pytest.raises(OSError, match="not empty"):
        disk.rmdir(root)
    disk.mkdir(root / "d")
    disk.rmdir(root / "d")
    assert disk.kind(root / "d") is None
    for missing in (disk.rmdir, disk.fsync):
        with pytest.raises(FileNotFoundError):
            missing(root / "d")


class FailingOnce(MemoryDisk):
    """Its first sync fails, as a full or broken disk's may."""

    failed = False

    def sync(self, operation: str, name: str) -> None:
        if not self.failed:
            self.failed = True
            raise OSError(5, "input/output error", name)
        super().sync(operation, name)


def test_an_fsync_that_failed_fails_for_good() -> None:
    """What the system dropped then is not made durable by a later call that succeeds (S57); other files are fine."""
    disk = FailingOnce()
    for name in ("/a", "/b"):
        disk.create(name).close()
    with pytest.raises(OSError, match="input/output error"):
        disk.fsync("/a")
    with pytest.raises(OSError, match="an earlier fsync of it failed"):
        disk.fsync("/a")
    disk.fsync("/b")
    assert disk.log[-1] == ("fsync", "/b")


def test_a_closed_file_takes_no_more(place: tuple[Disk, Path]) -> None:
    """Writing after the end is an error, closing twice is none."""
    disk, root = place
    file = disk.create(root / "a")
    file.close()
    file.close()
    with pytest.raises((OSError, ValueError)):
        file.write(b"x")


def test_kind_and_resolve_on_the_system_never_confuse_links(tmp_path: Path) -> None:
    """kind looks at the link itself; resolve follows it; a device is something else."""
    disk = SystemDisk()
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    assert disk.kind(tmp_path / "link") == "link"
    assert disk.kind(tmp_path / "real") == "dir"
    assert disk.kind(tmp_path / "pipe") == "other"
    assert disk.kind(tmp_path / "real" / "none") is None
    assert disk.resolve(tmp_path / "link" / ".." / "link" / "x") == (tmp_path / "real" / "x").resolve()


def test_a_memory_disk_logs_what_changed_and_synced() -> None:
    """The order of writes, syncs and links can be asserted."""
    disk = MemoryDisk()
    disk.mkdir("/d")
    with disk.create("/d/t") as file:
        file.write(b"x")
        file.fsync()
    disk.link("/d/t", "/d/f")
    disk.unlink("/d/t")
    disk.fsync_dir("/d")
    assert disk.log == [
        ("mkdir", "/d"),
        ("create", "/d/t"),
        ("write", "/d/t"),
        ("fsync", "/d/t"),
        ("link", "/d/f"),
        ("unlink", "/d/t"),
        ("fsync_dir", "/d"),
    ]
    assert disk.resolve("/d/../d/./f") == Path("/d/f")


def both_loops(function: Callable[[], Any]) -> None:
    for backend in ("trio", "asyncio"):
        anyio.run(function, backend=backend)


def test_on_disk_uses_a_thread_only_for_a_disk_that_may_block() -> None:
    """A system disk's call runs in a worker thread, a memory disk's in place, on both loops."""

    async def run() -> None:
        main = threading.get_ident()
        assert await on_disk(SystemDisk(), threading.get_ident) != main
        assert await on_disk(MemoryDisk(), threading.get_ident) == main
        assert await on_disk(MemoryDisk(), divmod, 7, 2) == (3, 1)
        with pytest.raises(FileNotFoundError):
            await on_disk(SystemDisk(), SystemDisk().read, "/none/of/this")

    both_loops(run)


def test_on_disk_is_never_abandoned_half_way() -> None:
    """A cancelled caller waits for the operation that is under way, so no thread writes on behind its back."""

    async def run() -> None:
        entered, released, done = anyio.Event(), threading.Event(), threading.Event()

        def slow() -> None:
            anyio.from_thread.run_sync(entered.set)
            released.wait(10)
            done.set()

        async with anyio.create_task_group() as group:
            group.start_soon(on_disk, SystemDisk(), slow)
            await entered.wait()
            group.cancel_scope.cancel()
            released.set()
        assert done.is_set()

    both_loops(run)
