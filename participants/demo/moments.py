"""Moments in the life of a job at which something can be made to happen: seen in what its coordinator does. Pure.

A moment is told the instant it is reached, from inside the coordinator: by a line of its journal, which is written at
each change of the transaction's state, or by the answer to a control call. Nobody looks from time to time, and nobody
sleeps, so that a moment of a few microseconds is met as surely as one of a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

import httpx
from attrs import define

from ..machines.transaction import TransactionState


class Moment(StrEnum):
    """The phases of a checkpoint in their order, each as it begins; IDLE is when a published one is over.

    PROVE: the first participant has renewed its lease after the save. ACKNOWLEDGE: the claims are read, results are to
    be released. RESUME: the first server is open again, the others are not.
    """

    FREEZE = "freeze"
    PREPARE = "prepare"
    COMMIT = "commit"
    SETTLE = "settle"
    SAVE = "save"
    VALIDATE = "validate"
    PROVE = "prove"
    PUBLISHED = "published"
    ACKNOWLEDGE = "acknowledge"
    RESUME = "resume"
    IDLE = "idle"


BEFORE_PUBLICATION: Final = (
    Moment.FREEZE,
    Moment.PREPARE,
    Moment.COMMIT,
    Moment.SETTLE,
    Moment.SAVE,
    Moment.VALIDATE,
    Moment.PROVE,
)
ENTERED: Final[Mapping[TransactionState, Moment]] = {
    TransactionState.FREEZING: Moment.FREEZE,
    TransactionState.PREPARING: Moment.PREPARE,
    TransactionState.COMMITTING: Moment.COMMIT,
    TransactionState.SETTLING: Moment.SETTLE,
    TransactionState.SAVING: Moment.SAVE,
    TransactionState.VALIDATING: Moment.VALIDATE,
    TransactionState.PUBLISHED: Moment.PUBLISHED,
    TransactionState.RESUMING: Moment.ACKNOWLEDGE,
}
ANSWERED: Final[Mapping[tuple[TransactionState, str], Moment]] = {
    (TransactionState.VALIDATING, "renew"): Moment.PROVE,
    (TransactionState.RESUMING, "resume"): Moment.RESUME,
}


@define(eq=False)
class Moments:
    """Follows one coordinator. `reached` is called with each moment, and how many checkpoints were published before.

    The number is of the checkpoint that the moment belongs to: 0 in the first one that is published and in those that
    aborted before it, 1 in the next, and so on.
    """

    reached: Callable[[Moment, int], None]
    published: int = 0
    state: TransactionState = TransactionState.IDLE

    def line(self, line: Mapping[str, Any]) -> None:
        """A line of the coordinator's journal was written."""
        if line["machine"] != "transaction" or line["state"] == line["next"]:
            return
        before, self.state = self.state, TransactionState(line["next"])
        if self.state in ENTERED:
            self.reached(ENTERED[self.state], self.published)
        if self.state is TransactionState.IDLE and before is TransactionState.RESUMING:
            self.published += 1
            self.reached(Moment.IDLE, self.published - 1)

    def answered(self, path: str) -> None:
        """A server has answered a request to this path with success."""
        moment = ANSWERED.get((self.state, path.rpartition("/checkpoint/")[2]))
        if moment is not None:
            self.reached(moment, self.published)


class Heard(httpx.AsyncBaseTransport):
    """A transport that tells of each good answer before whoever asked has it."""

    def __init__(self, inner: httpx.AsyncBaseTransport, answered: Callable[[str], None]) -> None:
        self._inner, self._answered = inner, answered

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        if response.status_code == 200:
            self._answered(request.url.path)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()
