"""Restarts of all servers by a living coordinator that do not go smoothly, and what is asked of it meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest
import trio
from attrs import define, field
from starlette.responses import JSONResponse
from trio.testing import MockClock

from participants.coordination.coordinator import Aborted, Coordinator, Overtaken, Published, RestartFailed
from participants.coordination.outcomes import Restarted
from participants.coordination.trainer import Dispatch, HearsOfRestarts, Result
from participants.records.records import Disposition
from participants.serving.lifespan import StartupFailed
from participants.serving.testing import Fault
from statecore.wire import parse
from tests.coordinator_world import SmallTrainer, World, a_world, dispatches, is_call, refuse, running
from tests.small_fleet import Deployments, FakeServer, Reply

SERVERS = ("env", "policy", "agent", "tools")
SOON = {"probe_every_s": 0.5}
"""A death is noticed within two turns."""


@define(eq=False)
class Listening(SmallTrainer):
    """A trainer that hears of restarts; `breaks`: and cannot take it."""

    reports: list[Restarted] = field(factory=list)
    breaks: bool = False

    async def restarted(self, report: Restarted) -> None:
        self.reports.append(report)
        if self.breaks:
            raise LookupError("what is a restart?")


@define(eq=False)
class Reluctant(Deployments):
    """A launcher whose starts after the first fail as often as `failures` says; `exited` is what it knows of ends."""

    failures: int = 0
    stops_fail: int = 0
    exited: dict[str, int] = field(factory=dict)

    async def start(self, epoch: int) -> Mapping[str, str]:
        if self.fleets and self.failures:
            self.failures -= 1
            raise StartupFailed("tools", "it exited with status 1")
        self.exited.clear()
        return await super().start(epoch)

    async def stop(self) -> None:
        if self.stops_fail:
            self.stops_fail -= 1
            raise OSError("no such process group")
        await super().stop()


def reluctant(world: World, **how: Any) -> Reluctant:
    """The world's launcher from now on."""
    old = world.deployments
    made = Reluctant(old.network, old.clock, old.disk, old.nursery, **how)
    world.deployments = made
    return made


def die(world: World, name: str = "tools") -> None:
    assert world.deployments.launcher is not None
    world.deployments.launcher.kill(name)


async def restarted(job: Coordinator, times: int = 1) -> Restarted:
    with trio.fail_after(2000):
        while len(job.restarts) < times:  # noqa: ASYNC110 (in virtual time)
            await trio.sleep(0.5)
    return job.restarts[-1]


@pytest.mark.trio
async def test_a_server_that_does_not_come_up_is_tried_again(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Each try is an epoch of its own; the report says how many it took, and a person reads why. Covers: I96."""
    async with a_world() as world:
        reluctant(world, failures=2)
        trainer = Listening(world.disk)
        assert isinstance(trainer, HearsOfRestarts)
        async with running(world.coordinator(trainer), dispatches({"p1": 3, "p2": 9})) as (job, reports):
            await trio.sleep(1.5)
            assert (await job.checkpoint(20)).published
            die(world)
            report = await restarted(job)
            assert (report.tries, report.epoch) == (3, 4)
            assert "at try 3" in report.story() and "tools is dead" in report.story()
        assert reports[0].delivered == 2
        assert trainer.reports == [report]
        assert sorted(world.store().claims()) == [1, 2, 3, 4]
        told = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        assert sum("the servers are not back: StartupFailed" in each for each in told) == 2


@pytest.mark.trio
@pytest.mark.parametrize("what", ["start", "stop"])
async def test_servers_that_do_not_come_back_end_the_job(autojump_clock: MockClock, what: str) -> None:
    """After as many tries as are allowed one clear error comes out of everything, and nothing runs any more."""
    async with a_world() as world:
        deployments = reluctant(world, failures=99 if what == "start" else 0)
        trainer = world.trainer()
        async with world.coordinator(trainer, restart_tries=2) as job:
            recovered = await job.recover()
            raised: list[Exception] = []

            async def run_batch() -> None:
                with pytest.raises(RestartFailed, match="tools is dead") as error:
                    await job.run_batch(recovered.runnable(dispatches({"p1": 99, "p2": 99})))
                raised.append(error.value)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(run_batch)
                await trio.sleep(2)
                deployments.stops_fail = 99 if what == "stop" else 0
                die(world)
            with pytest.raises(RestartFailed):
                await job.checkpoint(10)
            with pytest.raises(RestartFailed):
                job.runnable()
            assert "2 tries failed" in str(raised[0])
            deployments.stops_fail = 0
        assert world.network.up == ()
        assert trainer.accepted == []


@pytest.mark.trio
async def test_a_checkpoint_waits_for_the_servers_and_then_is_taken(autojump_clock: MockClock) -> None:
    """Who asks for one while they are restarted gets it afterwards, or is told in time that there is none."""
    async with a_world() as world:
        reluctant(world, failures=1)
        settings = {"restart_delay_s": 30.0, "probe_every_s": 1.0}
        async with running(world.coordinator(world.trainer(), **settings), dispatches({"p1": 60})) as (job, reports):
            await trio.sleep(1.5)
            assert (await job.checkpoint(20)).published
            die(world)
            await trio.sleep(6)
            outcome = await job.checkpoint(5)
            assert isinstance(outcome, Aborted)
            assert outcome.story().startswith("ck-000002-000003: aborted while idle: the servers were not started anew")
            outcome = await job.checkpoint(60)
            assert isinstance(outcome, Published)
            assert outcome.checkpoint_id.startswith("ck-000003-")
            assert outcome.counts[Disposition.CONTINUE] == 1
        assert reports[0].delivered == 1


@pytest.mark.trio
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("verb", ["restore", "retire", "resume"])
async def test_a_second_death_while_the_servers_are_restored(
    autojump_clock: MockClock, server: str, verb: str
) -> None:
    """It is a failed try, not a failed restore: all start anew again, and everything held goes on. Covers: I51, I96."""
    async with a_world() as world:
        trainer = world.trainer()
        new = dispatches({"done": 1, "p1": 9, "p2": 9})
        async with running(world.coordinator(trainer, **SOON), new) as (job, reports):
            await trio.sleep(2.5)
            assert (await job.checkpoint(20)).published

            def dies(fake: FakeServer, _body: Reply) -> Any:
                world.script(server, verb, None)
                die(world, fake.name)
                return None

            world.script(server, verb, dies)
            die(world)
            report = await restarted(job)
            assert (report.tries, report.epoch, report.restore_failed) == (2, 3, "")
            assert report.count(Disposition.CONTINUE) == 2
        assert reports[0].delivered == 3
        assert trainer.ids == ["done", "p1", "p2"]


@pytest.mark.trio
@pytest.mark.parametrize("server", SERVERS)
async def test_s25_a_restore_that_fails_in_a_restart(autojump_clock: MockClock, server: str) -> None:
    """N+1 is retired everywhere, the servers are open, and the rollouts are fresh as N+2. Covers: I51."""
    async with a_world() as world:
        trainer = world.trainer()
        async with running(world.coordinator(trainer, **SOON), dispatches({"done": 1, "p1": 9})) as (job, reports):
            await trio.sleep(2.5)
            assert (await job.checkpoint(20)).published
            before = len(world.history.calls)
            world.script(server, "restore", refuse(409, "checkpoint_error"))
            die(world)
            report = await restarted(job)
            assert "checkpoint_error" in report.restore_failed and report.tries == 1
            verdicts = {each.rollout_id: (each.disposition.value, each.next_attempt) for each in report.verdicts}
            assert verdicts == {"done": ("completed", None), "p1": ("fresh", 2)}
            since = world.history.calls[before:]
            for name in SERVERS:
                retired = [body["episode_ids"] for who, verb, body in since if (who, verb) == (name, "retire")]
                assert {"rollout_id": "p1", "attempt": 1} in retired[-1]
            assert all(each.open for each in world.deployments.fleet.servers.values())
        assert reports[0].delivered == 2
        assert [each.attempt for each in trainer.accepted] == [0, 2]


@pytest.mark.trio
async def test_s44_an_overtaken_coordinator_restarts_nothing(autojump_clock: MockClock) -> None:
    """Somebody has claimed the root and its servers are gone: it claims nothing more, which would overtake them.

    Covers: I98.
    """
    async with a_world() as world:
        async with world.coordinator(world.trainer()) as job:
            recovered = await job.recover()
            async with trio.open_nursery() as nursery:

                async def run_batch() -> None:
                    with pytest.raises(Overtaken, match="epoch 2 is claimed by somebody else"):
                        await job.run_batch(recovered.runnable(dispatches({"p1": 99})))

                nursery.start_soon(run_batch)
                await trio.sleep(1)
                successor = world.store()
                successor.record_base(successor.claim(), None)
                die(world, "env")
            with pytest.raises(Overtaken):
                await job.checkpoint(10)
        assert sorted(world.store().claims()) == [1, 2]
        assert len(world.deployments.fleets) == 1 and world.network.up == ()


@pytest.mark.trio
async def test_deaths_one_after_the_other_with_nothing_done_in_between(autojump_clock: MockClock) -> None:
    """A server that dies of its work would die for ever: after so many restarts in a row it is told."""
    async with a_world() as world:

        def dies(fake: FakeServer, _body: Reply) -> Any:
            die(world, fake.name)
            return None

        world.script("env", "run", dies)
        async with world.coordinator(world.trainer(), restart_limit=2) as job:
            recovered = await job.recover()
            with pytest.raises(RestartFailed, match="2 restarts in a row, with no result and no checkpoint"):
                await job.run_batch(recovered.runnable(dispatches({"p1": 1})))
            assert len(job.restarts) == 2
        assert world.network.up == ()


@pytest.mark.trio
@pytest.mark.parametrize("receipts", [True, False], ids=["failed", "scored 0 by a server of another make"])
async def test_s65_a_dead_server_is_not_a_result(autojump_clock: MockClock, receipts: bool) -> None:
    """The environment ends a rollout since its tools are dead; nobody knows of that yet, and it is no result (S65).

    Before such an end counts, every participant has to answer as the process that it was. Covers: I97.
    """
    async with a_world() as world:
        trainer = world.trainer()

        def scored(fake: FakeServer, _body: Reply) -> Any:
            world.script("env", "run", None)
            die(world)
            return fake.refuse(500, "execution_failed") if receipts else JSONResponse({"reward": 0})

        world.script("env", "run", scored)
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            report = await job.run_batch(recovered.runnable(dispatches({"p1": 4})))
            assert (report.delivered, report.lost) == (1, {})
            assert len(job.restarts) == 1
        assert [each.body["reward"] for each in trainer.accepted] == [4]


@pytest.mark.trio
async def test_s65_without_vouching_a_dead_server_is_a_result(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The double takes everybody for alive, and a reward of 0 is trained on."""
    async with a_world() as world:
        trainer = world.trainer()

        def scored(_fake: FakeServer, _body: Reply) -> Any:
            world.script("env", "run", None)
            die(world)
            return JSONResponse({"reward": 0})

        async def believe(_detector: object) -> bool:
            return True

        monkeypatch.setattr("participants.coordination.failure_detector.FailureDetector.vouch", believe)
        world.script("env", "run", scored)
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            await job.run_batch(recovered.runnable(dispatches({"p1": 4})))
        assert [each.body["reward"] for each in trainer.accepted] == [0]


@pytest.mark.trio
async def test_a_failure_with_everybody_alive_is_a_failure(autojump_clock: MockClock) -> None:
    """It costs one question to each, and no restart; after a later restart it is not brought back (S42)."""
    async with a_world() as world:
        new = [*dispatches({"bad": 1}, fails=[500, "execution_failed"]), *dispatches({"good": 9})]
        async with running(world.coordinator(world.trainer(), **SOON), new) as (job, reports):
            await trio.sleep(0.5)
            assert (await job.checkpoint(20)).published
            await trio.sleep(2)
            assert job.restarts == ()
            die(world)
            report = await restarted(job)
            verdicts = {each.rollout_id: (each.disposition.value, each.next_attempt) for each in report.verdicts}
            assert verdicts == {"bad": ("fresh", 1), "good": ("continue", 1)}
        assert reports[0].delivered == 1
        assert reports[0].lost["bad"].startswith("HTTP 500 execution_failed")


@pytest.mark.trio
async def test_a_process_that_has_ended_is_not_waited_for(autojump_clock: MockClock) -> None:
    """A launcher that knows of ends tells at once, also of a server that takes no part."""
    async with a_world() as world:
        deployments = reluctant(world)
        async with running(world.coordinator(world.trainer()), dispatches({"p1": 9})) as (job, _):
            for times, name in enumerate(("agent", "judge"), 1):
                await trio.sleep(1.3)
                began = trio.current_time()
                deployments.exited[name] = -9
                report = await restarted(job, times)
                assert report.reason == f"{name} is dead: its process has ended with status -9"
                assert trio.current_time() - began < 3


@pytest.mark.trio
async def test_what_is_registered_meanwhile_is_there_afterwards(autojump_clock: MockClock) -> None:
    """A trainer that hands out work while the servers are down loses none of it. Covers: I12."""
    async with a_world() as world:
        reluctant(world, failures=1)
        trainer = world.trainer()
        async with running(world.coordinator(trainer), dispatches({"p1": 9})) as (job, reports):
            await trio.sleep(1.5)
            assert (await job.checkpoint(20)).published
            die(world)
            while len(world.store().claims()) == 1:  # noqa: ASYNC110 (in virtual time)
                await trio.sleep(0.1)
            later = await job.run_batch(job.runnable(dispatches({"p2": 2})))
            assert later.delivered == 1 and len(job.restarts) == 1
        assert reports[0].delivered == 1
        assert trainer.ids == ["p1", "p2"]


@pytest.mark.trio
async def test_a_batch_that_was_given_up_is_run_again_after_a_restart(autojump_clock: MockClock) -> None:
    """It goes on where its rollouts stand now, under the attempts that the restart gave them."""
    async with a_world() as world:
        trainer = world.trainer()
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            batch = recovered.runnable(dispatches({"p1": 3, "p2": 9}))
            with trio.move_on_after(5.5):
                await job.run_batch(batch)
            assert (await job.checkpoint(20)).published
            die(world)
            report = await restarted(job)
            assert (report.count(Disposition.COMPLETED), report.count(Disposition.CONTINUE)) == (1, 1)
            assert (await job.run_batch(batch)).delivered == 2
        assert trainer.ids == ["p1", "p2"]


@define(eq=False)
class SlowKeeper(SmallTrainer):
    """Keeps results outside its state, and takes its time."""

    kept: dict[str, Result] = field(factory=dict)

    async def save_result(self, result: Result) -> Result:
        await trio.sleep(60)
        return self.kept.setdefault(result.rollout_id, result)


@pytest.mark.trio
async def test_a_result_that_is_being_saved_outlives_its_server(autojump_clock: MockClock) -> None:
    """It came before the death; it is delivered once, and its rollout is not run again. Covers: I67, I68."""
    async with a_world() as world:
        trainer = SlowKeeper(world.disk)
        async with running(world.coordinator(trainer), dispatches({"p1": 1, "p2": 50})) as (job, reports):
            await trio.sleep(2.5)
            assert (await job.checkpoint(20)).published
            die(world)
            await restarted(job)
        assert reports[0].delivered == 2
        assert trainer.ids == ["p1", "p2"] == sorted(trainer.kept)
        assert world.count("p1") == 1


@pytest.mark.trio
async def test_a_trainer_that_cannot_take_it_changes_nothing(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """What the hook raises is logged; the servers are open and the batch goes on."""
    async with a_world() as world:
        trainer = Listening(world.disk, breaks=True)
        async with running(world.coordinator(trainer), dispatches({"p1": 5})) as (job, reports):
            await trio.sleep(1.5)
            die(world)
            await restarted(job)
        assert reports[0].delivered == 1
        assert "restarted() failed" in caplog.text


@pytest.mark.trio
async def test_a_late_answer_is_no_death(autojump_clock: MockClock) -> None:
    """A server that answers nothing for two periods of three, as one that is busy does, is still the same."""
    async with a_world() as world:
        silent_until = trio.current_time() + 22.0

        def busy(call: Any) -> Fault | None:
            late = is_call(call, "tools", "status") and trio.current_time() < silent_until
            return Fault(silent=True) if late else None

        async with running(world.coordinator(world.trainer()), dispatches({"p1": 60})) as (job, reports):
            world.network.faults = busy
        assert reports[0].delivered == 1
        assert job.restarts == ()
        lines = [parse(line) for line in world.journal.lines]
        steps = [(line["state"], line["next"]) for line in lines if line["machine"] == "heartbeat"]
        moves = [(before, after) for before, after in steps if before != after]
        assert moves == [("alive", "late"), ("late", "alive")]


@pytest.mark.trio
async def test_s69_who_came_after_the_checkpoint_tears_no_unit(autojump_clock: MockClock) -> None:
    """It had no part in the state that the checkpoint holds, and starts in it; the others of its group go on."""
    async with a_world() as world:
        world.script("tools", "capabilities", lambda *_: {"sharing": "group"})
        trainer = world.trainer()
        early, later = (
            [Dispatch(name, {"turns": 9}, "env", group="g") for name in names] for names in (("p1", "p2"), ("p3",))
        )
        async with running(world.coordinator(trainer, **SOON), early) as (job, reports):
            await trio.sleep(1.5)
            assert (await job.checkpoint(20)).published
            async with trio.open_nursery() as nursery:
                nursery.start_soon(job.run_batch, job.runnable(later))
                await trio.sleep(1.5)
                die(world)
                report = await restarted(job)
            verdicts = {each.rollout_id: (each.disposition.value, each.next_attempt) for each in report.verdicts}
            assert verdicts == {"p1": ("continue", 1), "p2": ("continue", 1), "p3": ("fresh", 1)}
        assert reports[0].delivered == 2
        assert trainer.ids == ["p1", "p2", "p3"]


@pytest.mark.trio
async def test_a_trainer_that_holds_the_loop_up_kills_nobody(autojump_clock: MockClock) -> None:
    """It computes for longer than a period, again and again; the answers that came meanwhile are read too late."""
    async with a_world() as world:
        async with running(world.coordinator(world.trainer()), dispatches({"p1": 3}, turn_s=60.0)) as (job, reports):
            world.network.faults = lambda call: Fault(reply_s=0.5) if call.path.endswith("status") else None
            for _ in range(8):
                await trio.sleep(0.2)
                autojump_clock.jump(15.0)  # no task runs in this time
            world.network.faults = None
        assert reports[0].delivered == 1
        assert job.restarts == ()


@pytest.mark.trio
async def test_a_bug_in_the_supervision_leaves_no_server_running(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no abandoned coordinator: the error comes out, and the servers are stopped."""

    async def broken(_supervisor: object) -> None:
        await trio.sleep(1)
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("participants.coordination.supervisor.Supervisor.run", broken)
    async with a_world() as world:
        with pytest.raises(ExceptionGroup) as raised:
            async with world.coordinator(world.trainer()) as job:
                recovered = await job.recover()
                await job.run_batch(recovered.runnable(dispatches({"p1": 9})))
        assert raised.group_contains(ZeroDivisionError)
        assert world.network.up == () and world.deployments.stopped == 1
