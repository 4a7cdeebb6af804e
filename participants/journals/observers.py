"""Invariants that show in the journal of one server: each a small observer that sees line after line. Pure.

`see` returns what is wrong with a line, or None. Where lines of a process are missing, `lost` is called: from there on
an observer knows nothing of that process but what later lines show, and it judges nothing that it would have to know.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, ClassVar, Final

from ..machines.control import Phase
from ..machines.gate import GateState
from .reading import Entry, Process

COORDINATOR: Final = "coordinator"
"""The process that a coordinator's lines name."""
OPEN: Final = frozenset({Phase.PREPARING, Phase.PREPARED, Phase.COMMITTED, Phase.RESTORED})
STILL: Final = frozenset({Phase.PREPARED, Phase.COMMITTED})
FOR_THE_OPEN_ONE: Final = frozenset(
    {"PrepareRequested", "ReadinessReached", "CommitRequested", "PartWritten", "RestoreRequested", "RenewRequested"}
)
FOR_A_LIVING_ONE: Final = FOR_THE_OPEN_ONE | {"PartInstalled"}
OPENS: Final = frozenset({"ResumeRequested", "LeaseExpired", "PrepareFailed", "RestoreFailed", "Broke"})
STANDING: Final = frozenset({"parked", "committed", "holding"})
MAY_LEAVE: Final = frozenset({"Tombstoned", "Retired"})
ACTS: Final = frozenset({"Mutated", "Seeded", "Dispatched", "WaitBegan", "ReplayBegan", "StepEnded", "VerifyStarted"})


BEGINS: Final = frozenset({("resource_session", "Seeded"), ("attempt", "Dispatched"), ("resource_session", "Used")})


class Observer:
    """One invariant, by its number."""

    number: ClassVar[str]

    def see(self, entry: Entry) -> str | None:
        """What is wrong with this line, or None."""
        raise NotImplementedError

    def lost(self, process: Process) -> None:
        """Lines of this process are missing here."""

    def end(self) -> Iterable[tuple[Entry, str]]:
        """What shows only when all lines have been seen: the line, and what is wrong with it."""
        return ()


class OneCheckpoint(Observer):
    """At most one checkpoint is open at a participant. Covers: I13."""

    number = "I13"

    def __init__(self) -> None:
        self._open: dict[Process, Any] = {}

    def lost(self, process: Process) -> None:
        self._open.pop(process, None)

    def see(self, entry: Entry) -> str | None:
        line = entry.line
        if line.machine != "participant" or not entry.accepted:
            return None
        named, now = entry.id("checkpoint_id"), self._open.get(entry.process)
        if line.next not in OPEN:
            self._open.pop(entry.process, None)
        elif line.state not in OPEN:
            self._open[entry.process] = named
        if line.state in OPEN and now is not None and line.event in FOR_THE_OPEN_ONE and named != now:
            return f"{line.event} for {named} is accepted while {now} is open"
        return None


class EndedStaysEnded(Observer):
    """A checkpoint that was resumed, or whose lease ended, never closes, writes or opens anything again.

    Covers: I14.
    """

    number = "I14"

    def __init__(self) -> None:
        self._ended: dict[Process, set[Any]] = defaultdict(set)

    def see(self, entry: Entry) -> str | None:
        line = entry.line
        if line.machine != "participant" or not entry.accepted:
            return None
        named, ended = entry.id("checkpoint_id"), self._ended[entry.process]
        if line.event in FOR_A_LIVING_ONE and named in ended:
            return f"{line.event} for {named} is accepted, which has ended here"
        if line.event in ("ResumeRequested", "LeaseExpired"):
            ended.add(named)
        return None


class GateAgrees(Observer):
    """The gate is closed while a checkpoint is open and while a restore is read, and open otherwise. Covers: I16."""

    number = "I16"

    def __init__(self) -> None:
        self._gate: dict[Process, str] = {}
        self._reading: dict[Process, bool] = {}

    def lost(self, process: Process) -> None:
        self._gate.pop(process, None)
        self._reading.pop(process, None)

    def see(self, entry: Entry) -> str | None:
        line, process = entry.line, entry.process
        if line.machine == "gate":
            self._gate[process] = line.next
        if line.machine != "participant":
            return None
        problem = self._disagreement(entry, self._gate.get(process))
        if entry.accepted:
            self._note(entry)
        return problem

    def _note(self, entry: Entry) -> None:
        """Whether a restore is read after this line. Before the first such line it may be either."""
        event = entry.line.event
        if event == "RestoreRequested" and entry.line.state == entry.line.next and entry.line.state not in OPEN:
            self._reading[entry.process] = True
        elif event in ("PartInstalled", "RestoreFailed", "ResumeRequested", "LeaseExpired", "PrepareRequested"):
            self._reading[entry.process] = False

    def _disagreement(self, entry: Entry, gate: str | None) -> str | None:
        line = entry.line
        if gate is None:
            return None
        if line.event == "ReadinessReached" and line.state == Phase.PREPARING and entry.accepted:
            return None if gate == GateState.QUIET else f"it says that nothing moves while its gate is {gate}"
        if line.state in OPEN | {Phase.BORN}:
            return f"its gate is open while it is {line.state}" if gate == GateState.OPEN else None
        if line.state == Phase.IDLE and self._reading.get(entry.process) is False and gate != GateState.OPEN:
            return f"its gate is {gate} while no checkpoint is open"
        return None


class OnlyResumeOpens(Observer):
    """What closed a server stays closed until a resume, the end of the lease, or the failure of what closed it.

    Covers: I17.
    """

    number = "I17"

    def __init__(self) -> None:
        self._last: dict[Process, str] = {}

    def lost(self, process: Process) -> None:
        self._last.pop(process, None)

    def see(self, entry: Entry) -> str | None:
        line, process = entry.line, entry.process
        if line.machine == "participant" and entry.accepted:
            self._last[process] = line.event
        if line.machine == "gate" and line.event == "OpenRequested" and line.state != GateState.OPEN:
            last = self._last.get(process)
            if last is not None and last not in OPENS:
                return f"its gate opens after {last}"
        return None


class StandsStill(Observer):
    """What stands when a server is prepared stands until it opens: nothing of it is past the cut. Covers: I24.

    One that starts over is in no checkpoint, and moves as it likes.
    """

    number = "I24"

    def __init__(self) -> None:
        self._phase: dict[Process, str] = {}

    def lost(self, process: Process) -> None:
        self._phase.pop(process, None)

    def see(self, entry: Entry) -> str | None:
        line, process = entry.line, entry.process
        if line.machine == "participant":
            self._phase[process] = line.next
            return None
        if line.machine not in ("attempt", "episode_step") or self._phase.get(process) not in STILL:
            return None
        moved = entry.accepted and line.state in STANDING and line.next not in STANDING
        if moved and line.event not in MAY_LEAVE and not entry.id("restart"):
            return f"what stood as {line.state} moves on while its server is {self._phase[process]}"
        return None


class OldAttemptsAreStill(Observer):
    """Once a newer attempt has acted at a server, none below it begins or changes anything there. Covers: I6."""

    number = "I6"

    def __init__(self) -> None:
        self._highest: dict[tuple[Process, Any], int] = {}

    def see(self, entry: Entry) -> str | None:
        line = entry.line
        rollout, attempt = entry.id("rollout_id"), entry.id("attempt")
        acts = line.event in ACTS and line.machine in ("attempt", "resource_session", "episode_step") and entry.accepted
        if not acts or entry.id("process") == COORDINATOR or rollout is None or not isinstance(attempt, int):
            return None
        key = (entry.process, rollout)
        highest = self._highest.get(key, -1)
        self._highest[key] = max(highest, attempt)
        if attempt < highest:
            return f"attempt {attempt} of {rollout} acts ({line.event}) after attempt {highest} has"
        return None


class RetiredStaysOver(Observer):
    """What was retired at a server never begins there again, until its rollout is forgotten. Covers: I8.

    A call that retires nothing forgets something, and a line does not say what: then all marks of the process are.
    """

    number = "I8"

    def __init__(self) -> None:
        self._marks: dict[Process, dict[Any, int]] = defaultdict(dict)

    def lost(self, process: Process) -> None:
        self._marks.pop(process, None)  # something may have been forgotten there

    def see(self, entry: Entry) -> str | None:
        line, marks = entry.line, self._marks[entry.process]
        if line.machine == "participant" and line.event == "RetireRequested" and entry.accepted:
            if not entry.retired:
                marks.clear()
            for rollout, attempt in entry.retired:
                marks[rollout] = max(marks.get(rollout, -1), attempt)
            return None
        begins = (line.machine, line.event) in BEGINS and entry.accepted and line.state != line.next
        rollout, attempt = entry.id("rollout_id"), entry.id("attempt")
        if not begins or entry.id("process") == COORDINATOR or not isinstance(attempt, int):
            return None
        mark = marks.get(rollout)
        if mark is None or attempt > mark:
            return None
        return f"attempt {attempt} of {rollout} begins ({line.event}) after {mark} was retired"


class BoundariesRise(Observer):
    """The boundary at which a session stands never goes back. Covers: I33."""

    number = "I33"

    def __init__(self) -> None:
        self._highest: dict[tuple[Any, ...], int] = {}

    def see(self, entry: Entry) -> str | None:
        boundary = entry.id("boundary")
        if entry.line.machine != "attempt" or not isinstance(boundary, int):
            return None
        key = (*entry.process, entry.id("rollout_id"), entry.id("attempt"), entry.id("session"))
        if entry.line.state == "queued":  # begun anew: what it was before is gone
            self._highest.pop(key, None)
        highest = self._highest.get(key, boundary)
        self._highest[key] = boundary
        return f"its boundary is {boundary} after it was {highest}" if boundary < highest else None


class RevisionByOne(Observer):
    """A session's revision rises by one with each mutation that is applied, and by nothing else. Covers: I36.

    Each line tells the revision before its step, so that a line judges the one before it.
    """

    number = "I36"

    def __init__(self) -> None:
        self._before: dict[tuple[Any, ...], tuple[int, Entry]] = {}
        self._applied: dict[tuple[Any, ...], set[Any]] = defaultdict(set)
        self._older: set[tuple[Any, ...]] = set()  # sessions that may have applied what no line here shows
        self._seeded: set[tuple[Any, ...]] = set()  # sessions whose lines are all here
        self._partial: set[Process] = set()

    def lost(self, process: Process) -> None:
        self._partial.add(process)
        for known in [key for key in (*self._before, *self._seeded) if key[:2] == process]:
            self._before.pop(known, None)
            self._seeded.discard(known)
            self._older.add(known)

    def see(self, entry: Entry) -> str | None:
        line, revision = entry.line, entry.id("revision")
        if line.machine != "resource_session":
            return None
        key = (*entry.process, entry.id("session"))
        if not isinstance(revision, int):  # it begins
            (self._older if line.event == "Installed" else self._seeded).add(key)
            return None
        before = self._before.get(key)
        if before is None and entry.process in self._partial and key not in self._seeded:
            self._older.add(key)
        self._before[key] = (revision, entry)
        return None if before is None else self._judged(key, revision - before[0], before[1], revision)

    def _judged(self, key: tuple[Any, ...], rose: int, last: Entry, revision: int) -> str | None:
        """What is wrong with how far the revision rose by the step of the line before."""
        operation = last.id("operation")
        mutated = last.line.event == "Mutated" and last.accepted
        repeated = operation in self._applied[key] or key in self._older
        if mutated:
            self._applied[key].add(operation)
        if rose == int(mutated) or (rose == 0 and repeated):
            return None
        said = f"refused with {last.line.refused}" if last.line.refused else "accepted"
        return f"its revision is {revision}, {rose:+d} by {last.line.event}, which was {said}"
