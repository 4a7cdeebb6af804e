"""Faults of what every server has: phases, gate, fences, leases, calls that come twice."""

from __future__ import annotations

from typing import Any, Final

from attrs import evolve

from models.twins import without_rule
from participants.machines.control import PARTICIPANT, Phase, PrepareRequested, open_checkpoint
from participants.machines.resource_session import SessionData
from participants.servers import participant
from participants.servers.asgi import Shell
from participants.servers.fences import Fences
from participants.servers.lease import Lease
from statecore import go
from stateful_tests.planted.fault import Fault, Patch, Weapon, replaces


def _open_again(data: Any, event: Any) -> Any:
    return open_checkpoint(evolve(data, ended=type(data.ended)()), event)


def reopened(patch: Patch) -> None:
    table = without_rule(PARTICIPANT, {(Phase.IDLE, PrepareRequested): go(Phase.PREPARING, do=_open_again)})
    patch.setattr(participant, "PARTICIPANT", table)


never_ends = replaces(Lease, "arm", lambda *_: None)
applied_again = replaces(SessionData, "applied", lambda *_: None)

FAULTS: Final = (
    Fault("S7", "what is over is opened again", reopened, Weapon.RESOURCES, ["I14"], 30),
    Fault(
        "S16",
        "marks of what is over are kept for ever",
        replaces(Fences, "forget", lambda *_: None),
        Weapon.SIMULATION,
        ["I75"],
        6,
    ),
    Fault("S25", "no lease ever ends", never_ends, Weapon.SIMULATION, ["I21"], 7),
    Fault("S25", "no lease ever ends", never_ends, Weapon.RESOURCES, ["I20", "I21"], 1),
    Fault("S25", "no lease ever ends", never_ends, Weapon.JOB, ["I20", "I21"], 5),
    Fault("S33", "a call that is sent again is applied again", applied_again, Weapon.SIMULATION, ["I10", "I57"], 29),
    Fault("S33", "a call that is sent again is applied again", applied_again, Weapon.JOB, ["I36", "I97"], 9),
    Fault(
        "I19",
        "nobody asks for the token",
        replaces(Shell, "_check_token", lambda *_: None),
        Weapon.RESOURCES,
        ["I19"],
        30,
    ),
)
