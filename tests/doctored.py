"""Servers of all makes on an in-memory network, and what `statecore doctor` says of them, for tests."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from participants.commands.console import show
from participants.commands.diagnosis import Diagnosis
from participants.commands.doctor import Question, as_json, asked, tell
from participants.commands.server_view import ServerView
from participants.net.http import ASGIApp
from participants.servers.auxiliary_model import AuxiliaryModel
from participants.servers.policy_model import PolicyModel
from participants.settings import Seams
from statecore.seams import SeededEntropy
from tests.served_kinds import CONTROL, Fleet
from tests.small_job import TOKEN, WALL, answer

CAPABILITIES = "/ng-control/v1/capabilities"
STATUS = CONTROL + "status"
R1 = "/ng-rollout/r1"
NOW = {"server_ts": WALL, "incarnation": "ab" * 16, "epoch": 1}
IDLE = {"phase": "idle", "checkpoint_id": None, "lease_expires_at": None, "retired_rollouts": 0}
REPORT = {"ready": True, "blockers": [], "blocker_count": 0, "counts": {}, "restarts": []}
TOOLS = {"kind": "resources", "instance": "tools", "instance_role": "resources", "checkpoint_mode": "export_restore"}

Json = dict[str, Any]


async def doctor(fleet: Fleet, *names: str, token: str = TOKEN, **bounds: Any) -> Diagnosis:
    """The diagnosis of the servers of that name, whose text and JSON have been made, too."""
    question = Question(urls=tuple(map(fleet.network.url, names)), token=token, **bounds)
    seams = Seams(clock=fleet.clock, disk=fleet.disk, entropy=SeededEntropy("doctor"))
    diagnosis = await asked(question, transport=fleet.network.transport("doctor"), seams=seams)
    text(diagnosis)
    json.dumps(as_json(diagnosis))
    return diagnosis


async def one(fleet: Fleet, name: str, **bounds: Any) -> ServerView:
    (server,) = (await doctor(fleet, name, **bounds)).servers
    return server


def text(diagnosis: Diagnosis, *, plain: bool = True) -> str:
    out = io.StringIO()
    show(tell(diagnosis), out, plain=plain)
    return out.getvalue()


def told(diagnosis: Diagnosis) -> str:
    """The plain text in one line, so that a sentence is found wherever it was broken."""
    return " ".join(text(diagnosis).split())


def foreign(status: Any = None, capabilities: Any = None) -> ASGIApp:
    """A server that is not ours: what it answers is given as a JSON value or as a Response; None is 404."""

    def serve(value: Any) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            if request.headers.get("authorization") != f"Bearer {TOKEN}":
                return JSONResponse({"error": {"code": "unauthorized", "detail": "no"}}, 401)
            said = value(request) if callable(value) and not isinstance(value, Response) else value
            return said if isinstance(said, Response) else JSONResponse(said)

        return endpoint

    given = {STATUS: status, CAPABILITIES: capabilities}
    return Starlette(routes=[Route(path, serve(said)) for path, said in given.items() if said is not None])


async def put(fleet: Fleet, name: str, status: Any = None, capabilities: Any = None) -> None:
    await fleet.start(name, foreign(status, capabilities))


def status_of(kind: str, instance: str = "x", **more: Any) -> Json:
    return {"kind": kind, "instance": instance, **IDLE, "report": REPORT, **more}


async def whole(fleet: Fleet) -> tuple[str, ...]:
    """A whole job and a judge are up; their names."""
    config = fleet.config("policy_model", "tools", "simple_agent", "env")
    await fleet.whole_job(lambda: PolicyModel("policy_model", config, answer, seams=fleet.seams("policy")).app())
    await fleet.start("judge", AuxiliaryModel("judge", config, answer, seams=fleet.seams("judge")).app())
    return "env", "policy_model", "simple_agent", "tools", "judge"
