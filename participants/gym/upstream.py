"""What stands behind Gym's model server in the demo: a scripted policy, or a recorder before a real one.

The scripted policy does what the task asks for: the user message ends with a JSON array of tool calls, and it makes one
of them in each turn, then says that it is done. What it says depends on the conversation alone, so that runs can be
compared. A recorder hands every request on to a real model instead. In both forms each call is a line of a log when it
begins: which conversation, and how many turns of the policy are in it already.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import trio
from attrs import frozen
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from statecore.errors import WireError
from statecore.wire import digest, encode, parse, structure, unstructure

from ..net.client import make_client
from ..serving.launcher import ServerSpec

Json = dict[str, Any]
VARIABLE: Final = "STATECORE_GYM_MODEL"
POLICY: Final = frozenset({"function_call", "reasoning"})
"""Types of items that only the policy makes; a message of it has the role assistant."""
USAGE: Final = {
    "input_tokens": 10,
    "output_tokens": 5,
    "total_tokens": 15,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}


# --- pure


@frozen
class Asked:
    """A line of the log: the conversation by the digest of what it began with, and its turns so far."""

    conversation: str
    turns: int


def asked(body: Mapping[str, Any]) -> Asked:
    """Whose call this is, and which."""
    items = items_of(body)
    given = [each for each in items if each.get("role") in ("system", "developer", "user") and "type" not in each]
    first = items[: len(given)] if given else items[:1]
    said = [{"role": each.get("role"), "content": each.get("content")} for each in first]
    return Asked(digest(said), turns_in(items))


def items_of(body: Mapping[str, Any]) -> list[Json]:
    """The conversation of a request."""
    said = body.get("input")
    return [{"role": "user", "content": said}] if isinstance(said, str) else list(said or ())


def turns_in(items: Iterable[Mapping[str, Any]]) -> int:
    """How many turns of the policy it holds: stretches of what the policy said."""
    of_policy = [each.get("role") == "assistant" or each.get("type") in POLICY for each in items]
    return sum(now and not before for before, now in zip([False, *of_policy], of_policy, strict=False))


def plan_in(items: Iterable[Mapping[str, Any]]) -> list[Json]:
    """The tool calls that the user asks for: the JSON array at the end of the last message that has one."""
    for item in reversed(list(items)):
        text = item.get("content")
        if item.get("role") != "user" or not isinstance(text, str) or "[" not in text:
            continue
        try:
            plan = parse(text[text.index("[") :])
        except WireError:
            continue
        if isinstance(plan, list):
            return plan
    return []


def scripted(body: Mapping[str, Any]) -> Json:
    """The reply to a request, as the Responses API has it."""
    items = items_of(body)
    plan = plan_in(items)
    done = sum(item.get("type") == "function_call_output" for item in items)
    output = _tool(plan[done], done) if done < len(plan) else _message("That is done.", done)
    return {
        "id": f"resp_{digest(items)[:12]}",
        "object": "response",
        "created_at": 1,
        "model": body.get("model"),
        "output": [output],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
        "status": "completed",
        "usage": USAGE,
    }


def _tool(call: Json, number: int) -> Json:
    return {
        "type": "function_call",
        "id": f"fc_{number}",
        "call_id": f"call_{number}",
        "name": call["name"],
        "arguments": json.dumps(call["arguments"]),
        "status": "completed",
    }


def _message(text: str, number: int) -> Json:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": content}


# --- the server


@frozen(kw_only=True)
class Model:
    """What is served: each call is a line of `log`; a turn of the script takes `delay_s`, unless `forward` is a URL."""

    log: str
    delay_s: float = 0.0
    forward: str | None = None


def spec(model: Model) -> ServerSpec:
    """A process that serves this model, for a launcher."""
    told = encode(unstructure(model)).decode()
    return ServerSpec("model", f"{__name__}:from_environment", {VARIABLE: told})


def from_environment() -> Starlette:
    """The application of the process that `spec` describes."""
    return application(structure(parse(os.environ[VARIABLE]), Model))


def application(model: Model, transport: httpx.AsyncBaseTransport | None = None) -> Starlette:
    """The routes of a model; a call is in the log before it is answered. `transport` leads to the real one."""
    client = make_client(transport)

    def write(line: bytes) -> None:
        with Path(model.log).open("ab") as lines:
            lines.write(line)

    async def responses(request: Request) -> Response:
        body = await request.json()
        write(encode(unstructure(asked(body))) + b"\n")
        if model.forward is not None:
            return await _forwarded(client, f"{model.forward.rstrip('/')}/responses", body, request)
        await trio.sleep(model.delay_s)
        return JSONResponse(scripted(body))

    @asynccontextmanager
    async def open_client(_app: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    return Starlette(routes=[Route("/v1/responses", responses, methods=["POST"])], lifespan=open_client)


async def _forwarded(client: httpx.AsyncClient, url: str, body: Json, request: Request) -> Response:
    """What the real model says; a 502 when it cannot be reached."""
    headers = {name: request.headers[name] for name in ("authorization",) if name in request.headers}
    try:
        reply = await client.post(url, json=body, headers=headers)
    except httpx.TransportError as error:
        return JSONResponse({"error": {"message": f"{url}: {type(error).__name__}: {error}"}}, 502)
    return Response(reply.content, reply.status_code, media_type=reply.headers.get("content-type"))
