"""The newest checkpoint is damaged, unreadable, or of another version: what a start does then, and what it says."""

from __future__ import annotations

import errno
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from participants.coordination.coordinator import Coordinator, Published, Recovered
from participants.coordination.falling_back import take_newest_whole
from participants.coordination.outcomes import Damaged
from participants.coordination.recovery import CheckpointRejected
from participants.files.chain import NothingWhole
from participants.files.files import walk
from participants.files.store import Store
from participants.records.manifests import CheckpointId
from participants.records.records import Disposition
from statecore.seams import FixedClock, MemoryDisk, SeededEntropy
from tests.checkpoints import publish, started, store_on
from tests.coordinator_world import ROOT, SmallTrainer, World, a_world, abandoned, dispatches

OLD, NEW = CheckpointId(1, 2), CheckpointId(1, 3)  # a life numbers its restore as well
LEDGER = "coordinator/ledger.jsonl"
AGENT = "gym/agent/agent/manifest.json"


async def two_checkpoints(world: World) -> None:
    """A life that dies after two checkpoints: of the short rollout the second alone has the result."""

    async def play(job: Coordinator) -> None:
        batch = (await job.recover()).runnable(dispatches({"short": 4, "long": 9}))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job.run_batch, batch)
            for after_s in (2.5, 3.5):
                await trio.sleep(after_s)
                outcome = await job.checkpoint(20)
                assert isinstance(outcome, Published), outcome.story()
            nursery.cancel_scope.cancel()

    await abandoned(world, world.coordinator(world.trainer()), play)
    assert world.store().published() == (OLD, NEW)
    assert world.history.released == ["short"], "the second one holds its result, so its server has let go of it"
    del world.history.calls[:]


def spoil(disk: MemoryDisk, path: Path) -> None:
    """One byte of the file is another one."""
    content = bytearray(disk.read(path))
    content[len(content) // 2] ^= 1
    rewrite(disk, path, bytes(content))


def rewrite(disk: MemoryDisk, path: Path, content: bytes) -> None:
    disk.unlink(path)
    with disk.create(path) as file:
        file.write(content)
        file.fsync()


def newer(disk: MemoryDisk, checkpoint: Path) -> None:
    """It was written by a later version."""
    manifest = json.loads(disk.read(checkpoint / "checkpoint.json"))
    rewrite(disk, checkpoint / "checkpoint.json", json.dumps(manifest | {"schema_version": 2}).encode())


async def recovered(world: World, trainer: SmallTrainer, **settings: Any) -> Recovered:
    """Where a new life stands; it ends at once."""
    async with world.coordinator(trainer, **settings) as job:
        return await job.recover()


# --- damaged


@pytest.mark.trio
@pytest.mark.parametrize("file", [AGENT, LEDGER])
async def test_the_one_before_a_damaged_checkpoint_is_taken(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, file: str
) -> None:
    """The trainer's half, the ledger and the parts all roll back to one moment, under a claim of its own; the result
    that the damaged one alone holds is named, made again and taken in once. Covers: I11, I44, I77, I96
    """
    async with a_world() as world:
        await two_checkpoints(world)
        spoil(world.disk, ROOT / str(NEW) / file)
        trainer = world.trainer()
        with caplog.at_level(logging.ERROR):
            async with world.coordinator(trainer) as job:
                found = await job.recover()
                assert trainer.loaded == []
                await job.run_batch(found.runnable())
                assert isinstance(await job.checkpoint(20), Published)
        (told,) = [each.getMessage() for each in caplog.records if "damaged" in each.getMessage()]
        assert told.startswith(f"{NEW} is damaged and nothing of it is used: {ROOT / str(NEW) / file} does not match")
        assert told.endswith(f"going on from {OLD} instead")
        assert ("holds the results of short, which run again" if file == AGENT else "cannot be told") in told
        assert trainer.ids == ["long", "short"]
        assert world.store().claims()[2].base is not None
        assert world.store().claims()[2].base.start == OLD  # type: ignore[union-attr]
        assert world.store().survey().overtaken == (NEW,), "what was passed over is never started from again"


@pytest.mark.trio
async def test_what_was_passed_over_is_in_what_recover_returns(autojump_clock: MockClock) -> None:
    """By name, with the reason and the results; and the story says it in one line."""
    async with a_world() as world:
        await two_checkpoints(world)
        world.disk.unlink(ROOT / str(NEW) / AGENT)
        found = await recovered(world, world.trainer())
        assert found.checkpoint_id == str(OLD)
        assert found.damaged == (Damaged(str(NEW), f"missing manifest {ROOT / str(NEW) / AGENT}", ("short",)),)
        assert found.story() == f"epoch 2 from {OLD} ({NEW} is damaged): 2 continue, 0 completed, 0 fresh"
        again = await recovered(world, world.trainer())
        assert (again.checkpoint_id, again.damaged, again.overtaken) == (str(OLD), (), (str(NEW),))


@pytest.mark.trio
async def test_a_result_that_both_hold_is_not_told_as_lost(autojump_clock: MockClock) -> None:
    """What the older one holds as well stays completed."""
    async with a_world() as world:
        await two_checkpoints(world)
        async with world.coordinator(world.trainer()) as job:
            await job.recover()
            assert isinstance(await job.checkpoint(20), Published)
        world.deployments.kill()
        spoil(world.disk, ROOT / "ck-000002-000002" / AGENT)
        found = await recovered(world, world.trainer())
        assert (found.checkpoint_id, found.count(Disposition.COMPLETED)) == (str(NEW), 1)
        assert [each.results for each in found.damaged] == [()]
        assert "it alone holds no result" in found.damaged[0].story()


@pytest.mark.trio
async def test_off_a_damaged_checkpoint_refuses_the_start(autojump_clock: MockClock) -> None:
    """Nothing older in its place: no server is started, and nothing is recorded or deleted. Covers: I79"""
    async with a_world() as world:
        await two_checkpoints(world)
        spoil(world.disk, ROOT / str(NEW) / LEDGER)
        starts = len(world.deployments.fleets)
        with pytest.raises(CheckpointRejected, match=rf"{NEW} is damaged and nothing older .*\(fall_back is off\)"):
            await recovered(world, world.trainer(), fall_back=False)
        assert len(world.deployments.fleets) == starts
        assert world.store().claims()[2].base is None
        assert world.store().survey().candidates == (NEW, OLD)


@pytest.mark.trio
async def test_a_chain_without_a_whole_checkpoint_is_no_fresh_start(autojump_clock: MockClock) -> None:
    """All of them are named, each with its reason."""
    async with a_world() as world:
        await two_checkpoints(world)
        for each in (OLD, NEW):
            spoil(world.disk, ROOT / str(each) / LEDGER)
        with pytest.raises(CheckpointRejected) as error:
            await recovered(world, world.trainer())
        assert [re.findall(r"ck-\d+-\d+ is damaged", each) for each in error.value.problems[:2]] == [
            [f"{NEW} is damaged"],
            [f"{OLD} is damaged"],
        ]
        assert error.value.problems[2] == f"all checkpoints of the chain of epoch 2 are damaged: {NEW}, {OLD}"


@pytest.mark.trio
async def test_a_trainer_that_stayed_ahead_of_an_older_checkpoint_is_refused(autojump_clock: MockClock) -> None:
    """A result that it has and the older ledger lacks would be trained on twice. Covers: I84, I88"""

    class Ahead(SmallTrainer):
        async def load(self, directory: Path) -> None:
            self.loaded = ["short"]

    async with a_world() as world:
        await two_checkpoints(world)
        spoil(world.disk, ROOT / str(NEW) / LEDGER)
        with pytest.raises(CheckpointRejected, match="has consumed short, of which the ledger has no result"):
            await recovered(world, Ahead(world.disk))


# --- not damaged


@pytest.mark.trio
async def test_s43_a_newer_schema_refuses_the_start_and_is_not_passed_over(autojump_clock: MockClock) -> None:
    """S43: an old version started by mistake would give up for ever what the new one has done. Covers: I79"""
    async with a_world() as world:
        await two_checkpoints(world)
        newer(world.disk, ROOT / str(NEW))
        told = rf"{NEW} is not damaged, and this version cannot read it: .*checkpoint\.json has schema version 2, "
        with pytest.raises(CheckpointRejected, match=told + "only 1 can be read here: start a newer version"):
            await recovered(world, world.trainer())
        assert world.store().survey().candidates == (NEW, OLD)


@pytest.mark.trio
async def test_a_newer_schema_behind_a_damaged_checkpoint_refuses_the_start(autojump_clock: MockClock) -> None:
    """Falling back goes one by one, and ends where nobody can tell."""
    async with a_world() as world:
        await two_checkpoints(world)
        spoil(world.disk, ROOT / str(NEW) / LEDGER)
        newer(world.disk, ROOT / str(OLD))
        with pytest.raises(CheckpointRejected, match=f"{OLD} is not damaged"):
            await recovered(world, world.trainer())


class Unreadable(MemoryDisk):
    """Whatever is below `out_of_reach` answers with an input/output error."""

    out_of_reach = "/nowhere"

    def chunks(self, path: Any, size: int = 1 << 20) -> Any:
        if str(path).startswith(self.out_of_reach):
            raise OSError(errno.EIO, "input/output error")
        return super().chunks(path, size)


@pytest.mark.parametrize("file", ["checkpoint.json", AGENT, "gym/agent/agent/records-", LEDGER, "framework/"])
def test_what_cannot_be_read_now_is_not_taken_for_damaged(file: str) -> None:
    """A file server that is away for a minute must not cost a checkpoint: once passed over it would never come back."""
    disk = Unreadable()
    store, epoch = started(disk)
    for sequence in (2, 3):
        publish(disk, store, epoch, sequence)
    disk.out_of_reach = str(store.path(NEW) / file)
    again = store_on(disk)
    claimed = again.claim()
    with pytest.raises(CheckpointRejected, match=rf"{NEW} cannot be read now, .*input/output error; start again"):
        take_newest_whole(again, claimed, fall_back=True)
    disk.out_of_reach = "/nowhere"
    assert take_newest_whole(again, claimed, fall_back=True).start == NEW


def test_every_damaged_file_leads_to_the_one_before() -> None:
    """Whichever file it is, missing or with another byte. Covers: I44"""
    disk = MemoryDisk()
    store, epoch = started(disk)
    for sequence in (2, 3):
        publish(disk, store, epoch, sequence)
    files = walk(disk, store.path(NEW))[0]
    assert len(files) > 12
    claimed = store.claim()
    for path in files:
        before = disk.read(path)
        for damage in (disk.unlink, lambda path: spoil(disk, path)):
            damage(path)
            taken = take_newest_whole(store, claimed, fall_back=True)
            assert (taken.start, [each.checkpoint_id for each in taken.damaged]) == (OLD, [str(NEW)]), path
            if disk.kind(path) is None:
                with disk.create(path) as file:
                    file.write(before)
            else:
                rewrite(disk, path, before)
    assert take_newest_whole(store, claimed, fall_back=True).start == NEW


def test_a_chain_that_is_damaged_to_its_end() -> None:
    """The store says so by itself, and a root without any checkpoint is a fresh start."""
    disk = MemoryDisk()
    store = Store(Path("/root"), disk, SeededEntropy(1), FixedClock(0.0))
    first = store.claim()
    assert store.choose(first).start is None
    store.record_base(first, None)
    only = publish(disk, store, first, 1)
    second = store.claim()
    with pytest.raises(NothingWhole, match=str(only)):
        store.choose(second, [only])
