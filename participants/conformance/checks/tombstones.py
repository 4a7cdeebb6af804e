"""Marks of retired attempts: never lowered, kept until they are forgotten, and no reason to leave others out."""

from __future__ import annotations

from typing import Final

from ...identity import EpisodeId
from ..check import Group, check
from ..said import NotConforming
from ..subject import Subject
from .restoring import named, saved

WRITTEN: Final = "protocol.md section 3"


@check(Group.TOMBSTONES, WRITTEN, "I7", "I8")
async def are_never_lowered(server: Subject) -> None:
    """Retiring a lower attempt afterwards leaves the mark of the higher one."""
    highest = server.episode(2)
    below = [server.attempt(EpisodeId(highest.rollout_id, attempt)) for attempt in (0, 1)]
    (await server.call("retire", server.new_id(), episode_ids=[named(highest)])).ok(retired=[highest.key])
    (await server.call("retire", server.new_id(), episode_ids=[named(below[0])])).ok(retired=[below[0].key])
    for each in (*below, highest):
        await server.fenced(each)
    await server.accepted(server.attempt(highest.successor))


@check(Group.TOMBSTONES, WRITTEN, "I8")
async def outlive_a_checkpoint(server: Subject) -> None:
    """A mark is there before, in and after a checkpoint, whether it ends by a resume or by its lease; only forget drops
    it.
    """
    episode = server.episode()
    before = await server.standing()
    (await server.call("retire", server.new_id(), episode_ids=[named(episode)])).ok(retired=[episode.key])
    checkpoint_id = server.new_id()
    await server.prepared(checkpoint_id)
    await server.stands("prepare, after a retire", retired=before.retired + 1)
    await server.resumed(checkpoint_id)
    await server.stands("resume, after a retire", retired=before.retired + 1)
    await server.fenced(episode)
    (await server.call("forget", server.new_id(), rollout_ids=[episode.rollout_id])).ok()
    await server.stands("forget", retired=before.retired)
    await server.accepted(episode)


@check(Group.TOMBSTONES, WRITTEN, "I6", "I8", "S13")
async def leave_out_nobody_else(server: Subject) -> None:
    """With an attempt retired, the next one of the same rollout is in the next checkpoint."""
    episode = server.episode()
    (await server.call("retire", server.new_id(), episode_ids=[named(episode)])).ok(retired=[episode.key])
    following = server.attempt(episode.successor)
    await server.start(following)
    kept = await saved(server, following)
    if not kept.part.records:
        raise NotConforming(f"commit of {following.key}", "an empty part", f"a record of {following.key} (S13)")
