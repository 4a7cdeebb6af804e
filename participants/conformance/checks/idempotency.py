"""The same call again: the same answer, nothing done twice; other arguments are another call, and refused (I15)."""

from __future__ import annotations

from typing import Final

import trio

from ..check import Group, check
from ..said import NotConforming, Said
from ..subject import Json, Subject

WRITTEN: Final = "protocol.md section 5"
NOBODY: Final[list[Json]] = [{"rollout_id": "nobody", "attempt": 0}]
OTHERS: Final[list[Json]] = [{"rollout_id": "somebody", "attempt": 0}]


@check(Group.IDEMPOTENCY, WRITTEN, "I15")
async def prepare_again(server: Subject) -> None:
    """A prepare that is repeated, also with another deadline, is answered as before and leaves the lease as it was."""
    checkpoint_id = server.new_id()
    body = server.body(checkpoint_id)
    first = (await server.post("prepare", body)).ok(phase="prepared")
    async with server.unchanged("prepare, again"):
        (await server.post("prepare", body)).again(first)
        (await server.call("prepare", checkpoint_id, within_s=1000.0)).again(first)


@check(Group.IDEMPOTENCY, WRITTEN, "I13", "I15")
async def prepares_at_once(server: Subject) -> None:
    """Of several equal prepares that come at the same time each is answered alike, and one checkpoint is open."""
    checkpoint_id = server.new_id()
    body = server.body(checkpoint_id)
    answers: list[Said] = []

    async def ask() -> None:
        answers.append(await server.post("prepare", body))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(ask)
    for each in answers:
        each.ok(phase="prepared")
    await server.stands("four prepares at once", phase="prepared", checkpoint_id=checkpoint_id)


@check(Group.IDEMPOTENCY, WRITTEN, "I13")
async def two_checkpoints_at_once(server: Subject) -> None:
    """Of prepares of two checkpoints that come at the same time one is answered, and the other one is a conflict."""
    answers: dict[str, Said] = {}

    async def ask(checkpoint_id: str) -> None:
        answers[checkpoint_id] = await server.call("prepare", checkpoint_id)

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(ask, server.new_id())
    first, second = sorted(answers, key=lambda each: answers[each].status)
    answers[first].ok(phase="prepared")
    answers[second].refused("checkpoint_conflict")
    await server.stands("two prepares at once", phase="prepared", checkpoint_id=first)


@check(Group.IDEMPOTENCY, WRITTEN, "I15", "I43", "S26")
async def commit_again(server: Subject) -> None:
    """A commit that is repeated is answered as before, whatever the order of its scope; another directory or scope is
    refused, and nothing comes to be there; what was written stays as it was.
    """
    folder, other = server.folder(), server.folder()
    checkpoint_id = server.new_id()
    first_prepare = await server.prepared(checkpoint_id)
    scope = [*NOBODY, *OTHERS]
    here: Json = {"checkpoint_dir": str(folder), "episode_ids": scope}
    first = (await server.call("commit", checkpoint_id, **here)).ok(phase="committed")
    written = await server.files(folder)
    async with server.unchanged("commit, again"):
        (await server.call("commit", checkpoint_id, **here)).again(first)
        (await server.call("commit", checkpoint_id, **here | {"episode_ids": scope[::-1]})).again(first)
        (await server.call("commit", checkpoint_id, within_s=-1000.0, **here)).again(first)
        scopes: list[list[Json]] = [NOBODY, [*scope, *NOBODY], []]
        others: list[Json] = [{"checkpoint_dir": str(other)}, *({"episode_ids": each} for each in scopes)]
        for changed in others:
            (await server.call("commit", checkpoint_id, **here | changed)).refused("checkpoint_conflict")
        (await server.call("prepare", checkpoint_id)).again(first_prepare)
    if await server.files(other):
        raise NotConforming("commit with another directory", f"files in {other}", "nothing there")
    if await server.files(folder) != written:
        raise NotConforming("commit, again", f"other files in {folder}", "those of the first commit, unchanged (I43)")


@check(Group.IDEMPOTENCY, WRITTEN, "I14", "I15")
async def resume_again(server: Subject) -> None:
    """A resume says whether it opened: the first time, and never again."""
    checkpoint_id = server.new_id()
    await server.prepared(checkpoint_id)
    (await server.call("resume", checkpoint_id)).ok(phase="idle", idempotent=False)
    async with server.unchanged("resume, again"):
        for _ in range(2):
            (await server.call("resume", checkpoint_id)).ok(phase="idle", idempotent=True)
        (await server.call("resume", server.new_id())).ok(phase="idle", idempotent=True)


@check(Group.IDEMPOTENCY, WRITTEN, "I15", "I8")
async def retire_and_forget_again(server: Subject) -> None:
    """Retire and forget answer with what they were asked for, as often as they are asked, whoever is meant."""
    episode = server.episode(2)
    first, later = server.new_id(), server.new_id()
    named = {"rollout_id": episode.rollout_id, "attempt": episode.attempt}
    lower = {"rollout_id": episode.rollout_id, "attempt": 0}
    before = await server.standing()
    for checkpoint_id in (first, first, later):
        (await server.call("retire", checkpoint_id, episode_ids=[named])).ok(retired=[episode.key])
        await server.stands("retire", retired=before.retired + 1)
    said = await server.call("retire", first, episode_ids=[lower, named, named])
    said.ok(retired=[episode.rollout_id, episode.key, episode.key])
    await server.stands(said.sent, retired=before.retired + 1)
    for checkpoint_id in (first, first, later):
        (await server.call("forget", checkpoint_id, rollout_ids=[episode.rollout_id])).ok(
            forgotten=[episode.rollout_id]
        )
        await server.stands("forget", retired=before.retired)
