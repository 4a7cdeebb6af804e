"""`statecore doctor` on single servers: would their rollouts continue, what is wrong, and the mend."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest
import trio
from attrs import evolve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from participants.commands.server_view import Outlook, Token
from participants.coordination.introduction import Role
from participants.servers.agent import Agent
from participants.servers.resources import Mode
from participants.serving.testing import Call, Fault
from participants.settings import Settings
from statecore.seams import LoopClock
from tests.doctored import (
    CAPABILITIES,
    NOW,
    R1,
    REPORT,
    TOOLS,
    Json,
    doctor,
    one,
    put,
    status_of,
    text,
    told,
    whole,
)
from tests.served_kinds import Fleet, run, settle
from tests.small_job import WALL, counter_resources, counting_agent

# --- what goes well


def test_a_whole_job_would_continue() -> None:
    """All four kinds continue, the judge is no participant; healthy, and each fact the issue names is there."""

    async def test(fleet: Fleet) -> None:
        names = await whole(fleet)
        diagnosis = await doctor(fleet, *names)
        assert diagnosis.healthy
        assert (diagnosis.outlook, diagnosis.findings, diagnosis.notes) == (Outlook.CONTINUES, (), ())
        assert diagnosis.story == "rollouts would continue after a crash"
        env, policy, agent, tools, judge = diagnosis.servers
        assert [each.outlook for each in (env, policy, agent, tools)] == [Outlook.CONTINUES] * 4
        assert [each.kind for each in diagnosis.servers] == ["environment", "model", "agent", "resources", "model"]
        assert (judge.outlook, judge.role, judge.takes_part) == (Outlook.NO_PARTICIPANT, Role.AUXILIARY, False)
        assert (tools.instance, tools.mode, tools.token, tools.workers) == (
            "tools", "export_restore", Token.ACCEPTED, 1,
        )  # fmt: skip
        assert (tools.clock_offset_s, tools.clock_uncertainty_s) == (0.0, 0.0)
        assert (tools.phase, tools.state, tools.checkpoint_id, tools.lease_left_s) == ("idle", "idle", None, None)
        assert tools.incarnation == (await fleet.status("tools"))["incarnation"]

    run(test)


def test_the_text_fits_80_columns_with_and_without_rich() -> None:
    """No line is longer, whether a terminal draws tables or not; the first line is the outlook."""

    async def test(fleet: Fleet) -> None:
        names = await whole(fleet)
        diagnosis = await doctor(fleet, *names, "gone")
        for plain in (True, False):
            lines = text(diagnosis, plain=plain).splitlines()
            assert max(map(len, lines)) <= 80
            assert lines[0].startswith("6 servers: no checkpoint can be taken: http://gone.local cannot take part")
            for name in names:
                assert any(name in line for line in lines)

    run(test)


def test_it_only_reads() -> None:
    """Every call is a GET, and the servers answer afterwards as they did before."""

    async def test(fleet: Fleet) -> None:
        names = await whole(fleet)
        before = [await fleet.status(name) for name in names[:-1]]
        calls: list[str] = []

        def watch(call: Call) -> None:
            if call.source == "doctor":
                calls.append(call.request.method)

        fleet.network.faults = watch
        await doctor(fleet, *names)
        assert set(calls) == {"GET"}
        assert [await fleet.status(name) for name in names[:-1]] == before

    run(test)


# --- modes


@pytest.mark.parametrize(
    ("mode", "outlook", "why"),
    [
        (Mode.EXPORT_RESTORE, Outlook.CONTINUES, "its sessions' state is saved"),
        (Mode.STATELESS, Outlook.CONTINUES, "it keeps nothing of a rollout"),
        (Mode.DRAIN_ONLY, Outlook.STARTS_OVER, "it lets its calls end and exports nothing"),
        (Mode.RESTART_ONLY, Outlook.STARTS_OVER, "it exports nothing (restart_only)"),
    ],
)
def test_the_mode_of_a_resources_server_decides(mode: Mode, outlook: Outlook, why: str) -> None:
    """Continue or start over, with the reason and the mend. Exit code by it."""

    async def test(fleet: Fleet) -> None:
        await fleet.start("tools", counter_resources(fleet.config(), fleet.seams("tools"), mode=mode))
        diagnosis = await doctor(fleet, "tools")
        (server,) = diagnosis.servers
        assert (server.outlook, server.mode, server.findings) == (outlook, mode.value, ())
        assert why in server.reason
        assert diagnosis.healthy is (outlook is Outlook.CONTINUES)
        if outlook is Outlook.STARTS_OVER:
            assert diagnosis.story == "rollouts that touch tools would start over after a crash"
            assert "declare mode export_restore and give it a codec" in server.mend

    run(test)


@pytest.mark.parametrize("mode", [Mode.RESTART_ONLY, Mode.DRAIN_ONLY, Mode.STATELESS])
def test_an_agent_that_exports_nothing_starts_over(mode: Mode) -> None:
    """An agent is never stateless: it holds the conversation."""

    async def test(fleet: Fleet) -> None:
        kind: Any = lambda *args, **more: Agent(*args, mode=mode, **more)  # noqa: E731
        await fleet.start("simple_agent", counting_agent(fleet.config(), fleet.seams("agent"), kind=kind))
        server = await one(fleet, "simple_agent")
        assert server.outlook is Outlook.STARTS_OVER
        assert "pass a boundary after each turn" in server.mend

    run(test)


@pytest.mark.parametrize("role", ["environment", "policy", "agent", "resources"])
@pytest.mark.parametrize(
    ("mode", "why"), [({}, "it declares no mode"), ({"checkpoint_mode": "frozen"}, "its mode 'frozen' is none")]
)
def test_a_mode_that_is_undeclared_or_unknown_means_restart_only(role: str, mode: Json, why: str) -> None:
    """Whatever the role."""
    kind = {"policy": "model"}.get(role, role)

    async def test(fleet: Fleet) -> None:
        said = {"kind": kind, "instance": "x", "instance_role": role}
        await put(fleet, "x", status_of(kind) | NOW, said | mode | NOW)
        server = await one(fleet, "x")
        assert server.outlook is Outlook.STARTS_OVER
        assert server.reason.startswith(why)
        assert server.mend

    run(test)


@pytest.mark.parametrize(
    ("status", "role", "mode", "outlook"),
    [
        (status_of("environment", restored_pending=[]), Role.ENVIRONMENT, "exported", Outlook.CONTINUES),
        (status_of("model"), Role.POLICY, "exported", Outlook.CONTINUES),
        (status_of("agent", accepting=False), Role.AGENT, "exported", Outlook.CONTINUES),
        (status_of("agent"), Role.AGENT, "restart_only", Outlook.STARTS_OVER),
        (status_of("resources", mode="exported"), Role.RESOURCES, "exported", Outlook.CONTINUES),
        (status_of("resources", mode="stateless"), Role.RESOURCES, "stateless", Outlook.CONTINUES),
        (status_of("resources", mode="restart_only"), Role.RESOURCES, "restart_only", Outlook.STARTS_OVER),
        (status_of("resources"), Role.RESOURCES, None, Outlook.STARTS_OVER),
    ],
)
def test_a_server_with_only_a_status_is_taken_for_what_its_kind_says(
    status: Json, role: Role, mode: str | None, outlook: Outlook
) -> None:
    """The wire form: kind `model` without capabilities is the policy; an agent that can park says `accepting`."""

    async def test(fleet: Fleet) -> None:
        await put(fleet, "x", status)
        server = await one(fleet, "x")
        assert (server.role, server.mode, server.outlook, server.findings) == (role, mode, outlook, ())
        assert (server.incarnation, server.epoch, server.clock_offset_s, server.workers) == (None, None, None, None)
        assert [note.partition(",")[0] for note in server.notes] == [
            "it speaks the plain wire form",
            "its replies show no incarnation: a restart is noticed late",
        ]

    run(test)


# --- servers that take no part


def test_no_control_routes_means_no_participant() -> None:
    """404: nothing of it is saved, and the mend says when that is wrong; not healthy alone, fine beside others."""

    async def test(fleet: Fleet) -> None:
        off = Settings()
        await fleet.start("tools", counter_resources(off, fleet.seams("tools")))
        diagnosis = await doctor(fleet, "tools")
        (server,) = diagnosis.servers
        assert (server.outlook, server.role, server.token) == (Outlook.NO_PARTICIPANT, None, Token.NOT_ASKED)
        assert "switch checkpointing on" in server.mend
        assert (diagnosis.healthy, diagnosis.story) == (False, "nothing here takes part in checkpoints")
        await put(fleet, "policy", status_of("model"))
        await put(fleet, "env", status_of("environment", "env"))
        assert (await doctor(fleet, "tools", "policy", "env")).healthy

    run(test)


def test_a_judge_is_never_paused_and_alone_it_is_well() -> None:
    """Auxiliary by its capabilities, without checkpoint routes. Covers: I73"""

    async def test(fleet: Fleet) -> None:
        await whole(fleet)
        diagnosis = await doctor(fleet, "judge")
        assert diagnosis.healthy
        assert "never paused" in told(diagnosis)
        assert diagnosis.servers[0].notes == ()

    run(test)


def test_s1_a_judge_with_checkpoint_routes_is_a_trap_and_said_so() -> None:
    """A coordinator that knows no roles would take it for the policy."""

    async def test(fleet: Fleet) -> None:
        await put(
            fleet, "judge", status_of("model", "judge"),
            {"kind": "model", "instance": "judge", "instance_role": "auxiliary", "checkpoint_mode": "stateless"},
        )  # fmt: skip
        server = await one(fleet, "judge")
        assert (server.outlook, server.takes_part) == (Outlook.NO_PARTICIPANT, False)
        assert "a coordinator that knows no roles would pause it (S1)" in server.notes[0]

    run(test)


@pytest.mark.parametrize("role", [None, "", "judge", 7, [], {}])
def test_s1_capabilities_without_a_role_are_refused_by_name(role: Any) -> None:
    """Nobody guesses, whatever stands where the role should."""

    async def test(fleet: Fleet) -> None:
        await put(fleet, "judge", status_of("model"), {"kind": "model", "instance": "judge", "instance_role": role})
        server = await one(fleet, "judge")
        assert (server.outlook, server.token) == (Outlook.CANNOT_TAKE_PART, Token.ACCEPTED)
        assert server.reason.startswith("its capabilities have no instance_role")
        assert "policy, auxiliary, agent, resources or environment" in server.mend

    run(test)


# --- servers that give no good answer


HTML = Response("<html>hello</html>", media_type="text/html")


@pytest.mark.parametrize(
    ("status", "capabilities", "wrong", "mend"),
    [
        (None, HTML, "it answers capabilities with what cannot be read", "is this the address"),
        (HTML, None, "it answers status with what cannot be read", "is this the address"),
        (JSONResponse([1]), None, "is a JSON array", "is this the address"),
        (None, JSONResponse({**TOOLS, "server_ts": 10**400}), "server_ts that is no number", "is this the address"),
        (None, Response("oops", 500), "it answers capabilities with HTTP 500 http_500", "look at its log"),
        (None, Response("", 502), "it answers capabilities with HTTP 502", "proxy"),
        (None, Response("", 307, {"location": "/x"}), "HTTP 307", "is this the right address"),
        (status_of("toaster"), None, "its status has an unknown kind 'toaster'", "declare instance_role"),
        (None, {**TOOLS, **NOW}, "it has capabilities and no good status: it answers status with HTTP 404", "right"),
    ],
)
def test_an_answer_that_is_none_is_told_with_what_came(status: Any, capabilities: Any, wrong: str, mend: str) -> None:
    """The verdict is *cannot take part*, and there is something to do."""

    async def test(fleet: Fleet) -> None:
        await put(fleet, "tools", status, capabilities)
        server = await one(fleet, "tools")
        assert server.outlook is Outlook.CANNOT_TAKE_PART
        assert wrong in server.reason
        assert mend in server.mend

    run(test)


def test_a_server_that_cannot_be_reached_and_one_that_does_not_answer() -> None:
    """Nobody there is told at once; a server that hangs costs the timeout, and not more."""

    async def hang(_request: Request) -> Response:
        await trio.sleep_forever()
        raise AssertionError

    async def test(fleet: Fleet) -> None:
        await fleet.start("hangs", Starlette(routes=[Route(CAPABILITIES, hang)]))
        began = fleet.now()
        gone, hangs = (await doctor(fleet, "gone", "hangs", timeout_s=7)).servers
        assert fleet.now() - began == 7
        assert "it cannot be reached" in gone.reason
        assert "start it" in gone.mend
        assert "it did not answer in time (capabilities: no answer within 7 s)" in hangs.reason
        assert "--timeout" in hangs.mend

    run(test)


def test_a_wrong_token_is_told_as_such() -> None:
    """Refused by ours and by foreign servers; the token itself is nowhere in the report."""

    async def test(fleet: Fleet) -> None:
        await whole(fleet)
        await put(fleet, "wire", status_of("environment"))
        diagnosis = await doctor(fleet, "tools", "judge", token="wrong-token")
        assert [each.token for each in diagnosis.servers] == [Token.REFUSED] * 2
        assert "it refuses this control token (HTTP 401 unauthorized" in diagnosis.servers[0].reason
        assert "--token-env" in diagnosis.servers[0].mend
        assert "wrong-token" not in text(diagnosis)
        assert (await doctor(fleet, "wire", token="wrong-token")).servers[0].outlook is Outlook.CANNOT_TAKE_PART

    run(test)


def test_a_server_without_the_lifespan_is_told_as_such() -> None:
    """It answers every request that it cannot serve; the report names the mend."""

    async def test(fleet: Fleet) -> None:
        await fleet.network.start("tools", counter_resources(fleet.config(), fleet.seams("tools")), lifespan=False)
        server = await one(fleet, "tools")
        assert "without the ASGI lifespan" in server.reason
        assert "--lifespan on" in server.mend

    run(test)


# --- clocks


@pytest.mark.parametrize(("offset_s", "bound_s", "wrong"), [(4, 5, False), (-6, 5, True), (6, 5, True), (6, 10, False)])
def test_s30_a_clock_that_is_off_by_more_than_the_bound(offset_s: float, bound_s: float, wrong: bool) -> None:
    """Ahead or behind, by how much, and the bound; as a coordinator would refuse its start."""

    async def test(fleet: Fleet) -> None:
        seams = evolve(fleet.seams("tools"), clock=LoopClock(WALL + offset_s))
        await fleet.start("tools", counter_resources(fleet.config(), seams))
        server = await one(fleet, "tools", max_clock_skew_s=bound_s)
        assert server.clock_offset_s == offset_s
        assert (server.outlook is Outlook.CANNOT_TAKE_PART) is wrong
        if wrong:
            side = "ahead of" if offset_s > 0 else "behind"
            assert server.reason == f"its clock is 6.0 s {side} this one, more than 5 s"
            assert "NTP" in server.mend

    run(test)


def test_a_slow_reply_is_not_a_wrong_clock() -> None:
    """What the call took is not known of the clock, and the best of several readings counts."""

    async def test(fleet: Fleet) -> None:
        await fleet.start("tools", counter_resources(fleet.config(), fleet.seams("tools")))
        fleet.network.faults = lambda _call: Fault(reply_s=60)
        server = await one(fleet, "tools", timeout_s=100)
        assert (server.clock_offset_s, server.clock_uncertainty_s, server.findings) == (-30.0, 30.0, ())

    run(test)


# --- what is going on now


def test_an_open_checkpoint_with_its_blockers_by_name() -> None:
    """Phase, id, what is left of the lease, and which rollout is in the way for how long."""

    async def test(fleet: Fleet) -> None:
        done = trio.Event()
        await fleet.start("tools", counter_resources(fleet.config(), fleet.seams("tools"), before=done.wait))
        await fleet.post("tools", f"{R1}/seed_session")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fleet.post, "tools", f"{R1}/increment", {"by": 1})
            await settle()
            running = await one(fleet, "tools")
            assert (running.checkpoint_id, running.blocker_count) == (None, 1)
            prepared = await fleet.control("tools", "prepare", "ck-000001-000003", within_s=2)
            assert prepared.json()["phase"] == "preparing"
            diagnosis = await doctor(fleet, "tools")
            (server,) = diagnosis.servers
            assert (server.phase, server.checkpoint_id, server.lease_left_s) == ("preparing", "ck-000001-000003", 600.0)
            (blocker,) = server.blockers
            assert (blocker.rollout_id, blocker.reason, blocker.waited_s) == ("r1", "/increment runs", 2.0)
            assert "its lease ends in 600 s" in told(diagnosis)
            assert "blocker r1 attempt 0: /increment runs, for 2.0 s" in told(diagnosis)
            assert diagnosis.healthy
            done.set()

    run(test)


def test_results_that_nobody_acknowledged_are_named() -> None:
    """A rollout has finished and its result is kept."""

    async def test(fleet: Fleet) -> None:
        names = await whole(fleet)
        body = {"episode_id": {"rollout_id": "r1", "attempt": 2}, "task": {"question": "go", "turns": 2}}
        assert (await fleet.post("env", "/run", body)).status_code == 200
        diagnosis = await doctor(fleet, *names)
        assert diagnosis.servers[0].retained == ("r1-a2",)
        assert "results 1 result not acknowledged yet: r1-a2" in told(diagnosis)
        assert diagnosis.healthy

    run(test)


def test_live_rollouts_that_start_over_are_named() -> None:
    """A session on a server that exports nothing: who asks another server only still learns of it."""

    async def test(fleet: Fleet) -> None:
        await fleet.start("tools", counter_resources(fleet.config(), fleet.seams("tools"), mode=Mode.RESTART_ONLY))
        await fleet.post("tools", f"{R1}/seed_session")
        assert (await one(fleet, "tools")).restarts == ("r1",)
        await put(fleet, "env", status_of("environment", report={**REPORT, "restarts": ["r1", "r2-a1"]}))
        diagnosis = await doctor(fleet, "env")
        assert (diagnosis.healthy, diagnosis.outlook) == (False, Outlook.STARTS_OVER)
        assert diagnosis.servers[0].outlook is Outlook.CONTINUES
        assert diagnosis.story == "r1, r2-a1 would start over after a crash; other rollouts would continue"

    run(test)


def test_a_server_that_is_closed_since_its_start_is_told() -> None:
    """It calls itself idle on the wire and takes no rollout: no fault, but worth knowing; its epoch is there."""

    async def test(fleet: Fleet) -> None:
        config = fleet.config(epoch=3, epoch_required=True)
        await fleet.start("tools", counter_resources(config, fleet.seams("tools")))
        diagnosis = await doctor(fleet, "tools")
        (server,) = diagnosis.servers
        assert (server.phase, server.state, server.epoch) == ("idle", "born", 3)
        assert "phase idle, closed since its start" in told(diagnosis)
        assert (diagnosis.healthy, len(diagnosis.notes)) == (True, 1)
        resumed = await fleet.control("tools", "resume", "rs-000003-000001", headers={"x-statecore-epoch": "3"})
        assert resumed.status_code == 200
        assert (await one(fleet, "tools")).state == "idle"

    run(test)


def test_a_server_whose_lease_timer_died_must_be_restarted() -> None:
    """Its status answers and calls itself idle; no control call is taken any more."""

    async def test(fleet: Fleet) -> None:
        await put(fleet, "tools", status_of("resources", "tools", state="broken") | NOW, TOOLS | NOW)
        server = await one(fleet, "tools")
        assert (server.outlook, server.mend) == (Outlook.CANNOT_TAKE_PART, "restart it, and look at its log")

    run(test)


# --- one server that contradicts itself


@pytest.mark.parametrize(
    ("capabilities", "status", "wrong"),
    [
        ({"instance_role": "agent"}, {}, "its kind is 'resources' and its role agent"),
        ({"instance": "../tools"}, {"instance": "../tools"}, "its name '../tools' is none"),
        ({"schema_versions": [2, 3]}, {}, "its files are of schema 2, 3"),
        ({"schema_versions": []}, {}, "its files are of schema nothing"),
        ({}, {"instance": "tools2"}, "its capabilities say instance 'tools', its status 'tools2'"),
        ({}, {"kind": "agent"}, "its capabilities say kind 'resources', its status 'agent'"),
        ({}, {"mode": "restart_only"}, "its capabilities say mode 'exported', its status 'restart_only'"),
        ({}, {"workers": 3, "expected_workers": 4}, "3 of its 4 workers have reported"),
    ],
)
def test_a_server_that_is_not_of_one_piece_cannot_take_part(capabilities: Json, status: Json, wrong: str) -> None:
    """Files are named by what it says of itself, and written by all of its workers or by none."""

    async def test(fleet: Fleet) -> None:
        await put(fleet, "tools", status_of("resources", "tools") | NOW | status, TOOLS | NOW | capabilities)
        server = await one(fleet, "tools")
        assert (server.outlook, server.reason) == (Outlook.CANNOT_TAKE_PART, wrong)
        assert server.mend

    run(test)


def test_several_processes_behind_one_address_show_themselves() -> None:
    """Two incarnations in a few calls: the state of a rollout is in one of them. Declared workers are no fault."""

    async def test(fleet: Fleet) -> None:
        turns = cycle(["aa" * 16, "bb" * 16])
        status = status_of("resources", "tools") | NOW
        await put(fleet, "tools", lambda _: status | {"incarnation": next(turns)}, TOOLS | {"incarnation": "aa" * 16})
        server = await one(fleet, "tools")
        assert server.reason == "2 processes answer at this address, each with a state of its own"
        assert (server.incarnation, "one worker" in server.mend) == (None, True)
        workers = {"workers": {"mode": "processes", "count": 2}}
        await put(fleet, "tools", lambda _: status | {"incarnation": next(turns)}, TOOLS | NOW | workers)
        assert (await one(fleet, "tools")).outlook is Outlook.CONTINUES

    run(test)


def test_a_journal_that_loses_lines_is_worth_a_note() -> None:
    """How many and why; one that loses none is not spoken of, nor one that is told of in another form."""

    async def test(fleet: Fleet) -> None:
        journal = {"lines": 40, "lost": 3, "problem": "no space left on device"}
        await put(fleet, "x", status_of("resources", "tools", journal=journal, **NOW), TOOLS)
        assert (await one(fleet, "x")).notes == ("its journal has lost 3 of 40 lines: no space left on device",)
        for fine in ({"lines": 40, "lost": 0, "problem": ""}, {"lost": "3"}, [3], None):
            await put(fleet, "y", status_of("resources", "tools", journal=fine, **NOW), TOOLS)
            assert (await one(fleet, "y")).notes == ()
            fleet.network.kill("y")

    run(test)
