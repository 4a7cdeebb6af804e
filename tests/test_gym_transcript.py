"""What is recorded of a Gym handler's calls, and how a call is known again. Pure."""

from __future__ import annotations

import json
from typing import Any

import pytest

from participants.gym.likeness import new_names, renamed, server_of, without_addresses
from participants.gym.transcript import Asked, OtherCall, Transcript, digest_of, usage_and
from participants.servers.agent_records import KeptReply
from statecore.wire import parse, structure, unstructure

OLD, NEW = "0123456789abcdef" * 2, "fedcba9876543210" * 2


def reply(text: str) -> KeptReply:
    return KeptReply(status=200, headers=(("content-type", "application/json"),), body=text)


def test_each_track_is_answered_in_its_own_order() -> None:
    """The nth call of a track gets the nth answer of that track; beyond its end there is none yet."""
    seed, ask, add = (Asked(server, path, "d") for server, path in (("t", "/seed"), ("m", "/v1"), ("t", "/add")))
    made = Transcript().with_call("run", seed, reply("a")).with_call("run/1", ask, reply("b"))
    made = made.with_call("run/1", add, reply("c"))
    assert [made.answer("run", 0, seed), made.answer("run/1", 0, ask)] == [reply("a"), reply("b")]
    assert made.answer("run/1", 1, add) == reply("c")
    assert made.answer("run", 1, ask) is None and made.answer("run/1", 2, ask) is None


def test_what_was_done_inside_of_a_call_that_is_answered_is_left_out() -> None:
    """The answer of a server's own route holds all that its handler learned."""
    ask = Asked("m", "/v1", "d")
    made = Transcript().with_call("run/1", ask, reply("b")).with_call("run", Asked("own", "/v1", "d"), reply("all"))
    assert [call.reply.body for call in made.calls] == ["all"]


def test_a_call_that_differs_is_told() -> None:
    """Another server, path or content at the same place is another call."""
    made = Transcript().with_call("run", Asked("t", "/add", "11111111"), reply("a"))
    for other in (Asked("s", "/add", "11111111"), Asked("t", "/sub", "11111111"), Asked("t", "/add", "22222222")):
        with pytest.raises(OtherCall, match="call 0 of run was t /add"):
            made.answer("run", 0, other)


def test_a_transcript_comes_back_from_a_record_as_it_was() -> None:
    """Texts are kept as they were, whatever they say."""
    made = Transcript().with_call("run", Asked("t", "/add", "d"), reply('{"a": 1e400, "b": "\\u00e9\\ud83d\\ude00"}'))
    assert made.to_json() == unstructure(made) | {"calls": [unstructure(each) for each in made.calls]}
    written = json.loads(json.dumps(made.to_json()))
    assert structure(parse(json.dumps(written)), Transcript) == made


def test_a_digest_does_not_see_which_attempt_it_is() -> None:
    """Fields that name the execution differ between an attempt and its continuation; everything else counts."""
    body = {"question": "q", "_ng_attempt_index": 0, "_ng_rollout_id": "r1"}
    assert digest_of(json.dumps(body).encode()) == digest_of(json.dumps(body | {"_ng_attempt_index": 1}).encode())
    assert digest_of(json.dumps(body).encode()) != digest_of(json.dumps(body | {"question": "p"}).encode())
    assert digest_of(b"no json") != digest_of(b"no json either")
    assert digest_of(b"") == digest_of(b"null")


def test_usage_is_added_field_by_field() -> None:
    """Nested counts too; what only one side knows stays."""
    one: Any = {"total": 3, "details": {"cached": 1}, "name": "a"}
    two: Any = {"total": 4, "details": {"cached": 0, "new": 2}, "name": "b"}
    assert usage_and(one, two) == {"total": 7, "details": {"cached": 1, "new": 2}, "name": "b"}
    assert usage_and(None, two) == two and usage_and(one, None) == one


def test_names_that_were_drawn_anew_are_recognised() -> None:
    """Two calls that differ in drawn names alone are the same call, and the new names stand for the old ones."""
    old = {"session": f"agent-session-{OLD}", "episode_id": {"rollout_id": "r", "attempt": 0}, "tools": [{"n": 1}]}
    new = {"session": f"agent-session-{NEW}", "episode_id": {"rollout_id": "r", "attempt": 1}, "tools": [{"n": 1}]}
    assert new_names(old, new) == {f"agent-session-{NEW}": f"agent-session-{OLD}"}
    assert renamed(json.dumps(new["session"]), {f"agent-session-{NEW}": "x"}) == '"x"'


@pytest.mark.parametrize(
    "other",
    [
        {"session": f"resources-session-{NEW}", "n": 1},
        {"session": "agent-session-7", "n": 1},
        {"session": f"agent-session-{NEW}", "n": 2},
        {"session": f"agent-session-{NEW}", "n": True},
        {"session": f"agent-session-{NEW}"},
        [f"agent-session-{NEW}"],
    ],
)
def test_other_calls_are_not_recognised(other: Any) -> None:
    """Another kind of name, another value, another type or another form is another call."""
    assert new_names({"session": f"agent-session-{OLD}", "n": 1}, other) is None


def test_one_new_name_does_not_stand_for_two() -> None:
    """A name that was one and is two is another call."""
    old = [f"a-{OLD}", f"a-{OLD[::-1]}"]
    assert new_names(old, [f"a-{NEW}", f"a-{NEW}"]) is None


def test_addresses_are_written_as_names() -> None:
    """A restored server has another address; one that begins like another is not taken for it."""
    servers = {"a": "http://h:80", "b": "http://h:8080/"}
    body = without_addresses(b'["http://h:8080/x", "http://h:80/"]', servers)
    assert body == b'["statecore-server:b/x", "statecore-server:a/"]'
    assert server_of("statecore-server:a/") == "a"
    assert server_of("http://elsewhere/") is None
