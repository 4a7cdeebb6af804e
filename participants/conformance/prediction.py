"""What a server must answer next, from the very table that our servers run. Pure.

A shadow is stepped beside the server: each call is first made on a snapshot of PARTICIPANT, which says whether it is
refused and with which code, or where it leads. So nothing about phases and verbs is written down a second time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import field, frozen

from statecore import Refused, Snapshot
from statecore.wire import digest, encode, parse

from ..identity import EpisodeId
from ..machines.control import (
    PARTICIPANT,
    AnswerAgain,
    AwaitReadiness,
    Call,
    CommitRequested,
    Control,
    PartInstalled,
    PartWritten,
    Phase,
    PrepareRequested,
    ReadinessReached,
    ReadPart,
    RenewRequested,
    Reopened,
    RestoreFailed,
    RestoreRequested,
    ResumeRequested,
    RetireRequested,
    WritePart,
    new_process,
)

Json = dict[str, Any]
EVENTS: Final[Mapping[str, type[Call]]] = {
    "prepare": PrepareRequested,
    "commit": CommitRequested,
    "restore": RestoreRequested,
    "resume": ResumeRequested,
    "renew": RenewRequested,
    "retire": RetireRequested,
    "forget": RetireRequested,
}
"""What each verb is in the table."""


@frozen
class Prediction:
    """What must come: a refusal with `code`, or a 200 with `fields`, which are all of an earlier answer if `replay`."""

    code: str = ""
    fields: Json = field(factory=dict)
    replay: bool = False


class Shadow:
    """The machine of one server, as far as its caller can know: `phase`, `checkpoint_id` and `lease_until` follow.

    `quiet` says whether a prepare finds nothing that moves; `readable` whether a restore finds a part in its directory.
    """

    def __init__(self, *, incarnation: str | None, epoch: int | None, lease_grace_s: float) -> None:
        self._machine: Snapshot[Phase, Control] = new_process(
            incarnation or "", epoch=epoch, lease_grace_s=lease_grace_s
        )
        self._owed: object | None = None
        self._deadline_ts = 0.0
        self.quiet = True
        self.readable = False

    @property
    def phase(self) -> str:
        return self._machine.state.wire

    @property
    def checkpoint_id(self) -> str | None:
        return self._machine.data.checkpoint_id

    @property
    def lease_until(self) -> float | None:
        return self._machine.data.lease_until

    def asked(
        self, verb: str, body: Json, *, now: float, incarnation: str | None = None, epoch: int | None = None
    ) -> Prediction:
        """What must come of this call. One that is accepted has been made; `answered` says what came of it."""
        event = _event(verb, body, now=now, incarnation=incarnation, epoch=epoch)
        self._owed, self._deadline_ts = None, body["deadline_ts"]
        try:
            self._machine, effects = PARTICIPANT.step(self._machine, event)
        except Refused as refused:
            return Prediction(refused.code)
        for effect in effects:
            if isinstance(effect, AnswerAgain):
                return Prediction(fields=parse(effect.reply), replay=True)
            if isinstance(effect, Reopened):
                return Prediction(fields={"phase": "idle", "idempotent": effect.idempotent})
            if isinstance(effect, AwaitReadiness | WritePart | ReadPart):
                self._owed = effect
        return self._done(verb, body)

    def _done(self, verb: str, body: Json) -> Prediction:
        """What an accepted call must come to, by what is owed for it."""
        if isinstance(self._owed, AwaitReadiness):
            return Prediction(fields={"phase": "prepared" if self.quiet else "preparing"})
        if isinstance(self._owed, WritePart):
            return Prediction(fields={"phase": "committed"})
        if isinstance(self._owed, ReadPart) and not self.readable:
            self._machine, _ = PARTICIPANT.step(self._machine, RestoreFailed(self._owed.checkpoint_id))
            self._owed = None
            return Prediction("invalid_checkpoint_state")
        if isinstance(self._owed, ReadPart):
            return Prediction(fields={"phase": "restored"})
        if verb == "renew":
            return Prediction(fields={"lease_expires_at": self.lease_until})
        if verb == "retire":
            return Prediction(fields={"retired": [EpisodeId(**each).key for each in body["episode_ids"]]})
        return Prediction(fields={"forgotten": sorted(body["rollout_ids"])})

    def answered(self, answer: Json) -> None:
        """The accepted call was answered so: what it leads to has come about, and its answer is kept."""
        owed, self._owed = self._owed, None
        reply = encode(answer).decode()
        event: object
        if isinstance(owed, AwaitReadiness) and self.quiet:
            event = ReadinessReached(owed.checkpoint_id, reply)
        elif isinstance(owed, WritePart):
            event = PartWritten(owed.checkpoint_id, owed.arguments, reply)
        elif isinstance(owed, ReadPart):
            event = PartInstalled(owed.checkpoint_id, owed.arguments, reply, self._deadline_ts)
        else:
            return
        self._machine, _ = PARTICIPANT.step(self._machine, event)


def _event(verb: str, body: Json, **address: Any) -> Call:
    event = EVENTS[verb]
    address |= {"checkpoint_id": body["checkpoint_id"], "deadline_ts": body["deadline_ts"]}
    if event in (CommitRequested, RestoreRequested):
        return event(**address, arguments=_arguments(body["checkpoint_dir"], body["episode_ids"]))
    return event(**address)


def _arguments(directory: str, episodes: Sequence[Json]) -> str:
    """What makes two commits or restores the same."""
    return digest([directory, sorted(EpisodeId(**each).key for each in episodes)])
