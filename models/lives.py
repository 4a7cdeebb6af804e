"""Lives of coordinators over one root: how each begins, publishes and ends. What `models.epochs` builds on.

Two coordinators come and go, also both at once. Each may stand still between any two of its steps, for as long as
anything else takes, and then go on; each may die at any step. Whoever starts claims, chooses its base by the chain,
records it, reads the claims again, restores and runs. docs/reference/protocol.md sections 7 and 11.

A checkpoint is one step up to its publication (`models.checkpoint` takes it apart). `record` does without the look at
the chain that the running code takes before it writes: more may happen here, not less.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from attrs import evolve, fields, frozen

from participants.files import chain
from participants.files.chain import Base, Claim
from participants.machines.fencing import own_id
from participants.machines.transaction import (
    TRANSACTION,
    AllCommitted,
    AllPrepared,
    AllSettled,
    CheckpointRequested,
    ClaimsRead,
    DirectoryPublished,
    DispatchFrozen,
    HalfSaved,
    ProofGiven,
    ServersResumed,
    Transaction,
    TransactionState,
)
from participants.records.manifests import CheckpointId
from statecore import Snapshot
from statecore.properties import final, recoverable, sometimes
from statecore.world import World, action, durable, ghost, param, volatile

COORDINATORS = ("first", "second")
SERVERS = ("servers", "one")

Name = tuple[int, int]
"""What an execution is called outside its processes: the attempt, and the epoch that gave it."""

Row = tuple[Name, int]
"""Tokens under the name of their execution; ghost: the life that wrote them."""

Tx = Snapshot[TransactionState, Transaction]


@frozen(cache_hash=True)
class Content:
    """What a checkpoint holds of the rollout: its attempt, its result ("" while it has none), the token rows that its
    continuation needs, and the checkpoints whose files it does without a copy of its own.
    """

    attempt: int
    result: str = ""
    rows: frozenset[Row] = frozenset()
    leans_on: frozenset[CheckpointId] = frozenset()


Disk = tuple[tuple[CheckpointId, Content], ...]


@frozen(cache_hash=True)
class Job:
    """A coordinator: its last step, and what it has in memory.

    `number` is the epoch that it means to claim or has claimed, `before` that of the life it had before, 0 if none.
    `seen` are the claims as it read them; `attempt` the one that runs, `rows` what that needs; `doomed` what it is
    about to delete, and `unneeded` the names of the rows that go with it.
    """

    step: str = "down"
    number: int = 0
    before: int = 0
    seen: tuple[Claim, ...] = ()
    start: CheckpointId | None = None
    attempt: int = 0
    rows: frozenset[Row] = frozenset()
    sequence: int = 0
    draft: Content | None = None
    doomed: frozenset[CheckpointId] = frozenset()
    unneeded: frozenset[Name] = frozenset()

    def __repr__(self) -> str:
        """For a trace: the step, and whatever else is not as in the beginning."""
        said = [(each.name, getattr(self, each.name)) for each in fields(Job) if each.name != "step"]
        return " ".join([self.step, *(f"{name}={value!r}" for name, value in said if value != getattr(DOWN, name))])


DOWN = Job()
NO_CHECKPOINT = TRANSACTION.start()


@cache
def chain_of_the_next(claims: tuple[Claim, ...], published: tuple[CheckpointId, ...]) -> tuple[CheckpointId, ...]:
    number = chain.next_epoch(each.epoch for each in claims)
    return chain.candidates(number, {each.epoch: each for each in (*claims, Claim(number))}, published)


class LivesWorld(World):
    """Two coordinators and one root."""

    epochs = param(3)  # how many claims there are
    checkpoints = param(1)  # how many each life begins

    claims: tuple[Claim, ...] = durable(())
    disk: Disk = durable(())
    first: Job = volatile(DOWN, of="first")
    second: Job = volatile(DOWN, of="second")
    first_tx: Tx = volatile(NO_CHECKPOINT, of="first")
    second_tx: Tx = volatile(NO_CHECKPOINT, of="second")
    named: frozenset[Name] = ghost(frozenset())  # the executions that were started

    # --- a life begins

    @action(over=COORDINATORS)
    def start(self, who: str) -> object:
        """A process is started; it looks which epochs are claimed."""
        if self._job(who).step != "down" or len(self.claims) == self.epochs:
            return False
        self._become(who, Job("numbered", chain.next_epoch(self._epochs())))
        return None

    @action(over=COORDINATORS)
    def claim(self, who: str) -> object:
        """Create-only, and the loser takes the next number. Who has lived, and was overtaken since, ends here."""
        job = self._job(who)
        if job.step != "numbered":
            return False
        if not self._create_claim(job.number):
            if job.number == self.epochs:
                self.wipe(who)
            else:
                self._become(who, evolve(job, number=chain.next_epoch([job.number])))
        elif job.before and chain.overtaken_by(job.before, self._epochs(), own=[job.number]):
            self.wipe(who)
        else:
            self._become(who, evolve(job, step="claimed"))
        return None

    @action(over=COORDINATORS)
    def read_claims(self, who: str) -> object:
        job = self._job(who)
        if job.step != "claimed":
            return False
        self._become(who, evolve(job, step="read", seen=self.claims))
        return None

    @action(over=COORDINATORS)
    def choose(self, who: str) -> object:
        """It reads what is published, and chooses its base."""
        job = self._job(who)
        if job.step != "read":
            return False
        start = self._choice(job.number, {each.epoch: each for each in job.seen})
        self._become(who, evolve(job, step="chosen", seen=(), start=start))
        return None

    @action(over=COORDINATORS)
    def record(self, who: str) -> object:
        """Create-only: another base for the same claim is refused."""
        job = self._job(who)
        if job.step != "chosen":
            return False
        at = job.number - 1
        recorded = self.claims[at].base
        if recorded is not None and recorded.start != job.start:
            self.wipe(who)
            return None
        self.claims = (*self.claims[:at], evolve(self.claims[at], base=Base(job.start)), *self.claims[at + 1 :])
        self._become(who, evolve(job, step="recorded"))
        return None

    @action(over=COORDINATORS)
    def confirm(self, who: str) -> object:
        """It reads the claims again: a later life may not have seen this base, and goes first."""
        job = self._job(who)
        if job.step != "recorded":
            return False
        if self._overtaken_at_start(job):
            self.wipe(who)
        else:
            self._become(who, evolve(job, step="confirmed"))
        return None

    @action(over=COORDINATORS)
    def restore(self, who: str) -> object:
        """The servers run the next attempt of what the base holds; without its base a life ends."""
        job = self._job(who)
        if job.step != "confirmed":
            return False
        held = self._content(job.start)
        if job.start is not None and held is None:
            self.wipe(who)
        else:
            self._restored(who, job, held)
        return None

    # --- a checkpoint

    @action(over=COORDINATORS)
    def write(self, who: str) -> object:
        """The draft is whole, bound to what is known now, and every server has proved that it stands still."""
        job, tx = self._job(who), self._tx(who)
        if job.step != "running" or tx.state is not TransactionState.IDLE or job.sequence == self.checkpoints:
            return False
        sequence = job.sequence + 1
        self._step(
            who,
            CheckpointRequested(own_id("ck", job.number, sequence)),
            DispatchFrozen(),
            AllPrepared(),
            AllCommitted(frozenset({SERVERS})),
            AllSettled(),
            HalfSaved(),
            ProofGiven(*SERVERS),
        )
        self._become(who, evolve(job, sequence=sequence, draft=self._draft(who, job)))
        return None

    @action(over=COORDINATORS)
    def publish(self, who: str) -> object:
        """By one rename, onto a name that must not exist."""
        job = self._job(who)
        if self._tx(who).state is not TransactionState.VALIDATING or job.draft is None:
            return False
        if not self._rename(CheckpointId(job.number, job.sequence), job.draft):
            return False
        self._step(who, DirectoryPublished())
        return None

    @action(over=COORDINATORS)
    def read_claims_again(self, who: str) -> object:
        """Overtaken, it stops; else what it has published is saved, and what that makes needless may go."""
        job = self._job(who)
        if self._tx(who).state is not TransactionState.PUBLISHED:
            return False
        self._step(who, ClaimsRead(overtaken=self._overtaken_at_publication(job)))
        if self._tx(who).state is TransactionState.STOPPED:
            self.wipe(who)
        else:
            self._in_force(who, job)
        return None

    @action(over=COORDINATORS)
    def resume(self, who: str) -> object:
        """What it has not destroyed by now stays."""
        if self._tx(who).state is not TransactionState.RESUMING:
            return False
        self._step(who, ServersResumed())
        self._become(who, evolve(self._job(who), doomed=frozenset(), unneeded=frozenset()))
        return None

    @action(fault=True, over=COORDINATORS)
    def crash(self, who: str) -> object:
        if self._job(who).step == "down":
            return False
        self.wipe(who)
        return None

    # --- what a twin takes out

    def _create_claim(self, number: int) -> bool:
        """Whether the claim's file could be created, which needs that it is not there."""
        if number in self._epochs():
            return False
        self.claims = (*self.claims, Claim(number))
        return True

    def _choice(self, epoch: int, claims: Mapping[int, Claim]) -> CheckpointId | None:
        return chain.choose(epoch, claims, self._published()).start

    def _overtaken_at_start(self, job: Job) -> bool:
        return bool(chain.overtaken_by(job.number, self._epochs()))

    def _overtaken_at_publication(self, job: Job) -> bool:
        return bool(chain.overtaken_by(job.number, self._epochs()))

    def _rename(self, name: CheckpointId, content: Content) -> bool:
        """Whether the draft is published under its name, which needs that the name is not there."""
        if self._content(name) is not None:
            return False
        self.disk = tuple(sorted([*self.disk, (name, content)], key=lambda each: each[0]))
        return True

    def _name_of(self, job: Job) -> Name:
        return job.attempt, job.number

    # --- what a world adds

    def _restored(self, who: str, job: Job, held: Content | None) -> None:
        raise NotImplementedError

    def _draft(self, who: str, job: Job) -> Content:
        raise NotImplementedError

    def _in_force(self, who: str, job: Job) -> None:
        raise NotImplementedError

    # --- inside

    def _job(self, who: str) -> Job:
        job: Job = getattr(self, who)
        return job

    def _tx(self, who: str) -> Tx:
        tx: Tx = getattr(self, f"{who}_tx")
        return tx

    def _become(self, who: str, job: Job) -> None:
        setattr(self, who, job)

    def _step(self, who: str, *events: object) -> None:
        tx: Any = self._tx(who)
        for event in events:
            tx, _ = TRANSACTION.step(tx, event)
        setattr(self, f"{who}_tx", tx)

    def _forget_checkpoint(self, who: str) -> None:
        setattr(self, f"{who}_tx", NO_CHECKPOINT)

    def _give(self, name: Name) -> None:
        """An execution starts under this name, which no other has had."""
        if name in self.named:
            self.fail("I96")
        self.named |= {name}

    def _epochs(self) -> list[int]:
        return [each.epoch for each in self.claims]

    def _published(self) -> list[CheckpointId]:
        return [name for name, _ in self.disk]

    def _content(self, name: CheckpointId | None) -> Content | None:
        return None if name is None else dict(self.disk).get(name)

    def _chain(self) -> tuple[CheckpointId, ...]:
        """What a life may start from that claims now and meets nobody, in the order tried."""
        return chain_of_the_next(self.claims, tuple(self._published()))

    def _last(self) -> Claim | None:
        """The newest claim that has a base: a life that begins now goes on from there."""
        return next((each for each in reversed(self.claims) if each.base is not None), None)

    def _runs_last(self, who: str) -> bool:
        """Whether it runs, and nobody has claimed after it."""
        job = self._job(who)
        return job.step == "running" and job.number == len(self.claims)

    # --- properties

    @final
    def the_numbers_are_used_up(self) -> bool:
        return len(self.claims) == self.epochs

    @recoverable(covers="S3")
    def somebody_runs(self) -> bool:
        """Or the numbers of this world are used up, and nobody is about to begin; outside there is a next one."""
        if any(self._runs_last(who) for who in COORDINATORS):
            return True
        used_up = len(self.claims) == self.epochs
        return used_up and all(self._job(who).step in ("down", "running") for who in COORDINATORS)

    @sometimes(covers="S44")
    def an_overtaken_one_has_published(self) -> bool:
        return len(self._chain()) < len(self.disk)

    @sometimes
    def two_run_at_once(self) -> bool:
        return self.first.step == self.second.step == "running"
