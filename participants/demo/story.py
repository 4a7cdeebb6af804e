"""The demo's story: a life that is abandoned, a life that goes on from its files, and the same job undisturbed.

It knows no terminal and no process: servers run in the world that is handed in, so that tests tell the same story in
memory.
"""

from __future__ import annotations

from pathlib import Path

import trio
from attrs import evolve, frozen

from statecore.seams import on_disk

from ..commands.console import count
from ..journals.observers import COORDINATOR
from ..journals.reading import files_in
from ..journals.replaying import replayed
from .counting import Held, Verdict, differences, numbers
from .life import DemoError, Onward, Scene, first_life, only_life, run_rollouts, second_life
from .lines import Line, read_journals
from .picture import Picture, Tone
from .plan import Kill, Plan, When
from .servers import JOURNALS, STEPS
from .trainer import DemoTrainer
from .worlds import World

JOB = "job"
UNDISTURBED = "undisturbed"
CRASHED = {
    When.PUBLISHED: "{} is published, and nothing is resumed yet",
    When.LATER: "{} is in force, and more turns are finished",
    When.ACKNOWLEDGE: "{} is in force, and no result is released yet",
    When.RESUME: "{} is in force, and the first server is open again",
    When.IDLE: "{} is in force, and all servers are open again",
}
"""Where the crash falls, with the newest checkpoint; in a phase before publication if it is not here."""


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
        undisturbed = DemoTrainer(plan, world.seams.disk)
        async with trio.open_nursery() as watching:
            watching.start_soon(scene.watch)
            async with trio.open_nursery() as nursery:
                running = trio.Event()
                nursery.start_soon(_undisturbed, scene, directory / UNDISTURBED, undisturbed, running)
                if plan.kill.server:
                    at_crash, onward = None, await only_life(scene, world.deployment(scene.home), running)
                else:
                    at_crash, onward = await _two_lives(scene, running)
            await picture.until(lambda: picture.results == len(plan.rollouts) or bool(onward.trainer.lost()))
            watching.cancel_scope.cancel()
        return await _ending(scene, at_crash, onward, undisturbed)
    finally:
        await world.end()


async def _two_lives(scene: Scene, running: trio.Event) -> tuple[tuple[Line, ...] | None, Onward]:
    """The first life was abandoned and the second has ended; `running` is set when the second one is under way.

    Returned are the lines of all journals at the crash, and the second life.
    """
    plan, picture, world = scene.plan, scene.picture, scene.world
    first = world.deployment(scene.home)
    await first_life(scene, first)
    if plan.kill is Kill.ALL:
        first.kill()
        await first.stop()
    await scene.catch_up()
    at_crash = tuple(scene.seen)
    picture.say(where(plan.when).format(picture.checkpoint_id), Tone.CHECKPOINT)
    servers = "SIGKILL to all servers" if plan.kill is Kill.ALL else "its servers live on"
    picture.say(f"the coordinator is abandoned, {servers}", Tone.CRASH)
    in_force = await scene.in_force()
    held = await scene.held(in_force)
    picture.killed(held)
    picture.headline = "between two lives"
    turns = count(sum(held.turns.values()), "turn")
    picture.say(f"in force: {in_force or 'no checkpoint'}, with {turns}", Tone.CHECKPOINT)
    second = world.deployment(scene.home)
    left = first if plan.kill is Kill.COORDINATOR else None
    return at_crash, await second_life(scene, second, left, running)


def where(when: When) -> str:
    """Where the crash falls, in words; `{}` is the newest checkpoint."""
    return CRASHED.get(when, f"{{}} is at its {when.moment}: it is not published")


async def _undisturbed(disturbed: Scene, home: Path, trainer: DemoTrainer, running: trio.Event) -> None:
    """`trainer` has the results of the same job in a deployment of its own: no checkpoint, no crash, no waiting.

    It begins when the second life is running, since that mostly waits for its policy to think.
    """
    await running.wait()
    began = trio.current_time()
    plan, world = disturbed.plan, disturbed.world
    scene = Scene(evolve(plan, pace=0.0, fault=""), world, home, Picture(plan))
    await scene.prepare()
    async with scene.coordinator(world.deployment(home), trainer) as job:
        await run_rollouts(scene, job, await job.recover(), trainer)
    if trainer.lost():
        raise DemoError(f"the undisturbed run lost results: {', '.join(trainer.lost())}")
    took = trio.current_time() - began
    disturbed.picture.say(f"meanwhile, the same job undisturbed in servers of its own: {took:.1f} s")


async def _ending(scene: Scene, at_crash: tuple[Line, ...] | None, onward: Onward, undisturbed: DemoTrainer) -> Ending:
    """Everything is counted from the files. Without the lines at the crash it is all that the older servers wrote."""
    disk = scene.world.seams.disk
    lines = await on_disk(disk, read_journals, disk, scene.home / JOURNALS)
    if at_crash is None:
        at_crash = tuple(line for line in lines if line.epoch < onward.epoch)
    trainer = onward.trainer
    written = await on_disk(disk, lambda: files_in(disk, scene.home / STEPS) | files_in(disk, scene.home, COORDINATOR))
    steps = replayed(written)
    allowed = "all allowed" if steps.allowed else "NOT all allowed"
    scene.picture.say(f"steps of all machines, as written down: {steps.lines}, {allowed}")
    verdict = Verdict(
        numbers=numbers(at_crash, lines, onward.held),
        lost_results=trainer.lost(),
        doubled_results=trainer.doubled(),
        differences=differences(trainer.results(), undisturbed.results()),
        not_allowed=tuple(map(str, steps.findings)),
    )
    scene.picture.headline = "the end"
    return Ending(verdict, onward.held, lines, trainer)
