"""What the coordinator and the framework hand each other: dispatches in, results out, hooks for the framework's half.

Rules (docs/reference/protocol.md sections 9 and 13): whoever saved a result keeps it until a durable trainer checkpoint
contains it (I87); the trainer's consumed set decides what is completed (I88); the rollout id derives from the data
position, so that a cursor that rolled back hands out the same ids again and the coordinator knows them (I12, S40).

Values only, and protocols; no clock, no disk, no await. What a framework has to know is in one place,
docs/reference/integration-contract.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from attrs import field, frozen

from ..identity import EpisodeId
from ..records._fields import is_rollout_id, is_text, is_text_or_none
from ..records.records import Disposition, Json, Receipt

if TYPE_CHECKING:
    from .outcomes import Restarted

__all__ = [
    "Dispatch",
    "Disposition",
    "HasPolicyVersion",
    "HearsOfRestarts",
    "Json",
    "Receipt",
    "Result",
    "SavesResults",
    "Trainer",
]


@frozen
class Dispatch:
    """One rollout to run, as the framework hands it out; every checkpoint keeps it as its dispatch record (13.6).

    `task` goes to the server named `target` (a name in the launcher's map: an environment, or an agent that drives its
    own episodes). `group` and `data_position` are the framework's own and come back unchanged. Raises ValueError when
    the rollout id is none (section 3), and when `target` or `group` is no text.
    """

    rollout_id: str = field(validator=is_rollout_id)
    task: Json
    target: str = field(validator=is_text)
    group: str | None = field(default=None, validator=is_text_or_none)
    data_position: Json = None


@frozen
class Result:
    """One result, as it goes to `Trainer.accept`: the server's JSON body and the receipt that names it.

    `body` and `dispatch` are copies: the framework may change them, the coordinator's ledger does not see it.
    `redelivered` is true after a restart, when the checkpoint's ledger has the result and the trainer's state has not.
    """

    rollout_id: str
    attempt: int
    body: Json
    receipt: Receipt
    dispatch: Dispatch
    redelivered: bool = False

    @property
    def episode(self) -> EpisodeId:
        """The execution that made it."""
        return EpisodeId(self.rollout_id, self.attempt)


class Trainer(Protocol):
    """The framework's half. The coordinator calls these one at a time, never two at once.

    Between moving its data cursor and handing the dispatches to the coordinator (`Recovered.runnable` or `run_batch`) a
    trainer does not await: then each dispatch behind a saved cursor is in the same checkpoint (S40).
    """

    async def save(self, directory: Path, dispositions: Mapping[str, Disposition]) -> tuple[int, int] | None:
        """Everything that `load` needs is in files below `directory`, which exists and is empty.

        `dispositions` holds the settled disposition of every rollout that the coordinator knows. Raising aborts this
        checkpoint; the run goes on and the previous checkpoint stays in force. Returns the policy version of what it
        captured; None says that `policy_version`, read right before this call, is right, or that there is none.
        """

    async def load(self, directory: Path) -> None:
        """The state is the one that `save` wrote. Called once, before any `accept`; not at all on a fresh start."""

    async def accept(self, result: Result) -> None:
        """The result is part of the state that the next `save` writes. Called once for each result."""

    async def consumed(self) -> Set[str]:
        """The rollout ids whose results are part of this state, whether already trained on or not (I88)."""


@runtime_checkable
class SavesResults(Protocol):
    """The optional hook of a framework that keeps results outside its trainer's state, as evaluation does."""

    async def save_result(self, result: Result) -> Result:
        """A durable copy exists. Create-only by rollout id: returns the result that stands, maybe an older one.

        Whatever it raises, it is asked again for as long as a `/run` would be; then that comes out of `run_batch`, and
        the result is not accepted.
        """


@runtime_checkable
class HasPolicyVersion(Protocol):
    """An optional attribute of a trainer: which weights its state holds, in the checkpoint's manifest."""

    @property
    def policy_version(self) -> tuple[int, int] | None:
        """(trainer life, step): names one set of weights for ever (I89). Nothing is awaited between this and `save`."""


@runtime_checkable
class HearsOfRestarts(Protocol):
    """The optional hook of a framework that wants to know when its servers were started anew within a life.

    Nothing is asked of it: its state does not roll back, and the batches that it runs go on.
    """

    async def restarted(self, report: Restarted) -> None:
        """The servers are open again. What it raises is logged and changes nothing."""
