"""What is released, and what is deleted, while coordinators overtake each other. Executable specification.

Worlds over `models.lives`. `EpochsWorld`: results, which servers retain that outlive every coordinator and that every
coordinator reaches; a launcher of ours stops its own, so this is the worst case. `KeepsResults`: with a framework that
keeps results itself (`save_result`). `InDoubtWorld`: with a publication that may not last. `RetentionWorld`: old
checkpoints go, and the token rows that only they needed. `FallbackWorld`: and one checkpoint turns out damaged;
`DamagedResultsWorld`: the same, for results. `ReferencesWorld`: checkpoints share files without links.
docs/reference/protocol.md sections 7, 8, 9, 11 and 13.

Not built yet are the clearing of rows, and checkpoints that share files. What a life starts from is decided by
`chain.choose`, what may be deleted by `chain.deletable`, and what becomes of a rollout by `plan_restore`.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from models.lives import COORDINATORS, SERVERS, Content, Job, LivesWorld, Name, Row
from participants.coordination.recovery import CheckpointRejected, Found, Verdict, plan_restore
from participants.files import chain
from participants.files.chain import Claim
from participants.machines.handoff import LEDGER_ENTRY, Entry, Received, Saved
from participants.machines.transaction import Aborted, Failed, TransactionState
from participants.records.manifests import CheckpointId
from participants.records.records import Disposition, LedgerRow, LedgerStatus, Receipt, RegistryRow, task_digest
from statecore import Snapshot
from statecore.properties import always, sometimes
from statecore.world import action, durable, ghost, param, volatile

ROLLOUT = "rollout"

Result = Snapshot[Entry, str]
NO_RESULT = LEDGER_ENTRY.start()


def receipt_of(name: Name) -> str:
    """The receipt of the result that this execution makes, in short."""
    return "attempt {} of epoch {}".format(*name)


def issued(receipt: str) -> Receipt:
    """The receipt in whole."""
    _, attempt, _, _, epoch = receipt.split()
    return Receipt(
        rollout_id=ROLLOUT,
        attempt=int(attempt),
        epoch=int(epoch),
        result_identity="0" * 32,
        result_sha256="0" * 64,
    )


def plan(held: Content, live: Result | None) -> Verdict:
    """What a restart makes of the rollout, by the checkpoint's ledger or the `live` one of a coordinator that lived.

    There are no records here, so it is *fresh* where parts would agree: under the same number.
    """
    result, status = (held.result, LedgerStatus.SAVED) if live is None else (live.data, LedgerStatus.RECEIVED)
    if result:
        receipt = issued(result)
        ledger = LedgerRow(rollout_id=ROLLOUT, attempt=receipt.attempt, status=status, receipt=receipt, body={})
    else:
        ledger = LedgerRow(rollout_id=ROLLOUT, attempt=held.attempt, status=LedgerStatus.LIVE)
    row = RegistryRow(
        rollout_id=ROLLOUT,
        attempt=held.attempt,
        task={},
        task_digest=task_digest({}),
        target=SERVERS[0],
        disposition=Disposition.COMPLETED if held.result else Disposition.FRESH,
    )
    consumed = frozenset({ROLLOUT} if result else ())
    found = Found(registry=(row,), ledger=(ledger,), parts=(), consumed=consumed, live=live is not None)
    return plan_restore(found).verdicts[0]


class EpochsWorld(LivesWorld):
    """One rollout, and servers that keep its results."""

    first_entry: Result = volatile(NO_RESULT, of="first")
    second_entry: Result = volatile(NO_RESULT, of="second")
    retained: frozenset[str] = durable(frozenset())  # the servers live on
    released: bool = ghost(False)  # some server has let go of a result

    @action(over=COORDINATORS)
    def start_again(self, who: str) -> object:
        """Its servers have died: it stops all of them, gives up its checkpoint, and begins another life."""
        job = self._job(who)
        if job.step != "running" or len(self.claims) == self.epochs:
            return False
        self._forget_checkpoint(who)
        self._become(who, Job("numbered", chain.next_epoch(self._epochs()), before=job.number, attempt=job.attempt))
        return None

    @action(fault=True, over=COORDINATORS)
    def give_up(self, who: str) -> object:
        """Something fails before the rename: the checkpoint before stays in force."""
        if self._tx(who).state is not TransactionState.VALIDATING:
            return False
        self._step(who, Failed(), Aborted())
        self._become(who, evolve(self._job(who), draft=None))
        return None

    @action(over=COORDINATORS)
    def finish(self, who: str) -> object:
        """The rollout's result: its server retains it, and the coordinator has it."""
        job, entry = self._job(who), self._entry(who)
        if job.step != "running" or entry.state is not Entry.LIVE:
            return False
        receipt = receipt_of(self._name_of(job))
        self.retained |= {receipt}
        self._note(who, LEDGER_ENTRY.step(entry, Received(receipt))[0])
        return None

    @action(over=COORDINATORS)
    def acknowledge(self, who: str) -> object:
        """At its start, and whenever something was saved: every retained result of a saved rollout, by the list."""
        if self._job(who).step != "running" or self._entry(who).state is not Entry.SAVED or not self.retained:
            return False
        self.retained = frozenset()
        self.released = True
        return None

    def _restored(self, who: str, job: Job, held: Content | None) -> None:
        entry, attempt = self._entry(who), job.attempt + 1 if job.before else 0
        if held is not None:
            try:
                verdict = plan(held, entry if job.before else None)
            except CheckpointRejected:
                self.wipe(who)
                return
            attempt = verdict.attempt if verdict.next_attempt is None else verdict.next_attempt
            if held.result and (not job.before or entry.data == held.result):
                entry = saved(held.result)
        job = evolve(job, step="running", attempt=attempt)
        if entry.state is Entry.LIVE:
            self._give(self._name_of(job))
        self._note(who, entry)
        self._become(who, job)

    def _draft(self, who: str, job: Job) -> Content:
        """The result that its base holds stands."""
        draft, base = Content(job.attempt, self._entry(who).data), self._content(job.start)
        if base is not None and base.result not in ("", draft.result):
            self.fail("I11")
        return draft

    def _in_force(self, who: str, job: Job) -> None:
        if job.draft is not None and job.draft.result:
            self._note(who, LEDGER_ENTRY.step(self._entry(who), Saved())[0])
        self._become(who, evolve(job, draft=None))

    def _entry(self, who: str) -> Result:
        entry: Result = getattr(self, f"{who}_entry")
        return entry

    def _note(self, who: str, entry: Result) -> None:
        setattr(self, f"{who}_entry", entry)

    def _is_kept(self) -> bool:
        """Whether the next life finds the result."""
        start = next(map(self._content, self._chain()), None)
        return start is not None and bool(start.result)

    @always(covers=("I67", "I98", "S62"))
    def what_was_released_is_not_lost(self) -> bool:
        return not self.released or self._is_kept()

    @sometimes
    def a_result_is_released(self) -> bool:
        return self.released

    @sometimes(covers="S35")
    def a_result_is_saved_and_retained(self) -> bool:
        return bool(self.retained) and self._is_kept()

    @sometimes(covers="S64")
    def one_coordinator_has_lived_twice(self) -> bool:
        return any(self._job(who).before and self._job(who).step == "running" for who in COORDINATORS)

    @sometimes(covers="S63")
    def two_attempts_have_a_result(self) -> bool:
        return len(self.retained) == 2


def saved(receipt: str) -> Result:
    """The ledger's entry of a result that is outside its server."""
    entry, _ = LEDGER_ENTRY.step(NO_RESULT, Received(receipt))
    entry, _ = LEDGER_ENTRY.step(entry, Saved())
    return entry


class KeepsResults(EpochsWorld):
    """The same, with a framework that keeps results outside of its trainer's state."""

    kept: str = durable("")  # the result that stands with the framework
    taken: frozenset[str] = ghost(frozenset())  # what went into a trainer's state

    @action(over=COORDINATORS)
    def save_result(self, who: str) -> object:
        """Create-only, and again after a restart: what stands is the ledger's from now on, and goes to the trainer.

        A checkpoint that is being written meanwhile may hold the other result; it is delivered again from there.
        """
        entry = self._entry(who)
        if self._job(who).step != "running" or entry.state is Entry.LIVE or entry == saved(self.kept):
            return False
        self.kept = self._standing(entry.data)
        self.taken |= {self.kept}
        self._note(who, saved(self.kept))
        return None

    def _standing(self, result: str) -> str:
        return self.kept or result

    def _draft(self, who: str, job: Job) -> Content:
        return Content(job.attempt, self._entry(who).data)

    def _is_kept(self) -> bool:
        return bool(self.kept) or super()._is_kept()

    @always(covers=("I11", "I68"))
    def every_trainer_takes_the_same_result(self) -> bool:
        return len(self.taken) <= 1

    @sometimes
    def another_result_stands(self) -> bool:
        return bool(self.kept) and any(content.result not in ("", self.kept) for _, content in self.disk)


class InDoubtWorld(EpochsWorld):
    """The same, and a rename that may not be durable: who made it takes it for a failure, and either outcome is right.

    Whoever starts from it syncs the root before anything depends on it: a claim, a base and a publication do so.
    """

    doubtful: CheckpointId | None = durable(None)
    vanished: bool = ghost(False)

    @action(fault=True, over=COORDINATORS)
    def publish_in_doubt(self, who: str) -> object:
        """The rename is made, and the root cannot be synced."""
        job = self._job(who)
        if self._tx(who).state is not TransactionState.VALIDATING or job.draft is None or self.doubtful is not None:
            return False
        name = CheckpointId(job.number, job.sequence)
        if not self._rename(name, job.draft):
            return False
        self.doubtful = name
        self._not_published(who, job)
        return None

    @action(fault=True)
    def vanish(self) -> object:
        """What holds the root crashes, and comes back without that name."""
        if self.doubtful is None:
            return False
        self.disk = tuple(each for each in self.disk if each[0] != self.doubtful)
        self.doubtful = None
        self.vanished = True
        return None

    @action(over=COORDINATORS)
    def claim(self, who: str) -> object:
        claimed = self.claims
        enabled = LivesWorld.claim.function(self, who)
        return self._synced(enabled) if self.claims != claimed else enabled

    @action(over=COORDINATORS)
    def record(self, who: str) -> object:
        return self._synced(LivesWorld.record.function(self, who))

    @action(over=COORDINATORS)
    def publish(self, who: str) -> object:
        return self._synced(LivesWorld.publish.function(self, who))

    def _synced(self, enabled: object) -> object:
        if enabled is not False:
            self.doubtful = None
        return enabled

    def _not_published(self, who: str, job: Job) -> None:
        self._step(who, Failed(), Aborted())
        self._become(who, evolve(job, draft=None))

    @sometimes
    def it_has_vanished(self) -> bool:
        return self.vanished

    @sometimes
    def somebody_chose_it(self) -> bool:
        return self.doubtful is not None and self.doubtful in (self.first.start, self.second.start)


class RetentionWorld(LivesWorld):
    """One rollout after another, each with a row of tokens that its continuation needs; what is old goes."""

    epochs = param(2)
    checkpoints = param(3)

    rows: frozenset[Row] = durable(frozenset())

    @action(over=COORDINATORS)
    def play(self, who: str) -> object:
        """The rollout before is over; the next one writes its tokens under its name."""
        job = self._job(who)
        row = self._own_row(job)
        if job.step != "running" or row in job.rows:
            return False
        self._store(row)
        self._become(who, evolve(job, rows=frozenset([row])))
        return None

    @action(over=COORDINATORS)
    def write(self, who: str) -> object:
        """Not before something was played."""
        if self._own_row(self._job(who)) not in self._job(who).rows:
            return False
        return LivesWorld.write.function(self, who)

    @action(over=COORDINATORS)
    def delete(self, who: str) -> object:
        """The old checkpoints go."""
        job = self._job(who)
        if self._tx(who).state is not TransactionState.RESUMING or not job.doomed:
            return False
        self._remove(job.doomed)
        self._become(who, evolve(job, doomed=frozenset()))
        return None

    @action(over=COORDINATORS)
    def clear_rows(self, who: str) -> object:
        """After the checkpoints, rows go that only they needed."""
        job = self._job(who)
        if self._tx(who).state is not TransactionState.RESUMING or job.doomed:
            return False
        unneeded = self._clearable(job)
        kept = frozenset(each for each in self.rows if each[0] not in unneeded)
        if kept == self.rows:
            return False
        self.rows = kept
        self._become(who, evolve(job, unneeded=frozenset()))
        return None

    # --- what a twin takes out

    def _deletable(self, job: Job) -> frozenset[CheckpointId]:
        claims = {each.epoch: each for each in self.claims}
        return frozenset(chain.deletable(job.number, claims, self._published()))

    def _clearable(self, job: Job) -> frozenset[Name]:
        return job.unneeded

    def _leans_on(self, job: Job) -> frozenset[CheckpointId]:
        """Files of an older checkpoint are linked into the new one, which stands alone."""
        return frozenset()

    def _own_row(self, job: Job) -> Row:
        return self._name_of(job), job.number

    # --- inside

    def _restored(self, who: str, job: Job, held: Content | None) -> None:
        if held is not None:
            job = evolve(job, attempt=plan(held, None).next_attempt or 0, rows=held.rows)
        self._become(who, evolve(job, step="running"))

    def _draft(self, who: str, job: Job) -> Content:
        return Content(job.attempt, rows=job.rows, leans_on=self._leans_on(job))

    def _in_force(self, who: str, job: Job) -> None:
        """What goes is decided here and now, by what was published, and by nothing that comes later."""
        doomed = self._deletable(job)
        needed = {row for name, content in self.disk if name not in doomed for row, _ in content.rows}
        unneeded = {row for name, content in self.disk if name in doomed for row, _ in content.rows} - needed
        unneeded -= {row for row, _ in job.rows}
        self._become(who, evolve(job, draft=None, doomed=doomed, unneeded=frozenset(unneeded)))

    def _store(self, row: Row) -> None:
        self.rows = frozenset(each for each in self.rows if each[0] != row[0]) | {row}

    def _remove(self, names: frozenset[CheckpointId]) -> None:
        self.disk = tuple(each for each in self.disk if each[0] not in names)

    def _lost(self) -> CheckpointId | None:
        """What is missing though nobody deleted it."""
        return None

    def _whole(self) -> frozenset[CheckpointId]:
        """What has all that it was published with."""
        return frozenset(self._published())

    # --- properties

    @always(covers=("I77", "I79", "I98", "S67"))
    def the_base_of_the_last_is_there(self) -> bool:
        """Unless it has published since: that is its base now."""
        last = self._last()
        if last is None or last.base is None or last.base.start in (None, self._lost()):
            return True
        published = self._published()
        return last.base.start in published or any(each.epoch == last.epoch for each in published)

    @always(covers=("I98", "S45", "S67"))
    def rows_are_there_that_a_checkpoint_needs(self) -> bool:
        """Of every checkpoint that may be started from: those rows, and not others that are called so."""
        tried = self._chain()
        return all(content.rows <= self.rows for name, content in self.disk if name in tried)

    @always(covers=("I98", "S45", "S67"))
    def rows_are_there_that_who_runs_last_needs(self) -> bool:
        return all(self._job(who).rows <= self.rows for who in COORDINATORS if self._runs_last(who))

    @always(covers=("I44", "I77"))
    def what_may_be_started_from_is_whole(self) -> bool:
        whole = self._whole()
        tried = whole.intersection(self._chain())
        return all(content.leans_on <= whole for name, content in self.disk if name in tried)


class OneIsDamaged(LivesWorld):
    """One checkpoint cannot be read as a whole, from some moment on. A start passes over it; no other one is tried."""

    damaged: CheckpointId | None = durable(None)

    @action(fault=True)
    def damage(self) -> object:
        """It is the newest that a start would try."""
        if self.damaged is not None or not self._chain():
            return False
        self.damaged = self._chain()[0]
        return None

    @action
    def move_away(self) -> object:
        """A person gives it up, since no start finds anything whole beside it."""
        if self.damaged is None or self._chain() != (self.damaged,):
            return False
        self.disk = tuple(each for each in self.disk if each[0] != self.damaged)
        return None

    @action(over=COORDINATORS)
    def choose(self, who: str) -> object:
        """Where nothing is whole the start is refused."""
        try:
            return LivesWorld.choose.function(self, who)
        except chain.NothingWhole:
            self.wipe(who)
            return None

    def _choice(self, epoch: int, claims: Mapping[int, Claim]) -> CheckpointId | None:
        damaged = () if self.damaged is None else (self.damaged,)
        return chain.choose(epoch, claims, self._published(), damaged).start

    def _content(self, name: CheckpointId | None) -> Content | None:
        """Whoever has chosen it before it was damaged cannot restore it."""
        return None if name is not None and name == self.damaged else super()._content(name)

    def _tried(self) -> tuple[CheckpointId, ...]:
        """What a life may start from that claims now, in the order tried."""
        return tuple(each for each in self._chain() if each != self.damaged)

    @sometimes
    def somebody_fell_back(self) -> bool:
        """To an older one, and runs."""
        last = self._last()
        fell = last is not None and last.base is not None and last.base.start is not None
        older = fell and self.damaged is not None and last.base.start < self.damaged  # type: ignore[union-attr,operator]
        return older and self.damaged in self._published() and any(self._runs_last(who) for who in COORDINATORS)

    @sometimes
    def it_is_damaged_once_somebody_has_chosen_it(self) -> bool:
        starts = (self._job(who).start for who in COORDINATORS if self._job(who).step == "recorded")
        return self.damaged is not None and self.damaged in starts


class FallbackWorld(OneIsDamaged, RetentionWorld):
    """The world of retention, and one checkpoint is damaged."""

    deleted: bool = ghost(False)  # retention has deleted what a life could have started from

    @action(over=COORDINATORS)
    def confirm(self, who: str) -> object:
        """Nobody starts from nothing since the checkpoint to fall back to was deleted."""
        if LivesWorld.confirm.function(self, who) is False:
            return False
        if self._job(who).step == "confirmed" and self._job(who).start is None and self.deleted:
            self.fail("I77")
        return None

    def _remove(self, names: frozenset[CheckpointId]) -> None:
        self.deleted = self.deleted or any(each in names for each in self._chain())
        super()._remove(names)

    def _lost(self) -> CheckpointId | None:
        return self.damaged

    def _whole(self) -> frozenset[CheckpointId]:
        return super()._whole() - {self.damaged}

    @sometimes
    def a_life_has_deleted_its_start(self) -> bool:
        last = self._last()
        return last is not None and last.base is not None and last.base.start not in (None, *self._published())


class DamagedResultsWorld(OneIsDamaged, EpochsWorld):
    """The world of results, and one checkpoint is damaged: what it alone held is lost, and nothing else."""

    alone: str = ghost("")  # the result that no other checkpoint of the chain held when it was damaged

    @action(fault=True)
    def damage(self) -> object:
        tried = self._chain()
        if OneIsDamaged.damage.function(self) is False:
            return False
        contents = dict(self.disk)
        held = contents[tried[0]].result
        if all(contents[each].result != held for each in tried[1:]):
            self.alone = held
        return None

    def _is_kept(self) -> bool:
        start = next(map(self._content, self._tried()), None)
        return bool(self.alone) or (start is not None and bool(start.result))

    @sometimes
    def what_it_alone_held_is_made_again(self) -> bool:
        newest = next(map(self._content, self._tried()), None)
        return bool(self.alone) and newest is not None and newest.result not in ("", self.alone)

    @sometimes
    def nothing_is_lost_with_it(self) -> bool:
        return self.damaged is not None and not self.alone and self.released and self._is_kept()


def lean_on_the_base(job: Job) -> frozenset[CheckpointId]:
    """Whose files the next checkpoint names: those of the base, in the first of a life."""
    return frozenset() if job.sequence or job.start is None else frozenset([job.start])


class ReferencesWorld(RetentionWorld):
    """As on an object store, which has no links: the first checkpoint of a life names files of its base, and retention
    deletes nothing that a published checkpoint names. Nothing is damaged here: these do not stand alone.
    """

    def _leans_on(self, job: Job) -> frozenset[CheckpointId]:
        return lean_on_the_base(job)

    def _deletable(self, job: Job) -> frozenset[CheckpointId]:
        named = {name for _, content in self.disk for name in content.leans_on}
        return super()._deletable(job) - named

    @sometimes
    def one_is_kept_that_is_named(self) -> bool:
        return any(content.leans_on and not content.leans_on & set(self._chain()[:2]) for _, content in self.disk)
