"""Mutual exclusion of two processes by numbers, as at a bakery (Lamport, CACM 1974), for calibration.

Written anew after the TLA+ example Bakery (Bakery-Boulangerie/Bakery.tla, MCBakery.tla with MCBakery.cfg: two
processes, numbers up to 2). While a process writes its flag or its number, whoever reads may get any value: a write is
a step to any value, as often as one likes, and a last one to the value that is meant.

`Bakery` begins where everybody rests. What was published is something else: every state that satisfies the invariant
is an initial state, and no step leaves them; 655,200 distinct states of depth 1, 3,403,584 generated, deadlocks not
checked. `BakeryFromAnywhere` is that: its first two steps choose a state, a half of it each, which makes two levels
and 1 + 1296 states more; distinct and generated states are otherwise the published ones.

The failing twins: of the algorithm `LooksNowhere`, in which who waits does not look at the other's flag; of the
invariant `SharesNumbers`, in which a number need not be greater than those that were seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum, auto
from itertools import product
from typing import Any

from attrs import frozen

from statecore.properties import always, final, sometimes
from statecore.world import World, action, param, slot


class At(StrEnum):
    """What a process does next."""

    REST = auto()
    RAISE = auto()  # its flag, before it looks for a number
    LOOK = auto()  # at the others' numbers
    TAKE = auto()  # a number
    LOWER = auto()  # its flag again
    CHECK = auto()  # that another is not about to take a number
    WAIT = auto()  # until that one has none, or a later one
    CRITICAL = auto()
    RETURN = auto()  # its number


BOTH = (0, 1)
HAS_A_NUMBER = frozenset({At.LOWER, At.CHECK, At.WAIT, At.CRITICAL})
TAKES_ONE = frozenset({At.LOOK, At.TAKE})
QUEUES = frozenset({At.CHECK, At.WAIT})
STARTS_AGAIN = frozenset({At.REST, At.RAISE, At.RETURN})  # it will look at all numbers before it takes one


def numbers(w: Bakery) -> range:
    return range(w.highest + 1)


def writes(w: Bakery) -> list[tuple[int, int]]:
    """Each process with each number."""
    return list(product(BOTH, numbers(w)))


PAIRS = tuple(product(BOTH, BOTH))


class Bakery(World):
    """Two processes; `left` are those that one has still to look at or to wait for, `target` is whom it waits for."""

    highest: int = param(2)

    at_0: At | None = slot(At.REST)
    at_1: At | None = slot(At.REST)
    number_0: int = slot(0)
    number_1: int = slot(0)
    flag_0: bool = slot(False)
    flag_1: bool = slot(False)
    left_0: frozenset[int] = slot(frozenset())
    left_1: frozenset[int] = slot(frozenset())
    seen_0: int = slot(0)  # the highest number that it saw
    seen_1: int = slot(0)
    target_0: int = slot(0)
    target_1: int = slot(0)

    def of(self, name: str, me: int) -> Any:
        return getattr(self, f"{name}_{me}")

    def let(self, name: str, me: int, be: object) -> None:
        setattr(self, f"{name}_{me}", be)

    @action(over=BOTH)
    def wake(self, me: int) -> bool:
        return self.move(me, At.REST, At.RAISE)

    @action(over=BOTH)
    def flicker(self, me: int) -> bool:
        """A write of the flag is under way: it is read as the one or the other."""
        if self.of("at", me) not in (At.RAISE, At.LOWER):
            return False
        self.let("flag", me, not self.of("flag", me))
        return True

    @action(over=BOTH)
    def raise_flag(self, me: int) -> bool:
        if not self.move(me, At.RAISE, At.LOOK):
            return False
        self.let("flag", me, True)
        self.let("left", me, frozenset(BOTH) - {me})
        self.let("seen", me, 0)
        return True

    @action(over=PAIRS)
    def look(self, pair: tuple[int, int]) -> bool:
        me, other = pair
        if self.of("at", me) is not At.LOOK or other not in self.of("left", me):
            return False
        self.let("left", me, self.of("left", me) - {other})
        self.let("seen", me, max(self.of("seen", me), self.of("number", other)))
        return True

    @action(over=BOTH)
    def looked(self, me: int) -> bool:
        return self.move(me, At.LOOK, At.TAKE) and not self.of("left", me)

    @action(over=writes)
    def smear(self, write: tuple[int, int]) -> bool:
        """A write of the number is under way: it is read as any."""
        me, number = write
        if self.of("at", me) not in (At.TAKE, At.RETURN):
            return False
        self.let("number", me, number)
        return True

    def may_take(self, me: int, number: int) -> bool:
        return bool(number > self.of("seen", me))

    @action(over=writes)
    def take(self, write: tuple[int, int]) -> bool:
        me, number = write
        if not self.move(me, At.TAKE, At.LOWER) or not self.may_take(me, number):
            return False
        self.let("number", me, number)
        return True

    @action(over=BOTH)
    def lower_flag(self, me: int) -> bool:
        if not self.move(me, At.LOWER, At.CHECK):
            return False
        self.let("flag", me, False)
        self.let("left", me, frozenset(BOTH) - {me})
        return True

    def seems_settled(self, other: int) -> bool:
        return not self.of("flag", other)

    @action(over=PAIRS)
    def check(self, pair: tuple[int, int]) -> bool:
        me, other = pair
        if not self.move(me, At.CHECK, At.WAIT):
            return False
        if other not in self.of("left", me) or not self.seems_settled(other):
            return False
        self.let("target", me, other)
        return True

    @action(over=BOTH)
    def waited(self, me: int) -> bool:
        if not self.move(me, At.WAIT, At.CHECK):
            return False
        other = self.of("target", me)
        if self.of("number", other) and not self.precedes(me, other):
            return False
        self.let("left", me, self.of("left", me) - {other})
        return True

    @action(over=BOTH)
    def enter(self, me: int) -> bool:
        return self.move(me, At.CHECK, At.CRITICAL) and not self.of("left", me)

    @action(over=BOTH)
    def leave(self, me: int) -> bool:
        return self.move(me, At.CRITICAL, At.RETURN)

    @action(over=BOTH)
    def rest(self, me: int) -> bool:
        self.let("number", me, 0)
        return self.move(me, At.RETURN, At.REST)

    def move(self, me: int, source: At, target: At) -> bool:
        if self.of("at", me) is not source:
            return False
        self.let("at", me, target)
        return True

    def precedes(self, one: int, other: int) -> bool:
        """The one's number is lower, or the same and the one comes first."""
        return bool((self.of("number", one), one) < (self.of("number", other), other))

    @always
    def exclusive(self) -> bool:
        return not (self.at_0 is self.at_1 is At.CRITICAL)

    @sometimes
    def one_waits_for_the_other(self) -> bool:
        return self.at_0 is At.WAIT and self.at_1 is At.CRITICAL

    @sometimes
    def same_number(self) -> bool:
        return self.at_0 is self.at_1 is At.WAIT and self.number_0 == self.number_1


class LooksNowhere(Bakery):
    """The failing twin: who waits does not look whether the other is about to take a number."""

    def seems_settled(self, other: int) -> bool:
        return True


@frozen(cache_hash=True)
class Half:
    """All that there is of one process."""

    at: At
    number: int
    flag: bool
    left: frozenset[int]
    seen: int
    target: int


def halves(w: Bakery) -> Iterator[Half]:
    """Every one that there could be."""
    subsets = [frozenset(each for each in BOTH if mask >> each & 1) for mask in range(4)]
    for each in product(At, numbers(w), (False, True), subsets, numbers(w), BOTH):
        yield Half(*each)


class BakeryFromAnywhere(Bakery):
    """Begins in any state that satisfies the invariant; no step breaks it. Until it is chosen, nobody is anywhere."""

    at_0: At | None = slot(None)
    at_1: At | None = slot(None)
    chosen: At | None = slot(None)  # where the first process is put when the second is chosen too

    def put_half(self, me: int, half: Half) -> None:
        for name in ("number", "flag", "left", "seen", "target"):
            self.let(name, me, getattr(half, name))

    @action(over=halves)
    def choose_first(self, half: Half) -> bool:
        if self.at_0 is not None or self.chosen is not None:
            return False
        self.put_half(0, half)
        self.chosen = half.at
        return True

    @action(over=halves)
    def choose_second(self, half: Half) -> bool:
        if self.chosen is None:
            return False
        self.put_half(1, half)
        self.at_0, self.at_1, self.chosen = self.chosen, half.at, None
        return all(self.sound(me, 1 - me) for me in BOTH)

    @always
    def invariant(self) -> bool:
        """What makes it exclusive; true where everybody rests."""
        return self.at_0 is None or all(self.sound(me, 1 - me) for me in BOTH)

    def sound(self, me: int, other: int) -> bool:
        at, left, target = self.of("at", me), self.of("left", me), self.of("target", me)
        if at in HAS_A_NUMBER and not self.of("number", me):
            return False
        if at in TAKES_ONE and not self.of("flag", me):
            return False
        if at in QUEUES and (me in left or (other not in left and not self.goes_first(me, other))):
            return False
        if at is At.WAIT and (target == me or not self.will_be_seen(me, other)):
            return False
        return at is not At.CRITICAL or self.goes_first(me, other)

    def goes_first(self, me: int, other: int) -> bool:
        """The other has a later number than I, or will have, whatever it does."""
        if not self.of("number", me):
            return False
        match self.of("at", other):
            case At.LOOK:
                return me in self.of("left", other) or bool(self.of("seen", other) >= self.of("number", me))
            case At.TAKE:
                return bool(self.of("seen", other) >= self.of("number", me))
            case At.LOWER:
                return self.precedes(me, other)
            case At.CHECK | At.WAIT:
                return self.precedes(me, other) and me in self.of("left", other)
            case anywhere:
                return anywhere in STARTS_AGAIN

    def will_be_seen(self, me: int, other: int) -> bool:
        """Where the other looked at my number, it saw this one."""
        at = self.of("at", other)
        if at is At.TAKE or (at is At.LOOK and me not in self.of("left", other)):
            return bool(self.of("seen", other) >= self.of("number", me))
        return True

    @final
    def unchecked(self) -> bool:
        """A state that is only allowed, and never reached from where everybody rests, may be stuck."""
        return True


class SharesNumbers(BakeryFromAnywhere):
    """The failing twin: the highest number that was seen will do, so that two may have the same."""

    def may_take(self, me: int, number: int) -> bool:
        return bool(number >= max(1, self.of("seen", me)))
