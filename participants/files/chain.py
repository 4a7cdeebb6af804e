"""Which checkpoints a life may start from: the chain of claims. Pure.

Rules (docs/reference/protocol.md section 11): claims come first, then the base is chosen, then it is recorded; a claim
without a base is void. Candidates under claim n are those that epoch n published, newest first; then its start; then
what the start's epoch published before the start, newest first; then that epoch's own start; and so on. Whatever else
is published was overtaken: reported, ignored, never deleted (S44, S62, I91).

What a life decides by its claims is here too, and nowhere else: its number, its base, whether it was overtaken, and
what retention may delete.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from attrs import frozen

from statecore.errors import StatecoreError

from ..records.manifests import CheckpointId

KEPT_AT_LEAST: Final = 2
"""So many checkpoints of its chain a life keeps: the newest, and one to fall back to when that one is damaged."""


class StoreError(StatecoreError):
    """The store refuses or could not do it; the message names the file. Nothing that was published has changed."""


class ChainBroken(StoreError):
    """The claims do not make a chain; nothing is guessed. The message names the file and what is wrong with it."""


@frozen
class Base:
    """What an epoch started from: a checkpoint, or nothing (a fresh start)."""

    start: CheckpointId | None


@frozen
class Claim:
    """One epoch: when it was claimed (Unix seconds, None where the file does not say) and its base, None while void."""

    epoch: int
    claimed_ts: float | None = None
    base: Base | None = None


class NothingWhole(StoreError):
    """Every checkpoint of the chain is damaged; that is no fresh start, which would give up all that was done."""


@frozen
class Choice:
    """What a life starts from, `start` None for a fresh start; `overtaken` is published and not in its chain."""

    start: CheckpointId | None
    overtaken: tuple[CheckpointId, ...] = ()


def next_epoch(epochs: Iterable[int]) -> int:
    """The number that a new life claims when these are claimed; claiming is create-only, the loser asks again."""
    return max(epochs, default=0) + 1


def choose(
    epoch: int,
    claims: Mapping[int, Claim],
    published: Collection[CheckpointId],
    damaged: Collection[CheckpointId] = (),
) -> Choice:
    """The base of claim `epoch`: the newest candidate that is not `damaged`, and no other.

    `claims` are read after the claim was made, and `published` after them. What is passed over here is not in the chain
    of any later claim, once the base is recorded. Raises NothingWhole where all candidates are damaged, and ChainBroken
    as `candidates` does.
    """
    tried = candidates(epoch, claims, published)
    start = next((each for each in tried if each not in damaged), None)
    if tried and start is None:
        raise NothingWhole(f"all checkpoints of the chain of epoch {epoch} are damaged: {', '.join(map(str, tried))}")
    return Choice(start, tuple(each for each in published if each not in tried))


def overtaken_by(epoch: int, epochs: Iterable[int], own: Collection[int] = ()) -> tuple[int, ...]:
    """The later claims of others, with a base or void: not empty means that this life was overtaken (I98).

    `own` are later claims of the same coordinator, which do not overtake it.
    """
    return tuple(sorted(each for each in epochs if each > epoch and each not in own))


def deletable(
    epoch: int, claims: Mapping[int, Claim], published: Collection[CheckpointId], keep: int = KEPT_AT_LEAST
) -> tuple[CheckpointId, ...]:
    """What retention may delete for the life of `epoch`: what its own chain has beyond the newest `keep` (I77).

    To be asked and acted upon only between a reading of the claims that finds it not overtaken and the beginning of its
    next checkpoint (S67). What was overtaken is neither counted nor deleted.
    """
    if keep < KEPT_AT_LEAST:
        raise ValueError(f"retention keeps at least {KEPT_AT_LEAST} checkpoints, not {keep}")
    return candidates(epoch, claims, published)[keep:]


def candidates(
    epoch: int, claims: Mapping[int, Claim], published: Collection[CheckpointId]
) -> tuple[CheckpointId, ...]:
    """The checkpoints that count for claim `epoch`, in the order in which they are tried.

    A claim that has no base yet goes on from the newest one below it that has. A start that is not there any more is
    left out and the chain goes on behind it. Raises ChainBroken when `epoch` is not claimed or a link is missing.
    """
    if epoch not in claims:
        raise ChainBroken(f"epoch {epoch} is not claimed: claim first, then choose")
    found: list[CheckpointId] = []
    at: int | None = epoch if claims[epoch].base is not None else _newest_with_base(epoch, claims)
    before: CheckpointId | None = None
    while at is not None:
        found += _published_by(at, published, before)
        start = _base(at, claims).start
        if start is None:
            break
        if start.epoch >= at:
            raise ChainBroken(f"{base_name(at)} starts from {start}, which is not older than its epoch")
        if start in published:
            found.append(start)
        at, before = start.epoch, start
    return tuple(found)


def _newest_with_base(epoch: int, claims: Mapping[int, Claim]) -> int | None:
    return max((each.epoch for each in claims.values() if each.epoch < epoch and each.base is not None), default=None)


def _published_by(epoch: int, published: Collection[CheckpointId], before: CheckpointId | None) -> list[CheckpointId]:
    mine = (each for each in published if each.epoch == epoch and (before is None or each < before))
    return sorted(mine, reverse=True)


def _base(epoch: int, claims: Mapping[int, Claim]) -> Base:
    claim = claims.get(epoch)
    if claim is None or claim.base is None:
        raise ChainBroken(f"{base_name(epoch)} is missing, and a checkpoint of epoch {epoch} is in the chain")
    return claim.base


def claim_name(epoch: int) -> str:
    """The file that claims `epoch`."""
    return f"epoch-{epoch:06d}.json"


def base_name(epoch: int) -> str:
    """The file that says what `epoch` started from."""
    return f"epoch-{epoch:06d}.base.json"
