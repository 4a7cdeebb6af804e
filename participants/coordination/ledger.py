"""What the coordinator knows of every rollout: the one ledger of results and the registry of executions. A pure value.

Rules (docs/reference/protocol.md sections 6, 9 and 13): a dispatch record is here before its first request leaves
(S37); a known rollout id is refused or left out, never run again (I12); the first result of a rollout stands (I68);
*saved* means that a durable copy exists outside the server (I67), and its body is kept until a durable checkpoint of
the trainer contains it (I87). A `Ledger` never changes, so reading it in one piece is taking a reference (S53).

Every change goes through the tables `ATTEMPT` and `LEDGER_ENTRY`. Where a journal is kept, a changed ledger also holds
the steps that were made since they were last written: nothing is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, Final

import attrs
from attrs import evolve, field, frozen

from statecore import Snapshot
from statecore.errors import StatecoreError
from statecore.wire import exact

from ..identity import EpisodeId
from ..journals.recorder import Made
from ..machines.attempt import (
    ATTEMPT,
    AttemptState,
    Completed,
    Dispatched,
    Parked,
    PartWritten,
    Released,
    Restored,
    Tombstoned,
    TurnedAway,
)
from ..machines.handoff import LEDGER_ENTRY, Entry, Received, Saved
from ..records._fields import copied
from ..records.records import Disposition, Json, LedgerRow, LedgerStatus, Receipt, RegistryRow, task_digest
from .recovery import Verdict
from .shared_map import SharedMap
from .trainer import Dispatch, Result
from .units import Sharing, unit_of

Effects = tuple[Any, ...]
Steps = tuple[Made, ...] | None
ROLLOUTS_TOLD: Final = 5
_STANDING: Final = frozenset({AttemptState.PARKED, AttemptState.COMMITTED})


class KnownRollout(StatecoreError):
    """A rollout id was handed out twice for two tasks, or twice in one batch (I12); nothing was registered."""

    def __init__(self, rollout_id: str, problem: str) -> None:
        super().__init__(rollout_id, problem)
        self.rollout_id = rollout_id
        self.problem = problem

    def __str__(self) -> str:
        return f"rollout {self.rollout_id!r} {self.problem}"


@frozen(kw_only=True)
class Rollout:
    """One rollout: its dispatch record, its newest attempt, and its result once there is one.

    `sent`: its `/run` is out and was not turned away. `restored`: this attempt continues a checkpoint's record.
    `ended`: why its `/run` ended without a result in this life, or "". `used`: the highest attempt that was given
    before, where a restart has gone back behind it.
    """

    dispatch: Dispatch
    digest: str
    attempt: int = 0
    execution: Snapshot[AttemptState, bool] = field(factory=ATTEMPT.start)
    entry: Snapshot[Entry, str] = field(factory=LEDGER_ENTRY.start)
    receipt: Receipt | None = None
    body: Json = None
    sent: bool = False
    restored: bool = False
    ended: str = ""
    used: int = 0
    made: Steps = field(default=None, eq=False, repr=False)

    @property
    def highest(self) -> int:
        """The highest attempt that this life has given it."""
        return max(self.used, self.attempt)

    @property
    def episode(self) -> EpisodeId:
        """Its newest execution."""
        return EpisodeId(self.dispatch.rollout_id, self.attempt)

    @property
    def has_result(self) -> bool:
        """Whether its result has arrived, saved or not."""
        return self.entry.state is not Entry.LIVE

    @property
    def may_be_cut(self) -> bool:
        """Whether servers may hold something of it that a checkpoint has to save."""
        return (self.sent or self.restored) and not self.has_result

    @property
    def result(self) -> Result | None:
        """Its result as the framework gets it: a copy, which may be changed. None while there is none."""
        if self.receipt is None:
            return None
        body, dispatch = copied(self.body), _copied(self.dispatch)
        return Result(self.receipt.rollout_id, self.receipt.attempt, body, self.receipt, dispatch)

    def after(self, *events: object) -> Rollout:
        """The rollout after these events of its attempt; Refused when one may not happen, and then nothing has."""
        execution, made = self.execution, self.made
        for event in events:
            before = execution
            execution, _ = ATTEMPT.step(before, event)
            if made is not None:
                made = (*made, Made(ATTEMPT, self.episode, before, event, execution))
        return evolve(self, execution=execution, made=made)

    def entered(self, event: Received | Saved) -> tuple[Rollout, Effects]:
        """The rollout after this event of its result, and what is owed for it."""
        entry, effects = LEDGER_ENTRY.step(self.entry, event)
        made = self.made
        if made is not None:
            made = (*made, Made(LEDGER_ENTRY, self.episode, self.entry, event, entry))
        return evolve(self, entry=entry, made=made), effects


def _copied(dispatch: Dispatch) -> Dispatch:
    return evolve(dispatch, task=copied(dispatch.task), data_position=copied(dispatch.data_position))


def _shared(rollouts: Mapping[str, Rollout]) -> SharedMap[Rollout]:
    return rollouts if isinstance(rollouts, SharedMap) else SharedMap(rollouts)


@frozen
class Ledger:
    """All rollouts that are known, by id, in the order they were registered.

    `made` are the steps since the last that were written down; None where nobody does.
    """

    rollouts: SharedMap[Rollout] = field(factory=SharedMap, converter=_shared)
    made: Steps = field(default=None, eq=False, repr=False)

    def __getitem__(self, rollout_id: str) -> Rollout:
        return self.rollouts[rollout_id]

    def __contains__(self, rollout_id: str) -> bool:
        return rollout_id in self.rollouts

    # --- dispatch

    def registered(self, dispatches: Iterable[Dispatch]) -> tuple[Ledger, tuple[EpisodeId, ...]]:
        """All of `dispatches` are known; returns the executions of those that were not known before.

        A known id with the same task is left out: a cursor that rolled back hands it out again (S40). Raises
        KnownRollout for a known id with another task, and for an id that comes twice; WireError for what is no JSON.
        """
        new: dict[str, Rollout] = {}
        seen: set[str] = set()
        for dispatch in dispatches:
            rollout_id = dispatch.rollout_id
            if rollout_id in seen:
                raise KnownRollout(rollout_id, "comes twice in one batch")
            seen.add(rollout_id)
            exact(attrs.asdict(dispatch, recurse=False))  # as a row holds it, and a request
            made: Steps = None if self.made is None else ()
            rollout = Rollout(dispatch=_copied(dispatch), digest=task_digest(dispatch.task), made=made)
            known = self.rollouts.get(rollout_id)
            if known is None:
                new[rollout_id] = rollout
            elif known.digest != rollout.digest:
                raise KnownRollout(rollout_id, "is known with another task")
        return self._changed(new), tuple(rollout.episode for rollout in new.values())

    def dispatched(self, rollout_ids: Iterable[str]) -> Ledger:
        """The requests of these leave now."""
        return self._with(rollout_ids, lambda each: evolve(each.after(Dispatched()), sent=True, ended=""))

    def turned_away(self, rollout_id: str) -> Ledger:
        """It was answered `admission_closed`: it never started and goes again under the same number (I3)."""
        return self._with([rollout_id], lambda each: evolve(_released(each).after(TurnedAway()), sent=False))

    def lost(self, rollout_id: str, reason: str) -> Ledger:
        """Its `/run` ended without a result; that is never one (I97)."""
        return self._with([rollout_id], lambda each: evolve(each, ended=reason))

    def retried(self, rollout_id: str) -> Ledger:
        """Its attempt is retired everywhere, and the next one waits to be dispatched (section 7). A result of it that
        came meanwhile stands, and then nothing changes.
        """
        rollout = self.rollouts[rollout_id]
        if rollout.has_result:
            return self
        over = rollout.after(Tombstoned())
        fresh = ATTEMPT.start()
        following = rollout.highest + 1
        return self._put(evolve(over, attempt=following, execution=fresh, sent=False, restored=False, ended=""))

    # --- checkpoint

    def candidates(self) -> tuple[Rollout, ...]:
        """Every execution that was dispatched or restored and has no result (section 6.3)."""
        return tuple(each for each in self.rollouts.values() if each.may_be_cut)

    def parked(self, rollout_ids: Iterable[str]) -> Ledger:
        """Those of these that run, or wait to be continued, stand at a boundary in a written part."""
        return self._with([each for each in rollout_ids if self.rollouts[each].may_be_cut], _written)

    def released(self) -> Ledger:
        """Their servers are open again."""
        standing = [name for name, each in self.rollouts.items() if each.execution.state in _STANDING]
        return self._with(standing, _released)

    def units(self, sharing: Sharing) -> dict[str, str | None]:
        """The unit of each rollout in a deployment that shares that much; None where it is alone."""
        return {rollout_id: unit_of(each.dispatch.group, sharing) for rollout_id, each in self.rollouts.items()}

    def registry_rows(
        self, settled: Mapping[str, tuple[Disposition, str]], sharing: Sharing = Sharing.PRIVATE
    ) -> tuple[RegistryRow, ...]:
        """One row per rollout (section 6.6); `settled` has disposition and reason, who is missing there is *queued*."""
        return tuple(
            RegistryRow(
                rollout_id=rollout_id,
                attempt=each.attempt,
                group=each.dispatch.group,
                task=each.dispatch.task,
                task_digest=each.digest,
                data_position=each.dispatch.data_position,
                target=each.dispatch.target,
                unit=unit_of(each.dispatch.group, sharing),
                disposition=disposition,
                reason=reason,
            )
            for rollout_id, each in self.rollouts.items()
            for disposition, reason in [settled.get(rollout_id, (Disposition.QUEUED, "never started"))]
        )

    def ledger_rows(self) -> tuple[LedgerRow, ...]:
        """One row per rollout; a result that has arrived is *saved* by being written here."""
        return tuple(
            LedgerRow(rollout_id=rollout_id, attempt=each.attempt, status=LedgerStatus.LIVE)
            if each.receipt is None
            else LedgerRow(
                rollout_id=rollout_id,
                attempt=each.receipt.attempt,
                status=LedgerStatus.SAVED,
                receipt=each.receipt,
                body=each.body,
            )
            for rollout_id, each in self.rollouts.items()
        )

    def live_rows(self) -> tuple[LedgerRow, ...]:
        """As `ledger_rows`, while the coordinator lives: what has arrived and has no copy elsewhere is *received*."""
        return tuple(
            row if row.receipt is None or self.is_saved(row.rollout_id) else evolve(row, status=LedgerStatus.RECEIVED)
            for row in self.ledger_rows()
        )

    # --- a restart of the servers

    def restarted(self, verdicts: Iterable[Verdict]) -> Ledger:
        """Who has no result waits under its next attempt; what was registered after these were decided is as it was.

        A result that has come since then stands; the servers know its rollout by the attempt that they were given.
        """
        decided = {each.rollout_id: each for each in verdicts if each.next_attempt is not None}

        def waiting(rollout: Rollout) -> Rollout:
            verdict = decided[rollout.dispatch.rollout_id]
            after = _waiting(rollout, verdict)
            return evolve(rollout, attempt=after.attempt, used=after.used) if rollout.has_result else after

        return self._with(decided, waiting)

    # --- results

    def received(self, receipt: Receipt, body: Json) -> tuple[Ledger, Effects]:
        """The result is in the ledger; `AcceptResult` is owed if it is the rollout's first (I68)."""
        known = self.rollouts[receipt.rollout_id]
        rollout, effects = known.entered(Received(receipt.header))
        if known.has_result:
            return self._put(rollout), effects
        if not rollout.sent:  # it came before its servers were restarted, and was being saved since
            rollout = rollout.after(Dispatched())
        completed = _released(rollout).after(Completed())
        return self._put(evolve(completed, receipt=receipt, body=body, ended="")), effects

    def standing(self, result: Result) -> Ledger:
        """The framework keeps `result` for its rollout, whichever attempt made it, and has made it durable."""
        rollout, _ = self.rollouts[result.rollout_id].entered(Saved())
        return self._put(evolve(rollout, receipt=result.receipt, body=copied(result.body)))

    def saved(self, rollout_ids: Iterable[str]) -> Ledger:
        """A durable copy of these results exists outside the server (I67)."""
        return self._with(rollout_ids, lambda each: each.entered(Saved())[0])

    def contained(self, rollout_ids: Iterable[str]) -> Ledger:
        """A durable trainer checkpoint contains these results: their bodies need not be kept here any longer (I87)."""
        known = [each for each in rollout_ids if each in self.rollouts and self.rollouts[each].body is not None]
        return self._with(known, lambda each: evolve(each, body=None))

    def is_saved(self, rollout_id: str) -> bool:
        """Whether a receipt of this rollout may be acknowledged, winner or not (S63)."""
        rollout = self.rollouts.get(rollout_id)
        return rollout is not None and rollout.entry.state is Entry.SAVED

    @property
    def finished(self) -> frozenset[str]:
        """The rollouts whose result has arrived."""
        return frozenset(name for name, each in self.rollouts.items() if each.has_result)

    @property
    def given_away(self) -> frozenset[str]:
        """The rollouts whose result only the trainer keeps, since a durable checkpoint of it contains them (I87)."""
        return frozenset(name for name, each in self.rollouts.items() if each.has_result and each.body is None)

    def contradiction(self, consumed: Set[str]) -> str:
        """Why this reading and what the trainer's state contains cannot be one checkpoint, or "" (S52, S53)."""
        if strangers := consumed - self.finished:
            return f"the trainer has consumed {_told(strangers)}, of which no result came"
        if forgotten := self.given_away - consumed:
            return f"the trainer's state lacks {_told(forgotten)}, whose results nobody else keeps"
        return ""

    # --- inside

    def _put(self, rollout: Rollout) -> Ledger:
        return self._changed({rollout.dispatch.rollout_id: rollout})

    def _with(self, rollout_ids: Iterable[str], change: Callable[[Rollout], Rollout]) -> Ledger:
        """In the order of the ids: a set has none that two processes share, and a journal would tell them apart."""
        return self._changed({each: change(self.rollouts[each]) for each in sorted(rollout_ids)})

    def _changed(self, rollouts: Mapping[str, Rollout]) -> Ledger:
        if self.made is None:
            return Ledger(self.rollouts.changed(rollouts))
        made = self.made + tuple(step for each in rollouts.values() for step in each.made or ())
        return Ledger(self.rollouts.changed({name: evolve(each, made=()) for name, each in rollouts.items()}), made)


def _told(rollout_ids: Set[str]) -> str:
    return ", ".join(sorted(rollout_ids)[:ROLLOUTS_TOLD])


def _released(rollout: Rollout) -> Rollout:
    """The rollout, running on: whoever hears of it knows that its server is open again (I65)."""
    return rollout.after(Released()) if rollout.execution.state in _STANDING else rollout


def _written(rollout: Rollout) -> Rollout:
    """The rollout with its record in a written part; a continuation that is not claimed stays what it is (I62)."""
    state = rollout.execution.state
    if state is AttemptState.RESTORED or (state is AttemptState.QUEUED and rollout.restored):
        return rollout.after(Restored(), PartWritten())
    return rollout.after(Parked(), PartWritten())


def rows_of(
    reading: Ledger,
    now: Ledger,
    settled: Mapping[str, tuple[Disposition, str]],
    sharing: Sharing = Sharing.PRIVATE,
) -> tuple[tuple[RegistryRow, ...], tuple[LedgerRow, ...]]:
    """Registry and ledger of a checkpoint: what was read, and whoever was registered since then, as queued (S40).

    The framework's data cursor may have been saved after the reading; so nobody behind it is missing.
    """
    late = Ledger({name: each for name, each in now.rollouts.items() if name not in reading})
    registry = reading.registry_rows(settled, sharing) + late.registry_rows({}, sharing)
    return registry, reading.ledger_rows() + late.ledger_rows()


def recovered(
    registry: Iterable[RegistryRow],
    ledger: Iterable[LedgerRow],
    verdicts: Iterable[Verdict],
    *,
    journaled: bool = False,
) -> Ledger:
    """The ledger after a restart: completed rollouts with their results, the others under their next attempt."""
    results = {row.rollout_id: row for row in ledger if row.receipt is not None}
    decided = {each.rollout_id: each for each in verdicts}
    empty = Ledger(made=() if journaled else None)
    return empty._changed(
        {row.rollout_id: _recovered(row, decided[row.rollout_id], results, empty.made) for row in registry}
    )


def _recovered(row: RegistryRow, verdict: Verdict, results: Mapping[str, LedgerRow], made: Steps) -> Rollout:
    dispatch = Dispatch(row.rollout_id, row.task, row.target, row.group, row.data_position)
    rollout = Rollout(dispatch=dispatch, digest=row.task_digest, attempt=verdict.attempt, made=made)
    if verdict.next_attempt is not None:
        return _waiting(rollout, verdict)
    held = results[row.rollout_id]
    assert held.receipt is not None
    completed, _ = rollout.after(Dispatched(), Completed()).entered(Received(held.receipt.header))
    if held.status is LedgerStatus.SAVED:  # what a living coordinator has received only is not saved by a restart (I67)
        completed, _ = completed.entered(Saved())
    return evolve(completed, receipt=held.receipt, body=held.body)


def _waiting(rollout: Rollout, verdict: Verdict) -> Rollout:
    """The rollout under its next attempt, which is not dispatched; nothing but why it ended before is kept."""
    assert verdict.next_attempt is not None
    waiting = Rollout(
        dispatch=rollout.dispatch,
        digest=rollout.digest,
        attempt=verdict.next_attempt,
        ended=rollout.ended,
        used=rollout.highest,
        made=rollout.made,
    )
    if verdict.disposition is Disposition.CONTINUE:
        return evolve(waiting.after(Restored()), restored=True)
    return waiting
