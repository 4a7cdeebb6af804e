"""A server dies while a life begins: all are started anew under a new claim, as later in the life, and so bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, field
from starlette.responses import JSONResponse, Response
from trio.testing import MockClock

from participants.coordination.coordinator import Coordinator, Overtaken, Recovered, Restarted, RestartFailed
from participants.coordination.deployment import DiscoveryFailed
from participants.records.records import Disposition
from tests.coordinator_world import SmallTrainer, World, a_world, abandoned, dispatches
from tests.small_fleet import FakeServer, Reply
from tests.test_restarting import Reluctant, die, reluctant

SERVERS = ("env", "policy", "agent", "tools")
SOON = {"probe_every_s": 0.5, "restart_tries": 3}
TURNS = {"done": 1, "p1": 9, "p2": 9}


@define(eq=False)
class Counting(SmallTrainer):
    """A trainer that counts its loads, and hears of restarts; `breaks`: and cannot load."""

    loads: int = 0
    reports: list[Restarted] = field(factory=list)
    breaks: bool = False

    async def load(self, directory: Path) -> None:
        self.loads += 1
        if self.breaks:
            raise LookupError("no such weights")
        await super().load(directory)

    async def restarted(self, report: Restarted) -> None:
        self.reports.append(report)


async def crashed(world: World, *, forgets: bool = False) -> None:
    """A life with one checkpoint behind it: `done` has its result, the others stand after two turns.

    `forgets`: what the trainer saved lacks the result, so that it is delivered again.
    """
    trainer = world.trainer()

    async def body(job: Coordinator) -> None:
        recovered = await job.recover()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job.run_batch, recovered.runnable(dispatches(TURNS)))
            await trio.sleep(2.5)
            if forgets:
                trainer.accepted.clear()
            assert (await job.checkpoint(20)).published
            nursery.cancel_scope.cancel()

    await abandoned(world, world.coordinator(trainer), body)


def dies_at(world: World, server: str, verb: str, *, times: int = 1) -> None:
    """The server is killed by this call, so often."""
    left = [times]

    def dies(fake: FakeServer, _body: Reply) -> None:
        if left[0]:
            left[0] -= 1
            die(world, fake.name)

    world.script(server, verb, dies)


async def finished(job: Coordinator, recovered: Recovered) -> None:
    assert (await job.run_batch(recovered.runnable(dispatches(TURNS)))).lost == {}


@pytest.mark.trio
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("verb", ["retire", "restore", "resume"])
async def test_a_server_dies_at_any_call_of_a_start(autojump_clock: MockClock, server: str, verb: str) -> None:
    """The next start goes on from the same checkpoint, with nothing held played again. Covers: I51, I96."""
    async with a_world() as world:
        await crashed(world)
        before = world.count("p1")
        dies_at(world, server, verb)
        trainer = Counting(world.disk)
        async with world.coordinator(trainer, **SOON) as job:
            recovered = await job.recover()
            assert (recovered.epoch, recovered.restore_failed) == (3, "")
            assert recovered.count(Disposition.CONTINUE) == 2 and recovered.count(Disposition.COMPLETED) == 1
            assert recovered.checkpoint_id == "ck-000001-000002"
            assert [(each.epoch, each.tries) for each in job.restarts] == [(3, 1)]
            assert trainer.reports == list(job.restarts)
            await finished(job, recovered)
        assert trainer.loads == 1, "the trainer lives"
        assert sorted([*trainer.loaded, *trainer.ids]) == sorted(TURNS)
        assert world.count("p1") <= before + 7
        assert sorted(world.store().claims()) == [1, 2, 3]


@pytest.mark.trio
async def test_a_fresh_start_whose_servers_die(autojump_clock: MockClock) -> None:
    """There is no checkpoint to go on from, and the next start is a fresh one as well."""
    async with a_world() as world:
        dies_at(world, "tools", "resume", times=2)
        trainer = Counting(world.disk)
        async with world.coordinator(trainer, **SOON) as job:
            recovered = await job.recover()
            assert recovered.story() == "epoch 3: a fresh start"
            assert job.restarts[0].tries == 2
            await finished(job, recovered)
        assert (trainer.loads, trainer.ids) == (0, sorted(TURNS))


@pytest.mark.trio
@pytest.mark.parametrize("checkpoint", [False, True])
async def test_a_server_dies_before_it_is_known(autojump_clock: MockClock, checkpoint: bool) -> None:
    """It was up and does not say who it is, since it has ended: a death, not servers that do not fit together."""
    async with a_world() as world:
        if checkpoint:
            await crashed(world)
        ends_unknown(world)
        trainer = Counting(world.disk)
        async with world.coordinator(trainer, **SOON) as job:
            recovered = await job.recover()
            assert job.restarts[0].reason == "agent is dead: its process has ended with status -9"
            assert recovered.epoch == (3 if checkpoint else 2)
            await finished(job, recovered)
        assert trainer.loads == int(checkpoint)
        assert sorted([*trainer.loaded, *trainer.ids]) == sorted(TURNS)


def ends_unknown(world: World) -> None:
    """The agent of the next start has ended before it says who it is."""
    deployments = reluctant_from(world)
    epochs: list[int] = []

    def dies(fake: FakeServer, _body: Reply) -> Response | None:
        epochs.append(fake.fleet.epoch)
        if fake.fleet.epoch > epochs[0]:
            return None
        deployments.exited[fake.name] = -9
        return JSONResponse({}, 503)

    world.script("agent", "capabilities", dies)


def reluctant_from(world: World) -> Reluctant:
    """The world's launcher as one that knows of ends, over the same history."""
    history = world.deployments.history
    made = reluctant(world)
    made.history = history
    return made


@pytest.mark.trio
async def test_servers_that_do_not_fit_together_are_no_death(autojump_clock: MockClock) -> None:
    """Another start would say the same: it is told at once, and one claim was made."""
    async with a_world() as world:
        reluctant_from(world)
        world.script("agent", "capabilities", lambda *_: {"instance_role": None})
        async with world.coordinator(world.trainer()) as job:
            with pytest.raises(DiscoveryFailed, match="agent"):
                await job.recover()
        assert sorted(world.store().claims()) == [1]


@pytest.mark.trio
async def test_servers_that_die_at_every_start_end_it(autojump_clock: MockClock) -> None:
    """As many tries as are allowed, each under its own claim; then one clear error, and nothing runs. Covers: I96."""
    async with a_world() as world:
        await crashed(world)
        dies_at(world, "tools", "restore", times=99)
        trainer = Counting(world.disk)
        async with world.coordinator(trainer, **{**SOON, "restart_tries": 2}) as job:
            with pytest.raises(RestartFailed, match=r"could not be fenced: tools.*2 tries failed"):
                await job.recover()
            assert world.network.up == ()
            with pytest.raises(RuntimeError, match="recover"):
                job.runnable()
        assert sorted(world.store().claims()) == [1, 2, 3, 4]
        world.script("tools", "restore", None)
        async with world.coordinator(trainer := Counting(world.disk), **SOON) as job:
            recovered = await job.recover()
            assert recovered.count(Disposition.CONTINUE) == 2, "nothing of the checkpoint was lost by it"
            await finished(job, recovered)
        assert sorted([*trainer.loaded, *trainer.ids]) == sorted(TURNS)


@pytest.mark.trio
async def test_somebody_else_has_claimed_meanwhile(autojump_clock: MockClock) -> None:
    """Its servers die and the root is claimed: it claims nothing more. Covers: I98."""
    async with a_world() as world:
        await crashed(world)

        def dies(fake: FakeServer, _body: Reply) -> None:
            successor = world.store()
            successor.record_base(successor.claim(), None)
            die(world, fake.name)

        world.script("env", "restore", dies)
        async with world.coordinator(world.trainer(), **SOON) as job:
            with pytest.raises(Overtaken, match="epoch 3 is claimed by somebody else"):
                await job.recover()
        assert sorted(world.store().claims()) == [1, 2, 3]
        assert world.network.up == ()


@pytest.mark.trio
async def test_what_the_trainer_lacks_is_delivered_once(autojump_clock: MockClock) -> None:
    """The death comes before it is delivered again, and changes nothing of that. Covers: I87."""
    async with a_world() as world:
        await crashed(world, forgets=True)
        dies_at(world, "tools", "restore")
        trainer = Counting(world.disk)
        async with world.coordinator(trainer, **SOON) as job:
            recovered = await job.recover()
            assert [(each.rollout_id, each.redelivered) for each in trainer.accepted] == [("done", True)]
            await finished(job, recovered)
        assert trainer.ids == sorted(TURNS)


@pytest.mark.trio
async def test_a_trainer_that_cannot_load_is_asked_once(autojump_clock: MockClock) -> None:
    """Whether its servers had died before or not: another start would not mend it."""
    async with a_world() as world:
        await crashed(world)
        trainer = Counting(world.disk, breaks=True)
        async with world.coordinator(trainer, **SOON) as job:
            with pytest.raises(LookupError, match="no such weights"):
                await job.recover()
        ends_unknown(world)
        async with world.coordinator(trainer, **SOON) as job:
            with pytest.raises(RestartFailed, match="LookupError: no such weights"):
                await job.recover()
        assert trainer.loads == 2


@pytest.mark.trio
async def test_a_start_that_is_cancelled_while_it_starts_anew(autojump_clock: MockClock) -> None:
    """Nothing of it stays, and the next life goes on from the same checkpoint."""
    async with a_world() as world:
        await crashed(world)
        dies_at(world, "tools", "restore", times=99)

        async def body(job: Coordinator) -> Any:
            with trio.move_on_after(10):
                await job.recover()

        await abandoned(world, world.coordinator(world.trainer(), **{**SOON, "restart_tries": 99}), body)
        world.script("tools", "restore", None)
        trainer = world.trainer()
        async with world.coordinator(trainer, **SOON) as job:
            recovered = await job.recover()
            assert recovered.count(Disposition.CONTINUE) == 2
            await finished(job, recovered)
        assert sorted([*trainer.loaded, *trainer.ids]) == sorted(TURNS)
