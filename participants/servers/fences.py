"""Which attempts are over: marks of `retire`, and what a newer attempt implies.

A retired mark covers every attempt up to it, is never lowered and stays until `forget` (I8). The first accepted request
of attempt M fences all below M as well (docs/reference/protocol.md section 3). These marks say who is refused; which
executions a commit leaves out is another set and not kept here (S13).
"""

from __future__ import annotations

from collections.abc import Iterable

from statecore import Refused

from ..identity import EpisodeId


class Fences:
    """The highest attempt that is over, per rollout: `retired` by a coordinator, `passed` by a newer attempt."""

    def __init__(self) -> None:
        self.retired: dict[str, int] = {}
        self.passed: dict[str, int] = {}

    def retire(self, episodes: Iterable[EpisodeId]) -> None:
        """Every attempt up to each of `episodes` is over."""
        for episode in episodes:
            if self.retired.get(episode.rollout_id, -1) < episode.attempt:
                self.retired[episode.rollout_id] = episode.attempt

    def accept(self, episode: EpisodeId) -> None:
        """A request of this attempt was accepted: everything below it is over."""
        if episode.attempt > 0 and self.passed.get(episode.rollout_id, -1) < episode.attempt - 1:
            self.passed[episode.rollout_id] = episode.attempt - 1

    def forget(self, rollout_ids: Iterable[str]) -> None:
        """The marks of these rollouts are gone."""
        for rollout_id in rollout_ids:
            self.retired.pop(rollout_id, None)
            self.passed.pop(rollout_id, None)

    def is_over(self, episode: EpisodeId) -> bool:
        attempt = episode.attempt
        return attempt <= self.retired.get(episode.rollout_id, -1) or attempt <= self.passed.get(episode.rollout_id, -1)

    def check(self, episode: EpisodeId) -> None:
        """Nothing happens for an attempt that may act; Refused `stale_attempt` for one that is over (I7)."""
        if self.is_over(episode):
            raise Refused(
                "stale_attempt",
                "over",
                episode,
                (),
                f"rollout {episode.rollout_id!r} attempt {episode.attempt} was retired",
            )
