"""Lives: discovery, restore and its failure, results over a restart, overtaken and abandoned coordinators."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from attrs import define
from starlette.responses import JSONResponse
from trio.testing import MockClock

from participants.coordination.coordinator import Coordinator, Overtaken, Published, is_abandoned
from participants.coordination.deployment import DiscoveryFailed
from participants.coordination.outcomes import CoordinatorError
from participants.coordination.recovery import CheckpointRejected
from participants.coordination.trainer import Dispatch
from participants.records.records import Disposition
from participants.serving.testing import Fault
from participants.settings import SettingsError
from tests import small_fleet
from tests.coordinator_world import ROOT, SmallTrainer, World, a_world, abandoned, dispatches, is_call, refuse, running

SERVERS = ("env", "policy", "agent", "tools")


async def a_first_life(world: World, new: list[Dispatch], *, after_s: float = 2.5) -> Published:
    """A life that dies right after a published checkpoint, taken `after_s` seconds in; returns it."""
    outcomes: list[Any] = []

    async def play(job: Coordinator) -> None:
        recovered = await job.recover()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job.run_batch, recovered.runnable(new))
            await trio.sleep(after_s)
            outcomes.append(await job.checkpoint(20))
            nursery.cancel_scope.cancel()

    await abandoned(world, world.coordinator(world.trainer()), play)
    (outcome,) = outcomes
    assert isinstance(outcome, Published), outcome.story()
    del world.history.calls[:]
    return outcome


# --- restore


@pytest.mark.trio
async def test_restore_fences_everything_before_anything_opens(autojump_clock: MockClock) -> None:
    """All but the scope by retire, before anything is restored, since the lease of what is restored may end any time.

    The scope is fenced by its restore, and completed rollouts never come back. Covers: I6, I54, I65.
    """
    async with a_world(restarts=["fresh"]) as world:
        await a_first_life(world, dispatches({"done": 1, "goes-on": 9, "fresh": 9}))
        trainer = world.trainer()
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            batch = recovered.runnable()
            assert {each.key for each in batch.episodes} == {"goes-on-a1", "fresh-a1"}
            assert len(recovered.runnable()) == 0, "nothing is handed out twice"
            verdicts = {each.rollout_id: (each.disposition, each.reason) for each in recovered.verdicts}
            assert verdicts == {
                "done": (Disposition.COMPLETED, "the trainer has consumed it"),
                "goes-on": (Disposition.CONTINUE, "all parts agree"),
                "fresh": (Disposition.FRESH, "restart: tools cannot export it"),
            }
            assert recovered.story() == "epoch 2 from ck-000001-000002: 1 continue, 1 completed, 1 fresh"
        for server in SERVERS:
            assert world.history.verbs(server) == ["retire", "restore", "resume"]
            (restored,) = world.history.bodies(server, "restore")
            assert restored["episode_ids"] == [{"rollout_id": "goes-on", "attempt": 0}]
            (retired,) = world.history.bodies(server, "retire")
            assert retired["episode_ids"] == [
                {"rollout_id": "done", "attempt": 0},
                {"rollout_id": "fresh", "attempt": 0},
            ]
        verbs = world.history.verbs()
        assert verbs.index("restore") > max(n for n, verb in enumerate(verbs) if verb == "retire")


@pytest.mark.trio
async def test_retiring_goes_in_batches(autojump_clock: MockClock) -> None:
    """Many rollouts are fenced in calls of a bounded size."""
    names = [f"p{n}" for n in range(7)]
    async with a_world(restarts=names) as world:
        await a_first_life(world, dispatches(dict.fromkeys(names, 9)))
        async with world.coordinator(world.trainer(), retire_batch=3) as job:
            await job.recover()
        sizes = [len(body["episode_ids"]) for body in world.history.bodies("env", "retire")]
        assert sizes == [3, 3, 1]


@pytest.mark.trio
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("fault", ["refused", "lost", "wrong source", "not all"])
async def test_s25_a_restore_that_fails_anywhere(autojump_clock: MockClock, server: str, fault: str) -> None:
    """One server fails: N+1 is retired everywhere, all open, the rollouts run fresh as N+2 (S25). Covers: I51."""
    answers: dict[str, Any] = {
        "refused": refuse(422, "invalid_checkpoint_state"),
        "lost": None,
        "wrong source": lambda *_: {"phase": "restored", "source_checkpoint_id": "ck-9", "restored": ["p1-a1"]},
        "not all": lambda *_: {"phase": "restored", "source_checkpoint_id": "ck-000001-000002", "restored": []},
    }
    async with a_world() as world:
        await a_first_life(world, dispatches({"p1": 4}))
        if answers[fault] is None:
            world.network.faults = lambda call: Fault(refuse=True) if is_call(call, server, "restore") else None
        else:
            world.script(server, "restore", answers[fault])
        trainer = world.trainer()
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            assert recovered.restore_failed
            assert "restore failed" in recovered.story()
            (verdict,) = recovered.verdicts
            assert (verdict.disposition, verdict.next_attempt) == (Disposition.FRESH, 2)
            for name in SERVERS:
                assert world.deployments.fleet.servers[name].open
                (body,) = world.history.bodies(name, "retire")
                assert body["episode_ids"] == [{"rollout_id": "p1", "attempt": 1}]
            report = await job.run_batch(recovered.runnable())
        assert report.delivered == 1
        assert [each.attempt for each in trainer.accepted] == [2]
        assert trainer.accepted[0].body["reward"] == 4


@pytest.mark.trio
@pytest.mark.parametrize("verb", ["retire", "resume"])
async def test_a_server_that_can_be_neither_fenced_nor_opened_stops_the_start(
    autojump_clock: MockClock, verb: str
) -> None:
    """Nothing runs on a deployment of which a part is not in a known state; the servers are stopped again."""
    async with a_world(restarts=["p1"]) as world:
        await a_first_life(world, dispatches({"p1": 9}))
        world.script("tools", verb, refuse(409, "checkpoint_error"))
        with pytest.raises(CoordinatorError, match="tools: " + verb):
            async with world.coordinator(world.trainer()) as job:
                await job.recover()
        assert world.network.up == ()


@pytest.mark.trio
async def test_an_unclaimed_continuation_is_in_the_next_checkpoint(autojump_clock: MockClock) -> None:
    """Restored, not yet run, checkpointed again, crashed again: it still goes on where it stood. Covers: I61, I62."""
    async with a_world() as world:
        await a_first_life(world, dispatches({"p1": 5}))
        played = world.count("p1")

        async def only_checkpoint(job: Coordinator) -> None:
            await job.recover()
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published)
            assert outcome.counts[Disposition.CONTINUE] == 1

        await abandoned(world, world.coordinator(world.trainer()), only_checkpoint)
        trainer = world.trainer()
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            await job.run_batch(recovered.runnable())
        assert played > 0
        assert world.count("p1") == 5, "no turn ran twice"
        assert [each.attempt for each in trainer.accepted] == [2]


@pytest.mark.trio
async def test_the_same_checkpoint_restored_twice(autojump_clock: MockClock) -> None:
    """A second crash before a new checkpoint: the same verdicts under a new epoch (S45, S64). Covers: I61, I96."""
    async with a_world() as world:
        await a_first_life(world, dispatches({"p1": 5}))

        async def only_recover(job: Coordinator) -> None:
            recovered = await job.recover()
            assert recovered.epoch == 2

        await abandoned(world, world.coordinator(world.trainer()), only_recover)
        trainer = world.trainer()
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            assert recovered.epoch == 3
            await job.run_batch(recovered.runnable())
        assert [(each.attempt, each.receipt.epoch) for each in trainer.accepted] == [(1, 3)]


@pytest.mark.trio
async def test_queued_rollouts_are_not_lost(autojump_clock: MockClock) -> None:
    """Registered, never sent: it runs after the crash, and a cursor that rolled back does no harm (S40)."""
    async with a_world() as world:

        async def hand_out(job: Coordinator) -> None:
            recovered = await job.recover()
            recovered.runnable(dispatches({"p1": 1}))
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published)
            assert outcome.counts[Disposition.QUEUED] == 1
            assert "1 queued" in outcome.story()

        await abandoned(world, world.coordinator(world.trainer()), hand_out)
        trainer = world.trainer()
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            await job.run_batch(recovered.runnable(dispatches({"p1": 1, "p2": 1})))
        assert trainer.ids == ["p1", "p2"]


# --- results over a restart


@pytest.mark.trio
async def test_s52_a_saved_result_that_the_trainer_lacks_is_delivered_again(autojump_clock: MockClock) -> None:
    """Acknowledged, and the trainer's saved state does not have it: the ledger's copy is handed over again (S52).

    The server that made it has released it and is dead. Covers: I67, I87.
    """

    @define(eq=False)
    class Forgetful(SmallTrainer):
        """Its state has nothing of what it accepts until it is trained on, which it never is."""

        async def consumed(self) -> set[str]:
            return set()

    async with a_world() as world:

        async def play(job: Coordinator) -> None:
            recovered = await job.recover()
            await job.run_batch(recovered.runnable(dispatches({"p1": 2})))
            assert (await job.checkpoint(20)).published
            assert world.history.released == ["p1"]

        await abandoned(world, world.coordinator(Forgetful(world.disk)), play)
        trainer = Forgetful(world.disk)
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            assert recovered.count(Disposition.COMPLETED) == 1
            assert len(recovered.runnable(dispatches({"p1": 2}))) == 0
            (again,) = trainer.accepted
            assert again.redelivered
            assert again.body == {"reward": 2, "calls": ["p1-m1", "p1-m2"]}
        assert world.count("p1") == 2


@pytest.mark.trio
async def test_s35_acknowledged_from_the_list_after_publication(autojump_clock: MockClock) -> None:
    """A result is released when it is in a published checkpoint, not before; a lost ACK is mended by the next (S35).

    Covers: I66, I67.
    """
    async with a_world() as world:
        trainer = world.trainer()
        async with running(world.coordinator(trainer), dispatches({"p1": 1, "p2": 9})) as (job, _):
            await trio.sleep(1.5)
            assert trainer.ids == ["p1"]
            assert world.history.released == [], "received is not saved"
            world.script("agent", "commit", refuse(409, "invalid_phase"))
            assert not (await job.checkpoint(20)).published
            assert world.history.released == [], "an aborted checkpoint saved nothing"
            world.script("agent", "commit", None)
            world.network.faults = lambda call: Fault(refuse=True) if call.path.endswith("acknowledge") else None
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published)
            assert "env: acknowledge" in outcome.notes[0]
            world.network.faults = None
            assert (await job.checkpoint(20)).published
            assert world.history.released == ["p1"]


@pytest.mark.trio
async def test_a_body_is_dropped_when_a_durable_trainer_checkpoint_has_it(autojump_clock: MockClock) -> None:
    """The ledger's copy is kept in the checkpoint that saves it, and not for ever. Covers: I75, I87."""
    async with a_world() as world:
        async with world.coordinator(world.trainer()) as job:
            recovered = await job.recover()
            await job.run_batch(recovered.runnable(dispatches({"p1": 1})))
            first, second = [(await job.checkpoint(20)).checkpoint_id for _ in range(2)]
        bodies = {}
        for checkpoint_id in world.store().published():
            (row,) = world.store().read(checkpoint_id).ledger
            bodies[str(checkpoint_id)] = row.body
        assert bodies == {first: {"reward": 1, "calls": ["p1-m1"]}, second: None}


@pytest.mark.trio
async def test_a_trainer_that_contradicts_the_checkpoint_is_refused(autojump_clock: MockClock) -> None:
    """Consumed, and not in the ledger: nothing is restored (section 7, reject); the same for a fresh start."""
    async with a_world() as world:
        trainer = world.trainer()
        trainer.loaded = ["elsewhere"]
        with pytest.raises(CheckpointRejected, match="a fresh start"):
            async with world.coordinator(trainer) as job:
                await job.recover()
        await a_first_life(world, dispatches({"p1": 9}))

        @define(eq=False)
        class Wrong(SmallTrainer):
            async def consumed(self) -> set[str]:
                return {"p1"}

        with pytest.raises(CheckpointRejected, match="consumed p1"):
            async with world.coordinator(Wrong(world.disk)) as job:
                await job.recover()
        assert world.history.verbs() == [], "no server was told anything"


# --- which checkpoint


@pytest.mark.trio
async def test_a_damaged_only_checkpoint_is_refused_by_name(autojump_clock: MockClock) -> None:
    """It is no fresh start, which would give it up for ever. The servers are not even started. Covers: I79."""
    async with a_world() as world:
        outcome = await a_first_life(world, dispatches({"p1": 9}))
        starts = len(world.deployments.fleets)
        world.disk.unlink(ROOT / outcome.checkpoint_id / "coordinator" / "ledger.jsonl")
        with pytest.raises(CheckpointRejected, match=f"{outcome.checkpoint_id} is damaged"):
            async with world.coordinator(world.trainer()) as job:
                await job.recover()
        assert len(world.deployments.fleets) == starts


@pytest.mark.trio
async def test_another_set_of_participants_is_refused(autojump_clock: MockClock) -> None:
    """A server that took part is not there any more: rejected before anything is restored."""
    async with a_world() as world:
        await a_first_life(world, dispatches({"p1": 9}))
        world.deployments.names = ("env", "policy", "tools")
        with pytest.raises(CheckpointRejected, match=r"agent agent \(exported\) took part in it and is not here"):
            async with world.coordinator(world.trainer()) as job:
                await job.recover()


@pytest.mark.trio
@pytest.mark.parametrize("change", ["renamed", "added", "another mode"])
async def test_other_servers_than_wrote_it_are_named(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Each server by kind, name and mode, and on which side it is; nothing older is tried, and nothing is restored."""
    async with a_world() as world:
        if change == "added":
            world.deployments.names = ("env", "policy", "agent")
        first = await a_first_life(world, dispatches({"p1": 9}))
        missing, extra = "resources tools (exported)", "resources tools (exported)"
        if change == "renamed":
            monkeypatch.setitem(small_fleet.KINDS, "gadgets", "resources")
            monkeypatch.setitem(small_fleet.ROLES, "gadgets", "resources")
            world.deployments.names, extra = ("env", "policy", "agent", "gadgets"), "resources gadgets (exported)"
        elif change == "another mode":
            world.script("tools", "capabilities", lambda *_: {"checkpoint_mode": "restart_only"})
            extra = "resources tools (restart_only)"
        else:
            world.deployments.names, missing = SERVERS, ""
        with pytest.raises(CheckpointRejected) as error:
            async with world.coordinator(world.trainer()) as job:
                await job.recover()
        told = [f"{missing} took part in it and is not here"] if missing else []
        assert error.value.problems == (*told, f"{extra} is here and took no part in it")
        assert "restore" not in world.history.verbs()
        assert str(world.store().survey().candidates[0]) == first.checkpoint_id


@pytest.mark.trio
async def test_a_target_that_is_not_there_is_refused(autojump_clock: MockClock) -> None:
    """A rollout could go nowhere: told by name before anything is restored."""
    async with a_world() as world:
        await a_first_life(world, [Dispatch("p1", {"turns": 9}, "policy")], after_s=0.1)
        world.deployments.names = ("env", "agent", "tools")
        with pytest.raises(CheckpointRejected, match="go to policy, which the launcher did not start"):
            async with world.coordinator(world.trainer()) as job:
                await job.recover()


@pytest.mark.trio
async def test_s44_s62_an_overtaken_coordinator_stops(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A successor has claimed the root: what is published is never restored, nothing is acknowledged or resumed (S62).

    Covers: I96, I98.
    """
    async with a_world() as world:
        trainer = world.trainer()
        with pytest.raises(BaseExceptionGroup) as raised:
            async with running(world.coordinator(trainer), dispatches({"p1": 1, "p2": 9})) as (job, _):
                await trio.sleep(1.5)
                successor = world.store()
                claimed = successor.claim()
                successor.record_base(claimed, None)
                resumed = world.history.verbs().count("resume")
                try:
                    await job.checkpoint(20)
                finally:
                    assert world.history.verbs().count("resume") == resumed
                    assert world.history.released == []
                    with pytest.raises(Overtaken):
                        await job.checkpoint(20)
                    with pytest.raises(Overtaken):
                        job.runnable(dispatches({"p3": 1}))
        assert raised.group_contains(Overtaken)
        assert any(record.levelno == logging.ERROR for record in caplog.records)
        async with world.coordinator(world.trainer()) as job:
            recovered = await job.recover()
            assert recovered.checkpoint_id is None, "what the overtaken one published is not in the chain"
            assert recovered.overtaken == ("ck-000001-000002",)


# --- leaving


@pytest.mark.trio
async def test_an_abandoned_coordinator_sends_nothing(autojump_clock: MockClock) -> None:
    """Cancelled in the middle of a checkpoint: no resume, no stop; its servers are left as they are. Covers: I21."""
    async with a_world() as world:
        trainer = world.trainer()
        trainer.on_save = trio.sleep_forever
        with trio.move_on_after(5):
            async with world.coordinator(trainer) as job:
                await job.recover()
                del world.history.calls[:]
                await job.checkpoint(600)
        assert set(world.history.verbs()) == {"prepare", "commit"}
        assert world.deployments.stopped == 0
        assert set(world.network.up) == set(SERVERS)
        assert all(server.phase == "committed" for server in world.deployments.fleet.servers.values())


@pytest.mark.trio
async def test_an_error_in_the_body_stops_the_servers(autojump_clock: MockClock) -> None:
    """Only being cancelled counts as abandoned."""
    async with a_world() as world:
        with pytest.raises(ZeroDivisionError):
            async with world.coordinator(world.trainer()) as job:
                await job.recover()
                _ = 1 / 0
        assert (world.deployments.stopped, world.network.up) == (1, ())
    cancelled = BaseExceptionGroup("", [BaseExceptionGroup("", [_cancelled()])])
    assert is_abandoned(cancelled)
    assert not is_abandoned(BaseExceptionGroup("", [cancelled, ValueError()]))
    assert not is_abandoned(None)


def _cancelled() -> BaseException:
    return trio.Cancelled._create(source="nursery")


@pytest.mark.trio
async def test_a_cancelled_checkpoint_is_ended_before_the_next(autojump_clock: MockClock) -> None:
    """A checkpoint that its caller gave up is resumed when the next one begins; the run went on in between."""
    async with a_world() as world:
        trainer = world.trainer()
        async with running(world.coordinator(trainer), dispatches({"p1": 6})) as (job, reports):
            await trio.sleep(1.5)
            trainer.on_save = trio.sleep_forever
            with trio.move_on_after(4):
                await job.checkpoint(60)
            assert world.history.verbs("env").count("resume") == 1
            trainer.on_save = None
            outcome = await job.checkpoint(60)
            assert isinstance(outcome, Published), outcome.story()
            resumed = [body["checkpoint_id"] for body in world.history.bodies("env", "resume")]
            assert resumed == ["rs-000001-000001", "ck-000001-000002", "ck-000001-000003"]
        assert reports[0].delivered == 1


# --- discovery


@pytest.mark.trio
async def test_s01_a_server_without_a_role_is_refused_by_name(autojump_clock: MockClock) -> None:
    """Capabilities without a role: a judge could be taken for a policy, so nothing starts (S1). Covers: I73."""
    async with a_world() as world:
        world.script("policy", "capabilities", lambda *_: {"instance_role": None})
        with pytest.raises(DiscoveryFailed, match="policy: its capabilities have no instance_role"):
            async with world.coordinator(world.trainer()) as job:
                await job.recover()


@pytest.mark.trio
async def test_s01_a_judge_is_never_paused(autojump_clock: MockClock) -> None:
    """An auxiliary server gets no control call; taken for a policy, it would be the first to be closed (S1)."""
    async with a_world() as world:
        world.script("policy", "capabilities", lambda *_: {"instance_role": "auxiliary"})
        async with world.coordinator(world.trainer()) as job:
            await job.recover()
            assert (await job.checkpoint(5)).published
        assert world.history.verbs("policy") == []


@pytest.mark.trio
async def test_servers_without_capabilities(autojump_clock: MockClock) -> None:
    """404 there: status says the kind, where `model` means policy; 404 there as well is no participant."""

    def missing(*_: Any) -> JSONResponse:
        return JSONResponse({"detail": "Not Found"}, 404)

    async with a_world() as world:
        for server in SERVERS:
            world.script(server, "capabilities", missing)
        world.script("tools", "status", missing)
        async with world.coordinator(world.trainer()) as job:
            await job.recover()
            assert (await job.checkpoint(5)).published
        assert world.history.verbs("tools") == []
        assert "prepare" in world.history.verbs("policy")


@pytest.mark.trio
@pytest.mark.parametrize(("skew_s", "refused"), [(-6.0, True), (6.0, True), (4.0, False)])
async def test_s30_a_clock_that_is_off_refuses_the_start(
    autojump_clock: MockClock, skew_s: float, refused: bool
) -> None:
    """Deadlines are absolute, so clocks must agree within a stated bound (S30)."""
    async with a_world(skew_s=skew_s) as world, world.coordinator(world.trainer(), max_clock_skew_s=5.0) as job:
        if refused:
            with pytest.raises(DiscoveryFailed, match=r"env: its clock is off by 6\.0 s, more than 5 s"):
                await job.recover()
        else:
            await job.recover()


@pytest.mark.trio
async def test_every_wrong_server_is_named(autojump_clock: MockClock) -> None:
    """A wrong token, an unknown kind, a shared part: all problems at once."""
    async with a_world() as world:
        world.script("env", "capabilities", lambda server, _: server.refuse(401, "unauthorized", "bearer"))
        world.script("tools", "capabilities", lambda *_: {"kind": "agent", "instance": "agent"})
        world.script("policy", "capabilities", lambda *_: JSONResponse({}, 404))
        world.script("policy", "status", lambda *_: JSONResponse({"kind": "toaster"}))
        with pytest.raises(DiscoveryFailed) as failed:
            async with world.coordinator(world.trainer()) as job:
                await job.recover()
        told = str(failed.value)
        assert "env: capabilities: HTTP 401 unauthorized" in told
        assert "unknown kind 'toaster'" in told
        assert "agent and tools are both agent 'agent'" in told


@pytest.mark.trio
async def test_a_server_of_a_later_life_is_refused(autojump_clock: MockClock) -> None:
    """It belongs to a coordinator that came after this one. Covers: I96."""
    async with a_world() as world:
        world.script("env", "capabilities", lambda *_: {"epoch": 7})
        with pytest.raises(DiscoveryFailed, match="env: it belongs to epoch 7"):
            async with world.coordinator(world.trainer()) as job:
                await job.recover()


# --- bad use


def test_no_token_refuses_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a control token nothing can be driven, and the message names the variable (S28)."""
    monkeypatch.delenv("NEMO_GYM_CHECKPOINT_CONTROL_TOKEN", raising=False)
    monkeypatch.delenv("STATECORE_CONTROL_AUTH_TOKEN", raising=False)
    launcher: Any = None
    with pytest.raises(SettingsError, match="NEMO_GYM_CHECKPOINT_CONTROL_TOKEN"):
        Coordinator(ROOT, launcher, launcher)


@pytest.mark.trio
async def test_bad_use_is_told(autojump_clock: MockClock) -> None:
    """Before recover, twice recover, no timeout, two checkpoints at once, an unknown target, a batch twice."""
    async with a_world() as world:
        trainer = world.trainer()
        async with world.coordinator(trainer) as job:
            with pytest.raises(RuntimeError, match="call recover"):
                await job.checkpoint(5)
            with pytest.raises(RuntimeError, match="call recover"):
                job.runnable()
            recovered = await job.recover()
            with pytest.raises(RuntimeError, match="called once"):
                await job.recover()
            for timeout_s in (0, -1, float("nan"), float("inf")):
                with pytest.raises(ValueError, match="timeout_s"):
                    await job.checkpoint(timeout_s)
            with pytest.raises(ValueError, match="'nowhere', which is none of agent, env, policy, tools"):
                recovered.runnable([Dispatch("p1", {}, "nowhere")])
            batch = recovered.runnable(dispatches({"p1": 1}))
            await job.run_batch(batch)
            with pytest.raises(ValueError, match="runs already"):
                await job.run_batch(batch)

            async def second() -> None:
                with pytest.raises(RuntimeError, match="one checkpoint at a time"):
                    await job.checkpoint(5)

            trainer.on_save = second
            assert (await job.checkpoint(5)).published
