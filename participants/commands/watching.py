"""What a root shows at one moment, and what has happened between two: all that `statecore watch` says, decided here.

A look reads names and small files alone, never records, so that watching a root with millions of records costs the job
nothing: whether a checkpoint is whole is `statecore inspect`'s to say. Reads only. docs/reference/protocol.md
sections 8 and 11 say what the files are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import evolve, field, frozen

from statecore.errors import StatecoreError
from statecore.seams import Clock, Disk, Entropy
from statecore.wire import parse, structure

from ..files.checkpoint import read_global_manifest
from ..files.draft import CHECKPOINT, FRAMEWORK, GYM_MANIFEST, LEDGER, REGISTRY
from ..files.snapshots import GYM, MANIFEST, split_lines
from ..files.store import Store, partial_name
from ..records.manifests import CheckpointId
from ..records.records import RegistryRow

__all__ = ["Happening", "Look", "PublishedLook", "UnderWay", "happened", "look"]


@frozen(kw_only=True)
class PublishedLook:
    """A published checkpoint, by its manifest and registry alone. `problem` is why these cannot be read."""

    checkpoint_id: str
    created_ts: float | None = None
    size_bytes: int = 0
    servers: tuple[str, ...] = ()
    dispositions: Mapping[str, int] = field(factory=dict)
    problem: str | None = None


@frozen(kw_only=True)
class UnderWay:
    """A draft: which servers have written their part, and how far the coordinator is. `since_ts`: first seen here."""

    checkpoint_id: str
    since_ts: float
    parts: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    step: str = ""


@frozen(kw_only=True)
class Look:
    """A root at one moment. `start` is what the newest life started from, None for nothing; `void`: it has not said.

    `published` are those of the newest life's chain, oldest first; `overtaken` those that no start takes; `left_over`
    the drafts of lives that are over, `set_aside` what retention has given up and not removed yet. `problem`: the chain
    is broken, and nothing is said of it.
    """

    directory: str
    ts: float
    epoch: int | None = None
    claimed_ts: float | None = None
    start: str | None = None
    void: bool = False
    published: tuple[PublishedLook, ...] = ()
    overtaken: tuple[str, ...] = ()
    under_way: UnderWay | None = None
    left_over: tuple[str, ...] = ()
    set_aside: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def in_force(self) -> PublishedLook | None:
        """The checkpoint that a start made now would take, if it is whole."""
        return self.published[-1] if self.published else None


@frozen
class Happening:
    """Something that has happened between two looks. `alarm`: somebody on call should know."""

    ts: float
    what: str
    alarm: bool = False


def look(root: Path, disk: Disk, clock: Clock, entropy: Entropy, before: Look | None = None) -> Look:
    """The root as it is now; what `before` has seen of a checkpoint that cannot change any more is not read again."""
    now = clock.time()
    store = Store(root, disk, entropy, clock)
    seen = Look(directory=str(root), ts=now)
    try:
        survey = store.survey()
    except (OSError, StatecoreError) as error:
        return evolve(seen, problem=str(error))
    known = {each.checkpoint_id: each for each in before.published if not each.problem} if before is not None else {}
    newest = survey.claims[-1] if survey.claims else None
    published = tuple(known.get(str(each)) or _published(disk, store, each) for each in reversed(survey.candidates))
    drafts = [CheckpointId.parse(name.removeprefix(".").removesuffix(".partial")) for name in survey.partial]
    ours = [each for each in drafts if each is not None and newest is not None and each.epoch == newest.epoch]
    current = max(ours, default=None)
    return evolve(
        seen,
        epoch=None if newest is None else newest.epoch,
        claimed_ts=None if newest is None else newest.claimed_ts,
        start=str(newest.base.start) if newest and newest.base and newest.base.start else None,
        void=newest is not None and newest.base is None,
        published=published,
        overtaken=tuple(map(str, survey.overtaken)),
        under_way=None if current is None else _under_way(disk, root, current, published, before, now),
        left_over=tuple(str(each) for each in drafts if each is not None and each != current),
        set_aside=tuple(name.removeprefix(".").removesuffix(".deleted") for name in survey.set_aside),
    )


def _published(disk: Disk, store: Store, checkpoint_id: CheckpointId) -> PublishedLook:
    directory = store.path(checkpoint_id)
    seen = PublishedLook(checkpoint_id=str(checkpoint_id))
    try:
        manifest = read_global_manifest(disk, directory, str(checkpoint_id))
        counts: dict[str, int] = {}
        for line in split_lines(disk, directory / REGISTRY):
            disposition = str(structure(parse(line), RegistryRow).disposition)
            counts[disposition] = counts.get(disposition, 0) + 1
    except (OSError, StatecoreError) as error:
        return evolve(seen, problem=str(error))
    files = (manifest.registry, manifest.ledger, manifest.gym, *manifest.framework)
    return evolve(
        seen,
        created_ts=manifest.created_ts,
        size_bytes=sum(each.size_bytes for each in files),
        servers=tuple(sorted(f"{each.kind}/{each.name}" for each in manifest.participants)),
        dispositions=counts,
    )


def _under_way(
    disk: Disk,
    root: Path,
    checkpoint_id: CheckpointId,
    published: tuple[PublishedLook, ...],
    before: Look | None,
    now: float,
) -> UnderWay:
    name = str(checkpoint_id)
    directory = root / partial_name(checkpoint_id)
    earlier = before.under_way if before is not None else None
    since_ts = earlier.since_ts if earlier is not None and earlier.checkpoint_id == name else now
    try:
        parts = tuple(sorted(_parts(disk, directory / GYM)))
        step = _step(disk, directory)
    except (OSError, StatecoreError):  # it was published or given up while it was looked at
        parts, step = (), "ending"
    expected = published[-1].servers if published else ()
    missing = tuple(each for each in expected if each not in parts) if step == "servers write their parts" else ()
    return UnderWay(checkpoint_id=name, since_ts=since_ts, parts=parts, missing=missing, step=step)


def _parts(disk: Disk, gym: Path) -> Iterator[str]:
    """The servers whose part has its manifest, as `kind/name`."""
    for kind in disk.listdir(gym) if disk.kind(gym) == "dir" else ():
        for name in disk.listdir(gym / kind) if disk.kind(gym / kind) == "dir" else ():
            if disk.kind(gym / kind / name / MANIFEST) is not None:
                yield f"{kind}/{name}"


def _step(disk: Disk, directory: Path) -> str:
    """How far the coordinator is, by the last file that is there."""
    if disk.kind(directory / CHECKPOINT) is not None:
        return "validated and published next"
    if disk.kind(directory / LEDGER) is not None or disk.kind(directory / GYM_MANIFEST) is not None:
        return "registry and ledger are written"
    if disk.kind(directory / FRAMEWORK) is not None:
        return "the framework saves its half"
    return "servers write their parts"


def happened(before: Look | None, now: Look) -> tuple[Happening, ...]:
    """What is new in `now`, in the order in which it must have come; at the first look only what asks for attention."""
    if now.problem is not None:
        if before is not None and before.problem == now.problem:
            return ()
        return (Happening(now.ts, f"the root is BROKEN, and nothing is restored from it: {now.problem}", alarm=True),)
    if before is None:
        return tuple(each for each in _news(Look(directory=now.directory, ts=now.ts), now) if each.alarm)
    if before.problem is not None:
        return (Happening(now.ts, "the root can be read again"),)
    return tuple(_news(before, now))


def _news(before: Look, now: Look) -> Iterator[Happening]:
    if now.epoch != before.epoch:
        yield Happening(now.ts, f"epoch {now.epoch} has claimed the root")
    known = {each.checkpoint_id for each in before.published}
    there = {each.checkpoint_id for each in now.published} | set(now.overtaken)
    old, new = before.under_way, now.under_way
    if old is not None and old.checkpoint_id not in there and (new is None or new.checkpoint_id != old.checkpoint_id):
        yield Happening(now.ts, f"{old.checkpoint_id} was given up", alarm=True)
    for each in now.published:
        if each.checkpoint_id not in known:
            what = "is in force" if each.problem is None else f"cannot be read: {each.problem}"
            yield Happening(now.ts, f"{each.checkpoint_id} {what}", alarm=each.problem is not None)
    for name in now.overtaken:
        if name not in before.overtaken:
            what = f"{name} was published by a coordinator that was overtaken; no start takes it"
            yield Happening(now.ts, what, alarm=True)
    for name in sorted(known - there):
        what = "is deleted by retention" if name in now.set_aside else "is gone"
        yield Happening(now.ts, f"{name} {what}")
    if new is not None and (old is None or new.checkpoint_id != old.checkpoint_id):
        yield Happening(now.ts, f"{new.checkpoint_id} is under way")
