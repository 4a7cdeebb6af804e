"""The whole job with places at which a rollout can take for ever: in the agent, in a tool, in the environment."""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define, evolve, field

from participants.coordination.coordinator import Coordinator, Recovered
from participants.coordination.trainer import Dispatch
from participants.servers.resources import Change, Resources
from tests import whole_job
from tests.small_job import Counter, counter_resources, counting_agent, counting_environment
from tests.whole_job import WholeJob

TURNS = 4
REWARD = sum(range(1, TURNS + 1))


@define(eq=False)
class Delays:
    """Places where rollouts stop: `stop(place, rollout, after=n)` lets it come through n times, `go` lets it go on.

    `stubborn`: who stops there cannot be cancelled.
    """

    limits: dict[tuple[str, str], int] = field(factory=dict)
    stubborn: bool = False
    passed: Tally[tuple[str, str]] = field(factory=Tally)
    moved: trio.Event = field(factory=trio.Event)

    def stop(self, place: str, rollout: str, *, after: int = 0) -> None:
        self.limits[place, rollout] = after

    def go(self) -> None:
        self.limits.clear()
        self.moved.set()
        self.moved = trio.Event()

    def at(self, place: str) -> Callable[[str], Awaitable[None]]:
        async def come(rollout: str) -> None:
            while self.passed[place, rollout] >= self.limits.get((place, rollout), math.inf):
                with trio.CancelScope(shield=self.stubborn):
                    await self.moved.wait()
            self.passed[place, rollout] += 1

        return come


def slow_job(job: WholeJob, delays: Delays, **capabilities: Any) -> None:
    """The servers of `job` are slow where `delays` say so; its tools say `capabilities` of themselves as well."""

    class SlowTools(Resources[Counter]):
        @asynccontextmanager
        async def mutate(self, scope: Any) -> AsyncIterator[Change[Counter]]:
            async with super().mutate(scope) as change:
                episode = change.session.episode
                assert episode is not None
                await delays.at("tools")(episode.rollout_id)
                yield change

        def capabilities(self) -> dict[str, Any]:
            return super().capabilities() | capabilities

    job.makers |= {
        "tools": lambda *given: counter_resources(*given, kind=SlowTools),
        "simple_agent": lambda *given: counting_agent(*given, before=delays.at("agent")),
        "own_agent": lambda *given: counting_agent(*given, name="own_agent", seeds=True, before=delays.at("own")),
        "env": lambda *given: counting_environment(*given, before=delays.at("env")),
    }


@define(eq=False)
class Running:
    """A coordinator whose batch runs; `reports` has what came of it."""

    coordinator: Coordinator
    recovered: Recovered
    reports: list[Any]


@asynccontextmanager
async def running(job: WholeJob, new: list[Dispatch], **changes: Any) -> AsyncIterator[Running]:
    """A new life in which everything runs that waits; left when the batch has ended."""
    async with job.coordinator(**changes) as coordinator:
        recovered = await coordinator.recover()
        reports: list[Any] = []
        async with trio.open_nursery() as nursery:
            batch = recovered.runnable(new)

            async def run() -> None:
                reports.append(await coordinator.run_batch(batch))

            nursery.start_soon(run)
            await whole_job.settle()
            yield Running(coordinator, recovered, reports)


def grouped(dispatches: list[Dispatch], **groups: str) -> list[Dispatch]:
    """The dispatches, each in its group."""
    return [evolve(each, group=groups[each.rollout_id]) for each in dispatches]


async def crash(job: WholeJob, body: Callable[[Running], Awaitable[None]], new: list[Dispatch], **changes: Any) -> None:
    """`body` runs in a life whose coordinator and servers are killed behind it."""
    with trio.CancelScope() as life:
        async with running(job, new, **changes) as run:
            await body(run)
            assert job.launcher is not None
            job.launcher.kill(*job.launcher.up)
            life.cancel()
