"""Where a Gym resources server keeps the state of its sessions, and how that becomes plain JSON and comes back.

Most of Gym's servers keep it in a dictionary of theirs, by the id in their session cookie: `held_in` names that
dictionary and a codec for its values. A session without an entry (not begun, or over) has no state: null in a record.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from attrs import frozen

from ..servers.codecs import JSON, Codec, CodecError

ABSENT: Final = None


class Held(Protocol):
    """A server's sessions: read, put back after a restore, and dropped when their rollout is over."""

    @property
    def codec(self) -> Codec[Any]: ...

    def get(self, server: Any, session_id: str) -> Any:
        """The state of the session, None when there is none."""

    def put(self, server: Any, session_id: str, state: Any) -> None:
        """The session has this state."""

    def drop(self, server: Any, session_id: str) -> None:
        """The session has no state; so is one that had none."""


@frozen
class _OrAbsent(Codec[Any]):
    inner: Codec[Any]

    @property
    def name(self) -> str:
        return self.inner.name

    def export(self, state: Any, /) -> JSON:
        return ABSENT if state is None else {"state": self.inner.export(state)}

    def load(self, data: JSON, /) -> Any:
        if data is ABSENT:
            return None
        if type(data) is not dict or set(data) != {"state"}:
            raise CodecError(self.name, "$", "neither null nor an object with a state")
        return self.inner.load(data["state"])


@frozen
class _InAttribute:
    attribute: str
    codec: Codec[Any]

    def _all(self, server: Any) -> dict[str, Any]:
        found = getattr(server, self.attribute)
        assert isinstance(found, dict), f"{type(server).__name__}.{self.attribute} is no dictionary"
        return found

    def get(self, server: Any, session_id: str) -> Any:
        return self._all(server).get(session_id)

    def put(self, server: Any, session_id: str, state: Any) -> None:
        if state is None:
            self.drop(server, session_id)
        else:
            self._all(server)[session_id] = state

    def drop(self, server: Any, session_id: str) -> None:
        self._all(server).pop(session_id, None)


def held_in(attribute: str, codec: Codec[Any]) -> Held:
    """Sessions in the dictionary `attribute` of the server, by session id, each value carried by `codec`."""
    return _InAttribute(attribute, _OrAbsent(codec))
