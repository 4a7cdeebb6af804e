"""Invariants that show in the journals of a whole job: coordinator and servers, over all lives. Pure.

What one process did and what another says of it are compared by ids, not by the order of lines: clocks of two machines
differ. What a line shows is judged; what no line shows may have been lost with its process, and is not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from .observers import COORDINATOR, OPEN, Observer
from .reading import Entry, Process

CLOCKS_APART_S: Final = 5.0
"""So far may the clocks of two machines be apart."""


class AttemptsRise(Observer):
    """A coordinator never goes back to a lower attempt of a rollout. Covers: I3, I11."""

    number = "I3"

    def __init__(self) -> None:
        self._highest: dict[tuple[Process, Any], int] = {}

    def see(self, entry: Entry) -> str | None:
        line, attempt = entry.line, entry.id("attempt")
        begins = line.machine == "attempt" and line.event in ("Dispatched", "Restored") and entry.accepted
        if not begins or entry.id("process") != COORDINATOR or not isinstance(attempt, int):
            return None
        key = (entry.process, entry.id("rollout_id"))
        highest = self._highest.get(key, attempt)
        self._highest[key] = max(highest, attempt)
        return f"attempt {attempt} of {key[1]} begins after attempt {highest}" if attempt < highest else None


class CompletedIsOver(Observer):
    """In one life of a coordinator no rollout with a result is continued, or stands to be. Covers: I65."""

    number = "I65"

    def __init__(self) -> None:
        self._completed: set[tuple[Process, Any]] = set()

    def see(self, entry: Entry) -> str | None:
        line = entry.line
        if entry.id("process") != COORDINATOR or not entry.accepted:
            return None
        key = (entry.process, entry.id("rollout_id"))
        if line.machine == "ledger_entry" and line.next != "live":
            self._completed.add(key)
        if line.machine == "attempt" and line.event in ("Parked", "PartWritten", "Restored") and key in self._completed:
            return f"{line.event} of {key[1]}, whose result is in the ledger"
        return None


class ConsumedOnce(Observer):
    """A coordinator takes one result of a rollout; every other of it finds that one. Covers: I68."""

    number = "I68"

    def __init__(self) -> None:
        self._taken: set[tuple[Process, Any]] = set()

    def see(self, entry: Entry) -> str | None:
        line = entry.line
        if line.machine != "ledger_entry" or (line.state, line.next) != ("live", "received"):
            return None
        key = (entry.process, entry.id("rollout_id"))
        if key in self._taken:
            return f"a second result of {key[1]} is taken"
        self._taken.add(key)
        return None


class OneAttemptComesBack(Observer):
    """In one epoch all that is restored of a rollout comes back under one attempt, and not the first. Covers: I54."""

    number = "I54"

    def __init__(self) -> None:
        self._attempts: dict[tuple[Any, Any], int] = {}

    def see(self, entry: Entry) -> str | None:
        line, attempt, epoch = entry.line, entry.id("attempt"), entry.id("epoch")
        restored = (line.machine, line.event) in (("resource_session", "Installed"), ("attempt", "Restored"))
        if not restored or not entry.accepted or epoch is None or not isinstance(attempt, int):
            return None
        rollout = entry.id("rollout_id")
        first = self._attempts.setdefault((epoch, rollout), attempt)
        if attempt < 1:
            return f"{rollout} comes back under attempt {attempt}: what was restored is one above what was saved"
        return None if attempt == first else f"{rollout} comes back under attempt {attempt}, elsewhere under {first}"


class SavedBeforeReleased(Observer):
    """A server lets go of a result only after its coordinator has it as saved. Covers: I67."""

    number = "I67"

    def __init__(self) -> None:
        self._released: list[Entry] = []
        self._saved: set[tuple[Any, Any]] = set()
        self._heard: dict[Any, float] = {}  # by epoch: the clock of its coordinator's newest line
        self._partial: set[Any] = set()
        self._of: dict[Process, set[Any]] = defaultdict(set)

    def lost(self, process: Process) -> None:
        self._partial.add(process)

    def see(self, entry: Entry) -> str | None:
        line, epoch = entry.line, entry.id("epoch")
        if line.machine == "handoff" and (line.state, line.next) == ("retained", "released"):
            self._released.append(entry)
        if entry.id("process") == COORDINATOR:
            self._heard[epoch] = max(line.clock, self._heard.get(epoch, line.clock))
            self._of[entry.process].add(epoch)
            if line.machine == "ledger_entry" and line.next == "saved":
                self._saved.add((entry.process, entry.id("rollout_id")))
        return None

    def end(self) -> Iterable[tuple[Entry, str]]:
        for entry in self._released:
            epoch, rollout = entry.id("epoch"), entry.id("rollout_id")
            owners = [process for process, epochs in self._of.items() if epoch in epochs]
            if not owners or any(process in self._partial for process in owners):
                continue
            saved = any((process, rollout) in self._saved for process in owners)
            if not saved and self._heard[epoch] > entry.line.clock + CLOCKS_APART_S:
                yield entry, f"the result of {rollout} is let go of, and no coordinator of epoch {epoch} has saved it"


class EpochsAreOwn(Observer):
    """No two coordinators ever work in one epoch. Covers: I96.

    A server may be brought back in the epoch of the one before it, by whoever supervises it.
    """

    number = "I96"

    def __init__(self) -> None:
        self._of: dict[Any, Process] = {}

    def see(self, entry: Entry) -> str | None:
        process, epoch = entry.process, entry.id("epoch")
        if process[0] != COORDINATOR or epoch is None:
            return None
        first = self._of.setdefault(epoch, process)
        return None if first == process else f"epoch {epoch} is that of another coordinator too, {first[1]}"


class PublishedIsWritten(Observer):
    """No checkpoint is published that a participant has let go of without having written its part. Covers: I41."""

    number = "I41"

    def __init__(self) -> None:
        self._open: dict[Process, Any] = {}
        self._left: dict[Any, list[Entry]] = defaultdict(list)
        self._published: set[Any] = set()

    def lost(self, process: Process) -> None:
        self._open.pop(process, None)

    def see(self, entry: Entry) -> str | None:
        line, named = entry.line, entry.id("checkpoint_id")
        if line.machine == "transaction" and line.next == "published":
            self._published.add(named)
        if line.machine != "participant" or not entry.accepted:
            return None
        if line.state not in OPEN and line.next == "preparing":
            self._open[entry.process] = named
        elif line.event == "PartWritten":
            self._open.pop(entry.process, None)
            self._left[named] = [each for each in self._left[named] if each.process != entry.process]
        elif line.next == "idle" and self._open.pop(entry.process, None) == named and named is not None:
            self._left[named].append(entry)
        return None

    def end(self) -> Iterable[tuple[Entry, str]]:
        for named in sorted(self._published, key=str):
            for entry in self._left[named][:1]:
                yield entry, f"{named} was let go of here unwritten, and is published"
