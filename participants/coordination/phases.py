"""The phases of one checkpoint up to its publication: what each asks of the servers, the framework and the disk.

Rules (docs/reference/protocol.md sections 5, 6 and 8): one deadline bounds every wait; a server counts as contacted
before the call leaves, since its reply may be lost; the ledger, the consumed set and the dispatch set are read in one
piece, and the framework's state is not newer than they are (I84, S53); leases are renewed while it saves; each
participant proves afterwards that it is still committed (S32). Whatever fails here is a StageFailed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio
from attrs import define, field

from statecore.errors import StatecoreError

from ..files.draft import Committed, Draft
from ..files.snapshots import read_part
from ..files.store import Publication, StoreError
from ..identity import EpisodeId
from ..net.client import ControlError, Reply
from ..records.manifests import CheckpointId
from ..records.records import Disposition
from .cut import Cut
from .deployment import BadReply, Failure, Member, call_all
from .ledger import Ledger, rows_of
from .life import Life, log
from .outcomes import Blocker, Phase
from .recovery import Settled
from .trainer import HasPolicyVersion

COMMITTED: Final = "committed"
CONTINUE: Final = Disposition.CONTINUE
STATELESS: Final = "stateless"
CLOCK_SET_S: Final = 1.0  # calls end by their own bound first, and say which server it was


class StageFailed(Exception):
    """Internal: this checkpoint cannot be published. `broken`: an invariant did not hold.

    `retire`: it ended so that these executions can be retired, each with the reason, and tried again without them.
    """

    def __init__(
        self,
        reason: str,
        blockers: tuple[Blocker, ...] = (),
        *,
        broken: bool = False,
        retire: Mapping[EpisodeId, str] | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.blockers = blockers
        self.broken = broken
        self.retire = dict(retire or {})


@define(eq=False)
class Phases:
    """One checkpoint under way. `deadline` is on trio's clock, `deadline_ts` the same moment as servers get it.

    `reading` is the ledger that is published, `consumed` what the trainer's state contains with it, `policy_version`
    which weights; `settled` says what becomes of each rollout.
    """

    life: Life
    checkpoint_id: CheckpointId
    timeout_s: float
    deadline: float
    deadline_ts: float
    contacted: dict[str, Member] = field(factory=dict)
    times: list[Phase] = field(factory=list)
    cut: Cut = field(factory=Cut)
    draft: Draft | None = None
    commits: dict[str, Reply] = field(factory=dict)
    reading: Ledger = field(factory=Ledger)
    settled: dict[str, Settled] = field(factory=dict)
    consumed: frozenset[str] = frozenset()
    policy_version: tuple[int, int] | None = None

    def timed(self, name: str, began: float) -> None:
        """This phase ended now."""
        self.times.append(Phase(name, trio.current_time() - began))

    def clock_set_by_s(self) -> float:
        """How far somebody has set the wall clock forward since this checkpoint began."""
        return (self.deadline - trio.current_time()) - (self.deadline_ts - self.life.seams.clock.time())

    async def ask(
        self, members: Iterable[Member], verb: str, body: Mapping[str, Any], *, until: float | None = None, **how: Any
    ) -> dict[str, Reply]:
        """The replies of all; StageFailed says who gave none. `until`, on trio's clock, is an earlier deadline for them
        to answer by; what is lost on the way is asked for again until the checkpoint's own.
        """
        members = tuple(members)
        self.contacted |= {member.name: member for member in members}
        body = {"checkpoint_id": str(self.checkpoint_id), **body}
        try:
            grace_s = self.life.settings.control_retries.grace_s + CLOCK_SET_S
            with trio.move_on_at(self.deadline + grace_s):  # `deadline_ts` moves when somebody sets the wall clock
                if until is None or until >= self.deadline:
                    return await call_all(members, verb, body, self.deadline_ts, **how)
                earlier_ts = self.deadline_ts - (self.deadline - until)
                return await call_all(members, verb, body, earlier_ts, retry_until_ts=self.deadline_ts, **how)
            raise StageFailed(f"{verb}: not all servers answered within {self.timeout_s:g} s")
        except Failure as failure:
            raise StageFailed(str(failure)) from failure
        except BadReply as bad:
            raise StageFailed(str(bad), broken=True) from bad

    # --- commit

    async def commit(self) -> None:
        """Every participant has written its part of the scope."""
        scope = self.cut.choose_scope(self.life.ledger)
        try:
            self.draft = await self.life.disk(partial(self.life.store.begin, self.checkpoint_id))
        except StoreError as error:
            raise StageFailed(f"the checkpoint's directory cannot be made: {error}") from error
        body = {
            "checkpoint_dir": str(self.draft.directory),
            "episode_ids": [{"rollout_id": each.rollout_id, "attempt": each.attempt} for each in scope],
        }
        members = self.life.deployment.members
        self.commits = await self.ask(members, "commit", body, check=self._check_commit)

    def _check_commit(self, member: Member, reply: Reply) -> None:
        manifest, keys = reply.get("manifest"), reply.get("episode_ids")
        if reply.get("phase") != COMMITTED or not isinstance(manifest, dict) or not isinstance(keys, list):
            raise BadReply(f"{member.name}: a commit reply without phase, manifest or episode_ids")
        said = (manifest.get("kind"), manifest.get("instance"), manifest.get("checkpoint_id"))
        if said != (member.kind, member.instance, str(self.checkpoint_id)):
            raise BadReply(f"{member.name}: its manifest is of {said}")
        if len(set(map(str, keys))) != len(keys):
            raise BadReply(f"{member.name}: its commit reply names an episode twice")

    # --- settle

    async def settle(self) -> None:
        """It is known which parts agree; results that were on their way have arrived, or will be *fresh*."""
        await self.life.disk(self._read_parts)
        now = trio.current_time()
        with trio.move_on_at(now + (self.deadline - now) * self.life.settings.settle_share):
            for rollout_id in [each.episode.rollout_id for each in self.life.ledger.candidates()]:
                while self.cut.is_on_its_way(self.life.ledger[rollout_id]):  # once it is not, it never is again
                    await self.life.change()
        stateless = {member.instance for member in self.life.deployment.members if member.mode == STATELESS}
        standing = await self.life.disk(partial(self.cut.note_agreements, self.life.ledger, stateless))
        self.life.note(self.life.ledger.parked(standing))

    def _read_parts(self) -> None:
        """Synchronous, maybe in a thread: every part as its server wrote it, seen from here."""
        assert self.draft is not None
        parts = []
        for member in self.life.deployment.members:
            try:
                parts.append(
                    read_part(
                        self.life.seams.disk, self.draft.directory,
                        kind=member.kind, instance=member.instance, scope=self.cut.scope, foreign=True,
                    )
                )  # fmt: skip
            except StatecoreError as error:
                raise StageFailed(f"{member.name}: its part cannot be read here: {error}") from error
        self.cut.note_parts(parts)

    # --- the framework's half

    async def save(self) -> None:
        """The framework's half is captured, bound to one reading; results that come meanwhile reach it afterwards."""
        with trio.move_on_at(self.deadline):
            async with self.life.hooks:
                await self._save()
                return
        raise StageFailed(f"the framework's half was not saved within {self.timeout_s:g} s")

    async def _save(self) -> None:
        assert self.draft is not None
        draft = self.draft
        self.reading = self.life.ledger
        self.consumed = frozenset(await self._hook("consumed", self.life.trainer.consumed))
        if contradiction := self.reading.contradiction(self.consumed):
            raise StageFailed(contradiction, broken=True)
        self.settled = self.cut.dispositions(self.reading, self.life.deployment.sharing)
        dispositions = {rollout_id: each.disposition for rollout_id, each in self.settled.items()}
        try:
            directory = await self.life.disk(lambda: draft.framework_dir)
        except StatecoreError as error:
            raise StageFailed(f"the framework's directory cannot be made: {error}") from error
        failed: list[StageFailed] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_leases, nursery.cancel_scope, failed)
            try:
                await self._hook("save", partial(self._capture, directory, dispositions))
            except StageFailed as failure:
                failed.append(failure)
            nursery.cancel_scope.cancel()
        if failed:
            raise failed[0]

    async def _capture(self, directory: Path, dispositions: Mapping[str, Disposition]) -> None:
        """The framework has saved, and it is known which weights: those at this moment, or those that it names."""
        trainer = self.life.trainer
        version = trainer.policy_version if isinstance(trainer, HasPolicyVersion) else None
        said = await trainer.save(directory, dispositions)
        version = version if said is None else said
        if version is not None and not _is_pair(version):
            raise ValueError(f"a policy version is a pair of integers, (trainer life, step), not {version!r}")
        self.policy_version = version

    async def _hook(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await call()
        except Exception as error:
            log.exception("%s: the framework's %s failed", self.checkpoint_id, name)
            raise StageFailed(f"the framework's {name} failed: {type(error).__name__}: {error}") from error

    async def _keep_leases(self, saving: trio.CancelScope, failed: list[StageFailed]) -> None:
        """While the framework saves, every participant is asked to stay; one that does not ends the save early."""
        while True:
            await trio.sleep(self.life.settings.renew_every_s)
            try:
                await self.renew()
            except StageFailed as failure:
                failed.append(failure)
                saving.cancel()
                return

    async def renew(self) -> None:
        """Every participant answered that its lease of this checkpoint goes on."""
        replies = await self.ask(self.life.deployment.members, "renew", {})
        now = self.life.seams.clock.time()
        for name, reply in replies.items():
            expires = reply.get("lease_expires_at")
            if not isinstance(expires, (int, float)):  # somebody answered, who proves nothing
                raise StageFailed(f"{name}: its renew answered no lease_expires_at")
            if expires <= now:
                raise StageFailed(f"{name}: its lease has expired")

    async def prove(self) -> dict[str, str]:
        """The phase of every participant in this checkpoint, asked now.

        A renew is answered in any phase of an open checkpoint. The process that committed is beyond all others; one
        that shows no incarnation may be its successor, closed by a late prepare, and is asked for its phase (S32).
        """
        await self.renew()
        return {
            member.name: COMMITTED if member.incarnation else await self._phase_of(member)
            for member in self.life.deployment.members
        }

    async def _phase_of(self, member: Member) -> str:
        try:
            status = await member.control.status(timeout_s=max(0.0, self.deadline - trio.current_time()))
        except ControlError as error:
            raise StageFailed(str(error)) from error
        if status.get("checkpoint_id") != str(self.checkpoint_id):
            raise StageFailed(f"{member.name}: it has {status.get('checkpoint_id')!r} open, not this checkpoint")
        return str(status.get("phase"))

    def turns_held(self) -> int:
        """The finished turns of all rollouts that it continues."""
        rollouts = self.reading.rollouts
        held = (rollouts[name].episode for name, each in self.settled.items() if each.disposition is CONTINUE)
        return sum(self.cut.turns.get(episode, 0) for episode in held)

    # --- files

    async def write_and_validate(self) -> None:
        """Everything is on the disk, `checkpoint.json` last, and was read back."""
        assert self.draft is not None
        try:
            await self.life.disk(partial(self._write, self.draft, self.life.ledger))
            await self.life.disk(partial(self.life.store.validate, self.draft))
        except StatecoreError as error:
            raise StageFailed(f"it does not validate: {error}") from error

    def _write(self, draft: Draft, ledger: Ledger) -> None:
        """Synchronous, maybe in a thread. Whoever was registered during the save is in `ledger`, as queued (S40)."""
        draft.write_gym(
            Committed(
                kind=member.kind,
                name=member.instance,
                mode=member.mode,
                manifest=self.commits[member.name]["manifest"],
            )
            for member in self.life.deployment.members
        )
        settled = {name: (each.disposition, each.reason) for name, each in self.settled.items()}
        draft.write_coordinator(*rows_of(self.reading, ledger, settled, self.life.deployment.sharing))
        draft.seal_framework()
        draft.finish(self.policy_version)

    async def publish(self) -> Publication:
        """It is in force, by one rename; after a StageFailed the checkpoint before it is."""
        assert self.draft is not None
        if trio.current_time() > self.deadline:
            raise StageFailed(f"it was not ready to be published within {self.timeout_s:g} s")
        try:
            return await self.life.disk(partial(self.life.store.publish, self.draft))
        except StoreError as error:
            raise StageFailed(f"it cannot be published: {error}") from error

    async def discard(self) -> None:
        """What was written of an aborted checkpoint is gone, if nothing holds on to it."""
        if self.draft is not None:
            try:
                await self.life.disk(partial(self.life.store.discard, self.draft))
            except StoreError as error:
                log.warning("%s: what was written of it is left over: %s", self.checkpoint_id, error)


def _is_pair(version: object) -> bool:
    return isinstance(version, tuple) and len(version) == 2 and all(type(each) is int for each in version)


def report_of(reply: Reply) -> Mapping[str, Any]:
    """The report in a reply; an empty one where there is none."""
    report = reply.get("report")
    return report if isinstance(report, dict) else {}
