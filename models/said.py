"""What is said in the worlds of model calls: values, and what the servers' pure functions make of them.

The agent says the task, then `next` behind every reply. A generation says one of two words, so that two of one
conversation may say the same. docs/reference/protocol.md sections 7 and 14.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from attrs import frozen

from participants.coordination.agreement import Pieces
from participants.identity import EpisodeId
from participants.machines.model_call import RESPONSE, CallData, CallState, ResponseState
from participants.records.records import AgentBoundary, AgentRecord, ModelRecord, ModelRow
from participants.servers.conversation import CHAT, Conversation, continuations
from participants.servers.lineage import Entry, Lineage, placed
from statecore import Snapshot
from statecore.wire import encode

WORDS = ("yes", "no")
TASK = "task"
EPISODE = EpisodeId("r1")
AWAITED = RESPONSE.start()
Words = tuple[str, ...]


@frozen(cache_hash=True)
class Talk:
    """The agent's conversation: what was said in it, and the call whose reply came last."""

    said: Words = ()
    last: str | None = None


@frozen(cache_hash=True)
class Row:
    """A row of the model's ledger; what the call was asked with and what it said is ghost."""

    call: str
    parent: str | None
    length: int
    digests: tuple[str, ...]
    asked: Words
    said: str | None


@frozen(cache_hash=True)
class Call:
    """A model call at the model: `cut` is None while it is held at the door, `caller` False when nobody waits for it.

    `said` is its reply once it is there, None for an error.
    """

    asked: Words
    named: str | None
    caller: bool = True
    parent: str | None = None
    cut: Snapshot[CallState, CallData] | None = None
    response: Snapshot[ResponseState, None] = AWAITED
    said: str | None = None
    over: bool = False

    @property
    def generates(self) -> bool:
        return self.cut is not None and self.response.state is ResponseState.AWAITED


OVER = Call((), None, over=True)


@frozen(cache_hash=True)
class Part:
    """A written part: for which checkpoint, and the agent's boundary (if it has a record) or the model's rows."""

    checkpoint_id: str
    record: bool = False
    boundary: Talk | None = None
    rows: tuple[Row, ...] = ()


def request_of(asked: Words) -> dict[str, Any]:
    """What the agent sends."""
    messages = [{"role": "user", "content": TASK}]
    for word in asked:
        messages += [{"role": "assistant", "content": word}, {"role": "user", "content": "next"}]
    return {"messages": messages}


@cache
def _conversation(asked: Words) -> Conversation:
    _, conversation = placed(None, None, CHAT, request_of(asked))
    assert conversation is not None
    return conversation


@cache
def reply_of(asked: Words, said: str) -> tuple[int, tuple[str, ...]]:
    """Where the conversation stands after that reply: how many items, and their digest."""
    conversation = _conversation(asked)
    reply = encode({"choices": [{"message": {"role": "assistant", "content": said}}]})
    return continuations(conversation, CHAT, reply, False)


@cache
def lineage_of(rows: tuple[Row, ...]) -> Lineage:
    """The rows as the model server keeps them; only read."""
    lineage = Lineage()
    for row in rows:
        request = _conversation(row.asked).digest
        written = ModelRow(model_call_id=row.call, parent_call_id=row.parent, request_digest=request)
        lineage.add(Entry(written, row.length, row.digests))
    return lineage


@cache
def pieces_of(part: Part, rows: tuple[Row, ...]) -> Pieces:
    """The records of both parts."""
    if not part.record:
        return Pieces()
    boundary = None
    if part.boundary is not None:
        boundary = AgentBoundary(
            boundary_index=len(part.boundary.said), previous=None, task_digest=TASK, data_position=None,
            last_model_call_id=part.boundary.last, lineage_head=None, parts=(), items=None, usage=None, cookies={},
            steps_used=len(part.boundary.said), elapsed_s=0.0, state=None,
        ).to_json()  # fmt: skip
    agent = AgentRecord(episode_id=EPISODE, session_key="run", boundary=boundary, episode={})
    written = tuple(ModelRow(model_call_id=row.call, parent_call_id=row.parent).to_json() for row in rows)
    return Pieces(agents=(("agent", agent),), models=(("model", ModelRecord(episode_id=EPISODE, rows=written)),))


def chain(rows: tuple[Row, ...], last: str | None) -> Words | None:
    """What was said along the parents of `last`; None when one of them is not there."""
    said: list[str] = []
    known = {row.call: row for row in rows}
    while last is not None:
        row = known.get(last)
        if row is None or row.said is None or len(said) > len(known):
            return None
        said.append(row.said)
        last = row.parent
    return tuple(reversed(said))
