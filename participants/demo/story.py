"""The demo's story: a life that is abandoned, a life that goes on from its files, and the same job undisturbed.

It knows no terminal and no process: servers run in the world that is handed in, so that tests tell the same story in
memory.
"""

from __future__ import annotations

from pathlib import Path

import trio
from attrs import evolve, frozen

from statecore.seams import on_disk

from .counting import Held, Verdict, count, differences
from .life import DemoError, Scene, SecondLife, first_life, run_rollouts, second_life
from .lines import Line, read_journals
from .picture import Picture, Tone
from .plan import Kill, Plan
from .servers import JOURNALS
from .trainer import DemoTrainer
from .worlds import World

JOB = "job"
UNDISTURBED = "undisturbed"


@frozen
class Ending:
    """All that came of it."""

    verdict: Verdict
    held: Held
    lines: tuple[Line, ...]
    trainer: DemoTrainer


async def tell(plan: Plan, world: World, directory: Path, picture: Picture) -> Ending:
    """The whole story; its files are below `directory`. Nothing runs any more when this returns or raises."""
    try:
        scene = Scene(plan, world, directory / JOB, picture)
        await scene.prepare()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.watch)
            second = await _two_lives(scene)
            await picture.until(lambda: picture.results == len(plan.rollouts) or bool(second.trainer.lost()))
            nursery.cancel_scope.cancel()
        undisturbed = await _undisturbed(plan, world, directory / UNDISTURBED, picture)
        return await _ending(scene, second, undisturbed)
    finally:
        await world.end()


async def _two_lives(scene: Scene) -> SecondLife:
    plan, picture, world = scene.plan, scene.picture, scene.world
    first = world.deployment(scene.home)
    await first_life(scene, first)
    if plan.kill is Kill.ALL:
        first.kill()
        picture.say(f"the coordinator is abandoned, SIGKILL to all servers: {first.told()}", Tone.CRASH)
        await first.stop()
    else:
        picture.say(f"the coordinator is abandoned; its servers live on, without anybody: {first.told()}", Tone.CRASH)
    in_force = await scene.in_force()
    held = await scene.held(in_force)
    picture.killed(held)
    picture.headline = "between two lives"
    picture.say(f"in force: {in_force or 'no checkpoint'}, with {sum(held.turns.values())} turns", Tone.CHECKPOINT)
    second = world.deployment(scene.home)
    return await second_life(scene, second, first if plan.kill is Kill.COORDINATOR else None)


async def _undisturbed(plan: Plan, world: World, home: Path, picture: Picture) -> DemoTrainer:
    """The same job in a deployment of its own, without a checkpoint, a crash or any waiting."""
    began = trio.current_time()
    picture.headline = "the same job once more, undisturbed, to compare"
    scene = Scene(evolve(plan, pace=0.0), world, home, Picture(plan))
    await scene.prepare()
    trainer = scene.trainer()
    async with scene.coordinator(world.deployment(home), trainer) as job:
        await run_rollouts(scene, job, await job.recover(), trainer)
    if trainer.lost():
        raise DemoError(f"the undisturbed run lost results: {', '.join(trainer.lost())}")
    took = trio.current_time() - began
    picture.say(f"the same job undisturbed, in fresh servers and without waiting: {took:.1f} s, to compare")
    return trainer


async def _ending(scene: Scene, second: SecondLife, undisturbed: DemoTrainer) -> Ending:
    """Everything is counted from the files."""
    disk = scene.world.seams.disk
    lines = await on_disk(disk, read_journals, disk, scene.home / JOURNALS)
    held = await scene.held(second.recovered.checkpoint_id)
    trainer = second.trainer
    verdict = Verdict(
        numbers=count(lines, held, second.recovered.epoch - 1),
        lost_results=trainer.lost(),
        doubled_results=trainer.doubled(),
        differences=differences(trainer.results(), undisturbed.results()),
    )
    scene.picture.headline = "the end"
    return Ending(verdict, held, lines, trainer)
