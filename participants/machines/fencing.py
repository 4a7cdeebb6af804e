"""Which checkpoint ids have ended, for ever, in bounded memory. Pure.

Ids of our own coordinator are ``ck-<epoch>-<seq>`` and ``rs-<epoch>-<seq>``: for each of the two one high-water mark
makes every older one stale. Of foreign ids the last 4,096 are remembered (docs/reference/protocol.md section 5; I14,
I75).
"""

from __future__ import annotations

import re
from typing import Final

from attrs import evolve, frozen

FOREIGN_IDS_KEPT: Final = 4096
_OWN = re.compile(r"(ck|rs)-([0-9]{6,})-([0-9]{6,})\Z")

Mark = tuple[int, int]


def own_id(kind: str, epoch: int, sequence: int) -> str:
    """The checkpoint id (`kind` ``ck``) or restore id (``rs``) number `sequence` of an epoch."""
    return f"{kind}-{epoch:06d}-{sequence:06d}"


def parse_own(checkpoint_id: str) -> tuple[str, int, int] | None:
    """(kind, epoch, sequence) of an id that `own_id` made, else None."""
    found = _OWN.match(checkpoint_id)
    return None if found is None else (found.group(1), int(found.group(2)), int(found.group(3)))


@frozen
class Ended:
    """The ids that have ended: a set that only grows, in bounded memory."""

    checkpoints: Mark | None = None
    restores: Mark | None = None
    foreign: tuple[str, ...] = ()

    def __contains__(self, checkpoint_id: str) -> bool:
        own = parse_own(checkpoint_id)
        if own is None:
            return checkpoint_id in self.foreign
        mark = self.checkpoints if own[0] == "ck" else self.restores
        return mark is not None and own[1:] <= mark

    def with_id(self, checkpoint_id: str) -> Ended:
        """The set after `checkpoint_id` has ended as well."""
        if checkpoint_id in self:
            return self
        own = parse_own(checkpoint_id)
        if own is None:
            return evolve(self, foreign=(*self.foreign, checkpoint_id)[-FOREIGN_IDS_KEPT:])
        return evolve(self, checkpoints=own[1:]) if own[0] == "ck" else evolve(self, restores=own[1:])
