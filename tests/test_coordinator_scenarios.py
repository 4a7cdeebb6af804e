"""Scenarios that went wrong elsewhere: first the fault, put into a double, then its absence here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from participants.coordination.coordinator import Aborted, Overtaken, Published
from participants.coordination.deployment import DiscoveryFailed
from participants.coordination.restoring import claim_and_choose
from participants.files.chain import Base
from participants.files.store import Store
from participants.records.records import Disposition
from participants.serving.testing import Fault
from participants.settings import Seams
from statecore.seams import LoopClock, MemoryDisk
from tests.checkpoints import ENTROPY, publish, started, store_on
from tests.coordinator_world import World, a_world, dispatches, running
from tests.small_fleet import FakeServer, Reply


@pytest.mark.trio
async def test_s01_a_judge_taken_for_a_policy(autojump_clock: MockClock) -> None:
    """S1. The double inherits the policy role: the judge is closed with everybody else, and a verifier's call with it.

    Here an auxiliary server is never paused, and a server that does not say what it is refuses the start. Covers: I73.
    """
    phases: list[str] = []
    for role in ("policy", "auxiliary"):
        async with a_world() as world:
            world.script("policy", "capabilities", lambda *_, role=role: {"instance_role": role})
            trainer = world.trainer()

            async def look(world: World = world) -> None:
                phases.append(world.deployments.fleet.servers["policy"].phase)

            trainer.on_save = look
            async with world.coordinator(trainer) as job:
                await job.recover()
                assert (await job.checkpoint(5)).published
    assert phases == ["committed", "idle"]
    async with a_world() as world:
        world.script("policy", "capabilities", lambda *_: {"instance_role": None})
        with pytest.raises(DiscoveryFailed, match="policy: its capabilities have no instance_role"):
            async with world.coordinator(world.trainer()) as job:
                await job.recover()


@pytest.mark.trio
async def test_s02_results_that_wait_for_their_group(autojump_clock: MockClock) -> None:
    """S2. The double counts a retained result as a blocker, so a finished sibling blocks every checkpoint.

    Here what is retained is state like any other: the checkpoint holds the result and then it is released. Covers: I69.
    """

    def blocks(server: FakeServer, body: Reply) -> Reply:
        server.phase, server.checkpoint_id = "preparing", body["checkpoint_id"]
        retained = [each.episode.key for each in server.fleet.retained()]
        return {"phase": "preparing", "report": {"ready": False, "blockers": retained}}

    async with a_world() as world:
        new = [*dispatches({"g1": 1, "g2": 30})]
        async with running(world.coordinator(world.trainer()), new) as (job, _):
            await trio.sleep(2.5)
            world.script("env", "prepare", blocks)
            outcome = await job.checkpoint(5)
            assert isinstance(outcome, Aborted)
            assert [each.reason for each in outcome.blockers] == ["g1"]
            world.script("env", "prepare", None)
            outcome = await job.checkpoint(5)
            assert isinstance(outcome, Published), outcome.story()
            assert (outcome.counts[Disposition.COMPLETED], outcome.counts[Disposition.CONTINUE]) == (1, 1)
            assert world.history.released == ["g1"]


@pytest.mark.trio
async def test_s10_invisible_blockers(autojump_clock: MockClock) -> None:
    """S10. The double times out and says that something is not ready; here who, where, why and for how long.

    A peer's plain strings are shown as they are and never parsed.
    """

    def silent(server: FakeServer, body: Reply) -> Reply:
        server.phase, server.checkpoint_id = "preparing", body["checkpoint_id"]
        return {"phase": "preparing", "report": {"ready": False, "blockers": ["", "env-workers-unreported:1"]}}

    stories = []
    async with (
        a_world() as world,
        running(world.coordinator(world.trainer()), dispatches({"slow": 1}, turn_s=90.0)) as (job, _),
    ):
        await trio.sleep(1)
        for script in (silent, None):
            world.script("env", "prepare", script)
            outcome = await job.checkpoint(5)
            assert isinstance(outcome, Aborted)
            stories.append([str(each) for each in outcome.blockers])
    assert stories == [
        [
            "a call without a rollout at env: a call without a rollout",
            "a call without a rollout at env: env-workers-unreported:1",
        ],
        ["slow attempt 0 at env: running a turn for 1.5 s"],
    ]


@pytest.mark.trio
async def test_s37_the_accepted_run_that_left_no_trace(autojump_clock: MockClock) -> None:
    """S37. The double knows what the servers' records show: a rollout before its first record is dropped silently.

    Here the dispatch is recorded before the first request leaves; after the crash the rollout is fresh, not gone.
    """
    async with a_world() as world:
        with trio.CancelScope() as scope:
            world.network.faults = lambda call: Fault(silent=True) if call.path == "/run" else None
            async with world.coordinator(world.trainer()) as job, trio.open_nursery() as nursery:
                recovered = await job.recover()
                nursery.start_soon(job.run_batch, recovered.runnable(dispatches({"p1": 2})))
                await trio.sleep(1)
                assert (await job.checkpoint(10)).published
                scope.cancel()
        world.deployments.kill()
        world.network.faults = None
        checkpoint = world.store().read(world.store().published()[-1])
        recorded = [record["episode_id"] for part in checkpoint.parts for record in part.records]
        assert recorded == [], "all that the double would know of"
        trainer = world.trainer()
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            assert recovered.count(Disposition.FRESH) == 1
            await job.run_batch(recovered.runnable())
        assert trainer.ids == ["p1"]


@pytest.mark.trio
async def test_s62_acknowledged_and_then_overtaken(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """S62. The double acknowledges before it looks: a result is released that the successor's base does not hold.

    The successor's base was chosen before the publication, so only its claim can tell. Covers: I98.
    """
    released: dict[str, list[str]] = {}
    for looks in (True, False):
        async with a_world() as world:
            coordinator = world.coordinator(world.trainer())
            try:
                async with coordinator as job:
                    recovered = await job.recover()
                    await job.run_batch(recovered.runnable(dispatches({"p1": 1})))
                    successor = world.store()
                    successor.record_base(successor.claim(), None)
                    if not looks:
                        monkeypatch.setattr(Store, "overtaken_by", lambda *_: ())
                    await job.checkpoint(10)
            except Overtaken:
                assert looks
            released["looks" if looks else "does not look"] = world.history.released
    assert released == {"does not look": ["p1"], "looks": []}


@pytest.mark.trio
async def test_s62_a_base_that_a_later_life_has_not_seen(autojump_clock: MockClock) -> None:
    """S62, as the model found it: results are released at a start too. Nothing runs whose base may have been missed.

    The third life chooses while the second is void, and records when the fourth has chosen by the second: what the
    third would release is not in the base of the fourth. Covers: I67, I98.
    """

    class Raced(MemoryDisk):
        race: Callable[[], None] | None = None

        def link(self, src: Any, dst: Any) -> None:
            if self.race is not None and str(dst).endswith("epoch-000003.base.json"):
                race, self.race = self.race, None
                race()
            super().link(src, dst)

    disk = Raced()
    first, epoch = started(disk)
    second = store_on(disk)
    void = second.claim()
    assert second.choose(void).start is None
    base = publish(disk, first, epoch, 1)
    bases = []

    def race() -> None:
        second.record_base(void, None)
        fourth = store_on(disk)
        bases.append(fourth.choose(fourth.claim()).start)

    disk.race = race
    third = store_on(disk)
    with pytest.raises(Overtaken, match="epoch 3 is overtaken by epoch 4 before it began"):
        await claim_and_choose(third, Seams(LoopClock(0.0), disk, ENTROPY))
    assert third.claims()[3].base == Base(base)
    assert bases == [None]


@pytest.mark.trio
async def test_an_overtaken_start_starts_nothing(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody claims while the base is recorded: no server is started, no call is made. Covers: I98"""
    record_base = Store.record_base

    def and_another_claims(store: Store, epoch: int, start: Any) -> None:
        record_base(store, epoch, start)
        store.claim()

    async with a_world() as world:
        monkeypatch.setattr(Store, "record_base", and_another_claims)
        with pytest.raises(Overtaken, match="nothing runs"):
            async with world.coordinator(world.trainer()) as job:
                await job.recover()
        assert world.deployments.fleets == []
        assert world.history.calls == []
