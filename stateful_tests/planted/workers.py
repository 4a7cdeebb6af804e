"""Faults of servers with several workers. None is built: this is what a job makes of one that somebody puts there."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Final

from attrs import evolve

from participants.coordination import deployment
from participants.coordination.deployment import DiscoveryFailed
from participants.coordination.introduction import Introduction, introduce
from participants.demo.servers import Place
from participants.identity import RUN_PREFIX
from participants.net.client import ControlClient
from participants.net.http import ASGIApp, Receive, Scope, Send
from participants.servers.asgi import Shell
from participants.servers.auxiliary_model import AuxiliaryModel
from participants.simulation.game import game_app
from statecore.seams import Clock
from stateful_tests.planted.fault import Fault, Patch, Weapon, serves

# --- S5


async def _one_worker_each(control: ControlClient, clock: Clock) -> Introduction | None:
    found = await introduce(control, clock)
    if found is not None and found.said["workers"]["count"] > 1:
        raise DiscoveryFailed([f"{control.name}: it has several workers"])
    return found


def judge_of_several(patch: Patch) -> None:
    said = AuxiliaryModel.capabilities
    several = {"workers": {"mode": "processes", "count": 4}}
    patch.setattr(AuxiliaryModel, "capabilities", lambda self: said(self) | several)


def several_refused(patch: Patch) -> None:
    """With the judge alone all is well: nobody asks it for its workers, since it takes no part."""
    judge_of_several(patch)
    patch.setattr(deployment, "introduce", _one_worker_each)


# --- S27, S36


class TwoWorkers:
    """Two games behind one address. Control calls reach the first; for a data call `choose` says which, 0 or 1."""

    def __init__(self, place: Place, choose: Callable[[Scope], int]) -> None:
        first, second = game_app(place), game_app(_open_from_the_start(place))
        assert isinstance(first, Shell)
        self.first, self.second, self._choose = first, second, choose
        self._inner, first.app = first.app, self._within

    @property
    def server(self) -> Any:
        return self.first.server

    async def _within(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The lifespan of the second is inside that of the first."""
        await (self.second if scope["type"] == "lifespan" else self._inner)(scope, receive, send)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_data = scope["type"] == "http" and scope["path"].startswith(RUN_PREFIX)
        chosen = self.second if is_data and self._choose(scope) else self.first
        await chosen(scope, receive, send)


def _open_from_the_start(place: Place) -> Place:
    return evolve(place, settings=evolve(place.settings, epoch_required=False))


def by_rollout(place: Place) -> ASGIApp:
    """Each rollout has a worker of its own choice."""
    return TwoWorkers(place, lambda scope: sum(scope["path"].split("/")[2].partition("-a")[0].encode()) % 2)


def in_turns(place: Place) -> ASGIApp:
    """Whichever worker is next."""
    turns = count()
    return TwoWorkers(place, lambda _scope: next(turns) % 2)


FAULTS: Final = (
    Fault(
        "S5",
        "a server that takes no part is refused since it has several workers",
        several_refused,
        Weapon.SIMULATION,
        ["I20"],
        1,
    ),
    Fault(
        "S27",
        "of two workers one is asked, and answers for both",
        serves("game", by_rollout),
        Weapon.SIMULATION,
        ["I35"],
        1,
    ),
    Fault(
        "S36",
        "a session's calls go to two workers in turns",
        serves("game", in_turns),
        Weapon.SIMULATION,
        ["I20"],
        1,
    ),
)
