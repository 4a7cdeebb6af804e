"""A server that hears nothing any more opens by itself (I21).

A lease lasts until the latest deadline and its grace. Nobody waits for that grace here: a prepare may carry a deadline
that has passed, so one is chosen whose lease is over in a moment.
"""

from __future__ import annotations

import math
from typing import Final

import trio

from ..check import Group, check
from ..said import NotConforming, NotTried
from ..subject import AHEAD_S, GRACE_S, Json, Subject

WRITTEN: Final = "protocol.md section 5"
COMMIT_S: Final = 3.0
"""How long a commit of nothing may take; its deadline cannot have passed, as that of a prepare can."""


@check(Group.LEASE, WRITTEN, "I21")
async def is_told_and_only_grows(server: Subject) -> None:
    """A status says until when the lease lasts: a renew moves it by its deadline, never back, and says so as well."""
    checkpoint_id = server.new_id()
    grace_s = await server.lease_grace_s()
    await server.prepared(checkpoint_id)
    for within_s in (2 * AHEAD_S, AHEAD_S, -AHEAD_S):
        before = (await server.standing()).lease_until or 0.0
        body = server.body(checkpoint_id, within_s)
        said = (await server.post("renew", body)).ok()
        expected = max(before, float(body["deadline_ts"]) + grace_s)
        if abs(float(said.answer.get("lease_expires_at") or 0.0) - expected) > 0.001:
            raise said.differs(f"lease_expires_at {expected}: {before} before, or the deadline and {grace_s:g} s")
        await server.stands(said.sent, lease_until=said.answer["lease_expires_at"])
    await server.resumed(checkpoint_id)
    await server.stands("resume", lease_until=None)


@check(Group.LEASE, WRITTEN, "I14", "I21")
async def ends_in_a_prepared_server(server: Subject) -> None:
    """Prepared, and left alone: at the end of its lease the server is idle, and the id is over."""
    await _left_alone(server, commits=False)


@check(Group.LEASE, WRITTEN, "I14", "I21")
async def ends_in_a_committed_server(server: Subject) -> None:
    """Committed, and left alone: at the end of its lease the server is idle, and the id is over."""
    server.folder()  # it is said first that a root is needed
    await _left_alone(server, commits=True)


@check(Group.LEASE, WRITTEN, "I14", "I20", "I21")
async def ends_in_a_waiting_server(server: Subject) -> None:
    """Not ready, and left alone: at the end of its lease the server is idle, whatever it waited for."""
    async with server.blocking():
        await _left_alone(server, commits=False)


@check(Group.LEASE, WRITTEN, "I17", "I21")
async def opens_the_gate(server: Subject) -> None:
    """At the end of its lease the server serves rollouts again, those that it held and new ones."""
    grace_s = await server.lease_grace_s()
    checkpoint_id = server.new_id()
    await server.call("prepare", checkpoint_id, within_s=server.rules.lease_s - grace_s)
    said = await server.touch(server.episode(), server.rules.lease_s + GRACE_S)
    if said is None:
        raise NotConforming("a data request while the lease ends", "no answer", "an answer once the lease is over")
    if said.code == "admission_closed":  # refused, not held: asked again when it is open
        await trio.sleep(server.rules.lease_s + server.rules.moment_s)
    await server.accepted(server.episode())


async def _left_alone(server: Subject, *, commits: bool) -> None:
    grace_s = await server.lease_grace_s()
    checkpoint_id = server.new_id()
    within_s = COMMIT_S if commits else server.rules.lease_s - grace_s
    if within_s + grace_s > server.rules.max_wait_s:
        raise NotTried(
            f"its lease lasts {grace_s:g} s behind the deadline of a commit: start the server with a "
            f"lease_grace_seconds of 1, or give --max-wait {math.ceil(within_s + grace_s)}"
        )
    said = (await server.call("prepare", checkpoint_id, within_s=within_s)).ok()
    if commits:
        more: Json = {"checkpoint_dir": str(server.folder()), "episode_ids": []}
        said = (await server.call("commit", checkpoint_id, within_s=within_s, **more)).ok(phase="committed")
    until = (await server.standing()).lease_until
    await trio.sleep(max((until or 0.0) - server.clock_now, 0.0) + server.rules.moment_s)
    await server.stands(f"nothing any more, after {said.sent}", phase="idle", checkpoint_id=None, lease_until=None)
    (await server.call("prepare", checkpoint_id)).refused("stale_checkpoint")
    (await server.call("renew", checkpoint_id)).refused("stale_checkpoint")
