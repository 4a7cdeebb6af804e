"""Simulation: a world of processes, messages and disks is played from a seed; one seed, one history, byte for byte.

`run(world, seed)` plays a world once, `series` plays many seeds on all cores. What a world is made of: `Simulation`
(its dice, its disk, its processes, its history), `Process`, `CrashDisk` with `Survives`. Nothing here knows what the
processes say to each other; for a job over HTTP there is `participants.simulation`. docs/how-to/simulate.md
"""

from .crash_disk import Crash, CrashDisk, Survives
from .dice import Dice
from .disks import ProcessDisk, SharedDisk
from .history import EndlessRun, History, journals_in, lines_of
from .process import DriftingClock, Process, ProcessEnded
from .run import Outcome, Problem, Simulation, SimulationError, World, run
from .scheduling import SchedulerUnknown, tasks_in_order_of
from .series import Progress, Series, cores, histories, series

__all__ = [
    "Crash",
    "CrashDisk",
    "Dice",
    "DriftingClock",
    "EndlessRun",
    "History",
    "Outcome",
    "Problem",
    "Process",
    "ProcessDisk",
    "ProcessEnded",
    "Progress",
    "SchedulerUnknown",
    "Series",
    "SharedDisk",
    "Simulation",
    "SimulationError",
    "Survives",
    "World",
    "cores",
    "histories",
    "journals_in",
    "lines_of",
    "run",
    "series",
    "tasks_in_order_of",
]
