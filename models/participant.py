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

from itertools import product
from typing import Any, ClassVar

from attrs import evolve, frozen

from models.server import CLOSED_PHASES, DEADLINE_TS, Server, knock, server, tell
from participants.files.snapshots import is_this_commit
from participants.machines.control import (
    PARTICIPANT,
    AnswerAgain,
    AwaitReadiness,
    Broke,
    Call,
    CommitRequested,
    Control,
    LeaseExpired,
    PartInstalled,
    PartWritten,
    Phase,
    PrepareFailed,
    PrepareRequested,
    ReadinessReached,
    RenewRequested,
    RestoreFailed,
    RestoreRequested,
    ResumeRequested,
    RetireRequested,
    StopWriting,
    WritePart,
    is_data_of_other_life,
    was_never_open,
)
from participants.machines.fencing import own_id
from participants.machines.gate import GATE, Arrived, Ended, GateData, GateState, Left, Settled, Stirred
from participants.records.manifests import Manifest
from statecore import Refused, Snapshot, Table
from statecore.properties import always, final, recoverable, sometimes
from statecore.wire import parse
from statecore.world import World, action, durable, ghost, param, slot, volatile, wire

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


@frozen(cache_hash=True)
class Write:
    """A write of a part that has begun; `linked`: its manifest is there."""

    checkpoint_id: str
    arguments: str
    linked: bool = False


class ParticipantWorld(World):
    """One server, born closed with its epoch, and one rollout of `turns` turns."""

    PARTICIPANT: ClassVar[Table[Phase, Control]] = PARTICIPANT
    GATE: ClassVar[Table[GateState, GateData]] = GATE

    turns = param(2)
    checkpoints = param(1)  # how many a coordinator begins in one life
    deaths = param(1)

    server: Server = volatile(of="server", make=lambda world: world.started("p1", 1))
    waiting: frozenset[str] = volatile(frozenset(), of="server")  # prepares that wait until nothing moves
    write: Write | None = volatile(None, of="server")
    fenced: bool = volatile(False, of="server")  # attempts of the life before are over here
    rollout: str = volatile("absent", of="server")  # or held, moving, standing, done
    turn: int = volatile(0, of="server")
    stranger: bool = volatile(False, of="server")  # something of the life before runs here
    folder: frozenset[tuple[str, bytes]] = durable(frozenset())  # (directory, its manifest)
    died: int = slot(0)
    epoch: int = slot(1)  # of the newest claim
    begun: int = slot(0)  # checkpoints of this life
    restored: str = slot("")  # what came of this life's restore: restored, refused, or failed
    runs: tuple[Run, ...] = wire((Run(own_id("rs", 1, 1), 1, "p1"),))
    over: frozenset[str] = ghost(frozenset())  # ids that have ended here, or with the process that they were for

    def started(self, incarnation: str, epoch: int) -> Server:
        """The process as its launcher starts it."""
        return server(incarnation, born_with_epoch=epoch)

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
    def overtaken_begins(self) -> object:
        """The coordinator of the life before lives on, finds the new process and begins a checkpoint."""
        late = Run(own_id("ck", self.epoch - 1, self.checkpoints + 1), self.epoch - 1, f"p{self.died + 1}")
        if self.epoch == 1 or late in self.runs:
            return False
        self.runs = (late, *self.runs)
        return None

    @action(fault=True)
    def old_dispatch_arrives(self) -> object:
        """A data call of the life before that says so: one of our own clients'."""
        return self._of_the_life_before(self.epoch - 1)

    @action(fault=True)
    def foreign_seed_arrives(self) -> object:
        """A data call of the life before that carries no epoch: a foreign client's."""
        return self._of_the_life_before(None)

    @action(fault=True)
    def other_server_commits(self) -> object:
        """Another server of the same kind and name, that holds the same, commits into the same directory."""
        run = self.runs[-1]
        if not run.has_sent("commit") or any(where == run.arguments() for where, _ in self.folder):
            return False
        theirs = self._manifest(run.checkpoint_id, "other")
        self.folder |= {(run.arguments(), theirs.encode())}
        return None

    # --- inside the server

    @action(over=lambda world: range(world.most_runs))
    def answer_prepare(self, index: int) -> object:
        """A prepare that waited finds that nothing moves any more, or that its checkpoint has ended (S7)."""
        if index >= len(self.runs) or self.runs[index].checkpoint_id not in self.waiting:
            return False
        waited = self.runs[index].checkpoint_id
        if not self.server.is_quiet and self.server.open_id == waited:
            return False
        try:
            self._happen(ReadinessReached(waited, self._standing()))
        except Refused:
            pass  # it has ended, and the answer is that it has
        self.waiting -= {waited}
        return None

    @action(fault=True)
    def prepare_breaks(self) -> object:
        """A prepare fails inside the server."""
        waited = self.server.open_id
        if waited not in self.waiting or waited is None:
            return False
        self._happen(PrepareFailed(waited))
        self.waiting -= {waited}
        return None

    @action
    def link_manifest(self) -> object:
        """The records are written, the manifest gets its name; if one is there it must be this very commit (S24)."""
        write = self.write
        if write is None or write.linked:
            return False
        manifest = self._manifest(write.checkpoint_id, self.server.incarnation)
        there = dict(self.folder).get(write.arguments)
        if there is not None and not is_this_commit(parse(there), manifest):
            self.write = None  # the commit is refused
            return None
        if there is None:
            self.folder |= {(write.arguments, manifest.encode())}
            if write.checkpoint_id in self.over:
                self.fail("I48")
        self.write = evolve(write, linked=True)
        return None

    @action
    def end_write(self) -> object:
        """The part counts, if its checkpoint is still open."""
        write = self.write
        if write is None or not write.linked:
            return False
        self.write = None
        reply = self._manifest(write.checkpoint_id, self.server.incarnation).encode().decode()
        self._happen(PartWritten(write.checkpoint_id, write.arguments, reply))
        return None

    @action(fault=True)
    def write_breaks(self) -> object:
        """The disk fails; the same commit may be sent again."""
        if self.write is None:
            return False
        self.write = None
        return None

    @action
    def install(self) -> object:
        """What was read is installed, in a process where nothing runs and nothing was restored, else refused (I53)."""
        reading = self.server.control.data.reading
        if reading is None:
            return False
        if self.rollout != "absent" or self.stranger or self.turn > 0:
            self._end_reading(reading, "refused")
            return None
        self.turn, self.fenced = 1, True
        self._happen(PartInstalled(reading, reading, self._standing(), deadline_ts=DEADLINE_TS))
        self._note_restore(reading, "restored")
        return None

    @action(fault=True)
    def read_breaks(self) -> object:
        """What it should install is damaged, or cannot be read."""
        reading = self.server.control.data.reading
        if reading is None:
            return False
        self._end_reading(reading, "failed")
        return None

    @action
    def expire(self) -> object:
        """A lease ends; no fault action, since it is how a server helps itself (I21)."""
        control = self.server.control.data
        if control.lease_until is None:
            return False
        self._happen(LeaseExpired(control.checkpoint_id or ""))
        return None

    # --- deaths

    @action(fault=True)
    def come_back_alone(self) -> object:
        """The process dies, and a supervisor starts it again, in the same epoch."""
        return self._die(self.epoch)

    @action(fault=True)
    def come_back_with_all(self) -> object:
        """It dies, and its deployment is started anew under a new claim; its coordinator restores it."""
        return self._die(self.epoch + 1)

    # --- the rollout

    @action
    def dispatch(self) -> object:
        """It comes, or comes again after a restore, and is admitted or held."""
        if self.rollout != "absent" or not self._has_opened() or self._is_refused(self.epoch):
            return False
        self.server = knock(self.server, Arrived(), self.GATE)
        self.rollout = "moving" if self.server.is_open else "held"
        return None

    @action
    def leave(self) -> object:
        """A caller leaves while it is held: it was never admitted."""
        if self.rollout != "held":
            return False
        self.server = knock(self.server, Left(), self.GATE)
        self.rollout = "absent"
        return None

    @action
    def end_turn(self) -> object:
        """A turn is over: the last one ends the rollout, at another it stands if the server is closed."""
        if self.rollout != "moving":
            return False
        self.turn += 1
        if self.turn == self.turns:
            self.server = knock(self.server, Ended(), self.GATE)
            self.rollout = "done"
        elif self._parks():
            self.server = knock(self.server, Settled(), self.GATE)
            self.rollout = "standing"
        return None

    @action
    def go_on(self) -> object:
        """What stands moves again, if the gate lets it."""
        if self.rollout != "standing":
            return False
        self.server = knock(self.server, Stirred(), self.GATE)
        self.rollout = "moving"
        return None

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

    def _parks(self) -> bool:
        """Whether what is at a boundary stops there: read from the gate, now (S18)."""
        return not self.server.is_open

    def _extra(self, incarnation: str) -> dict[str, Any]:
        """What a manifest says beyond the wire's fields."""
        return {"incarnation": incarnation, "epoch": self.epoch}

    def _manifest(self, checkpoint_id: str, incarnation: str) -> Manifest:
        """Of what the server holds now; the position stands for the digest of its records."""
        digest = f"at turn {self.turn}"
        return Manifest(
            kind="agent", instance="agent", checkpoint_id=checkpoint_id, records_file="records.jsonl",
            records_sha256=digest, record_count=1, extra=self._extra(incarnation),
        )  # fmt: skip

    def _standing(self) -> str:
        """What a reply says of where the server stands."""
        return f"at turn {self.turn}"

    def _is_refused(self, epoch: int | None) -> bool:
        """Whether a data call that carries this epoch and names a rollout is refused, whatever it wants."""
        control = self.server.control
        return is_data_of_other_life(control.data, epoch) or was_never_open(control.state, self.server.is_open)

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
        if kind == "prepare":
            return is_open and control.state is not Phase.RESTORED
        if kind in ("commit", "commit elsewhere"):
            return is_open and data.writing == run.arguments(kind)
        if kind == "restore":
            return data.reading == run.checkpoint_id or (is_open and control.state is Phase.RESTORED)
        return kind == "resume" and run.checkpoint_id in data.ended

    def _happen(self, event: Any) -> None:
        """A step of the control half, with all that it owes."""
        was = self.server
        now, owed = tell(was, event, self.PARTICIPANT, self.GATE)
        if now != was:
            self.server = now
            self._look(event, was, now)
        for effect in owed:
            if isinstance(effect, AwaitReadiness):
                self.waiting |= {effect.checkpoint_id}
            elif isinstance(effect, WritePart):
                self._begin_write(event, Write(effect.checkpoint_id, effect.arguments))
            elif isinstance(effect, StopWriting):
                if self.write is not None and self.write.checkpoint_id == effect.checkpoint_id:
                    self.write = None
            elif isinstance(effect, AnswerAgain) and effect.reply not in (self._standing(), self._committed()):
                self.fail("I15")
        if isinstance(event, RetireRequested):
            self.fenced = True

    def _begin_write(self, event: Any, write: Write) -> None:
        """One write for one checkpoint and directory: a commit that comes again waits for it."""
        known = self.write
        if known is not None and (known.checkpoint_id, known.arguments) == (write.checkpoint_id, write.arguments):
            return
        if not isinstance(event, CommitRequested):
            self.fail("I40")
        if write.checkpoint_id in self.over:
            self.fail("I14")
        self.write = write

    def _committed(self) -> str:
        """The reply of the commit that stands."""
        open_id = self.server.open_id or ""
        return self._manifest(open_id, self.server.incarnation).encode().decode()

    def _look(self, event: Any, was: Server, now: Server) -> None:
        """What a step must not do: only an end opens (I17), and what has ended neither closes nor opens (I14)."""
        if now.is_open and not was.is_open:
            if not isinstance(event, (ResumeRequested, LeaseExpired, PrepareFailed, RestoreFailed, Broke)):
                self.fail("I17")
            if self.rollout == "held":
                self.rollout = "moving"
        moved = (was.is_open, was.phase, was.open_id) != (now.is_open, now.phase, now.open_id)
        if isinstance(event, Broke):
            if was.open_id is not None:
                self.over |= {was.open_id}
        elif isinstance(event, (ResumeRequested, LeaseExpired)):
            if moved and event.checkpoint_id in self.over:
                self.fail("I14")
            self.over |= {event.checkpoint_id}
        elif moved and event.checkpoint_id in self.over:
            self.fail("I14")

    def _end_reading(self, reading: str, outcome: str) -> None:
        self._happen(RestoreFailed(reading))
        self._note_restore(reading, outcome)

    def _note_restore(self, checkpoint_id: str, outcome: str) -> None:
        if checkpoint_id == own_id("rs", self.epoch, 1):
            self.restored = outcome

    # --- what must be true

    @always(covers="I13")
    def an_open_id_is_alone_and_has_not_ended(self) -> bool:
        control = self.server.control
        is_open = control.state in (Phase.PREPARING, Phase.PREPARED, Phase.COMMITTED, Phase.RESTORED)
        held = control.data.checkpoint_id
        if control.state is Phase.BROKEN:
            return True
        return (held is not None) == is_open and (held is None or held not in control.data.ended)

    @always(covers=("I16", "I17"))
    def phase_and_admission_agree(self) -> bool:
        control = self.server.control
        if control.state is Phase.BROKEN:
            return True
        return self.server.is_open != (control.state in CLOSED_PHASES or control.data.reading is not None)

    @always(covers="I23")
    def every_request_is_before_the_closing_or_after_it(self) -> bool:
        """The gate counts what is there, nothing twice and nothing not at all."""
        data = self.server.gate.data
        counted = (data.active, data.settled, data.held)
        return counted == tuple(int(self.rollout == each) for each in ("moving", "standing", "held"))

    @always(covers="I24")
    def nothing_moves_from_readiness_to_resume(self) -> bool:
        prepared = self.server.control.data.prepared
        return prepared is None or self.server.phase is Phase.BROKEN or prepared.reply == self._standing()

    @always(covers=("I43", "I46", "S24", "S26"))
    def what_is_committed_is_what_this_process_wrote(self) -> bool:
        control = self.server.control
        if control.state is not Phase.COMMITTED or control.data.committed is None:
            return True
        ours = self._manifest(control.data.checkpoint_id or "", self.server.incarnation)
        return (control.data.committed.arguments, ours.encode()) in self.folder

    @always(covers="S26")
    def a_checkpoint_is_committed_in_one_place(self) -> bool:
        ours = [where for where, text in self.folder if parse(text)["incarnation"] == self.server.incarnation]
        return not any(f"{where}-elsewhere" in ours for where in ours)

    @always(covers="S59")
    def what_is_open_is_for_this_process_and_this_life(self) -> bool:
        return all(
            run.incarnation == self.server.incarnation and run.epoch == self.epoch
            for run in self.runs
            if run.checkpoint_id == self.server.open_id
        )

    @always(covers=("I96", "S23", "S45"))
    def nothing_of_the_life_before_runs(self) -> bool:
        return not self.stranger

    @always(covers=("I53", "S23"))
    def the_restore_finds_a_fresh_process(self) -> bool:
        return self.restored != "refused"

    @final
    def used_up(self) -> bool:
        """Nobody is left who would begin anything, or bring the server back."""
        return self.begun == self.checkpoints or self.died == self.deaths

    @recoverable(covers=("I20", "I21", "S25"), by=("expire", "install"))
    def accepting_by_itself(self) -> bool:
        """A server that was never opened may wait for its coordinator: there is nothing in it that could wait."""
        return self.server.is_open or (self._may_wait() and self.rollout == "absent")

    @recoverable(covers=("I20", "S18"), by=("expire", "install", "end_turn", "go_on"))
    def nobody_waits_for_ever(self) -> bool:
        return self.rollout in ("absent", "done")

    def _may_wait(self) -> bool:
        return was_never_open(self.server.phase, self.server.is_open)

    @sometimes
    def committed(self) -> bool:
        return self.server.phase is Phase.COMMITTED

    @sometimes(covers="S7")
    def a_prepare_outlives_its_checkpoint(self) -> bool:
        return any(waited != self.server.open_id for waited in self.waiting)

    @sometimes
    def another_server_was_first(self) -> bool:
        return any(parse(text)["incarnation"] == "other" for _, text in self.folder) and self.write is not None

    @sometimes
    def held_while_closed(self) -> bool:
        return self.rollout == "held" and self.server.phase is Phase.COMMITTED

    @sometimes
    def goes_on_where_it_stood(self) -> bool:
        return self.epoch > 1 and self.restored == "restored" and self.rollout == "done"

    @sometimes
    def a_manifest_is_there_that_nobody_counts(self) -> bool:
        return bool(self.folder) and self.server.phase is Phase.IDLE and self.died == 0


class BreakingParticipantWorld(ParticipantWorld):
    """The same, and its lease timer may die: then it opens, refuses every control call, and must be restarted."""

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


class OpenParticipantWorld(ParticipantWorld):
    """A server that somebody else started: open, and without an epoch until it hears of one."""

    nothing_of_the_life_before_runs = None
    the_restore_finds_a_fresh_process = None
    what_is_open_is_for_this_process_and_this_life = None
    overtaken_begins = None

    def started(self, incarnation: str, epoch: int) -> Server:
        return server(incarnation)

    def _may_wait(self) -> bool:
        return False


class BreakingOpenParticipantWorld(OpenParticipantWorld):
    """An open server whose lease timer may die."""

    lease_timer_breaks = BreakingParticipantWorld.lease_timer_breaks
    broken_while_it_wrote = BreakingParticipantWorld.broken_while_it_wrote


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
