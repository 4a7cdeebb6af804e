"""Transaction commit without a protocol, for calibration: what any protocol for it must look like from outside.

Written anew after the TLA+ example TCommit (transaction_commit/TCommit.tla with TCommit.cfg: three resource managers).
Published: 34 distinct states, 94 generated, depth 7. One initial state, no constraint, no symmetry; its configuration
turns the deadlock check off, since a transaction that is decided everywhere has no next step (`done` here).

`CommitsWithoutTheOthers` is the failing twin: a manager commits without looking at the others.
"""

from __future__ import annotations

from enum import StrEnum, auto

from statecore.properties import always, final, recoverable, sometimes
from statecore.world import World, action, param, slot


class Manager(StrEnum):
    """A resource manager."""

    WORKING = auto()
    PREPARED = auto()
    COMMITTED = auto()
    ABORTED = auto()


UNDECIDED = frozenset({Manager.WORKING, Manager.PREPARED})


def each(w: CommitConsensus) -> range:
    return range(w.n)


class CommitConsensus(World):
    """N resource managers that see each other's states."""

    n: int = param(3)
    managers: tuple[Manager, ...] = slot(make=lambda w: (Manager.WORKING,) * w.n)

    def become(self, rm: int, state: Manager) -> None:
        self.managers = (*self.managers[:rm], state, *self.managers[rm + 1 :])

    @action(over=each)
    def prepare(self, rm: int) -> bool:
        if self.managers[rm] is not Manager.WORKING:
            return False
        self.become(rm, Manager.PREPARED)
        return True

    @action(over=each)
    def commit(self, rm: int) -> bool:
        """Every manager has prepared, or even committed."""
        if self.managers[rm] is not Manager.PREPARED or not set(self.managers) <= {Manager.PREPARED, Manager.COMMITTED}:
            return False
        self.become(rm, Manager.COMMITTED)
        return True

    @action(over=each)
    def abort(self, rm: int) -> bool:
        """No manager has committed."""
        if self.managers[rm] not in UNDECIDED or Manager.COMMITTED in self.managers:
            return False
        self.become(rm, Manager.ABORTED)
        return True

    @always
    def consistent(self) -> bool:
        """No resource manager commits while another aborts."""
        return not {Manager.COMMITTED, Manager.ABORTED} <= set(self.managers)

    @sometimes
    def all_committed(self) -> bool:
        return set(self.managers) == {Manager.COMMITTED}

    @sometimes
    def one_prepared_one_aborted(self) -> bool:
        return {Manager.PREPARED, Manager.ABORTED} <= set(self.managers)

    @recoverable
    def all_decided(self) -> bool:
        return UNDECIDED.isdisjoint(self.managers)

    @final
    def done(self) -> bool:
        return UNDECIDED.isdisjoint(self.managers)


class CommitsWithoutTheOthers(CommitConsensus):
    """The failing twin: a manager that has prepared commits whatever the others do."""

    @action(over=each)
    def commit(self, rm: int) -> bool:
        if self.managers[rm] is not Manager.PREPARED:
            return False
        self.become(rm, Manager.COMMITTED)
        return True
