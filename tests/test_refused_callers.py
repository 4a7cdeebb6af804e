"""Who was refused by a closed server: when it may stand, when it asks again, and how it counts its sendings (S61)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from participants.coordination.agreement import agree, gather
from participants.identity import OPERATION_HEADER, REFUSED_HEADER, TRY_HEADER, EpisodeId
from participants.servers.agent import Agent
from participants.servers.environment import Environment
from participants.servers.peers import Peer, is_final
from statecore.wire import digest
from tests.scenario_fleet import Callers, commit, parts, run_body
from tests.served_kinds import Fleet, run, settle
from tests.small_job import counter_resources

Play = Callable[[Peer, Callable[[], Awaitable[bool]]], Awaitable[Any]]


class Job:
    """An agent that plays `play(tools, boundary)`, and tools with room for one held call."""

    def __init__(self, fleet: Fleet, nursery: trio.Nursery) -> None:
        self.fleet = fleet
        self.callers = Callers(fleet, nursery)

    async def start(self, play: Play) -> None:
        config = self.fleet.config("tools", max_held=1)
        await self.fleet.start("tools", counter_resources(config, self.fleet.seams("tools")))
        transport = self.fleet.network.transport("simple_agent")
        agent = Agent("simple_agent", config, seams=self.fleet.seams("agent"), transport=transport)

        async def loop(request: Request) -> Response:
            async with agent.session(request.scope, task=await request.json()) as session:
                tools = session.client("tools")
                await tools.post("/seed_session")

                async def boundary() -> bool:
                    return await session.boundary({})

                await boundary()
                return session.finish(await play(tools, boundary))

        await self.fleet.start("simple_agent", agent.wrap(Starlette(routes=[Route("/run", loop, methods=["POST"])])))

    async def close_tools(self) -> None:
        """The tools are closed, and hold all that they can."""
        assert (await self.phase("tools", "prepare")) == "prepared"
        self.callers.post("held", "tools", "/ng-rollout/other/seed_session")
        await settle()

    async def phase(self, server: str, verb: str, within_s: float = 5) -> str:
        return str((await self.fleet.control(server, verb, within_s=within_s)).json()["phase"])

    @property
    def result(self) -> Any:
        reply = self.callers.replies.get("run")
        return None if reply is None else reply.json()


def with_job(test: Callable[[Job], Awaitable[None]]) -> None:
    async def main(fleet: Fleet) -> None:
        async with trio.open_nursery() as nursery:
            await test(Job(fleet, nursery))

    run(main)


def increments(replies: list[Any], tools: Peer) -> Callable[[int], Awaitable[None]]:
    async def increment(by: int) -> None:
        replies.append((await tools.post("/increment", {"by": by})).body["value"])

    return increment


def adds_five(go_on: trio.Event) -> Callable[[Peer, Callable[[], Awaitable[bool]]], Awaitable[Any]]:
    """A loop that waits to be told, adds 5, and comes to a boundary."""

    async def play(tools: Peer, boundary: Callable[[], Awaitable[bool]]) -> Any:
        said: list[int] = []
        await go_on.wait()
        await increments(said, tools)(5)
        await boundary()
        return said

    return play


def test_an_agent_that_was_refused_at_its_boundary_stands() -> None:
    """Nothing of its turn was applied, so the checkpoint holds both at one position; then the call is sent again, and
    applied once. Covers: I35, I92, S61.
    """
    go_on = trio.Event()

    async def test(job: Job) -> None:
        await job.start(adds_five(go_on))
        job.callers.run()
        await settle()
        await job.close_tools()
        go_on.set()
        await settle()
        assert await job.phase("simple_agent", "prepare") == "prepared"
        await commit(job.fleet, "ck", "tools", "simple_agent")
        found = parts(job.fleet, "ck", [("agent", "simple_agent"), ("resources", "tools")])
        agreed = agree(gather(found)[EpisodeId("r1")], digest(run_body()["task"]))
        assert agreed.agrees, agreed.reason
        assert await job.phase("simple_agent", "resume") == "idle"
        with trio.move_on_after(30):
            await trio.sleep_forever()
        assert job.result is None, "the tools are closed"
        assert await job.phase("tools", "resume") == "idle"
        await trio.sleep(30)
        assert job.result == [5]

    with_job(test)


def test_an_agent_that_was_refused_behind_its_boundary_moves_on() -> None:
    """A call of its turn was applied, so it does not stand where its boundary does: it asks on, also while it is
    closed itself, and parks at the next boundary. Covers: I35, I92, S61.
    """
    go_on = trio.Event()

    async def play(tools: Peer, boundary: Callable[[], Awaitable[bool]]) -> Any:
        said: list[int] = []
        increment = increments(said, tools)
        await increment(1)
        await go_on.wait()
        await increment(2)
        await boundary()
        return said

    async def test(job: Job) -> None:
        await job.start(play)
        job.callers.run()
        await settle()
        await job.close_tools()
        go_on.set()
        await settle()
        assert await job.phase("simple_agent", "prepare") == "preparing"
        assert await job.phase("tools", "resume") == "idle"
        assert await job.phase("simple_agent", "prepare", within_s=50) == "prepared"
        assert job.result is None
        assert await job.phase("simple_agent", "resume") == "idle"
        await settle()
        assert job.result == [1, 3]

    with_job(test)


@pytest.mark.parametrize("held_first", [False, True])
def test_of_two_calls_at_once_one_is_refused(*, held_first: bool) -> None:
    """While the other is held it may be applied yet, and once it was the agent is behind its boundary. Covers: I35."""
    go_on = trio.Event()

    async def play(tools: Peer, boundary: Callable[[], Awaitable[bool]]) -> Any:
        said: list[int] = []
        increment = increments(said, tools)
        await go_on.wait()
        async with trio.open_nursery() as nursery:
            for by in (1, 2):
                nursery.start_soon(increment, by)
        await boundary()
        return sorted(said)[-1]

    async def test(job: Job) -> None:
        await job.start(play)
        job.callers.run()
        await settle()
        assert await job.phase("tools", "prepare") == "prepared"
        if not held_first:
            job.callers.post("held", "tools", "/ng-rollout/other/seed_session")
            await settle()
        go_on.set()
        await settle()
        expected = "preparing" if held_first else "prepared"
        assert await job.phase("simple_agent", "prepare") == expected
        assert await job.phase("tools", "resume") == "idle"
        await settle()
        assert await job.phase("simple_agent", "prepare", within_s=50) == "prepared"
        assert await job.phase("simple_agent", "resume") == "idle"
        await trio.sleep(30)
        assert job.result == 3

    with_job(test)


@pytest.mark.parametrize("replayable", [False, True])
def test_an_environment_whose_step_was_refused(*, replayable: bool) -> None:
    """A waiting step keeps its own server waiting, so it asks on until the tools open, and the episode parks behind
    it. A replayable one is quiet, and asks again when its own server is open. Covers: I24, I38.
    """
    go_on = trio.Event()

    async def test(fleet: Fleet) -> None:
        config = fleet.config("tools", max_held=1)
        await fleet.start("tools", counter_resources(config, fleet.seams("tools")))
        env = Environment("env", config, seams=fleet.seams("env"), transport=fleet.network.transport("env"))

        async def play(request: Request) -> Response:
            async with env.episode(request.scope, task=await request.json()) as episode:
                counter = await episode.seed("tools")
                await go_on.wait()
                await episode.wait("add", counter.call("/increment", {"by": 7}, replayable=replayable))
                return episode.finish(await episode.wait("verify", counter.verify()))

        await fleet.start("env", env.wrap(Starlette(routes=[Route("/run", play, methods=["POST"])])))

        async def phase(server: str, verb: str, within_s: float = 5) -> str:
            return str((await fleet.control(server, verb, within_s=within_s)).json()["phase"])

        async with trio.open_nursery() as nursery:
            callers = Callers(fleet, nursery)
            callers.run("env")
            await settle()
            assert await phase("tools", "prepare") == "prepared"
            callers.post("held", "tools", "/ng-rollout/other/seed_session")
            await settle()
            go_on.set()
            await settle()
            assert await phase("env", "prepare") == ("prepared" if replayable else "preparing")
            await trio.sleep(5)  # a sending that had left when the environment closed is refused as well
            assert await phase("tools", "resume") == "idle"
            assert await phase("env", "prepare", within_s=50) == "prepared"
            await trio.sleep(30)
            looked = await fleet.post("tools", "/ng-rollout/r1/increment", {"by": 0})
            assert looked.json() == {"value": 0 if replayable else 7}
            assert await phase("env", "resume") == "idle"
        assert callers.replies["run"].json() == {"reward": 7}

    run(test)


class Counted(httpx.AsyncBaseTransport):
    """A peer that cannot be connected to, is full, and then answers; it notes what it was sent."""

    def __init__(self, *headers: dict[str, str]) -> None:
        self.sent: list[tuple[str | None, str | None]] = []
        self.refusals = list(headers)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.sent.append((request.headers.get(OPERATION_HEADER), request.headers.get(TRY_HEADER)))
        if len(self.sent) == 1:
            raise httpx.ConnectError("nobody is there yet")
        if self.refusals:
            error = {"error": {"code": "too_many_held", "detail": "-"}}
            return httpx.Response(503, json=error, headers=self.refusals.pop())
        return httpx.Response(200, json={})


@pytest.mark.parametrize("path", ["/increment", "/v1/chat/completions"])
def test_each_sending_of_a_call_has_the_next_number(path: str) -> None:
    """Under one operation id, also where nobody was there to hear; a generation changes nothing that stands, and has
    neither. Covers: I92.
    """

    async def test(fleet: Fleet) -> None:
        transport = Counted({}, {REFUSED_HEADER: "2"})
        config = fleet.config("tools")
        agent = Agent("simple_agent", config, seams=fleet.seams("agent"), transport=transport)

        async def loop(request: Request) -> Response:
            async with agent.session(request.scope, task=await request.json()) as session:
                for _ in range(2):
                    await session.client("tools").post(path)
                return session.finish({})

        await fleet.start("simple_agent", agent.wrap(Starlette(routes=[Route("/run", loop, methods=["POST"])])))
        await fleet.post("simple_agent", "/run", run_body())
        numbers = [tried for _, tried in transport.sent]
        operations = [operation for operation, _ in transport.sent]
        if path == "/increment":
            assert numbers == ["1", "2", "3", "4", "1"]
            assert len(set(operations[:4])) == 1 and len(set(operations)) == 2
        else:
            assert set(transport.sent) == {(None, None)}

    run(test)


@pytest.mark.parametrize(
    ("header", "tried", "final"),
    [("2", 2, True), ("3", 2, True), ("1", 2, False), ("0", 1, False), ("many", 1, False), (None, 1, False)],
)
def test_a_refusal_that_is_final(header: str | None, tried: int, *, final: bool) -> None:
    """Only a number of a sending that is not below the last one says so; a peer that gives none keeps nothing."""
    assert is_final({} if header is None else {REFUSED_HEADER: header}, tried) is final
