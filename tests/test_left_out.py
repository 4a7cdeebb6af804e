"""A server that is told to go on without some executions: who still blocks it, what it saves, and that nothing of it
is left afterwards (section 12).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from participants.identity import EpisodeId
from participants.servers.admission import Activity, Admission
from participants.servers.resources import Change, Resources
from participants.servers.server import LEAVE_OUT
from statecore import Refused
from tests.policy_server import Calls, running
from tests.scenario_fleet import Callers
from tests.served_kinds import AUTH, CONTROL, Fleet, run, settle
from tests.small_job import ROOT, counter_resources
from tests.test_bad_input import KINDS, started, statuses, untouched
from tests.test_policy_responses import Stream, events

R1 = [{"rollout_id": "r1"}]
R2 = [{"rollout_id": "r2"}]
CK = str(ROOT / "ck")


def code(reply: Any) -> str:
    return str(reply.json()["error"]["code"])


async def slow_tools(fleet: Fleet, *rollouts: str, **changes: Any) -> trio.Event:
    """Resources servers' sessions of these rollouts; each increment waits for the event."""
    end = trio.Event()
    await fleet.start("tools", counter_resources(fleet.config(**changes), fleet.seams("tools"), before=end.wait))
    for rollout in rollouts:
        await fleet.post("tools", f"/ng-rollout/{rollout}/seed_session")
    return end


def increment(callers: Callers, rollout: str, name: str = "tool") -> None:
    callers.post(name, "tools", f"/ng-rollout/{rollout}/increment", {"by": 1})


# --- a server


def test_who_is_left_out_blocks_no_longer_and_is_in_no_commit() -> None:
    """The others do block; a commit that names it, or everybody, is refused; its call ends whenever it likes and its
    session is as it left it. Covers: I24.
    """

    async def test(fleet: Fleet) -> None:
        end = await slow_tools(fleet, "r1", "r2")
        async with trio.open_nursery() as nursery:
            callers = Callers(fleet, nursery)
            increment(callers, "r1")
            await settle()
            waiting = (await fleet.control("tools", "prepare", within_s=1)).json()
            assert (waiting["phase"], waiting["report"]["blockers"]) == ("preparing", ["r1"])
            other = (await fleet.control("tools", "prepare", within_s=1, leave_out=R2)).json()
            assert (other["phase"], other["report"]["blockers"]) == ("preparing", ["r1"])
            prepared = (await fleet.control("tools", "prepare", leave_out=R1)).json()
            assert (prepared["phase"], prepared["report"]["ready"]) == ("prepared", True)
            for scope in (R1, R2, None):
                refused = await fleet.control("tools", "commit", checkpoint_dir=CK, episode_ids=scope)
                assert (refused.status_code, code(refused)) == (409, "left_out_in_scope")
            committed = await fleet.control("tools", "commit", checkpoint_dir=CK, episode_ids=[])
            assert committed.json()["episode_ids"] == []
            end.set()
            await settle()
            assert callers.replies["tool"].json() == {"value": 1}, "it was accepted before the closing"
            increment(callers, "r1", "late")
            await settle()
            assert "late" not in callers.replies, "and this one is held"
            assert (await fleet.control("tools", "resume")).json()["idempotent"] is False
        assert callers.replies["late"].json() == {"value": 2}

    run(test)


def test_a_longer_list_only_adds() -> None:
    """The same prepare again leaves out who was left out before as well; nobody is left out of a part that is written.
    Covers: I15.
    """

    async def test(fleet: Fleet) -> None:
        await slow_tools(fleet, "r1", "r2")
        await fleet.control("tools", "prepare", leave_out=R1)
        for _ in range(2):
            assert (await fleet.control("tools", "prepare", leave_out=R2)).json()["phase"] == "prepared"
        for scope in (R1, R2):
            assert code(await fleet.control("tools", "commit", checkpoint_dir=CK, episode_ids=scope)) == (
                "left_out_in_scope"
            )
        await fleet.control("tools", "commit", checkpoint_dir=CK, episode_ids=[])
        assert (await fleet.control("tools", "prepare", leave_out=[*R1, *R2])).json()["phase"] == "prepared"
        late = await fleet.control("tools", "prepare", leave_out=[{"rollout_id": "r3", "attempt": 1}])
        assert (late.status_code, code(late)) == (409, "invalid_phase")

    run(test)


@pytest.mark.parametrize("ends", ["resume", "lease"])
def test_s18_nothing_of_it_outlives_the_checkpoint(ends: str) -> None:
    """The next checkpoint waits for its call again, also when nobody resumed the one before. Covers: I20, I21."""

    async def test(fleet: Fleet) -> None:
        end = await slow_tools(fleet, "r1", lease_grace_seconds=30.0)
        async with trio.open_nursery() as nursery:
            callers = Callers(fleet, nursery)
            increment(callers, "r1")
            await settle()
            assert (await fleet.control("tools", "prepare", within_s=1, leave_out=R1)).json()["phase"] == "prepared"
            if ends == "resume":
                await fleet.control("tools", "resume")
            else:
                await trio.sleep(40)
            again = (await fleet.control("tools", "prepare", "c2", within_s=1)).json()
            assert (again["phase"], again["report"]["blockers"]) == ("preparing", ["r1"])
            end.set()
        assert (await fleet.control("tools", "prepare", "c2")).json()["phase"] == "prepared"
        committed = await fleet.control("tools", "commit", "c2", checkpoint_dir=CK, episode_ids=R1)
        assert committed.json()["episode_ids"] == ["r1"], "and it is saved"

    run(test)


def test_one_attempt_is_left_out_and_not_its_rollout() -> None:
    """An older attempt that still ends is excused alone: what is there of the newer one is saved. Covers: I6."""

    async def test(fleet: Fleet) -> None:
        await slow_tools(fleet, "r1-a1")
        await fleet.control("tools", "prepare", leave_out=R1)
        scope = [{"rollout_id": "r1", "attempt": 1}]
        committed = await fleet.control("tools", "commit", checkpoint_dir=CK, episode_ids=scope)
        assert committed.json()["episode_ids"] == ["r1-a1"]

    run(test)


def test_a_verification_that_never_ends_is_left_out() -> None:
    """Its session cannot be frozen, and need not be."""

    end = trio.Event()

    class Slow(Resources[Any]):
        @asynccontextmanager
        async def verify(self, scope: Any) -> AsyncIterator[Change[Any]]:
            async with super().verify(scope) as change:
                await end.wait()
                yield change

    async def test(fleet: Fleet) -> None:
        await fleet.start("tools", counter_resources(fleet.config(), fleet.seams("tools"), kind=Slow))
        await fleet.post("tools", "/ng-rollout/r1/seed_session")
        async with trio.open_nursery() as nursery:
            callers = Callers(fleet, nursery)
            callers.post("verify", "tools", "/ng-rollout/r1/verify")
            await settle()
            waiting = (await fleet.control("tools", "prepare", within_s=1)).json()
            assert waiting["report"]["blocker_details"][0]["reason"] == "/verify runs"
            assert (await fleet.control("tools", "prepare", leave_out=R1)).json()["phase"] == "prepared"
            end.set()
            await fleet.control("tools", "resume")
        assert callers.replies["verify"].json() == {"reward": 0}

    run(test)


@pytest.mark.trio
async def test_a_response_that_is_still_being_sent_is_left_out(autojump_clock: trio.testing.MockClock) -> None:
    """A policy model server goes on without the caller that reads slowly; the response is whole."""
    stream = Stream(events("he", "llo"))
    async with running(stream) as policy, trio.open_nursery() as nursery:
        calls = Calls(nursery, policy)
        calls.start("one", "r1")
        stream.let(0)
        await trio.sleep(1)
        assert (await policy.done("prepare", within_s=2))["report"]["blockers"] == ["r1"]
        reply = await policy.done("prepare", within_s=60, leave_out=R1)
        assert (reply["phase"], reply["report"]["counts"]["held"]) == ("prepared", 0)
        stream.let(1, 2)
        assert (await calls.reply("one")).text.endswith("[DONE]\n\n")
        await policy.done("resume")


# --- bad input


@pytest.mark.parametrize(
    ("given", "loc"),
    [
        (None, ("leave_out",)),
        ("r1", ("leave_out",)),
        ({"rollout_id": "r1"}, ("leave_out",)),
        (["r1"], ("leave_out", 0)),
        ([{}], ("leave_out", 0, "rollout_id")),
        ([{"rollout_id": "r1", "why": "slow"}], ("leave_out", 0, "why")),
        ([{"rollout_id": "r1"}, {"rollout_id": "r2", "attempt": -1}], ("leave_out", 1)),
        ([{"rollout_id": "r1-a3"}], ("leave_out", 0)),
        ([{"rollout_id": "r1", "attempt": True}], ("leave_out", 0, "attempt")),
    ],
)
def test_a_list_that_is_none_is_422_and_closes_nothing(given: Any, loc: tuple[Any, ...]) -> None:
    """At every kind of server, with its place; no status changes."""

    async def test(fleet: Fleet) -> None:
        await started(fleet)
        before = await statuses(fleet)
        for kind in KINDS:
            reply = await fleet.control(kind, "prepare", leave_out=given)
            assert reply.status_code == 422, reply.text
            places = [tuple(each["loc"]) for each in reply.json()["detail"]]
            assert all(place[: len(loc) + 1] == ("body", *loc) for place in places), places
        await untouched(fleet, before)

    run(test)


def test_only_prepare_takes_the_list_and_every_kind_says_so() -> None:
    """Other verbs refuse the field; capabilities list the feature."""

    async def test(fleet: Fleet) -> None:
        await started(fleet)
        for kind in KINDS:
            said = await fleet.client.get(fleet.network.url(kind) + "/ng-control/v1/capabilities", headers=AUTH)
            assert LEAVE_OUT in said.json()["features"]
            for verb in ("resume", "renew"):
                body = {"checkpoint_id": "c1", "deadline_ts": fleet.now() + 9, "leave_out": R1}
                url = fleet.network.url(kind) + CONTROL + verb
                assert (await fleet.client.post(url, content=json.dumps(body), headers=AUTH)).status_code == 422
            unknown = await fleet.control(kind, "prepare", leave_out=[*R1, *R1])
            assert unknown.json()["phase"] == "prepared", "whom it does not know is no fault"

    run(test)


# --- one thing at the gate


class Counted:
    """An admission with one activity of r1."""

    def __init__(self) -> None:
        self.admission = Admission(5)
        self.admission.enter_or_refuse()
        self.activity = Activity(self.admission, EpisodeId("r1").rollout_id, lambda: None)

    @property
    def counts(self) -> tuple[int, int]:
        return self.admission.counts.active, self.admission.counts.settled


@pytest.mark.parametrize("then", ["moves on", "settles", "ends", "is exempt"])
def test_what_is_excused_is_counted_again_at_the_opening(then: str) -> None:
    """As what it is by then; what has ended meanwhile is gone. Covers: I23, I75."""
    one = Counted()
    one.admission.close()
    one.activity.excuse()
    assert (one.admission.is_quiet, one.activity.blocks, one.counts) == (True, False, (0, 0))
    if then == "settles":
        one.activity.settle()
    elif then == "ends":
        one.activity.end()
    elif then == "is exempt":
        one.activity.exempt()
    one.activity.excuse()
    assert one.counts == (0, 0)
    one.admission.open()
    assert one.counts == {"moves on": (1, 0), "settles": (0, 1)}.get(then, (0, 0))
    one.admission.close()
    assert one.admission.is_quiet is (then != "moves on")
    one.admission.open()
    one.activity.end()
    assert one.counts == (0, 0)


def test_what_is_settled_needs_no_excuse() -> None:
    """It stays counted as what stands, and waits for the opening."""
    one = Counted()
    one.activity.settle()
    one.admission.close()
    one.activity.excuse()
    assert one.counts == (0, 1)
    with pytest.raises(Refused, match="checkpoint"):
        one.admission.enter_or_refuse()


@pytest.mark.trio
async def test_what_is_excused_and_settles_stirs_only_after_the_opening(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It is held like everything else. Covers: I24."""
    one = Counted()
    one.admission.close()
    one.activity.excuse()
    one.activity.settle()
    stirred: list[float] = []

    async def stir() -> None:
        await one.activity.stir()
        stirred.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        began = trio.current_time()
        nursery.start_soon(stir)
        await trio.sleep(3)
        assert stirred == []
        one.admission.open()
    assert stirred == [began + 3]
    assert one.counts == (1, 0)
