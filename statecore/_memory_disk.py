"""Files in memory that behave as the operating system's do: for tests and simulations, see `seams.MemoryDisk`."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import TracebackType

from ._disk import CHUNK_BYTES, ExcType, File, Kind, PathLike, Syncs


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
        self._disk.let_go(self)

    def __enter__(self) -> _MemoryFile:
        return self

    def __exit__(self, kind: ExcType, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class MemoryDisk:
    """Files in memory, with the same refusals; `log` holds (operation, path) of everything that changed or synced."""

    threaded = False

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self._syncs = Syncs()
        self._files: dict[str, bytearray] = {}
        self._dirs: set[str] = {"/"}
        self._writers: list[tuple[bytearray, _MemoryFile]] = []

    def create(self, path: PathLike) -> File:
        name = self._fresh(path)
        self.log.append(("create", name))
        self._files[name] = bytearray()
        return _MemoryFile(self, name, self._files[name])

    def append(self, path: PathLike) -> File:
        name = _name(path)
        if name not in self._files:
            self.create(name).close()
        content = self._file(name)
        if any(each is content for each, _ in self._writers):
            raise BlockingIOError(errno.EAGAIN, "another writer has it open", name)
        file = _MemoryFile(self, name, content)
        self._writers.append((content, file))
        return file

    def let_go(self, file: _MemoryFile) -> None:
        """Its file, if it was opened to append, may be opened by the next one."""
        self._writers = [each for each in self._writers if each[1] is not file]

    def release(self) -> None:
        """The processes that had files open are gone, and their locks with them."""
        self._writers.clear()

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

    def truncate(self, path: PathLike, size: int) -> None:
        content = self._file(path)
        if not 0 <= size <= len(content):
            raise OSError(errno.EINVAL, f"it does not have {size} bytes", _name(path))
        self.log.append(("truncate", _name(path)))
        del content[size:]

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
        prefix = self._dir(_name(path)).rstrip("/") + "/"
        below = (each[len(prefix) :] for each in (*self._files, *self._dirs) if each.startswith(prefix))
        return sorted(each for each in below if each and "/" not in each)

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
        self._dir(posixpath.dirname(name))

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
    return posixpath.normpath(posixpath.join("/", path))


def _below(name: str, directory: str) -> bool:
    return name == directory or name.startswith(directory.rstrip("/") + "/")
