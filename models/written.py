"""What a checkpoint says of one rollout, in the types that production reads and writes.

A world keeps small values in its slots: positions, and what the coordinator knows. Here they become rows, records and
parts, so that what decides in a job decides in a world too: which executions are in scope, what the registry says of
each, whether a directory validates, and what a restart does with it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from participants.coordination.cut import Cut
from participants.coordination.ledger import Ledger, Rollout
from participants.coordination.recovery import CheckpointRejected, Found, Verdict, plan_restore
from participants.coordination.trainer import Dispatch
from participants.files.checkpoint import check_ledger, check_registry
from participants.files.files import InvalidCheckpointState
from participants.identity import EpisodeId
from participants.machines.handoff import LEDGER_ENTRY, Received
from participants.records.positions import SEED_HISTORY, Position, advance
from participants.records.records import (
    AgentBoundary,
    Disposition,
    LedgerRow,
    Manifest,
    Part,
    PartRef,
    Receipt,
    RegistryRow,
    ResourcesState,
    task_digest,
)
from statecore.wire import digest

TASK = "task"
BODY = "result"
EPISODE = EpisodeId("rollout", 0)
RECEIPT = Receipt(rollout_id="rollout", attempt=0, epoch=1, result_identity="0" * 32, result_sha256=digest(BODY))


@frozen(cache_hash=True)
class Known:
    """What the coordinator knows of a rollout: that its `/run` is out, that it continues a checkpoint's record, that
    its result is there; and of the checkpoint under way, whether it is cut, whether a server retains its result, and
    whether one cannot export it.
    """

    sent: bool = False
    restored: bool = False
    received: bool = False
    in_scope: bool = False
    retained: bool = False
    restart: bool = False

    @property
    def rollout(self) -> Rollout:
        """As the ledger has it."""
        rollout = Rollout(
            dispatch=Dispatch("rollout", TASK, "agent"),
            digest=task_digest(TASK),
            sent=self.sent,
            restored=self.restored,
        )
        if not self.received:
            return rollout
        entry, _ = LEDGER_ENTRY.step(rollout.entry, Received(RECEIPT.header))
        return evolve(rollout, entry=entry, receipt=RECEIPT, body=BODY)

    @property
    def ledger(self) -> Ledger:
        return Ledger({"rollout": self.rollout})

    def cut(self) -> Cut:
        return Cut(
            scope=frozenset({EPISODE}) if self.in_scope else frozenset(),
            retained={EPISODE} if self.retained else set(),
            restarts={EPISODE: "another"} if self.restart else {},
        )


@frozen(cache_hash=True)
class Kept:
    """What a checkpoint holds of a rollout: its row, the positions of its records (None: no record), its result.

    `whole`: every file that the checkpoint names is there.
    """

    disposition: Disposition
    turn: int | None
    revision: int | None
    saved: bool
    whole: bool = True


@cache
def position(revision: int) -> Position:
    """The position of a session after so many calls."""
    if revision == 0:
        return Position(0, SEED_HISTORY, "a" * 32)
    return advance(position(revision - 1), f"call {revision}")


@cache
def parts(turn: int | None, revision: int | None) -> tuple[Part, ...]:
    """An agent's part with a boundary after `turn`, and a tools server's with a session at `revision`."""
    episode_id = {"rollout_id": EPISODE.rollout_id, "attempt": EPISODE.attempt}
    found = []
    if turn is not None:
        reference = PartRef(kind="resources", instance="tools", key="session", position=position(turn))
        boundary = AgentBoundary(
            boundary_index=turn, previous=None, task_digest=task_digest(TASK), data_position=None,
            last_model_call_id=None, lineage_head=None, parts=(reference,), items=[], usage={}, cookies={},
            steps_used=turn, elapsed_s=0.0, state=None,
        )  # fmt: skip
        record: dict[str, Any] = {
            "episode_id": episode_id, "session_key": "key", "boundary": boundary.to_json(), "episode": {},
            "session": None,
        }  # fmt: skip
        found.append(_part("agent", record))
    if revision is not None:
        state = ResourcesState(codec="json", position=position(revision), operations={}, data=None)
        found.append(_part("resources", {"episode_id": episode_id, "session_id": "session", "state": state.to_json()}))
    return tuple(found)


def _part(kind: str, record: dict[str, Any]) -> Part:
    instance = "agent" if kind == "agent" else "tools"
    manifest = Manifest(
        kind=kind, instance=instance, checkpoint_id="ck-000001-000001", records_file="records.jsonl",
        records_sha256="0" * 64, record_count=1,
    )  # fmt: skip
    return Part(manifest, (record,))


@cache
def in_scope(known: Known) -> bool:
    """Whether the participants are told to save it (section 6, step 3)."""
    return bool(known.cut().choose_scope(known.ledger))


@cache
def settled(known: Known, turn: int | None, revision: int | None) -> Disposition:
    """What the registry says of it, when its records stand there (section 6, steps 5, 6 and 8)."""
    cut = known.cut()
    cut.note_parts(parts(turn, revision))
    cut.note_agreements(known.ledger, frozenset())
    return cut.dispositions(known.ledger)["rollout"].disposition


@cache
def is_valid(kept: Kept) -> bool:
    """Whether the directory validates when it is read (section 6, step 10, and section 7)."""
    owners = [EPISODE] if kept.turn is not None else []
    try:
        check_registry(Path("registry"), [_registry_row(kept)], owners)
        check_ledger(Path("ledger"), [_ledger_row(kept)], [_registry_row(kept)])
    except InvalidCheckpointState:
        return False
    return kept.whole


@cache
def restarted(kept: Kept) -> Verdict:
    """What a restart does with it (section 7); CheckpointRejected where it uses nothing of that checkpoint.

    The trainer rolls back with the checkpoint, and its state holds what the ledger has as saved.
    """
    if not is_valid(kept):
        raise CheckpointRejected(["it is damaged"])
    found = Found(
        registry=(_registry_row(kept),),
        ledger=(_ledger_row(kept),),
        parts=parts(kept.turn, kept.revision),
        consumed=frozenset({"rollout"}) if kept.saved else frozenset(),
    )
    (verdict,) = plan_restore(found).verdicts
    return verdict


def _registry_row(kept: Kept) -> RegistryRow:
    (row,) = Known().ledger.registry_rows({"rollout": (kept.disposition, "")})
    return row


def _ledger_row(kept: Kept) -> LedgerRow:
    (row,) = Known(received=kept.saved).ledger.ledger_rows()
    return row
