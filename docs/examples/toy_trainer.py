"""A toy trainer whose state rolls back with the checkpoint: prompt groups, data cursor, replay buffer, optimizer.

It knows of statecore what the integration contract says (docs/reference/integration-contract.md) and uses nothing else.
The steps that its optimizer takes, over however many crashes, are those of a run that nothing disturbed.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

import trio
from attrs import asdict, define, field, frozen

from participants import Aborted, Batch, Coordinator, Dispatch, Disposition, Published, Result, Seams

log = logging.getLogger(__name__)


@frozen(kw_only=True)
class Plan:
    """What is to be trained. `ahead`: how many groups the data may run ahead of the optimizer."""

    prompts: tuple[str, ...]
    target: str
    steps: int
    group_size: int = 3
    groups_per_step: int = 2
    ahead: int = 4
    checkpoint_every: int = 1
    seed: int = 0

    def prompt(self, position: int) -> str:
        """A pure function of the position in the data, so that one number is a whole cursor. Each epoch is shuffled."""
        epoch, place = divmod(position, len(self.prompts))
        return random.Random(f"{self.seed} {epoch}").sample(self.prompts, len(self.prompts))[place]

    def members(self, position: int) -> tuple[str, ...]:
        """The rollout ids of a group follow from its position: a cursor that rolled back makes the same ones."""
        return tuple(f"p{position:06d}_g{member}" for member in range(self.group_size))


@define
class Step:
    """One step of the optimizer: the policy version it led to, what it was trained on, and the weight afterwards."""

    version: tuple[int, int]
    rollouts: list[str]
    weight: float


@define
class State:
    """All that is saved and loaded. `cursor` counts groups handed out, `trained` groups that the optimizer has had."""

    cursor: int = 0
    trained: int = 0
    weight: float = 0.0
    buffer: dict[str, float] = field(factory=dict)
    steps: list[Step] = field(factory=list)


class GroupLost(Exception):
    """A group will not be whole in this life. The next life goes on from the checkpoint and runs what is missing."""


class ToyTrainer:
    """A `participants.Trainer`. Nothing in it outlives a crash but what `save` wrote."""

    def __init__(self, plan: Plan, seams: Seams | None = None) -> None:
        self.plan = plan
        self.state = State()
        self.life = 0
        self._running = 0
        self._lost: dict[str, str] = {}
        self._disk = (seams or Seams()).disk
        self._changed = trio.Event()

    # --- what the coordinator calls, one at a time

    async def save(self, directory: Path, dispositions: Mapping[str, Disposition]) -> None:
        content = json.dumps(asdict(self.state)).encode()  # captured before anything is awaited: one moment
        with self._disk.create(directory / "trainer.json") as file:
            file.write(content)
            file.fsync()

    async def load(self, directory: Path) -> None:
        saved = json.loads(self._disk.read(directory / "trainer.json"))
        steps = [Step(**(each | {"version": tuple(each["version"])})) for each in saved["steps"]]
        self.state = State(**(saved | {"steps": steps}))

    async def accept(self, result: Result) -> None:
        if result.rollout_id in await self.consumed():
            raise ValueError(f"{result.rollout_id} was accepted twice")
        self.state.buffer[result.rollout_id] = result.body["reward"]
        self._wake()

    async def consumed(self) -> Set[str]:
        """What the optimizer has had, and what waits in the buffer for the rest of its group."""
        trained = (name for position in range(self.state.trained) for name in self.plan.members(position))
        return {*trained, *self.state.buffer}

    @property
    def policy_version(self) -> tuple[int, int]:
        """Which weights these are: a step alone would be used twice after a crash, for two different weights."""
        return self.life, len(self.state.steps)

    # --- the data

    def next_groups(self) -> Iterator[Dispatch]:
        """The rollouts that may be handed out now, with the cursor behind them. Awaits nothing."""
        state, plan = self.state, self.plan
        while state.cursor < min(state.trained + plan.ahead, plan.steps * plan.groups_per_step):
            position = state.cursor
            state.cursor += 1
            for member, rollout_id in enumerate(plan.members(position)):
                task = {"question": f"{plan.prompt(position)} (sample {member})", "turns": 1 + (position + member) % 3}
                yield Dispatch(rollout_id, task, plan.target, group=f"p{position}", data_position=position)

    # --- the optimizer

    def optimize(self) -> bool:
        """A step was taken if the groups that come next in the data are whole, however many others are."""
        state, plan = self.state, self.plan
        positions = range(state.trained, state.trained + plan.groups_per_step)
        rollouts = [name for position in positions for name in plan.members(position)]
        if missing := [name for name in rollouts if name not in state.buffer]:
            if gone := [f"{name}: {self._lost[name]}" for name in missing if name in self._lost]:
                raise GroupLost("; ".join(gone))
            if not self._running:
                raise GroupLost(f"nobody runs {', '.join(missing)}")
            return False
        rewards = [state.buffer.pop(name) for name in rollouts]
        state.weight += 0.1 * (sum(rewards) / len(rewards) - state.weight)
        state.trained += plan.groups_per_step
        state.steps.append(Step((self.life, len(state.steps) + 1), rollouts, state.weight))
        return True

    # --- rollouts under way

    def start(self, nursery: trio.Nursery, job: Coordinator, batch: Batch) -> None:
        """The batch runs in the nursery."""
        self._running += 1
        nursery.start_soon(self._run, job, batch)

    async def _run(self, job: Coordinator, batch: Batch) -> None:
        report = await job.run_batch(batch)
        self._running -= 1
        self._lost.update(report.lost)  # a rollout without a result has no reward of 0: it is missing
        self._wake()

    async def change(self) -> None:
        """Something came, or will not come any more."""
        await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


async def train(job: Coordinator, trainer: ToyTrainer) -> Published | Aborted:
    """All steps were taken, from wherever the checkpoint stood; returns what came of the checkpoint after the last one.

    GroupLost, in a group of exceptions, when a rollout that is needed has no result: then it takes another life.
    """
    recovered = await job.recover()
    trainer.life = recovered.epoch  # no other life ever had or will have this number
    async with trio.open_nursery() as nursery:
        trainer.start(nursery, job, recovered.runnable())  # what the checkpoint had in flight, first
        while (done := len(trainer.state.steps)) < trainer.plan.steps:
            if done % trainer.plan.checkpoint_every == 0:
                log_outcome(await job.checkpoint())
            batch = job.runnable(trainer.next_groups())  # the cursor moves and they are registered: no await between
            trainer.start(nursery, job, batch)
            while not trainer.optimize():
                await trainer.change()
    return log_outcome(await job.checkpoint())


def log_outcome(outcome: Published | Aborted) -> Published | Aborted:
    """A checkpoint that failed is told and is no reason to stop: the one before it is in force."""
    log.log(logging.INFO if outcome.published else logging.ERROR, "%s", outcome.story())
    return outcome
