"""Whether the parts of one execution are one execution at one boundary. Pure.

Rules (docs/reference/protocol.md section 7, *agree*): every part that a boundary names has a record at exactly that
position, compared whole (I35, S46), every resources record is named, and every agent session that an environment names
has a record (I34); the last model call and all its parents are rows of the model record (I34, S12); each row's tokens
are in the token store (I56, S14); the task is the one that was dispatched. What a peer of another make does not say is
accepted and counted. File digests prove none of this: copies of different moments are all intact.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

from attrs import frozen

from statecore.errors import WireError, WireErrors

from ..identity import EpisodeId
from ..records import positions
from ..records.records import (
    AgentBoundary,
    AgentRecord,
    EnvironmentBoundary,
    EnvironmentRecord,
    ModelRecord,
    ModelRow,
    Part,
    PartRef,
    ResourcesRecord,
    ResourcesState,
)


@frozen
class Pieces:
    """All records of one execution, each with the server (its manifest's instance) that wrote it."""

    environments: tuple[tuple[str, EnvironmentRecord], ...] = ()
    agents: tuple[tuple[str, AgentRecord], ...] = ()
    resources: tuple[tuple[str, ResourcesRecord], ...] = ()
    models: tuple[tuple[str, ModelRecord], ...] = ()

    @property
    def owners(self) -> tuple[str, ...]:
        """The servers whose record owns the episode: environments, and agents with an episode of their own."""
        agents = tuple(name for name, record in self.agents if record.episode is not None)
        return tuple(name for name, _ in self.environments) + agents


NO_PIECES = Pieces()
_FIELD_OF = {
    EnvironmentRecord: "environments",
    AgentRecord: "agents",
    ResourcesRecord: "resources",
    ModelRecord: "models",
}


def gather(parts: Iterable[Part]) -> dict[EpisodeId, Pieces]:
    """The pieces of each execution that any part holds. WireError(s) for a record that is not of its kind's form."""
    found: dict[EpisodeId, dict[str, list[tuple[str, Any]]]] = {}
    for part in parts:
        for record in part.typed:
            lists = found.setdefault(record.episode_id, {})
            lists.setdefault(_FIELD_OF[type(record)], []).append((part.manifest.instance, record))
    return {
        episode: Pieces(**{name: tuple(records) for name, records in lists.items()}) for episode, lists in found.items()
    }


def turns_of(pieces: Pieces) -> int:
    """The finished turns that the records of one execution hold, as its agents count them.

    What cannot be read counts for nothing: whether that is damage is `agree`'s to say.
    """
    turns = 0
    for _, agent in pieces.agents:
        try:
            boundary = None if agent.boundary is None else AgentBoundary.read(agent.boundary)
        except (WireError, WireErrors):
            continue
        turns += 0 if boundary is None else boundary.steps_used
    return turns


@frozen
class Agreed:
    """Whether an execution may be continued, and why not.

    `weak` counts positions of which only the revision could be compared, `untracked` the boundaries that name no parts
    (both are accepted and counted). `damaged`: a payload that says it is ours cannot be read.
    """

    agrees: bool
    reason: str = ""
    weak: int = 0
    untracked: int = 0
    damaged: bool = False


class _Differs(Exception):
    """Internal: the parts do not agree, in words."""


def agree(
    pieces: Pieces,
    task_digest: str,
    *,
    covered: Set[str] | None = None,
    stateless: Set[str] = frozenset(),
) -> Agreed:
    """Whether the pieces are one execution at one boundary (section 7, *agree*).

    `task_digest` is the dispatch record's; `covered` the staging keys of the token store's receipt (None: there is no
    store, and the call ledger stands alone); `stateless` the resources servers that have nothing to save.
    """
    try:
        _one_owner(pieces)
        boundaries = _boundaries(pieces, task_digest)
        weak, untracked = _parts_agree(pieces, boundaries, stateless)
        _lineage_agrees(pieces, boundaries, covered)
    except _Differs as difference:
        return Agreed(False, str(difference))
    except (WireError, WireErrors) as error:
        return Agreed(False, f"a payload cannot be read: {error}", damaged=True)
    return Agreed(True, weak=weak, untracked=untracked)


def _one_owner(pieces: Pieces) -> None:
    if not pieces.owners:
        raise _Differs("no server holds a record that owns it")
    if len(pieces.owners) > 1:
        raise _Differs(f"more than one server owns it: {', '.join(sorted(pieces.owners))}")


def _boundaries(pieces: Pieces, task_digest: str) -> list[tuple[str, AgentBoundary | None]]:
    """The agents' boundaries by instance (None: of another make); each is there, and the owner's is of this task."""
    for name, environment in pieces.environments:
        if environment.task_digest != task_digest:
            raise _Differs(f"{name} has another task ({environment.task_digest[:12]}, not {task_digest[:12]})")
        if environment.boundary is None:
            raise _Differs(f"{name} has no boundary yet")
        step = EnvironmentBoundary.read(environment.boundary)
        for other in step.sessions if step is not None else ():
            if other not in {instance for instance, _ in pieces.agents}:
                raise _Differs(f"{name} has a session at {other}, which has no record of it")
    boundaries: list[tuple[str, AgentBoundary | None]] = []
    for name, agent in pieces.agents:
        if agent.boundary is None:
            raise _Differs(f"{name} has no boundary yet")
        boundary = AgentBoundary.read(agent.boundary)
        if agent.episode is not None and boundary is not None and boundary.task_digest != task_digest:
            raise _Differs(f"{name} has another task ({boundary.task_digest[:12]}, not {task_digest[:12]})")
        boundaries.append((name, boundary))
    return boundaries


def _parts_agree(
    pieces: Pieces, boundaries: list[tuple[str, AgentBoundary | None]], stateless: Set[str]
) -> tuple[int, int]:
    """(weak, untracked): every part that is named has its record, and every resources record is named (S55)."""
    records = {(name, record.session_id): record for name, record in pieces.resources}
    tracked = [(name, each) for name, each in boundaries if each is not None and each.parts is not None]
    untracked = len(boundaries) - len(tracked) + (0 if boundaries else 1)
    weak, named = 0, set()
    for name, boundary in tracked:
        for part in boundary.parts or ():
            named.add((part.instance, part.key))
            if part.instance in stateless:
                continue
            record = records.get((part.instance, part.key))
            if record is None:
                raise _Differs(f"{name} names session {part.key!r} of {part.instance}, which has no record")
            weak += _compare(name, part, record)
    if untracked == 0:
        for instance, session_id in records:
            if (instance, session_id) not in named:
                raise _Differs(f"session {session_id!r} of {instance} is named by no boundary")
    return weak, untracked


def _compare(name: str, part: PartRef, record: ResourcesRecord) -> int:
    """1 if the position agrees by its revision only, else 0."""
    state = ResourcesState.read(record.state)
    if state is None:  # of another make: its state does not show where it stands
        if not part.position.weak:
            raise _Differs(f"{part.instance} does not say where session {part.key!r} stands")
        return 1
    compared = part.position.compared(state.position)
    if compared is positions.Agreement.DIFFERENT:
        raise _Differs(
            f"{name} stands at {part.position.header} of {part.instance}, whose session {part.key!r} is at "
            f"{state.position.header}"
        )
    return 1 if compared is positions.Agreement.WEAK else 0


def _lineage_agrees(
    pieces: Pieces, boundaries: list[tuple[str, AgentBoundary | None]], covered: Set[str] | None
) -> None:
    """The last call of each boundary and all its parents are rows (I34, S12), whose tokens are in the store (S14)."""
    rows = {row.model_call_id: row for _, record in pieces.models for row in map(ModelRow.read, record.rows)}
    for name, boundary in boundaries:
        call = boundary.last_model_call_id if boundary is not None else None
        seen: set[str] = set()
        while call is not None:
            row = rows.get(call)
            if row is None:
                of_what = "its last model call" if not seen else "a parent of its last model call"
                raise _Differs(f"{name}: {of_what}, {call!r}, is in no model record")
            if call in seen:
                raise _Differs(f"{name}: model call {call!r} is its own ancestor")
            seen.add(call)
            call = row.parent_call_id
    if covered is not None:
        for row in rows.values():
            if row.staging_key is not None and row.staging_key not in covered:
                raise _Differs(f"the token store does not hold {row.staging_key!r}")
