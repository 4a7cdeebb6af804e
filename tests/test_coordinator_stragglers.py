"""Stragglers seen by the coordinator alone, over small servers: whom it tells what, what it says, what may fail."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from participants.coordination.coordinator import Aborted, CoordinatorSettings, Published
from participants.coordination.ledger import Ledger
from participants.coordination.outcomes import Blocker
from participants.coordination.stragglers import concerned, named
from participants.coordination.trainer import Dispatch
from participants.identity import EpisodeId
from participants.machines.attempt import AttemptState
from participants.records.records import Disposition, Receipt
from participants.serving.testing import Fault, once
from tests.coordinator_world import World, a_world, dispatches, is_call, running
from tests.small_fleet import FakeServer, Reply

FEATURE = ("leave_out",)
E0, A1 = EpisodeId("e"), EpisodeId("a", 1)


def slow(**turns: int) -> list[Dispatch]:
    """Rollouts that take a second for a turn, and one that takes for ever."""
    return [*dispatches({"slow": 1}, turn_s=90.0), *dispatches(turns)]


def left_out(world: World, server: str) -> list[Any]:
    """What each prepare of this server said of it."""
    return [body.get("leave_out") for body in world.history.bodies(server, "prepare")]


# --- who is concerned


def test_who_is_named() -> None:
    """The first reason counts; what names no execution is nobody, whatever it says."""
    blockers = [
        Blocker(server="env", rollout_id="e", reason="thinks", waited_s=3.0),
        Blocker(server="tools", rollout_id="e", reason="/x runs"),
        Blocker(server="tools", rollout_id="a", attempt=1),
        Blocker(server="tools", reason="e"),
        Blocker(server="tools", rollout_id="a/b", reason="thinks"),
        Blocker(server="tools", rollout_id="e", attempt=-1, reason="thinks"),
    ]
    assert named(blockers) == {E0: "thinks at env", A1: "not ready at tools"}


@pytest.mark.parametrize(
    ("blocking", "units", "found"),
    [
        (["e"], {}, {"e": "why"}),
        (["e"], {"e": "g", "a": "g", "c": "h"}, {"e": "why", "a-a1": "it shares state with e"}),
        (["e", "c"], {"e": "g", "a": "g", "c": "h"}, {"e": "why", "c": "why", "a-a1": "it shares state with e"}),
        (["a"], {"e": "g", "a": "g"}, {"a": "why"}),
        (["x"], {"e": "g", "x": "g"}, {"x": "why"}),
        (["e"], {"e": "g", "done": "g"}, {"e": "why"}),
    ],
)
def test_who_goes_with_a_straggler(blocking: list[str], units: dict[str, str], found: dict[str, str]) -> None:
    """Its unit, as far as a checkpoint would save it; an attempt that is over takes nobody with it. Covers: I86."""
    candidates = {"e": E0, "a": A1, "c": EpisodeId("c")}
    gone = concerned(dict.fromkeys(map(EpisodeId.from_key, blocking), "why"), candidates, units)
    assert {episode.key: why for episode, why in gone.items()} == found


def test_the_next_attempt_of_a_rollout() -> None:
    """One that was retired waits under its next number; one whose result has come stands. Covers: I68."""
    ledger, _ = Ledger().registered(dispatches({"p": 1, "q": 1}))
    ledger = ledger.dispatched(["p", "q"])
    retried = ledger.retried("p")["p"]
    assert (retried.attempt, retried.execution.state, retried.sent) == (1, AttemptState.QUEUED, False)
    receipt = Receipt(rollout_id="q", attempt=0, result_identity="0" * 32, result_sha256="0" * 64)
    ledger, _ = ledger.received(receipt, {"reward": 1})
    assert ledger.retried("q") is ledger


# --- leaving out


@pytest.mark.trio
async def test_who_is_told_what(autojump_clock: MockClock) -> None:
    """First with the soft deadline, then with the later one and the list, to the server that is blocked and to all that
    come after it; whoever is prepared keeps its lease. Covers: I18.
    """
    async with a_world() as world:
        world.history.features = FEATURE
        async with running(world.coordinator(world.trainer()), slow(p1=9)) as (job, reports):
            await trio.sleep(1.5)
            begun = world.deployments.clock.time()
            outcome = await job.checkpoint(10, stragglers="leave_out")
            assert isinstance(outcome, Published), outcome.story()
            assert outcome.left_out == {"slow": "running a turn at env"}
            who = [{"rollout_id": "slow", "attempt": 0}]
            told = {name: left_out(world, name) for name in ("env", "policy", "agent", "tools")}
            assert told == {"env": [None, who], "policy": [who], "agent": [who], "tools": [who]}
            deadlines = [body["deadline_ts"] - begun for body in world.history.bodies("env", "prepare")]
            assert deadlines == pytest.approx([8, 9], abs=0.01)
            assert [body["episode_ids"] for body in world.history.bodies("env", "commit")] == [
                [{"rollout_id": "p1", "attempt": 0}]
            ]
        assert reports[0].delivered == 2


@pytest.mark.trio
async def test_servers_without_the_feature_are_waited_for_and_named(autojump_clock: MockClock) -> None:
    """They never get the field; the checkpoint is aborted at the deadline as without stragglers. Covers: I20."""
    async with a_world() as world, running(world.coordinator(world.trainer()), slow(p1=30)) as (job, _):
        await trio.sleep(1.5)
        began = trio.current_time()
        outcome = await job.checkpoint(10, stragglers="leave_out")
        assert isinstance(outcome, Aborted)
        assert outcome.reason == "environment servers were not ready in time; env cannot leave anybody out"
        assert [each.rollout_id for each in outcome.blockers] == ["slow"]
        assert trio.current_time() - began == pytest.approx(10, abs=0.5)
        assert left_out(world, "env") == [None, None]
        assert world.history.verbs("agent") == ["resume"], "which it had from the start of the servers"


@pytest.mark.trio
async def test_a_server_without_the_feature_that_is_not_blocked_is_told_nothing(autojump_clock: MockClock) -> None:
    """It is prepared as always, and the checkpoint is published."""
    async with a_world() as world:
        world.history.features = FEATURE
        world.script("agent", "capabilities", lambda *_: {"features": ["other", 7]})
        async with running(world.coordinator(world.trainer()), slow(p1=9)) as (job, _):
            await trio.sleep(1.5)
            assert (await job.checkpoint(10, stragglers="leave_out")).published
            assert (left_out(world, "agent"), len(left_out(world, "tools")[0])) == ([None], 1)


@pytest.mark.trio
async def test_blockers_that_name_nobody_are_waited_for(autojump_clock: MockClock) -> None:
    """A call without a rollout can be neither left out nor retired; the end is an abort that shows it (S10)."""

    def nobody(server: FakeServer, body: Reply) -> Reply:
        server.phase, server.checkpoint_id = "preparing", body["checkpoint_id"]
        return {"phase": "preparing", "report": {"ready": False, "blockers": ["", "slow"]}}

    for choice in ("leave_out", "retire"):
        async with a_world() as world:
            world.history.features = FEATURE
            async with running(world.coordinator(world.trainer()), slow()) as (job, _):
                await trio.sleep(1.5)
                world.script("env", "prepare", nobody)
                outcome = await job.checkpoint(10, stragglers=choice)
                assert isinstance(outcome, Aborted)
                assert len(outcome.blockers) == 2
                assert "retire" not in world.history.verbs()


@pytest.mark.trio
async def test_more_stragglers_than_a_report_shows(autojump_clock: MockClock) -> None:
    """300 of them, and 100 are told at a time: each round names the next ones. Covers: I18."""
    async with a_world() as world:
        world.history.features = FEATURE
        stragglers = dispatches({f"s{number:03}": 1 for number in range(300)}, turn_s=90.0)
        async with running(world.coordinator(world.trainer()), [*stragglers, *dispatches({"p1": 30})]) as (job, _):
            await trio.sleep(1.5)
            outcome = await job.checkpoint(60, stragglers="leave_out")
            assert isinstance(outcome, Published), outcome.story()
            assert len(outcome.left_out) == 300
            assert (outcome.counts[Disposition.CONTINUE], outcome.counts[Disposition.FRESH]) == (1, 300)
            assert "; and 295 more" in outcome.story()


@pytest.mark.trio
@pytest.mark.parametrize("lost", ["request", "reply"])
@pytest.mark.parametrize("which", range(2))
@pytest.mark.parametrize("server", ["env", "policy", "agent", "tools"])
async def test_s33_a_prepare_that_is_lost_changes_nothing(
    autojump_clock: MockClock, server: str, which: int, lost: str
) -> None:
    """The one with the soft deadline and the one with the list; what is lost behind a deadline is asked for again.
    Covers: I15.
    """
    async with a_world() as world:
        world.history.features = FEATURE
        seen: list[float] = []

        def lose(call: Any) -> Fault | None:
            if not is_call(call, server, "prepare"):
                return None
            seen.append(trio.current_time())
            return Fault(lose_request=lost == "request", lose_reply=lost == "reply") if len(seen) == which + 1 else None

        async with running(world.coordinator(world.trainer()), slow(p1=9)) as (job, _):
            await trio.sleep(1.5)
            world.network.faults = lose
            outcome = await job.checkpoint(20, stragglers="leave_out")
            assert isinstance(outcome, Published), outcome.story()
            assert dict(outcome.left_out) == {"slow": "running a turn at env"}
            assert outcome.counts[Disposition.CONTINUE] == 1


@pytest.mark.trio
async def test_a_lease_that_ended_under_the_soft_deadline_is_found(autojump_clock: MockClock) -> None:
    """Who is prepared is asked to stay before anybody is waited for longer; if it cannot, the checkpoint is aborted."""
    async with a_world() as world:
        world.history.features = FEATURE

        def blocked(server: FakeServer, body: Reply) -> Reply | None:
            if "leave_out" in body:
                return None
            server.phase, server.checkpoint_id = "preparing", body["checkpoint_id"]
            details = [{"rollout_id": "p1", "attempt": 0, "reason": "stuck"}]
            return {"phase": "preparing", "report": {"ready": False, "blockers": ["p1"], "blocker_details": details}}

        async with running(world.coordinator(world.trainer()), dispatches({"p1": 30})) as (job, _):
            await trio.sleep(1.5)
            world.script("agent", "prepare", blocked)
            assert (await job.checkpoint(10, stragglers="leave_out")).published
            assert world.history.verbs("env").count("renew") == 2, "once to stay, once as the proof"
            world.script("env", "renew", lambda server, _: server.refuse(409, "stale_checkpoint"))
            outcome = await job.checkpoint(10, stragglers="leave_out")
            assert isinstance(outcome, Aborted)
            assert "env: renew: HTTP 409 stale_checkpoint" in outcome.reason


# --- retiring


@pytest.mark.trio
async def test_the_order_of_retire_then_dispatch(autojump_clock: MockClock) -> None:
    """Open, retire everywhere, close again under another id, and only behind that the next attempt. Covers: I8, I14."""
    async with a_world() as world:
        async with running(world.coordinator(world.trainer()), slow(p1=9)) as (job, reports):
            await trio.sleep(1.5)
            before = len(world.history.calls)
            outcome = await job.checkpoint(20, stragglers="retire")
            assert isinstance(outcome, Published), outcome.story()
            calls = [(name, verb) for name, verb, _ in world.history.calls[before:]]
            env = [verb for name, verb in calls if name == "env"]
            first = ["prepare", "resume", "retire", "prepare", "commit", "renew", "resume"]
            assert env[: len(first)] == first
            assert calls.index(("tools", "retire")) < calls.index(("policy", "prepare"))
            ids = [body["checkpoint_id"] for body in world.history.bodies("env", "prepare")]
            assert ids == ["ck-000001-000002", "ck-000001-000003"]
            assert outcome.checkpoint_id == ids[1]
            assert [each.name for each in outcome.phases].count("freeze") == 2
            runs = [body["episode_id"] for body in world.history.bodies("env", "run")]
            assert {"rollout_id": "slow", "attempt": 1} not in runs
            await trio.sleep(1)
            runs = [body["episode_id"] for body in world.history.bodies("env", "run")]
            assert runs.count({"rollout_id": "slow", "attempt": 1}) == 1
        assert reports[0].delivered == 2
        assert world.count("p1") == 9


@pytest.mark.trio
@pytest.mark.parametrize("server", ["env", "policy", "agent", "tools"])
@pytest.mark.parametrize("verb", ["prepare", "resume", "retire", "commit", "renew"])
async def test_s33_any_reply_that_is_lost_while_retiring_changes_nothing(
    autojump_clock: MockClock, verb: str, server: str
) -> None:
    """It is asked for again, and the outcome is the same. Covers: I15."""
    async with a_world() as world:
        async with running(world.coordinator(world.trainer()), slow(p1=20)) as (job, reports):
            await trio.sleep(1.5)
            world.network.faults = once(Fault(lose_reply=True), server=server, path=verb)
            outcome = await job.checkpoint(20, stragglers="retire")
            assert isinstance(outcome, Published), outcome.story()
            assert dict(outcome.retired) == {"slow": "running a turn at env"}
            assert outcome.counts[Disposition.CONTINUE] == 1
        assert reports[0].delivered == 2


@pytest.mark.trio
async def test_nobody_is_retired_before_all_servers_are_open(autojump_clock: MockClock) -> None:
    """A server that did not hear the end of the checkpoint would refuse; the outcome says so, and dispatch goes on."""
    async with a_world() as world, running(world.coordinator(world.trainer()), slow(p1=30)) as (job, _):
        await trio.sleep(1.5)
        world.network.faults = lambda call: Fault(refuse=True) if is_call(call, "env", "resume") else None
        outcome = await job.checkpoint(20, stragglers="retire")
        assert isinstance(outcome, Aborted)
        assert "not retired, since not resumed: env: resume" in outcome.reason
        assert "retire" not in world.history.verbs()
        world.network.faults = None
        assert (await job.checkpoint(20, stragglers="retire")).published


@pytest.mark.trio
async def test_a_straggler_after_the_other_is_retired_as_long_as_there_is_time(autojump_clock: MockClock) -> None:
    """Each run has its own soft share of what is left; after three the checkpoint is aborted. Covers: I18."""

    def always(server: FakeServer, body: Reply) -> Reply:
        server.phase, server.checkpoint_id = "preparing", body["checkpoint_id"]
        live = next(each for each in server.fleet.live() if each.started)
        details = [{"rollout_id": live.episode.rollout_id, "attempt": live.episode.attempt, "reason": "stuck"}]
        return {"phase": "preparing", "report": {"ready": False, "blockers": ["x"], "blocker_details": details}}

    async with a_world() as world:
        new = dispatches(dict.fromkeys("abcd", 9))
        async with running(world.coordinator(world.trainer()), new) as (job, _):
            await trio.sleep(1.5)
            world.script("env", "prepare", always)
            outcome = await job.checkpoint(30, stragglers="retire")
            assert isinstance(outcome, Aborted)
            assert outcome.seconds <= 30.5
            assert len(outcome.retired) == 2, "and the third one is waited for until the end"
            assert outcome.in_a_row == 1, "it was one checkpoint"
            assert f"retired: {next(iter(outcome.retired))} (stuck at env)" in outcome.story()
            world.script("env", "prepare", None)
            assert (await job.checkpoint(30)).published
        assert all(world.count(each) >= 9 for each in "abcd")


@pytest.mark.trio
async def test_a_checkpoint_that_is_given_up_while_it_retires(autojump_clock: MockClock) -> None:
    """Its caller is cancelled in the middle: dispatch goes on, nothing is tried again that may not be over, and the
    next checkpoint works.
    """
    async with a_world() as world:
        async with running(world.coordinator(world.trainer()), slow(p1=40)) as (job, reports):
            await trio.sleep(1.5)
            world.network.faults = lambda call: Fault(reply_s=60.0) if is_call(call, "tools", "retire") else None
            with trio.move_on_after(18.0) as scope:
                await job.checkpoint(20, stragglers="retire")
            assert scope.cancelled_caught
            world.network.faults = None
            assert (await job.checkpoint(20)).published
        assert set(reports[0].lost) == {"slow"}


# --- what is said while there is time


@pytest.mark.trio
async def test_s10_blockers_are_told_at_10_50_and_90_percent(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """By name, reason and for how long, while the servers still wait; once they are ready nothing is said."""
    caplog.set_level(logging.INFO, "statecore.coordinator")
    async with a_world() as world, running(world.coordinator(world.trainer()), slow(p1=40)) as (job, _):
        await trio.sleep(1.5)
        assert isinstance(await job.checkpoint(20), Aborted)
        told = [(each.levelname, each.getMessage()) for each in caplog.records if "it waits for" in each.message]
        who = "slow attempt 0 at env: running a turn for 1.5 s"
        assert told == [
            ("INFO", f"ck-000001-000002: after 10 % of 20 s it waits for {who}"),
            ("WARNING", f"ck-000001-000002: after 50 % of 20 s it waits for {who}"),
            ("WARNING", f"ck-000001-000002: after 90 % of 20 s it waits for {who}"),
        ]
        caplog.clear()
        await trio.sleep(70)
        assert (await job.checkpoint(20)).published
        assert not [each for each in caplog.records if "it waits for" in each.message]


@pytest.mark.trio
async def test_s10_a_server_that_gives_no_status_is_told_as_well(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Looking never fails a checkpoint."""
    caplog.set_level(logging.INFO, "statecore.coordinator")
    new = dispatches({"p1": 9}, turn_s=6.0)
    async with a_world() as world, running(world.coordinator(world.trainer()), new) as (job, _):
        await trio.sleep(1.5)
        world.script("env", "status", lambda server, _: server.refuse(500, "internal_error"))
        assert (await job.checkpoint(20)).published
        (told,) = [each.getMessage() for each in caplog.records if "it waits for" in each.message]
        assert "env: it gives no status: env: status: HTTP 500" in told


# --- bad input


@pytest.mark.trio
@pytest.mark.parametrize("choice", ["", "leave-out", "ABORT", 3, True])
async def test_a_choice_that_is_none_is_refused_before_anything_happens(autojump_clock: MockClock, choice: Any) -> None:
    """By name; no server is closed and the next checkpoint works."""
    async with a_world() as world, world.coordinator(world.trainer()) as job:
        await job.recover()
        with pytest.raises(ValueError, match="is not a valid Stragglers"):
            await job.checkpoint(10, stragglers=choice)
        assert "prepare" not in world.history.verbs()
        assert (await job.checkpoint(10)).published


@pytest.mark.parametrize("changes", [{"stragglers": "some"}, {"soft_share": 0}, {"soft_share": 1.0}])
def test_settings_that_are_none_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Stragglers|soft_share"):
        CoordinatorSettings(**changes)


@pytest.mark.trio
async def test_the_setting_is_the_default(autojump_clock: MockClock) -> None:
    """A job that always leaves out says it once; a checkpoint may still be told otherwise."""
    async with a_world() as world:
        world.history.features = FEATURE
        coordinator = world.coordinator(world.trainer(), stragglers="leave_out", soft_share=0.5)
        async with running(coordinator, slow(p1=40)) as (job, _):
            await trio.sleep(1.5)
            outcome = await job.checkpoint(10)
            assert isinstance(outcome, Published)
            assert outcome.seconds == pytest.approx(5, abs=0.2)
            assert isinstance(await job.checkpoint(10, stragglers="abort"), Aborted)


def test_outcomes_are_values_with_room_for_both() -> None:
    """A story without stragglers is as it was; with them each is told with its reason."""
    plain = Published(checkpoint_id="ck-1", counts={}, phases=(), seconds=1.0)
    assert plain.story() == "ck-1: 0 continue, 0 completed, 0 fresh, 1.0 s"
    both = evolve(plain, left_out={"a": "thinks at env"}, retired={"b": "runs at tools"})
    assert both.story() == f"{plain.story()}; left out: a (thinks at env); retired: b (runs at tools)"
