"""A coordinator for plain threads and for asyncio: hooks in worker threads, errors with their types, no call hangs."""

from __future__ import annotations

import asyncio
import inspect
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from participants import BlockingCoordinator, Closed, Coordinator, Dispatch, Disposition, Published, Result
from participants.coordination import blocking, trainer
from participants.coordination.failure_detector import KnowsExits
from participants.coordination.ledger import KnownRollout
from participants.coordination.outcomes import Aborted, Batch, BatchReport
from participants.records.manifests import CheckpointId
from statecore.seams import MemoryDisk
from tests.threaded_job import PlainHooks, Thread, ThreadedJob, awaited

TIMEOUT_S = 50.0


def test_two_lives_from_a_plain_thread() -> None:
    """Recover, run, checkpoint; the next life has it all, and no result comes twice."""
    disk = MemoryDisk()
    first = ThreadedJob(disk)
    with first.coordinator() as job:
        recovered = job.recover()
        assert recovered.story() == "epoch 1: a fresh start"
        report = job.run_batch(recovered.runnable(first.dispatches(2, "r1", "r2")))
        assert report == BatchReport(delivered=2)
        published = job.checkpoint(TIMEOUT_S)
        assert isinstance(published, Published) and published.counts[Disposition.COMPLETED] == 2
    assert first.launcher.stopped == 1
    assert sorted(first.trainer.accepted) == ["r1", "r2"]
    second = ThreadedJob(disk)
    with second.coordinator() as job:
        recovered = job.recover()
        assert recovered.checkpoint_id == published.checkpoint_id
        batch = recovered.runnable(second.dispatches(2, "r1", "r2", "r3"))
        assert [each.key for each in batch.episodes] == ["r3"]
        assert job.run_batch(batch).delivered == 1
        where: list[int] = []

        def new() -> Iterator[Dispatch]:
            where.append(threading.get_ident())
            yield from second.dispatches(1, "r4")

        assert job.run_batch(new()).delivered == 1
        assert where == [threading.get_ident()], "the trainer's own code, in the trainer's own thread"
    assert second.trainer.accepted.items() >= first.trainer.accepted.items()
    assert second.trainer.calls.count("accept") == 2


def test_the_policy_version_is_read_beside_save() -> None:
    """A thread of the trainer that steps after `consumed` has answered changes what is saved, and the version with it;
    one that steps after the version was read is told by what `save` returns. Covers: I89.
    """

    class Stepping(PlainHooks):
        step = 0

        @property
        def policy_version(self) -> tuple[int, int]:
            return 1, self.step

        def consumed(self) -> Any:
            self.step += 1
            return super().consumed()

    class Naming(Stepping):
        def save(self, directory: Path, dispositions: Any) -> Any:
            self.step += 1
            super().save(directory, dispositions)
            return 1, self.step

    for kind in (Stepping, Naming):
        life = ThreadedJob()
        life.trainer = kind(life.disk)
        with life.coordinator() as job:
            job.recover()
            assert job.checkpoint(TIMEOUT_S).published
        store = life.whole.store()
        assert store.read(store.published()[-1]).manifest.policy_version == (1, life.trainer.step)


def test_a_plain_launcher_that_knows_of_ends_is_asked() -> None:
    """It has `exited` if the launcher has it, and what that says at any moment; one without it stays without."""

    class Plain:
        def start(self, epoch: int) -> Mapping[str, str]:
            return {}

        def stop(self) -> None:
            pass

    class Knowing(Plain):
        exited: Mapping[str, int] = {}

    launcher = Knowing()
    wrapped = blocking._launcher(launcher)
    assert isinstance(wrapped, KnowsExits) and wrapped.exited == {}
    launcher.exited = {"env": -9}
    assert wrapped.exited == {"env": -9}
    assert not isinstance(blocking._launcher(Plain()), KnowsExits)


def test_a_checkpoint_in_one_thread_while_a_batch_runs_in_another() -> None:
    """The rollout stands in the middle, is continued in the checkpoint, and ends afterwards; its version is there."""
    life = ThreadedJob()
    with life.coordinator() as job:
        recovered = job.recover()
        running = Thread(job.run_batch, recovered.runnable(life.dispatches(3, "r1", free=False)))
        life.until_called("env /run")
        life.allow("r1", 1)
        outcome = job.checkpoint(TIMEOUT_S)
        assert isinstance(outcome, Published)
        assert outcome.counts[Disposition.CONTINUE] + outcome.counts[Disposition.FRESH] == 1, outcome.story()
        life.allow("r1", 3)
        assert running.result().delivered == 1
        last = job.checkpoint(TIMEOUT_S)
    checkpoint_id = CheckpointId.parse(last.checkpoint_id)
    assert checkpoint_id is not None
    assert life.whole.store().read(checkpoint_id).manifest.policy_version == (1, 1)


def test_leases_are_renewed_while_a_plain_save_blocks() -> None:
    """The hook is in a worker thread: the coordinator's goes on and asks every server to stay."""
    life, renewed = ThreadedJob(), threading.Event()

    def saw(call: str) -> None:
        if call.endswith("/renew"):
            renewed.set()

    def save() -> None:
        renewed.clear()
        awaited(renewed)

    life.on_call = saw
    life.trainer.during["save"] = save
    with life.coordinator(renew_every_s=0.01) as job:
        job.recover()
        assert job.checkpoint(TIMEOUT_S).published
    assert not any("statecore-coordinator" in each for each in life.trainer.threads)


def test_hooks_are_called_one_at_a_time() -> None:
    """Many results at once, a checkpoint meanwhile."""
    life = ThreadedJob()
    with life.coordinator() as job:
        recovered = job.recover()
        names = [f"r{number}" for number in range(20)]
        batches = [job.runnable(life.dispatches(1, *names[start::2])) for start in range(2)]
        assert len(recovered.runnable()) == 0
        running = [Thread(job.run_batch, each) for each in batches]
        assert job.checkpoint(TIMEOUT_S).published
        assert sum(each.result().delivered for each in running) == 20
    assert life.trainer.calls.count("accept") == 20
    assert life.trainer.overlaps == 0


def test_a_save_that_is_too_slow_is_left_alone_and_the_next_hook_waits_for_it(caplog: pytest.LogCaptureFixture) -> None:
    """The checkpoint aborts at its deadline; what the old thread does is over before anything else is asked, and its
    failure is not lost.
    """
    life, go_on = ThreadedJob(), threading.Event()

    def too_slow() -> None:
        awaited(go_on)
        life.trainer.during.clear()
        raise LookupError("the directory is gone")

    life.trainer.during["save"] = too_slow
    with life.coordinator() as job:
        job.recover()
        outcome = job.checkpoint(1.0)
        assert isinstance(outcome, Aborted) and "saved within" in outcome.reason, outcome
        next_one = Thread(job.checkpoint, TIMEOUT_S)
        go_on.set()
        assert next_one.result().published
    assert life.trainer.overlaps == 0
    assert "save failed after it was no longer waited for" in caplog.text


@pytest.mark.trio
async def test_a_hook_that_was_left_alone_keeps_the_next_one_waiting() -> None:
    """One at a time, also when nobody waits for the first any more."""
    threads, go_on = blocking._InThreads(abandon=True), threading.Event()
    seen: list[str] = []

    def first() -> None:
        awaited(go_on)
        seen.append("first")

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(threads.call, "first", first)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(threads.call, "second", seen.append, "second")
        with trio.move_on_after(0.05):  # enough for one that does not wait
            await trio.sleep_forever()
        go_on.set()
    assert seen == ["first", "second"]


def test_errors_come_through_with_their_types() -> None:
    """What a coordinator raises, and what the trainer's own hook raised; a failed save is a value as ever."""
    life = ThreadedJob()

    def broken() -> None:
        raise LookupError("the disk is gone")

    with life.coordinator() as job:
        job.recover()
        with pytest.raises(ValueError, match="greater than 0"):
            job.checkpoint(0)
        with pytest.raises(RuntimeError, match="called once"):
            job.recover()
        batch = job.runnable(life.dispatches(1, "r1"))
        with pytest.raises(KnownRollout, match="another task"):
            job.run_batch(life.dispatches(2, "r1"))
        life.trainer.during["accept"] = broken
        with pytest.raises(ExceptionGroup) as group:
            job.run_batch(batch)
        assert [type(each) for each in group.value.exceptions] == [LookupError]
        life.trainer.during = {"save": broken}
        outcome = job.checkpoint(TIMEOUT_S)
        assert isinstance(outcome, Aborted) and "LookupError: the disk is gone" in outcome.reason
        life.trainer.during = {"save": sys.exit}
        outcome = job.checkpoint(TIMEOUT_S)
        assert isinstance(outcome, Aborted) and "save raised SystemExit" in outcome.reason


def test_leaving_the_block_ends_the_calls_of_other_threads() -> None:
    """A batch that would run for ever ends with Closed, and so does every later call; the block's error is itself."""
    life = ThreadedJob()
    with pytest.raises(ZeroDivisionError), life.coordinator() as job:
        recovered = job.recover()
        stuck = Thread(job.run_batch, recovered.runnable(life.dispatches(1, "r1", free=False)))
        life.until_called("env /run")
        raise ZeroDivisionError
    with pytest.raises(Closed, match="run_batch"):
        stuck.result()
    for call in (job.checkpoint, job.runnable, job.recover, recovered.runnable):
        with pytest.raises(Closed):
            call()
    assert life.launcher.stopped == 1


def test_leaving_the_block_does_not_wait_for_a_hook_that_hangs() -> None:
    """Its thread is left alone: a dead trainer keeps nobody from stopping the servers."""
    life, hangs, end = ThreadedJob(), threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        awaited(end)

    life.trainer.during["accept"] = hang
    try:
        with life.coordinator() as job:
            stuck = Thread(job.run_batch, job.recover().runnable(life.dispatches(1, "r1")))
            awaited(hangs)
        assert life.launcher.stopped == 1
        with pytest.raises(Closed):
            stuck.result()
    finally:
        end.set()


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGINT is a KeyboardInterrupt here, also where a shell started all this with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupted_caller_cancels_its_own_call_and_no_other() -> None:
    """After a KeyboardInterrupt the batch may be run again and goes on where it stands; another batch never noticed."""
    life, main = ThreadedJob(), threading.get_ident()

    def interrupt(call: str) -> None:
        if call == "env /run" and (life.seen.count(call)) == 2:
            signal.pthread_kill(main, signal.SIGINT)

    with life.coordinator() as job:
        job.recover()
        other = Thread(job.run_batch, job.runnable(life.dispatches(1, "r2", free=False)))
        life.until_called("env /run")
        batch = job.runnable(life.dispatches(1, "r1", free=False))
        life.on_call = interrupt
        with pytest.raises(KeyboardInterrupt):
            job.run_batch(batch)
        assert job.checkpoint(TIMEOUT_S).published
        life.allow("r1", 1)
        assert job.run_batch(batch).delivered == 1
        life.allow("r2", 1)
        assert other.result().delivered == 1
    assert sorted(life.trainer.accepted) == ["r1", "r2"]


@pytest.mark.usefixtures("interrupts")
def test_an_interrupted_caller_waits_until_its_call_has_ended() -> None:
    """A launcher's start is not broken off: it is over when the caller goes on, and the servers are stopped at last."""
    life, main, go_on, started = ThreadedJob(), threading.get_ident(), threading.Event(), list[int]()

    class Slow:
        def start(self, epoch: int) -> Mapping[str, str]:
            signal.pthread_kill(main, signal.SIGINT)
            awaited(go_on)
            started.append(epoch)
            return trio.from_thread.run(life.launcher.start, epoch)

        def stop(self) -> None:
            trio.from_thread.run(life.launcher.stop)

    with life.coordinator(launcher=Slow()) as job:
        later = threading.Timer(0.2, go_on.set)
        later.start()
        with pytest.raises(KeyboardInterrupt):
            job.recover()
        assert started == [1]
        later.join()
    assert life.launcher.stopped == 1


def test_calls_that_would_hang_are_refused() -> None:
    """In an event loop's thread, and in a hook; `runnable` waits for nobody and is allowed in both."""
    life = ThreadedJob()
    refused: list[str] = []
    more: list[Batch] = []

    async def in_asyncio() -> None:
        for call in (job.checkpoint, job.recover, lambda: job.run_batch([])):
            with pytest.raises(RuntimeError, match=r"asyncio\.to_thread"):
                call()
        more.append(job.runnable())

    async def in_trio() -> None:
        with pytest.raises(RuntimeError, match="on trio, use Coordinator"):
            job.checkpoint()
        with pytest.raises(RuntimeError, match="use Coordinator"), life.coordinator():
            raise AssertionError("it cannot even be entered")

    def in_hook() -> None:
        for call in (job.checkpoint, job.recover, lambda: job.run_batch([])):
            with pytest.raises(RuntimeError, match="a hook may not call it") as error:
                call()
            refused.append(str(error.value).split("(")[0])
        life.trainer.during.clear()
        more.append(job.runnable(life.dispatches(1, "r2")))

    with life.coordinator() as job:
        recovered = job.recover()
        asyncio.run(in_asyncio())
        trio.run(in_trio)
        life.trainer.during["accept"] = in_hook
        job.run_batch(recovered.runnable(life.dispatches(1, "r1")))
        assert job.run_batch(more[-1]).delivered == 1
    assert refused == ["checkpoint", "recover", "run_batch"]


def test_what_cannot_be_used_is_refused_at_once() -> None:
    """A hook that is missing or async, no block, a block entered twice."""
    life = ThreadedJob()

    class WithoutLoad(PlainHooks):
        load = None  # type: ignore[assignment]

    class Async(PlainHooks):
        async def save_result(self, result: Result) -> Result:
            return result

    with pytest.raises(TypeError, match=r"WithoutLoad has no hook load\(\)"):
        life.coordinator(trainer=WithoutLoad(life.disk))
    with pytest.raises(TypeError, match=r"Async\.save_result is async"):
        life.coordinator(trainer=Async(life.disk))
    job = life.coordinator()
    with pytest.raises(RuntimeError, match="use it as `with"):
        job.recover()
    with job, pytest.raises(RuntimeError, match="entered once"):
        job.__enter__()
    with pytest.raises(Closed):
        job.recover()


def test_optional_hooks_are_used_where_they_are() -> None:
    """`save_result` is asked of a trainer that has it; one without it is not taken for one that has."""

    class Keeping(PlainHooks):
        def save_result(self, result: Result) -> Result:
            self._called("save_result")
            return result

    life = ThreadedJob()
    with life.coordinator(trainer=(keeping := Keeping(life.disk))) as job:
        job.run_batch(job.recover().runnable(life.dispatches(1, "r1")))
    assert [each for each in keeping.calls if each != "consumed"] == ["save_result", "accept"]
    assert isinstance(blocking._trainer(keeping), trainer.SavesResults)
    assert not isinstance(blocking._trainer(life.trainer), trainer.SavesResults)


def test_every_hook_that_there_is_can_be_a_plain_one() -> None:
    """A hook that is added to the contract and forgotten here is found."""
    protocols = [each for each in vars(trainer).values() if getattr(each, "_is_protocol", False)]
    hooks = {
        name
        for protocol in protocols
        for name, value in vars(protocol).items()
        if not name.startswith("_") and not isinstance(value, property)
    }
    assert {"save", "save_result"} <= hooks
    assert hooks - {*blocking.HOOKS, *blocking.OPTIONAL_HOOKS} == set()


def test_a_launcher_of_plain_functions() -> None:
    """Its start and its stop run in worker threads, and are waited for."""
    life, threads = ThreadedJob(), []

    class Plain:
        def start(self, epoch: int) -> Mapping[str, str]:
            threads.append(threading.current_thread().name)
            return trio.from_thread.run(life.launcher.start, epoch)

        def stop(self) -> None:
            threads.append(threading.current_thread().name)
            trio.from_thread.run(life.launcher.stop)

    with life.coordinator(launcher=Plain()) as job:
        assert job.run_batch(job.recover().runnable(life.dispatches(1, "r1"))).delivered == 1
    assert life.launcher.stopped == 1
    assert len(threads) == 2 and "statecore-coordinator" not in threads


def test_a_trainer_on_asyncio() -> None:
    """Calls in `asyncio.to_thread`, hooks that run on the trainer's own loop; batch and checkpoint at once."""
    life = ThreadedJob()

    class OnTheLoop:
        """Each hook is a coroutine of the loop that the trainer lives on."""

        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            self.loop, self.rewards = loop, dict[str, Any]()

        def _there(self, work: Coroutine[Any, Any, Any]) -> Any:
            return asyncio.run_coroutine_threadsafe(work, self.loop).result()

        def save(self, directory: Path, dispositions: Mapping[str, Disposition]) -> None:
            async def save() -> None:
                assert asyncio.get_running_loop() is self.loop
                with life.disk.create(directory / "rewards") as file:
                    file.write(str(sorted(self.rewards)).encode())

            self._there(save())

        def load(self, directory: Path) -> None:
            raise AssertionError("a fresh start")

        def accept(self, result: Result) -> None:
            async def accept() -> None:
                self.rewards[result.rollout_id] = result.body["reward"]

            self._there(accept())

        def consumed(self) -> set[str]:
            async def consumed() -> set[str]:
                return set(self.rewards)

            return set(self._there(consumed()))

    async def main() -> dict[str, Any]:
        mine = OnTheLoop(asyncio.get_running_loop())
        with life.coordinator(trainer=mine) as job:
            recovered = await asyncio.to_thread(job.recover)
            batch = recovered.runnable(life.dispatches(2, "r1", "r2"))
            running = asyncio.create_task(asyncio.to_thread(job.run_batch, batch))
            assert (await asyncio.to_thread(job.checkpoint, TIMEOUT_S)).published
            assert (await running).delivered == 2
        return mine.rewards

    assert asyncio.run(main()) == {"r1": 3, "r2": 3}


DIES = """
import threading
from tests.threaded_job import ThreadedJob
life = ThreadedJob()
job = life.coordinator()
job.__enter__()
batch = job.recover().runnable(life.dispatches(1, "r1", free=False))
threading.Thread(target=job.run_batch, args=(batch,), daemon=True).start()
life.until_called("env /run")
print("running", flush=True)
raise SystemExit(3)  # the block is never left
"""


def test_a_program_that_just_ends_is_not_kept_alive() -> None:
    """Neither the coordinator's thread nor a call in a daemon thread holds it."""
    command = [sys.executable, "-c", DIES]
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stdout) == (3, "running\n"), done.stderr


def test_it_is_a_coordinator_from_outside() -> None:
    """It is made with whatever a Coordinator is made with, and has whatever that has."""
    mine, theirs = (list(inspect.signature(each).parameters) for each in (BlockingCoordinator, Coordinator))
    assert mine == theirs
    public = {name for name in vars(Coordinator) if not name.startswith("_")}
    assert {"recover", "runnable", "run_batch", "checkpoint"} <= public
    assert public - set(vars(BlockingCoordinator)) == set()
