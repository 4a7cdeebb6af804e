"""A coordinator for trainers on asyncio or without an event loop: it lives in a thread, its callers wait in theirs.

Rules (docs/reference/integration-contract.md): the trainer's hooks are plain functions; each runs in a worker thread,
one at a time, so that the coordinator renews leases meanwhile and needs no caller to be waiting; who leaves the block
ends the calls that other threads have under way, and none of them waits for ever; a caller that is interrupted
(KeyboardInterrupt) cancels its own call and no other.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from concurrent.futures import CancelledError
from contextlib import ExitStack
from contextvars import ContextVar
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar

import httpx
import trio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from attrs import define, evolve, field

from statecore.journal import Journal

from ..serving.launcher import Launcher
from ..settings import Seams
from .coordinator import Coordinator
from .life import CoordinatorSettings, log
from .outcomes import Aborted, Batch, BatchReport, CoordinatorError, Published, Recovered, Restarted
from .trainer import Dispatch, Disposition, Result, Trainer

__all__ = ["BlockingCoordinator", "BlockingLauncher", "BlockingTrainer", "Closed"]

T = TypeVar("T")

HOOKS: Final = ("save", "load", "accept", "consumed")
OPTIONAL_HOOKS: Final = ("save_result", "restarted")
INTERRUPTED_S: Final = 30.0
"""How long an interrupted caller waits for its call to end before it goes on."""

_IN_HOOK: ContextVar[bool] = ContextVar("statecore_in_hook", default=False)


class Closed(CoordinatorError):
    """The block of the coordinator was left while this call was under way, or before it was made."""


class BlockingTrainer(Protocol):
    """The hooks of `Trainer` as plain functions; those that are optional there (`save_result`) are so here as well.

    They are called one at a time, each in any worker thread, while the trainer's own threads go on. So a trainer has a
    lock of its own: it holds it while it moves its cursor *and* hands the dispatches over (`runnable`), and each hook
    holds it while it reads or changes the state. `policy_version` is read in the thread that calls `save`, right before
    it: a trainer that may step in between returns the version from `save`.
    """

    def save(self, directory: Path, dispositions: Mapping[str, Disposition]) -> tuple[int, int] | None:
        """As `Trainer.save`. When the checkpoint's time is over its thread is left alone, and what it wrote unused."""

    def load(self, directory: Path) -> None:
        """As `Trainer.load`."""

    def accept(self, result: Result) -> None:
        """As `Trainer.accept`."""

    def consumed(self) -> Set[str]:
        """As `Trainer.consumed`."""


class BlockingLauncher(Protocol):
    """A `Launcher` of plain functions. They run in worker threads and are waited for, whatever happens meanwhile.

    An attribute `exited`, as of a `Launcher`, is optional. It is read in the coordinator's thread, also while one of
    the functions runs, so it looks and does not wait.
    """

    def start(self, epoch: int) -> Mapping[str, str]:
        """As `Launcher.start`."""

    def stop(self) -> None:
        """As `Launcher.stop`."""


class BlockingCoordinator:
    """Used as ``with BlockingCoordinator(root, launcher, trainer) as job``: a `Coordinator` for plain threads.

    The arguments and the methods are the coordinator's. Several threads may call at once: `run_batch` in some of them
    and `checkpoint` in another. What a call raises there it raises here, with its type. The calls block, so they are
    refused in a thread that runs an event loop (use ``asyncio.to_thread``); all but `runnable` are refused in a hook,
    which they would wait for.

    Leaving the block cancels the calls of other threads, which then raise Closed, and stops the launcher's servers.
    """

    def __init__(
        self,
        root: Path,
        launcher: Launcher | BlockingLauncher,
        trainer: BlockingTrainer,
        *,
        token: str | None = None,
        settings: CoordinatorSettings | None = None,
        seams: Seams | None = None,
        transport: Callable[[], httpx.AsyncBaseTransport] | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._job = Coordinator(
            root,
            _launcher(launcher),
            _trainer(trainer),
            token=token,
            settings=settings,
            seams=seams,
            transport=transport,
            journal=journal,
        )
        self._portal: BlockingPortal | None = None
        self._open = ExitStack()
        self._calls: set[_Call] = set()  # only the coordinator's thread changes it
        self._closed = False

    # --- its life

    def __enter__(self) -> BlockingCoordinator:
        if self._portal is not None:
            raise RuntimeError("a BlockingCoordinator is entered once; another life is another one")
        if trio.lowlevel.in_trio_run():
            raise RuntimeError("this thread runs trio: use Coordinator")
        with ExitStack() as opening:
            self._portal = opening.enter_context(start_blocking_portal("trio", name="statecore-coordinator"))
            opening.enter_context(self._portal.wrap_async_context_manager(self._job))
            opening.callback(self._portal.call, self._end_calls)
            self._open = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        self._open.__exit__(kind, error, trace)

    async def _end_calls(self) -> None:
        """All calls under way have ended; their threads get Closed."""
        self._closed = True
        for call in tuple(self._calls):
            call.scope.cancel()
        for call in tuple(self._calls):
            await call.over.wait()

    # --- what a coordinator does

    def recover(self) -> Recovered:
        """As `Coordinator.recover`."""
        return evolve(self._wait("recover", self._job.recover), runnable_=self.runnable)

    def runnable(self, new_dispatches: Iterable[Dispatch] = ()) -> Batch:
        """As `Coordinator.runnable`. It waits for nothing but the coordinator's thread, so it may be called anywhere:
        in a hook, in an event loop's thread, and while the trainer holds its lock.
        """
        dispatches = tuple(new_dispatches)  # the trainer's code, if it is a generator: it runs in the trainer's thread
        return self._living().call(self._job.runnable, dispatches)

    @property
    def restarts(self) -> tuple[Restarted, ...]:
        """As `Coordinator.restarts`."""
        return self._job.restarts

    def run_batch(self, batch: Batch | Iterable[Dispatch]) -> BatchReport:
        """As `Coordinator.run_batch`."""
        _refuse_where_it_would_hang("run_batch")
        batch = batch if isinstance(batch, Batch) else self.runnable(batch)
        return self._wait("run_batch", self._job.run_batch, batch)

    def checkpoint(self, timeout_s: float = 60.0, **how: Any) -> Published | Aborted:
        """As `Coordinator.checkpoint`."""
        return self._wait("checkpoint", partial(self._job.checkpoint, timeout_s, **how))

    # --- waiting for the other thread

    def _living(self) -> BlockingPortal:
        if self._closed:
            raise Closed("the block of this coordinator was left")
        if self._portal is None:
            raise RuntimeError("use it as `with BlockingCoordinator(...) as job`")
        return self._portal

    def _wait(self, name: str, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """What the function returns or raises in the coordinator's thread."""
        _refuse_where_it_would_hang(name)
        portal, call = self._living(), _Call()
        try:
            return portal.start_task_soon(partial(self._run, call, name, function, *args)).result()
        except CancelledError as error:  # with the whole thread, and not by us
            raise Closed(f"{name}() was cancelled: the coordinator's thread has ended") from error
        except BaseException:
            if not call.ended.is_set() and not self._closed:  # the caller was interrupted, not the call
                portal.call(call.scope.cancel)
                call.ended.wait(INTERRUPTED_S)
            raise

    async def _run(self, call: _Call, name: str, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        self._calls.add(call)
        try:
            with call.scope:
                if not self._closed:
                    return await function(*args)
        finally:
            self._calls.discard(call)
            call.over.set()
            call.ended.set()
        raise Closed(f"{name}() was cancelled: the block of this coordinator was left")


@define(eq=False)
class _Call:
    """One call under way: how to cancel it, and its end, for the coordinator's thread and for its caller's."""

    scope: trio.CancelScope = field(factory=trio.CancelScope)
    over: trio.Event = field(factory=trio.Event)
    ended: threading.Event = field(factory=threading.Event)


def _refuse_where_it_would_hang(name: str) -> None:
    if _IN_HOOK.get():
        raise RuntimeError(f"{name}() waits for the trainer's hooks, so a hook may not call it")
    if trio.lowlevel.in_trio_run():
        raise RuntimeError(f"{name}() would block this thread's event loop: on trio, use Coordinator")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"{name}() would block this thread's event loop: `await asyncio.to_thread(job.{name}, ...)`")


# --- what the coordinator calls, in worker threads


class _InThreads:
    """Calls plain functions, one at a time; `abandon`: a cancelled one is left alone, and the next one waits for it."""

    def __init__(self, *, abandon: bool) -> None:
        self._abandon = abandon
        self._one = trio.CapacityLimiter(1)  # held until a thread has ended, also if nobody waits for it any more

    async def call(self, name: str, function: Callable[..., T], *args: Any) -> T:
        """What it returns or raises."""
        left = threading.Event()

        def work() -> T:
            _IN_HOOK.set(True)  # in this call's own context
            try:
                return function(*args)
            except BaseException as error:
                if left.is_set():
                    log.error("%s failed after it was no longer waited for", name, exc_info=error)
                if isinstance(error, Exception | trio.Cancelled):  # the latter where it called back into the loop
                    raise
                raise RuntimeError(f"{name} raised {type(error).__name__}") from error

        try:
            return await trio.to_thread.run_sync(work, abandon_on_cancel=self._abandon, limiter=self._one)
        except trio.Cancelled:
            left.set()
            raise


class _Hooks:
    """A trainer's plain hooks, as a `Trainer`."""

    def __init__(self, trainer: BlockingTrainer) -> None:
        self._trainer = trainer
        self._threads = _InThreads(abandon=True)

    async def save(self, directory: Path, dispositions: Mapping[str, Disposition]) -> tuple[int, int] | None:
        def versioned() -> tuple[int, int] | None:
            version: tuple[int, int] | None = getattr(self._trainer, "policy_version", None)
            said = self._trainer.save(directory, dispositions)
            return version if said is None else said

        return await self._threads.call("save", versioned)

    async def load(self, directory: Path) -> None:
        await self._threads.call("load", self._trainer.load, directory)

    async def accept(self, result: Result) -> None:
        await self._threads.call("accept", self._trainer.accept, result)

    async def consumed(self) -> Set[str]:
        return await self._threads.call("consumed", self._trainer.consumed)


def _optional(name: str) -> Callable[..., Awaitable[Any]]:
    async def hook(self: _Hooks, *args: Any) -> Any:
        return await self._threads.call(name, getattr(self._trainer, name), *args)

    return hook


def _trainer(trainer: BlockingTrainer) -> Trainer:
    """A `Trainer` with the optional hooks that this one has, and no others: the coordinator looks for them."""
    for name in (*HOOKS, *OPTIONAL_HOOKS):
        hook = getattr(trainer, name, None)
        if name in HOOKS and not callable(hook):
            raise TypeError(f"{type(trainer).__name__} has no hook {name}()")
        if iscoroutinefunction(hook):
            raise TypeError(f"{type(trainer).__name__}.{name} is async: hooks are plain here, async for Coordinator")
    here = {name: _optional(name) for name in OPTIONAL_HOOKS if hasattr(trainer, name)}
    kind: type[_Hooks] = type("_Hooks", (_Hooks,), here)
    return kind(trainer)


class _Launching:
    """A launcher's plain functions, as a `Launcher`."""

    def __init__(self, launcher: BlockingLauncher) -> None:
        self._launcher = launcher
        self._threads = _InThreads(abandon=False)

    async def start(self, epoch: int) -> Mapping[str, str]:
        return await self._threads.call("start", self._launcher.start, epoch)

    async def stop(self) -> None:
        await self._threads.call("stop", self._launcher.stop)


class _LaunchingAndKnowing(_Launching):
    """One that also knows which of its servers have ended."""

    @property
    def exited(self) -> Mapping[str, int]:
        exited: Mapping[str, int] = self._launcher.exited  # type: ignore[attr-defined]
        return exited


def _launcher(launcher: Any) -> Launcher:
    """An async launcher as it is, a plain one in worker threads, with `exited` if it has that."""
    if iscoroutinefunction(launcher.start):
        return launcher  # type: ignore[no-any-return]
    return _LaunchingAndKnowing(launcher) if hasattr(launcher, "exited") else _Launching(launcher)
