"""`statecore demo --break NUMBER`: one rule of the protocol is taken out, and the last line shows what it is for.

Each fault is that of a scenario which went wrong elsewhere (docs/reference/scenarios.md). It is put into the demo's own
servers, trainer or restart, never into what a job of yours runs: nothing outside this package knows of it, and no
setting of a server switches one on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from attrs import evolve, frozen

from ..coordination.coordinator import Batch, CoordinatorSettings, Recovered
from ..coordination.trainer import Dispatch
from ..records.records import Disposition
from ..serving.launcher import Launcher
from .counting import Verdict
from .plan import Kill, Options, Plan, When, make_plan
from .trainer import DemoTrainer

EARLY: Final = 0.1
LATE: Final = 0.8
"""Shares of all turns, where a fault needs a checkpoint to be early or late."""


@frozen(kw_only=True)
class Fault:
    """`number` is of the scenario, `says` what is taken out, `invariants` are broken by it.

    `kill` and `when` are what shows it, `at` the share of all turns at which the checkpoint is taken (None: the demo's
    own), `apart` how many seconds the groups start one after the other (None: the demo's own). `harm` tells what the
    verdict shows of it, "" for nothing.
    """

    number: str
    says: str
    invariants: tuple[str, ...]
    harm: Callable[[Verdict], str]
    kill: Kill = Kill.ALL
    when: When = When.PUBLISHED
    at: float | None = None
    apart: float | None = None

    def line(self, verdict: Verdict) -> str:
        """The last line of the demo."""
        harm, broken = self.harm(verdict), " and ".join(self.invariants)
        if not harm:
            return f"{self.number}, put back on purpose, did not show: {self.says}"
        return f"{self.number}, put back on purpose, shows: {harm}; against {broken}: {self.says}"


# --- what a verdict shows


def held_redone(verdict: Verdict) -> str:
    turns = verdict.numbers.held_redone
    return f"turns redone that the checkpoint held: {len(turns)}" if turns else ""


def not_held(verdict: Verdict) -> str:
    """Everything stood still when the checkpoint was published: what it lacks, it should have."""
    turns = verdict.numbers.lost
    rollouts = {rollout for rollout, _ in turns}
    return f"turns that the checkpoint lacks: {len(turns)}, of {len(rollouts)} rollouts" if turns else ""


def lost(verdict: Verdict) -> str:
    return f"results lost: {len(verdict.lost_results)}" if verdict.lost_results else ""


def doubled(verdict: Verdict) -> str:
    rollouts = set(verdict.doubled_results)
    return f"results taken twice: {len(rollouts)}" if rollouts else ""


def different(verdict: Verdict) -> str:
    told = [f"{name}: {what}" for name, what in verdict.differences.items()]
    return f"results that are not the undisturbed ones: {len(told)} ({told[0]})" if told else ""


FAULTS: Final[Mapping[str, Fault]] = {
    each.number: each
    for each in (
        Fault(
            number="S15",
            says="an agent that is called for a continuation begins with the task",
            invariants=("I57",),
            harm=held_redone,
        ),
        Fault(
            number="S21",
            says="a session's position is read before its lock is taken, so boundary and image never agree",
            invariants=("I37", "I35"),
            harm=not_held,
        ),
        Fault(
            number="S35",
            says="the trainer does not say what it has consumed, so results are delivered to it again",
            invariants=("I68",),
            harm=doubled,
            at=LATE,
        ),
        Fault(
            number="S37",
            says="a rollout without a boundary leaves no trace, so that nobody starts it over",
            invariants=("I12",),
            harm=lost,
            at=EARLY,
        ),
        Fault(
            number="S40",
            says="the trainer's cursor is moved when a group is read ahead, before it is registered",
            invariants=("I84",),
            harm=lost,
            at=EARLY,
            apart=3.0,
        ),
        Fault(
            number="S65",
            says="an environment that has lost its agent makes a result of it, with reward 0, and no exit is told",
            invariants=("I97",),
            harm=different,
            kill=Kill.AGENT,
            when=When.IDLE,
        ),
    )
}


def broken_plan(fault: Fault, options: Options) -> Plan:
    """The job that shows it."""
    plan = make_plan(evolve(options, kill=fault.kill, when=fault.when))
    if fault.at is not None:
        plan = evolve(plan, checkpoints_at=(max(1, round(plan.turns * fault.at)),))
    if fault.apart is not None:
        plan = evolve(plan, stagger_s=fault.apart)
    return evolve(plan, fault=fault.number)


# --- the framework's half, with one rule taken out


class ForgetfulTrainer(DemoTrainer):
    """S35: what an earlier life of it has consumed it does not name."""

    _before: frozenset[str] = frozenset()

    async def load(self, directory: Path) -> None:
        await super().load(directory)
        self._before = frozenset(each.rollout_id for each in self.state.accepted)

    async def consumed(self) -> set[str]:
        return await super().consumed() - self._before


class HastyTrainer(DemoTrainer):
    """S40: it reads one group ahead, and its cursor stands behind that one."""

    _ahead: tuple[Dispatch, ...] | None = None

    def next_group(self) -> tuple[Dispatch, ...]:
        now = super().next_group() if self._ahead is None else self._ahead
        self._ahead = super().next_group()
        return now


def trainer_kind(plan: Plan) -> type[DemoTrainer]:
    """The class of this plan's trainer."""
    return {"S35": ForgetfulTrainer, "S40": HastyTrainer}.get(plan.fault, DemoTrainer)


@frozen
class TellsNoExits:
    """S65: a launcher that only starts and stops, so that a dead server is noticed when it has not answered a while."""

    inner: Launcher

    async def start(self, epoch: int) -> Mapping[str, str]:
        return await self.inner.start(epoch)

    async def stop(self) -> None:
        await self.inner.stop()


def launcher(plan: Plan, deployment: Launcher) -> Launcher:
    """What the coordinator knows of the servers' processes."""
    return TellsNoExits(deployment) if plan.fault == "S65" else deployment


def settings(plan: Plan) -> CoordinatorSettings:
    """The coordinator's; without exits to be told it asks more often, so that the demo is soon over."""
    return CoordinatorSettings(probe_every_s=2.0) if plan.fault == "S65" else CoordinatorSettings()


def runnable(plan: Plan, recovered: Recovered) -> Batch:
    """What a life that goes on from files runs of them."""
    batch = recovered.runnable()
    if plan.fault != "S37":
        return batch
    continued = {each.rollout_id for each in recovered.verdicts if each.disposition is Disposition.CONTINUE}
    return Batch(tuple(each for each in batch.episodes if each.rollout_id in continued))
