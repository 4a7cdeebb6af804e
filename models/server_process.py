"""The inside of one server, with one rollout: the part of a world that lives in its process.

The control half and the gate are stepped by the tables that run; what a step owes is done at once, and what takes its
time (a wait for readiness, a write, a restore that is read, a lease) goes on as actions of its own. A rollout comes, is
held, leaves while it is held, moves, stands at its boundary, ends. Who calls is not said here: `models.participant`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import evolve, frozen

from models.server import CLOSED_PHASES, DEADLINE_TS, Server, knock, server, tell
from participants.files.snapshots import is_this_commit
from participants.machines.control import (
    PARTICIPANT,
    AnswerAgain,
    AwaitReadiness,
    Broke,
    CommitRequested,
    Control,
    LeaseExpired,
    PartInstalled,
    PartWritten,
    Phase,
    PrepareFailed,
    RestoreFailed,
    ResumeRequested,
    RetireRequested,
    StopWriting,
    WritePart,
    is_data_of_other_life,
    was_never_open,
)
from participants.machines.gate import GATE, Arrived, Ended, GateData, GateState, Left, Settled, Stirred
from participants.records.manifests import Manifest
from statecore import Table
from statecore.properties import always, recoverable, sometimes
from statecore.wire import parse
from statecore.world import World, action, durable, ghost, param, slot, volatile


@frozen(cache_hash=True)
class Write:
    """A write of a part that has begun; `linked`: its manifest is there."""

    checkpoint_id: str
    arguments: str
    linked: bool = False


class ProcessWorld(World):
    """One server and one rollout of `turns` turns."""

    PARTICIPANT: ClassVar[Table[Phase, Control]] = PARTICIPANT
    GATE: ClassVar[Table[GateState, GateData]] = GATE

    turns = param(2)

    server: Server = volatile(of="server", make=lambda world: world.started("p1", 1))
    waiting: frozenset[str] = volatile(frozenset(), of="server")  # prepares that wait until nothing moves
    write: Write | None = volatile(None, of="server")
    fenced: bool = volatile(False, of="server")  # attempts of the life before are over here
    rollout: str = volatile("absent", of="server")  # or held, moving, standing, done
    turn: int = volatile(0, of="server")
    stranger: bool = volatile(False, of="server")  # something of the life before runs here
    folder: frozenset[tuple[str, bytes]] = durable(frozenset())  # (directory, its manifest)
    authors: frozenset[tuple[str, str]] = ghost(frozenset())  # (directory, who put the manifest there)
    epoch: int = slot(1)  # of the newest claim
    over: frozenset[str] = ghost(frozenset())  # ids that have ended here, or with the process that they were for

    def started(self, incarnation: str, epoch: int) -> Server:
        """The process as its launcher starts it."""
        return server(incarnation, born_with_epoch=epoch)

    # --- what takes its time in the server

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
        if there is not None and not self._is_this_commit(there, manifest):
            self.write = None  # the commit is refused
            return None
        if there is None:
            self.folder |= {(write.arguments, manifest.encode())}
            self.authors |= {(write.arguments, self.server.incarnation)}
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

    def _has_opened(self) -> bool:
        """Whether the rollout's coordinator was told that the server is open."""
        return True

    def _note_restore(self, checkpoint_id: str, outcome: str) -> None:
        """The caller of a restore hears what came of it: restored, refused or failed."""

    def _is_ready(self) -> bool:
        """Whether a prepare may answer: nothing moves."""
        return self.server.is_quiet

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

    def _is_this_commit(self, there: bytes, manifest: Manifest) -> bool:
        return is_this_commit(parse(there), manifest)

    def _standing(self) -> str:
        """What a reply says of where the server stands."""
        return f"at turn {self.turn}"

    def _committed(self) -> str:
        """The reply of the commit that stands."""
        open_id = self.server.open_id or ""
        return self._manifest(open_id, self.server.incarnation).encode().decode()

    def _is_refused(self, epoch: int | None) -> bool:
        """Whether a data call that carries this epoch and names a rollout is refused, whatever it wants."""
        control = self.server.control
        return is_data_of_other_life(control.data, epoch) or was_never_open(control.state, self.server.is_open)

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
        return (control.data.committed.arguments, self.server.incarnation) in self.authors

    @always(covers="S26")
    def a_checkpoint_is_committed_in_one_place(self) -> bool:
        ours = [where for where, author in self.authors if author == self.server.incarnation]
        return not any(f"{where}-elsewhere" in ours for where in ours)

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

    @sometimes
    def held_while_closed(self) -> bool:
        return self.rollout == "held" and self.server.phase is Phase.COMMITTED
