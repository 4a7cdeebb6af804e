"""One life of the demo's job: a coordinator, its trainer and its servers, until the end or until it is abandoned.

An abandoned coordinator is cancelled where it stands and sends nothing any more; the point is found by watching the
lines of its journal, which are written at each change of the transaction's state.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import trio
from attrs import define, field, frozen

from statecore.errors import StatecoreError
from statecore.journal import Journal
from statecore.seams import File, on_disk
from statecore.wire import parse

from ..coordination.coordinator import Aborted, Batch, Coordinator, CoordinatorSettings, Published, Recovered
from ..files.store import Store
from ..machines.transaction import TransactionState
from ..records.manifests import CheckpointId
from .counting import Held, held_by
from .lines import Event, JournalReader, Line, make_directory
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


@frozen
class Abandon:
    """Where the first life ends: when a checkpoint enters `state` and `published` ones came before it."""

    published: int
    state: TransactionState


ABANDON: Final = {
    When.PUBLISHED: Abandon(0, TransactionState.PUBLISHED),
    When.BEFORE_PUBLISH: Abandon(1, TransactionState.VALIDATING),
}


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
        return DemoTrainer(self.plan, self.world.seams.disk)

    def coordinator(self, deployment: Deployment, trainer: DemoTrainer, journal: Journal | None = None) -> Coordinator:
        """A new coordinator that has the files and nothing else."""
        return Coordinator(
            self.root,
            deployment,
            trainer,
            token=self.world.token,
            settings=CoordinatorSettings(),
            seams=self.world.seams,
            transport=deployment.transport,
            journal=journal,
        )

    async def held(self, checkpoint_id: str | None) -> Held:
        """What the checkpoint of that id has; it is read from the files, with every digest checked."""
        parsed = None if checkpoint_id is None else CheckpointId.parse(checkpoint_id)
        if parsed is None:
            return held_by(None)
        seams = self.world.seams
        store = Store(self.root, seams.disk, seams.entropy, seams.clock)
        return held_by(await on_disk(seams.disk, store.read, parsed))

    async def in_force(self) -> str | None:
        """The checkpoint that a start made now goes on from, as the files say; None without one."""
        seams = self.world.seams
        store = Store(self.root, seams.disk, seams.entropy, seams.clock)
        survey = await on_disk(seams.disk, store.survey)
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


@define(eq=False)
class Observer:
    """Takes the coordinator's journal line by line: into its file, onto the picture, and to the point of the crash.

    `published_ts` is when the newest checkpoint was published, in wall time: everything stood still then.
    """

    picture: Picture
    file: File
    abandon: Abandon | None = None
    scope: trio.CancelScope | None = None
    published_ts: float = 0.0
    _published: int = 0

    def __call__(self, data: bytes) -> None:
        self.file.write(data)
        line = parse(data)
        if line["machine"] != "transaction" or line["state"] == line["next"]:
            return
        checkpoint_id, state = line["ids"]["checkpoint_id"], TransactionState(line["next"])
        self.picture.entered(checkpoint_id, state)
        if self.scope is not None and self.abandon == Abandon(self._published, state):
            self.scope.cancel()
        if state is TransactionState.PUBLISHED:
            self._published += 1
            self.published_ts = line["clock"]


async def run_rollouts(scene: Scene, job: Coordinator, recovered: Recovered, trainer: DemoTrainer) -> None:
    """All rollouts that were recovered and all that the trainer still hands out have ended."""
    trainer.life = recovered.epoch
    lost: dict[str, str] = {}

    async def run(batch: Batch) -> None:
        lost.update((await job.run_batch(batch)).lost)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, recovered.runnable())
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
        observer = Observer(picture, file, ABANDON.get(scene.plan.when), scope)
        journal = Journal(observer, scene.world.seams.clock)
        async with scene.coordinator(deployment, trainer, journal) as job, trio.open_nursery() as nursery:
            recovered = await begin(scene, job, deployment, 1)
            nursery.start_soon(run_rollouts, scene, job, recovered, trainer)
            for turns in scene.plan.checkpoints_at:
                await finished(picture, turns)
                published = await checkpoint(scene, job)
                nursery.start_soon(show_held, scene, published.checkpoint_id)
            if scene.plan.when is When.LATER:
                while not picture.ended and scene.turns_since(observer.published_ts) < LATER_TURNS:
                    await scene.catch_up()
                    await trio.sleep(LOOK_S)
                scope.cancel()
            await trio.lowlevel.checkpoint()
            raise DemoError("the crash did not come about")
    picture.left_checkpoint()


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
class SecondLife:
    """What the second life went on from, and its trainer at the end."""

    recovered: Recovered
    trainer: DemoTrainer


async def second_life(scene: Scene, deployment: Deployment, old: Deployment | None, running: trio.Event) -> SecondLife:
    """The job went on from the files and ended; servers of the life before, if any are left, were ended meanwhile.

    `running` is set when the servers are open again. A last checkpoint saves all results, and the servers release them.
    """
    picture, disk = scene.picture, scene.world.seams.disk
    trainer = scene.trainer()
    with disk.create(scene.home / "coordinator-2.jsonl") as file:
        journal = Journal(Observer(picture, file), scene.world.seams.clock)
        async with scene.coordinator(deployment, trainer, journal) as job:
            recovered = await begin(scene, job, deployment, 2)
            if old is not None:
                picture.say("SIGKILL to the servers of life 1, which nobody has used since", Tone.CRASH)
                old.kill()
                await old.stop()
            running.set()
            await run_rollouts(scene, job, recovered, trainer)
            await checkpoint(scene, job)
    return SecondLife(recovered, trainer)
