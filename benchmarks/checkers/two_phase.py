"""Two-phase commit written by hand, as somebody would who wants plain Python to be fast: a state is a tuple of numbers.

The managers come first, then the sets of "I am prepared" that were sent and that were received (bits), then the
decision. The states and steps are those of `models.two_phase_commit`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

WORKING, PREPARED, COMMITTED, ABORTED = range(4)
UNDECIDED = 0
State = tuple[int, ...]


class Step(NamedTuple):
    """One step, as guard and effect."""

    name: str
    enabled: Callable[[State], bool]
    apply: Callable[[State], State]


class TwoPhase:
    """The model of n resource managers; `planted`: a manager may also abort after it has prepared."""

    def __init__(self, n: int, *, planted: bool) -> None:
        self.n = n
        self.start: State = (WORKING,) * n + (0, 0, UNDECIDED)
        self.all = (1 << n) - 1
        self.may_abort = (WORKING, PREPARED) if planted else (WORKING,)

    def consistent(self, state: State) -> bool:
        managers = state[: self.n]
        return COMMITTED not in managers or ABORTED not in managers

    def done(self, state: State) -> bool:
        return all(each >= COMMITTED for each in state[: self.n])

    def successors(self, state: State) -> list[State]:
        """Where every enabled step leads to; one that changes nothing leads here."""
        n, may_abort = self.n, self.may_abort
        sent, heard, decided = state[n], state[n + 1], state[n + 2]
        found = []
        if decided == UNDECIDED:
            if heard == self.all:
                found.append((*state[:-1], COMMITTED))
            found.append((*state[:-1], ABORTED))
            for i in range(n):
                if sent >> i & 1:
                    found.append((*state[: n + 1], heard | 1 << i, decided))
        for i in range(n):
            manager, before, after = state[i], state[:i], state[i + 1 : n]
            if manager == WORKING:
                found.append((*before, PREPARED, *after, sent | 1 << i, heard, decided))
            if manager in may_abort:
                found.append((*before, ABORTED, *after, sent, heard, decided))
            if decided == COMMITTED and manager in (PREPARED, COMMITTED):
                found.append((*before, COMMITTED, *after, sent, heard, decided))
            if decided == ABORTED and manager != COMMITTED:
                found.append((*before, ABORTED, *after, sent, heard, decided))
        return found

    def steps(self) -> list[Step]:
        """The same as guards and effects, for a checker that wants those."""
        n = self.n
        found = [
            Step("commit", lambda s: s[n + 2] == UNDECIDED and s[n + 1] == self.all, lambda s: (*s[:-1], COMMITTED)),
            Step("abort", lambda s: s[n + 2] == UNDECIDED, lambda s: (*s[:-1], ABORTED)),
        ]
        for each in range(n):
            found += self._of(each)
        return found

    def _of(self, i: int) -> list[Step]:
        n, may_abort = self.n, self.may_abort
        return [
            Step(
                f"receive_prepared({i})",
                lambda s: s[n + 2] == UNDECIDED and bool(s[n] >> i & 1),
                lambda s: (*s[: n + 1], s[n + 1] | 1 << i, UNDECIDED),
            ),
            Step(
                f"prepare({i})",
                lambda s: s[i] == WORKING,
                lambda s: (*s[:i], PREPARED, *s[i + 1 : n], s[n] | 1 << i, *s[n + 1 :]),
            ),
            Step(f"choose_to_abort({i})", lambda s: s[i] in may_abort, lambda s: (*s[:i], ABORTED, *s[i + 1 :])),
            Step(
                f"receive_commit({i})",
                lambda s: s[n + 2] == COMMITTED and s[i] in (PREPARED, COMMITTED),
                lambda s: (*s[:i], COMMITTED, *s[i + 1 :]),
            ),
            Step(
                f"receive_abort({i})",
                lambda s: s[n + 2] == ABORTED and s[i] != COMMITTED,
                lambda s: (*s[:i], ABORTED, *s[i + 1 :]),
            ),
        ]
