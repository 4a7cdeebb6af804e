"""A result on its way from its server to the one ledger, by the tables that run. Executable specification.

Two attempts of one rollout may each have a result (the first was taken for lost); one wins. The wire loses, repeats and
misdirects; the coordinator dies at any moment, also between a save and its acknowledgement, and comes back with what is
on the disk. Servers live on: what they retain is what the coordinator finds when it lists. docs/reference/protocol.md
section 9.
"""

from __future__ import annotations

from itertools import product
from typing import ClassVar

from participants.machines.handoff import (
    HANDOFF,
    LEDGER_ENTRY,
    AcceptResult,
    Acknowledged,
    Asked,
    Entry,
    Finished,
    Handoff,
    Kept,
    OweAcknowledgement,
    Received,
    Saved,
    SendResult,
)
from statecore import Snapshot, Table
from statecore.properties import always, final, recoverable, sometimes
from statecore.world import World, action, param, slot

TASK = "task"
Message = tuple[str, str]  # what it is, and the receipt


class HandoffWorld(World):
    """One rollout: up to two attempts at two servers, one ledger, one trainer, one disk."""

    HANDOFF: ClassVar[Table[Handoff, Kept]] = HANDOFF
    LEDGER_ENTRY: ClassVar[Table[Entry, str]] = LEDGER_ENTRY

    attempts = param(2)

    servers: tuple[Snapshot[Handoff, Kept], ...] = slot((HANDOFF.start(Kept(TASK)),))
    wire: frozenset[Message] = slot(frozenset())
    entry: Snapshot[Entry, str] = slot(LEDGER_ENTRY.start())
    trained: tuple[str, ...] = slot(())  # what the trainer has taken; it rolls back with the disk
    disk: str = slot("")  # the result in the newest published checkpoint
    acknowledged: frozenset[str] = slot(frozenset())  # ghost: receipts that were ever acknowledged

    @action
    def dispatch_again(self) -> object:
        """The coordinator takes the attempt for lost, and starts the next one."""
        if len(self.servers) == self.attempts or self.entry.state is not Entry.LIVE:
            return False
        self.servers = (*self.servers, self.HANDOFF.start(Kept(TASK)))
        return None

    @action(over=lambda world: range(world.attempts))
    def finish(self, attempt: int) -> object:
        """The handler returns; its result is kept and its response leaves."""
        if attempt >= len(self.servers) or self.servers[attempt].state is not Handoff.RUNNING:
            return False
        self._serve(attempt, Finished(f"r{attempt}"))
        return None

    @action(over=lambda world: range(world.attempts))
    def ask(self, attempt: int) -> object:
        """`/run` again: it joins, or gets the same result with the same receipt."""
        if attempt >= len(self.servers) or self.entry.state is not Entry.LIVE:
            return False
        before = self.wire
        self._serve(attempt, Asked(TASK))
        return before != self.wire

    @action(over=lambda world: [f"r{attempt}" for attempt in range(world.attempts)])
    def receive(self, receipt: str) -> object:
        """A response reaches the coordinator."""
        if ("result", receipt) not in self.wire:
            return False
        self.wire -= {("result", receipt)}
        self._take(receipt)
        return None

    @action(fault=True, over=lambda world: [f"r{attempt}" for attempt in range(world.attempts)])
    def receive_copy(self, receipt: str) -> object:
        """It reaches it, and once more later."""
        if ("result", receipt) not in self.wire:
            return False
        self._take(receipt)
        return None

    @action
    def save(self) -> object:
        """A checkpoint with this result is published; only then does the ledger call it saved (I67)."""
        if self.entry.state is not Entry.RECEIVED:
            return False
        if self.disk and self.disk != self.entry.data:
            self.fail("I11")
        self.disk = self.entry.data
        self.entry, _ = self.LEDGER_ENTRY.step(self.entry, Saved())
        return None

    @action(over=lambda world: range(world.attempts))
    def acknowledge(self, attempt: int) -> object:
        """From the list of what the server retains, not from memory: whatever the ledger has saved, winner or not."""
        if attempt >= len(self.servers) or self.servers[attempt].state is not Handoff.RETAINED:
            return False
        if self.entry.state is Entry.LIVE:  # the list has receipts, not bodies: those come by asking again
            return False
        before = self.wire
        self._take(self.servers[attempt].data.receipt)
        return before != self.wire

    @action(over=lambda world: list(product(range(world.attempts), range(world.attempts))))
    def deliver_acknowledgement(self, route: tuple[int, int]) -> object:
        """It reaches a server; a misdirected one is refused there, since it names another receipt (I66)."""
        attempt, about = route
        message = ("acknowledge", f"r{about}")
        if message not in self.wire or attempt >= len(self.servers):
            return False
        self.wire -= {message}
        before = self.servers
        self._serve(attempt, Acknowledged(f"r{about}"))
        return before != self.servers

    @action(fault=True, over=lambda world: list(product(("result", "acknowledge"), range(world.attempts))))
    def lose(self, what: tuple[str, int]) -> object:
        kind, attempt = what
        message = (kind, f"r{attempt}")
        if message not in self.wire:
            return False
        self.wire -= {message}
        return None

    @action(fault=True)
    def crash(self) -> object:
        """The coordinator dies and comes back; ledger and trainer are what the newest checkpoint holds."""
        before = (self.entry, self.trained)
        self.entry = self.LEDGER_ENTRY.start()
        self.trained = (self.disk,) if self.disk else ()
        if self.disk:
            self.entry, _ = self.LEDGER_ENTRY.step(self.entry, Received(self.disk))
            self.entry, _ = self.LEDGER_ENTRY.step(self.entry, Saved())
        return before != (self.entry, self.trained)

    def _serve(self, attempt: int, event: object) -> None:
        """A step of one server; what it sends is on the wire."""
        after, effects = self.HANDOFF.step(self.servers[attempt], event)
        self.servers = (*self.servers[:attempt], after, *self.servers[attempt + 1 :])
        self.wire |= {("result", effect.receipt) for effect in effects if isinstance(effect, SendResult)}

    def _take(self, receipt: str) -> None:
        """A step of the ledger; what it owes to the trainer and to the servers is done."""
        self.entry, effects = self.LEDGER_ENTRY.step(self.entry, Received(receipt))
        for effect in effects:
            if isinstance(effect, AcceptResult):
                self.trained = (*self.trained, effect.receipt)
            elif isinstance(effect, OweAcknowledgement):
                self.wire |= {("acknowledge", effect.receipt)}
                self.acknowledged |= {effect.receipt}

    @always(covers="I66")
    def kept_until_its_exact_receipt(self) -> bool:
        return all(
            server.state is not Handoff.RELEASED or server.data.receipt in self.acknowledged for server in self.servers
        )

    @always(covers=("I67", "I87"))
    def released_only_when_saved_outside(self) -> bool:
        return bool(self.disk) or all(server.state is not Handoff.RELEASED for server in self.servers)

    @always(covers="I68")
    def consumed_once(self) -> bool:
        return len(self.trained) <= 1

    @always(covers="I88")
    def the_trainer_never_misses_what_is_saved(self) -> bool:
        return not self.disk or self.trained == (self.disk,)

    @recoverable(covers="I69")
    def nothing_is_retained_for_ever(self) -> bool:
        return all(server.state is Handoff.RELEASED for server in self.servers)

    @recoverable(covers="I68")
    def consumed(self) -> bool:
        return len(self.trained) == 1

    @final
    def a_result_is_saved(self) -> bool:
        return bool(self.disk)

    @sometimes
    def both_attempts_have_a_result(self) -> bool:
        return len(self.servers) == 2 and all(server.state is Handoff.RETAINED for server in self.servers)

    @sometimes
    def the_second_attempt_wins(self) -> bool:
        return self.disk == "r1"

    @sometimes
    def saved_but_not_acknowledged(self) -> bool:
        return bool(self.disk) and not self.acknowledged

    @sometimes
    def the_loser_is_released(self) -> bool:
        return self.disk == "r1" and self.servers[0].state is Handoff.RELEASED
