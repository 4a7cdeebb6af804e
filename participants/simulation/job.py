"""A whole checkpointed job as a world for `statecore.simulate`: everything in it is what runs in production.

Real: coordinator, servers, clients, files, recovery. Simulated: time, network, disk, processes, trainer and players.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from statecore.simulate import Simulation

from .fleet import ROOT, SERVERS, Maker, Site
from .network import SimulatedNetwork
from .operator import Operator
from .plan import draw_adversity, draw_plan
from .truth import Truth
from .verdict import examine

LOGGER: Final = "statecore"


class _Told(logging.Handler):
    """What the product logs stands in the history."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(logging.INFO)
        self._simulation = simulation

    def emit(self, record: logging.LogRecord) -> None:
        self._simulation.history.tell("log", record.levelname.lower(), says=record.getMessage())


@contextmanager
def _logged(simulation: Simulation) -> Iterator[None]:
    logger, handler = logging.getLogger(LOGGER), _Told(simulation)
    before = logger.propagate, logger.level
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before[0]
        logger.setLevel(before[1])


async def job(simulation: Simulation, **makers: Maker) -> None:
    """One job is run to its end under all that its seed draws, and then everything that can be seen is checked.

    `makers` are servers made otherwise than usual, by name: a kind of one's own in the place of `agent`, say.
    """
    plan, adversity = draw_plan(simulation.dice.of("plan")), draw_adversity(simulation.dice.of("adversity"))
    network = SimulatedNetwork(simulation, adversity.weather)
    simulation.disk.now.mkdir(ROOT)
    simulation.disk.now.fsync_dir("/")
    simulation.history.tell(
        "simulation",
        "plan",
        rollouts={each.rollout_id: each.turns for each in plan.rollouts},
        blows=[f"{each.blow.value} after {each.number} {each.trigger.value}" for each in adversity.strikes],
        supervision=adversity.supervision.value,
    )
    with _logged(simulation):
        async with network.inner, trio.open_nursery() as nursery:
            truth = Truth(simulation)
            site = Site(simulation, network, truth, plan, adversity.supervision, nursery, {**SERVERS, **makers})
            operator = Operator(site, adversity)
            await operator.run()
            for rule, text in examine(site, operator.lives):
                simulation.violated(rule, text)
            nursery.cancel_scope.cancel()
    simulation.count("rollouts", len(plan.rollouts))
    simulation.count("lives", len(operator.lives))
