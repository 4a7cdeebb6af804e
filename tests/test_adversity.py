"""A bad world around a whole job: the real coordinator over real servers, on a disk and a network that misbehave.

Each ends in a report that names what was wrong, with the checkpoint before in force, the servers open, and the rollouts
played to the same results as undisturbed ones.
"""

from __future__ import annotations

import errno
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import httpx
import pytest
import trio
from attrs import define

from participants.coordination.coordinator import Aborted, Coordinator, CoordinatorError, Published
from participants.coordination.deployment import DiscoveryFailed
from participants.files.store import StoreError
from participants.net.http import ASGIApp
from participants.records.records import Disposition
from participants.settings import Seams, Settings
from statecore.seams import LoopClock
from tests.crash_disk import CrashDisk
from tests.small_job import TOKEN, WALL, counter_resources
from tests.whole_job import NAMES, ROOT, WholeJob, run, settle

TURNS = 6
REWARD = sum(range(1, TURNS + 1))
CONTROL = "/ng-control/v1"


@asynccontextmanager
async def under_way(job: WholeJob, *rollouts: str, **changes: Any) -> AsyncIterator[tuple[Coordinator, Published]]:
    """A job of one turn each and a checkpoint of it; in the end its rollouts are played out, their rewards right."""
    rollouts = rollouts or ("r1", "r2")
    async with job.coordinator(**changes) as coordinator, trio.open_nursery() as nursery:
        recovered = await coordinator.recover()
        for each in rollouts:
            job.turnstile.allow(each, 1)
        nursery.start_soon(coordinator.run_batch, recovered.runnable(job.dispatches(TURNS, *rollouts)))
        await settle()
        first = await coordinator.checkpoint(60)
        assert isinstance(first, Published), first.story()
        yield coordinator, first
        for each in rollouts:
            job.turnstile.allow(each, TURNS)
    assert job.trainer is not None
    assert {each: body["reward"] for each, body in job.trainer.accepted.items()} == dict.fromkeys(rollouts, REWARD)


async def phases(job: WholeJob, **tokens: str) -> dict[str, Any]:
    """What every server says of itself; `tokens` for those that have another one."""
    client = job.network.client("looker")
    found = {}
    for name in NAMES:
        url = f"{job.network.url(name)}{CONTROL}/checkpoint/status"
        token = {"authorization": f"Bearer {tokens.get(name, TOKEN)}", "x-statecore-epoch": str(job.lives)}
        found[name] = (await client.get(url, headers=token)).json()["phase"]
    return found


OPEN = dict.fromkeys(NAMES, "idle")


def in_force(job: WholeJob) -> str:
    """The checkpoint that a start made now would take; it validates, and no other is half there."""
    store = job.store()
    for each in store.published():
        store.read(each)
    return str(store.survey().candidates[0])


def on_a_bad_disk(job: WholeJob) -> CrashDisk:
    """The job's disk, of which a test may choose what fails."""
    disk = CrashDisk()
    disk.mkdir(ROOT, parents=True)
    job.disk = cast(Any, disk)
    return disk


# --- disks


def test_the_disk_is_full_at_any_operation_of_a_checkpoint() -> None:
    """From that operation on, for servers, trainer and coordinator alike, until the checkpoint has ended. Covers: I42,
    S3, S34
    """

    async def test(job: WholeJob) -> None:
        disk = on_a_bad_disk(job)
        async with under_way(job) as (coordinator, first):
            before = len(disk.log)
            second = await coordinator.checkpoint(60)
            total, newest = len(disk.log) - before, second.checkpoint_id
            assert total > 60
            told = set()
            for at in range(total):
                left = at

                def full(operation: str, path: str) -> None:
                    nonlocal left
                    left -= 1
                    if left < 0 and operation in ("create", "write", "mkdir", "link", "rename", "fsync"):
                        raise OSError(errno.ENOSPC, "no space left on device", path)

                disk.fault = full
                outcome = await coordinator.checkpoint(60)
                disk.fault = lambda operation, path: None
                if isinstance(outcome, Published):  # only LATEST could not be written, or all was written
                    assert at > total - 12
                    newest = outcome.checkpoint_id
                else:
                    assert "no space left on device" in outcome.reason, outcome.story()
                    assert not outcome.broken
                    told.add(outcome.phase)
                assert await phases(job) == OPEN
                assert in_force(job) == newest
            assert told == {"committing", "saving", "validating"}
            assert first.published
            last = await coordinator.checkpoint(60)
            assert isinstance(last, Published)
            assert job.store().survey().partial == ()

    run(test)


def read_only(operation: str, path: str) -> None:
    if not operation.startswith("fsync"):
        raise OSError(errno.EROFS, "read-only file system", path)


def test_the_root_becomes_read_only() -> None:
    """Each checkpoint says so and the run goes on; a start says so as well, and starts nothing. Covers: I42, S3"""

    async def test(job: WholeJob) -> None:
        disk = on_a_bad_disk(job)
        async with under_way(job) as (coordinator, first):
            disk.fault = read_only
            for in_a_row in (1, 2, 3):
                outcome = await coordinator.checkpoint(60)
                assert isinstance(outcome, Aborted)
                assert f"{ROOT}/.ck-000001" in outcome.reason
                assert "read-only file system" in outcome.reason
                assert (outcome.in_a_row, outcome.broken) == (in_a_row, False)
                assert await phases(job) == OPEN
            assert in_force(job) == first.checkpoint_id
        lives = job.lives
        async with job.coordinator() as another:
            with pytest.raises(StoreError, match=r"/job.*read-only file system"):
                await another.recover()
        assert job.launcher is not None
        assert (job.lives, job.launcher.up) == (lives + 1, ())
        assert in_force(job) == first.checkpoint_id

    run(test)


@pytest.mark.parametrize("seconds", [0.2, 1.0, 5.0])
def test_a_disk_that_takes_seconds_for_each_sync(seconds: float) -> None:
    """Either it ends in time, or it says that it did not; with more time it is published. Covers: S32"""

    async def test(job: WholeJob) -> None:
        disk = on_a_bad_disk(job)
        clock = cast(trio.testing.MockClock, trio.lowlevel.current_clock())
        slow = 0

        def wait(operation: str, path: str) -> None:
            nonlocal slow
            if operation.startswith("fsync"):
                slow += 1
                clock.jump(seconds)

        async with under_way(job) as (coordinator, first):
            disk.fault = wait
            outcome = await coordinator.checkpoint(30)
            needed_s = slow * seconds
            if seconds < 1:
                assert isinstance(outcome, Published), outcome.story()
            else:
                assert isinstance(outcome, Aborted)
                assert outcome.phase in ("committing", "saving", "validating")
                assert in_force(job) == first.checkpoint_id
            assert await phases(job) == OPEN
            longer = await coordinator.checkpoint(40 + 4 * needed_s)
            assert isinstance(longer, Published), longer.story()
            assert longer.seconds > 20 * seconds
            disk.fault = lambda operation, path: None

    run(test)


# --- clocks


class SteppedClock(LoopClock):
    """Wall time that somebody sets; the monotonic clock goes on as it is."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


@pytest.mark.parametrize("hour_s", [3600.0, -3600.0])
@pytest.mark.parametrize("whose", ["all", "coordinator", "tools"])
@pytest.mark.parametrize("when", ["prepare", "commit", "save", "between"])
def test_a_clock_is_set_by_an_hour(whose: str, hour_s: float, when: str) -> None:
    """In the middle of a checkpoint or between two, everywhere or at one process: published, or aborted by name, and
    every server is open again, by its lease at the latest. Covers: I21, S30
    """

    async def test(job: WholeJob) -> None:
        clocks = {name: SteppedClock(WALL) for name in ("coordinator", *NAMES)}
        job.clocks.update(clocks)

        def step() -> None:
            for name, clock in clocks.items():
                if whose in ("all", name):
                    clock.ahead_s = hour_s

        async def step_in_save() -> None:
            step()

        def step_at(call: Any) -> None:
            if call.path.endswith(f"/checkpoint/{when}"):
                step()

        async with under_way(job) as (coordinator, first):
            assert job.trainer is not None
            if when == "between":
                step()
            elif when == "save":
                job.trainer.before_save = step_in_save
            else:
                job.network.faults = step_at
            outcome = await coordinator.checkpoint(60)
            job.network.faults = job.trainer.before_save = None
            newest = outcome.checkpoint_id if isinstance(outcome, Published) else first.checkpoint_id
            assert in_force(job) == newest
            if outcome.unresumed:
                await trio.sleep(60 + 600 + 10)  # the lease ends on a clock that nobody sets
            assert await phases(job) == OPEN, outcome.story()
            if isinstance(outcome, Aborted):
                whom = {"all": "wall clock here was set by", "tools": "the clock of tools is off by"}
                said = whom.get(whose, "clock") in outcome.reason and re.search("3600 s|3599 s", outcome.reason)
                assert said or "deadline passed" in outcome.reason, outcome.reason
            for clock in clocks.values():
                clock.ahead_s = hour_s
            last = await coordinator.checkpoint(60)
            assert isinstance(last, Published), last.story()

    run(test)


# --- tokens


@define(eq=False)
class Lock:
    """A server behind a token that is changed while it runs; `outer` is the one that opens it now."""

    outer: str = TOKEN

    def around(self, maker: Callable[..., ASGIApp]) -> Callable[..., ASGIApp]:
        def make(config: Settings, seams: Seams, transport: httpx.AsyncBaseTransport) -> ASGIApp:
            app = maker(config, seams, transport)

            async def locked(scope: Any, receive: Any, send: Any) -> None:
                if scope["type"] == "http" and scope["path"].startswith(CONTROL):
                    given = dict(scope["headers"]).get(b"authorization", b"")
                    inner = TOKEN if given == f"Bearer {self.outer}".encode() else "no"
                    headers = [(k, v) for k, v in scope["headers"] if k != b"authorization"]
                    scope = {**scope, "headers": [*headers, (b"authorization", f"Bearer {inner}".encode())]}
                await app(scope, receive, send)

            locked.server = getattr(app, "server", None)  # type: ignore[attr-defined]
            return locked

        return make


@pytest.mark.parametrize("when", ["prepare", "commit", "renew", "resume"])
def test_the_control_token_is_changed_under_a_running_job(when: str) -> None:
    """401 is never tried again: the checkpoint says which server refuses; who had closed opens by its lease, and a
    coordinator with the new token goes on from the checkpoint before. Covers: I21, S28
    """

    async def test(job: WholeJob) -> None:
        lock = Lock()
        job.makers["tools"] = lock.around(counter_resources)

        def turned(call: Any) -> None:
            if call.path.endswith(f"/checkpoint/{when}"):
                lock.outer = "new"

        async with under_way(job) as (coordinator, first):
            job.network.faults = turned
            outcome = await coordinator.checkpoint(60)
            job.network.faults = None
            if when == "resume":
                assert isinstance(outcome, Published)
                assert "tools" in " ".join(outcome.unresumed)
            else:
                assert isinstance(outcome, Aborted)
                assert "tools" in outcome.reason
                assert "401" in outcome.reason or "unauthorized" in outcome.reason
            newest = outcome.checkpoint_id if when == "resume" else first.checkpoint_id
            assert in_force(job) == newest
            await trio.sleep(60 + 600 + 10)
            assert await phases(job, tools="new") == OPEN
            again = await coordinator.checkpoint(60)
            assert isinstance(again, Aborted)
            assert "tools" in again.reason
        job.makers.clear()
        async with job.coordinator() as second:
            found = await second.recover()
            assert (found.checkpoint_id, found.count(Disposition.CONTINUE)) == (newest, 2)

    run(test)


# --- blockers


def test_three_hundred_blockers() -> None:
    """A hundred are in the outcome by name and the rest is counted; the story tells some; all run on. Covers: S10"""
    rollouts = [f"r{index:03}" for index in range(300)]

    async def test(job: WholeJob) -> None:
        slow = trio.Event()
        slow.set()

        async def wait() -> None:
            await slow.wait()

        job.makers["tools"] = partial(counter_resources, before=wait)
        async with under_way(job, *rollouts) as (coordinator, first):
            slow = trio.Event()
            for each in rollouts:
                job.turnstile.allow(each, 2)
            await settle()
            outcome = await coordinator.checkpoint(30)
            assert isinstance(outcome, Aborted)
            *named, rest = outcome.blockers
            assert len({each.rollout_id for each in named} & set(rollouts)) == 100
            assert all(each.reason and each.waited_s is not None for each in named)
            assert str(rest) == f"200 that {rest.server} does not name"
            assert "; and 295 more" in outcome.story()
            assert len(outcome.story()) < 2_000
            assert await phases(job) == OPEN
            assert in_force(job) == first.checkpoint_id
            slow.set()
            await settle()
            assert isinstance(await coordinator.checkpoint(60), Published)

    run(test)


# --- garbage

GARBAGE: dict[str, tuple[int, bytes]] = {
    "no JSON": (200, b"<html>a proxy's page</html>"),
    "no text": (200, b"\xff\xfe\x00"),
    "nothing": (200, b""),
    "a list": (200, b"[]"),
    "a number": (200, b"NaN"),
    "an empty object": (200, b"{}"),
    "every field of another type": (
        200,
        b'{"phase": 7, "report": [], "manifest": "x", "episode_ids": 3, "restored": {}, "receipts": {"a": 1}, '
        b'"retired": 4, "lease_expires_at": "soon", "server_ts": "now", "incarnation": [], "epoch": "one"}',
    ),
    "deep": (200, b"[" * 100_000),
    "an error that is none of ours": (418, b"short and stout"),
}


@define(eq=False)
class Babble:
    """A server that says `said` to every call whose path ends with `path`."""

    path: str = "nothing"
    said: tuple[int, bytes] = (200, b"")

    def around(self, maker: Callable[..., ASGIApp]) -> Callable[..., ASGIApp]:
        def make(config: Settings, seams: Seams, transport: httpx.AsyncBaseTransport) -> ASGIApp:
            app = maker(config, seams, transport)

            async def babbling(scope: Any, receive: Any, send: Any) -> None:
                if scope["type"] != "http" or not scope["path"].endswith(self.path):
                    await app(scope, receive, send)
                    return
                status, body = self.said
                await send({"type": "http.response.start", "status": status, "headers": []})
                await send({"type": "http.response.body", "body": body})

            babbling.server = getattr(app, "server", None)  # type: ignore[attr-defined]
            return babbling

        return make


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("verb", ["prepare", "commit", "renew", "resume", "results", "results/acknowledge", "retire"])
def test_a_participant_answers_garbage(verb: str, garbage: str) -> None:
    """In a checkpoint: it names the server, or is published with a note of what could not be done. Covers: I20, S3"""

    async def test(job: WholeJob) -> None:
        babble = Babble()
        job.makers["tools"] = babble.around(counter_resources)
        async with under_way(job) as (coordinator, first):
            babble.path, babble.said = f"/{verb}", GARBAGE[garbage]
            outcome = await coordinator.checkpoint(60)
            babble.path = "nothing"
            if verb in ("prepare", "commit", "renew"):
                assert isinstance(outcome, Aborted), outcome.story()
                assert "tools" in outcome.reason, outcome.story()
                assert in_force(job) == first.checkpoint_id
            else:
                assert isinstance(outcome, Published), outcome.story()
                assert in_force(job) == outcome.checkpoint_id
            if outcome.unresumed:
                assert "tools" in " ".join(outcome.unresumed)
            last = await coordinator.checkpoint(60)
            assert isinstance(last, Published), last.story()
            assert await phases(job) == OPEN

    run(test)


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("verb", ["capabilities", "checkpoint/restore", "checkpoint/retire", "checkpoint/resume"])
def test_a_participant_answers_garbage_to_a_start(verb: str, garbage: str) -> None:
    """The start is refused by the server's name, or everything starts fresh and says why; nothing published changes.
    Covers: S25
    """

    async def test(job: WholeJob) -> None:
        babble = Babble()
        async with under_way(job) as (coordinator, first):
            newest = first.checkpoint_id
            if verb == "checkpoint/retire":  # of rollouts that are over
                job.turnstile.allow("r1", TURNS)
                await trio.sleep(1)
                newest = (await coordinator.checkpoint(60)).checkpoint_id
        for each in ("r1", "r2"):
            job.turnstile.allowed.pop(each)
        job.makers["tools"] = babble.around(counter_resources)
        babble.path, babble.said = f"/{verb}", GARBAGE[garbage]
        async with job.coordinator() as second:
            if verb == "checkpoint/restore":
                found = await second.recover()
                assert "tools" in found.restore_failed
                assert found.count(Disposition.FRESH) == 2
                assert await phases(job) == OPEN
            else:
                with pytest.raises((DiscoveryFailed, CoordinatorError), match="tools"):
                    await second.recover()
        assert in_force(job) == newest

    run(test)
