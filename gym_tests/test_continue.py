"""Rollouts on real servers, agents and environments go on after all of them were killed."""

from __future__ import annotations

from pathlib import Path

import trio

from participants import Dispatch, Disposition

from .job import Keeper, blackjack_task, compared, counter_task, fleet_of, life, until, workplace_task

SERVERS = [
    "policy_model",
    "counter",
    "counter_agent",
    "blackjack",
    "blackjack_agent",
    "workplace",
    "workplace_agent",
]
ROLLOUTS = [
    Dispatch("counter-0", counter_task(), "counter_agent"),
    Dispatch("work-0", workplace_task(), "workplace_agent"),
    Dispatch("game-0", blackjack_task(), "blackjack_agent"),
]


def test_rollouts_of_every_environment_end_as_they_would_have_ended_without_the_kill(tmp_path: Path) -> None:
    """What a rollout has when its servers are killed after a checkpoint is what it would have had without: reward,
    conversation and usage; no model call and no tool call that the checkpoint held is made again.

    Covers: I54, I61, I63
    """

    async def main() -> None:
        first, second = Keeper(), Keeper()
        with fleet_of(SERVERS, tmp_path, delay_s=0.5) as fleet:
            async with life(fleet, first) as job:
                await job.recover()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(job.run_batch, job.runnable(ROLLOUTS))
                    await until(lambda: len(fleet.model_calls()) == 6)  # each has finished one turn and is in the next
                    published = await job.checkpoint()
                assert published.published, published.story()
                assert published.counts[Disposition.CONTINUE] == 3
            made = len(fleet.model_calls())
            async with life(fleet, second) as job:
                recovered = await job.recover()
                assert {each.disposition for each in recovered.verdicts} == {Disposition.CONTINUE}
                report = await job.run_batch(recovered.runnable())
                assert not report.lost
        assert first.results.keys() == second.results.keys()
        for name, result in first.results.items():
            assert compared(second.results[name]) == compared(result), name
            assert second.attempts[name] == 1
        assert first.results["counter-0"]["reward"] == first.results["work-0"]["reward"] == 1.0
        # the whole job makes 4 + 6 + 2 calls; each rollout had one when it was held, and those are not made again
        again = len(fleet.model_calls()) - made
        assert again == made - 3

    trio.run(main)
