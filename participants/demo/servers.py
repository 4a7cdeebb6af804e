"""The demo's five servers: policy model, judge, agent, game (Gymnasium) and environment; each writes its own journal.

The functions with parameters make the applications, also for servers in memory; those without are the factories of the
processes: their settings come from the environment, and the plan lies beside the checkpoint root.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
from attrs import field, frozen
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..agent import Agent
from ..auxiliary_model import AuxiliaryModel
from ..environment import Environment
from ..gymnasium_server import Applied, gymnasium_resources
from ..http import ASGIApp
from ..peers import Peer, Reply
from ..policy_model import PolicyModel
from ..settings import Seams, Settings, SettingsError
from .lines import Event, ServerJournal
from .plan import Plan, read_plan
from .players import Message, completion, judge_says, offer, policy_says, said_in, turn_of

CHAT_PATH: Final = "/v1/chat/completions"
JOURNALS: Final = "journals"


@frozen(kw_only=True)
class Place:
    """What a server of the demo is made of."""

    plan: Plan
    settings: Settings
    seams: Seams
    journals: Path
    transport: httpx.AsyncBaseTransport | None = None

    def journal(self, server: str) -> ServerJournal:
        return ServerJournal(self.seams.disk, self.journals, server, self.settings.epoch, self.seams.clock)


# --- policy and judge


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


# --- the game


def game_app(place: Place) -> ASGIApp:
    """The resources server: any of the supported Gymnasium environments, as each seed says."""
    journal = place.journal("game")

    def applied(change: Applied) -> None:
        if change.action is not None:
            journal.about(
                Event.STEP,
                change.episode,
                turn=change.steps,
                revision=change.position.revision,
                action=change.action,
                reward=change.reward,
                digest=change.digest,
            )

    return gymnasium_resources(
        "game", place.settings, on_applied=applied, seams=place.seams, transport=place.transport
    )


# --- the agent


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


# --- the environment


def environment_app(place: Place) -> ASGIApp:
    """The environment: seed the game, let the agent play, let judge and game say what it was worth."""
    journal = place.journal("environment")
    environment = Environment("environment", place.settings, seams=place.seams, transport=place.transport)

    async def play(request: Request) -> Response:
        async with environment.episode(request.scope, task=await request.json()) as episode:
            assert episode.id is not None, "the demo runs with checkpointing on"
            rollout, task = episode.id.rollout_id, episode.task
            game = await episode.seed("game", {"env_id": task["env_id"], "seed": task["seed"]})
            given = {"env_id": task["env_id"], "turns": task["turns"], "seen": game.access["body"]}
            played = await episode.activate("agent", given)
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


APPS: Final[Mapping[str, Callable[[Place], ASGIApp]]] = {
    "policy": policy_app,
    "judge": judge_app,
    "agent": agent_app,
    "game": game_app,
    "environment": environment_app,
}
"""The servers by name, as the launcher and the servers' clients know them."""


# --- as processes


def _place() -> Place:
    settings = Settings.from_env()
    if settings.root is None:
        raise SettingsError("a server of the demo needs STATECORE_ROOT; `statecore demo` starts it")
    seams = Seams()
    home = settings.root.parent
    return Place(plan=read_plan(seams.disk, home), settings=settings, seams=seams, journals=home / JOURNALS)


def policy() -> ASGIApp:
    return policy_app(_place())


def judge() -> ASGIApp:
    return judge_app(_place())


def agent() -> ASGIApp:
    return agent_app(_place())


def game() -> ASGIApp:
    return game_app(_place())


def environment() -> ASGIApp:
    return environment_app(_place())
