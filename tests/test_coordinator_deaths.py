"""The coordinator dies, its servers live: in each phase of a checkpoint, and at each call that it makes in two lives.

Real servers of all kinds in memory, in virtual time. The dead coordinator sends nothing more; nobody takes its place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import trio
from attrs import define, field

from participants.coordination.coordinator import Coordinator, CoordinatorSettings, Published
from participants.identity import EPOCH_HEADER
from participants.machines.control import Phase
from participants.serving.testing import Call, Fault
from participants.settings import Settings
from statecore.journal import Journal
from statecore.seams import MemoryDisk
from tests.test_server_deaths import PHASES, InPhase
from tests.whole_job import NAMES, ROOT, WholeJob, run, settle

DEADLINE_S = 60.0
GRACE_S = Settings().lease_grace_seconds
SETTINGS = CoordinatorSettings(restore_timeout_s=DEADLINE_S)
EVERY_CALL = 200
"""More than any life here makes: its end is found by the death that does not come."""


@define(eq=False)
class Death:
    """The coordinator dies at its call `number`, or when a checkpoint enters `phase`; `at` says where that was.

    `arrives`: that last call still reaches its server.
    """

    number: int = 0
    arrives: bool = False
    phase: str = ""
    at: str = ""
    seen: int = field(default=0, init=False)
    scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    def strikes(self, call: Call) -> Fault | None:
        if call.source != "coordinator":
            return None
        if self.at or (self.phase == "aborting" and call.path.endswith("/commit")):
            return Fault(refuse=True)
        self.seen += 1
        if self.seen != self.number:
            return None
        self.die(f"{call.server} {call.path}")
        return None if self.arrives else Fault(lose_request=True)

    def die(self, at: str) -> None:
        self.at = at
        self.scope.cancel()


async def played(job: WholeJob, coordinator: Coordinator, turns: int) -> None:
    """One rollout ends, another one stands after so many turns; a checkpoint of both."""
    recovered = await coordinator.recover()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(coordinator.run_batch, recovered.runnable(rollouts(job)))
        job.turnstile.allow("ends", 1)
        job.turnstile.allow("goes-on", turns)
        await settle()
        outcome = await coordinator.checkpoint(DEADLINE_S)
        assert isinstance(outcome, Published), outcome.story()
        nursery.cancel_scope.cancel()


def rollouts(job: WholeJob) -> list[Any]:
    return [*job.dispatches(1, "ends"), *job.dispatches(9, "goes-on")]


@cache
def left_by_a_first_life() -> MemoryDisk:
    """A root with one checkpoint."""
    disk = MemoryDisk()

    async def test(job: WholeJob) -> None:
        job.disk = disk
        disk.mkdir(ROOT)
        async with job.coordinator(settings=SETTINGS) as coordinator:
            await played(job, coordinator, 1)

    run(test)
    return disk


def run_life(test: Callable[[WholeJob], Any], lives: int) -> None:
    """Runs `test(job)`, whose next life is number `lives`: the first one, or the second."""
    disk = copy.deepcopy(left_by_a_first_life()) if lives == 2 else None

    async def living(job: WholeJob) -> None:
        if disk is not None:
            job.disk, job.lives = disk, 1
        await test(job)

    run(living)


async def died(job: WholeJob, death: Death, *, lives: int) -> None:
    """This life has died at `death`, or has come to its end first."""
    seen = InPhase(phase=death.phase, then=lambda: death.die(death.phase))
    job.network.faults = death.strikes
    with death.scope:
        async with job.coordinator(settings=SETTINGS, journal=Journal(seen, job.clock)) as coordinator:
            await played(job, coordinator, lives)
            if not death.at:
                death.scope.cancel()
            await trio.sleep_forever()


async def accept_again(job: WholeJob, death: Death) -> dict[str, Phase]:
    """Deadline and grace after the death each server is as it was born, or takes work; returns the phases before."""
    before = {name: job.servers[name].participant.phase for name in NAMES}
    await trio.sleep(DEADLINE_S + GRACE_S + 1.0)
    for name, phase in before.items():
        server = job.servers[name]
        assert server.participant.phase is (Phase.BORN if phase is Phase.BORN else Phase.IDLE), (death.at, name)
        assert server.admission.is_open is (phase is not Phase.BORN), (death.at, name)
    if Phase.BORN not in before.values():
        await takes_a_rollout(job, death)
    return before


async def takes_a_rollout(job: WholeJob, death: Death) -> None:
    """A whole rollout, through all servers, ends with its reward."""
    job.turnstile.allow("new", 2)
    body = {"episode_id": {"rollout_id": "new", "attempt": 0}, "task": {"question": "new", "turns": 2}}
    headers = {EPOCH_HEADER: str(job.lives)}
    with trio.fail_after(10):
        reply = await job.network.client("test").post(job.network.url("env") + "/run", json=body, headers=headers)
    assert reply.status_code == 200 and reply.json()["reward"] == 3, (death.at, reply.text)


@pytest.mark.parametrize("phase", [*PHASES, "aborting"])
@pytest.mark.parametrize("lives", [1, 2], ids=["in its first life", "after a restore"])
def test_a_coordinator_that_dies_in_a_phase_leaves_no_server_closed(phase: str, lives: int) -> None:
    """Whatever the phase, all servers take whole rollouts again by deadline and grace. Covers: I21, I48."""

    async def test(job: WholeJob) -> None:
        death = Death(phase=phase)
        await died(job, death, lives=lives)
        assert death.at == phase
        before = await accept_again(job, death)
        closed = {"committing": Phase.PREPARED, "saving": Phase.COMMITTED, "validating": Phase.COMMITTED}
        closed |= {"aborting": Phase.PREPARED}
        if phase in closed:
            assert set(before.values()) == {closed[phase]}, "this death must leave something to open"
        in_force = phase in PHASES[PHASES.index("published") :]
        assert len(job.store().published()) == lives - (not in_force)

    run_life(test, lives)


@pytest.mark.parametrize("arrives", [False, True], ids=["before the call", "after it"])
@pytest.mark.parametrize("lives", [1, 2], ids=["in its first life", "after a restore"])
def test_a_coordinator_that_dies_at_any_call_leaves_no_server_closed_that_was_open(lives: int, arrives: bool) -> None:
    """Each call of a start, of a restore and of a checkpoint is once the last one; who was open takes work again.

    A process that no restore and no resume has reached stays as it was born: it has served nobody. Covers: I21.
    """
    left: set[Phase] = set()
    verbs: set[str] = set()
    for number in range(1, EVERY_CALL):
        death = Death(number, arrives)

        async def test(job: WholeJob, death: Death = death) -> None:
            await died(job, death, lives=lives)
            left.update((await accept_again(job, death)).values())

        run_life(test, lives)
        if not death.at:
            break
        verbs.add(death.at.rpartition("/")[2])
    else:
        pytest.fail("the life has more calls than expected")
    assert left >= {Phase.BORN, Phase.IDLE, Phase.PREPARED, Phase.COMMITTED}
    assert verbs >= {"capabilities", "resume", "prepare", "commit", "renew", "results", "run"}
    assert verbs >= ({"acknowledge"} if lives == 1 else {"retire", "restore"})
    assert lives == 1 or Phase.RESTORED in left
