"""A scripted model behind Gym's model server: what it says depends on the conversation alone, so that runs can be
compared. ``python -m gym_tests.upstream PORT LOG`` serves it; each call is a line of LOG. While a file beside LOG, with
the suffix .allowed, says a number, calls of conversations with that many turns or more wait: so a test has every
rollout stand where it wants.

Counter: two additions, a look, an answer. Blackjack: hit below 17, then stand. Weather: three looks, an answer.
Everything else: the tool calls that the task itself lists in its user message as a JSON array of {"name", "arguments"},
then an answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import re
import sys
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from participants.gym.upstream import turns_in

Json = dict[str, Any]


def _tool(name: str, arguments: Json, number: int) -> Json:
    return {
        "type": "function_call",
        "id": f"fc_{number}",
        "call_id": f"call_{number}",
        "name": name,
        "arguments": json.dumps(arguments),
        "status": "completed",
    }


def _message(text: str, number: int) -> Json:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": content}


def planned(body: Json) -> list[tuple[str, Json]]:
    """The tool calls of a task, in order."""
    names = {tool.get("name") for tool in body.get("tools") or []}
    if "increment_counter" in names:
        return [("increment_counter", {"count": 1}), ("increment_counter", {"count": 2}), ("get_counter_value", {})]
    if "get_weather" in names:
        return [("get_weather", {"city": city}) for city in ("SF", "LA", "NY")]
    for item in body["input"]:
        content = item.get("content")
        if item.get("role") == "user" and isinstance(content, str) and content.startswith("["):
            return [(each["name"], each["arguments"]) for each in json.loads(content)]
    return []


def answer(body: Json) -> Json:
    """The reply to a request, as the API has it."""
    items = body["input"]
    done = sum(item.get("type") == "function_call_output" for item in items)
    said = sum(item.get("role") == "assistant" for item in items)
    calls = planned(body)
    if calls and done < len(calls):
        name, arguments = calls[done]
        output = [_tool(name, arguments, done)]
    elif calls:
        output = [_message("done", done)]
    else:
        hands = [re.match(r"Your hand: .* = (\d+)", str(item.get("content"))) for item in items]
        value = next((int(hand[1]) for hand in reversed(hands) if hand), 17)
        output = [_message("<action>hit</action>" if value < 17 else "<action>stand</action>", said)]
    number = hashlib.sha256(json.dumps(items, sort_keys=True).encode()).hexdigest()[:12]
    usage = {
        "input_tokens": 10,
        "output_tokens": 5,
        "total_tokens": 15,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1,
        "model": body.get("model"),
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
        "status": "completed",
        "usage": usage,
    }


def _task(body: Json) -> str:
    """What the user asked first, by which a rollout is known."""
    return next((str(item.get("content")) for item in body["input"] if item.get("role") == "user"), "")


def turns(body: Json) -> int:
    """How often the model has spoken in this conversation."""
    return sum(each.get("type") == "function_call" or each.get("role") == "assistant" for each in body["input"])


def allowed(log: Path) -> float:
    """So many turns may be taken."""
    try:
        return float(log.with_suffix(".allowed").read_text())
    except FileNotFoundError:
        return math.inf


def upstream(log: Path, delay_s: float) -> Starlette:
    """The application; a call is in the log when it begins."""

    async def responses(request: Request) -> Response:
        body = await request.json()
        if isinstance(body["input"], str):
            body["input"] = [{"role": "user", "content": body["input"]}]
        with log.open("a") as lines:
            line = {"items": len(body["input"]), "task": _task(body), "turns": turns_in(body["input"])}
            lines.write(json.dumps(line) + "\n")
        await asyncio.sleep(delay_s)
        while turns(body) >= allowed(log):  # noqa: ASYNC110 - a test says so, in another process
            await asyncio.sleep(0.02)
        return JSONResponse(answer(body))

    async def alive(request: Request) -> Response:
        return JSONResponse({})

    return Starlette(
        routes=[Route("/v1/responses", responses, methods=["POST"]), Route("/livez", alive, methods=["GET"])]
    )


if __name__ == "__main__":
    app = upstream(Path(sys.argv[2]), float(os.environ.get("UPSTREAM_DELAY", "0.02")))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
