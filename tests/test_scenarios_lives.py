"""S64, S65, S69: what servers that start anew go on with. First the fault, then its absence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from attrs import evolve
from starlette.responses import JSONResponse

from participants.coordination import coordinator as coordinator_module
from participants.coordination.coordinator import Published
from participants.coordination.failure_detector import FailureDetector
from participants.coordination.supervisor import Supervisor
from participants.coordination.units import torn
from participants.identity import EPOCH_HEADER
from participants.machines import deployment as dp
from tests.coordinator_world import World, a_world, dispatches, running
from tests.scenario_fleet import seen_by_job
from tests.whole_job import WholeJob, settle

# --- S64


class OneEpoch(Supervisor):
    """The fault: a coordinator has one epoch, however often it starts its servers."""

    async def _start(self, effect: dp.StartServers) -> list[object]:
        epoch, start = self.life.epoch, self.launcher.start
        self.launcher.start = lambda _epoch: start(epoch)  # type: ignore[method-assign, assignment]
        discover = self.discover
        self.discover = lambda urls, _epoch: discover(urls, epoch)
        try:
            return await super()._start(effect)
        finally:
            self.launcher.start, self.discover = start, discover  # type: ignore[method-assign]
            self.life.epoch = epoch


async def started_twice(job: WholeJob, kind: type[Supervisor]) -> tuple[str, Any]:
    """Two servers die after each other: what a late call of the first attempt 1 is answered, and the count."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator_module, "Supervisor", kind)
        async with job.coordinator() as coordinator, trio.open_nursery() as nursery:
            recovered = await coordinator.recover()
            nursery.start_soon(coordinator.run_batch, recovered.runnable(job.dispatches(3, "r1")))
            job.turnstile.allow("r1", 1)
            await settle()
            assert isinstance(await coordinator.checkpoint(), Published)
            for restarts, name in enumerate(("policy_model", "env"), 1):
                assert job.launcher is not None
                job.launcher.kill(name)
                with trio.fail_after(1000):
                    while len(coordinator.restarts) < restarts:  # noqa: ASYNC110 (in virtual time)
                        await trio.sleep(1)
            await settle()
            assert [each.next_attempt for restart in coordinator.restarts for each in restart.verdicts] == [1, 1]
            first = str(coordinator.restarts[0].epoch)
            url, client = job.network.url("tools") + "/ng-rollout/r1-a1/increment", job.network.client("late")
            late = await client.post(url, json={"by": 100}, headers={EPOCH_HEADER: first})
            count = await client.post(url, json={"by": 0})
            nursery.cancel_scope.cancel()
    return ("done" if late.is_success else late.json()["error"]["code"]), count.json()["value"]


def test_s64_one_epoch_two_starts() -> None:
    """S64: each start of the servers is an epoch of its own, and attempt 1 of the first is refused by the second.

    In one epoch both have attempt 1, and what the dead one left over is a turn of the living one. Covers: I96.
    """
    assert seen_by_job(started_twice, OneEpoch) == ("done", 101)
    assert seen_by_job(started_twice, Supervisor) == ("stale_epoch", 1)


# --- with small servers


def seen(scenario: Callable[..., Awaitable[Any]], *args: Any, **world: Any) -> Any:
    """What `scenario(world, ...)` saw, under a MockClock that jumps."""

    async def main() -> Any:
        async with a_world(**world) as made:
            return await scenario(made, *args)

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


# --- S65


async def believed(_detector: FailureDetector) -> bool:
    """The fault: who has answered lately is alive."""
    await trio.lowlevel.checkpoint()
    return True


async def tools_die(world: World, vouch: Callable[..., Any]) -> list[int]:
    """A server dies, and an environment of another make scores its rollout: the rewards that come to the trainer."""

    def scored(*_: Any) -> Any:
        world.script("env", "run", None)
        world.network.kill("tools")
        return JSONResponse({"reward": 0})

    world.script("env", "run", scored)
    trainer = world.trainer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FailureDetector, "vouch", vouch)
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            await job.run_batch(recovered.runnable(dispatches({"p1": 4})))
    return [each.body["reward"] for each in trainer.accepted]


def test_s65_the_dead_server_that_scored_0() -> None:
    """S65: before such an end counts, every server has to answer as the process that it was; else all start anew.

    On the word of the past, the death of a server is trained on as a reward of 0. Covers: I97.
    """
    assert seen(tools_die, believed) == [0]
    assert seen(tools_die, FailureDetector.vouch) == [4]


# --- S69


def each_by_itself(_found: Any) -> dict[str, str]:
    """The fault: what becomes of a rollout is a matter of its own parts."""
    return {}


async def shared(world: World, tear: Callable[..., Any]) -> dict[str, str]:
    """p1 and p2 share state, and p1 has used what cannot be exported: what becomes of both."""
    world.script("tools", "capabilities", lambda *_: {"sharing": "group"})
    new = [evolve(each, group="g1") for each in dispatches({"p1": 9, "p2": 9})]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("participants.coordination.recovery.torn", tear)
        async with running(world.coordinator(world.trainer()), new) as (job, _):
            await trio.sleep(1.5)
            assert isinstance(await job.checkpoint(20), Published)
    checkpoint = world.store().read(world.store().published()[-1])
    return {row.rollout_id: str(row.disposition) for row in checkpoint.registry}


def test_s69_the_torn_unit() -> None:
    """S69: of rollouts that share state all are continued or all start over.

    Each by itself, one starts over in the state in which the other one goes on. Covers: I86.
    """
    with_one_restart = partial(seen, restarts=["p1"])
    assert with_one_restart(shared, each_by_itself) == {"p1": "fresh", "p2": "continue"}
    assert with_one_restart(shared, torn) == {"p1": "fresh", "p2": "fresh"}
