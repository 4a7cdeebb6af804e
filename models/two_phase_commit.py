"""Two-phase commit, for calibration: the counts of this world are published for the TLA+ example "TwoPhase".

Resource managers prepare, or abort on their own as long as they have not prepared; the transaction manager commits once
all have said that they are prepared, or aborts at any time before. Distinct states for 3, 4, 5, ... resource managers:
288, 1568, 8832, 50816, 296448, ...; depth 3N + 2 with the initial state counted as 1.

`AbortsAfterPrepare` is the failing twin: a resource manager may change its mind; the shortest trace has 2N + 3 steps.
"""

from __future__ import annotations

from enum import StrEnum, auto

from attrs import frozen

from statecore import Snapshot, Table, go, refuse, stay, when
from statecore.properties import always, final, recoverable, sometimes
from statecore.world import World, action, param, slot


class Manager(StrEnum):
    """A resource manager."""

    WORKING = auto()
    PREPARED = auto()
    COMMITTED = auto()
    ABORTED = auto()


@frozen
class Prepared:
    """It has done its part and can go either way."""


@frozen
class ChoseToAbort:
    """It gave up on its own."""


@frozen
class CommitReceived:
    """The transaction manager has committed."""


@frozen
class AbortReceived:
    """The transaction manager has aborted."""


MANAGER = Table(
    "resource manager",
    initial=Manager.WORKING,
    final={Manager.COMMITTED, Manager.ABORTED},
    cells={
        Manager.WORKING: {
            Prepared: go(Manager.PREPARED),
            ChoseToAbort: go(Manager.ABORTED),
            CommitReceived: refuse("not_prepared"),
            AbortReceived: go(Manager.ABORTED),
        },
        Manager.PREPARED: {
            Prepared: refuse("already_prepared"),
            ChoseToAbort: refuse("already_prepared"),  # its word is given
            CommitReceived: go(Manager.COMMITTED),
            AbortReceived: go(Manager.ABORTED),
        },
        Manager.COMMITTED: {
            Prepared: refuse("decided"),
            ChoseToAbort: refuse("decided"),
            CommitReceived: stay(),
            AbortReceived: refuse("decided"),
        },
        Manager.ABORTED: {
            Prepared: refuse("decided"),
            ChoseToAbort: refuse("decided"),
            CommitReceived: refuse("decided"),
            AbortReceived: stay(),
        },
    },
)


class Transaction(StrEnum):
    """The transaction manager."""

    OPEN = auto()
    COMMITTED = auto()
    ABORTED = auto()


@frozen
class PreparedReceived:
    """Resource manager `manager` says that it is prepared."""

    manager: int


@frozen
class CommitDecided:
    """All `managers` must have prepared."""

    managers: int


@frozen
class AbortDecided:
    """Nothing is needed for this."""


def note(prepared: frozenset[int], event: PreparedReceived) -> tuple[frozenset[int], tuple[()]]:
    return prepared | {event.manager}, ()


def all_prepared(prepared: frozenset[int], event: CommitDecided) -> bool:
    return len(prepared) == event.managers


TRANSACTION = Table(
    "transaction manager",
    data=frozenset[int],
    initial=Transaction.OPEN,
    final={Transaction.COMMITTED, Transaction.ABORTED},
    cells={
        Transaction.OPEN: {
            PreparedReceived: stay(do=note),
            CommitDecided: when(all_prepared, go(Transaction.COMMITTED), otherwise=refuse("not_all_prepared")),
            AbortDecided: go(Transaction.ABORTED),
        },
        Transaction.COMMITTED: {
            PreparedReceived: refuse("decided"),
            CommitDecided: refuse("decided"),
            AbortDecided: refuse("decided"),
        },
        Transaction.ABORTED: {
            PreparedReceived: refuse("decided"),
            CommitDecided: refuse("decided"),
            AbortDecided: refuse("decided"),
        },
    },
)

Managers = tuple[Snapshot[Manager, None], ...]
COMMIT, ABORT = "commit", "abort"


def each(w: TwoPhaseCommit) -> range:
    return range(w.n)


class TwoPhaseCommit(World):
    """N resource managers and a transaction manager; messages once sent are there for ever, as in the original."""

    n: int = param(3)
    managers: Managers = slot(make=lambda w: (MANAGER.start(),) * w.n)
    transaction: Snapshot[Transaction, frozenset[int]] = slot(TRANSACTION.start())
    messages: frozenset[str | int] = slot(frozenset())  # a number: "I am prepared", from that manager

    def step_manager(self, rm: int, event: object) -> None:
        after, _ = MANAGER.step(self.managers[rm], event)
        self.managers = (*self.managers[:rm], after, *self.managers[rm + 1 :])

    @action
    def decide_commit(self) -> None:
        self.transaction, _ = TRANSACTION.step(self.transaction, CommitDecided(self.n))
        self.messages |= {COMMIT}

    @action
    def decide_abort(self) -> None:
        self.transaction, _ = TRANSACTION.step(self.transaction, AbortDecided())
        self.messages |= {ABORT}

    @action(over=each)
    def receive_prepared(self, rm: int) -> bool:
        if rm not in self.messages:
            return False
        self.transaction, _ = TRANSACTION.step(self.transaction, PreparedReceived(rm))
        return True

    @action(over=each)
    def prepare(self, rm: int) -> None:
        self.step_manager(rm, Prepared())
        self.messages |= {rm}

    @action(over=each)
    def choose_to_abort(self, rm: int) -> None:
        self.step_manager(rm, ChoseToAbort())

    @action(over=each)
    def receive_commit(self, rm: int) -> bool:
        if COMMIT not in self.messages:
            return False
        self.step_manager(rm, CommitReceived())
        return True

    @action(over=each)
    def receive_abort(self, rm: int) -> bool:
        if ABORT not in self.messages:
            return False
        self.step_manager(rm, AbortReceived())
        return True

    @always
    def consistent(self) -> bool:
        """No resource manager commits while another aborts."""
        states = {manager.state for manager in self.managers}
        return not {Manager.COMMITTED, Manager.ABORTED} <= states

    @sometimes
    def all_committed(self) -> bool:
        return all(manager.state is Manager.COMMITTED for manager in self.managers)

    @sometimes
    def all_aborted(self) -> bool:
        return all(manager.state is Manager.ABORTED for manager in self.managers)

    @recoverable
    def all_decided(self) -> bool:
        return all(manager.state in MANAGER.final for manager in self.managers)

    @final
    def done(self) -> bool:
        return all(manager.state in MANAGER.final for manager in self.managers)


class AbortsAfterPrepare(TwoPhaseCommit):
    """The failing twin: a prepared resource manager may still abort on its own."""

    @action(over=each)
    def choose_to_abort(self, rm: int) -> bool:
        if self.managers[rm].state not in (Manager.WORKING, Manager.PREPARED):
            return False
        self.managers = (*self.managers[:rm], Snapshot(Manager.ABORTED, None), *self.managers[rm + 1 :])
        return True
