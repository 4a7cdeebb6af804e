"""A journal in files: one series of them per process, bounded, and never in the way of who writes it.

A thread of its own takes the lines to the disk; `write` hands them over and returns. On a disk that is slower than the
process, or full, lines are lost: they are counted, said once, and seen by whoever reads (their numbers are missing).
Nothing is synced: a journal outlives its process, but not the machine.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from pathlib import Path
from typing import Any, Final

from statecore.journal import Journal
from statecore.seams import Clock, Disk, File

log = logging.getLogger("statecore.journal")

FILE_BYTES: Final = 16 << 20
FILES_KEPT: Final = 8
WAITING_BYTES: Final = 8 << 20
"""So much may wait for the disk; a line beyond it is lost."""
CLOSE_TIMEOUT_S: Final = 5.0
SUFFIX: Final = ".jsonl"


def file_name(series: str, number: int) -> str:
    """The name of file `number` (from 1) of a series."""
    return f"{series}.{number:06d}{SUFFIX}"


class JournalFiles:
    """The files of one series in `directory`, the newest `files_kept` of them; each ends with a whole line.

    `lost` counts the lines that are in no file; `problem` is what the disk said last, or "".
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        series: str,
        *,
        file_bytes: int = FILE_BYTES,
        files_kept: int = FILES_KEPT,
        waiting_bytes: int = WAITING_BYTES,
    ) -> None:
        self.lost = 0
        self.problem = ""
        self._disk = disk
        self._directory = directory
        self._series = series
        self._file_bytes = file_bytes
        self._files_kept = files_kept
        self._waiting_bytes = waiting_bytes
        self._file: File | None = None
        self._number = 0
        self._size = 0
        self._waiting: deque[bytes] = deque()
        self._waits = 0  # bytes in `_waiting`
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def write(self, line: bytes) -> None:
        """The line will be in a file, or is counted as lost; never blocks on the disk, never raises."""
        if not self._disk.threaded:
            self._put([line])
            return
        with self._changed:
            problem = self._why_not(len(line))
            if not problem:
                self._waiting.append(line)
                self._waits += len(line)
                self._changed.notify()
        if problem:
            self._lose(1, problem)

    def _why_not(self, size: int) -> str:
        """Why a line cannot wait for the disk, or "": then somebody takes it there."""
        if self._closing:
            return "the journal is closed"
        if self._waits + size > self._waiting_bytes:
            return "the disk is slower than the journal grows"
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=f"journal {self._series}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                return f"no thread can be started for it: {error}"
            self._thread = thread
        return ""

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """What waited is in the files, unless the disk takes longer than that."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)
        else:
            self._close_file()

    # --- in the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                lines, self._waiting, self._waits = list(self._waiting), deque(), 0
                last = self._closing
            self._put(lines)
            if last:
                self._close_file()
                return

    def _put(self, lines: list[bytes]) -> None:
        """The lines are in files, each whole; those that the disk did not take are lost."""
        done = 0
        try:
            while done < len(lines):
                fitting = self._fitting(lines, done)
                self._append(b"".join(lines[done:fitting]))
                done = fitting
        except OSError as error:
            self._lose(len(lines) - done, str(error))
            self._close_file()  # its end may be torn: the next line begins another

    def _fitting(self, lines: list[bytes], start: int) -> int:
        """How far the lines from `start` on fit into one file: the present one, or the next; at least one line."""
        size = self._size if self._file is not None else self._file_bytes
        if size + len(lines[start]) > self._file_bytes:
            self._close_file()
            size = 0
        end = start
        while end < len(lines) and (end == start or size + len(lines[end]) <= self._file_bytes):
            size += len(lines[end])
            end += 1
        return end

    def _append(self, data: bytes) -> None:
        if self._file is None:
            self._begin(data)
        else:
            self._file.write(data)
        self._size += len(data)

    def _begin(self, data: bytes) -> None:
        """Another file, with these lines in it; only then is the oldest one gone."""
        if self._number == 0:
            self._disk.mkdir(self._directory, parents=True)
        path = self._directory / file_name(self._series, self._number + 1)
        file = self._disk.create(path)
        try:
            file.write(data)
        except OSError:
            file.close()
            self._disk.unlink(path)  # a full disk does not fill with beginnings
            raise
        self._file, self._size, self._number = file, 0, self._number + 1
        oldest = self._directory / file_name(self._series, self._number - self._files_kept)
        if self._number > self._files_kept and self._disk.kind(oldest) is not None:
            self._disk.unlink(oldest)

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _lose(self, lines: int, problem: str) -> None:
        with self._changed:
            is_first = not self.lost
            self.lost += lines
            self.problem = problem
        if is_first:  # said by whoever loses it, and nobody waits meanwhile
            log.error("%s: lines of the journal are lost: %s", self._directory / self._series, problem)


class FileJournal(Journal):
    """A journal whose lines go to files; see `JournalFiles`."""

    def __init__(self, disk: Disk, clock: Clock, directory: Path, series: str, **bounds: int) -> None:
        self.files = JournalFiles(disk, directory, series, **bounds)
        super().__init__(self.files.write, clock)

    def state(self) -> dict[str, Any]:
        return {"lines": self.written, "lost": self.files.lost, "problem": self.files.problem}

    def close(self) -> None:
        self.files.close()
