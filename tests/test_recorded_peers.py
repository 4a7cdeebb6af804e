"""Our coordinator drives servers that answer as recorded: checkpoints, restores, and every recorded refusal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from participants.coordination.coordinator import Aborted, Coordinator, Published
from participants.coordination.deployment import DiscoveryFailed
from participants.coordination.outcomes import CoordinatorError
from participants.records.records import Disposition
from participants.serving.testing import InMemoryNetwork
from participants.settings import Seams
from statecore.journal import Journal
from statecore.seams import LoopClock, MemoryDisk, SeededEntropy
from tests.coordinator_world import WALL, World, abandoned, dispatches, running
from tests.recorded_peers import OUR_NAME, ROWS, RecordedDeployments, answers, as_it_was, verb_of

SERVERS = ("env", "policy", "agent", "tools")
REFUSALS = [row for row in ROWS if verb_of(row) and row["status"] != 200 and row["server"] != "judge"]


def refused(*verbs: str) -> pytest.MarkDecorator:
    """Every recorded refusal of these verbs."""
    rows = [row for row in REFUSALS if verb_of(row) in verbs]
    return pytest.mark.parametrize("row", rows, ids=[f"{row['seq']}-{verb_of(row)}-{told(row)}" for row in rows])


def told(row: dict[str, Any]) -> str:
    """What a reason or a problem must contain of that answer."""
    body = row["response_body"]
    return str(body["error"]["code"]) if isinstance(body, dict) and "error" in body else f"HTTP {row['status']}"


@asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    disk, clock = MemoryDisk(), LoopClock(WALL)
    async with InMemoryNetwork() as network, trio.open_nursery() as nursery:
        deployments = RecordedDeployments(network, clock, disk, nursery)
        yield World(network, deployments, Seams(clock, disk, SeededEntropy(7)), disk, Journal(None, clock))
        nursery.cancel_scope.cancel()


def script(world: World, row: dict[str, Any]) -> None:
    """The server of that row answers its verb with these words."""
    world.script(OUR_NAME[row["server"]], verb_of(row), lambda *_: as_it_was(row))


def all_open(world: World) -> bool:
    return all(world.deployments.fleet.servers[name].open for name in SERVERS)


async def a_checkpoint_and_the_end(world: World) -> None:
    """A life with two rollouts that dies after its checkpoint: one result, three turns of the other."""

    async def play(job: Coordinator) -> None:
        recovered = await job.recover()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job.run_batch, recovered.runnable(dispatches({"done": 1, "goes-on": 7})))
            await trio.sleep(2.5)
            outcome = await job.checkpoint(20)
            assert isinstance(outcome, Published), outcome.story()
            nursery.cancel_scope.cancel()

    await abandoned(world, world.coordinator(world.trainer()), play)
    del world.history.calls[:]


@pytest.mark.trio
async def test_two_lives_of_checkpoint_restore_and_checkpoint(autojump_clock: MockClock) -> None:
    """With nothing but the recorded fields: published, restored as N+1, no held turn again, retired and forgotten.

    Covers: I54, I57, I65, I68.
    """
    async with a_world() as world:
        await a_checkpoint_and_the_end(world)
        trainer = world.trainer()
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            assert {each.rollout_id: (each.disposition, each.next_attempt) for each in recovered.verdicts} == {
                "done": (Disposition.COMPLETED, None),
                "goes-on": (Disposition.CONTINUE, 1),
            }
            for name in SERVERS:
                assert world.history.verbs(name) == ["retire", "restore", "resume"]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(job.run_batch, recovered.runnable())
                await trio.sleep(1.5)
                first = await job.checkpoint(20)
            outcomes = [first, await job.checkpoint(20), await job.checkpoint(20)]
            assert [type(each) for each in outcomes] == [Published] * 3
            assert isinstance(first, Published) and (first.counts[Disposition.CONTINUE], first.untracked) == (1, 1)
            assert all_open(world)
        assert (trainer.loaded, trainer.ids) == (["done"], ["goes-on"])
        assert (world.count("done"), world.count("goes-on")) == (1, 7)
        assert world.history.bodies("tools", "forget")[-1]["rollout_ids"] == ["goes-on"]
        assert world.history.released == []


@pytest.mark.trio
async def test_their_words_have_no_field_that_was_not_recorded(autojump_clock: MockClock) -> None:
    """So that nothing above rests on what only our servers say."""
    async with a_world() as world:
        client = world.network.client("test")
        headers = {"authorization": "Bearer tok"}
        await world.deployments.start(1)
        for name in SERVERS:
            url = world.network.url(name) + "/ng-control/v1/"
            status = await client.get(url + "checkpoint/status", headers=headers)
            assert status.json().keys() == answers(name, "status").keys()
            body = {"checkpoint_id": "c1", "deadline_ts": WALL + 60}
            for verb in ("prepare", "renew", "resume"):
                said = await client.post(url + f"checkpoint/{verb}", json=body, headers=headers)
                assert said.json().keys() == answers(name, verb).keys(), verb
            assert not any(each.startswith("x-") for each in said.headers)
            for path in ("capabilities", "results"):
                assert (await client.get(url + path, headers=headers)).status_code == 404


@refused("prepare", "commit", "renew")
@pytest.mark.trio
async def test_a_recorded_refusal_before_publishing(autojump_clock: MockClock, row: dict[str, Any]) -> None:
    """The checkpoint aborts and says what the server said; all are open, nothing is published; the next one is.

    Covers: I20.
    """
    async with a_world() as world:
        async with running(world.coordinator(world.trainer()), dispatches({"p1": 6})) as (job, reports):
            await trio.sleep(1.5)
            script(world, row)
            outcome = await job.checkpoint(10)
            assert isinstance(outcome, Aborted)
            assert told(row) in outcome.reason and f"{OUR_NAME[row['server']]}: {verb_of(row)}" in outcome.reason
            assert not outcome.broken
            assert all_open(world)
            assert world.store().published() == ()
            world.script(OUR_NAME[row["server"]], verb_of(row), None)
            assert (await job.checkpoint(10)).published
        assert reports[0].delivered == 1


@refused("resume")
@pytest.mark.trio
async def test_a_recorded_refusal_of_resume(autojump_clock: MockClock, row: dict[str, Any]) -> None:
    """The checkpoint is in force, and who did not open is named."""
    async with a_world() as world, world.coordinator(world.trainer()) as job:
        await job.recover()
        script(world, row)
        outcome = await job.checkpoint(10)
        assert isinstance(outcome, Published)
        (problem,) = outcome.unresumed
        assert problem.startswith(f"{OUR_NAME[row['server']]}: resume") and told(row) in problem


@refused("restore")
@pytest.mark.trio
async def test_a_recorded_refusal_of_restore(autojump_clock: MockClock, row: dict[str, Any]) -> None:
    """N+1 is retired everywhere, all open, the rollout runs fresh as N+2 and its result comes. Covers: I51."""
    async with a_world() as world:
        await a_checkpoint_and_the_end(world)
        script(world, row)
        trainer = world.trainer()
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            assert told(row) in recovered.restore_failed
            verdicts = {each.rollout_id: (each.disposition, each.next_attempt) for each in recovered.verdicts}
            assert verdicts["goes-on"] == (Disposition.FRESH, 2)
            for name in SERVERS:
                assert world.history.bodies(name, "retire")[-1]["episode_ids"] == [
                    {"rollout_id": "goes-on", "attempt": 1}
                ]
            assert all_open(world)
            assert (await job.run_batch(recovered.runnable())).delivered == 1
        assert [each.attempt for each in trainer.accepted] == [2]


@refused("retire")
@pytest.mark.trio
async def test_a_recorded_refusal_of_retire(autojump_clock: MockClock, row: dict[str, Any]) -> None:
    """Old attempts that cannot be fenced stop the start, by name, and the servers are stopped. Covers: I6."""
    async with a_world() as world:
        await a_checkpoint_and_the_end(world)
        script(world, row)
        with pytest.raises(CoordinatorError, match="could not be fenced") as raised:
            async with world.coordinator(world.trainer()) as job:
                await job.recover()
        assert f"{OUR_NAME[row['server']]}: retire" in str(raised.value) and told(row) in str(raised.value)
        assert world.network.up == ()
        assert "restore" not in world.history.verbs()


@refused("status")
@pytest.mark.trio
async def test_a_recorded_refusal_of_status(autojump_clock: MockClock, row: dict[str, Any]) -> None:
    """A server that takes no token of ours is named, and nothing starts."""
    async with a_world() as world:
        script(world, row)
        with pytest.raises(DiscoveryFailed, match=r"env.*401 unauthorized"):
            async with world.coordinator(world.trainer()) as job:
                await job.recover()
        assert world.network.up == ()


RUN_REFUSALS = [row for row in ROWS if row.get("path") == "/run" and row["status"] != 200]


@pytest.mark.parametrize("row", RUN_REFUSALS, ids=[f"{row['seq']}-{told(row)}" for row in RUN_REFUSALS])
@pytest.mark.trio
async def test_a_recorded_refusal_of_run(autojump_clock: MockClock, row: dict[str, Any]) -> None:
    """Turned away is sent again under the same attempt; any other refusal is the end, and never a result.

    Covers: I3, I74.
    """
    async with a_world() as world:
        answered: list[int] = []

        def once(*_: Any) -> Any:
            answered.append(row["seq"])
            return as_it_was(row) if len(answered) == 1 else None

        world.script("env", "run", once)
        trainer = world.trainer()
        async with world.coordinator(trainer) as job:
            recovered = await job.recover()
            report = await job.run_batch(recovered.runnable(dispatches({"p1": 1})))
        if told(row) == "admission_closed":
            assert [each.attempt for each in trainer.accepted] == [0]
        else:
            assert (trainer.accepted, len(answered)) == ([], 1)
            assert told(row) in report.lost["p1"]


def test_every_recorded_refusal_is_driven() -> None:
    """No verb of the recording is left out above."""
    assert {verb_of(row) for row in REFUSALS} == {
        "status", "prepare", "commit", "renew", "resume", "restore", "retire",
    }  # fmt: skip
    assert len(REFUSALS) == 42
    assert [row["seq"] for row in RUN_REFUSALS] == [46, 140, 145, 152]
