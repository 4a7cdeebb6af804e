"""What a coordinator tells whoever watches it: how its checkpoints and recoveries ended, and how much was in them.

Numbers and spans are those of signals.py; the steps in between are told where they happen. Nothing is decided here
(docs/reference/telemetry.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import trio
from attrs import define

from ..records.records import Disposition
from ..signals import (
    BLOCKERS,
    CANCELLED,
    CAUSE,
    CHECKPOINT,
    CHECKPOINT_BLOCKERS,
    CHECKPOINT_ID,
    CHECKPOINT_ROLLOUTS,
    CHECKPOINT_SECONDS,
    CHECKPOINT_TURNS,
    DISPOSITION,
    EPOCH,
    OUTCOME,
    RECOVERY,
    RECOVERY_ROLLOUTS,
    RECOVERY_SECONDS,
    RECOVERY_TURNS,
    SERVER,
)
from ..telemetry import Span, Telemetry
from .life import Life
from .outcomes import Aborted, Overtaken, Published
from .recovery import Verdict

ABORTED = "aborted"
PUBLISHED = "published"
FAILED = "failed"


async def measured(life: Life, work: Callable[[], Awaitable[Published | Aborted]]) -> Published | Aborted:
    """What `work` came to: a checkpoint that is the span above all that is done for it, and its numbers."""
    telemetry, began, ended = life.seams.telemetry, trio.current_time(), FAILED
    with telemetry.span(CHECKPOINT, {EPOCH: life.epoch}) as span:
        try:
            outcome = await work()
            ended = _told(telemetry, span, outcome)
            return outcome
        except Overtaken:
            ended = "overtaken"
            raise
        except BaseException as error:
            if not isinstance(error, Exception):  # cancelled, maybe several tasks of it at once
                ended = CANCELLED
            raise
        finally:
            span.set(OUTCOME, ended)
            telemetry.record(CHECKPOINT_SECONDS, trio.current_time() - began, {OUTCOME: ended})


def _told(telemetry: Telemetry, span: Span, outcome: Published | Aborted) -> str:
    """How it ended, and what was in it."""
    span.set(CHECKPOINT_ID, outcome.checkpoint_id)
    if isinstance(outcome, Published):
        for disposition, count in outcome.counts.items():
            telemetry.record(CHECKPOINT_ROLLOUTS, count, {DISPOSITION: str(disposition)})
        telemetry.record(CHECKPOINT_TURNS, outcome.turns)
        return PUBLISHED
    span.fail(ABORTED, f"while {outcome.phase}: {outcome.reason}")
    span.set(BLOCKERS, sum(each.unnamed or 1 for each in outcome.blockers))
    for blocker in outcome.blockers:
        telemetry.add(CHECKPOINT_BLOCKERS, blocker.unnamed or 1, {SERVER: blocker.server})
    return ABORTED


@define(eq=False)
class Recovering:
    """A recovery under way; one that is told nothing of has failed."""

    telemetry: Telemetry
    span: Span
    outcome: str = FAILED

    def came_to(
        self,
        epoch: int,
        checkpoint_id: str | None,
        verdicts: Iterable[Verdict],
        turns: Mapping[str, int],
        *,
        restored: bool,
    ) -> None:
        """Its servers are open. `turns` are those that the checkpoint holds of each rollout."""
        self.outcome = "restored" if restored else "fresh"
        self.span.set(EPOCH, epoch)
        if checkpoint_id is not None:
            self.span.set(CHECKPOINT_ID, checkpoint_id)
        rollouts: Counter[Disposition] = Counter()
        held: Counter[Disposition] = Counter()
        for verdict in verdicts:
            rollouts[verdict.disposition] += 1
            held[verdict.disposition] += turns.get(verdict.rollout_id, 0)
        for disposition, count in rollouts.items():
            self.telemetry.add(RECOVERY_ROLLOUTS, count, {DISPOSITION: str(disposition)})
        for disposition in (Disposition.CONTINUE, Disposition.FRESH):
            self.telemetry.add(RECOVERY_TURNS, held[disposition], {DISPOSITION: str(disposition)})


@contextmanager
def recovering(telemetry: Telemetry, cause: str) -> Iterator[Recovering]:
    """The block is a recovery: the span above all that is done for it."""
    began = trio.current_time()
    with telemetry.span(RECOVERY, {CAUSE: cause}) as span:
        told = Recovering(telemetry, span)
        try:
            yield told
        finally:
            span.set(OUTCOME, told.outcome)
            attributes = {CAUSE: cause, OUTCOME: told.outcome}
            telemetry.record(RECOVERY_SECONDS, trio.current_time() - began, attributes)
