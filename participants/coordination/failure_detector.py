"""Who lives: every participant is asked for its status regularly, also while nobody has anything else to ask. trio.

Rules (docs/reference/protocol.md section 7): the table `HEARTBEAT` decides what is a death; whatever a server answers,
to whatever call, is a sign of its life, or of its death if another process shows (S66). A result that the death of a
server may have made is vouched for first: every participant has answered, asked after the result had come, as the
process that it was (I97, S65).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final, Protocol, runtime_checkable

import trio
from attrs import define, field, frozen

from statecore import Snapshot

from ..journals.recorder import UNRECORDED, StepRecorder
from ..machines.heartbeat import HEARTBEAT, Answered, DeclareDead, Exited, Heartbeat, PeriodPassed, Pulse
from ..net.client import ControlError
from ..net.replies import Answer
from .deployment import Member

LOOK_EVERY_S: Final = 0.5
RETRY_S: Final = 1.0
LAG: Final = 0.05
"""A period whose end we saw so much of it too late says nothing of servers: something held up this process."""


@runtime_checkable
class KnowsExits(Protocol):
    """A launcher that knows which of its servers have ended: then nobody waits for an answer of those."""

    @property
    def exited(self) -> Mapping[str, int]:
        """The servers that were started and have ended without being stopped, with their exit status."""


def ended_by_themselves(launcher: object) -> Mapping[str, int]:
    """The servers of which this launcher knows that they have ended, with their exit status."""
    return launcher.exited if isinstance(launcher, KnowsExits) else {}


@frozen
class Death:
    """A server of the deployment is gone, and with it what it held."""

    server: str
    reason: str

    @classmethod
    def of_exit(cls, server: str, status: int) -> Death:
        """Its process has ended by itself."""
        return cls(server, f"its process has ended with status {status}")

    def __str__(self) -> str:
        return f"{self.server} is dead: {self.reason}"


@define(eq=False)
class _Watched:
    """One participant. `asked` is the newest request to ask it, `vouched` the newest one that it answered as itself."""

    member: Member
    pulse: Snapshot[Heartbeat, Pulse]
    answers: int = 0
    vouched: int = 0
    doubted: trio.Event = field(factory=trio.Event)


class FailureDetector:
    """Watches the participants of one deployment while `watch` runs; the first death is the last thing it says."""

    def __init__(
        self,
        members: Iterable[Member],
        *,
        every_s: float,
        misses: int,
        launcher: object = None,
        steps: StepRecorder = UNRECORDED,
    ) -> None:
        self.death: Death | None = None
        self._every_s = every_s
        self._retry_s = min(RETRY_S, every_s / 4)
        self._launcher = launcher
        self._steps = steps
        self._number = 0
        self._closed = False
        self._changed = trio.Event()
        self._watched: dict[str, _Watched] = {}
        for member in members:
            pulse = HEARTBEAT.start(Pulse(member.incarnation, misses))
            self._watched[member.name] = _Watched(member, pulse)
            member.control.on_answer = partial(self._hear, member.name)

    async def watch(self) -> Death:
        """Returns with the first death. May be called again, and then goes on."""
        async with trio.open_nursery() as nursery:
            for each in self._watched.values():
                nursery.start_soon(self._ask_regularly, each)
            if isinstance(self._launcher, KnowsExits):
                nursery.start_soon(self._look_for_exits)
            while self.death is None:
                await self._changed.wait()
            nursery.cancel_scope.cancel()
        return self.death

    def close(self) -> None:
        """Nobody watches any more: whoever waits for a word is let go."""
        self._closed = True
        self._tell()

    def heard(self, server: str, incarnation: str | None) -> None:
        """A reply of `server`, not of its control plane, showed this incarnation."""
        if incarnation is not None and server in self._watched:
            self._step(self._watched[server], Answered(incarnation))

    def suspect(self) -> None:
        """Something went wrong that a death would explain: all are asked now."""
        self._number += 1
        self._look()
        for each in self._watched.values():
            each.doubted.set()

    async def vouch(self) -> bool:
        """Every participant has answered, asked after this call, as the process that it was; false: one is dead."""
        self.suspect()
        number = self._number
        while self.death is None and not self._closed:
            if all(each.vouched >= number for each in self._watched.values()):
                return True
            await self._changed.wait()
        return self.death is None

    # --- inside

    async def _ask_regularly(self, each: _Watched) -> None:
        await _until_doubted(each, trio.current_time() + self._every_s)  # it has just been discovered
        while True:
            end, before = trio.current_time() + self._every_s, each.answers
            with trio.move_on_at(end):
                while True:
                    if await self._ask(each):
                        await _until_doubted(each, end)
                    else:
                        await trio.sleep(self._retry_s)
            if each.answers == before and trio.current_time() - end < LAG * self._every_s:
                self._step(each, PeriodPassed())

    async def _ask(self, each: _Watched) -> bool:
        """Whether it answered, as itself."""
        each.doubted = trio.Event()
        number = self._number
        try:
            await each.member.control.status(timeout_s=self._every_s, tries=1)
        except ControlError as error:
            if error.transport or (error.incarnation or "") != each.member.incarnation:
                return False
        each.vouched = number
        self._tell()
        return True

    def _hear(self, name: str, answer: Answer) -> None:
        """What came of a control call: a reply of a process, whatever it says, or nothing that tells."""
        each = self._watched[name]
        if answer.incarnation is not None or not (answer.transport or each.member.incarnation):
            self._step(each, Answered(answer.incarnation or ""))

    async def _look_for_exits(self) -> None:
        while True:
            self._look()
            await trio.sleep(LOOK_EVERY_S)

    def _look(self) -> None:
        for name, status in ended_by_themselves(self._launcher).items():
            if name in self._watched:
                self._step(self._watched[name], Exited(status))
            else:  # it takes no part and is needed all the same: a judge, a server of another make
                self._die(Death.of_exit(name, status))

    def _step(self, each: _Watched, event: Any) -> None:
        if isinstance(event, Answered):
            each.answers += 1
        each.pulse, effects = self._steps.step(
            HEARTBEAT, each.pulse, event, server=each.member.name, watched=each.member.incarnation
        )
        for effect in effects:
            if isinstance(effect, DeclareDead):
                self._die(Death(each.member.name, effect.reason))

    def _die(self, death: Death) -> None:
        if self.death is None:
            self.death = death
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


async def _until_doubted(each: _Watched, end: float) -> None:
    """Somebody wants to know now, or it is `end`."""
    with trio.move_on_at(end):
        await each.doubted.wait()
