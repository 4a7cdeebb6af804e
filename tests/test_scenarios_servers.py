"""S6, S20, S23, S24, S28: what a server lets in and hands out. First the fault, then its absence."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from attrs import evolve, frozen
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from participants.coordination.coordinator import Published
from participants.files.snapshots import find_manifest, read_part, write_part
from participants.identity import RECEIPT_HEADER, RUN_PREFIX, EpisodeId, from_headers, split_prefix
from participants.machines.control import PARTICIPANT
from participants.net.http import ASGIApp, Receive, Scope, Send, headers_of, refuse_request
from participants.records.records import Disposition, Manifest, Part
from participants.servers.asgi import Shell
from participants.servers.environment import Environment
from participants.servers.executions import Executions
from participants.servers.resources import Resources
from participants.settings import Seams, Settings, SettingsError
from statecore.seams import Disk
from tests.scenario_fleet import R1, commit, done, restore, run_body, scope, seen, seen_by_job, start
from tests.served_kinds import AUTH, Fleet, settle
from tests.small_job import ROOT, Counter, counter_resources, counting_environment
from tests.whole_job import Turnstile, WholeJob

# --- S6


class PositionalReceipts(Executions):
    """The fault: an acknowledgement is four strings in a row, and one that fits nothing is silently passed over."""

    def acknowledge(self, value: Any) -> dict[str, Any]:
        for rollout_id, attempt, identity, sha256 in value["receipts"]:
            execution = self.get(EpisodeId(rollout_id, int(attempt)))
            receipt = None if execution is None else execution.receipt
            if receipt is not None and (receipt.result_identity, receipt.result_sha256) == (identity, sha256):
                super().acknowledge({"receipts": [receipt.to_json()]})
        return {}


class PositionalEnvironment(Environment):
    def __init__(self, name: str, settings: Settings, **options: Any) -> None:
        super().__init__(name, settings, **options)
        self.executions = PositionalReceipts(self, self.seams, epoch=None, max_retained_bytes=1 << 20)


def in_a_row(receipt: dict[str, Any], *, swapped: bool) -> list[str]:
    identity, sha256 = receipt["result_identity"], receipt["result_sha256"]
    return [receipt["rollout_id"], str(receipt["attempt"]), *((sha256, identity) if swapped else (identity, sha256))]


def by_name(receipt: dict[str, Any], *, swapped: bool) -> dict[str, Any]:
    identity, sha256 = receipt["result_identity"], receipt["result_sha256"]
    return receipt | {"result_identity": sha256, "result_sha256": identity} if swapped else receipt


@frozen
class Acknowledged:
    """What an acknowledgement was answered, and how many results are retained after it."""

    status: int
    complaints: list[str]
    retained: int


async def acknowledged(fleet: Fleet, kind: type[Environment], form: Callable[..., Any]) -> list[Acknowledged]:
    """A result is acknowledged with identity and digest swapped by a slip, then as it should be."""
    policy = Turnstile()
    policy.allow("r1", 2)
    env = partial(counting_environment, kind=kind)
    await start(fleet, policy, "tools", "simple_agent", "env", env=env)
    receipt = json.loads((await fleet.post("env", "/run", run_body(turns=2))).headers[RECEIPT_HEADER])
    url = fleet.network.url("env") + "/ng-control/v1/results"
    came = []
    for swapped in (True, False):
        body = {"receipts": [form(receipt, swapped=swapped)]}
        reply = await fleet.client.post(url + "/acknowledge", json=body, headers=AUTH)
        retained = (await fleet.client.get(url, headers=AUTH)).json()["receipts"]
        complaints = [each["msg"].partition(", not")[0] for each in reply.json().get("detail", [])]
        came.append(Acknowledged(reply.status_code, complaints, len(retained)))
    return came


def test_s06_swapped_receipt_fields() -> None:
    """S6: a receipt is one object of named fields from end to end; two that are swapped are refused by name.

    As strings in a row the swap passes for an acknowledgement: answered 200, and the result is kept for ever.
    Covers: I66.
    """
    unnoticed, right = seen(acknowledged, PositionalEnvironment, in_a_row)
    assert unnoticed == Acknowledged(200, [], retained=1)
    assert right == Acknowledged(200, [], retained=0)
    noticed, right = seen(acknowledged, Environment, by_name)
    assert noticed == Acknowledged(422, ["result_sha256 is 64 hex digits"], retained=1)
    assert right == Acknowledged(200, [], retained=0)


# --- S20


class Demanding(Shell):
    """The fault: whoever calls must say for which rollout."""

    async def _data(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["path"].startswith(RUN_PREFIX) and from_headers(headers_of(scope)) is None:
            raise refuse_request("execution_identity_mismatch", "which rollout?")
        await super()._data(scope, receive, send)


class DemandingResources(Resources[Counter]):
    def wrap(self, app: ASGIApp) -> ASGIApp:
        return Demanding(self, app)


def tool_server(fleet: Fleet, kind: type[Resources[Counter]]) -> ASGIApp:
    """A tools server with probes, docs and an MCP endpoint."""
    server = kind("tools", fleet.config(), seams=fleet.seams("tools"))

    async def page(_request: Request) -> Response:
        return PlainTextResponse("here")

    async def mcp(request: Request) -> Response:
        return JSONResponse({"jsonrpc": "2.0", "id": (await request.json())["id"], "result": {"tools": []}})

    pages = [Route(path, page) for path in ("/livez", "/docs", "/metrics", "/anything")]
    return server.wrap(Starlette(routes=[*pages, Route("/mcp", mcp, methods=["POST"])]))


async def nameless(fleet: Fleet, kind: type[Resources[Counter]]) -> dict[str, int]:
    """What callers that belong to no rollout are answered; the pages also while a checkpoint is open."""
    await fleet.start("tools", tool_server(fleet, kind))
    url = fleet.network.url("tools")
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    came = {"/mcp": (await fleet.client.post(url + "/mcp", json=listing)).status_code}
    await done(fleet.control("tools", "prepare"))
    for path in ("/livez", "/docs", "/metrics", "/anything"):
        came[path] = (await fleet.client.get(url + path)).status_code
    return came


def test_s20_header_less_callers_refused() -> None:
    """S20: liveness probes, docs, metrics and an MCP client that lists tools are served; they name no rollout.

    A server that demands an identity of everybody answers 409 to its own liveness probe. Covers: I16, I76.
    """
    paths = ("/mcp", "/livez", "/docs", "/metrics", "/anything")
    assert seen(nameless, DemandingResources) == dict.fromkeys(paths, 409)
    assert seen(nameless, Resources) == dict.fromkeys(paths, 200)


# --- S23


class BornOpen(Resources[Counter]):
    """The fault: a fresh process serves before its state has been restored."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        assert self.participant is not None
        self.admission.open()
        self.participant._machine = PARTICIPANT.start(self.participant.control)


async def early_call(fleet: Fleet, kind: type[Resources[Counter]]) -> tuple[str, str, Any]:
    """A late seed of the old life reaches the fresh process first: what it and the restore are answered, the value."""
    await start(fleet, Turnstile(), "tools")
    await fleet.post("tools", f"{R1}/seed_session")
    await fleet.post("tools", f"{R1}/increment", {"by": 4})
    await commit(fleet, "ck", "tools")
    fleet.network.kill("tools")
    born = fleet.config(epoch=2, epoch_required=True)
    await fleet.start("tools", counter_resources(born, fleet.seams("tools"), kind=kind))
    early = await fleet.post("tools", f"{R1}/seed_session")
    told: Any = {"headers": {"x-statecore-epoch": "2"}}
    body: Any = {"checkpoint_dir": str(ROOT / "ck"), "episode_ids": scope()}
    restored = await fleet.control("tools", "restore", "rs", **told, **body)
    await done(fleet.control("tools", "resume", "rs", **told))
    value = await fleet.post("tools", "/ng-rollout/r1-a1/increment", {"by": 1})
    return outcome(early), outcome(restored), value.json().get("value", outcome(value))


def outcome(reply: Any) -> str:
    return "done" if reply.is_success else str(reply.json()["error"]["code"])


def test_s23_traffic_before_restore() -> None:
    """S23: a process of a launcher is born closed: who comes before the restore is refused, and the state comes back.

    One that is born open takes a late seed for its own, and then refuses the restore. Covers: I53, I55.
    """
    assert seen(early_call, BornOpen) == ("done", "checkpoint_error", "session_lost")
    assert seen(early_call, Resources) == ("admission_closed", "done", 5)


# --- S24


@frozen
class Committed:
    """How many manifests there are, and what each server counts after its restore."""

    manifests: int
    values: dict[str, int]


def write_shared(disk: Disk, checkpoint_dir: Path, *, kind: str, instance: str, **more: Any) -> Manifest:
    """The fault: every server writes to one place, and a manifest that is there is taken for one's own."""
    there = find_manifest(disk, checkpoint_dir, kind, "shared")
    return there or write_part(disk, checkpoint_dir, kind=kind, instance="shared", **more)


def read_shared(disk: Disk, checkpoint_dir: Path, *, kind: str, instance: str, **more: Any) -> Part:
    return read_part(disk, checkpoint_dir, kind=kind, instance="shared", **more)


async def two_servers(fleet: Fleet, write: Callable[..., Manifest], read: Callable[..., Part]) -> Committed:
    """Two servers, counting 1 and 2, commit to one checkpoint and are restored from it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("participants.servers.part_writer.write_part", write)
        patch.setattr("participants.servers.participant.read_part", read)
        return await _two_servers(fleet)


async def _two_servers(fleet: Fleet) -> Committed:
    async def fresh(name: str) -> None:
        await fleet.start(name, counter_resources(fleet.config(), fleet.seams(name), name=name))

    values = {"left": 1, "right": 2}
    for name, value in values.items():
        await fresh(name)
        await fleet.post(name, f"{R1}/seed_session")
        await fleet.post(name, f"{R1}/increment", {"by": value})
        await done(fleet.control(name, "prepare"))
    manifests = set()
    for name in values:
        body: Any = {"checkpoint_dir": str(ROOT / "ck"), "episode_ids": scope()}
        manifests.add(json.dumps((await done(fleet.control(name, "commit", **body)))["manifest"], sort_keys=True))
    counted = {}
    for name in values:
        fleet.network.kill(name)
        await fresh(name)
        await restore(fleet, "ck", name)
        counted[name] = (await fleet.post(name, "/ng-rollout/r1-a1/increment", {"by": 0})).json()["value"]
    return Committed(len(manifests), counted)


def test_s24_two_servers_one_directory() -> None:
    """S24: each server has a directory of its kind and name, and restores what it wrote itself.

    In one directory the second commit is answered with the first one's manifest, and its state is the other's.
    Covers: I43, I45, I46.
    """
    assert seen(two_servers, write_shared, read_shared) == Committed(1, {"left": 1, "right": 1})
    assert seen(two_servers, write_part, read_part) == Committed(2, {"left": 1, "right": 2})


# --- S28


class SilentlyOff(Resources[Counter]):
    """The fault: without a token checkpointing is off, and nobody is told."""

    def __init__(self, name: str, settings: Settings, **options: Any) -> None:
        super().__init__(name, evolve(settings, enabled=settings.control_auth_token is not None), **options)

    def wrap(self, app: ASGIApp) -> ASGIApp:
        return super().wrap(without_prefix(app))


def without_prefix(app: ASGIApp) -> ASGIApp:
    """What strips the identity off a path, on or off."""

    async def stripped(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": split_prefix(scope["path"])[1]}
        await app(scope, receive, send)

    return stripped


@frozen
class Taken:
    """Who takes part, and what a checkpoint of one rollout says: continued, and with how many tool sessions."""

    members: tuple[str, ...]
    continued: int
    sessions: int


async def without_token(job: WholeJob, kind: type[Resources[Counter]]) -> Taken:
    """The tools server's configuration has no token; a checkpoint after one turn."""

    def tools(config: Settings, with_seams: Seams, transport: httpx.AsyncBaseTransport) -> ASGIApp:
        return counter_resources(evolve(config, control_auth_token=None), with_seams, transport, kind=kind)

    job.makers["tools"] = tools
    async with job.coordinator() as coordinator:
        recovered = await coordinator.recover()
        job.turnstile.allow("r1", 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(coordinator.run_batch, recovered.runnable(job.dispatches(3, "r1")))
            await settle()
            published = await coordinator.checkpoint()
            nursery.cancel_scope.cancel()
    assert isinstance(published, Published), published.story()
    checkpoint = job.store().read(job.store().published()[-1])
    sessions = sum(len(part.records) for part in checkpoint.of_kind("resources"))
    members = tuple(sorted(each.name for each in checkpoint.manifest.participants))
    return Taken(members, published.counts[Disposition.CONTINUE], sessions)


def test_s28_no_token_no_routes_no_error() -> None:
    """S28: a server with checkpointing on and no token does not start, and says which settings would mend it.

    Started without its control routes it takes no part, and a checkpoint continues a rollout without its tools.
    Covers: I19, I76.
    """
    assert seen_by_job(without_token, SilentlyOff) == Taken(("env", "policy_model", "simple_agent"), 1, 0)
    with pytest.raises(SettingsError, match=r"control_auth_token.*NEMO_GYM_CHECKPOINT_CONTROL_TOKEN"):
        seen_by_job(without_token, Resources)
