"""The checkpoint of schema version 1 that is kept in tests/data/ for ever, and what it holds.

`python -m tests.schema_1 DIR` writes it into an empty directory. Once a release has written checkpoints of this schema
the stored one is not made anew: a change of form is another schema version, with a stored checkpoint of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from participants.files.draft import Committed
from participants.files.snapshots import write_part
from participants.files.store import Store
from participants.identity import EpisodeId
from participants.records.manifests import CheckpointId
from participants.records.positions import Position, advance
from participants.records.records import (
    AgentBoundary,
    AgentRecord,
    AgentSessions,
    Disposition,
    EnvironmentBoundary,
    EnvironmentRecord,
    LedgerRow,
    LedgerStatus,
    ModelRecord,
    ModelRow,
    PartRef,
    Receipt,
    Record,
    RegistryRow,
    ResourcesRecord,
    ResourcesState,
    boundary_digest,
    record_json,
    task_digest,
)
from statecore.seams import Disk, FixedClock, SeededEntropy, SystemDisk
from statecore.wire import digest

NAME = CheckpointId(1, 1)
TASK = {"question": "2 + 2 = ?", "z": 1, "a": {"é": None}}
EPISODE = EpisodeId("run-0007", 1)
SEEDED = Position(0, "0" * 32, "a1" * 16)
AT_TWO = advance(advance(SEEDED, "op-1"), "op-2")

FIRST = AgentBoundary(
    boundary_index=1,
    previous=None,
    task_digest=task_digest(TASK),
    data_position=7,
    last_model_call_id="call-1",
    lineage_head="b2" * 16,
    parts=(PartRef(kind="resources", instance="tools", key="s-1", position=advance(SEEDED, "op-1")),),
    items=[{"role": "user", "content": "2 + 2 = ?"}],
    usage={"total_tokens": 11},
    cookies={"tools": {"session": "signed"}},
    steps_used=1,
    elapsed_s=0.25,
    state={"b": 1, "a": 2},
)
SECOND = AgentBoundary(
    boundary_index=2,
    previous=boundary_digest(FIRST.to_json()),
    task_digest=task_digest(TASK),
    data_position=7,
    last_model_call_id="call-2",
    lineage_head="c3" * 16,
    parts=(PartRef(kind="resources", instance="tools", key="s-1", position=AT_TWO),),
    items=[{"role": "user", "content": "2 + 2 = ?"}, {"role": "assistant", "content": "4\u2028"}],
    usage={"total_tokens": 31},
    cookies={"tools": {"session": "signed"}},
    steps_used=2,
    elapsed_s=1.5,
    state={"b": 2, "a": -0.0},
)

RECORDS: dict[tuple[str, str], list[Record]] = {
    ("environment", "env"): [
        EnvironmentRecord(
            episode_id=EPISODE,
            task_digest=task_digest(TASK),
            boundary=EnvironmentBoundary(
                step_index=1,
                results=[{"seeded": True}],
                state=None,
                sessions={"agent": AgentSessions(session_key="k-1", activations=1)},
            ).to_json(),
        )
    ],
    ("agent", "agent"): [
        AgentRecord(episode_id=EPISODE, session_key="k-1", boundary=SECOND.to_json(), session={"id": "k-1"})
    ],
    ("model", "policy"): [
        ModelRecord(
            episode_id=EPISODE,
            rows=(
                ModelRow(model_call_id="call-1", capture_key="run-0007", request_digest="d4" * 32, epoch=1).to_json(),
                ModelRow(
                    model_call_id="call-2",
                    capture_key="run-0007-a1",
                    parent_call_id="call-1",
                    request_digest="e5" * 32,
                    staging_key="run-0007-a1/call-2",
                    policy_version=(1, 40),
                    epoch=1,
                    extra={"only_its_writer_knows": [1, 2]},
                ).to_json(),
            ),
        )
    ],
    ("resources", "tools"): [
        ResourcesRecord(
            episode_id=EPISODE,
            session_id="s-1",
            state=ResourcesState(
                codec="counter/1",
                position=AT_TWO,
                operations=[{"operation_id": "op-2", "reply": {"value": 5}}],
                data={"value": 5, "random": 2**127 + 1},
            ).to_json(),
        )
    ],
}

BODY = {"reward": 1.0, "output": "4"}
RECEIPT = Receipt(
    rollout_id="run-0008",
    attempt=0,
    epoch=1,
    execution_generation=1,
    result_identity="f6" * 16,
    result_sha256=digest(BODY),
)


def row(rollout_id: str, attempt: int, disposition: Disposition, reason: str) -> RegistryRow:
    return RegistryRow(
        rollout_id=rollout_id,
        attempt=attempt,
        group="run",
        task=TASK,
        task_digest=task_digest(TASK),
        data_position=int(rollout_id[-1]),
        target="env",
        unit=None,
        disposition=disposition,
        reason=reason,
    )


REGISTRY = (
    row("run-0007", 1, Disposition.CONTINUE, "all parts agree"),
    row("run-0008", 0, Disposition.COMPLETED, "its result is in the ledger"),
    row("run-0009", 2, Disposition.FRESH, "restart: tools cannot export it"),
    row("run-0010", 0, Disposition.QUEUED, "never started"),
)
LEDGER = (
    LedgerRow(rollout_id="run-0007", attempt=1, status=LedgerStatus.LIVE),
    LedgerRow(rollout_id="run-0008", attempt=0, status=LedgerStatus.SAVED, receipt=RECEIPT, body=BODY),
)
FRAMEWORK: dict[str, Any] = {"trainer.json": b'{"step": 40}', "weights.bin": bytes(range(256))}


def write(disk: Disk, root: Path) -> None:
    """The root holds one life and its one published checkpoint; always the same bytes."""
    entropy = SeededEntropy("schema 1")
    store = Store(root, disk, entropy, FixedClock(1_790_000_000.0))
    store.record_base(store.claim(), None)
    draft = store.begin(NAME)
    committed = []
    for (kind, instance), records in RECORDS.items():
        manifest = write_part(
            disk,
            draft.directory,
            kind=kind,
            instance=instance,
            checkpoint_id=str(NAME),
            records=map(record_json, records),
            extra={"epoch": 1, "incarnation": entropy.token_hex(16)},
            entropy=entropy,
        )
        committed.append(Committed(kind=kind, name=instance, mode="export_restore", manifest=manifest.to_json()))
    draft.write_gym(committed)
    draft.write_coordinator(REGISTRY, LEDGER)
    for name, content in FRAMEWORK.items():
        with disk.create(draft.framework_dir / name) as file:
            file.write(content)
    draft.seal_framework()
    draft.write_tokens({"checkpoint_id": str(NAME), "snapshot": "rows-1"})
    draft.finish(policy_version=(1, 40))
    store.validate(draft)
    store.publish(draft)


if __name__ == "__main__":
    write(SystemDisk(), Path(sys.argv[1]))
