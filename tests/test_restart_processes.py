"""A server that is a process is killed with SIGKILL, and the job ends as the undisturbed one: the demo's servers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trio
from attrs import evolve

from participants.coordination.coordinator import Published
from participants.demo.counting import differences, numbers
from participants.demo.life import Scene, begin, finished, run_rollouts
from participants.demo.lines import Event, read_journals
from participants.demo.picture import Picture
from participants.demo.plan import PLAN_FILE, Plan, RolloutPlan, write_plan
from participants.demo.servers import JOURNALS
from participants.demo.trainer import DemoTrainer
from participants.demo.worlds import ProcessWorld, World
from participants.records.records import Disposition
from participants.serving.testing import InMemoryNetwork
from tests.demo_world import MemoryWorld
from tests.test_launcher import is_alive

HANG_S = 240.0  # a bound on a test that would hang for ever, not a speed
SHORT_S, FOR_EVER_S = 0.01, 3600.0
THINKS = {
    "A": (SHORT_S,) * 4,
    "B": (SHORT_S, SHORT_S, FOR_EVER_S, SHORT_S),
    "C": (SHORT_S, FOR_EVER_S, SHORT_S, SHORT_S),
}
"""By rollout how long the policy thinks in each turn; the processes that come after the death do not wait at all."""


async def undisturbed(plan: Plan) -> DemoTrainer:
    """The trainer of the same job in memory, without any waiting."""
    async with InMemoryNetwork() as network:
        world: World = MemoryWorld(network)
        scene = Scene(evolve(plan, pace=0.0), world, Path("/undisturbed"), Picture(plan))
        await scene.prepare()
        trainer = scene.trainer()
        async with scene.coordinator(world.deployment(scene.home), trainer) as job:
            await run_rollouts(scene, job, await job.recover(), trainer)
    return trainer


@pytest.mark.trio
@pytest.mark.parametrize("name", ["agent", "game"])
async def test_s65_a_killed_process_costs_a_pause(tmp_path: Path, name: str) -> None:
    """The launcher sees it end; all processes start anew, no held turn is played again, all results are equal.

    Covers: I65, I68, I97.
    """
    rollouts = (
        RolloutPlan(rollout_id=each, group="g", env_id="Blackjack-v1", game_seed=7, think_s=think_s)
        for each, think_s in THINKS.items()
    )
    plan = Plan(seed=1, rollouts=tuple(rollouts), checkpoints_at=(7,))
    world = ProcessWorld()
    scene = Scene(plan, world, tmp_path / "job", Picture(plan))
    with trio.fail_after(HANG_S):
        try:
            await scene.prepare()
            trainer = scene.trainer()
            deployment = world.deployment(scene.home)
            async with trio.open_nursery() as watching:
                watching.start_soon(scene.watch)
                async with scene.coordinator(deployment, trainer) as job, trio.open_nursery() as nursery:
                    recovered = await begin(scene, job, deployment, 1)
                    first = dict(deployment.pids)
                    nursery.start_soon(run_rollouts, scene, job, recovered, trainer)
                    await finished(scene.picture, 7)
                    published = await job.checkpoint(60)
                    assert isinstance(published, Published), published.story()
                    (scene.home / PLAN_FILE).unlink()
                    write_plan(world.seams.disk, scene.home, evolve(plan, pace=0.0))
                    os.kill(first[name], signal.SIGKILL)
                    while not job.restarts:  # noqa: ASYNC110 (another task does it)
                        await trio.sleep(0.05)
                    (restarted,) = job.restarts
                    assert restarted.reason == f"{name} is dead: its process has ended with status -9"
                    assert restarted.checkpoint_id == published.checkpoint_id
                    found = {each.rollout_id: each.disposition for each in restarted.verdicts}
                    assert found["B"] is found["C"] is Disposition.CONTINUE
                    assert not any(map(is_alive, first.values())), "all of them were stopped"
                watching.cancel_scope.cancel()
        finally:
            await world.end()
        lines = read_journals(world.seams.disk, scene.home / JOURNALS)
        before = tuple(line for line in lines if line.epoch == 1)
        held = await scene.held(published.checkpoint_id)
        assert any(line.event is Event.TURN and line.epoch == 2 for line in lines)
        assert numbers(before, lines, held).held_redone == ()
        assert (trainer.lost(), trainer.doubled()) == ((), ())
        assert differences(trainer.results(), (await undisturbed(plan)).results()) == {}
