"""S11, S21, S46, S55: a boundary and an exported image part ways. First the fault, then its absence."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import accumulate
from typing import Any

import pytest
import trio
from attrs import define, evolve, frozen
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from participants.coordination.agreement import Agreed, agree, gather
from participants.identity import OPERATION_HEADER, REVISION_HEADER, EpisodeId
from participants.net.http import REQUEST_KEY, ASGIApp, Incoming, Scope, Send, serve
from participants.records.positions import Agreement, Position
from participants.records.records import AgentBoundary, ResourcesState
from participants.servers.codecs import Codec
from participants.servers.resources import Change, Mode, Resources
from statecore.wire import digest
from tests.scenario_fleet import R1, Callers, commit, crash, parts, restore, run_body, scope, seen, start
from tests.served_kinds import Fleet, settle
from tests.small_job import ROOT, Counter, counter_resources, counting_agent
from tests.whole_job import Turnstile

AGENT, TOOLS = ("agent", "simple_agent"), ("resources", "tools")
OWN_RUN_AGENT = partial(counting_agent, seeds=True)


def image(fleet: Fleet, where: str) -> ResourcesState:
    """The one session that the tools' part holds."""
    state = ResourcesState.read(parts(fleet, where, [TOOLS])[0].records[0]["state"])
    assert state is not None
    return state


def boundary(fleet: Fleet, where: str) -> AgentBoundary:
    """The one boundary that the agent's part holds."""
    found = AgentBoundary.read(parts(fleet, where, [AGENT])[0].records[0]["boundary"])
    assert found is not None
    return found


# --- S11


@frozen
class Dice:
    """What is visible, and what decides the next throw."""

    value: int = 0
    throws: int = 0

    def thrown(self) -> Dice:
        return Dice(self.value + self.throws + 1, self.throws + 1)


class VisibleOnly(Codec[Dice]):
    """A codec that carries what can be seen, and claims to carry the state."""

    name = "dice"

    def export(self, state: Dice, /) -> Any:
        return {"value": state.value}

    def load(self, data: Any, /) -> Dice:
        return Dice(data["value"])


class Believing(Resources[Dice]):
    """The fault: a codec's claim is taken for granted."""

    def _prove(self, state: Dice, **_more: Any) -> None:
        return


def dice_server(fleet: Fleet, kind: type[Resources[Dice]], at_seed: Dice) -> ASGIApp:
    server = kind("tools", fleet.config(), codec=VisibleOnly(), mode=Mode.EXPORT_RESTORE, seams=fleet.seams("tools"))

    async def seed(request: Request) -> Response:
        return await server.seed(request.scope, at_seed)

    async def throw(request: Request) -> Response:
        async with server.mutate(request.scope) as change:
            change.state = change.state.thrown()
            change.reply = {"value": change.state.value}
        return change.response()

    routes = [Route("/seed_session", seed, methods=["POST"]), Route("/throw", throw, methods=["POST"])]
    return server.wrap(Starlette(routes=routes))


async def thrown(fleet: Fleet, kind: type[Resources[Dice]], at_seed: Dice) -> list[Any]:
    """Two throws, a checkpoint, a crash, two more throws: the values, up to the code of the first refusal."""
    came: list[Any] = []

    async def throw(key: str) -> None:
        reply = await fleet.post("tools", f"/ng-rollout/{key}/throw")
        came.append(reply.json()["value"] if reply.is_success else reply.json()["error"]["code"])

    await fleet.start("tools", dice_server(fleet, kind, at_seed))
    seeded = await fleet.post("tools", f"{R1}/seed_session")
    if not seeded.is_success:
        return [seeded.json()["error"]["code"]]
    await throw("r1")
    if type(came[0]) is str:
        return came
    await throw("r1")
    await commit(fleet, "ck", "tools")
    fleet.network.kill("tools")
    await fleet.start("tools", dice_server(fleet, kind, at_seed))
    await restore(fleet, "ck", "tools")
    await throw("r1-a1")
    await throw("r1-a1")
    return came


@pytest.mark.parametrize("at_seed", [Dice(-7, 7), Dice()], ids=["shows at the seed", "shows once it moved"])
def test_s11_claimed_not_able(at_seed: Dice) -> None:
    """S11: a codec that forgets a part of the state is refused where it is used first, and nothing is exported.

    Believed, it gives back a state whose next throws are other ones than those of an undisturbed run. Covers: I49, I61.
    """
    undisturbed = [state.value for state in accumulate(range(4), lambda state, _: state.thrown(), initial=at_seed)][1:]
    believed = seen(thrown, Believing, at_seed)
    assert believed[:2] == undisturbed[:2]
    assert believed[2:] == [believed[1] + 1, believed[1] + 3] != undisturbed[2:]
    assert seen(thrown, Resources[Dice], at_seed) == ["checkpoint_error"]


# --- S21


class EarlyRevision(Resources[Counter]):
    """The fault: the revision is read when the call comes in, before it has the session's lock."""

    @asynccontextmanager
    async def mutate(self, scope: Scope) -> AsyncIterator[Change[Counter]]:
        early = self._find(scope[REQUEST_KEY]).position.revision
        async with super().mutate(scope) as change:
            yield change
        change.headers = {REVISION_HEADER: str(early + 1)}


async def two_at_once(fleet: Fleet, kind: type[Resources[Counter]]) -> tuple[int, int]:
    """Two tool calls of one turn at once: the newest revision that a boundary would name, and the image's."""
    slow = trio.Event()
    await start(fleet, Turnstile(), "tools", tools=partial(counter_resources, kind=kind, before=slow.wait))
    await fleet.post("tools", f"{R1}/seed_session")
    async with trio.open_nursery() as nursery:
        callers = Callers(fleet, nursery)
        for name in ("a", "b"):
            callers.post(name, "tools", f"{R1}/increment", {"by": 1}, headers={OPERATION_HEADER: name})
        await settle()
        slow.set()
    await commit(fleet, "ck", "tools")
    named = max(int(reply.headers[REVISION_HEADER]) for reply in callers.replies.values())
    return named, image(fleet, "ck").position.revision


def test_s21_revision_read_before_the_lock() -> None:
    """S21: the revision that a reply names is read under the session's lock, so boundary and image agree.

    Read before it, two calls at once both answer revision 1, and the image is at 2. Covers: I35, I37.
    """
    assert seen(two_at_once, EarlyRevision) == (1, 2)
    assert seen(two_at_once, Resources) == (2, 2)


# --- S46


def by_revision(self: Position, other: Position) -> Agreement:
    """The fault: equal numbers are taken for equal histories."""
    return Agreement.EQUAL if self.revision == other.revision else Agreement.DIFFERENT


@define(eq=False)
class Sampled(Turnstile):
    """A policy that samples: `says` is what it says at its second turn."""

    says: str = ""

    async def generate(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        reply = await super().generate(path, body)
        message = reply["choices"][0]["message"]
        return {"choices": [{"message": message | {"content": self.says if message["content"] == "2" else "1"}}]}


async def life(fleet: Fleet, says: str, commits: str) -> None:
    """From the first checkpoint on: the second turn, and one server's part of the next checkpoint, then a crash."""
    policy = Sampled(says=says)
    await start(fleet, policy, "tools", "simple_agent", simple_agent=OWN_RUN_AGENT)
    await restore(fleet, "ck1", "tools", "simple_agent")
    async with trio.open_nursery() as nursery:
        Callers(fleet, nursery).run(attempt=1)
        policy.allow("r1", 2)
        await settle()
        await commit(fleet, "ck2", commits, attempt=1, checkpoint_id="c2")
        crash(fleet, nursery)


async def two_pasts(fleet: Fleet, compared: Callable[[Position, Position], Agreement]) -> tuple[str, int, str]:
    """A part of one life beside a part of another: what was said, what is there, and why they are not continued."""
    policy = Sampled(says="2")
    policy.allow("r1", 1)
    await start(fleet, policy, "tools", "simple_agent", simple_agent=OWN_RUN_AGENT)
    async with trio.open_nursery() as nursery:
        Callers(fleet, nursery).run()
        await settle()
        await commit(fleet, "ck1", "tools", "simple_agent")
        crash(fleet, nursery)
    await life(fleet, says="5", commits="simple_agent")
    await life(fleet, says="7", commits="tools")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Position, "compared", compared)
        agreed = agreed_on(fleet, "ck2", attempt=1)
    named, held = boundary(fleet, "ck2"), image(fleet, "ck2")
    assert named.parts is not None and named.parts[0].position.incarnation == held.position.incarnation
    assert named.parts[0].position.revision == held.position.revision == 2
    assert agreed.agrees is not bool(agreed.reason)
    return named.state["messages"][-1]["content"], held.data["value"], agreed.reason


def agreed_on(fleet: Fleet, where: str, attempt: int = 0) -> Agreed:
    """Whether the parts of r1 are one execution at one boundary."""
    pieces = gather(parts(fleet, where, [AGENT, TOOLS]))[EpisodeId("r1", attempt)]
    return agree(pieces, digest(run_body()["task"]))


def test_s46_same_number_other_history() -> None:
    """S46: revision 2 of one history is not revision 2 of another; a rollout with such parts is not continued.

    By revision alone, a conversation that heard 6 goes on with a session that stands at 8. Covers: I35, I81.
    """
    assert seen(two_pasts, by_revision) == ("6", 8, "")
    said, held, reason = seen(two_pasts, Position.compared)
    assert (said, held) == ("6", 8)
    assert reason.startswith("simple_agent stands at 2.") and "is at 2." in reason


# --- S55


class Unheld(Resources[Counter]):
    """The fault: a tool call that comes while a checkpoint is open is applied, not held."""

    async def data(self, request: Incoming, send: Send, app: ASGIApp) -> None:
        if self.admission.is_open:
            await super().data(request, send, app)
        else:
            await serve(app, request, send)

    def prepared(self, left_out: frozenset[str]) -> None:
        return


@frozen
class Late:
    """The revision that the boundary names, the image's, whether they pass for one moment, the value in the end."""

    named: int
    held: int
    agrees: bool
    value: str = ""


async def late_mutation(fleet: Fleet, kind: type[Resources[Counter]]) -> Late:
    """An agent goes on too early (its lease ended) and calls its tool before the tools' part is written."""
    policy = Turnstile()
    policy.allow("r1", 1)
    tools = partial(counter_resources, kind=kind)
    await start(fleet, policy, "tools", "simple_agent", tools=tools, simple_agent=OWN_RUN_AGENT)
    async with trio.open_nursery() as nursery:
        Callers(fleet, nursery).run(turns=3)
        await settle()
        assert (await fleet.control("tools", "prepare")).json()["phase"] == "prepared"
        await commit(fleet, "ck", "simple_agent")
        await fleet.control("simple_agent", "resume")
        policy.allow("r1", 2)
        await settle()
        await fleet.control("tools", "commit", checkpoint_dir=str(ROOT / "ck"), episode_ids=scope())
        crash(fleet, nursery)
    named = boundary(fleet, "ck").parts
    assert named is not None
    late = Late(named[0].position.revision, image(fleet, "ck").position.revision, agreed_on(fleet, "ck").agrees)
    await start(fleet, policy, "tools", "simple_agent", tools=tools, simple_agent=OWN_RUN_AGENT)
    await restore(fleet, "ck", "tools", "simple_agent")
    policy.allow("r1", 3)
    finished = await fleet.post("simple_agent", "/run", run_body(attempt=1, turns=3))
    return evolve(late, value=finished.json()["messages"][-1]["content"])


def test_s55_image_newer_than_its_boundary() -> None:
    """S55: what comes after the closing waits, so the image is at the position that its boundary names.

    Applied at once, the image is one mutation ahead, and continued all the same the second turn's tool acts twice: 8,
    not 6. Even then the positions are compared, and it is not continued. Covers: I24, I35, I57, I82.
    """
    assert seen(late_mutation, Unheld) == Late(named=1, held=2, agrees=False, value="8")
    assert seen(late_mutation, Resources) == Late(named=1, held=1, agrees=True, value="6")
