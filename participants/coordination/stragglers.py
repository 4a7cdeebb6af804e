"""Rollouts that do not stand in time: what may be done about them, and who is concerned. Pure.

Rules (docs/reference/protocol.md section 12): a checkpoint is aborted for them, or they are retired and start over, or
it goes without them; whichever it is, whoever shares state with a straggler goes the same way (S69). An older attempt
that still ends somewhere concerns nobody but itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from ..identity import EpisodeId
from .outcomes import Blocker
from .units import whole_units

LEAVE_OUT: Final = "leave_out"
"""What a server lists among its features when it can go on without executions that prepare names."""


class Stragglers(StrEnum):
    """What a checkpoint does about rollouts that do not stand after the soft share of its time."""

    ABORT = "abort"
    RETIRE = "retire"
    LEAVE_OUT = "leave_out"


def named(blockers: Iterable[Blocker]) -> dict[EpisodeId, str]:
    """The executions that these blockers name, each with the reason; one that names none is nobody's."""
    found: dict[EpisodeId, str] = {}
    for blocker in blockers:
        try:
            episode = EpisodeId(blocker.rollout_id, blocker.attempt)
        except ValueError:
            continue
        found.setdefault(episode, f"{blocker.reason or 'not ready'} at {blocker.server}")
    return found


def concerned(
    blocking: Mapping[EpisodeId, str], candidates: Mapping[str, EpisodeId], units: Mapping[str, str | None]
) -> dict[EpisodeId, str]:
    """The executions that are left out, or retired, for those that block, each with the reason.

    `candidates` are the newest executions of the rollouts that a checkpoint would save, by rollout; `units` are theirs.
    """
    found = dict(blocking)
    stragglers = [each.rollout_id for each in blocking if candidates.get(each.rollout_id) == each]
    to_blame = {units.get(rollout_id): rollout_id for rollout_id in reversed(stragglers)}
    for rollout_id in sorted(whole_units(stragglers, units)):
        if rollout_id in candidates:
            found.setdefault(candidates[rollout_id], f"it shares state with {to_blame[units.get(rollout_id)]}")
    return found
