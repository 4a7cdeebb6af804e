"""All planted faults, and why the other scenarios are not planted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stateful_tests.planted import files, job, kinds, rollouts, servers, workers
from stateful_tests.planted.fault import Fault


def _in_order(fault: Fault) -> tuple[bool, int]:
    return not fault.scenario.startswith("S"), int(fault.scenario[1:])


_EVERY: Final = (*servers.FAULTS, *kinds.FAULTS, *workers.FAULTS, *rollouts.FAULTS, *job.FAULTS, *files.FAULTS)
FAULTS: Final[tuple[Fault, ...]] = tuple(sorted(_EVERY, key=_in_order))

NOT_PLANTED: Final[Mapping[str, str]] = {
    "S4": "a job that is switched off has no checkpoint and no server of ours to look at: tests/test_switched_off.py "
    "runs one, and compares its result and all that it sends",
    "S8": "not planted yet",
    "S9": "not planted yet",
    "S12": "not planted yet",
    "S14": "not planted yet",
    "S17": "not planted yet",
    "S19": "not planted yet",
    "S38": "not planted yet",
    "S42": "not planted yet",
    "S46": "not planted yet",
    "S51": "not planted yet",
    "S55": "not planted yet",
    "S60": "not planted yet",
    "S61": "not planted yet",
    "S63": "not planted yet",
    "S68": "not planted yet",
    "S69": "not planted yet",
}
"""By scenario: why neither simulation nor the rules look for it, and who does instead."""
