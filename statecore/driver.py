"""A machine in a trio nursery: events come through a mailbox, effects are performed in the order they are owed.

For what owns its event loop (a coordinator, a rollout, a demonstration, a simulation). HTTP participants need a lock, a
gate and one timer, and no mailbox; they call `step` themselves. Rules:

* one event at a time: the step, then the journal's line, then all its effects, then the next event;
* the mailbox has a bound: `send` waits for room and for the outcome, `post` never waits and raises `MailboxFull`;
* a refused event raises in its sender; one that was posted, or came from a timer, goes to `on_refused`;
* an effect that fails is the performer's bug: the driver stops and raises it. What may fail (a call, a write) is caught
  by the performer and comes back as an event;
* timers are named; arming one again replaces it. Time is the loop's (`trio.current_time`), so MockClock moves it;
* `stop` takes no more events, finishes those it has, disarms the timers and ends `run`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Generic, TypeVar

import trio
from attrs import define, field

from .errors import DefinitionError, Refused, StatecoreError
from .journal import Ids, Journal
from .machine import Snapshot, Table

__all__ = ["Driver", "DriverStopped", "MailboxFull"]

S = TypeVar("S", bound=Enum)
D = TypeVar("D")

MAILBOX_SIZE = 64
"""Events that may wait, unless said otherwise."""


class MailboxFull(StatecoreError):
    """The event was not taken: as many as the mailbox holds are waiting."""


class DriverStopped(StatecoreError):
    """The event was not taken, or not finished: the driver is stopping or has stopped."""


@define
class _Letter:
    """An event on its way; `done` is set once `outcome` or `error` is there. Nobody waits for one that was posted."""

    event: object
    awaited: bool
    done: trio.Event = field(factory=trio.Event)
    outcome: Any = None
    error: BaseException | None = None


async def _nothing(effect: Any) -> None:
    raise DefinitionError(f"effect {effect!r} is owed, and no performer was given")


def _raise(refused: Refused) -> None:
    raise refused


class Driver(Generic[S, D]):
    """A running machine; `snapshot` is where it stands. Run it with `await nursery.start(driver.run)`."""

    def __init__(
        self,
        table: Table[S, D],
        perform: Callable[[Any], Awaitable[None]] = _nothing,
        *,
        snapshot: Snapshot[S, D] | None = None,
        mailbox: int = MAILBOX_SIZE,
        journal: Journal | None = None,
        ids: Ids | None = None,
        on_refused: Callable[[Refused], None] = _raise,
    ) -> None:
        if mailbox < 1:
            raise DefinitionError(f"mailbox={mailbox}: give room for at least one event")
        self.table = table
        self.snapshot: Snapshot[S, D] = table.start() if snapshot is None else snapshot
        self._perform = perform
        self._journal = journal
        self._ids = dict(ids or {})
        self._on_refused = on_refused
        self._inbox, self._outbox = trio.open_memory_channel[_Letter](mailbox)
        self._timers: dict[str, trio.CancelScope] = {}
        self._nursery: trio.Nursery | None = None
        self._task: object = None
        self._stopped = False

    async def send(self, event: object) -> Snapshot[S, D]:
        """The snapshot right after `event`; its effects have been performed. Waits for room in the mailbox.

        Raises Refused (nothing changed) or DriverStopped. A sender that is cancelled once its event was taken does not
        take it back.
        """
        if self._task is trio.lowlevel.current_task():
            raise StatecoreError(f"a performer sent {type(event).__name__} to its own driver: it would wait for itself")
        letter = _Letter(event, awaited=True)
        try:
            await self._inbox.send(letter)
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            raise DriverStopped(f"{type(event).__name__} was not taken: the driver has stopped") from None
        await letter.done.wait()
        if letter.error is not None:
            raise letter.error
        return letter.outcome  # type: ignore[no-any-return]

    def post(self, event: object) -> None:
        """The event is in the mailbox, or MailboxFull or DriverStopped; what becomes of it is not waited for."""
        try:
            self._inbox.send_nowait(_Letter(event, awaited=False))
        except trio.WouldBlock:
            raise MailboxFull(f"{type(event).__name__} was not taken: the mailbox is full") from None
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            raise DriverStopped(f"{type(event).__name__} was not taken: the driver has stopped") from None

    def arm(self, name: str, delay_s: float, event: object) -> None:
        """Timer `name` brings `event` in `delay_s` seconds, instead of what it was armed with before."""
        self.arm_at(name, trio.current_time() + delay_s, event)

    def arm_at(self, name: str, deadline: float, event: object) -> None:
        """Timer `name` brings `event` when the loop's clock reads `deadline` (at once if that is past)."""
        if math.isnan(deadline):
            raise DefinitionError(f"timer {name!r}: the deadline is no number")
        if self._nursery is None or self._stopped:
            raise DriverStopped(f"timer {name!r} was not armed: the driver is not running")
        self.disarm(name)
        scope = self._timers[name] = trio.CancelScope()
        self._nursery.start_soon(self._ring, name, scope, deadline, event)

    def disarm(self, name: str) -> bool:
        """Whether timer `name` was armed; it no longer is. (An event it has already brought stays in the mailbox.)"""
        scope = self._timers.pop(name, None)
        if scope is None:
            return False
        scope.cancel()
        return True

    @property
    def armed(self) -> tuple[str, ...]:
        """Names of the armed timers."""
        return tuple(self._timers)

    def stop(self) -> None:
        """No more events are taken; those in the mailbox are finished, and then `run` ends."""
        self._stopped = True
        for name in self.armed:
            self.disarm(name)
        self._inbox.close()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ended by `stop`, by cancellation, or by what the performer raised. Waiting senders get DriverStopped then."""
        failed: Exception | None = None
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._task = trio.lowlevel.current_task()
                task_status.started()
                try:
                    async for letter in self._outbox:
                        await self._handle(letter)
                except Exception as error:  # raised below as it is, and not in the nursery's group
                    failed = error
                nursery.cancel_scope.cancel()
            if failed is not None:
                raise failed
        finally:
            self._nursery, self._task, self._stopped = None, None, True
            self._inbox.close()
            self._give_up()

    async def _handle(self, letter: _Letter) -> None:
        try:
            before = self.snapshot
            try:
                after, effects = self.table.step(before, letter.event)
            except Refused as refused:
                self._write(before, letter.event, before, refused.code)
                if not letter.awaited:
                    self._on_refused(refused)
                letter.error = refused
                return
            self.snapshot = after
            self._write(before, letter.event, after, None)
            for effect in effects:
                await self._perform(effect)
            letter.outcome = after
        except BaseException as error:
            # Ours to raise, out of run; the sender only learns that there will be no answer.
            letter.error = DriverStopped(f"{type(letter.event).__name__} was not finished: {type(error).__name__}")
            raise
        finally:
            letter.done.set()

    def _write(self, before: Snapshot[S, D], event: object, after: Snapshot[S, D], refused: str | None) -> None:
        if self._journal is not None:
            self._journal.record(self.table.name, before.state, event, after.state, self._ids, refused=refused)

    async def _ring(self, name: str, scope: trio.CancelScope, deadline: float, event: object) -> None:
        with scope:
            await trio.sleep_until(deadline)
            letter = _Letter(event, awaited=False)
            try:
                await self._inbox.send(letter)  # waits for room: a timer is never lost to a full mailbox
            except trio.ClosedResourceError:
                return  # stopped meanwhile; its timers are disarmed
        if self._timers.get(name) is scope:
            del self._timers[name]

    def _give_up(self) -> None:
        """Whoever still waits is told."""
        while True:
            try:
                letter = self._outbox.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError):
                break
            letter.error = DriverStopped(f"{type(letter.event).__name__} was not finished: the driver has stopped")
            letter.done.set()
        self._outbox.close()
