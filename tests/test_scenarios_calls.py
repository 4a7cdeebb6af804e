"""S59, S60, S61: a call reaches somebody that it was not meant for, or too late. First the fault, then its absence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import httpx
import pytest
import trio

from participants.identity import INCARNATION_HEADER, OPERATION_HEADER, REVISION_HEADER, TRY_HEADER
from participants.machines.sendings import Fate, Sending
from participants.net.http import Incoming
from participants.records.records import ResourcesState
from participants.servers.calls import VerbCall
from participants.servers.part import Json
from participants.servers.participant import Participant
from participants.servers.refusals import Refusals
from participants.servers.resources import Resources, Serving
from participants.servers.session_book import Session
from tests.scenario_fleet import R1, Callers, done, parts, scope, seen, start
from tests.served_kinds import Fleet, settle
from tests.small_job import ROOT, Counter, counter_resources, counting_agent
from tests.whole_job import Turnstile

OWN_RUN_AGENT = partial(counting_agent, seeds=True)

# --- S59


class ForAnybody(Participant):
    async def perform(self, call: VerbCall, *, epoch: int | None, incarnation: str | None) -> Json:
        return await super().perform(call, epoch=epoch, incarnation=None)


class AnyProcess(Resources[Counter]):
    """The fault: nobody asks which process a control call is meant for."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        assert self.participant is not None
        self.participant.__class__ = ForAnybody


async def late_prepare(fleet: Fleet, kind: type[Resources[Counter]]) -> tuple[str, bool]:
    """A prepare is on its way while its server dies and comes back: its answer, and whether the new one serves."""
    await start(fleet, Turnstile(), "tools", tools=partial(counter_resources, kind=kind))
    meant = str((await fleet.status("tools"))["incarnation"])
    fleet.network.kill("tools")
    await start(fleet, Turnstile(), "tools", tools=partial(counter_resources, kind=kind))
    late = (await fleet.control("tools", "prepare", headers={INCARNATION_HEADER: meant})).json()
    serves = False
    with trio.move_on_after(60):
        serves = (await fleet.post("tools", f"{R1}/seed_session")).status_code == 200
    return late["error"]["code"] if "error" in late else late["phase"], serves


def test_s59_a_message_for_the_dead() -> None:
    """S59: a prepare for a dead process does nothing to its successor; unasked, it closes it until the lease ends.

    Covers: I13.
    """
    assert seen(late_prepare, AnyProcess) == ("prepared", False)
    assert seen(late_prepare, Resources) == ("stale_incarnation", True)


# --- S60


class NoIdentity(Resources[Counter]):
    """The fault: a session is whatever the rollout has here now, and its position is a number."""

    def _known(self, request: Incoming) -> Session[Counter] | None:
        return self._book.of(request.episode)

    def _position(self, session: Session[Counter]) -> dict[str, str]:
        return {REVISION_HEADER: str(session.position.revision)}


async def seeded_again(fleet: Fleet, kind: type[Resources[Counter]]) -> tuple[int, str]:
    """Between two turns the tools come back empty, and a copy of the seed arrives late: what the agent ends with."""
    policy = Turnstile()
    policy.allow("r1", 1)
    tools = partial(counter_resources, kind=kind)
    await start(fleet, policy, "tools", "simple_agent", tools=tools, simple_agent=OWN_RUN_AGENT)
    async with trio.open_nursery() as nursery:
        callers = Callers(fleet, nursery)
        callers.run(turns=2)
        await settle()
        fleet.network.kill("tools")
        config, seams = fleet.config("tools"), fleet.seams("tools, once more")
        await fleet.start("tools", tools(config, seams, fleet.network.transport("tools")))
        await fleet.post("tools", f"{R1}/seed_session")
        policy.allow("r1", 2)
    ended = callers.replies["run"]
    body = ended.json()
    return ended.status_code, body["messages"][-1]["content"] if ended.is_success else body["error"]["code"]


def test_s60_a_session_that_came_back_empty() -> None:
    """S60: the execution ends as lost. By the rollout's name and a count alone it goes on, and 1 + 2 is 2.

    Covers: I97.
    """
    assert seen(seeded_again, NoIdentity) == (200, "2")
    assert seen(seeded_again, Resources) == (502, "participant_lost")


# --- S61


class Forgetful(Resources[Counter]):
    """The fault: a closed server refuses a call whatever has become of its earlier sendings."""

    def _fate(self, sending: Sending, request: Incoming) -> tuple[Fate, Serving | None]:
        return Fate.ENTER, None


class Unkept(Refusals):
    def check(self, sending: Sending) -> None:
        return


class ThisSendingOnly(Resources[Counter]):
    """The fault: a refusal is forgotten as soon as it is given."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.refusals = Unkept(self.settings.max_held)


class Caller:
    """A loop that has seeded its session and makes one tool call; `at`: the revision that its boundary would name."""

    def __init__(self, fleet: Fleet, nursery: trio.Nursery) -> None:
        self.fleet = fleet
        self.nursery = nursery
        self.at = 0

    async def start(self, kind: type[Resources[Counter]], before: Any = None) -> None:
        config, seams = self.fleet.config(max_held=1), self.fleet.seams("tools")
        await self.fleet.start("tools", counter_resources(config, seams, kind=kind, before=before))
        await self.fleet.post("tools", f"{R1}/seed_session")

    async def send(self, tried: int) -> httpx.Response:
        headers = {OPERATION_HEADER: "op", TRY_HEADER: str(tried)}
        return await self.fleet.post("tools", f"{R1}/increment", {"by": 1}, headers=headers)

    async def call(self, tried: int) -> None:
        """It takes an answer, or parks where it stood."""
        reply = await self.send(tried)
        self.at = int(reply.headers[REVISION_HEADER]) if reply.is_success else self.at

    async def closed(self, checkpoint_id: str) -> None:
        """The tools are closed, and hold all that they can."""
        await self.fleet.control("tools", "prepare", checkpoint_id, within_s=1)
        self.nursery.start_soon(self.fleet.post, "tools", f"/ng-rollout/{checkpoint_id}/seed_session")
        await settle()

    async def parts(self, checkpoint_id: str) -> tuple[int, int]:
        """Where the caller stands, and where its session is saved."""
        assert (await done(self.fleet.control("tools", "prepare", checkpoint_id)))["phase"] == "prepared"
        body: Any = {"checkpoint_dir": str(ROOT / checkpoint_id), "episode_ids": scope()}
        await done(self.fleet.control("tools", "commit", checkpoint_id, **body))
        await done(self.fleet.control("tools", "resume", checkpoint_id))
        record = parts(self.fleet, checkpoint_id, [("resources", "tools")])[0].records[0]
        state = ResourcesState.read(record["state"])
        assert state is not None
        return self.at, state.position.revision


Story = Callable[[Fleet, type[Resources[Counter]]], Awaitable[tuple[int, int]]]


async def reply_lost(fleet: Fleet, kind: type[Resources[Counter]]) -> tuple[int, int]:
    """The call was applied, and its reply did not arrive."""
    async with trio.open_nursery() as nursery:
        caller = Caller(fleet, nursery)
        await caller.start(kind)
        await caller.send(1)
        await caller.closed("c1")
        await caller.call(2)
        return await caller.parts("c1")


async def still_inside(fleet: Fleet, kind: type[Resources[Counter]]) -> tuple[int, int]:
    """The call runs, and was taken for dead."""
    entered, slow = trio.Event(), trio.Event()

    async def before() -> None:
        entered.set()
        await slow.wait()

    async with trio.open_nursery() as nursery:
        caller = Caller(fleet, nursery)
        await caller.start(kind, before)
        nursery.start_soon(caller.send, 1)
        await entered.wait()
        await caller.closed("c1")
        nursery.start_soon(caller.call, 2)
        await settle()
        slow.set()
        await settle()
        return await caller.parts("c1")


async def still_on_its_way(fleet: Fleet, kind: type[Resources[Counter]]) -> tuple[int, int]:
    """The first sending is late: it arrives when its caller has parked and waits for the next checkpoint."""
    async with trio.open_nursery() as nursery:
        caller = Caller(fleet, nursery)
        await caller.start(kind)
        await caller.closed("c1")
        await caller.call(2)
        await fleet.control("tools", "resume", "c1")
        await caller.send(1)
        return await caller.parts("c2")


@pytest.mark.parametrize(
    ("story", "fault", "right"),
    [
        (reply_lost, Forgetful, (1, 1)),
        (still_inside, Forgetful, (1, 1)),
        (still_on_its_way, ThisSendingOnly, (0, 0)),
    ],
)
def test_s61_refused_yet_applied(story: Story, fault: type[Resources[Counter]], right: tuple[int, int]) -> None:
    """S61: whoever is refused stands where its session stands. Refused carelessly, it parks one turn behind.

    Covers: I35, I92.
    """
    assert seen(story, fault) == (0, 1)
    assert seen(story, Resources) == right
