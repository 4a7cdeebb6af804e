"""Faults planted into the running code, and after how many examples the machines find each.

`python -m stateful_tests.planted` looks for all of them, which takes minutes, and prints the rows of the table in
docs/how-to/test-running-code.md.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve, frozen
from hypothesis import Phase as HypothesisPhase
from hypothesis import seed
from hypothesis.stateful import run_state_machine_as_test

from models.twins import without_rule
from participants.files.draft import Draft
from participants.files.store import Publication, Store
from participants.machines.control import PARTICIPANT, Phase, PrepareRequested, open_checkpoint
from participants.machines.gate import GATE, Arrived, GateState, admit
from participants.machines.resource_session import SessionData
from participants.servers import admission, participant
from participants.servers.agent_session import Session
from participants.servers.asgi import Shell
from participants.servers.lease import Lease
from statecore import go
from statecore.testing.stateful import AsyncRuleBasedStateMachine
from stateful_tests.job_rules import JobRules
from stateful_tests.kind_rules import Resources
from stateful_tests.profiles import how

MOST = 150
"""So many examples are looked at, and by then it must be found."""


def _open_again(data: Any, event: Any) -> Any:
    return open_checkpoint(evolve(data, ended=type(data.ended)()), event)


def _publish_unsynced(store: Store, draft: Draft) -> Publication:
    final = store.path(draft.checkpoint_id)
    store._disk.rename(draft.directory, final)
    return Publication(draft.checkpoint_id, final, None)


@frozen
class Planted:
    """A fault in the code: who finds it, by which words, and what is put in place of what."""

    machine: type[AsyncRuleBasedStateMachine]
    found: str
    where: Any
    name: str
    instead: Any
    quick: bool = False


REOPENING = without_rule(PARTICIPANT, {(Phase.IDLE, PrepareRequested): go(Phase.PREPARING, do=_open_again)})
PLANTED = {
    "a lease does not end": Planted(Resources, "I20|I21", Lease, "arm", lambda *_: None, quick=True),
    "what is over is opened again": Planted(Resources, "I14", participant, "PARTICIPANT", REOPENING),
    "a closed gate admits": Planted(
        Resources,
        "I24|I74",
        admission,
        "GATE",
        without_rule(GATE, {(GateState.QUIET, Arrived): go(GateState.DRAINING, do=admit)}),
    ),
    "nobody asks for the token": Planted(Resources, "I19", Shell, "_check_token", lambda *_: None),
    "a job's lease does not end": Planted(JobRules, "I20|I21", Lease, "arm", lambda *_: None, quick=True),
    "an overtaken coordinator goes on": Planted(JobRules, "S62", Store, "overtaken_by", lambda *_: ()),
    "a continuation begins at the beginning": Planted(JobRules, "I36|I57", Session, "restored", lambda *_: None),
    "a repeated operation is applied again": Planted(JobRules, "I36|I97", SessionData, "applied", lambda *_: None),
    "a published name is not synced": Planted(JobRules, "I43|I44|I96|I65", Store, "publish", _publish_unsynced),
}


def examples_until_found(planted: Planted, patch: pytest.MonkeyPatch) -> int:
    """How many examples it took, of seed 0; the failure must say what it is found by."""
    begun = []

    class Counted(planted.machine):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            begun.append(self)

    patch.setattr(planted.where, planted.name, planted.instead)
    with pytest.raises(BaseException, match=planted.found):
        run_state_machine_as_test(seed(0)(Counted), settings=how(MOST, phases=[HypothesisPhase.generate]))
    return len(begun) - 1  # the last one is the failure once more


def main(names: Sequence[str]) -> int:
    """One row for each fault, or for those named; 1 if one is not found."""
    logging.disable(logging.CRITICAL)
    missed = 0
    for name in names or PLANTED:
        planted = PLANTED[name]
        with pytest.MonkeyPatch.context() as patch:
            try:
                found = f"{examples_until_found(planted, patch)}"
            except pytest.fail.Exception:
                found, missed = f"not in {MOST}", 1
        print(f"| {name} | {planted.machine.__name__} | {planted.found.replace('|', ' or ')} | {found} |", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
