"""An attempt that is given up while the job runs on: retired on every server, and only then tried again. trio.

Rules (docs/reference/protocol.md sections 7 and 12): a retry is *retire, then dispatch*; whoever waits for the answer
of the attempt takes a result that comes all the same, and then there is no retry; an attempt that could not be retired
on every server has no successor in this life.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio
from attrs import define, field

from ..identity import EpisodeId
from .deployment import BadReply, Deployment, Failure
from .housekeeping import retire_all


@define(eq=False)
class Retirement:
    """Of one attempt; `done` once it has succeeded or failed."""

    everywhere: bool = False
    done: trio.Event = field(factory=trio.Event)

    async def succeeded(self) -> bool:
        """Whether the attempt is over on every server; waits until that is known."""
        await self.done.wait()
        return self.everywhere


@define(eq=False)
class Retirements:
    """All of one life that are under way, or whose attempt nobody has asked about yet."""

    _known: dict[EpisodeId, Retirement] = field(factory=dict)

    async def retire(
        self,
        episodes: Iterable[EpisodeId],
        deployment: Deployment,
        checkpoint_id: str,
        deadline_ts: float,
        batch: int,
    ) -> str:
        """These attempts are over everywhere; returns "", or why they may not be. The servers must be open."""
        under_way = {episode: Retirement() for episode in episodes}
        self._known |= under_way  # before anything leaves: the answer of an attempt may come before ours
        problem = "it was given up"
        try:
            await retire_all(deployment, under_way, checkpoint_id, deadline_ts, batch)
            problem = ""
        except (Failure, BadReply) as error:
            problem = str(error)
        finally:
            for retirement in under_way.values():
                retirement.everywhere = not problem
                retirement.done.set()
        return problem

    def of(self, episode: EpisodeId) -> Retirement | None:
        """The retirement of this attempt, under way or over; None if there is none."""
        return self._known.get(episode)

    def forget(self, episode: EpisodeId) -> None:
        """What came of it is known: nobody will ask."""
        self._known.pop(episode, None)
