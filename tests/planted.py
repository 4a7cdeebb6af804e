"""Faults that are planted into the running code, to see whether simulation finds them: `python -m tests.planted`.

Each is a scenario of docs/reference/scenarios.md put back. `seed` is the first from 0 on that shows it; the command
looks for it anew, and prints the rows of the table in docs/how-to/simulate.md.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import pytest
from attrs import frozen

from participants.coordination.coordinator import Coordinator
from participants.coordination.dispatch import Dispatcher
from participants.coordination.ledger import Ledger
from participants.coordination.outcomes import Batch, Recovered
from participants.demo.broken_servers import forgetful_agent
from participants.demo.environment_server import environment_app
from participants.demo.faults import ForgetfulTrainer, HastyTrainer
from participants.files.store import Store
from participants.machines.resource_session import SessionData
from participants.net.http import Scope
from participants.records.records import Disposition, Receipt
from participants.servers.fences import Fences
from participants.servers.lease import Lease
from participants.servers.resources import Change, Resources
from participants.simulation import fleet, life
from participants.simulation.game import Walk, game_app
from participants.simulation.job import job
from statecore.simulate import Outcome, ProcessDisk, run

Patch = pytest.MonkeyPatch
MOST: Final = 40


@frozen
class Planted:
    """One fault. `rules` are the invariants of which one is found broken."""

    number: str
    says: str
    plant: Callable[[Patch], None]
    rules: frozenset[str]
    seed: int

    def outcome(self, seed: int) -> Outcome:
        """What comes of this seed with the fault."""
        with pytest.MonkeyPatch.context() as patch:
            self.plant(patch)
            return run(job, seed)


# --- servers


def s15(patch: Patch) -> None:
    patch.setitem(fleet.SERVERS, "agent", forgetful_agent)


class EarlyPositions(Resources[Walk]):
    """Where a session stands is read before its lock is taken."""

    @asynccontextmanager
    async def mutate(self, scope: Scope) -> AsyncIterator[Change[Walk]]:
        session = self._known(self._request(scope))
        early = None if session is None else self._position(session)
        async with super().mutate(scope) as change:
            yield change
        change.headers = early


def s21(patch: Patch) -> None:
    patch.setitem(fleet.SERVERS, "game", partial(game_app, kind=EarlyPositions))


def s65(patch: Patch) -> None:
    nothing = {"reward": 0.0, "score": 0, "turns": 0, "messages": [], "state": None}
    patch.setitem(fleet.SERVERS, "environment", partial(environment_app, when_lost=nothing))


def s33(patch: Patch) -> None:
    patch.setattr(SessionData, "applied", lambda self, operation_id: None)


def s16(patch: Patch) -> None:
    patch.setattr(Fences, "forget", lambda self, rollout_ids: None)


def s25(patch: Patch) -> None:
    patch.setattr(Lease, "arm", lambda self, until: None)


# --- the framework's half


class Forgetful(ForgetfulTrainer, life.SlowTrainer):
    """It does not say what it has consumed."""


class Hasty(HastyTrainer, life.SlowTrainer):
    """Its cursor runs ahead of its dispatches."""


def s35(patch: Patch) -> None:
    patch.setattr(life, "SlowTrainer", Forgetful)


def s40(patch: Patch) -> None:
    patch.setattr(life, "SlowTrainer", Hasty)


# --- files


def s34(patch: Patch) -> None:
    patch.setattr(ProcessDisk, "fsync_dir", lambda self, path: None)


def s34_files(patch: Patch) -> None:
    sync = ProcessDisk.sync

    def only_directories(self: ProcessDisk, operation: str, path: Any, done: Callable[[], None]) -> None:
        sync(self, operation, path, done if operation == "fsync_dir" else lambda: None)

    patch.setattr(ProcessDisk, "sync", only_directories)


# --- the coordinator


def s37(patch: Patch) -> None:
    def runnable(self: Recovered, new: Any = ()) -> Batch:
        continued = {each.rollout_id for each in self.verdicts if each.disposition is Disposition.CONTINUE}
        return Batch(tuple(each for each in self.runnable_(new).episodes if each.rollout_id in continued))

    patch.setattr(Recovered, "runnable", runnable)


def s44(patch: Patch) -> None:
    patch.setattr(Store, "overtaken_by", lambda self, epoch: ())


def s52(patch: Patch) -> None:
    deliver = Dispatcher._deliver

    async def and_release(self: Dispatcher, receipt: Receipt, body: Any) -> None:
        await deliver(self, receipt, body)
        await self._acknowledge(self._life.ledger[receipt.rollout_id].dispatch.target)

    patch.setattr(Ledger, "is_saved", lambda self, rollout_id: self.rollouts[rollout_id].has_result)
    patch.setattr(Dispatcher, "_deliver", and_release)


def s03(patch: Patch) -> None:
    counted = Coordinator._counted

    def or_else(self: Coordinator, outcome: Any) -> Any:
        if not outcome.published:
            raise RuntimeError(outcome.story())
        return counted(self, outcome)

    patch.setattr(Coordinator, "_counted", or_else)


PLANTED: Final = tuple(
    Planted(number, says, plant, frozenset(rules), seed)
    for number, says, plant, rules, seed in (
        ("S3", "a checkpoint that fails ends the run", s03, ("exception",), 3),
        ("S15", "an agent begins with the task although it has a boundary", s15, ("I57",), 0),
        ("S16", "marks of what is over are kept for ever", s16, ("I75",), 5),
        ("S21", "a position is read before its session's lock is taken", s21, ("I35",), 0),
        ("S25", "no lease ever ends", s25, ("I21",), 6),
        ("S33", "a call that is sent again is applied again", s33, ("I10", "I57"), 28),
        ("S34", "directories are not synced", s34, ("I10", "I85", "I96"), 1),
        ("S34", "files are not synced", s34_files, ("I20", "I44"), 1),
        ("S35", "a trainer does not say what it has consumed", s35, ("I68",), 4),
        ("S37", "rollouts without a boundary are not started over", s37, ("I11",), 4),
        ("S40", "a trainer's cursor runs ahead of its dispatches", s40, ("I11",), 6),
        ("S44", "a coordinator does not look whether it was overtaken", s44, ("I98",), 0),
        ("S52", "results are released before they are saved", s52, ("I67",), 1),
        ("S65", "a lost server makes a result with reward 0", s65, ("I57",), 8),
    )
)


def main() -> int:
    """Looks for each, or for those whose number is named."""
    for each in PLANTED:
        if sys.argv[1:] and each.number not in sys.argv[1:]:
            continue
        for seed in range(MOST):
            outcome = each.outcome(seed)
            if not outcome.good:
                rules = ", ".join(sorted({problem.rule for problem in outcome.problems}))
                print(f"| {each.number} | {each.says} | {rules} | {seed + 1} |", flush=True)
                print(f"{outcome.problems[0]}", file=sys.stderr, flush=True)
                break
        else:
            print(f"| {each.number} | {each.says} | not found | {MOST} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
