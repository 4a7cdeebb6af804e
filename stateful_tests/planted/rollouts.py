"""Faults of rollouts: agents, sessions, positions, the chain of model calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import anyio
from attrs import evolve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from participants.coordination import preparing, recovery
from participants.coordination.deployment import PREPARE_ORDER, Member
from participants.coordination.dispatch import Dispatcher
from participants.coordination.introduction import Role
from participants.coordination.life import Life, _receipts
from participants.demo import agent_server
from participants.demo.agent_server import Chat, play_turn
from participants.demo.broken_servers import forgetful_agent
from participants.demo.environment_server import environment_app
from participants.demo.lines import Event
from participants.demo.players import said_in
from participants.demo.servers import CHAT_PATH, Place
from participants.demo.trainer import DemoTrainer
from participants.identity import OPERATION_HEADER, EpisodeId
from participants.machines.resource_session import Mutated
from participants.machines.sendings import Fate, Sending
from participants.net.http import ASGIApp, Incoming, Scope, Send, serve
from participants.net.posts import Answered
from participants.records.positions import Agreement, Position
from participants.records.records import task_digest
from participants.servers import agent as agents
from participants.servers import agent_session, peers, policy_model
from participants.servers.admission import Activity
from participants.servers.agent import Agent
from participants.servers.agent_session import LiveSession
from participants.servers.agent_session import Session as AgentSession
from participants.servers.environment import Environment
from participants.servers.lineage import Ledger, Lineage, placed
from participants.servers.peers import Peer, Reply
from participants.servers.policy_model import PolicyModel
from participants.servers.resources import Change, Resources, Serving, Session
from participants.servers.server import Server
from participants.serving.testing import Call
from participants.serving.testing import Fault as Lost
from participants.settings import Settings
from participants.simulation import fleet
from participants.simulation import job as simulated_job
from participants.simulation.game import MOVES, Walk, game_app
from participants.simulation.network import BREAKS_S, SimulatedNetwork
from participants.simulation.operator import Operator
from participants.simulation.plan import Supervision
from statecore.wire import encode, parse
from stateful_tests.planted.fault import Fault, Patch, Weapon, replaces, serves

TAKES_S: Final = 5.0


class EarlyPositions(Resources[Walk]):
    """Where a session stands is read before its lock is taken."""

    @asynccontextmanager
    async def mutate(self, scope: Scope) -> AsyncIterator[Change[Walk]]:
        session = self._known(self._request(scope))
        early = None if session is None else self._position(session)
        async with super().mutate(scope) as change:
            yield change
        change.headers = early


class AskedEarly(Resources[Walk]):
    """A change takes its time, and whether a call was applied is asked when it comes and not in its turn."""

    @asynccontextmanager
    async def mutate(self, scope: Scope) -> AsyncIterator[Change[Walk]]:
        request = self._request(scope)
        session, operation_id = self._find(request), request.headers[OPERATION_HEADER]
        if session.has_done(operation_id):
            async with super().mutate(scope) as change:
                yield change
            return
        async with session.lock:
            self._use(session, request)
            await anyio.sleep(TAKES_S)
            change = Change(session, operation_id)
            yield change
            session.step(Mutated(operation_id, encode(change.reply).decode()))
            self._end(change)


async def _enter_or_refuse(server: Server, request: Incoming, owner: EpisodeId | None = None, **_more: Any) -> Activity:
    server.admission.enter_or_refuse()
    return Activity(server.admission, None, server.check(request.episode))


class Refusing(Resources[Any]):
    """A closed server refuses, and holds nothing."""

    admitted = _enter_or_refuse


class RefusesTheApplied(Refusing):
    """And it does so whatever has become of earlier sendings of the call."""

    def _fate(self, sending: Sending, request: Incoming) -> tuple[Fate, Serving | None]:
        return Fate.ENTER, None


class Unheld(Resources[Walk]):
    """A call that comes while a checkpoint is open is applied."""

    async def data(self, request: Incoming, send: Send, app: ASGIApp) -> None:
        if self.admission.is_open:
            await super().data(request, send, app)
        else:
            await serve(app, request, send)

    def prepared(self, left_out: frozenset[str]) -> None:
        return


class Shared(Resources[Walk]):
    """The sessions of a group share what they stand in."""

    def capabilities(self) -> dict[str, Any]:
        return super().capabilities() | {"sharing": "group"}


class MadeAgain(Resources[Walk]):
    """A session that is not known is made again, and stands at its beginning."""

    def _known(self, request: Incoming) -> Session[Walk] | None:
        return self._book.of(request.episode)

    def _find(self, request: Incoming) -> Session[Walk]:
        return self._known(request) or self._seeded(request, Walk(0), {})


def eager_agent(place: Place) -> ASGIApp:
    """Every turn has a boundary behind it, also the last one."""
    journal = place.journal("agent")
    agent = Agent("agent", place.settings, seams=place.seams, transport=place.transport)

    async def respond(request: Request) -> Response:
        async with agent.session(request.scope, task=await request.json()) as session:
            assert session.episode is not None
            chat = session.restored(Chat) or Chat.start(session.task)
            while True:
                chat = await play_turn(
                    chat, session.episode.rollout_id, session.client("policy"), session.client("game")
                )
                journal.about(Event.TURN, session.episode, turn=chat.turns)
                await session.boundary(chat)
                if chat.turns >= session.task["turns"]:
                    return session.finish(chat.result())

    return agent.wrap(Starlette(routes=[Route("/v1/responses", respond, methods=["POST"])]))


def game_of(kind: type[Resources[Walk]]) -> Callable[[Patch], None]:
    return serves("game", partial(game_app, kind=kind))


async def _play_whatever(chat: Chat, rollout: str, model: Peer, game: Peer) -> Chat:
    """One turn; whatever comes back from the policy is what it said, and what is no action is the first one."""
    said = (await model.post(CHAT_PATH, {"model": "policy", "user": rollout, "messages": chat.messages})).body
    text = said_in(said) if "choices" in said else said["error"]["detail"]
    seen = (await game.post("/step", {"action": chat.actions.get(text, 0)})).body
    told = f"Reward {seen['reward']:g}. {seen['text']}"
    if not seen["actions"]:
        seen = (await game.post("/reset", {})).body
        told = f"{told} Another one begins. {seen['text']}"
    return chat.after(text, told, seen["actions"])


def refusals_are_heard(patch: Patch) -> None:
    """A policy that is closed refuses, and an agent takes that for what the policy says."""
    read = Peer._read

    def whatever(self: Peer, answered: Answered) -> Reply | None:
        reply = read(self, answered)
        if reply is None and self.name == "policy":
            return Reply(answered.status, parse(answered.body), answered.headers)
        return reply

    patch.setattr(PolicyModel, "admitted", _enter_or_refuse)
    patch.setattr(Peer, "_read", whatever)
    patch.setattr(agent_server, "play_turn", _play_whatever)


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


def not_compared(patch: Patch) -> None:
    patch.setattr(Position, "compared", lambda *_: Agreement.EQUAL)


def late_calls(patch: Patch) -> None:
    """An agent stands whatever it does, so its calls come to a game that is closed already."""

    async def moves_on(self: AgentSession, live: LiveSession) -> None:
        await anyio.lowlevel.checkpoint()

    patch.setattr(agent_session, "may_stand", lambda **_: True)
    patch.setattr(AgentSession, "_move", moves_on)
    game_of(Unheld)(patch)
    not_compared(patch)


def refused_yet_applied(patch: Patch) -> None:
    """Resources servers are closed before the agents that call them, and refuse whatever they have done already."""
    patch.setattr(preparing, "PREPARE_ORDER", (Role.RESOURCES, *PREPARE_ORDER[:-1]))
    _steps_unanswered(patch)
    game_of(RefusesTheApplied)(patch)
    not_compared(patch)


def _steps_unanswered(patch: Patch) -> None:
    """Until it is calm, every third reply to a step is lost."""
    drawn = SimulatedNetwork._drawn

    def lost(self: SimulatedNetwork, call: Call) -> tuple[Lost, str]:
        fault, what = drawn(self, call)
        if self.calm or not call.path.endswith("/step") or call.number % 3:
            return fault, what
        return Lost(request_s=0.01, reply_s=BREAKS_S[0] + call.number % 5, lose_reply=True), "unanswered"

    patch.setattr(SimulatedNetwork, "_drawn", lost)


def closed_first(patch: Patch) -> None:
    _steps_unanswered(patch)
    patch.setattr(preparing, "PREPARE_ORDER", (Role.RESOURCES, *PREPARE_ORDER[:-1]))
    game_of(Refusing)(patch)


def images_by_number(patch: Patch) -> None:
    """Images are kept by rollout and revision, the first one of each for ever; positions are compared by revision."""
    images: dict[tuple[str, int], Any] = {}

    class ByNumber(Resources[Walk]):
        def _state_of(self, session: Session[Walk]) -> Any:
            assert session.episode is not None
            which = session.episode.rollout_id, session.position.revision
            return images.setdefault(which, super()._state_of(session))

    game_of(ByNumber)(patch)
    patch.setattr(Position, "compared", by_revision)


def by_revision(one: Position, other: Position) -> Agreement:
    return Agreement.EQUAL if one.revision == other.revision else Agreement.DIFFERENT


def two_loops(patch: Patch) -> None:
    """An activation that comes twice has two loops, and the older one may go on."""

    async def activate(self: Agent, episode: EpisodeId, request: Incoming, app: ASGIApp, send: Send) -> None:
        live = self._session_of(episode, request)
        self.admission.enter_or_refuse()
        activity = Activity(self.admission, episode.rollout_id, self.check(episode))
        activation = self._begin_activation(
            live, activity, request, task_digest(request.value), agents._accesses(request.headers)
        )
        assert self.group is not None
        self.group.start_soon(self._run_activation, live, activation, request, app)
        await agents._replied(activation, send)

    patch.setattr(Agent, "_activate", activate)
    patch.setattr(AgentSession, "_check", lambda self: self._agent.fences.check(self._live.episode))


def comes_back_empty(patch: Patch) -> None:
    """Processes are brought back at once, and serve at once; a game makes the sessions that it is asked for, and nobody
    asks whether a session is the one that it was.
    """
    draw, members = simulated_job.draw_adversity, Operator._members

    def games(self: Operator) -> Any:
        return [each for each in members(self) if each.name == "game"]

    def at_once(**given: Any) -> Settings:
        return Settings(**(given | {"epoch_required": False}))

    patch.setattr(
        simulated_job, "draw_adversity", lambda dice: evolve(draw(dice), supervision=Supervision.BROUGHT_BACK)
    )
    patch.setattr(Operator, "_members", games)
    patch.setattr(fleet, "BROUGHT_BACK_S", (0.01, 0.1))
    patch.setattr(fleet, "Settings", at_once)
    patch.setattr(peers, "later", lambda _known, heard: heard)
    game_of(MadeAgain)(patch)


def torn_units(patch: Patch) -> None:
    game_of(Shared)(patch)
    patch.setattr(recovery, "torn", lambda _found: {})


def all_together(patch: Patch) -> None:
    run_one = Dispatcher._run_one

    async def or_none(self: Dispatcher, rollout_id: str, lost: dict[str, str], errors: list[Exception]) -> None:
        await run_one(self, rollout_id, lost, errors)
        if rollout_id in lost:
            raise RuntimeError(lost[rollout_id])

    patch.setattr(Dispatcher, "_run_one", or_none)


def only_the_winner(patch: Patch) -> None:
    async def acknowledge(self: Life, member: Member, _problems: list[str]) -> None:
        if member.name == "environment":
            listed = await member.control.results(timeout_s=30)
            known = {name: each.receipt for name, each in self.ledger.rollouts.items()}
            owed = [each for each in _receipts(listed) if self.ledger.is_saved(each.rollout_id)]
            winners = [each.to_json() for each in owed if known.get(each.rollout_id) == each]
            if winners:
                await member.control.acknowledge(winners, timeout_s=30)

    patch.setattr(Life, "_acknowledge", acknowledge)


nobody_owns = replaces(Environment, "export", lambda *_: ())
eager = serves("agent", eager_agent)
slow = game_of(AskedEarly)


NOTHING: Final = {"reward": 0.0, "score": 0, "turns": 0, "messages": [], "state": None}
NOT_FOUND: Final = 0
bare_step = replaces(DemoTrainer, "policy_version", property(lambda trainer: (0, trainer.state.steps)))
FROM_THE_BEGINNING: Final = "an agent begins with the task although it has a boundary"

FAULTS: Final = (
    Fault("S8", "nobody owns an episode that is parked", nobody_owns, Weapon.SIMULATION, ["I35"], 1),
    Fault("S9", "what a closed policy answers is what it says", refusals_are_heard, Weapon.SIMULATION, ["I74"], 9),
    Fault(
        "S12",
        "the chain of model calls ends at the attempt",
        chain_of_one_attempt,
        Weapon.SIMULATION,
        ["I35", "I59"],
        13,
    ),
    Fault("S15", FROM_THE_BEGINNING, serves("agent", forgetful_agent), Weapon.SIMULATION, ["I57"], 1),
    Fault("S15", FROM_THE_BEGINNING, replaces(Session, "restored", lambda *_: None), Weapon.JOB, ["I36", "I57"], 5),
    Fault(
        "S17",
        "an activation that comes twice has two loops, and both count",
        two_loops,
        Weapon.SIMULATION,
        ["I10", "I57"],
        9,
    ),
    Fault("S19", "the last turn has a boundary as well", eager, Weapon.SIMULATION, ["I57"], 9),
    Fault(
        "S21",
        "a position is read before its session's lock is taken",
        serves("game", partial(game_app, kind=EarlyPositions)),
        Weapon.SIMULATION,
        ["I35"],
        1,
    ),
    Fault("S38", "whether a call was applied is asked when it comes", slow, Weapon.SIMULATION, ["I10", "I57"], 50),
    Fault("S42", "a rollout without a result ends its batch", all_together, Weapon.SIMULATION, ["exception"], 9),
    Fault("S46", "images are kept and compared by their number", images_by_number, Weapon.SIMULATION, ["I35"], 4),
    Fault("S51", "a policy version is a bare step", bare_step, Weapon.SIMULATION, ["I89"], 1),
    Fault(
        "S55",
        "late calls are applied, and positions not compared",
        late_calls,
        Weapon.SIMULATION,
        ["I24", "I35", "I57"],
        9,
    ),
    Fault("S60", "a session that is gone is made again", comes_back_empty, Weapon.JOB, ["I36", "I97"], 1),
    Fault(
        "S61",
        "what was applied is refused, and positions are not compared",
        refused_yet_applied,
        Weapon.JOB,
        ["I36", "I97"],
        1,
    ),
    Fault("S63", "only the result that stands is acknowledged", only_the_winner, Weapon.SIMULATION, ["I75"], 9),
    Fault(
        "S65",
        "a lost server makes a result with reward 0",
        serves("environment", partial(environment_app, when_lost=NOTHING)),
        Weapon.SIMULATION,
        ["I57"],
        9,
    ),
    Fault("S68", "the parent of a model call is the last one", parent_is_last, Weapon.SIMULATION, ["I59", "I99"], 10),
)
