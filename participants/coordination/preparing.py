"""Prepare: every participant is closed and quiet, stage by stage. trio.

Rules (docs/reference/protocol.md sections 5, 6 and 12): one deadline bounds all stages; whoever keeps a server waiting
is told by name while there is still time, not only at the end (S10). After the soft share of the deadline the
checkpoint goes on without its stragglers, or ends for them, as its caller chose: who goes is decided in stragglers.py.
A server is told whom it need not wait for only if it says that it understands it, and a left-out execution is in
nobody's scope.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

import trio
from attrs import define, field

from ..identity import EpisodeId
from ..net.client import ControlError, Reply
from .cut import read_blockers
from .deployment import PREPARE_ORDER, Member
from .introduction import Role
from .life import Life, log
from .outcomes import Blocker, shown
from .phases import Phases, StageFailed, report_of
from .stragglers import LEAVE_OUT, Stragglers, concerned, named

PREPARED: Final = "prepared"
PREPARING: Final = "preparing"
TOLD_AT: Final = ((0.1, logging.INFO), (0.5, logging.WARNING), (0.9, logging.WARNING))
STATUS_S: Final = 5.0
ASK_AGAIN_S: Final = 1.0
EARLY_S: Final = 0.1


@define(eq=False)
class Preparation:
    """The prepare of one checkpoint; `run` it once. `waiting` are the servers whose answer is still out."""

    phases: Phases
    stragglers: Stragglers
    waiting: dict[str, Member] = field(factory=dict)
    _soft: float = field(init=False)
    _behind: list[Member] = field(init=False, factory=list)

    def __attrs_post_init__(self) -> None:
        share = 1.0 if self.stragglers is Stragglers.ABORT else self._life.settings.soft_share
        self._soft = self._moment(share)

    @property
    def _life(self) -> Life:
        return self.phases.life

    def _moment(self, share: float) -> float:
        """When that share of the deadline is over, on trio's clock."""
        return self.phases.deadline - (1.0 - share) * self.phases.timeout_s

    async def run(self) -> None:
        """All have answered that they are prepared; StageFailed, with who was in the way, if that cannot be."""
        failed: list[StageFailed] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_blockers)
            try:
                for role in PREPARE_ORDER:
                    await self._stage(role)
            except StageFailed as failure:
                failed.append(failure)
            nursery.cancel_scope.cancel()
        if failed:
            raise failed[0]

    # --- one stage

    async def _stage(self, role: Role) -> None:
        """The servers of this role are prepared. One that begins late has half of what is left for its soft share."""
        left = self._life.deployment.of(role)
        if not left:
            return
        began = trio.current_time()
        until = max(self._soft, self._half_way())
        while True:
            blockers = await self._asked(left, until)
            left = tuple(member for member in left if member.name in blockers)
            if not left:
                break
            said = tuple(each for member in left for each in blockers[member.name])
            early = until - trio.current_time()
            if early > EARLY_S and until < self.phases.deadline:  # a server that does not wait, or whose clock is ahead
                await trio.sleep(min(early, ASK_AGAIN_S))
                continue
            if until >= self.phases.deadline:
                self.phases.timed(f"prepare {role}", began)
                raise StageFailed(f"{role} servers were not ready in time{self._cannot(left)}", said)
            until = await self._late(role, left, said)
        self.phases.timed(f"prepare {role}", began)
        self._behind += self._life.deployment.of(role)

    async def _asked(self, members: tuple[Member, ...], until: float) -> dict[str, tuple[Blocker, ...]]:
        """Each of these is prepared, or it is here with who kept it waiting at `until`."""
        self.waiting = {member.name: member for member in members}
        try:
            replies = await self.phases.ask(
                members, "prepare", {}, until=until, more=self._without, fail_fast=True, until_prepared=True
            )
        finally:
            self.waiting = {}
        return {member.name: found for member in members if (found := self._read(member, replies[member.name]))}

    def _read(self, member: Member, reply: Reply) -> tuple[Blocker, ...]:
        """Who keeps the server waiting; nobody if it is prepared."""
        report = report_of(reply)
        self.phases.cut.note_report(member.name, report)
        if reply.get("phase") == PREPARED:
            return ()
        if reply.get("phase") != PREPARING:  # S7: the checkpoint ended there while it waited
            raise StageFailed(f"{member.name}: its prepare ended in phase {reply.get('phase')!r}")
        return read_blockers(member.name, report)

    # --- stragglers

    async def _late(self, role: Role, left: tuple[Member, ...], said: tuple[Blocker, ...]) -> float:
        """What is to be done about `said` is done; returns until when these servers are asked once more."""
        ledger = self._life.ledger
        candidates = {each.dispatch.rollout_id: each.episode for each in ledger.candidates()}
        units = ledger.units(self._life.deployment.sharing)
        if self.stragglers is Stragglers.RETIRE and all(each.unnamed or named([each]) for each in said):
            found = concerned(named(said), candidates, units).items()
            gone = {episode: why for episode, why in found if candidates.get(episode.rollout_id) == episode}
            if gone:
                early = f"{role} servers were not ready after {self._life.settings.soft_share:.0%} of the time"
                raise StageFailed(early, said, retire=gone)
        if self.stragglers is Stragglers.LEAVE_OUT:
            able = {member.name for member in left if LEAVE_OUT in member.features}
            blocking = named(each for each in said if each.server in able)
            gone = concerned(blocking, candidates, units)
            more = {episode: why for episode, why in gone.items() if episode not in self.phases.cut.left_out}
            if more:
                self.phases.cut.left_out |= more
                log.warning("%s: goes on without %s", self.phases.checkpoint_id, told(more))
                await self._keep(left)
                return self._half_way()
        await self._keep(left)
        return self.phases.deadline

    async def _keep(self, left: tuple[Member, ...]) -> None:
        """Who is prepared already was promised the soft share; it is to stay for the rest as well."""
        behind = [*self._behind, *(each for each in self._life.deployment.of(left[0].role) if each not in left)]
        if behind:
            await self.phases.ask(behind, "renew", {})

    def _half_way(self) -> float:
        now = trio.current_time()
        return now + (self.phases.deadline - now) / 2

    def _without(self, member: Member) -> Mapping[str, Any]:
        """What the prepare of this server says of executions that nobody waits for."""
        left_out = self.phases.cut.left_out
        if not left_out or LEAVE_OUT not in member.features:
            return {}
        return {
            LEAVE_OUT: [{"rollout_id": each.rollout_id, "attempt": each.attempt} for each in sorted(left_out)],
        }

    def _cannot(self, left: Iterable[Member]) -> str:
        """Who could not be told to go on without its stragglers."""
        if self.stragglers is not Stragglers.LEAVE_OUT:
            return ""
        unable = [member.name for member in left if LEAVE_OUT not in member.features]
        return f"; {', '.join(unable)} cannot leave anybody out" if unable else ""

    # --- who is waited for

    async def _tell_blockers(self) -> None:
        """The log says at three moments whom the servers wait for (S10)."""
        for share, level in TOLD_AT:
            await trio.sleep_until(self._moment(share))
            blockers = await self._seen()
            if blockers:
                log.log(
                    level,
                    "%s: after %.0f %% of %g s it waits for %s",
                    self.phases.checkpoint_id,
                    100 * share,
                    self.phases.timeout_s,
                    shown(blockers),
                )

    async def _seen(self) -> tuple[Blocker, ...]:
        """Who keeps the servers waiting that have not answered yet, as they say now."""
        found: dict[str, tuple[Blocker, ...]] = {}
        waiting = dict(self.waiting)

        async def look(member: Member) -> None:
            try:
                report = report_of(await member.control.status(timeout_s=STATUS_S, tries=1))
            except ControlError as error:
                found[member.name] = (Blocker(server=member.name, reason=f"it gives no status: {error}"),)
            else:
                found[member.name] = read_blockers(member.name, report) if report.get("ready") is False else ()

        async with trio.open_nursery() as nursery:
            for member in waiting.values():
                nursery.start_soon(look, member)
        return tuple(each for name in waiting for each in found[name])


def told(stragglers: Mapping[EpisodeId, str]) -> str:
    """Who, and why; not more than a line takes."""
    return shown(f"{episode.rollout_id} attempt {episode.attempt} ({why})" for episode, why in stragglers.items())
