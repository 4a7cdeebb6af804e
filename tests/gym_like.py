"""Servers in the manner of NeMo Gym, in memory: a session cookie per server, state in a dictionary by its id, and loops
that know nothing of checkpoints. What real ones add is tested on them (gym_tests).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from http.cookies import SimpleCookie
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from participants.gym.handlers import handler_under_way
from participants.gym.held import held_in
from participants.gym.resources import GymResources
from participants.identity import split_prefix
from participants.net.http import ASGIApp, Receive, Scope, Send
from participants.servers.codecs import json_codec
from participants.servers.modes import Mode
from participants.settings import Seams, Settings

KEY = "Counter___tools"


class _SessionId:
    """Gives a session an id, as Gym's own inner layer does."""

    def __init__(self, app: ASGIApp, ids: list[int]) -> None:
        self.app = app
        self.ids = ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and "session_id" not in scope["session"]:
            self.ids.append(len(self.ids))
            scope["session"]["session_id"] = f"s{len(self.ids)}"
        await self.app(scope, receive, send)


class _NoPrefix:
    """Takes the rollout off the path, as Gym's own layer does: the embedded one shows Gym the path as it was sent."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": split_prefix(scope["path"])[1]}
        await self.app(scope, receive, send)


class Counter:
    """A counter per session, as `example_session_state_mgmt` has it; `/fail` changes the count and raises."""

    def __init__(self) -> None:
        self.counts: dict[str, Any] = {}
        self.seeds = 0
        self.calls: list[str] = []

    def app(self) -> ASGIApp:
        paths = ("/seed_session", "/add", "/fail", "/verify", "/close_session")
        ids: list[int] = []
        return Starlette(
            routes=[Route(path, self.serve, methods=["POST"]) for path in paths],
            middleware=[
                Middleware(_NoPrefix),
                Middleware(SessionMiddleware, secret_key=KEY, session_cookie=KEY),
                Middleware(_SessionId, ids=ids),
            ],
        )

    async def serve(self, request: Request) -> Response:
        session_id = request.session["session_id"]
        path = request.url.path
        self.calls.append(path)
        body = json.loads(await request.body() or b"{}")
        if path == "/seed_session":
            self.seeds += 1
            self.counts[session_id] = body.get("at", 0)
        elif path == "/add":
            self.counts[session_id] = self.counts.get(session_id, 0) + body["by"]
        elif path == "/fail":
            self.counts[session_id] += 1
            raise ValueError("half done")
        elif path == "/verify":
            return JSONResponse({"reward": self.counts[session_id]})
        elif path == "/close_session":
            self.counts.pop(session_id, None)
            return JSONResponse({})
        return JSONResponse({"value": self.counts[session_id]})


def gym_counter(config: Settings, seams: Seams, counter: Counter, **options: Any) -> GymResources:
    """The participant around a counter."""
    kept: dict[str, Any] = {"held": held_in("counts", json_codec()), "mode": Mode.EXPORT_RESTORE} | options
    return GymResources("tools", config, counter, cookie=KEY, seams=seams, **kept)


class Caller:
    """What Gym's handlers have of Gym's client: a POST whose answer is JSON, with the cookies that came before."""

    def __init__(self, cookies: Mapping[str, str] | None = None) -> None:
        self.cookies = dict(cookies or {})

    async def post(self, server: str, path: str, body: Any) -> Any:
        handler = handler_under_way()
        assert handler is not None
        response = await handler.post(server, path, json.dumps(body).encode(), self.cookies)
        assert response.status < 400, response.body
        for header, value in response.headers:
            if header == "set-cookie":
                self.cookies |= {name: each.value for name, each in SimpleCookie(value).items()}
        return json.loads(response.body)


class Chatter:
    """An agent whose `/run` seeds, calls its own `/v1/responses` for the turns, and verifies, as Gym's agents do.

    With a `twist` it adds so much more each time.
    """

    def __init__(self, twist: int = 0) -> None:
        self.name = "simple_agent"
        self.twist = twist
        self.loops = 0
        self.bodies: list[Any] = []

    def app(self) -> ASGIApp:
        return Starlette(
            routes=[
                Route("/run", self.run, methods=["POST"]),
                Route("/v1/responses", self.turns, methods=["POST"]),
            ]
        )

    async def run(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        caller = Caller()
        await caller.post("tools", "/seed_session", {"at": 0, "_ng_attempt_index": body["_ng_attempt_index"]})
        chat = await caller.post(self.name, "/v1/responses", {"question": body["question"], "turns": body["turns"]})
        verdict = await caller.post("tools", "/verify", {})
        return JSONResponse({"reward": verdict["reward"], "messages": chat["messages"], "usage": chat["usage"]})

    async def turns(self, request: Request) -> Response:
        self.loops += 1
        task = await request.json()
        caller, used = Caller(), 0
        messages: list[Any] = [{"role": "user", "content": task["question"]}]
        for _ in range(task["turns"]):
            said = await caller.post("policy_model", "/v1/chat/completions", {"messages": messages})
            message = said["choices"][0]["message"]
            used += said["usage"]["total_tokens"]
            done = await caller.post("tools", "/add", {"by": int(message["content"]) + self.twist})
            messages = [*messages, message, {"role": "tool", "content": str(done["value"])}]
        return JSONResponse({"messages": messages, "usage": used})


class Seated:
    """An agent with sessions that an environment opens, as `simple_agent` has them: its loop calls the session's tools
    past its own client, at the address that it was given. `client` reaches that.
    """

    KEY = "Seated___simple_agent"

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.tools: dict[str, str] = {}
        self.opened: list[Any] = []

    def app(self) -> ASGIApp:
        paths = {"/v1/agent_sessions": self.open, "/v1/agent_sessions/close": self.close, "/v1/responses": self.turns}
        paths["/ng-rollout/{key}/v1/responses"] = self.turns
        return Starlette(
            routes=[Route(path, handler, methods=["POST"]) for path, handler in paths.items()],
            middleware=[Middleware(SessionMiddleware, secret_key=self.KEY, session_cookie=self.KEY)],
        )

    async def open(self, request: Request) -> Response:
        body = await request.json()
        self.opened.append(body)
        self.tools[body["agent_session_id"]] = body["tool_accesses"][0]["base_url"].rstrip("/")
        request.session["agent_session_id"] = body["agent_session_id"]
        return JSONResponse({"agent_session_id": body["agent_session_id"]})

    async def close(self, request: Request) -> Response:
        body = await request.json()
        if body["agent_session_id"] not in self.tools:
            return JSONResponse({"detail": "no such session"}, 409)
        del self.tools[body["agent_session_id"]]
        return JSONResponse({"agent_session_id": body["agent_session_id"]})

    async def turns(self, request: Request) -> Response:
        task, tools = await request.json(), self.tools[request.session["agent_session_id"]]
        caller = Caller()
        messages: list[Any] = [{"role": "user", "content": task["question"]}]
        for _ in range(task["turns"]):
            said = await caller.post("policy_model", "/v1/chat/completions", {"messages": messages})
            message = said["choices"][0]["message"]
            done = await self.client.post(f"{tools}/add", json={"by": int(message["content"])})
            messages = [*messages, message, {"role": "tool", "content": done.text}]
        return JSONResponse({"messages": messages})


class Turns:
    """An environment server that draws the names of its sessions, as `single_agent_turn` does."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self.urls = urls
        self.drawn: list[str] = []

    def app(self) -> ASGIApp:
        return Starlette(routes=[Route("/run", self.run, methods=["POST"])])

    async def run(self, request: Request) -> Response:
        body = await request.json()
        name = f"agent-session-{uuid.uuid4().hex}"
        self.drawn.append(name)
        tools, agent = Caller(), Caller()
        await tools.post("tools", "/seed_session", {"at": 0, "task": body["task"]})
        address = f"{self.urls['tools']}/"
        access = {"kind": "direct_http", "name": "tools", "base_url": address, "cookies": tools.cookies}
        opening = {"agent_session_id": name, "episode_id": body["episode_id"], "tool_accesses": [access]}
        opened = await agent.post("simple_agent", "/v1/agent_sessions", opening)
        assert opened["agent_session_id"] == name
        said = await agent.post("simple_agent", "/v1/responses", body["task"])
        closing = {"agent_session_id": name, "episode_id": body["episode_id"]}
        closed = await agent.post("simple_agent", "/v1/agent_sessions/close", closing)
        assert closed["agent_session_id"] == name
        verdict = await tools.post("tools", "/verify", {})
        return JSONResponse({"reward": verdict["reward"], "messages": said["messages"]})
