"""Which executions one checkpoint cuts, and what becomes of each: fed by replies and parts, no await in it.

Rules (docs/reference/protocol.md section 6, steps 3 to 8): the scope is every dispatched, not completed execution minus
all restarts and all that are left out; an execution in scope that no record owns has finished, and its result is waited
for; a rollout with a receipt is never continued (I65); a peer's blockers are shown and never parsed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any, Final

from attrs import define, field

from ..identity import EpisodeId
from ..net.replies import MAX_TS
from ..records.records import Part
from .agreement import NO_PIECES, Agreed, Pieces, agree, gather, turns_of
from .ledger import Ledger, Rollout
from .outcomes import Blocker
from .recovery import Settled, settle, settle_units
from .units import Sharing

NOT_SAID: Final = "it does not say why"
NOT_CUT = Agreed(False, "it was not in the scope of this checkpoint")


@define(eq=False)
class Cut:
    """What is known so far. `restarts` maps executions that start over to the server that said so first, `left_out`
    those that nobody waits for to the reason; `turns` counts the finished turns that the records of each hold.
    """

    restarts: dict[EpisodeId, str] = field(factory=dict)
    left_out: dict[EpisodeId, str] = field(factory=dict)
    retained: set[EpisodeId] = field(factory=set)
    scope: frozenset[EpisodeId] = frozenset()
    pieces: dict[EpisodeId, Pieces] = field(factory=dict)
    agreements: dict[EpisodeId, Agreed] = field(factory=dict)
    turns: dict[EpisodeId, int] = field(factory=dict)

    def note_report(self, server: str, report: Mapping[str, Any]) -> None:
        """What a prepare report says of restarts and of results that the server keeps; what is malformed is nobody."""
        for key in _list(report, "restarts"):
            episode = _episode(lambda key=key: EpisodeId.from_key(key))
            if episode is not None:
                self.restarts.setdefault(episode, server)
        for receipt in _list(report, "retained"):
            if isinstance(receipt, dict):
                named = (receipt.get("rollout_id"), receipt.get("attempt", 0))
                episode = _episode(lambda named=named: EpisodeId(*named))
                if episode is not None:
                    self.retained.add(episode)

    def choose_scope(self, ledger: Ledger) -> tuple[EpisodeId, ...]:
        """The executions that the participants are told to save, sorted."""
        candidates = {rollout.episode for rollout in ledger.candidates()}
        self.scope = scope_of(candidates, self.restarts, self.retained, self.left_out)
        return tuple(sorted(self.scope))

    def note_parts(self, parts: Iterable[Part]) -> None:
        """The records in scope, of all servers. Synchronous and long for many records. WireError(s) for a bad one."""
        self.pieces = {episode: each for episode, each in gather(parts).items() if episode in self.scope}

    def is_on_its_way(self, rollout: Rollout) -> bool:
        """It has finished, and its `/run` reply has not come yet."""
        if not rollout.sent or rollout.ended or rollout.has_result:
            return False
        if rollout.episode in self.retained:
            return True
        return rollout.episode in self.scope and not self.pieces.get(rollout.episode, NO_PIECES).owners

    def note_agreements(self, ledger: Ledger, stateless: Set[str]) -> tuple[str, ...]:
        """Which parts agree is settled; returns the rollouts that stand at a boundary in a written part. As long."""
        standing = []
        for rollout in ledger.candidates():
            pieces = self.pieces.get(rollout.episode, NO_PIECES)
            self.agreements[rollout.episode] = agree(pieces, rollout.digest, stateless=stateless)
            self.turns[rollout.episode] = turns_of(pieces)
            if pieces.owners:
                standing.append(rollout.episode.rollout_id)
        return tuple(standing)

    def dispositions(self, ledger: Ledger, sharing: Sharing = Sharing.PRIVATE) -> dict[str, Settled]:
        """What the checkpoint says of every rollout in `ledger`; `sharing` is what the deployment's servers share."""
        alone = {
            rollout_id: settle(
                received=rollout.has_result,
                sent=rollout.sent,
                retained=rollout.episode in self.retained,
                restarted_by=self.restarts.get(rollout.episode, ""),
                left_out=self.left_out.get(rollout.episode, ""),
                pieces=self.pieces.get(rollout.episode, NO_PIECES),
                agreed=self.agreements.get(rollout.episode, NOT_CUT),
                ended=rollout.ended,
            )
            for rollout_id, rollout in ledger.rollouts.items()
        }
        return settle_units(alone, ledger.units(sharing))


def scope_of(
    candidates: Set[EpisodeId],
    restarts: Iterable[EpisodeId],
    retained: Iterable[EpisodeId],
    left_out: Iterable[EpisodeId],
) -> frozenset[EpisodeId]:
    """The executions that every participant saves (section 6.3)."""
    return frozenset(candidates).difference(restarts, retained, left_out)


def read_blockers(server: str, report: Mapping[str, Any]) -> tuple[Blocker, ...]:
    """Who keeps `server` from being ready (S10): by rollout and reason where its report gives details.

    The last one stands for those that it counts and does not name.
    """
    found = [_blocker(server, each) for each in _list(report, "blocker_details") if isinstance(each, dict)]
    if not found:
        texts = (str(each) for each in _list(report, "blockers"))
        found = [Blocker(server=server, reason=text or "a call without a rollout") for text in texts]
    total = report.get("blocker_count")
    if found and type(total) is int and total > len(found):
        found.append(Blocker(server=server, reason="it does not name them", unnamed=total - len(found)))
    return tuple(found) or (Blocker(server=server, reason=NOT_SAID),)


def _blocker(server: str, detail: Mapping[str, Any]) -> Blocker:
    waited: Any = detail.get("waited_s")
    attempt = detail.get("attempt")
    return Blocker(
        server=server,
        rollout_id=str(detail.get("rollout_id", "")),
        attempt=attempt if type(attempt) is int else 0,
        reason=str(detail.get("reason", "")),
        waited_s=float(waited) if type(waited) in (int, float) and 0 <= waited < MAX_TS else None,
    )


def _list(report: Mapping[str, Any], name: str) -> list[Any]:
    value = report.get(name)
    return value if isinstance(value, list) else []


def _episode(make: Any) -> EpisodeId | None:
    """The execution that a peer names, None where it names none."""
    try:
        episode: EpisodeId = make()
    except (ValueError, TypeError):
        return None
    return episode
