"""The shell of every server, its gate and its control plane: what a review found."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from participants.identity import ACTIVATION_HEADER, EPOCH_HEADER, EpisodeId
from participants.net.http import ASGIApp
from participants.servers.agent import Agent
from participants.servers.asgi import Shell
from participants.servers.calls import Deadline, Prepare, Resume
from participants.servers.codecs import attrs_codec
from participants.servers.modes import Mode
from participants.servers.resources import Resources, Verify
from participants.servers.session_book import SessionBook
from participants.serving.testing import InMemoryNetwork
from participants.settings import Settings
from statecore.seams import MemoryDisk
from tests.scenario_fleet import Callers, run_body, scope, start
from tests.served_kinds import AUTH, CONTROL, Fleet, run, settle
from tests.small_job import ROOT, Counter, counter_resources, counting_agent, seams, settings
from tests.whole_job import Turnstile

R1 = "/ng-rollout/r1"


def code_of(reply: Any) -> str:
    return str(reply.json()["error"]["code"])


# --- shutting down


def test_a_server_that_ends_while_it_is_closed_lets_no_held_call_into_a_frozen_session() -> None:
    """What it held is told that the server is gone; nothing moves behind the cut. Covers: I16, I24, I74, S65."""

    async def test(fleet: Fleet) -> None:
        app = counter_resources(fleet.config(), fleet.seams("tools"))
        assert isinstance(app, Shell)
        await fleet.start("tools", app)
        await fleet.post("tools", f"{R1}/seed_session")
        assert (await fleet.control("tools", "prepare")).json()["phase"] == "prepared"
        async with trio.open_nursery() as nursery:
            callers = Callers(fleet, nursery)
            callers.post("held", "tools", f"{R1}/increment", {"by": 1})
            await settle()
            app.before_shutdown()
        assert code_of(callers.replies["held"]) == "participant_lost"
        assert code_of(await fleet.post("tools", f"{R1}/increment", {"by": 1})) == "participant_lost"
        status = await fleet.status("tools")
        assert (status["phase"], status["report"]["counts"]["inflight"]) == ("prepared", 0)

    run(test)


def test_a_loop_that_is_parked_stays_parked_when_its_server_ends() -> None:
    """It ends with the server, without a turn behind the cut and without an answer that may be taken for one."""

    async def test(fleet: Fleet) -> None:
        policy = Turnstile()
        await start(fleet, policy, "tools", "simple_agent", "policy_model")
        await fleet.start("simple_agent", app := counting_agent(
            fleet.config("policy_model", "tools"), fleet.seams("a"), fleet.network.transport("simple_agent"), seeds=True
        ))  # fmt: skip
        assert isinstance(app, Shell)
        async with trio.open_nursery() as nursery:
            callers = Callers(fleet, nursery)
            callers.run("simple_agent")
            await settle()
            await fleet.control("simple_agent", "prepare")
            policy.allow("r1", 3)
            await settle()
            app.before_shutdown()
            await settle()
            assert policy.generated["r1"] == 1 and "run" not in callers.replies
            nursery.cancel_scope.cancel()

    run(test)


# --- numbers off the wire


@pytest.mark.parametrize("kind", ["int", "epoch"])
def test_a_number_that_is_too_large_is_refused_in_words(kind: str) -> None:
    """Neither a deadline that no float holds nor an epoch of 5,000 digits is a failure of the server."""

    async def test(fleet: Fleet) -> None:
        await fleet.start("tools", counter_resources(fleet.config(), fleet.seams("tools")))
        deadline = "1" + "0" * 400 if kind == "int" else "1790000010"
        headers = AUTH | ({EPOCH_HEADER: "9" * 5000} if kind == "epoch" else {})
        body = f'{{"checkpoint_id":"c1","deadline_ts":{deadline}}}'.encode()
        url = fleet.network.url("tools") + CONTROL + "prepare"
        reply = await fleet.client.post(url, content=body, headers=headers)
        assert reply.status_code == (422 if kind == "int" else 409), reply.text
        assert (await fleet.status("tools"))["phase"] == "idle"

    run(test)


def test_an_activation_index_of_many_digits_is_out_of_order() -> None:
    """It is refused as any other index that does not follow."""

    async def test(fleet: Fleet) -> None:
        await start(fleet, Turnstile(), "simple_agent")
        opening = {"agent_session_id": "s", "episode_id": {"rollout_id": "r1"}}
        await fleet.post("simple_agent", "/v1/agent_sessions", opening)
        headers = {ACTIVATION_HEADER: "9" * 5000}
        reply = await fleet.post("simple_agent", f"{R1}/v1/responses", {}, headers=headers)
        assert code_of(reply) == "activation_out_of_order"

    run(test)


def test_the_sessions_below_an_attempt_are_found_however_high_it_is() -> None:
    """An attempt of twelve digits costs no more than one of two."""
    book: SessionBook[None] = SessionBook()
    assert book.below(EpisodeId("r1", 10**12)) == []

    async def test(fleet: Fleet) -> None:
        await fleet.start("tools", counter_resources(fleet.config(), fleet.seams("tools")))
        await fleet.post("tools", f"{R1}-a3/seed_session")
        assert (await fleet.post("tools", f"{R1}-a{10**12}/seed_session")).status_code == 200
        assert (await fleet.status("tools"))["report"]["counts"]["sessions"] == 1
        assert code_of(await fleet.post("tools", f"{R1}-a3/increment", {"by": 1})) == "stale_attempt"

    run(test)


# --- who is calling


def test_a_data_call_of_a_newer_epoch_is_served_by_a_server_of_a_foreign_launcher() -> None:
    """Only an older epoch than the highest seen is refused where none is required (section 11). Covers: S45."""

    async def test(fleet: Fleet) -> None:
        await fleet.start("tools", counter_resources(fleet.config(), fleet.seams("tools")))
        await fleet.control("tools", "resume", "ck-000003-000001", headers={EPOCH_HEADER: "3"})
        newer = await fleet.post("tools", f"{R1}/seed_session", headers={EPOCH_HEADER: "4"})
        assert newer.status_code == 200, newer.text
        older = await fleet.post("tools", f"{R1}/increment", {"by": 1}, headers={EPOCH_HEADER: "2"})
        assert code_of(older) == "stale_epoch"

    run(test)


@pytest.mark.parametrize("own", ["a text", 7, ["r1"], {"season": 2, "number": 4}])
def test_a_tools_own_field_named_episode_id_is_no_identity(own: Any) -> None:
    """`episode_id` is ours only in `/run` and the agents' session routes; elsewhere what has another form is the
    application's. Covers: I74, S20.
    """

    async def test(fleet: Fleet) -> None:
        await fleet.start("tools", counter_resources(fleet.config(), fleet.seams("tools")))
        await fleet.post("tools", f"{R1}/seed_session")
        done = await fleet.post("tools", f"{R1}/increment", {"by": 1, "episode_id": own})
        assert done.json() == {"value": 1}, done.text
        bad = await fleet.post("tools", "/run", {"episode_id": own})
        assert code_of(bad) == "invalid_rollout_id"

    run(test)


@pytest.mark.parametrize("name", ["\\u005fng_rollout_id", "_ng_rollout_\\u0069d"])
def test_an_identity_with_an_escaped_name_is_seen(name: str) -> None:
    """Whatever JSON spells the field's name with, two identities that differ are refused. Covers: I5."""

    async def test(fleet: Fleet) -> None:
        await fleet.start("tools", counter_resources(fleet.config(), fleet.seams("tools")))
        url = fleet.network.url("tools") + f"{R1}/seed_session"
        refused = await fleet.client.post(url, content=f'{{"{name}":"r2"}}'.encode())
        assert code_of(refused) == "execution_identity_mismatch"

    run(test)


# --- prepare


def test_a_prepare_whose_checkpoint_ended_says_idle_whatever_came_after_it() -> None:
    """Another checkpoint that is prepared by then is not its answer. Covers: S7."""

    async def test(fleet: Fleet) -> None:
        app: Any = counter_resources(fleet.config(), fleet.seams("tools"))
        await fleet.start("tools", app)
        participant = app.server.participant
        participant.admission.enter_or_refuse()  # something moves
        async with trio.open_nursery() as nursery:
            callers = Callers(fleet, nursery)
            body = {"checkpoint_id": "c1", "deadline_ts": fleet.now() + 60}
            callers.post("c1", "tools", f"{CONTROL}prepare", body, headers=AUTH)
            await settle()
            address: Any = {"deadline_ts": Deadline(fleet.now() + 60)}
            # nothing below waits, so the one that waits sees only what is left of it
            await participant.perform(Resume(checkpoint_id="c1", **address), epoch=None, incarnation=None)
            participant.admission.leave()
            after = await participant.perform(Prepare(checkpoint_id="c2", **address), epoch=None, incarnation=None)
            assert after["phase"] == "prepared"
        assert callers.replies["c1"].json()["phase"] == "idle"

    run(test)


def test_s10_a_seed_that_a_restart_only_server_waits_for_is_named() -> None:
    """It blocks the checkpoint, so it is among the blockers."""

    async def test(fleet: Fleet) -> None:
        server = Resources[Counter]("tools", fleet.config(), seams=fleet.seams("tools"))
        hold = trio.Event()

        async def seed(request: Request) -> Response:
            await hold.wait()
            return await server.seed(request.scope, Counter())

        app = server.wrap(Starlette(routes=[Route("/seed_session", seed, methods=["POST"])]))
        await fleet.start("tools", app)
        async with trio.open_nursery() as nursery:
            Callers(fleet, nursery).post("seed", "tools", f"{R1}/seed_session")
            await settle()
            waiting = (await fleet.control("tools", "prepare", within_s=1)).json()
            assert (waiting["phase"], waiting["report"]["blockers"]) == ("preparing", ["r1"])
            hold.set()
        assert (await fleet.control("tools", "prepare")).json()["phase"] == "prepared"

    run(test)


def test_s10_a_retired_activation_that_does_not_end_is_named_and_waited_for() -> None:
    """Retire says when its work has stopped, also the second time it is asked. Covers: I8, I18."""

    async def test(fleet: Fleet) -> None:
        agent = Agent("simple_agent", fleet.config(), seams=fleet.seams("agent"))
        end = trio.Event()

        async def stubborn(request: Request) -> Response:
            async with agent.session(request.scope, task=await request.json()):
                with trio.CancelScope(shield=True):
                    await end.wait()
                await trio.lowlevel.checkpoint()
            return JSONResponse({})

        routes = [Route("/v1/responses", stubborn, methods=["POST"])]
        await fleet.start("simple_agent", agent.wrap(Starlette(routes=routes)))
        opening = {"agent_session_id": "s", "episode_id": {"rollout_id": "r1"}}
        await fleet.post("simple_agent", "/v1/agent_sessions", opening)
        async with trio.open_nursery() as nursery:
            callers = Callers(fleet, nursery)
            callers.post("activation", "simple_agent", f"{R1}/v1/responses", {})
            await settle()
            for _ in range(2):
                cut_short = await fleet.control("simple_agent", "retire", within_s=1, episode_ids=scope())
                assert code_of(cut_short) == "deadline_exceeded"
            waiting = (await fleet.control("simple_agent", "prepare", within_s=1)).json()
            assert (waiting["phase"], waiting["report"]["blockers"]) == ("preparing", ["r1"])
            await fleet.control("simple_agent", "resume")
            end.set()
        assert code_of(callers.replies["activation"]) == "stale_attempt"
        retired = await fleet.control("simple_agent", "retire", "c2", episode_ids=scope())
        assert retired.json()["retired"] == ["r1"]
        assert (await fleet.status("simple_agent"))["report"]["counts"]["sessions"] == 0

    run(test)


def test_forget_waits_for_a_retire_that_was_cut_short() -> None:
    """As long as a session of a retired attempt is there, its mark stays. Covers: I6, I8."""

    async def test(fleet: Fleet) -> None:
        end = trio.Event()

        async def stubborn() -> None:
            with trio.CancelScope(shield=True):
                await end.wait()

        await fleet.start("tools", counter_resources(fleet.config(), fleet.seams("tools"), before=stubborn))
        await fleet.post("tools", f"{R1}/seed_session")
        async with trio.open_nursery() as nursery:
            Callers(fleet, nursery).post("tool", "tools", f"{R1}/increment", {"by": 1})
            await settle()
            cut_short = await fleet.control("tools", "retire", within_s=1, episode_ids=scope())
            assert code_of(cut_short) == "deadline_exceeded"
            early = await fleet.control("tools", "forget", rollout_ids=["r1"])
            assert code_of(early) == "retire_incomplete"
            assert code_of(await fleet.post("tools", f"{R1}/increment", {"by": 1})) == "stale_attempt"
            end.set()
        await fleet.control("tools", "retire", episode_ids=scope())
        assert (await fleet.control("tools", "forget", rollout_ids=["r1"])).json()["forgotten"] == ["r1"]

    run(test)


# --- what goes wrong inside


def test_a_control_call_that_fails_inside_is_answered_in_our_words() -> None:
    """A codec that breaks at export is no lost server: 500 with our body and process, and commit can be tried again."""

    async def test(fleet: Fleet) -> None:
        broken = {"now": False}
        plain = attrs_codec(Counter)

        class Breaking:
            name = plain.name

            def export(self, state: Counter) -> Any:
                if broken["now"]:
                    raise RuntimeError("no export today")
                return plain.export(state)

            def load(self, data: Any) -> Counter:
                return plain.load(data)

        await fleet.start("tools", counter_resources(fleet.config(), fleet.seams("tools"), codec=Breaking()))
        await fleet.post("tools", f"{R1}/seed_session")
        await fleet.control("tools", "prepare")
        broken["now"] = True
        body: Any = {"checkpoint_dir": str(ROOT / "ck"), "episode_ids": scope()}
        failed = await fleet.control("tools", "commit", **body)
        assert failed.status_code == 500
        assert code_of(failed) == "internal_error"
        assert failed.headers["x-statecore-incarnation"]
        broken["now"] = False
        assert (await fleet.control("tools", "commit", **body)).json()["episode_ids"] == ["r1"]

    run(test)


@pytest.mark.trio
async def test_an_application_that_ignores_the_lifespan_is_served() -> None:
    """One that just returns from it, as small middlewares do, gets ours all the same."""

    async def plain(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await JSONResponse({"ok": True})(scope, receive, send)

    async with InMemoryNetwork() as network:
        server = Resources[Counter]("tools", settings(), seams=seams(MemoryDisk(), 1))
        await network.start("tools", server.wrap(plain))
        async with network.client() as client:
            assert (await client.post(network.url("tools") + "/x")).json() == {"ok": True}
        assert network.errors == []


def test_a_full_server_is_asked_again_and_is_no_part_of_the_conversation() -> None:
    """The tool call that found no place to wait is sent again, and the agent sees only its result. Covers: I74, S9."""

    async def test(fleet: Fleet) -> None:
        policy = Turnstile()
        await start(fleet, policy, "policy_model")
        await fleet.start("tools", counter_resources(fleet.config(max_held=1), fleet.seams("tools")))
        config = fleet.config("policy_model", "tools")
        await fleet.start("simple_agent", counting_agent(
            config, fleet.seams("agent"), fleet.network.transport("simple_agent"), seeds=True
        ))  # fmt: skip
        async with trio.open_nursery() as nursery:
            callers = Callers(fleet, nursery)
            callers.run("simple_agent", turns=1)
            await settle()
            await fleet.control("tools", "prepare")
            callers.post("other", "tools", "/ng-rollout/r2/seed_session")
            policy.allow("r1", 1)
            await settle()
            await fleet.control("tools", "resume")
        assert [each["content"] for each in callers.replies["run"].json()["messages"]] == ["r1", "1", "1"]

    run(test)


# --- a restart-only agent


def restarting(fleet: Fleet, name: str, turns: list[str], hold: trio.Event) -> ASGIApp:
    agent = Agent(
        "simple_agent", fleet.config("gone"), mode=Mode.RESTART_ONLY, seams=fleet.seams("agent"),
        transport=fleet.network.transport("simple_agent"),
    )  # fmt: skip

    async def loop(request: Request) -> Response:
        async with agent.session(request.scope, task=await request.json()) as session:
            turns.append(request.url.path)
            await hold.wait()
            if name == "gone":
                await session.client("gone").post("/seed_session")
            await session.boundary({"turn": 1})
            return session.finish({"turns": 1})

    routes = [Route("/run", loop, methods=["POST"]), Route("/v1/responses", loop, methods=["POST"])]
    return agent.wrap(Starlette(routes=routes))


def test_a_restart_only_agent_runs_an_attempt_once() -> None:
    """A `/run` that is sent again joins the one execution, which blocks no checkpoint. Covers: I10, I39, I68."""

    async def test(fleet: Fleet) -> None:
        started: list[str] = []
        hold = trio.Event()
        await fleet.start("simple_agent", restarting(fleet, "", started, hold))
        async with trio.open_nursery() as nursery:
            callers = Callers(fleet, nursery)
            callers.post("first", "simple_agent", "/run", run_body())
            callers.post("again", "simple_agent", "/run", run_body())
            await settle()
            prepared = (await fleet.control("simple_agent", "prepare")).json()
            assert (prepared["phase"], prepared["report"]["restarts"]) == ("prepared", ["r1"])
            assert code_of(await fleet.post("simple_agent", "/run", {**run_body(), "episode_id": {"rollout_id": "r2"}}))
            hold.set()
        assert started == ["/run"]
        first, again = callers.replies["first"], callers.replies["again"]
        assert first.json() == again.json() == {"turns": 1}
        assert first.headers["x-ng-result-receipt"] == again.headers["x-ng-result-receipt"]
        done: Any = {"checkpoint_dir": str(ROOT / "ck"), "episode_ids": []}
        assert (await fleet.control("simple_agent", "commit", **done)).json()["episode_ids"] == []

    run(test)


@pytest.mark.parametrize("path", ["/run", f"{R1}/v1/responses"])
def test_s65_a_server_that_a_restart_only_agent_lost_is_no_result(path: str) -> None:
    """Its caller is told that a participant is lost, not that the agent failed. Covers: I97."""

    async def test(fleet: Fleet) -> None:
        hold = trio.Event()
        hold.set()
        await fleet.start("simple_agent", restarting(fleet, "gone", [], hold))
        reply = await fleet.post("simple_agent", path, run_body())
        assert code_of(reply) == "participant_lost", reply.text

    run(test)


@pytest.mark.parametrize("path", ["/run", f"{R1}/v1/responses"])
def test_retire_stops_the_work_of_a_restart_only_agent(path: str) -> None:
    """After its reply nothing of the attempt runs, and its caller has been told. Covers: I6, I7."""

    async def test(fleet: Fleet) -> None:
        started: list[str] = []
        await fleet.start("simple_agent", restarting(fleet, "", started, trio.Event()))
        async with trio.open_nursery() as nursery:
            callers = Callers(fleet, nursery)
            callers.post("run", "simple_agent", path, run_body())
            await settle()
            assert len(started) == 1
            assert (await fleet.control("simple_agent", "retire", episode_ids=scope())).json()["retired"] == ["r1"]
            assert (await fleet.status("simple_agent"))["report"]["counts"]["inflight"] == 0
        assert code_of(callers.replies["run"]) == "stale_attempt"

    run(test)


# --- off


@pytest.mark.trio
async def test_s04_off_asks_nothing_of_a_codec() -> None:
    """A codec that cannot is found out when checkpointing is on; off, the server serves. Covers: I76."""

    class Cannot:
        name = "cannot"

        def export(self, state: Counter) -> Any:
            raise RuntimeError("cannot")

        def load(self, data: Any) -> Counter:
            raise RuntimeError("cannot")

    async with InMemoryNetwork() as network:
        app = counter_resources(Settings(), seams(MemoryDisk(), 1), codec=Cannot(), verify=Verify.WAIT)
        await network.start("tools", app, lifespan=False)
        async with network.client() as client:
            seeded = await client.post(network.url("tools") + "/seed_session")
            assert seeded.status_code == 200
            cookie = {"cookie": seeded.headers["set-cookie"].partition(";")[0]}
            done = await client.post(network.url("tools") + "/increment", json={"by": 2}, headers=cookie)
            assert done.json() == {"value": 2}
        assert network.errors == []
