"""The servers' own journals: what each process did, one JSON line per event, appended as it happens and never changed.

Each process writes a file of its own, ``<epoch>-<server>.jsonl``; what it wrote before a SIGKILL is there. The numbers
at the demo's end are counted from these files. Every line has `event`, `server`, `epoch`, `ts` (wall time in seconds)
and, where it concerns one, `rollout` and `attempt`; see `Line` for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from statecore.errors import StatecoreError
from statecore.seams import Clock, Disk
from statecore.wire import canonical, parse, structure

from ..identity import EpisodeId

SUFFIX: Final = ".jsonl"


class Event(StrEnum):
    """`generation`: the policy answered; `step`: the game took an action; `turn`: the agent finished a turn; `score`:
    the judge answered; `result`: the environment has a rollout's result."""

    GENERATION = "generation"
    STEP = "step"
    TURN = "turn"
    SCORE = "score"
    RESULT = "result"


@frozen(kw_only=True)
class Line:
    """One line, read back. `turn` counts the turns of the rollout from 1, over all attempts.

    `revision` and `digest` are of the game's state after a step, `action` its number; `reward` of a step or a result.
    """

    event: Event
    server: str
    epoch: int
    ts: float
    rollout: str
    attempt: int | None = None
    turn: int | None = None
    revision: int | None = None
    action: int | None = None
    reward: float | None = None
    digest: str | None = None


class ServerJournal:
    """The journal of one process. Each line is one write to the file, made before the event shows to anybody else."""

    def __init__(self, disk: Disk, directory: Path, server: str, epoch: int | None, clock: Clock) -> None:
        self._server, self._epoch, self._clock = server, epoch or 0, clock
        self._file = disk.create(directory / f"{self._epoch:06d}-{server}{SUFFIX}")

    def write(self, event: Event, rollout: str, attempt: int | None = None, **more: Any) -> None:
        """One line more. A short append to a local file: it does not wait for the disk."""
        line: dict[str, Any] = {"event": event.value, "server": self._server, "epoch": self._epoch}
        line |= {"ts": self._clock.time(), "rollout": rollout, "attempt": attempt, **more}
        self._file.write(canonical(line) + b"\n")

    def about(self, event: Event, episode: EpisodeId | None, **more: Any) -> None:
        """One line more about an execution; none for a caller that named no rollout."""
        if episode is not None:
            self.write(event, episode.rollout_id, episode.attempt, **more)


class JournalReader:
    """Reads journals in a directory as they grow: each line once."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk, self._directory = disk, directory
        self._read: dict[str, int] = {}

    def new_lines(self) -> Iterator[Line]:
        """The whole lines that were not given before, file by file. StatecoreError for one that is no line."""
        for name in self._disk.listdir(self._directory):
            if not name.endswith(SUFFIX):
                continue
            content = self._disk.read(self._directory / name)
            begin, end = self._read.get(name, 0), content.rfind(b"\n") + 1
            self._read[name] = max(begin, end)
            for raw in content[begin:end].splitlines():
                yield read_line(raw, self._directory / name)


def read_line(raw: bytes, where: Path) -> Line:
    """The line; StatecoreError that names the file when it is none."""
    try:
        return structure(parse(raw), Line)
    except StatecoreError as error:
        raise StatecoreError(f"{where} holds what is no line of a journal: {error}") from error


def read_journals(disk: Disk, directory: Path) -> tuple[Line, ...]:
    """Every line of every process, by epoch and server, in the order they were written."""
    return tuple(JournalReader(disk, directory).new_lines())


def make_directory(disk: Disk, directory: Path) -> None:
    """The directory is there."""
    with suppress(FileExistsError):
        disk.mkdir(directory, parents=True)
