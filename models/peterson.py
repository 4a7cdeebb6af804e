"""Peterson's mutual exclusion of two processes, for calibration.

Written anew after the TLA+ example Peterson (locks_auxiliary_vars/Peterson.tla with Peterson.cfg). Published: 42
distinct states, 77 generated, depth 11. One initial state, no constraint, no symmetry, deadlock checked.

`NeverGoesFirst` is the failing twin: whose turn it is does not count, and both wait for ever.
"""

from __future__ import annotations

from enum import StrEnum, auto

from statecore.properties import always, recoverable, sometimes
from statecore.world import World, action, slot


class At(StrEnum):
    """What a process does next."""

    REST = auto()
    RAISE = auto()
    YIELD = auto()
    WAIT = auto()
    CRITICAL = auto()
    LOWER = auto()


BOTH = (0, 1)
WANTS = frozenset({At.YIELD, At.WAIT, At.CRITICAL, At.LOWER})
INSIDE = frozenset({At.CRITICAL, At.LOWER})
OUTSIDE = frozenset({At.REST, At.RAISE, At.YIELD})


class Peterson(World):
    """Two processes; each has a flag (it wants in), and `turn` says who goes first if both want."""

    at: tuple[At, At] = slot((At.REST, At.REST))
    flags: tuple[bool, bool] = slot((False, False))
    turn: int = slot(0)

    def move(self, me: int, source: At, target: At) -> bool:
        if self.at[me] is not source:
            return False
        self.at = (target, self.at[1]) if me == 0 else (self.at[0], target)
        return True

    def flag(self, me: int, up: bool) -> None:
        self.flags = (up, self.flags[1]) if me == 0 else (self.flags[0], up)

    @action(over=BOTH)
    def wake(self, me: int) -> bool:
        return self.move(me, At.REST, At.RAISE)

    @action(over=BOTH)
    def raise_flag(self, me: int) -> bool:
        self.flag(me, True)
        return self.move(me, At.RAISE, At.YIELD)

    @action(over=BOTH)
    def give_way(self, me: int) -> bool:
        self.turn = 1 - me
        return self.move(me, At.YIELD, At.WAIT)

    @action(over=BOTH)
    def enter(self, me: int) -> bool:
        if self.flags[1 - me] and self.turn != me:
            return False
        return self.move(me, At.WAIT, At.CRITICAL)

    @action(over=BOTH)
    def leave(self, me: int) -> bool:
        return self.move(me, At.CRITICAL, At.LOWER)

    @action(over=BOTH)
    def lower_flag(self, me: int) -> bool:
        self.flag(me, False)
        return self.move(me, At.LOWER, At.REST)

    @always
    def exclusive(self) -> bool:
        """At most one is inside: from when it enters until its flag is down."""
        return not (self.at[0] in INSIDE and self.at[1] in INSIDE)

    @always
    def flags_say_who_wants(self) -> bool:
        return all(self.flags[me] == (self.at[me] in WANTS) for me in BOTH)

    @always
    def who_is_inside_goes_first(self) -> bool:
        """Who is inside has the turn, or the other has not given way yet."""
        return all(self.at[me] not in INSIDE or self.turn == me or self.at[1 - me] in OUTSIDE for me in BOTH)

    @sometimes
    def one_waits_for_the_other(self) -> bool:
        return At.WAIT in self.at and At.CRITICAL in self.at

    @recoverable
    def first_inside(self) -> bool:
        return self.at[0] is At.CRITICAL

    @recoverable
    def second_inside(self) -> bool:
        return self.at[1] is At.CRITICAL


class NeverGoesFirst(Peterson):
    """The failing twin: who waits looks at the other's flag only."""

    @action(over=BOTH)
    def enter(self, me: int) -> bool:
        if self.flags[1 - me]:
            return False
        return self.move(me, At.WAIT, At.CRITICAL)
