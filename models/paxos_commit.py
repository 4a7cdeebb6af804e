"""Paxos Commit (Gray and Lamport): a commit that a coordinator's death does not hold up, for calibration.

Written anew after the TLA+ example PaxosCommit (transaction_commit/PaxosCommit.tla with PaxosCommit.cfg: two
resource managers, three acceptors, ballots 0 and 1). Published: 1,321,761 distinct states, depth 28. One initial
state, no constraint, no symmetry, deadlock checked. The 16,959,159 generated states count a decision once for each
majority and ballot that allows it; here it is one step (test_calibration.py counts that way, and gets that number).
Messages are there for ever once they are sent, as in the original; they are held by the one that sent them, and
"phase 1a" as the set of ballots that were started.

`ForgetsWhatWasAccepted` is the failing twin: a new ballot does not ask what was accepted before.
"""

from __future__ import annotations

from enum import StrEnum, auto
from itertools import combinations
from typing import Any

from attrs import evolve, frozen

from statecore.properties import always, sometimes
from statecore.world import World, action, param, slot


class Manager(StrEnum):
    """A resource manager."""

    WORKING = auto()
    PREPARED = auto()
    COMMITTED = auto()
    ABORTED = auto()


class Value(StrEnum):
    """What a ballot proposes and acceptors accept for one resource manager."""

    PREPARED = auto()
    ABORTED = auto()


class Outcome(StrEnum):
    """What a leader announces."""

    COMMIT = auto()
    ABORT = auto()


NOTHING = -1  # the ballot in which an acceptor accepted, if it has not


@frozen(cache_hash=True)
class Promise:
    """Phase 1b: an acceptor joins `ballot`, and says what it accepted last."""

    ballot: int
    accepted_in: int
    value: Value | None


@frozen(cache_hash=True)
class Accepted:
    """Phase 2b: an acceptor has accepted `value` in `ballot`."""

    ballot: int
    value: Value


@frozen(cache_hash=True)
class Acceptor:
    """An acceptor's memory for one resource manager, and all that it ever said about it."""

    ballot: int = 0
    accepted_in: int = NOTHING
    value: Value | None = None
    said: frozenset[Promise | Accepted] = frozenset()


MANAGERS = (0, 1)
ACCEPTORS = (0, 1, 2)
MAJORITIES = tuple(combinations(ACCEPTORS, 2))
BOTH = tuple((rm, acceptor) for rm in MANAGERS for acceptor in ACCEPTORS)


def later(w: PaxosCommit) -> list[tuple[int, int]]:
    return [(ballot, rm) for ballot in range(1, w.ballots) for rm in MANAGERS]


def later_majorities(w: PaxosCommit) -> list[tuple[int, int, tuple[int, ...]]]:
    return [(ballot, rm, majority) for ballot, rm in later(w) for majority in MAJORITIES]


def promises(w: PaxosCommit) -> list[tuple[int, int, int]]:
    return [(rm, acceptor, ballot) for rm, acceptor in BOTH for ballot in range(1, w.ballots)]


def proposals(w: PaxosCommit) -> list[tuple[int, int, int, Value]]:
    return [(rm, acceptor, ballot, value) for rm, acceptor in BOTH for ballot in range(w.ballots) for value in Value]


class PaxosCommit(World):
    """Two resource managers, three acceptors; one instance of Paxos for each manager, ballot 0 being its own."""

    ballots: int = param(2)
    manager_0: Manager = slot(Manager.WORKING)
    manager_1: Manager = slot(Manager.WORKING)
    started_0: frozenset[int] = slot(frozenset())  # phase 1a
    started_1: frozenset[int] = slot(frozenset())
    proposed_0: frozenset[tuple[int, Value]] = slot(frozenset())  # phase 2a
    proposed_1: frozenset[tuple[int, Value]] = slot(frozenset())
    acceptor_0_0: Acceptor = slot(Acceptor())  # of resource manager 0's instance, acceptor 0
    acceptor_0_1: Acceptor = slot(Acceptor())
    acceptor_0_2: Acceptor = slot(Acceptor())
    acceptor_1_0: Acceptor = slot(Acceptor())
    acceptor_1_1: Acceptor = slot(Acceptor())
    acceptor_1_2: Acceptor = slot(Acceptor())
    announced: frozenset[Outcome] = slot(frozenset())

    def of(self, name: str, *which: int) -> Any:
        return getattr(self, "_".join((name, *map(str, which))))

    def let(self, name: str, *which: int, be: object) -> None:
        setattr(self, "_".join((name, *map(str, which))), be)

    def propose(self, rm: int, ballot: int, value: Value) -> None:
        self.let("proposed", rm, be=self.of("proposed", rm) | {(ballot, value)})

    def decided(self, rm: int, value: Value) -> bool:
        """A majority has accepted the value in one ballot."""
        for ballot in range(self.ballots):
            accepted = Accepted(ballot, value)
            if sum(accepted in self.of("acceptor", rm, acceptor).said for acceptor in ACCEPTORS) * 2 > len(ACCEPTORS):
                return True
        return False

    @action(over=MANAGERS)
    def prepare(self, rm: int) -> bool:
        if self.of("manager", rm) is not Manager.WORKING:
            return False
        self.let("manager", rm, be=Manager.PREPARED)
        self.propose(rm, 0, Value.PREPARED)
        return True

    @action(over=MANAGERS)
    def choose_to_abort(self, rm: int) -> bool:
        if self.of("manager", rm) is not Manager.WORKING:
            return False
        self.let("manager", rm, be=Manager.ABORTED)
        self.propose(rm, 0, Value.ABORTED)
        return True

    @action(over=MANAGERS)
    def receive_commit(self, rm: int) -> bool:
        if Outcome.COMMIT not in self.announced:
            return False
        self.let("manager", rm, be=Manager.COMMITTED)
        return True

    @action(over=MANAGERS)
    def receive_abort(self, rm: int) -> bool:
        if Outcome.ABORT not in self.announced:
            return False
        self.let("manager", rm, be=Manager.ABORTED)
        return True

    @action(over=later)
    def start_ballot(self, which: tuple[int, int]) -> None:
        """A leader has waited long enough; again changes nothing."""
        ballot, rm = which
        self.let("started", rm, be=self.of("started", rm) | {ballot})

    def told(self, rm: int, ballot: int, majority: tuple[int, ...]) -> list[Promise] | None:
        """What a majority said when it joined the ballot; None if not all of it has."""
        joined = []
        for acceptor in majority:
            said = self.of("acceptor", rm, acceptor).said
            promise = next((each for each in said if isinstance(each, Promise) and each.ballot == ballot), None)
            if promise is None:
                return None
            joined.append(promise)
        return joined

    @action(over=later_majorities)
    def propose_later(self, which: tuple[int, int, tuple[int, ...]]) -> bool:
        """Phase 2a: what was accepted in the highest ballot that a majority tells of, else abort; once in a ballot."""
        ballot, rm, majority = which
        if any(before == ballot for before, _ in self.of("proposed", rm)):
            return False
        joined = self.told(rm, ballot, majority)
        if joined is None:
            return False
        latest = max(joined, key=lambda each: each.accepted_in)
        self.propose(rm, ballot, latest.value or Value.ABORTED)
        return True

    @action
    def announce_commit(self) -> bool:
        if not all(self.decided(rm, Value.PREPARED) for rm in MANAGERS):
            return False
        self.announced |= {Outcome.COMMIT}
        return True

    @action
    def announce_abort(self) -> bool:
        if not any(self.decided(rm, Value.ABORTED) for rm in MANAGERS):
            return False
        self.announced |= {Outcome.ABORT}
        return True

    @action(over=promises)
    def join_ballot(self, which: tuple[int, int, int]) -> bool:
        """Phase 1b: an acceptor follows a higher ballot."""
        rm, acceptor, ballot = which
        if ballot not in self.of("started", rm):
            return False
        before: Acceptor = self.of("acceptor", rm, acceptor)
        if before.ballot >= ballot:
            return False
        promise = Promise(ballot, before.accepted_in, before.value)
        self.let("acceptor", rm, acceptor, be=evolve(before, ballot=ballot, said=before.said | {promise}))
        return True

    @action(over=proposals)
    def accept(self, which: tuple[int, int, int, Value]) -> bool:
        """Phase 2b: an acceptor accepts what is proposed, unless it has joined a higher ballot."""
        rm, acceptor, ballot, value = which
        if (ballot, value) not in self.of("proposed", rm):
            return False
        before: Acceptor = self.of("acceptor", rm, acceptor)
        if before.ballot > ballot:
            return False
        self.let("acceptor", rm, acceptor, be=Acceptor(ballot, ballot, value, before.said | {Accepted(ballot, value)}))
        return True

    @always
    def consistent(self) -> bool:
        """No resource manager commits while another aborts."""
        return not {Manager.COMMITTED, Manager.ABORTED} <= {self.manager_0, self.manager_1}

    @always
    def one_outcome(self) -> bool:
        return len(self.announced) <= 1

    @sometimes
    def committed_in_a_later_ballot(self) -> bool:
        proposed = any((ballot, Value.PREPARED) in self.proposed_0 for ballot in range(1, self.ballots))
        return self.manager_0 is self.manager_1 is Manager.COMMITTED and proposed

    @sometimes
    def aborted_though_prepared(self) -> bool:
        """A manager that seemed dead has prepared, and is aborted by a later ballot."""
        return self.manager_0 is Manager.ABORTED and (0, Value.PREPARED) in self.proposed_0


class ForgetsWhatWasAccepted(PaxosCommit):
    """The failing twin: a leader takes a majority's word for joining, and proposes to abort."""

    @action(over=later_majorities)
    def propose_later(self, which: tuple[int, int, tuple[int, ...]]) -> bool:
        ballot, rm, majority = which
        if any(before == ballot for before, _ in self.of("proposed", rm)):
            return False
        if self.told(rm, ballot, majority) is None:
            return False
        self.propose(rm, ballot, Value.ABORTED)
        return True
