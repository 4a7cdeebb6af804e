"""One trio run that is driven from outside and stands still in between.

`StandingRun.do` runs one function in the main task of the run and returns what came of it. Between two of them no task
runs and no time passes, however long that takes outside: the run is a guest (trio's guest mode), and its host is a loop
that turns only while `do` waits. All is in the thread of the caller.

Time is a MockClock that jumps to the next deadline when all tasks wait. Whatever never ends is therefore found at once,
and is an error: `NeverEnded`.
"""

from __future__ import annotations

import inspect
import queue
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import trio
from attrs import frozen
from trio.testing import MockClock

from ..errors import StatecoreError
from ..exception_groups import exceptions_in, single

__all__ = ["NeverEnded", "StandingRun"]

LOOK_EVERY = 1_000
"""So many turns of the loop there are between two looks at the clock."""
IDLE_LOOKS = 30
"""So often the clock may be found where it was: a loop that turns so long without time passing gets nowhere."""
_abandoned = threading.local()
"""`error` is why no run is possible in a thread any more."""
TRIO = str(Path(trio.__file__).parent)


class NeverEnded(StatecoreError, AssertionError):
    """A step waits for ever, or its task never waits. It is a failure of what is tested, hence an AssertionError."""


@frozen
class _Call:
    name: str
    function: Callable[[], Any]
    last: bool


@frozen
class _Answer:
    value: Any = None
    error: BaseException | None = None


@frozen
class _Over:
    """The run has ended, by `error` if it was not by `close`."""

    error: BaseException | None


class StandingRun:
    """`do` what is to be done in the run, then `close` it. `clock` is its clock, `nursery` where tasks live on.

    `limit_s` is how long one function may take, in the time of the run; `autojump_threshold` is MockClock's. A task of
    `nursery` that fails ends what runs at that moment, and its exception is what the caller gets.
    """

    def __init__(self, limit_s: float, autojump_threshold: float = 0.0) -> None:
        self.clock = MockClock(autojump_threshold=autojump_threshold)
        self._limit_s = limit_s
        self._turns: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._called = trio.Event()
        self._call: _Call | None = None
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._answer: _Answer | None = None
        self._death: BaseException | None = None
        self._failed: BaseException | None = None
        self._over: _Over | None = None
        self._started = False
        self.turning = False
        """Whether somebody waits in `do`; who finds it so is in the run."""

    @property
    def failed(self) -> bool:
        """Whether anything has raised so far."""
        return self._failed is not None

    @property
    def nursery(self) -> trio.Nursery:
        """Tasks that are started here live from one function to the next, until `close`."""
        if self._nursery is None:
            raise RuntimeError("there is no nursery before the first step, nor after teardown: start tasks in a step")
        return self._nursery

    def do(self, name: str, function: Callable[[], Any], last: bool = False) -> Any:
        """What `function` returns; it is called in the main task, and awaited if it gives a coroutine.

        Raises what it raises, what a task of `nursery` died of, and NeverEnded. `name` is for messages. One that is the
        `last` is run whoever died before.
        """
        __tracebackhide__ = True  # of pytest: who reads a traceback wants to see the step
        self._start()
        answer = self._wait_for(_Call(name, function, last))
        if answer.error is None:
            return answer.value
        self._failed = self._failed or answer.error
        raise answer.error

    def close(self) -> None:
        """All tasks are cancelled and have ended, and so has the run.

        Raises what one of them died of, if nothing else has failed before; else that gets a note.
        """
        __tracebackhide__ = True
        if not self._started or self._over is not None:
            return
        answer = self._wait_for(None)
        error = self._death or answer.error
        if error is None:
            return
        if self._failed is None:
            raise error
        self._failed.add_note(f"after that, at the end, {type(error).__name__} was raised in the background: {error}")

    # --- outside: the host

    def _start(self) -> None:
        if self._over is not None:
            raise RuntimeError("the run is over: there is no step after teardown")
        if self._started:
            return
        if (error := getattr(_abandoned, "error", None)) is not None:
            raise error
        if trio.lowlevel.in_trio_run():
            raise RuntimeError("it is a trio run of its own, so it is started where none is: call it from a sync test")
        trio.lowlevel.start_guest_run(
            self._main,
            run_sync_soon_threadsafe=self._turns.put,
            done_callback=self._done,
            clock=self.clock,
        )
        self._started = True

    def _done(self, outcome: Any) -> None:
        self._over = _Over(getattr(outcome, "error", None))

    def _wait_for(self, call: _Call | None) -> _Answer:
        """The loop turns until the call is answered, or the run is over."""
        self._call, self._answer = call, None
        self._called.set()
        self.turning = True
        try:
            self._turn(call.name if call is not None else "teardown")
        finally:
            self.turning = False
        return self._answer or _Answer(error=self._over.error if self._over is not None else None)

    def _turn(self, name: str) -> None:
        looked = began = self.clock.current_time()
        turns, idle = 0, 0
        while self._answer is None and self._over is None:
            self._turns.get()()
            turns += 1
            if turns % LOOK_EVERY:
                continue
            now = self.clock.current_time()
            idle = idle + 1 if now == looked else 0
            looked = now
            if idle == IDLE_LOOKS:
                self._scope.cancel()
            if idle == 2 * IDLE_LOOKS or now > began + 2 * self._limit_s:
                self._abandon(name)

    def _abandon(self, name: str) -> None:
        """It does not even end when it is cancelled, so neither does the run: there is none after it in this thread."""
        tasks = sorted(task.name for task in self._nursery.child_tasks) if self._nursery is not None else []
        living = f"; still in the background: {', '.join(tasks)}" if tasks else ""
        error = NeverEnded(
            f"{name} does not end, not even when it is cancelled (is something shielded?){living}. "
            f"No other run of trio is possible in this thread"
        )
        _abandoned.error = error
        self._over = _Over(error)

    # --- inside: the guest

    async def _main(self) -> None:
        async with trio.open_nursery() as outer:
            closing = await outer.start(self._keep_tasks)
            while (call := await self._next()) is not None:
                self._answer = await self._perform(call)
            closing.set()

    async def _next(self) -> _Call | None:
        await self._called.wait()
        self._called = trio.Event()
        return self._call

    async def _keep_tasks(self, task_status: trio.TaskStatus[trio.Event]) -> None:
        """`nursery` is open until `closing`; when one of its tasks dies, all end, and so does the step under way."""
        closing = trio.Event()
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started(closing)
                await closing.wait()
                self._nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            self._death = single(group)
            self._death.add_note("raised by a task in the background")
            self._scope.cancel()
        finally:
            self._nursery = None

    async def _perform(self, call: _Call) -> _Answer:
        if self._death is not None and not call.last:  # a task died after the step before had its answer
            return self._dead(None)
        stopped: BaseException | None = None
        self._scope = trio.CancelScope(deadline=trio.current_time() + self._limit_s)
        try:
            with self._scope:
                try:
                    value = call.function()
                    if inspect.iscoroutine(value):
                        value = await value
                except BaseException as error:
                    stopped = error
                    raise
        except BaseException as error:
            # A death came first and is the cause; but what is no Exception (an interrupt, Hypothesis's own) goes first.
            return self._dead(error) if isinstance(error, Exception) else _Answer(error=error)
        if self._death is not None:
            return self._dead(None)
        if self._scope.cancelled_caught:
            return _Answer(error=NeverEnded(self._why(call.name, stopped)))
        return _Answer(value)

    def _dead(self, error: BaseException | None) -> _Answer:
        death, self._death = self._death, None
        return _Answer(error=death or error)

    def _why(self, name: str, stopped: BaseException | None) -> str:
        waited = trio.current_time() >= self._scope.deadline
        where = [frame for frame in traceback.extract_tb(_first(stopped)) if _is_theirs(frame)]
        places = " > ".join(f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in where[-4:])
        how = f"was waiting after {self._limit_s:g} s" if waited else "kept the loop turning without time passing"
        return f"{name} never ended: it {how}" + (f", in {places}" if places else "")


def _first(error: BaseException | None) -> TracebackType | None:
    """Where the first of its exceptions came from."""
    return None if error is None else next(exceptions_in(error)).__traceback__


def _is_theirs(frame: traceback.FrameSummary) -> bool:
    return not frame.filename.startswith(TRIO) and frame.filename != __file__
