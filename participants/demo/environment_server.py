"""The demo's environment: it drives each rollout from its task to its reward."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..net.http import ASGIApp
from ..servers.environment import Environment
from ..servers.executions import ParticipantLost
from .lines import Event
from .players import said_in
from .servers import CHAT_PATH, Place, app, process_place


def environment_app(place: Place, when_lost: dict[str, Any] | None = None) -> ASGIApp:
    """The environment: seed the game, let the agent play, let judge and game say what it was worth.

    `when_lost`: with one, a rollout whose agent is lost has this result (S65; never without `--break`).
    """
    journal = place.journal("environment")
    environment = Environment("environment", place.settings, seams=place.seams, transport=place.transport)

    async def play(request: Request) -> Response:
        async with environment.episode(request.scope, task=await request.json()) as episode:
            assert episode.id is not None, "the demo runs with checkpointing on"
            rollout, task = episode.id.rollout_id, episode.task
            game = await episode.seed("game", {"env_id": task["env_id"], "seed": task["seed"]})
            given = {"env_id": task["env_id"], "turns": task["turns"], "seen": game.access["body"]}
            try:
                played = await episode.activate("agent", given)
            except ParticipantLost:
                if when_lost is None:
                    raise
                journal.about(Event.RESULT, episode.id, reward=when_lost["reward"])
                return episode.finish(when_lost)
            asked = {"model": "judge", "user": rollout, "messages": played["messages"]}
            judged = await episode.wait("judge", episode.client("judge").post(CHAT_PATH, asked))
            score = int(said_in(judged))
            verdict = await episode.wait("verify", game.verify({"export": True}))
            result = {
                "reward": verdict["reward"] + score / 10,
                "score": score,
                "turns": played["turns"],
                "messages": played["messages"],
                "state": verdict["state"],
            }
            response = episode.finish(result)
        journal.about(Event.RESULT, episode.id, reward=result["reward"])
        return response

    return environment.wrap(Starlette(routes=[Route("/run", play, methods=["POST"])]))


def environment() -> ASGIApp:
    """The process's application."""
    return app("environment", process_place())
