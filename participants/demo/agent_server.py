"""The demo's agent: turn after turn, with a boundary after each but the last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..net.http import ASGIApp
from ..servers.agent import Agent
from ..servers.peers import Peer, Reply
from .lines import Event
from .players import Message, offer, said_in
from .servers import CHAT_PATH, Place, app, process_place


@frozen
class Chat:
    """What a continuation starts from: the conversation, the turns done, and the actions offered by number."""

    messages: list[Message]
    turns: int = 0
    actions: dict[str, int] = field(factory=dict)

    @classmethod
    def start(cls, task: Mapping[str, Any]) -> Chat:
        seen = task["seen"]
        rules = {"role": "system", "content": f"You play {task['env_id']}. Answer with the name of one action."}
        first = {"role": "user", "content": offer(seen["text"], list(seen["actions"]))}
        return cls([rules, first], 0, dict(seen["actions"]))

    def after(self, said: str, told: str, actions: Mapping[str, int]) -> Chat:
        """One turn later."""
        answer = {"role": "assistant", "content": said}
        seen = {"role": "user", "content": offer(told, list(actions))}
        return Chat([*self.messages, answer, seen], self.turns + 1, dict(actions))

    def result(self) -> dict[str, Any]:
        return {"messages": self.messages, "turns": self.turns}


class TurnFailed(Exception):
    """A server answered with an error of its own; the rollout ends without a result."""


def _body(reply: Reply, what: str) -> Any:
    if not reply.ok:
        raise TurnFailed(f"{what} was answered {reply.status}: {reply.body!r}")
    return reply.body


async def play_turn(chat: Chat, rollout: str, model: Peer, game: Peer) -> Chat:
    """One turn: ask the policy, do what it says, and begin another episode of the game if this one is over."""
    asked = {"model": "policy", "user": rollout, "messages": chat.messages}
    said = said_in(_body(await model.post(CHAT_PATH, asked), "the policy"))
    seen = _body(await game.post("/step", {"action": chat.actions[said]}), "a step")
    told = f"Reward {seen['reward']:g}. {seen['text']}"
    if not seen["actions"]:
        seen = _body(await game.post("/reset", {}), "a reset")
        told = f"{told} Another one begins. {seen['text']}"
    return chat.after(said, told, seen["actions"])


def agent_app(place: Place) -> ASGIApp:
    """The agent: turn after turn, with a boundary after each but the last."""
    journal = place.journal("agent")
    agent = Agent("agent", place.settings, seams=place.seams, transport=place.transport)

    async def respond(request: Request) -> Response:
        async with agent.session(request.scope, task=await request.json()) as session:
            assert session.episode is not None, "the demo runs with checkpointing on"
            model, game = session.client("policy"), session.client("game")
            chat = session.restored(Chat) or Chat.start(session.task)
            while True:
                chat = await play_turn(chat, session.episode.rollout_id, model, game)
                journal.about(Event.TURN, session.episode, turn=chat.turns)
                if chat.turns >= session.task["turns"]:
                    return session.finish(chat.result())
                await session.boundary(chat)

    return agent.wrap(Starlette(routes=[Route("/v1/responses", respond, methods=["POST"])]))


def agent() -> ASGIApp:
    """The process's application."""
    return app("agent", process_place())
