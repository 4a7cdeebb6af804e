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
    "S1": "not planted yet",
    "S4": "not planted yet",
    "S8": "not planted yet",
    "S9": "not planted yet",
    "S10": "not planted yet",
    "S11": "not planted yet",
    "S12": "not planted yet",
    "S13": "not planted yet",
    "S14": "not planted yet",
    "S17": "not planted yet",
    "S18": "not planted yet",
    "S19": "not planted yet",
    "S20": "not planted yet",
    "S22": "not planted yet",
    "S23": "not planted yet",
    "S24": "not planted yet",
    "S26": "not planted yet",
    "S28": "not planted yet",
    "S29": "not planted yet",
    "S30": "not planted yet",
    "S38": "not planted yet",
    "S42": "not planted yet",
    "S45": "not planted yet",
    "S46": "not planted yet",
    "S51": "not planted yet",
    "S55": "not planted yet",
    "S59": "not planted yet",
    "S60": "not planted yet",
    "S61": "not planted yet",
    "S63": "not planted yet",
    "S68": "not planted yet",
    "S69": "not planted yet",
}
"""By scenario: why neither simulation nor the rules look for it, and who does instead."""
