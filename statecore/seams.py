"""The things never reached for directly: time, randomness and files are handed in, so that they can be simulated.

Rules: only this module touches `time`, `os`, `random` and `secrets`. A `Disk` is synchronous; one that may block says
`threaded = True`, and shells then run it through `on_disk`. (The fourth seam, the HTTP transport, is the client's.)
"""

from __future__ import annotations

import errno
import os
import random
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Literal, Protocol, TypeVar, TypeVarTuple

import anyio
import anyio.to_thread

__all__ = [
    "Clock",
    "Disk",
    "Entropy",
    "File",
    "FixedClock",
    "Kind",
    "LoopClock",
    "MemoryDisk",
    "SeededEntropy",
    "SystemClock",
    "SystemDisk",
    "SystemEntropy",
    "on_disk",
]

CHUNK_BYTES = 1 << 20
PathLike = str | os.PathLike[str]
ExcType = type[BaseException] | None
Kind = Literal["file", "dir", "link", "other"]

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


class File(Protocol):
    """A file being written; leaving the context closes it."""

    def write(self, data: bytes) -> None: ...

    def fsync(self) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> File: ...

    def __exit__(self, kind: ExcType, error: BaseException | None, trace: TracebackType | None) -> None: ...


class Disk(Protocol):
    """File operations, all synchronous, all raising OSError as the operating system does.

    `create` never opens an existing name; `link` never replaces one; `kind` never follows a link and is None where
    there is nothing; `listdir` is sorted. `threaded` says that calls may block and belong into a thread. An fsync that
    failed fails for good: what the system dropped then is not written by a later one that succeeds (S57).
    """

    threaded: bool

    def create(self, path: PathLike) -> File: ...

    def read(self, path: PathLike) -> bytes: ...

    def chunks(self, path: PathLike, size: int = CHUNK_BYTES) -> Iterator[bytes]: ...

    def link(self, src: PathLike, dst: PathLike) -> None: ...

    def rename(self, src: PathLike, dst: PathLike) -> None: ...

    def unlink(self, path: PathLike) -> None: ...

    def mkdir(self, path: PathLike, parents: bool = False) -> None: ...

    def rmdir(self, path: PathLike) -> None: ...

    def fsync(self, path: PathLike) -> None: ...

    def fsync_dir(self, path: PathLike) -> None: ...

    def listdir(self, path: PathLike) -> list[str]: ...

    def kind(self, path: PathLike) -> Kind | None: ...

    def resolve(self, path: PathLike) -> Path: ...


async def on_disk(disk: Disk, fn: Callable[[*Ts], T], *args: *Ts) -> T:
    """`fn(*args)`, in a worker thread if the disk may block; never abandoned half-way, even when cancelled."""
    if disk.threaded:
        return await anyio.to_thread.run_sync(fn, *args, abandon_on_cancel=False)
    return fn(*args)


class _Syncs:
    """Remembers whose fsync failed, and never lets one of these succeed later (S57)."""

    def __init__(self) -> None:
        self._failed: set[str] = set()

    def run(self, path: PathLike, fsync: Callable[[], None]) -> None:
        name = os.path.abspath(path)
        if name in self._failed:
            raise OSError(errno.EIO, "an earlier fsync of it failed", name)
        try:
            fsync()
        except OSError:
            self._failed.add(name)
            raise


class _SystemFile:
    def __init__(self, path: PathLike, syncs: _Syncs) -> None:
        self._path, self._syncs = path, syncs
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._open = True

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
        self._syncs = _Syncs()

    def create(self, path: PathLike) -> File:
        return _SystemFile(path, self._syncs)

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


class _MemoryFile:
    def __init__(self, disk: MemoryDisk, path: str, content: bytearray) -> None:
        self._disk, self._path, self._content, self._open = disk, path, content, True

    def write(self, data: bytes) -> None:
        if not self._open:
            raise ValueError("write to closed file")
        self._disk.log.append(("write", self._path))
        self._content += data

    def fsync(self) -> None:
        self._disk.synced("fsync", self._path)

    def close(self) -> None:
        self._open = False

    def __enter__(self) -> _MemoryFile:
        return self

    def __exit__(self, kind: ExcType, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class MemoryDisk:
    """Files in memory, with the same refusals; `log` holds (operation, path) of everything that changed or synced."""

    threaded = False

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self._syncs = _Syncs()
        self._files: dict[str, bytearray] = {}
        self._dirs: set[str] = {"/"}

    def create(self, path: PathLike) -> File:
        name = self._fresh(path)
        self.log.append(("create", name))
        self._files[name] = bytearray()
        return _MemoryFile(self, name, self._files[name])

    def read(self, path: PathLike) -> bytes:
        return bytes(self._file(path))

    def chunks(self, path: PathLike, size: int = CHUNK_BYTES) -> Iterator[bytes]:
        content = self.read(path)
        for start in range(0, len(content), size):
            yield content[start : start + size]

    def link(self, src: PathLike, dst: PathLike) -> None:
        content = self._file(src)
        name = self._fresh(dst)
        self.log.append(("link", name))
        self._files[name] = content

    def rename(self, src: PathLike, dst: PathLike) -> None:
        source, target = _name(src), _name(dst)
        if source in self._dirs:
            self._rename_dir(source, target)
        else:
            content = self._file(src)
            if target in self._dirs:
                raise IsADirectoryError(f"{target} is a directory")
            self._parent(target)
            del self._files[source]
            self._files[target] = content
        self.log.append(("rename", target))

    def unlink(self, path: PathLike) -> None:
        self._file(path)
        self.log.append(("unlink", _name(path)))
        del self._files[_name(path)]

    def mkdir(self, path: PathLike, parents: bool = False) -> None:
        name = _name(path)
        if parents:
            missing = [str(p) for p in (PurePosixPath(name), *PurePosixPath(name).parents) if str(p) not in self._dirs]
            for each in reversed(missing):
                self.mkdir(each)
            return
        self._fresh(name)
        self.log.append(("mkdir", name))
        self._dirs.add(name)

    def rmdir(self, path: PathLike) -> None:
        name = self._dir(_name(path))
        if self.listdir(name):
            raise OSError(errno.ENOTEMPTY, "directory not empty", name)
        self.log.append(("rmdir", name))
        self._dirs.remove(name)

    def fsync(self, path: PathLike) -> None:
        self._file(path)
        self.synced("fsync", _name(path))

    def fsync_dir(self, path: PathLike) -> None:
        self.synced("fsync_dir", self._dir(_name(path)))

    def synced(self, operation: str, name: str) -> None:
        """Every fsync comes through here; a subclass that fails some overrides `sync`."""
        self._syncs.run(name, lambda: self.sync(operation, name))

    def sync(self, operation: str, name: str) -> None:
        """What is at `name` counts as durable."""
        self.log.append((operation, name))

    def listdir(self, path: PathLike) -> list[str]:
        name = self._dir(_name(path))
        entries = (PurePosixPath(entry) for entry in (*self._files, *self._dirs))
        return sorted(entry.name for entry in entries if str(entry.parent) == name and str(entry) != name)

    def kind(self, path: PathLike) -> Kind | None:
        name = _name(path)
        return "dir" if name in self._dirs else "file" if name in self._files else None

    def resolve(self, path: PathLike) -> Path:
        return Path(_name(path))

    def _file(self, path: PathLike) -> bytearray:
        name = _name(path)
        if name in self._dirs:
            raise IsADirectoryError(f"{name} is a directory")
        if name not in self._files:
            raise FileNotFoundError(f"{name} does not exist")
        return self._files[name]

    def _dir(self, name: str) -> str:
        if name in self._files:
            raise NotADirectoryError(f"{name} is a file")
        if name not in self._dirs:
            raise FileNotFoundError(f"{name} does not exist")
        return name

    def _parent(self, name: str) -> None:
        self._dir(str(PurePosixPath(name).parent))

    def _fresh(self, path: PathLike) -> str:
        name = _name(path)
        self._parent(name)
        if name in self._files or name in self._dirs:
            raise FileExistsError(f"{name} exists")
        return name

    def _rename_dir(self, source: str, target: str) -> None:
        """As POSIX: an empty directory is replaced, a full one or a file is not."""
        self._parent(target)
        if target in self._files:
            raise NotADirectoryError(f"{target} is a file")
        if target in self._dirs and self.listdir(target):
            raise OSError(errno.ENOTEMPTY, "directory not empty", target)
        self._dirs = {target + d[len(source) :] if _below(d, source) else d for d in self._dirs}
        self._files = {target + f[len(source) :] if _below(f, source) else f: c for f, c in self._files.items()}


def _name(path: PathLike) -> str:
    return os.path.normpath(os.path.join("/", os.fspath(path)))


def _below(name: str, directory: str) -> bool:
    return name == directory or name.startswith(directory.rstrip("/") + "/")
