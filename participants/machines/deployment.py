"""All servers of a job, kept serving by their coordinator: one dies, and all of them start anew. Pure.

Rules (docs/reference/protocol.md sections 7 and 11): the unit of recovery is the deployment; every start of one is an
epoch of its own, also under the same living coordinator (I96, S64); a restart is tried a bounded number of times, and
then everything is stopped and told: nothing is left half alive.
"""

from __future__ import annotations

from enum import StrEnum, auto

from attrs import evolve, frozen

from statecore import Cell, Table, go, refuse, stay, when


class DeploymentState(StrEnum):
    SERVING = auto()
    STOPPING = auto()
    CLAIMING = auto()
    STARTING = auto()
    RESTORING = auto()
    GIVEN_UP = auto()


@frozen(cache_hash=True)
class Restart:
    """`epoch` is the newest one that was claimed here; `failed` of `allowed` tries of the restart under way failed.

    `futile` of at most `limit` restarts have come one after the other, with nothing done in between. `hopeless`:
    another try would fail as well. `reason`: what is wrong.
    """

    epoch: int = 0
    allowed: int = 3
    limit: int = 10
    failed: int = 0
    futile: int = 0
    hopeless: bool = False
    reason: str = ""


@frozen
class ServerDied:
    reason: str


@frozen
class Progressed:
    """A result has come, or a checkpoint was published."""


@frozen
class ServersStopped:
    pass


@frozen
class EpochClaimed:
    epoch: int


@frozen
class ServersStarted:
    pass


@frozen
class StateRestored:
    """Every server has its part of what is continued, old attempts are fenced, all servers are open."""


@frozen
class StepFailed:
    """What was owed could not be done; `hopeless`: and never will be."""

    reason: str
    hopeless: bool = False


@frozen
class StopDispatch:
    """Nothing leaves any more, and the checkpoint under way is over."""

    reason: str


@frozen
class StopServers:
    pass


@frozen
class ClaimEpoch:
    """The claim right after this one: if somebody else has it, this coordinator is overtaken."""

    after: int


@frozen
class StartServers:
    epoch: int


@frozen
class RestoreState:
    pass


@frozen
class OpenDispatch:
    pass


@frozen
class GiveUp:
    reason: str


def is_new(restart: Restart, event: EpochClaimed) -> bool:
    return event.epoch > restart.epoch


def is_within_limit(restart: Restart, _event: ServerDied) -> bool:
    return restart.futile < restart.limit


def may_try(restart: Restart, _event: object) -> bool:
    return not restart.hopeless and restart.failed < restart.allowed


def may_stop_again(restart: Restart, _event: StepFailed) -> bool:
    return restart.failed + 1 < restart.allowed


Step = tuple[Restart, list[object]]


def begin(restart: Restart, event: ServerDied) -> Step:
    begun = evolve(restart, failed=0, futile=restart.futile + 1, reason=event.reason)
    return begun, [StopDispatch(event.reason), StopServers()]


def begin_the_end(restart: Restart, event: ServerDied) -> Step:
    reason = f"{restart.futile} restarts in a row, with no result and no checkpoint in between"
    return evolve(restart, hopeless=True, reason=reason), [StopDispatch(event.reason), StopServers()]


def go_on(restart: Restart, _event: Progressed) -> Step:
    return evolve(restart, futile=0), []


def claim(restart: Restart, _event: ServersStopped) -> Step:
    return restart, [ClaimEpoch(restart.epoch)]


def start(restart: Restart, event: EpochClaimed) -> Step:
    return evolve(restart, epoch=event.epoch), [StartServers(event.epoch)]


def restore(restart: Restart, _event: ServersStarted) -> Step:
    return restart, [RestoreState()]


def serve(restart: Restart, _event: StateRestored) -> Step:
    return evolve(restart, failed=0, reason=""), [OpenDispatch()]


def fail(restart: Restart, event: StepFailed) -> Step:
    hopeless = restart.hopeless or event.hopeless
    failed = evolve(restart, failed=restart.failed + 1, hopeless=hopeless, reason=event.reason)
    return failed, [StopServers()]


def fail_by_death(restart: Restart, event: ServerDied) -> Step:
    return fail(restart, StepFailed(event.reason))


def give_up(restart: Restart, _event: ServersStopped) -> Step:
    return restart, [GiveUp(restart.reason)]


def give_up_stopping(restart: Restart, event: StepFailed) -> Step:
    return evolve(restart, failed=restart.failed + 1, reason=event.reason), [GiveUp(event.reason)]


_D = DeploymentState
OUT_OF_ORDER = refuse("out_of_order")
OLD_EPOCH = refuse("epoch_not_new", detail="each start of the servers is an epoch of its own")
IS_OVER = refuse("given_up", detail="the servers are stopped for good")
AGAIN = go(_D.STOPPING, do=fail)
DIED_AGAIN = go(_D.STOPPING, do=fail_by_death)

_EVENTS = (ServerDied, Progressed, ServersStopped, EpochClaimed, ServersStarted, StateRestored, StepFailed)


def _row(expected: dict[type, Cell]) -> dict[type, Cell]:
    """A row in which everything that is not named is out of order."""
    return dict.fromkeys(_EVENTS, OUT_OF_ORDER) | expected


DEPLOYMENT = Table(
    "deployment",
    data=Restart,
    initial=_D.SERVING,
    final={_D.GIVEN_UP},
    doc="All servers of a job, seen by their coordinator: protocol.md sections 7 and 11.",
    cells={
        _D.SERVING: _row(
            {
                ServerDied: when(
                    is_within_limit, go(_D.STOPPING, do=begin), otherwise=go(_D.STOPPING, do=begin_the_end)
                ),
                Progressed: stay(do=go_on),
            }
        ),
        _D.STOPPING: _row(
            {
                ServerDied: stay(),  # all of them do
                ServersStopped: when(may_try, go(_D.CLAIMING, do=claim), otherwise=go(_D.GIVEN_UP, do=give_up)),
                StepFailed: when(may_stop_again, stay(do=fail), otherwise=go(_D.GIVEN_UP, do=give_up_stopping)),
            }
        ),
        _D.CLAIMING: _row(
            {
                ServerDied: stay(),  # none is there
                EpochClaimed: when(is_new, go(_D.STARTING, do=start), otherwise=OLD_EPOCH),  # I96, S64
                StepFailed: AGAIN,
            }
        ),
        _D.STARTING: _row(
            {ServersStarted: go(_D.RESTORING, do=restore), ServerDied: DIED_AGAIN, StepFailed: AGAIN}
        ),
        _D.RESTORING: _row({StateRestored: go(_D.SERVING, do=serve), ServerDied: DIED_AGAIN, StepFailed: AGAIN}),
        _D.GIVEN_UP: dict.fromkeys(_EVENTS, IS_OVER),
    },
)
