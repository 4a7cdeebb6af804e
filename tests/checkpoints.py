"""Whole checkpoints for tests: four servers, one rollout of each disposition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from participants.files.draft import Committed, Draft
from participants.files.snapshots import write_part
from participants.files.store import Store
from participants.records.manifests import CheckpointId
from participants.records.records import Disposition, LedgerRow, LedgerStatus, Receipt, RegistryRow, task_digest
from statecore.seams import Disk, FixedClock, SeededEntropy
from statecore.wire import digest

ROOT = Path("/shared/checkpoints")
SERVERS = [("environment", "env"), ("model", "policy"), ("agent", "agent"), ("resources", "tools")]
ENTROPY = SeededEntropy("store")


def store_on(disk: Disk, root: Path = ROOT) -> Store:
    return Store(root, disk, ENTROPY, FixedClock(1_790_000_000.0))


def started(disk: Disk, root: Path = ROOT) -> tuple[Store, int]:
    """A store whose life has claimed and recorded its base: the newest candidate."""
    store = store_on(disk, root)
    epoch = store.claim()
    tried = store.candidates(epoch)
    store.record_base(epoch, tried[0] if tried else None)
    return store, epoch


# --- one whole checkpoint: r0 continues, r1 is completed, r2 starts over, r3 waits


def records_of(kind: str, rollouts: int) -> list[dict[str, Any]]:
    own: dict[str, dict[str, Any]] = {
        "environment": {"task_digest": task_digest({"n": 0}), "boundary": {"step": 1}},
        "model": {"generation_cuts": [], "rows": [{"model_call_id": "m1"}]},
        "agent": {"session_key": "k", "boundary": {"turn": 2}, "episode": None, "session": {}},
        "resources": {"session_id": "s", "state": {"value": 7}},
    }
    return [{"episode_id": {"rollout_id": f"c{n}", "attempt": 1}, **own[kind]} for n in range(rollouts)]


def registry(rollouts: int = 1, **changes: Any) -> list[RegistryRow]:
    names = {f"c{n}": Disposition.CONTINUE for n in range(rollouts)}
    names |= {"done": Disposition.COMPLETED, "again": Disposition.FRESH, "waits": Disposition.QUEUED}
    return [
        RegistryRow(
            rollout_id=name,
            attempt=1,
            task={"n": n},
            task_digest=task_digest({"n": n}),
            target="env",
            disposition=disposition,
        )
        for n, (name, disposition) in enumerate(names.items())
    ]


def ledger() -> list[LedgerRow]:
    body = {"reward": 1.0}
    receipt = Receipt(rollout_id="done", attempt=1, epoch=1, result_identity="1" * 32, result_sha256=digest(body))
    return [
        LedgerRow(rollout_id="c0", attempt=1, status=LedgerStatus.LIVE),
        LedgerRow(rollout_id="done", attempt=1, status=LedgerStatus.SAVED, receipt=receipt, body=body),
    ]


def write_parts(disk: Disk, draft: Draft, rollouts: int = 1) -> list[Committed]:
    committed = []
    for kind, name in SERVERS:
        manifest = write_part(
            disk,
            draft.directory,
            kind=kind,
            instance=name,
            checkpoint_id=str(draft.checkpoint_id),
            records=records_of(kind, rollouts),
            extra={"epoch": draft.checkpoint_id.epoch, "incarnation": f"of-{name}"},
            entropy=ENTROPY,
        )
        committed.append(Committed(kind=kind, name=name, mode="export_restore", manifest=manifest.to_json()))
    return committed


def framework_writes(disk: Disk, draft: Draft) -> None:
    directory = draft.framework_dir
    disk.mkdir(directory / "shards")
    for name in ("trainer.json", "shards/0.bin"):
        with disk.create(directory / name) as file:
            file.write(f"{name} of {draft.checkpoint_id}".encode())


def finished(
    disk: Disk,
    store: Store,
    epoch: int,
    seq: int,
    *,
    rows: list[RegistryRow] | None = None,
    results: list[LedgerRow] | None = None,
    rollouts: int = 1,
) -> Draft:
    draft = store.begin(CheckpointId(epoch, seq))
    draft.write_gym(write_parts(disk, draft, rollouts))
    draft.write_coordinator(registry(rollouts) if rows is None else rows, ledger() if results is None else results)
    framework_writes(disk, draft)
    draft.seal_framework()
    draft.write_tokens({"checkpoint_id": str(draft.checkpoint_id), "snapshot": "tq-1"})
    draft.finish(policy_version=(epoch, 40))
    return draft


def publish(disk: Disk, store: Store, epoch: int, seq: int) -> CheckpointId:
    draft = finished(disk, store, epoch, seq)
    store.validate(draft)
    return store.publish(draft).checkpoint_id
