"""How long the machines look, by HYPOTHESIS_PROFILE: `dev` for seconds, `ci` for minutes, `deep` as long as asked.

On running code a search is a row of seeds, and each seed is a few examples: `dev` takes seed 0 and does the same every
time, `ci` takes 1, 2, ... until its time is over, `deep` does so for MINUTES from a seed that the clock gives. Whatever
fails says its seed; SEED=N takes that one alone, and then no planted faults are looked for that take long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from statecore.testing.stateful import AsyncRuleBasedStateMachine

USUAL_MINUTES = {"dev": 0.0, "ci": 2.0, "deep": 30.0}


def _given(name: str, usual: str, kind: Callable[[str], object], wanted: str) -> str:
    """What the environment says, or else what is usual. Nothing is run where `kind` does not take it."""
    said = os.environ.get(name) or usual
    try:
        kind(said)
    except (KeyError, ValueError):
        pytest.exit(f"{name}={said}: give {wanted}", returncode=pytest.ExitCode.USAGE_ERROR)
    return said


PROFILE = _given("HYPOTHESIS_PROFILE", "dev", USUAL_MINUTES.__getitem__, ", ".join(USUAL_MINUTES))
MINUTES = float(_given("MINUTES", str(USUAL_MINUTES[PROFILE]), float, "a number of minutes"))
"""For searches on running code; the other tests of stateful_tests come to that."""
SEED = _given("SEED", "", lambda said: int(said or 0), "a whole number")
EXAMPLES = 10
"""Of each seed, beyond `dev`: few, so that a search ends when its time is over."""
STEPS = 25


def how(examples: int, **more: object) -> settings:
    """Settings for machines on running code, whatever the profile."""
    values: dict[str, object] = {
        "max_examples": examples,
        "stateful_step_count": STEPS,
        "deadline": None,
        "database": None,
        "suppress_health_check": list(HealthCheck),
        "print_blob": True,
        "report_multiple_bugs": False,
        "phases": [Phase.generate, Phase.shrink],
    }
    return settings(**(values | more))  # type: ignore[arg-type]


def seeds(share: float) -> Iterator[int]:
    """The seeds to look at, in that share of the time."""
    if PROFILE == "dev" or SEED:
        yield int(SEED or 0)
        return
    number = 1 if PROFILE == "ci" else int(time.time())
    until = time.monotonic() + 60.0 * MINUTES * share
    while time.monotonic() < until:
        yield number
        number += 1


def search(machine: type[AsyncRuleBasedStateMachine], *, examples: int, share: float) -> None:
    """`examples` of one seed are looked at under `dev`, else as many seeds as `share` of the time allows."""
    for each in seeds(share):
        seeded = hypothesis.seed(each)(type(machine.__name__, (machine,), {}))
        try:
            run_state_machine_as_test(seeded, settings=how(examples if PROFILE == "dev" else EXAMPLES))
        except Exception as error:
            error.add_note(f"found by seed {each}: make stateful PROFILE={PROFILE} SEED={each}")
            raise
