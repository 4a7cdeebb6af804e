"""Checkpoints of a replicated state machine, one replica at a time by a lease (RingMaster), for calibration.

Written anew after the TLA+ example CheckpointCoordination (CheckpointCoordination/CheckpointCoordination.tla,
MCCheckpointCoordination.tla with MCCheckpointCoordination.cfg and MCCheckpointCoordinationFailure.cfg: three nodes,
logs of three entries). Published: the verdicts (success; safety failure) and the trace of the failure, which has
twelve states, that is eleven steps; no counts. There, states are taken up to permutation of the nodes; here, none
is left out. A constraint wants an index that is open in every log: the state that fills the last one is judged
there and not explored, and the step to it is judged and not taken here. A failure of what has failed already and a
repair of what works change nothing and are left out.

In `WholeNetwork` no link ever breaks. `CheckpointCoordination` is the published one; `cuts` bounds how many links are
broken at once. `ReplacesItsOwnLease` is the failing configuration: a leader that holds the lease itself replaces it at
once; its shortest trace needs no broken link.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from statecore.properties import always, recoverable, sometimes
from statecore.world import World, action, param, slot

NODES = (0, 1, 2)
PAIRS = tuple((source, target) for source in NODES for target in NODES if source != target)
MAJORITY = 2
FIRST = 1
Log = tuple[int | None, ...]


@frozen(cache_hash=True)
class Lease:
    """`node` may take a checkpoint; `index` is where in the log it was told so."""

    node: int
    index: int


@frozen(cache_hash=True)
class Checkpoint:
    """The latest one: the log before `next`."""

    log: Log
    next: int


def blank(w: WholeNetwork) -> Log:
    return (None,) * w.entries


class WholeNetwork(World):
    """Three nodes, one of which leads; the log holds nothing but who gets the lease, and is agreed on by magic.

    Of a node, only the log outlives it; the rest is lost when it goes down, and comes back by execution. `voted` is
    up to where its last checkpoint goes, as its votes tell the leader.
    """

    entries: int = param(3)

    up_0: bool = slot(True)
    up_1: bool = slot(True)
    up_2: bool = slot(True)
    log_0: Log = slot(make=blank)
    log_1: Log = slot(make=blank)
    log_2: Log = slot(make=blank)
    next_0: int = slot(FIRST)
    next_1: int = slot(FIRST)
    next_2: int = slot(FIRST)
    voted_0: int = slot(FIRST)
    voted_1: int = slot(FIRST)
    voted_2: int = slot(FIRST)
    lease_0: Lease | None = slot(None)
    lease_1: Lease | None = slot(None)
    lease_2: Lease | None = slot(None)
    may_0: bool = slot(False)
    may_1: bool = slot(False)
    may_2: bool = slot(False)
    takes_0: bool = slot(False)
    takes_1: bool = slot(False)
    takes_2: bool = slot(False)
    leader: int | None = slot(None)
    timed_out: int = slot(FIRST)  # leases before this index have timed out
    checkpoint: Checkpoint = slot(Checkpoint((), FIRST))

    def of(self, name: str, *which: int) -> Any:
        return getattr(self, "_".join((name, *map(str, which))))

    def let(self, which: int, **values: object) -> None:
        for name, value in values.items():
            setattr(self, f"{name}_{which}", value)

    def lease_of(self, which: int) -> Lease | None:
        lease: Lease | None = self.of("lease", which)
        return lease

    def link(self, source: int, target: int) -> bool:
        return True

    def reaches(self, source: int, target: int) -> bool:
        return bool(self.of("up", source) and self.of("up", target) and (source == target or self.link(source, target)))

    def connected(self, one: int, other: int) -> bool:
        return self.reaches(one, other) and self.reaches(other, one)

    def has_quorum(self, leader: int) -> bool:
        return bool(self.of("up", leader)) and sum(self.connected(leader, node) for node in NODES) >= MAJORITY

    def entry(self, which: int, index: int) -> int | None:
        log: Log = self.of("log", which)
        return log[index - 1] if index <= self.entries else None

    def first_open(self) -> int:
        """The first index that no log has filled."""
        logs = [self.of("log", node) for node in NODES]
        used = [index for log in logs for index, entry in enumerate(log, 1) if entry is not None]
        return max(used, default=0) + 1

    @action(over=NODES, fault=True)
    def go_down(self, me: int) -> bool:
        if not self.of("up", me):
            return False
        self.let(me, up=False, next=FIRST, voted=FIRST, lease=None, may=False, takes=False)
        if self.leader == me:
            self.leader = None
        return True

    @action(over=NODES)
    def come_back(self, me: int) -> bool:
        """From the latest checkpoint, and its own log after it."""
        if self.of("up", me):
            return False
        kept = self.checkpoint.next - 1
        self.let(me, up=True, log=self.checkpoint.log[:kept] + self.of("log", me)[kept:], next=self.checkpoint.next)
        return True

    @action(over=NODES)
    def elect(self, me: int) -> bool:
        """Who has executed all that was agreed on, and is not at a checkpoint."""
        if self.leader is not None or self.of("takes", me) or not self.has_quorum(me):
            return False
        if self.of("next", me) != self.first_open():
            return False
        self.leader = me
        self.let(me, may=False)
        return True

    def replaceable(self, leader: int, lease: Lease) -> bool:
        """It has timed out, or the leader hears that its checkpoint is done."""
        if lease.index < self.timed_out:
            return True
        return self.connected(leader, lease.node) and bool(lease.index < self.of("voted", lease.node))

    @action(over=NODES)
    def grant(self, prospect: int) -> bool:
        """The leader writes into all logs that it reaches who gets the lease."""
        leader = self.leader
        if leader is None or leader == prospect or not self.has_quorum(leader) or not self.connected(leader, prospect):
            return False
        before = self.lease_of(leader)
        if before is not None and not self.replaceable(leader, before):
            return False
        index = self.first_open()
        for node in NODES:
            if self.reaches(leader, node):
                log = self.of("log", node)
                self.let(node, log=(*log[: index - 1], prospect, *log[index:]))
        self.let(leader, lease=Lease(prospect, index))
        if index < self.entries:
            return True
        for name in ("leader_takes_none", "leader_knows", "one_at_a_time", "entitled", "logs_agree"):
            if not self.properties_[name](self):
                self.fail(name)
        return False

    @action(over=PAIRS)
    def catch_up(self, pair: tuple[int, int]) -> bool:
        source, target = pair
        if not self.reaches(source, target):
            return False
        logs = zip(self.of("log", target), self.of("log", source), strict=True)
        self.let(target, log=tuple(mine if mine is not None else theirs for mine, theirs in logs))
        return True

    @action(over=NODES)
    def execute(self, me: int) -> bool:
        """The next entry of its log; a leader knows better than its log which lease is the last."""
        if not self.of("up", me) or self.of("takes", me):
            return False
        index: int = self.of("next", me)
        request = self.entry(me, index)
        if request is None:
            return False
        in_time = index >= self.timed_out
        if self.leader != me:
            self.let(me, lease=Lease(request, index) if in_time else None)
        self.let(me, may=self.leader != me and request == me and in_time, next=index + 1)
        return True

    @action(over=NODES)
    def start(self, me: int) -> bool:
        if not self.of("may", me):
            return False
        self.let(me, takes=True)
        return True

    @action(over=NODES)
    def finish(self, me: int) -> bool:
        if not self.of("takes", me):
            return False
        index: int = self.of("next", me)
        self.checkpoint = Checkpoint(self.of("log", me)[: index - 1], index)
        self.let(me, voted=index, lease=None, may=False, takes=False)
        return True

    @action
    def time_out(self) -> bool:
        """The oldest lease that has not timed out does so, for everybody at once."""
        index = self.timed_out
        if all(self.entry(node, index) is None for node in NODES):
            return False
        self.timed_out = index + 1
        for each in NODES:
            if not self.of("may", each) and not self.of("takes", each):
                continue
            lease = self.lease_of(each)
            if lease is None or lease.index <= index:
                self.let(each, may=False, takes=False)
        return True

    def able(self, which: int) -> bool:
        return bool(self.of("may", which) or self.of("takes", which))

    @always
    def leader_takes_none(self) -> bool:
        return self.leader is None or not self.able(self.leader)

    @always
    def leader_knows(self) -> bool:
        """Whoever may take a checkpoint has the lease that the leader knows of."""
        if self.leader is None:
            return True
        lease = self.lease_of(self.leader)
        return not any(self.able(each) for each in NODES if lease is None or lease.node != each)

    @always
    def one_at_a_time(self) -> bool:
        may = sum(bool(self.of("may", each)) for each in NODES)
        takes = sum(bool(self.of("takes", each)) for each in NODES)
        return may <= 1 and takes <= 1

    @always
    def entitled(self) -> bool:
        """Who takes a checkpoint may, and who may has a lease of its own that has not timed out."""
        for each in NODES:
            if not self.of("may", each):
                if self.of("takes", each):
                    return False
                continue
            lease = self.lease_of(each)
            if lease is None or lease.node != each or lease.index < self.timed_out:
                return False
        return True

    @always
    def logs_agree(self) -> bool:
        logs = [self.of("log", each) for each in NODES]
        return all(len({entry for entry in entries if entry is not None}) <= 1 for entries in zip(*logs, strict=True))

    @sometimes
    def checkpoint_taken_without_a_leader(self) -> bool:
        return self.leader is None and any(self.of("takes", each) for each in NODES)

    @sometimes
    def two_leases_granted(self) -> bool:
        return self.first_open() == self.entries

    @recoverable
    def all_up(self) -> bool:
        return all(self.of("up", each) for each in NODES)


class CheckpointCoordination(WholeNetwork):
    """Links fail, each direction on its own; as published, all six may be broken at once."""

    cuts: int = param(len(PAIRS))
    cut_0_1: bool = slot(False)
    cut_0_2: bool = slot(False)
    cut_1_0: bool = slot(False)
    cut_1_2: bool = slot(False)
    cut_2_0: bool = slot(False)
    cut_2_1: bool = slot(False)

    def link(self, source: int, target: int) -> bool:
        return not self.of("cut", source, target)

    @action(over=PAIRS, fault=True)
    def cut(self, pair: tuple[int, int]) -> bool:
        if self.of("cut", *pair):
            return False
        if self.cuts < len(PAIRS) and sum(bool(self.of("cut", *each)) for each in PAIRS) >= self.cuts:
            return False
        setattr(self, f"cut_{pair[0]}_{pair[1]}", True)
        return True

    @action(over=PAIRS)
    def mend(self, pair: tuple[int, int]) -> bool:
        if not self.of("cut", *pair):
            return False
        setattr(self, f"cut_{pair[0]}_{pair[1]}", False)
        return True

    @recoverable
    def all_connected(self) -> bool:
        return all(self.connected(*each) for each in PAIRS)


class ReplacesItsOwnLease(WholeNetwork):
    """The failing configuration: a leader cannot take a checkpoint, so a lease of its own is replaced at once."""

    def replaceable(self, leader: int, lease: Lease) -> bool:
        return lease.node == leader or super().replaceable(leader, lease)


class ReplacesItsOwnLeaseAsPublished(CheckpointCoordination):
    """The same with a network that breaks, as published; the shortest trace needs nothing of that."""

    def replaceable(self, leader: int, lease: Lease) -> bool:
        return lease.node == leader or super().replaceable(leader, lease)
