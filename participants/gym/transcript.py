"""The calls that a Gym handler has made, in order, and how a handler that runs again is given the same answers. Pure.

Gym's loops have no boundary of their own, and their state is in local variables. But all they learn comes in answers
to their calls, so a loop that runs again from the top and gets the answers it had stands where it stood: same
conversation, same usage, same cookies, same step count. What is recorded is never called again. A loop that asks for
something else than it did cannot be continued, and is told so.

Handlers are nested: an agent's `/run` calls its own `/v1/responses`. Each has a track of its own; in one track calls
follow each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attrs import evolve, field, frozen

from statecore import StatecoreError, WireError
from statecore.wire import canonical, parse, sha256_hex

from ..records._fields import is_version
from ..servers.agent_records import KeptReply

SCHEMA: Final = 1
OUR_FIELDS: Final = "_ng_"
"""Fields of a body that name the execution: they differ between an attempt and its continuation."""


class OtherCall(StatecoreError):
    """A loop that runs again does not make the call that it made before."""

    def __init__(self, track: str, index: int, recorded: str, asked: str) -> None:
        super().__init__(track, index, recorded, asked)
        self.recorded = recorded
        self.asked = asked
        self.where = f"call {index} of {track}"

    def __str__(self) -> str:
        return f"{self.where} was {self.recorded} before the restore and is {self.asked} now"


@frozen
class Asked:
    """A call as a handler makes it: to which server, where, and the digest of what it says."""

    server: str
    path: str
    digest: str

    def __str__(self) -> str:
        return f"{self.server} {self.path} ({self.digest[:8]})"


@frozen(kw_only=True)
class Call:
    """A call and its answer."""

    track: str
    server: str
    path: str
    digest: str
    reply: KeptReply

    @property
    def asked(self) -> Asked:
        return Asked(self.server, self.path, self.digest)


@frozen(kw_only=True)
class Transcript:
    """Payload of an agent's boundary, `state`: the calls so far, in the order in which they were answered."""

    schema_version: int = field(default=SCHEMA, validator=is_version)
    calls: tuple[Call, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As `unstructure` gives it, without the search for how: a turn writes all of it."""
        return {"schema_version": self.schema_version, "calls": [_call_json(call) for call in self.calls]}

    def with_call(self, track: str, asked: Asked, reply: KeptReply) -> Transcript:
        """This one and a call more; what was done inside of that call is in its answer and is left out."""
        inside = track + "/"
        kept = tuple(each for each in self.calls if not each.track.startswith(inside))
        call = Call(track=track, server=asked.server, path=asked.path, digest=asked.digest, reply=reply)
        return evolve(self, calls=(*kept, call))

    def answer(self, track: str, index: int, asked: Asked) -> KeptReply | None:
        """The answer to call `index` (from 0) of a track; None when it was not answered yet.

        Raises OtherCall when that call was another one.
        """
        made = [each for each in self.calls if each.track == track]
        if index >= len(made):
            return None
        if made[index].asked != asked:
            raise OtherCall(track, index, str(made[index].asked), str(asked))
        return made[index].reply


def _call_json(call: Call) -> dict[str, Any]:
    reply = call.reply
    kept = {"status": reply.status, "headers": [list(each) for each in reply.headers], "body": reply.body}
    return {"track": call.track, "server": call.server, "path": call.path, "digest": call.digest, "reply": kept}


def digest_of(body: bytes) -> str:
    """The digest of what a call says: of its JSON without the fields that name the execution, else of its bytes."""
    try:
        value = parse(body) if body else None
    except WireError:
        return sha256_hex(body)
    if isinstance(value, dict):
        value = {name: each for name, each in value.items() if not name.startswith(OUR_FIELDS)}
    return sha256_hex(canonical(value))


def usage_and(known: Any, more: Any) -> Any:
    """The usage of two model calls together: numbers added, objects field by field; None is none."""
    if known is None or more is None:
        return more if known is None else known
    if isinstance(known, Mapping) and isinstance(more, Mapping):
        names = [*known, *(name for name in more if name not in known)]
        return {name: usage_and(known.get(name), more.get(name)) for name in names}
    if type(known) in (int, float) and type(more) in (int, float):
        return known + more
    return more
