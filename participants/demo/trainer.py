"""The demo's trainer: it hands out groups of rollouts, keeps their results, and saves all that with each checkpoint.

A group is trained on when all of its members are there, so results wait for their straggler (S2). Nothing outlives a
trainer but what it saved: after a crash a new one has a checkpoint, or nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from attrs import define, field, frozen

from statecore.seams import Disk, on_disk
from statecore.wire import canonical, parse, structure, unstructure

from ..coordination.trainer import Dispatch, Result
from ..records.records import Disposition, Receipt
from .plan import Plan

STATE_FILE: Final = "trainer.json"


@frozen
class Accepted:
    """One call of `accept`."""

    rollout_id: str
    receipt: Receipt
    body: Any


@frozen
class State:
    """All that is saved. `cursor` counts groups handed out, `steps` groups trained on."""

    cursor: int = 0
    steps: int = 0
    accepted: tuple[Accepted, ...] = ()


@define(eq=False)
class DemoTrainer:
    """A `trainer.Trainer` for the job of `plan`. `life` is the epoch, which is no other life's and is never saved."""

    plan: Plan
    disk: Disk
    state: State = field(factory=State)
    life: int = 0

    # --- what the coordinator calls

    async def save(self, directory: Path, dispositions: Mapping[str, Disposition]) -> None:
        await on_disk(self.disk, partial(self._write, directory / STATE_FILE, canonical(unstructure(self.state))))

    def _write(self, path: Path, content: bytes) -> None:
        with self.disk.create(path) as file:
            file.write(content)
            file.fsync()

    async def load(self, directory: Path) -> None:
        self.state = structure(parse(await on_disk(self.disk, self.disk.read, directory / STATE_FILE)), State)

    async def accept(self, result: Result) -> None:
        """Kept, and trained on if it is the last of its group."""
        now = self.state
        accepted = (*now.accepted, Accepted(result.rollout_id, result.receipt, result.body))
        here = {each.rollout_id for each in accepted}
        complete = sum(all(each.rollout_id in here for each in group) for group in self.plan.groups)
        self.state = State(now.cursor, complete, accepted)

    async def consumed(self) -> set[str]:
        return {each.rollout_id for each in self.state.accepted}

    @property
    def policy_version(self) -> tuple[int, int]:
        """By the life as well: the steps of a life that crashed are taken again, from other results."""
        return self.life, self.state.steps

    # --- what the job asks

    def next_group(self) -> tuple[Dispatch, ...]:
        """The dispatches of the next group, the cursor behind it; none when all are handed out. Does not wait (S40)."""
        groups, now = self.plan.groups, self.state
        if now.cursor >= len(groups):
            return ()
        self.state = State(now.cursor + 1, now.steps, now.accepted)
        first = sum(len(group) for group in groups[: now.cursor])
        return tuple(each.dispatch(first + number) for number, each in enumerate(groups[now.cursor]))

    # --- what came of it

    def results(self) -> dict[str, Any]:
        """The first result of each rollout."""
        return {each.rollout_id: each.body for each in reversed(self.state.accepted)}

    def lost(self) -> tuple[str, ...]:
        """The planned rollouts without a result."""
        here = {each.rollout_id for each in self.state.accepted}
        return tuple(each.rollout_id for each in self.plan.rollouts if each.rollout_id not in here)

    def doubled(self) -> tuple[str, ...]:
        """The rollouts that were accepted more than once, or whose receipt names another one's result."""
        times = Counter(each.rollout_id for each in self.state.accepted)
        identities = Counter(each.receipt.result_identity for each in self.state.accepted)
        return tuple(
            each.rollout_id
            for each in self.state.accepted
            if times[each.rollout_id] > 1 or identities[each.receipt.result_identity] > 1
        )
