"""What a checkpoint goes on with, looked at by the simulation itself: nothing here compares as the product does.

The product reads a checkpoint, compares what its parts say, and continues what it takes for one execution. This asks
the same files the same questions with as little of its code as can be, and holds them against what was heard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

from ..demo.counting import held_by
from ..files.checkpoint import Checkpoint
from ..identity import EpisodeId
from ..records.records import AgentBoundary, Disposition, ModelRow, ResourcesState

Found = Iterator[tuple[str, str]]
"""The number of an invariant, and what is not as it says."""


def continued(name: str, checkpoint: Checkpoint, heard: Set[str]) -> Found:
    """Every continued rollout is one execution at one boundary. `heard` are the model calls that were answered."""
    turns = held_by(checkpoint).turns
    boundaries = _boundaries(checkpoint)
    parents = _parents(checkpoint)
    stands = _positions(checkpoint)
    for row in checkpoint.registry:
        boundary = boundaries.get(row.episode)
        if row.disposition is not Disposition.CONTINUE or boundary is None:
            continue
        for part in boundary.parts or ():
            at = stands.get((part.instance, part.key))
            if at != part.position.header:
                yield "I35", f"{name}: {row.rollout_id} goes on at {part.position.header} of {part.instance}, not {at}"
        chain = list(_chain(boundary.last_model_call_id, parents.get(row.episode, {})))
        if len(chain) != turns[row.rollout_id]:
            yield "I59", f"{name}: {row.rollout_id} has {turns[row.rollout_id]} turns and a chain of {len(chain)} calls"
        for call in chain:
            if call not in heard:
                yield "I99", f"{name}: {row.rollout_id} goes on from model call {call}, whose reply nobody has heard"


def whole_units(name: str, checkpoint: Checkpoint) -> Found:
    """Of rollouts that share state none goes on where another starts over (S69)."""
    fresh = {row.unit: row.rollout_id for row in checkpoint.registry if row.disposition is Disposition.FRESH}
    for row in checkpoint.registry:
        if row.disposition is Disposition.CONTINUE and row.unit is not None and row.unit in fresh:
            yield "I86", f"{name}: {row.rollout_id} goes on, and {fresh[row.unit]}, of the same unit, starts over"


def _records(checkpoint: Checkpoint, kind: str) -> Iterator[tuple[str, Any]]:
    for part in checkpoint.of_kind(kind):
        for record in part.typed:
            yield part.manifest.instance, record


def _boundaries(checkpoint: Checkpoint) -> dict[EpisodeId, AgentBoundary]:
    found = {}
    for _, record in _records(checkpoint, "agent"):
        boundary = None if record.boundary is None else AgentBoundary.read(record.boundary)
        if boundary is not None:
            found[record.episode_id] = boundary
    return found


def _positions(checkpoint: Checkpoint) -> dict[tuple[str, str], str]:
    """Where each session stood when it was exported, by server and session."""
    found = {}
    for instance, record in _records(checkpoint, "resources"):
        state = ResourcesState.read(record.state)
        if state is not None:
            found[instance, record.session_id] = state.position.header
    return found


def _parents(checkpoint: Checkpoint) -> dict[EpisodeId, dict[str, str | None]]:
    """The parent of each model call that has a row, by execution."""
    rows = ((record.episode_id, map(ModelRow.read, record.rows)) for _, record in _records(checkpoint, "model"))
    return {episode: {each.model_call_id: each.parent_call_id for each in calls} for episode, calls in rows}


def _chain(last: str | None, parents: Mapping[str, str | None]) -> Iterator[str]:
    """The calls behind a boundary, newest first, as far as there are rows."""
    seen: set[str] = set()
    while last in parents and last not in seen:
        assert last is not None
        seen.add(last)
        yield last
        last = parents[last]
