"""The one place that knows how trio orders its tasks: from here on, a seed does.

trio runs the tasks that can run in batches and shuffles each batch, on purpose, with dice of its own that nothing
public seeds. A simulation lets one message or timer go at a time, once every task is blocked, so a batch mostly has one
task; but a message may wake several (all who wait at a gate), and these race. trio has a switch for Hypothesis that
puts a batch in an order by age before it is shuffled; with it and with seeded dice the whole run is a function of the
seed. Both names are private. If a release of trio no longer has them, a simulation says so before it begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

import trio

from ..errors import StatecoreError

MODULE: Final = "trio._core._run"
DICE: Final = "_r"
SWITCH: Final = "_ALLOW_DETERMINISTIC_SCHEDULING"


class SchedulerUnknown(StatecoreError):
    """This release of trio keeps its order of tasks somewhere else."""


@contextmanager
def tasks_in_order_of(seed: int | str) -> Iterator[None]:
    """Inside of the block, trio runs tasks in an order that `seed` alone decides. SchedulerUnknown if that cannot be.

    Not for two threads at once: trio has one order for all its runs.
    """
    scheduler = _scheduler()
    dice, switch = getattr(scheduler, DICE), getattr(scheduler, SWITCH)
    state = dice.getstate()
    dice.seed(seed)
    setattr(scheduler, SWITCH, True)
    try:
        yield
    finally:
        dice.setstate(state)
        setattr(scheduler, SWITCH, switch)


def _scheduler() -> Any:
    try:
        module = import_module(MODULE)
    except ImportError as error:
        raise SchedulerUnknown(_missing(MODULE)) from error
    for name in (DICE, SWITCH):
        if not hasattr(module, name):
            raise SchedulerUnknown(_missing(f"{MODULE}.{name}"))
    return module


def _missing(name: str) -> str:
    return (
        f"trio {trio.__version__} has no {name}, by which a simulation orders tasks; one seed would have many "
        "histories. Use a release that has it, and look at statecore/simulate/scheduling.py"
    )
