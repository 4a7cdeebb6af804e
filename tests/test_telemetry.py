"""Who watches sees one trace per checkpoint over all servers, and numbers that are right; nobody needs to watch."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from trio.testing import MockClock

import participants
from participants import signals
from participants.coordination.coordinator import Aborted, Overtaken, Published, RestartFailed
from participants.coordination.recovery import CheckpointRejected
from participants.identity import EPOCH_HEADER
from participants.open_telemetry import OpenTelemetry, histogram
from participants.serving.testing import Fault
from participants.settings import Seams
from participants.telemetry import NoTelemetry, installed_telemetry
from statecore.seams import SystemClock
from tests.both_loops import on_both_loops
from tests.coordinator_world import a_world, dispatches, is_call, running
from tests.served_kinds import Fleet
from tests.served_kinds import run as run_fleet
from tests.small_fleet import Deployments
from tests.small_job import TOKEN, counter_resources, settings
from tests.test_docs import ROOT
from tests.test_policy_responses import Served
from tests.threaded_job import ThreadedJob
from tests.watched import Watched, id_of, said, trace_of
from tests.whole_job import NAMES, WholeJob, run, settle

PHASES = [
    "freeze",
    "prepare",
    "commit",
    "settle",
    "save",
    "validate",
    "prove",
    "publish",
    "claims",
    "acknowledge",
    "resume",
]
TURNS = {"B": 2, "C": 4}


def short(span: ReadableSpan) -> str:
    return span.name.removeprefix("statecore.")


async def played(job: WholeJob, watched: Watched | None = None) -> Published:
    """B at 2, C at 4, a checkpoint, a crash right after it; a second life finishes both."""
    published: list[Published] = []
    async with job.coordinator() as first:
        recovered = await first.recover()
        for rollout, done in TURNS.items():
            job.turnstile.allow(rollout, done)
        with trio.CancelScope() as abandoned:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first.run_batch, recovered.runnable(job.dispatches(5, *TURNS)))
                await settle()
                if watched is not None:
                    watched.forget()
                outcome = await first.checkpoint(timeout_s=60)
                assert isinstance(outcome, Published), outcome.story()
                published.append(outcome)
                assert job.launcher is not None
                job.launcher.kill(*job.launcher.up)
                abandoned.cancel()
    async with job.coordinator() as second:
        recovered = await second.recover()
        for rollout in TURNS:
            job.turnstile.allow(rollout, 5)
        assert (await second.run_batch(recovered.runnable())).delivered == 2
    return published[0]


def watched_job() -> tuple[Watched, Published]:
    """`played`, and what whoever watched it saw: from the checkpoint on."""
    watched, found = Watched(), list[Published]()

    async def test(job: WholeJob) -> None:
        job.telemetry = watched.telemetry
        found.append(await played(job, watched))

    run(test)
    return watched, found[0]


# --- traces


def test_a_checkpoint_is_one_trace_over_all_servers() -> None:
    """Phases below the checkpoint, calls below their phase, what servers do below the call that asked for it."""
    watched, outcome = watched_job()
    root = watched.one("checkpoint")
    assert root.parent is None
    assert said(root) == {
        "statecore.epoch": 1,
        "statecore.checkpoint.id": outcome.checkpoint_id,
        "statecore.outcome": "published",
    }
    phases = [each for each in watched.below(root) if each.name.startswith("statecore.checkpoint.")]
    assert [short(each).removeprefix("checkpoint.") for each in phases] == PHASES
    trace = [each for each in watched.spans if trace_of(each) == trace_of(root)]
    calls = {"prepare": "prepare", "commit": "commit", "prove": "renew", "resume": "resume"}
    for phase, verb in calls.items():
        asked = watched.below(watched.one(f"checkpoint.{phase}"))
        sent = [each for each in asked if short(each) == f"control.{verb}"]
        assert {said(each)["statecore.server"] for each in sent} == set(NAMES)
        for call in sent:
            assert call.kind is SpanKind.CLIENT and said(call)["statecore.tries"] == 1
            (served,) = watched.below(call)
            assert served in trace and served.kind is SpanKind.SERVER and served.name == call.name
            assert said(served)["statecore.server"] == said(call)["statecore.server"]
    for name in NAMES:
        prepared = watched.one("control.prepare", SpanKind.SERVER, server=name)
        assert [short(each) for each in watched.below(prepared)] == ["participant.wait"]
        committed = watched.one("control.commit", SpanKind.SERVER, server=name)
        (write,) = watched.below(committed)
        assert short(write) == "participant.write"
        assert [short(each) for each in watched.below(write)] == ["participant.export"]
    assert all(each.status.status_code is not StatusCode.ERROR for each in trace)


def test_a_recovery_is_one_trace_over_all_servers() -> None:
    """Its steps below it, and read and install below each server's restore."""
    watched, outcome = watched_job()
    recovery = watched.one("recovery")
    assert said(recovery) == {
        "statecore.cause": "start",
        "statecore.epoch": 2,
        "statecore.checkpoint.id": outcome.checkpoint_id,
        "statecore.outcome": "restored",
    }
    steps = [short(each).removeprefix("recovery.") for each in watched.below(recovery)]
    assert steps == ["claim", "launch", "discover", "plan", "restore", "deliver"]
    restore = watched.one("recovery.restore")
    for name in NAMES:
        call = watched.one("control.restore", SpanKind.CLIENT, server=name)
        assert call.parent is not None and call.parent.span_id == id_of(restore)
        served = watched.one("control.restore", SpanKind.SERVER, server=name)
        assert [short(each) for each in watched.below(served)] == ["participant.read", "participant.install"]
        assert trace_of(served) == trace_of(recovery) != trace_of(watched.one("checkpoint"))


@pytest.mark.trio
async def test_a_trainers_own_span_is_above_the_checkpoint(autojump_clock: MockClock) -> None:
    """And above what its save does: a hook is called inside of the phase."""
    watched = Watched()
    tracer = watched.tracers.get_tracer("trainer")
    async with a_world(telemetry=watched.telemetry) as world:
        trainer = world.trainer()

        async def uploads() -> None:
            with tracer.start_as_current_span("upload"):
                await trio.sleep(1)

        trainer.on_save = uploads
        async with running(world.coordinator(trainer), dispatches({"p1": 4})) as (job, _):
            await trio.sleep(1.5)
            with tracer.start_as_current_span("step"):
                assert (await job.checkpoint(20)).published
    spans = {each.name: each for each in watched.spans}
    assert spans["upload"].parent is not None and spans["step"].context is not None
    assert spans["upload"].parent.span_id == id_of(spans["statecore.checkpoint.save"])
    assert spans["statecore.checkpoint"].parent == spans["step"].context


def test_a_trainer_in_plain_threads_is_above_and_below_as_well() -> None:
    """The span that is current where `checkpoint` is called is above it, and hooks are below their phase."""
    watched, life = Watched(), ThreadedJob()
    life.whole.telemetry = watched.telemetry
    tracer = watched.tracers.get_tracer("trainer")

    def uploads() -> None:
        with tracer.start_as_current_span("upload"):
            pass

    life.trainer.during["save"] = uploads
    with life.coordinator() as job:
        job.recover()
        with tracer.start_as_current_span("step"):
            assert job.checkpoint(60.0).published
    spans = {each.name: each for each in watched.spans}
    assert spans["upload"].parent is not None and spans["step"].context is not None
    assert spans["upload"].parent.span_id == id_of(spans["statecore.checkpoint.save"])
    assert spans["statecore.checkpoint"].parent == spans["step"].context


@on_both_loops
async def test_a_server_goes_on_with_a_trace_on_either_loop(tmp_path: Path) -> None:
    """By the header alone, into its own task group and into the thread that writes on a real disk."""
    watched, headers = Watched(), {"authorization": f"Bearer {TOKEN}"}
    app = counter_resources(settings(root=tmp_path), Seams(telemetry=watched.telemetry))
    with watched.tracers.get_tracer("test").start_as_current_span("coordinator") as span:
        watched.telemetry.inject(headers)
    directory, until = str(tmp_path / "c1"), SystemClock().time() + 600
    served = Served(app)
    async with anyio.create_task_group() as group, served.client as client:
        group.start_soon(served.lifespan)
        await served.started.wait()
        for verb, more in {"prepare": {}, "commit": {"checkpoint_dir": directory, "episode_ids": []}}.items():
            body = {"checkpoint_id": "c1", "deadline_ts": until, **more}
            reply = await client.post(f"/ng-control/v1/checkpoint/{verb}", json=body, headers=headers)
            assert reply.status_code == 200, reply.text
        served.shutdown.set()
    spans = {short(each): each for each in watched.spans}
    assert {trace_of(each) for each in spans.values()} == {span.get_span_context().trace_id}
    above = ["coordinator", "control.commit", "participant.write", "participant.export"]
    for name, below in pairwise(above):
        parent = spans[below].parent
        assert parent is not None and parent.span_id == id_of(spans[name])


@pytest.mark.trio
async def test_a_reply_that_is_lost_is_one_call_and_two_servings(autojump_clock: MockClock) -> None:
    """The span of the call says how often it was sent; each sending carries the same header."""
    watched, headers = Watched(), list[str]()
    async with a_world(telemetry=watched.telemetry) as world:
        lost = iter([Fault(lose_reply=True)])

        def faulty(call: Any) -> Fault | None:
            if not is_call(call, "env", "commit"):
                return None
            headers.append(call.request.headers["traceparent"])
            return next(lost, None)

        async with running(world.coordinator(world.trainer()), dispatches({"p1": 4})) as (job, _):
            await trio.sleep(1.5)
            world.network.faults = faulty
            assert (await job.checkpoint(20)).published
    call = watched.one("control.commit", server="env")
    assert said(call)["statecore.tries"] == 2
    assert len(headers) == 2 and len(set(headers)) == 1
    assert headers[0].split("-")[1:3] == [f"{trace_of(call):032x}", f"{id_of(call):016x}"]


@pytest.mark.trio
async def test_a_death_is_a_trace_of_its_own_and_probes_are_in_none(autojump_clock: MockClock) -> None:
    """Whatever span was current when the coordinator started, its supervisor is not below it."""
    watched = Watched()
    tracer = watched.tracers.get_tracer("trainer")
    async with a_world(telemetry=watched.telemetry) as world, world.coordinator(world.trainer()) as job:
        with tracer.start_as_current_span("training"):
            recovered = await job.recover()
            watched.forget()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(job.run_batch, recovered.runnable(dispatches({"p1": 99})))
                await trio.sleep(35)
                assert watched.spans == []
                probes = watched.numbers("control.duration")
                assert probes[("server", "env"), ("verb", "status")][0] == 3
                assert world.deployments.launcher is not None
                world.deployments.launcher.kill("tools")
                await trio.sleep(60)
                assert len(job.restarts) == 1
                nursery.cancel_scope.cancel()
    recovery = watched.one("recovery")
    assert recovery.parent is None
    assert said(recovery) == {"statecore.cause": "death", "statecore.epoch": 2, "statecore.outcome": "fresh"}
    steps = [short(each).removeprefix("recovery.") for each in watched.below(recovery)]
    assert steps == ["stop", "claim", "launch", "discover", "plan", "restore"]
    ((key, (count, seconds)),) = [
        each for each in watched.numbers("recovery.duration").items() if ("cause", "death") in each[0]
    ]
    assert (dict(key), count) == ({"cause": "death", "outcome": "fresh"}, 1)
    assert seconds == pytest.approx(job.restarts[0].seconds)


# --- numbers


def numbered(**attributes: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(attributes.items()))


def test_numbers_of_a_checkpoint_and_a_recovery() -> None:
    """What was held, written, read and played, each once; durations are those of the clock that is handed in."""
    watched, outcome = watched_job()
    assert outcome.turns == 6
    assert watched.numbers("checkpoint.turns") == {(): (1, 6)}
    rollouts = {"continue": (1, 2), "completed": (1, 0), "fresh": (1, 0), "queued": (1, 0)}
    assert watched.numbers("checkpoint.rollouts") == {
        numbered(disposition=name): value for name, value in rollouts.items()
    }
    assert watched.numbers("checkpoint.duration") == {
        numbered(outcome="published"): (1, pytest.approx(outcome.seconds))
    }
    times = {each.name: each.seconds for each in outcome.phases}
    assert watched.numbers("checkpoint.phase.duration") == {
        numbered(phase=name): (1, pytest.approx(times[name])) for name in PHASES
    }
    steps = [(name, step) for name in NAMES for step in ("read", "write")]
    assert watched.numbers("part.records") == {
        numbered(server=name, step=step): (1, 2) for name, step in steps
    }
    writes = [each for each in watched.named("participant.write")]
    sizes = {numbered(server=said(each)["statecore.server"]): (1, said(each)["statecore.size"]) for each in writes}
    assert len(sizes) == len(NAMES) and watched.numbers("part.size") == sizes
    assert {dict(key)["step"] for key in watched.numbers("participant.duration")} == {
        "wait",
        "export",
        "write",
        "read",
        "install",
    }
    assert watched.numbers("recovery.rollouts") == {numbered(disposition="continue"): 2}
    assert watched.numbers("recovery.turns") == {numbered(disposition="continue"): 6, numbered(disposition="fresh"): 0}
    assert watched.numbers("agent.turns") == {numbered(server="simple_agent"): 8}  # of 10, the last two are no boundary
    prepares = watched.numbers("control.duration")[numbered(verb="prepare", server="env")]
    assert prepares[0] == 1
    assert watched.numbers("refusals") == watched.numbers("holds") == watched.numbers("lease.expiries") == {}


def test_the_size_is_that_of_the_file() -> None:
    """Bytes are counted where they are hashed, and the disk has as many."""
    watched, files = Watched(), dict[str, int]()

    async def test(job: WholeJob) -> None:
        job.telemetry = watched.telemetry
        outcome = await played(job)
        for kind, name in (("agent", "simple_agent"), ("resources", "tools"), ("environment", "env")):
            directory = job.store().root / outcome.checkpoint_id / "gym" / kind / name
            (records,) = (each for each in job.disk.listdir(directory) if each.startswith("records-"))
            files[name] = len(job.disk.read(directory / records))

    run(test)
    sizes = watched.numbers("part.size")
    assert {name: sizes[numbered(server=name)][1] for name in files} == files


def test_turns_that_a_checkpoint_holds_and_that_run_again_are_counted() -> None:
    """A restore that fails costs the turns that its checkpoint holds, and whoever watches is told so."""
    watched = Watched()

    async def test(job: WholeJob) -> None:
        job.telemetry = watched.telemetry

        def refuses(call: Any) -> Fault | None:
            return Fault(refuse=True) if is_call(call, "tools", "restore") else None

        async with job.coordinator() as first:
            recovered = await first.recover()
            for rollout, done in TURNS.items():
                job.turnstile.allow(rollout, done)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first.run_batch, recovered.runnable(job.dispatches(5, *TURNS)))
                await settle()
                assert (await first.checkpoint(timeout_s=60)).published
                assert job.launcher is not None
                job.launcher.kill(*job.launcher.up)
                nursery.cancel_scope.cancel()
        job.network.faults = refuses
        async with job.coordinator() as second:
            assert (await second.recover()).restore_failed

    run(test)
    assert watched.numbers("recovery.turns") == {numbered(disposition="continue"): 0, numbered(disposition="fresh"): 6}
    assert said(watched.named("recovery")[-1])["statecore.outcome"] == "fresh"
    lost = watched.one("control.restore", SpanKind.CLIENT, server="tools")
    assert lost.status.status_code is StatusCode.ERROR and said(lost)["error.type"] == "no_answer"
    durations = watched.numbers("control.duration")
    assert durations[(("server", "tools"), ("type", "no_answer"), ("verb", "restore"))][0] == 1


def holds_and_refuses(watched: Watched) -> None:
    """A request is held until the lease ends; control and data calls are refused."""

    async def test(fleet: Fleet) -> None:
        fleet.telemetry = watched.telemetry
        config = fleet.config("tools", lease_grace_seconds=30.0)
        await fleet.start("tools", counter_resources(config, fleet.seams("tools")))
        seeded = await fleet.post("tools", "/ng-rollout/r1/seed_session")
        cookie = {"cookie": seeded.headers["set-cookie"].partition(";")[0]}
        assert (await fleet.control("tools", "prepare", within_s=10.0)).json()["phase"] == "prepared"
        held = await fleet.post("tools", "/ng-rollout/r1/increment", {"by": 1}, headers=cookie)
        assert held.json() == {"value": 1}
        refused = await fleet.control("tools", "prepare", headers={"authorization": "Bearer other"})
        assert refused.status_code == 401
        assert (await fleet.control("tools", "renew", "c1")).status_code == 409
        assert (await fleet.control("tools", "renew", "c2", by="hand")).status_code == 422
        assert (await fleet.post("tools", "/ng-rollout/r1/increment", {"by": 1})).status_code == 200
        other_life = await fleet.post("tools", "/ng-rollout/r1/increment", {"by": 1}, headers={EPOCH_HEADER: "x"})
        assert other_life.status_code == 409

    run_fleet(test)


def test_what_a_server_holds_and_refuses_is_counted() -> None:
    """A held request, for how long, and the end of the lease that let it go; refusals of control and of data."""
    watched = Watched()
    holds_and_refuses(watched)
    assert watched.numbers("holds") == {numbered(server="tools"): 1}
    assert watched.numbers("hold.duration") == {numbered(server="tools"): (1, pytest.approx(40.0, abs=0.5))}
    assert watched.numbers("lease.expiries") == {numbered(server="tools"): 1}
    codes = ("unauthorized", "stale_checkpoint", "http_422", "stale_epoch")
    assert watched.numbers("refusals") == {numbered(server="tools", type=code): 1 for code in codes}
    renewals = watched.named("control.renew", SpanKind.SERVER)
    assert [said(each)["http.response.status_code"] for each in renewals] == [409, 422]
    assert all(each.parent is None and each.status.status_code is StatusCode.ERROR for each in renewals)


async def aborts_twice(watched: Watched) -> Aborted:
    """Two rollouts do not stand in time, twice."""
    async with a_world(telemetry=watched.telemetry) as world:
        new = dispatches({"p1": 1, "p2": 1}, turn_s=50.0)
        async with running(world.coordinator(world.trainer()), new) as (job, _):
            await trio.sleep(1)
            outcome = await job.checkpoint(5)
            assert isinstance(outcome, Aborted)
            watched.forget()
            outcome = await job.checkpoint(5)
    assert isinstance(outcome, Aborted) and len(outcome.blockers) == 2
    return outcome


@pytest.mark.trio
async def test_an_aborted_checkpoint_says_for_whom(autojump_clock: MockClock) -> None:
    """Its span has failed, with the reason, and blockers are counted by server."""
    watched = Watched()
    outcome = await aborts_twice(watched)
    root = watched.one("checkpoint")
    assert root.status.status_code is StatusCode.ERROR
    assert root.status.description == f"while preparing: {outcome.reason}"
    assert said(root) == {
        "statecore.epoch": 1,
        "statecore.checkpoint.id": outcome.checkpoint_id,
        "statecore.outcome": "aborted",
        "statecore.blockers": 2,
        "error.type": "aborted",
    }
    assert watched.numbers("checkpoint.blockers") == {numbered(server="env"): 4}
    (aborted,) = watched.numbers("checkpoint.duration").items()
    assert aborted == (numbered(outcome="aborted"), (2, pytest.approx(10, abs=1)))


@pytest.mark.trio
async def test_runs_that_retire_stragglers_are_below_one_checkpoint(autojump_clock: MockClock) -> None:
    """One call is one span, whatever the number of runs; phases and calls say of which run they are."""
    watched = Watched()
    async with a_world(telemetry=watched.telemetry) as world:
        new = [*dispatches({"slow": 1}, turn_s=90.0), *dispatches({"p1": 40})]
        async with running(world.coordinator(world.trainer()), new) as (job, _):
            await trio.sleep(1)
            outcome = await job.checkpoint(20, stragglers="retire")
    assert outcome.published and set(outcome.retired) == {"slow"}
    root = watched.one("checkpoint")
    assert said(root)["statecore.outcome"] == "published"
    prepares = [each for each in watched.below(root) if short(each) == "checkpoint.prepare"]
    ids = [str(said(each)["statecore.checkpoint.id"]) for each in prepares]
    assert len(ids) == 2 and ids[1] == outcome.checkpoint_id == said(root)["statecore.checkpoint.id"]
    assert [said(each)["error.type"] for each in prepares if "error.type" in said(each)] == ["StageFailed"]
    retired = [each for each in watched.below(root) if short(each) == "control.retire"]
    assert {said(each)["statecore.checkpoint.id"] for each in retired} >= {ids[0]}
    assert watched.numbers("checkpoint.duration")[numbered(outcome="published")][0] == 1


@pytest.mark.trio
async def test_a_recovery_that_is_refused_has_failed(autojump_clock: MockClock) -> None:
    """Its span says why, and it is counted as what it is."""
    watched = Watched()
    async with a_world(telemetry=watched.telemetry) as world:
        trainer = world.trainer()
        trainer.loaded = ["p1"]
        async with world.coordinator(trainer) as job:
            with pytest.raises(CheckpointRejected):
                await job.recover()
    assert said(watched.one("recovery"))["error.type"] == "CheckpointRejected"
    assert said(watched.one("recovery.plan"))["error.type"] == "CheckpointRejected"
    assert watched.numbers("recovery.duration")[numbered(cause="start", outcome="failed")][0] == 1


@pytest.mark.trio
async def test_servers_that_cannot_be_brought_back_are_a_failed_recovery(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The life is over, and its last recovery says so."""
    watched = Watched()
    async with a_world(telemetry=watched.telemetry) as world, world.coordinator(world.trainer()) as job:
        await job.recover()
        watched.forget()

        async def never(_deployments: Deployments, epoch: int) -> Any:
            raise OSError("no machine is left")

        assert world.deployments.launcher is not None
        world.deployments.launcher.kill("tools")
        monkeypatch.setattr(Deployments, "start", never)
        await trio.sleep(60)
        with pytest.raises(RestartFailed):
            await job.checkpoint(5)
    recovery = watched.one("recovery")
    assert said(recovery)["error.type"] == "given_up" and said(recovery)["statecore.outcome"] == "failed"
    assert "no machine is left" in str(recovery.status.description)
    assert len(watched.named("recovery.launch")) == 3


@pytest.mark.trio
async def test_a_checkpoint_that_nobody_waits_for_was_cancelled(autojump_clock: MockClock) -> None:
    """It has no error of its own, and neither have the calls that were under way."""
    watched = Watched()
    async with a_world(telemetry=watched.telemetry) as world:
        new = dispatches({"p1": 1}, turn_s=50.0)
        async with running(world.coordinator(world.trainer()), new) as (job, _):
            await trio.sleep(1)
            with trio.move_on_after(2):
                await job.checkpoint(20)
    root, call = watched.one("checkpoint"), watched.one("control.prepare", server="env")
    assert said(root)["statecore.outcome"] == "cancelled"
    for span in (root, watched.one("checkpoint.prepare"), call):
        assert said(span)["error.type"] == "cancelled" and span.status.status_code is StatusCode.UNSET
    assert watched.numbers("control.duration")[(("server", "env"), ("type", "cancelled"), ("verb", "prepare"))][0] == 1


@pytest.mark.trio
async def test_a_checkpoint_that_was_overtaken_says_so(autojump_clock: MockClock) -> None:
    """Another coordinator has claimed the root meanwhile."""
    watched = Watched()
    async with a_world(telemetry=watched.telemetry) as world, world.coordinator(world.trainer()) as job:
        await job.recover()
        successor = world.store()
        successor.record_base(successor.claim(), None)
        with pytest.raises(Overtaken):
            await job.checkpoint(20)
    assert said(watched.one("checkpoint"))["statecore.outcome"] == "overtaken"
    assert said(watched.one("checkpoint"))["error.type"] == "Overtaken"


# --- the page


async def saves_and_dies(job: WholeJob) -> None:
    """A result is saved, its rollout ended and forgotten, a slow call waited for; then a server dies."""
    job.makers["tools"] = partial(counter_resources, before=partial(trio.sleep, 15))
    job.turnstile.allow("A", 1)
    job.turnstile.allow("B", 1)
    async with job.coordinator() as coordinator:
        recovered = await coordinator.recover()
        await coordinator.run_batch(recovered.runnable(job.dispatches(1, "A")))
        assert (await coordinator.checkpoint(30)).published
        async with trio.open_nursery() as nursery:
            nursery.start_soon(coordinator.run_batch, coordinator.runnable(job.dispatches(2, "B")))
            await trio.sleep(5)
            assert (await coordinator.checkpoint(30)).published
            assert job.launcher is not None
            job.launcher.kill("tools")
            await trio.sleep(60)
            assert len(coordinator.restarts) == 1
            nursery.cancel_scope.cancel()


def test_all_that_is_declared_is_said_and_nothing_else() -> None:
    """Every span and every metric, with exactly the attributes that its declaration has; a failure may be absent."""
    watched = Watched()
    holds_and_refuses(watched)
    trio.run(aborts_twice, watched, clock=MockClock(autojump_threshold=0))

    async def test(scenario: Callable[[WholeJob], Awaitable[object]], job: WholeJob) -> None:
        job.telemetry = watched.telemetry
        await scenario(job)

    run(partial(test, played))
    run(partial(test, saves_and_dies))
    spans: dict[tuple[str, str], set[str]] = {}
    for each in watched.spans:
        spans.setdefault((each.name, each.kind.name.lower()), set()).update(said(each))
    assert set(spans) == {(each.name, str(each.kind)) for each in signals.SPANS}
    for name in signals.SPANS:
        found, wanted = spans[name.name, str(name.kind)], set(name.attributes)
        assert wanted - {signals.ERROR} <= found <= wanted, name.name
    metrics = watched.metrics()
    assert metrics == {each.name: set(each.attributes) for each in signals.METRICS}
    used = {name for span in signals.SPANS for name in span.attributes}
    used |= {name for metric in signals.METRICS for name in metric.attributes}
    assert used == set(signals.ATTRIBUTES)


# --- nobody needs to watch


def names_of_headers(job: WholeJob) -> set[tuple[str, ...]]:
    """What is asked of every server from here on goes into this set: the names of the headers."""
    found: set[tuple[str, ...]] = set()

    def look(call: Any) -> None:
        found.add(tuple(sorted(call.request.headers)))

    job.network.faults = look
    return found


@contextmanager
def without_the_api(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine where OpenTelemetry is not installed."""
    with monkeypatch.context() as patched:
        patched.delitem(sys.modules, "participants.open_telemetry")
        patched.delattr(participants, "open_telemetry")
        for name in [each for each in sys.modules if each.partition(".")[0] == "opentelemetry"]:
            patched.setitem(sys.modules, name, None)
        installed_telemetry.cache_clear()
        yield
    installed_telemetry.cache_clear()


def test_nothing_is_done_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No import, no span, no number, and the job is the same; on the wire there is no difference to an API that
    nobody has set up.
    """
    sent: list[set[tuple[str, ...]]] = []

    async def test(job: WholeJob) -> None:
        sent.append(names_of_headers(job))
        assert (await played(job)).turns == 6

    assert isinstance(installed_telemetry(), OpenTelemetry)
    run(test)
    with without_the_api(monkeypatch):
        assert isinstance(Seams().telemetry, NoTelemetry)
        run(test)
    assert sent[0] == sent[1]
    assert not any("traceparent" in names for each in sent for names in each)
    assert isinstance(Seams().telemetry, OpenTelemetry)


SET_UP_LATE = """
from opentelemetry import metrics, trace
from participants import Seams, signals
telemetry = Seams().telemetry
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
spans, reader, tracers = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
tracers.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(tracers)
metrics.set_meter_provider(MeterProvider([reader]))
with telemetry.span(signals.WAIT):
    telemetry.record(signals.HOLD_SECONDS, 0.3)
(metric,) = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
print(*(each.name for each in spans.get_finished_spans()), metric.name)
print(metric.data.data_points[0].explicit_bounds == signals.HOLD_SECONDS.bounds)
"""


def test_the_sdk_may_be_set_up_after_servers_are_made() -> None:
    """The process's own providers are used from then on, with our buckets. In a process of its own, since it is that
    process's for good.
    """
    command = [sys.executable, "-c", SET_UP_LATE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == [signals.WAIT.name, signals.HOLD_SECONDS.name, "True"], done.stderr


def test_an_api_that_is_there_and_broken_is_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the absence of OpenTelemetry is no error."""
    with monkeypatch.context() as patched:
        patched.delitem(sys.modules, "participants.open_telemetry")
        patched.delattr(participants, "open_telemetry")
        patched.setitem(sys.modules, "participants.signals", None)
        installed_telemetry.cache_clear()
        with pytest.raises(ModuleNotFoundError, match=r"participants\.signals"):
            installed_telemetry()
    installed_telemetry.cache_clear()


def test_the_seam_without_anybody_does_nothing() -> None:
    """Its blocks run, its exceptions come out."""
    nobody, headers = NoTelemetry(), dict[str, str]()
    with nobody.span(signals.WAIT) as span, nobody.apart():
        span.set(signals.BLOCKERS, 1)
        span.fail("why", "in words")
        nobody.inject(headers)
        nobody.add(signals.HOLDS, 1)
        nobody.record(signals.HOLD_SECONDS, 1.0)
    assert headers == {}
    with pytest.raises(LookupError), nobody.span(signals.WAIT):
        raise LookupError


# --- nobody who watches does harm


class OlderMeter:
    """As of an API before buckets could be advised."""

    def create_histogram(self, name: str, unit: str = "", description: str = "") -> list[str]:
        return [name, unit, description]


def test_an_older_api_gets_no_advice_on_buckets() -> None:
    """Something else may have brought it; `Seams()` must not fail for it."""
    made: Any = histogram(OlderMeter(), signals.HOLD_SECONDS)  # type: ignore[arg-type]
    assert made == [signals.HOLD_SECONDS.name, "s", signals.HOLD_SECONDS.says]


class Raises(SpanProcessor):
    """Fails wherever it can."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        raise ConnectionError("no collector")

    def on_end(self, span: ReadableSpan) -> None:
        raise ConnectionError("no collector")


def test_whoever_watches_and_fails_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    """Checkpoint and recovery are as always; the first failure is logged with its traceback, later ones quietly."""

    async def test(job: WholeJob) -> None:
        job.telemetry = Watched(extra=Raises()).telemetry
        assert (await played(job)).turns == 6

    with caplog.at_level(logging.INFO, "statecore.telemetry"):
        run(test)
    told = [each for each in caplog.records if each.name == "statecore.telemetry"]
    assert [each.levelno for each in told] == [logging.ERROR]
    assert told[0].exc_info is not None and "no collector" in str(told[0].exc_info[1])


def test_an_error_inside_of_a_span_comes_out_as_it_was() -> None:
    """The span has failed by its type, or by its code if it has one; the error itself is nobody's but the caller's."""
    watched = Watched()
    error = LookupError("lost")
    with pytest.raises(LookupError) as raised, watched.telemetry.span(signals.WAIT):
        raise error
    assert raised.value is error
    assert said(watched.one("participant.wait")) == {"error.type": "LookupError"}
    assert watched.one("participant.wait").status.description == "lost"


def test_a_span_of_a_request_is_below_an_instrumented_framework_and_below_nothing_foreign() -> None:
    """Of two spans that could be above it the one in the trace of the request is."""
    watched = Watched()
    tracer = watched.tracers.get_tracer("framework")
    headers = dict[str, str]()
    with tracer.start_as_current_span("coordinator"):
        watched.telemetry.inject(headers)
        with tracer.start_as_current_span("framework"), watched.telemetry.span(signals.WAIT, carrier=headers):
            pass
    with tracer.start_as_current_span("the start of the server"):
        with watched.telemetry.span(signals.READ, carrier=headers):
            pass
        with watched.telemetry.span(signals.INSTALL, carrier={}):
            pass
    above = {each.name: each for each in watched.spans}
    parents = {each.name: each.parent.span_id for each in watched.spans if each.parent is not None}
    assert parents["statecore.participant.wait"] == id_of(above["framework"])
    assert parents["statecore.participant.read"] == id_of(above["coordinator"])
    assert parents["statecore.participant.install"] == id_of(above["the start of the server"])


def test_a_probe_that_nobody_is_above_of_is_no_span() -> None:
    """Else a trace of one span would be made at every probe of every server."""
    watched = Watched()
    with watched.telemetry.span(signals.CALLS["status"]) as span:
        span.set(signals.TRIES, 1)
    assert watched.spans == []
    with watched.telemetry.span(signals.WAIT), watched.telemetry.span(signals.CALLS["status"]):
        pass
    assert [short(each) for each in watched.spans] == ["control.status", "participant.wait"]
