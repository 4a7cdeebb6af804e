"""Faults of rollouts: agents, sessions, positions, the chain of model calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from participants.demo.broken_servers import forgetful_agent
from participants.demo.environment_server import environment_app
from participants.net.http import Scope
from participants.servers.agent_session import Session
from participants.servers.resources import Change, Resources
from participants.simulation.game import Walk, game_app
from stateful_tests.planted.fault import Fault, Weapon, replaces, serves


class EarlyPositions(Resources[Walk]):
    """Where a session stands is read before its lock is taken."""

    @asynccontextmanager
    async def mutate(self, scope: Scope) -> AsyncIterator[Change[Walk]]:
        session = self._known(self._request(scope))
        early = None if session is None else self._position(session)
        async with super().mutate(scope) as change:
            yield change
        change.headers = early


NOTHING: Final = {"reward": 0.0, "score": 0, "turns": 0, "messages": [], "state": None}
FROM_THE_BEGINNING: Final = "an agent begins with the task although it has a boundary"

FAULTS: Final = (
    Fault("S15", FROM_THE_BEGINNING, serves("agent", forgetful_agent), Weapon.SIMULATION, ["I57"], 1),
    Fault("S15", FROM_THE_BEGINNING, replaces(Session, "restored", lambda *_: None), Weapon.JOB, ["I36", "I57"], 5),
    Fault(
        "S21",
        "a position is read before its session's lock is taken",
        serves("game", partial(game_app, kind=EarlyPositions)),
        Weapon.SIMULATION,
        ["I35"],
        1,
    ),
    Fault(
        "S65",
        "a lost server makes a result with reward 0",
        serves("environment", partial(environment_app, when_lost=NOTHING)),
        Weapon.SIMULATION,
        ["I57"],
        9,
    ),
)
