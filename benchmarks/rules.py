"""Steps a second of Hypothesis machines whose rules do next to nothing: plain ones, and async ones in a trio run.

The machines take turns. A step is a rule and an invariant; rules of the async machine pass a checkpoint, and one of
three sleeps for a second of its own clock. The goal is 1,600 async steps a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import trio
import trio.to_thread
from hypothesis import HealthCheck, settings, stateful
from hypothesis import strategies as st

from statecore.testing.stateful import AsyncRuleBasedStateMachine, invariant, rule

from .measure import median_interval, table

ROUNDS = 7
HOW = settings(
    max_examples=100,
    stateful_step_count=50,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
GOAL = 1600


class Plain(stateful.RuleBasedStateMachine):
    """Hypothesis's own machine: the rate that none on top of it can exceed."""

    total = 0
    steps: ClassVar[int] = 0

    @stateful.rule(n=st.integers(0, 9))
    def add(self, n: int) -> None:
        Plain.steps += 1
        self.total += n

    @stateful.rule()
    def subtract(self) -> None:
        Plain.steps += 1
        self.total -= 1

    @stateful.rule()
    def wait(self) -> None:
        Plain.steps += 1

    @stateful.invariant()
    def is_in_bounds(self) -> None:
        assert -1000 < self.total < 1000


class Async(AsyncRuleBasedStateMachine):
    """The same rules, async."""

    total = 0
    steps: ClassVar[int] = 0

    @rule(n=st.integers(0, 9))
    async def add(self, n: int) -> None:
        Async.steps += 1
        await trio.lowlevel.checkpoint()
        self.total += n

    @rule()
    async def subtract(self) -> None:
        Async.steps += 1
        await trio.lowlevel.checkpoint()
        self.total -= 1

    @rule()
    async def wait(self) -> None:
        Async.steps += 1
        await trio.sleep(1)

    @invariant()
    async def is_in_bounds(self) -> None:
        assert -1000 < self.total < 1000


MACHINES: dict[str, type[Plain | Async]] = {"RuleBasedStateMachine": Plain, "AsyncRuleBasedStateMachine": Async}


def measured(machine: type[Plain | Async], how: settings) -> dict[str, float]:
    """Steps, and the seconds that they took: on the wall, and of this process."""
    machine.steps = 0
    began, used = time.perf_counter(), time.process_time()
    stateful.run_state_machine_as_test(machine, settings=how)
    return {"steps": machine.steps, "wall_s": time.perf_counter() - began, "cpu_s": time.process_time() - used}


async def run(directory: Path, *, short: bool) -> dict[str, Any]:
    """Each machine so many times, in turns; in a thread, since a machine has a run of its own."""
    rounds = 2 if short else ROUNDS
    how = settings(HOW, max_examples=20) if short else HOW
    found: dict[str, list[dict[str, float]]] = {name: [] for name in MACHINES}
    for _ in range(rounds):
        for name, machine in MACHINES.items():
            found[name].append(await trio.to_thread.run_sync(measured, machine, how))
    return {"goal": GOAL, "machines": found}


def show(results: dict[str, Any], form: Callable[..., str] = table) -> str:
    """A row for each machine; rates are medians with their 95 % intervals."""
    rows = []
    for name, runs in results["machines"].items():
        row = [name, f"{sum(each['steps'] for each in runs):,.0f}"]
        for seconds in ("wall_s", "cpu_s"):
            middle, low, high = median_interval([each["steps"] / each[seconds] for each in runs])
            row.append(f"{middle:,.0f} ({low:,.0f} .. {high:,.0f})")
        rows.append(row)
    shown = form(["machine", "steps", "steps/s", "steps per CPU second"], rows)
    return f"{shown}\ngoal: {results['goal']:,} async steps/s"
