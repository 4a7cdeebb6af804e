"""The caller of any call is gone before its answer, and asks again: the outcome is the same (S33)."""

from __future__ import annotations

from typing import Final

from ..check import Group, check
from ..said import NotConforming
from ..subject import Subject

WRITTEN: Final = "protocol.md section 5"


@check(Group.LOST_REPLIES, WRITTEN, "I15", "S33")
async def of_a_checkpoint(server: Subject) -> None:
    """Prepare, renew and resume whose answers are lost are done once, and answered when they are asked again."""
    checkpoint_id = server.new_id()
    body = server.body(checkpoint_id)
    await server.lost("prepare", body)
    first = (await server.post("prepare", body)).ok(phase="prepared")
    await server.lost("renew", body)
    (await server.post("renew", body)).ok()
    (await server.post("prepare", body)).again(first)
    await server.stands("prepare and renew, whose answers were lost", phase="prepared", checkpoint_id=checkpoint_id)
    await server.lost("resume", body)
    (await server.post("resume", body)).ok(phase="idle", idempotent=True)
    (await server.post("prepare", body)).refused("stale_checkpoint")


@check(Group.LOST_REPLIES, WRITTEN, "I15", "I43", "S33")
async def of_a_commit(server: Subject) -> None:
    """A commit whose answer is lost writes one part, which is what it answers when it is asked again."""
    folder = server.folder()
    checkpoint_id = server.new_id()
    await server.prepared(checkpoint_id)
    body = server.body(checkpoint_id, checkpoint_dir=str(folder), episode_ids=[])
    await server.lost("commit", body)
    said = (await server.post("commit", body)).ok(phase="committed")
    part = await server.part(folder, said)
    if said.body.get("manifest") != part.manifest.to_json():
        raise said.differs(f"the manifest that is on the disk: {part.manifest.to_json()}")
    files = await server.files(folder)
    if len(files) != 2:
        raise NotConforming(said.sent, f"files {', '.join(sorted(files))}", "two files: a manifest and its records")


@check(Group.LOST_REPLIES, WRITTEN, "I8", "I15", "S33")
async def of_retire_and_forget(server: Subject) -> None:
    """Retire and forget whose answers are lost are done once, and answered when they are asked again."""
    episode = server.episode()
    before = await server.standing()
    named = [{"rollout_id": episode.rollout_id, "attempt": episode.attempt}]
    body = server.body(server.new_id())
    await server.lost("retire", body | {"episode_ids": named})
    (await server.post("retire", body | {"episode_ids": named})).ok(retired=[episode.key])
    await server.stands("retire, whose answers were lost", retired=before.retired + 1)
    await server.lost("forget", body | {"rollout_ids": [episode.rollout_id]})
    (await server.post("forget", body | {"rollout_ids": [episode.rollout_id]})).ok(forgotten=[episode.rollout_id])
    await server.stands("forget, whose answers were lost", retired=before.retired)


@check(Group.LOST_REPLIES, WRITTEN, "I15", "I51", "S33")
async def of_a_restore(server: Subject) -> None:
    """A restore whose answer is lost installs once, and is answered when it is asked again."""
    folder = server.folder()
    checkpoint_id = server.new_id()
    await server.prepared(checkpoint_id)
    (await server.call("commit", checkpoint_id, checkpoint_dir=str(folder), episode_ids=[])).ok(phase="committed")
    await server.resumed(checkpoint_id)
    async with server.another() as other:
        restore_id = other.new_id()
        body = other.body(restore_id, checkpoint_dir=str(folder), episode_ids=[])
        await other.lost("restore", body)
        said = (await other.post("restore", body)).ok(phase="restored", restored=[], source_checkpoint_id=checkpoint_id)
        await other.stands(said.sent, phase="restored", checkpoint_id=restore_id)
        await other.resumed(restore_id)


@check(Group.LOST_REPLIES, WRITTEN, "I17", "S18", "S33")
async def of_a_prepare_that_waits(server: Subject) -> None:
    """A prepare whose caller leaves while it waits has closed the server; asked again it goes on waiting, and a resume
    ends it.
    """
    checkpoint_id = server.new_id()
    async with server.blocking():
        body = server.body(checkpoint_id, server.rules.moment_s)
        await server.lost("prepare", body)
        said = await server.call("prepare", checkpoint_id, within_s=server.rules.moment_s)
        said.ok(phase="preparing")
        await server.stands(said.sent, phase="preparing", checkpoint_id=checkpoint_id)
        await server.resumed(checkpoint_id)
    await server.stands("resume", phase="idle", checkpoint_id=None)
