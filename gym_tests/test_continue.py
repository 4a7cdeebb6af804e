"""Rollouts on real servers, agents and environments go on after all of them were killed."""

from __future__ import annotations

from pathlib import Path

import trio

from participants import Dispatch, Disposition, Published

from .fleet import Fleet
from .job import Keeper, asked_of, blackjack_task, compared, counter_task, fleet_of, life, until, workplace_task

SERVERS = [
    "policy_model",
    "counter",
    "counter_agent",
    "blackjack",
    "blackjack_agent",
    "workplace",
    "workplace_agent",
]
GAMES = 10  # every other one is over after one card
ROLLOUTS = [
    Dispatch("counter-0", counter_task(), "counter_agent"),
    Dispatch("work-0", workplace_task(), "workplace_agent"),
    *(Dispatch(f"game-{index}", blackjack_task(index), "blackjack_agent") for index in range(GAMES)),
]


def lengths(fleet: Fleet) -> dict[str, list[int]]:
    """How long the conversation of each rollout was at each of its model calls, so far."""
    found: dict[str, list[int]] = {each.rollout_id: [] for each in ROLLOUTS}
    named = {asked_of(each.task): each.rollout_id for each in ROLLOUTS}
    for call in fleet.model_calls():
        found[named[call["task"]]].append(call["items"])
    return found


def in_second_turn(calls: dict[str, list[int]]) -> bool:
    """Whether the counter, the work and some game have each finished a turn and are in the next."""
    games = [len(each) for name, each in calls.items() if name.startswith("game")]
    return len(calls["counter-0"]) >= 2 and len(calls["work-0"]) >= 2 and max(games) >= 2


def test_rollouts_of_every_environment_end_as_they_would_have_ended_without_the_kill(tmp_path: Path) -> None:
    """What a rollout has when its servers are killed after a checkpoint is what it would have had without: reward,
    conversation and usage. No model call that the checkpoint held is made again, and no tool call: the counter and the
    workplace would show it, and so would the cards.

    Covers: I54, I61, I63
    """

    async def main() -> None:
        first, second = Keeper(), Keeper()
        with fleet_of(SERVERS, tmp_path) as fleet:
            async with life(fleet, first) as job:
                await job.recover()
                async with trio.open_nursery() as nursery:
                    with fleet.standing(1):
                        nursery.start_soon(job.run_batch, job.runnable(ROLLOUTS))
                        await until(lambda: in_second_turn(lengths(fleet)))
                        held = lengths(fleet)
                        published = await job.checkpoint()
                assert isinstance(published, Published), published.story()
            undisturbed = lengths(fleet)
            async with life(fleet, second) as job:
                recovered = await job.recover()
                went_on = {each.rollout_id for each in recovered.verdicts if each.disposition is Disposition.CONTINUE}
                report = await job.run_batch(recovered.runnable())
                assert not report.lost
            after = {name: calls[len(undisturbed[name]) :] for name, calls in lengths(fleet).items()}
        assert went_on >= {"counter-0", "work-0"} and any(name.startswith("game") for name in went_on)
        for name in went_on:
            assert compared(second.results[name]) == compared(first.results[name]), name
            assert second.attempts[name] == 1
            finished = held[name][:-1]  # the last call was under way, or just answered
            assert not set(finished) & set(after[name]), name
            assert undisturbed[name][-len(after[name]) :] == after[name], name
        assert first.results["counter-0"]["reward"] == first.results["work-0"]["reward"] == 1.0

    trio.run(main)
