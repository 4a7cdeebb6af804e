"""Deadlines are absolute, and no call runs past its own (I18)."""

from __future__ import annotations

from typing import Final

import trio

from ..check import Group, check
from ..said import NotConforming, Said
from ..subject import GRACE_S, PAST_S, Json, Subject

WRITTEN: Final = "protocol.md section 5"


@check(Group.DEADLINES, WRITTEN, "I18")
async def in_the_past(server: Subject) -> None:
    """With a deadline in the past commit, restore, retire and forget are refused and do nothing, resume is done."""
    checkpoint_id = server.new_id()
    nobody = [{"rollout_id": "nobody", "attempt": 0}]
    async with server.unchanged("calls that are late, on an open server"):
        calls: dict[str, Json] = {
            "restore": {"checkpoint_dir": "nowhere", "episode_ids": []},
            "retire": {"episode_ids": nobody},
            "forget": {"rollout_ids": ["nobody"]},
        }
        for verb, more in calls.items():
            (await server.call(verb, checkpoint_id, within_s=-PAST_S, **more)).refused("deadline_exceeded")
    await server.prepared(checkpoint_id)
    async with server.unchanged("a commit that is late"):
        scope: Json = {"checkpoint_dir": "nowhere", "episode_ids": nobody}
        (await server.call("commit", checkpoint_id, within_s=-PAST_S, **scope)).refused("deadline_exceeded")
    (await server.call("resume", checkpoint_id, within_s=-PAST_S)).ok(phase="idle", idempotent=False)


@check(Group.DEADLINES, WRITTEN, "I18")
async def a_prepare_in_the_past(server: Subject) -> None:
    """A prepare whose deadline has passed does what can be done at once: a quiet server is prepared."""
    grace_s = await server.lease_grace_s()
    checkpoint_id = server.new_id()
    (await server.call("prepare", checkpoint_id, within_s=-min(PAST_S, grace_s / 2))).ok(phase="prepared")
    (await server.call("renew", checkpoint_id)).ok()
    (await server.call("resume", checkpoint_id)).ok(phase="idle", idempotent=False)


@check(Group.DEADLINES, "routes.md section 1")
async def as_text(server: Subject) -> None:
    """A deadline that is a number in a string is that number."""
    checkpoint_id = server.new_id()
    body = server.body(checkpoint_id)
    (await server.post("prepare", body | {"deadline_ts": str(body["deadline_ts"])})).ok(phase="prepared")


@check(Group.DEADLINES, WRITTEN, "I18")
async def a_wait_ends_at_its_deadline(server: Subject) -> None:
    """A prepare that waits answers `preparing` at its deadline, not before and not long after, and stays closed; with a
    later deadline it goes on waiting.
    """
    checkpoint_id = server.new_id()
    async with server.blocking():
        for _ in range(2):
            deadline_ts = server.deadline(server.rules.moment_s)
            said = await server.post("prepare", {"checkpoint_id": checkpoint_id, "deadline_ts": deadline_ts})
            late_s = server.clock_now - deadline_ts
            said.ok(phase="preparing")
            if not -0.1 <= late_s <= GRACE_S:
                raise NotConforming(said.sent, f"answered {late_s:+.2f} s from the deadline", "at the deadline")
            await server.stands(said.sent, phase="preparing", checkpoint_id=checkpoint_id)


@check(Group.DEADLINES, WRITTEN, "I18", "S7")
async def what_comes_while_a_prepare_waits(server: Subject) -> None:
    """Status and renew are answered while a prepare waits; a resume ends that wait at once, and it answers `idle`."""
    checkpoint_id = server.new_id()
    answers: list[Said] = []

    async def wait() -> None:
        answers.append(await server.call("prepare", checkpoint_id, within_s=30.0))

    async with server.blocking(), trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(server.rules.moment_s)
        with trio.move_on_after(GRACE_S) as scope:
            (await server.call("renew", checkpoint_id)).ok()
            (await server.call("resume", checkpoint_id)).ok(phase="idle", idempotent=False)
            while not answers:  # noqa: ASYNC110 (the answer is somebody else's to set)
                await trio.sleep(server.rules.moment_s / 10)
        if scope.cancelled_caught:
            raise NotConforming("renew and resume while a prepare waits", "they wait too", "answers at once (S7)")
    answers[0].ok(phase="idle")
    await server.stands("resume while a prepare waits", phase="idle", checkpoint_id=None)
