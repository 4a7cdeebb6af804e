"""Atomic commitment with a simple broadcast, for calibration (Babaoglu and Toueg, in Mullender, Distributed Systems).

Written anew after the TLA+ example ACP_SB (acp/ACP_SB.tla, acp/ACP_SB_TLC.tla with ACP_SB_TLC.cfg: three
participants). Published: 54,944 distinct states, 218,352 generated, depth 21. It has eight initial states, one for
each choice of votes. A world has one, so that here `begin` chooses the votes: one more distinct state, one more
generated, one more level. The published generated states count a decision to abort once for each vote against; here
it is one step, and test_calibration.py adds the ways up. No constraint; its configuration leaves symmetry and the
deadlock check out (`nothing_left` here): its broadcast is simple on purpose, and who waits for a coordinator that
died in the middle of it waits for ever. There, `faulty` always equals *not alive*, and is not held twice here.

`DecidesWithoutAll` is the failing twin: the coordinator commits when those votes that it has are yes.
"""

from __future__ import annotations

from enum import StrEnum, auto
from itertools import product
from typing import Any

from attrs import evolve, frozen

from statecore.properties import always, final, sometimes
from statecore.world import World, action, param, slot


class Decision(StrEnum):
    """What a participant or the coordinator has decided."""

    NONE = auto()
    COMMIT = auto()
    ABORT = auto()


@frozen(cache_hash=True)
class Participant:
    """It has a vote from the start, and dies for ever."""

    votes_yes: bool
    alive: bool = True
    voted: bool = False
    decision: Decision = Decision.NONE


def votes(w: AtomicCommit) -> list[tuple[bool, ...]]:
    return list(product((False, True), repeat=w.n))


def each(w: AtomicCommit) -> range:
    return range(w.n)


class AtomicCommit(World):
    """N participants and a coordinator; a death is seen by everybody (there is no time here, so no time-out either)."""

    n: int = param(3)
    begun: bool = slot(False)
    participants: tuple[Participant, ...] = slot(make=lambda w: (Participant(True),) * w.n)
    coordinator_alive: bool = slot(True)
    requested: tuple[bool, ...] = slot(make=lambda w: (False,) * w.n)
    received: tuple[bool | None, ...] = slot(make=lambda w: (None,) * w.n)
    decision: Decision = slot(Decision.NONE)
    announced: tuple[bool, ...] = slot(make=lambda w: (False,) * w.n)

    def change(self, who: int, **values: Any) -> None:
        changed = evolve(self.participants[who], **values)
        self.participants = (*self.participants[:who], changed, *self.participants[who + 1 :])

    def collects(self, who: int) -> bool:
        """The coordinator has asked everybody and waits for this vote."""
        deciding = self.begun and self.coordinator_alive and self.decision is Decision.NONE
        return deciding and all(self.requested) and self.received[who] is None

    def undecided(self, who: int) -> bool:
        return self.begun and self.participants[who].alive and self.participants[who].decision is Decision.NONE

    @action(over=votes)
    def begin(self, chosen: tuple[bool, ...]) -> bool:
        """Any initial state."""
        if self.begun:
            return False
        self.begun = True
        self.participants = tuple(Participant(vote) for vote in chosen)
        return True

    @action(over=each)
    def request(self, who: int) -> bool:
        if not self.begun or not self.coordinator_alive or self.requested[who]:
            return False
        self.requested = (*self.requested[:who], True, *self.requested[who + 1 :])
        return True

    @action(over=each)
    def receive_vote(self, who: int) -> bool:
        if not self.collects(who) or not self.participants[who].voted:
            return False
        self.received = (*self.received[:who], self.participants[who].votes_yes, *self.received[who + 1 :])
        return True

    @action(over=each)
    def see_death(self, who: int) -> bool:
        """A participant that died before it voted: abort."""
        if not self.collects(who) or self.participants[who].alive or self.participants[who].voted:
            return False
        self.decision = Decision.ABORT
        return True

    @action
    def decide(self) -> bool:
        if not self.begun or not self.coordinator_alive or self.decision is not Decision.NONE or None in self.received:
            return False
        self.decision = Decision.COMMIT if all(self.received) else Decision.ABORT
        return True

    @action(over=each)
    def announce(self, who: int) -> bool:
        if not self.coordinator_alive or self.decision is Decision.NONE or self.announced[who]:
            return False
        self.announced = (*self.announced[:who], True, *self.announced[who + 1 :])
        return True

    @action(fault=True)
    def coordinator_dies(self) -> bool:
        if not self.begun or not self.coordinator_alive:
            return False
        self.coordinator_alive = False
        return True

    @action(over=each)
    def vote(self, who: int) -> bool:
        """Asked, it votes; once more changes nothing."""
        if not self.participants[who].alive or not self.requested[who]:
            return False
        self.change(who, voted=True)
        return True

    @action(over=each)
    def abort_after_no(self, who: int) -> bool:
        """Who has voted no need not wait."""
        if not self.undecided(who) or not self.participants[who].voted or self.participants[who].votes_yes:
            return False
        self.change(who, decision=Decision.ABORT)
        return True

    @action(over=each)
    def abort_unasked(self, who: int) -> bool:
        """The coordinator died before it asked."""
        if not self.undecided(who) or self.coordinator_alive or self.requested[who]:
            return False
        self.change(who, decision=Decision.ABORT)
        return True

    @action(over=each)
    def obey(self, who: int) -> bool:
        if not self.undecided(who) or not self.announced[who]:
            return False
        self.change(who, decision=self.decision)
        return True

    @action(over=each, fault=True)
    def participant_dies(self, who: int) -> bool:
        if not self.begun or not self.participants[who].alive:
            return False
        self.change(who, alive=False)
        return True

    def decisions(self) -> set[Decision]:
        return {each.decision for each in self.participants}

    @always
    def agreed(self) -> bool:
        """AC1: no two participants decide differently, those that died included."""
        return not {Decision.COMMIT, Decision.ABORT} <= self.decisions()

    @always
    def committed_only_if_all_voted_yes(self) -> bool:
        """AC2."""
        return Decision.COMMIT not in self.decisions() or all(each.votes_yes for each in self.participants)

    @always
    def aborted_only_for_a_reason(self) -> bool:
        """AC3: a vote against, or a death."""
        if Decision.ABORT not in self.decisions() or not self.coordinator_alive:
            return True
        return not all(each.votes_yes and each.alive for each in self.participants)

    @sometimes
    def all_committed(self) -> bool:
        return self.decisions() == {Decision.COMMIT}

    @sometimes
    def waits_for_ever(self) -> bool:
        """Voted yes, all alive, and the coordinator died before it announced: not non-blocking, as published."""
        alive = all(each.alive and each.voted and each.votes_yes for each in self.participants)
        return alive and not self.coordinator_alive and not any(self.announced)

    @final
    def nothing_left(self) -> bool:
        return not self.coordinator_alive


class DecidesWithoutAll(AtomicCommit):
    """The failing twin: the coordinator decides from the votes that it has, as soon as there is one."""

    @action
    def decide(self) -> bool:
        if not self.begun or not self.coordinator_alive or self.decision is not Decision.NONE:
            return False
        votes = [vote for vote in self.received if vote is not None]
        if not votes:
            return False
        self.decision = Decision.COMMIT if all(votes) else Decision.ABORT
        return True
