"""Faults of one kind of server: what keeps it standing while a checkpoint is open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from models.twins import without_rule
from participants.machines.gate import GATE, Arrived, ArrivedImpatient, GateState, admit
from participants.servers import admission, policy_model
from participants.servers.resources import Resources
from statecore import go
from stateful_tests.planted.fault import Fault, Patch, Weapon, replaces


def admits(event: type) -> Callable[[Patch], None]:
    """What plants a gate that lets such an arrival in although nothing moves any more."""
    table = without_rule(GATE, {(GateState.QUIET, event): go(GateState.DRAINING, do=admit)})
    return replaces(admission, "GATE", table)


def prepared_by_a_note(patch: Patch) -> None:
    """A file beside the checkpoints, written while it prepares."""
    prepared = Resources.prepared

    def and_noted(self: Resources[Any], left_out: frozenset[str]) -> None:
        prepared(self, left_out)
        with self.seams.disk.create(f"{self.settings.root}/note") as note:
            note.write(b"prepared")

    patch.setattr(Resources, "prepared", and_noted)


ADMITS: Final = "a closed gate admits"

FAULTS: Final = (
    Fault("I24", ADMITS, admits(Arrived), Weapon.RESOURCES, ["I24"], 9),
    Fault("I24", ADMITS, admits(Arrived), Weapon.POLICY, ["I24"], 36),
    Fault("I24", ADMITS, admits(ArrivedImpatient), Weapon.ENVIRONMENT, ["I24"], 9),
    Fault(
        "I24",
        "a call that a commit goes without gets its row while it is committed",
        replaces(policy_model, "is_left_out", lambda _: False),
        Weapon.POLICY,
        ["I24"],
        68,
    ),
    Fault("I40", "a prepare writes a file", prepared_by_a_note, Weapon.RESOURCES, ["I40"], 1),
)
