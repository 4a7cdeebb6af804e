"""A policy model server on the in-memory network, with an upstream whose generations a test ends when it likes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import trio
from attrs import define, field

from participants.identity import EpisodeId
from participants.net.http import ASGIApp
from participants.servers.policy_model import PolicyModel
from participants.serving.testing import InMemoryNetwork
from participants.settings import Seams, Settings
from statecore.seams import LoopClock, MemoryDisk, SeededEntropy

WALL = 1_790_000_000.0
CHAT = "/v1/chat/completions"
TOKEN = {"authorization": "Bearer tok"}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def completion(text: str) -> dict[str, Any]:
    """A reply as a server gives it, with fields that no agent sends back."""
    return {
        "id": "x",
        "choices": [{"index": 0, "message": {**assistant(text), "refusal": None}, "finish_reason": "stop"}],
    }


@define(eq=False)
class Generator:
    """A callable upstream. A call whose last message is `hold ...` generates until `finish` names that message.

    The reply's text is "<n>: <last message>", n counting calls from 1; `stuck` are the messages being generated.
    """

    calls: list[dict[str, Any]] = field(factory=list)
    stuck: dict[str, trio.Event] = field(factory=dict)
    changed: trio.Event = field(factory=trio.Event)

    async def __call__(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(body)
        number, said = len(self.calls), body["messages"][-1]["content"] if body.get("messages") else ""
        if said.startswith("hold"):
            self.stuck[said] = trio.Event()
            self._note()
            try:
                await self.stuck[said].wait()
            finally:
                del self.stuck[said]
        return completion(f"{number}: {said}")

    def _note(self) -> None:
        changed, self.changed = self.changed, trio.Event()
        changed.set()

    async def generating(self, count: int) -> None:
        """That many calls are generating."""
        while len(self.stuck) < count:
            await self.changed.wait()

    def finish(self, *said: str) -> None:
        for each in said or list(self.stuck):
            self.stuck[each].set()


def settings(**more: Any) -> Settings:
    values: dict[str, Any] = {"enabled": True, "control_auth_token": "tok", "root": Path("/ckpt")}
    return Settings(**(values | more))


def disk() -> MemoryDisk:
    """An empty disk with the checkpoint root on it."""
    empty = MemoryDisk()
    empty.mkdir("/ckpt")
    return empty


@define(eq=False)
class Policy:
    """A policy model server that is up, and a client that calls it."""

    network: InMemoryNetwork
    model: PolicyModel
    client: httpx.AsyncClient
    url: str

    async def chat(self, key: str | None, messages: Sequence[Any], path: str = CHAT, **headers: str) -> httpx.Response:
        """A generation of the execution with that capture key, or of nobody's."""
        prefix = "" if key is None else f"/ng-rollout/{key}"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(f"{self.url}{prefix}{path}", json={"messages": list(messages)}, headers=named)

    async def control(
        self, verb: str, checkpoint_id: str = "c1", *, within_s: float = 60, epoch: int | None = None, **body: Any
    ) -> httpx.Response:
        """The reply to a control call, whatever it is."""
        body = {"checkpoint_id": checkpoint_id, "deadline_ts": self.model.seams.clock.time() + within_s} | body
        headers = TOKEN if epoch is None else TOKEN | {"x-statecore-epoch": str(epoch)}
        return await self.client.post(f"{self.url}/ng-control/v1/checkpoint/{verb}", json=body, headers=headers)

    async def done(self, verb: str, checkpoint_id: str = "c1", **body: Any) -> dict[str, Any]:
        """The reply to a control call that succeeds, without its `server_ts`, the one field that is of now."""
        reply = await self.control(verb, checkpoint_id, **body)
        assert reply.status_code == 200, reply.text
        value: dict[str, Any] = reply.json()
        assert type(value.pop("server_ts")) is float
        return value

    async def status(self) -> dict[str, Any]:
        reply = await self.client.get(f"{self.url}/ng-control/v1/checkpoint/status", headers=TOKEN)
        value: dict[str, Any] = reply.json()
        return value

    async def counts(self) -> tuple[int, int]:
        """(inflight, held) of the live report."""
        counts = (await self.status())["report"]["counts"]
        return counts["inflight"], counts["held"]

    def rows(self, key: str) -> list[dict[str, Any]]:
        """The ledger's rows of an execution."""
        return [row for record in self.model.ledger.records([EpisodeId.from_key(key)]) for row in record["rows"]]


class Calls:
    """Calls under way at once: `start` one, `reply` waits for its reply, `leave` takes its caller away."""

    def __init__(self, nursery: trio.Nursery, policy: Policy) -> None:
        self._nursery = nursery
        self._policy = policy
        self._scopes: dict[str, trio.CancelScope] = {}
        self._arrived: dict[str, trio.Event] = {}
        self.replies: dict[str, httpx.Response] = {}

    def start(self, name: str, key: str | None, **options: Any) -> None:
        """A call of that execution whose message is `name`."""
        self._scopes[name], self._arrived[name] = trio.CancelScope(), trio.Event()
        self._nursery.start_soon(self._call, name, key, options)

    async def _call(self, name: str, key: str | None, options: dict[str, Any]) -> None:
        with self._scopes[name]:
            self.replies[name] = await self._policy.chat(key, [user(name)], **options)
            self._arrived[name].set()

    async def reply(self, name: str) -> httpx.Response:
        await self._arrived[name].wait()
        return self.replies[name]

    def leave(self, name: str) -> None:
        self._scopes[name].cancel()


@asynccontextmanager
async def running(
    upstream: Any = None,
    *,
    name: str = "policy",
    on: MemoryDisk | None = None,
    app: ASGIApp | None = None,
    seed: int = 1,
    network: InMemoryNetwork | None = None,
    staging_key: Any = None,
    **more: Any,
) -> AsyncIterator[Policy]:
    """A policy model server with that upstream, or wrapped around `app`; `more` are settings."""
    if network is None:
        async with (
            InMemoryNetwork() as own,
            running(
                upstream, name=name, on=on, app=app, seed=seed, network=own, staging_key=staging_key, **more
            ) as policy,
        ):
            yield policy
        return
    seams = Seams(clock=LoopClock(WALL), disk=on or disk(), entropy=SeededEntropy(seed))
    model = PolicyModel(
        name, settings(**more), upstream, seams=seams, transport=network.transport(name), staging_key=staging_key
    )
    url = await network.start(name, model.app() if app is None else model.wrap(app))
    async with network.client("agent") as client:
        yield Policy(network, model, client, url)


def episode(rollout_id: str, attempt: int = 0) -> dict[str, Any]:
    return {"rollout_id": rollout_id, "attempt": attempt}


def written(where: MemoryDisk, directory: str, name: str = "policy") -> list[dict[str, Any]]:
    """The records that a commit wrote there."""
    folder = f"/ckpt/{directory}/gym/model/{name}"
    manifest = json.loads(where.read(f"{folder}/manifest.json"))
    return [json.loads(line) for line in where.read(f"{folder}/{manifest['records_file']}").splitlines()]
