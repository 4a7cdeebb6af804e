"""Which call a call continues: conversations by digest in three dialects, streamed or not, and the ledger of calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from participants.files.snapshots import InvalidCheckpointState
from participants.identity import EpisodeId
from participants.records.records import ModelRecord, ModelRow
from participants.servers.conversation import CHAT, MESSAGES, RESPONSES, Conversation, asked, continuations, is_last
from participants.servers.lineage import Entry, Ledger, Lineage, Staged, placed, staged, staging_keys
from statecore import WireError
from statecore.wire import canonical, digest
from tests.policy_server import Generator, assistant, completion, running, user

R1 = EpisodeId("r1")


def entry(call: str, conversation: Sequence[Any] | None = None, **fields: Any) -> Entry:
    """The row of a call whose conversation, reply and all, is that list of items."""
    row = ModelRow(model_call_id=call, **fields)
    return Entry(row) if conversation is None else Entry(row, len(conversation), (digest(list(conversation)),))


def parent(lineage: Lineage, conversation: Sequence[Any]) -> str | None:
    return lineage.parent(of(conversation, lineage.lengths))


def of(conversation: Sequence[Any], lengths: Collection[int] = ()) -> Conversation:
    return Conversation([canonical(item).decode() for item in conversation], lengths)


def continued(path: str, body: Any, reply: Any) -> str:
    """The digest of the one conversation that a reply to that request makes."""
    conversation = asked(path, body)
    assert conversation is not None
    _, (only,) = continuations(conversation, path, json.dumps(reply).encode(), False)
    return only


# --- conversations


@given(st.lists(st.dictionaries(st.text(), st.integers() | st.text()), max_size=6), st.sets(st.integers(0, 8)))
def test_digests_are_canonical(items: list[dict[str, Any]], lengths: set[int]) -> None:
    """The digest of a conversation and of each prefix is statecore's digest of that list, the longest prefix first."""
    conversation = of(items, lengths)
    assert (conversation.length, conversation.digest) == (len(items), digest(items))
    wanted = [length for length in sorted(lengths, reverse=True) if 0 < length <= len(items)]
    assert list(conversation.prefixes()) == [digest(items[:length]) for length in wanted]
    assert conversation.continued(['{"a":1}', '{"b":2}']) == digest([*items, {"a": 1}, {"b": 2}])
    assert conversation.continued([]) == conversation.digest


@given(st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": st.text(min_size=1)})))
def test_plain_messages_are_canonical(messages: list[dict[str, Any]]) -> None:
    """The digest of a chat of plain messages is statecore's digest of them, whatever their text holds."""
    conversation = asked(CHAT, {"messages": messages})
    assert conversation is not None and conversation.digest == digest(messages)


TOOL_CALL = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ECHOES: list[tuple[str, Any, Any, Any]] = [
    (  # nulls, token fields and reasoning of a chat reply are not in what an agent sends back
        CHAT,
        {"model": "m", "messages": [user("a")]},
        {
            "choices": [
                {
                    "index": 0,
                    "message": {**assistant("b"), "refusal": None, "reasoning_content": "c", "prompt_token_ids": [1]},
                }
            ]
        },
        {"messages": [user("a"), assistant("b"), user("c")], "temperature": 0.5},
    ),
    (  # a tool call, its content null here and absent or empty there; text as one part
        CHAT,
        {"messages": [user("a")]},
        {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": [{**TOOL_CALL, "index": 0}]}}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a"}]},
                {"role": "assistant", "content": "", "tool_calls": [TOOL_CALL]},
                {"role": "tool", "tool_call_id": "t1", "content": "1"},
            ]
        },
    ),
    (  # output items go back with ids, status and annotations, or without; reasoning items may be left out
        RESPONSES,
        {"input": "a", "instructions": "be brief"},
        {
            "output": [
                {"type": "reasoning", "id": "rs_1", "summary": []},
                {
                    "type": "message",
                    "id": "msg_1",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "b", "annotations": [], "logprobs": None}],
                },
                {
                    "type": "function_call",
                    "id": "fc_1",
                    "call_id": "t1",
                    "name": "f",
                    "arguments": "{}",
                    "status": "completed",
                },
            ]
        },
        {
            "instructions": "be brief",
            "input": [
                user("a"),
                assistant("b"),
                {"type": "function_call", "call_id": "t1", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "t1", "output": "1"},
            ],
        },
    ),
    (  # blocks of a message, its thinking left out, cache marks moved
        MESSAGES,
        {
            "system": "be brief",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "..."},
                {"type": "text", "text": "b"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
            ],
        },
        {
            "system": [{"type": "text", "text": "be brief"}],
            "messages": [
                user("a"),
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "b"},
                        {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "1"}]},
            ],
        },
    ),
]


@pytest.mark.parametrize(("path", "request_body", "reply", "following"), ECHOES)
def test_an_echo_continues_the_call_it_echoes(path: str, request_body: Any, reply: Any, following: Any) -> None:
    """The next request, as agents write it, continues the conversation of request and reply. Covers: I99."""
    conversation = asked(path, request_body)
    assert conversation is not None
    length, digests = continuations(conversation, path, json.dumps(reply).encode(), False)
    after = asked(path, following, {length})
    assert after is not None and list(after.prefixes()) == list(digests)


OTHER_ARGUMENTS = {"function": {"name": "f", "arguments": "{} "}}


def calling(call: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [call]}


CHANGES: list[tuple[str, Callable[[Any], Any]]] = [
    ("another text", lambda body: {"messages": [user("x"), *body["messages"][1:]]}),
    ("another speaker", lambda body: {"messages": [assistant("a"), *body["messages"][1:]]}),
    ("another tool call", lambda body: {"messages": [user("a"), calling({**TOOL_CALL, "id": "t2"})]}),
    ("other arguments", lambda body: {"messages": [user("a"), calling(TOOL_CALL | OTHER_ARGUMENTS)]}),
    ("one turn less", lambda body: {"messages": body["messages"][1:]}),
]  # fmt: skip


@pytest.mark.parametrize("change", [pytest.param(change, id=name) for name, change in CHANGES])
def test_another_conversation_has_another_digest(change: Callable[[Any], Any]) -> None:
    """What an agent said differently is not the conversation of the row."""
    body = {"messages": [user("a"), calling(TOOL_CALL)]}
    same, other = asked(CHAT, body), asked(CHAT, change(body))
    assert same is not None and other is not None and same.digest != other.digest


def test_what_is_referred_to_is_no_prefix() -> None:
    """A responses request that continues a stored one by id is not taken for one that starts anew."""
    plain = asked(RESPONSES, {"input": "a"})
    stored = asked(RESPONSES, {"input": "a", "previous_response_id": "resp_1"})
    assert plain is not None and stored is not None and plain.digest != stored.digest


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, None), (CHAT, []), (CHAT, {}), (CHAT, {"messages": "a"}), (CHAT, {"messages": ["a"]}),
        (CHAT, {"messages": [{"content": "a"}]}),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": {"id": 1}}]}),
        (CHAT, {"messages": [{"role": "user", "content": [1]}]}),
        (CHAT, {"messages": [{"role": "assistant", "content": [{"type": "text"}]}]}),
        (RESPONSES, {"secs": 2.0}), (RESPONSES, {"input": 7}), (RESPONSES, {"input": [[]]}),
        (MESSAGES, {"messages": {"a": 1}}), (MESSAGES, {"system": [1], "messages": []}),
    ],
)  # fmt: skip
def test_a_request_of_unknown_form_has_no_conversation(path: str, body: Any) -> None:
    """Such a request is nobody's continuation; nothing raises."""
    assert asked(path, body) is None


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"no json",
        b"[]",
        b"{}",
        b'{"choices": []}',
        b'{"choices": [{"message": null}]}',
        b'{"choices": [{"message": {"content": NaN}}]}',
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_reply_of_unknown_form_continues_nothing(reply: bytes, streamed: bool) -> None:
    """Its row is nobody's parent; nothing raises."""
    conversation = asked(CHAT, {"messages": [user("a")]})
    assert conversation is not None
    assert continuations(conversation, CHAT, reply, streamed) == (0, ())


def test_each_alternative_can_be_continued() -> None:
    """A reply with several choices is the parent of whoever goes on from one of them."""
    conversation = asked(CHAT, {"messages": [user("a")]})
    assert conversation is not None
    reply = {"choices": [{"index": n, "message": assistant(text)} for n, text in enumerate("bc")]}
    length, digests = continuations(conversation, CHAT, json.dumps(reply).encode(), False)
    lineage = Lineage()
    lineage.add(Entry(ModelRow(model_call_id="m1"), length, digests))
    for text, expected in (("b", "m1"), ("c", "m1"), ("d", None)):
        assert parent(lineage, [user("a"), assistant(text), user("e")]) == expected


def sse(*data: Any) -> bytes:
    return b"".join(
        b"event: x\ndata: " + (each if type(each) is bytes else json.dumps(each).encode()) + b"\n\n" for each in data
    )


def chat_delta(index: int, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta}]}


TOOL_USE = {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}}
STREAMS: list[tuple[str, bytes, Any]] = [
    (
        CHAT,
        sse(
            chat_delta(0, role="assistant", content=""), chat_delta(0, content="he"), chat_delta(0, content="llo"),
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, {"choices": [], "usage": {}}, b"[DONE]",
        ),
        completion("hello"),
    ),
    (
        CHAT,
        sse(
            chat_delta(0, tool_calls=[TOOL_CALL | {"index": 0, "function": {"name": "f", "arguments": ""}}]),
            chat_delta(0, tool_calls=[{"index": 0, "function": {"arguments": "{"}}]),
            chat_delta(0, tool_calls=[{"index": 0, "function": {"arguments": "}"}}]),
            b"[DONE]",
        ),
        {"choices": [{"message": {"role": "assistant", "tool_calls": [TOOL_CALL]}}]},
    ),
    (
        RESPONSES,
        sse(
            {"type": "response.output_text.delta", "delta": "b"},
            {"type": "response.completed", "response": {"output": [{"type": "message", **assistant("b")}]}},
        ),
        {"output": [{"type": "message", **assistant("b")}]},
    ),
    (
        MESSAGES,
        sse(
            {"type": "message_start", "message": {"content": []}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "b"}},
            {"type": "content_block_start", "index": 1, "content_block": TOOL_USE | {"input": {}}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"x":'}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "1}"}},
            {"type": "message_stop"},
        ),
        {"content": [{"type": "text", "text": "b"}, TOOL_USE]},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("path", "stream", "whole"), STREAMS)
def test_a_streamed_reply_continues_as_a_whole_one(path: str, stream: bytes, whole: Any) -> None:
    """The events of a stream add up to the conversation that the same reply in one piece makes."""
    body = {"messages": [user("a")], "input": "a"}
    conversation = asked(path, body)
    assert conversation is not None
    _, (streamed,) = continuations(conversation, path, stream, True)
    assert streamed == continued(path, body, whole)
    assert is_last(path, stream) and not is_last(path, stream.splitlines()[1])


# --- the ledger


def test_the_parent_is_the_call_that_is_continued() -> None:
    """The longest conversation that is a prefix, of equal ones the newest call; without one there is no parent.

    Covers: I99.
    """
    lineage = Lineage()
    a, b, c = user("a"), assistant("b"), user("c")
    lineage.add(entry("m1", [a, b]))
    lineage.add(entry("m2", [a, b, c, assistant("d")]))
    lineage.add(entry("m3", [a, assistant("x")]))
    lineage.add(entry("m4", [a, b]))  # the first call once more, with the same reply
    lineage.add(entry("m5"))  # failed
    assert parent(lineage, [a, b, c]) == "m4"
    assert parent(lineage, [a, b, c, assistant("d"), user("e")]) == "m2"
    assert parent(lineage, [a, assistant("x")]) == "m3"
    for none in ([], [a], [b], [c, a, b], [a, assistant("y"), c]):
        assert parent(lineage, none) is None


class LastRow(Lineage):
    """The fault of S68: the parent is simply the last row."""

    def parent(self, conversation: Conversation) -> str | None:
        return self.entries[-1].row.model_call_id if self.entries else None


def resent_call(lineage: Lineage) -> str | None:
    """The parent of the second turn after the first was generated twice, and the agent went on from the first reply."""
    lineage.add(entry("first", [user("a"), assistant("one")]))
    lineage.add(entry("resent", [user("a"), assistant("two")]))
    return parent(lineage, [user("a"), assistant("one"), user("next")])


def test_s68_the_other_generation_is_not_taken_for_the_parent() -> None:
    """With the last row as the parent a resent call puts the other generation into the chain; by conversation not.

    Covers: I99.
    """
    assert resent_call(LastRow()) == "resent", "the fault shows itself"
    assert resent_call(Lineage()) == "first"


@pytest.mark.trio
async def test_s68_over_http_a_resent_call_is_no_parent() -> None:
    """Of two generations for one request, the one whose reply the agent goes on from is the parent of the next call."""
    async with running(Generator()) as policy:
        first, _ = [(await policy.chat("r1", [user("a")])).headers["x-nemo-gym-model-call-id"] for _ in range(2)]
        await policy.chat("r1", [user("a"), assistant("1: a"), user("next")])
        assert policy.rows("r1")[2]["parent_call_id"] == first
        await policy.chat("r1", [user("something else")])
        assert policy.rows("r1")[3]["parent_call_id"] is None


def generated(*replies: str) -> Lineage:
    """One request, generated as often as there are replies: calls m0, m1 and so on."""
    lineage = Lineage()
    for number, reply in enumerate(replies):
        row = entry(f"m{number}", [user("a"), assistant(reply)], request_digest=digest([user("a")]))
        lineage.add(row)
    return lineage


@pytest.mark.parametrize(
    ("replies", "named", "goes_on_from", "parent"),
    [
        (["one", "two"], "m1", "one", "m0"),  # sampled twice at once: the reply that came last was not taken
        (["one", "two"], "m1", "two", "m1"),
        (["one", "one"], "m0", "one", "m0"),  # both say the same: believed
        (["one", "two", "one"], "m1", "one", "m2"),  # the newest of those that say what is continued
        (["one", "two"], "m1", "rewritten", "m1"),  # neither is continued: believed
        (["one"], "m0", "rewritten", "m0"),
        (["one", "two"], "m7", "one", "m7"),  # a call that nobody knows: believed
    ],
)
def test_of_several_generations_the_one_that_is_continued_is_meant(
    replies: list[str], named: str, goes_on_from: str, parent: str
) -> None:
    """A name says which request; of the generations of one request the conversation says which. Covers: I99."""
    body = {"messages": [user("a"), assistant(goes_on_from), user("next")]}
    found, conversation = placed(generated(*replies), named, CHAT, body)
    assert found == parent
    assert conversation is not None and conversation.length == 3


@pytest.mark.parametrize("body", [{"messages": "no list"}, {}, None])
def test_a_named_parent_of_a_request_without_a_form(body: Any) -> None:
    """Nothing is known of the conversation, so the name counts, however many generations there are."""
    assert placed(generated("one", "two"), "m1", CHAT, body) == ("m1", None)
    assert placed(generated("one", "two"), None, CHAT, body) == (None, None)
    assert placed(None, "m1", CHAT, body) == ("m1", None)


@pytest.mark.trio
async def test_s68_over_http_a_named_generation_is_the_one_that_is_continued() -> None:
    """The caller asked twice at once, went on from the first reply, and names the call whose reply came last."""
    async with running(Generator()) as policy:
        first, last = [(await policy.chat("r1", [user("a")])).headers["x-nemo-gym-model-call-id"] for _ in range(2)]
        await policy.chat("r1", [user("a"), assistant("1: a"), user("next")], x_nemo_gym_parent_call_id=last)
        await policy.chat("r1", [user("a"), assistant("2: a"), user("next")], x_nemo_gym_parent_call_id=last)
        assert [row["parent_call_id"] for row in policy.rows("r1")] == [None, None, first, last]


@pytest.mark.trio
async def test_the_named_parent_counts() -> None:
    """A caller that names the parent is believed, whatever its conversation looks like."""
    async with running(Generator()) as policy:
        await policy.chat("r1", [user("a")])
        await policy.chat("r1", [user("a"), assistant("1: a"), user("b")], x_nemo_gym_parent_call_id="call-7")
        assert policy.rows("r1")[1]["parent_call_id"] == "call-7"


@pytest.mark.trio
async def test_a_failed_call_is_no_parent() -> None:
    """The call after a failed one continues what the failed one continued."""
    generator = Generator()

    async def upstream(path: str, body: Any) -> Any:
        return {"oops": 1} if body["messages"][-1]["content"] == "odd" else await generator(path, body)

    async with running(upstream) as policy:
        first = (await policy.chat("r1", [user("a")])).headers["x-nemo-gym-model-call-id"]
        begun = [user("a"), assistant("1: a")]
        for text in ("odd", "b"):
            await policy.chat("r1", [*begun, user(text)])
        assert [row["parent_call_id"] for row in policy.rows("r1")] == [None, first, first]


def test_rows_of_other_executions_are_no_parents() -> None:
    """Each execution has its own lineage; the highest attempt takes none over without a restore."""
    ledger = Ledger()
    ledger.add(R1, entry("m1", [user("a"), assistant("b")]))
    assert ledger.of(EpisodeId("r1", 1)) is None and ledger.of(EpisodeId("r2")) is None
    lineage = ledger.of(R1)
    assert lineage is not None and parent(lineage, [user("a"), assistant("b")]) == "m1"


def test_drop_covers_an_attempt_and_the_earlier_ones() -> None:
    """What is later stays; a rollout without attempts leaves nothing behind."""
    ledger = Ledger()
    for attempt in range(3):
        ledger.add(EpisodeId("r1", attempt), entry(f"m{attempt}"))
    ledger.drop("r1", 1)
    assert len(ledger) == 1 and ledger.of(EpisodeId("r1", 2)) is not None
    ledger.drop("r1", 2)
    ledger.drop("r2", 5)
    assert len(ledger) == 0


def test_install_replaces_all_that_was_there() -> None:
    """Every rollout in scope has exactly its staged rows, under N+1; one without a record has none. Covers: I54."""
    ledger = Ledger()
    for rollout_id, attempt in (("r1", 0), ("r1", 1), ("r2", 0), ("r3", 0)):
        ledger.add(EpisodeId(rollout_id, attempt), entry("old"))
    ledger.install([Staged(R1, (entry("new"),))], [R1, EpisodeId("r2")])
    scope = [EpisodeId(rollout_id, attempt) for rollout_id in ("r1", "r2", "r3") for attempt in (0, 1)]
    found = {
        EpisodeId(**each["episode_id"]).key: [row["model_call_id"] for row in each["rows"]]
        for each in ledger.records(scope)
    }
    assert found == {"r1-a1": ["new"], "r3": ["old"]}


@given(
    st.builds(
        ModelRow,
        model_call_id=st.text(min_size=1),
        capture_key=st.none() | st.text(),
        parent_call_id=st.none() | st.text(),
        staging_key=st.none() | st.text(),
        policy_version=st.none() | st.tuples(st.integers(), st.integers()),
        epoch=st.none() | st.integers(),
        failure_reason=st.none() | st.text(),
        extra=st.dictionaries(st.sampled_from(["prev_len", "mode"]), st.integers()),
    ),
    st.integers(1, 99),
    st.lists(st.text(), max_size=3),
)
def test_an_entry_reads_back_equal(row: ModelRow, length: int, digests: list[str]) -> None:
    """A row and its conversation come back from what is written of them. Covers: I49."""
    before = Entry(row, length if digests else 0, tuple(digests))
    assert Entry.read(json.loads(json.dumps(before.to_json()))) == before


@pytest.mark.parametrize(
    "value",
    [
        7,
        "x",
        {},
        {"items": 1},
        {"items": 1, "digests": [], "more": 1},
        {"items": "1", "digests": ["a"]},
        {"items": 1, "digests": [1]},
    ],
)
def test_a_conversation_that_is_not_ours_stays_as_it_is(value: Any) -> None:
    """A field of that name in another's row makes no parent, and is written again as it was."""
    written = {"model_call_id": "m1", "conversation": value}
    read = Entry.read(written)
    assert read.digests == () and read.to_json()["conversation"] == value


def test_damaged_records_are_named() -> None:
    """A row that is none, and a call that is there twice, say which execution and which row."""
    with pytest.raises(InvalidCheckpointState, match=r"row 2 of the model record of r1-a1"):
        staged([ModelRecord(episode_id=EpisodeId("r1", 1), rows=({"model_call_id": "m1"}, {"model_call_id": 3}))])
    with pytest.raises(InvalidCheckpointState, match="has call 'm1' twice"):
        staged([ModelRecord(episode_id=R1, rows=({"model_call_id": "m1"}, {"model_call_id": "m1"}))])
    with pytest.raises(WireError):
        Entry.read(["m1"])


def test_staging_keys_are_of_the_records() -> None:
    """All keys and those of each execution agree; rows without one add nothing."""

    def written(key: str, *rows: Mapping[str, Any]) -> dict[str, Any]:
        episode = EpisodeId.from_key(key)
        return {"episode_id": {"rollout_id": episode.rollout_id, "attempt": episode.attempt}, "rows": list(rows)}

    records = [written("r1-a2", {"staging_key": "b"}, {"staging_key": "a"}, {"staging_key": None}, {}), written("r2")]
    assert staging_keys(records) == (["a", "b"], {"r1-a2": ["a", "b"], "r2": []})
    assert staging_keys([]) == ([], {})
