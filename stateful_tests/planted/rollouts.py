"""Faults of rollouts: loops and their boundaries, the chain of model calls, results and units."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from attrs import evolve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from participants.coordination import recovery
from participants.coordination.deployment import Member
from participants.coordination.dispatch import Dispatcher
from participants.coordination.life import Life, _receipts
from participants.coordination.outcomes import CoordinatorError
from participants.demo.agent_server import Chat, play_turn
from participants.demo.broken_servers import forgetful_agent
from participants.demo.environment_server import environment_app
from participants.demo.lines import Event
from participants.demo.servers import Place
from participants.demo.trainer import DemoTrainer
from participants.identity import EpisodeId
from participants.net.http import ASGIApp, Incoming, Send
from participants.records.records import task_digest
from participants.servers import agent as agents
from participants.servers import policy_model
from participants.servers.admission import Activity
from participants.servers.agent import Agent
from participants.servers.agent_session import Session
from participants.servers.environment import Environment
from participants.servers.lineage import Entry, Ledger, Lineage, placed
from participants.servers.resources import Resources
from participants.simulation.game import Walk
from stateful_tests.planted.calls import game_of
from stateful_tests.planted.fault import Fault, Patch, Weapon, replaces, serves

# --- loops and boundaries


def eager_agent(place: Place) -> ASGIApp:
    """Every turn has a boundary behind it, also the last one."""
    journal = place.journal("agent")
    agent = Agent("agent", place.settings, seams=place.seams, transport=place.transport)

    async def respond(request: Request) -> Response:
        async with agent.session(request.scope, task=await request.json()) as session:
            assert session.episode is not None
            model, game = session.client("policy"), session.client("game")
            chat = session.restored(Chat) or Chat.start(session.task)
            while True:
                chat = await play_turn(chat, session.episode.rollout_id, model, game)
                journal.about(Event.TURN, session.episode, turn=chat.turns)
                await session.boundary(chat)
                if chat.turns >= session.task["turns"]:
                    return session.finish(chat.result())

    return agent.wrap(Starlette(routes=[Route("/v1/responses", respond, methods=["POST"])]))


def two_loops(patch: Patch) -> None:
    """Each sending of an activation has a loop of its own, and the older one may go on."""

    async def activate(self: Agent, episode: EpisodeId, request: Incoming, app: ASGIApp, send: Send) -> None:
        live, accesses = self._session_of(episode, request), agents._accesses(request.headers)
        self.admission.enter_or_refuse()
        activity = Activity(self.admission, episode.rollout_id, self.check(episode))
        activation = self._begin_activation(live, activity, request, task_digest(request.value), accesses)
        assert self.group is not None
        self.group.start_soon(self._run_activation, live, activation, request, app)
        await agents._replied(activation, send)

    def not_numbered(self: Session) -> None:
        assert self.episode is not None
        self._agent.fences.check(self.episode)

    patch.setattr(Agent, "_activate", activate)
    patch.setattr(Session, "_check", not_numbered)


# --- the chain of model calls


def chain_of_one_attempt(patch: Patch) -> None:
    """Rows of earlier attempts are left behind, and a call has a parent only among those of its own."""

    def within(lineage: Lineage | None, named: str | None, path: str, body: Any) -> Any:
        parent, conversation = placed(lineage, named, path, body)
        calls = () if lineage is None else [each.row.model_call_id for each in lineage.entries]
        return (parent if parent in calls else None), conversation

    patch.setattr(policy_model, "placed", within)
    patch.setattr(Ledger, "install", lambda *_: None)


def parent_is_last(patch: Patch) -> None:
    def last(lineage: Lineage | None, named: str | None, path: str, body: Any) -> Any:
        _, conversation = placed(lineage, named, path, body)
        return (lineage.entries[-1].row.model_call_id if lineage and lineage.entries else None), conversation

    patch.setattr(policy_model, "placed", last)


def generated_twice(patch: Patch) -> None:
    """Each model call has a second generation, which nobody is given and which is taken for the last call."""
    add = Ledger.add

    def twice(self: Ledger, episode: EpisodeId, entry: Entry) -> None:
        add(self, episode, entry)
        add(self, episode, evolve(entry, row=evolve(entry.row, model_call_id=f"{entry.row.model_call_id}.again")))

    patch.setattr(Ledger, "add", twice)
    parent_is_last(patch)


# --- results and units


def all_together(patch: Patch) -> None:
    run_one = Dispatcher._run_one

    async def or_none(self: Dispatcher, rollout_id: str, lost: dict[str, str], errors: list[Exception]) -> None:
        await run_one(self, rollout_id, lost, errors)
        if rollout_id in lost:
            raise CoordinatorError(lost[rollout_id])

    patch.setattr(Dispatcher, "_run_one", or_none)


async def only_the_winner(life: Life, member: Member, _problems: list[str]) -> None:
    """Instead of `Life._acknowledge`: released is the result that stands, and no other one of its rollout."""
    if member.name == "environment":
        listed = await member.control.results(timeout_s=30)
        known = {name: each.receipt for name, each in life.ledger.rollouts.items() if life.ledger.is_saved(name)}
        winners = [each.to_json() for each in _receipts(listed) if known.get(each.rollout_id) == each]
        if winners:
            await member.control.acknowledge(winners, timeout_s=30)


class Shared(Resources[Walk]):
    """The sessions of a group share what they stand in, and the server says so."""

    def capabilities(self) -> dict[str, Any]:
        return super().capabilities() | {"sharing": "group"}


def torn_units(patch: Patch) -> None:
    """A group shares state, and what becomes of a rollout is a matter of its own parts."""
    game_of(Shared)(patch)
    patch.setattr(recovery, "torn", lambda _found: {})


NOTHING: Final = {"reward": 0.0, "score": 0, "turns": 0, "messages": [], "state": None}
FROM_THE_BEGINNING: Final = "an agent begins with the task although it has a boundary"

FAULTS: Final = (
    Fault(
        "S8",
        "nobody owns the episode of a session that is parked",
        replaces(Environment, "export", lambda *_: ()),
        Weapon.SIMULATION,
        ["I35"],
        1,
    ),
    Fault(
        "S12",
        "the chain of model calls ends at the attempt",
        chain_of_one_attempt,
        Weapon.SIMULATION,
        ["I35", "I59"],
        13,
    ),
    Fault("S15", FROM_THE_BEGINNING, serves("agent", forgetful_agent), Weapon.SIMULATION, ["I57"], 1),
    Fault("S15", FROM_THE_BEGINNING, replaces(Session, "restored", lambda *_: None), Weapon.JOB, ["I57"], 5),
    Fault("S17", "a loop that was replaced goes on", two_loops, Weapon.SIMULATION, ["I10", "I57"], 9),
    Fault("S19", "the last turn is a boundary as well", serves("agent", eager_agent), Weapon.SIMULATION, ["I57"], 9),
    Fault("S42", "a rollout without a result ends its batch", all_together, Weapon.SIMULATION, ["S42"], 9),
    Fault(
        "S51",
        "a policy version is a bare step",
        replaces(DemoTrainer, "policy_version", property(lambda trainer: (0, trainer.state.steps))),
        Weapon.SIMULATION,
        ["I89"],
        2,
    ),
    Fault(
        "S63",
        "only the result that stands is acknowledged",
        replaces(Life, "_acknowledge", only_the_winner),
        Weapon.SIMULATION,
        ["I75"],
        18,
    ),
    Fault(
        "S65",
        "a lost server makes a result with reward 0",
        serves("environment", partial(environment_app, when_lost=NOTHING)),
        Weapon.SIMULATION,
        ["I57"],
        9,
    ),
    Fault("S68", "the parent of a model call is the last one", parent_is_last, Weapon.SIMULATION, ["I59"], 10),
    Fault("S68", "another generation is taken for the parent", generated_twice, Weapon.SIMULATION, ["I99"], 1),
    Fault("S69", "each rollout of a unit is decided by itself", torn_units, Weapon.SIMULATION, ["I86"], 56),
)
