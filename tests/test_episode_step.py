"""Where an episode stands: what may be cut where it is, and what has to end first (protocol.md sections 4 and 6)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants.machines.episode_step import (
    EPISODE_STEP,
    EpisodeEnded,
    EpisodeState,
    Parked,
    Released,
    ReplayBegan,
    ReplyHeld,
    Retired,
    StepEnded,
    WaitBegan,
)
from statecore import Refused, Snapshot


def after(*events: Any) -> Snapshot[EpisodeState, int]:
    """The episode after all of `events`, none of them refused."""
    machine = EPISODE_STEP.start()
    for event in events:
        machine, _ = EPISODE_STEP.step(machine, event)
    return machine


def code(machine: Snapshot[EpisodeState, int], event: Any) -> str:
    with pytest.raises(Refused) as caught:
        EPISODE_STEP.step(machine, event)
    return caught.value.code


@given(st.lists(st.sampled_from([kind() for kind in EPISODE_STEP.events]), max_size=40))
def test_results_are_counted_only_when_a_step_ends(tried: list[Any]) -> None:
    """The number of recorded results grows by one with each ended step, and while quiet never. Covers: I24, I38"""
    machine = EPISODE_STEP.start()
    for event in tried:
        before = machine
        try:
            machine, _ = EPISODE_STEP.step(machine, event)
        except Refused:
            continue
        assert machine.data == before.data + isinstance(event, StepEnded)
        if before.state in (EpisodeState.PARKED, EpisodeState.HOLDING):
            assert machine.data == before.data


def test_a_waiting_step_is_never_cut_inside() -> None:
    """It blocks a checkpoint until its result is recorded; only then the episode parks."""
    waiting = after(WaitBegan())
    assert not waiting.state.quiet and not after().state.quiet
    assert code(waiting, Parked()) == "in_step"
    assert code(waiting, ReplyHeld()) == "waiting_step"
    assert after(WaitBegan(), StepEnded(), Parked()).state.quiet


def test_a_replayable_step_counts_at_the_boundary_before_it() -> None:
    """It is quiet while it runs, and its late reply is in hand but not recorded. Covers: I38"""
    running = after(WaitBegan(), StepEnded(), ReplayBegan())
    assert running.state.quiet and running.data == 1
    held, _ = EPISODE_STEP.step(running, ReplyHeld())
    assert held.state.quiet and held.data == 1


def test_a_held_reply_is_recorded_only_after_the_opening() -> None:
    """While its server is closed the episode neither records it nor ends. Covers: I24, I65"""
    held = after(ReplayBegan(), ReplyHeld())
    assert code(held, StepEnded()) == code(held, EpisodeEnded()) == "parked"
    assert after(ReplayBegan(), ReplyHeld(), Released(), StepEnded()) == after(ReplayBegan(), StepEnded())


def test_what_is_parked_neither_steps_nor_ends() -> None:
    """Until it is released nothing of it moves. Covers: I24, I65"""
    parked = after(Parked())
    for event in (WaitBegan(), ReplayBegan(), StepEnded(), ReplyHeld(), EpisodeEnded()):
        assert code(parked, event) == "parked"
    assert after(Parked(), Released()) == after()


def test_one_step_at_a_time() -> None:
    """A second step inside a step is refused, and so is a boundary, and the end of a step that never began."""
    for events in ((WaitBegan(),), (ReplayBegan(),), (ReplayBegan(), ReplyHeld())):
        for event in (WaitBegan(), ReplayBegan(), Parked()):
            assert code(after(*events), event) == "in_step"
    assert code(after(), StepEnded()) == code(after(), ReplyHeld()) == "no_step"
    assert after(ReplayBegan(), StepEnded()).state is after(WaitBegan(), StepEnded()).state is EpisodeState.RUNNING


STANDING = {
    "running": (),
    "waiting": (WaitBegan(),),
    "replayable": (ReplayBegan(),),
    "holding": (ReplayBegan(), ReplyHeld()),
    "parked": (Parked(),),
}


@pytest.mark.parametrize("events", STANDING.values(), ids=STANDING.keys())
def test_an_episode_is_retired_wherever_it_stands(events: tuple[Any, ...]) -> None:
    """Nothing protects it from that. Covers: I6"""
    assert after(*events, Retired()).state is EpisodeState.TOMBSTONED


@pytest.mark.parametrize("events", [(), (WaitBegan(),), (ReplayBegan(),)], ids=["running", "waiting", "replayable"])
def test_an_episode_may_end_where_it_moves(events: tuple[Any, ...]) -> None:
    """Between two steps, and inside of one: its handler has given up."""
    assert after(*events, EpisodeEnded()).state is EpisodeState.ENDED


def test_what_comes_again_moves_no_episode() -> None:
    """A reply that is held twice, a boundary twice, and an opening for what does not stand. Covers: I15"""
    for machine, event in {
        after(ReplayBegan(), ReplyHeld()): ReplyHeld(),
        after(Parked()): Parked(),
        after(): Released(),
        after(WaitBegan()): Released(),
        after(ReplayBegan()): Released(),
    }.items():
        assert EPISODE_STEP.step(machine, event)[0] == machine, event


def test_an_ended_or_retired_episode_does_nothing_any_more() -> None:
    """An ended one stays ended when it is retired; a retired one is stale. Covers: I6, I70"""
    ended, retired = after(EpisodeEnded()), after(WaitBegan(), Retired())
    assert EPISODE_STEP.step(ended, Retired())[0] == ended
    for event in (WaitBegan(), ReplayBegan(), StepEnded(), ReplyHeld(), Parked()):
        assert code(ended, event) == "episode_ended"
        assert code(retired, event) == "stale_attempt"
    assert code(retired, EpisodeEnded()) == "stale_attempt"
