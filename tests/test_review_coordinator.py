"""Faults that a review of the coordinator and its files found: each test failed before its mend."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from attrs import define, evolve, field
from starlette.responses import Response
from trio.testing import MockClock

from participants.coordination.coordinator import Aborted, Published
from participants.coordination.dispatch import Came, read_run_reply
from participants.coordination.ledger import Ledger
from participants.coordination.trainer import Dispatch, Result
from participants.files.store import Store
from participants.identity import EpisodeId
from participants.records.manifests import CheckpointId
from participants.records.records import Receipt
from participants.serving.testing import Call, Fault
from statecore.errors import WireError
from statecore.seams import FixedClock, LoopClock, MemoryDisk, SeededEntropy
from statecore.wire import MAX_DEPTH, digest
from tests.coordinator_world import WALL, SmallTrainer, a_world, abandoned, dispatches, is_call, running
from tests.small_fleet import FakeServer, Reply


def nested(depth: int) -> Any:
    """Lists within lists, `depth` of them."""
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


# --- what is published can be restored


@pytest.mark.trio
async def test_a_trainer_that_forgets_what_it_consumed_is_not_published(autojump_clock: MockClock) -> None:
    """A body that only the trainer keeps must be in the state that is bound: else the next life would reject the newest
    checkpoint, and nothing older counts. Covers: I87, I88.
    """

    @define(eq=False)
    class Forgetful(SmallTrainer):
        async def consumed(self) -> set[str]:
            return set() if "p1" in self.forgotten else await super().consumed()

        forgotten: set[str] = field(factory=set)

    async with a_world() as world:
        trainer = Forgetful(world.disk)
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            await job.run_batch(recovered.runnable(dispatches({"p1": 1})))
            first = await job.checkpoint(20)
            assert isinstance(first, Published)
            trainer.forgotten.add("p1")
            second = await job.checkpoint(20)
            assert isinstance(second, Aborted)
            assert second.broken
            assert "p1" in second.reason
        async with world.coordinator(world.trainer()) as job:
            assert (await job.recover()).checkpoint_id == first.checkpoint_id


@pytest.mark.trio
async def test_the_policy_version_is_of_the_state_that_was_saved(autojump_clock: MockClock) -> None:
    """A trainer that goes on as soon as its save has returned does not change which weights the manifest names. Covers:
    I84, I89.
    """

    @define(eq=False)
    class Stepping(SmallTrainer):
        step: int = 3

        @property
        def policy_version(self) -> tuple[int, int]:
            return 1, self.step

        async def save(self, directory: Path, dispositions: Any) -> None:
            await super().save(directory, dispositions)
            self.step += 1

    async with a_world() as world:
        async with world.coordinator(Stepping(world.disk)) as job:
            await job.recover()
            assert (await job.checkpoint(20)).published
        assert world.store().read(world.store().published()[-1]).manifest.policy_version == (1, 3)


@pytest.mark.trio
@pytest.mark.parametrize("names", [False, True], ids=["the attribute", "what save returns"])
async def test_the_policy_version_is_of_what_save_captured(autojump_clock: MockClock, names: bool) -> None:
    """A trainer that steps between `consumed` and `save` saves the newer weights, and one that steps before it captures
    says which it has captured. Covers: I80, I89.
    """

    @define(eq=False)
    class Restless(SmallTrainer):
        step: int = 3

        @property
        def policy_version(self) -> tuple[int, int]:
            return 1, self.step

        async def consumed(self) -> set[str]:
            self.step += 1
            return await super().consumed()

        async def save(self, directory: Path, dispositions: Any) -> tuple[int, int] | None:  # type: ignore[override]
            if names:
                await trio.sleep(1)
                self.step += 1
            captured = self.policy_version
            await super().save(directory, dispositions)
            self.step += 1
            return captured if names else None

    async with a_world() as world:
        trainer = Restless(world.disk)
        async with world.coordinator(trainer) as job:
            await job.recover()
            began = trainer.step
            assert (await job.checkpoint(20)).published
        manifest = world.store().read(world.store().published()[-1]).manifest
        assert manifest.policy_version == (1, began + (2 if names else 1))


@pytest.mark.trio
@pytest.mark.parametrize("version", [7, (1,), (1, "2"), [1, 2]])
async def test_a_version_that_is_none_aborts_the_checkpoint(autojump_clock: MockClock, version: Any) -> None:
    """The run goes on, and the reason names the hook."""

    @define(eq=False)
    class Confused(SmallTrainer):
        async def save(self, directory: Path, dispositions: Any) -> Any:
            await super().save(directory, dispositions)
            return version

    async with a_world() as world, world.coordinator(Confused(world.disk)) as job:
        await job.recover()
        outcome = await job.checkpoint(20)
        assert isinstance(outcome, Aborted)
        assert "policy version" in outcome.reason


@pytest.mark.trio
async def test_a_trainer_may_do_with_a_result_what_it_likes(autojump_clock: MockClock) -> None:
    """What it changes in a body or a task that it was given, or gave, is not what the ledger holds (I49): else no
    later checkpoint would validate.
    """

    @define(eq=False)
    class Annotating(SmallTrainer):
        async def accept(self, result: Result) -> None:
            result.body["advantage"] = 0.5
            result.body["calls"].clear()
            result.dispatch.task.pop("turns")
            await super().accept(result)

    async with a_world() as world:
        trainer = Annotating(world.disk)
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            (dispatch,) = dispatches({"p1": 1})
            batch = recovered.runnable([dispatch])
            dispatch.task["turns"] = 2
            await job.run_batch(batch)
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published), outcome.story()
            checkpoint = world.store().read(world.store().published()[-1])
        assert checkpoint.ledger[0].body == {"reward": 1, "calls": ["p1-m1"]}
        assert checkpoint.registry[0].task == {"turns": 1}
        assert trainer.accepted[0].body == {"reward": 1, "calls": [], "advantage": 0.5}


@pytest.mark.parametrize(
    "bad",
    [
        {"task": nested(MAX_DEPTH + 1)},
        {"task": {}, "data_position": nested(MAX_DEPTH + 1)},
        {"task": {}, "group": "\ud800"},
        {"task": {}, "target": "\ud800"},
    ],
)
def test_a_dispatch_that_no_row_can_hold_is_refused(bad: dict[str, Any]) -> None:
    """What could be neither sent nor written is refused when it is handed in, and its neighbours are not hurt (S42)."""
    with pytest.raises(WireError):
        Ledger().registered([Dispatch(**{"rollout_id": "p1", "target": "env"} | bad)])
    deepest = Dispatch("p1", nested(MAX_DEPTH), "env", data_position=nested(MAX_DEPTH))
    ledger, _ = Ledger().registered([deepest])
    assert ledger["p1"].dispatch == deepest


@pytest.mark.parametrize(("name", "value"), [("group", 3), ("group", b"g"), ("target", None), ("target", 1)])
def test_a_dispatch_whose_names_are_no_text_is_refused(name: str, value: Any) -> None:
    """A group that is a number would be in every later checkpoint, and none of them could be read back."""
    with pytest.raises(ValueError, match=name):
        Dispatch(**{"rollout_id": "p1", "task": {}, "target": "env", name: value})


def test_a_result_that_no_row_can_hold_is_none() -> None:
    """One body nested too deeply for the ledger's file is that rollout's failure, not every checkpoint's (S42)."""
    own = Receipt(rollout_id="p1", attempt=0, epoch=1, result_identity="0" * 32, result_sha256="0" * 64)
    for depth, came in ((MAX_DEPTH, Came.RESULT), (MAX_DEPTH + 1, Came.NO_RESULT)):
        body = b"[" * depth + b"]" * depth
        answer = read_run_reply(EpisodeId("p1"), 200, httpx.Headers(), body, own)
        assert answer.came is came, depth


# --- results that the framework keeps


@define(eq=False)
class Keeper(SmallTrainer):
    """Keeps results outside its state, create-only by rollout id."""

    kept: dict[str, Result] = field(factory=dict)

    async def save_result(self, result: Result) -> Result:
        return self.kept.setdefault(result.rollout_id, result)


@define(eq=False)
class Refuses(SmallTrainer):
    """Takes no results."""

    async def accept(self, result: Result) -> None:
        raise OSError("not now")


@pytest.mark.trio
async def test_a_result_that_is_delivered_again_is_kept_again(autojump_clock: MockClock) -> None:
    """What stands decides after a restart as well: a framework that did not take a result is given it again, and one
    that has kept an older one gets that. Covers: I68, I87.
    """
    async with a_world() as world:
        first = Refuses(world.disk)

        async def body(job: Any) -> None:
            recovered = await job.recover()
            with pytest.raises(ExceptionGroup):
                await job.run_batch(recovered.runnable(dispatches({"p1": 1, "p2": 1})))
            assert (await job.checkpoint(20)).published

        await abandoned(world, world.coordinator(first), body)
        second = Keeper(world.disk)
        standing = {"reward": 77}
        receipt = Receipt(rollout_id="p2", attempt=0, epoch=1, result_identity="8" * 32, result_sha256=digest(standing))
        second.kept["p2"] = Result("p2", 0, standing, receipt, dispatches({"p2": 1})[0])
        async with world.coordinator(second) as job:
            await job.recover()
            assert (await job.checkpoint(20)).published
        assert sorted(second.kept) == ["p1", "p2"]
        assert {each.rollout_id: each.body["reward"] for each in second.accepted} == {"p1": 1, "p2": 77}
        assert all(each.redelivered for each in second.accepted)
        rows = world.store().read(world.store().published()[-1]).ledger
        assert {row.rollout_id: row.body["reward"] for row in rows} == {"p1": 1, "p2": 77}


# --- a batch that its caller gives up


@pytest.mark.trio
@pytest.mark.parametrize("given_up_s", [0.5, 1.5, 2.5])
async def test_a_batch_that_was_given_up_goes_on_when_it_is_run_again(
    autojump_clock: MockClock, given_up_s: float
) -> None:
    """Cancelled while rollouts run, or while the framework takes a result: run again, the batch joins the executions,
    and each result is with the framework once. Covers: I10, I68.
    """

    @define(eq=False)
    class Slow(SmallTrainer):
        async def accept(self, result: Result) -> None:
            await trio.sleep(1)
            await super().accept(result)

    async with a_world() as world:
        trainer = Slow(world.disk)
        async with world.coordinator(trainer) as job:
            batch = (await job.recover()).runnable(dispatches({"p1": 1, "p2": 2, "bad": 1}))
            world.script("env", "run", _fails)
            with trio.move_on_after(given_up_s):
                await job.run_batch(batch)
            report = await job.run_batch(batch)
            assert report.delivered == 2
            assert set(report.lost) == {"bad"}
            assert trainer.ids == ["p1", "p2"]
            assert len(world.history.played) == 3
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published)
            assert "2 completed, 1 fresh" in outcome.story()
            with pytest.raises(ValueError, match="runs already"):
                await job.run_batch(batch)


def _fails(server: FakeServer, body: Reply) -> Response | None:
    bad = body["episode_id"]["rollout_id"] == "bad"
    return server.refuse(500, "execution_failed") if bad else None


# --- aborts, bounds


@pytest.mark.trio
async def test_a_server_that_missed_its_resume_does_not_fail_the_next_checkpoint(autojump_clock: MockClock) -> None:
    """It is resumed before the next one is begun; until its lease ends it would refuse every other id. Covers: I20."""
    async with a_world() as world, world.coordinator(world.trainer()) as job:
        await job.recover()
        world.network.faults = lambda call: Fault(refuse=True) if is_call(call, "env", "resume") else None
        first = await job.checkpoint(5)
        assert isinstance(first, Published)
        assert len(first.unresumed) == 1
        world.network.faults = None
        second = await job.checkpoint(5)
        assert isinstance(second, Published), second.story()
        assert second.unresumed == ()
        assert world.history.bodies("env", "resume")[-2]["checkpoint_id"] == first.checkpoint_id


@pytest.mark.trio
async def test_two_checkpoints_that_servers_missed_the_end_of_are_both_ended(autojump_clock: MockClock) -> None:
    """One server stands in the first, another in the second: neither is left to its lease. Covers: I20."""
    async with a_world() as world, world.coordinator(world.trainer()) as job:
        await job.recover()
        world.network.faults = lambda call: Fault(refuse=True) if is_call(call, "tools", "resume") else None
        first = await job.checkpoint(5)
        assert isinstance(first, Published) and len(first.unresumed) == 1
        world.network.faults = lambda call: (
            Fault(refuse=True) if is_call(call, "tools", "resume") or is_call(call, "env", "resume") else None
        )
        second = await job.checkpoint(5)
        assert isinstance(second, Aborted) and "tools: prepare" in second.reason
        world.network.faults = None
        third = await job.checkpoint(5)
        assert isinstance(third, Published), third.story()
        assert third.unresumed == ()
        resumed = [body["checkpoint_id"] for body in world.history.bodies("env", "resume")]
        assert second.checkpoint_id in resumed


@define(eq=False)
class SteppingClock:
    """A wall clock that somebody sets; the other one goes on."""

    clock: LoopClock
    by_s: float = 0.0

    def time(self) -> float:
        return self.clock.time() + self.by_s

    def monotonic(self) -> float:
        return self.clock.monotonic()


@pytest.mark.trio
@pytest.mark.parametrize("verb", ["prepare", "commit", "renew"])
async def test_a_clock_that_is_set_back_moves_no_deadline(autojump_clock: MockClock, verb: str) -> None:
    """A server that hangs while the wall clock goes back by an hour holds the run up no longer than the deadline and
    its grace. Covers: I18.
    """
    async with a_world() as world:
        clock = SteppingClock(LoopClock(WALL))
        world.seams = evolve(world.seams, clock=clock)
        trainer = world.trainer()
        async with world.coordinator(trainer) as job:
            await job.recover()

            def hang(call: Call) -> Fault | None:
                if not is_call(call, "agent", verb):
                    return None
                clock.by_s = -3600.0
                return Fault(silent=True)

            world.network.faults = hang
            began = trio.current_time()
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Aborted)
            assert trio.current_time() - began < 60


@pytest.mark.trio
async def test_a_resume_is_bounded_whatever_the_clock_does(autojump_clock: MockClock) -> None:
    """The same for calls after publication, while every rollout stands still. Covers: I18."""
    async with a_world() as world:
        clock = SteppingClock(LoopClock(WALL))
        world.seams = evolve(world.seams, clock=clock)
        async with world.coordinator(world.trainer()) as job:
            await job.recover()

            def hang(call: Call) -> Fault | None:
                if not is_call(call, "tools", "resume"):
                    return None
                clock.by_s -= 3600.0
                return Fault(silent=True)

            world.network.faults = hang
            began = trio.current_time()
            outcome = await job.checkpoint(20)
            assert outcome.published
            assert trio.current_time() - began < 90


# --- files


def test_latest_never_points_at_what_was_overtaken() -> None:
    """A coordinator that was overtaken and publishes all the same leaves LATEST to its successor (S44, S67)."""
    disk = MemoryDisk()
    disk.mkdir(Path("/root"))
    store = Store(Path("/root"), disk, SeededEntropy(1), FixedClock(WALL))

    def publish(epoch: int, seq: int) -> str | None:
        draft = store.begin(CheckpointId(epoch, seq))
        draft.write_gym([])
        draft.write_coordinator([], [])
        draft.framework_dir  # noqa: B018 (it makes the directory)
        draft.seal_framework()
        draft.finish()
        return store.publish(draft).latest_problem

    store.record_base(store.claim(), None)
    publish(1, 1)
    store.record_base(store.claim(), CheckpointId(1, 1))
    publish(2, 1)
    assert store.latest() == "ck-000002-000001"
    problem = publish(1, 2)
    assert store.latest() == "ck-000002-000001"
    assert problem is not None
    assert "claimed" in problem


# --- many rollouts


def timed_rounds(rollouts: int) -> float:
    """CPU seconds for the dispatching and receiving of so many rollouts, one by one."""
    ledger, episodes = Ledger().registered([Dispatch(f"r{number}", {}, "env") for number in range(rollouts)])
    began = time.process_time()
    for episode in episodes:
        ledger = ledger.dispatched([episode.rollout_id])
    for episode in episodes:
        receipt = Receipt(rollout_id=episode.rollout_id, attempt=0, result_identity="0" * 32, result_sha256="0" * 64)
        ledger, _ = ledger.received(receipt, {"reward": 1})
    assert list(ledger.rollouts) == [episode.rollout_id for episode in episodes]
    assert len(ledger.finished) == rollouts
    return time.process_time() - began


def test_a_change_of_one_rollout_does_not_cost_more_with_many() -> None:
    """Ten times the rollouts take about ten times as long, not a hundred times (best of three)."""
    small, large = (min(timed_rounds(count) for _ in range(3)) for count in (1_000, 10_000))
    assert large < 25 * small


@pytest.mark.trio
async def test_many_results_on_their_way_are_waited_for(autojump_clock: MockClock) -> None:
    """All of them are completed although each arrival wakes the wait (section 6.5)."""
    async with a_world() as world:
        world.network.faults = lambda call: Fault(reply_s=1 + call.number % 7 / 10) if call.path == "/run" else None
        names = {f"p{number}": 1 for number in range(50)}
        async with running(world.coordinator(world.trainer()), dispatches(names, turn_s=0.5)) as (job, _):
            await trio.sleep(0.6)
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published)
            assert "50 completed" in outcome.story()
