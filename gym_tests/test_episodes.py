"""Episodes of a real environment server, with a real agent and real tools behind it."""

from __future__ import annotations

from pathlib import Path

import trio

from participants import Dispatch, Disposition, Published

from .job import Keeper, asked_of, compared, fleet_of, life, until, weather_task

SERVERS = ["policy_model", "weather", "weather_agent", "weather_env"]
EPISODES = [Dispatch(f"w{index}", weather_task(index), "weather_env") for index in range(3)]


def test_an_episode_goes_on_inside_of_its_agent(tmp_path: Path) -> None:
    """An episode that an environment server drives ends as it would have ended without the kill; its sessions are
    opened once, and no model call that the checkpoint held is made again.

    Covers: I38, I54, I58
    """

    async def main() -> None:
        first, second = Keeper(), Keeper()
        with fleet_of(SERVERS, tmp_path) as fleet:
            async with life(fleet, first) as job:
                await job.recover()
                async with trio.open_nursery() as nursery:
                    with fleet.standing(1):
                        nursery.start_soon(job.run_batch, job.runnable(EPISODES))
                        await until(lambda: len(fleet.model_calls()) >= 2 * len(EPISODES))
                        published = await job.checkpoint()
                assert isinstance(published, Published), published.story()
                assert published.counts[Disposition.CONTINUE] == len(EPISODES), published.story()
            made = fleet.model_calls()
            async with life(fleet, second) as job:
                recovered = await job.recover()
                report = await job.run_batch(recovered.runnable())
                assert not report.lost, report
            again = fleet.model_calls()[len(made) :]
        for each in EPISODES:
            assert "result" in first.results[each.rollout_id], first.results[each.rollout_id]
            assert compared(second.results[each.rollout_id]) == compared(first.results[each.rollout_id])
            assert second.attempts[each.rollout_id] == 1
            lengths = [call["items"] for call in again if call["task"] == asked_of(each.task)]
            assert lengths == [4, 6, 8]  # the first turn is held

    trio.run(main)
