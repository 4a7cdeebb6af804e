"""What a checkpoint or a root holds, looked at piece by piece, so that damage is named and the rest still shown.

Nothing here decides anything: whether a checkpoint is valid is `read_checkpoint`'s word, which of them would be
restored the chain's (docs/reference/protocol.md sections 7, 8 and 11). Reads only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from attrs import evolve, field, frozen

from statecore.errors import StatecoreError
from statecore.seams import Clock, Disk, Entropy
from statecore.wire import parse, structure

from ..files.checkpoint import read_checkpoint, read_global_manifest
from ..files.draft import CHECKPOINT, GYM_MANIFEST, LEDGER, REGISTRY
from ..files.files import InvalidCheckpointState, UnknownSchema, UnreadableState, check_file, hashed, walk
from ..files.snapshots import part_dir, read_manifest, scan_part, split_lines
from ..files.store import Store
from ..identity import EpisodeId
from ..records._fields import Json
from ..records.manifests import CheckpointId, FileRef, GlobalManifest, ParticipantEntry
from ..records.payloads import AgentBoundary
from ..records.records import LedgerRow, RegistryRow


@frozen(kw_only=True)
class PartView:
    """One participant's part. `problem` is what is wrong with it, None when its digests and counts are right."""

    kind: str
    name: str
    mode: str
    records: int
    size_bytes: int
    problem: str | None = None


@frozen(kw_only=True)
class FileView:
    """One file, or all of the framework's together."""

    name: str
    size_bytes: int
    files: int = 1
    rows: int | None = None
    problem: str | None = None


@frozen(kw_only=True)
class RolloutView:
    """One rollout: what a restart does with it, why, and what is held of it.

    `turns` are the completed turns of its newest agent record, None where no record of ours is there. `size_bytes` are
    its records in all parts and its result in the ledger.
    """

    rollout_id: str
    attempt: int
    group: str | None
    disposition: str
    reason: str
    turns: int | None
    size_bytes: int


@frozen(kw_only=True)
class CheckpointView:
    """One checkpoint directory. `problem` is why it cannot be used, None when it validates as a whole.

    `damaged`: that is damage. What cannot be read now, or was written by another version, is not.
    """

    directory: str
    checkpoint_id: str | None = None
    epoch: int | None = None
    created_ts: float | None = None
    policy_version: tuple[int, int] | None = None
    size_bytes: int = 0
    file_count: int = 0
    parts: tuple[PartView, ...] = ()
    files: tuple[FileView, ...] = ()
    rollouts: tuple[RolloutView, ...] = ()
    problem: str | None = None
    damaged: bool = False

    @property
    def dispositions(self) -> Counter[str]:
        """How many rollouts of each disposition."""
        return Counter(each.disposition for each in self.rollouts)


@frozen(kw_only=True)
class ClaimView:
    """One epoch: what it started from (None: nothing), or `void` when it never said."""

    epoch: int
    claimed_ts: float | None
    start: str | None
    void: bool


@frozen(kw_only=True)
class PublishedView:
    """One published checkpoint of a root and its standing: `candidate` or `overtaken`."""

    checkpoint_id: str
    standing: str
    created_ts: float | None
    size_bytes: int
    participants: int
    rollouts: int
    problem: str | None = None
    damaged: bool = False


@frozen(kw_only=True)
class RootView:
    """A whole root. `newest` is the first checkpoint that a start made now would try, `restored` the one that it takes.

    Both None: a fresh start. Damaged ones are passed over; only `restored` None: the start is refused, because of
    `refused`, which cannot be read or is the last of a chain that is damaged to its end. `problem` is a broken chain;
    then nothing is said of what would be restored.
    """

    directory: str
    claims: tuple[ClaimView, ...] = ()
    published: tuple[PublishedView, ...] = ()
    partial: tuple[str, ...] = ()
    latest: str | None = None
    newest: str | None = None
    restored: str | None = None
    refused: str | None = None
    problem: str | None = None

    @property
    def damaged(self) -> bool:
        """The chain is broken, or a checkpoint that a restart may try is damaged or cannot be read."""
        return self.problem is not None or any(each.problem and each.standing == "candidate" for each in self.published)


def view_checkpoint(disk: Disk, directory: Path, checkpoint_id: str | None = None) -> CheckpointView:
    """What is in `directory`, whole or damaged; `checkpoint_id` is the id that it should have, where that is known."""
    problem, damaged = None, False
    try:
        read_checkpoint(disk, directory, checkpoint_id=checkpoint_id, keep_records=False)
    except (OSError, StatecoreError) as error:
        problem = str(error)
        damaged = not isinstance(error, OSError | UnreadableState | UnknownSchema)
    try:
        sizes = [hashed(disk, path).size_bytes for path in walk(disk, directory)[0]]
    except (OSError, StatecoreError):  # a link or a device in it: `problem` says so
        sizes = []
    seen = CheckpointView(
        directory=str(directory), size_bytes=sum(sizes), file_count=len(sizes), problem=problem, damaged=damaged
    )
    try:
        manifest = read_global_manifest(disk, directory)
    except (OSError, StatecoreError):
        return seen
    held = _Held()
    parts = tuple(_part(disk, directory, entry, held) for entry in manifest.participants)
    return evolve(
        seen,
        checkpoint_id=manifest.checkpoint_id,
        epoch=manifest.epoch,
        created_ts=manifest.created_ts,
        policy_version=manifest.policy_version,
        parts=parts,
        files=tuple(_files(disk, directory, manifest)),
        rollouts=tuple(_rollouts(disk, directory, held)),
    )


def view_root(disk: Disk, directory: Path, clock: Clock, entropy: Entropy) -> RootView:
    """What the root holds; every published checkpoint is read whole."""
    store = Store(directory, disk, entropy, clock)
    published = store.published()
    latest = store.latest()
    try:
        survey = store.survey()
    except StatecoreError as error:
        views = tuple(_published(disk, store, each, "unknown") for each in published)
        return RootView(directory=str(directory), published=views, latest=latest, problem=str(error))
    views = tuple(
        _published(disk, store, each, "candidate" if each in survey.candidates else "overtaken") for each in published
    )
    by_name = {view.checkpoint_id: view for view in views}
    tried = [by_name[str(each)] for each in survey.candidates]
    taken = next((view for view in tried if not view.damaged), None)  # as falling_back.py does it
    stops = taken or (tried[-1] if tried else None)
    claims = tuple(
        ClaimView(
            epoch=claim.epoch,
            claimed_ts=claim.claimed_ts,
            start=str(claim.base.start) if claim.base and claim.base.start else None,
            void=claim.base is None,
        )
        for claim in survey.claims
    )
    return RootView(
        directory=str(directory),
        claims=claims,
        published=views,
        partial=survey.partial,
        latest=latest,
        newest=tried[0].checkpoint_id if tried else None,
        restored=taken.checkpoint_id if taken is not None and taken.problem is None else None,
        refused=stops.checkpoint_id if stops is not None and stops.problem is not None else None,
    )


@frozen
class _Held:
    """What the readable records hold of each rollout: its completed turns, and bytes."""

    turns: dict[str, int] = field(factory=dict)
    size_bytes: Counter[str] = field(factory=Counter)

    def add(self, kind: str, episode: EpisodeId, record: dict[str, Json]) -> None:
        self.size_bytes[episode.rollout_id] += len(json.dumps(record)) + 1
        if kind == "agent":
            boundary = AgentBoundary.read(record.get("boundary"))
            if boundary is not None:
                known = self.turns.get(episode.rollout_id, 0)
                self.turns[episode.rollout_id] = max(known, boundary.steps_used)


def _problem(check: Callable[[], object]) -> str | None:
    try:
        check()
    except (OSError, StatecoreError) as error:
        return str(error)
    return None


def _part(disk: Disk, directory: Path, entry: ParticipantEntry, held: _Held) -> PartView:
    size_bytes = 0

    def check() -> None:
        nonlocal size_bytes
        path = part_dir(directory, entry.kind, entry.name)
        size_bytes = sum(hashed(disk, each).size_bytes for each in walk(disk, path)[0])
        if hashed(disk, directory / entry.manifest).sha256 != entry.sha256:
            raise InvalidCheckpointState(f"{directory / entry.manifest} does not match its manifest digest")
        manifest = read_manifest(disk, directory, entry.kind, entry.name)
        for episode, record in scan_part(disk, directory, manifest, foreign=True):
            held.add(entry.kind, episode, record)

    problem = _problem(check)
    return PartView(
        kind=entry.kind,
        name=entry.name,
        mode=entry.mode,
        records=entry.record_count,
        size_bytes=size_bytes,
        problem=problem,
    )


def _files(disk: Disk, directory: Path, manifest: GlobalManifest) -> Iterator[FileView]:
    def view(name: str, ref: FileRef) -> FileView:
        problem = _problem(partial(check_file, disk, directory, ref))
        return FileView(name=name, size_bytes=ref.size_bytes, rows=ref.count, problem=problem)

    yield view(GYM_MANIFEST, manifest.gym)
    yield view(REGISTRY, manifest.registry)
    yield view(LEDGER, manifest.ledger)
    problems = [_problem(partial(check_file, disk, directory, ref)) for ref in manifest.framework]
    yield FileView(
        name="framework",
        files=len(manifest.framework),
        size_bytes=sum(ref.size_bytes for ref in manifest.framework),
        problem=next(filter(None, problems), None),
    )
    if manifest.tokens is not None:
        yield view("tokens/receipt.json", manifest.tokens)


def _rollouts(disk: Disk, directory: Path, held: _Held) -> Iterator[RolloutView]:
    try:
        registry = [structure(parse(line), RegistryRow) for line in split_lines(disk, directory / REGISTRY)]
        ledger = [(len(line) + 1, structure(parse(line), LedgerRow)) for line in split_lines(disk, directory / LEDGER)]
    except (OSError, StatecoreError):  # the file's own line says what is wrong with it
        return
    results = {row.rollout_id: size_bytes for size_bytes, row in ledger if row.receipt is not None}
    for row in registry:
        yield RolloutView(
            rollout_id=row.rollout_id,
            attempt=row.attempt,
            group=row.group,
            disposition=str(row.disposition),
            reason=row.reason,
            turns=held.turns.get(row.rollout_id),
            size_bytes=held.size_bytes[row.rollout_id] + results.get(row.rollout_id, 0),
        )


def _published(disk: Disk, store: Store, checkpoint_id: CheckpointId, standing: str) -> PublishedView:
    view = view_checkpoint(disk, store.path(checkpoint_id), str(checkpoint_id))
    return PublishedView(
        checkpoint_id=str(checkpoint_id),
        standing=standing,
        created_ts=view.created_ts,
        size_bytes=view.size_bytes,
        participants=len(view.parts),
        rollouts=len(view.rollouts),
        problem=view.problem,
        damaged=view.damaged,
    )


def is_checkpoint(disk: Disk, directory: Path) -> bool:
    """Whether the directory is one checkpoint, or was meant to be."""
    name = directory.name.removeprefix(".").removesuffix(".partial")
    return CheckpointId.parse(name) is not None or disk.kind(directory / CHECKPOINT) is not None


def is_root(disk: Disk, directory: Path) -> bool:
    """Whether the directory is a root: it holds a claim or a checkpoint."""
    names = disk.listdir(directory)
    return any(name.startswith("epoch-") or CheckpointId.parse(name) is not None for name in names)
