"""Detection that a computation on a ring has ended (Dijkstra, EWD 840), for calibration.

Written anew after the TLA+ example EWD840 (ewd840/EWD840.tla with EWD840.cfg: three nodes). Published: 302 distinct
states, 2001 generated, depth 10. It has 192 initial states: any nodes active, any colours, the token anywhere,
black. A world has one, so that here `begin` chooses one of them: one more distinct state, one more generated, one
more level. The published generated states count a step once for each way in which its guard is true (a token handed
on by a node that is passive *and* stained); here it is one step, and test_calibration.py adds the ways up. The
depth is 9 levels from the initial states on; the published 10 is one more, and why is not said. No constraint, no
symmetry; the deadlock check is off there, since detected termination is the end (`detected` here).

`ActivatesUnstained` is the failing twin: a node that activates one behind the token is not stained.
"""

from __future__ import annotations

from itertools import product

from attrs import frozen

from statecore.properties import always, final, recoverable, sometimes
from statecore.world import World, action, param, slot


@frozen
class Ring:
    """Which nodes are active and which are stained (black); where the token is, and whether it is stained."""

    active: tuple[bool, ...]
    stained: tuple[bool, ...]
    token: int
    token_stained: bool


def flags(n: int) -> list[tuple[bool, ...]]:
    return list(product((False, True), repeat=n))


def starts(w: TerminationRing) -> list[Ring]:
    return [Ring(*each, True) for each in product(flags(w.n), flags(w.n), range(w.n))]


def nodes(w: TerminationRing) -> range:
    return range(w.n)


def all_but_first(w: TerminationRing) -> range:
    return range(1, w.n)


def pairs(w: TerminationRing) -> list[tuple[int, int]]:
    return [(one, other) for one in range(w.n) for other in range(w.n) if one != other]


def put(values: tuple[bool, ...], node: int, value: bool) -> tuple[bool, ...]:
    return (*values[:node], value, *values[node + 1 :])


class TerminationRing(World):
    """N nodes on a ring; the token goes from node N-1 down to node 0, which starts another round or has detected."""

    n: int = param(3)
    begun: bool = slot(False)
    active: tuple[bool, ...] = slot(())
    stained: tuple[bool, ...] = slot(())
    token: int = slot(0)
    token_stained: bool = slot(True)

    @action(over=starts)
    def begin(self, ring: Ring) -> bool:
        """Any initial state."""
        if self.begun:
            return False
        self.begun = True
        self.active, self.stained = ring.active, ring.stained
        self.token, self.token_stained = ring.token, ring.token_stained
        return True

    @action
    def probe(self) -> bool:
        """Node 0 starts another round with a clean token, since the last one was inconclusive."""
        if not self.begun or self.token != 0 or not (self.token_stained or self.stained[0]):
            return False
        self.token, self.token_stained = self.n - 1, False
        self.stained = put(self.stained, 0, False)
        return True

    @action(over=all_but_first)
    def hand_on(self, node: int) -> bool:
        """A node that is passive, or whose stain makes the round inconclusive anyway, hands the token on."""
        if not self.begun or self.token != node:
            return False
        if self.active[node] and not self.stained[node] and not self.token_stained:
            return False
        self.token = node - 1
        self.token_stained = self.token_stained or self.stained[node]
        self.stained = put(self.stained, node, False)
        return True

    @action(over=pairs)
    def activate(self, pair: tuple[int, int]) -> bool:
        """An active node activates another; who does so behind the token is stained."""
        node, other = pair
        if not self.begun or not self.active[node]:
            return False
        self.active = put(self.active, other, True)
        if other > node:
            self.stained = put(self.stained, node, True)
        return True

    @action(over=nodes)
    def rest(self, node: int) -> bool:
        if not self.begun or not self.active[node]:
            return False
        self.active = put(self.active, node, False)
        return True

    def conclusive(self) -> bool:
        if not self.begun or self.token != 0 or self.token_stained:
            return False
        return not self.stained[0] and not self.active[0]

    @always
    def detected_only_at_the_end(self) -> bool:
        """Node 0 concludes only when no node is active."""
        return not self.conclusive() or not any(self.active)

    @always
    def as_proved(self) -> bool:
        """Dijkstra's invariant: all behind the token rest, or one before it is stained, or the token is."""
        if not self.begun or self.token_stained:
            return True
        return not any(self.active[self.token + 1 :]) or any(self.stained[: self.token + 1])

    @sometimes
    def inconclusive_though_at_rest(self) -> bool:
        return self.begun and not any(self.active) and self.token == 0 and self.token_stained

    @recoverable
    def can_be_detected(self) -> bool:
        return self.conclusive()

    @final
    def detected(self) -> bool:
        return self.conclusive()


class ActivatesUnstained(TerminationRing):
    """The failing twin: nobody is stained for activating a node behind the token."""

    @action(over=pairs)
    def activate(self, pair: tuple[int, int]) -> bool:
        node, other = pair
        if not self.begun or not self.active[node]:
            return False
        self.active = put(self.active, other, True)
        return True

    @always
    def as_proved(self) -> bool:
        """Nothing: what is to be seen is the harm, not the broken proof."""
        return True
