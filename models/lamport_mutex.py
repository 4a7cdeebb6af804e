"""Mutual exclusion of three processes by clocks and messages (Lamport, CACM 1978), for calibration.

Written anew after the TLA+ example LamportMutex (lamport_mutex/LamportMutex.tla, MCLamportMutex.tla with
MCLamportMutex.cfg: three processes, clocks up to 6). Published: 724,274 distinct states, depth 61. One initial
state, no symmetry. A constraint bounds the clocks: a state beyond it is generated there (2,729,079 generated states
count those) but neither counted as distinct nor explored; here the step to it is not taken (test_calibration.py
counts them, and gets that number). So where a clock is at its bound having no next step is no deadlock (`bounded`
here).

`EntersUnanswered` is the failing twin: who asks does not wait until all have answered.
"""

from __future__ import annotations

from typing import Any

from statecore.properties import always, final, sometimes
from statecore.world import World, action, param, slot

PROCESSES = (0, 1, 2)
PAIRS = tuple((one, other) for one in PROCESSES for other in PROCESSES if one != other)
ALL = frozenset(PROCESSES)
ANSWER, RELEASE = 0, -1  # a message that is neither is a request: the clock of the one that asks
Channel = tuple[int, ...]


class LamportMutex(World):
    """Three processes, each with a clock and what it knows of the others' requests; a channel for each direction."""

    max_clock: int = param(6)

    clock_0: int = slot(1)
    clock_1: int = slot(1)
    clock_2: int = slot(1)
    # request_1_2: the clock of process 2's request as process 1 knows it, 0 if there is none
    request_0_0: int = slot(0)
    request_0_1: int = slot(0)
    request_0_2: int = slot(0)
    request_1_0: int = slot(0)
    request_1_1: int = slot(0)
    request_1_2: int = slot(0)
    request_2_0: int = slot(0)
    request_2_1: int = slot(0)
    request_2_2: int = slot(0)
    answers_0: frozenset[int] = slot(frozenset())
    answers_1: frozenset[int] = slot(frozenset())
    answers_2: frozenset[int] = slot(frozenset())
    channel_0_1: Channel = slot(())  # from 0 to 1, in order
    channel_0_2: Channel = slot(())
    channel_1_0: Channel = slot(())
    channel_1_2: Channel = slot(())
    channel_2_0: Channel = slot(())
    channel_2_1: Channel = slot(())
    inside: frozenset[int] = slot(frozenset())

    def of(self, name: str, *which: int) -> Any:
        return getattr(self, "_".join((name, *map(str, which))))

    def let(self, name: str, *which: int, be: object) -> None:
        setattr(self, "_".join((name, *map(str, which))), be)

    def send(self, source: int, target: int, message: int) -> None:
        self.let("channel", source, target, be=(*self.of("channel", source, target), message))

    def broadcast(self, source: int, message: int) -> None:
        for target in PROCESSES:
            if target != source:
                self.send(source, target, message)

    def head(self, source: int, target: int) -> int | None:
        waiting: Channel = self.of("channel", source, target)
        return waiting[0] if waiting else None

    def drop_head(self, source: int, target: int) -> None:
        self.let("channel", source, target, be=self.of("channel", source, target)[1:])

    def answered(self, me: int) -> bool:
        return bool(self.of("answers", me) == ALL)

    def comes_before(self, me: int, other: int) -> bool:
        """The other asked for nothing that I know of, or later, or at the same time and its number is higher."""
        theirs = self.of("request", me, other)
        return bool(theirs == 0 or (self.of("request", me, me), me) < (theirs, other))

    @action(over=PROCESSES)
    def ask(self, me: int) -> bool:
        if self.of("request", me, me):
            return False
        now = self.of("clock", me)
        self.let("request", me, me, be=now)
        self.let("answers", me, be=frozenset({me}))
        self.broadcast(me, now)
        return True

    @action(over=PAIRS)
    def receive_request(self, pair: tuple[int, int]) -> bool:
        """It is noted, answered, and the clock goes past it; the constraint: no clock passes its bound."""
        me, other = pair
        asked = self.head(other, me)
        if asked is None or asked <= 0:
            return False
        now = max(asked, self.of("clock", me)) + 1
        if now > self.max_clock:
            return False
        self.let("request", me, other, be=asked)
        self.let("clock", me, be=now)
        self.drop_head(other, me)
        self.send(me, other, ANSWER)
        return True

    @action(over=PAIRS)
    def receive_answer(self, pair: tuple[int, int]) -> bool:
        me, other = pair
        if self.head(other, me) != ANSWER:
            return False
        self.let("answers", me, be=self.of("answers", me) | {other})
        self.drop_head(other, me)
        return True

    @action(over=PAIRS)
    def receive_release(self, pair: tuple[int, int]) -> bool:
        me, other = pair
        if self.head(other, me) != RELEASE:
            return False
        self.let("request", me, other, be=0)
        self.drop_head(other, me)
        return True

    @action(over=PROCESSES)
    def enter(self, me: int) -> bool:
        """All have answered, and my request is the first that I know of; once inside, again changes nothing."""
        if not self.answered(me):
            return False
        if not all(self.comes_before(me, other) for other in PROCESSES if other != me):
            return False
        self.inside |= {me}
        return True

    @action(over=PROCESSES)
    def leave(self, me: int) -> bool:
        if me not in self.inside:
            return False
        self.inside -= {me}
        self.let("request", me, me, be=0)
        self.let("answers", me, be=frozenset())
        self.broadcast(me, RELEASE)
        return True

    @always
    def exclusive(self) -> bool:
        return len(self.inside) <= 1

    @always
    def short_channels(self) -> bool:
        """No channel ever holds more than three messages."""
        return all(len(self.of("channel", *pair)) <= 3 for pair in PAIRS)

    @sometimes
    def inside_while_all_ask(self) -> bool:
        return bool(self.inside) and all(self.of("request", me, me) for me in PROCESSES)

    @sometimes
    def full_channel(self) -> bool:
        return any(len(self.of("channel", *pair)) == 3 for pair in PAIRS)

    @final
    def bounded(self) -> bool:
        return any(self.of("clock", me) == self.max_clock for me in PROCESSES)


class EntersUnanswered(LamportMutex):
    """The failing twin: it is enough to have asked."""

    def answered(self, me: int) -> bool:
        return bool(self.of("answers", me))
