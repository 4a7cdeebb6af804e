"""What becomes of each rollout: which parts agree, what a checkpoint says of it, what a restart does with it. Pure.

Rules (docs/reference/protocol.md sections 6 and 7): the registry decides, records alone never do; first match wins:
reject the checkpoint, completed, continue, fresh. A rollout is continued only if all of its parts are shown to agree
(agreement.py); what cannot be shown starts fresh, with the reason. No rollout is both completed and resumable (I65).
Two users: the coordinator before it publishes (`settle`), and a restart (`plan_restore`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from attrs import evolve, field, frozen

from statecore.errors import StatecoreError, WireError, WireErrors

from ..identity import EpisodeId
from ..records.records import Disposition, LedgerRow, LedgerStatus, Part, RegistryRow
from .agreement import NO_PIECES, Agreed, Pieces, agree, gather, turns_of
from .units import torn

PLAN_REASONS_SHOWN = 10


class CheckpointRejected(StatecoreError):
    """This checkpoint is not used, not even in part; `problems` say why, one line each (section 7, *reject*)."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        shown = "; ".join(self.problems[:PLAN_REASONS_SHOWN])
        more = len(self.problems) - PLAN_REASONS_SHOWN
        return f"the checkpoint is rejected: {shown}" + (f"; and {more} more" if more > 0 else "")


# --- before publishing: what the registry says of each rollout


@frozen
class Settled:
    """A rollout's disposition in the checkpoint under way, why, and what was accepted on trust (see `Agreed`)."""

    disposition: Disposition
    reason: str = ""
    weak: int = 0
    untracked: int = 0


def settle(
    *,
    received: bool,
    sent: bool,
    retained: bool,
    restarted_by: str,
    pieces: Pieces,
    agreed: Agreed,
    ended: str = "",
    left_out: str = "",
) -> Settled:
    """The disposition of one execution; first match wins (sections 6.5, 6.6 and 6.8).

    `received`: its result is in the ledger, body and all. `sent`: its `/run` is out and was not turned away.
    `retained`: a server says it keeps its result. `restarted_by`: the server that cannot export it, or "". `ended`:
    why its `/run` ended without a result, or "". `left_out`: why nobody waited for it, or "".
    """
    if received:
        return Settled(Disposition.COMPLETED, "its result is in the ledger")
    if retained:
        return Settled(Disposition.FRESH, "finished, but its result did not arrive in time")
    if left_out:
        return Settled(Disposition.FRESH, f"left out: {left_out}")
    if restarted_by:
        return Settled(Disposition.FRESH, f"restart: {restarted_by} cannot export it")
    if not pieces.owners:
        if not sent:
            return Settled(Disposition.QUEUED, "never started")
        return Settled(Disposition.FRESH, ended or "finished, but its result did not arrive in time")
    if not agreed.agrees:
        return Settled(Disposition.FRESH, agreed.reason)
    return Settled(Disposition.CONTINUE, "all parts agree", agreed.weak, agreed.untracked)


def settle_units(settled: Mapping[str, Settled], units: Mapping[str, str | None]) -> dict[str, Settled]:
    """The dispositions, each unit's as one (section 6.6, S69)."""
    found = {rollout_id: (each.disposition, units.get(rollout_id)) for rollout_id, each in settled.items()}
    to_blame = torn(found)
    return {
        rollout_id: Settled(Disposition.FRESH, _torn_by(to_blame[rollout_id])) if rollout_id in to_blame else each
        for rollout_id, each in settled.items()
    }


def _torn_by(other: str) -> str:
    return f"it shares state with {other}, which starts fresh"


# --- after a restart


@frozen
class Server:
    """A participant as a checkpoint and a deployment know it: both must be the same set (section 7)."""

    kind: str
    name: str
    mode: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name} ({self.mode})"


@frozen
class Verdict:
    """What a restart does with one rollout.

    `attempt` is the highest known one; `next_attempt` the one that runs now, None for a completed rollout.
    `continuation_dropped`: there are records of it that are not used, since its result is there.
    """

    rollout_id: str
    disposition: Disposition
    attempt: int
    next_attempt: int | None
    reason: str = ""
    weak: int = 0
    untracked: int = 0
    continuation_dropped: bool = False

    def restarted(self, reason: str) -> Verdict:
        """The verdict after a restore that failed: the continuation's number is used up, and it starts fresh."""
        if self.disposition is not Disposition.CONTINUE or self.next_attempt is None:
            return self
        return evolve(self, disposition=Disposition.FRESH, next_attempt=self.next_attempt + 1, reason=reason)


def classify(
    row: RegistryRow,
    *,
    ledger: LedgerRow | None,
    consumed: bool,
    agreed: Agreed,
    highest: int,
    records: bool = False,
    live: bool = False,
) -> Verdict:
    """The verdict on one rollout of a checkpoint that is not rejected; first match wins (section 7).

    `ledger` is its row in the ledger in force, which is `live` while its coordinator lives: only then does *received*
    count. `highest` is the highest attempt that the registry or any record knows.
    """
    if _has_result(ledger, live) or consumed:
        why = "the trainer has consumed it" if consumed else "its result is saved"
        dropped = records and row.disposition is not Disposition.COMPLETED
        return Verdict(row.rollout_id, Disposition.COMPLETED, highest, None, why, continuation_dropped=dropped)
    fresh = Verdict(row.rollout_id, Disposition.FRESH, highest, highest + 1, row.reason)
    if row.disposition is not Disposition.CONTINUE:
        return fresh
    if highest != row.attempt:
        return evolve(fresh, reason=f"a record of attempt {highest} is there, the registry knows {row.attempt}")
    if not agreed.agrees:
        return evolve(fresh, reason=agreed.reason)
    return Verdict(
        row.rollout_id, Disposition.CONTINUE, highest, highest + 1, "all parts agree", agreed.weak, agreed.untracked
    )


def classify_units(verdicts: Iterable[Verdict], registry: Iterable[RegistryRow]) -> tuple[Verdict, ...]:
    """The verdicts, each unit's as one (S69); who was queued in the checkpoint had no part in the state yet."""
    rows = {row.rollout_id: row for row in registry}
    verdicts = tuple(verdicts)
    found = {}
    for each in verdicts:
        row = rows[each.rollout_id]
        waits = row.disposition is Disposition.QUEUED and each.disposition is Disposition.FRESH
        found[each.rollout_id] = (Disposition.QUEUED if waits else each.disposition, row.unit)
    to_blame = torn(found)
    return tuple(
        evolve(each, disposition=Disposition.FRESH, reason=_torn_by(to_blame[each.rollout_id]), weak=0, untracked=0)
        if each.rollout_id in to_blame
        else each
        for each in verdicts
    )


def _has_result(row: LedgerRow | None, live: bool) -> bool:
    """Whether the ledger in force has the result: *received* counts only while its coordinator lives."""
    return row is not None and (row.status is LedgerStatus.SAVED or (live and row.status is LedgerStatus.RECEIVED))


@frozen
class RestorePlan:
    """What a restart does with every rollout that the checkpoint knows.

    `scope` are the checkpointed attempts N that are restored as N+1; `retire` the highest attempts of all others, whose
    tombstones restore does not set; `redeliver` the results that the trainer's state lacks (I87). `turns` are the
    finished turns that the records hold, by rollout.
    """

    verdicts: tuple[Verdict, ...] = ()
    scope: tuple[EpisodeId, ...] = ()
    retire: tuple[EpisodeId, ...] = ()
    redeliver: tuple[LedgerRow, ...] = ()
    turns: Mapping[str, int] = field(factory=dict)

    @property
    def continuations(self) -> tuple[EpisodeId, ...]:
        """The scope as it is restored: N+1."""
        return tuple(each.successor for each in self.scope)


@frozen(kw_only=True)
class Found:
    """All that a checkpoint holds, read and validated, beside what the deployment and the trainer say now.

    `consumed` is read together with `ledger` (S53). `unreconciled` are effects outside that cannot be taken back, by
    rollout. `live`: the ledger is that of a living coordinator.
    """

    registry: tuple[RegistryRow, ...]
    ledger: tuple[LedgerRow, ...]
    parts: tuple[Part, ...]
    consumed: Set[str] = frozenset()
    recorded: frozenset[Server] = frozenset()
    present: frozenset[Server] = frozenset()
    covered: Set[str] | None = None
    unreconciled: Mapping[str, str] = field(factory=dict)
    live: bool = False


def plan_restore(found: Found) -> RestorePlan:
    """The plan, or CheckpointRejected with every reason (section 7's table, first row)."""
    try:
        pieces = gather(found.parts)
    except (WireError, WireErrors) as error:
        raise CheckpointRejected([f"a record cannot be read: {error}"]) from error
    ledger = {row.rollout_id: row for row in found.ledger}
    highest = _highest(found.registry, pieces)
    stateless = {server.name for server in found.recorded if server.mode == "stateless"}
    agreements = {
        row.rollout_id: agree(
            pieces.get(row.episode, NO_PIECES), row.task_digest, covered=found.covered, stateless=stateless
        )
        for row in found.registry
        if row.disposition is Disposition.CONTINUE
    }
    problems = [*_wrong_participants(found), *_wrong_results(found, ledger), *_wrong_effects(found, agreements)]
    if problems:
        raise CheckpointRejected(problems)
    with_records = {episode.rollout_id for episode in pieces}
    alone = [
        classify(
            row,
            ledger=ledger.get(row.rollout_id),
            consumed=row.rollout_id in found.consumed,
            agreed=agreements.get(row.rollout_id, Agreed(False)),
            highest=highest[row.rollout_id],
            records=row.rollout_id in with_records,
            live=found.live,
        )
        for row in found.registry
    ]
    verdicts = classify_units(alone, found.registry)
    continued = {each.rollout_id for each in verdicts if each.disposition is Disposition.CONTINUE}
    return RestorePlan(
        verdicts=verdicts,
        scope=tuple(row.episode for row in found.registry if row.rollout_id in continued),
        retire=tuple(EpisodeId(each.rollout_id, each.attempt) for each in verdicts if each.rollout_id not in continued),
        redeliver=tuple(
            row for row in found.ledger if _has_result(row, found.live) and row.rollout_id not in found.consumed
        ),
        turns={row.rollout_id: turns_of(pieces.get(row.episode, NO_PIECES)) for row in found.registry},
    )


def _highest(registry: Iterable[RegistryRow], pieces: Iterable[EpisodeId]) -> dict[str, int]:
    highest = {row.rollout_id: row.attempt for row in registry}
    for episode in pieces:
        if episode.rollout_id in highest:
            highest[episode.rollout_id] = max(highest[episode.rollout_id], episode.attempt)
    return highest


def _wrong_participants(found: Found) -> list[str]:
    missing = [f"{each} took part in it and is not here" for each in sorted(found.recorded - found.present, key=str)]
    extra = [f"{each} is here and took no part in it" for each in sorted(found.present - found.recorded, key=str)]
    return missing + extra


def _wrong_results(found: Found, ledger: Mapping[str, LedgerRow]) -> list[str]:
    """Where registry, ledger and trainer contradict each other (S52, S53, I65)."""
    problems = []
    known = set()
    for row in found.registry:
        known.add(row.rollout_id)
        held = ledger.get(row.rollout_id)
        if row.disposition is Disposition.CONTINUE and not found.live and _has_result(held, found.live):
            problems.append(f"{row.rollout_id} is both saved and to be continued")
        elif row.disposition is Disposition.COMPLETED and not _has_result(held, found.live):
            problems.append(f"{row.rollout_id} is completed and has no result")
    for rollout_id in sorted(found.consumed):
        if not _has_result(ledger.get(rollout_id), found.live):
            problems.append(f"the trainer has consumed {rollout_id}, of which the ledger has no result")
    for held in ledger.values():
        if _has_result(held, found.live):
            if held.rollout_id not in known:
                problems.append(f"{held.rollout_id} has a result and was never dispatched")
            if held.body is None and held.rollout_id not in found.consumed:
                problems.append(f"the result of {held.rollout_id} is in nobody's keeping")
    return problems


def _wrong_effects(found: Found, agreements: Mapping[str, Agreed]) -> list[str]:
    problems = [f"{rollout_id}: {agreed.reason}" for rollout_id, agreed in agreements.items() if agreed.damaged]
    for rollout_id, effect in found.unreconciled.items():
        problems.append(f"{rollout_id}: {effect} cannot be reconciled")
    return problems
