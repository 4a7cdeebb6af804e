"""What a planted fault is, and how it is looked for."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import pytest
from attrs import frozen
from hypothesis import Phase
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test

from participants.net.http import ASGIApp
from participants.simulation.fleet import SERVERS
from participants.simulation.job import job
from statecore.simulate import run
from statecore.testing.stateful import AsyncRuleBasedStateMachine
from stateful_tests.job_rules import JobRules
from stateful_tests.kind_rules import Agent, Environment, Policy, Resources
from stateful_tests.profiles import how

Patch = pytest.MonkeyPatch
MOST: Final[Mapping[bool, int]] = {True: 60, False: 150}
"""So many seeds of a simulation, and so many examples, are looked at before a fault counts as not found."""


class Weapon(StrEnum):
    """What looks for a fault: whole simulated jobs, or random rules on a job or on one server of a kind."""

    SIMULATION = "simulated jobs"
    JOB = "rules of a job"
    RESOURCES = "rules of one resources server"
    AGENT = "rules of one agent"
    ENVIRONMENT = "rules of one environment"
    POLICY = "rules of one policy model"

    @property
    def simulates(self) -> bool:
        return self is Weapon.SIMULATION

    @property
    def machine(self) -> type[AsyncRuleBasedStateMachine]:
        """The rules; KeyError for a simulation."""
        return MACHINES[self]


MACHINES: Final[Mapping[Weapon, type[AsyncRuleBasedStateMachine]]] = {
    Weapon.JOB: JobRules,
    Weapon.RESOURCES: Resources,
    Weapon.AGENT: Agent,
    Weapon.ENVIRONMENT: Environment,
    Weapon.POLICY: Policy,
}


class _Enough(Exception):
    """So many examples were begun, and nothing is found in them."""


@frozen
class Fault:
    """One scenario in the code: `plant` puts it there.

    `broken` are the words of which one must be in what is found: numbers of invariants or scenarios, `exception`.
    `after` is how many seeds it takes, or examples of seed 0, which another release of Hypothesis may draw otherwise.
    """

    scenario: str
    says: str
    plant: Callable[[Patch], None]
    weapon: Weapon
    broken: Sequence[str]
    after: int

    @property
    def quick(self) -> bool:
        """Whether it is looked for wherever the tests run: one seed, or a few examples."""
        return self.weapon.simulates or self.after <= 3

    def found_again(self) -> frozenset[str]:
        """Which of the words are in what the last of the seeds shows, or any example; empty: nothing is found."""
        if self.weapon.simulates:
            return self._of_seed(self.after - 1)
        found = self._of_examples(MOST[False])
        return frozenset() if found is None else found[1]

    def look(self, most: int | None = None) -> tuple[int, frozenset[str]] | None:
        """After how many it is found, and which words say so; None if it is not found in `most`."""
        most = MOST[self.weapon.simulates] if most is None else most
        if not self.weapon.simulates:
            return self._of_examples(most)
        for seed in range(most):
            if found := self._of_seed(seed):
                return seed + 1, found
        return None

    def _of_seed(self, seed: int) -> frozenset[str]:
        with pytest.MonkeyPatch.context() as patch:
            self.plant(patch)
            return frozenset(self.broken) & {problem.rule for problem in run(job, seed).problems}

    def _of_examples(self, most: int) -> tuple[int, frozenset[str]] | None:
        """The first `most` of always as many: asked for fewer, Hypothesis draws others from the first one on."""
        begun = []

        class Counted(self.weapon.machine):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                begun.append(self)
                if len(begun) > most + 1:  # a failure is begun once more
                    raise _Enough

        settings = how(MOST[False], phases=[Phase.generate])
        with pytest.MonkeyPatch.context() as patch:
            _draws_by_the_seed_alone(patch)
            self.plant(patch)
            try:
                run_state_machine_as_test(seeded(0)(Counted), settings=settings)
            except Exception as error:
                if len(begun) > most + 1:
                    return None
                words = frozenset(each for each in self.broken if re.search(rf"\b{each}\b", str(error)))
                if not words:
                    raise
                return len(begun) - 1, words  # the last one is the failure once more
        return None


def _draws_by_the_seed_alone(patch: Patch) -> None:
    """Hypothesis also draws values that stand in our sources: every edit of any of them would move all examples.

    No setting is there for it; a release that has other names for it finds all faults too, after other numbers.
    """
    providers: Any = sys.modules.get("hypothesis.internal.conjecture.providers")
    if hasattr(providers, "_get_local_constants") and hasattr(providers, "CONSTANTS_CACHE"):
        patch.setattr(providers, "_get_local_constants", type(providers._get_local_constants()))
        patch.setattr(providers, "CONSTANTS_CACHE", type(providers.CONSTANTS_CACHE)(1024))  # it may hold such values


def replaces(where: Any, name: str, instead: Any) -> Callable[[Patch], None]:
    """What plants a fault by one other attribute."""
    return lambda patch: patch.setattr(where, name, instead)


def serves(name: str, maker: Callable[..., ASGIApp]) -> Callable[[Patch], None]:
    """What plants a fault by another server in the place of that one of the simulated job."""
    return lambda patch: patch.setitem(SERVERS, name, maker)
