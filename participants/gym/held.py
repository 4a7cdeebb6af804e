"""Where a Gym resources server keeps the state of its sessions, and how that becomes plain JSON and comes back.

Most of Gym's servers keep it in a dictionary of theirs, by the id in their session cookie: `held_in` names that
dictionary and a codec for its values. A session without an entry (not begun, or over) has no state: null in a record.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Protocol

from attrs import define, frozen

from ..servers.codecs import JSON, Codec, CodecError


@define(eq=False)
class Slot:
    """What a server has of one session; None is nothing. Slots are compared by what they export."""

    value: Any


class Held(Protocol):
    """A server's sessions: read, put back after a restore, and dropped when their rollout is over."""

    @property
    def codec(self) -> Codec[Slot]: ...

    def get(self, server: Any, session_id: str) -> Slot:
        """The state of the session as it is now."""

    def put(self, server: Any, session_id: str, state: Slot) -> None:
        """The session has this state."""

    def drop(self, server: Any, session_id: str) -> None:
        """The session has no state; so is one that had none."""


@frozen
class SlotCodec(Codec[Slot]):
    """Carries a slot, its value by a codec of its own."""

    inner: Codec[Any]

    @property
    def name(self) -> str:
        return self.inner.name

    def export(self, state: Slot, /) -> JSON:
        return None if state.value is None else {"state": self.inner.export(state.value)}

    def load(self, data: JSON, /) -> Slot:
        if data is None:
            return Slot(None)
        if type(data) is not dict or set(data) != {"state"}:
            raise CodecError(self.name, "$", "neither null nor an object with a state")
        return Slot(self.inner.load(data["state"]))


@frozen
class InAttribute:
    """Sessions in a dictionary of the server, by session id."""

    attribute: str
    codec: Codec[Slot]

    def all_of(self, server: Any) -> MutableMapping[str, Any]:
        found = getattr(server, self.attribute)
        assert isinstance(found, MutableMapping), f"{type(server).__name__}.{self.attribute} is no dictionary"
        return found

    def get(self, server: Any, session_id: str) -> Slot:
        return Slot(self.all_of(server).get(session_id))

    def put(self, server: Any, session_id: str, state: Slot) -> None:
        if state.value is None:
            self.drop(server, session_id)
        else:
            self.all_of(server)[session_id] = state.value

    def drop(self, server: Any, session_id: str) -> None:
        self.all_of(server).pop(session_id, None)


def held_in(attribute: str, codec: Codec[Any]) -> Held:
    """Sessions in the dictionary `attribute` of the server, by session id, each value carried by `codec`."""
    return InAttribute(attribute, SlotCodec(codec))
