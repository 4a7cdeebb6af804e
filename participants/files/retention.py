"""What goes once a checkpoint is in force: old checkpoints, and what crashed lives have left behind.

Rules (docs/reference/protocol.md section 11): only between the reading of the claims after a publication and the
beginning of the next checkpoint, and decided by the checkpoint just published (I98, S67); what goes is what
`chain.deletable` says, so at least two of the own chain stay, and what was overtaken is neither counted nor deleted
(I77); drafts go if they are of an earlier life or of an earlier checkpoint of this one, never those of a later claim.

A checkpoint is set aside first, under a name that nobody takes for one, and the root is synced before anything in it is
removed: after a crash it is whole and has its name, or has it no more. Of several the oldest goes first. What was set
aside and is still there is removed the next time, by whoever may delete then.

Synchronous over a `Disk`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from attrs import define, field, frozen

from statecore.errors import StatecoreError
from statecore.seams import Disk

from ..records.manifests import CheckpointId
from . import chain
from .files import remove_tree
from .store import SET_ASIDE, Store, set_aside_name

T = TypeVar("T")
_DRAFT: Final = re.compile(r"\.(ck-[0-9]{6,}-[0-9]{6,})\.partial\Z")


@frozen
class Swept:
    """What is gone: checkpoints, drafts that were never published; and what could not be removed, with the reason."""

    checkpoints: tuple[str, ...] = ()
    drafts: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def sweep(store: Store, disk: Disk, published: CheckpointId, keep: int | None) -> Swept:
    """What the checkpoint that this life has just published makes needless is gone; with `keep` None only drafts.

    Never raises for what the disk does: a problem is told, and tried again at the next checkpoint.
    """
    return _Sweep(store, disk, published, keep).run()


@define(eq=False)
class _Sweep:
    store: Store
    disk: Disk
    published: CheckpointId
    keep: int | None
    _problems: list[str] = field(factory=list)

    def run(self) -> Swept:
        decided = self._try(self.store.root, self._decide)
        if decided is None:
            return Swept(problems=tuple(self._problems))
        checkpoints, drafts = decided
        something = bool(self._left_behind())
        gone = [each for each in checkpoints if self._set_aside(self.store.path(each), each)]
        given_up = [name for name, each in drafts if self._set_aside(self.store.root / name, each)]
        # were something in it gone for good before its name is, a crash could leave half a checkpoint under the name
        something = something or bool(gone or given_up)
        if something and self._try(self.store.root, self._sync):
            for path in self._left_behind():
                self._try(path, partial(remove_tree, self.disk, path))
        return Swept(tuple(map(str, gone)), tuple(given_up), tuple(self._problems))

    def _decide(self) -> tuple[list[CheckpointId], list[tuple[str, CheckpointId]]] | None:
        """What goes, the oldest first; None when nothing may."""
        epoch, claims, there = self.published.epoch, self.store.claims(), self.store.published()
        if later := chain.overtaken_by(epoch, claims):
            self._problems.append(f"{self.store.root}: nothing is deleted, epoch {later[-1]} has claimed the root")
            return None
        if chain.candidates(epoch, claims, there)[:1] != (self.published,):
            self._problems.append(f"{self.store.root}: nothing is deleted, {self.published} is not the newest of it")
            return None
        doomed = () if self.keep is None else chain.deletable(epoch, claims, there, self.keep)
        latest = self.store.latest()  # it may lag, and whoever follows it finds something whole
        return [each for each in reversed(doomed) if str(each) != latest], self._drafts()

    def _drafts(self) -> list[tuple[str, CheckpointId]]:
        found = [(name, _named(_DRAFT, name)) for name in self.disk.listdir(self.store.root)]
        return [(name, each) for name, each in found if each is not None and each < self.published]

    def _left_behind(self) -> list[Path]:
        """What is set aside, by this life or one before it."""
        names = self._try(self.store.root, partial(self.disk.listdir, self.store.root)) or []
        found = [(name, _named(SET_ASIDE, name)) for name in names]
        return [self.store.root / name for name, each in found if each is not None and each < self.published]

    def _set_aside(self, path: Path, checkpoint_id: CheckpointId) -> bool:
        def rename() -> bool:
            self.disk.rename(path, self.store.root / set_aside_name(checkpoint_id))
            return True

        return bool(self._try(path, rename))

    def _sync(self) -> bool:
        self.disk.fsync_dir(self.store.root)
        return True

    def _try(self, what: Path, work: Callable[[], T]) -> T | None:
        try:
            return work()
        except (OSError, StatecoreError) as error:
            self._problems.append(f"{what}: {error}")
            return None


def _named(pattern: re.Pattern[str], name: str) -> CheckpointId | None:
    found = pattern.match(name)
    return None if found is None else CheckpointId.parse(found[1])
