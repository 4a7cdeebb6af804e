"""Hypothesis profiles, chosen by HYPOTHESIS_PROFILE; `profiles` says what they mean for running code.

Pure tables: `dev` looks somewhere else each time, `ci` does the same again, `deep` takes many examples.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Verbosity, settings

from stateful_tests.profiles import MINUTES, PROFILE

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
settings.register_profile("deep", settings.get_profile("dev"), max_examples=2000, stateful_step_count=80)
settings.load_profile(PROFILE)


def pytest_report_header() -> str:
    """Says what was run, so that it can be run again."""
    derandomized = settings.get_profile(PROFILE).derandomize  # as Hypothesis does by itself where it sees CI
    seed = "from the test itself (derandomize)" if derandomized else "random; give --hypothesis-seed=N to choose it"
    return f"hypothesis profile {PROFILE!r}: seed {seed}; on running code {MINUTES:g} minutes"
