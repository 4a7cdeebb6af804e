"""Keys keep their order, wherever something is kept to be given back: a prompt made from it must not change (I49)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import trio
from attrs import field, frozen
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from participants import Dispatch, Environment, Resources, attrs_codec, json_codec
from participants.identity import OPERATION_HEADER
from participants.net.http import ASGIApp
from participants.servers.modes import Mode
from statecore.wire import encode, parse
from tests.served_kinds import Fleet, settle
from tests.served_kinds import run as run_fleet
from tests.small_job import ROOT
from tests.whole_job import WholeJob
from tests.whole_job import run as run_job

UNSORTED = {"stick": 0, "hit": 1, "double": {"z": 1, "a": 2}}
SCOPE = [{"rollout_id": "r1", "attempt": 0}]


def order(value: Any) -> list[Any]:
    """The keys of a value, in order, all the way down."""
    return [[key, order(inner)] for key, inner in value.items()] if isinstance(value, dict) else []


def test_encode_keeps_the_order_and_refuses_what_is_not_exact() -> None:
    """What is encoded reads back equal, order included. Covers: I49."""
    assert order(parse(encode(UNSORTED))) == order(UNSORTED)


def offering(fleet: Fleet, answers: trio.Event) -> dict[str, ASGIApp]:
    """An environment whose result is the order in which it sees what its seed was answered, with its two peers."""
    config = fleet.config("tools", "agent")
    environment = Environment("env", config, seams=fleet.seams("env"), transport=fleet.network.transport("env"))

    async def play(request: Request) -> Response:
        async with environment.episode(request.scope, task=await request.json()) as episode:
            tools = await episode.seed("tools")
            await episode.activate("agent", {})
            return episode.finish({"order": order(tools.access["body"])})

    async def offer(_request: Request) -> Response:
        return JSONResponse(UNSORTED)

    async def answer(_request: Request) -> Response:
        await answers.wait()
        return JSONResponse({})

    async def opened(_request: Request) -> Response:
        return JSONResponse({})

    def at(paths: Mapping[str, Any]) -> ASGIApp:
        return Starlette(routes=[Route("/ng-rollout/{key}" + p, each, methods=["POST"]) for p, each in paths.items()])

    sessions = {"/v1/agent_sessions": opened, "/v1/agent_sessions/close": opened}
    return {
        "env": environment.wrap(Starlette(routes=[Route("/run", play, methods=["POST"])])),
        "tools": at({"/seed_session": offer, "/close_session": opened}),
        "agent": at({"/v1/responses": answer, **sessions}),
    }


def test_a_restored_episode_sees_its_results_in_their_order() -> None:
    """A recorded step's result comes back from a checkpoint with its keys as they were. Covers: I49, I61."""

    async def test(fleet: Fleet) -> None:
        answers = trio.Event()
        for name, app in offering(fleet, answers).items():
            await fleet.start(name, app)
        body = {"episode_id": {"rollout_id": "r1"}, "task": {}}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fleet.post, "env", "/run", body)
            await settle()
            await fleet.control("env", "prepare")
            done = await fleet.control("env", "commit", checkpoint_dir=str(ROOT / "ck"), episode_ids=SCOPE)
            assert done.json()["episode_ids"] == ["r1"]
            nursery.cancel_scope.cancel()
        fleet.network.kill("env")
        answers.set()
        await fleet.start("env", offering(fleet, answers)["env"])
        await fleet.control("env", "restore", "rs", checkpoint_dir=str(ROOT / "ck"), episode_ids=SCOPE)
        await fleet.control("env", "resume", "rs")
        again = await fleet.post("env", "/run", {**body, "episode_id": {"rollout_id": "r1", "attempt": 1}})
        assert again.json() == {"order": order(UNSORTED)}

    run_fleet(test)


@frozen
class Offer:
    actions: dict[str, Any] = field(factory=dict)


def test_codecs_keep_the_order() -> None:
    """A state that was exported and loaded iterates as it did. Covers: I49."""
    loaded = json_codec().load(json_codec().export(UNSORTED))
    assert order(loaded) == order(UNSORTED)
    codec = attrs_codec(Offer)
    assert order(codec.load(codec.export(Offer(UNSORTED))).actions) == order(UNSORTED)


def test_a_repeated_operation_gets_the_very_bytes() -> None:
    """The recorded reply of a tool call and the first one are the same bytes. Covers: I57."""

    async def test(fleet: Fleet) -> None:
        tools: Resources[Any] = Resources(
            "tools", fleet.config(), codec=json_codec(), mode=Mode.EXPORT_RESTORE, seams=fleet.seams("tools")
        )

        async def seed(request: Request) -> Response:
            return await tools.seed(request.scope, {})

        async def act(request: Request) -> Response:
            async with tools.mutate(request.scope) as change:
                if not change.repeated:
                    change.reply = UNSORTED
            return change.response()

        routes = [Route("/seed_session", seed, methods=["POST"]), Route("/act", act, methods=["POST"])]
        await fleet.start("tools", tools.wrap(Starlette(routes=routes)))
        await fleet.post("tools", "/ng-rollout/r1/seed_session")
        replies = [await fleet.post("tools", "/ng-rollout/r1/act", headers={OPERATION_HEADER: "op"}) for _ in range(2)]
        assert replies[0].content == replies[1].content == json.dumps(UNSORTED, separators=(",", ":")).encode()

    run_fleet(test)


def test_a_task_arrives_in_the_order_in_which_it_was_dispatched() -> None:
    """The environment sees the task's keys as the framework wrote them, also after a restart. Covers: I49."""

    def ordered_environment(config: Any, seams: Any, transport: Any = None) -> Any:
        environment = Environment("env", config, seams=seams, transport=transport)

        async def play(request: Request) -> Response:
            async with environment.episode(request.scope, task=await request.json()) as episode:
                return episode.finish({"order": order(episode.task)})

        return environment.wrap(Starlette(routes=[Route("/run", play, methods=["POST"])]))

    async def test(job: WholeJob) -> None:
        job.makers["env"] = ordered_environment
        async with job.coordinator() as coordinator:
            recovered = await coordinator.recover()
            await coordinator.run_batch(recovered.runnable([Dispatch("r1", UNSORTED, "env")]))
            assert job.trainer is not None
            assert job.trainer.accepted["r1"] == {"order": order(UNSORTED)}

    run_job(test)
