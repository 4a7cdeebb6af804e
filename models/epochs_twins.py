"""Failing twins of the worlds of lives: each without one protective rule, each with a counterexample."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from models.epochs import (
    DamagedResultsWorld,
    EpochsWorld,
    FallbackWorld,
    InDoubtWorld,
    KeepsResults,
    ReferencesWorld,
    RetentionWorld,
    lean_on_the_base,
)
from models.lives import COORDINATORS, Content, Job, LivesWorld, Name, Row
from participants.files import chain
from participants.files.chain import Claim
from participants.machines.transaction import DirectoryPublished
from participants.records.manifests import CheckpointId
from statecore.world import action, wire


class RestartsWithinItsEpoch(EpochsWorld):
    """S64: a coordinator whose servers have died starts them again from its newest checkpoint, under its old claim."""

    @action(over=COORDINATORS)
    def start_again(self, who: str) -> object:
        job = self._job(who)
        if job.step != "running":
            return False
        claims = {each.epoch: each for each in self.claims}
        self._forget_checkpoint(who)
        start = self._choice(job.number, claims)
        self._become(who, Job("confirmed", job.number, job.number, start=start, attempt=job.attempt))
        return None


class ChoosesBeforeItClaims(EpochsWorld):
    """S62: the base is chosen first, for the number that it means to claim."""

    @action(over=COORDINATORS)
    def read_claims(self, who: str) -> object:
        job = self._job(who)
        if job.step != "numbered":
            return False
        self._become(who, evolve(job, step="read", seen=(*self.claims, Claim(job.number))))
        return None

    @action(over=COORDINATORS)
    def choose(self, who: str) -> object:
        if LivesWorld.choose.function(self, who) is False:
            return False
        self._become(who, evolve(self._job(who), step="unclaimed"))
        return None

    @action(over=COORDINATORS)
    def claim(self, who: str) -> object:
        job = self._job(who)
        if job.step != "unclaimed":
            return False
        if self._create_claim(job.number):
            self._become(who, evolve(job, step="chosen"))
        else:
            self.wipe(who)
        return None


class AcknowledgesWithoutLooking(EpochsWorld):
    """S62: the claims are not read again after a publication."""

    def _overtaken_at_publication(self, job: Job) -> bool:
        return False


class StartsWithoutLooking(EpochsWorld):
    """S62: the claims are not read again after the base is recorded, and results are acknowledged at the start."""

    def _overtaken_at_start(self, job: Job) -> bool:
        return False


class TakesTheNewestPublished(EpochsWorld):
    """S44: the base is whatever was published last."""

    def _rename(self, name: CheckpointId, content: Content) -> bool:
        self.disk = (*self.disk, (name, content))
        return True

    def _choice(self, epoch: int, claims: Mapping[int, Claim]) -> CheckpointId | None:
        return self.disk[-1][0] if self.disk else None

    def _draft(self, who: str, job: Job) -> Content:
        """That a second result comes to stand is let pass: this is about one that is lost."""
        return Content(job.attempt, self._entry(who).data)


class VoidClaimsCount(EpochsWorld):
    """Section 11: a claim without a base is waited for."""

    @action(over=COORDINATORS)
    def choose(self, who: str) -> object:
        job = self._job(who)
        if any(each.base is None and each.epoch < job.number for each in job.seen):
            return False
        return LivesWorld.choose.function(self, who)


class NamesWithoutEpoch(EpochsWorld):
    """S45: an execution is called by its attempt alone."""

    def _name_of(self, job: Job) -> Name:
        return job.attempt, 0


class TwoWinnersOfANumber(EpochsWorld):
    """I96: a claim is written over the one that is there."""

    def _create_claim(self, number: int) -> bool:
        LivesWorld._create_claim(self, number)
        return True


class LivesOnOvertaken(EpochsWorld):
    """A coordinator that was overtaken while its servers were dead claims again and goes on with its live ledger."""

    @action(over=COORDINATORS)
    def claim(self, who: str) -> object:
        job = self._job(who)
        if job.step != "numbered":
            return False
        if self._create_claim(job.number):
            self._become(who, evolve(job, step="claimed"))
        elif job.number == self.epochs:
            self.wipe(who)
        else:
            self._become(who, evolve(job, number=chain.next_epoch([job.number])))
        return None


class TakesDoubtForSuccess(InDoubtWorld):
    """Section 8: the rename is enough, though the root could not be synced."""

    def _not_published(self, who: str, job: Job) -> None:
        self._step(who, DirectoryPublished())


class ReplacesItsResult(KeepsResults):
    """Section 9: with the framework the result stands that came last."""

    def _standing(self, result: str) -> str:
        return result


class OneNameForTwoCheckpoints(TwoWinnersOfANumber):
    """I43, I96: claims are written over, and so are checkpoints. With one number either rule alone is enough.

    That two executions are called the same is let pass.
    """

    def _give(self, name: Name) -> None:
        pass

    def _rename(self, name: CheckpointId, content: Content) -> bool:
        self.disk = tuple(sorted({**dict(self.disk), name: content}.items(), key=lambda each: each[0]))
        return True


class RestartsWithinItsEpochSeenByItsHarm(RetentionWorld):
    """S64 once more, by what is lost: a late row of the start before replaces one that a continuation needs."""

    late: Row | None = wire(None)

    @action(over=COORDINATORS)
    def start_again(self, who: str) -> object:
        """`before` counts the starts in this epoch."""
        job = self._job(who)
        if job.step != "running":
            return False
        self.late = self._own_row(job)
        start = self._choice(job.number, {each.epoch: each for each in self.claims})
        self._forget_checkpoint(who)
        again = Job("confirmed", job.number, job.before + 1, start=start, sequence=job.sequence)
        self._become(who, evolve(again, attempt=job.attempt + 1))
        return None

    @action(fault=True)
    def arrive_late(self) -> object:
        """The store gets a row that was on its way when the servers were stopped."""
        if self.late is None:
            return False
        self._store(self.late)
        self.late = None
        return None

    def _own_row(self, job: Job) -> Row:
        return self._name_of(job), job.before


class RowsWithoutEpoch(RetentionWorld):
    """S45: rows are called by the attempt alone."""

    def _name_of(self, job: Job) -> Name:
        return job.attempt, 0


class DestroysWithoutLooking(RetentionWorld):
    """S67: the claims are not read again after a publication, and what is old goes."""

    def _overtaken_at_publication(self, job: Job) -> bool:
        return False


class ClearsByLiveState(RetentionWorld):
    """S67: rows go that neither a published checkpoint nor its own rollout needs when it comes to clear them."""

    def _clearable(self, job: Job) -> frozenset[Name]:
        needed = {row for _, content in self.disk for row, _ in content.rows} | {row for row, _ in job.rows}
        return frozenset(name for name, _ in self.rows) - needed


class KeepsOnlyTheNewest(FallbackWorld):
    """S67: retention keeps one checkpoint of its chain."""

    def _deletable(self, job: Job) -> frozenset[CheckpointId]:
        own = chain.candidates(job.number, {each.epoch: each for each in self.claims}, self._published())
        return frozenset(own[1:])


class CountsTheOvertaken(FallbackWorld):
    """S67: retention keeps the two newest checkpoints, whoever published them."""

    def _deletable(self, job: Job) -> frozenset[CheckpointId]:
        own = chain.candidates(job.number, {each.epoch: each for each in self.claims}, self._published())
        return frozenset(own) - frozenset(self._published()[-2:])


class LeansOnItsBase(RetentionWorld):
    """13.7: the first checkpoint of a life names files of its base, and retention does not look what is named."""

    def _leans_on(self, job: Job) -> frozenset[CheckpointId]:
        return lean_on_the_base(job)


class LeansOnAnything(ReferencesWorld):
    """13.7: a checkpoint names files of whatever is published, not only of its base."""

    def _leans_on(self, job: Job) -> frozenset[CheckpointId]:
        return frozenset() if job.sequence else frozenset(self._published()[:1])


class PromisesWhatOneHeld(DamagedResultsWorld):
    """Sections 7 and 9: what was released is there whatever is damaged. It is not, if that checkpoint alone held it."""

    def _is_kept(self) -> bool:
        return EpochsWorld._is_kept(self)


class FallsBackUnderItsClaim(DamagedResultsWorld):
    """Section 7: a life whose recorded base is damaged before it restores it goes on from another one, which nobody who
    claims after it can know of.
    """

    @action(over=COORDINATORS)
    def restore(self, who: str) -> object:
        job = self._job(who)
        if job.step != "confirmed":
            return False
        if job.start is not None and self._content(job.start) is None:
            claims = {each.epoch: each for each in self.claims} | {job.number: Claim(job.number)}
            try:
                job = evolve(job, start=self._choice(job.number, claims))
            except chain.NothingWhole:
                self.wipe(who)
                return None
        self._restored(who, job, self._content(job.start))
        return None


class DoesNotStandAlone(ReferencesWorld, FallbackWorld):
    """13.7: files are named and not linked, and the checkpoint that has them is damaged."""


TWINS = (
    RestartsWithinItsEpoch,
    ChoosesBeforeItClaims,
    AcknowledgesWithoutLooking,
    StartsWithoutLooking,
    TakesTheNewestPublished,
    VoidClaimsCount,
    NamesWithoutEpoch,
    TwoWinnersOfANumber,
    LivesOnOvertaken,
    TakesDoubtForSuccess,
    ReplacesItsResult,
    OneNameForTwoCheckpoints,
    RestartsWithinItsEpochSeenByItsHarm,
    RowsWithoutEpoch,
    DestroysWithoutLooking,
    ClearsByLiveState,
    KeepsOnlyTheNewest,
    CountsTheOvertaken,
    LeansOnItsBase,
    LeansOnAnything,
    DoesNotStandAlone,
    PromisesWhatOneHeld,
    FallsBackUnderItsClaim,
)
