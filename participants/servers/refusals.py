"""Which sendings were refused for good: of each call the highest, and with it all before it (S61).

What is remembered is bounded. A call that must be let go leaves its number behind as a floor: from then on no sending
up to it is accepted of a call that has no number of its own. That refuses too much, never too little; a caller that
counts its sendings is accepted at the next one above the floor (docs/reference/protocol.md section 6).
"""

from __future__ import annotations

from typing import Final

from statecore import Refused

from ..identity import EpisodeId
from ..machines.sendings import Sending

DETAIL: Final = "this sending was refused, and stays refused: send the call again under the next number"


class Refusals:
    """The highest sending that was refused, per call: of at most `limit` calls one by one, of all others `floor`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.floor = 0
        self._count = 0
        self._calls: dict[str | None, dict[tuple[int, str], int]] = {}  # by rollout, then by attempt and operation

    def __len__(self) -> int:
        return self._count

    def refuse(self, sending: Sending) -> int:
        """Neither this sending nor one before it will ever be accepted; returns up to which that is true now."""
        highest = max(sending.tried, self.highest(sending))
        rollout_id, call = _key(sending.owner, sending.operation_id)
        calls = self._calls.setdefault(rollout_id, {})
        self._count += call not in calls
        calls[call] = highest
        if self._count > self.limit:
            self._let_go()
        return highest

    def highest(self, sending: Sending) -> int:
        """Up to which sending this call was refused; 0 if it never was."""
        rollout_id, call = _key(sending.owner, sending.operation_id)
        return max(self.floor, self._calls.get(rollout_id, {}).get(call, 0))

    def check(self, sending: Sending) -> None:
        """Nothing happens for a sending that may be accepted; Refused `admission_closed` for one that was refused."""
        if (self._count or self.floor) and sending.tried <= self.highest(sending):
            raise Refused("admission_closed", "refused", sending, (), DETAIL)

    def done(self, owner: EpisodeId | None, operation_id: str) -> None:
        """The call has its reply: what comes of it late is answered from its record."""
        rollout_id, call = _key(owner, operation_id)
        self._forget(rollout_id, [call])

    def over(self, owner: EpisodeId) -> None:
        """This attempt and those below send nothing any more that could change anything."""
        calls = self._calls.get(owner.rollout_id, {})
        self._forget(owner.rollout_id, [call for call in calls if call[0] <= owner.attempt])

    def _forget(self, rollout_id: str | None, gone: list[tuple[int, str]]) -> None:
        calls = self._calls.get(rollout_id)
        if calls is None:
            return
        self._count -= sum(calls.pop(call, None) is not None for call in gone)
        if not calls:
            del self._calls[rollout_id]

    def _let_go(self) -> None:
        """The oldest call of the rollout that has been here for longest is forgotten, and its number is the floor."""
        rollout_id, calls = next(iter(self._calls.items()))
        oldest = next(iter(calls))
        self.floor = max(self.floor, calls[oldest])
        self._forget(rollout_id, [oldest])


def _key(owner: EpisodeId | None, operation_id: str) -> tuple[str | None, tuple[int, str]]:
    return (None, (0, operation_id)) if owner is None else (owner.rollout_id, (owner.attempt, operation_id))
