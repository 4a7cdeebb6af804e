"""The servers of a life, kept serving by their coordinator: one dies, or another process answers for it.

One coordinator, one server, one rollout. The server dies, is replaced behind everybody's back, answers late, does not
come up, does not stop; somebody else claims the root. The tables are the production's (`HEARTBEAT`, `DEPLOYMENT`), what
becomes of the rollout is decided by `plan_restart`, and its ledger is the one that runs. docs/reference/protocol.md
sections 7, 11 and 12. What a restart does on the servers is `models.restore`, how lives overtake each other
`models.lives`; here a restore is one step, and the coordinator does not die.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from attrs import evolve

from participants.coordination.ledger import Ledger, Rollout
from participants.coordination.recovery import Server
from participants.coordination.restart_plan import plan_restart
from participants.coordination.trainer import Dispatch
from participants.files.checkpoint import Checkpoint
from participants.identity import EpisodeId
from participants.machines import deployment as dp
from participants.machines.heartbeat import HEARTBEAT, Answered, Exited, Heartbeat, PeriodPassed, Pulse
from participants.records.manifests import FileRef, GlobalManifest, Manifest, ParticipantEntry
from participants.records.records import (
    Disposition,
    EnvironmentRecord,
    Part,
    Receipt,
    RegistryRow,
    record_json,
    task_digest,
)
from statecore import Snapshot, Table
from statecore.properties import always, final, recoverable, sometimes
from statecore.world import World, action, durable, ghost, param, slot

ROLLOUT, TASK, DIGEST = "r", 1, "0" * 64
ENVIRONMENT = Server("environment", "env", "exported")
FIRST = Rollout(dispatch=Dispatch(ROLLOUT, TASK, "env"), digest=task_digest(TASK))
OURS, THEIRS = "ours", "theirs"

Process = tuple[int, bool]
"""A process of the server: the epoch that it was born with, and whether somebody has started it alone since."""


def incarnation(process: Process) -> str:
    return f"{process[0]} {'alone' if process[1] else 'with all'}"


@cache
def checkpoint(attempt: int) -> Checkpoint:
    """A checkpoint in which this attempt stands at a boundary."""
    checkpoint_id = "ck-000001-000001"
    record = EnvironmentRecord(episode_id=EpisodeId(ROLLOUT, attempt), task_digest=task_digest(TASK), boundary={})
    part = Manifest(
        kind=ENVIRONMENT.kind,
        instance=ENVIRONMENT.name,
        checkpoint_id=checkpoint_id,
        records_file=f"records-{DIGEST}.jsonl",
        records_sha256=DIGEST,
        record_count=1,
    )
    entry = ParticipantEntry(
        kind=ENVIRONMENT.kind,
        name=ENVIRONMENT.name,
        mode=ENVIRONMENT.mode,
        manifest="gym/environment/env/manifest.json",
        sha256=DIGEST,
        record_count=1,
    )
    file = FileRef(path="file", sha256=DIGEST, size_bytes=0)
    row = RegistryRow(
        rollout_id=ROLLOUT,
        attempt=attempt,
        task=TASK,
        task_digest=task_digest(TASK),
        target="env",
        disposition=Disposition.CONTINUE,
        reason="",
    )
    manifest = GlobalManifest(
        checkpoint_id=checkpoint_id, epoch=1, created_ts=0.0, participants=(entry,), gym=file, registry=file,
        ledger=file, framework=(),
    )  # fmt: skip
    return Checkpoint(Path("/root"), manifest, (Part(part, (record_json(record),)),), (row,), ())


class DeploymentWorld(World):
    """A coordinator that lives, and servers that do not."""

    faults = param(3)
    attempts = param(4)  # how many the rollout may have

    deployment_table: Table[Any, Any] = dp.DEPLOYMENT
    heartbeat_table: Table[Any, Any] = HEARTBEAT

    claims: tuple[str, ...] = durable((OURS,))
    processes: frozenset[Process] = durable(frozenset({(1, False)}))
    deployment: Snapshot[Any, Any] = slot(dp.DEPLOYMENT.start(dp.Restart(epoch=1, allowed=2, limit=2)))
    pulse: Snapshot[Any, Any] = slot(HEARTBEAT.start(Pulse(incarnation((1, False)), 2)))
    owed: tuple[Any, ...] = slot(())
    told: str = slot("")
    progressed: bool = slot(False)
    rollout: Rollout = slot(FIRST)
    answer: bool = slot(False)  # its `/run` has ended without a result, and nobody has looked at that yet
    retired: frozenset[int] = slot(frozenset())  # the attempts that the coordinator knows to be over on all servers
    held: int = durable(-1)  # the attempt that the checkpoint in force continues
    struck: int = slot(0)
    started: tuple[int, ...] = ghost((1,))
    fenced: frozenset[tuple[int, int]] = ghost(frozenset())  # (epoch, attempt), by the server
    given: frozenset[tuple[int, int]] = ghost(frozenset())
    again: bool = ghost(False)  # one number was given in two epochs

    # --- what goes wrong

    def _strikes(self) -> bool:
        if self.struck == self.faults or self.told:
            return False
        self.struck += 1
        return True

    @action(fault=True)
    def dies(self) -> object:
        if not self.processes or not self._strikes():
            return False
        self.processes = frozenset()
        return None

    @action(fault=True)
    def is_replaced(self) -> object:
        """Somebody starts it anew alone: it is empty, and closed, and answers in the same name (S66)."""
        if self._serving_process() is None or not self._strikes():
            return False
        self.processes = frozenset({(self.deployment.data.epoch, True)})
        return None

    @action(fault=True)
    def answers_late(self) -> object:
        if not self.processes or not self._is_watched() or not self._strikes():
            return False
        self._beat(PeriodPassed())
        return None

    @action(fault=True)
    def cannot_be_done(self) -> object:
        """A server does not stop, does not come up, or cannot be restored."""
        able = (dp.StopServers, dp.StartServers, dp.RestoreState)
        if not self.owed or not isinstance(self.owed[0], able) or not self._strikes():
            return False
        self._step(dp.StepFailed("it cannot be done"))
        return None

    @action(fault=True)
    def somebody_else_claims(self) -> object:
        if THEIRS in self.claims or not self._strikes():
            return False
        self.claims = (*self.claims, THEIRS)
        return None

    @action(fault=True)
    def fails(self) -> object:
        """The execution ends without a result, with everybody alive."""
        if not self._runs() or not self._strikes():
            return False
        self.answer = True
        return None

    # --- it is watched

    @action
    def answers(self) -> object:
        if not self._is_watched() or not self.processes:
            return False
        (process,) = self.processes
        return self._beat(Answered(incarnation(process)))

    @action
    def a_period_passes(self) -> object:
        if not self._is_watched() or self.processes:
            return False
        return self._beat(PeriodPassed())

    @action
    def its_end_is_told(self) -> object:
        """By its launcher."""
        if not self._is_watched() or self.processes:
            return False
        return self._beat(Exited(-9))

    @action
    def the_death_is_heard_of(self) -> object:
        """Between two restarts, or in the middle of one."""
        if self.pulse.state is not Heartbeat.DEAD or self.told:
            return False
        if self.deployment.state is dp.DeploymentState.SERVING and not self.owed:
            if self.progressed:
                self.deployment, _ = self.deployment_table.step(self.deployment, dp.Progressed())
                self.progressed = False
            self._step(dp.ServerDied("dead"))
            return None
        if self.owed and isinstance(self.owed[0], dp.RestoreState):
            self._step(dp.ServerDied("dead"))
            return None
        return False

    # --- what is owed is done

    @action
    def perform(self) -> object:
        if not self.owed:
            return False
        effect = self.owed[0]
        match effect:
            case dp.StopDispatch():
                self.owed = self.owed[1:]
            case dp.StopServers():
                self._stop()
                self.answer = False
                self._step(dp.ServersStopped())
            case dp.ClaimEpoch():
                self._claim(effect)
            case dp.StartServers():
                self._start(effect.epoch)
            case dp.RestoreState():
                self._restore()
            case dp.OpenDispatch():
                self.owed = self.owed[1:]
            case dp.GiveUp():
                self.owed, self.told = (), self.told or "given up"
        return None

    def _claim(self, effect: dp.ClaimEpoch) -> None:
        """The one right after ours, or none."""
        if len(self.claims) > effect.after:
            self._step(dp.StepFailed("overtaken", hopeless=True))
            return
        self.claims = (*self.claims, OURS)
        self._step(dp.EpochClaimed(effect.after + 1))

    def _start(self, epoch: int) -> None:
        if epoch in self.started:
            self.fail("I96")
        self.started = (*self.started, epoch)
        process = (epoch, False)
        self.processes |= {process}
        self.pulse = self.heartbeat_table.start(evolve(self.pulse.data, incarnation=incarnation(process), silent=0))
        self._meet()
        self._step(dp.ServersStarted())

    def _restore(self) -> None:
        """All or nothing, into the process that was started."""
        if self._serving_process() is None:
            self._step(dp.StepFailed("it does not answer, or another process does"))
            return
        ledger = Ledger({ROLLOUT: self.rollout})
        base = None if self.held < 0 else checkpoint(self.held)
        plan = plan_restart(base, ledger, consumed=frozenset(), present=frozenset({ENVIRONMENT}))
        self.rollout = ledger.restarted(plan.verdicts)[ROLLOUT]
        self.fenced |= {(self.deployment.data.epoch, each.attempt) for each in plan.retire}
        self._step(dp.StateRestored())

    # --- the rollout

    @action
    def dispatch(self) -> object:
        """Its `/run` leaves, under a name that nobody has had."""
        rollout = self.rollout
        if not self._is_open() or rollout.sent or rollout.has_result or rollout.ended:
            return False
        if rollout.attempt >= self.attempts:
            return False
        name = (self.deployment.data.epoch, rollout.attempt)
        if name in self.given:
            self.fail("I3")
        self.again = self.again or any(attempt == rollout.attempt for _, attempt in self.given)
        self.given |= {name}
        self.rollout = Ledger({ROLLOUT: rollout}).dispatched([ROLLOUT])[ROLLOUT]
        return None

    @action
    def result(self) -> object:
        if not self._runs():
            return False
        receipt = Receipt(
            rollout_id=ROLLOUT, attempt=self.rollout.attempt, result_identity="0" * 32, result_sha256=DIGEST
        )
        ledger, _ = Ledger({ROLLOUT: self.rollout}).received(receipt, 0)
        self.rollout, self.progressed = ledger[ROLLOUT], True
        return None

    @action
    def publish(self) -> object:
        """A checkpoint with the rollout at a boundary is in force."""
        if not self._runs() or self.held == self.rollout.attempt:
            return False
        self.held, self.progressed = self.rollout.attempt, True
        return None

    @action
    def retire(self) -> object:
        """As a straggler, on every server; its `/run` is answered by that."""
        if not self._runs() or self.rollout.attempt + 1 >= self.attempts:
            return False
        self.fenced |= {(self.deployment.data.epoch, self.rollout.attempt)}
        self.retired |= {self.rollout.attempt}
        self.answer = True
        return None

    @action
    def its_end_is_looked_at(self) -> object:
        """Vouched for: the server is there. Retired, it is tried again under the next number; else it has ended."""
        if not self.answer or not self._is_open():
            return False
        self.answer, attempt = False, self.rollout.attempt
        ledger = Ledger({ROLLOUT: self.rollout})
        if attempt in self.retired:
            if (self.deployment.data.epoch, attempt) not in self.fenced:
                self.fail("I6")
            self.retired -= {attempt}
            self.rollout = self._retried(ledger)
        else:
            self.rollout = ledger.lost(ROLLOUT, "it failed")[ROLLOUT]
        return None

    # --- what a twin takes out

    def _stop(self) -> None:
        self.processes = frozenset()

    def _meet(self) -> None:
        """What was retired on the servers before counts for nothing."""
        self.retired = frozenset()

    def _retried(self, ledger: Ledger) -> Rollout:
        return ledger.retried(ROLLOUT)[ROLLOUT]

    # --- inside

    def _step(self, event: object) -> None:
        """The event that an effect, or a death, has come to; what is owed from now on."""
        self.deployment, effects = self.deployment_table.step(self.deployment, event)
        self.owed = tuple(effects)
        if isinstance(event, dp.StepFailed) and event.hopeless:
            self.told = "overtaken"

    def _beat(self, event: object) -> object:
        before = self.pulse
        self.pulse, _ = self.heartbeat_table.step(before, event)
        return None if self.pulse != before else False

    def _serving_process(self) -> Process | None:
        process = (self.deployment.data.epoch, False)
        return process if process in self.processes else None

    def _is_watched(self) -> bool:
        """Whether somebody asks: while it serves, and while it is restored."""
        watched = (dp.DeploymentState.SERVING, dp.DeploymentState.RESTORING)
        return self.deployment.state in watched and not self.told and self.pulse.state is not Heartbeat.DEAD

    def _is_open(self) -> bool:
        serves = self.deployment.state is dp.DeploymentState.SERVING and not self.owed
        return serves and self._serving_process() is not None and not self.told

    def _runs(self) -> bool:
        return self._is_open() and self.rollout.sent and not (self.rollout.has_result or self.answer)

    # --- properties

    @final
    def it_serves_or_has_said_why_not(self) -> bool:
        return bool(self.told) or self._is_open()

    @always(covers="I96")
    def one_deployment_at_a_time(self) -> bool:
        return len({epoch for epoch, _ in self.processes}) <= 1

    @always(covers="I98")
    def who_is_overtaken_claims_nothing(self) -> bool:
        return THEIRS not in self.claims[:-1]

    @always
    def restarts_are_bounded(self) -> bool:
        """In tries, and in a row with nothing done in between; then nothing is owed any more, and it was told."""
        restart = self.deployment.data
        if self.deployment.state is dp.DeploymentState.GIVEN_UP and not self.owed and not self.told:
            return False
        return bool(restart.failed <= restart.allowed and restart.futile <= restart.limit)

    @recoverable(covers=("S66", "I97"))
    def a_death_is_noticed(self) -> bool:
        """Whatever died, the server that is met is there again, or the job was told to be over."""
        return bool(self.told) or self._is_open()

    @sometimes
    def it_was_given_up(self) -> bool:
        return self.told == "given up"

    @sometimes
    def it_was_overtaken(self) -> bool:
        return self.told == "overtaken"

    @sometimes(covers="S64")
    def one_number_is_given_in_two_epochs(self) -> bool:
        return self.again

    @sometimes
    def a_server_was_late_and_is_no_death(self) -> bool:
        return self.pulse.state is Heartbeat.LATE and bool(self.processes)

    @sometimes
    def a_death_in_a_restart(self) -> bool:
        return self.deployment.state is dp.DeploymentState.STOPPING and self.deployment.data.failed == 1
