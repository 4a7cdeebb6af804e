"""The toy trainer of the documentation, over real servers in memory: its steps are equal, whatever dies when.

Each of its rules is broken once in a twin, which the same runs must find out.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio.testing
from attrs import define, field

import participants
from docs.examples import toy_trainer
from docs.examples.toy_trainer import GroupLost, Plan, Step, ToyTrainer, train
from participants import CheckpointRejected, Dispatch, Disposition, PolicyModel, Published, Result, Seams, Settings
from participants.net.http import ASGIApp
from participants.serving.testing import Call, Fault, InMemoryNetwork
from statecore.seams import SeededEntropy
from statecore.wire import digest
from tests.small_job import answer
from tests.whole_job import NAMES, WholeJob

PLAN = Plan(prompts=("add", "count", "sum"), target="env", steps=4, group_size=2, groups_per_step=2, ahead=6)
RUNS = 8
MAX_CRASHES = 3


async def think(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The policy: how long it takes depends on the conversation, so results come in another order than rollouts go."""
    await trio.sleep(0.1 + int(digest(body["messages"])[:4], 16) / 0x8000)
    return answer(path, body)


def policy(config: Settings, seams: Seams, transport: httpx.AsyncBaseTransport) -> ASGIApp:
    return PolicyModel("policy_model", config, think, seams=seams, transport=transport).app()


@define(eq=False)
class Strike:
    """Everything dies at the call with this number."""

    number: int | None
    scope: trio.CancelScope
    network: InMemoryNetwork
    seen: int = 0
    struck: str = ""

    def __call__(self, call: Call) -> Fault | None:
        self.seen += 1
        if self.seen == self.number:
            self.struck = f"{call.server} {call.path.rsplit('/', 1)[-1]}"
            self.scope.cancel()
            for name in NAMES:
                if name in self.network.up:
                    self.network.kill(name)
        return None


@define(eq=False)
class Seen:
    """What came of a job over all its lives."""

    steps: list[tuple[list[str], float]] = field(factory=list)
    calls: int = 0
    crashes: list[str] = field(factory=list)
    lives: list[int] = field(factory=list)
    cases: Counter[str] = field(factory=Counter)


def undated(steps: list[Step]) -> list[tuple[list[str], float]]:
    """The steps without the lives in which they were taken."""
    return [(each.rollouts, each.weight) for each in steps]


async def one_life(job: WholeJob, seen: Seen, number: int | None) -> bool:
    """A life that dies at the call of that number; whether it came to its end."""
    ended = False
    with trio.CancelScope() as scope:
        job.network.faults = strike = Strike(number, scope, job.network)
        coordinator = job.coordinator()
        trainer: Any = job.trainer
        async with coordinator:
            ended = isinstance(await train(coordinator, trainer), Published)
    job.network.faults = None
    seen.calls = strike.seen
    if trainer.life:
        seen.lives.append(trainer.life)
    seen.cases += trainer.cases
    if ended:
        seen.steps = undated(trainer.state.steps)
    else:
        seen.crashes.append(strike.struck)
    return ended


def trained(kind: type[Watched], crashes: tuple[int, ...] = ()) -> Seen:
    """The whole job, each life but the last one dying at the call with its number."""
    seen = Seen()

    async def main() -> None:
        async with InMemoryNetwork() as network:
            job = WholeJob(network, {"policy_model": policy})
            job.trainer_kind = lambda disk: kind(PLAN, Seams(disk=disk))  # type: ignore[assignment]
            for number in (*crashes, None):
                if await one_life(job, seen, number):
                    return
            raise AssertionError("the last life did not come to its end")

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return seen


class Watched(ToyTrainer):
    """The toy trainer, counting which interesting cases there were."""

    def __init__(self, plan: Plan, seams: Seams) -> None:
        super().__init__(plan, seams)
        self.cases: Counter[str] = Counter()

    async def save(self, directory: Path, dispositions: Mapping[str, Disposition]) -> None:
        await super().save(directory, dispositions)
        groups = Counter(name.partition("_")[0] for name in self.state.buffer)
        self.cases["a group was saved in part"] += any(0 < count < PLAN.group_size for count in groups.values())
        unfinished = [each for each in dispositions.values() if each is not Disposition.COMPLETED]
        self.cases["rollouts were saved in flight"] += bool(unfinished)
        self.cases["a rollout was to be continued"] += Disposition.CONTINUE in unfinished

    async def load(self, directory: Path) -> None:
        await super().load(directory)
        self.cases["a life began with a checkpoint"] += 1

    async def accept(self, result: Result) -> None:
        await super().accept(result)
        self.cases["a continued rollout ended"] += result.attempt > 0


UNDISTURBED = trained(Watched)


def drawn(seed: int) -> tuple[int, ...]:
    """At which call each life dies, in order."""
    dice = SeededEntropy(f"toy {seed}")
    lives = 1 + int(dice.random() * MAX_CRASHES)
    return tuple(1 + int(dice.random() * UNDISTURBED.calls) for _ in range(lives))


def complaint(kind: type[Watched], seen: Seen, undisturbed: Seen) -> str:
    """What is wrong with a run, or ""."""
    if seen.steps != undisturbed.steps:
        return "the steps differ"
    if len(set(seen.lives)) != len(seen.lives):
        return "two lives have one number"
    return ""


def test_the_undisturbed_run_trains_on_every_group_once_in_the_order_of_the_data() -> None:
    """Four steps, each on two whole groups."""
    groups = [[f"p{position:06d}_g{member}" for member in range(2)] for position in range(8)]
    assert [rollouts for rollouts, _ in UNDISTURBED.steps] == [groups[n] + groups[n + 1] for n in range(0, 8, 2)]
    assert UNDISTURBED.calls > 200


def test_s40_s53_s02_after_every_crash_the_steps_are_those_of_an_undisturbed_run() -> None:
    """Drawn crashes of everything, up to three in a row: which rollouts, in which step, each once, to which weight.

    Cursor and dispatches roll back together (S40), buffer and ledger are one reading (S53), a finished rollout that
    waits for its group blocks no checkpoint (S2), and no two lives have one number (S51). Covers: I87, I88, I89.
    """
    cases: Counter[str] = Counter()
    crashes: list[str] = []
    for seed in range(RUNS):
        seen = trained(Watched, drawn(seed))
        assert complaint(Watched, seen, UNDISTURBED) == "", (seed, seen.crashes)
        cases += seen.cases
        crashes += seen.crashes
    assert set(cases) == {
        "a group was saved in part",
        "rollouts were saved in flight",
        "a rollout was to be continued",
        "a life began with a checkpoint",
        "a continued rollout ended",
    }
    assert len(crashes) > RUNS


# --- twins: each breaks one rule of the contract


class Prefetching(Watched):
    """Its cursor is ahead of what is registered by one group, as a data loader's that prefetches (S40)."""

    def __init__(self, plan: Plan, seams: Seams) -> None:
        super().__init__(plan, seams)
        self.fetched: list[Dispatch] = []

    def next_groups(self) -> Iterator[Dispatch]:
        fetched = [*self.fetched, *super().next_groups()]
        waits = PLAN.group_size if self.state.cursor < PLAN.steps * PLAN.groups_per_step else 0
        handed_out = len(fetched) - waits
        self.fetched = fetched[handed_out:]
        return iter(fetched[:handed_out])


class WithoutItsBuffer(Watched):
    """Says that it has consumed what waits for its group, and does not save it (S53)."""

    async def save(self, directory: Path, dispositions: Mapping[str, Disposition]) -> None:
        whole, self.state.buffer = self.state.buffer, {}
        await super().save(directory, dispositions)
        self.state.buffer = whole


class AsTheyCome(Watched):
    """Trains on whatever is there, whole groups or not (S2)."""

    def optimize(self) -> bool:
        state, wanted = self.state, PLAN.groups_per_step * PLAN.group_size
        if len(state.buffer) < wanted:
            return False
        rollouts = list(state.buffer)[:wanted]
        state.weight += sum(state.buffer.pop(each) for each in rollouts)
        state.trained += PLAN.groups_per_step
        state.steps.append(Step(self.policy_version, rollouts, state.weight))
        return True

    async def consumed(self) -> Set[str]:
        return {*self.state.buffer, *(name for step in self.state.steps for name in step.rollouts)}


class CountsItsLives(Watched):
    """Numbers its lives by what it loads: two that begin with the same checkpoint get one number (S51)."""

    loads = 1
    life = property(lambda self: self.loads, lambda self, epoch: None)

    async def load(self, directory: Path) -> None:
        await super().load(directory)
        self.loads = 2 + max((step.version[0] for step in self.state.steps), default=0)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (Prefetching, "nobody runs p0000"),
        (WithoutItsBuffer, "in nobody's keeping"),
        (AsTheyCome, "the steps differ"),
        (CountsItsLives, "two lives have one number"),
    ],
)
def test_a_trainer_that_breaks_a_rule_is_found_out(kind: type[Watched], found: str) -> None:
    """Undisturbed it does as well as any; the drawn crashes show what is wrong with it (S2, S40, S51, S53)."""
    undisturbed = trained(kind)
    assert complaint(kind, undisturbed, undisturbed) == ""
    said = ""
    for seed in range(RUNS):
        try:
            said = complaint(kind, trained(kind, drawn(seed)), undisturbed)
        except (ExceptionGroup, CheckpointRejected) as error:
            said = "; ".join(told(error))
        if said:
            break
    assert found in said


def told(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [line for each in error.exceptions for line in told(each)]
    return [str(error)]


# --- a rollout without a result


def test_s42_a_rollout_without_a_result_ends_the_life_and_no_other_result_is_lost() -> None:
    """Its group will not be whole, which the trainer says; the next life runs it again, and no neighbour of it."""
    runs: list[tuple[str, int]] = []
    fails = [True]

    async def failing_once(path: str, body: dict[str, Any]) -> dict[str, Any]:
        question = body["messages"][0]["content"]
        runs.append((question, len(body["messages"])))
        if fails and question.startswith("count") and len(runs) > 12:
            fails.clear()
            raise OSError("out of memory")
        return await think(path, body)

    def make(config: Settings, seams: Seams, transport: httpx.AsyncBaseTransport) -> ASGIApp:
        return PolicyModel("policy_model", config, failing_once, seams=seams, transport=transport).app()

    async def main() -> None:
        async with InMemoryNetwork() as network:
            job = WholeJob(network, {"policy_model": make})
            job.trainer_kind = lambda disk: Watched(PLAN, Seams(disk=disk))  # type: ignore[assignment]
            seen = Seen()
            with pytest.RaisesGroup(pytest.RaisesExc(GroupLost, match="HTTP 5")):
                await one_life(job, seen, None)
            assert await one_life(job, seen, None)
            assert seen.steps == UNDISTURBED.steps

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert not fails


# --- what it uses


def test_it_uses_only_what_is_public() -> None:
    """Names of `participants` itself: the contract is enough for a trainer."""
    tree = ast.parse(Path(toy_trainer.__file__).read_text(encoding="utf-8"))
    used = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import)]
    ours = [node for node in used if isinstance(node, ast.ImportFrom)]
    names = {(node.module, name.name) for node in ours for name in node.names}
    assert {module for module, _ in names} == {"__future__", "attrs", "collections.abc", "participants", "pathlib"}
    assert {name for module, name in names if module == "participants"} <= set(participants.__all__)
    plain = {name.name for node in used if isinstance(node, ast.Import) for name in node.names}
    assert plain == {"json", "logging", "random", "trio"}
