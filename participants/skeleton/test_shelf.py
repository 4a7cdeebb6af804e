"""A shelf by example: its table, its world, and its server in memory over a checkpoint and a new process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio.testing

from participants import Seams, Settings, attrs_codec, check_codec
from participants.serving.testing import InMemoryNetwork
from participants.skeleton import machine
from participants.skeleton.machine import MAX_THINGS, Put, Sealed, Shelf, ShelfState, Taken, moved
from participants.skeleton.server import at_once, make
from participants.skeleton.world import ShelfWorld
from statecore import Refused, Verdict, check
from statecore.seams import LoopClock, MemoryDisk, SeededEntropy
from statecore.testing import assert_no_repeated_keys

AUTH = {"authorization": "Bearer token"}
EPISODE = {"rollout_id": "r1", "attempt": 0}


def test_no_cell_is_written_twice() -> None:
    """Python would keep the last of two cells for one event, and say nothing."""
    assert_no_repeated_keys(machine)


def test_the_world_holds() -> None:
    """Every order of calls, checkpoints and a crash: see world.py."""
    assert check(ShelfWorld).verdict is Verdict.HOLDS


def test_what_the_table_refuses_changes_nothing() -> None:
    """Too much, too little, and anything after the end."""
    full = Shelf(things=("a",) * MAX_THINGS)
    for shelf, event, code in (
        (full, Put("b"), "full"),
        (Shelf(), Taken(), "empty"),
        (Shelf(ShelfState.SEALED), Put("b"), "sealed"),
    ):
        with pytest.raises(Refused) as refused:
            moved(shelf, event)
        assert refused.value.code == code
    assert moved(Shelf(ShelfState.SEALED), Sealed()) == Shelf(ShelfState.SEALED)


def test_the_codec_carries_every_state() -> None:
    """What is saved is what comes back."""
    for state in ShelfState:
        check_codec(attrs_codec(Shelf), Shelf(state, ("a", "b")))


class Job:
    """A server in memory, and somebody who calls it as the rollout's agent and as the coordinator."""

    def __init__(self, network: InMemoryNetwork) -> None:
        self.network = network
        self.disk = MemoryDisk()
        self.disk.mkdir("/job")
        self.clock = LoopClock(1_790_000_000.0)
        self.client = network.client("agent")
        self.processes = 0

    async def start(self, before: Callable[[], Awaitable[None]] = at_once) -> None:
        """A new process of the server; nothing of an older one but the files."""
        self.processes += 1
        settings = Settings(enabled=True, control_auth_token="token", root=Path("/job"), cookie_secret="secret")
        seams = Seams(clock=self.clock, disk=self.disk, entropy=SeededEntropy(self.processes))
        await self.network.start("shelf", make(settings, seams, before=before))

    async def call(self, path: str, body: object = None, *, attempt: int = 0, operation: str = "") -> httpx.Response:
        key = "r1" if attempt == 0 else f"r1-a{attempt}"
        url = f"{self.network.url('shelf')}/ng-rollout/{key}{path}"
        headers = {"x-nemo-gym-operation-id": operation} if operation else {}
        return await self.client.post(url, json=body or {}, headers=headers)

    async def control(self, verb: str, checkpoint_id: str, *, within_s: float = 60.0, **body: Any) -> dict[str, Any]:
        body |= {"checkpoint_id": checkpoint_id, "deadline_ts": self.clock.time() + within_s}
        url = f"{self.network.url('shelf')}/ng-control/v1/checkpoint/{verb}"
        reply = await self.client.post(url, json=body, headers=AUTH)
        assert reply.status_code == 200, reply.text
        value: dict[str, Any] = reply.json()
        return value


def run(test: Callable[[Job], Awaitable[None]]) -> None:
    """`test(job)`, in virtual time."""

    async def main() -> None:
        async with InMemoryNetwork() as network:
            await test(Job(network))
            assert not network.errors, network.errors

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_call_that_is_sent_again_is_applied_once() -> None:
    """The recorded reply comes back, and the shelf has the thing once."""

    async def sent_again(job: Job) -> None:
        await job.start()
        await job.call("/seed_session")
        first = await job.call("/put", {"thing": "a"}, operation="op-1")
        again = await job.call("/put", {"thing": "a"}, operation="op-1")
        assert first.json() == again.json() == {"things": ["a"], "refused": None}
        assert (await job.call("/look")).json() == {"things": ["a"], "state": "open"}

    run(sent_again)


def test_a_bad_body_is_refused_and_changes_nothing() -> None:
    """A field of another type, one too many, none at all."""

    async def bad(job: Job) -> None:
        await job.start()
        await job.call("/seed_session")
        for body in ({"thing": 7}, {"thing": "a", "more": 1}, {}):
            assert (await job.call("/put", body)).status_code == 422
        assert (await job.call("/look")).json()["things"] == []

    run(bad)


def test_a_checkpoint_waits_for_a_call_that_takes_long() -> None:
    """It is named while it moves, and what it did is in the part."""

    async def slow(job: Job) -> None:
        goes_on = trio.Event()
        await job.start(goes_on.wait)
        await job.call("/seed_session")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job.call, "/put", {"thing": "a"})
            await trio.testing.wait_all_tasks_blocked()
            waiting = await job.control("prepare", "ck-1", within_s=1.0)
            assert (waiting["phase"], waiting["report"]["blockers"]) == ("preparing", ["r1"])
            goes_on.set()
        assert (await job.control("prepare", "ck-1"))["phase"] == "prepared"

    run(slow)


def test_a_session_comes_back_in_a_new_process() -> None:
    """What was committed is there again under the next attempt; what came after it is not."""

    async def crash(job: Job) -> None:
        await job.start()
        await job.call("/seed_session")
        await job.call("/put", {"thing": "a"})
        await job.control("prepare", "ck-1")
        await job.control("commit", "ck-1", checkpoint_dir="/job/ck-1/shelf", episode_ids=[EPISODE])
        await job.control("resume", "ck-1")
        await job.call("/put", {"thing": "lost with the crash"})
        job.network.kill("shelf")
        await job.start()
        await job.control("restore", "rs-1", checkpoint_dir="/job/ck-1/shelf", episode_ids=[EPISODE])
        await job.control("resume", "rs-1")
        assert (await job.call("/look", attempt=1)).json() == {"things": ["a"], "state": "open"}
        assert (await job.call("/look")).json()["error"]["code"] == "stale_attempt"

    run(crash)
