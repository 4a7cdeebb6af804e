"""A disk in memory that can lose what was not synced: inodes, directories, a crash at any operation.

A file's content is durable after its fsync, a directory's entries after the directory's. What a crash leaves of the
rest is chosen by `Survives`. Directories are renamed whole, as POSIX does it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from enum import StrEnum, auto
from pathlib import Path, PurePath, PurePosixPath
from types import TracebackType
from typing import TypeAlias

from ..seams import Kind, PathLike, SeededEntropy

__all__ = ["Crash", "CrashDisk", "Fault", "Survives"]


class Crash(Exception):
    """The machine is gone; every later operation raises it too."""


class Survives(StrEnum):
    """What of the unsynced is there after a crash."""

    NOTHING = auto()
    """Only what was synced."""
    EVERYTHING = auto()
    """All that was written (a killed process)."""
    NAMES = auto()
    """All names, and of each file only what was synced: the order in which a journal without data writes."""
    SOME = auto()
    """By the seed: each directory old or new, each file cut off somewhere behind what was synced."""


class _File:
    def __init__(self, content: bytes = b"", synced: bytes = b"") -> None:
        self.content = bytearray(content)
        self.synced = synced


class _Dir:
    def __init__(self) -> None:
        self.entries: dict[str, _Node] = {}
        self.synced: dict[str, _Node] = {}


_Node: TypeAlias = _File | _Dir
Fault = Callable[[str, str], None]


class CrashDisk:
    """A `Disk`. `log` holds (operation, path) of every change and sync; `fault(operation, path)` is asked before each.

    The fault raises what it wants: an OSError (the operation did not happen), or Crash by `crash_at(n)`. A sync that
    the disk `forgets` is answered and has no effect, as if it had not been asked for.
    """

    threaded = False

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self.fault: Fault = lambda operation, path: None
        self.forgets: Callable[[str, str], bool] = lambda operation, path: False
        self._crash_at: int | None = None
        self._top = _Dir()
        self._appending: list[_File] = []

    def crash_at(self, operations: int) -> None:
        """The machine goes away instead of doing operation number `operations` from now, counted from 0."""
        self._crash_at = len(self.log) + operations

    def after_crash(self, survives: Survives, seed: int = 0) -> CrashDisk:
        """The disk as the next boot finds it."""
        dice = SeededEntropy(seed)
        left = CrashDisk()
        left._top = _survivor(self._top, survives, dice, {})
        return left

    def after_kill(self) -> CrashDisk:
        """The same disk as the next process finds it: all that was written is there, and no more of it is synced."""
        self._crash_at = None
        self._appending.clear()
        return self

    # --- Disk

    def create(self, path: PathLike) -> _Writer:
        parent, name = self._parent(path)
        if name in parent.entries:
            raise FileExistsError(errno.EEXIST, "exists", str(path))
        self._begin("create", path)
        made = parent.entries[name] = _File()
        return _Writer(self, str(path), made)

    def append(self, path: PathLike) -> _Writer:
        if self._find(path) is None:
            self.create(path)
        file = self._file(path)
        if any(each is file for each in self._appending):
            raise BlockingIOError(errno.EAGAIN, "another writer has it open", str(path))
        self._appending.append(file)
        return _Writer(self, str(path), file, self._appending)

    def read(self, path: PathLike) -> bytes:
        return bytes(self._file(path).content)

    def chunks(self, path: PathLike, size: int = 1 << 20) -> Iterator[bytes]:
        content = self.read(path)
        for start in range(0, len(content), size):
            yield content[start : start + size]

    def link(self, src: PathLike, dst: PathLike) -> None:
        node = self._file(src)
        parent, name = self._parent(dst)
        if name in parent.entries:
            raise FileExistsError(errno.EEXIST, "exists", str(dst))
        self._begin("link", dst)
        parent.entries[name] = node

    def rename(self, src: PathLike, dst: PathLike) -> None:
        source, old = self._parent(src)
        target, new = self._parent(dst)
        if old not in source.entries:
            raise FileNotFoundError(errno.ENOENT, "does not exist", str(src))
        node, there = source.entries[old], target.entries.get(new)
        if isinstance(node, _Dir) and isinstance(there, _File):
            raise NotADirectoryError(errno.ENOTDIR, "is a file", str(dst))
        if isinstance(there, _Dir) and (isinstance(node, _File) or there.entries):
            raise OSError(errno.ENOTEMPTY, "directory not empty", str(dst))
        self._begin("rename", dst)
        del source.entries[old]
        target.entries[new] = node

    def unlink(self, path: PathLike) -> None:
        self._file(path)
        parent, name = self._parent(path)
        self._begin("unlink", path)
        del parent.entries[name]

    def truncate(self, path: PathLike, size: int) -> None:
        file = self._file(path)
        if not 0 <= size <= len(file.content):
            raise OSError(errno.EINVAL, f"it does not have {size} bytes", str(path))
        self._begin("truncate", path)
        del file.content[size:]

    def mkdir(self, path: PathLike, parents: bool = False) -> None:
        above = PurePosixPath(path).parent
        if parents and self.kind(str(above)) is None:
            self.mkdir(str(above), parents=True)
        parent, name = self._parent(path)
        if name in parent.entries:
            if parents:
                return
            raise FileExistsError(errno.EEXIST, "exists", str(path))
        self._begin("mkdir", path)
        parent.entries[name] = _Dir()

    def rmdir(self, path: PathLike) -> None:
        if self._dir(path).entries:
            raise OSError(errno.ENOTEMPTY, "directory not empty", str(path))
        parent, name = self._parent(path)
        self._begin("rmdir", path)
        del parent.entries[name]

    def fsync(self, path: PathLike) -> None:
        file = self._file(path)
        if self._sync("fsync", path):
            file.synced = bytes(file.content)

    def fsync_dir(self, path: PathLike) -> None:
        directory = self._dir(path)
        if self._sync("fsync_dir", path):
            directory.synced = dict(directory.entries)

    def listdir(self, path: PathLike) -> list[str]:
        return sorted(self._dir(path).entries)

    def kind(self, path: PathLike) -> Kind | None:
        node = self._find(path)
        return None if node is None else "dir" if isinstance(node, _Dir) else "file"

    def resolve(self, path: PathLike) -> Path:
        return Path("/", *PurePosixPath(path).parts)

    # ---

    def _begin(self, operation: str, path: PathLike) -> None:
        if self._crash_at is not None and len(self.log) >= self._crash_at:
            raise Crash(f"at {operation} {path}")
        self.fault(operation, str(path))
        self.log.append((operation, str(path)))

    def _sync(self, operation: str, path: PathLike) -> bool:
        self._begin(operation, path)
        return not self.forgets(operation, str(path))

    def _find(self, path: PathLike) -> _Node | None:
        node: _Node | None = self._top
        parsed = path if isinstance(path, PurePath) else PurePosixPath(path)
        for part in parsed.parts[1:]:
            node = node.entries.get(part) if isinstance(node, _Dir) else None
        return node

    def _file(self, path: PathLike) -> _File:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "does not exist", str(path))
        if isinstance(node, _Dir):
            raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
        return node

    def _dir(self, path: PathLike) -> _Dir:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "does not exist", str(path))
        if isinstance(node, _File):
            raise NotADirectoryError(errno.ENOTDIR, "is a file", str(path))
        return node

    def _parent(self, path: PathLike) -> tuple[_Dir, str]:
        place = PurePosixPath(path)
        return self._dir(place.parent), place.name


class _Writer:
    def __init__(self, disk: CrashDisk, path: str, file: _File, writers: list[_File] | None = None) -> None:
        self._disk, self._path, self._file, self._writers = disk, path, file, writers

    def write(self, data: bytes) -> None:
        self._disk._begin("write", self._path)
        self._file.content += data

    def fsync(self) -> None:
        if self._disk._sync("fsync", self._path):
            self._file.synced = bytes(self._file.content)

    def close(self) -> None:
        if self._writers is not None:
            self._writers.remove(self._file)
            self._writers = None

    def __enter__(self) -> _Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _survivor(directory: _Dir, survives: Survives, dice: SeededEntropy, files: dict[int, _File]) -> _Dir:
    """A copy of what is left; linked names stay one file."""
    new = survives in (Survives.EVERYTHING, Survives.NAMES) or (survives is Survives.SOME and dice.random() < 0.5)
    left = _Dir()
    for name, node in (directory.entries if new else directory.synced).items():
        if isinstance(node, _Dir):
            left.entries[name] = _survivor(node, survives, dice, files)
        else:
            left.entries[name] = files.setdefault(id(node), _survivor_file(node, survives, dice))
    left.synced = dict(left.entries)
    return left


def _survivor_file(file: _File, survives: Survives, dice: SeededEntropy) -> _File:
    content, synced = bytes(file.content), file.synced
    if survives is Survives.SOME:
        longer, shorter = max(content, synced, key=len), min(len(content), len(synced))
        synced = longer[: shorter + int(dice.random() * (len(longer) - shorter + 1))]
    elif survives is Survives.EVERYTHING:
        synced = content
    return _File(synced, synced)
