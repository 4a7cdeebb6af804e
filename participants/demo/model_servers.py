"""The demo's two models: the policy, which takes part in checkpoints, and the judge, which is never paused."""

from __future__ import annotations

from typing import Any

import anyio

from ..net.http import ASGIApp
from ..servers.auxiliary_model import AuxiliaryModel
from ..servers.policy_model import PolicyModel
from .lines import Event
from .players import completion, judge_says, policy_says, turn_of
from .servers import Place, process_place


def policy_app(place: Place) -> ASGIApp:
    """The policy: it thinks as long as the plan says, then says what rollout and conversation make it say."""
    plan, journal = place.plan, place.journal("policy")

    async def generate(_path: str, body: dict[str, Any]) -> dict[str, Any]:
        rollout, turn = body["user"], turn_of(body["messages"])
        await anyio.sleep(plan.think_s(rollout, turn))
        said = policy_says(plan.seed, body)
        journal.write(Event.GENERATION, rollout, turn=turn)
        return completion("policy", said)

    return PolicyModel("policy", place.settings, generate, seams=place.seams, transport=place.transport).app()


def judge_app(place: Place) -> ASGIApp:
    """The judge: a score for a conversation; never paused."""
    plan, journal = place.plan, place.journal("judge")

    async def judge(_path: str, body: dict[str, Any]) -> dict[str, Any]:
        said = judge_says(plan.seed, body)
        journal.write(Event.SCORE, body["user"])
        return completion("judge", said)

    return AuxiliaryModel("judge", place.settings, judge, seams=place.seams, transport=place.transport).app()


def policy() -> ASGIApp:
    """The process's application."""
    return policy_app(process_place())


def judge() -> ASGIApp:
    """The process's application."""
    return judge_app(process_place())
