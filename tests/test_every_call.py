"""One call of a coordinator is lost, answered in vain or made twice, whichever it is: the whole outcome is the same.

Real servers of all kinds in memory, in virtual time. An older life has left a checkpoint; the life that is disturbed is
restored from it, and takes two more, with all that is acknowledged, retired and forgotten behind them (S33). In another
one a server dies between the two, and all are started anew.
"""

from __future__ import annotations

import copy
import re
from functools import cache
from typing import Any

import pytest
import trio
from attrs import define, field, frozen

from participants.coordination.coordinator import Aborted, Coordinator, Published
from participants.files.checkpoint import Checkpoint
from participants.records.records import Disposition
from participants.serving.testing import Call, Fault
from statecore.seams import MemoryDisk
from statecore.wire import unstructure
from tests.whole_job import NAMES, WholeJob, run, settle

TURNS = {"short": 1, "middle": 3, "long": 4, "late": 1}
REWARDS = {"short": 1, "middle": 6, "long": 10, "late": 1}
DRAWN = re.compile(r"\b(?:call-)?[0-9a-f]{24,64}\b(?:\.[\w-]+)?")
"""Identities, positions and digests: drawn at random, or made of what is."""


@frozen
class Outcome:
    """All that a life comes to: what was answered, what is published, what the trainer has, what the servers keep."""

    recovered: tuple[tuple[str, Disposition, int | None], ...]
    checkpoints: tuple[Any, ...]
    published: dict[str, Any]
    accepted: dict[str, Any]
    lost: dict[str, str]
    deliveries: list[str]
    generated: list[tuple[str, int]]
    phases: dict[str, str]
    marks: dict[str, int]
    retained: int


Kind = tuple[str, str, str, str]
"""A call by its stage (the start, between checkpoints, in one, a restart), who makes it, its server and its verb."""


@define(eq=False)
class Struck:
    """`fault` strikes the first call of this kind; `seen` are all kinds that the coordinator made, or its servers."""

    kind: Kind | None = None
    fault: Fault | None = None
    by_servers: bool = False
    stage: str = "start"
    struck: int = 0
    seen: set[Kind] = field(factory=set)

    def __call__(self, call: Call) -> Fault | None:
        if (call.source != "coordinator") is not self.by_servers:
            return None
        kind = self.stage, call.source, call.server, call.path.rpartition("/")[2]
        self.seen.add(kind)
        if kind != self.kind or self.struck:
            return None
        self.struck += 1
        return self.fault


@cache
def older_life() -> MemoryDisk:
    """What the first life left: one result is saved, two rollouts are to be continued."""
    disk = MemoryDisk()

    async def test(job: WholeJob) -> None:
        job.disk = disk
        disk.mkdir("/job")
        async with job.coordinator() as coordinator, trio.open_nursery() as nursery:
            recovered = await coordinator.recover()
            nursery.start_soon(coordinator.run_batch, recovered.runnable(dispatches(job, "short", "middle", "long")))
            await allowed(job, short=1, middle=1, long=2)
            assert isinstance(await coordinator.checkpoint(), Published)
            nursery.cancel_scope.cancel()
            assert job.launcher is not None
            job.launcher.kill()

    run(test)
    return disk


async def disturbed(job: WholeJob, struck: Struck, *, death: bool) -> Outcome:
    """The life that goes on from there: a rollout of its own, a checkpoint, a death, all rollouts end, a checkpoint."""
    job.network.faults = struck
    checkpoints: list[Published | Aborted] = []
    lost: dict[str, str] = {}
    async with job.coordinator() as coordinator, trio.open_nursery() as nursery:
        recovered = await coordinator.recover()
        batch = recovered.runnable(dispatches(job, "late"))

        async def run_batch() -> None:
            lost.update((await coordinator.run_batch(batch)).lost)

        struck.stage = "run"
        nursery.start_soon(run_batch)
        await allowed(job, middle=3, long=3)
        struck.stage = "checkpoint"
        checkpoints.append(await coordinator.checkpoint())
        if death:
            struck.stage = "restart"
            await restarted(job, coordinator)
        struck.stage = "run"
        await allowed(job, long=4, late=1)
        struck.stage = "checkpoint"
        checkpoints.append(await coordinator.checkpoint())
        trainer, servers = job.trainer, {name: job.servers[name] for name in NAMES}
        assert trainer is not None
        return Outcome(
            recovered=tuple(
                (each.rollout_id, each.disposition, each.next_attempt)
                for verdicts in (recovered.verdicts, *(each.verdicts for each in coordinator.restarts))
                for each in verdicts
            ),
            checkpoints=tuple(map(told, checkpoints)),
            published={str(each): contents(job.store().read(each)) for each in job.store().published()},
            accepted=trainer.accepted,
            lost=lost,
            deliveries=sorted(trainer.deliveries),
            generated=sorted(job.turnstile.seen),
            phases={name: server.participant.phase.value for name, server in servers.items()},
            marks={name: job.marks(name) for name in NAMES},
            retained=len(servers["env"].report().retained),
        )


async def restarted(job: WholeJob, coordinator: Coordinator) -> None:
    """A server has died, and all of them are new."""
    assert job.launcher is not None
    job.launcher.kill("tools")
    with trio.fail_after(1000):
        while not coordinator.restarts:  # noqa: ASYNC110 (in virtual time)
            await trio.sleep(0.05)


def dispatches(job: WholeJob, *names: str) -> list[Any]:
    return [each for name in names for each in job.dispatches(TURNS[name], name)]


async def allowed(job: WholeJob, **turns: int) -> None:
    """These rollouts have taken so many turns, whatever was lost on the way."""
    for name, count in turns.items():
        job.turnstile.allow(name, count)
    await trio.sleep(5)
    await settle()


def told(outcome: Published | Aborted) -> Any:
    if isinstance(outcome, Aborted):
        return outcome.story()
    return outcome.checkpoint_id, dict(outcome.counts), outcome.unresumed, outcome.notes


def contents(checkpoint: Checkpoint) -> Any:
    """Registry, ledger and all records by rollout, with every identity and digest blotted out."""
    rows = [unstructure(row) for row in (*checkpoint.registry, *checkpoint.ledger)]
    records = [record for part in checkpoint.parts for record in part.records]
    return sorted(DRAWN.sub("*", repr(each)) for each in (*rows, *records))


def seen_with(struck: Struck, *, death: bool = False) -> Outcome:
    found: list[Outcome] = []
    disk = copy.deepcopy(older_life())

    async def test(job: WholeJob) -> None:
        job.disk, job.lives = disk, 1
        found.append(await disturbed(job, struck, death=death))

    run(test)
    return found[0]


FAULTS = ("request lost", "reply lost", "made twice")


def test_the_undisturbed_life_makes_every_call_there_is() -> None:
    """Otherwise the test below would leave some of them out: each verb, to each server that it is meant for."""
    undisturbed = Struck()
    outcome = seen_with(undisturbed)
    for stage, verbs in {
        "start": ("capabilities", "retire", "restore", "results", "resume"),
        "checkpoint": ("prepare", "commit", "renew", "resume", "retire", "forget"),
        "run": ("status",),
    }.items():
        assert undisturbed.seen >= {(stage, "coordinator", name, verb) for name in NAMES for verb in verbs}
    assert {(stage, verb) for stage, _, _, verb in undisturbed.seen} >= {
        ("run", "run"), ("checkpoint", "results"), ("checkpoint", "acknowledge"),
    }  # fmt: skip
    assert {name: body["reward"] for name, body in outcome.accepted.items()} == REWARDS
    assert outcome.phases == dict.fromkeys(NAMES, "idle")
    assert (outcome.retained, outcome.lost) == (0, {}) and len(outcome.published) == 3


@pytest.mark.parametrize(
    "fault",
    [Fault(lose_request=True), Fault(lose_reply=True), Fault(repeat_s=0.3)],
    ids=FAULTS,
)
def test_s33_the_whole_outcome_is_the_same_whichever_call_is_struck(fault: Fault) -> None:
    """Each kind of call once: verdicts, checkpoints to their records, results, turns, servers as if nothing had been.

    Covers: I15, I51, I57, I65, I68.
    """
    undisturbed = Struck()
    expected = seen_with(undisturbed)
    for kind in sorted(undisturbed.seen):
        struck = Struck(kind, fault)
        assert seen_with(struck) == expected, kind
        assert struck.struck == 1, kind


@pytest.mark.parametrize("fault", [Fault(lose_reply=True), Fault(repeat_s=0.3)], ids=FAULTS[1:])
def test_s33_the_whole_outcome_is_the_same_whichever_call_of_a_restart_is_struck(fault: Fault) -> None:
    """A server dies and all are started anew: one claim, one restore, the same verdicts and attempts, and what follows.

    Covers: I15, I51, I96.
    """
    undisturbed = Struck()
    expected = seen_with(undisturbed, death=True)
    verbs = ("capabilities", "retire", "restore", "results", "resume")
    kinds = sorted(kind for kind in undisturbed.seen if kind[0] == "restart" and kind[3] in verbs)
    assert {kind[2:] for kind in kinds} == {(name, verb) for name in NAMES for verb in verbs}
    assert (len(expected.accepted), len(expected.recovered), expected.lost) == (4, 7, {})
    for kind in kinds:
        struck = Struck(kind, fault)
        assert seen_with(struck, death=True) == expected, kind
        assert struck.struck == 1, kind


@pytest.mark.parametrize(
    ("fault", "may_lose"),
    [(Fault(lose_request=True), True), (Fault(lose_reply=True), True), (Fault(repeat_s=0.3), False)],
    ids=FAULTS,
)
def test_a_call_between_servers_that_is_struck_makes_no_wrong_result(fault: Fault, may_lose: bool) -> None:
    """A connection that breaks between two living servers may cost its rollout the result of this life, no other one.

    Whoever has none is named with the reason, and starts over after the checkpoint; what comes is as it should be.
    Covers: I65, I68, I97, S42.
    """
    undisturbed = Struck(by_servers=True)
    expected = seen_with(undisturbed)
    assert {kind[1:3] for kind in undisturbed.seen} == {
        ("env", "tools"), ("env", "simple_agent"), ("simple_agent", "policy_model"), ("simple_agent", "tools"),
    }  # fmt: skip
    lost = set()
    costly = set()
    for kind in sorted(undisturbed.seen):
        struck = Struck(kind, fault, by_servers=True)
        outcome = seen_with(struck)
        assert struck.struck == 1 and len(outcome.lost) <= 1, kind
        assert all("participant_lost" in why for why in outcome.lost.values()), kind
        assert outcome.accepted == {name: body for name, body in expected.accepted.items() if name not in outcome.lost}
        assert (outcome.recovered, outcome.phases) == (expected.recovered, expected.phases), kind
        assert outcome.published.keys() == expected.published.keys(), kind
        newest = outcome.published[max(outcome.published)]
        for name in outcome.lost:
            assert any(f"'rollout_id': '{name}'" in row and "'disposition': 'fresh'" in row for row in newest), kind
        lost |= set(outcome.lost)
        costly |= {kind[2:] for _ in outcome.lost}
    assert bool(lost) is may_lose
    assert ("tools", "increment") not in costly  # the session there keeps its replies: it is sent again
