"""Lives at random: stragglers of every choice, deaths at any moment and at any call, crashes, cancelled checkpoints.

A run is a number; what happens in it is drawn from that number, and so is the order in which tasks run.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
import trio
import trio.testing
from attrs import define, field

from participants.coordination.coordinator import Coordinator, Published, RestartFailed
from participants.coordination.deployment import DiscoveryFailed
from participants.coordination.recovery import Verdict
from participants.coordination.stragglers import Stragglers
from participants.coordination.trainer import Dispatch, Result
from participants.identity import EpisodeId
from participants.records.manifests import CheckpointId
from participants.records.records import Disposition
from participants.serving.testing import Call, Fault
from tests.coordinator_world import SmallTrainer, World, a_world
from tests.small_fleet import KINDS, FakeServer, Reply

SEEDS: Final = (1, 12, 51, 67, 70, 73, 106, 116)
"""Short ones, in which all that can happen does."""
CHOICES: Final = (Stragglers.ABORT, *2 * (Stragglers.LEAVE_OUT, Stragglers.RETIRE))
LIVES: Final = 12
GRACE_S: Final = 5.0
LONGEST_S: Final = 40.0
BOUND_S: Final = 1_500.0


@define(eq=False)
class Keeper(SmallTrainer):
    """A trainer that keeps results outside its state as well, and takes its time for it."""

    takes_s: float = 0.0
    kept: dict[str, Result] = field(factory=dict)

    async def save_result(self, result: Result) -> Result:
        await trio.sleep(self.takes_s)
        return self.kept.setdefault(result.rollout_id, result)


@define(eq=False)
class Run:
    """One run: its dice, its world, and what is held against it."""

    dice: random.Random
    world: World
    tasks: list[Dispatch]
    sent: dict[tuple[int, str], set[int]] = field(factory=dict)
    continued: dict[tuple[int, EpisodeId], int] = field(factory=dict)
    kept: dict[str, Result] = field(factory=dict)
    outcomes: list[str] = field(factory=list)
    deaths: int = 0
    restarts: int = 0
    calls: int = 0
    strikes_at: int = 0
    problems: list[str] = field(factory=list)

    # --- what is watched while it runs

    def watch_runs(self) -> None:
        """A `/run` of a later attempt leaves only when those before it were retired on every server."""

        def sent(server: FakeServer, body: Reply) -> None:
            fleet, episode = server.fleet, EpisodeId(**body["episode_id"])
            before = self.sent.setdefault((fleet.epoch, episode.rollout_id), set())
            lower = [each for each in before if each < episode.attempt]
            for each in fleet.servers.values():
                if lower and each.retired.get(episode.rollout_id, -1) < max(lower):
                    self.problems.append(f"{episode.key} is sent, and {each.name} has not retired those before it")
            before.add(episode.attempt)

        self.world.script("env", "run", sent)

    async def leases(self) -> None:
        """A server that hears nothing until after the latest deadline that it was given opens (I21)."""
        ends: dict[tuple[FakeServer, str], float] = {}

        def heard(server: FakeServer, body: Reply) -> None:
            which = server, body["checkpoint_id"]
            ends[which] = max(ends.get(which, 0.0), body["deadline_ts"] + GRACE_S)

        for name in KINDS:
            for verb in ("prepare", "commit", "renew", "restore"):
                self.world.script(name, verb, heard)
        while True:
            await trio.sleep(1)
            for (server, checkpoint_id), end in list(ends.items()):
                if self.world.deployments.clock.time() > end:
                    del ends[server, checkpoint_id]
                    if server.checkpoint_id == checkpoint_id:
                        server.reopen(checkpoint_id)

    def fault(self, call: Call) -> Fault | None:
        """A server is killed by the call whose turn it is; now and then something is lost."""
        self.calls += 1
        if self.strikes_at and self.calls >= self.strikes_at:
            self.strikes_at = 0
            self.kill(call.server)
            return None
        if self.dice.random() < 0.01:
            return Fault(lose_reply=True) if self.dice.random() < 0.5 else Fault(lose_request=True)
        return None

    def kill(self, server: str) -> None:
        launcher = self.world.deployments.launcher
        if launcher is not None and server in launcher.up:
            self.deaths += 1
            launcher.kill(server)

    # --- what happens

    async def life(self) -> bool:
        """One life, until everything has its result (true) or it has ended before."""
        trainer = Keeper(self.world.disk, takes_s=self.dice.choice((0.0, 7.0)), kept=self.kept)
        kind: Any = trainer if self.dice.random() < 0.5 else plain(trainer)
        how = {"probe_every_s": 2.0, "restart_delay_s": 0.5, "restart_tries": 4, "restart_limit": 99}
        done = False
        with trio.CancelScope() as life:
            try:
                async with self.world.coordinator(kind, **how, max_running=self.dice.choice((2, 99))) as job:
                    done = await self.at_work(job, life)
            except* (RestartFailed, DiscoveryFailed):  # the latter: nobody knows of ends here before servers are known
                self.outcomes.append("the servers could not be brought back")
        self.world.deployments.kill()
        if done:
            self.complete(kind)
        return done

    async def at_work(self, job: Coordinator, life: trio.CancelScope) -> bool:
        if self.dice.random() < 0.3:
            self.strikes_at = self.calls + self.dice.randrange(4, 40)
        recovered = await job.recover()
        self.learn(recovered.epoch, recovered.checkpoint_id, recovered.verdicts)
        known = len(job.restarts)
        later = self.dice.randrange(len(self.tasks))
        lost: dict[str, str] = {}

        async def run(batch: Any) -> None:
            lost.update((await job.run_batch(batch)).lost)

        async with trio.open_nursery() as work:
            work.start_soon(run, recovered.runnable(self.tasks[:later]))
            async with trio.open_nursery() as fire:
                fire.start_soon(self.under_fire, job, life)
                await trio.sleep(self.dice.uniform(0, 15))
                work.start_soon(run, job.runnable(self.tasks))
        for report in job.restarts[known:]:
            self.learn(report.epoch, report.checkpoint_id, report.verdicts)
        self.restarts += len(job.restarts)
        if not lost:
            if not all(each.open for each in self.fleet_servers()):
                await trio.sleep(LONGEST_S + 2 * GRACE_S)
            self.problems += [f"{each.name} is closed" for each in self.fleet_servers() if not each.open]
        return not lost

    async def under_fire(self, job: Coordinator, life: trio.CancelScope) -> None:
        """A few checkpoints of any choice, one after the other, with blows at any time."""
        for _ in range(self.dice.randrange(1, 5)):
            await trio.sleep(self.dice.uniform(0, 12))
            blow = self.dice.random()
            if blow < 0.25:
                self.kill(self.dice.choice(list(KINDS)))
            elif blow < 0.6:
                self.strikes_at = self.calls + self.dice.randrange(1, 60)
            elif blow < 0.67:
                life.cancel()
            patience = self.dice.choice((3.0, 10_000.0)) if self.dice.random() < 0.3 else 10_000.0
            with trio.move_on_after(patience):
                timeout_s = self.dice.choice((6.0, 12.0, LONGEST_S))
                outcome = await job.checkpoint(timeout_s, stragglers=self.dice.choice(CHOICES))
                self.outcomes.append(outcome.story())
                if not isinstance(outcome, Published) and outcome.broken:
                    self.problems.append(outcome.story())

    def fleet_servers(self) -> list[FakeServer]:
        return list(self.world.deployments.fleet.servers.values())

    # --- what is held against it

    def learn(self, epoch: int, checkpoint_id: str | None, verdicts: tuple[Verdict, ...]) -> None:
        """How many turns each execution that is continued in this epoch has behind it."""
        if checkpoint_id is None:
            return
        which = CheckpointId.parse(checkpoint_id)
        assert which is not None
        (tools,) = self.world.store().read(which).of_kind("resources")
        turns = {(each["episode_id"]["rollout_id"], each["episode_id"]["attempt"]): each for each in tools.records}
        for each in verdicts:
            if each.disposition is Disposition.CONTINUE and each.next_attempt is not None:
                held = turns[each.rollout_id, each.attempt]["state"]["data"]
                self.continued[epoch, EpisodeId(each.rollout_id, each.next_attempt)] = held

    def complete(self, trainer: Any) -> None:
        """Every result is in the trainer's state, once, and right."""
        names = [*trainer.loaded, *(each.rollout_id for each in trainer.accepted)]
        if sorted(names) != sorted(each.rollout_id for each in self.tasks):
            self.problems.append(f"the trainer has {sorted(names)}")
        wanted = {each.rollout_id: each.task["turns"] for each in self.tasks}
        for each in trainer.accepted:
            if each.body["reward"] != wanted[each.rollout_id]:
                self.problems.append(f"{each.rollout_id} has {each.body}")

    def verdict(self) -> list[str]:
        steps = self.world.history.steps
        found = [f"turn {turn} of {episode.key} ran twice in epoch {epoch}" for epoch, episode, turn in twice(steps)]
        for epoch, episode, turn in steps:
            if turn <= self.continued.get((epoch, episode), 0):
                found.append(f"turn {turn} of {episode.key} is held and ran again in epoch {epoch}")
        store = self.world.store()
        for each in store.published():
            store.read(each)
        claims = sorted(store.claims())
        if claims != list(range(1, len(claims) + 1)):
            found.append(f"claims {claims}")
        return self.problems + found


def twice(steps: list[Any]) -> Iterator[Any]:
    seen = set()
    for each in steps:
        if each in seen:
            yield each
        seen.add(each)


def plain(keeper: Keeper) -> SmallTrainer:
    return SmallTrainer(keeper.disk)


def tasks(dice: random.Random) -> list[Dispatch]:
    found = []
    for number in range(dice.randrange(2, 6)):
        task = {"turns": dice.randrange(1, 8), "turn_s": dice.choice((0.5, 1.0, 3.0, 30.0))}
        found.append(Dispatch(f"p{number}", task, "env", group=dice.choice(("g", "h", None))))
    return found


@contextmanager
def in_order_of(seed: int) -> Iterator[None]:
    """The order in which trio's tasks run is drawn from `seed`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trio._core._run._r", random.Random(seed))
        patch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", True)
        yield


async def one(seed: int) -> Run:
    dice = random.Random(f"life {seed}")
    async with a_world() as world:
        run = Run(dice, world, tasks(dice))
        if dice.random() < 0.5:
            world.script("tools", "capabilities", lambda *_: {"sharing": "group"})
        if dice.random() < 0.7:
            world.history.features = ("leave_out",)
        run.watch_runs()
        world.network.faults = run.fault
        with trio.fail_after(BOUND_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run.leases)
                for _ in range(LIVES):
                    if await run.life():
                        break
                else:
                    run.problems.append(f"not done after {LIVES} lives: {run.outcomes}")
                nursery.cancel_scope.cancel()
        run.problems = run.verdict()
    return run


def run_of(seed: int) -> Run:
    with in_order_of(seed):
        return trio.run(one, seed, clock=trio.testing.MockClock(autojump_threshold=0))


def test_lives_at_random() -> None:
    """Whatever happens: every result once, no held turn again, a retry only behind a retirement, nobody stays closed.

    Covers: I6, I57, I61, I65, I68, I96, I97.
    """
    came = Counter[str]()
    for seed in SEEDS:
        run = run_of(seed)
        assert run.problems == [], seed
        came.update(deaths=run.deaths, restarts=run.restarts)
        came.update(kind for each in run.outcomes for kind in kinds(each))
    assert min(came[each] for each in ("deaths", "restarts", "published", "aborted", "stragglers")) > 0, came


def kinds(story: str) -> Iterator[str]:
    """What a checkpoint's line says of it."""
    yield "aborted" if ": aborted while" in story else "published"
    if "left out: " in story or "retired: " in story:
        yield "stragglers"
