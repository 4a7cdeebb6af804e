"""The demo on Gym servers: its scripted policy, its recorder, and how it counts. No Gym is needed here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from participants.gym.demo import GAMES, Cost, config_of, counted
from participants.gym.fleet import servers_of
from participants.gym.upstream import Model, application, asked, from_environment, plan_in, scripted, spec, turns_in

PLAN = [{"name": "add", "arguments": {"by": 1}}, {"name": "look", "arguments": {}}]
ASK: dict[str, Any] = {"role": "user", "content": f"Please: {json.dumps(PLAN)}"}
CALL: dict[str, Any] = {"type": "function_call", "name": "add", "call_id": "call_0", "arguments": "{}"}
DONE: dict[str, Any] = {"type": "function_call_output", "call_id": "call_0", "output": "1"}


def test_the_policy_makes_the_calls_that_it_is_asked_for_one_a_turn() -> None:
    """Then it says that it is done; the same conversation gets the same answer, with the same id."""
    items = [ASK]
    said = []
    for _ in range(3):
        reply = scripted({"input": items, "model": "m", "tools": []})
        assert reply == scripted({"input": items, "model": "m", "tools": []})
        (item,) = reply["output"]
        said.append(item.get("name") or item["content"][0]["text"])
        items = [*items, item, {"type": "function_call_output", "call_id": item.get("call_id"), "output": "ok"}]
    assert said == ["add", "look", "That is done."]


@pytest.mark.parametrize(
    "items, plan",
    [
        ([ASK], PLAN),
        ([ASK, {"role": "user", "content": "go on"}], PLAN),
        ([{"role": "user", "content": "nothing [to do"}], []),
        ([{"role": "user", "content": [{"type": "input_text", "text": "[]"}]}], []),
        ([{"role": "system", "content": "[1]"}], []),
        ([], []),
    ],
)
def test_a_plan_is_the_array_at_the_end_of_a_user_message(items: list[dict[str, Any]], plan: list[Any]) -> None:
    """The last message that has one; what cannot be read is none."""
    assert plan_in(items) == plan


def test_a_call_is_told_by_its_conversation_and_its_turn() -> None:
    """Whatever has been said since: the conversation is what it began with."""
    first = asked({"input": [ASK]})
    later = asked({"input": [ASK, CALL, DONE, CALL, DONE]})
    assert first.conversation == later.conversation
    assert (first.turns, later.turns) == (0, 2)
    assert asked({"input": ASK["content"]}).conversation == first.conversation
    assert asked({"input": [{"role": "user", "content": "another"}]}).conversation != first.conversation
    assert turns_in([ASK, {"type": "reasoning"}, CALL, DONE, {"role": "assistant"}, ASK]) == 2


@pytest.mark.trio
async def test_every_call_is_in_the_log_before_it_is_answered(tmp_path: Path) -> None:
    """By the script, and by a real model that cannot be reached: a 502 that says so."""
    log = tmp_path / "log"
    for model, status in [(Model(log=str(log)), 200), (Model(log=str(log), forward="http://127.0.0.1:9/v1"), 502)]:
        transport = httpx.ASGITransport(application(model))
        async with httpx.AsyncClient(transport=transport, base_url="http://model") as client:
            reply = await client.post("/v1/responses", json={"input": [ASK]})
        assert reply.status_code == status
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [each["turns"] for each in lines] == [0, 0]
    assert "127.0.0.1:9" in reply.json()["error"]["message"]


@pytest.mark.trio
async def test_a_recorder_hands_requests_on(tmp_path: Path) -> None:
    """Body and key go on, status and body come back."""
    seen: list[httpx.Request] = []

    def real(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(429, json={"error": "slow down"})

    app = application(Model(log=str(tmp_path / "log"), forward="http://real/v1/"), httpx.MockTransport(real))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://model") as client:
        reply = await client.post("/v1/responses", json={"input": [ASK]}, headers={"authorization": "Bearer k"})
    assert (reply.status_code, reply.json()) == (429, {"error": "slow down"})
    assert str(seen[0].url) == "http://real/v1/responses"
    assert seen[0].headers["authorization"] == "Bearer k"
    assert json.loads(seen[0].content) == {"input": [ASK]}


def test_a_model_is_a_server_of_a_launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What it serves is in its environment."""
    told = spec(Model(log=str(tmp_path / "log"), delay_s=0.5))
    for name, value in told.env.items():
        monkeypatch.setenv(name, value)
    assert told.factory == "participants.gym.upstream:from_environment"
    assert from_environment().routes


def test_held_turns_that_run_again_are_counted() -> None:
    """Held is what a boundary has, and all of a completed rollout; what was lost with the crash may run again."""
    before = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]
    assert counted(before, [("a", 2)], {"a": 2}, frozenset({"b"})) == (4, 0, 3)
    assert counted(before, [("a", 1), ("b", 0), ("a", 2)], {"a": 2}, frozenset({"b"})) == (4, 2, 3)
    assert counted(before, [("a", 0)], {}, frozenset()) == (0, 0, 5)
    assert counted([], [("c", 0)], {}, frozenset()) == (0, 0, 0)


def test_the_last_line_tells_the_truth() -> None:
    """Good is: nothing held again, nothing lost, doubled or different."""
    fine = Cost(held=18, redone=0, without=36, missing=(), doubled=(), different=())
    assert fine.good
    assert fine.line().startswith("held turns run again: 0 of 18; without checkpoints it had been 36")
    assert "all equal" in fine.line()
    real = Cost(held=18, redone=0, without=36, missing=(), doubled=(), different=None)
    assert real.good
    assert "not compared" in real.line()
    for wrong in (
        Cost(held=18, redone=1, without=36, missing=(), doubled=(), different=()),
        Cost(held=18, redone=0, without=36, missing=("a",), doubled=(), different=()),
        Cost(held=18, redone=0, without=36, missing=(), doubled=("a",), different=()),
        Cost(held=18, redone=0, without=36, missing=(), doubled=(), different=("a",)),
    ):
        assert not wrong.good


def test_the_configuration_has_every_server_of_the_story() -> None:
    """A model, and for each game its resources server and its agent."""
    names = [each.name for each in servers_of(config_of("http://127.0.0.1:1/v1", "m", "k"))]
    assert names == ["policy_model", *(game.name for game in GAMES), *(f"{game.name}_agent" for game in GAMES)]
