"""A life begins: the root is claimed, a base chosen, the servers restored or opened.

Rules (docs/reference/protocol.md sections 7 and 11): claim first, then choose, then record, then read the claims again
(S62): results are released at a start too, and a later life may not have seen this one's base; the newest candidate
that is whole is taken (falling_back.py); a restore installs all or nothing over all servers (I51); every attempt <= N
of every known rollout is fenced before anything opens, and what a restore does not fence before anything is restored,
since from then on a lease may open a server; if it fails anywhere, N+1 is retired everywhere, the servers open, and the
rollouts start fresh as N+2.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from attrs import frozen

from statecore.seams import on_disk

from ..files.checkpoint import Checkpoint
from ..files.store import Store
from ..identity import EpisodeId
from ..net.client import Reply
from ..settings import Seams
from ..signals import RECOVERY_STEPS
from .deployment import BadReply, Failure, Member, call_all, resume_all
from .falling_back import take_newest_whole
from .housekeeping import retire_all
from .life import Life, log
from .outcomes import CoordinatorError, Damaged, Overtaken
from .recovery import RestorePlan, Server


@frozen
class Begun:
    """A claimed epoch and what it starts from.

    `overtaken` are published checkpoints that are not in its chain, `damaged` those of its chain that were passed over.
    """

    epoch: int
    checkpoint: Checkpoint | None
    overtaken: tuple[str, ...] = ()
    damaged: tuple[Damaged, ...] = ()

    @property
    def checkpoint_id(self) -> str | None:
        return None if self.checkpoint is None else self.checkpoint.manifest.checkpoint_id


async def claim_and_choose(store: Store, seams: Seams, *, fall_back: bool = True) -> Begun:
    """This life's epoch is claimed and its base recorded, and nobody has claimed since.

    CheckpointRejected when no candidate can be taken; Overtaken when there is a later claim.
    """
    return await on_disk(seams.disk, partial(_claim_and_choose, store, fall_back))


async def choose(store: Store, seams: Seams, epoch: int, *, fall_back: bool = True) -> Begun:
    """The base of a claim that is made is recorded. Raises as `claim_and_choose`."""
    return await on_disk(seams.disk, partial(_choose, store, epoch, fall_back))


def _claim_and_choose(store: Store, fall_back: bool) -> Begun:
    return _choose(store, store.claim(), fall_back)


def _choose(store: Store, epoch: int, fall_back: bool) -> Begun:
    taken = take_newest_whole(store, epoch, fall_back=fall_back)
    store.record_base(epoch, taken.start)
    if later := store.overtaken_by(epoch):
        raise Overtaken(f"{store.root}: epoch {epoch} is overtaken by epoch {later[-1]} before it began; nothing runs")
    return Begun(epoch, taken.checkpoint, taken.overtaken, taken.damaged)


def recorded_servers(checkpoint: Checkpoint) -> frozenset[Server]:
    """The participants that wrote it."""
    return frozenset(Server(each.kind, each.name, each.mode) for each in checkpoint.manifest.participants)


async def restore(life: Life, checkpoint: Checkpoint | None, plan: RestorePlan) -> str:
    """The servers are open, with the plan's continuations installed; returns "", or why all of them start fresh.

    Raises CoordinatorError when a server can be neither fenced nor opened: then nothing may run.
    """
    with life.seams.telemetry.span(RECOVERY_STEPS["restore"]):
        return await _restore(life, checkpoint, plan)


async def _restore(life: Life, checkpoint: Checkpoint | None, plan: RestorePlan) -> str:
    restore_id = life.next_id("rs")
    deadline_ts = life.seams.clock.time() + life.settings.restore_timeout_s
    await _fence(life, plan.retire, restore_id, deadline_ts)  # first: the lease of what is restored may end any time
    failed = ""
    if checkpoint is not None:
        try:
            await _install(life, checkpoint, plan.scope, restore_id, deadline_ts)
        except (Failure, BadReply) as error:
            failed = str(error)
            log.error("%s: restoring %s failed, everything starts fresh: %s", restore_id, checkpoint.directory, failed)
            deadline_ts = max(deadline_ts, life.seams.clock.time() + life.settings.resume_timeout_s)
            await _fence(life, plan.continuations, restore_id, deadline_ts)
    problems = await life.acknowledge()
    for problem in problems:
        log.warning("%s: not acknowledged yet: %s", restore_id, problem)
    resume_ts = life.seams.clock.time() + life.settings.resume_timeout_s
    closed = await resume_all(life.deployment.members, restore_id, resume_ts)
    if closed:
        raise CoordinatorError(f"{restore_id}: servers could not be opened: {'; '.join(closed)}")
    return failed


async def _fence(life: Life, episodes: Sequence[EpisodeId], restore_id: str, deadline_ts: float) -> None:
    """These attempts and all below them are over on every server. CoordinatorError where one cannot be told."""
    try:
        await retire_all(life.deployment, episodes, restore_id, deadline_ts, life.settings.retire_batch)
    except (Failure, BadReply) as failure:
        raise CoordinatorError(f"{restore_id}: old attempts could not be fenced: {failure}") from failure


async def _install(
    life: Life, checkpoint: Checkpoint, scope: Sequence[EpisodeId], restore_id: str, deadline_ts: float
) -> None:
    """Every server has installed its records of the scope, exactly those."""
    scoped = frozenset(scope)
    expected: dict[tuple[str, str], set[str]] = {}
    for part in checkpoint.parts:
        held = {record.episode_id for record in part.typed} & scoped
        expected[part.manifest.kind, part.manifest.instance] = {each.successor.key for each in held}

    def check(member: Member, reply: Reply) -> None:
        source, restored = reply.get("source_checkpoint_id"), reply.get("restored")
        if reply.get("phase") != "restored" or source != checkpoint.manifest.checkpoint_id:
            raise BadReply(f"{member.name}: its restore answered phase {reply.get('phase')!r} of {source!r}")
        wanted = expected.get((member.kind, member.instance), set())
        if not isinstance(restored, list) or set(map(str, restored)) != wanted:
            raise BadReply(f"{member.name}: it restored {restored!r}, and its part holds {sorted(wanted)}"[:500])

    body = {
        "checkpoint_id": restore_id,
        "checkpoint_dir": str(checkpoint.directory),
        "episode_ids": [{"rollout_id": each.rollout_id, "attempt": each.attempt} for each in scope],
    }
    await call_all(life.deployment.members, "restore", body, deadline_ts, check=check)
