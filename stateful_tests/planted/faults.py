"""All planted faults, and why the other scenarios are not planted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stateful_tests.planted import calls, files, job, kinds, rollouts, servers, workers
from stateful_tests.planted.fault import Fault


def _in_order(fault: Fault) -> tuple[bool, int]:
    return not fault.scenario.startswith("S"), int(fault.scenario[1:])


_PLACES: Final = (servers, kinds, workers, calls, rollouts, job, files)
_EVERY: Final = tuple(fault for place in _PLACES for fault in place.FAULTS)
FAULTS: Final[tuple[Fault, ...]] = tuple(sorted(_EVERY, key=_in_order))

NOT_PLANTED: Final[Mapping[str, str]] = {
    "S1": "not planted yet",
    "S4": "not planted yet",
    "S10": "not planted yet",
    "S11": "not planted yet",
    "S13": "not planted yet",
    "S14": "no token store is built: what is done with its receipt is shown by `tests/test_recovery.py`",
    "S18": "not planted yet",
    "S20": "not planted yet",
    "S22": "not planted yet",
    "S23": "not planted yet",
    "S24": "not planted yet",
    "S26": "not planted yet",
    "S28": "not planted yet",
    "S29": "not planted yet",
    "S30": "not planted yet",
    "S45": "not planted yet",
    "S59": "not planted yet",
}
"""By scenario: why neither simulation nor the rules look for it, and who does instead."""
