"""Small worlds to play. They are in a module of their own, which other processes import in no time."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import trio

from statecore.simulate import Simulation


async def waits(simulation: Simulation) -> None:
    """Two timers."""
    async with trio.open_nursery() as nursery:
        for name in ("a", "b"):
            nursery.start_soon(_one_wait, simulation, name)


async def _one_wait(simulation: Simulation, name: str) -> None:
    await trio.sleep(simulation.dice.between(0, 1))
    simulation.history.tell(name, "woke")


async def breaks(simulation: Simulation) -> None:
    """A bug in every third seed."""
    if simulation.seed % 3 == 2:
        raise KeyError("a bug")


async def sleeps(_simulation: Simulation) -> None:
    """It never ends."""
    await trio.sleep_forever()


async def ends_badly(_simulation: Simulation) -> None:
    """It never ends, and its end goes wrong."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("at its end")


async def exits(simulation: Simulation) -> None:
    """One seed takes its process with it."""
    if simulation.seed == 5:
        os._exit(1)


async def chatters(simulation: Simulation) -> None:
    """It never stops to tell of itself."""
    while True:
        simulation.history.tell("a", "b")


async def leaves(simulation: Simulation) -> None:
    """It wants to exit, in one seed."""
    if simulation.seed == 1:
        raise SystemExit(3)


async def interrupts(simulation: Simulation) -> None:
    """Somebody presses Ctrl-C in the third seed."""
    if simulation.seed == 2:
        raise KeyboardInterrupt


async def holds_a_lock(simulation: Simulation) -> None:
    """As long as its process lives, a lock on a file of its seed is held; and it is at work for a minute."""
    _hold(Path(os.environ["LOCKS"], str(simulation.seed)))


def _hold(path: Path) -> None:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("locked")
        file.flush()
        time.sleep(60)
