"""Keeps the servers of a life serving: one dies, and all of them are started anew under a new claim. trio.

Rules (docs/reference/protocol.md sections 7 and 11): the unit of recovery is the deployment, so all servers stop and
start together; the table `DEPLOYMENT` says what is owed, this shell performs it. A coordinator that was overtaken
claims nothing any more; what servers have said counts for nothing once they are stopped (I97); the newest checkpoint of
the chain is restored with the live ledger in force. A restart that fails is tried again, and then all is stopped.
A death while a life begins is a death as any other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import trio
from attrs import define, evolve, field, frozen

from statecore import Snapshot
from statecore.errors import StatecoreError
from statecore.seams import on_disk

from ..files.store import EpochTaken
from ..machines import deployment as dp
from ..records.records import Disposition
from ..serving.launcher import Launcher
from ..signals import RECOVERY_STEPS
from ..telemetry import Telemetry
from .deployment import Deployment, DiscoveryFailed
from .failure_detector import Death, ended_by_themselves
from .life import Life, Serving, log
from .measuring import Recovering, recovering
from .outcomes import CoordinatorError, Overtaken, Restarted, RestartFailed
from .recovery import CheckpointRejected, RestorePlan, Verdict
from .restart_plan import above, plan_restart
from .restoring import Begun, choose, restore
from .trainer import HearsOfRestarts

T = TypeVar("T")

Discover = Callable[[Mapping[str, str], int], Awaitable[Deployment]]
Interrupt = Callable[[str], Awaitable[Callable[[], Awaitable[None]]]]
"""Ends the checkpoint under way; what it returns removes what is left of it, once no server runs any more."""
Load = Callable[[Begun], Awaitable[RestorePlan]]
"""The framework has its half of the base, and the life its ledger; what becomes of each rollout. Once in a life."""


@frozen
class Standing:
    """What has become of each rollout, with open servers; why all start fresh, or ""; the turns that are held."""

    verdicts: tuple[Verdict, ...] = ()
    failed: str = ""
    turns: Mapping[str, int] = field(factory=dict)


@define(eq=False)
class Supervisor:
    """Of one life: first `begin`, then `run`. `restarts` says what was restarted so far.

    `begun` is the newest start of the servers, `plan` what the life has begun with.
    """

    life: Life
    launcher: Launcher
    discover: Discover
    interrupt: Interrupt
    load: Load
    begun: Begun
    restarts: list[Restarted] = field(factory=list)
    plan: RestorePlan | None = field(init=False, default=None)
    _machine: Snapshot[dp.DeploymentState, dp.Restart] = field(init=False)
    _began: float = field(init=False, default=0.0)
    _died_of: str = field(init=False, default="")
    _clear_up: Callable[[], Awaitable[None]] | None = field(init=False, default=None)
    _loading: bool = field(init=False, default=False)
    _done: tuple[int, str] = field(init=False)
    _recovering: Recovering = field(init=False)
    _standing: Standing = field(init=False, factory=Standing)

    def __attrs_post_init__(self) -> None:
        settings = self.life.settings
        restart = dp.Restart(self.life.epoch, settings.restart_tries, settings.restart_limit)
        self._machine, self._done = dp.DEPLOYMENT.start(restart), self._so_far()

    def _so_far(self) -> tuple[int, str]:
        """What this life has brought about."""
        return len(self.life.ledger.finished), self.life.published

    async def begin(self, urls: Mapping[str, str], recovering: Recovering) -> Standing:
        """The servers of the life's first start are open, or those of a later one, if they died meanwhile.

        Raises DiscoveryFailed for servers that do not fit together, what `load` raises, and what has stopped the life.
        """
        self._recovering = recovering
        standing = await self._first_start(urls)
        if isinstance(standing, Standing):
            self._standing = standing
            return standing
        report = await self._restart(standing)
        self.life.check_running()
        assert report is not None
        await self._report(report)
        return self._standing

    async def _first_start(self, urls: Mapping[str, str]) -> Standing | str:
        """Where the rollouts stand, or of what the servers died."""
        try:
            self.life.meet(await self.discover(urls, self.begun.epoch), self.launcher)
        except DiscoveryFailed:
            for name, status in ended_by_themselves(self.launcher).items():
                return str(Death.of_exit(name, status))
            raise
        await self._load()
        try:
            standing = await self._while_all_live(self._restored_first)
        except CoordinatorError as error:
            return str(error)
        return str(standing) if isinstance(standing, Death) else standing

    async def run(self) -> None:
        """Returns when the life has stopped: since it was overtaken, or since its servers cannot be brought back."""
        with self._telemetry.apart():  # it outlives whoever started it, and its probes are nobody's
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._until_stopped, nursery.cancel_scope)
                try:
                    while self.life.why_stopped is None:
                        death = await self.life.detector.watch()
                        with recovering(self._telemetry, "death") as self._recovering:
                            report = await self._restart(str(death))
                            if report is not None:
                                self.tell(self._recovering)
                        if report is not None:  # heard beside the watch: the framework may take its time
                            nursery.start_soon(self._report, report)
                finally:
                    self.life.detector.close()
                    if self.life.detector.death is not None:
                        self.life.serving.end()

    def tell(self, recovering: Recovering) -> None:
        """What this recovery has come to."""
        base, standing = self.begun, self._standing
        restored = base.checkpoint is not None and not standing.failed
        recovering.came_to(self.life.epoch, base.checkpoint_id, standing.verdicts, standing.turns, restored=restored)

    @property
    def _telemetry(self) -> Telemetry:
        return self.life.seams.telemetry

    async def _until_stopped(self, everything: trio.CancelScope) -> None:
        await self.life.stopped.wait()
        everything.cancel()

    async def _restart(self, died_of: str) -> Restarted | None:
        """The servers are there again, or the life has stopped."""
        self._began, self._died_of = trio.current_time(), died_of
        before = len(self.restarts)
        log.error("%s; all servers are started anew", died_of)
        if self._done != (done := self._so_far()):
            self._done = done
            self._step(dp.Progressed())
        owed: deque[Any] = deque(self._step(dp.ServerDied(died_of)))
        while owed:
            try:
                events = await self._perform(owed.popleft())
            except Exception as error:
                owed = deque(self._fail(error))
            else:
                for event in events:
                    owed.extend(self._step(event))
        return self.restarts[-1] if len(self.restarts) > before else None

    def _fail(self, error: Exception) -> tuple[Any, ...]:
        hopeless = self._loading or isinstance(error, (Overtaken, CheckpointRejected))
        foreseen = isinstance(error, StatecoreError)
        log.error("the servers are not back: %s: %s", type(error).__name__, error, exc_info=not foreseen)
        if isinstance(error, Overtaken):
            self.life.stop(error)
        return self._step(dp.StepFailed(f"{type(error).__name__}: {error}", hopeless))

    def _step(self, event: object) -> tuple[Any, ...]:
        self._machine, effects = self.life.steps.step(dp.DEPLOYMENT, self._machine, event)
        return effects

    # --- one performer for each effect; what it returns are the events that happened

    async def _perform(self, effect: Any) -> list[object]:
        performers: dict[type, Callable[[Any], Awaitable[list[object]]]] = {
            dp.StopDispatch: self._stop_dispatch,
            dp.StopServers: self._stop_servers,
            dp.ClaimEpoch: self._claim,
            dp.StartServers: self._start,
            dp.RestoreState: self._restore,
            dp.OpenDispatch: self._open,
            dp.GiveUp: self._give_up,
        }
        return await performers[type(effect)](effect)

    async def _stop_dispatch(self, effect: dp.StopDispatch) -> list[object]:
        self.life.up.close()
        self._clear_up = await self.interrupt(effect.reason)
        return []

    async def _stop_servers(self, _effect: dp.StopServers) -> list[object]:
        with self._telemetry.span(RECOVERY_STEPS["stop"]), trio.fail_after(self.life.settings.stop_timeout_s):
            await self.launcher.stop()
        self.life.serving.end()
        if self._clear_up is not None:
            await self._clear_up()
            self._clear_up = None
        return [dp.ServersStopped()]

    async def _claim(self, effect: dp.ClaimEpoch) -> list[object]:
        if self._machine.data.failed or self._machine.data.futile > 1:
            await trio.sleep(self.life.settings.restart_delay_s)
        store = self.life.store
        try:
            with self._telemetry.span(RECOVERY_STEPS["claim"]):
                epoch = await self.life.disk(partial(store.claim_after, effect.after))
        except EpochTaken as error:
            raise Overtaken(f"{error}; this coordinator has stopped, and restarted nothing") from error
        return [dp.EpochClaimed(epoch)]

    async def _start(self, effect: dp.StartServers) -> list[object]:
        life = self.life
        self.begun = await choose(life.store, life.seams, effect.epoch, fall_back=life.settings.fall_back)
        life.epoch = effect.epoch
        with self._telemetry.span(RECOVERY_STEPS["launch"]):
            urls = await self.launcher.start(effect.epoch)
        life.meet(await self.discover(urls, effect.epoch), self.launcher)
        return [dp.ServersStarted()]

    async def _restore(self, _effect: dp.RestoreState) -> list[object]:
        """Restored while every server lives; a death meanwhile ends it."""
        again = self.plan is not None
        if not again:
            await self._load()
        standing = await self._while_all_live(self._restored_again if again else self._restored_first)
        if isinstance(standing, Death):
            return [dp.ServerDied(str(standing))]
        self._standing = standing
        self.restarts.append(
            Restarted(
                reason=self._died_of,
                epoch=self.life.epoch,
                checkpoint_id=self.begun.checkpoint_id,
                verdicts=standing.verdicts,
                restore_failed=standing.failed,
                tries=self._machine.data.failed + 1,
                seconds=trio.current_time() - self._began,
            )
        )
        return [dp.StateRestored()]

    async def _while_all_live(self, work: Callable[[], Awaitable[T]]) -> T | Death:
        """What `work` returns or raises; or the death of a server, which has ended it."""
        deaths: list[Death] = []
        done: list[T] = []
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                deaths.append(await self.life.detector.watch())
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            try:
                done.append(await work())
            except Exception as error:  # raised below, where no nursery wraps it into a group
                failure = error
            nursery.cancel_scope.cancel()
        if deaths:
            return deaths[0]
        if failure is not None:
            raise failure
        return done[0]

    async def _load(self) -> None:
        """The life has its ledger. No death ends this, and what it raises is final: it is done once."""
        self._loading = True
        self.plan = await self.load(self.begun)
        self._loading = False

    async def _restored_first(self) -> Standing:
        assert self.plan is not None
        standing = await self._installed(self.plan)
        if standing.failed:
            self.life.note(self.life.ledger.restarted(standing.verdicts))
        return standing

    async def _restored_again(self) -> Standing:
        life, checkpoint = self.life, self.begun.checkpoint
        async with life.hooks:  # the trainer is asked between two results, as always
            consumed = frozenset(await life.trainer.consumed())
            ledger = life.ledger
        present, sharing = life.deployment.servers, life.deployment.sharing
        with self._telemetry.span(RECOVERY_STEPS["plan"]):
            plan = await on_disk(
                life.seams.disk,
                partial(plan_restart, checkpoint, ledger, consumed=consumed, present=present, sharing=sharing),
            )
        standing = await self._installed(plan)
        if standing.failed:
            standing = evolve(standing, verdicts=above(standing.verdicts, ledger))
        life.note(life.ledger.restarted(standing.verdicts))
        return standing

    async def _installed(self, plan: RestorePlan) -> Standing:
        failed = await restore(self.life, self.begun.checkpoint, plan)
        verdicts = tuple(each.restarted(failed) for each in plan.verdicts) if failed else plan.verdicts
        return Standing(verdicts, failed, plan.turns)

    async def _open(self, _effect: dp.OpenDispatch) -> list[object]:
        self.life.serving = Serving()
        self.life.up.open()
        report = self.restarts[-1]
        log.warning("restarted: %s", report.story())
        for verdict in report.verdicts:
            if verdict.disposition is Disposition.FRESH:
                log.info("%s starts over: %s", verdict.rollout_id, verdict.reason)
        return []

    async def _report(self, report: Restarted) -> None:
        """The framework has heard of it, if it wants to."""
        if isinstance(self.life.trainer, HearsOfRestarts):
            async with self.life.hooks:
                try:
                    await self.life.trainer.restarted(report)
                except Exception:
                    log.exception("the framework's restarted() failed; the servers are open all the same")

    async def _give_up(self, effect: dp.GiveUp) -> list[object]:
        tries = self._machine.data.failed
        self._recovering.span.fail("given_up", effect.reason)
        self.life.serving.end()
        self.life.stop(
            self.life.why_stopped
            or RestartFailed(
                f"{self._died_of}; the servers are not started anew ({tries} tries failed) and are stopped: "
                f"{effect.reason}"
            )
        )
        log.error("%s", self.life.why_stopped)
        return []
