"""An agent's sessions as they are written down, and how they are read back. Pure.

docs/reference/protocol.md sections 7 and 14; the fields are in docs/reference/files.md.
"""

from __future__ import annotations

from typing import Any, Final

from attrs import field, frozen

from statecore import WireError, WireErrors
from statecore.wire import structure, unstructure

from ..files.snapshots import InvalidCheckpointState
from ..identity import EpisodeId
from ..records._fields import encode_line, is_version
from ..records.records import AgentBoundary, AgentRecord
from .agent_session import OWN_RUN, LiveSession
from .executions import Response

SESSION_SCHEMA: Final = 1


@frozen(kw_only=True)
class KeptReply:
    """An activation's reply: status, headers as [name, value], body as text."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: str

    @classmethod
    def of(cls, response: Response) -> KeptReply:
        return cls(status=response.status, headers=response.headers, body=response.body.decode())

    def response(self) -> Response:
        return Response(self.status, self.headers, self.body.encode())


@frozen(kw_only=True)
class KeptSession:
    """Payload of a record's `session`: how many activations were answered, and the last one's reply.

    `payload_digest` is of what the session was given to do by the activation under way; "" between two. `opened`, the
    body that opened the session, is there only where its loop needs it again.
    """

    schema_version: int = field(default=SESSION_SCHEMA, validator=is_version)
    activations: int = 0
    task_digest: str = ""
    payload_digest: str = ""
    reply: KeptReply | None = None
    opened: Any = None


@frozen
class Staged:
    """A record of a checkpoint, read, not installed yet."""

    episode: EpisodeId
    key: str
    boundary: AgentBoundary | None
    line: bytes | None
    session: KeptSession
    own: Any


def record_of(live: LiveSession) -> AgentRecord:
    last = live.last
    session = KeptSession(
        activations=live.answered,
        task_digest=live.task_digest,
        payload_digest=live.payload_digest,
        reply=KeptReply.of(last.response) if last is not None and last.answered and last.response else None,
        opened=live.opened,
    )
    written = unstructure(session)
    if live.opened is None:
        del written["opened"]
    own = None
    if live.key == OWN_RUN:
        own = {"schema_version": SESSION_SCHEMA, "task": live.task, "task_digest": live.task_digest}
    return AgentRecord(
        episode_id=live.episode,
        session_key=live.key,
        boundary=None if live.boundary is None else live.boundary.value(),
        episode=own,
        session=written,
    )


def staged(record: AgentRecord) -> Staged:
    where = f"session {record.session_key!r} of {record.episode_id.key}"
    try:
        boundary = None if record.boundary is None else AgentBoundary.read(record.boundary)
        if record.boundary is not None and boundary is None:
            raise InvalidCheckpointState(f"{where}: its boundary was not written by this kind of agent")
        session = structure(record.session, KeptSession) if record.session is not None else KeptSession()
        line = None if boundary is None else encode_line(record.boundary)[:-1]
    except (WireError, WireErrors) as error:
        raise InvalidCheckpointState(f"{where}: {error}") from error
    return Staged(record.episode_id.successor, record.session_key, boundary, line, session, record.episode)
