"""Every mutation of every cell of the protocol's tables, and which suite notices: `python -m tests.cell_mutations`.

First the tests of each machine's behaviour are asked, then, about what those let pass, the pinned steps of its table.
What neither notices must be in `cell_survivors.toml`, with a reason. Exit code 1 if that list is wrong. Names of tables
on the command line choose some of them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from statecore.mutate import Known, Survey, read_known, survey
from tests.table_walks import walks

SURVIVORS: Final = Path(__file__).with_name("cell_survivors.toml")
HERE: Final = Path(__file__).resolve().parent
BEHAVIOUR: Final[Mapping[str, tuple[str, ...]]] = {
    "attempt": ("test_attempt.py",),
    "deployment": ("test_deployment_machines.py",),
    "episode_step": ("test_episode_step.py",),
    "gate": ("test_gate.py",),
    "handoff": ("test_handoff.py",),
    "heartbeat": ("test_deployment_machines.py",),
    "ledger_entry": ("test_handoff.py",),
    "model_call": ("test_model_call.py",),
    "participant": ("test_control.py",),
    "resource_session": ("test_resource_session.py",),
    "response": ("test_model_call.py",),
    "transaction": ("test_transaction.py",),
}
"""The pure tests of what each machine is for."""


@frozen(kw_only=True)
class Row:
    """What came of one table: so many mutations, noticed by behaviour, by the pins, and what is left."""

    table: str
    behaviour: Survey
    pins: Survey
    seconds: float

    @property
    def line(self) -> str:
        by_behaviour, by_pins, left = len(self.behaviour.noticed), len(self.pins.noticed), len(self.pins.survivors)
        total = by_behaviour + by_pins + left
        return f"{self.table:17} {total:5} {by_behaviour:9} {by_pins:5} {left:9}   {self.seconds:5.1f} s"


def row(table: str, known: Sequence[Known]) -> Row:
    """The mutations of one table against its suites."""
    began = time.monotonic()
    walk = walks()[table]
    behaviour = survey([walk.table], [str(HERE / name) for name in BEHAVIOUR[table]])
    pin = f"{HERE / 'test_pinned_steps.py'}::test_every_cell_does_what_is_pinned[{table}]"
    pins = survey([walk.table], [pin], known, only=set(behaviour.survivors))
    return Row(table=table, behaviour=behaviour, pins=pins, seconds=time.monotonic() - began)


def main(names: Sequence[str]) -> int:
    if unknown := [each for each in names if each not in BEHAVIOUR]:
        print(f"no table is named {unknown[0]}: {', '.join(BEHAVIOUR)}", file=sys.stderr)
        return 2
    known = read_known(SURVIVORS)
    print(f"{'table':17} {'all':>5} {'behaviour':>9} {'pins':>5} {'survivors':>9}")
    rows = []
    for table in names or BEHAVIOUR:
        rows.append(row(table, known))
        print(rows[-1].line, flush=True)
    for each in rows:
        if not each.pins.good:
            print(each.pins.story())
    return 0 if all(each.pins.good for each in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
