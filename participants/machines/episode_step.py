"""Where an episode of an environment server stands. Pure.

Between steps and inside a *waiting* step an episode blocks a checkpoint; parked at a boundary, inside a *replayable*
step (it counts at the boundary before it, I38), or with a late reply in hand, it is quiet.
docs/reference/protocol.md sections 4 and 6.
"""

from __future__ import annotations

from enum import StrEnum, auto

from attrs import frozen

from statecore import Cell, Table, go, refuse, stay


class EpisodeState(StrEnum):
    RUNNING = auto()  # between two steps
    WAITING = auto()  # in a step with an outside effect: never cut inside
    REPLAYABLE = auto()  # in a step that a restore runs again
    HOLDING = auto()  # a replayable step's reply came while the server was closed
    PARKED = auto()
    ENDED = auto()
    TOMBSTONED = auto()

    @property
    def quiet(self) -> bool:
        """Whether a checkpoint may hold it where it stands."""
        return self in (EpisodeState.REPLAYABLE, EpisodeState.HOLDING, EpisodeState.PARKED)


@frozen
class WaitBegan:
    pass


@frozen
class ReplayBegan:
    pass


@frozen
class StepEnded:
    """The step's result is recorded: `data` is the number of recorded results."""


@frozen
class ReplyHeld:
    """The reply of a replayable step came while the server was closed; it is not recorded yet (I24)."""


@frozen
class Parked:
    pass


@frozen
class Released:
    pass


@frozen
class EpisodeEnded:
    pass


@frozen
class Retired:
    pass


def count(index: int, _event: StepEnded) -> tuple[int, list[object]]:
    return index + 1, []


_E = EpisodeState
IN_STEP = refuse("in_step")
NO_STEP = refuse("no_step")
STANDS = refuse("parked")
OVER = refuse("episode_ended")
STALE = refuse("stale_attempt")


def _over(cell: Cell) -> dict[type, Cell]:
    return {WaitBegan: cell, ReplayBegan: cell, StepEnded: cell, ReplyHeld: cell, Parked: cell}


EPISODE_STEP = Table(
    "episode_step",
    data=int,
    initial=_E.RUNNING,
    final={_E.ENDED, _E.TOMBSTONED},
    doc="Where an episode stands: protocol.md sections 4 and 6.",
    cells={
        _E.RUNNING: {
            WaitBegan: go(_E.WAITING),
            ReplayBegan: go(_E.REPLAYABLE),
            StepEnded: NO_STEP,
            ReplyHeld: NO_STEP,
            Parked: go(_E.PARKED),
            Released: stay(),
            EpisodeEnded: go(_E.ENDED),
            Retired: go(_E.TOMBSTONED),
        },
        _E.WAITING: {
            WaitBegan: IN_STEP,
            ReplayBegan: IN_STEP,
            StepEnded: go(_E.RUNNING, do=count),
            ReplyHeld: refuse("waiting_step"),  # it blocks until it ends, so its reply is recorded at once
            Parked: IN_STEP,
            Released: stay(),
            EpisodeEnded: go(_E.ENDED),  # its handler failed inside the step
            Retired: go(_E.TOMBSTONED),
        },
        _E.REPLAYABLE: {
            WaitBegan: IN_STEP,
            ReplayBegan: IN_STEP,
            StepEnded: go(_E.RUNNING, do=count),
            ReplyHeld: go(_E.HOLDING),
            Parked: IN_STEP,
            Released: stay(),
            EpisodeEnded: go(_E.ENDED),
            Retired: go(_E.TOMBSTONED),
        },
        _E.HOLDING: {
            WaitBegan: IN_STEP,
            ReplayBegan: IN_STEP,
            StepEnded: STANDS,  # I24: recorded only after its server opened
            ReplyHeld: stay(),
            Parked: IN_STEP,
            Released: go(_E.REPLAYABLE),  # the reply in hand is recorded next
            EpisodeEnded: STANDS,
            Retired: go(_E.TOMBSTONED),
        },
        _E.PARKED: {
            WaitBegan: STANDS,
            ReplayBegan: STANDS,
            StepEnded: STANDS,
            ReplyHeld: STANDS,
            Parked: stay(),
            Released: go(_E.RUNNING),
            EpisodeEnded: STANDS,  # I65: what is parked does not end
            Retired: go(_E.TOMBSTONED),
        },
        _E.ENDED: {**_over(OVER), Released: stay(), EpisodeEnded: stay(), Retired: stay()},
        _E.TOMBSTONED: {**_over(STALE), Released: stay(), EpisodeEnded: STALE, Retired: stay()},
    },
)
