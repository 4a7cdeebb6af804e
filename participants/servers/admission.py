"""The live gate of one server: requests are admitted, held or refused as the GATE table says.

The table decides, this shell waits: a held request sleeps on an event of its own and arrives again when the gate opens,
when its attempt is retired, or leaves with its caller. Embedded in other people's servers, so it runs on anyio.
docs/reference/protocol.md section 6.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import anyio
from attrs import define, field

from statecore import Refused

from ..journals.recorder import UNRECORDED, StepRecorder
from ..machines.gate import (
    GATE,
    Admit,
    Arrived,
    ArrivedImpatient,
    BecameQuiet,
    CloseRequested,
    Ended,
    GateData,
    GateState,
    Left,
    OpenRequested,
    ReleaseHeld,
    Settled,
    SettledEnded,
    Stirred,
    counted_again,
)
from ..net.http import ClientGone, refuse_request

Check = Callable[[], None]
Gone = Callable[[], Awaitable[None]]


@define(eq=False)
class _Hold:
    rollout_id: str | None
    has_caller: bool
    event: anyio.Event = field(factory=anyio.Event)


class Admission:
    """Admission to one server.

    `on_change` is called after every step that can matter to somebody who waits for the gate to be quiet. `on_hold` is
    entered while a request waits.
    """

    def __init__(
        self,
        max_held: int,
        *,
        closed: bool = False,
        on_change: Callable[[], None] = lambda: None,
        on_hold: Callable[[], AbstractContextManager[None]] = nullcontext,
        steps: StepRecorder = UNRECORDED,
    ) -> None:
        self._steps = steps
        self._gate = GATE.start(GateData(max_held=max_held))
        self._holds: set[_Hold] = set()
        self._waiters: set[_Hold] = set()  # settled things that wait for the opening; not counted as held
        self._excused: set[Activity] = set()  # what this checkpoint goes without; counted again at the opening
        self._on_change = on_change
        self._on_hold = on_hold
        self._ending = False
        if closed:
            self.close()

    @property
    def is_open(self) -> bool:
        return self._gate.state is GateState.OPEN

    @property
    def is_quiet(self) -> bool:
        """Closed, and nothing moves."""
        return self._gate.state is GateState.QUIET

    @property
    def counts(self) -> GateData:
        return self._gate.data

    def close(self) -> None:
        self._step(CloseRequested())

    def open(self) -> None:
        self._step(OpenRequested())

    def end(self) -> None:
        """Its server ends: requests that wait, or would, are told that it is lost; what else waits is ended with it."""
        self._ending = True
        for hold in list(self._holds):
            self._let_go(hold)
        for waiter in self._waiters:
            if waiter.has_caller:
                waiter.event.set()

    def _let_go(self, hold: _Hold) -> None:
        self._holds.discard(hold)
        self._step(Left())
        hold.event.set()

    def enter_or_refuse(self) -> None:
        """Admitted, or Refused `admission_closed`: for requests that are never held."""
        self._step(ArrivedImpatient())

    async def enter(self, rollout_id: str | None, check: Check, gone: Gone | None = None) -> None:
        """Admitted, now or when the gate opens; `check` is asked before each try and may raise Refused.

        Raises ClientGone when `gone` returns first: the request was never admitted.
        """
        while True:
            check()
            self._check_ending()
            if any(effect.__class__ is Admit for effect in self._step(Arrived())):
                return
            hold = _Hold(rollout_id, gone is not None)
            self._holds.add(hold)
            try:
                with self._on_hold():
                    await wait_or_gone(hold.event, gone)
            finally:
                if hold in self._holds:
                    self._holds.discard(hold)
                    self._step(Left())

    def leave(self) -> None:
        """What was admitted has ended."""
        self._step(Ended())

    def settle(self) -> None:
        """What was admitted is quiet until it stirs."""
        self._step(Settled())

    def excuse(self, activity: Activity) -> None:
        """What was admitted, and moves, is not waited for until the gate opens again (section 12)."""
        self._excused.add(activity)
        self._step(Ended())

    def forgive(self, activity: Activity) -> None:
        """What was excused has ended."""
        self._excused.discard(activity)

    def leave_settled(self) -> None:
        """What was quiet has ended without moving again."""
        self._step(SettledEnded())

    def stir(self) -> bool:
        """Whether what was quiet moves again: not while the gate is closed."""
        try:
            self._step(Stirred())
        except Refused as refused:
            if refused.code != "admission_closed":
                raise
            return False
        return True

    async def opened(self, rollout_id: str | None = None, gone: Gone | None = None) -> None:
        """Returns when the gate is open, or at once when it is; also when `rollout_id` is woken."""
        if self.is_open:
            return
        waiter = _Hold(rollout_id, gone is not None)
        if waiter.has_caller:
            self._check_ending()
        self._waiters.add(waiter)
        try:
            await wait_or_gone(waiter.event, gone)
        finally:
            self._waiters.discard(waiter)

    def wake(self, rollout_ids: Iterable[str]) -> None:
        """Everything that waits for these rollouts looks again (their attempts were retired)."""
        wanted = set(rollout_ids)
        for hold in [hold for hold in self._holds if hold.rollout_id in wanted]:
            self._let_go(hold)
        for waiter in self._waiters:
            if waiter.rollout_id in wanted:
                waiter.event.set()

    def _check_ending(self) -> None:
        if self._ending and not self.is_open:
            raise refuse_request("participant_lost", "this server ends, and was closed for a checkpoint")

    def _step(self, event: object) -> tuple[Any, ...]:
        self._gate, effects = self._steps.step(GATE, self._gate, event)
        for effect in effects:
            if effect.__class__ is ReleaseHeld:
                self._release()
            elif effect.__class__ is BecameQuiet:
                self._on_change()
        return effects

    def _release(self) -> None:
        excused, self._excused = self._excused, set()
        for activity in excused:
            for event in counted_again(settled=activity.count_again()):
                self._step(event)
        holds, self._holds = self._holds, set()
        for hold in holds:
            hold.event.set()
        for waiter in self._waiters:
            waiter.event.set()
        self._on_change()


class Activity:
    """One admitted thing that moves, settles and stirs until it ends; it has entered before this is made.

    `exempt` ends the counting for good: a rollout that will start over anyway never blocks a checkpoint (section 2).
    `excuse` ends it until the gate opens again: the checkpoint goes without it, and what it does next is held like
    everything else (section 12).
    """

    def __init__(self, admission: Admission, rollout_id: str | None, check: Check) -> None:
        self._admission = admission
        self._rollout_id = rollout_id
        self._check = check
        self._settled = False
        self._counted = True
        self._excused = False

    @property
    def blocks(self) -> bool:
        """Whether the gate cannot be quiet because of it."""
        return self._counted and not self._settled and not self._excused

    @property
    def settled(self) -> bool:
        return self._settled

    def settle(self) -> None:
        """It is quiet: nothing it does from here on may change anything before it has stirred."""
        if self._counted and not self._settled:
            self._settled = True
            if not self._excused:
                self._admission.settle()

    def excuse(self) -> None:
        """If the gate waits for it, it does so no longer, until it opens again."""
        if self.blocks:
            self._excused = True
            self._admission.excuse(self)

    def count_again(self) -> bool:
        """The gate is open and counts it again; returns whether it is settled."""
        self._excused = False
        return self._settled

    async def stir(self, gone: Gone | None = None) -> None:
        """It moves again; waits while the gate is closed (I24), ClientGone when `gone` returns first.

        Several tasks of it may wait: it is counted once, the first one stirs it for all.
        """
        while True:
            self._check()
            if not self._counted or not self._settled:
                return
            if not self._excused and self._admission.stir():
                self._settled = False
                return
            await self._admission.opened(self._rollout_id, gone)

    def end(self) -> None:
        """It is over, whatever it was doing."""
        if not self._counted:
            return
        self._counted = False
        if self._excused:
            self._admission.forgive(self)
        elif self._settled:
            self._admission.leave_settled()
        else:
            self._admission.leave()

    exempt = end


async def wait_or_gone(event: anyio.Event, gone: Gone | None) -> None:
    """Returns when the event is set; raises ClientGone when the caller leaves first."""
    if gone is None:
        await event.wait()
        return
    left = False

    async def watch(watched: Gone) -> None:
        nonlocal left
        await watched()
        left = True
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch, gone)
        await event.wait()
        group.cancel_scope.cancel()
    if left and not event.is_set():
        raise ClientGone
