"""One server in the hands of coordinators, by the tables that run. Executable specification.

The coordinators are reduced to what they may send. Whatever was sent may arrive at any time, any number of times and in
any order: late copies, retries and lost replies need no messages of their own. There are calls of the checkpoint under
way, of older ones and of ended ones, of the life before, and of a coordinator that was overtaken and does not know it.
The process dies and comes back: brought back alone, in the same epoch, or with its whole deployment, in the next one.
Leases end at any moment: worlds have no clock. Behind the control plane one rollout comes, is held, leaves while it is
held, moves, stands at its boundary and ends.

`ParticipantWorld` is a server of our own launcher: born closed, with its epoch. `OpenParticipantWorld` is one that was
started by somebody else: open, without an epoch; there a foreign coordinator speaks too, which says neither epoch nor
incarnation. docs/reference/protocol.md sections 3, 5, 6, 7 and 11.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from typing import Any

from attrs import evolve, frozen

from models.server import DEADLINE_TS, Server, server
from models.server_process import ProcessWorld
from participants.machines.control import (
    Broke,
    Call,
    CommitRequested,
    Phase,
    PrepareRequested,
    ReadinessReached,
    RenewRequested,
    RestoreRequested,
    ResumeRequested,
    RetireRequested,
)
from participants.machines.fencing import own_id
from statecore import Refused
from statecore.properties import always, final, sometimes
from statecore.world import action, param, slot, wire

THEIRS = "theirs"
"""The one checkpoint of the foreign coordinator."""

KINDS: dict[str, Any] = {
    "prepare": PrepareRequested,
    "commit": CommitRequested,
    "commit elsewhere": CommitRequested,
    "renew": RenewRequested,
    "restore": RestoreRequested,
    "retire": RetireRequested,
    "resume": ResumeRequested,
}
OF_A_CHECKPOINT = ("prepare", "commit", "renew")
OF_A_RESTORE = ("restore", "retire")


@frozen(cache_hash=True)
class Run:
    """What a coordinator does under one id: as which epoch and for which process; `stage` is open, ending or ended.

    It is ending from the first resume that leaves, and ended when one was answered. A foreign coordinator says neither
    epoch nor process.
    """

    checkpoint_id: str
    epoch: int | None
    incarnation: str | None
    stage: str = "open"

    def has_sent(self, kind: str) -> bool:
        """Whether such a call of it may be on its way."""
        if kind == "resume":
            return self.stage != "open"
        if self.checkpoint_id == THEIRS:
            return kind != "retire"  # also a commit to another place, and a restore in the midst of life
        if self.checkpoint_id.startswith("rs"):
            return kind in OF_A_RESTORE and self.epoch != 1  # the first life has nothing to restore
        return kind in OF_A_CHECKPOINT

    def call(self, kind: str) -> Call:
        fields = {} if kind in ("prepare", "renew", "retire", "resume") else {"arguments": self.arguments(kind)}
        made: Call = KINDS[kind](
            self.checkpoint_id, deadline_ts=DEADLINE_TS, epoch=self.epoch, incarnation=self.incarnation, **fields
        )
        return made

    def arguments(self, kind: str = "commit") -> str:
        """The directory that a commit or restore names."""
        return f"{self.checkpoint_id}-elsewhere" if kind == "commit elsewhere" else self.checkpoint_id


class DrivenWorld(ProcessWorld):
    """The server, and whoever may call it."""

    checkpoints = param(1)  # how many a coordinator begins in one life
    deaths = param(1)

    died: int = slot(0)
    begun: int = slot(0)  # checkpoints of this life
    restored: str = slot("")  # what came of this life's restore: restored, refused, or failed
    runs: tuple[Run, ...] = wire((Run(own_id("rs", 1, 1), 1, "p1"),))

    @property
    def most_runs(self) -> int:
        """How many runs there may be: a restore and its checkpoints in each life, and one of another coordinator."""
        return (self.deaths + 1) * (self.checkpoints + 1) + max(self.deaths, 1)

    # --- the coordinator of the newest life

    @action
    def begin(self) -> object:
        """The next checkpoint begins; the one before is over for its coordinator, answered or not.

        It is for the process that the coordinator knows, whether that still lives or not.
        """
        if self.begun == self.checkpoints or not self._has_opened() or self.runs[-1].stage == "open":
            return False
        self.begun += 1
        run = Run(own_id("ck", self.epoch, self.begun), self.epoch, self._first().incarnation)
        self.runs = (*self.runs, run)
        return None

    @action(over=("prepare", "commit", "renew", "restore", "retire", "resume"))
    def call(self, kind: str) -> object:
        """A call of what is under way is answered; sent again, it may be answered again."""
        run = self._current()
        if run is None or not run.has_sent(kind) or (run.stage != "open") != (kind == "resume"):
            return False
        self._arrive(run, kind)
        if kind == "resume":
            self._note(run, "ended")
            self._clear(run.checkpoint_id)
        return None

    @action
    def end(self) -> object:
        """It has come to its end, or is given up, in any phase: from now on resume is sent."""
        run = self._current()
        if run is None or run.stage != "open":
            return False
        if run.checkpoint_id.startswith("rs") and self.epoch > 1 and not (self.restored and self.fenced):
            return False  # restore, then fence what is not restored, then open (section 7)
        self._note(run, "ending")
        return None

    @action(over=lambda world: range(world.most_runs))
    def answer_prepare(self, index: int) -> object:
        """A prepare that waited finds that nothing moves any more, or that its checkpoint has ended (S7)."""
        if index >= len(self.runs) or self.runs[index].checkpoint_id not in self.waiting:
            return False
        waited = self.runs[index].checkpoint_id
        if not self._is_ready() and self.server.open_id == waited:
            return False
        with suppress(Refused):  # it has ended, and the answer is that it has
            self._happen(ReadinessReached(waited, self._standing()))
        self.waiting -= {waited}
        return None

    # --- whatever else arrives: changes nothing where it is refused

    @action(fault=True, over=lambda world: list(product(KINDS, range(world.most_runs))))
    def arrive_late(self, which: tuple[str, int]) -> object:
        """A copy of a call that was sent at any time before; nobody waits for its answer."""
        kind, index = which
        if index >= len(self.runs) or not self._may_be_on_its_way(self.runs[index], kind):
            return False
        self._arrive(self.runs[index], kind)
        return None

    @action(fault=True)
    def old_dispatch_arrives(self) -> object:
        """A data call of the life before that says so: one of our own clients'."""
        return self._of_the_life_before(self.epoch - 1)

    @action(fault=True)
    def foreign_seed_arrives(self) -> object:
        """A data call of the life before that carries no epoch: a foreign client's."""
        return self._of_the_life_before(None)

    @action(fault=True, over=(True, False))
    def other_server_commits(self, holds_the_same: bool) -> object:
        """Another server of the same kind and name commits into the same directory."""
        run = self.runs[-1]
        if not run.has_sent("commit") or any(where == run.arguments() for where, _ in self.folder):
            return False
        theirs = self._manifest(run.checkpoint_id, "other")
        if not holds_the_same:
            theirs = evolve(theirs, records_sha256="of something else")
        self.folder |= {(run.arguments(), theirs.encode())}
        self.authors |= {(run.arguments(), "other")}
        return None

    # --- deaths

    @action(fault=True)
    def come_back_with_all(self) -> object:
        """It dies, and its deployment is started anew under a new claim; its coordinator restores it."""
        return self._die(self.epoch + 1)

    # --- helpers

    def _current(self) -> Run | None:
        """What the newest life has under way."""
        run = self.runs[-1]
        return run if run.checkpoint_id != THEIRS and run.stage != "ended" else None

    def _may_be_on_its_way(self, run: Run, kind: str) -> bool:
        """Whether the run has sent such a call; our own commits may have been sent with another directory, too."""
        return run.has_sent(kind) or (kind == "commit elsewhere" and run.has_sent("commit"))

    def _has_opened(self) -> bool:
        """The newest coordinator was told that the server is open."""
        return self._first().stage == "ended"

    def _first(self) -> Run:
        """The newest life's restore: it opens the server, and for its process all calls of that life are meant."""
        first = own_id("rs", self.epoch, 1)
        return next(run for run in self.runs if run.checkpoint_id == first)

    def _note(self, run: Run, stage: str) -> None:
        self.runs = tuple(evolve(each, stage=stage) if each == run else each for each in self.runs)

    def _clear(self, *ended: str) -> None:
        """What was written under these ids has become a checkpoint, or is cleared away."""
        gone = {f"{each}{which}" for each in ended for which in ("", "-elsewhere")}
        self.folder = frozenset(entry for entry in self.folder if entry[0] not in gone)
        self.authors = frozenset(entry for entry in self.authors if entry[0] not in gone)

    def _of_the_life_before(self, epoch: int | None) -> object:
        if self.epoch == 1 or self.stranger:
            return False
        if not self._is_refused(epoch) and not self.fenced and self.server.is_open:
            self.stranger = True
        return None  # else it is refused, or held until it leaves

    def _die(self, epoch: int) -> object:
        if self.died == self.deaths:
            return False
        dead = self.server.incarnation
        ended = {run.checkpoint_id for run in self.runs if run.incarnation == dead}
        self.over = (self.over - {THEIRS}) | ended
        self._clear(*ended)
        self.wipe("server")
        self.died += 1
        incarnation = f"p{self.died + 1}"
        self.server = self.started(incarnation, epoch)
        if epoch > self.epoch:
            self.epoch, self.begun, self.restored = epoch, 0, ""
            self.runs = (*self.runs, Run(own_id("rs", epoch, 1), epoch, incarnation))
        return None

    def _arrive(self, run: Run, kind: str) -> None:
        """The server takes a call; one that it has accepted is not refused when it comes again (I15)."""
        try:
            self._happen(run.call(kind))
        except Refused:
            if self._has_accepted(run, kind):
                self.fail("I15")
            raise

    def _has_accepted(self, run: Run, kind: str) -> bool:
        """Whether this process has accepted such a call, for what is still open or has ended by it."""
        control = self.server.control
        if run.incarnation not in (None, self.server.incarnation) or control.state is Phase.BROKEN:
            return False
        data, is_open = control.data, control.data.checkpoint_id == run.checkpoint_id
        if run.epoch not in (None, data.epoch):
            return False
        if kind == "prepare":
            return is_open and control.state is not Phase.RESTORED
        if kind in ("commit", "commit elsewhere"):
            return is_open and data.writing == run.arguments(kind)
        if kind == "restore":
            return data.reading == run.checkpoint_id or (is_open and control.state is Phase.RESTORED)
        return kind == "resume" and run.checkpoint_id in data.ended

    def _note_restore(self, checkpoint_id: str, outcome: str) -> None:
        if checkpoint_id == own_id("rs", self.epoch, 1):
            self.restored = outcome

    # --- what must be true

    @final
    def used_up(self) -> bool:
        """Nobody is left who would begin anything, or bring the server back."""
        return self.begun == self.checkpoints or self.died == self.deaths

    @sometimes(covers="S7")
    def a_prepare_outlives_its_checkpoint(self) -> bool:
        return any(waited != self.server.open_id for waited in self.waiting)

    @sometimes
    def another_server_was_first(self) -> bool:
        return any(author == "other" for _, author in self.authors) and self.write is not None

    @sometimes
    def goes_on_where_it_stood(self) -> bool:
        return self.epoch > 1 and self.restored == "restored" and self.rollout == "done"

    @sometimes
    def a_manifest_is_there_that_nobody_counts(self) -> bool:
        return bool(self.folder) and self.server.phase is Phase.IDLE and self.died == 0


class DeploymentWorld(DrivenWorld):
    """A server of our own launcher, born closed with its epoch, that comes back only with its whole deployment."""

    @always(covers=("I96", "S23", "S45"))
    def nothing_of_the_life_before_runs(self) -> bool:
        return not self.stranger

    @always(covers=("I53", "S23"))
    def the_restore_finds_a_fresh_process(self) -> bool:
        return self.restored != "refused"

    @always(covers="S59")
    def what_is_open_is_for_this_process_and_this_life(self) -> bool:
        return all(
            run.incarnation == self.server.incarnation and run.epoch == self.epoch
            for run in self.runs
            if run.checkpoint_id == self.server.open_id
        )


class ParticipantWorld(DeploymentWorld):
    """It may also come back alone, and be found by a coordinator that was overtaken."""

    @action(fault=True)
    def come_back_alone(self) -> object:
        """The process dies, and a supervisor starts it again, in the same epoch."""
        return self._die(self.epoch)

    @action(fault=True)
    def overtaken_begins(self) -> object:
        """The coordinator of the life before lives on, finds the new process, and begins and ends a checkpoint."""
        number = self.checkpoints + 1
        late = Run(own_id("ck", self.epoch - 1, number), self.epoch - 1, self.server.incarnation, "ending")
        if self.epoch == 1 or late in self.runs:
            return False
        self.runs = (late, *self.runs)
        return None


class BreakingParticipantWorld(DeploymentWorld):
    """Its lease timer may die: then it opens if it ever was open, refuses every control call, and must be restarted."""

    @action(fault=True)
    def lease_timer_breaks(self) -> object:
        """Nobody may wait for a lease that no longer runs."""
        if self.server.phase is Phase.BROKEN:
            return False
        self._happen(Broke())
        return None

    @sometimes
    def broken_while_it_wrote(self) -> bool:
        return self.server.phase is Phase.BROKEN and self.server.control.data.writing is not None


class OpenParticipantWorld(DrivenWorld):
    """A server that somebody else started: open, and without an epoch until it hears of one."""

    come_back_alone = ParticipantWorld.come_back_alone

    def started(self, incarnation: str, epoch: int) -> Server:
        return server(incarnation)

    def _may_wait(self) -> bool:
        return False


class BreakingOpenParticipantWorld(OpenParticipantWorld):
    """An open server whose lease timer may die."""

    lease_timer_breaks = BreakingParticipantWorld.lease_timer_breaks
    broken_while_it_wrote = BreakingParticipantWorld.broken_while_it_wrote


class FoundParticipantWorld(OpenParticipantWorld):
    """An open server that is found by a coordinator that was overtaken."""

    overtaken_begins = ParticipantWorld.overtaken_begins


class ForeignParticipantWorld(OpenParticipantWorld):
    """There a foreign coordinator speaks as well: it says neither epoch nor incarnation, and whatever it likes."""

    def _may_be_on_its_way(self, run: Run, kind: str) -> bool:
        return run.has_sent(kind)

    @action(fault=True)
    def foreign_coordinator_begins(self) -> object:
        run = Run(THEIRS, None, None)
        if any(each.checkpoint_id == THEIRS for each in self.runs):
            return False
        self.runs = (run, *self.runs)
        return None

    @action(fault=True)
    def foreign_coordinator_ends(self) -> object:
        """It sends its resume."""
        run = self.runs[0]
        if run != Run(THEIRS, None, None):
            return False
        self._note(run, "ending")
        return None

    @sometimes
    def in_the_hands_of_another(self) -> bool:
        return self.server.open_id == THEIRS and self.server.phase is Phase.COMMITTED
