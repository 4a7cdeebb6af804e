"""What becomes of each rollout when all servers are started anew and their coordinator lives. Pure.

Rules (docs/reference/protocol.md section 7): the ledger in force is the live one, so a result that came after the
checkpoint counts as completed; the trainer lives too, nothing of it rolls back and nothing is delivered again; what was
registered after the checkpoint starts over; a number that a rollout has used up in this life is not given to a fresh
start, and a continuation's N+1 is told from an earlier one by its epoch (I96, S64).
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from attrs import evolve

from ..files.checkpoint import Checkpoint
from ..identity import EpisodeId
from ..records.records import Disposition, RegistryRow
from .ledger import Ledger
from .recovery import Found, RestorePlan, Server, Verdict, plan_restore
from .restoring import recorded_servers
from .units import Sharing


def plan_restart(
    checkpoint: Checkpoint | None,
    ledger: Ledger,
    *,
    consumed: Set[str],
    present: frozenset[Server],
    sharing: Sharing = Sharing.PRIVATE,
) -> RestorePlan:
    """The plan over all rollouts of the live `ledger`. Raises CheckpointRejected as `plan_restore` does."""
    known = () if checkpoint is None else checkpoint.registry
    since = _since({row.rollout_id for row in known}, ledger, sharing)
    plan = plan_restore(
        Found(
            registry=tuple(_as_it_went_on(row, ledger) for row in known) + since,
            ledger=ledger.live_rows(),
            parts=() if checkpoint is None else checkpoint.parts,
            consumed=consumed,
            recorded=present if checkpoint is None else recorded_servers(checkpoint),
            present=present,
            live=True,
        )
    )
    highest = {each.rollout_id: max(each.attempt, ledger[each.rollout_id].highest) for each in plan.verdicts}
    return evolve(
        plan,
        verdicts=above(plan.verdicts, ledger),
        retire=tuple(EpisodeId(each.rollout_id, highest[each.rollout_id]) for each in plan.retire),
        redeliver=(),  # whoever waits for a result of this life hands it over
    )


def above(verdicts: Iterable[Verdict], ledger: Ledger) -> tuple[Verdict, ...]:
    """The verdicts, with each fresh start above every attempt that this life has given."""
    return tuple(_above(each, ledger[each.rollout_id].highest) for each in verdicts)


def _above(verdict: Verdict, live: int) -> Verdict:
    if verdict.disposition is not Disposition.FRESH or verdict.next_attempt is None or verdict.next_attempt > live:
        return verdict
    return evolve(verdict, attempt=live, next_attempt=live + 1)


def _as_it_went_on(row: RegistryRow, ledger: Ledger) -> RegistryRow:
    """The checkpoint's row; who has ended without a result since is not brought back to where it stood."""
    ended = ledger[row.rollout_id].ended
    return evolve(row, disposition=Disposition.FRESH, reason=ended) if ended else row


def _since(known: Set[str], ledger: Ledger, sharing: Sharing) -> tuple[RegistryRow, ...]:
    """Rows of those that the checkpoint does not know: none of them had a part in any state that it holds."""
    queued = (Disposition.QUEUED, "dispatched after the checkpoint")
    rows = ledger.registry_rows(dict.fromkeys(ledger.rollouts, queued), sharing)
    return tuple(row for row in rows if row.rollout_id not in known)
