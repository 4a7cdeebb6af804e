"""A resources server: positions, repeated operations, locks, cookies, holds, export and restore."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from participants.identity import (
    OPERATION_HEADER,
    POSITION_HEADER,
    REVISION_HEADER,
    SESSION_HEADER,
    VERIFY_HEADER,
    EpisodeId,
)
from participants.net.http import ASGIApp
from participants.records.positions import Position, next_history
from participants.servers.codecs import Codec, attrs_codec, json_codec
from participants.servers.resources import Mode, Resources, Verify
from participants.settings import Settings
from statecore import DefinitionError, Refused
from statecore.wire import parse
from tests.served_kinds import Fleet, run, settle
from tests.small_job import ROOT, Counter, counter_resources

R1 = "/ng-rollout/r1"


async def started(fleet: Fleet, **options: Any) -> None:
    await fleet.start("tools", counter_resources(fleet.config(), fleet.seams("tools"), **options))


def position(reply: httpx.Response) -> Position:
    return Position.from_header(reply.headers[POSITION_HEADER])


def test_a_mutation_moves_the_position_by_exactly_one() -> None:
    """The revision grows by one on a success and the history chains the operation. Covers: I36, I81."""

    async def test(fleet: Fleet) -> None:
        await started(fleet)
        seeded = await fleet.post("tools", f"{R1}/seed_session")
        assert position(seeded).revision == 0
        assert position(seeded).history == "0" * 32
        first = await fleet.post("tools", f"{R1}/increment", {"by": 2}, headers={OPERATION_HEADER: "op-1"})
        assert first.json() == {"value": 2}
        assert first.headers[REVISION_HEADER] == "1"
        assert position(first).history == next_history("0" * 32, "op-1", 1)
        assert position(first).incarnation == position(seeded).incarnation

    run(test)


def test_a_repeated_operation_gets_its_recorded_reply() -> None:
    """The same operation id again changes nothing and answers alike, whatever its body says. Covers: I57, S61."""

    async def test(fleet: Fleet) -> None:
        await started(fleet)
        await fleet.post("tools", f"{R1}/seed_session")
        again = [
            await fleet.post("tools", f"{R1}/increment", {"by": by}, headers={OPERATION_HEADER: "op-1"})
            for by in (2, 2, 99)
        ]
        assert [reply.json() for reply in again] == [{"value": 2}] * 3
        assert len({reply.headers[POSITION_HEADER] for reply in again}) == 1

    run(test)


def test_s38_a_call_that_is_sent_again_while_it_runs_is_applied_once() -> None:
    """A slow tool that was taken for dead: the second sending waits for the first and gets its reply. Covers: S38."""

    async def test(fleet: Fleet) -> None:
        started_calls = 0
        go_on = trio.Event()

        async def before() -> None:
            nonlocal started_calls
            started_calls += 1
            await go_on.wait()

        await started(fleet, before=before)
        await fleet.post("tools", f"{R1}/seed_session")
        replies: list[httpx.Response] = []

        async def send() -> None:
            headers = {OPERATION_HEADER: "op-1"}
            replies.append(await fleet.post("tools", f"{R1}/increment", {"by": 3}, headers=headers))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            nursery.start_soon(send)
            await settle()
            go_on.set()
        assert [reply.json() for reply in replies] == [{"value": 3}] * 2
        assert ([position(reply).revision for reply in replies], started_calls) == ([1, 1], 1)

    run(test)


def test_s22_a_request_that_failed_before_its_session_existed_blocks_no_prepare() -> None:
    """What was refused or broke while it was seeding is counted out: prepare is ready at once. Covers: S22."""

    async def test(fleet: Fleet) -> None:
        await fleet.start("tools", failing_resources(fleet, json_codec()))  # it cannot carry the state that it is given
        assert (await fleet.post("tools", f"{R1}/seed_session")).status_code == 409
        assert (await fleet.post("tools", f"{R1}/spoil")).json()["error"]["code"] == "session_lost"
        report = (await fleet.control("tools", "prepare", within_s=5)).json()
        assert (report["phase"], report["report"]["blockers"]) == ("prepared", [])
        assert report["report"]["counts"] == {"inflight": 0, "sessions": 0}

    run(test)


def failing_resources(fleet: Fleet, codec: Codec[Any]) -> ASGIApp:
    """A server whose tool changes its state and then fails."""
    tools: Resources[Any] = Resources(
        "tools", fleet.config(), codec=codec, mode=Mode.EXPORT_RESTORE, seams=fleet.seams("tools")
    )

    async def seed(request: Request) -> Response:
        return await tools.seed(request.scope, Counter(5))

    async def spoil(request: Request) -> Response:
        async with tools.mutate(request.scope) as change:
            change.state = Counter(99)
            raise RuntimeError("the tool broke")

    async def look(request: Request) -> Response:
        async with tools.read(request.scope) as session:
            session.reply = {"value": session.state.value}
        return session.response()

    handlers = {"/seed_session": seed, "/spoil": spoil, "/look": look}
    return tools.wrap(Starlette(routes=[Route(path, handler, methods=["POST"]) for path, handler in handlers.items()]))


def test_a_mutation_that_raises_leaves_state_and_position_untouched() -> None:
    """After a failed tool the state and the position are the ones before. Covers: I36."""

    async def test(fleet: Fleet) -> None:
        await fleet.start("tools", failing_resources(fleet, attrs_codec(Counter)))
        seeded = await fleet.post("tools", f"{R1}/seed_session")
        broken = await fleet.post("tools", f"{R1}/spoil")
        assert broken.status_code == 500
        looked = await fleet.post("tools", f"{R1}/look")
        assert looked.json() == {"value": 5}
        assert looked.headers[POSITION_HEADER] == seeded.headers[POSITION_HEADER]
        assert [type(error.error).__name__ for error in fleet.network.errors] == ["RuntimeError"]
        fleet.network.errors.clear()

    run(test)


def test_an_unknown_session_is_lost_and_never_made_again() -> None:
    """A call for a session that is not here is answered session_lost. Covers: S60."""

    async def test(fleet: Fleet) -> None:
        await started(fleet)
        reply = await fleet.post("tools", f"{R1}/increment", {"by": 1})
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "session_lost")
        assert (await fleet.status("tools"))["report"]["counts"]["sessions"] == 0

    run(test)


def test_the_cookie_alone_finds_the_session_and_must_agree_with_the_prefix() -> None:
    """Cookie or prefix name the session; two that disagree are refused; a forged cookie names none. Covers: I5."""

    async def test(fleet: Fleet) -> None:
        await started(fleet)
        cookie = (await fleet.post("tools", f"{R1}/seed_session")).headers["set-cookie"].split(";")[0]
        await fleet.post("tools", "/ng-rollout/r2/seed_session")
        by_cookie = await fleet.post("tools", "/increment", {"by": 1}, headers={"cookie": cookie})
        assert by_cookie.json() == {"value": 1}
        crossed = await fleet.post("tools", "/ng-rollout/r2/increment", {"by": 1}, headers={"cookie": cookie})
        assert crossed.json()["error"]["code"] == "execution_identity_mismatch"
        forged = await fleet.post("tools", "/increment", {"by": 1}, headers={"cookie": cookie + "x"})
        assert forged.json()["error"]["code"] == "session_lost"

    run(test)


def test_a_seed_sent_again_gets_the_same_session_until_something_happened() -> None:
    """A resent seed finds the session; one after a mutation is refused and changes nothing. Covers: I58."""

    async def test(fleet: Fleet) -> None:
        await started(fleet)
        seeds = [await fleet.post("tools", f"{R1}/seed_session") for _ in range(2)]
        assert seeds[0].headers[SESSION_HEADER] == seeds[1].headers[SESSION_HEADER]
        await fleet.post("tools", f"{R1}/increment", {"by": 3})
        late = await fleet.post("tools", f"{R1}/seed_session")
        assert late.json()["error"]["code"] == "checkpoint_error"
        assert (await fleet.post("tools", f"{R1}/increment", {"by": 0})).json() == {"value": 3}

    run(test)


def test_a_seed_sent_again_gets_the_reply_that_it_had() -> None:
    """What the application made of it the second time is not what the session began with. Covers: S61."""
    seeds = 0

    async def test(fleet: Fleet) -> None:
        config, seams = fleet.config(), fleet.seams("tools")
        tools: Resources[Any] = Resources("tools", config, codec=json_codec(), mode=Mode.EXPORT_RESTORE, seams=seams)

        async def seed(request: Request) -> Response:
            nonlocal seeds
            seeds += 1
            return await tools.seed(request.scope, {"seed": seeds}, {"seen": (seeds, "é"), 1: None})

        await fleet.start("tools", tools.wrap(Starlette(routes=[Route("/seed_session", seed, methods=["POST"])])))
        first, again = [await fleet.post("tools", f"{R1}/seed_session") for _ in range(2)]
        assert first.json() == {"seen": [1, "é"], "1": None}
        assert (again.content, again.headers[POSITION_HEADER]) == (first.content, first.headers[POSITION_HEADER])
        assert seeds == 2

    run(test)


def test_calls_are_held_from_prepare_to_resume_and_a_replayable_verify_passes() -> None:
    """While closed, tools and seeds wait and a verify declared replay is served. Covers: I24, I73."""

    async def test(fleet: Fleet) -> None:
        await started(fleet, verify=Verify.REPLAY)
        seeded = await fleet.post("tools", f"{R1}/seed_session")
        assert seeded.headers[VERIFY_HEADER] == "replay"
        assert (await fleet.control("tools", "prepare")).json()["phase"] == "prepared"
        replies: list[httpx.Response] = []

        async def call(path: str, body: Any) -> None:
            replies.append(await fleet.post("tools", path, body))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, f"{R1}/increment", {"by": 1})
            nursery.start_soon(call, "/ng-rollout/r2/seed_session", None)
            await settle()
            assert replies == []
            assert (await fleet.post("tools", f"{R1}/verify")).json() == {"reward": 0}
            assert (await fleet.control("tools", "resume")).json()["idempotent"] is False
        assert sorted(reply.status_code for reply in replies) == [200, 200]

    run(test)


def test_a_caller_that_leaves_while_held_was_never_admitted() -> None:
    """A held call whose caller is gone changes nothing after resume. Covers: I23."""

    async def test(fleet: Fleet) -> None:
        await started(fleet)
        await fleet.post("tools", f"{R1}/seed_session")
        await fleet.control("tools", "prepare")
        with trio.move_on_after(5):
            await fleet.post("tools", f"{R1}/increment", {"by": 7})
        await fleet.control("tools", "resume")
        await settle()
        assert (await fleet.post("tools", f"{R1}/increment", {"by": 1})).json() == {"value": 1}

    run(test)


def test_export_and_restore_keep_the_whole_position() -> None:
    """A session restored under N+1 has state, revision, history, incarnation and operations. Covers: I54, I57, I61,
    S46.
    """

    async def test(fleet: Fleet) -> None:
        await started(fleet)
        await fleet.post("tools", f"{R1}/seed_session")
        before = await fleet.post("tools", f"{R1}/increment", {"by": 4}, headers={OPERATION_HEADER: "op-1"})
        await fleet.control("tools", "prepare")
        scope = [{"rollout_id": "r1", "attempt": 0}]
        where = str(ROOT / "ck")
        committed = await fleet.control("tools", "commit", checkpoint_dir=where, episode_ids=scope)
        assert committed.json()["episode_ids"] == ["r1"], committed.text
        await fleet.network.stop("tools")
        await started(fleet)
        restored = await fleet.control("tools", "restore", "rs", checkpoint_dir=where, episode_ids=scope)
        assert restored.json()["restored"] == ["r1-a1"], restored.text
        await fleet.control("tools", "resume", "rs")
        again = await fleet.post("tools", "/ng-rollout/r1-a1/increment", {"by": 4}, headers={OPERATION_HEADER: "op-1"})
        assert again.json() == {"value": 4}
        assert again.headers[POSITION_HEADER] == before.headers[POSITION_HEADER]
        late = await fleet.post("tools", f"{R1}/increment", {"by": 1})
        assert late.json()["error"]["code"] == "stale_attempt"

    run(test)


def test_one_live_session_is_exported_under_its_lock() -> None:
    """Position and bytes of one session come in one piece; a mutation under way ends first. Covers: I37."""

    async def test(fleet: Fleet) -> None:
        inside, go_on = trio.Event(), trio.Event()

        async def before() -> None:
            inside.set()
            await go_on.wait()

        app: Any = counter_resources(fleet.config(), fleet.seams("tools"), before=before)
        await fleet.start("tools", app)
        session_id = (await fleet.post("tools", f"{R1}/seed_session")).headers[SESSION_HEADER]
        found: list[tuple[Position, bytes]] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fleet.post, "tools", f"{R1}/increment", {"by": 7})
            await inside.wait()

            async def export() -> None:
                found.append(await app.server.export_session(session_id))

            nursery.start_soon(export)
            await settle()
            assert not found
            go_on.set()
        (where, image) = found[0]
        state = parse(image)
        assert (where.revision, state["data"], state["position"]["revision"]) == (1, {"value": 7}, 1)
        with pytest.raises(Refused, match="session_lost"):
            await app.server.export_session("nobody")

    run(test)


def test_a_retired_attempt_is_refused_by_prefix_and_by_cookie() -> None:
    """After retire, late calls get stale_attempt and change nothing. Covers: I6, I7, I8."""

    async def test(fleet: Fleet) -> None:
        await started(fleet)
        cookie = (await fleet.post("tools", f"{R1}/seed_session")).headers["set-cookie"].split(";")[0]
        retired = await fleet.control("tools", "retire", episode_ids=[{"rollout_id": "r1"}])
        assert retired.json()["retired"] == ["r1"]
        for path, headers in ((f"{R1}/increment", {}), ("/increment", {"cookie": cookie})):
            late = await fleet.post("tools", path, {"by": 1}, headers=headers)
            assert late.json()["error"]["code"] == "stale_attempt", late.text
        assert (await fleet.post("tools", f"{R1}/close_session")).status_code == 200

    run(test)


def test_restart_only_serves_on_and_reports_its_rollouts() -> None:
    """A restart_only server never blocks, holds only seeds, and names the rollouts that start over. Covers: I39."""

    async def test(fleet: Fleet) -> None:
        await started(fleet, mode=Mode.RESTART_ONLY, codec=None)
        seeded = await fleet.post("tools", f"{R1}/seed_session")
        assert seeded.headers["x-ng-checkpoint-restart"] == "1"
        prepared = (await fleet.control("tools", "prepare")).json()
        assert prepared["phase"] == "prepared"
        assert prepared["report"]["restarts"] == ["r1"]
        assert (await fleet.post("tools", f"{R1}/increment", {"by": 1})).json() == {"value": 1}
        scope = [{"rollout_id": "r1"}]
        refused = await fleet.control("tools", "commit", checkpoint_dir=str(ROOT / "ck"), episode_ids=scope)
        assert refused.json()["error"]["code"] == "restart_in_scope"

    run(test)


def test_export_restore_without_a_codec_is_refused_when_the_server_is_made() -> None:
    """A mode that cannot be kept is a definition error that names the mend."""
    with pytest.raises(DefinitionError, match="codec="):
        Resources("tools", Settings(), mode=Mode.EXPORT_RESTORE)


def test_a_successful_verification_ends_the_session_and_answers_a_repeat() -> None:
    """After a waiting verify the session takes no more calls; the verify sent again gets the same verdict."""

    async def test(fleet: Fleet) -> None:
        await started(fleet)
        await fleet.post("tools", f"{R1}/seed_session")
        await fleet.post("tools", f"{R1}/increment", {"by": 3})
        verdicts = [await fleet.post("tools", f"{R1}/verify", headers={OPERATION_HEADER: "v"}) for _ in range(2)]
        assert [verdict.json() for verdict in verdicts] == [{"reward": 3}] * 2
        late = await fleet.post("tools", f"{R1}/increment", {"by": 1})
        assert late.json()["error"]["code"] == "session_lost"

    run(test)


def test_off_serves_sessions_by_cookie_and_adds_no_header() -> None:
    """With checkpointing off the same application works, and no header of ours is on its replies. Covers: I76."""

    async def test(fleet: Fleet) -> None:
        await fleet.start("tools", counter_resources(Settings(), fleet.seams("tools")))
        seeded = await fleet.post("tools", "/seed_session")
        cookie = seeded.headers["set-cookie"].split(";")[0]
        assert set(seeded.headers) == {"content-length", "content-type", "set-cookie"}
        reply = await fleet.post("tools", "/increment", {"by": 2}, headers={"cookie": cookie})
        assert (reply.json(), set(reply.headers)) == ({"value": 2}, {"content-length", "content-type"})
        assert (await fleet.post("tools", "/verify", headers={"cookie": cookie})).json() == {"reward": 2}

    run(test)


def test_a_seed_that_is_retired_after_it_was_admitted_makes_no_session() -> None:
    """Its mark is asked again when the session would begin: nothing of a retired attempt is left behind. Covers: I8."""

    async def test(fleet: Fleet) -> None:
        tools = Resources("tools", fleet.config(), codec=attrs_codec(Counter), mode=Mode.EXPORT_RESTORE,
                          seams=fleet.seams("tools"))  # fmt: skip

        async def seed(request: Request) -> Response:
            tools.fences.retire([EpisodeId("r1")])  # meanwhile
            return await tools.seed(request.scope, Counter())

        await fleet.start("tools", tools.wrap(Starlette(routes=[Route("/seed_session", seed, methods=["POST"])])))
        reply = await fleet.post("tools", f"{R1}/seed_session")
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "stale_attempt")
        assert tools.report().counts["sessions"] == 0

    run(test)
