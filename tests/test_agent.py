"""An agent server: sessions, boundaries, activations, executions and results."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import trio
from attrs import frozen
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from participants.files.snapshots import read_part
from participants.identity import ACTIVATION_HEADER, EPOCH_HEADER, INCARNATION_HEADER, RECEIPT_HEADER
from participants.net.http import ASGIApp
from participants.records.records import AgentBoundary, boundary_digest
from participants.servers.agent import Agent, SessionError
from participants.settings import Settings
from statecore import Refused
from tests.served_kinds import AUTH, Fleet, run, settle
from tests.small_job import ROOT

SCOPE = [{"rollout_id": "r1", "attempt": 0}]
RUN = {"episode_id": {"rollout_id": "r1"}, "task": {"turns": 3}}


@frozen
class Count:
    """The state of a loop that counts its turns."""

    turns: int


class Loop:
    """An agent whose loop waits for the test before each turn, and what it saw."""

    def __init__(self) -> None:
        self.allowed = 0
        self.moved = trio.Event()
        self.started: list[int] = []
        self.refused: list[str] = []
        self.sessions: list[Any] = []

    def allow(self, turns: int) -> None:
        self.allowed = turns
        self.moved.set()
        self.moved = trio.Event()

    def app(self, config: Settings, seams: Any, *, max_steps: int | None = None) -> ASGIApp:
        agent = Agent("agent", config, seams=seams)

        async def run_loop(request: Request) -> Response:
            async with agent.session(request.scope, task=await request.json(), max_steps=max_steps) as session:
                self.sessions.append(session)
                count = session.restored(Count) or Count(0)
                self.started.append(count.turns)
                try:
                    while True:
                        while count.turns >= self.allowed:
                            await self.moved.wait()
                        count = Count(count.turns + 1)
                        if count.turns >= session.task["turns"]:
                            return session.finish({"turns": count.turns})
                        if not await session.boundary(count):
                            return session.finish({"turns": count.turns, "stopped": True})
                except Refused as refused:
                    self.refused.append(refused.code)
                    raise

        routes = [Route("/run", run_loop, methods=["POST"]), Route("/v1/responses", run_loop, methods=["POST"])]
        return agent.wrap(Starlette(routes=routes))


async def started(fleet: Fleet, loop: Loop, **options: Any) -> None:
    await fleet.start("agent", loop.app(fleet.config(), fleet.seams("agent"), **options))


async def committed(fleet: Fleet, where: str = "ck") -> AgentBoundary | None:
    """The agent's record of r1 in a checkpoint taken now."""
    prepared = await fleet.control("agent", "prepare")
    assert prepared.json()["phase"] == "prepared", prepared.text
    done = await fleet.control("agent", "commit", checkpoint_dir=str(ROOT / where), episode_ids=SCOPE)
    assert done.status_code == 200, done.text
    part = read_part(fleet.disk, ROOT / where, kind="agent", instance="agent")
    return AgentBoundary.read(part.records[0]["boundary"]) if part.records else None


class Caller:
    """Calls `/run` in the background and keeps the replies."""

    def __init__(self, fleet: Fleet, nursery: trio.Nursery) -> None:
        self.fleet = fleet
        self.nursery = nursery
        self.replies: list[httpx.Response] = []

    def run(self, body: Any = RUN) -> None:
        self.nursery.start_soon(self._call, "/run", body, {})

    def activate(self, index: int, body: Any = RUN["task"]) -> None:
        self.nursery.start_soon(self._call, "/ng-rollout/r1/v1/responses", body, {ACTIVATION_HEADER: str(index)})

    async def _call(self, path: str, body: Any, headers: dict[str, str]) -> None:
        self.replies.append(await self.fleet.post("agent", path, body, headers=headers))


def test_the_loop_parks_at_its_next_boundary_and_goes_on_at_resume() -> None:
    """While closed the loop stands at a boundary: prepared, counted, and nothing moves. Covers: I24, I32."""

    async def test(fleet: Fleet) -> None:
        loop = Loop()
        await started(fleet, loop)
        async with trio.open_nursery() as nursery:
            caller = Caller(fleet, nursery)
            caller.run()
            loop.allow(1)
            await settle()
            not_yet = (await fleet.control("agent", "prepare", within_s=5)).json()
            assert not_yet["phase"] == "preparing"
            detail = not_yet["report"]["blocker_details"][0]
            assert (detail["rollout_id"], detail["reason"]) == ("r1", "its loop runs")
            assert detail["waited_s"] >= 5
            loop.allow(3)
            boundary = await committed(fleet)
            assert boundary is not None and boundary.state == {"turns": 2}
            await settle()
            assert caller.replies == []
            await fleet.control("agent", "resume")
        assert caller.replies[0].json() == {"turns": 3}

    run(test)


def test_boundaries_are_chained_and_frozen_at_the_call() -> None:
    """Each boundary names the digest of the one before; its index grows by one. Covers: I33."""

    async def test(fleet: Fleet) -> None:
        loop = Loop()
        await started(fleet, loop)
        lines: list[dict[str, Any]] = []
        async with trio.open_nursery() as nursery:
            Caller(fleet, nursery).run({**RUN, "task": {"turns": 9}})
            for turns in (1, 2, 3):
                loop.allow(turns)
                await settle()
                live = fleet_session(loop)
                lines.append(json.loads(live.boundary.line))
            loop.allow(9)
        assert [line["boundary_index"] for line in lines] == [0, 1, 2]
        typed = AgentBoundary.read(lines[2])
        assert typed is not None and list(typed.to_json().items()) == list(lines[2].items())
        assert lines[0]["previous"] is None
        assert lines[2]["previous"] == boundary_digest(lines[1])

    run(test)


def fleet_session(loop: Loop) -> Any:
    return loop.sessions[-1]._live


def test_a_restored_session_goes_on_from_its_boundary_as_n_plus_1() -> None:
    """In a fresh process the handler runs from the top under N+1 and gets the state once. Covers: I54, I57, I61."""

    async def test(fleet: Fleet) -> None:
        loop = Loop()
        await started(fleet, loop)
        async with trio.open_nursery() as nursery:
            Caller(fleet, nursery).run()
            await settle()
            await fleet.control("agent", "prepare", within_s=0.001)
            loop.allow(2)
            await settle()
            assert await committed(fleet) is not None
            nursery.cancel_scope.cancel()
        fleet.network.kill("agent")
        again = Loop()
        await started(fleet, again)
        restored = await fleet.control("agent", "restore", "rs", checkpoint_dir=str(ROOT / "ck"), episode_ids=SCOPE)
        assert restored.json()["restored"] == ["r1-a1"], restored.text
        await fleet.control("agent", "resume", "rs")
        again.allow(9)
        finished = await fleet.post("agent", "/run", {**RUN, "episode_id": {"rollout_id": "r1", "attempt": 1}})
        assert finished.json() == {"turns": 3}
        assert again.started == [1]
        receipt = json.loads(finished.headers[RECEIPT_HEADER])
        assert (receipt["rollout_id"], receipt["attempt"]) == ("r1", 1)

    run(test)


def test_a_continuation_is_claimed_once_for_the_same_task_and_not_hidden() -> None:
    """Another task or another attempt than the restored one is refused; then the right one still runs. Covers: I60."""

    async def test(fleet: Fleet) -> None:
        loop = Loop()
        await started(fleet, loop)
        async with trio.open_nursery() as nursery:
            Caller(fleet, nursery).run()
            await settle()
            await fleet.control("agent", "prepare", within_s=0.001)
            loop.allow(1)
            await settle()
            assert await committed(fleet) is not None
            nursery.cancel_scope.cancel()
        fleet.network.kill("agent")
        again = Loop()
        again.allow(9)
        await started(fleet, again)
        await fleet.control("agent", "restore", "rs", checkpoint_dir=str(ROOT / "ck"), episode_ids=SCOPE)
        await fleet.control("agent", "resume", "rs")
        for episode, task in (
            ({"rollout_id": "r1", "attempt": 1}, {"turns": 7}),
            ({"rollout_id": "r1", "attempt": 2}, RUN["task"]),
        ):
            refused = await fleet.post("agent", "/run", {"episode_id": episode, "task": task})
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "checkpoint_error"), refused.text
        assert again.started == []
        right = await fleet.post("agent", "/run", {**RUN, "episode_id": {"rollout_id": "r1", "attempt": 1}})
        assert right.json() == {"turns": 3}
        assert again.started == [1]

    run(test)


def test_one_execution_per_attempt_whoever_asks() -> None:
    """Repeats join the one execution and get one body and one receipt; another task is refused. Covers: I10, I68."""

    async def test(fleet: Fleet) -> None:
        loop = Loop()
        await started(fleet, loop)
        async with trio.open_nursery() as nursery:
            caller = Caller(fleet, nursery)
            for _ in range(3):
                caller.run()
            await settle()
            other = await fleet.post("agent", "/run", {**RUN, "task": {"turns": 8}})
            assert other.json()["error"]["code"] == "duplicate_execution"
            loop.allow(9)
        assert loop.started == [0]
        assert len({reply.headers[RECEIPT_HEADER] for reply in caller.replies}) == 1
        late = await fleet.post("agent", "/run", RUN)
        assert late.headers[RECEIPT_HEADER] == caller.replies[0].headers[RECEIPT_HEADER]

    run(test)


def test_an_execution_outlives_its_caller() -> None:
    """A caller that leaves does not end the rollout; the next one gets its result. Covers: I66."""

    async def test(fleet: Fleet) -> None:
        loop = Loop()
        await started(fleet, loop)
        with trio.move_on_after(1):
            await fleet.post("agent", "/run", RUN)
        loop.allow(9)
        await settle()
        assert (await fleet.post("agent", "/run", RUN)).json() == {"turns": 3}
        assert loop.started == [0]

    run(test)


def test_a_result_is_kept_until_its_exact_receipt_comes_back() -> None:
    """Wrong receipts release nothing; the exact one does, twice with the same answer. Covers: I15, I66."""

    async def test(fleet: Fleet) -> None:
        loop = Loop()
        loop.allow(9)
        await started(fleet, loop)
        receipt = json.loads((await fleet.post("agent", "/run", RUN)).headers[RECEIPT_HEADER])
        url = fleet.network.url("agent") + "/ng-control/v1/results"
        listed = (await fleet.client.get(url, headers=AUTH)).json()["receipts"]
        assert listed == [receipt]

        async def acknowledge(value: Any) -> dict[str, Any]:
            reply = await fleet.client.post(url + "/acknowledge", json={"receipts": [value]}, headers=AUTH)
            assert reply.status_code == 200, reply.text
            return dict(reply.json())

        swapped = receipt | {"result_identity": "0" * 32}
        assert (await acknowledge(swapped))["mismatched"] == [swapped]
        unknown = receipt | {"rollout_id": "other"}
        assert (await acknowledge(unknown))["unknown"] == [unknown]
        assert (await fleet.client.get(url, headers=AUTH)).json()["receipts"] == [receipt]
        for _ in range(2):
            assert (await acknowledge(receipt))["acknowledged"] == [receipt]
        assert (await fleet.client.get(url, headers=AUTH)).json()["receipts"] == []
        gone = await fleet.post("agent", "/run", RUN)
        assert (gone.status_code, gone.json()["error"]["code"]) == (409, "result_released")

    run(test)


def test_an_acknowledgement_of_an_older_life_releases_nothing() -> None:
    """The server has heard of a later one, whose base may not hold that result. Covers: I66, I98."""

    async def test(fleet: Fleet) -> None:
        loop = Loop()
        loop.allow(9)
        await started(fleet, loop)
        receipt = json.loads((await fleet.post("agent", "/run", RUN)).headers[RECEIPT_HEADER])
        await fleet.control("agent", "resume", "rs-000003-000001", headers={EPOCH_HEADER: "3"})
        url = fleet.network.url("agent") + "/ng-control/v1/results"

        async def acknowledge(epoch: str) -> httpx.Response:
            headers = AUTH | {EPOCH_HEADER: epoch}
            return await fleet.client.post(url + "/acknowledge", json={"receipts": [receipt]}, headers=headers)

        zombie = await acknowledge("2")
        assert (zombie.status_code, zombie.json()["error"]["code"]) == (409, "stale_epoch")
        assert (await fleet.client.get(url, headers=AUTH)).json()["receipts"] == [receipt]
        assert (await acknowledge("3")).json()["acknowledged"] == [receipt]

    run(test)


def test_calls_about_results_for_another_process_have_no_effect() -> None:
    """Listing and acknowledging are meant for one process, as all of the control plane but status. Covers: S59."""

    async def test(fleet: Fleet) -> None:
        loop = Loop()
        loop.allow(9)
        await started(fleet, loop)
        receipt = json.loads((await fleet.post("agent", "/run", RUN)).headers[RECEIPT_HEADER])
        url = fleet.network.url("agent") + "/ng-control/v1/results"
        here = str((await fleet.status("agent"))["incarnation"])
        acknowledgement = {"receipts": [receipt]}
        for meant, status in (("0" * 32, 409), (here, 200)):
            headers = AUTH | {INCARNATION_HEADER: meant}
            listed = await fleet.client.get(url, headers=headers)
            acknowledged = await fleet.client.post(url + "/acknowledge", json=acknowledgement, headers=headers)
            assert [listed.status_code, acknowledged.status_code] == [status] * 2
            if status == 409:
                assert {each.json()["error"]["code"] for each in (listed, acknowledged)} == {"stale_incarnation"}
        assert (listed.json()["receipts"], acknowledged.json()["acknowledged"]) == ([receipt], [receipt])

    run(test)


def test_a_retired_attempt_ends_and_is_fenced() -> None:
    """Retire stops the loop; its caller and every late call get stale_attempt. Covers: I6, I7."""

    async def test(fleet: Fleet) -> None:
        loop = Loop()
        await started(fleet, loop)
        async with trio.open_nursery() as nursery:
            caller = Caller(fleet, nursery)
            caller.run()
            await settle()
            assert (await fleet.control("agent", "retire", episode_ids=SCOPE)).json() == {"retired": ["r1"]} | _stamp(
                await fleet.control("agent", "retire", episode_ids=SCOPE)
            )
        assert caller.replies[0].json()["error"]["code"] == "stale_attempt"
        late = await fleet.post("agent", "/run", RUN)
        assert late.json()["error"]["code"] == "stale_attempt"
        assert (await fleet.status("agent"))["report"]["counts"] == {"sessions": 0, "at_boundary": 0}

    run(test)


def test_retiring_a_finished_attempt_keeps_its_result() -> None:
    """Its receipt stays in the list, and is still the one that releases it. Covers: I70."""

    async def test(fleet: Fleet) -> None:
        loop = Loop()
        loop.allow(9)
        await started(fleet, loop)
        receipt = json.loads((await fleet.post("agent", "/run", RUN)).headers[RECEIPT_HEADER])
        assert (await fleet.control("agent", "retire", episode_ids=SCOPE)).status_code == 200
        url = fleet.network.url("agent") + "/ng-control/v1/results"
        assert (await fleet.client.get(url, headers=AUTH)).json()["receipts"] == [receipt]
        reply = await fleet.client.post(url + "/acknowledge", json={"receipts": [receipt]}, headers=AUTH)
        assert reply.json()["acknowledged"] == [receipt]

    run(test)


def _stamp(reply: httpx.Response) -> dict[str, Any]:
    return {name: reply.json()[name] for name in ("server_ts", "incarnation", "epoch")}


def test_the_last_turn_of_a_step_budget_is_no_boundary() -> None:
    """At the limit `boundary` writes nothing and says so; restored steps count. Covers: I63, S19."""

    async def test(fleet: Fleet) -> None:
        loop = Loop()
        loop.allow(9)
        await started(fleet, loop, max_steps=2)
        assert (await fleet.post("agent", "/run", RUN)).json() == {"turns": 2, "stopped": True}
        assert fleet_session(loop).steps_used == 2
        assert fleet_session(loop).boundary.index == 0

    run(test)


def test_activations_of_a_session_are_counted_and_a_repeat_gets_the_earlier_reply() -> None:
    """The same index again is answered again; one out of order is refused. Covers: I57."""

    async def test(fleet: Fleet) -> None:
        loop = Loop()
        loop.allow(9)
        await started(fleet, loop)
        opened = {"agent_session_id": "s1", "episode_id": {"rollout_id": "r1"}}
        assert (await fleet.post("agent", "/v1/agent_sessions", opened)).json() == {"agent_session_id": "s1"}
        path = "/ng-rollout/r1/v1/responses"
        task = {"turns": 3}
        replies = [await fleet.post("agent", path, task, headers={ACTIVATION_HEADER: "1"}) for _ in range(2)]
        assert [reply.json() for reply in replies] == [{"turns": 3}] * 2
        assert loop.started == [0]
        for index in ("3", "0", "x"):
            refused = await fleet.post("agent", path, task, headers={ACTIVATION_HEADER: index})
            assert refused.json()["error"]["code"] == "activation_out_of_order", refused.text
        closed = await fleet.post("agent", "/ng-rollout/r1/v1/agent_sessions/close", opened)
        assert closed.status_code == 200
        lost = await fleet.post("agent", path, task, headers={ACTIVATION_HEADER: "2"})
        assert lost.json()["error"]["code"] == "session_lost"

    run(test)


def test_a_session_that_answered_is_restored_with_its_answer() -> None:
    """After a restore the same activation index gets the recorded reply, and the loop does not run. Covers: I57."""

    async def test(fleet: Fleet) -> None:
        loop = Loop()
        loop.allow(9)
        await started(fleet, loop)
        opened = {"agent_session_id": "s1", "episode_id": {"rollout_id": "r1"}}
        await fleet.post("agent", "/v1/agent_sessions", opened)
        task = {"turns": 3}
        await fleet.post("agent", "/ng-rollout/r1/v1/responses", task, headers={ACTIVATION_HEADER: "1"})
        await committed(fleet)
        again = Loop()
        await started(fleet, again)
        await fleet.control("agent", "restore", "rs", checkpoint_dir=str(ROOT / "ck"), episode_ids=SCOPE)
        await fleet.control("agent", "resume", "rs")
        reply = await fleet.post("agent", "/ng-rollout/r1-a1/v1/responses", task, headers={ACTIVATION_HEADER: "1"})
        assert reply.json() == {"turns": 3}
        assert again.started == []

    run(test)


def test_s08_a_commit_names_the_episodes_that_the_agent_drives_itself() -> None:
    """A session that an environment opened is not among them, one of `/run` is, and owns its record. Covers: S8."""

    async def test(fleet: Fleet) -> None:
        loop = Loop()
        loop.allow(1)
        await started(fleet, loop)
        await fleet.post("agent", "/v1/agent_sessions", {"agent_session_id": "s2", "episode_id": {"rollout_id": "r2"}})
        async with trio.open_nursery() as nursery:
            Caller(fleet, nursery).run()
            await settle()
            nursery.start_soon(fleet.control, "agent", "prepare")
            await settle()
            loop.allow(2)
            await settle()
            scope = [*SCOPE, {"rollout_id": "r2", "attempt": 0}]
            done = await fleet.control("agent", "commit", checkpoint_dir=str(ROOT / "ck"), episode_ids=scope)
            assert done.status_code == 200, done.text
            assert done.json()["own_episodes"] == ["r1"]
            assert done.json()["episode_ids"] == ["r1", "r2"]
            part = read_part(fleet.disk, ROOT / "ck", kind="agent", instance="agent")
            owned = {each["episode_id"]["rollout_id"]: each.get("episode") is not None for each in part.records}
            assert owned == {"r1": True, "r2": False}
            nursery.cancel_scope.cancel()

    run(test)


def test_new_work_is_refused_while_closed_and_needs_an_identity() -> None:
    """`/run` and new sessions get admission_closed; a call that names no rollout gets rollout_id_required."""

    async def test(fleet: Fleet) -> None:
        await started(fleet, Loop())
        await fleet.control("agent", "prepare")
        opened = {"agent_session_id": "s1", "episode_id": {"rollout_id": "r1"}}
        for path, body in (("/run", RUN), ("/v1/agent_sessions", opened)):
            refused = await fleet.post("agent", path, body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "admission_closed")
        nameless = await fleet.post("agent", "/v1/responses", {})
        assert (nameless.status_code, nameless.json()["error"]["code"]) == (400, "rollout_id_required")
        assert (await fleet.client.get(fleet.network.url("agent") + "/livez")).status_code == 404

    run(test)


def test_one_rollout_that_fails_leaves_its_neighbours_alone() -> None:
    """A handler's exception is that rollout's 500, and is no result. Covers: S42."""

    async def test(fleet: Fleet) -> None:
        loop = Loop()
        loop.allow(9)
        await started(fleet, loop)
        broken = await fleet.post("agent", "/run", {"episode_id": {"rollout_id": "r2"}, "task": {}})
        assert (broken.status_code, broken.json()["error"]["code"]) == (500, "execution_failed")
        assert RECEIPT_HEADER not in broken.headers
        assert (await fleet.post("agent", "/run", RUN)).json() == {"turns": 3}
        assert (await fleet.status("agent"))["report"]["ready"] is True

    run(test)


def test_off_is_the_application_itself() -> None:
    """With checkpointing off `wrap` returns the application; sessions hold the task and cost nothing. Covers: I76."""

    async def test(fleet: Fleet) -> None:
        agent = Agent("agent", Settings())

        async def run_loop(request: Request) -> Response:
            async with agent.session(request.scope, task=await request.json()) as session:
                assert session.restored(Count) is None
                assert await session.boundary(Count(1))
                return session.finish({"task": session.task})

        app = Starlette(routes=[Route("/run", run_loop, methods=["POST"])])
        assert agent.wrap(app) is app
        await fleet.start("agent", app)
        reply = await fleet.post("agent", "/run", RUN)
        plain = JSONResponse({"task": RUN["task"]})
        assert reply.content == plain.body
        assert set(reply.headers) == {"content-length", "content-type"}

    run(test)


def test_a_boundary_after_finish_is_an_error() -> None:
    """The last turn of a rollout is no boundary."""

    async def test(_fleet: Fleet) -> None:
        agent = Agent("agent", Settings())
        async with agent.session({}, task={}) as session:
            session.finish({})
            with pytest.raises(SessionError, match="after finish"):
                await session.boundary({})

    run(test)


def test_a_late_model_reply_is_held_while_the_agent_is_closed() -> None:
    """An agent that waits for a model is quiet, and what comes late is taken only after resume. Covers: I24."""

    async def test(fleet: Fleet) -> None:
        generation = trio.Event()
        seen: list[str] = []

        async def slow_policy(request: Request) -> Response:
            await generation.wait()
            return JSONResponse({"choices": [{"message": {"role": "assistant", "content": "1"}}]})

        agent = Agent(
            "agent", fleet.config("policy_model"), seams=fleet.seams("agent"), transport=fleet.network.transport()
        )

        async def run_loop(request: Request) -> Response:
            async with agent.session(request.scope, task=await request.json()) as session:
                await session.client("policy_model").post("/v1/chat/completions", {"messages": []})
                seen.append("answer")
                return session.finish({})

        path = "/ng-rollout/{key}/v1/chat/completions"
        await fleet.start("policy_model", Starlette(routes=[Route(path, slow_policy, methods=["POST"])]))
        await fleet.start("agent", agent.wrap(Starlette(routes=[Route("/run", run_loop, methods=["POST"])])))
        async with trio.open_nursery() as nursery:
            Caller(fleet, nursery).run()
            await settle()
            prepared = (await fleet.control("agent", "prepare")).json()
            assert prepared["report"]["counts"] == {"sessions": 1, "at_boundary": 1}
            generation.set()
            await settle()
            assert seen == []
            await fleet.control("agent", "resume")
        assert seen == ["answer"]

    run(test)
