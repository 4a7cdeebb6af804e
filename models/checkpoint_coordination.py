"""Checkpoints of a replicated state machine, one replica at a time by a lease (RingMaster), for calibration.

Written anew after the TLA+ example CheckpointCoordination (CheckpointCoordination/CheckpointCoordination.tla,
MCCheckpointCoordination.tla with MCCheckpointCoordination.cfg and MCCheckpointCoordinationFailure.cfg: three nodes,
logs of three entries). Published: the verdicts (success; safety failure) and the trace of the failure, which has
twelve states, that is eleven steps; no counts. There, states are taken up to permutation of the nodes; here, none
is left out. A constraint wants an index that is open in every log: the state that fills the last one is judged
there and not explored, and the step to it is judged and not taken here. A failure of what has failed already and a
repair of what works change nothing and are left out.

Here the network stays whole: its failures and repairs are left out, and the published failing trace needs none of them.
`ReplacesItsOwnLease` is the failing configuration: a leader that holds the lease itself replaces it at once.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen

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
class Node:
    """What a node holds: its log outlives it; the rest is lost when it goes down, and comes back by execution."""

    log: Log
    up: bool = True
    next: int = FIRST
    voted: int = FIRST  # up to where its last checkpoint goes, as its votes tell the leader
    lease: Lease | None = None
    may: bool = False
    takes: bool = False


@frozen(cache_hash=True)
class Checkpoint:
    """The latest one: the log before `next`."""

    log: Log
    next: int


class WholeNetwork(World):
    """Three nodes, one of which leads; the log holds nothing but who gets the lease, and is agreed on by magic."""

    entries: int = param(3)

    node_0: Node = slot(make=lambda w: Node((None,) * w.entries))
    node_1: Node = slot(make=lambda w: Node((None,) * w.entries))
    node_2: Node = slot(make=lambda w: Node((None,) * w.entries))
    leader: int | None = slot(None)
    timed_out: int = slot(FIRST)  # leases before this index have timed out
    checkpoint: Checkpoint = slot(Checkpoint((), FIRST))

    def of(self, which: int) -> Node:
        node: Node = getattr(self, f"node_{which}")
        return node

    def let(self, which: int, **values: Any) -> None:
        setattr(self, f"node_{which}", evolve(self.of(which), **values))

    def reaches(self, source: int, target: int) -> bool:
        return self.of(source).up and self.of(target).up

    def connected(self, one: int, other: int) -> bool:
        return self.reaches(one, other) and self.reaches(other, one)

    def has_quorum(self, leader: int) -> bool:
        return self.of(leader).up and sum(self.connected(leader, node) for node in NODES) >= MAJORITY

    def entry(self, which: int, index: int) -> int | None:
        log: Log = self.of(which).log
        return log[index - 1] if index <= self.entries else None

    def first_open(self) -> int:
        """The first index that no log has filled."""
        used = [index for index in range(1, self.entries + 1) for node in NODES if self.entry(node, index) is not None]
        return max(used, default=0) + 1

    @action(over=NODES, fault=True)
    def go_down(self, me: int) -> bool:
        if not self.of(me).up:
            return False
        self.let(me, up=False, next=FIRST, voted=FIRST, lease=None, may=False, takes=False)
        if self.leader == me:
            self.leader = None
        return True

    @action(over=NODES)
    def come_back(self, me: int) -> bool:
        """From the latest checkpoint, and its own log after it."""
        if self.of(me).up:
            return False
        kept = self.checkpoint.next - 1
        log = self.checkpoint.log[:kept] + self.of(me).log[kept:]
        self.let(me, up=True, log=log, next=self.checkpoint.next)
        return True

    @action(over=NODES)
    def elect(self, me: int) -> bool:
        """Who has executed all that was agreed on, and is not at a checkpoint."""
        node = self.of(me)
        if self.leader is not None or node.takes or not self.has_quorum(me) or node.next != self.first_open():
            return False
        self.leader = me
        self.let(me, may=False)
        return True

    def replaceable(self, leader: int, lease: Lease) -> bool:
        """It has timed out, or the leader hears that its checkpoint is done."""
        if lease.index < self.timed_out:
            return True
        return self.connected(leader, lease.node) and lease.index < self.of(lease.node).voted

    @action(over=NODES)
    def grant(self, prospect: int) -> bool:
        """The leader writes into all logs that it reaches who gets the lease."""
        leader = self.leader
        if leader is None or leader == prospect or not self.has_quorum(leader) or not self.connected(leader, prospect):
            return False
        before = self.of(leader).lease
        if before is not None and not self.replaceable(leader, before):
            return False
        index = self.first_open()
        for node in NODES:
            if self.reaches(leader, node):
                log = self.of(node).log
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
        logs = zip(self.of(target).log, self.of(source).log, strict=True)
        self.let(target, log=tuple(mine if mine is not None else theirs for mine, theirs in logs))
        return True

    @action(over=NODES)
    def execute(self, me: int) -> bool:
        """The next entry of its log; a leader knows better than its log which lease is the last."""
        node = self.of(me)
        if not node.up or node.takes:
            return False
        request = self.entry(me, node.next)
        if request is None:
            return False
        in_time = node.next >= self.timed_out
        lease = node.lease if self.leader == me else Lease(request, node.next) if in_time else None
        self.let(me, may=self.leader != me and request == me and in_time, lease=lease, next=node.next + 1)
        return True

    @action(over=NODES)
    def start(self, me: int) -> bool:
        if not self.of(me).may:
            return False
        self.let(me, takes=True)
        return True

    @action(over=NODES)
    def finish(self, me: int) -> bool:
        node = self.of(me)
        if not node.takes:
            return False
        self.checkpoint = Checkpoint(node.log[: node.next - 1], node.next)
        self.let(me, voted=node.next, lease=None, may=False, takes=False)
        return True

    @action
    def time_out(self) -> bool:
        """The oldest lease that has not timed out does so, for everybody at once."""
        index = self.timed_out
        if all(self.entry(node, index) is None for node in NODES):
            return False
        self.timed_out = index + 1
        for each in NODES:
            node = self.of(each)
            later = node.lease is not None and node.lease.index > index
            self.let(each, may=node.may and later, takes=node.takes and later)
        return True

    @always
    def leader_takes_none(self) -> bool:
        return self.leader is None or not (self.of(self.leader).may or self.of(self.leader).takes)

    @always
    def leader_knows(self) -> bool:
        """Whoever may take a checkpoint has the lease that the leader knows of."""
        if self.leader is None:
            return True
        lease = self.of(self.leader).lease
        able: set[int] = {each for each in NODES if self.of(each).may or self.of(each).takes}
        return able <= (set() if lease is None else {lease.node})

    @always
    def one_at_a_time(self) -> bool:
        may = sum(self.of(each).may for each in NODES)
        takes = sum(self.of(each).takes for each in NODES)
        return may <= 1 and takes <= 1

    @always
    def entitled(self) -> bool:
        """Who takes a checkpoint may, and who may has a lease of its own that has not timed out."""
        for each in NODES:
            node = self.of(each)
            if node.takes and not node.may:
                return False
            lease = node.lease
            if node.may and (lease is None or lease.node != each or lease.index < self.timed_out):
                return False
        return True

    @always
    def logs_agree(self) -> bool:
        logs = [self.of(each).log for each in NODES]
        return all(len({entry for entry in entries if entry is not None}) <= 1 for entries in zip(*logs, strict=True))

    @sometimes
    def checkpoint_taken_without_a_leader(self) -> bool:
        return self.leader is None and any(self.of(each).takes for each in NODES)

    @sometimes
    def two_leases_granted(self) -> bool:
        return self.first_open() == self.entries

    @recoverable
    def mended(self) -> bool:
        return all(self.of(each).up for each in NODES)


class ReplacesItsOwnLease(WholeNetwork):
    """The failing configuration: a leader cannot take a checkpoint, so a lease of its own is replaced at once."""

    def replaceable(self, leader: int, lease: Lease) -> bool:
        return lease.node == leader or super().replaceable(leader, lease)
