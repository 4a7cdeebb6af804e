"""An agent whose loop waits for several model replies at once, as one that samples does."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from participants.identity import MODEL_CALL_HEADER, PARENT_CALL_HEADER
from participants.net.http import ASGIApp
from participants.servers.agent import Agent
from tests.served_kinds import Fleet, run, settle


class Policy:
    """A model that answers when it is told to."""

    def __init__(self) -> None:
        self.told: dict[str, trio.Event] = {}

    def answer(self, *names: str) -> None:
        for name in names:
            self.told[name].set()

    def app(self) -> ASGIApp:
        async def chat(request: Request) -> Response:
            name = (await request.json())["name"]
            self.told[name] = trio.Event()
            await self.told[name].wait()
            return JSONResponse({"choices": [{"message": {"role": "assistant", "content": name}}]})

        return Starlette(routes=[Route("/{path:path}", chat, methods=["POST"])])


class Job:
    """A policy, and an agent that samples: each rollout asks for all the names in its task at once."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.policy = Policy()
        self.results: dict[str, list[str]] = {}
        self.agent = Agent(
            "agent", fleet.config("policy"), seams=fleet.seams("agent"), transport=fleet.network.transport("agent")
        )

    async def start(self) -> None:
        await self.fleet.start("policy", self.policy.app())
        await self.fleet.start("agent", self.agent.wrap(Starlette(routes=[Route("/run", self.loop, methods=["POST"])])))

    async def loop(self, request: Request) -> Response:
        async with self.agent.session(request.scope, task=await request.json()) as session:
            said: list[str] = []

            async def ask(name: str) -> None:
                reply = await session.client("policy").post("/v1/chat/completions", {"name": name, "messages": []})
                said.append(reply.body["choices"][0]["message"]["content"])

            async with trio.open_nursery() as nursery:
                for name in session.task:
                    nursery.start_soon(ask, name)
            return session.finish(sorted(said))

    async def run(self, rollout_id: str, *names: str) -> None:
        body: Any = {"episode_id": {"rollout_id": rollout_id}, "task": list(names)}
        self.results[rollout_id] = (await self.fleet.post("agent", "/run", body)).json()

    async def phase(self, verb: str, checkpoint_id: str) -> str:
        reply = (await self.fleet.control("agent", verb, checkpoint_id, within_s=5)).json()
        return str(reply["phase"])


@pytest.mark.parametrize("late", [("a1", "a2"), ("a2", "a1")])
def test_replies_of_one_loop_that_are_held_together(late: tuple[str, str]) -> None:
    """Two replies come while the agent is closed: both are held and then taken, and the gate counts the loop once.

    Counted twice, the loop would take the place of another one that stands: no later prepare would end.

    Covers: I23, I24.
    """

    async def test(fleet: Fleet) -> None:
        job = Job(fleet)
        await job.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job.run, "r1", "a1", "a2")
            nursery.start_soon(job.run, "r2", "b1")
            await settle()
            assert await job.phase("prepare", "c1") == "prepared"
            job.policy.answer(*late)
            await settle()
            assert job.results == {} and job.agent.admission.counts.settled == 2
            assert await job.phase("resume", "c1") == "idle"
            await settle()
            assert job.results == {"r1": ["a1", "a2"]}
            assert await job.phase("prepare", "c2") == "prepared", "r2 stands, and nobody else is counted"
            assert await job.phase("resume", "c2") == "idle"
            job.policy.answer("b1")
        assert job.results["r2"] == ["b1"]
        counts = job.agent.admission.counts
        assert (counts.active, counts.settled) == (0, 0)

    run(test)


def test_a_loop_that_starts_over_while_its_reply_is_held() -> None:
    """It is counted out while it waits: its reply is taken at resume, and nobody else's count with it."""

    async def test(fleet: Fleet) -> None:
        job = Job(fleet)
        await job.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job.run, "r1", "a1")
            await settle()
            assert await job.phase("prepare", "c1") == "prepared"
            job.policy.answer("a1")
            await settle()
            (live,) = job.agent._sessions.values()
            assert live.activity is not None
            live.activity.exempt()
            assert await job.phase("resume", "c1") == "idle"
        assert job.results == {"r1": ["a1"]}
        counts = job.agent.admission.counts
        assert (counts.active, counts.settled) == (0, 0)

    run(test)


@pytest.mark.parametrize("tool_first_s", [0, 1])
def test_a_tool_call_beside_a_model_call(tool_first_s: int) -> None:
    """One task of a loop waits for a model reply and another one calls a tool: the loop moves until that call has
    ended, and then stands; its next tool call waits for the opening, and so does its boundary. Covers: I24.
    """

    async def test(fleet: Fleet) -> None:
        job = Job(fleet)
        called: list[str] = []
        go_on = trio.Event()

        async def tool(request: Request) -> Response:
            called.append(request.url.path.rpartition("/")[2])
            await go_on.wait()
            return JSONResponse({})

        async def loop(request: Request) -> Response:
            async with job.agent.session(request.scope, task=await request.json()) as session:

                async def use_tools() -> None:
                    for name in ("first", "second"):
                        await session.client("tools").post(f"/{name}")
                    await session.boundary({"tools": 2})

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(use_tools)
                    await trio.sleep(tool_first_s)
                    await session.client("policy").post("/v1/chat/completions", {"name": "a1", "messages": []})
                return session.finish(called)

        job.agent = Agent(
            "agent",
            fleet.config("policy", "tools"),
            seams=fleet.seams("agent"),
            transport=fleet.network.transport("agent"),
        )
        await fleet.start("policy", job.policy.app())
        await fleet.start("tools", Starlette(routes=[Route("/{path:path}", tool, methods=["POST"])]))
        await fleet.start("agent", job.agent.wrap(Starlette(routes=[Route("/run", loop, methods=["POST"])])))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job.run, "r1")
            await trio.sleep(2)
            assert await job.phase("prepare", "c1") == "preparing"
            go_on.set()
            await settle()
            assert await job.phase("prepare", "c1") == "prepared"
            (live,) = job.agent._sessions.values()
            assert (called, live.boundary) == (["first"], None)
            assert await job.phase("resume", "c1") == "idle"
            await settle()
            assert called == ["first", "second"]
            assert live.boundary is not None
            assert await job.phase("prepare", "c2") == "prepared", "the model's reply is waited for, and nothing else"
            assert await job.phase("resume", "c2") == "idle"
            job.policy.answer("a1")
        assert job.results == {"r1": ["first", "second"]}
        counts = job.agent.admission.counts
        assert (counts.active, counts.settled) == (0, 0)

    run(test)


def test_time_that_several_tasks_are_held_is_not_counted_once_for_each() -> None:
    """Two replies of one loop are held for ten seconds: ten are not the episode's, and five before them are. I64."""

    async def test(fleet: Fleet) -> None:
        job = Job(fleet)

        async def loop(request: Request) -> Response:
            async with job.agent.session(request.scope, task=await request.json()) as session:
                async with trio.open_nursery() as nursery:
                    for name in ("a1", "a2"):
                        body: Any = {"name": name, "messages": []}
                        nursery.start_soon(session.client("policy").post, "/v1/chat/completions", body)
                await session.boundary({})
                (live,) = job.agent._sessions.values()
                return session.finish([f"{live.elapsed_s:.0f} s"])

        await fleet.start("policy", job.policy.app())
        await fleet.start("agent", job.agent.wrap(Starlette(routes=[Route("/run", loop, methods=["POST"])])))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job.run, "r1")
            await trio.sleep(5)
            assert await job.phase("prepare", "c1") == "prepared"
            job.policy.answer("a1", "a2")
            await trio.sleep(10)
            assert await job.phase("resume", "c1") == "idle"
        assert job.results == {"r1": ["5 s"]}

    run(test)


def test_a_loop_names_the_parent_itself() -> None:
    """Its own parent header is the one that is sent: a call of a side conversation is no child of the last call."""

    async def test(fleet: Fleet) -> None:
        sent: list[list[str]] = []

        async def chat(request: Request) -> Response:
            sent.append(request.headers.getlist(PARENT_CALL_HEADER))
            return JSONResponse({"choices": []}, headers={MODEL_CALL_HEADER: f"call-{len(sent)}"})

        job = Job(fleet)

        async def loop(request: Request) -> Response:
            async with job.agent.session(request.scope, task=await request.json()) as session:
                policy = session.client("policy")
                for headers in ({}, {}, {PARENT_CALL_HEADER: "call-1"}):
                    await policy.post("/v1/chat/completions", {"messages": []}, headers=headers)
                return session.finish([])

        await fleet.start("policy", Starlette(routes=[Route("/{path:path}", chat, methods=["POST"])]))
        await fleet.start("agent", job.agent.wrap(Starlette(routes=[Route("/run", loop, methods=["POST"])])))
        await job.run("r1")
        assert sent == [[], ["call-1"], ["call-1"]]

    run(test)
