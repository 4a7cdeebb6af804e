"""The coordinator: one life that recovers, runs rollouts and takes checkpoints. trio.

Rules (docs/reference/protocol.md sections 6, 7 and 11): each start of a deployment claims an epoch of its own (I96); a
checkpoint that fails is a value and the run goes on (S3), several in a row are reported loudly; an abandoned
coordinator (cancelled) sends nothing, its servers reopen by their leases (I21); one that was overtaken stops (I98).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final

import httpx
import trio
from attrs import evolve

from statecore.journal import Journal
from statecore.seams import on_disk

from ..files.checkpoint import Checkpoint
from ..files.store import Store
from ..journals.observers import COORDINATOR
from ..net.client import MAX_IN_FLIGHT, make_client
from ..records.records import Disposition
from ..serving.launcher import Launcher
from ..settings import Seams, Settings, SettingsError
from ..signals import RECOVERY_STEPS
from .checkpointing import Checkpointing
from .deployment import Deployment, discover, resume_all
from .dispatch import Dispatcher
from .ledger import recovered
from .life import CoordinatorSettings, Life, log
from .measuring import Recovering, measured, recovering
from .outcomes import (
    Aborted,
    Batch,
    BatchReport,
    CoordinatorError,
    Overtaken,
    Published,
    Recovered,
    Restarted,
    RestartFailed,
)
from .recovery import CheckpointRejected, Found, RestorePlan, Verdict, plan_restore
from .restoring import Begun, claim_and_choose, recorded_servers
from .stragglers import Stragglers
from .supervisor import Supervisor
from .trainer import Dispatch, Trainer
from .transaction_shell import Open

__all__ = [
    "Aborted",
    "Batch",
    "BatchReport",
    "Coordinator",
    "CoordinatorError",
    "CoordinatorSettings",
    "Overtaken",
    "Published",
    "Recovered",
    "RestartFailed",
    "Restarted",
]

UNFINISHED_KEPT: Final = 8
"""So many of the newest checkpoints that some server did not hear the end of are ended again before the next one."""


class Coordinator:
    """Used as ``async with Coordinator(root, launcher, trainer) as job``: first `recover`, then the rest.

    `root` is a directory that all servers see. `token` is the control token (default: as the servers find theirs).
    `transport` makes an HTTP transport; it is called twice, since control traffic never shares connections with data.
    Leaving the block stops the launcher's servers; leaving it cancelled sends and stops nothing.
    """

    def __init__(
        self,
        root: Path,
        launcher: Launcher,
        trainer: Trainer,
        *,
        token: str | None = None,
        settings: CoordinatorSettings | None = None,
        seams: Seams | None = None,
        transport: Callable[[], httpx.AsyncBaseTransport] | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.settings = settings or CoordinatorSettings()
        self.seams = seams or Seams()
        self.root = self.seams.disk.resolve(root)  # servers get paths below it: absolute, and no link on the way
        self._launcher = launcher
        self._trainer = trainer
        self._token = token or Settings.from_env().control_auth_token
        if not self._token:
            raise SettingsError(
                "a coordinator needs the control token: give token=, or set NEMO_GYM_CHECKPOINT_CONTROL_TOKEN"
            )
        self._make_transport = transport
        self._incarnation = self.seams.entropy.token_hex(16)
        self._files = None
        if journal is None:
            self._files = Settings.from_env().journal_of(f"{COORDINATOR}-{self._incarnation}", self.seams)
        self._journal = journal or self._files or self.seams.journal
        self._clients = AsyncExitStack()
        self._life: Life | None = None
        self._dispatcher: Dispatcher | None = None
        self._supervisor: Supervisor | None = None
        self._run: Checkpointing | None = None
        self._unfinished: deque[Open] = deque(maxlen=UNFINISHED_KEPT)
        self._failures = 0
        self._started = self._checkpointing = False

    # --- its life

    async def __aenter__(self) -> Coordinator:
        self._data = await self._clients.enter_async_context(self._client(self.settings.max_running + 1))
        self._control = await self._clients.enter_async_context(self._client(MAX_IN_FLIGHT))
        self._tasks = trio.open_nursery()
        self._nursery = await self._tasks.__aenter__()
        return self

    def _client(self, limit: int) -> httpx.AsyncClient:
        return make_client(self._make_transport() if self._make_transport else None, max_in_flight=limit)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._nursery.cancel_scope.cancel()
        abandoned = is_abandoned(error)
        try:
            await self._tasks.__aexit__(None, None, None)  # what left the block leaves it as it is, in no group
        except Exception:  # a bug of ours, by which the block was cancelled: the servers are not left to themselves
            abandoned = False
            raise
        finally:
            with trio.move_on_after(self.settings.stop_timeout_s, shield=True) as scope:
                if self._started and not abandoned:
                    await self._launcher.stop()
                await self._clients.aclose()
                if self._files is not None:
                    await on_disk(self.seams.disk, self._files.close)
            if scope.cancelled_caught:
                log.error("the servers were not stopped within %g s", self.settings.stop_timeout_s)

    async def recover(self) -> Recovered:
        """This life stands where the newest whole checkpoint of its chain stood, or at a fresh start; servers are open.

        Claims an epoch, chooses and records its base, starts the servers with it, loads the framework's half, restores,
        delivers again what the trainer lacks. If a server dies meanwhile, all are started anew, as later in the life.
        Once per coordinator. Raises CheckpointRejected, DiscoveryFailed, StoreError, RestartFailed, Overtaken, and what
        the launcher and the trainer raise: then nothing runs.
        """
        if self._started:
            raise RuntimeError("recover() is called once; another life is another Coordinator")
        self._started = True
        with recovering(self.seams.telemetry, "start") as told:
            return await self._recover(told)

    async def _recover(self, told: Recovering) -> Recovered:
        telemetry = self.seams.telemetry
        store = Store(self.root, self.seams.disk, self.seams.entropy, self.seams.clock)
        with telemetry.span(RECOVERY_STEPS["claim"]):
            begun = await claim_and_choose(store, self.seams, fall_back=self.settings.fall_back)
        with telemetry.span(RECOVERY_STEPS["launch"]):
            urls = await self._launcher.start(begun.epoch)
        life = Life(
            begun.epoch, store, self._trainer, self.settings, self.seams, self._data, self._incarnation, self._journal
        )
        self._supervisor = supervisor = Supervisor(
            life, self._launcher, self._discover, self._interrupt, partial(self._load, life), begun
        )
        standing = await supervisor.begin(urls, told)
        if nameless := [member.name for member in life.deployment.members if not member.incarnation]:
            log.warning(
                "%s: no incarnation in its replies; phase and id are all that proves that it is still committed",
                ", ".join(nameless),
            )
        dispatcher = Dispatcher(life)
        assert supervisor.plan is not None
        with telemetry.span(RECOVERY_STEPS["deliver"]):
            await dispatcher.redeliver(row.rollout_id for row in supervisor.plan.redeliver)
        self._life, self._dispatcher = life, dispatcher
        self._nursery.start_soon(supervisor.run)
        base = supervisor.begun
        self._tell(standing.verdicts, base.overtaken)
        supervisor.tell(told)
        return Recovered(
            checkpoint_id=base.checkpoint_id,
            epoch=life.epoch,
            verdicts=standing.verdicts,
            restore_failed=standing.failed,
            overtaken=base.overtaken,
            damaged=begun.damaged if base is begun else base.damaged + begun.damaged,
            runnable_=self.runnable,
        )

    async def _discover(self, urls: Mapping[str, str], epoch: int) -> Deployment:
        assert self._token is not None
        with self.seams.telemetry.span(RECOVERY_STEPS["discover"]):
            return await discover(
                urls,
                token=self._token,
                epoch=epoch,
                client=self._control,
                seams=self.seams,
                retries=self.settings.control_retries,
                timeout_s=self.settings.discover_timeout_s,
                max_clock_skew_s=self.settings.max_clock_skew_s,
            )

    @property
    def restarts(self) -> tuple[Restarted, ...]:
        """Every restart of all servers in this life, since one of them had died, oldest first."""
        return () if self._supervisor is None else tuple(self._supervisor.restarts)

    async def _plan(self, life: Life, checkpoint: Checkpoint | None) -> RestorePlan:
        """What becomes of each rollout, with the trainer's half loaded. Read in one piece: nothing else runs yet."""
        if checkpoint is None:
            consumed = frozenset(await self._trainer.consumed())
            if consumed:
                raise CheckpointRejected(
                    [f"a fresh start, and the trainer has consumed {len(consumed)} results already"]
                )
            return RestorePlan()
        gone = sorted({row.target for row in checkpoint.registry} - set(life.deployment.urls))
        if gone:
            raise CheckpointRejected([f"rollouts of it go to {', '.join(gone)}, which the launcher did not start"])
        await self._trainer.load(checkpoint.framework)
        return plan_restore(
            Found(
                registry=checkpoint.registry,
                ledger=checkpoint.ledger,
                parts=checkpoint.parts,
                consumed=frozenset(await self._trainer.consumed()),
                recorded=recorded_servers(checkpoint),
                present=life.deployment.servers,
            )
        )

    async def _load(self, life: Life, begun: Begun) -> RestorePlan:
        with self.seams.telemetry.span(RECOVERY_STEPS["plan"]):
            plan = await self._plan(life, begun.checkpoint)
        known = begun.checkpoint
        registry, ledger = (known.registry, known.ledger) if known is not None else ((), ())
        known_now = recovered(registry, ledger, plan.verdicts, journaled=life.journaled)
        life.note(known_now)  # what is saved is known before anything is acknowledged
        return plan

    def _tell(self, verdicts: Iterable[Verdict], overtaken: Iterable[str]) -> None:
        for verdict in verdicts:
            if verdict.disposition is Disposition.FRESH:
                log.info("%s starts over: %s", verdict.rollout_id, verdict.reason)
        for checkpoint_id in overtaken:
            log.warning("%s was overtaken, or is damaged and was passed over; it is ignored", checkpoint_id)

    # --- rollouts

    def runnable(self, new_dispatches: Iterable[Dispatch] = ()) -> Batch:
        """What waits to be run: new dispatches that are not known, and recovered rollouts not handed out yet (I12).

        All of them are registered when this returns. ValueError for a target that is no server; KnownRollout for an id
        that was used for another task.
        """
        return self._living()[1].runnable(new_dispatches)

    async def run_batch(self, batch: Batch | Iterable[Dispatch]) -> BatchReport:
        """Every rollout of the batch has ended: its result went to `Trainer.accept`, once, or the report says why not.

        Dispatches that are given directly are registered first, before anything is awaited (S40). A `Batch` whose run
        was cancelled may be run again: it goes on where its executions stand.
        """
        dispatcher = self._living()[1]
        return await dispatcher.run(batch if isinstance(batch, Batch) else dispatcher.runnable(batch))

    # --- checkpoints

    async def checkpoint(
        self, timeout_s: float = 60.0, *, stragglers: Stragglers | str | None = None
    ) -> Published | Aborted:
        """A checkpoint is in force, or why not; never raises for what servers do, unless they cannot be brought back.

        `timeout_s` bounds everything before publication, and the wait for servers that are being restarted.
        `stragglers` (default: the setting) says what becomes of rollouts that do not stand in time. Overtaken when
        another coordinator has claimed the root; RestartFailed when the servers are stopped for good.
        """
        choice = self.settings.stragglers if stragglers is None else Stragglers(stragglers)
        if not (math.isfinite(timeout_s) and timeout_s > 0):
            raise ValueError(f"timeout_s must be a number of seconds greater than 0, not {timeout_s}")
        life, _ = self._living()
        if self._checkpointing:
            raise RuntimeError("another one is under way: one checkpoint at a time")
        self._checkpointing = True
        try:
            return self._counted(await measured(life, partial(self._checkpoint, life, timeout_s, choice)))
        finally:
            self._checkpointing = False

    async def _checkpoint(self, life: Life, timeout_s: float, choice: Stragglers) -> Published | Aborted:
        ends = trio.current_time() + timeout_s
        with trio.move_on_at(ends):
            while True:  # they may be gone again by the time that this goes on
                await life.up.wait()
                if life.up.is_open:
                    break
        life.check_running()
        left_s = ends - trio.current_time()
        if not life.up.is_open or left_s <= 0:
            checkpoint_id = str(life.next_checkpoint_id())
            reason = f"the servers were not started anew within {timeout_s:g} s"
            return Aborted(checkpoint_id=checkpoint_id, reason=reason, phase="idle", seconds=timeout_s)
        self._run = run = Checkpointing(life, left_s, choice)
        try:
            await run.while_servers_are_there(partial(self._end_unfinished, life))
            outcome = await run.run()
        except Overtaken as overtaken:
            life.stop(overtaken)
            log.error("%s", overtaken)
            raise
        except BaseException:  # cancelled, or a bug: nothing is sent, and what is ours goes on
            if run.open.contacted:
                self._unfinished.append(run.open)
            life.note(life.ledger.released())
            life.door.open()
            raise
        finally:
            self._run = None
            run.over.set()
        if outcome.unresumed:
            self._unfinished.append(run.open)
        if not outcome.published:
            life.detector.suspect()
        return outcome

    async def _interrupt(self, why: str) -> Callable[[], Awaitable[None]]:
        """The checkpoint under way has ended, and with its servers what older ones may have left open on them."""
        left = []
        if self._run is not None:
            run = self._run
            run.interrupt(why)
            await run.over.wait()
            left.append(run.open)
        left += self._unfinished
        self._unfinished.clear()

        async def clear_up() -> None:
            for each in left:
                await each.discard()

        return clear_up

    async def _end_unfinished(self, life: Life) -> None:
        """Checkpoints that were cancelled half-way, or that a server did not hear the end of, are over on every server
        that can be reached: until its lease ends, a server refuses every other checkpoint. One server may stand in an
        earlier one and another in a later one, and each ends only by the id that it stands in.
        """
        deadline_ts = self.seams.clock.time() + self.settings.resume_timeout_s

        async def end(unfinished: Open) -> None:
            problems = await resume_all(unfinished.contacted, unfinished.checkpoint_id, deadline_ts)
            for problem in problems:
                log.warning("%s: not resumed: %s", unfinished.checkpoint_id, problem)
            if not problems:
                await unfinished.discard()
                self._unfinished.remove(unfinished)

        async with trio.open_nursery() as nursery:
            for unfinished in tuple(self._unfinished):
                nursery.start_soon(end, unfinished)

    def _counted(self, outcome: Published | Aborted) -> Published | Aborted:
        if isinstance(outcome, Published):
            self._failures = 0
            log.info("%s", outcome.story())
            return outcome
        self._failures += 1
        outcome = evolve(outcome, in_a_row=self._failures)
        if outcome.broken:
            log.error("an invariant does not hold: %s", outcome.story())
        elif self._failures >= self.settings.loud_after:
            log.error("%d checkpoints in a row have failed: %s", self._failures, outcome.story())
        else:
            log.warning("%s", outcome.story())
        return outcome

    def _living(self) -> tuple[Life, Dispatcher]:
        if self._life is None or self._dispatcher is None:
            raise RuntimeError("call recover() first")
        self._life.check_running()
        return self._life, self._dispatcher


def is_abandoned(error: BaseException | None) -> bool:
    """Whether a block was left because it was cancelled, and for nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_abandoned(each) for each in error.exceptions)
    return isinstance(error, trio.Cancelled)
