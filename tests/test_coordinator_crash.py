"""One fault at every single call of a job with two checkpoints: lost, repeated, late, or everything dies there.

The job's calls are numbered, and the whole job runs once for each number (S33; protocol.md sections 5 to 9).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, field

from participants.coordination.coordinator import Aborted, Coordinator, Published
from participants.files.store import Checkpoint
from participants.records.records import Disposition
from participants.serving.testing import Call, Fault
from tests.coordinator_world import World, a_world, dispatches

TURNS = {"p1": 1, "p2": 5, "p3": 7}
EVERY_CALL = 200
"""More than any job here makes: its end is found by the fault that no longer strikes."""


@define(eq=False)
class AtCall:
    """`fault` strikes the call with this number; `struck` says which one it was."""

    number: int
    fault: Fault | None = None
    then: Any = None
    struck: str = ""
    seen: int = field(default=0, init=False)

    def __call__(self, call: Call) -> Fault | None:
        self.seen += 1
        if self.seen != self.number:
            return None
        self.struck = f"{call.server} {call.path}"
        if self.then is not None:
            self.then()
        return self.fault


async def the_job(job: Coordinator, outcomes: list[Published | Aborted]) -> None:
    """Three rollouts, a checkpoint in their middle and one near their end."""
    recovered = await job.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(job.run_batch, recovered.runnable(dispatches(TURNS)))
        for _ in range(2):
            await trio.sleep(2.5)
            outcomes.append(await job.checkpoint(30))


def in_virtual_time(test: Any) -> None:
    async def main() -> None:
        async with a_world() as world:
            await test(world)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(
    "fault",
    [
        Fault(lose_request=True),
        Fault(lose_reply=True),
        Fault(repeat_s=0.3),
        Fault(repeat_s=3.0),
        Fault(request_s=0.7),
    ],
    ids=["request lost", "reply lost", "twice", "again much later", "late"],
)
def test_s33_one_fault_at_every_call(fault: Fault) -> None:
    """The same outcome whichever call it strikes: every result once, every turn once, both checkpoints there (S33).

    Covers: I10, I15, I68.
    """
    for number in range(1, EVERY_CALL):
        struck = AtCall(number, fault)

        async def test(world: World, struck: AtCall = struck) -> None:
            world.network.faults = struck
            trainer = world.trainer()
            outcomes: list[Published | Aborted] = []
            async with world.coordinator(trainer) as job:
                await the_job(job, outcomes)
            assert [type(each) for each in outcomes] == [Published, Published], (struck.struck, outcomes[-1].story())
            assert trainer.ids == sorted(TURNS), struck.struck
            assert Counter(each for each, _ in world.history.played) == Counter(TURNS), struck.struck

        in_virtual_time(test)
        if not struck.struck:
            break
    else:
        pytest.fail("the job has more calls than expected")
    assert number > 30


def test_everything_dies_at_every_call() -> None:
    """Servers killed and coordinator abandoned at each call in turn; a successor with only the files finishes.

    Every rollout has one result in the trainer's state, and no turn that the checkpoint in force held is played again.
    Covers: I57, I61, I65, I68, I87.
    """
    in_force: Counter[str] = Counter()
    for number in range(1, EVERY_CALL):
        struck = AtCall(number)

        async def test(world: World, struck: AtCall = struck) -> None:
            held = await crashed(world, struck)
            in_force[held.manifest.checkpoint_id if held is not None else "none"] += 1
            trainer = world.trainer()
            async with world.coordinator(trainer) as job:
                recovered = await job.recover()
                assert recovered.checkpoint_id == (held.manifest.checkpoint_id if held is not None else None)
                await job.run_batch(recovered.runnable(dispatches(TURNS)))
            assert sorted([*trainer.loaded, *trainer.ids]) == sorted(TURNS), struck.struck
            times = Counter(world.history.played)
            for rollout_id, turns in held_turns(held).items():
                for turn in range(1, turns + 1):
                    assert times[rollout_id, turn] == 1, (struck.struck, rollout_id, turn)

        in_virtual_time(test)
        if not struck.struck:
            break
    else:
        pytest.fail("the job has more calls than expected")
    assert set(in_force) == {"none", "ck-000001-000002", "ck-000001-000003"}


def test_a_successor_dies_at_every_call_of_its_restore() -> None:
    """The second life dies at each call of its start and a third one finishes: nothing is lost, doubled or held twice.

    Covers: I51, I54, I61, I96.
    """
    for number in range(1, EVERY_CALL):
        struck = AtCall(number)

        async def test(world: World, struck: AtCall = struck) -> None:
            held = await crashed(world, AtCall(60))
            assert held is not None
            await crashed(world, struck)
            trainer = world.trainer()
            async with world.coordinator(trainer) as job:
                recovered = await job.recover()
                await job.run_batch(recovered.runnable(dispatches(TURNS)))
            assert sorted([*trainer.loaded, *trainer.ids]) == sorted(TURNS), struck.struck
            times = Counter(world.history.played)
            for rollout_id, turns in held_turns(held).items():
                for turn in range(1, turns + 1):
                    assert times[rollout_id, turn] == 1, (struck.struck, rollout_id, turn)

        in_virtual_time(test)
        if struck.struck.endswith("prepare"):
            break
    else:
        pytest.fail("the second life never got to a checkpoint")
    assert number > 16


async def crashed(world: World, struck: AtCall) -> Checkpoint | None:
    """The job until its end or its death; returns the checkpoint that is then in force."""
    with trio.CancelScope() as scope:

        def die() -> None:
            scope.cancel()
            world.deployments.kill()

        struck.then = die
        world.network.faults = struck
        async with world.coordinator(world.trainer()) as job:
            await the_job(job, [])
    world.network.faults = None
    published = world.store().published()
    return world.store().read(published[-1]) if published else None


def held_turns(checkpoint: Checkpoint | None) -> dict[str, int]:
    """How many turns of each rollout a checkpoint holds: all of a completed one, those of a continued one's session."""
    if checkpoint is None:
        return {}
    (tools,) = checkpoint.of_kind("resources")
    turns = {each["session_id"]: each["state"]["data"] for each in tools.records}
    held = {}
    for row in checkpoint.registry:
        if row.disposition is Disposition.COMPLETED:
            held[row.rollout_id] = TURNS[row.rollout_id]
        elif row.disposition is Disposition.CONTINUE:
            held[row.rollout_id] = turns[row.rollout_id]
    return held
