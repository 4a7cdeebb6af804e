"""The control plane of one server: decode, one pure step, effects in order, encode.

The machine is the PARTICIPANT table; this shell performs what it owes: close and open admission, wait until nothing
moves, write and read the part, arm the lease. What a kind has to say and to save is its `Part`. One operation at a
time, only the waits for readiness and for a write are outside the lock, so renew is answered while a long write runs
(docs/reference/protocol.md section 5). Embedded in other people's servers: anyio.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc

from statecore import Refused
from statecore.seams import on_disk
from statecore.wire import digest, encode, parse

from ..files.snapshots import read_part, resolve_below
from ..identity import EpisodeId
from ..journals.recorder import UNRECORDED, StepRecorder
from ..machines.control import (
    PARTICIPANT,
    AnswerAgain,
    ArmLease,
    Broke,
    CloseAdmission,
    CommitRequested,
    Control,
    DisarmLease,
    LeaseExpired,
    LeaveOut,
    OpenAdmission,
    PartInstalled,
    PartWritten,
    Phase,
    PrepareFailed,
    PrepareRequested,
    ReadinessReached,
    RenewRequested,
    Reopened,
    RestoreFailed,
    RestoreRequested,
    ResumeRequested,
    RetireRequested,
    StopWriting,
    new_process,
    was_never_open,
)
from ..records.records import Part as RecordsPart
from ..settings import Seams, Settings
from ..signals import BLOCKERS, INSTALL, LEASES, PART_RECORDS, READ, RECORDS, SERVER, STEP, WAIT, SpanName
from ..telemetry import Span, a_step
from .admission import Admission
from .calls import Commit, Forget, Prepare, Renew, Restore, Resume, Retire, VerbCall
from .fences import Fences
from .lease import Lease
from .part import Json, Part
from .part_writer import PartWriter, Write

BLOCKERS_SHOWN: Final = 100
RETIRED_TOLD: Final = 50  # of one call, in the journal
RECHECK_S: Final = 1.0  # a wait for readiness looks again at least this often


class Participant:
    """One server's control plane. `start` must have been called by the server's lifespan before anything is served."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        seams: Seams,
        part: Part,
        admission: Admission,
        fences: Fences,
        incarnation: str,
        steps: StepRecorder = UNRECORDED,
    ) -> None:
        self.name = name
        self.settings = settings
        self.seams = seams
        self.part = part
        self.admission = admission
        self.fences = fences
        self.incarnation = incarnation
        self._steps = steps
        self._machine = new_process(
            self.incarnation,
            epoch=settings.epoch,
            epoch_required=settings.epoch_required,
            lease_grace_s=settings.lease_grace_seconds,
        )
        self._lock = anyio.Lock()
        self._changed = anyio.Event()
        self._lease = Lease(seams.clock, self._lease_ended, self._lease_broke)
        self._writer = PartWriter(name, part, seams, self._manifest_extra)
        self._group: anyio.abc.TaskGroup | None = None

    # --- what others read

    @property
    def phase(self) -> Phase:
        return self._machine.state

    @property
    def control(self) -> Control:
        return self._machine.data

    @property
    def born_closed(self) -> bool:
        """Started with an epoch and neither restored nor resumed yet."""
        return was_never_open(self.phase, self.admission.is_open)

    def changed(self) -> None:
        """Everybody who waits for readiness looks again."""
        self._changed.set()
        self._changed = anyio.Event()

    def start(self, group: anyio.abc.TaskGroup) -> None:
        """The lease timer runs, and writes have a place to run, until `group` ends."""
        self._group = group
        group.start_soon(self._lease.watch)

    def report_json(self) -> Json:
        report = self.part.report()
        now = self.seams.clock.monotonic()
        shown = report.blockers[:BLOCKERS_SHOWN]
        return {
            "ready": not report.blockers,
            "blockers": [blocker.episode.key if blocker.episode else "" for blocker in shown],
            "blocker_count": len(report.blockers),
            "counts": dict(report.counts),
            "restarts": list(report.restarts),
            "blocker_details": [
                {
                    "rollout_id": blocker.episode.rollout_id if blocker.episode else "",
                    "attempt": blocker.episode.attempt if blocker.episode else 0,
                    "reason": blocker.reason,
                    "waited_s": round(max(0.0, now - blocker.since), 3),
                }
                for blocker in shown
            ],
            "retained": list(report.retained),
        }

    def status(self) -> Json:
        """The status reply: lock free, in any phase."""
        return {
            "kind": self.part.kind,
            "instance": self.name,
            "phase": self.phase.wire,
            "state": self.phase.value,  # peers know no `born` and no `broken`, people need them
            "checkpoint_id": self.control.checkpoint_id,
            "lease_expires_at": self.control.lease_until,
            "retired_rollouts": len(self.fences.retired),
            "report": self.report_json(),
        } | self._steps.state() | self.part.status()

    # --- the verbs

    async def perform(self, call: VerbCall, *, epoch: int | None, incarnation: str | None) -> Json:
        """The reply of a control call; raises Refused or InvalidCheckpointState, and then nothing has changed."""
        verbs: dict[type[VerbCall], Callable[[Any, Json], Awaitable[Json]]] = {
            Prepare: self._prepare,
            Commit: self._commit,
            Restore: self._restore,
            Resume: self._resume,
            Renew: self._renew,
            Retire: self._retire,
            Forget: self._forget,
        }
        address = {
            "checkpoint_id": call.checkpoint_id,
            "deadline_ts": call.deadline_ts,
            "now": self.seams.clock.time(),
            "epoch": epoch,
            "incarnation": incarnation,
        }
        return await verbs[type(call)](call, address)

    async def _prepare(self, call: Prepare, address: Json) -> Json:
        async with self._turn(call.deadline_ts):
            leave_out = frozenset(episode.key for episode in call.leave_out)
            effects = self._step(PrepareRequested(**address, leave_out=leave_out))
            try:
                reply = self._perform(effects)
            except BaseException:
                self._prepare_failed(call.checkpoint_id)
                raise
        if reply is not None:
            return reply
        try:
            with self._watched(WAIT) as span:
                span.set(BLOCKERS, self.admission.counts.active)
                return await self._readiness(call.checkpoint_id, call.deadline_ts)
        except Exception:
            self._prepare_failed(call.checkpoint_id)
            raise

    def _prepare_failed(self, checkpoint_id: str) -> None:
        """A prepare that broke reopens; its id is not fenced."""
        if self.phase is Phase.PREPARING and self.control.checkpoint_id == checkpoint_id:
            self._settle_effects(self._step(PrepareFailed(checkpoint_id)))

    async def _readiness(self, checkpoint_id: str, deadline_ts: float) -> Json:
        """The prepare reply: when ready, at the deadline, or when the checkpoint ended meanwhile (S7)."""
        while True:
            if self.control.checkpoint_id != checkpoint_id:  # it has ended, whatever is open now (S7)
                return {"phase": Phase.IDLE.wire, "report": self.report_json()}
            if self.phase is not Phase.PREPARING:
                return {"phase": self.phase.wire, "report": self.report_json()}
            if self.admission.is_quiet:
                self.part.prepared(self.control.left_out)
                reply = {"phase": "prepared", "report": self.report_json()}
                self._step(ReadinessReached(checkpoint_id, encode(reply).decode()))
                self.changed()
                return reply
            left = deadline_ts - self.seams.clock.time()
            if left <= 0:
                return {"phase": "preparing", "report": self.report_json()}
            changed = self._changed
            with anyio.move_on_after(min(left, RECHECK_S)):
                await changed.wait()

    async def _commit(self, call: Commit, address: Json) -> Json:
        scope = None if call.episode_ids is None else frozenset(call.episode_ids)
        arguments = _arguments(call.checkpoint_dir, call.episode_ids)
        async with self._turn(call.deadline_ts):
            requested = CommitRequested(**address, arguments=arguments)
            effects = self._ask(requested)
            again = next((effect for effect in effects if isinstance(effect, AnswerAgain)), None)
            if again is not None:
                self._step(requested)
                return _json(again.reply)
            self._check_commit(scope)
            directory = await self._below_root(call.checkpoint_dir)
            self._ask(requested)  # again: the lease may have ended meanwhile
            self.part.check_scope(scope)
            effects = self._step(requested)  # from here on directory and scope are pinned
            self._settle_effects(effect for effect in effects if isinstance(effect, ArmLease))
            assert self._group is not None, "the server's lifespan has not run"
            write = self._writer.begin(
                Write(call.checkpoint_id, arguments, directory, scope), self._part_written, self._group
            )
        with anyio.move_on_after(max(0.0, call.deadline_ts - self.seams.clock.time())):
            await write.done.wait()
        if not write.done.is_set():
            raise Refused(
                "deadline_exceeded", self.phase, call, (), f"checkpoint {call.checkpoint_id!r} deadline passed"
            )
        if write.error is not None:
            raise write.error
        assert write.reply is not None
        return write.reply

    def _part_written(self, write: Write) -> None:
        """The part counts; Refused when its checkpoint ended meanwhile."""
        self._step(PartWritten(write.checkpoint_id, write.arguments, encode(write.reply).decode()))

    def _manifest_extra(self) -> Json:
        return {"incarnation": self.incarnation, "epoch": self.control.epoch}

    def _check_commit(self, scope: frozenset[EpisodeId] | None) -> None:
        if not self.admission.is_quiet:
            raise Refused("invalid_phase", self.phase, "CommitRequested", (), "no longer ready to commit")
        restarts = set(self.part.report().restarts)
        named = sorted(episode.key for episode in scope or () if episode.key in restarts)
        if named:
            raise Refused(
                "restart_in_scope",
                self.phase,
                "CommitRequested",
                (),
                f"the commit scope names episodes that restart: {named}",
            )
        left_out = self.control.left_out
        without = sorted(left_out if scope is None else left_out & {episode.key for episode in scope})
        if without:
            raise Refused(
                "left_out_in_scope",
                self.phase,
                "CommitRequested",
                (),
                f"the commit scope names episodes that are left out: {without}",
            )

    async def _restore(self, call: Restore, address: Json) -> Json:
        arguments = _arguments(call.checkpoint_dir, call.episode_ids)
        scope = frozenset(call.episode_ids)
        async with self._turn(call.deadline_ts):
            effects = self._step(RestoreRequested(**address, arguments=arguments))
            reply = self._perform(effects)
            if reply is not None:
                return reply
            try:
                restored = await self._install(call, scope)
                done = {"phase": "restored", **restored}
                event = PartInstalled(call.checkpoint_id, arguments, encode(done).decode(), call.deadline_ts)
                self._settle_effects(self._step(event))
            except BaseException:
                self._settle_effects(self._step(RestoreFailed(call.checkpoint_id)))
                raise
            return done

    async def _install(self, call: Restore, scope: frozenset[EpisodeId]) -> Json:
        """Read and validate everything first (I52), then install it in one piece (I51)."""
        directory = await self._below_root(call.checkpoint_dir)
        with self._watched(READ) as span:
            part = await on_disk(self.seams.disk, self._read_files, directory, scope)
            span.set(RECORDS, len(part.records))
        self.seams.telemetry.record(PART_RECORDS, len(part.records), {STEP: "read", SERVER: self.name})
        with self._watched(INSTALL) as span:
            span.set(RECORDS, len(part.records))
            keys = self._put_in(call, part, scope)
        return {"source_checkpoint_id": part.manifest.checkpoint_id, "restored": sorted(keys)}

    def _put_in(self, call: Restore, part: RecordsPart, scope: frozenset[EpisodeId]) -> Sequence[str]:
        """Everything of the part is in place under N+1, or nothing is; the capture keys of N+1."""
        self.part.check_fresh(len(part.records))
        staged = self.part.stage(part.typed, scope)
        if self.seams.clock.time() >= call.deadline_ts:
            raise Refused(
                "deadline_exceeded", self.phase, call, (), f"checkpoint {call.checkpoint_id!r} deadline passed"
            )
        self._ask(PartInstalled(call.checkpoint_id))  # refused first, if it broke meanwhile (I52)
        return self.part.install(staged, scope)

    def _read_files(self, directory: Path, scope: frozenset[EpisodeId]) -> RecordsPart:
        return read_part(self.seams.disk, directory, kind=self.part.kind, instance=self.name, scope=scope)

    async def _resume(self, call: Resume, address: Json) -> Json:
        async with self._turn(call.deadline_ts):
            reply = self._perform(self._step(ResumeRequested(**address)))
            assert reply is not None
            return reply

    async def _renew(self, _call: Renew, address: Json) -> Json:
        async with self._turn(_call.deadline_ts):
            self._settle_effects(self._step(RenewRequested(**address)))
            return {"lease_expires_at": self.control.lease_until}

    async def _retire(self, call: Retire, address: Json) -> Json:
        async with self._turn(call.deadline_ts):
            self._settle_effects(self._step(RetireRequested(**address), retired=call.episode_ids))
            self.fences.retire(call.episode_ids)
            self.admission.wake(episode.rollout_id for episode in call.episode_ids)
            with anyio.move_on_after(max(0.0, call.deadline_ts - self.seams.clock.time())) as scope:
                await self.part.retire(call.episode_ids)
            self.changed()
            if scope.cancelled_caught:  # the marks stay; a repeat goes on with the rest
                detail = f"checkpoint {call.checkpoint_id!r} deadline passed"
                raise Refused("deadline_exceeded", self.phase, call, (), detail)
            return {"retired": [episode.key for episode in call.episode_ids]}

    async def _forget(self, call: Forget, address: Json) -> Json:
        async with self._turn(call.deadline_ts):
            self._settle_effects(self._step(RetireRequested(**address)))
            self.part.forget(call.rollout_ids)
            self.fences.forget(call.rollout_ids)
            return {"forgotten": sorted(call.rollout_ids)}

    # --- steps and what they owe

    def _step(self, event: object, *, retired: Sequence[EpisodeId] = ()) -> Sequence[object]:
        told = _about(event)
        if retired and self._steps.journal is not None:
            told["retired"] = [[each.rollout_id, each.attempt] for each in retired[:RETIRED_TOLD]]
        self._machine, effects = self._steps.step(PARTICIPANT, self._machine, event, **told)
        return effects

    def _ask(self, event: object) -> Sequence[object]:
        """What a step would owe, which is not made."""
        return self._steps.ask(PARTICIPANT, self._machine, event, **_about(event))

    def _perform(self, effects: Iterable[object]) -> Json | None:
        """The effects happened in order; the reply that they hold, if any."""
        reply: Json | None = None
        for effect in effects:
            if isinstance(effect, AnswerAgain):
                reply = _json(effect.reply)
            elif isinstance(effect, Reopened):
                reply = {"phase": "idle", "idempotent": effect.idempotent}
            else:
                self._settle_effects([effect])
        return reply

    def _settle_effects(self, effects: Iterable[object]) -> None:
        """The effects that need no wait."""
        for effect in effects:
            if isinstance(effect, CloseAdmission):
                self.admission.close()
            elif isinstance(effect, OpenAdmission):
                self.part.opened()
                self.admission.open()
                self.changed()
            elif isinstance(effect, LeaveOut):
                self.part.leave_out(effect.keys)
            elif isinstance(effect, ArmLease):
                self._lease.arm(effect.until)
            elif isinstance(effect, DisarmLease):
                self._lease.disarm()
            elif isinstance(effect, StopWriting):
                self._writer.stop(effect.checkpoint_id)  # I48
            # AwaitReadiness, WritePart and ReadPart are what their verb goes on to do

    # --- the lease

    def _lease_ended(self) -> None:
        """The server reopens and the checkpoint is fenced (I21); nobody needs to be there for it."""
        checkpoint_id = self.control.checkpoint_id
        if checkpoint_id is not None:
            self._perform(self._step(LeaseExpired(checkpoint_id)))
            self.seams.telemetry.add(LEASES, 1, {SERVER: self.name})

    def _lease_broke(self, error: Exception) -> None:
        """No server stops for a dead timer, and rollouts must not wait for one: every control call says so."""
        self._settle_effects(self._step(Broke(repr(error))))

    # --- helpers

    def _watched(self, what: SpanName) -> AbstractContextManager[Span]:
        """The block is a step of a call, and whoever watches sees it."""
        return a_step(self.seams.telemetry, self.seams.clock, what, {SERVER: self.name})

    async def _below_root(self, directory: str) -> Path:
        root = self.settings.root
        assert root is not None, "settings were checked"
        return await on_disk(self.seams.disk, resolve_below, self.seams.disk, root, directory)

    def _turn(self, deadline_ts: float) -> _Turn:
        return _Turn(self._lock, max(0.0, deadline_ts - self.seams.clock.time()))


class _Turn:
    """The participant's lock, waited for no longer than the call's deadline (I18)."""

    def __init__(self, lock: anyio.Lock, patience_s: float) -> None:
        self._lock = lock
        self._patience_s = patience_s

    async def __aenter__(self) -> None:
        try:
            self._lock.acquire_nowait()
        except anyio.WouldBlock:
            with anyio.move_on_after(self._patience_s) as scope:
                await self._lock.acquire()
            if scope.cancelled_caught:
                detail = "another operation of this server did not end before the deadline"
                raise Refused("deadline_exceeded", "busy", "call", (), detail) from None

    async def __aexit__(self, *_error: object) -> None:
        self._lock.release()


def _about(event: object) -> Json:
    """Which checkpoint an event of the participant is about; only one that broke is about none."""
    return {"checkpoint_id": getattr(event, "checkpoint_id", None)}


def _arguments(directory: str, episodes: Sequence[EpisodeId] | None) -> str:
    """What makes two commits or restores the same: directory and scope, not the order of the scope."""
    return digest([directory, None if episodes is None else sorted(episode.key for episode in episodes)])


def _json(text: str) -> Json:
    value = parse(text)
    assert isinstance(value, dict)
    return value
