"""Who watches sees one trace per checkpoint over all servers, and numbers that are right; nobody needs to watch."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import trio
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from trio.testing import MockClock

import participants
from participants import signals
from participants.coordination.coordinator import Aborted, Coordinator, Overtaken, Published
from participants.open_telemetry import OpenTelemetry
from participants.records.records import Disposition
from participants.serving.testing import Fault, InMemoryNetwork
from participants.settings import Seams
from participants.telemetry import NoTelemetry, installed_telemetry
from tests.coordinator_world import a_world, dispatches, is_call, running
from tests.served_kinds import Fleet
from tests.served_kinds import run as run_fleet
from tests.small_job import counter_resources
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
                assert job.launcher is not None
                job.launcher.kill(*job.launcher.up)
                abandoned.cancel()
    async with job.coordinator() as second:
        recovered = await second.recover()
        for rollout in TURNS:
            job.turnstile.allow(rollout, 5)
        assert (await second.run_batch(recovered.runnable())).delivered == 2
    return outcome


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
