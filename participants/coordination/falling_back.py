"""Which checkpoint a life takes when the newest one is damaged: the next older one that is whole, and never a guess.

Rules (docs/reference/protocol.md sections 7 and 11): the newest candidate that validates completely; a damaged one is
reported by name with what it held, and nothing of it is used; the claim is this life's own and has no base yet, so
whatever was passed over is in no later chain. What cannot be read now, or was written by another version, is not
damaged: then the start is refused, since falling back would give that one up for ever. Where every candidate is
damaged the start is refused too: a fresh start would give up all of them.

Synchronous over the store's disk; `fall_back=False` refuses the start at the first damaged one.
"""

from __future__ import annotations

from attrs import evolve, frozen

from ..files.chain import NothingWhole
from ..files.checkpoint import Checkpoint
from ..files.files import InvalidCheckpointState, UnknownSchema, UnreadableState
from ..files.store import Store
from ..records.manifests import CheckpointId
from ..records.records import LedgerStatus
from .life import log
from .outcomes import Damaged
from .recovery import CheckpointRejected


@frozen
class Taken:
    """The base that was chosen and read, `checkpoint` None for a fresh start; what was passed over, newest first."""

    start: CheckpointId | None
    checkpoint: Checkpoint | None
    overtaken: tuple[str, ...] = ()
    damaged: tuple[Damaged, ...] = ()


def take_newest_whole(store: Store, epoch: int, *, fall_back: bool) -> Taken:
    """The newest candidate of this claim that validates completely. CheckpointRejected says why there is none."""
    found: dict[CheckpointId, Damaged] = {}
    while True:
        try:
            choice = store.choose(epoch, found)
        except NothingWhole as error:
            problems = (f"{each.checkpoint_id} is damaged: {each.problem}" for each in found.values())
            raise CheckpointRejected([*problems, str(error)]) from error
        start = choice.start
        try:
            checkpoint = None if start is None else store.read(start)
        except UnknownSchema as error:
            raise CheckpointRejected([f"{start} is not damaged, and this version cannot read it: {error}"]) from error
        except UnreadableState as error:
            raise CheckpointRejected(
                [
                    f"{start} cannot be read now, which does not say that it is damaged: {error}; start again when it "
                    "can be read, or move it away by hand to go on from the one before"
                ]
            ) from error
        except InvalidCheckpointState as error:
            assert start is not None
            if not fall_back:
                raise CheckpointRejected(
                    [f"{start} is damaged and nothing older is taken in its place (fall_back is off): {error}"]
                ) from error
            found[start] = Damaged(str(start), str(error), store.results_of(start))
        else:
            passed = tuple(_without(each, checkpoint) for each in found.values())
            for each in passed:
                _tell(each, str(start))
            return Taken(start, checkpoint, tuple(map(str, choice.overtaken)), passed)


def _without(damaged: Damaged, taken: Checkpoint | None) -> Damaged:
    """Its results, but for those that what is taken holds as well."""
    if damaged.results is None or taken is None:
        return damaged
    held = {row.rollout_id for row in taken.ledger if row.status is not LedgerStatus.LIVE}
    return evolve(damaged, results=tuple(each for each in damaged.results if each not in held))


def _tell(damaged: Damaged, taken: str) -> None:
    log.error("%s; going on from %s instead", damaged.story(), taken)
