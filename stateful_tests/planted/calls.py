"""Faults of calls and sessions: refusals, sendings, positions, what comes back empty."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import anyio
from attrs import evolve

from participants.coordination import preparing
from participants.coordination.deployment import PREPARE_ORDER
from participants.coordination.introduction import Role
from participants.demo import agent_server
from participants.demo.agent_server import Chat
from participants.demo.players import said_in
from participants.demo.servers import CHAT_PATH
from participants.identity import OPERATION_HEADER, EpisodeId
from participants.machines.resource_session import Mutated
from participants.machines.sendings import Fate, Sending
from participants.net.http import ASGIApp, Incoming, Scope, Send, serve
from participants.net.posts import Answered
from participants.records.positions import Agreement, Position
from participants.servers import agent_session, peers
from participants.servers.admission import Activity
from participants.servers.agent_session import LiveSession
from participants.servers.agent_session import Session as AgentSession
from participants.servers.peers import Peer, Reply
from participants.servers.policy_model import PolicyModel
from participants.servers.resources import Change, Resources, Serving, Session
from participants.servers.server import Server
from participants.serving import testing
from participants.settings import Settings
from participants.simulation import fleet, job
from participants.simulation.fleet import Member
from participants.simulation.game import Walk, game_app
from participants.simulation.network import SimulatedNetwork
from participants.simulation.operator import Operator
from participants.simulation.plan import Supervision, draw_adversity
from statecore.wire import digest, encode, parse
from stateful_tests.planted.fault import Fault, Patch, Weapon, serves

TAKES_S: Final = 5.0


def game_of(kind: type[Resources[Walk]]) -> Callable[[Patch], None]:
    """What plants a game whose sessions are served by this kind of server."""
    return serves("game", partial(game_app, kind=kind))


# --- refusals


async def refused_or_in(server: Server, request: Incoming, owner: EpisodeId | None = None, **_more: Any) -> Activity:
    """Instead of `Server.admitted`: a closed server refuses, and holds nothing."""
    server.admission.enter_or_refuse()
    return Activity(server.admission, None, server.check(request.episode))


async def play_whatever(chat: Chat, rollout: str, model: Peer, game: Peer) -> Chat:
    """One turn; whatever comes back from the policy is what it says, and what is no action is the first one."""
    said = (await model.post(CHAT_PATH, {"model": "policy", "user": rollout, "messages": chat.messages})).body
    text = said_in(said) if "choices" in said else said["error"]["detail"]
    seen = (await game.post("/step", {"action": chat.actions.get(text, 0)})).body
    told = f"Reward {seen['reward']:g}. {seen['text']}"
    if not seen["actions"]:
        seen = (await game.post("/reset", {})).body
        told = f"{told} Another one begins. {seen['text']}"
    return chat.after(text, told, seen["actions"])


def refusals_are_heard(patch: Patch) -> None:
    """A closed policy refuses, and the refusal goes to the agent's loop."""
    read = Peer._read

    def whatever(self: Peer, answered: Answered) -> Reply | None:
        reply = read(self, answered)
        if reply is None and self.name == "policy":
            return Reply(answered.status, parse(answered.body), answered.headers)
        return reply

    patch.setattr(PolicyModel, "admitted", refused_or_in)
    patch.setattr(Peer, "_read", whatever)
    patch.setattr(agent_server, "play_turn", play_whatever)


class RefusesTheApplied(Resources[Walk]):
    """A closed server refuses whatever has become of the earlier sendings of a call."""

    admitted = refused_or_in

    def _fate(self, sending: Sending, request: Incoming) -> tuple[Fate, Serving | None]:
        return Fate.ENTER, None


def steps_unanswered(patch: Patch) -> None:
    """Until it is calm, every third reply to a step is lost, some time after it was due."""
    drawn = SimulatedNetwork._drawn

    def lost(self: SimulatedNetwork, call: testing.Call) -> tuple[testing.Fault, str]:
        fault, what = drawn(self, call)
        if self.calm or not call.path.endswith("/step") or call.number % 3:
            return fault, what
        return testing.Fault(request_s=0.01, reply_s=0.1 + call.number % 5, lose_reply=True), "unanswered"

    patch.setattr(SimulatedNetwork, "_drawn", lost)


def refused_yet_applied(patch: Patch) -> None:
    """The game is closed while agents still call it, it refuses what it has done, and no positions are compared."""
    patch.setattr(preparing, "PREPARE_ORDER", (Role.RESOURCES, *PREPARE_ORDER[:-1]))
    steps_unanswered(patch)
    game_of(RefusesTheApplied)(patch)
    patch.setattr(Position, "compared", lambda *_: Agreement.EQUAL)


# --- sendings


class AskedEarly(Resources[Walk]):
    """A change takes its time, and whether it was made before is asked when its call comes, and not in its turn."""

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


# --- positions


class EarlyPositions(Resources[Walk]):
    """Where a session stands is read before its lock is taken."""

    @asynccontextmanager
    async def mutate(self, scope: Scope) -> AsyncIterator[Change[Walk]]:
        session = self._known(self._request(scope))
        early = None if session is None else self._position(session)
        async with super().mutate(scope) as change:
            yield change
        change.headers = early


def images_by_number(patch: Patch) -> None:
    """An image is kept by rollout and revision, the first one for ever; and of positions the revisions are compared."""
    images: dict[tuple[str, int], Any] = {}

    class ByNumber(Resources[Walk]):
        def _state_of(self, session: Session[Walk]) -> Any:
            assert session.episode is not None
            which = session.episode.rollout_id, session.position.revision
            return images.setdefault(which, super()._state_of(session))

    def by_revision(one: Position, other: Position) -> Agreement:
        return Agreement.EQUAL if one.revision == other.revision else Agreement.DIFFERENT

    game_of(ByNumber)(patch)
    patch.setattr(Position, "compared", by_revision)


class Unheld(Resources[Walk]):
    """A call that comes while a checkpoint is open is applied."""

    async def data(self, request: Incoming, send: Send, app: ASGIApp) -> None:
        if self.admission.is_open:
            await super().data(request, send, app)
        else:
            await serve(app, request, send)

    def prepared(self, left_out: frozenset[str]) -> None:
        return


def late_calls(patch: Patch) -> None:
    """An agent that has its model's reply counts as standing, and goes on to call a game that is closed by then."""

    async def at_once(self: AgentSession, live: LiveSession) -> None:
        await anyio.lowlevel.checkpoint()

    patch.setattr(agent_session, "may_stand", lambda **_: True)
    patch.setattr(AgentSession, "_move", at_once)
    game_of(Unheld)(patch)
    patch.setattr(Position, "compared", lambda *_: Agreement.EQUAL)


# --- what comes back empty


class MadeAgain(Resources[Walk]):
    """A session that is not known is made again, and stands at its beginning."""

    def _known(self, request: Incoming) -> Session[Walk] | None:
        return self._book.of(request.episode)

    def _find(self, request: Incoming) -> Session[Walk]:
        return self._known(request) or self._seeded(request, Walk(0), {})


def comes_back_empty(patch: Patch) -> None:
    """The game dies and is brought back at once: it serves, as the process that it was, and makes the sessions that it
    is asked for; nobody asks whether a session is the one that it was.
    """
    members = Operator._members

    def games(self: Operator) -> list[Member]:
        return [each for each in members(self) if each.name == "game"]

    def known_by_name(server: Server) -> str:
        return digest([server.name, server.settings.epoch])[:32]

    patch.setattr(
        job, "draw_adversity", lambda dice: evolve(draw_adversity(dice), supervision=Supervision.BROUGHT_BACK)
    )
    patch.setattr(fleet, "BROUGHT_BACK_S", (0.01, 0.1))
    patch.setattr(fleet, "Settings", lambda **given: Settings(**(given | {"epoch_required": False})))
    patch.setattr(Operator, "_members", games)
    patch.setattr(Server, "incarnation", property(known_by_name, lambda *_: None), raising=False)
    patch.setattr(peers, "later", lambda _known, heard: heard)
    game_of(MadeAgain)(patch)


FAULTS: Final = (
    Fault("S9", "what a closed server answers is what it says", refusals_are_heard, Weapon.SIMULATION, ["I74"], 9),
    Fault(
        "S21",
        "a position is read before its session's lock is taken",
        game_of(EarlyPositions),
        Weapon.SIMULATION,
        ["I35"],
        1,
    ),
    Fault(
        "S38",
        "whether a call was applied is asked before its turn",
        game_of(AskedEarly),
        Weapon.SIMULATION,
        ["I10", "I57"],
        50,
    ),
    Fault(
        "S46",
        "images are kept by revision, and positions compared by it",
        images_by_number,
        Weapon.SIMULATION,
        ["I35"],
        12,
    ),
    Fault(
        "S55",
        "late calls are applied, and positions not compared",
        late_calls,
        Weapon.SIMULATION,
        ["I24"],
        9,
    ),
    Fault(
        "S60",
        "a server comes back unnoticed, and makes the sessions that it has lost",
        comes_back_empty,
        Weapon.SIMULATION,
        ["I10"],
        12,
    ),
    Fault(
        "S61",
        "a server that is closed early refuses what it has applied, and positions are not compared",
        refused_yet_applied,
        Weapon.SIMULATION,
        ["I35"],
        3,
    ),
)
