"""The control plane of a running server: leases, deadlines, epochs, incarnations, writes that outlive their caller.

Everything here runs on both event loops' rules through the real ASGI shell; time is a MockClock's.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from participants.identity import EPOCH_HEADER, INCARNATION_HEADER
from participants.servers.resources import Resources
from statecore.seams import MemoryDisk
from tests.served_kinds import AUTH, CONTROL, Fleet, run, settle
from tests.small_job import ROOT, counter_resources, counting_environment, plain_policy

R1 = "/ng-rollout/r1"
SCOPE = [{"rollout_id": "r1"}]
CK = str(ROOT / "ck")


async def tools(fleet: Fleet, **changes: Any) -> None:
    await fleet.start("tools", counter_resources(fleet.config(**changes), fleet.seams("tools")))


def code(reply: httpx.Response) -> str:
    return str(reply.json()["error"]["code"])


def test_a_lease_that_ends_reopens_and_fences() -> None:
    """A server that hears nothing opens at deadline + grace by itself; the id is stale for ever. Covers: I14, I21."""

    async def test(fleet: Fleet) -> None:
        await tools(fleet, lease_grace_seconds=60.0)
        await fleet.post("tools", f"{R1}/seed_session")
        prepared = await fleet.control("tools", "prepare", within_s=10)
        assert prepared.json()["phase"] == "prepared"
        started = fleet.now()
        assert (await fleet.post("tools", f"{R1}/increment", {"by": 1})).json() == {"value": 1}
        assert fleet.now() - started == pytest.approx(70)
        status = await fleet.status("tools")
        assert (status["phase"], status["checkpoint_id"], status["lease_expires_at"]) == ("idle", None, None)
        calls: dict[str, dict[str, Any]] = {
            "prepare": {},
            "commit": {"checkpoint_dir": CK, "episode_ids": SCOPE},
            "renew": {},
        }
        for verb, more in calls.items():
            assert code(await fleet.control("tools", verb, **more)) == "stale_checkpoint"

    run(test)


def test_renew_extends_the_lease_and_replays_do_not() -> None:
    """Only a renew (or a new wait, or a commit) moves the lease; a replayed prepare does not."""

    async def test(fleet: Fleet) -> None:
        await tools(fleet, lease_grace_seconds=60.0)
        await fleet.control("tools", "prepare", within_s=10)
        first = (await fleet.status("tools"))["lease_expires_at"]
        await fleet.control("tools", "prepare", within_s=500)
        assert (await fleet.status("tools"))["lease_expires_at"] == first
        renewed = (await fleet.control("tools", "renew", within_s=100)).json()["lease_expires_at"]
        assert renewed == pytest.approx(first + 90)
        shorter = (await fleet.control("tools", "renew", within_s=1)).json()["lease_expires_at"]
        assert shorter == renewed

    run(test)


def test_a_prepare_whose_checkpoint_ends_meanwhile_answers_idle_and_closes_nothing() -> None:
    """A prepare that waits when resume comes answers idle, and the server is open. Covers: S7."""

    async def test(fleet: Fleet) -> None:
        config = fleet.config("policy_model", "tools")
        await fleet.start("policy_model", plain_policy())
        blocked = trio.Event()
        server: Resources[Any] = Resources("tools", config, seams=fleet.seams("tools"), codec=None)
        server.mode = server.mode.DRAIN_ONLY

        async def slow(_request: Request) -> Response:
            await blocked.wait()
            return Response()

        await fleet.start("tools", server.wrap(Starlette(routes=[Route("/slow", slow, methods=["POST"])])))
        replies: list[dict[str, Any]] = []

        async def prepare() -> None:
            replies.append((await fleet.control("tools", "prepare")).json())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fleet.post, "tools", f"{R1}/slow")
            await settle()
            nursery.start_soon(prepare)
            await settle()
            assert (await fleet.control("tools", "resume")).json()["idempotent"] is False
            await settle()
            assert replies[0]["phase"] == "idle"
            blocked.set()
        assert (await fleet.status("tools"))["phase"] == "idle"

    run(test)


def test_a_server_of_an_epoch_is_born_closed_and_answers_no_other() -> None:
    """Until its first resume it refuses mutations; control calls without, or of another, epoch are refused. S23."""

    async def test(fleet: Fleet) -> None:
        await tools(fleet, epoch=3, epoch_required=True)
        early = await fleet.post("tools", f"{R1}/seed_session")
        assert (early.status_code, code(early)) == (409, "admission_closed")
        for headers in ({}, {EPOCH_HEADER: "2"}, {EPOCH_HEADER: "4"}, {EPOCH_HEADER: "x"}):
            assert code(await fleet.control("tools", "resume", headers=headers)) == "stale_epoch"
        own = {EPOCH_HEADER: "3"}
        assert code(await fleet.control("tools", "prepare", headers=own)) == "invalid_phase"
        opened = await fleet.control("tools", "resume", "rs-000003-000001", headers=own)
        assert opened.json()["idempotent"] is False
        assert (await fleet.post("tools", f"{R1}/seed_session")).status_code == 200
        zombie = await fleet.post("tools", f"{R1}/increment", {"by": 1}, headers={EPOCH_HEADER: "2"})
        assert code(zombie) == "stale_epoch"

    run(test)


def test_a_server_that_breaks_before_it_was_open_refuses_and_holds_nothing() -> None:
    """Its lease timer dies: what it held nobody would ever let go; so it goes on refusing. Covers: S23, I20."""

    async def test(fleet: Fleet) -> None:
        config = fleet.config(epoch=3, epoch_required=True)
        server: Resources[Any] = Resources("tools", config, seams=fleet.seams("tools"), codec=None)
        await fleet.start("tools", server.wrap(Starlette()))
        assert server.participant is not None
        server.participant._lease_broke(LookupError("the timer died"))
        with trio.fail_after(600):
            early = await fleet.post("tools", f"{R1}/seed_session")
        assert (early.status_code, code(early)) == (409, "admission_closed")
        resumed = await fleet.control("tools", "resume", "rs-000003-000001", headers={EPOCH_HEADER: "3"})
        assert code(resumed) == "participant_broken"

    run(test)


def test_a_server_that_breaks_while_it_reads_installs_nothing() -> None:
    """Its restore is refused, and it is open: what it has read must not appear there, for nobody. Covers: I51, I52."""

    async def test(fleet: Fleet) -> None:
        await tools(fleet)
        await fleet.post("tools", f"{R1}/seed_session")
        await fleet.control("tools", "prepare")
        committed = await fleet.control("tools", "commit", checkpoint_dir=CK, episode_ids=SCOPE)
        assert committed.json()["episode_ids"] == ["r1"]
        fresh: Any = counter_resources(fleet.config(), fleet.seams("tools"))
        await fleet.start("tools", fresh)
        participant = fresh.server.participant
        read = participant._read_files

        def breaks(*which: Any) -> Any:
            participant._lease_broke(LookupError("the timer died"))
            return read(*which)

        participant._read_files = breaks
        restored = await fleet.control("tools", "restore", "rs", checkpoint_dir=CK, episode_ids=SCOPE)
        assert code(restored) == "participant_broken"
        assert (await fleet.status("tools"))["report"]["counts"]["sessions"] == 0

    run(test)


def test_a_call_meant_for_another_process_has_no_effect() -> None:
    """A prepare for a dead process does not close its successor. Covers: S59, I18."""

    async def test(fleet: Fleet) -> None:
        await tools(fleet)
        dead = (await fleet.status("tools"))["incarnation"]
        await tools(fleet)
        late = await fleet.control("tools", "prepare", headers={INCARNATION_HEADER: dead})
        assert (late.status_code, code(late)) == (409, "stale_incarnation")
        assert (await fleet.post("tools", f"{R1}/seed_session")).status_code == 200

    run(test)


class FailingDisk(MemoryDisk):
    """A disk whose next `failures` creations fail."""

    failures = 0

    def create(self, path: Any) -> Any:
        if self.failures:
            self.failures -= 1
            raise OSError(28, "No space left on device", str(path))
        return super().create(path)


def test_a_failed_write_is_a_clear_error_and_the_retry_writes_the_same() -> None:
    """A full disk fails the commit and changes nothing; the same commit again succeeds, and again equals it."""

    async def test(fleet: Fleet) -> None:
        disk = FailingDisk()
        disk.mkdir(ROOT)
        fleet.disk = disk
        await tools(fleet)
        await fleet.post("tools", f"{R1}/seed_session")
        await fleet.control("tools", "prepare")
        disk.failures = 1
        failed = await fleet.control("tools", "commit", checkpoint_dir=CK, episode_ids=SCOPE)
        assert (failed.status_code, code(failed)) == (422, "invalid_checkpoint_state")
        assert (await fleet.status("tools"))["phase"] == "prepared"
        other = await fleet.control("tools", "commit", checkpoint_dir=CK + "2", episode_ids=SCOPE)
        assert code(other) == "checkpoint_conflict"
        replies = [await fleet.control("tools", "commit", checkpoint_dir=CK, episode_ids=SCOPE) for _ in range(2)]
        assert replies[0].json()["manifest"] == replies[1].json()["manifest"]

    run(test)


def test_prepare_writes_nothing() -> None:
    """Backing out of a prepare is free: no file exists. Covers: I40."""

    async def test(fleet: Fleet) -> None:
        await tools(fleet)
        await fleet.post("tools", f"{R1}/seed_session")
        await fleet.control("tools", "prepare")
        await fleet.control("tools", "resume")
        assert fleet.disk.listdir(ROOT) == []

    run(test)


def test_an_environment_parks_at_its_next_step_and_names_its_blockers() -> None:
    """In a replayable step it is quiet; in a waiting step it blocks and says so. Covers: I38."""

    async def test(fleet: Fleet) -> None:
        names = ("policy_model", "tools", "simple_agent", "env")
        config = fleet.config(*names)
        await fleet.start("tools", counter_resources(config, fleet.seams("tools")))
        await fleet.start("env", counting_environment(config, fleet.seams("env"), fleet.network.transport("env")))
        await fleet.control("tools", "prepare")
        with trio.move_on_after(3):
            await fleet.post("env", "/run", {"episode_id": {"rollout_id": "r1"}, "task": {"turns": 1}})
        report = (await fleet.control("env", "prepare", within_s=2)).json()["report"]
        assert report["blockers"] == ["r1"]
        assert report["blocker_details"][0]["reason"] == "step 'seed tools'"
        await fleet.control("env", "resume")
        await fleet.control("env", "retire", "c2", episode_ids=SCOPE)
        assert (await fleet.status("env"))["report"]["counts"] == {"episodes": 0}

    run(test)


def test_every_control_reply_names_the_process_its_life_and_its_clock() -> None:
    """server_ts, incarnation and epoch are in every good reply, the incarnation in every header."""

    async def test(fleet: Fleet) -> None:
        await tools(fleet, epoch=7)
        replies = [await fleet.control("tools", verb, "c1") for verb in ("prepare", "renew", "resume")]
        replies.append(await fleet.control("tools", "retire", episode_ids=SCOPE))
        replies.append(await fleet.control("tools", "forget", rollout_ids=["r1"]))
        url = fleet.network.url("tools")
        for path in (CONTROL + "status", "/ng-control/v1/capabilities"):
            replies.append(await fleet.client.get(url + path, headers=AUTH))
        for reply in replies:
            body = reply.json()
            assert body["server_ts"] == fleet.now()
            assert body["epoch"] == 7
            assert body["incarnation"] == reply.headers[INCARNATION_HEADER]
        refused = await fleet.control("tools", "commit", "c9", checkpoint_dir=CK, episode_ids=[])
        assert refused.headers[INCARNATION_HEADER] == replies[0].headers[INCARNATION_HEADER]

    run(test)


def test_capabilities_say_what_the_server_is() -> None:
    """Role, mode and features are declared, never guessed. Covers: S1."""

    async def test(fleet: Fleet) -> None:
        await tools(fleet)
        reply = await fleet.client.get(fleet.network.url("tools") + "/ng-control/v1/capabilities", headers=AUTH)
        body = reply.json()
        assert (body["kind"], body["instance"], body["instance_role"]) == ("resources", "tools", "resources")
        assert body["checkpoint_mode"] == "export_restore"
        assert body["workers"] == {"mode": "single", "count": 1}

    run(test)
