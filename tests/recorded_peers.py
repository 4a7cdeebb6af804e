"""Servers that answer in the very words of the recording, for tests of the coordinator against another make.

They are the small fleet underneath. Every reply has the recorded reply's fields and no other: no incarnation, no epoch,
no time, no capabilities, no receipts, nothing retained. Records hold payloads of another make. They start open, read no
header of ours, and beside them stands a judge that takes no part.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from attrs import define
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from participants.serving.testing import InMemoryLauncher
from statecore.seams import SeededEntropy
from tests.small_fleet import TOKEN, Deployments, FakeEpisode, FakeServer, Fleet, Reply

PREFIX: Final = "/ng-control/v1/checkpoint/"
ROWS: Final[tuple[dict[str, Any], ...]] = tuple(
    json.loads(line) for line in (Path(__file__).parent / "data" / "wire_recorded.jsonl").read_text().splitlines()
)
OUR_NAME: Final = {"env": "env", "policy": "policy", "agent": "agent", "res": "tools", "judge": "judge"}
"""The fleet's name of each server of the recording."""


def verb_of(row: Mapping[str, Any]) -> str:
    """The control verb of a row, or "" where it is none."""
    path = row.get("path") or ""
    return path.removeprefix(PREFIX) if path.startswith(PREFIX) and row["server"] in OUR_NAME else ""


def answers(server: str, verb: str) -> dict[str, Any]:
    """The first good answer to `verb` that this server of the fleet gave in the recording."""
    for row in ROWS:
        if verb_of(row) == verb and OUR_NAME[row["server"]] == server and row["status"] == 200:
            return copy.deepcopy(dict(row["response_body"]))
    raise LookupError(f"{server} never answered {verb}")


def in_those_words(recorded: Any, ours: Any) -> Any:
    """`recorded` with our values: its fields, all of them and no other; what is no object is ours."""
    if not isinstance(recorded, dict) or not isinstance(ours, dict):
        return ours
    return {name: in_those_words(value, ours[name]) if name in ours else value for name, value in recorded.items()}


def as_it_was(row: Mapping[str, Any]) -> Response:
    """The answer of a row, word for word."""
    if isinstance(row["response_body"], str):
        return PlainTextResponse(row["response_body"], row["status"])
    return JSONResponse(row["response_body"], row["status"])


class RecordedServer(FakeServer):
    """One server of the recording."""

    def app(self) -> Starlette:
        self.born = False  # no launcher of ours has started it
        app = super().app()
        app.router.add_route(f"{PREFIX}forget", self.verb("forget"), methods=["POST"])
        return app

    @property
    def manifest_extra(self) -> Reply:
        return {}

    def stamped(self, reply: Reply) -> Reply:
        return reply

    def refuse(self, status: int, code: str, detail: str = "") -> Response:
        return JSONResponse({"error": {"code": code, "detail": detail}}, status)

    def verb(self, verb: str) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            body = await request.json()
            self.fleet.history.calls.append((self.name, verb, body))
            if request.headers.get("authorization") != f"Bearer {TOKEN}":
                return self.refuse(401, "unauthorized")
            script = self.fleet.history.scripts.get((self.name, verb))
            answer = script(self, body) if script is not None else None
            if answer is None:
                answer = await getattr(self, f"on_{verb}")(body)
            return answer if isinstance(answer, Response) else self._said(verb, answer)

        return endpoint

    def _said(self, verb: str, reply: Reply) -> Response:
        nothing_cut: Reply = {"staging_keys": [], "staging_keys_by_episode": {}}
        return JSONResponse(in_those_words(answers(self.name, verb), nothing_cut | reply))

    async def status(self, request: Request) -> Response:
        answer = await super().status(request)
        if answer.status_code != 200:
            return answer
        return self._said("status", json.loads(bytes(answer.body)))

    async def capabilities(self, _request: Request) -> Response:
        return not_found()

    async def results(self, _request: Request) -> Response:
        return not_found()

    async def acknowledge(self, _request: Request) -> Response:
        return not_found()

    async def run(self, request: Request) -> Response:
        answer = await super().run(request)
        return Response(bytes(answer.body), answer.status_code, media_type="application/json")

    async def on_forget(self, body: Reply) -> Reply:
        return {"forgotten": body["rollout_ids"]}

    def record(self, each: FakeEpisode) -> Reply:
        """Our fields, which are theirs, around payloads of their own."""
        record = super().record(each)
        if self.kind in ("environment", "agent"):
            record["boundary"] = None if each.turn == 0 else {"at": each.turn}
        elif self.kind == "resources":
            record["state"] = {"at": each.turn}
        return record


class RecordedFleet(Fleet):
    """One start of all of them."""

    def server(self, name: str) -> FakeServer:
        if name not in self.servers:
            self.servers[name] = RecordedServer(name, self, self.entropy.token_hex(16))
        return self.servers[name]

    def install(self, kind: str, episode: Any, record: Reply) -> None:
        if kind != "resources":
            super().install(kind, episode, record)
            return
        each = self.begun(episode)
        each.turn, each.parked = record["state"]["at"], True

    def begun(self, episode: Any) -> FakeEpisode:
        """The execution, which is there from its first installed record on."""
        super().install("agent", episode, {})
        return self.episodes[episode]


@define(eq=False)
class RecordedDeployments(Deployments):
    """A launcher of such fleets, with a judge beside them."""

    async def start(self, epoch: int) -> Mapping[str, str]:
        fleet = RecordedFleet(epoch, self.clock, self.disk, SeededEntropy(epoch), self.history, self.nursery)
        self.fleets.append(fleet)
        factories: dict[str, Any] = {name: partial(_app, fleet.server(name)) for name in self.names}
        factories["judge"] = lambda *_: judge
        self.launcher = InMemoryLauncher(self.network, factories)
        return await self.launcher.start(epoch)


def not_found() -> Response:
    """As the judge of the recording answers whatever asks it to take part."""
    return as_it_was(next(row for row in ROWS if row.get("server") == "judge"))


judge = Starlette()


def _app(server: FakeServer, _epoch: int, _urls: Mapping[str, str]) -> Starlette:
    return server.app()
