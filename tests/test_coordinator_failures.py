"""A checkpoint that fails is a value: aborts, bounds, proofs, and what is reported loudly (S3, S32, S33)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from attrs import define
from trio.testing import MockClock

from participants.coordination.coordinator import Aborted, Coordinator, Overtaken, Published
from participants.coordination.trainer import Result
from participants.files.draft import Draft
from participants.files.store import Publication, PublicationInDoubt, Store, StoreError
from participants.records.records import Disposition
from participants.serving.testing import Fault, once
from tests.coordinator_world import (
    ROOT,
    WALL,
    SmallTrainer,
    a_world,
    dispatches,
    is_call,
    refuse,
    running,
)
from tests.small_fleet import FakeServer, Reply


@pytest.mark.trio
async def test_s10_blockers_by_rollout_and_reason(autojump_clock: MockClock) -> None:
    """A prepare that runs into its deadline names who is in the way, and the run goes on (S10, S3). Covers: I20."""
    async with a_world() as world:
        trainer = world.trainer()
        async with running(world.coordinator(trainer), dispatches({"slow": 1}, turn_s=50.0)) as (job, reports):
            await trio.sleep(1)
            outcome = await job.checkpoint(5)
            assert isinstance(outcome, Aborted)
            (blocker,) = outcome.blockers
            assert (blocker.rollout_id, blocker.reason, blocker.waited_s) == ("slow", "running a turn", 1.5)
            assert "slow attempt 0 at env: running a turn for 1.5 s" in outcome.story()
            assert "preparing" in outcome.story()
            assert world.history.verbs("policy") == ["resume"], "only who was contacted is resumed"
            assert world.deployments.fleet.servers["env"].open
        assert reports[0].delivered == 1


@pytest.mark.trio
@pytest.mark.parametrize("verb", ["prepare", "commit", "renew"])
@pytest.mark.parametrize("code", ["invalid_phase", "stale_incarnation", "checkpoint_conflict"])
async def test_s03_one_failed_call_never_ends_a_run(autojump_clock: MockClock, verb: str, code: str) -> None:
    """Any refused call before publication: abort, everybody open again, the next checkpoint works (S3). Covers: I20."""
    async with a_world() as world:
        trainer = world.trainer()
        async with running(world.coordinator(trainer), dispatches({"p1": 6})) as (job, reports):
            await trio.sleep(1.5)
            world.script("agent", verb, refuse(409, code))
            outcome = await job.checkpoint(10)
            assert isinstance(outcome, Aborted)
            assert code in outcome.reason
            assert not outcome.broken
            assert all(server.open for server in world.deployments.fleet.servers.values())
            assert world.store().published() == ()
            assert [name for name in world.disk.listdir(ROOT) if name.endswith(".partial")] == []
            world.script("agent", verb, None)
            assert (await job.checkpoint(10)).published
        assert reports[0].delivered == 1


@pytest.mark.trio
@pytest.mark.parametrize("verb", ["prepare", "commit", "renew", "resume"])
@pytest.mark.parametrize("server", ["env", "policy", "agent", "tools"])
async def test_s33_a_lost_reply_changes_nothing(autojump_clock: MockClock, server: str, verb: str) -> None:
    """A reply that is lost once is asked for again, and the outcome is the same (S33). Covers: I15."""
    async with a_world() as world:
        trainer = world.trainer()
        async with running(world.coordinator(trainer), dispatches({"p1": 6})) as (job, reports):
            await trio.sleep(1.5)
            world.network.faults = once(Fault(lose_reply=True), server=server, path=verb)
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published), outcome.story()
            assert outcome.counts[Disposition.CONTINUE] == 1
            assert outcome.unresumed == ()
        assert reports[0].delivered == 1


@pytest.mark.trio
async def test_a_server_whose_prepare_reply_is_lost_for_good_is_resumed(autojump_clock: MockClock) -> None:
    """Whoever was contacted is resumed, also when its reply never came. Covers: I20."""
    async with a_world() as world:
        trainer = world.trainer()
        async with running(world.coordinator(trainer), dispatches({"p1": 6})) as (job, reports):
            await trio.sleep(1.5)
            world.network.faults = lambda call: Fault(lose_reply=True) if call.path.endswith("prepare") else None
            outcome = await job.checkpoint(5)
            assert isinstance(outcome, Aborted)
            assert world.deployments.fleet.servers["env"].open
            assert world.history.bodies("env", "resume")[-1]["checkpoint_id"] == outcome.checkpoint_id
        assert reports[0].delivered == 1


@pytest.mark.trio
@pytest.mark.parametrize("server", ["env", "policy", "agent", "tools"])
async def test_nothing_is_committed_without_every_server(autojump_clock: MockClock, server: str) -> None:
    """A server that cannot be reached may hold a part of any rollout: nobody is told to write. Covers: I22, I40."""
    async with a_world() as world:
        async with running(world.coordinator(world.trainer()), dispatches({"p1": 6})) as (job, reports):
            await trio.sleep(1.5)
            world.network.faults = lambda call: (
                Fault(refuse=True) if call.server == server and call.path.endswith("prepare") else None
            )
            outcome = await job.checkpoint(5)
            assert isinstance(outcome, Aborted) and server in outcome.reason
            assert "commit" not in world.history.verbs()
        assert reports[0].delivered == 1


@pytest.mark.trio
async def test_a_server_that_cannot_be_resumed_is_named_and_the_others_are_open(autojump_clock: MockClock) -> None:
    """Resume goes on through the failure of one server; the checkpoint is in force all the same."""
    async with a_world() as world:
        trainer = world.trainer()
        async with world.coordinator(trainer) as job:
            await job.recover()
            world.network.faults = lambda call: Fault(refuse=True) if is_call(call, "tools", "resume") else None
            outcome = await job.checkpoint(5)
            assert isinstance(outcome, Published)
            (problem,) = outcome.unresumed
            assert problem.startswith("tools: resume")
            assert [world.deployments.fleet.servers[name].open for name in ("policy", "agent", "env")] == [True] * 3


@pytest.mark.trio
async def test_a_framework_that_cannot_save_aborts_and_the_run_goes_on(autojump_clock: MockClock) -> None:
    """What the trainer's save raises is a reason, not the end; the next checkpoint works."""
    async with a_world() as world:
        trainer = world.trainer()

        async def explode() -> None:
            raise OSError("disk full")

        async with running(world.coordinator(trainer), dispatches({"p1": 6})) as (job, reports):
            await trio.sleep(1.5)
            trainer.on_save = explode
            outcome = await job.checkpoint(10)
            assert isinstance(outcome, Aborted)
            assert (outcome.phase, outcome.reason) == ("saving", "the framework's save failed: OSError: disk full")
            trainer.on_save = None
            assert (await job.checkpoint(10)).published
        assert reports[0].delivered == 1


@pytest.mark.trio
async def test_a_save_that_never_ends_is_bounded(autojump_clock: MockClock) -> None:
    """Every wait of a checkpoint has a bound: a hook that hangs is cancelled at the deadline. Covers: I18."""
    async with a_world() as world:
        trainer = world.trainer()
        trainer.on_save = trio.sleep_forever
        async with world.coordinator(trainer) as job:
            await job.recover()
            began = trio.current_time()
            outcome = await job.checkpoint(7)
            assert isinstance(outcome, Aborted)
            assert outcome.reason == "the framework's half was not saved within 7 s"
            assert trio.current_time() - began < 8


@pytest.mark.trio
async def test_a_trainer_that_checkpoints_from_inside_accept_is_bounded(autojump_clock: MockClock) -> None:
    """A hook that waits for the checkpoint that waits for the hook ends at the deadline, and is told. Covers: I18."""
    async with a_world() as world:
        outcomes: list[Any] = []

        @define(eq=False)
        class Eager(SmallTrainer):
            job: Coordinator | None = None

            async def accept(self, result: Result) -> None:
                assert self.job is not None
                outcomes.append(await self.job.checkpoint(5))
                self.accepted.append(result)

        trainer = Eager(world.disk)
        async with world.coordinator(trainer) as job:
            trainer.job = job
            recovered = await job.recover()
            await job.run_batch(recovered.runnable(dispatches({"p1": 1})))
        assert not outcomes[0].published
        assert trainer.ids == ["p1"]


@pytest.mark.trio
async def test_s32_a_lease_that_is_lost_while_the_framework_saves_ends_it_early(autojump_clock: MockClock) -> None:
    """A server that has reopened refuses the renewal; the save is cut short and nothing is published (S32)."""
    async with a_world() as world:
        trainer = world.trainer()

        async def lose() -> None:
            tools = world.deployments.fleet.servers["tools"]
            assert tools.checkpoint_id is not None
            tools.reopen(tools.checkpoint_id)
            await trio.sleep(1000)

        async with world.coordinator(trainer, renew_every_s=2.0) as job:
            await job.recover()
            trainer.on_save = lose
            outcome = await job.checkpoint(600)
            assert isinstance(outcome, Aborted)
            assert "stale_checkpoint" in outcome.reason
            assert outcome.seconds < 10
            assert world.store().published() == ()


@pytest.mark.trio
@pytest.mark.parametrize("fault", ["reopened", "restarted"])
async def test_s32_published_only_with_proof(autojump_clock: MockClock, fault: str) -> None:
    """A server that reopened, or is another process, after its commit cannot prove itself: nothing is renamed (S32).

    The proof is asked for after the save; one taken before it would have been given here.
    """
    async with a_world() as world:
        trainer = world.trainer()
        agent = None

        async def change() -> None:
            nonlocal agent
            agent = world.deployments.fleet.servers["agent"]
            if fault == "reopened":
                assert agent.checkpoint_id is not None
                agent.reopen(agent.checkpoint_id)
            else:
                agent.incarnation = "f" * 32

        trainer.on_save = change
        async with world.coordinator(trainer) as job:
            await job.recover()
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Aborted)
            assert outcome.phase == "validating"
            assert world.store().published() == ()


@pytest.mark.trio
@pytest.mark.parametrize(
    ("phase", "checkpoint_id", "publishes"),
    [("committed", None, True), ("preparing", None, False), ("prepared", None, False), ("committed", "ck-9", False)],
)
async def test_s32_a_peer_without_incarnations_proves_its_phase(
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    phase: str,
    checkpoint_id: str | None,
    publishes: bool,
) -> None:
    """A renew is answered in any phase: by a successor too, that a late prepare has closed under the same id (S32).

    That such a peer proves less than others is said once.
    """

    def anonymous(server: FakeServer, _body: Any) -> None:
        server.incarnation = ""

    async with a_world() as world:
        trainer = world.trainer()
        world.script("agent", "capabilities", anonymous)

        async def change() -> None:
            agent = world.deployments.fleet.servers["agent"]
            assert (agent.phase, agent.incarnation) == ("committed", "")
            agent.phase = phase
            if checkpoint_id is not None:
                world.script("agent", "renew", lambda *_: {"lease_expires_at": WALL + 600})
                agent.checkpoint_id = checkpoint_id

        trainer.on_save = change
        async with world.coordinator(trainer) as job:
            await job.recover()
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published if publishes else Aborted)
            assert len(world.store().published()) == publishes
        assert [each.getMessage()[:24] for each in caplog.records if "incarnation" in each.getMessage()] == [
            "agent: no incarnation in"
        ]


@pytest.mark.trio
async def test_a_lease_that_has_run_out_is_no_proof(autojump_clock: MockClock) -> None:
    """A renewal that names a past expiry is believed: the checkpoint is aborted."""
    async with a_world() as world:
        world.script("policy", "renew", lambda *_: {"lease_expires_at": WALL - 1})
        async with world.coordinator(world.trainer()) as job:
            await job.recover()
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Aborted)
            assert outcome.reason == "policy: its lease has expired"


@pytest.mark.trio
async def test_several_failures_in_a_row_are_loud(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    """One failure is a warning, the third in a row an error; a success starts the count anew."""
    caplog.set_level(logging.WARNING, "statecore.coordinator")
    async with a_world() as world, world.coordinator(world.trainer(), loud_after=3) as job:
        await job.recover()
        world.script("agent", "commit", refuse(409, "invalid_phase"))
        outcomes = [await job.checkpoint(5) for _ in range(3)]
        assert [each.in_a_row for each in outcomes if isinstance(each, Aborted)] == [1, 2, 3]
        levels = [record.levelname for record in caplog.records]
        assert levels == ["WARNING", "WARNING", "ERROR"]
        assert "3 checkpoints in a row have failed" in caplog.records[-1].message
        world.script("agent", "commit", None)
        assert (await job.checkpoint(5)).published
        world.script("agent", "commit", refuse(409, "invalid_phase"))
        last = await job.checkpoint(5)
        assert isinstance(last, Aborted)
        assert last.in_a_row == 1


@pytest.mark.trio
@pytest.mark.parametrize(
    ("server", "verb", "reply"),
    [
        ("agent", "commit", {"phase": "prepared"}),
        ("agent", "commit", {"phase": "committed", "manifest": {}, "episode_ids": []}),
        (
            "policy",
            "commit",
            {
                "phase": "committed",
                "manifest": {"kind": "model", "instance": "policy", "checkpoint_id": "ck-000001-000002"},
                "episode_ids": ["p1", "p1"],
            },
        ),
    ],
)
async def test_a_broken_invariant_is_loud_at_once(
    autojump_clock: MockClock, server: str, verb: str, reply: Reply, caplog: pytest.LogCaptureFixture
) -> None:
    """A 200 that breaks the protocol aborts too, and is an error the first time."""
    async with a_world() as world:
        world.script(server, verb, lambda *_: reply)
        async with world.coordinator(world.trainer()) as job:
            await job.recover()
            outcome = await job.checkpoint(5)
            assert isinstance(outcome, Aborted)
            assert outcome.broken
            assert all(each.open for each in world.deployments.fleet.servers.values())
    assert any(record.levelname == "ERROR" for record in caplog.records)


@pytest.mark.trio
async def test_a_part_that_is_not_what_was_answered_does_not_validate(autojump_clock: MockClock) -> None:
    """The files are read back: a manifest that differs from the commit reply is not published. Covers: I41, I44."""

    def lie(server: FakeServer, _body: Reply) -> Reply:
        server.phase = "committed"
        manifest = {"kind": "agent", "instance": "agent", "checkpoint_id": "ck-000001-000002"}
        return {"phase": "committed", "manifest": manifest, "episode_ids": []}

    async with a_world() as world:
        world.script("agent", "commit", lie)
        async with world.coordinator(world.trainer()) as job:
            await job.recover()
            outcome = await job.checkpoint(5)
            assert isinstance(outcome, Aborted)
            assert "agent: its part cannot be read here" in outcome.reason
            assert world.store().published() == ()


@pytest.mark.trio
async def test_a_trainer_that_consumed_what_never_came_is_a_broken_invariant(autojump_clock: MockClock) -> None:
    """The trainer's state is never newer than the ledger. Covers: I84."""
    async with a_world() as world:
        trainer = world.trainer()
        async with world.coordinator(trainer) as job:
            await job.recover()
            trainer.loaded = ["from nowhere"]
            outcome = await job.checkpoint(5)
            assert isinstance(outcome, Aborted)
            assert outcome.broken
            assert "from nowhere" in outcome.reason


@pytest.mark.trio
async def test_nobody_takes_part(autojump_clock: MockClock) -> None:
    """A checkpoint of no participant proves nothing and is not published."""
    async with a_world(names=()) as world, world.coordinator(world.trainer()) as job:
        await job.recover()
        outcome = await job.checkpoint(5)
        assert isinstance(outcome, Aborted)
        assert "nobody_committed" in outcome.reason


@pytest.mark.trio
async def test_a_publication_in_doubt_releases_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rename was made and may not last: aborted, with nothing acknowledged on it. Covers: I67."""
    publish = Store.publish

    def doubtful(store: Store, draft: Draft) -> Publication:
        publish(store, draft)
        raise PublicationInDoubt("the root could not be synced")

    async with a_world() as world:
        trainer = world.trainer()
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            await job.run_batch(recovered.runnable(dispatches({"p1": 1})))
            monkeypatch.setattr(Store, "publish", doubtful)
            outcome = await job.checkpoint(10)
            assert isinstance(outcome, Aborted)
            assert "it cannot be published" in outcome.reason
            assert world.history.released == []
            monkeypatch.setattr(Store, "publish", publish)
            assert (await job.checkpoint(10)).published
            assert world.history.released == ["p1"]


@pytest.mark.trio
async def test_claims_that_cannot_be_read_stop_the_coordinator(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been overtaken: after a bounded number of tries it stops, with nothing acknowledged. Covers: I98."""
    tries: list[int] = []

    def unreadable(_store: Store, epoch: int) -> tuple[int, ...]:
        tries.append(epoch)
        raise StoreError("input/output error")

    async with a_world() as world, world.coordinator(world.trainer()) as job:
        recovered = await job.recover()
        await job.run_batch(recovered.runnable(dispatches({"p1": 1})))
        monkeypatch.setattr(Store, "overtaken_by", unreadable)
        with pytest.raises(Overtaken):
            await job.checkpoint(10)
        assert len(tries) == 5
        assert world.history.released == []


@pytest.mark.trio
async def test_an_error_that_nobody_foresaw_aborts_and_is_told(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug before publication ends this checkpoint, not the run; it is an error with its traceback."""

    def bug(_store: Store, _draft: Draft) -> None:
        raise ZeroDivisionError("a bug")

    async with a_world() as world, world.coordinator(world.trainer()) as job:
        await job.recover()
        monkeypatch.setattr(Store, "validate", bug)
        outcome = await job.checkpoint(10)
        assert isinstance(outcome, Aborted)
        assert (outcome.reason, outcome.broken) == ("ZeroDivisionError: a bug", True)
        assert all(server.open for server in world.deployments.fleet.servers.values())
    assert any(record.exc_info for record in caplog.records)


@pytest.mark.trio
async def test_s07_a_prepare_whose_checkpoint_ended_while_it_waited(autojump_clock: MockClock) -> None:
    """It answers idle; that is no readiness, and the reason says so (S7)."""
    async with a_world() as world, world.coordinator(world.trainer()) as job:
        await job.recover()
        world.script("agent", "prepare", lambda *_: {"phase": "idle", "report": {"ready": True, "blockers": []}})
        outcome = await job.checkpoint(10)
        assert isinstance(outcome, Aborted)
        assert outcome.reason == "agent: its prepare ended in phase 'idle'"
