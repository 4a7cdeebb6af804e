"""Hypothesis profiles, chosen by HYPOTHESIS_PROFILE: `dev` looks somewhere else each time, `ci` does the same again."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Verbosity, settings

SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]

settings.register_profile(
    "dev",
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    print_blob=True,
    suppress_health_check=SLOW,
)
settings.register_profile(
    "ci",
    max_examples=150,
    stateful_step_count=80,
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=SLOW,
    verbosity=Verbosity.normal,
)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")
settings.load_profile(PROFILE)


def pytest_report_header() -> str:
    """Says what was run, so that it can be run again."""
    seed = "from the test itself (derandomize)" if PROFILE == "ci" else "random; give --hypothesis-seed=N to choose it"
    return f"hypothesis profile {PROFILE!r}: seed {seed}"
