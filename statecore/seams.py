"""The things never reached for directly: time, randomness and files are handed in, so that they can be simulated.

Rules: only this module touches `time`, `os`, `random` and `secrets`. A `Disk` is synchronous; one that may block says
`threaded = True`, and shells then run it through `on_disk`. (The fourth seam, the HTTP transport, is the client's.)
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeVar, TypeVarTuple

import anyio
import anyio.to_thread

from ._disk import CHUNK_BYTES, Disk, ExcType, File, Kind, PathLike, Syncs
from ._memory_disk import MemoryDisk

__all__ = [
    "Clock",
    "Disk",
    "Entropy",
    "File",
    "FixedClock",
    "Kind",
    "LoopClock",
    "MemoryDisk",
    "PathLike",
    "SeededEntropy",
    "SystemClock",
    "SystemDisk",
    "SystemEntropy",
    "on_disk",
]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


# --- time


class Clock(Protocol):
    """Wall time in Unix seconds and a monotonic time in seconds from anywhere."""

    def time(self) -> float: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's clocks."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class LoopClock:
    """The event loop's clock (so it follows trio's MockClock), shown as wall time from `wall_at_start` seconds on.

    The start is when it is made, or when it is first read if it is made outside a loop.
    """

    def __init__(self, wall_at_start: float) -> None:
        self._wall_at_start = wall_at_start
        self._started: float | None = None
        try:
            self._started = anyio.current_time()
        except RuntimeError:  # no loop yet: the first reading starts it
            self._started = None

    def monotonic(self) -> float:
        return anyio.current_time()

    def time(self) -> float:
        now = anyio.current_time()
        if self._started is None:
            self._started = now
        return self._wall_at_start + (now - self._started)


class FixedClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, t: float) -> None:
        self._wall = t
        self._monotonic = 0.0

    def time(self) -> float:
        return self._wall

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Both times are `seconds` later."""
        self._wall += seconds
        self._monotonic += seconds

    def set(self, t: float) -> None:
        """The wall stands at `t`; monotonic time moves along, but never back."""
        self._monotonic += max(0.0, t - self._wall)
        self._wall = t


# --- randomness


class Entropy(Protocol):
    """Random ids and numbers."""

    def token_hex(self, nbytes: int) -> str: ...

    def random(self) -> float: ...


class SystemEntropy:
    """The operating system's randomness."""

    def token_hex(self, nbytes: int) -> str:
        return secrets.token_hex(nbytes)

    def random(self) -> float:
        return secrets.randbelow(1 << 53) / (1 << 53)


class SeededEntropy:
    """The same sequence for the same seed."""

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        self._random = random.Random(seed)

    def token_hex(self, nbytes: int) -> str:
        return self._random.randbytes(nbytes).hex()

    def random(self) -> float:
        return self._random.random()


# --- files


async def on_disk(disk: Disk, fn: Callable[[*Ts], T], *args: *Ts) -> T:
    """`fn(*args)`, in a worker thread if the disk may block; never abandoned half-way, even when cancelled."""
    if disk.threaded:
        return await anyio.to_thread.run_sync(fn, *args, abandon_on_cancel=False)
    return fn(*args)


class _SystemFile:
    def __init__(self, path: PathLike, syncs: Syncs, flags: int) -> None:
        self._path, self._syncs = path, syncs
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, 0o666)
        self._open = True

    def lock(self) -> None:
        """No other open file has this lock until this one is closed, or its process ends."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise BlockingIOError(errno.EAGAIN, "another writer has it open", str(self._path)) from error
        except OSError:
            self.close()
            raise

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def fsync(self) -> None:
        self._syncs.run(self._path, lambda: os.fsync(self._fd))

    def close(self) -> None:
        if self._open:
            self._open = False
            os.close(self._fd)

    def __enter__(self) -> _SystemFile:
        return self

    def __exit__(self, kind: ExcType, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class SystemDisk:
    """The operating system's files."""

    threaded = True

    def __init__(self) -> None:
        self._syncs = Syncs()

    def create(self, path: PathLike) -> File:
        return _SystemFile(path, self._syncs, os.O_EXCL)

    def append(self, path: PathLike) -> File:
        file = _SystemFile(path, self._syncs, os.O_APPEND)
        file.lock()
        return file

    def read(self, path: PathLike) -> bytes:
        return Path(path).read_bytes()

    def chunks(self, path: PathLike, size: int = CHUNK_BYTES) -> Iterator[bytes]:
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(size):
                yield chunk

    def link(self, src: PathLike, dst: PathLike) -> None:
        os.link(src, dst, follow_symlinks=False)

    def rename(self, src: PathLike, dst: PathLike) -> None:
        os.rename(src, dst)

    def unlink(self, path: PathLike) -> None:
        os.unlink(path)

    def truncate(self, path: PathLike, size: int) -> None:
        if not 0 <= size <= os.stat(path).st_size:
            raise OSError(errno.EINVAL, f"it does not have {size} bytes", str(path))
        os.truncate(path, size)

    def mkdir(self, path: PathLike, parents: bool = False) -> None:
        Path(path).mkdir(parents=parents, exist_ok=parents)

    def rmdir(self, path: PathLike) -> None:
        os.rmdir(path)

    def fsync(self, path: PathLike) -> None:
        self._sync(path, os.O_NOFOLLOW)

    def fsync_dir(self, path: PathLike) -> None:
        self._sync(path, os.O_DIRECTORY)

    def _sync(self, path: PathLike, flags: int) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
        try:
            self._syncs.run(path, lambda: os.fsync(fd))
        finally:
            os.close(fd)

    def listdir(self, path: PathLike) -> list[str]:
        return sorted(os.listdir(path))

    def kind(self, path: PathLike) -> Kind | None:
        try:
            mode = os.lstat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISLNK(mode):
            return "link"
        if stat.S_ISDIR(mode):
            return "dir"
        return "file" if stat.S_ISREG(mode) else "other"

    def resolve(self, path: PathLike) -> Path:
        return Path(path).resolve()
