"""The two machines of a coordinator that keeps its servers serving: who is dead, and what a restart owes."""

from __future__ import annotations

from typing import Any

import pytest

from participants.machines import deployment as dp
from participants.machines.heartbeat import HEARTBEAT, Answered, DeclareDead, Exited, Heartbeat, PeriodPassed, Pulse
from statecore import Refused

THREE = Pulse("i1", allowed=3)
DIED, STOPPED = dp.ServerDied("x is dead"), dp.ServersStopped()
STARTED, RESTORED = dp.ServersStarted(), dp.StateRestored()
FAILED = dp.StepFailed("tools did not start")


def beat(pulse: Pulse, *events: object) -> tuple[Heartbeat, list[str]]:
    """Where these events lead, and the reasons of all deaths that were declared."""
    now, reasons = HEARTBEAT.start(pulse), []
    for event in events:
        now, effects = HEARTBEAT.step(now, event)
        reasons += [each.reason for each in effects if isinstance(each, DeclareDead)]
    return now.state, reasons


def test_silence_is_counted_in_a_row() -> None:
    """Two periods of three are late; any answer ends the count; the third in a row is a death, told once."""
    assert beat(THREE, PeriodPassed(), PeriodPassed()) == (Heartbeat.LATE, [])
    assert beat(THREE, PeriodPassed(), PeriodPassed(), Answered("i1"), PeriodPassed()) == (Heartbeat.LATE, [])
    dead = (Heartbeat.DEAD, ["it has not answered for 3 periods in a row"])
    assert beat(THREE, *[PeriodPassed()] * 5) == dead
    assert beat(THREE, *[PeriodPassed()] * 3, Answered("i1"), Answered("i2"), Exited(-9)) == dead, "it stays dead"
    assert beat(Pulse("i1", allowed=1), PeriodPassed())[0] is Heartbeat.DEAD


@pytest.mark.parametrize("late", [False, True])
def test_s66_another_process_in_its_name_is_its_death(late: bool) -> None:
    """Whatever it answers, and whether anybody has missed the old one. Covers: I97."""
    before = [PeriodPassed()] if late else []
    state, (reason,) = beat(THREE, *before, Answered("i2"))
    assert state is Heartbeat.DEAD
    assert reason == "another process answers in its name (i2, not i1)"


def test_a_peer_without_incarnations_is_never_taken_for_another() -> None:
    """One that shows none can only be silent; one that has shown one may leave it out of a reply."""
    assert beat(Pulse(""), Answered("i2"), Answered()) == (Heartbeat.ALIVE, [])
    assert beat(THREE, PeriodPassed(), Answered()) == (Heartbeat.ALIVE, [])


def test_an_end_that_the_launcher_tells_is_a_death_at_once() -> None:
    """Nobody waits for three periods."""
    assert beat(THREE, Exited(-9)) == (Heartbeat.DEAD, ["its process has ended with status -9"])


# --- a restart


def restart(*events: object, allowed: int = 2, limit: int = 2) -> tuple[Any, list[object]]:
    """Where these events lead from epoch 1, and what is owed after the last of them."""
    now, owed = dp.DEPLOYMENT.start(dp.Restart(1, allowed, limit)), []
    for event in events:
        now, effects = dp.DEPLOYMENT.step(now, event)
        owed = list(effects)
    return now, owed


ROUND = (DIED, STOPPED, dp.EpochClaimed(2), STARTED, RESTORED)


def test_the_steps_of_a_restart_come_in_their_order() -> None:
    """Everything stops, then the claim, then the start, then the restore; only then anything is dispatched."""
    owed = [" ".join(type(each).__name__ for each in restart(*ROUND[:count])[1]) for count in range(1, 6)]
    assert owed == ["StopDispatch StopServers", "ClaimEpoch", "StartServers", "RestoreState", "OpenDispatch"]
    for count, event in ((0, STOPPED), (1, STARTED), (2, STARTED), (3, RESTORED)):
        with pytest.raises(Refused) as refused:
            restart(*ROUND[:count], event)
        assert refused.value.code == "out_of_order"


def test_s64_no_start_without_a_new_epoch() -> None:
    """The servers of one epoch are started once. Covers: I96."""
    with pytest.raises(Refused) as refused:
        restart(DIED, STOPPED, dp.EpochClaimed(1))
    assert refused.value.code == "epoch_not_new"
    again = (*ROUND, DIED, STOPPED)
    assert restart(*again)[1] == [dp.ClaimEpoch(2)]
    with pytest.raises(Refused):
        restart(*again, dp.EpochClaimed(2))


@pytest.mark.parametrize("failure", [FAILED, DIED], ids=["a failed step", "another death"])
@pytest.mark.parametrize("at", [3, 4], ids=["starting", "restoring"])
def test_a_try_that_fails_stops_everything_and_claims_anew(failure: object, at: int) -> None:
    """As often as is allowed; then it is given up, with everything stopped. Covers: I96."""
    tried = (*ROUND[:at], failure)
    assert restart(*tried)[1] == [dp.StopServers()]
    assert restart(*tried, STOPPED)[1] == [dp.ClaimEpoch(2)]
    over, owed = restart(*tried, STOPPED, dp.EpochClaimed(3), failure, STOPPED)
    assert over.state is dp.DeploymentState.GIVEN_UP
    assert isinstance(owed[0], dp.GiveUp)
    with pytest.raises(Refused) as refused:
        dp.DEPLOYMENT.step(over, DIED)
    assert refused.value.code == "given_up"


def test_what_is_hopeless_is_not_tried_again() -> None:
    """Another coordinator has claimed the root: what runs is stopped, and that is all. Covers: I98."""
    over, owed = restart(DIED, STOPPED, dp.StepFailed("overtaken", hopeless=True), STOPPED)
    assert over.state is dp.DeploymentState.GIVEN_UP
    assert owed == [dp.GiveUp("overtaken")]


def test_restarts_with_nothing_done_in_between_are_bounded() -> None:
    """Any result or checkpoint in between begins the count anew."""
    twice = (*ROUND, DIED, STOPPED, dp.EpochClaimed(3), STARTED, RESTORED)
    over, (owed,) = restart(*twice, DIED, STOPPED)
    assert over.state is dp.DeploymentState.GIVEN_UP
    assert isinstance(owed, dp.GiveUp) and owed.reason.startswith("2 restarts in a row")
    assert restart(*twice, dp.Progressed(), DIED, STOPPED)[1] == [dp.ClaimEpoch(3)]


def test_servers_that_cannot_be_stopped() -> None:
    """The launcher is asked again, a bounded number of times."""
    assert restart(DIED, FAILED)[1] == [dp.StopServers()]
    over, owed = restart(DIED, FAILED, FAILED)
    assert (over.state, owed) == (dp.DeploymentState.GIVEN_UP, [dp.GiveUp("tools did not start")])
