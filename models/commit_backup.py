"""Two-phase commit whose transaction manager may vanish and is followed by a backup, for calibration.

Written anew after the TLA+ example 2PCwithBTM (transaction_commit/2PCwithBTM.tla with 2PCwithBTM.cfg: three
resource managers, one of which may fail, and a manager that vanishes after it has decided). Published: 1245
distinct states, 5841 generated, depth 15. One initial state, no constraint, no symmetry, deadlock checked; where
all has ended a step that changes nothing is taken for ever (`ended` here), and so is a failure that is not allowed
(`stay_alive`). The published generated states count a step once for each way in which its guard is true (an abort
that is told and chosen, each manager that gave up); here it is one step, and test_calibration.py adds the ways up.

`AbortsPastACommit` is the failing twin: neither manager looks at who has committed before it aborts.
"""

from __future__ import annotations

from enum import StrEnum, auto

from statecore.properties import always, recoverable, sometimes
from statecore.world import World, action, param, slot


class Resource(StrEnum):
    """A resource manager."""

    WORKING = auto()
    PREPARED = auto()
    COMMITTED = auto()
    ABORTED = auto()
    FAILED = auto()


class Announced(StrEnum):
    """What can be read of the transaction manager, and of its backup after it."""

    NOTHING = auto()
    COMMIT = auto()
    ABORT = auto()
    HIDDEN = auto()


class At(StrEnum):
    """What a transaction manager does next."""

    WATCH = auto()
    COMMIT = auto()
    ABORT = auto()
    VANISH = auto()
    DONE = auto()


OPEN = frozenset({Resource.WORKING, Resource.PREPARED})


def each(w: CommitBackup) -> range:
    return range(w.n)


class CommitBackup(World):
    """N resource managers, a transaction manager and its backup; the last two read the states of the first."""

    n: int = param(3)
    resources: tuple[Resource, ...] = slot(make=lambda w: (Resource.WORKING,) * w.n)
    returned: tuple[bool, ...] = slot(make=lambda w: (False,) * w.n)
    announced: Announced = slot(Announced.NOTHING)
    manager: At = slot(At.WATCH)
    backup: At = slot(At.WATCH)

    def become(self, rm: int, state: Resource) -> None:
        self.resources = (*self.resources[:rm], state, *self.resources[rm + 1 :])

    def can_commit(self) -> bool:
        return set(self.resources) == {Resource.PREPARED} or Resource.COMMITTED in self.resources

    def can_abort(self) -> bool:
        gave_up = Resource.ABORTED in self.resources or Resource.FAILED in self.resources
        return gave_up and Resource.COMMITTED not in self.resources

    @action(over=each)
    def prepare(self, rm: int) -> bool:
        if self.resources[rm] is not Resource.WORKING:
            return False
        self.become(rm, Resource.PREPARED)
        return True

    @action(over=each)
    def commit(self, rm: int) -> bool:
        if self.resources[rm] not in OPEN or self.announced is not Announced.COMMIT:
            return False
        self.become(rm, Resource.COMMITTED)
        return True

    @action(over=each)
    def abort(self, rm: int) -> bool:
        """On its own as long as it has not prepared; afterwards when told."""
        if self.resources[rm] not in OPEN:
            return False
        if self.resources[rm] is not Resource.WORKING and self.announced is not Announced.ABORT:
            return False
        self.become(rm, Resource.ABORTED)
        return True

    @action(over=each, fault=True)
    def fail_resource(self, rm: int) -> bool:
        """One of them may fail."""
        if self.resources[rm] not in OPEN or Resource.FAILED in self.resources:
            return False
        self.become(rm, Resource.FAILED)
        return True

    @action(over=each)
    def stay_alive(self, rm: int) -> bool:
        """A second failure is none: a step that changes nothing."""
        return self.resources[rm] in OPEN and Resource.FAILED in self.resources

    @action(over=each)
    def return_(self, rm: int) -> bool:
        if self.returned[rm] or self.resources[rm] in OPEN:
            return False
        self.returned = (*self.returned[:rm], True, *self.returned[rm + 1 :])
        return True

    @action
    def choose_commit(self) -> bool:
        if self.manager is not At.WATCH or not self.can_commit():
            return False
        self.manager = At.COMMIT
        return True

    @action
    def choose_abort(self) -> bool:
        if self.manager is not At.WATCH or not self.can_abort():
            return False
        self.manager = At.ABORT
        return True

    @action
    def announce(self) -> bool:
        if self.manager not in (At.COMMIT, At.ABORT):
            return False
        self.announced = Announced.COMMIT if self.manager is At.COMMIT else Announced.ABORT
        self.manager = At.VANISH
        return True

    @action(fault=True)
    def vanish(self) -> bool:
        """Nobody can read any longer what the manager decided."""
        if self.manager is not At.VANISH:
            return False
        self.announced, self.manager = Announced.HIDDEN, At.DONE
        return True

    @action
    def backup_chooses_commit(self) -> bool:
        if self.backup is not At.WATCH or self.announced is not Announced.HIDDEN or not self.can_commit():
            return False
        self.backup = At.COMMIT
        return True

    @action
    def backup_chooses_abort(self) -> bool:
        if self.backup is not At.WATCH or self.announced is not Announced.HIDDEN or not self.can_abort():
            return False
        self.backup = At.ABORT
        return True

    @action
    def backup_announces(self) -> bool:
        if self.backup not in (At.COMMIT, At.ABORT):
            return False
        self.announced = Announced.COMMIT if self.backup is At.COMMIT else Announced.ABORT
        self.backup = At.DONE
        return True

    @action
    def ended(self) -> bool:
        return all(self.returned) and self.manager is At.DONE and self.backup is At.DONE

    @always
    def consistent(self) -> bool:
        """No resource manager commits while another aborts (one that failed is neither)."""
        return not {Resource.COMMITTED, Resource.ABORTED} <= set(self.resources)

    @sometimes
    def decided_by_the_backup(self) -> bool:
        return self.backup is At.DONE and Resource.COMMITTED in self.resources

    @sometimes
    def hidden_with_one_committed(self) -> bool:
        return self.announced is Announced.HIDDEN and {Resource.COMMITTED, Resource.PREPARED} <= set(self.resources)

    @recoverable
    def all_decided(self) -> bool:
        return OPEN.isdisjoint(self.resources)


class AbortsPastACommit(CommitBackup):
    """The failing twin: a resource manager that gave up or failed is enough to abort, even if another has committed."""

    def can_abort(self) -> bool:
        return Resource.ABORTED in self.resources or Resource.FAILED in self.resources
