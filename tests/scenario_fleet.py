"""What the scenario tests share: a scenario is a function of the piece under test and returns what was seen.

Each test runs its scenario twice: with a double into which exactly the scenario's fault was put back, and with the
project's own piece. Nothing else differs between the two runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Concatenate, ParamSpec, TypeVar

import httpx
import trio
from attrs import define, field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from participants.files.snapshots import read_part
from participants.identity import EpisodeId
from participants.net.http import ASGIApp
from participants.records.records import Part
from participants.servers.policy_model import PolicyModel
from tests import served_kinds, whole_job
from tests.served_kinds import Fleet
from tests.small_job import ROOT, counter_resources, counting_agent, counting_environment
from tests.whole_job import Turnstile, WholeJob

P = ParamSpec("P")
T = TypeVar("T")

R1 = "/ng-rollout/r1"


def seen(scenario: Callable[Concatenate[Fleet, P], Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
    """What `scenario(fleet, ...)` saw, under a MockClock that jumps."""
    found: list[T] = []

    async def test(fleet: Fleet) -> None:
        found.append(await scenario(fleet, *args, **options))

    served_kinds.run(test)
    return found[0]


def seen_by_job(scenario: Callable[Concatenate[WholeJob, P], Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
    """What `scenario(job, ...)` saw: the whole job, with the real coordinator."""
    found: list[T] = []

    async def test(job: WholeJob) -> None:
        found.append(await scenario(job, *args, **options))

    whole_job.run(test)
    return found[0]


@define(eq=False)
class Callers:
    """Data calls under way; `replies` by the name that each call was given."""

    fleet: Fleet
    nursery: trio.Nursery
    replies: dict[str, httpx.Response] = field(factory=dict)

    def post(self, name: str, server: str, path: str, body: Any = None, **options: Any) -> None:
        self.nursery.start_soon(self._post, name, server, path, body, options)

    def run(self, server: str = "simple_agent", attempt: int = 0, *, turns: int = 3) -> None:
        """`/run` of r1; its reply is called `run`."""
        self.post("run", server, "/run", run_body(attempt, turns))

    async def _post(self, name: str, server: str, path: str, body: Any, options: dict[str, Any]) -> None:
        self.replies[name] = await self.fleet.post(server, path, body, **options)


def run_body(attempt: int = 0, turns: int = 3) -> dict[str, Any]:
    """The body of r1's `/run`."""
    return {"episode_id": {"rollout_id": "r1", "attempt": attempt}, "task": {"question": "r1", "turns": turns}}


def scope(attempt: int = 0) -> list[dict[str, Any]]:
    return [{"rollout_id": "r1", "attempt": attempt}]


# --- servers


async def start(fleet: Fleet, turnstile: Turnstile, *names: str, **kinds: Callable[..., ASGIApp]) -> None:
    """The servers named are up, fresh; those of `kinds` (by name) are made by the function given.

    The policy model is one with a control plane if it is named, and a plain one otherwise.
    """
    makers: dict[str, Callable[..., ASGIApp]] = {
        "tools": counter_resources,
        "simple_agent": counting_agent,
        "env": counting_environment,
        **kinds,
    }
    config = fleet.config("policy_model", "tools", "simple_agent", "env")
    if "policy_model" in names:
        model = PolicyModel("policy_model", config, turnstile.generate, seams=fleet.seams("policy_model"))
        await fleet.start("policy_model", model.app())
    else:
        await fleet.start("policy_model", plain_policy(turnstile))
    for name in names:
        if name in makers:
            await fleet.start(name, makers[name](config, fleet.seams(name), fleet.network.transport(name)))


def plain_policy(turnstile: Turnstile) -> ASGIApp:
    """The turnstile's generations without any control plane."""

    async def complete(request: Request) -> Response:
        return JSONResponse(await turnstile.generate(request.url.path, await request.json()))

    return Starlette(routes=[Route("/ng-rollout/{key}/v1/chat/completions", complete, methods=["POST"])])


def crash(fleet: Fleet, nursery: trio.Nursery) -> None:
    """As kill -9 to all servers and to the callers in `nursery`."""
    nursery.cancel_scope.cancel()
    for name in fleet.network.up:
        fleet.network.kill(name)


# --- checkpoints that no coordinator drives


async def done(reply: Awaitable[httpx.Response]) -> dict[str, Any]:
    """The body of a control call that succeeded."""
    came = await reply
    assert came.status_code == 200, came.text
    return dict(came.json())


async def commit(fleet: Fleet, where: str, *servers: str, attempt: int = 0, checkpoint_id: str = "c1") -> None:
    """Every server is prepared, in the order given, and has written its part of r1."""
    for each in servers:
        assert (await done(fleet.control(each, "prepare", checkpoint_id)))["phase"] == "prepared"
    for each in servers:
        body: Any = {"checkpoint_dir": str(ROOT / where), "episode_ids": scope(attempt)}
        await done(fleet.control(each, "commit", checkpoint_id, **body))


async def restore(fleet: Fleet, where: str, *servers: str, attempt: int = 0) -> None:
    """Every server has installed its part of r1 and is open."""
    for each in servers:
        body: Any = {"checkpoint_dir": str(ROOT / where), "episode_ids": scope(attempt)}
        restored = await done(fleet.control(each, "restore", "rs", **body))
        assert restored["restored"] == [EpisodeId("r1", attempt + 1).key], (each, restored)
    for each in servers:
        await done(fleet.control(each, "resume", "rs"))


def parts(fleet: Fleet, where: str, servers: Iterable[tuple[str, str]]) -> list[Part]:
    """The parts that were written there, by (kind, name)."""
    return [read_part(fleet.disk, ROOT / where, kind=kind, instance=name) for kind, name in servers]
