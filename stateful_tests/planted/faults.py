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
    "S4": "a job that is switched off has no checkpoint and no server of ours to look at; `tests/test_switched_off.py` "
    "runs one, and compares its result and all that it sends",
    "S14": "no token store is built: what is done with its receipt is shown by `tests/test_recovery.py`",
    "S22": "no seed fails in these worlds: in a simulated job its rollout would end the life, and the fault with it; "
    "`tests/test_scenarios_control.py` has a seed that fails, and prepares after it",
}
"""By scenario: why neither simulation nor the rules look for it, and who does instead."""
