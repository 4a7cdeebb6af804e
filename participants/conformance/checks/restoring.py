"""What a server writes comes back: export, restore on a fresh process, export again, and compare (I35, S11)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from attrs import frozen

from statecore.seams import Disk, on_disk

from ...identity import EpisodeId
from ...records.records import Part
from ..check import Group, check
from ..said import DoesNotApply, NotConforming, Said, shown
from ..subject import Json, Subject

WRITTEN: Final = "protocol.md section 7"
FILES: Final = "files.md"


@frozen
class Saved:
    """A checkpoint of one execution: where it is, which records it has, and its id."""

    episode: EpisodeId
    folder: Path
    checkpoint_id: str
    part: Part

    @property
    def scope(self) -> list[Json]:
        return [named(self.episode)]


def named(episode: EpisodeId) -> Json:
    return {"rollout_id": episode.rollout_id, "attempt": episode.attempt}


async def saved(server: Subject, episode: EpisodeId) -> Saved:
    """The execution is in a checkpoint of this server, which is open again. DoesNotApply if it would start over."""
    folder, checkpoint_id = server.folder(), server.new_id()
    said = await server.prepared(checkpoint_id)
    if episode.key in said.body["report"]["restarts"]:
        raise DoesNotApply("it exports nothing: its executions start over")
    if server.mode == "stateless":
        raise DoesNotApply("it is stateless: there is nothing to export")
    said = await server.call("commit", checkpoint_id, checkpoint_dir=str(folder), episode_ids=[named(episode)])
    said.ok(phase="committed")
    part = await server.part(folder, said)
    if said.body.get("manifest") != part.manifest.to_json():
        raise said.differs(f"the manifest that is on the disk: {part.manifest.to_json()}")
    if part.manifest.checkpoint_id != checkpoint_id:
        raise NotConforming(said.sent, f"a manifest of {part.manifest.checkpoint_id}", checkpoint_id)
    keys = sorted({record_of(record).key for record in part.records})
    if keys != [episode.key] or said.body.get("episode_ids") != keys:
        raise said.differs(f"episode_ids [{episode.key}], and a record of it and of nobody else (there: {keys})")
    await server.resumed(checkpoint_id)
    return Saved(episode, folder, checkpoint_id, part)


def record_of(record: Json) -> EpisodeId:
    return EpisodeId(**record["episode_id"])


async def restored(server: Subject, source: Saved) -> str:
    """The checkpoint is restored on a fresh process, which is still closed; the id of the restore."""
    restore_id = server.new_id()
    more: Json = {"checkpoint_dir": str(source.folder), "episode_ids": source.scope}
    said = await server.call("restore", restore_id, **more)
    key = server.attempt(source.episode.successor).key
    said.ok(phase="restored", restored=[key], source_checkpoint_id=source.checkpoint_id)
    (await server.call("restore", restore_id, **more)).again(said)
    (await server.call("restore", restore_id, **more | {"episode_ids": []})).refused("checkpoint_conflict")
    await server.stands(said.sent, phase="restored", checkpoint_id=restore_id)
    return restore_id


@check(Group.EXPORT_RESTORE, WRITTEN, "I6", "I35", "I54", "I61", "I62", "S11", "S13")
async def comes_back_equal(server: Subject) -> None:
    """What was exported is restored as the next attempt on a fresh process, is closed until its resume, fences the
    attempt before, and is exported again as it was: positions, digests and all. Another fresh process has the same.
    """
    episode = server.episode()
    await server.start(episode)
    source = await saved(server, episode)
    for _ in ("once", "after a crash"):
        async with server.another() as other:
            other.attempt(episode)
            restore_id = await restored(other, source)
            await other.not_served(other.attempt(episode.successor))
            await other.resumed(restore_id)
            again = await saved(other, episode.successor)
            _equal(source, again)
            await other.fenced(episode)


def _equal(source: Saved, again: Saved) -> None:
    """Record for record the same, but for the attempt."""
    before, after = (sorted(map(_content, each.part.records), key=repr) for each in (source, again))
    if before == after:
        return
    where = next(((a, b) for a, b in zip(before, after, strict=False) if a != b), (before, after))
    raise NotConforming(
        f"restore of {source.episode.key}, then a commit of {again.episode.key}",
        f"{len(after)} records; the first that differs: {shown(where[1])}",
        f"the {len(before)} records that were restored (I35, S11): {shown(where[0])}",
    )


def _content(record: Json) -> Json:
    """A record without its attempt; of a model's rows who they are, as they get their capture key at a restore."""
    content = {name: value for name, value in record.items() if name != "episode_id"}
    if isinstance(content.get("rows"), list):
        content["rows"] = [(row.get("model_call_id"), row.get("staging_key")) for row in content["rows"]]
    return content


@check(Group.EXPORT_RESTORE, WRITTEN, "I39")
async def a_restart_is_named(server: Subject) -> None:
    """A server that cannot give an execution back says so: it is among `restarts`, blocks nobody, is in no part, and a
    commit that names it is refused.
    """
    episode = server.episode()
    await server.start(episode)
    checkpoint_id = server.new_id()
    said = await server.prepared(checkpoint_id)
    if episode.key not in said.body["report"]["restarts"]:
        raise DoesNotApply("its executions do not start over")
    folder = server.folder()
    more: Json = {"checkpoint_dir": str(folder), "episode_ids": [named(episode)]}
    (await server.call("commit", checkpoint_id, **more)).refused("restart_in_scope")
    said = (await server.call("commit", checkpoint_id, **more | {"episode_ids": []})).ok(episode_ids=[])
    if (await server.part(folder, said)).records:
        raise NotConforming(said.sent, "records in the part", "none: what starts over is not exported")


@check(Group.EXPORT_RESTORE, WRITTEN, "I52", "I53", "S29")
async def a_live_server_refuses(server: Subject) -> None:
    """A server that holds an execution refuses to restore over it, and goes on serving it."""
    episode = server.episode()
    await server.start(episode)
    source = await saved(server, episode)
    async with server.unchanged("restore on a live server"):
        more: Json = {"checkpoint_dir": str(source.folder), "episode_ids": source.scope}
        (await server.call("restore", server.new_id(), **more)).refused("checkpoint_error")
    await server.accepted(server.episode())


@check(Group.EXPORT_RESTORE, WRITTEN, "I52", "I54", "I60")
async def only_what_is_named(server: Subject) -> None:
    """A restore takes what its scope names and no more; unknown executions in it are no error."""
    kept, dropped = server.episode(), server.episode()
    await server.start(kept)
    await server.start(dropped)
    folder, checkpoint_id = server.folder(), server.new_id()
    said = await server.prepared(checkpoint_id)
    if server.mode == "stateless" or kept.key in said.body["report"]["restarts"]:
        raise DoesNotApply("it exports nothing")
    scope = [named(kept), named(dropped)]
    said = (await server.call("commit", checkpoint_id, checkpoint_dir=str(folder), episode_ids=scope)).ok()
    if said.body.get("episode_ids") != sorted([kept.key, dropped.key]):
        raise said.differs(f"episode_ids {sorted([kept.key, dropped.key])}")
    await server.resumed(checkpoint_id)
    async with server.another() as other:
        restore_id = other.new_id()
        scope = [named(other.attempt(kept)), {"rollout_id": "nobody", "attempt": 0}]
        said = await other.call("restore", restore_id, checkpoint_dir=str(folder), episode_ids=scope)
        said.ok(phase="restored", restored=[other.attempt(kept.successor).key])
        await other.resumed(restore_id)


@check(Group.EXPORT_RESTORE, FILES, "I40")
async def prepare_writes_nothing(server: Subject) -> None:
    """Nothing below the root comes, goes or changes from a prepare, so that backing out costs nothing."""
    server.folder()
    assert server.target.root is not None
    root = server.target.root
    names = await on_disk(server.disk, _listed, server.disk, root)
    checkpoint_id = server.new_id()
    await server.prepared(checkpoint_id)
    now = await on_disk(server.disk, _listed, server.disk, root)
    if now != names:
        came = f"{', '.join(sorted(now ^ names))} below the root"
        raise NotConforming("prepare", came, "no file to be written (I40)")


@check(Group.EXPORT_RESTORE, FILES, "I42", "I44", "I45", "I52", "S25")
async def what_is_damaged_is_refused(server: Subject) -> None:
    """A directory without a manifest, one with a changed byte, one of another server: 422 `invalid_checkpoint_state`,
    and the server is as it was, open.
    """
    source = server.folder()
    checkpoint_id = server.new_id()
    await server.prepared(checkpoint_id)
    (await server.call("commit", checkpoint_id, checkpoint_dir=str(source), episode_ids=[])).ok(phase="committed")
    await server.resumed(checkpoint_id)
    place = Path("gym") / server.kind / server.instance
    content = {Path(path).name: data for path, data in (await server.files(source / place)).items()}
    (records,) = (name for name in content if name != "manifest.json")
    stranger = content["manifest.json"].replace(
        f'"instance": "{server.instance}"'.encode(), b'"instance": "somebody-else"'
    )
    damages: dict[str, dict[str, bytes]] = {
        "an empty directory": {},
        "no manifest": {records: content[records]},
        "no records": {"manifest.json": content["manifest.json"]},
        "half a manifest": content | {"manifest.json": content["manifest.json"][:20]},
        "more bytes than the manifest says": content | {records: content[records] + b"{}\n"},
        "a manifest of another server": content | {"manifest.json": stranger},
    }
    for what, files in damages.items():
        folder = server.folder()
        await on_disk(server.disk, _laid_down, server.disk, folder / place, files)
        async with server.unchanged(f"a restore from {what}"):
            more: Json = {"checkpoint_dir": str(folder), "episode_ids": []}
            said = await server.call("restore", server.new_id(), **more)
            _invalid(said, what)


@check(Group.EXPORT_RESTORE, WRITTEN, "I17", "I51", "S25")
async def a_failed_restore_leaves_it_open(server: Subject) -> None:
    """After a restore that failed the server serves rollouts, and the same id may be tried again."""
    restore_id = server.new_id()
    for _ in range(2):
        said = await server.call("restore", restore_id, checkpoint_dir="nowhere", episode_ids=[])
        _invalid(said, "no such directory")
        await server.accepted(server.episode())


def _invalid(said: Said, what: str) -> None:
    if said.code != "invalid_checkpoint_state" or said.status != 422:
        raise said.differs(f"422 invalid_checkpoint_state: there is {what}")


def _listed(disk: Disk, below: Path) -> frozenset[str]:
    """The paths of all that is below a directory."""
    if disk.kind(below) != "dir":
        return frozenset({str(below)})
    return frozenset({str(below)}).union(*(_listed(disk, below / each) for each in disk.listdir(below)))


def _laid_down(disk: Disk, folder: Path, files: dict[str, bytes]) -> None:
    disk.mkdir(folder, parents=True)
    for name, data in files.items():
        with disk.create(folder / name) as file:
            file.write(data)
