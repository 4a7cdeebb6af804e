"""What the world of restores is made of: executions, sessions, what is saved of them, and the plan made from it.

Registry, ledger and parts are the production's, so that the plan of a restart is made by the code that runs.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from participants.coordination.agreement import Pieces
from participants.coordination.recovery import Found, RestorePlan, Server, plan_restore
from participants.identity import EpisodeId
from participants.machines.attempt import ATTEMPT, AttemptState
from participants.machines.resource_session import SessionData, SessionState
from participants.records.manifests import Manifest
from participants.records.positions import Position
from participants.records.records import (
    AgentBoundary,
    AgentRecord,
    Disposition,
    LedgerRow,
    LedgerStatus,
    Part,
    PartRef,
    Receipt,
    Record,
    RegistryRow,
    ResourcesRecord,
    ResourcesState,
    record_json,
    task_digest,
)
from participants.servers.agent_session import OWN_RUN
from participants.servers.fences import Fences
from statecore import Snapshot
from statecore.wire import digest

ROLLOUT = "r"
TASK = {"n": 1}
TASK_DIGEST = task_digest(TASK)
NOTHING = (-1, -1)
Turns = tuple[str, ...]
SERVERS = frozenset({Server("agent", "agent", "exported"), Server("resources", "tools", "exported")})


def execution(attempt: int) -> EpisodeId:
    return EpisodeId(ROLLOUT, attempt)


QUEUED = ATTEMPT.start()


@frozen(cache_hash=True)
class Run:
    """An execution at the agent. `turns` are those of its conversation; `ended` is result, lost or over."""

    attempt: int
    machine: Snapshot[AttemptState, bool] = QUEUED
    turns: Turns = ()
    position: Position | None = None
    ended: str = ""

    @property
    def unclaimed(self) -> bool:
        return self.machine.state is AttemptState.RESTORED

    @property
    def moves(self) -> bool:
        return self.machine.state is AttemptState.RUNNING and not self.ended


@frozen(cache_hash=True)
class Kept:
    """A session at the tools server; `turns` is the application's state."""

    attempt: int
    machine: Snapshot[SessionState, SessionData]
    turns: Turns = ()

    @property
    def position(self) -> Position:
        position = self.machine.data.position
        assert position is not None
        return position


@frozen(cache_hash=True)
class Saved:
    """A published checkpoint of the one rollout; `result` is what its ledger holds, None for a live rollout."""

    row: Disposition
    attempt: int
    run: Run | None
    session: Kept | None
    result: Turns | None
    trained: int


@frozen(cache_hash=True)
class Plan:
    """What a restart does with the rollout: restored from `run` and `session` if it is continued."""

    disposition: Disposition
    attempt: int  # the highest known
    next_attempt: int | None
    scope: bool
    retired: tuple[int, ...]  # before anything is restored
    continuations: tuple[int, ...]  # retired if the restore fails
    next_if_failed: int | None


FIRST_PLAN = Plan(Disposition.QUEUED, -1, 0, False, (), (), 0)


def fences_of(marks: tuple[int, int]) -> Fences:
    fences = Fences()
    fences.retired[ROLLOUT], fences.passed[ROLLOUT] = marks
    return fences


def marks_of(fences: Fences) -> tuple[int, int]:
    return fences.retired[ROLLOUT], fences.passed[ROLLOUT]


def receipt_of(attempt: int, turns: Turns) -> Receipt:
    return Receipt(
        rollout_id=ROLLOUT, attempt=attempt, result_identity="1" * 32, result_sha256=digest({"turns": list(turns)})
    )


def ledger_row(attempt: int, result: Turns | None, *, saved: bool) -> LedgerRow:
    if result is None:
        return LedgerRow(rollout_id=ROLLOUT, attempt=attempt, status=LedgerStatus.LIVE)
    return LedgerRow(
        rollout_id=ROLLOUT,
        attempt=attempt,
        status=LedgerStatus.SAVED if saved else LedgerStatus.RECEIVED,
        receipt=receipt_of(attempt, result),
        body={"turns": list(result)},
    )


def registry_row(row: Disposition, attempt: int) -> RegistryRow:
    return RegistryRow(
        rollout_id=ROLLOUT, attempt=attempt, task=TASK, task_digest=TASK_DIGEST, target="agent", disposition=row
    )


def agent_record(run: Run) -> AgentRecord:
    """What the agent writes of an execution: its boundary, once there is one."""
    boundary: Any = None
    if run.turns and run.position is not None:
        part = PartRef(kind="resources", instance="tools", key="s", position=run.position)
        boundary = AgentBoundary(
            boundary_index=len(run.turns) - 1,
            previous=None,
            task_digest=TASK_DIGEST,
            data_position=None,
            last_model_call_id=None,
            lineage_head=None,
            parts=(part,),
            items=list(run.turns),
            usage=None,
            cookies={},
            steps_used=len(run.turns),
            elapsed_s=0.0,
            state=None,
        ).to_json()
    return AgentRecord(
        episode_id=execution(run.attempt), session_key=OWN_RUN, boundary=boundary, episode={"task": TASK}
    )


def session_record(kept: Kept) -> ResourcesRecord:
    operations = [{"operation_id": each.operation_id, "reply": {}} for each in kept.machine.data.operations]
    state = ResourcesState(codec="list", position=kept.position, operations=operations, data=list(kept.turns))
    return ResourcesRecord(episode_id=execution(kept.attempt), session_id="s", state=state.to_json())


def pieces_of(run: Run | None, kept: Kept | None) -> Pieces:
    return Pieces(
        agents=() if run is None else (("agent", agent_record(run)),),
        resources=() if kept is None else (("tools", session_record(kept)),),
    )


def plan_of(saved: Saved, ledger: LedgerRow, *, consumed: bool, live: bool) -> Plan:
    """The production's plan for the one rollout."""
    made = plan_restore(
        Found(
            registry=(registry_row(saved.row, saved.attempt),),
            ledger=(ledger,),
            parts=(
                _part("agent", "agent", () if saved.run is None else (agent_record(saved.run),)),
                _part("resources", "tools", () if saved.session is None else (session_record(saved.session),)),
            ),
            consumed=frozenset({ROLLOUT}) if consumed else frozenset(),
            recorded=SERVERS,
            present=SERVERS,
            live=live,
        )
    )
    return _told(made)


def _told(made: RestorePlan) -> Plan:
    verdict = made.verdicts[0]
    return Plan(
        verdict.disposition,
        verdict.attempt,
        verdict.next_attempt,
        bool(made.scope),
        tuple(each.attempt for each in made.retire),
        tuple(each.attempt for each in made.continuations),
        verdict.restarted("it failed").next_attempt,
    )


def _part(kind: str, instance: str, records: tuple[Record, ...]) -> Part:
    manifest = Manifest(
        kind=kind,
        instance=instance,
        checkpoint_id="ck-000001-000001",
        records_file="records.jsonl",
        records_sha256="0" * 64,
        record_count=len(records),
    )
    return Part(manifest, tuple(record_json(each) for each in records))
