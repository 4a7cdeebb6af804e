"""The coordinator on the straight path, and what one checkpoint cuts."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from attrs import define, evolve
from trio.testing import MockClock

from participants.coordination.coordinator import Coordinator, Published
from participants.identity import EpisodeId
from participants.machines.tables import TABLES
from participants.records.records import Disposition
from participants.serving.testing import Fault
from statecore.journal import replay
from tests.coordinator_world import (
    SmallTrainer,
    a_world,
    abandoned,
    dispatches,
    is_call,
    refuse,
    running,
)
from tests.small_fleet import FakeServer, Reply

# --- the straight path


@pytest.mark.trio
async def test_results_come_back_once(autojump_clock: MockClock) -> None:
    """A fresh start opens the servers, runs the batch and hands each result over once. Covers: I68."""
    async with a_world() as world:
        trainer = world.trainer()
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            assert (recovered.checkpoint_id, recovered.epoch) == (None, 1)
            assert recovered.story() == "epoch 1: a fresh start"
            report = await job.run_batch(recovered.runnable(dispatches({"p1": 2, "p2": 3})))
        assert (report.delivered, report.lost) == (2, {})
        assert trainer.ids == ["p1", "p2"]
        assert {each.body["reward"] for each in trainer.accepted} == {2, 3}
        assert all(each.receipt.epoch == 1 and not each.redelivered for each in trainer.accepted)
        assert world.deployments.stopped == 1, "a clean exit stops the servers"


@pytest.mark.trio
async def test_six_turns_redone_without_none_with(autojump_clock: MockClock) -> None:
    """The example of the project: 5 turns, B at 2, C at 4, a crash right after the snapshot: 0 of the 6 are redone.

    Without a checkpoint the same crash costs all 6. Covers: I54, I57, I61.
    """
    async with a_world() as world:
        trainer = world.trainer()

        async def play(job: Coordinator) -> None:
            recovered = await job.recover()
            async with trio.open_nursery() as nursery:
                batch = recovered.runnable([*dispatches({"b": 5}, turn_s=2.0), *dispatches({"c": 5}, turn_s=1.0)])
                nursery.start_soon(job.run_batch, batch)
                await trio.sleep(3.5)
                outcome = await job.checkpoint(20)
                assert isinstance(outcome, Published), outcome.story()
                assert outcome.counts[Disposition.CONTINUE] == 2
                nursery.cancel_scope.cancel()

        await abandoned(world, world.coordinator(trainer), play)
        done_before = {"b": world.count("b"), "c": world.count("c")}
        held = sum(done_before.values())
        trainer = world.trainer()
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            assert recovered.count(Disposition.CONTINUE) == 2
            await job.run_batch(recovered.runnable())
        assert held > 0
        redone = world.count("b") + world.count("c") - 10
        assert redone == 0
        assert {each.attempt for each in trainer.accepted} == {1}
        calls = [call for each in trainer.accepted for call in each.body["calls"]]
        assert len(set(calls)) == 10, "one chain across the attempts"


@pytest.mark.trio
async def test_story_and_phases(autojump_clock: MockClock) -> None:
    """A published checkpoint is told in one line, with a time for each phase."""
    async with a_world() as world:
        trainer = world.trainer()
        new = [*dispatches({"p1": 1}), *dispatches({"p2": 9})]
        async with running(world.coordinator(trainer), new) as (job, _):
            await trio.sleep(2.5)
            outcome = await job.checkpoint(20)
        assert isinstance(outcome, Published)
        assert outcome.story().startswith("ck-000001-000002: 1 continue, 1 completed, 0 fresh, 0.")
        names = [phase.name for phase in outcome.phases]
        assert names == [
            "freeze",
            "prepare environment",
            "prepare policy",
            "prepare agent",
            "prepare resources",
            "prepare",
            "commit",
            "settle",
            "save",
            "validate",
            "prove",
            "publish",
            "claims",
            "acknowledge",
            "resume",
        ]
        assert (outcome.weak, outcome.untracked, outcome.unresumed, outcome.notes) == (0, 0, (), ())
        assert world.store().latest() == "ck-000001-000002"


@pytest.mark.trio
async def test_the_order_of_a_checkpoint(autojump_clock: MockClock) -> None:
    """Prepare by stages, commit, save, proof, publish, then resume: what is called opens first (section 6)."""
    async with a_world() as world:
        trainer = world.trainer()
        published_at_resume: list[bool] = []
        world.script("tools", "resume", lambda *_: published_at_resume.append(bool(world.store().published())))

        async def note() -> None:
            world.history.calls.append(("trainer", "save", {}))

        trainer.on_save = note
        async with running(world.coordinator(trainer), dispatches({"p1": 9})) as (job, _):
            await trio.sleep(1.5)
            del world.history.calls[:]
            assert (await job.checkpoint(20)).published
        calls = [(server, verb) for server, verb, _ in world.history.calls if verb != "run"]
        stages = [[(s, "prepare")] for s in ("env", "policy", "agent", "tools")]
        assert [[each] for each in calls[:4]] == stages
        assert {verb for _, verb in calls[4:8]} == {"commit"}
        assert calls[8] == ("trainer", "save")
        assert {verb for _, verb in calls[9:13]} == {"renew"}, "proof after the framework's half (S32)"
        assert calls[13:17] == [(s, "resume") for s in ("tools", "policy", "agent", "env")]
        assert published_at_resume == [False, True], "the first is the fresh start's"


@pytest.mark.trio
async def test_ids_strictly_increase(autojump_clock: MockClock) -> None:
    """Every restore and checkpoint of a life has a higher number than all before, in the same epoch. Covers: I14."""
    async with a_world() as world:
        trainer = world.trainer()
        async with world.coordinator(trainer) as job:
            await job.recover()
            outcomes = [await job.checkpoint(5) for _ in range(3)]
        ids = [each.checkpoint_id for each in outcomes]
        assert ids == ["ck-000001-000002", "ck-000001-000003", "ck-000001-000004"]
        assert world.history.bodies("env", "resume")[0]["checkpoint_id"] == "rs-000001-000001"
        async with world.coordinator(trainer := world.trainer()) as job:
            assert (await job.recover()).epoch == 2, "each start of a deployment is an epoch of its own"
            assert (await job.checkpoint(5)).checkpoint_id == "ck-000002-000002"


@pytest.mark.trio
async def test_the_journal_is_one_that_the_table_allows(autojump_clock: MockClock) -> None:
    """What was driven is what is declared: the journal of a good and a failed checkpoint replays against the tables."""
    async with a_world() as world:
        trainer = world.trainer()
        async with world.coordinator(trainer) as job:
            await job.recover()
            await job.checkpoint(5)
            world.script("agent", "commit", refuse(409, "invalid_phase"))
            await job.checkpoint(5)
        replay(world.journal.lines, TABLES)
        lines = [json.loads(line) for line in world.journal.lines]
        assert {line["ids"]["epoch"] for line in lines} == {1}
        assert [line["next"] for line in lines if line["machine"] == "transaction"][-2:] == ["aborting", "idle"]


# --- one cut


@pytest.mark.trio
async def test_s53_a_result_during_the_save_is_kept_until_after(autojump_clock: MockClock) -> None:
    """Ledger, consumed set and framework state are one moment: what arrives later is in the next one (S53).

    The ledger in the files knows the rollout as fresh, the trainer's saved state has not heard of it. Covers: I84.
    """
    async with a_world() as world:
        trainer = world.trainer()
        accepted_in_save: list[list[str]] = []

        async def slow() -> None:
            episode = world.deployments.fleet.episodes[EpisodeId("late")]
            episode.turn = 9
            world.deployments.fleet.finish(episode)
            episode.done.set()
            await trio.sleep(3)
            accepted_in_save.append(trainer.ids)

        async with running(world.coordinator(trainer), dispatches({"late": 9, "p1": 9})) as (job, _):
            await trio.sleep(1.5)
            trainer.on_save = slow
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published), outcome.story()
            assert accepted_in_save == [[]]
            assert trainer.dispositions[-1]["late"] is Disposition.CONTINUE
            await trio.sleep(1)
            assert trainer.ids == ["late"], "and then the framework has it"
            checkpoint = world.store().read(world.store().published()[-1])
            assert {row.rollout_id: row.status for row in checkpoint.ledger} == {"late": "live", "p1": "live"}
            trainer.on_save = None
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published)
            assert outcome.counts[Disposition.COMPLETED] == 1


@pytest.mark.trio
async def test_s40_a_batch_during_a_checkpoint_is_wholly_in_it_and_sent_after_it(autojump_clock: MockClock) -> None:
    """What is handed out while dispatch is frozen is registered at once, as queued, and leaves after resume (S40, S37).

    A registry that was read before the save would not have it, and the cursor in the save would be past it.
    """
    async with a_world() as world:
        trainer = world.trainer()
        async with running(world.coordinator(trainer), dispatches({"p1": 9})) as (job, _):
            await trio.sleep(1.5)
            late: list[Any] = []

            async def hand_out() -> None:
                late.append(job.runnable(dispatches({"q1": 1, "q2": 1})))
                nursery.start_soon(job.run_batch, late[0])
                await trio.sleep(2)

            trainer.on_save = hand_out
            async with trio.open_nursery() as nursery:
                outcome = await job.checkpoint(20)
                assert outcome.published
                runs_before = [body["episode_id"]["rollout_id"] for body in world.history.bodies("env", "run")]
                assert runs_before == ["p1"]
            checkpoint = world.store().read(world.store().published()[-1])
            rows = {row.rollout_id: row.disposition for row in checkpoint.registry}
            assert rows == {"p1": "continue", "q1": "queued", "q2": "queued"}
            assert {"q1", "q2"} <= set(trainer.ids)


@pytest.mark.trio
async def test_a_finished_rollout_is_waited_for(autojump_clock: MockClock) -> None:
    """In scope, and no record holds it: its reply is on its way and it is completed (section 6.5)."""
    async with a_world() as world:
        trainer = world.trainer()
        world.network.faults = lambda call: Fault(reply_s=3.0) if call.path == "/run" else None
        async with running(world.coordinator(trainer), dispatches({"p1": 1})) as (job, _):
            await trio.sleep(2)
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published)
            assert outcome.counts[Disposition.COMPLETED] == 1
            settle = next(phase for phase in outcome.phases if phase.name == "settle")
            assert settle.seconds > 1


@pytest.mark.trio
async def test_a_finished_rollout_whose_reply_does_not_come_in_time_is_fresh(autojump_clock: MockClock) -> None:
    """The wait is a share of the deadline; the checkpoint does not fail for it, and a crash makes it run again."""
    async with a_world() as world:
        trainer = world.trainer()
        world.network.faults = lambda call: Fault(reply_s=60.0) if call.path == "/run" else None
        async with running(world.coordinator(trainer), dispatches({"p1": 1})) as (job, reports):
            await trio.sleep(2)
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published)
            assert outcome.counts[Disposition.FRESH] == 1
            checkpoint = world.store().read(world.store().published()[-1])
            assert checkpoint.registry[0].reason == "finished, but its result did not arrive in time"
            assert world.history.released == []
        assert reports[0].delivered == 1, "the living run gets it"


@pytest.mark.trio
async def test_a_restart_never_blocks_and_is_never_in_the_scope(autojump_clock: MockClock) -> None:
    """A rollout that a server cannot export is fresh, with the server's name, and never saved. Covers: I39."""
    async with a_world(restarts=["p2"]) as world:
        trainer = world.trainer()
        async with running(world.coordinator(trainer), dispatches({"p1": 9, "p2": 9})) as (job, _):
            await trio.sleep(1.5)
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published)
            assert (outcome.counts[Disposition.CONTINUE], outcome.counts[Disposition.FRESH]) == (1, 1)
        for server in ("env", "policy", "agent", "tools"):
            (body,) = world.history.bodies(server, "commit")
            assert body["episode_ids"] == [{"rollout_id": "p1", "attempt": 0}]
        checkpoint = world.store().read(world.store().published()[-1])
        reasons = {row.rollout_id: row.reason for row in checkpoint.registry}
        assert reasons["p2"] == "restart: tools cannot export it"


@pytest.mark.trio
async def test_s69_a_unit_is_decided_as_one(autojump_clock: MockClock) -> None:
    """A server says that groups share its state: who shares with a rollout that starts over does so too, others not.

    Covers: I86.
    """
    async with a_world(restarts=["p1"]) as world:
        world.script("tools", "capabilities", lambda *_: {"sharing": "group"})
        groups = {"p1": "g1", "p2": "g1", "p3": "g2"}
        new = [evolve(each, group=groups[each.rollout_id]) for each in dispatches(dict.fromkeys(groups, 9))]
        async with running(world.coordinator(world.trainer()), new) as (job, _):
            await trio.sleep(1.5)
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published)
        rows = {row.rollout_id: row for row in world.store().read(world.store().published()[-1]).registry}
        assert {name: (row.unit, row.disposition) for name, row in rows.items()} == {
            "p1": ("g1", Disposition.FRESH),
            "p2": ("g1", Disposition.FRESH),
            "p3": ("g2", Disposition.CONTINUE),
        }
        assert rows["p2"].reason == "it shares state with p1, which starts fresh"


@pytest.mark.trio
async def test_parts_that_do_not_agree_are_fresh(autojump_clock: MockClock) -> None:
    """A tool session that is one mutation ahead of its boundary: that rollout is fresh, with the reason (S55)."""
    async with a_world() as world:
        trainer = world.trainer()

        def late_mutation(server: FakeServer, _body: Reply) -> None:
            episode = server.fleet.episodes[EpisodeId("p2")]
            episode.position = evolve(episode.position, revision=episode.position.revision + 1)

        async with running(world.coordinator(trainer), dispatches({"p1": 9, "p2": 9})) as (job, _):
            await trio.sleep(1.5)

            world.script("tools", "commit", late_mutation)
            slow_tools = Fault(request_s=0.5)
            world.network.faults = lambda call: slow_tools if is_call(call, "tools", "commit") else None
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published)
            assert (outcome.counts[Disposition.CONTINUE], outcome.counts[Disposition.FRESH]) == (1, 1)
        checkpoint = world.store().read(world.store().published()[-1])
        reasons = {row.rollout_id: row.reason for row in checkpoint.registry}
        assert reasons["p2"].startswith("agent stands at 2.")


@pytest.mark.trio
async def test_the_policy_version_is_in_the_manifest(autojump_clock: MockClock) -> None:
    """A trainer that says which weights its state holds has it bound to the checkpoint, as a pair. Covers: I80, I89."""

    @define(eq=False)
    class Versioned(SmallTrainer):
        @property
        def policy_version(self) -> tuple[int, int] | None:
            return (2, 41)

    async with a_world() as world, world.coordinator(Versioned(world.disk)) as job:
        await job.recover()
        assert (await job.checkpoint(10)).published
        manifest = world.store().read(world.store().published()[-1]).manifest
        assert manifest.policy_version == (2, 41)
        assert manifest.epoch == 1
