"""S9, S15, S18, S19, S29: what a checkpoint does to a loop. First the fault, then its absence."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import attrs
import httpx
import trio
from attrs import frozen
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from participants.identity import EpisodeId
from participants.net.http import ASGIApp, Incoming, Scope
from participants.net.posts import Answered
from participants.servers.admission import Activity
from participants.servers.agent import Agent
from participants.servers.agent_session import LiveSession, Session
from participants.servers.environment import Environment
from participants.servers.episode import LiveEpisode
from participants.servers.executions import Execution
from participants.servers.peers import Peer, Reply
from participants.servers.resources import Resources
from participants.settings import Seams, Settings
from tests.scenario_fleet import Callers, commit, crash, done, parts, restore, run_body, scope, seen, start
from tests.served_kinds import Fleet, settle
from tests.small_job import ROOT, Counter, counter_resources, counting_agent, counting_environment
from tests.whole_job import Turnstile

HOUR_S = 3600.0
ALL = ("policy_model", "tools", "simple_agent", "env")
OWN_RUN_AGENT = partial(counting_agent, seeds=True)


class WithSessions(Agent):
    """An agent whose sessions are of a class of their own."""

    sessions: type[Session]

    @asynccontextmanager
    async def session(self, scope: Scope, **options: Any) -> AsyncIterator[Session]:
        async with super().session(scope, **options) as session:
            session.__class__ = self.sessions
            yield session


# --- S9


class Refusing(Resources[Counter]):
    """A peer of the first generation: while it is closed it refuses tool calls, and does not hold them."""

    async def admitted(self, request: Incoming, owner: EpisodeId | None = None, **_more: Any) -> Activity:
        self.admission.enter_or_refuse()
        return Activity(self.admission, None, self.check(request.episode))


class NaivePeer(Peer):
    def _read(self, answered: Answered) -> Reply | None:
        return super()._read(answered) or Reply(answered.status, json.loads(answered.body), answered.headers)


class NaiveSession(Session):
    def client(self, name: str) -> Peer:
        return NaivePeer(**attrs.asdict(super().client(name), recurse=False))


class NaiveAgent(WithSessions):
    """The fault: whatever comes back from a tool is what the tool said."""

    sessions = NaiveSession


def talking_agent(kind: type[Agent], config: Settings, seams: Seams, transport: Any) -> ASGIApp:
    """An agent whose conversation is what its tool answers: one call, and one more."""
    agent = kind("simple_agent", config, seams=seams, transport=transport)

    async def run(request: Request) -> Response:
        async with agent.session(request.scope, task=await request.json()) as session:
            tools = session.client("tools")
            await tools.post("/seed_session")
            said = [json.dumps((await tools.post("/increment", {"by": by})).body) for by in (1, 2)]
            return session.finish(said)

    return agent.wrap(Starlette(routes=[Route("/run", run, methods=["POST"])]))


async def refused_tool(fleet: Fleet, kind: type[Agent]) -> Any:
    """A tools server closes between the seed and the first call; what the conversation is in the end."""
    entered, slow = trio.Event(), trio.Event()

    async def before() -> None:
        entered.set()
        await slow.wait()

    tools = partial(counter_resources, kind=Refusing, before=before)
    await start(fleet, Turnstile(), "tools", "simple_agent", tools=tools, simple_agent=partial(talking_agent, kind))
    async with trio.open_nursery() as nursery:
        callers = Callers(fleet, nursery)
        callers.run()
        await entered.wait()
        prepared = await done(fleet.control("tools", "prepare", within_s=1))
        assert prepared["phase"] == "preparing"
        slow.set()  # the first call was accepted and ends; the second comes while the server is closed
        await settle()
        await fleet.control("tools", "resume")
    return callers.replies["run"].json()


def test_s09_refused_call_damages_the_conversation() -> None:
    """S9, tools: a refused tool call is sent again after the checkpoint, and the conversation knows nothing of it.

    Taken for an answer, the 409 is a tool message, and the call never happened. Covers: I74.
    """
    first, damaged = seen(refused_tool, NaiveAgent)
    assert json.loads(first) == {"value": 1}
    assert json.loads(damaged)["error"]["code"] == "admission_closed"
    assert [json.loads(each) for each in seen(refused_tool, Agent)] == [{"value": 1}, {"value": 3}]


# --- S15


class NoShadowCheck(Environment):
    """The fault: an attempt that is not the restored one is taken for a new episode."""

    def _claimed(self, execution: Execution) -> LiveEpisode:
        if execution.episode in self._pending:
            return super()._claimed(execution)
        return LiveEpisode(execution.episode, execution.task, execution.task_digest)


class NoShadowCheckAgent(Agent):
    """The fault, at the agent: an attempt that is not the restored one gets a new session."""

    def _claim(self, episode: EpisodeId, key: str, digest: str) -> LiveSession:
        if (episode, key) in self._sessions:
            return super()._claim(episode, key, digest)
        self._retire_below(episode)
        live = self._sessions[episode, key] = LiveSession(episode, key, task_digest=digest)
        self.fences.accept(episode)
        return live


@frozen
class Dispatched:
    """What a dispatch brought, and the turns that were generated for it."""

    outcome: str
    turns: tuple[int, ...]


async def wrong_attempt(
    fleet: Fleet, environment: type[Environment], agent: type[Agent], attempts: tuple[int, ...]
) -> list[Dispatched]:
    """r1 has two turns in a checkpoint and is restored as attempt 1; these attempts of it are dispatched."""
    policy = Turnstile()
    policy.allow("r1", 2)
    kinds = {
        "env": partial(counting_environment, kind=environment),
        "simple_agent": partial(counting_agent, kind=agent),
    }
    await start(fleet, policy, *ALL, **kinds)
    async with trio.open_nursery() as nursery:
        Callers(fleet, nursery).run("env")
        await settle()
        await commit(fleet, "ck", "env", "policy_model", "simple_agent", "tools")
        crash(fleet, nursery)
    await start(fleet, policy, *ALL, **kinds)
    await restore(fleet, "ck", *ALL)
    policy.allow("r1", 3)
    dispatched = []
    for attempt in attempts:
        policy.seen.clear()
        reply = await fleet.post("env", "/run", run_body(attempt))
        dispatched.append(Dispatched(outcome(reply), tuple(turn for _, turn in policy.seen)))
    return dispatched


def test_s15_silent_fresh_start() -> None:
    """S15: a dispatch that would hide an unclaimed continuation is refused, and the right one goes on at turn 3.

    Without that check the wrong number starts from turn 1, and nobody is told. Covers: I57, I58, I60.
    """
    assert seen(wrong_attempt, NoShadowCheck, NoShadowCheckAgent, (2,)) == [Dispatched("done", (1, 2, 3))]
    assert seen(wrong_attempt, Environment, Agent, (2, 1)) == [
        Dispatched("checkpoint_error", ()),
        Dispatched("done", (3,)),
    ]


# --- S18


class AskedSession(Session):
    async def boundary(self, state: Any, **more: Any) -> bool:
        assert isinstance(self._agent, ParkRequests) and self.episode is not None
        request = self._agent.requests.get(self.episode)
        if request is not None:
            self._agent.parked.append(self.episode)
            await request.wait()
        return await super().boundary(state, **more)


class ParkRequests(WithSessions):
    """The fault: each running session is asked to park, and a resume answers those who have parked."""

    sessions = AskedSession

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.requests: dict[EpisodeId, anyio.Event] = {}
        self.parked: list[EpisodeId] = []
        close = self.admission.close

        def ask_and_close() -> None:
            self.requests |= {episode: anyio.Event() for episode, _ in self._sessions}
            close()

        self.admission.close = ask_and_close  # type: ignore[method-assign]

    def opened(self) -> None:
        for episode in self.parked:
            self.requests.pop(episode).set()
        self.parked.clear()


async def aborted(fleet: Fleet, kind: type[Agent]) -> str:
    """A checkpoint is given up while a tool runs; whether the rollout has finished an hour later."""
    slow = trio.Event()
    policy = Turnstile()
    policy.allow("r1", 3)
    tools = partial(counter_resources, before=slow.wait)
    await start(fleet, policy, "tools", "simple_agent", tools=tools, simple_agent=partial(OWN_RUN_AGENT, kind=kind))
    async with trio.open_nursery() as nursery:
        callers = Callers(fleet, nursery)
        callers.run()
        await settle()
        assert (await done(fleet.control("simple_agent", "prepare", within_s=1)))["phase"] == "preparing"
        await done(fleet.control("simple_agent", "resume"))
        slow.set()
        await trio.sleep(HOUR_S)
        assert (await fleet.status("simple_agent"))["phase"] == "idle"
        if "run" in callers.replies:
            return str(callers.replies["run"].json()["messages"][-1]["content"])
        nursery.cancel_scope.cancel()
    return "still parked"


def test_s18_park_requests_outlive_an_aborted_checkpoint() -> None:
    """S18: whether a loop parks is read from the gate at its boundary, so nothing is left of an aborted checkpoint.

    A request that each session keeps parks it after the abort, and no resume will ever come. Covers: I14, I16, I20.
    """
    assert seen(aborted, ParkRequests) == "still parked"
    assert seen(aborted, Agent) == "6"


# --- S19


class EagerSession(Session):
    async def boundary(self, state: Any, **more: Any) -> bool:
        limit, self.max_steps = self.max_steps, None
        try:
            await super().boundary(state, **more)
        finally:
            self.max_steps = limit
        return self.may_go_on


class EagerAgent(WithSessions):
    """The fault: every completed turn is a boundary, also the last one that the budget allows."""

    sessions = EagerSession


async def last_step(fleet: Fleet, kind: type[Agent]) -> tuple[int, int]:
    """A checkpoint falls into the last turn of a budget of two, then a crash: records saved, turns taken in all."""
    calls, slow = [], trio.Event()

    async def before() -> None:
        calls.append("increment")
        if len(calls) == 2:
            await slow.wait()

    policy = Turnstile()
    policy.allow("r1", 2)
    agent = partial(OWN_RUN_AGENT, kind=kind, max_steps=2)
    tools = partial(counter_resources, before=before)
    await start(fleet, policy, "tools", "simple_agent", tools=tools, simple_agent=agent)
    async with trio.open_nursery() as nursery:
        Callers(fleet, nursery).run(turns=9)
        await settle()
        assert (await done(fleet.control("simple_agent", "prepare", within_s=1)))["phase"] == "preparing"
        slow.set()
        await settle()
        await commit(fleet, "ck", "simple_agent", "tools")
        crash(fleet, nursery)
    saved = len(parts(fleet, "ck", [("agent", "simple_agent")])[0].records)
    if saved:
        await start(fleet, policy, "tools", "simple_agent", simple_agent=agent)
        await restore(fleet, "ck", "tools", "simple_agent")
        policy.allow("r1", 9)
        assert (await fleet.post("simple_agent", "/run", run_body(1, turns=9))).json()["stopped"] is True
    return saved, policy.generated["r1"]


def test_s19_boundary_at_the_step_budget() -> None:
    """S19: the last turn of a budget is no boundary: the loop finishes although a checkpoint is open.

    Parked there, the rollout is continued after a crash, and takes a third turn of two. Covers: I63.
    """
    assert seen(last_step, EagerAgent) == (1, 3)
    assert seen(last_step, Agent) == (0, 2)


# --- S29


class Unfresh(Agent):
    """The fault: a restore is installed whatever lives here."""

    def check_fresh(self, count: int) -> None:
        return


async def restored_alive(fleet: Fleet, kind: type[Agent], episode_ids: list[Any]) -> tuple[str, str, str]:
    """A restore reaches a server with a running rollout: its answer, the phase, the rollout twenty minutes later."""
    policy = Turnstile()
    policy.allow("r1", 1)
    await start(fleet, policy, "tools", "simple_agent", simple_agent=partial(OWN_RUN_AGENT, kind=kind))
    async with trio.open_nursery() as nursery:
        callers = Callers(fleet, nursery)
        callers.run()
        await settle()
        await commit(fleet, "ck", "tools", "simple_agent")
        for each in ("tools", "simple_agent"):
            await done(fleet.control(each, "resume"))
        body: Any = {"checkpoint_dir": str(ROOT / "ck"), "episode_ids": episode_ids}
        answer = await fleet.control("simple_agent", "restore", "rs", **body)
        policy.allow("r1", 3)
        await trio.sleep(1200)
        phase = (await fleet.status("simple_agent"))["phase"]
        reply = callers.replies.get("run")
        nursery.cancel_scope.cancel()
    return outcome(answer), phase, "frozen" if reply is None else outcome(reply)


def outcome(reply: httpx.Response) -> str:
    return "done" if reply.is_success else str(reply.json()["error"]["code"])


def test_s29_restore_on_a_live_server() -> None:
    """S29: a server that has sessions refuses a restore, stays open, and its rollout finishes.

    One that installs it closes until somebody resumes it; what it runs is frozen, or fenced off. Covers: I52, I53.
    """
    assert seen(restored_alive, Unfresh, []) == ("done", "restored", "frozen")
    assert seen(restored_alive, Unfresh, scope()) == ("done", "restored", "stale_attempt")
    for episode_ids in ([], scope()):
        assert seen(restored_alive, Agent, episode_ids) == ("checkpoint_error", "idle", "done")
