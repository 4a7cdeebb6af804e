"""Which checkpoints a life may start from: the chain of claims. Pure.

Rules (docs/reference/protocol.md section 11): claims come first, then the base is chosen, then it is recorded; a claim
without a base is void. Candidates under claim n are those that epoch n published, newest first; then its start; then
what the start's epoch published before the start, newest first; then that epoch's own start; and so on. Whatever else
is published was overtaken: reported, ignored, never deleted (S44, S62, I91).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from attrs import frozen

from statecore.errors import StatecoreError

from ..records.manifests import CheckpointId


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
