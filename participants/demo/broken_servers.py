"""Servers of the demo with one rule taken out, for `statecore demo --break`; `faults` says what each is for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..gymnasium.play import Play
from ..net.http import ASGIApp, Scope
from ..servers.agent import Agent
from ..servers.resources import Change, Resources
from .agent_server import Chat, play_turn
from .environment_server import environment_app
from .game_server import game_app
from .lines import Event
from .servers import Place


def forgetful_agent(place: Place) -> ASGIApp:
    """S15: it never asks for what was restored, and begins with the task."""
    journal = place.journal("agent")
    agent = Agent("agent", place.settings, seams=place.seams, transport=place.transport)

    async def respond(request: Request) -> Response:
        async with agent.session(request.scope, task=await request.json()) as session:
            assert session.episode is not None, "the demo runs with checkpointing on"
            model, game = session.client("policy"), session.client("game")
            chat = Chat.start(session.task)
            while chat.turns < session.task["turns"]:
                chat = await play_turn(chat, session.episode.rollout_id, model, game)
                journal.about(Event.TURN, session.episode, turn=chat.turns)
                if chat.turns < session.task["turns"]:
                    await session.boundary(chat)
            return session.finish(chat.result())

    return agent.wrap(Starlette(routes=[Route("/v1/responses", respond, methods=["POST"])]))


class EarlyPositions(Resources[Play]):
    """S21: where a session stands is read before its lock is taken, so a reply names the position before its own."""

    @asynccontextmanager
    async def mutate(self, scope: Scope) -> AsyncIterator[Change[Play]]:
        session = self._known(self._request(scope))
        early = None if session is None else self._position(session)
        async with super().mutate(scope) as change:
            yield change
        change.headers = early


def early_game(place: Place) -> ASGIApp:
    """S21: the game with `EarlyPositions`."""
    return game_app(place, EarlyPositions)


def scoring_environment(place: Place) -> ASGIApp:
    """S65: a rollout whose agent is lost gets a result all the same, with reward 0."""
    nothing: dict[str, Any] = {"reward": 0.0, "score": 0, "turns": 0, "messages": [], "state": None}
    return environment_app(place, when_lost=nothing)


BROKEN: Final[Mapping[tuple[str, str], Callable[[Place], ASGIApp]]] = {
    ("S15", "agent"): forgetful_agent,
    ("S21", "game"): early_game,
    ("S65", "environment"): scoring_environment,
}
"""By the number of the fault and the server that has it."""
