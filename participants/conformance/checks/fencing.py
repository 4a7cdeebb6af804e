"""What is over changes nothing any more: ended ids, older attempts, older epochs, calls for another process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import trio

from ...identity import EPOCH_HEADER, INCARNATION_HEADER, EpisodeId
from ..check import Group, check
from ..said import DoesNotApply, NotConforming, Said
from ..subject import Json, Subject

WRITTEN: Final = "protocol.md section 5"
STRANGER: Final = "0" * 32
Ask = Callable[[str, Json], Awaitable[None]]


def _calls(server: Subject, checkpoint_id: str) -> dict[str, Json]:
    """Every verb, in a body that would be accepted by a server that has this checkpoint open or is idle."""
    scope: Json = {"checkpoint_dir": "nowhere", "episode_ids": []}
    nobody: Json = {"episode_ids": [{"rollout_id": "nobody", "attempt": 0}]}
    more: dict[str, Json] = {"commit": scope, "restore": scope, "retire": nobody, "forget": {"rollout_ids": ["nobody"]}}
    verbs = ("prepare", "commit", "restore", "renew", "resume", "retire", "forget")
    return {verb: server.body(checkpoint_id, **more.get(verb, {})) for verb in verbs}


@check(Group.FENCING, WRITTEN, "I14")
async def an_id_that_has_ended(server: Subject) -> None:
    """An id that was resumed, or resumed before it was ever seen, closes nothing and writes nothing any more."""
    resumed, unseen = server.new_id(), server.new_id()
    await server.prepared(resumed)
    for checkpoint_id in (resumed, unseen):
        await server.resumed(checkpoint_id)
    async with server.unchanged("calls of an ended id"):
        for checkpoint_id in (resumed, unseen):
            for verb, body in _calls(server, checkpoint_id).items():
                if verb in ("prepare", "commit", "restore", "renew"):
                    (await server.post(verb, body)).refused("stale_checkpoint")


@check(Group.FENCING, WRITTEN, "I13", "I14")
async def another_id_while_one_is_open(server: Subject) -> None:
    """While a checkpoint is open every other one is refused, and above all cannot open the server."""
    checkpoint_id, other = server.new_id(), server.new_id()
    await server.prepared(checkpoint_id)
    async with server.unchanged("calls of another id"):
        for verb, body in _calls(server, other).items():
            (await server.post(verb, body)).refused("checkpoint_conflict")
    (await server.call("resume", checkpoint_id)).ok(idempotent=False)


@check(Group.FENCING, "protocol.md section 8", "I14", "I42", "I48")
async def a_resume_that_meets_its_commit(server: Subject) -> None:
    """Commit and resume of one checkpoint at the same time: the commit is answered with a whole part or refused, and
    once the resume is answered nothing more is written.
    """
    for _ in range(4):
        folder, checkpoint_id = server.folder(), server.new_id()
        await server.prepared(checkpoint_id)
        answers: dict[str, Said] = {}
        files: list[dict[str, bytes]] = []

        async def ask(verb: str, body: Json, answers: dict[str, Said] = answers) -> None:
            answers[verb] = await server.post(verb, body)

        async def resume(
            body: Json, ask: Ask = ask, folder: Path = folder, files: list[dict[str, bytes]] = files
        ) -> None:
            await ask("resume", body)
            files.append(await server.files(folder))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "commit", server.body(checkpoint_id, checkpoint_dir=str(folder), episode_ids=[]))
            nursery.start_soon(resume, server.body(checkpoint_id))
        answers["resume"].ok(phase="idle", idempotent=False)
        await trio.sleep(server.rules.moment_s)
        if _manifests(files[0]) != _manifests(await server.files(folder)):
            came = "a manifest that was not there when it was answered"
            raise NotConforming(answers["resume"].sent, came, "no manifest after that (I48)")
        if answers["commit"].status == 200:
            await server.part(folder, answers["commit"].ok(phase="committed"))
        else:
            answers["commit"].refused("stale_checkpoint")


def _manifests(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.endswith("manifest.json")}


@check(Group.FENCING, "protocol.md section 3", "S59")
async def a_call_for_another_process(server: Subject) -> None:
    """A call that is meant for another incarnation is refused and does nothing, open and closed; one for this is
    served.
    """
    if server.incarnation is None:
        raise DoesNotApply("its replies name no incarnation")
    checkpoint_id = server.new_id()
    headers = {INCARNATION_HEADER: STRANGER}
    for _ in ("open", "closed"):
        async with server.unchanged("calls for another process"):
            for verb, body in _calls(server, checkpoint_id).items():
                (await server.post(verb, body, headers=headers)).refused("stale_incarnation")
        await server.prepared(checkpoint_id, headers={INCARNATION_HEADER: server.incarnation})


@check(Group.FENCING, "protocol.md section 11", "S45")
async def a_call_of_an_older_epoch(server: Subject) -> None:
    """A control call of an older life is refused and does nothing. A server without an epoch is given one if there is
    a fresh process that may keep it.
    """
    if server.epoch is not None:
        if server.epoch < 1:
            raise DoesNotApply("it is of the first epoch, before which there is none")
        await _older_epoch(server, server.epoch)
        return
    async with server.another() as other:
        if other.epoch is None:
            checkpoint_id = other.new_id()
            other.epoch = 7
            await other.prepared(checkpoint_id)
            await other.resumed(checkpoint_id)
            if (await other.status()).ok().body.get("epoch") is None:
                raise DoesNotApply("it knows no epochs")
        await _older_epoch(other, other.epoch)


async def _older_epoch(server: Subject, epoch: int) -> None:
    checkpoint_id = server.new_id()
    async with server.unchanged("calls of an older epoch"):
        for verb, body in _calls(server, checkpoint_id).items():
            (await server.post(verb, body, headers={EPOCH_HEADER: str(epoch - 1)})).refused("stale_epoch")
        (await server.call("prepare", checkpoint_id, headers={EPOCH_HEADER: "none"})).refused("stale_epoch")


@check(Group.FENCING, "protocol.md section 3", "I6", "I7")
async def an_older_attempt(server: Subject) -> None:
    """Once an attempt was served, requests of the attempts below it get `stale_attempt`."""
    newer = server.episode(2)
    older = [server.attempt(EpisodeId(newer.rollout_id, attempt)) for attempt in (0, 1)]
    await server.accepted(newer)
    for each in older:
        await server.fenced(each)
    await server.accepted(server.attempt(newer.successor))


@check(Group.FENCING, "protocol.md section 3", "I6", "I7", "I8")
async def a_retired_attempt(server: Subject) -> None:
    """Requests of an attempt that was retired get `stale_attempt`; those of the next one are served."""
    episode = server.episode(1)
    await server.accepted(episode)
    named = [{"rollout_id": episode.rollout_id, "attempt": episode.attempt}]
    (await server.call("retire", server.new_id(), episode_ids=named)).ok(retired=[episode.key])
    await server.fenced(episode)
    await server.fenced(server.attempt(EpisodeId(episode.rollout_id)))
    await server.accepted(server.attempt(episode.successor))
