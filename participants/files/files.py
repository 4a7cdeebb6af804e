"""Files that are there whole or not at all: a temporary name, fsync, then a link onto a name that must not exist.

Rules (docs/reference/protocol.md section 8): content is streamed and hashed while written, so memory does not grow with
it; a link never replaces a file; a temporary name begins with a dot and is never read; a file whose fsync failed is
dropped and written anew under another temporary name, never synced a second time (S57). No symbolic link is followed
below a root, and no path leaves it.

Everything is synchronous over a `Disk`; shells run it through `on_disk`.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path, PurePosixPath
from typing import Final

from attrs import frozen

from statecore.errors import StatecoreError
from statecore.seams import Disk, Entropy

from ..records.manifests import FileRef

CHUNK_BYTES: Final = 1 << 20
MAX_MANIFEST_BYTES: Final = 64 << 20
EXCERPT: Final = 200
"""So much of a path that is none is shown."""
"""A manifest beyond this is taken for damaged; it grows with servers, never with rollouts."""


class InvalidCheckpointState(StatecoreError):
    """A checkpoint directory is missing, damaged, foreign, or cannot be written: 422 `invalid_checkpoint_state`."""


class UnreadableState(InvalidCheckpointState):
    """The disk cannot read it now, which is no word on what is there: nobody takes that for damage."""


class UnknownSchema(InvalidCheckpointState):
    """Another version of this software wrote it; the message names file, version, and what to do (S43). No damage."""


class WriteStopped(StatecoreError):
    """The checkpoint ended while its part was being written; nothing was published and nothing is left (I48)."""


class StopFlag:
    """Tells a write that its checkpoint ended. Once `set()` returned, no link of that write can appear (I48)."""

    def __init__(self) -> None:
        self._stopped = False
        self._lock = threading.Lock()

    def __call__(self) -> bool:
        return self._stopped

    def set(self) -> None:
        """Every later check sees it. Waits for a link that is being made at this moment, and for nothing else."""
        with self._lock:
            self._stopped = True

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Inside, the flag cannot be set."""
        with self._lock:
            yield


@frozen
class Digest:
    """What was written or read: sha256 in hex, size in bytes."""

    sha256: str
    size_bytes: int


def never() -> bool:
    """No stop is asked for."""
    return False


def unless_stopped(stop: Callable[[], bool]) -> AbstractContextManager[None]:
    """Entered when not stopped; a `StopFlag` cannot be set before it is left. Raises WriteStopped."""
    return _checked(stop, stop.publishing() if isinstance(stop, StopFlag) else nullcontext())


@contextmanager
def _checked(stop: Callable[[], bool], held: AbstractContextManager[None]) -> Iterator[None]:
    with held:
        if stop():
            raise WriteStopped("the checkpoint ended before its part was written")
        yield


@contextmanager
def invalid_on_error(what: object) -> Iterator[None]:
    """Whatever goes wrong inside (disk, input, a value that is none) is an InvalidCheckpointState that names `what`.

    It is UnreadableState where the disk does not say what is there.
    """
    try:
        yield
    except InvalidCheckpointState:
        raise
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, StatecoreError, ValueError) as error:
        raise InvalidCheckpointState(f"{what}: {error}") from error
    except OSError as error:
        raise UnreadableState(f"{what}: {error}") from error


def megabytes(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in chunks of about 1 MiB."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= CHUNK_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


@contextmanager
def temporary(disk: Disk, path: Path, pieces: Iterable[bytes], entropy: Entropy) -> Iterator[tuple[Path, Digest]]:
    """Inside, a durable file with these bytes stands under a temporary name beside `path`; after it that name is gone.

    The content is durable before the block begins. What to do with it (link it) is the block's.
    """
    temp = path.with_name(f".{path.name}.{entropy.token_hex(8)}")
    try:
        yield temp, _write_synced(disk, temp, pieces)
    finally:
        with suppress(OSError):  # a name with a dot is never read: what stays behind harms nobody
            disk.unlink(temp)


def _write_synced(disk: Disk, path: Path, pieces: Iterable[bytes]) -> Digest:
    sha256 = hashlib.sha256()
    size_bytes = 0
    with disk.create(path) as file:
        for chunk in megabytes(pieces):
            sha256.update(chunk)
            size_bytes += len(chunk)
            file.write(chunk)
        file.fsync()
    return Digest(sha256.hexdigest(), size_bytes)


def write_once(disk: Disk, path: Path, pieces: Iterable[bytes], entropy: Entropy) -> Digest:
    """`path` holds exactly these bytes and did not exist before; the caller syncs its directory.

    Raises FileExistsError when it is there already (whatever it holds), other OSErrors as the disk does.
    """
    with temporary(disk, path, pieces, entropy) as (temp, digest):
        disk.link(temp, path)
    return digest


def hashed(disk: Disk, path: Path) -> Digest:
    """Digest and size of a file, read in chunks."""
    sha256 = hashlib.sha256()
    size_bytes = 0
    for chunk in disk.chunks(path, CHUNK_BYTES):
        sha256.update(chunk)
        size_bytes += len(chunk)
    return Digest(sha256.hexdigest(), size_bytes)


def read_small(disk: Disk, path: Path, limit_bytes: int = MAX_MANIFEST_BYTES) -> bytes:
    """The whole file, if it is a plain one and not over the limit; else InvalidCheckpointState."""
    require_file(disk, path)
    content = bytearray()
    for chunk in disk.chunks(path, CHUNK_BYTES):
        content += chunk
        if len(content) > limit_bytes:
            raise InvalidCheckpointState(f"{path} has more than {limit_bytes} bytes")
    return bytes(content)


def require_file(disk: Disk, path: Path) -> None:
    """`path` is a plain file; InvalidCheckpointState when it is missing or anything else (a link, a directory)."""
    kind = disk.kind(path)
    if kind is None:
        raise InvalidCheckpointState(f"missing file {path}")
    if kind != "file":
        raise InvalidCheckpointState(f"{path} is no plain file but a {'symbolic link' if kind == 'link' else kind}")


def require_dir(disk: Disk, path: Path) -> None:
    """`path` is a directory itself; InvalidCheckpointState when it is missing or anything else."""
    kind = disk.kind(path)
    if kind is None:
        raise InvalidCheckpointState(f"missing directory {path}")
    if kind != "dir":
        raise InvalidCheckpointState(f"{path} is no directory but a {'symbolic link' if kind == 'link' else kind}")


def check_file(disk: Disk, root: Path, ref: FileRef) -> None:
    """The file that `ref` names is there, plain, and has its size and digest (I44); else InvalidCheckpointState."""
    path = below(disk, root, ref.path)
    require_file(disk, path)
    found = hashed(disk, path)
    if found.sha256 != ref.sha256:
        raise InvalidCheckpointState(f"{path} does not match its manifest digest")
    if found.size_bytes != ref.size_bytes:
        raise InvalidCheckpointState(f"{path} has {found.size_bytes} bytes, its manifest says {ref.size_bytes}")


def below(disk: Disk, root: Path, relative: str) -> Path:
    """`root / relative`, where no step on the way is a symbolic link; InvalidCheckpointState otherwise."""
    steps = PurePosixPath(relative)
    if steps.is_absolute() or ".." in steps.parts or "\0" in relative:
        raise InvalidCheckpointState(f"{relative!r} is no path below {root}")
    path = root
    for step in steps.parts:
        path = path / step
        if disk.kind(path) == "link":
            raise InvalidCheckpointState(f"{path} is a symbolic link")
    return path


def resolve_below(disk: Disk, root: str | Path, directory: str) -> Path:
    """The directory that a peer names, as a path below our own root; it need not exist yet.

    `directory` is relative to the root or absolute below it. InvalidCheckpointState when it is elsewhere, holds `..`,
    or when a step below the root is a symbolic link, no directory or no name that the disk takes. The root itself is
    resolved at use (section 8).
    """
    asked = PurePosixPath(directory)
    base = disk.resolve(root)
    if not directory or "\0" in directory or ".." in asked.parts:
        raise InvalidCheckpointState(f"{directory!r} is no path below the checkpoint root {root}")
    if asked.is_absolute():
        above = next((each for each in (base, PurePosixPath(root)) if asked.is_relative_to(each)), None)
        if above is None:
            raise InvalidCheckpointState(f"{directory!r} is not below the checkpoint root {root}")
        asked = asked.relative_to(above)
    with invalid_on_error(f"{directory[:EXCERPT]!r} below the checkpoint root {root}"):
        path = below(disk, base, str(asked))
        for step in (path, *path.parents):
            if step == base:
                break
            if disk.kind(step) not in ("dir", None):
                raise InvalidCheckpointState(f"{step} is no directory")
    return path


def make_dirs(disk: Disk, path: Path) -> None:
    """`path` and all above it are directories, each new one durable in the one above it."""
    kind = disk.kind(path)
    if kind == "dir":
        return
    if kind is not None:
        raise InvalidCheckpointState(f"{path} is no directory")
    make_dirs(disk, path.parent)
    try:
        disk.mkdir(path)
    except FileExistsError:  # another participant made it at the same time
        require_dir(disk, path)
    disk.fsync_dir(path.parent)


def walk(disk: Disk, directory: Path) -> tuple[list[Path], list[Path]]:
    """All files and all directories below `directory` (itself last, deepest first), in a fixed order.

    InvalidCheckpointState for anything that is neither a plain file nor a directory.
    """
    files: list[Path] = []
    directories: list[Path] = []
    for name in disk.listdir(directory):
        path = directory / name
        if disk.kind(path) == "dir":
            more_files, more_directories = walk(disk, path)
            files += more_files
            directories += more_directories
        else:
            require_file(disk, path)
            files.append(path)
    return files, [*directories, directory]


def remove_tree(disk: Disk, directory: Path) -> None:
    """`directory` and everything in it is gone. Links are removed, never followed."""
    for name in disk.listdir(directory):
        path = directory / name
        if disk.kind(path) == "dir":
            remove_tree(disk, path)
        else:
            disk.unlink(path)
    disk.rmdir(directory)
