"""The whole protocol end to end in memory: rollouts, a checkpoint, everything dies, and each goes on where it stood."""

from __future__ import annotations

import trio

from participants.coordination.coordinator import Published
from participants.records.records import Disposition
from tests.whole_job import WholeJob, run, settle


def test_the_seeds_example_redoes_nothing() -> None:
    """5 turns, B at 2, C at 4, crash right after the snapshot: 6 turns redone without a checkpoint, 0 with it."""

    async def test(job: WholeJob) -> None:
        turns = {"B": 2, "C": 4}
        async with job.coordinator() as first:
            recovered = await first.recover()
            for rollout, done in turns.items():
                job.turnstile.allow(rollout, done)
            with trio.CancelScope() as abandoned:
                async with trio.open_nursery() as nursery:
                    batch = recovered.runnable(job.dispatches(5, *turns))
                    nursery.start_soon(first.run_batch, batch)
                    await settle()
                    assert dict(job.turnstile.generated) == turns
                    outcome = await first.checkpoint(timeout_s=60)
                    assert isinstance(outcome, Published), outcome.story()
                    assert job.launcher is not None
                    job.launcher.kill(*job.launcher.up)
                    abandoned.cancel()
        held = sum(turns.values())
        async with job.coordinator() as second:
            recovered = await second.recover()
            assert recovered.count(Disposition.CONTINUE) == 2
            for rollout in turns:
                job.turnstile.allow(rollout, 5)
            report = await second.run_batch(recovered.runnable())
            assert report.delivered == 2
        redone = [turn for turn in job.turnstile.seen if job.turnstile.seen.count(turn) > 1]
        assert redone == []
        assert sum(job.turnstile.generated.values()) == 10
        assert held == 6  # what a run without checkpoints would have generated again
        assert job.trainer is not None
        assert {rollout: body["reward"] for rollout, body in job.trainer.accepted.items()} == {"B": 15, "C": 15}

    run(test)


def test_servers_keep_nothing_of_rollouts_that_are_saved() -> None:
    """After a checkpoint holds their results, servers end what is over, and forget it after the next one. Covers:
    I75.
    """

    async def test(job: WholeJob) -> None:
        async with job.coordinator() as coordinator:
            recovered = await coordinator.recover()
            rollouts = [f"r{index}" for index in range(5)]
            for rollout in rollouts:
                job.turnstile.allow(rollout, 3)
            report = await coordinator.run_batch(recovered.runnable(job.dispatches(3, *rollouts)))
            assert report.delivered == 5
            kept = {name: job.marks(name) for name in ("policy_model", "tools", "simple_agent", "env")}
            assert set(kept.values()) == {0}
            assert len(job.servers["policy_model"].ledger) == 5
            assert isinstance(await coordinator.checkpoint(timeout_s=60), Published)
            assert len(job.servers["policy_model"].ledger) == 0
            assert {name: job.marks(name) for name in kept} == dict.fromkeys(kept, 5)
            assert isinstance(await coordinator.checkpoint(timeout_s=60), Published)
            assert {name: job.marks(name) for name in kept} == dict.fromkeys(kept, 0)

    run(test)
