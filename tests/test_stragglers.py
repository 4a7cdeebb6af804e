"""A rollout that does not stand in time: the checkpoint goes without it, or it is retired and starts over."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from participants.coordination.coordinator import Aborted, Published
from participants.coordination.stragglers import Stragglers
from participants.records.records import Disposition
from participants.serving.testing import Fault
from tests.straggling import REWARD, TURNS, Delays, Running, crash, grouped, running, slow_job
from tests.whole_job import WholeJob, run, settle

CONTINUE, FRESH, QUEUED, COMPLETED = Disposition.CONTINUE, Disposition.FRESH, Disposition.QUEUED, Disposition.COMPLETED
LOOP = "its loop runs at simple_agent"
PLACES = {"agent": LOOP, "tools": LOOP, "env": "step 'before' at env"}


def counted(outcome: Published | Aborted) -> dict[str, int]:
    assert isinstance(outcome, Published), outcome.story()
    return {str(each): count for each, count in outcome.counts.items() if count}


def generated_once(job: WholeJob, *rollouts: str) -> None:
    """No turn of these was generated twice."""
    seen = [turn for turn in job.turnstile.seen if turn[0] in rollouts]
    assert len(set(seen)) == len(seen), seen


def rewards(job: WholeJob) -> dict[str, int]:
    """What the trainer of this life got, each once."""
    assert job.trainer is not None
    assert len(set(job.trainer.deliveries)) == len(job.trainer.deliveries)
    return {rollout: body["reward"] for rollout, body in job.trainer.accepted.items()}


# --- left out


@pytest.mark.parametrize("place", PLACES)
def test_a_checkpoint_goes_without_a_straggler_wherever_it_is(place: str) -> None:
    """An endless call in the agent, in a tool, in the environment: after the soft share the others are saved, the
    straggler is named, and it runs on afterwards as if nothing had been. Covers: I20, I86.
    """

    async def test(job: WholeJob) -> None:
        delays = Delays()
        slow_job(job, delays)
        delays.stop(place, "A", after=0 if place == "env" else 2)
        for rollout in ("A", "B"):
            job.turnstile.allow(rollout, 3)
        async with running(job, job.dispatches(TURNS, "A", "B")) as now:
            began = trio.current_time()
            outcome = await now.coordinator.checkpoint(60, stragglers="leave_out")
            assert counted(outcome) == {"continue": 1, "fresh": 1}
            assert isinstance(outcome, Published)
            assert outcome.left_out == {"A": PLACES[place]}
            assert f"left out: A ({PLACES[place]})" in outcome.story()
            assert trio.current_time() - began == pytest.approx(48), "the soft share of 60 s"
            rows = {row.rollout_id: row for row in job.store().read(job.store().published()[-1]).registry}
            assert (rows["A"].disposition, rows["A"].reason) == (FRESH, f"left out: {PLACES[place]}")
            delays.go()
            for rollout in ("A", "B"):
                job.turnstile.allow(rollout, TURNS)
        assert now.reports[0].delivered == 2
        assert rewards(job) == {"A": REWARD, "B": REWARD}
        generated_once(job, "A", "B")

    run(test)


def test_a_straggler_at_a_server_alone_is_left_out_by_that_server() -> None:
    """A call whose caller is nobody that takes part: only the tools are blocked, and only they are told."""

    async def test(job: WholeJob) -> None:
        delays = Delays()
        slow_job(job, delays)
        for rollout in ("A", "B"):
            job.turnstile.allow(rollout, 2)
        async with running(job, job.dispatches(TURNS, "A", "B")) as now:
            delays.stop("tools", "A")
            client = job.network.client("test")
            url = f"{job.network.url('tools')}/ng-rollout/A/increment"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: client.post(url, json={"by": 0}))
                await settle()
                outcome = await now.coordinator.checkpoint(60, stragglers="leave_out")
                assert isinstance(outcome, Published)
                assert outcome.left_out == {"A": "/increment runs at tools"}
                assert counted(outcome) == {"continue": 1, "fresh": 1}
                delays.go()
            for rollout in ("A", "B"):
                job.turnstile.allow(rollout, TURNS)
        assert rewards(job) == {"A": REWARD, "B": REWARD}

    run(test)


def test_what_a_left_out_rollout_does_while_all_are_closed_is_held() -> None:
    """It comes to life while the framework saves: its next call waits like everybody's, and nothing of it is in the
    checkpoint. Covers: I24.
    """

    async def test(job: WholeJob) -> None:
        delays = Delays()
        slow_job(job, delays)
        delays.stop("agent", "A", after=2)
        for rollout in ("A", "B"):
            job.turnstile.allow(rollout, 2)
        seen: list[dict[str, int]] = []
        async with running(job, job.dispatches(TURNS, "A", "B")) as now:

            async def wake() -> None:
                delays.go()
                job.turnstile.allow("A", TURNS)
                await settle()
                await trio.sleep(5)
                seen.append(dict(job.turnstile.generated))

            assert job.trainer is not None
            job.trainer.before_save = wake
            outcome = await now.coordinator.checkpoint(60, stragglers="leave_out")
            assert counted(outcome) == {"continue": 1, "fresh": 1}
            assert seen == [{"A": 2, "B": 2}], "its third generation is held"
            job.turnstile.allow("B", TURNS)
        assert rewards(job) == {"A": REWARD, "B": REWARD}
        generated_once(job, "A", "B")
        parts = job.store().read(job.store().published()[-1]).parts
        assert {record.episode_id.rollout_id for part in parts for record in part.typed} == {"B"}

    run(test)


def test_after_a_crash_a_left_out_rollout_starts_over_and_the_others_go_on() -> None:
    """Turns that the checkpoint holds are not generated again, and each result comes once. Covers: I86."""

    async def test(job: WholeJob) -> None:
        delays = Delays()
        slow_job(job, delays)
        delays.stop("tools", "A", after=1)
        job.turnstile.allow("A", 2)
        job.turnstile.allow("B", 3)

        async def body(now: Running) -> None:
            assert counted(await now.coordinator.checkpoint(60, stragglers="leave_out")) == {"continue": 1, "fresh": 1}

        await crash(job, body, job.dispatches(TURNS, "A", "B"))
        delays.go()
        for rollout in ("A", "B"):
            job.turnstile.allow(rollout, TURNS)
        async with running(job, []) as now:
            verdicts = {each.rollout_id: (each.disposition, each.next_attempt) for each in now.recovered.verdicts}
            assert verdicts == {"A": (FRESH, 1), "B": (CONTINUE, 1)}
        assert rewards(job) == {"A": REWARD, "B": REWARD}
        generated_once(job, "B")

    run(test)


def test_s69_a_unit_is_left_out_as_one() -> None:
    """Only A straggles; B shares state with it and goes with it, C does not. After a crash both start over together.
    Covers: I86.
    """

    async def test(job: WholeJob) -> None:
        delays = Delays()
        slow_job(job, delays, sharing="group")
        delays.stop("agent", "A", after=2)
        groups = {"A": "g1", "B": "g1", "C": "g2"}
        for rollout in groups:
            job.turnstile.allow(rollout, 2)

        async def body(now: Running) -> None:
            outcome = await now.coordinator.checkpoint(60, stragglers="leave_out")
            assert counted(outcome) == {"continue": 1, "fresh": 2}
            assert isinstance(outcome, Published)
            assert outcome.left_out == {"A": "its loop runs at simple_agent", "B": "it shares state with A"}

        await crash(job, body, grouped(job.dispatches(TURNS, *groups), **groups))
        delays.go()
        for rollout in groups:
            job.turnstile.allow(rollout, TURNS)
        async with running(job, []) as now:
            assert {each.rollout_id: each.disposition for each in now.recovered.verdicts} == {
                "A": FRESH, "B": FRESH, "C": CONTINUE,
            }  # fmt: skip
        assert rewards(job) == dict.fromkeys(groups, REWARD)
        generated_once(job, "C")

    run(test)


def test_a_straggler_that_stands_before_it_is_left_out_goes_on_as_well() -> None:
    """It parks while the second prepare is on its way. It is left out all the same, and nothing of it is lost."""

    async def test(job: WholeJob) -> None:
        delays = Delays()
        slow_job(job, delays)
        delays.stop("agent", "A", after=2)
        job.turnstile.allow("A", 3)
        job.turnstile.allow("B", 3)
        prepares: list[float] = []

        def late(call: Any) -> Fault | None:
            if call.server == "simple_agent" and call.path.endswith("/prepare"):
                prepares.append(trio.current_time())
                if len(prepares) == 2:
                    return Fault(request_s=2.0)
            return None

        async with running(job, job.dispatches(TURNS, "A", "B")) as now, trio.open_nursery() as nursery:
            job.network.faults = late

            async def wake() -> None:
                await trio.sleep(49)
                delays.go()

            nursery.start_soon(wake)
            outcome = await now.coordinator.checkpoint(60, stragglers=Stragglers.LEAVE_OUT)
            assert counted(outcome) == {"continue": 1, "fresh": 1}
            assert len(prepares) == 2
            for rollout in ("A", "B"):
                job.turnstile.allow(rollout, TURNS)
        assert rewards(job) == {"A": REWARD, "B": REWARD}
        generated_once(job, "A", "B")

    run(test)


def test_a_straggler_that_finishes_while_others_are_saved_is_completed() -> None:
    """Its result arrives before the framework's half is read: then it is in the checkpoint as a result, and nobody says
    that it was left out. Covers: I65.
    """

    async def test(job: WholeJob) -> None:
        delays = Delays()
        slow_job(job, delays)
        delays.stop("tools", "A", after=TURNS - 1)
        job.turnstile.allow("A", TURNS)
        job.turnstile.allow("B", 2)
        dispatches = [*job.dispatches(TURNS, "B")]
        own = job.dispatches(TURNS, "A")[0]
        dispatches.append(type(own)("A", own.task, "own_agent"))
        async with running(job, dispatches) as now, trio.open_nursery() as nursery:
            job.network.faults = lambda call: (
                Fault(reply_s=4.0) if call.server == "tools" and call.path.endswith("/prepare") else None
            )

            async def wake() -> None:
                await trio.sleep(49)
                job.network.faults = None
                delays.go()

            nursery.start_soon(wake)
            outcome = await now.coordinator.checkpoint(60, stragglers="leave_out")
            assert isinstance(outcome, Published), outcome.story()
            assert (counted(outcome), dict(outcome.left_out)) == ({"continue": 1, "completed": 1}, {})
            job.turnstile.allow("B", TURNS)
        assert now.reports[0].delivered == 2

    run(test)


def test_s18_nothing_of_it_is_left_behind_an_abort() -> None:
    """The next checkpoint waits for it again, and has it. Covers: I20."""

    async def test(job: WholeJob) -> None:
        delays = Delays()
        slow_job(job, delays)
        delays.stop("agent", "A", after=2)
        for rollout in ("A", "B"):
            job.turnstile.allow(rollout, 3)
        async with running(job, job.dispatches(TURNS, "A", "B")) as now:
            job.network.faults = lambda call: Fault(refuse=True) if call.path.endswith("/commit") else None
            assert isinstance(await now.coordinator.checkpoint(60, stragglers="leave_out"), Aborted)
            job.network.faults = None
            again = await now.coordinator.checkpoint(60)
            assert isinstance(again, Aborted)
            assert [each.rollout_id for each in again.blockers] == ["A"]
            delays.go()
            await settle()
            assert counted(await now.coordinator.checkpoint(60)) == {"continue": 2}
            for rollout in ("A", "B"):
                job.turnstile.allow(rollout, TURNS)
        assert rewards(job) == {"A": REWARD, "B": REWARD}

    run(test)


# --- retired


@pytest.mark.parametrize("place", PLACES)
def test_a_straggler_is_retired_and_starts_over_behind_the_checkpoint(place: str) -> None:
    """It is over on every server before its next attempt waits; that one leaves when dispatch goes on. Late calls of
    the old one are refused. Covers: I6, I8.
    """

    async def test(job: WholeJob) -> None:
        delays = Delays()
        slow_job(job, delays)
        delays.stop(place, "A", after=0 if place == "env" else 2)
        for rollout in ("A", "B"):
            job.turnstile.allow(rollout, 3)
        runs: list[str] = []
        job.network.faults = lambda call: runs.append(call.server) if call.path == "/run" else None
        async with running(job, job.dispatches(TURNS, "A", "B")) as now:
            sent = len(runs)
            during: list[int] = []

            async def look() -> None:
                during.append(len(runs) - sent)
                late = await job.network.client("zombie").post(
                    f"{job.network.url('tools')}/ng-rollout/A/increment", json={"by": 1}
                )
                assert (late.status_code, late.json()["error"]["code"]) == (409, "stale_attempt")

            assert job.trainer is not None
            job.trainer.before_save = look
            outcome = await now.coordinator.checkpoint(60, stragglers="retire")
            assert counted(outcome) == {"continue": 1, "queued": 1}
            assert isinstance(outcome, Published)
            assert outcome.retired == {"A": PLACES[place]}
            assert f"retired: A ({PLACES[place]})" in outcome.story()
            assert outcome.seconds < 60
            assert during == [0], "its next attempt waits for the opening"
            delays.go()
            for rollout in ("A", "B"):
                job.turnstile.allow(rollout, TURNS)
        assert now.reports[0].delivered == 2
        assert rewards(job) == {"A": REWARD, "B": REWARD}
        generated_once(job, "B")
        assert job.trainer is not None
        row = {each.rollout_id: each for each in job.store().read(job.store().published()[-1]).registry}["A"]
        assert (row.attempt, row.disposition) == (1, QUEUED)

    run(test)


def test_a_unit_is_retired_as_one() -> None:
    """B stands, and shares state with A: both start over, C goes on. Covers: I86."""

    async def test(job: WholeJob) -> None:
        delays = Delays()
        slow_job(job, delays, sharing="group")
        delays.stop("agent", "A", after=2)
        groups = {"A": "g1", "B": "g1", "C": "g2"}
        for rollout in groups:
            job.turnstile.allow(rollout, 2)

        async def body(now: Running) -> None:
            outcome = await now.coordinator.checkpoint(60, stragglers="retire")
            assert counted(outcome) == {"continue": 1, "queued": 2}
            assert isinstance(outcome, Published)
            assert outcome.retired == {"A": "its loop runs at simple_agent", "B": "it shares state with A"}

        await crash(job, body, grouped(job.dispatches(TURNS, *groups), **groups))
        delays.go()
        for rollout in groups:
            job.turnstile.allow(rollout, TURNS)
        async with running(job, []) as now:
            verdicts = {each.rollout_id: (each.disposition, each.next_attempt) for each in now.recovered.verdicts}
            assert verdicts == {"A": (FRESH, 2), "B": (FRESH, 2), "C": (CONTINUE, 1)}
        assert rewards(job) == dict.fromkeys(groups, REWARD)
        generated_once(job, "C")

    run(test)


def test_a_result_that_comes_while_its_attempt_is_retired_cancels_the_retry() -> None:
    """The straggler finishes while the call that retires it is on its way: its result stands, there is no second
    attempt, and it is not said to be retired. Covers: I68, I70.
    """

    async def test(job: WholeJob) -> None:
        delays = Delays()
        slow_job(job, delays)
        delays.stop("own", "A", after=TURNS - 1)
        job.turnstile.allow("A", TURNS)
        job.turnstile.allow("B", 2)
        own = job.dispatches(TURNS, "A")[0]
        dispatches = [*job.dispatches(TURNS, "B"), type(own)("A", own.task, "own_agent")]
        async with running(job, dispatches) as now:

            def late(call: Any) -> Fault | None:
                if call.path.endswith("/retire") and call.server == "env":
                    delays.go()
                    return Fault(request_s=1.0)
                return None

            job.network.faults = late
            outcome = await now.coordinator.checkpoint(60, stragglers="retire")
            assert isinstance(outcome, Published), outcome.story()
            assert (counted(outcome), dict(outcome.retired)) == ({"continue": 1, "completed": 1}, {})
            job.turnstile.allow("B", TURNS)
        assert now.reports[0].delivered == 2
        assert job.trainer is not None
        assert sorted(job.trainer.deliveries) == ["A", "B"]
        generated_once(job, "A", "B")

    run(test)


@pytest.mark.parametrize("server", ["env", "simple_agent", "policy_model", "tools"])
def test_an_attempt_that_cannot_be_retired_everywhere_is_not_tried_again(server: str) -> None:
    """One server does not answer: the checkpoint is aborted and says so, and no second attempt is dispatched beside
    what may be left of the first. Covers: I6.
    """

    async def test(job: WholeJob) -> None:
        delays = Delays()
        slow_job(job, delays)
        delays.stop("agent", "A", after=2)
        for rollout in ("A", "B"):
            job.turnstile.allow(rollout, 3)
        async with running(job, job.dispatches(TURNS, "A", "B")) as now:
            job.network.faults = lambda call: (
                Fault(refuse=True) if call.server == server and call.path.endswith("/retire") else None
            )
            outcome = await now.coordinator.checkpoint(60, stragglers="retire")
            assert isinstance(outcome, Aborted)
            assert f"not all were retired: {server}: retire: " in outcome.reason
            assert dict(outcome.retired) == {}
            job.network.faults = None
            delays.go()
            for rollout in ("A", "B"):
                job.turnstile.allow(rollout, TURNS)
        report = now.reports[0]
        if server == "env":  # it was asked first: the rollout never heard of it
            assert report.delivered == 2
        else:
            assert report.delivered == 1
            assert "stale_attempt" in report.lost["A"]
        generated_once(job, "A", "B")

    run(test)


def test_a_straggler_in_a_call_that_cannot_be_stopped_is_not_retired_everywhere() -> None:
    """A tool that ignores its cancellation keeps its session: the retire is bounded and the checkpoint is aborted."""

    async def test(job: WholeJob) -> None:
        delays = Delays()
        slow_job(job, delays)
        delays.stop("tools", "A", after=2)
        delays.stubborn = True
        for rollout in ("A", "B"):
            job.turnstile.allow(rollout, 3)
        async with running(job, job.dispatches(TURNS, "A", "B")) as now:
            outcome = await now.coordinator.checkpoint(60, stragglers="retire")
            assert isinstance(outcome, Aborted)
            assert "tools: retire: HTTP 409 deadline_exceeded" in outcome.reason
            assert outcome.seconds <= 60
            delays.go()
            job.turnstile.allow("B", TURNS)
        assert now.reports[0].delivered == 1

    run(test)
