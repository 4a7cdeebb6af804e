"""The page of planted faults: what was put into the running code, who finds it, and after how many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from stateful_tests.planted.fault import Fault
from stateful_tests.planted.faults import FAULTS, NOT_PLANTED

HEAD: Final = ("", "planted", "found by", "what is found broken", "after")
INTRODUCTION: Final = """\
# Planted faults

Each is a [scenario](scenarios.md) put back into the running code (`stateful_tests/planted/`), or an
[invariant](invariants.md) that nobody keeps any more. [Simulated jobs](../how-to/simulate.md) look for it
in seeds from 0 on, the [rules](../how-to/test-running-code.md) in examples of 25 steps, of seed 0.
`python -m stateful_tests.planted` looks for all of them anew (examples are those of Hypothesis 6.170). `make test`
plays the last seed of those that simulation finds, and the examples of those that take three at most;
`make stateful PROFILE=ci` looks for all."""


def page() -> str:
    """The page."""
    scenarios = {each.scenario for each in FAULTS if each.scenario.startswith("S")}
    parts = [INTRODUCTION, f"{len(FAULTS)} faults of {len(scenarios)} scenarios."]
    parts.append(_table(HEAD, map(_row, FAULTS)))
    parts += ["## Not planted", _table(("", "why, and what shows it instead"), NOT_PLANTED.items())]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _row(fault: Fault) -> Sequence[str]:
    unit = ("seed" if fault.weapon.simulates else "example") + "s" * (fault.after != 1)
    broken = ", ".join(sorted(fault.broken))
    return fault.scenario, fault.says, fault.weapon.value, broken, f"{fault.after} {unit}"
