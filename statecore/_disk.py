"""What a disk is to this project: the protocol of `seams`, and the rule about failed fsyncs that every disk keeps."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from types import TracebackType
from typing import Literal, Protocol

CHUNK_BYTES = 1 << 20
PathLike = str | PurePath
ExcType = type[BaseException] | None
Kind = Literal["file", "dir", "link", "other"]


class File(Protocol):
    """A file being written; leaving the context closes it."""

    def write(self, data: bytes) -> None: ...

    def fsync(self) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> File: ...

    def __exit__(self, kind: ExcType, error: BaseException | None, trace: TracebackType | None) -> None: ...


class Disk(Protocol):
    """File operations, all synchronous, all raising OSError as the operating system does.

    `create` never opens an existing name; `append` writes behind what is there, makes the file if it is missing, and
    lets one writer at a time in: while an earlier one is open, in this process or another, it raises BlockingIOError;
    `truncate` leaves the first `size` bytes, and refuses more than there are; `link` never replaces a name; `kind`
    never follows a link and is None where there is nothing; `listdir` is sorted. `threaded` says that calls may block
    and belong into a thread. An fsync that failed fails for good: what the system dropped then is not written by a
    later one that succeeds (S57).
    """

    threaded: bool

    def create(self, path: PathLike) -> File: ...

    def append(self, path: PathLike) -> File: ...

    def read(self, path: PathLike) -> bytes: ...

    def chunks(self, path: PathLike, size: int = CHUNK_BYTES) -> Iterator[bytes]: ...

    def link(self, src: PathLike, dst: PathLike) -> None: ...

    def rename(self, src: PathLike, dst: PathLike) -> None: ...

    def unlink(self, path: PathLike) -> None: ...

    def truncate(self, path: PathLike, size: int) -> None: ...

    def mkdir(self, path: PathLike, parents: bool = False) -> None: ...

    def rmdir(self, path: PathLike) -> None: ...

    def fsync(self, path: PathLike) -> None: ...

    def fsync_dir(self, path: PathLike) -> None: ...

    def listdir(self, path: PathLike) -> list[str]: ...

    def kind(self, path: PathLike) -> Kind | None: ...

    def resolve(self, path: PathLike) -> Path: ...


class Syncs:
    """Remembers whose fsync failed, and never lets one of these succeed later (S57)."""

    def __init__(self) -> None:
        self._failed: set[str] = set()

    def run(self, path: PathLike, fsync: Callable[[], None]) -> None:
        name = posixpath.abspath(path)
        if name in self._failed:
            raise OSError(errno.EIO, "an earlier fsync of it failed", name)
        try:
            fsync()
        except OSError:
            self._failed.add(name)
            raise
