"""Episodes that activate an agent more than once, and steps that fail: what a review found."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from participants.coordination.agreement import agree, gather
from participants.identity import ACCESSES_HEADER, ACTIVATION_HEADER, EpisodeId
from participants.net.http import ASGIApp
from participants.servers.agent import Agent
from participants.servers.environment import Environment
from participants.servers.episode import Episode, EpisodeError
from statecore.wire import digest
from tests.scenario_fleet import Callers, commit, crash, done, parts, restore, run_body, seen, start
from tests.served_kinds import Fleet, run, settle
from tests.small_job import counter_resources
from tests.whole_job import Turnstile

ALL = ("env", "policy_model", "simple_agent", "tools")
PARTS = (("environment", "env"), ("model", "policy_model"), ("agent", "simple_agent"), ("resources", "tools"))

Play = Callable[[Episode], Awaitable[Any]]


def playing(play: Play) -> Callable[..., ASGIApp]:
    """An environment whose episodes are `play`."""

    def made(config: Any, seams: Any, transport: Any) -> ASGIApp:
        environment = Environment("env", config, seams=seams, transport=transport)

        async def run_it(request: Request) -> Response:
            async with environment.episode(request.scope, task=await request.json()) as episode:
                return episode.finish(await play(episode))

        return environment.wrap(Starlette(routes=[Route("/run", run_it, methods=["POST"])]))

    return made


def talking_agent(config: Any, seams: Any, transport: Any) -> ASGIApp:
    """An agent that asks the model twice, with a boundary between; it uses the tool before it if it is told to."""
    agent = Agent("simple_agent", config, seams=seams, transport=transport)

    async def talk(request: Request) -> Response:
        async with agent.session(request.scope, task=await request.json()) as session:
            model, tools = session.client("policy_model"), session.client("tools")
            said = session.restored(dict)
            if said is None:
                first = await model.post("/v1/chat/completions", {"messages": [_asks(session.task["question"])]})
                if session.task["tool"]:
                    await tools.post("/increment", {"by": 1})
                said = first.body["choices"][0]["message"]
                await session.boundary(said)
            messages = [_asks(session.task["question"]), said]
            last = await model.post("/v1/chat/completions", {"messages": messages})
            return session.finish({"said": last.body["choices"][0]["message"]["content"]})

    return agent.wrap(Starlette(routes=[Route("/v1/responses", talk, methods=["POST"])]))


def _asks(question: str) -> dict[str, Any]:
    return {"role": "user", "content": question}


async def twice(episode: Episode) -> Any:
    """The agent uses the tool in its first activation only."""
    await episode.seed("tools")
    first = await episode.activate("simple_agent", {"question": "one", "tool": True})
    second = await episode.activate("simple_agent", {"question": "two", "tool": False})
    return [first["said"], second["said"]]


def test_the_next_activation_after_a_restore_may_be_given_something_else() -> None:
    """An answer that was on its way at the cut is given again, and the activation behind it runs. Covers: I57, I60."""

    async def scenario(fleet: Fleet) -> tuple[Any, dict[str, int]]:
        policy = Turnstile()
        kinds: Any = {"env": playing(twice), "simple_agent": talking_agent}
        await start(fleet, policy, *ALL, **kinds)
        async with trio.open_nursery() as nursery:
            Callers(fleet, nursery).run("env")
            policy.allow("one", 1)
            await settle()
            await done(fleet.control("env", "prepare", "c1"))
            policy.allow("one", 2)  # answered while the environment is closed
            await settle()
            await commit(fleet, "ck", *ALL)
            crash(fleet, nursery)
        await start(fleet, policy, *ALL, **kinds)
        await restore(fleet, "ck", *ALL)
        policy.allow("two", 2)
        finished = await fleet.post("env", "/run", run_body(1))
        return finished.json(), dict(policy.generated)

    assert seen(scenario) == (["2", "2"], {"one": 2, "two": 2})


def test_a_later_activation_knows_where_the_earlier_one_left_the_tool() -> None:
    """A boundary without a tool call of its own names the position that the tool really has. Covers: I35."""

    async def scenario(fleet: Fleet) -> tuple[bool, str, Any]:
        policy = Turnstile()
        kinds: Any = {"env": playing(twice), "simple_agent": talking_agent}
        await start(fleet, policy, *ALL, **kinds)
        async with trio.open_nursery() as nursery:
            Callers(fleet, nursery).run("env")
            policy.allow("one", 2)
            policy.allow("two", 1)
            await settle()
            await commit(fleet, "ck", *ALL)
            crash(fleet, nursery)
        agreed = agree(gather(parts(fleet, "ck", PARTS))[EpisodeId("r1")], digest(run_body()["task"]))
        await start(fleet, policy, *ALL, **kinds)
        await restore(fleet, "ck", *ALL)
        policy.allow("two", 2)
        finished = await fleet.post("env", "/run", run_body(1))
        return agreed.agrees, agreed.reason, finished.json()

    assert seen(scenario) == (True, "", ["2", "2"])


ACCESSES = ("{", "[]", '{"tools":7}', '{"tools":{"position":"x"}}', '{"tools":{"cookies":{"a":1}}}')


@pytest.mark.parametrize("accesses", ACCESSES)
def test_an_activation_with_accesses_that_are_none_is_refused_and_counted_nowhere(accesses: str) -> None:
    """The session takes the right one afterwards, and the next checkpoint does not wait for the wrong one."""

    async def test(fleet: Fleet) -> None:
        policy = Turnstile()
        policy.allow("one", 2)
        await start(fleet, policy, "policy_model", "simple_agent", simple_agent=talking_agent)
        opening = {"agent_session_id": "s", "episode_id": {"rollout_id": "r1"}}
        assert (await fleet.post("simple_agent", "/v1/agent_sessions", opening)).status_code == 200
        headers = {ACTIVATION_HEADER: "1", ACCESSES_HEADER: accesses}
        body = {"question": "one", "tool": False}
        refused = await fleet.post("simple_agent", "/ng-rollout/r1/v1/responses", body, headers=headers)
        assert refused.json()["error"]["code"] == "checkpoint_error"
        prepared = (await fleet.control("simple_agent", "prepare", within_s=1)).json()
        assert prepared["phase"] == "prepared"
        await fleet.control("simple_agent", "resume")
        del headers[ACCESSES_HEADER]
        came = await fleet.post("simple_agent", "/ng-rollout/r1/v1/responses", body, headers=headers)
        assert came.json() == {"said": "2"}

    run(test)


def test_a_session_is_opened_again_only_for_the_task_that_it_has() -> None:
    """A continuation is not taken over by an episode with another task. Covers: I60, S15."""

    async def test(fleet: Fleet) -> None:
        await start(fleet, Turnstile(), "policy_model", "simple_agent", simple_agent=talking_agent)
        opening = {"agent_session_id": "s", "episode_id": {"rollout_id": "r1"}, "task_id": "a"}
        assert (await fleet.post("simple_agent", "/v1/agent_sessions", opening)).status_code == 200
        assert (await fleet.post("simple_agent", "/v1/agent_sessions", opening)).status_code == 200
        other = await fleet.post("simple_agent", "/v1/agent_sessions", opening | {"task_id": "b"})
        assert other.json()["error"]["code"] == "checkpoint_error"

    run(test)


async def gives_up(episode: Episode) -> Any:
    """The tool refuses, and the episode goes on without it."""
    tools = await episode.seed("tools")
    try:
        await episode.wait("not there", tools.call("/not_there"))
    except EpisodeError as error:
        failed = str(error)
    await episode.wait("count", tools.call("/increment", {"by": 2}))
    said = await episode.activate("simple_agent", {"question": "one", "tool": False})
    return {"failed": "404" in failed, "said": said["said"]}


def test_an_episode_goes_on_after_a_step_that_failed_also_behind_a_restore() -> None:
    """What the handler caught it catches again from the record, and no step that was done runs again. Covers: I57."""

    async def scenario(fleet: Fleet) -> tuple[Any, Any, list[str]]:
        policy = Turnstile()
        kinds: Any = {"env": playing(gives_up), "simple_agent": talking_agent}
        await start(fleet, policy, *ALL, **kinds)
        async with trio.open_nursery() as nursery:
            Callers(fleet, nursery).run("env")
            policy.allow("one", 1)
            await settle()
            await commit(fleet, "ck", *ALL)
            crash(fleet, nursery)
        written = parts(fleet, "ck", PARTS[:1])[0].records[0]["boundary"]["results"]
        await start(fleet, policy, *ALL, **kinds)
        await restore(fleet, "ck", *ALL)
        policy.allow("one", 2)
        finished = await fleet.post("env", "/run", run_body(1))
        return finished.json(), dict(policy.generated), [each["step"] for each in written]

    result, generated, steps = seen(scenario)
    assert result == {"failed": True, "said": "2"}
    assert generated == {"one": 2}
    assert steps == ["seed tools", "not there", "count"]


@pytest.mark.parametrize("path", ["/not_there", "/increment"])
def test_an_episode_that_fails_inside_a_step_closes_its_sessions(path: str) -> None:
    """Neither a refusing tool nor a handler that raises leaves a session behind. Covers: I75."""

    async def scenario(fleet: Fleet) -> tuple[int, int, int]:
        async def fails(episode: Episode) -> Any:
            tools = await episode.seed("tools")
            await episode.activate("simple_agent", {"question": "one", "tool": False})

            async def breaks() -> Any:
                raise LookupError("no such thing")

            await episode.wait("fails", breaks() if path == "/increment" else tools.call(path))

        policy = Turnstile()
        policy.allow("one", 2)
        await start(fleet, policy, *ALL, env=playing(fails), simple_agent=talking_agent)
        failed = await fleet.post("env", "/run", run_body())
        counts = [(await fleet.status(name))["report"]["counts"]["sessions"] for name in ("tools", "simple_agent")]
        return failed.status_code, counts[0], counts[1]

    assert seen(scenario) == (500, 0, 0)


def parallel_agent(config: Any, seams: Any, transport: Any) -> ASGIApp:
    """An agent that calls two tools at once."""
    agent = Agent("simple_agent", config, seams=seams, transport=transport)

    async def both(request: Request) -> Response:
        async with agent.session(request.scope, task=await request.json()) as session, trio.open_nursery() as calls:
            for name in ("tools", "gone"):
                calls.start_soon(session.client(name).post, "/seed_session")
        return session.finish({})

    routes = [Route("/run", both, methods=["POST"]), Route("/v1/responses", both, methods=["POST"])]
    return agent.wrap(Starlette(routes=routes))


def test_s65_a_server_lost_by_one_of_several_calls_at_once_is_no_result() -> None:
    """The loss is seen inside the group of exceptions that it comes in. Covers: I97."""

    async def scenario(fleet: Fleet) -> list[str]:
        config = fleet.config("tools", "simple_agent", "gone")
        await fleet.start("tools", counter_resources(config, fleet.seams("tools")))
        transport = fleet.network.transport("simple_agent")
        await fleet.start("simple_agent", parallel_agent(config, fleet.seams("agent"), transport))
        own = await fleet.post("simple_agent", "/run", run_body())
        opening = {"agent_session_id": "s", "episode_id": {"rollout_id": "r2"}}
        await fleet.post("simple_agent", "/v1/agent_sessions", opening)
        activated = await fleet.post("simple_agent", "/ng-rollout/r2/v1/responses", {"question": "q"})
        return [own.json()["error"]["code"], activated.json()["error"]["code"]]

    assert seen(scenario) == ["participant_lost", "participant_lost"]


def test_the_time_for_which_a_reply_is_held_is_not_the_episodes() -> None:
    """An hour in a checkpoint is no part of the time that the boundary behind it names. Covers: I64."""

    async def scenario(fleet: Fleet) -> float:
        policy = Turnstile()
        await start(fleet, policy, "simple_agent", simple_agent=talking_agent)
        opening = {"agent_session_id": "s", "episode_id": {"rollout_id": "r1"}}
        await fleet.post("simple_agent", "/v1/agent_sessions", opening)
        async with trio.open_nursery() as nursery:
            path, body = "/ng-rollout/r1/v1/responses", {"question": "one", "tool": False}
            Callers(fleet, nursery).post("talk", "simple_agent", path, body)
            await trio.sleep(5)
            await fleet.control("simple_agent", "prepare", "c1", within_s=7200)
            policy.allow("one", 1)  # the reply comes while the agent is closed
            await trio.sleep(3600)
            await fleet.control("simple_agent", "resume", "c1")
            await settle()
            await commit(fleet, "ck", "simple_agent", checkpoint_id="c2")
            crash(fleet, nursery)
        boundary = parts(fleet, "ck", [("agent", "simple_agent")])[0].records[0]["boundary"]
        return float(boundary["elapsed_s"])

    assert seen(scenario) == 5
