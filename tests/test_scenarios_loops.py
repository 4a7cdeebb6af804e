"""S8, S17: whose a loop is, and which loop counts. First the fault, then its absence."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import trio
from attrs import evolve

from participants.coordination.coordinator import Published
from participants.identity import EpisodeId
from participants.records.records import Disposition
from participants.servers.agent import Agent
from participants.servers.agent_session import Session, SessionError
from participants.servers.part import Json
from statecore.seams import MemoryDisk
from tests.scenario_fleet import seen_by_job
from tests.small_job import counting_agent, seams, settings
from tests.test_agent_time import begun
from tests.whole_job import WholeJob, settle

# --- S8


class Ownerless(Agent):
    """The fault: a record of a session does not say that the agent's own `/run` drives its episode."""

    def export(self, scope: frozenset[EpisodeId] | None) -> Iterable[Json]:
        for record in super().export(scope):
            yield record | {"episode": None}

    def committed(self, records: Any) -> Json:
        return {"own_episodes": []}


async def own_run(job: WholeJob, kind: type[Agent]) -> tuple[str, ...]:
    """A rollout goes to the agent itself, and no environment knows of it: what a checkpoint says of it."""
    job.makers["simple_agent"] = partial(counting_agent, kind=kind, seeds=True)
    async with job.coordinator() as coordinator, trio.open_nursery() as nursery:
        recovered = await coordinator.recover()
        new = [evolve(each, target="simple_agent") for each in job.dispatches(3, "r1")]
        nursery.start_soon(coordinator.run_batch, recovered.runnable(new))
        job.turnstile.allow("r1", 1)
        await settle()
        outcome = await coordinator.checkpoint(60)
        assert isinstance(outcome, Published), outcome.story()
        nursery.cancel_scope.cancel()
    return tuple(str(each) for each in Disposition if outcome.counts[each])


def test_s08_ownerless_sessions() -> None:
    """S8: the agent's record says that its own `/run` drives the episode, and so it can be continued.

    Without an owner the session is in the checkpoint, and nothing that could go on with it. Covers: I55.
    """
    assert seen_by_job(own_run, Ownerless) == ("fresh",)
    assert seen_by_job(own_run, Agent) == ("continue",)


# --- S17


class Unnumbered(Session):
    """The fault: a loop is known by its attempt, and every loop of an attempt is the same."""

    async def boundary(self, state: Any, **more: Any) -> bool:
        assert self._live is not None
        self._generation = self._live.generation
        return await super().boundary(state, **more)


async def replaced(kind: type[Session]) -> Any:
    """A loop goes on after it was replaced by another one of its attempt: whose boundary is the last one."""
    agent = Agent("agent", settings(), seams=seams(MemoryDisk(), "agent"))
    live, _ = begun(agent)
    loops = [kind(agent, live, {}, max_steps=None, state=None, replayed=False)]
    await loops[0].boundary("older")
    live.generation += 1
    loops.append(kind(agent, live, {}, max_steps=None, state=None, replayed=False))
    await loops[1].boundary("newer")
    try:
        await loops[0].boundary("older again")
    except SessionError as error:
        assert "was replaced by a newer one" in str(error)
    assert live.boundary is not None
    return live.boundary.value()["state"]


def test_s17_zombie_loop() -> None:
    """S17: the loops of an attempt are numbered, and an older one can write no boundary.

    Where all of them are the same, what goes on after a crash is the state of a loop that was given up. Covers: I9.
    """
    assert trio.run(replaced, Unnumbered) == "older again"
    assert trio.run(replaced, Session) == "newer"
