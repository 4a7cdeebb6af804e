"""One coordinator of a simulated job, from its start to its end, whatever that is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio
from attrs import define, field

from statecore.errors import StatecoreError
from statecore.exception_groups import exceptions_in
from statecore.simulate import Process, ProcessEnded
from statecore.wire import parse

from ..coordination.coordinator import Aborted, Coordinator, CoordinatorSettings, Overtaken, Published, RestartFailed
from ..coordination.cut import NOT_SAID
from ..coordination.recovery import CheckpointRejected
from ..coordination.trainer import Result
from ..demo.moments import Heard, Moment, Moments
from ..demo.plan import RolloutPlan
from ..demo.trainer import DemoTrainer
from ..machines.transaction import TransactionState
from ..records.records import Disposition
from .fleet import DEADLINE_S, ROOT, TOKEN, SilentLauncher, Site, TellingLauncher
from .plan import Adversity, Mistake, Supervision

if TYPE_CHECKING:
    from .truth import Truth

FINAL_TRIES: Final = 12
SETTLES_S: Final = 120.0
LOOKS_S: Final = 1.0
SYNC_FAILED: Final = "an earlier fsync of it failed"


class End(StrEnum):
    """How a life ended. NOT_THERE: not yet. UNFINISHED: some rollouts have no result, and are for the next life. STUCK:
    nothing was in its way, and a result or a checkpoint did not come about, which the next life would not mend.
    """

    NOT_THERE = ""
    FINISHED = "finished"
    UNFINISHED = "unfinished"
    STUCK = "stuck"
    KILLED = "killed"
    OVERTAKEN = "overtaken"
    FAILED = "failed"


@define(eq=False)
class SlowTrainer(DemoTrainer):
    """A trainer whose save takes its time. `weights` is what it has had: of which version, trained on which results."""

    takes_s: float = 0.0
    weights: set[tuple[tuple[int, int], tuple[str, ...]]] = field(factory=set)

    async def accept(self, result: Result) -> None:
        await super().accept(result)
        if self.life:  # it knows its life when it has recovered
            here = {each.rollout_id for each in self.state.accepted}
            whole = {name for group in self.plan.groups for name in _names(group) if _names(group) <= here}
            trained_on = [each.receipt.result_identity for each in self.state.accepted if each.rollout_id in whole]
            self.weights.add((self.policy_version, tuple(trained_on)))

    async def save(self, directory: Path, dispositions: Mapping[str, Disposition]) -> None:
        await trio.sleep(self.takes_s)
        await super().save(directory, dispositions)


@define(eq=False)
class KeepingTrainer(SlowTrainer):
    """A trainer that also keeps results outside of its state, durably (`SavesResults`)."""

    kept: dict[str, Result] = field(factory=dict)

    async def save_result(self, result: Result) -> Result:
        await trio.sleep(0.01)
        return self.kept.setdefault(result.rollout_id, result)


@define(eq=False)
class Life:
    """One coordinator. `gone` is set when it has `ended`, or is taken for dead. `reached` hears of moments.

    `may_end` is asked when all rollouts have their result; it may end this life instead.
    """

    site: Site
    adversity: Adversity
    number: int
    kept: dict[str, Result]
    reached: Callable[[Moment], None]
    may_end: Callable[[], None]
    process: Process = field(init=False)
    trainer: SlowTrainer = field(init=False)
    launcher: SilentLauncher = field(init=False)
    gone: trio.Event = field(factory=trio.Event)
    ended: trio.Event = field(factory=trio.Event)
    end: End = End.NOT_THERE
    why: str = ""
    published: str = ""
    _scope: trio.CancelScope = field(factory=trio.CancelScope)

    def __attrs_post_init__(self) -> None:
        self.process = self.site.process(f"coordinator-{self.number}")
        self.process.at_end.append(self._killed)
        disk = self.site.simulation.disk.view(self.process)
        if self.adversity.keeps_results:
            self.trainer = KeepingTrainer(self.site.plan, disk, takes_s=self.adversity.saves_s, kept=self.kept)
        else:
            self.trainer = SlowTrainer(self.site.plan, disk, takes_s=self.adversity.saves_s)
        launcher = TellingLauncher if self.site.supervision is Supervision.TOLD else SilentLauncher
        self.launcher = launcher(self.site, self.process, self.trainer)

    @property
    def truth(self) -> Truth:
        return self.site.truth

    def _killed(self) -> None:
        self.site.simulation.history.tell(self.process.name, "dies")
        self._scope.cancel()

    async def run(self) -> None:
        """Returns when it has ended."""
        simulation = self.site.simulation
        with self._scope:
            try:
                self.end = await self._job()
            except* Overtaken as errors:
                self.end, self.why = End.OVERTAKEN, _why(errors)
            except* CheckpointRejected as errors:
                self.end, self.why = End.FAILED, _why(errors)
                simulation.violated("I61", f"{self.process.name} was given no checkpoint: {self.why}")
            except* (StatecoreError, OSError) as errors:
                self.end, self.why = End.FAILED, _why(errors)
        if not self.process.alive:
            self.end, self.why = End.KILLED, ""
        self.process.alive = False
        simulation.history.tell(self.process.name, "has ended", end=self.end.value, why=self.why)
        self.gone.set()
        self.ended.set()

    async def _job(self) -> End:
        calm = self.site.network.calm
        coordinator = self._coordinator()
        try:
            return await self._at_work(coordinator, calm)
        finally:
            for each in coordinator.restarts:
                if each.restore_failed:
                    self.truth.not_restored[each.epoch] = each.restore_failed

    async def _at_work(self, coordinator: Coordinator, calm: bool) -> End:
        async with coordinator as job:
            recovered = await job.recover()
            if recovered.restore_failed:
                self.truth.not_restored[recovered.epoch] = recovered.restore_failed
            self._look_at_the_set_up()
            self.trainer.life = recovered.epoch
            self.site.simulation.history.tell(self.process.name, "has recovered", story=recovered.story())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._checkpoints, job)
                lost = await self._rollouts(job, recovered.runnable())
                nursery.cancel_scope.cancel()
            self.may_end()
            await trio.lowlevel.checkpoint()
            if lost:
                if not calm:
                    return End.UNFINISHED
                self._violated("I20", f"{self.process.name} loses {lost}, and there is no fault")
                return End.STUCK
            return await self._last_checkpoints(job)

    def _look_at_the_set_up(self) -> None:
        """No job begins with a server that cannot be controlled, or whose clock is far off (S28, S30)."""
        fleet = self.launcher.fleet
        assert fleet is not None
        mistake = self.site.mistakes(self.site.mistaken, fleet.number)
        if mistake is not None:
            rule = {Mistake.NO_TOKEN: "S28", Mistake.CLOCK: "S30"}[mistake]
            self._violated(rule, f"{self.process.name} works with {self.site.mistaken}: {mistake.value}")

    def _coordinator(self) -> Coordinator:
        moments = Moments(lambda moment, _: self.reached(moment))

        def heard(data: bytes) -> None:
            if b'"machine":"transaction"' in data:
                line = parse(data)
                self._note(line)
                moments.line(line)

        return Coordinator(
            ROOT,
            self.launcher,
            self.trainer,
            token=TOKEN,
            settings=CoordinatorSettings(
                discover_timeout_s=DEADLINE_S,
                restore_timeout_s=DEADLINE_S,
                resume_timeout_s=DEADLINE_S,
                acknowledge_timeout_s=DEADLINE_S,
                renew_every_s=2.0,
                probe_every_s=3.0,
                max_running=self.adversity.max_running,
                keep_checkpoints=self.adversity.keep_checkpoints,
            ),
            seams=self.site.seams(self.process, heard),
            transport=lambda: Heard(self.site.network.transport(self.process), moments.answered),
        )

    def _note(self, line: dict[str, Any]) -> None:
        """How much was done when a checkpoint's participants stood still, and when it was published."""
        if line["state"] == line["next"]:
            return
        checkpoint_id = line["ids"]["checkpoint_id"]
        if line["next"] == TransactionState.COMMITTING.value:
            self.truth.still[checkpoint_id] = len(self.truth.done)
        elif line["next"] == TransactionState.PUBLISHED.value:
            self.published = checkpoint_id
            self.truth.published(checkpoint_id, self.site.reader())

    async def _rollouts(self, job: Coordinator, recovered: Any) -> dict[str, str]:
        """Everything that was recovered and everything that the trainer hands out has ended; who without a result, and
        why: a connection that broke can end an execution, and the rollout starts over in the next life.
        """
        lost: dict[str, str] = {}

        async def run(batch: Any) -> None:
            with self._goes_on("S42", "a rollout"):
                lost.update((await job.run_batch(batch)).lost)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, recovered)
            while group := self.trainer.next_group():
                nursery.start_soon(run, job.runnable(group))
                await trio.sleep(self.site.plan.stagger_s)
        return lost

    @contextmanager
    def _goes_on(self, rule: str, what: str) -> Iterator[None]:
        """Whatever servers do, it does not end the run, unless they cannot be brought back or it has itself ended."""
        may_be = (Overtaken, RestartFailed, ProcessEnded)
        try:
            yield
        except Exception as error:
            for each in exceptions_in(error):
                if isinstance(each, StatecoreError) and not isinstance(each, may_be):
                    self._violated(rule, f"{self.process.name} is ended by {what}: {each}")
            raise

    async def _checkpoints(self, job: Coordinator) -> None:
        """One after the other, of any kind, until this is cancelled."""
        dice = self.site.simulation.dice.of(f"checkpoints of {self.process.name}")
        while True:
            await trio.sleep(dice.between(*self.adversity.every_s))
            stragglers = dice.pick(self.adversity.stragglers)
            with self._goes_on("S3", "a checkpoint"):
                outcome = await job.checkpoint(DEADLINE_S, stragglers=stragglers)
            self._told(outcome)

    def _told(self, outcome: Published | Aborted) -> None:
        simulation = self.site.simulation
        simulation.count("checkpoints published" if outcome.published else "checkpoints aborted")
        simulation.history.tell(self.process.name, "checkpoint", story=outcome.story())
        if isinstance(outcome, Aborted) and outcome.broken:
            simulation.violated("I35", outcome.story())
        if isinstance(outcome, Aborted) and any(each.reason in ("", NOT_SAID) for each in outcome.blockers):
            simulation.violated("S10", outcome.story())

    async def _last_checkpoints(self, job: Coordinator) -> End:
        """No fault comes any more: all servers are there and open, and checkpoints in a row have saved it all.

        One is enough for that; in one job of four a second one shows that servers forget what is over (I75).

        Whose sync of a directory failed once publishes nothing any more (S57), and is ended, as somebody would who
        reads its log.
        """
        in_a_row, wanted = 0, 2 if self.adversity.looks_for_marks else 1
        for _ in range(FINAL_TRIES):
            restarts = len(job.restarts)
            with self._goes_on("S3", "a checkpoint"):
                outcome = await job.checkpoint(DEADLINE_S)
            self._told(outcome)
            await self._settled()
            in_a_row = in_a_row + 1 if outcome.published and restarts == len(job.restarts) else 0
            if in_a_row == wanted:
                self._nothing_kept(marks=wanted == 2)
                return End.FINISHED
            if isinstance(outcome, Aborted) and SYNC_FAILED in outcome.reason:
                self.site.simulation.count("ended after a failed sync")
                return End.UNFINISHED
        self._violated("I20", f"{self.process.name}: no checkpoint in calm weather: {outcome.story()}")
        return End.STUCK

    async def _settled(self) -> None:
        """All of its servers live and accept; if not soon, that is a problem."""
        closed: dict[str, str] = {}
        with trio.move_on_after(SETTLES_S):
            while closed := self._not_open():  # noqa: ASYNC110 - a server tells nobody when it opens
                await trio.sleep(LOOKS_S)
        for name, phase in closed.items():
            self._violated("I20", f"{name} is {phase} at the end of {self.process.name}")

    def _not_open(self) -> dict[str, str]:
        fleet = self.launcher.fleet
        assert fleet is not None
        states = {each.process.name: each.closed if each.process.alive else "dead" for each in fleet.members.values()}
        return {name: state for name, state in states.items() if state}

    def _nothing_kept(self, *, marks: bool) -> None:
        """What is saved is let go: no result, and in the end no mark is left on any server (I75)."""
        fleet = self.launcher.fleet
        assert fleet is not None
        for each in fleet.members.values():
            server = each.server
            if server is None:
                continue
            kept = {"results": len(server.receipts() or ()), "marks": len(server.fences.retired) if marks else 0}
            for what, number in kept.items():
                if number:
                    self._violated("I75", f"{each.process.name} keeps {number} {what} of what is over")

    def _violated(self, rule: str, text: str) -> None:
        """So it must not end; whoever was taken for dead may have lost its servers by that, and is not judged."""
        if not self.gone.is_set():
            self.site.simulation.violated(rule, text)


def _names(group: Iterable[RolloutPlan]) -> set[str]:
    return {each.rollout_id for each in group}


def _why(errors: BaseExceptionGroup[BaseException]) -> str:
    """The first exception, in words."""
    error = next(exceptions_in(errors))
    return f"{type(error).__name__}: {error}"
