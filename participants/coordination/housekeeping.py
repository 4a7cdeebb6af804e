"""What servers keep of rollouts that are over: ended after one checkpoint, forgotten after the next. trio.

Rules (docs/reference/protocol.md sections 5 and 9; I75, I98): a rollout whose result a published checkpoint holds needs
nothing on the servers any more, so its attempts are retired there, and one checkpoint later the marks are forgotten.
Both happen only after this life has read the claims, with the servers open. What fails is tried again at the next
checkpoint and never fails one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attrs import define, field

from ..identity import EpisodeId
from .deployment import RETIRE_ORDER, BadReply, Deployment, Failure, call_all
from .ledger import Ledger


async def retire_all(
    deployment: Deployment, episodes: Iterable[EpisodeId], checkpoint_id: str, deadline_ts: float, batch: int
) -> None:
    """These attempts, and all below them, are fenced on every server. Raises Failure where a server did not answer."""
    named = [{"rollout_id": each.rollout_id, "attempt": each.attempt} for each in sorted(episodes)]
    await _in_batches(deployment, "retire", "episode_ids", named, checkpoint_id, deadline_ts, batch)


async def _in_batches(
    deployment: Deployment,
    verb: str,
    name: str,
    values: Sequence[Any],
    checkpoint_id: str,
    deadline_ts: float,
    batch: int,
) -> None:
    for roles in RETIRE_ORDER:
        for start in range(0, len(values), batch):
            body = {"checkpoint_id": checkpoint_id, name: list(values[start : start + batch])}
            await call_all(deployment.of(*roles), verb, body, deadline_ts)


@define(eq=False)
class Housekeeping:
    """Which rollouts of this life were ended on the servers, and which of them are to be forgotten next."""

    _ended: set[str] = field(factory=set)
    _to_forget: tuple[str, ...] = ()

    async def run(
        self, ledger: Ledger, deployment: Deployment, checkpoint_id: str, deadline_ts: float, batch: int
    ) -> str:
        """Saved rollouts are ended on every server, those ended before are forgotten; returns "", or what went
        wrong.
        """
        saved = [
            rollout.episode
            for rollout_id, rollout in ledger.rollouts.items()
            if rollout_id not in self._ended and ledger.is_saved(rollout_id)
        ]
        try:
            await _in_batches(deployment, "forget", "rollout_ids", self._to_forget, checkpoint_id, deadline_ts, batch)
            self._to_forget = ()
            await retire_all(deployment, saved, checkpoint_id, deadline_ts, batch)
        except (Failure, BadReply) as failure:
            return str(failure)
        self._to_forget = tuple(each.rollout_id for each in saved)
        self._ended.update(self._to_forget)
        return ""
