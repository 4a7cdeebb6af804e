"""One life of the demo's job: a coordinator, its trainer and its servers, until the end or until it is abandoned.

An abandoned coordinator is cancelled where it stands and sends nothing any more. If one server dies alone, the
coordinator lives, starts all of them anew, and its life is the only one. `moments` says how the point is found.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import trio
from attrs import define, field, frozen

from statecore.errors import StatecoreError
from statecore.journal import Journal
from statecore.seams import File, on_disk
from statecore.wire import parse

from ..coordination.coordinator import Aborted, Batch, Coordinator, Published, Recovered
from ..coordination.outcomes import Restarted
from ..files.store import Store
from ..machines.transaction import TransactionState
from ..net.transport import FreeListTransport
from ..records.manifests import CheckpointId
from .counting import Held, held_by, with_live
from .faults import launcher, runnable, settings, trainer_kind
from .lines import Event, JournalReader, Line, make_directory
from .moments import Heard, Moment, Moments
from .picture import Picture, Tone
from .plan import Plan, When, write_plan
from .servers import JOURNALS
from .trainer import DemoTrainer
from .worlds import CHECKPOINTS, Deployment, World

WATCH_S: Final = 0.04
LOOK_S: Final = 0.002
CHECKPOINT_TIMEOUT_S: Final = 60.0
TRIES: Final = 4
"""How often a checkpoint that aborts is tried again."""
LATER_TURNS: Final = 2


class DemoError(StatecoreError):
    """The demo cannot go on; the message says why."""


@define(eq=False)
class Scene:
    """What all lives share: the plan, where servers run, a directory for files, what is shown, and the lines seen."""

    plan: Plan
    world: World
    home: Path
    picture: Picture
    seen: list[Line] = field(factory=list)
    _reader: JournalReader = field(init=False)
    _reading: trio.Lock = field(factory=trio.Lock)

    def __attrs_post_init__(self) -> None:
        self._reader = JournalReader(self.world.seams.disk, self.home / JOURNALS)

    @property
    def root(self) -> Path:
        return self.home / CHECKPOINTS

    async def prepare(self) -> None:
        """The directories and the plan are there."""
        disk = self.world.seams.disk
        for directory in (self.home, self.root, self.home / JOURNALS):
            await on_disk(disk, make_directory, disk, directory)
        await on_disk(disk, write_plan, disk, self.home, self.plan)

    def trainer(self) -> DemoTrainer:
        """A new trainer that knows nothing."""
        return trainer_kind(self.plan)(self.plan, self.world.seams.disk)

    def coordinator(
        self, deployment: Deployment, trainer: DemoTrainer, observer: Observer | None = None
    ) -> Coordinator:
        """A new coordinator that has the files and nothing else."""
        transport = deployment.transport
        if observer is not None:
            transport = partial(_heard, transport, observer.moments.answered)
        return Coordinator(
            self.root,
            launcher(self.plan, deployment),
            trainer,
            token=self.world.token,
            settings=settings(self.plan),
            seams=self.world.seams,
            transport=transport,
            journal=None if observer is None else Journal(observer, self.world.seams.clock),
        )

    def store(self) -> Store:
        """The checkpoints as a reader sees them."""
        seams = self.world.seams
        return Store(self.root, seams.disk, seams.entropy, seams.clock)

    async def held(self, checkpoint_id: str | None) -> Held:
        """What the checkpoint of that id has; it is read from the files, with every digest checked."""
        parsed = None if checkpoint_id is None else CheckpointId.parse(checkpoint_id)
        if parsed is None:
            return held_by(None)
        return held_by(await on_disk(self.world.seams.disk, self.store().read, parsed))

    async def in_force(self) -> str | None:
        """The checkpoint that a start made now goes on from, as the files say; None without one."""
        survey = await on_disk(self.world.seams.disk, self.store().survey)
        return str(survey.candidates[0]) if survey.candidates else None

    async def watch(self) -> None:
        """The picture follows the servers' journals; never returns."""
        while True:
            await self.catch_up()
            await trio.sleep(WATCH_S)

    def turns_since(self, ts: float) -> int:
        """How many turns were finished after this moment, as far as the journals were read."""
        return sum(line.event is Event.TURN and line.ts > ts for line in self.seen)

    async def catch_up(self) -> None:
        """All that the servers' journals say now was seen; `seen` are the lines."""
        async with self._reading:
            for line in await on_disk(self.world.seams.disk, lambda: tuple(self._reader.new_lines())):
                self.seen.append(line)
                self.picture.saw(line)


def _heard(
    make: Callable[[], httpx.AsyncBaseTransport] | None, answered: Callable[[str], None]
) -> httpx.AsyncBaseTransport:
    return Heard(FreeListTransport() if make is None else make(), answered)


@define(eq=False)
class Observer:
    """Takes the coordinator's journal line by line: into its file, onto the picture, and to the point of the crash.

    `strike` is called there, once. `published_ts` is when the newest checkpoint was published, in wall time: everything
    stood still then.
    """

    picture: Picture
    file: File
    when: When | None = None
    strike: Callable[[], None] = lambda: None
    published_ts: float = 0.0
    struck: bool = False
    moments: Moments = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.moments = Moments(self._reached)

    def __call__(self, data: bytes) -> None:
        self.file.write(data)
        line = parse(data)
        if line["machine"] == "transaction" and line["state"] != line["next"]:
            state = TransactionState(line["next"])
            self.picture.entered(line["ids"]["checkpoint_id"], state)
            if state is TransactionState.PUBLISHED:
                self.published_ts = line["clock"]
        self.moments.line(line)

    def _reached(self, moment: Moment, checkpoint: int) -> None:
        if self.when is not None and (self.when.moment, self.when.checkpoint) == (moment, checkpoint):
            self.now()

    def now(self) -> None:
        """The point of the crash is here."""
        if not self.struck:
            self.struck = True
            self.strike()


async def run_rollouts(scene: Scene, job: Coordinator, recovered: Recovered, trainer: DemoTrainer) -> None:
    """All rollouts that were recovered and all that the trainer still hands out have ended."""
    trainer.life = recovered.epoch
    lost: dict[str, str] = {}

    async def run(batch: Batch) -> None:
        lost.update((await job.run_batch(batch)).lost)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, runnable(scene.plan, recovered))
        while group := trainer.next_group():
            nursery.start_soon(run, job.runnable(group))
            await trio.sleep(scene.plan.stagger_s * scene.plan.pace)
    for name, why in lost.items():
        scene.picture.say(f"{name} has no result: {why}", Tone.BAD)
    scene.picture.rollouts_ended()


async def begin(scene: Scene, job: Coordinator, deployment: Deployment, number: int) -> Recovered:
    """The servers of this life are up, and what the files hold is restored; the picture shows it."""
    recovered = await job.recover()
    picture = scene.picture
    picture.epoch = recovered.epoch
    picture.headline = f"life {number} runs, epoch {recovered.epoch}"
    picture.say(f"life {number}: {deployment.told()}")
    if recovered.checkpoint_id is not None:
        picture.restored(recovered.verdicts)
        picture.say(recovered.story(), Tone.CHECKPOINT)
    return recovered


async def first_life(scene: Scene, deployment: Deployment) -> None:
    """The job ran, checkpoints were taken, and the coordinator was abandoned at the planned point."""
    picture, disk = scene.picture, scene.world.seams.disk
    trainer = scene.trainer()
    with disk.create(scene.home / "coordinator-1.jsonl") as file, trio.CancelScope() as scope:
        observer = Observer(picture, file, scene.plan.when, scope.cancel)
        async with scene.coordinator(deployment, trainer, observer) as job, trio.open_nursery() as nursery:
            recovered = await begin(scene, job, deployment, 1)
            nursery.start_soon(run_rollouts, scene, job, recovered, trainer)
            await _until_struck(scene, job, observer, nursery)
            await trio.lowlevel.checkpoint()
            raise DemoError("the crash did not come about")
    picture.left_checkpoint()


async def _until_struck(scene: Scene, job: Coordinator, observer: Observer, nursery: trio.Nursery) -> None:
    """The planned checkpoints were taken, and the crash fell into one of them or afterwards."""
    picture = scene.picture
    for turns in scene.plan.checkpoints_at:
        await finished(picture, turns)
        published = await checkpoint(scene, job)
        nursery.start_soon(show_held, scene, published.checkpoint_id)
    if scene.plan.when is When.LATER:
        while not picture.ended and scene.turns_since(observer.published_ts) < LATER_TURNS:
            await scene.catch_up()
            await trio.sleep(LOOK_S)
        observer.now()


async def only_life(scene: Scene, deployment: Deployment, running: trio.Event) -> Onward:
    """The job ran and one server died at the planned point; the coordinator started all anew, and the job ended.

    `running` is set when the servers are open again.
    """
    picture, disk, plan = scene.picture, scene.world.seams.disk, scene.plan
    turns = {each.rollout_id: each.turns for each in plan.rollouts}
    held: list[Held] = []

    def strike() -> None:
        deployment.kill(plan.kill.server)
        picture.say(f"SIGKILL to {plan.kill.server} alone, while its coordinator lives", Tone.CRASH)

    async def restarted(report: Restarted) -> None:
        await scene.catch_up()
        held.append(with_live(await scene.held(report.checkpoint_id), report.verdicts, turns))
        picture.left_checkpoint()
        picture.killed(held[-1])
        picture.epoch = report.epoch
        picture.headline = f"life 1 goes on, epoch {report.epoch}"
        picture.restored(report.verdicts)
        picture.say(f"restarted: {report.story()}", Tone.CHECKPOINT)
        for line in scene.seen:  # what the new servers did before this was known
            picture.saw(line)
        running.set()

    trainer = scene.trainer()
    trainer.on_restart = restarted
    with disk.create(scene.home / "coordinator-1.jsonl") as file:
        observer = Observer(picture, file, plan.when, strike)
        async with scene.coordinator(deployment, trainer, observer) as job:
            recovered = await begin(scene, job, deployment, 1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run_rollouts, scene, job, recovered, trainer)
                await _until_struck(scene, job, observer, nursery)
                await running.wait()
            await checkpoint(scene, job)
            epoch = job.restarts[0].epoch
    return Onward(held[0], epoch, trainer)


async def show_held(scene: Scene, checkpoint_id: str) -> None:
    """The picture shows which turns the checkpoint has."""
    scene.picture.in_force(await scene.held(checkpoint_id))


async def finished(picture: Picture, turns: int) -> None:
    """So many turns of this life are finished, or no more will be."""
    await picture.until(lambda: picture.ended or picture.finished_turns >= turns)


async def checkpoint(scene: Scene, job: Coordinator) -> Published:
    """A checkpoint is in force, after a few tries if need be; DemoError when none of them succeeds."""
    picture = scene.picture
    for _ in range(TRIES):
        outcome: Published | Aborted = await job.checkpoint(timeout_s=CHECKPOINT_TIMEOUT_S)
        picture.left_checkpoint()
        picture.say(outcome.story(), Tone.CHECKPOINT if outcome.published else Tone.BAD)
        if isinstance(outcome, Published):
            return outcome
    raise DemoError(f"no checkpoint came about in {TRIES} tries")


@frozen
class Onward:
    """What the job went on from after the crash, in which epoch, and its trainer at the end."""

    held: Held
    epoch: int
    trainer: DemoTrainer


async def second_life(scene: Scene, deployment: Deployment, old: Deployment | None, running: trio.Event) -> Onward:
    """The job went on from the files and ended; servers of the life before, if any are left, were ended meanwhile.

    `running` is set when the servers are open again. A last checkpoint saves all results, and the servers release them.
    """
    picture, disk = scene.picture, scene.world.seams.disk
    trainer = scene.trainer()
    with disk.create(scene.home / "coordinator-2.jsonl") as file:
        async with scene.coordinator(deployment, trainer, Observer(picture, file)) as job:
            recovered = await begin(scene, job, deployment, 2)
            held = await scene.held(recovered.checkpoint_id)
            if old is not None:
                picture.say("SIGKILL to the servers of life 1, which nobody has used since", Tone.CRASH)
                old.kill()
                await old.stop()
            running.set()
            await run_rollouts(scene, job, recovered, trainer)
            await checkpoint(scene, job)
    return Onward(held, recovered.epoch, trainer)
