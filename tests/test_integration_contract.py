"""The integration contract is held against the code: every name it has to name, and every rule of it, broken once."""

from __future__ import annotations

import builtins
import inspect
import re
from collections.abc import Awaitable, Callable, Iterator, Set
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import participants
from participants import (
    Aborted,
    CheckpointRejected,
    Coordinator,
    CoordinatorError,
    Dispatch,
    Disposition,
    KnownRollout,
    Overtaken,
)
from participants.coordination import outcomes, trainer
from participants.coordination.recovery import Verdict
from statecore.errors import WireError
from tests import test_toy_trainer
from tests.coordinator_world import ROOT, SmallTrainer, World, a_world, dispatches
from tests.test_docs import DOCS, rows
from tests.threaded_job import ThreadedJob

PAGE = "integration-contract.md"
TEXT = (DOCS / "reference" / PAGE).read_text(encoding="utf-8")


def is_named(name: str) -> bool:
    """The page has it in code, alone or called."""
    return re.search(rf"`{re.escape(name)}(?:\([\w, ]*\))?`", TEXT) is not None


# --- names


def test_every_hook_is_in_the_table() -> None:
    """Those of all protocols of the trainer's module, with their arguments, and no other."""
    protocols = [each for each in vars(trainer).values() if getattr(each, "_is_protocol", False)]
    hooks = {}
    for protocol in protocols:
        for name, value in vars(protocol).items():
            if inspect.iscoroutinefunction(value):
                arguments = ", ".join([*inspect.signature(value).parameters][1:])
                hooks[name] = f"{name}({arguments})"
            elif isinstance(value, property):
                hooks[name] = name
    assert {"save", "policy_version"} <= set(hooks)
    table = {row[0].partition("` ")[0].strip("`") for row in rows(PAGE, "4. Hooks")}
    assert table == set(hooks.values())


def test_every_field_is_named() -> None:
    """Of dispatches, results, receipts and of all that a coordinator answers; and what else these can be asked."""
    answers = [each for each in vars(outcomes).values() if attrs.has(each) and each.__module__ == outcomes.__name__]
    assert outcomes.Recovered in answers
    missing = []
    for cls in (*answers, Dispatch, participants.Result, Verdict, trainer.Receipt):
        names = {each.name.rstrip("_") for each in attrs.fields(cls)}
        if cls not in (Verdict, trainer.Receipt):  # these have methods that are nobody else's business
            asked = vars(cls).items()
            names |= {name for name, value in asked if inspect.isfunction(value) or isinstance(value, property)}
        missing += [f"{cls.__name__}.{name}" for name in sorted(names) if not (name.startswith("_") or is_named(name))]
    assert missing == []


def test_every_disposition_has_its_row() -> None:
    """And no other has one."""
    assert {row[0].strip("`") for row in rows(PAGE, "6. Classification")} == {str(each) for each in Disposition}


def test_everything_that_a_coordinator_does_is_named() -> None:
    """Its public methods, and its arguments that are a framework's business."""
    functions = [name for name, value in vars(Coordinator).items() if inspect.isfunction(value)]
    public = [name for name in functions if not name.startswith("_")]
    assert [name for name in public if f"`{name}" not in TEXT and f".{name}(" not in TEXT] == []


def errors_named() -> Iterator[str]:
    for row in rows(PAGE, "10. Launcher, and errors"):
        yield row[0].strip("`")


def subclasses(cls: type) -> Iterator[type]:
    each: type
    for each in cls.__subclasses__():
        yield each
        yield from subclasses(each)


def test_every_error_is_named_and_can_be_imported() -> None:
    """Each one of the table from `participants`; each subclass of CoordinatorError is in it."""
    named = set(errors_named())
    for name in named:
        assert name in participants.__all__ or hasattr(builtins, name), name
    ours = {each.__name__ for each in subclasses(CoordinatorError) if each.__module__.startswith("participants.")}
    assert {"Closed", "Overtaken"} <= ours <= named


def test_everything_in_code_that_looks_like_a_name_of_ours_is_one() -> None:
    """A class that was renamed is found here."""
    there = {*participants.__all__, *dir(builtins), "Verdict", "Blocker", "Phase", "WireError", "ThreadPoolExecutor"}
    used = set(re.findall(r"`(?:with |async with )?([A-Z][a-z]+\w*)", TEXT))
    assert used - there == set()


# --- rules, each broken once


class Saying(SmallTrainer):
    """A trainer whose consumed set is what a test says."""

    says: Set[str] | None = None

    async def consumed(self) -> set[str]:
        return await super().consumed() if self.says is None else set(self.says)


Found = str
Breaker = Callable[[World], Awaitable[Found]]
BROKEN: dict[str, Breaker] = {}


def breaks(row: str) -> Callable[[Breaker], Breaker]:
    """The function breaks the rule of the row that begins so; it returns what was found, in the words of the table."""

    def register(breaker: Breaker) -> Breaker:
        BROKEN[row] = breaker
        return breaker

    return register


async def raised(kind: type[Exception], call: Callable[[], Any]) -> Found:
    with pytest.raises(kind):
        answer = call()
        if inspect.isawaitable(answer):
            await answer
    return kind.__name__


async def aborted(job: Coordinator, *, broken: bool = False) -> Found:
    outcome = await job.checkpoint(20)
    assert isinstance(outcome, Aborted) and outcome.broken is broken, outcome
    return "Aborted"


async def published(world: World, trainer: Any, *names: str, checkpoints: int = 1) -> None:
    """A life that ran these rollouts and published."""
    async with world.coordinator(trainer) as job:
        recovered = await job.recover()
        await job.run_batch(recovered.runnable(dispatches(dict.fromkeys(names, 1))))
        for _ in range(checkpoints):
            assert (await job.checkpoint(20)).published


@breaks("a call before `recover`")
async def _(world: World) -> Found:
    saving, go_on = trio.Event(), trio.Event()

    async def save() -> None:
        saving.set()
        await go_on.wait()

    slow = world.trainer()
    slow.on_save = save
    async with world.coordinator(slow) as job:
        for call in (job.checkpoint, job.runnable, lambda: job.run_batch([])):
            await raised(RuntimeError, call)
        await job.recover()
        await raised(RuntimeError, job.recover)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job.checkpoint)
            await saving.wait()
            found = await raised(RuntimeError, job.checkpoint)
            go_on.set()
        return found


@breaks("a rollout id or a field of a `Dispatch`")
async def _(world: World) -> Found:
    await raised(ValueError, lambda: Dispatch("r1", {}, 7))  # type: ignore[arg-type]
    return await raised(ValueError, lambda: Dispatch("r1-a2", {}, "env"))


@breaks("a `target` that is no server")
async def _(world: World) -> Found:
    async with world.coordinator(world.trainer()) as job:
        batch = (await job.recover()).runnable(dispatches({"r1": 1}))
        await raised(ValueError, lambda: job.runnable([Dispatch("r2", {}, "nobody")]))
        await job.run_batch(batch)
        return await raised(ValueError, lambda: job.run_batch(batch))


@breaks("a task or data position that is no JSON")
async def _(world: World) -> Found:
    async with world.coordinator(world.trainer()) as job:
        await job.recover()
        return await raised(WireError, lambda: job.runnable([Dispatch("r1", {"at": ROOT}, "env")]))


@breaks("an id twice in one call")
async def _(world: World) -> Found:
    async with world.coordinator(world.trainer()) as job:
        await job.recover()
        await raised(KnownRollout, lambda: job.runnable([*dispatches({"r1": 1}), *dispatches({"r1": 1})]))
        job.runnable(dispatches({"r1": 1}))
        await raised(KnownRollout, lambda: job.runnable(dispatches({"r2": 1, "r1": 2})))
        assert len(job.runnable()) == 0, "nothing of the call is registered"
        return "KnownRollout"


@breaks("`timeout_s`")
async def _(world: World) -> Found:
    async with world.coordinator(world.trainer()) as job:
        await job.recover()
        return await raised(ValueError, lambda: job.checkpoint(0))


@breaks("`consumed` names a rollout without a result")
async def _(world: World) -> Found:
    saying = Saying(world.disk)
    async with world.coordinator(saying) as job:
        await job.recover()
        assert (await job.checkpoint(20)).published
        saying.says = {"r9"}
        await aborted(job, broken=True)
    late = Saying(world.disk)
    late.says = {"r9"}
    return await raised(CheckpointRejected, lambda: published(world, late))


@breaks("`consumed` forgets a result")
async def _(world: World) -> Found:
    saying = Saying(world.disk)
    async with world.coordinator(saying) as job:
        await job.run_batch((await job.recover()).runnable(dispatches({"r1": 1})))
        for _ in range(2):  # the second one no longer has the body
            assert (await job.checkpoint(20)).published
        saying.says = set()
        await aborted(job, broken=True)
    late = Saying(world.disk)
    late.says = set()
    return await raised(CheckpointRejected, lambda: published(world, late))


@breaks("a trainer that has consumed something begins with an empty root")
async def _(world: World) -> Found:
    saying = Saying(world.disk)
    saying.says = {"r1"}
    return await raised(CheckpointRejected, lambda: published(world, saying))


@breaks("`save` writes less than `load` needs")
async def _(world: World) -> Found:
    class Forgetful(SmallTrainer):
        async def save(self, directory: Path, dispositions: Any) -> None:
            await trio.lowlevel.checkpoint()

    await published(world, Forgetful(world.disk))
    await raised(FileNotFoundError, lambda: published(world, world.trainer()))
    return "what `load` raises"


@breaks("`save` is too slow")
async def _(world: World) -> Found:
    slow = world.trainer()
    slow.on_save = partial(trio.sleep, 21)
    async with world.coordinator(slow) as job:
        await job.recover()
        return await aborted(job)


@breaks("something changes a checkpoint's files")
async def _(world: World) -> Found:
    await published(world, world.trainer(), "r1", checkpoints=2)
    for checkpoint_id in reversed(world.store().published()):
        path = ROOT / str(checkpoint_id) / "framework/state.json"
        world.disk.unlink(path)
        with world.disk.create(path) as file:
            file.write(b"[]")
        if checkpoint_id != world.store().published()[0]:
            async with world.coordinator(world.trainer()) as job:
                assert [each.checkpoint_id for each in (await job.recover()).damaged] == [str(checkpoint_id)]
    return await raised(CheckpointRejected, lambda: published(world, world.trainer()))


@breaks("a target of the checkpoint")
async def _(world: World) -> Found:
    await published(world, world.trainer(), "r1")
    names = world.deployments.names
    for missing in ("env", "tools"):
        world.deployments.names = tuple(each for each in names if each != missing)
        await raised(CheckpointRejected, lambda: published(world, world.trainer()))
    return "CheckpointRejected"


@breaks("two coordinators on one root")
async def _(world: World) -> Found:
    async with world.coordinator(world.trainer()) as job:
        await job.recover()
        world.store().claim()
        return await raised(Overtaken, lambda: job.checkpoint(20))


def a_hook_that_waits() -> Found:
    """For the facade, which has a thread and a loop of its own."""
    life = ThreadedJob()
    refused: list[str] = []

    def in_hook() -> None:
        with pytest.raises(RuntimeError) as error:
            job.checkpoint()
        refused.append(type(error.value).__name__)

    with life.coordinator() as job:
        life.trainer.during["accept"] = in_hook
        job.run_batch(job.recover().runnable(life.dispatches(1, "r1")))
    return refused[0]


ROWS = rows(PAGE, "9. What happens if a rule is broken")


@pytest.mark.parametrize("row", [row for row in ROWS if row[1] != "**not found**"], ids=lambda row: row[0])
def test_a_broken_rule_is_found_as_the_page_says(row: list[str]) -> None:
    """Each row of the table, by the trainer or the job that breaks it."""
    if row[0].startswith("a hook waits for"):
        assert a_hook_that_waits() in row[2]
        return
    (breaker,) = (breaker for start, breaker in BROKEN.items() if row[0].startswith(start))

    async def main() -> Found:
        async with a_world() as world:
            return await breaker(world)

    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)) in row[2]


def test_no_rule_is_left_over() -> None:
    """Nothing is broken here that the page does not have; what cannot be found has a twin of the toy trainer."""
    for start in BROKEN:
        assert sum(row[0].startswith(start) for row in ROWS) == 1, start
    unfound = [row for row in ROWS if row[1] == "**not found**"]
    assert ["S40" in unfound[0][2], "S51" in unfound[1][2], len(unfound)] == [True, True, 2]
    assert test_toy_trainer.Prefetching.__doc__ and "S40" in test_toy_trainer.Prefetching.__doc__
    assert test_toy_trainer.CountsItsLives.__doc__ and "S51" in test_toy_trainer.CountsItsLives.__doc__
