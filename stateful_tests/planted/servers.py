"""Faults of what every server has: phases, gate, fences, leases, calls that come twice, parts, its set-up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from attrs import evolve, frozen

from models.twins import without_guard, without_rule
from participants.coordination import deployment
from participants.demo import agent_server
from participants.demo.players import completion, judge_says
from participants.demo.servers import Place
from participants.files import checkpoint, draft, snapshots
from participants.identity import RUN_PREFIX, EpisodeId, split_prefix
from participants.machines.control import (
    PARTICIPANT,
    CommitRequested,
    Phase,
    PrepareRequested,
    committed_again,
    is_other_epoch,
    is_other_process,
    new_process,
    open_checkpoint,
    this,
)
from participants.machines.resource_session import SessionData
from participants.net.http import ASGIApp, Receive, Scope, Send, refuse_request
from participants.servers import asgi, participant
from participants.servers.agent import Agent
from participants.servers.agent_session import Session
from participants.servers.asgi import Shell
from participants.servers.codecs import attrs_codec
from participants.servers.environment import Environment
from participants.servers.fences import Fences
from participants.servers.lease import Lease
from participants.servers.participant import Participant
from participants.servers.policy_model import PolicyModel
from participants.servers.resources import Resources
from participants.servers.server import Server
from participants.settings import Settings
from participants.simulation import game
from participants.simulation.game import Walk
from statecore import go, stay
from stateful_tests.planted.fault import Fault, Patch, Weapon, replaces, serves


def _open_again(data: Any, event: Any) -> Any:
    return open_checkpoint(evolve(data, ended=type(data.ended)()), event)


def reopened(patch: Patch) -> None:
    table = without_rule(PARTICIPANT, {(Phase.IDLE, PrepareRequested): go(Phase.PREPARING, do=_open_again)})
    patch.setattr(participant, "PARTICIPANT", table)


def inherited_role(place: Place) -> ASGIApp:
    """A judge that is made as a policy model is."""

    async def judge(_path: str, body: dict[str, Any]) -> dict[str, Any]:
        return completion("judge", judge_says(place.plan.seed, body))

    return PolicyModel("judge", place.settings, judge, seams=place.seams, transport=place.transport).app()


def nobody_named(patch: Patch) -> None:
    report = Participant.report_json
    nobody: dict[str, Any] = {"blockers": [], "blocker_details": [], "blocker_count": 0}
    patch.setattr(Participant, "report_json", lambda self: report(self) | nobody)


@frozen
class Forgetful:
    """A codec that forgets the way."""

    name: str = "walk"

    def export(self, walk: Walk) -> Any:
        return attrs_codec(Walk).export(evolve(walk, way=""))

    def load(self, data: Any) -> Walk:
        return attrs_codec(Walk).load(data)


def believed(patch: Patch) -> None:
    patch.setattr(game, "attrs_codec", lambda _: Forgetful())
    patch.setattr(Resources, "_prove", lambda *_, **__: None)


def excluded(patch: Patch) -> None:
    kinds: tuple[type[Any], ...] = (Agent, Environment, Resources)
    for kind in kinds:

        def unfenced(self: Any, scope: Any, export: Any = kind.export) -> Iterable[Any]:
            return (each for each in export(self, scope) if each["episode_id"]["rollout_id"] not in self.fences.passed)

        patch.setattr(kind, "export", unfenced)


class Asking(Agent):
    """Every session that runs when the gate closes is asked to park, and the opening answers those who have parked."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.asked: dict[EpisodeId | None, anyio.Event] = {}
        self.parked: list[EpisodeId | None] = []
        close = self.admission.close

        def ask_and_close() -> None:
            for episode, _ in self._sessions:
                self.asked.setdefault(episode, anyio.Event())
            close()

        self.admission.close = ask_and_close  # type: ignore[method-assign]

    @asynccontextmanager
    async def session(self, scope: Scope, **options: Any) -> AsyncIterator[Session]:
        async with super().session(scope, **options) as session:
            session.__class__ = Asked
            yield session

    def opened(self) -> None:
        for episode in self.parked:
            self.asked.pop(episode).set()
        self.parked.clear()


class Asked(Session):
    async def boundary(self, state: Any, **more: Any) -> bool:
        agent = self._agent
        assert isinstance(agent, Asking)
        if self.episode in agent.asked:
            agent.parked.append(self.episode)
            await agent.asked[self.episode].wait()
        return await super().boundary(state, **more)


def everybody_named(patch: Patch) -> None:
    data = Shell._data

    async def demanding(self: Shell, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET" and not scope["path"].startswith(RUN_PREFIX):
            raise refuse_request("execution_identity_mismatch", "which rollout?")
        await data(self, scope, receive, send)

    patch.setattr(Shell, "_data", demanding)


def of_any_life(patch: Patch) -> None:
    patch.setattr(asgi, "is_data_of_other_life", lambda *_: False)


def born_open(patch: Patch) -> None:
    of_any_life(patch)
    make = Server.__init__

    def born(incarnation: str, *, epoch_required: bool, **more: Any) -> Any:
        return new_process(incarnation, epoch_required=False, **more)

    def opened(self: Server, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        self.admission.open()

    patch.setattr(participant, "new_process", born)
    patch.setattr(Server, "__init__", opened)


def one_directory(patch: Patch) -> None:
    for place in (snapshots, draft, checkpoint):
        patch.setattr(place, "part_dir", lambda directory, *_: directory / snapshots.GYM / "all" / "all")
    patch.setattr(snapshots, "is_this_commit", lambda *_: True)


def any_commit(patch: Patch) -> None:
    table = without_rule(PARTICIPANT, {(Phase.COMMITTED, CommitRequested): this(stay(do=committed_again))})
    patch.setattr(participant, "PARTICIPANT", table)


def silently_off(patch: Patch) -> None:
    checked, wrap = Settings.checked, Server.wrap

    def or_off(self: Settings) -> Settings:
        return checked(self if self.control_auth_token else evolve(self, enabled=False))

    def unprefixed(self: Server, app: ASGIApp) -> ASGIApp:
        async def off(scope: Scope, receive: Receive, send: Send) -> None:
            named = scope["type"] == "http"
            await app({**scope, "path": split_prefix(scope["path"])[1]} if named else scope, receive, send)

        return wrap(self, app if self.settings.enabled else off)

    patch.setattr(Settings, "checked", or_off)
    patch.setattr(Server, "wrap", unprefixed)


def restored_at_work(patch: Patch) -> None:
    kinds: tuple[type[Any], ...] = (Agent, Environment, Resources, PolicyModel)
    for kind in kinds:
        patch.setattr(kind, "check_fresh", lambda *_: None)


def for_anybody(patch: Patch) -> None:
    table = without_guard(without_guard(PARTICIPANT, is_other_process), is_other_epoch)
    patch.setattr(participant, "PARTICIPANT", table)


never_ends = replaces(Lease, "arm", lambda *_: None)
applied_again = replaces(SessionData, "applied", lambda *_: None)

WHO: Final = "nobody asks which process a control call is for"

FAULTS: Final = (
    Fault("S1", "a judge has the policy's role", serves("judge", inherited_role), Weapon.SIMULATION, ["I73"], 1),
    Fault("S7", "what is over is opened again", reopened, Weapon.RESOURCES, ["I14"], 30),
    Fault("S10", "a report names nobody", nobody_named, Weapon.RESOURCES, ["S10"], 4),
    Fault("S11", "a codec that forgets is taken at its word", believed, Weapon.SIMULATION, ["I57"], 9),
    Fault("S13", "who was continued is left out of every commit", excluded, Weapon.SIMULATION, ["I35"], 5),
    Fault(
        "S16",
        "marks of what is over are kept for ever",
        replaces(Fences, "forget", lambda *_: None),
        Weapon.SIMULATION,
        ["I75"],
        6,
    ),
    Fault(
        "S18",
        "who was asked to park does so after the checkpoint",
        replaces(agent_server, "Agent", Asking),
        Weapon.SIMULATION,
        ["I20"],
        20,
    ),
    Fault("S20", "who asks for anything must name a rollout", everybody_named, Weapon.RESOURCES, ["S20"], 1),
    Fault(
        "S23",
        "a process is born open, and takes calls of another life",
        born_open,
        Weapon.SIMULATION,
        ["I53"],
        27,
    ),
    Fault(
        "S24",
        "all servers write to one directory, and take the manifest there for their own",
        one_directory,
        Weapon.SIMULATION,
        ["I20"],
        1,
    ),
    Fault("S25", "no lease ever ends", never_ends, Weapon.SIMULATION, ["I21"], 7),
    Fault("S25", "no lease ever ends", never_ends, Weapon.RESOURCES, ["I21"], 1),
    Fault("S25", "no lease ever ends", never_ends, Weapon.JOB, ["I21"], 5),
    Fault("S26", "a commit that was made answers any commit", any_commit, Weapon.RESOURCES, ["S26"], 1),
    Fault("S28", "without a token checkpointing is off", silently_off, Weapon.SIMULATION, ["S28"], 8),
    Fault("S29", "a restore is installed whatever lives here", restored_at_work, Weapon.RESOURCES, ["I53"], 1),
    Fault("S29", "a restore is installed whatever lives here", restored_at_work, Weapon.AGENT, ["I53"], 1),
    Fault("S29", "a restore is installed whatever lives here", restored_at_work, Weapon.ENVIRONMENT, ["I53"], 1),
    Fault("S29", "a restore is installed whatever lives here", restored_at_work, Weapon.POLICY, ["I53"], 4),
    Fault(
        "S30",
        "clocks may differ by as much as they like",
        replaces(deployment, "_check_clock", lambda *_: None),
        Weapon.SIMULATION,
        ["S30"],
        13,
    ),
    Fault("S33", "a call that is sent again is applied again", applied_again, Weapon.SIMULATION, ["I10"], 28),
    Fault("S33", "a call that is sent again is applied again", applied_again, Weapon.JOB, ["I97"], 9),
    Fault("S45", "nobody asks of which life a call is", of_any_life, Weapon.SIMULATION, ["I20"], 18),
    Fault("S59", f"{WHO}, or of which epoch", for_anybody, Weapon.SIMULATION, ["S59"], 8),
    Fault("S66", f"{WHO}, or of which epoch", for_anybody, Weapon.SIMULATION, ["S66"], 42),
    Fault(
        "S59",
        WHO,
        lambda patch: patch.setattr(participant, "PARTICIPANT", without_guard(PARTICIPANT, is_other_process)),
        Weapon.RESOURCES,
        ["I19"],
        30,
    ),
    Fault(
        "I19",
        "nobody asks for the token",
        replaces(Shell, "_check_token", lambda *_: None),
        Weapon.RESOURCES,
        ["I19"],
        30,
    ),
)
