"""Which conversation a model call continues: digests of its items, as three dialects of the API carry them. Pure.

A conversation is a list of items (messages, tool calls, tool results) in a normal form that a caller's echo of a reply
shares with the reply itself: nulls, ids of items, reasoning and token fields are left out, text parts are one text. Its
digest is `statecore.wire.digest` of that list, so the digests of all its prefixes come from one pass. Only digests and
lengths are kept (I75); what is in none of these forms has no conversation, and is nobody's parent.
docs/reference/protocol.md section 14, I99.
"""

from __future__ import annotations

import hashlib
import json
import json.encoder
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from statecore import WireError
from statecore.wire import canonical

Json = Any
Items = list[str]
"""Items of a conversation in their normal form, each as its canonical JSON."""

CHAT: Final = "/v1/chat/completions"
RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"
MODEL_PATHS: Final = (CHAT, RESPONSES, MESSAGES)

_quoted = json.encoder.encode_basestring
_REASONING: Final = frozenset({"reasoning", "thinking", "redacted_thinking"})
_MORE: Final = ("name", "tool_call_id", "tool_calls", "function_call")
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text"})
_UNSAID: Final = frozenset({"id", "status", "index", "cache_control", "annotations", "logprobs"})


class Conversation:
    """The items of one request, each as its canonical text, hashed in one pass; `digest` and `length` are of all.

    `lengths` are those at which a prefix may be asked for later (the lengths of earlier conversations).
    """

    __slots__ = ("_open", "_prefixes", "digest", "length")

    def __init__(self, items: Iterable[str], lengths: Collection[int] = ()) -> None:
        hasher = hashlib.sha256(b"[")
        length = 0
        self._prefixes = {}
        for length, item in enumerate(items, 1):
            hasher.update((item if length == 1 else "," + item).encode())
            if length in lengths:
                self._prefixes[length] = hasher.copy()
        self.length = length
        self._open = hasher
        self.digest = _closed(hasher)

    def prefixes(self) -> Iterable[str]:
        """The digests of its prefixes, the longest first."""
        return (_closed(self._prefixes[length]) for length in sorted(self._prefixes, reverse=True))

    def continued(self, reply: Items) -> str:
        """The digest of this conversation with the reply's items behind it."""
        hasher = self._open.copy()
        text = ",".join(reply)
        hasher.update(("," + text if self.length and text else text).encode())
        return _closed(hasher)


def _closed(hasher: Any) -> str:
    whole = hasher.copy()
    whole.update(b"]")
    digest: str = whole.hexdigest()
    return digest


def asked(path: str, body: Json, lengths: Collection[int] = ()) -> Conversation | None:
    """The conversation that the request holds, or None when its form is not known."""
    try:
        return Conversation(_request_items(path, body), lengths)
    except (KeyError, TypeError, ValueError, AttributeError, WireError):
        return None


def continuations(conversation: Conversation, path: str, reply: bytes, streamed: bool) -> tuple[int, tuple[str, ...]]:
    """Length and digests of the conversation with each alternative reply behind it; (0, ()) for an unknown form."""
    try:
        body = assembled(path, reply) if streamed else json.loads(reply)
        alternatives = [items for items in _reply_items(path, body) if items]
        digests = tuple(conversation.continued(items) for items in alternatives)
    except (KeyError, TypeError, ValueError, AttributeError, WireError, RecursionError):
        return 0, ()
    if not alternatives or len({len(items) for items in alternatives}) > 1:
        return 0, ()
    return conversation.length + len(alternatives[0]), digests


# --- the three dialects


def _request_items(path: str, body: Json) -> Items:
    if path.endswith(CHAT):
        return [_message(each) for each in _list(body["messages"])]
    if path.endswith(MESSAGES):
        system = _content(body.get("system"))
        return [*([_text({"system": system})] if system else []), *(_message(each) for each in _list(body["messages"]))]
    head = [_text({name: body[name]}) for name in ("previous_response_id", "instructions") if body.get(name)]
    given = body["input"]
    return head + ([_message({"role": "user", "content": given})] if type(given) is str else _response_items(given))


def _reply_items(path: str, body: Json) -> list[Items]:
    """The alternatives that a reply offers, each as the items that a caller puts behind its request."""
    if path.endswith(CHAT):
        return [[_message({"role": "assistant"} | each["message"])] for each in _list(body["choices"])]
    if path.endswith(MESSAGES):
        return [[_message({"role": "assistant", "content": body["content"]})]]
    return [_response_items(body["output"])]


def _response_items(given: Json) -> Items:
    return [_response_item(each) for each in _list(given) if each.get("type") not in _REASONING]


def _response_item(item: Mapping[str, Json]) -> str:
    return _message(item) if item.get("type", "message") == "message" else _text(_said(item))


def _message(message: Mapping[str, Json]) -> str:
    role, content = message["role"], message.get("content")
    plain = len(message) == 2 and "content" in message
    more = {} if plain else {name: message[name] for name in _MORE if message.get(name)}
    if not more and content and type(content) is str and type(role) is str:  # nearly all of them
        return f'{{"content":{_quoted(content)},"role":{_quoted(role)}}}'
    content = _content(content)
    if content:
        more["content"] = content
    if "tool_calls" in more:
        more["tool_calls"] = [{"id": each.get("id"), **_said(each)} for each in _list(more["tool_calls"])]
    return _text({"role": role} | more)


def _text(item: Json) -> str:
    return canonical(item).decode()


def _content(content: Json) -> Json:
    """One text where it is nothing but text, else its parts without what an echo leaves out."""
    if type(content) is not list:
        return content
    parts = [each for each in content if each.get("type") not in _REASONING]
    if all(each.get("type") in _TEXT_PARTS for each in parts):
        return "".join(each["text"] for each in parts)
    return [{**_said(each), **({"id": each["id"]} if each.get("id") else {})} for each in parts]


def _said(item: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in item.items() if value is not None and name not in _UNSAID}


def _list(value: Json) -> list[Json]:
    if type(value) is not list:
        raise TypeError(f"a list, not {type(value).__name__}")
    return value


# --- streamed replies


_LAST_EVENTS: Final = {
    CHAT: (b"[DONE]",),
    RESPONSES: (b"response.completed", b"response.incomplete", b"response.failed"),
    MESSAGES: (b"message_stop",),
}


def is_last(path: str, part: bytes) -> bool:
    """Whether a part of a stream may hold the event after which callers take the reply for complete."""
    return any(mark in part for ending, marks in _LAST_EVENTS.items() if path.endswith(ending) for mark in marks)


def assembled(path: str, stream: bytes) -> Json:
    """The reply that a stream of server-sent events adds up to, as if it had not been streamed."""
    data = [line[5:].strip() for line in stream.splitlines() if line.startswith(b"data:")]
    events = [json.loads(each) for each in data if each != b"[DONE]"]
    joined: Callable[[list[Json]], Json] = _joined_responses
    if path.endswith(CHAT):
        joined = _joined_chat
    elif path.endswith(MESSAGES):
        joined = _joined_messages
    return joined(events)


def _joined_responses(events: list[Json]) -> Json:
    whole = [each["response"] for each in events if each["type"] in ("response.completed", "response.incomplete")]
    return whole[-1] if whole else None


def _joined_chat(events: list[Json]) -> Json:
    choices: dict[int, dict[str, Json]] = {}
    calls: dict[tuple[int, int], dict[str, Json]] = {}
    for choice in (choice for event in events for choice in event.get("choices", ())):
        index, delta = choice["index"], choice["delta"]
        message = choices.setdefault(index, {"role": "assistant", "content": "", "tool_calls": []})
        message["content"] += delta.get("content") or ""
        for piece in delta.get("tool_calls") or ():
            call = calls.get((index, piece["index"]))
            if call is None:
                call = calls[index, piece["index"]] = {"type": "function", "function": {"name": "", "arguments": ""}}
                message["tool_calls"].append(call)
            call["id"] = call.get("id") or piece.get("id")
            for name, text in (piece.get("function") or {}).items():
                call["function"][name] = call["function"].get(name, "") + (text or "")
    return {"choices": [{"message": choices[index]} for index in sorted(choices)]}


def _joined_messages(events: list[Json]) -> Json:
    blocks: dict[int, dict[str, Json]] = {}
    partial: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks[event["index"]] = dict(event["content_block"])
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "text_delta":
                blocks[event["index"]]["text"] += delta["text"]
            elif delta["type"] == "input_json_delta":
                partial[event["index"]] = partial.get(event["index"], "") + delta["partial_json"]
    for index, text in partial.items():
        blocks[index]["input"] = json.loads(text or "{}")
    return {"content": [blocks[index] for index in sorted(blocks)]}
