"""One file system that all processes share, and the view that each process has of it, through which faults come.

A failed write may have written a part; an fsync that failed fails for good, as long as its process lives (S57). What a
process does to files after its end raises, and changes nothing.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

from .._disk import CHUNK_BYTES, ExcType, File, Kind, PathLike, Syncs
from .crash_disk import CrashDisk, Survives
from .process import Process

REFUSALS: Final = {"EIO": (errno.EIO, "input/output error"), "ENOSPC": (errno.ENOSPC, "no space left on device")}

Trouble = Callable[[Process, str, str], str | None]
"""Asked before each change and sync: None, or EIO or ENOSPC. It may end the process, and then nothing is done."""


class SharedDisk:
    """The file system. `trouble` may be set at any time; `told` hears of every change and sync that was done."""

    def __init__(self) -> None:
        self.now = CrashDisk()
        self.trouble: Trouble = lambda process, operation, path: None
        self.told: Callable[[str, str, str], None] = lambda who, operation, path: None

    def view(self, process: Process) -> ProcessDisk:
        """The disk of this process."""
        return ProcessDisk(self, process)

    def lose_power(self, survives: Survives, seed: int) -> None:
        """Only what was synced is sure to be there; no process that had files open may be alive."""
        self.now = self.now.after_crash(survives, seed)


class ProcessDisk:
    """A `Disk`, as one process has it."""

    threaded = False

    def __init__(self, shared: SharedDisk, process: Process) -> None:
        self._shared, self._process = shared, process
        self._syncs = Syncs()
        self._open: list[File] = []
        process.at_end.append(self._close_all)

    # --- what changes something

    def create(self, path: PathLike) -> File:
        self._begin("create", path)
        return self._writer(path, self._shared.now.create(path))

    def append(self, path: PathLike) -> File:
        self._begin("append", path)
        return self._writer(path, self._shared.now.append(path))

    def link(self, src: PathLike, dst: PathLike) -> None:
        self._begin("link", dst)
        self._shared.now.link(src, dst)

    def rename(self, src: PathLike, dst: PathLike) -> None:
        self._begin("rename", dst)
        self._shared.now.rename(src, dst)

    def unlink(self, path: PathLike) -> None:
        self._begin("unlink", path)
        self._shared.now.unlink(path)

    def truncate(self, path: PathLike, size: int) -> None:
        self._begin("truncate", path)
        self._shared.now.truncate(path, size)

    def mkdir(self, path: PathLike, parents: bool = False) -> None:
        self._begin("mkdir", path)
        self._shared.now.mkdir(path, parents)

    def rmdir(self, path: PathLike) -> None:
        self._begin("rmdir", path)
        self._shared.now.rmdir(path)

    def fsync(self, path: PathLike) -> None:
        self.sync("fsync", path, lambda: self._shared.now.fsync(path))

    def fsync_dir(self, path: PathLike) -> None:
        self.sync("fsync_dir", path, lambda: self._shared.now.fsync_dir(path))

    def sync(self, operation: str, path: PathLike, done: Callable[[], None]) -> None:
        """What is at `path` is durable, or its fsync fails now and later."""

        def attempt() -> None:
            self._begin(operation, path)
            done()

        self._syncs.run(path, attempt)

    def written(self, file: File, path: PathLike, data: bytes) -> None:
        """`data` stands behind what `file` had, or a part of it if the write failed, or the process ended in it."""
        try:
            self._begin("write", path)
        except BaseException:
            file.write(data[: len(data) // 2])
            raise
        file.write(data)

    # --- what only looks

    def read(self, path: PathLike) -> bytes:
        return self._look().read(path)

    def chunks(self, path: PathLike, size: int = CHUNK_BYTES) -> Iterator[bytes]:
        return self._look().chunks(path, size)

    def listdir(self, path: PathLike) -> list[str]:
        return self._look().listdir(path)

    def kind(self, path: PathLike) -> Kind | None:
        return self._look().kind(path)

    def resolve(self, path: PathLike) -> Path:
        return self._shared.now.resolve(path)

    # ---

    def let_go(self, file: File) -> None:
        self._open = [each for each in self._open if each is not file]

    def _writer(self, path: PathLike, file: File) -> File:
        self._open.append(file)
        return _Writer(self, self._process, path, file)

    def _look(self) -> CrashDisk:
        self._process.check_alive()
        return self._shared.now

    def _begin(self, operation: str, path: PathLike) -> None:
        self._process.check_alive()
        refused = self._shared.trouble(self._process, operation, str(path))
        self._process.check_alive()
        if refused is not None:
            number, text = REFUSALS[refused]
            raise OSError(number, text, str(path))
        self._shared.told(self._process.name, operation, str(path))

    def _close_all(self) -> None:
        """The operating system closes what an ended process had open, and lets go of its locks."""
        for each in self._open:
            each.close()
        self._open.clear()


class _Writer:
    """A file that a process has open."""

    def __init__(self, disk: ProcessDisk, process: Process, path: PathLike, file: File) -> None:
        self._disk, self._process, self._path, self._file = disk, process, path, file

    def write(self, data: bytes) -> None:
        self._process.check_alive()
        self._disk.written(self._file, self._path, data)

    def fsync(self) -> None:
        self._disk.sync("fsync", self._path, self._file.fsync)

    def close(self) -> None:
        self._disk.let_go(self._file)
        self._file.close()

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: ExcType, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
