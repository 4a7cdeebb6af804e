"""One checkpoint, driven: the TRANSACTION table says what is owed, this shell performs it and tells what happened.

Rules (docs/reference/protocol.md sections 6 and 11): nothing before the rename is final, and any failure before it
aborts: every server that was contacted is resumed, also if its reply was lost (I20); the rename is made only when the
table would accept it, which takes the proof of each participant (S32); after it the claims are read before anything is
acknowledged or resumed (S62), and nothing fails any more, it only goes on (S3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import trio
from attrs import define, field, frozen

from statecore import Refused

from ..files.store import Publication, StoreError
from ..identity import EpisodeId
from ..machines import transaction as tx
from ..records.manifests import CheckpointId
from ..records.records import Disposition
from ..signals import CHECKPOINT_ID, PHASE, PHASE_SECONDS, PHASES
from .clocks import clock_trouble
from .deployment import Member, resume_all
from .life import Life, log
from .outcomes import Aborted, Overtaken, Published
from .phases import Phases, StageFailed
from .preparing import Preparation
from .retention import delete_what_is_old
from .stragglers import Stragglers

CLAIM_READS: Final = 5
CLAIM_READ_DELAY_S: Final = 0.5
NOT_ABORTABLE: Final = frozenset(
    {tx.TransactionState.PUBLISHED, tx.TransactionState.RESUMING, tx.TransactionState.ABORTING}
)

NOT_CUT_SHORT: Final = frozenset({tx.ReadClaims})
"""What is owed also when the servers are gone: it asks none of them."""
ONCE_CUT_SHORT: Final[Mapping[type, tuple[object, ...]]] = {
    tx.AcknowledgeResults: (),
    tx.ResumeServers: (),
    tx.ThawDispatch: (tx.ServersResumed(),),
}
"""What has happened once these were cut short: nobody is there any more to be asked."""

Effect = Any
Event = Any


@frozen
class Open:
    """A checkpoint that may still be open on servers: its id, and who was contacted for it.

    `discard` removes what was written of it and not published, once none of them writes any more.
    """

    checkpoint_id: str
    contacted: tuple[Member, ...]
    discard: Callable[[], Awaitable[None]]


@define(eq=False)
class CheckpointRun:
    """One checkpoint of one life; `run` it once. `timeout_s` bounds everything up to its publication.

    If it is aborted so that stragglers can be retired (`to_retire`), dispatch stays frozen until that has happened.
    """

    life: Life
    checkpoint_id: CheckpointId
    timeout_s: float
    stragglers: Stragglers = Stragglers.ABORT
    phases: Phases = field(init=False)
    machine: Any = field(init=False, factory=tx.TRANSACTION.start)
    _began: float = field(init=False)
    _unresumed: tuple[str, ...] = field(init=False, default=())
    _publication: Publication | None = field(init=False, default=None)
    _notes: tuple[str, ...] = field(init=False, default=())
    _failure: StageFailed | None = field(init=False, default=None)
    _failed_in: str = field(init=False, default="")
    _interrupted: str = field(init=False, default="")
    _scope: trio.CancelScope | None = field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self._began = trio.current_time()
        deadline_ts = self.life.seams.clock.time() + self.timeout_s
        self.phases = Phases(self.life, self.checkpoint_id, self.timeout_s, self._began + self.timeout_s, deadline_ts)

    async def run(self) -> Published | Aborted:
        """The checkpoint is in force, or aborted. Overtaken when another coordinator has claimed the root."""
        owed: deque[Effect] = deque(self._step(tx.CheckpointRequested(str(self.checkpoint_id))))
        while owed:
            try:
                for event in await self._perform(owed.popleft()):
                    owed.extend(self._step(event))
            except Exception as error:
                if self.machine.state in NOT_ABORTABLE:
                    raise
                owed = deque(self._fail(error))
        if self.machine.state is tx.TransactionState.STOPPED:
            raise Overtaken(
                f"{self.checkpoint_id}: {self.life.store.root} is claimed by another coordinator (or its claims cannot "
                "be read); this one has stopped, and acknowledged and resumed nothing"
            )
        return self._outcome()

    @property
    def open(self) -> Open:
        """Whom to resume if `run` did not come to its end."""
        return Open(str(self.checkpoint_id), tuple(self.phases.contacted.values()), self.phases.discard)

    @property
    def to_retire(self) -> Mapping[EpisodeId, str]:
        """The executions for which it ended, each with the reason."""
        return {} if self._failure is None else self._failure.retire

    # --- the machine

    def _step(self, event: Event) -> tuple[Effect, ...]:
        self.machine, effects = self.life.steps.step(
            tx.TRANSACTION, self.machine, event, checkpoint_id=str(self.checkpoint_id)
        )
        return effects

    def _fail(self, error: Exception) -> tuple[Effect, ...]:
        """The abort that is owed. What nobody foresaw aborts as well, and is told with its traceback."""
        if isinstance(error, StageFailed):
            failure = error
        else:
            if not isinstance(error, Refused):
                log.error("%s: an error that nothing expects", self.checkpoint_id, exc_info=error)
            failure = StageFailed(f"{type(error).__name__}: {error}", broken=True)
        if hint := clock_trouble(
            self.life.deployment.members, self.phases.clock_set_by_s(), self.life.settings.max_clock_skew_s
        ):
            reason = f"{failure.reason} ({hint})"
            failure = StageFailed(reason, failure.blockers, broken=failure.broken, retire=failure.retire)
        self._failure, self._failed_in = failure, str(self.machine.state)
        return self._step(tx.Failed(failure.reason))

    def interrupt(self, why: str) -> None:
        """The servers are gone or will be: what can be aborted is, and nobody is waited for any more."""
        self._interrupted = self._interrupted or why
        if self._scope is not None:
            self._scope.cancel()

    async def while_servers_are_there(self, work: Callable[[], Awaitable[Any]]) -> None:
        """`work` is done, or the servers are gone."""
        with self._interruptible():
            await work()

    @contextmanager
    def _interruptible(self) -> Iterator[trio.CancelScope]:
        """What is awaited inside is given up when the servers are gone."""
        with trio.CancelScope() as self._scope:
            if self._interrupted:
                self._scope.cancel()
            yield self._scope
        self._scope = None

    async def _perform(self, effect: Effect) -> Iterable[Event]:
        performers: dict[type, Callable[[], Awaitable[Iterable[Event]]]] = {
            tx.FreezeDispatch: partial(self._timed, "freeze", self._freeze),
            tx.PrepareServers: partial(self._timed, "prepare", self._prepare),
            tx.CommitServers: partial(self._timed, "commit", self._commit),
            tx.SettleExecutions: partial(self._timed, "settle", self._settle),
            tx.SaveHalf: partial(self._timed, "save", self._save),
            tx.CollectProofs: self._publish,
            tx.ReadClaims: partial(self._timed, "claims", self._read_claims),
            tx.AcknowledgeResults: partial(self._timed, "acknowledge", self._acknowledge),
            tx.ResumeServers: partial(self._timed, "resume", self._resume),
            tx.ThawDispatch: self._thaw,
        }
        if type(effect) in NOT_CUT_SHORT:
            return await performers[type(effect)]()
        done: list[Iterable[Event]] = []
        with self._interruptible():
            done.append(await performers[type(effect)]())
        if not done and type(effect) not in ONCE_CUT_SHORT:
            raise StageFailed(self._interrupted)
        return done[0] if done else ONCE_CUT_SHORT[type(effect)]

    async def _timed(self, name: str, work: Callable[[], Awaitable[Any]]) -> Any:
        began = trio.current_time()
        telemetry = self.life.seams.telemetry
        try:
            with telemetry.span(PHASES[name], {CHECKPOINT_ID: str(self.checkpoint_id)}):
                return await work()
        finally:
            self.phases.timed(name, began)
            telemetry.record(PHASE_SECONDS, trio.current_time() - began, {PHASE: name})

    # --- one performer for each effect; what it returns are the events that happened

    async def _freeze(self) -> Iterable[Event]:
        self.life.door.close()
        return [tx.DispatchFrozen()]

    async def _prepare(self) -> Iterable[Event]:
        await Preparation(self.phases, self.stragglers).run()
        return [tx.AllPrepared()]

    async def _commit(self) -> Iterable[Event]:
        await self.phases.commit()
        return [tx.AllCommitted(self.life.deployment.incarnations)]

    async def _settle(self) -> Iterable[Event]:
        await self.phases.settle()
        return [tx.AllSettled()]

    async def _save(self) -> Iterable[Event]:
        await self.phases.save()
        return [tx.HalfSaved()]

    async def _publish(self) -> Iterable[Event]:
        """Validate, prove, publish, in this order."""
        await self._timed("validate", self.phases.write_and_validate)
        phases = await self._timed("prove", self.phases.prove)
        for member in self.life.deployment.members:
            self._step(tx.ProofGiven(member.name, member.control.seen_incarnation or "", phases[member.name]))
        self.life.steps.ask(  # refused without every proof: nothing is renamed
            tx.TRANSACTION, self.machine, tx.DirectoryPublished(), checkpoint_id=str(self.checkpoint_id)
        )
        with trio.CancelScope(shield=True):  # once it has begun, whoever interrupts it knows how it ended
            self._publication = await self._timed("publish", self.phases.publish)
        return [tx.DirectoryPublished()]

    async def _read_claims(self) -> Iterable[Event]:
        """Whether somebody else has claimed the root; where that cannot be read it may be so."""
        for left in reversed(range(CLAIM_READS)):
            try:
                later = await self.life.disk(partial(self.life.store.overtaken_by, self.life.epoch))
                return [tx.ClaimsRead(overtaken=bool(later))]
            except StoreError as error:
                log.error("%s: the claims cannot be read: %s", self.checkpoint_id, error)
                if left:
                    await trio.sleep(CLAIM_READ_DELAY_S)
        return [tx.ClaimsRead(overtaken=True)]

    async def _acknowledge(self) -> Iterable[Event]:
        """What was published is saved, that and nothing later; its results are released."""
        self.life.published = str(self.checkpoint_id)
        ledger = self.life.ledger.saved(self.phases.reading.finished)
        self.life.note(ledger.contained(self.phases.consumed))
        self._notes = await self.life.acknowledge()
        if self._publication is not None and self._publication.latest_problem:
            self._notes += (self._publication.latest_problem,)
        return []

    async def _resume(self) -> Iterable[Event]:
        deadline_ts = self.life.seams.clock.time() + self.life.settings.resume_timeout_s
        self._unresumed = await resume_all(self.phases.contacted.values(), str(self.checkpoint_id), deadline_ts)
        for problem in self._unresumed:
            log.warning("%s: not resumed, it reopens by its lease: %s", self.checkpoint_id, problem)
        if self.machine.state is tx.TransactionState.ABORTING and not self._unresumed and not self._interrupted:
            await self.phases.discard()  # after resume no server writes below it any more (I48)
        return []

    async def _thaw(self) -> Iterable[Event]:
        self.life.note(self.life.ledger.released())
        if not self.to_retire:
            self.life.door.open()
        if self.machine.state is not tx.TransactionState.RESUMING:
            return [tx.Aborted()]
        if not self._unresumed and not self._interrupted:
            await self.life.tidy(str(self.checkpoint_id))
        self._notes += await delete_what_is_old(self.life, self.checkpoint_id)
        return [tx.ServersResumed()]

    # --- what it comes to

    def _outcome(self) -> Published | Aborted:
        seconds = trio.current_time() - self._began
        times = tuple(self.phases.times)
        if self._failure is not None:
            return Aborted(
                checkpoint_id=str(self.checkpoint_id),
                reason=self._failure.reason,
                phase=self._failed_in,
                blockers=self._failure.blockers,
                phases=times,
                seconds=seconds,
                broken=self._failure.broken,
                unresumed=self._unresumed,
            )
        settled = tuple(self.phases.settled.values())
        left_out = {
            episode.rollout_id: why for episode, why in self.phases.cut.left_out.items() if self._is_fresh(episode)
        }
        return Published(
            checkpoint_id=str(self.checkpoint_id),
            counts={each: sum(one.disposition is each for one in settled) for each in Disposition},
            phases=times,
            seconds=seconds,
            weak=sum(each.weak for each in settled),
            untracked=sum(each.untracked for each in settled),
            unresumed=self._unresumed,
            notes=self._notes,
            left_out=left_out,
            turns=self.phases.turns_held(),
        )

    def _is_fresh(self, episode: EpisodeId) -> bool:
        """Whether this execution is the newest of its rollout, and starts over after a restore."""
        settled = self.phases.settled.get(episode.rollout_id)
        known = self.phases.reading.rollouts.get(episode.rollout_id)
        return (
            settled is not None
            and known is not None
            and known.episode == episode
            and settled.disposition is Disposition.FRESH
        )
