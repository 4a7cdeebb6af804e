"""Where results go: a file with one result in a line, each rollout once, whatever dies when.

A row is what the server answered, with the keys that Gym's own collector adds and one of ours, `_statecore`, from which
the answer and its receipt can be had back exactly. An episode that its environment server gave up goes to a file beside
it, ``<stem>_failures.jsonl``, as Gym has it. Create-only by rollout id (protocol.md section 9; I68, S63):
a row is durable before `keep` returns, and what stands already is returned in its place. One collector writes at a
time; what a crash left of a line is taken away at the next start, before anything is written behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from attrs import define, field, frozen

from statecore.errors import StatecoreError, WireError, WireErrors
from statecore.seams import Disk, File
from statecore.wire import encode, parse, structure, unstructure

from ..coordination.trainer import Dispatch, Result
from ..records.records import Json, Receipt, task_digest
from .tasks import AGENT_REF, ATTEMPT_INDEX, ENVIRONMENT_SERVER, ROLLOUT_ID, ROLLOUT_INDEX, TASK_ID, TASK_INDEX

OURS: Final = "_statecore"
FAILURE_CLASS: Final = "_ng_failure_class"
FAILURE_TERMINAL: Final = "_ng_failure_terminal"
FAILURE_MESSAGE: Final = "_ng_failure_message"
ENVIRONMENT_SERVER_FAILED: Final = "environment_server_failed"


class OutputError(StatecoreError):
    """The results cannot be written there; the message says why, and what to do. Nothing has run."""


# --- rows: pure


@frozen(kw_only=True)
class Ours:
    """What a row keeps so that the answer can be had back: its receipt, its task's digest, and how it was laid out.

    `inside` is the key of the answer whose value the row shows ("" for the answer itself), `around` the rest of that
    answer; `added` are the keys that are not the answer's, `covered` its own values of such keys.
    """

    receipt: Receipt
    task: str
    inside: str = ""
    around: Mapping[str, Json] | None = None
    added: tuple[str, ...] = ()
    covered: Mapping[str, Json] = field(factory=dict)


def to_row(result: Result) -> dict[str, Json]:
    """The row of a result."""
    shown, inside, around = _laid_out(result.body)
    task = result.dispatch.task
    added = _added(result, task if isinstance(task, Mapping) else {})
    if isinstance(around, Mapping) and "task_id" in around:
        added[TASK_ID] = around["task_id"]
    if inside == "failure":
        added |= {
            FAILURE_CLASS: ENVIRONMENT_SERVER_FAILED,
            FAILURE_TERMINAL: bool(shown.get("terminal", False)),
            FAILURE_MESSAGE: shown.get("failure_reason"),
        }
    ours = Ours(
        receipt=result.receipt,
        task=task_digest(task),
        inside=inside,
        around=around,
        added=tuple(added),
        covered={key: shown[key] for key in (*added, OURS) if key in shown},
    )
    return {**shown, **added, OURS: unstructure(ours)}


def from_row(row: Mapping[str, Any]) -> tuple[Receipt, Json]:
    """The receipt and the answer, as they were. WireError or WireErrors when this is no row of ours."""
    ours = structure(row.get(OURS), Ours)
    shown = {key: value for key, value in row.items() if key not in ours.added and key != OURS} | dict(ours.covered)
    if not ours.inside:
        return ours.receipt, shown
    if ours.around is None:
        return ours.receipt, shown[ours.inside]
    return ours.receipt, {**ours.around, ours.inside: shown}


def is_failure(row: Mapping[str, Any]) -> bool:
    """Whether it belongs into the file of failures."""
    return FAILURE_CLASS in row


def an_object(value: Json) -> dict[str, Json]:
    """The value, if it is an object; WireError else."""
    if not isinstance(value, dict):
        raise WireError("$", "is no object")
    return value


def _laid_out(body: Json) -> tuple[Mapping[str, Json], str, Mapping[str, Json] | None]:
    """What the row shows of the answer, the key that it stands under, and what is around it."""
    if not isinstance(body, Mapping):
        return {"result": body}, "result", None
    if isinstance(body.get("episode_id"), Mapping):
        for inside in ("failure", "result"):
            if isinstance(shown := body.get(inside), Mapping):
                return shown, inside, {key: value for key, value in body.items() if key != inside}
    return body, "", None


def _added(result: Result, task: Mapping[str, Any]) -> dict[str, Json]:
    at = result.dispatch.data_position
    position = at if isinstance(at, Mapping) else {}
    added: dict[str, Json] = {
        TASK_INDEX: position.get("task"),
        ROLLOUT_INDEX: position.get("repeat"),
        ROLLOUT_ID: result.rollout_id,
        ATTEMPT_INDEX: result.attempt,
    }
    if AGENT_REF in task:
        added[AGENT_REF] = task[AGENT_REF]
    if TASK_ID in task or "task_input" in task or ENVIRONMENT_SERVER in task:
        added[ENVIRONMENT_SERVER] = result.dispatch.target
    return added


# --- the files


@define(eq=False)
class OutputFile:
    """The results at `path`, and the failures beside it. Blocks on the disk; `opened` first, then `keep`, then `close`.

    `standing` has the rollouts with a row, each with its task's digest; `torn` counts lines that a crash had cut off.
    """

    disk: Disk
    path: Path
    standing: dict[str, str] = field(factory=dict)
    torn: int = 0
    _lock: File | None = None
    _files: dict[Path, File] = field(factory=dict)
    _whole: dict[Path, int] = field(factory=dict)

    @property
    def failures(self) -> Path:
        """Where episodes go that their environment server gave up."""
        return self.path.with_name(f"{self.path.stem}_failures{self.path.suffix}")

    @property
    def lock(self) -> Path:
        """Held open by the one collector that writes."""
        return self.path.with_name(f"{self.path.name}.lock")

    def open(self) -> OutputFile:
        """Nobody else writes there, each line is whole, and `standing` is what they say.

        OutputError when another collector writes, when a line is not ours or comes twice, or a file is none.
        """
        try:
            self._lock = self.disk.append(self.lock)
        except BlockingIOError as error:
            raise OutputError(f"another collector writes to {self.path}; end it first") from error
        except OSError as error:
            raise OutputError(f"{self.path}: {error}") from error
        try:
            for path in (self.path, self.failures):
                self._take(path)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Another collector may write."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def keep(self, result: Result) -> Result:
        """The row of `result` is durable, or of what stood for its rollout already; returns which. OSError else."""
        if result.rollout_id in self.standing:
            return self._stands(result.dispatch)
        row = to_row(result)
        line = encode(row) + b"\n"
        path = self.failures if is_failure(row) else self.path
        file = self._writer(path)
        whole = self._whole.setdefault(path, 0)
        self.disk.truncate(path, whole)  # what a write before this one left that failed half-way
        try:
            file.write(line)
            file.fsync()
        except OSError:  # whoever opens it next would take a whole line for a durable one
            self.disk.truncate(path, whole)
            raise
        self._whole[path] = whole + len(line)
        self.standing[result.rollout_id] = task_digest(result.dispatch.task)
        return result

    def _writer(self, path: Path) -> File:
        if path not in self._files:
            file = self.disk.append(path)
            try:
                self.disk.fsync_dir(path.parent)
            except OSError:  # its name may be gone after a crash: it is asked for again before anything is in it
                file.close()
                raise
            self._files[path] = file
        return self._files[path]

    def _stands(self, dispatch: Dispatch) -> Result:
        for path in (self.path, self.failures):
            for row in _rows_that_hold(self.disk, path, encode(dispatch.rollout_id)):
                if row.get(ROLLOUT_ID) == dispatch.rollout_id:
                    receipt, body = from_row(row)
                    return Result(dispatch.rollout_id, receipt.attempt, body, receipt, dispatch)
        raise OSError(f"the row of {dispatch.rollout_id} is gone from {self.path}")

    def _take(self, path: Path) -> None:
        kind = self.disk.kind(path)
        if kind is None:
            return
        if kind not in ("file", "link"):
            raise OutputError(f"{path} is no file")
        size, whole = _sizes(self.disk, path)
        if whole < size:
            self.disk.truncate(path, whole)
            self.torn += 1
        real = self.disk.resolve(path)  # it may be a link
        self.disk.fsync(real)  # a line that a killed process had not synced stands from here on
        self.disk.fsync_dir(real.parent)
        self._whole[path] = whole
        for number, line in enumerate(_whole_lines(self.disk, path), start=1):
            try:
                ours = structure(an_object(parse(line)).get(OURS), Ours)
            except (WireError, WireErrors) as error:
                problem = f"{path}, line {number} was not written here ({error}); name another output"
                raise OutputError(problem) from error
            rollout_id = ours.receipt.rollout_id
            if rollout_id in self.standing:
                raise OutputError(f"{path}, line {number}: rollout {rollout_id} is there twice")
            self.standing[rollout_id] = ours.task


def _rows_that_hold(disk: Disk, path: Path, text: bytes) -> Iterator[dict[str, Any]]:
    """The rows with `text` somewhere in them; no other is read as JSON, which takes its time."""
    if disk.kind(path) is not None:
        yield from (parse(line) for line in _whole_lines(disk, path) if text in line)


def _whole_lines(disk: Disk, path: Path) -> Iterator[bytes]:
    rest = b""
    for chunk in disk.chunks(path):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())


def _sizes(disk: Disk, path: Path) -> tuple[int, int]:
    """How many bytes there are, and how many of them are whole lines."""
    size = whole = 0
    for chunk in disk.chunks(path):
        if (last := chunk.rfind(b"\n")) >= 0:
            whole = size + last + 1
        size += len(chunk)
    return size, whole


def standing_elsewhere(standing: Mapping[str, str], dispatch: Dispatch) -> bool:
    """Whether the row that stands for this rollout id is of another task: then the file is of another input."""
    known = standing.get(dispatch.rollout_id)
    return known is not None and known != task_digest(dispatch.task)


__all__ = ["Ours", "OutputError", "OutputFile", "from_row", "is_failure", "standing_elsewhere", "to_row"]
