"""What servers keep of rollouts that are over: ended after one checkpoint, forgotten after the next. trio.

Rules (docs/reference/protocol.md sections 5 and 9; I75, I98): a rollout whose result a published checkpoint holds needs
nothing on the servers any more, so its attempts are retired there, and one checkpoint later the marks are forgotten.
Both happen only after this life has read the claims, with the servers open. What fails is tried again at the next
checkpoint and never fails one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from attrs import define, field

from ..identity import EpisodeId
from ..net.client import Reply
from .deployment import RETIRE_ORDER, BadReply, Deployment, Failure, Member, call_all
from .ledger import Ledger

RETIRE: Final = ("retire", "episode_ids", "retired")
FORGET: Final = ("forget", "rollout_ids", "forgotten")
"""A verb, the field that names whom, and the field of the reply that says that it was done."""


async def retire_all(
    deployment: Deployment, episodes: Iterable[EpisodeId], checkpoint_id: str, deadline_ts: float, batch: int
) -> None:
    """These attempts, and all below them, are fenced on every server. Raises Failure where a server did not answer, and
    BadReply where it did not say that it has done so.
    """
    named = {each.key: {"rollout_id": each.rollout_id, "attempt": each.attempt} for each in sorted(episodes)}
    await _in_batches(deployment, RETIRE, named, checkpoint_id, deadline_ts, batch)


async def _in_batches(
    deployment: Deployment,
    how: tuple[str, str, str],
    values: Mapping[str, Any],
    checkpoint_id: str,
    deadline_ts: float,
    batch: int,
) -> None:
    """`values` by the name that a server answers for each; BadReply when one does not answer it."""
    verb, name, done = how
    names = list(values)
    for roles in RETIRE_ORDER:
        for start in range(0, len(names), batch):
            asked = names[start : start + batch]
            body = {"checkpoint_id": checkpoint_id, name: [values[each] for each in asked]}
            check = partial(_check_done, verb, done, frozenset(asked))
            await call_all(deployment.of(*roles), verb, body, deadline_ts, check=check)


def _check_done(verb: str, done: str, asked: frozenset[str], member: Member, reply: Reply) -> None:
    answered = reply.get(done)
    if not isinstance(answered, list) or not asked <= set(map(str, answered)):
        raise BadReply(f"{member.name}: its {verb} answered {done} {answered!r}"[:300])


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
            to_forget = {each: each for each in self._to_forget}
            await _in_batches(deployment, FORGET, to_forget, checkpoint_id, deadline_ts, batch)
            self._to_forget = ()
            await retire_all(deployment, saved, checkpoint_id, deadline_ts, batch)
        except (Failure, BadReply) as failure:
            return str(failure)
        self._to_forget = tuple(each.rollout_id for each in saved)
        self._ended.update(self._to_forget)
        return ""
