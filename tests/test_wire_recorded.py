"""The control plane answers as existing deployments do: a recorded run is replayed against our servers.

Control rows are sent as they were recorded, with the clock standing at the row's time. Data rows are set-up and are
brought about in our own way. Compared are status, `error.code`, for a 422 the presence of `detail` and its `loc`, for a
200 the recorded fields without times, hashes and random ids. What we knowingly answer otherwise is listed, with its
number, in docs/reference/wire-differences.md, and that list is exact.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio.testing
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from participants.servers.agent import Agent
from participants.servers.auxiliary_model import AuxiliaryModel
from participants.servers.codecs import json_codec
from participants.servers.environment import Environment
from participants.servers.policy_model import PolicyModel
from participants.servers.resources import Mode, Resources, Verify
from participants.serving.testing import InMemoryNetwork
from participants.settings import Settings
from statecore.seams import LoopClock, MemoryDisk
from tests.small_job import seams, settings

HERE = Path(__file__).parent
ROWS = [json.loads(line) for line in (HERE / "data" / "wire_recorded.jsonl").read_text().splitlines()]
DIFFERENCES = HERE.parent / "docs" / "reference" / "wire-differences.md"
PREFIX = "/ng-control/v1/checkpoint/"
NAMES = ("env", "policy", "agent", "res", "judge")
SNAPSHOTS = Path("/snapshots")
IGNORED = {"lease_expires_at", "records_file", "records_sha256", "detail", "source_checkpoint_id"}


class Job:
    """The five servers of the recording, in memory, and what the test does between its rows."""

    def __init__(self, network: InMemoryNetwork, disk: MemoryDisk, clock: LoopClock) -> None:
        self.network = network
        self.disk = disk
        self.clock = clock
        self.client = network.client("recording")
        self.generation = trio.Event()
        self.slow = trio.Event()
        self.replies: dict[str, httpx.Response] = {}
        self.life = 0

    def url(self, server: str, path: str) -> str:
        return self.network.url(server) + path

    async def start(self, *, grace_s: float = 60.0, restart_only_agent: bool = False) -> None:
        """Fresh processes of all five servers."""
        self.life += 1
        self.generation, self.slow = trio.Event(), trio.Event()
        servers = {name: self.network.url(name) for name in NAMES}
        config = settings(servers=servers, lease_grace_seconds=grace_s, root=SNAPSHOTS)
        apps = {
            "env": self._environment(config),
            "policy": PolicyModel("policy", config, self._upstream, seams=self._seams("policy")).app(),
            "agent": self._agent(config, restart_only_agent),
            "res": self._resources(config),
            "judge": AuxiliaryModel("judge", config, self._upstream, seams=self._seams("judge")).app(),
        }
        for name, app in apps.items():
            await (self.network.restart(name, app) if self.life > 1 else self.network.start(name, app))

    def _seams(self, name: str) -> Any:
        made = seams(self.disk, f"{name}-{self.life}")
        return type(made)(clock=self.clock, disk=self.disk, entropy=made.entropy)

    async def _upstream(self, path: str, body: dict[str, Any]) -> Any:
        if path.endswith("/responses"):
            return self._stream()
        turn = len([each for each in body["messages"] if each["role"] == "assistant"])
        if turn == 1:
            await self.generation.wait()
        return {"choices": [{"message": {"role": "assistant", "content": f"answer-{turn}"}}]}

    async def _stream(self) -> AsyncIterator[bytes]:
        yield b"a"
        await self.slow.wait()
        yield b"b"

    def _environment(self, config: Settings) -> Any:
        environment = Environment("env", config, seams=self._seams("env"), transport=self.network.transport("env"))

        async def play(request: Request) -> Response:
            async with environment.episode(request.scope, task=await request.json()) as episode:
                tools = await episode.seed("res")
                said = await episode.activate("agent", episode.task)
                verdict = await episode.wait("verify", tools.verify({}))
                return episode.finish({"reward": verdict["reward"], "messages": said})

        return environment.wrap(Starlette(routes=[Route("/run", play, methods=["POST"])]))

    def _agent(self, config: Settings, restart_only: bool) -> Any:
        mode = Mode.RESTART_ONLY if restart_only else Mode.EXPORT_RESTORE
        agent = Agent("agent", config, mode=mode, seams=self._seams("agent"), transport=self.network.transport("agent"))

        async def respond(request: Request) -> Response:
            async with agent.session(request.scope, task=await request.json()) as session:
                model, tools = session.client("policy"), session.client("res")
                messages = session.restored(list) or [{"role": "user", "content": "hi"}]
                while True:
                    reply = await model.post("/v1/chat/completions", {"messages": messages})
                    messages = [*messages, reply.body["choices"][0]["message"]]
                    if len(messages) > 3:
                        return session.finish(messages)
                    counted = await tools.post("/increment")
                    messages = [*messages, {"role": "tool", "content": str(counted.body["n"])}]
                    await session.boundary(messages)

        async def slow(_request: Request) -> Response:
            await self.slow.wait()
            return JSONResponse({})

        routes = [Route("/v1/responses", respond, methods=["POST"]), Route("/slow", slow, methods=["POST"])]
        return agent.wrap(Starlette(routes=routes))

    def _resources(self, config: Settings) -> Any:
        tools: Resources[Any] = Resources(
            "res", config, codec=json_codec(), mode=Mode.EXPORT_RESTORE, verify=Verify.REPLAY, seams=self._seams("res")
        )

        async def seed(request: Request) -> Response:
            return await tools.seed(request.scope, {"n": 0})

        async def increment(request: Request) -> Response:
            async with tools.mutate(request.scope) as change:
                change.state["n"] += 1
                change.reply = {"n": change.state["n"]}
            return change.response()

        async def verify(_request: Request) -> Response:
            return JSONResponse({"reward": 1})

        async def close(request: Request) -> Response:
            return await tools.close(request.scope)

        handlers = {"/seed_session": seed, "/increment": increment, "/verify": verify, "/close_session": close}
        return tools.wrap(Starlette(routes=[Route(p, h, methods=["POST"]) for p, h in handlers.items()]))

    async def post(self, server: str, path: str, body: Any, keep: str = "") -> httpx.Response:
        response = await self.client.post(self.url(server, path), json=body)
        if keep:
            self.replies[keep] = response
        return response


def body_of(row: dict[str, Any]) -> bytes | None:
    body = row.get("request_body")
    if body is None:
        return None
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


def seen(status: int, body: Any, recorded: Any) -> Any:
    """What is compared of a reply: for a 200 only the fields that the recording has."""
    if status == 200 and isinstance(recorded, dict):
        return common(body, recorded)
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        return {"code": body["error"].get("code")}
    if status == 422 and isinstance(body, dict):
        return {"detail": [each["loc"] for each in body["detail"]]}
    return None


def common(body: Any, recorded: Any) -> Any:
    if isinstance(recorded, dict) and isinstance(body, dict):
        return {k: common(body.get(k), v) for k, v in recorded.items() if k not in IGNORED and k in body} | {
            k: "<missing>" for k in recorded if k not in IGNORED and k not in body
        }
    return body


def expected(row: dict[str, Any]) -> Any:
    return seen(row["status"], row["response_body"], row["response_body"])


def is_control(row: dict[str, Any]) -> bool:
    return "server" in row and row["server"] != "worker" and row["path"].startswith(PREFIX)


async def settle() -> None:
    """Everything that can run without time passing has run."""
    await trio.testing.wait_all_tasks_blocked(0.0)


async def before(job: Job, seq: int, nursery: trio.Nursery) -> None:
    """Brings about what the recording's data rows and process starts did before this row."""
    if seq == 31:  # an episode runs, its second generation is held by the worker
        run = {"episode_id": {"rollout_id": "r1"}, "task": {"q": "count", "n": 1}}
        nursery.start_soon(job.post, "env", "/run", run, "r1")
        await settle()
    elif seq == 72:  # the generation ends, and so does the episode
        job.generation.set()
        await settle()
        assert job.replies["r1"].status_code == 200
        idle = {"agent_session_id": "idle", "episode_id": {"rollout_id": "r8"}}
        await job.post("agent", "/ng-rollout/r8/v1/agent_sessions", idle)  # theirs was never closed
    elif seq == 78:  # an answer streams
        nursery.start_soon(job.post, "policy", "/v1/responses", {"stream": True}, "stream")
        await settle()
    elif seq == 84:
        job.slow.set()
        await settle()
        assert job.replies["stream"].text == "ab"
    elif seq in (120, 160):
        await job.start()
    elif seq == 146:
        job.generation.set()
        run = {"episode_id": {"rollout_id": "r1", "attempt": 1}, "task": {"q": "count", "n": 1}}
        continued = await job.post("env", "/run", run)
        assert [each["content"] for each in continued.json()["messages"]] == ["hi", "answer-0", "1", "answer-1"]
    elif seq == 165:  # a copy of the checkpoint whose agent records are damaged
        copy_damaged(job.disk, "/snapshots/ckpt", "/snapshots/ckpt_bad")
    elif seq == 179:
        await job.start(grace_s=1.0, restart_only_agent=True)
    elif seq == 184:
        nursery.start_soon(job.post, "agent", "/ng-rollout/q1/slow", {})
        await settle()
    elif seq == 192:
        job.slow.set()


def copy_damaged(disk: MemoryDisk, source: str, target: str) -> None:
    for name in [name for name in disk._files if name.startswith(source + "/")]:
        content = disk.read(name)
        copied = Path(target + name.removeprefix(source))
        disk.mkdir(copied.parent, parents=True)
        with disk.create(copied) as file:
            file.write(content + b" " if "/agent/" in name and "records" in name else content)


@asynccontextmanager
async def recording(clock: LoopClock, disk: MemoryDisk) -> AsyncIterator[tuple[Job, trio.Nursery]]:
    async with AsyncExitStack() as stack:
        network = await stack.enter_async_context(InMemoryNetwork())
        job = Job(network, disk, clock)
        await job.start()
        async with trio.open_nursery() as nursery:
            yield job, nursery
            nursery.cancel_scope.cancel()


async def replay_all(mock: trio.testing.MockClock) -> dict[int, tuple[Any, Any]]:
    """Sends every control row; returns (recorded, ours) of each that differs, by its number."""
    disk = MemoryDisk()
    disk.mkdir("/snapshots")
    clock = LoopClock(ROWS[0]["t"])
    different: dict[int, tuple[Any, Any]] = {}
    async with recording(clock, disk) as (job, nursery):
        for row in ROWS:
            ahead = row["t"] - clock.time()
            if ahead > 0:
                mock.jump(ahead)
                await settle()
            await before(job, row["seq"], nursery)
            if not is_control(row):
                continue
            response = await job.client.request(
                row["method"], job.url(row["server"], row["path"]), content=body_of(row), headers=row["request_headers"]
            )
            ours = (response.status_code, seen(response.status_code, _json(response), row["response_body"]))
            recorded = (row["status"], expected(row))
            if ours != recorded:
                different[row["seq"]] = (recorded, ours)
    return different


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return response.text


def listed() -> set[int]:
    """The numbers that docs/reference/wire-differences.md lists as control rows that we answer otherwise."""
    rows = re.findall(r"^\| ([0-9, ]+) \|", DIFFERENCES.read_text(), re.MULTILINE)
    return {int(number) for row in rows for number in row.split(",")}


def test_the_recorded_control_rows_are_answered_alike_or_listed() -> None:
    """Every control row of the recording has the recorded answer, except exactly those that the docs list."""
    mock = trio.testing.MockClock()
    different = trio.run(replay_all, mock, clock=mock)
    control = {row["seq"] for row in ROWS if is_control(row)}
    unlisted = {number: pair for number, pair in different.items() if number not in listed()}
    assert not unlisted, "\n".join(f"{number}: recorded {pair[0]}, ours {pair[1]}" for number, pair in unlisted.items())
    stale = (listed() & control) - set(different)
    assert not stale, f"listed as different, but answered alike: {sorted(stale)}"


def test_the_recording_is_whole() -> None:
    """All 192 rows are here, so that nothing passes for want of input."""
    assert [row["seq"] for row in ROWS] == list(range(1, 193))


@pytest.mark.parametrize("number", [17, 18, 103])
def test_knowing_differences_are_explained(number: int) -> None:
    """Each difference that is no matter of generation cuts has a reason in the docs."""
    text = DIFFERENCES.read_text()
    assert re.search(rf"^\| {number} \|.{{20,}}", text, re.MULTILINE)
