"""A result on its way from its server to the one ledger and to the trainer, by the tables that run.

Attempts of one rollout may each have a result (the first was taken for lost); one wins. The wire loses, repeats and
misdirects; the coordinator dies at any moment, also between a save and its acknowledgement, and then the trainer rolls
back to what the newest checkpoint holds. Servers live on, or all are started anew, as the launcher has it: what they
retain is what the coordinator finds when it lists. In the second world the framework keeps results in a store of its
own (`save_result`), and a call of it may arrive after its coordinator has died. docs/reference/protocol.md section 9.
"""

from __future__ import annotations

from itertools import product
from typing import ClassVar

from attrs import evolve, frozen

from participants.coordination.agreement import NO_PIECES, Agreed
from participants.coordination.ledger import Ledger, Rollout
from participants.coordination.recovery import CheckpointRejected, Found, plan_restore, settle
from participants.coordination.trainer import Dispatch
from participants.machines.gate import GATE, CloseRequested, GateData, GateState
from participants.machines.gate import Settled as Quieted
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
from participants.records.records import Disposition, LedgerRow, Receipt, RegistryRow, task_digest
from statecore import Snapshot, Table
from statecore.properties import always, final, recoverable, sometimes
from statecore.wire import digest
from statecore.world import World, action, param, slot

TASK = "task"
NOT_CUT = Agreed(False, "the turns of a rollout are not this world's matter")
Message = tuple[str, str]  # what it is, and the receipt


@frozen(cache_hash=True)
class Written:
    """A checkpoint: the ledger's row (which result, and whether with its body), and what the trainer's state holds."""

    row: LedgerRow
    disposition: Disposition
    consumed: tuple[str, ...]

    @property
    def result(self) -> str:
        return "" if self.row.receipt is None else self.row.receipt.result_identity


def receipt(name: str) -> Receipt:
    """The receipt of the result `r<attempt>`."""
    return Receipt(
        rollout_id="rollout", attempt=int(name[1:]), epoch=1, result_identity=name, result_sha256=digest(name)
    )


class HandoffWorld(World):
    """One rollout: its attempts with a server each, one ledger, one trainer, one disk."""

    HANDOFF: ClassVar[Table[Handoff, Kept]] = HANDOFF
    LEDGER_ENTRY: ClassVar[Table[Entry, str]] = LEDGER_ENTRY

    attempts = param(2)

    servers: tuple[Snapshot[Handoff, Kept] | None, ...] = slot((HANDOFF.start(Kept(TASK)),))  # None: it is no more
    wire: frozenset[Message] = slot(frozenset())
    running: bool = slot(True)
    entry: Snapshot[Entry, str] = slot(LEDGER_ENTRY.start())
    stands: str = slot("")  # the result in the ledger
    body: bool = slot(False)  # and whether the ledger holds its body
    owed: str = slot("")  # the result that the trainer is to have
    trained: tuple[str, ...] = slot(())  # what the trainer has taken; it rolls back with the disk
    draft: Written | None = slot(None)
    disk: Written | None = slot(None)  # the newest published checkpoint
    rejected: bool = slot(False)  # the newest checkpoint cannot be used
    acknowledged: frozenset[str] = slot(frozenset())  # ghost: receipts that were ever acknowledged

    # --- the servers

    @action
    def dispatch_again(self) -> object:
        """The coordinator takes the attempt for lost, and starts the next one."""
        if len(self.servers) == self.attempts or self.entry.state is not Entry.LIVE or not self.running:
            return False
        self.servers = (*self.servers, self.HANDOFF.start(Kept(TASK)))
        return None

    @action(over=lambda world: range(world.attempts))
    def finish(self, attempt: int) -> object:
        """The handler returns; its result is kept and its response leaves."""
        return self._serve(attempt, Finished(f"r{attempt}")) if self._is(attempt, Handoff.RUNNING) else False

    @action(over=lambda world: range(world.attempts))
    def ask(self, attempt: int) -> object:
        """`/run` again: it joins, or gets the same result with the same receipt."""
        if self.entry.state is not Entry.LIVE or not self.running:
            return False
        before = self.wire
        self._serve(attempt, Asked(TASK))
        return before != self.wire

    @action(over=lambda world: [f"r{attempt}" for attempt in range(world.attempts)])
    def receive(self, name: str) -> object:
        """A response reaches the coordinator."""
        if ("result", name) not in self.wire or not self.running:
            return False
        self.wire -= {("result", name)}
        self._arrive(name)
        return None

    @action(fault=True, over=lambda world: [f"r{attempt}" for attempt in range(world.attempts)])
    def receive_copy(self, name: str) -> object:
        """It reaches it, and once more later."""
        if ("result", name) not in self.wire or not self.running:
            return False
        self._arrive(name)
        return None

    # --- the framework

    @action
    def accept(self) -> object:
        """The result becomes part of the trainer's state."""
        if not self.owed:
            return False
        self.trained = (*self.trained, self.owed)
        self.owed = ""
        return None

    # --- checkpoints

    @action
    def capture(self) -> object:
        """The ledger and the trainer's state are read in one piece. Servers are quiet: a retained result is (S2)."""
        if self.draft is not None or not self.running or not all(self._is_quiet(each) for each in self.servers):
            return False
        if self._contradicts():
            return False
        settled = settle(
            received=self.entry.state is not Entry.LIVE,
            sent=True,
            retained=any(each is not None and each.state is Handoff.RETAINED for each in self.servers),
            restarted_by="",
            pieces=NO_PIECES,
            agreed=NOT_CUT,
        )
        self.draft = Written(self._row(), settled.disposition, self.trained)
        return None

    @action
    def publish(self) -> object:
        """What was captured is in force; only now does the ledger call it saved (I67), and only that."""
        if self.draft is None:
            return False
        if self.disk is not None and self.disk.result not in ("", self.draft.result):
            self.fail("I11")
        self.disk, self.draft = self.draft, None
        if self.disk.result:
            self.entry, _ = self.LEDGER_ENTRY.step(self.entry, Saved())
        if self.disk.consumed:
            self.body = False
        return None

    @action
    def give_up(self) -> object:
        """The checkpoint is aborted."""
        if self.draft is None:
            return False
        self.draft = None
        return None

    # --- acknowledgements

    @action(over=lambda world: range(world.attempts))
    def acknowledge(self, attempt: int) -> object:
        """From the list of what the server retains, not from memory: whatever the ledger has saved, winner or not."""
        if not self._is(attempt, Handoff.RETAINED) or not self.running:
            return False
        if self.entry.state is Entry.LIVE:  # the list has receipts, not bodies: those come by asking again
            return False
        before = self.wire
        self._take(f"r{attempt}")
        return before != self.wire

    @action(over=lambda world: list(product(range(world.attempts), range(world.attempts))))
    def deliver_acknowledgement(self, route: tuple[int, int]) -> object:
        """It reaches a server; a misdirected one is refused there, since it names another receipt (I66)."""
        attempt, about = route
        message = ("acknowledge", f"r{about}")
        if message not in self.wire:
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

    # --- the end of a life, and the next one

    @action(fault=True)
    def crash(self) -> object:
        """The coordinator dies, and trainer and ledger with it."""
        if not self.running:
            return False
        self.running, self.draft, self.trained = False, None, ()
        self.entry, self.stands, self.body, self.owed = self.LEDGER_ENTRY.start(), "", False, ""
        return None

    @action(over=("the same servers", "fresh servers"))
    def recover(self, servers: str) -> object:
        """Ledger and trainer are what the newest checkpoint holds; what the trainer's state lacks is delivered again.

        Fresh servers retain nothing; a rollout without a result has its next attempt there.
        """
        if self.running or self.rejected:
            return False
        try:
            owed = self._plan()
        except CheckpointRejected:
            self.rejected = True
            return None
        completed = self.disk is not None and bool(self.disk.result)
        if servers == "fresh servers":
            gone = (None,) * len(self.servers)
            if not completed and len(self.servers) == self.attempts:
                return False
            self.servers = gone if completed else (*gone, self.HANDOFF.start(Kept(TASK)))
            self.wire = frozenset()
        self.running, self.owed = True, owed
        if self.disk is not None and completed:
            self.trained, self.stands = self.disk.consumed, self.disk.result
            self.body = self.disk.row.body is not None
            self.entry, _ = self.LEDGER_ENTRY.step(self.entry, Received(self.stands))
            self.entry, _ = self.LEDGER_ENTRY.step(self.entry, Saved())
        return None

    # --- helpers

    def _is(self, attempt: int, state: Handoff) -> bool:
        server = self.servers[attempt] if attempt < len(self.servers) else None
        return server is not None and server.state is state

    def _serve(self, attempt: int, event: object) -> object:
        """A step of one server; what it sends is on the wire. False if there is no such server."""
        server = self.servers[attempt] if attempt < len(self.servers) else None
        if server is None:
            return False
        after, effects = self.HANDOFF.step(server, event)
        self.servers = (*self.servers[:attempt], after, *self.servers[attempt + 1 :])
        self.wire |= {("result", effect.receipt) for effect in effects if isinstance(effect, SendResult)}
        return None

    def _arrive(self, name: str) -> None:
        self._take(name)

    def _take(self, name: str) -> None:
        """A step of the ledger; what it owes to the trainer and to the servers is noted and sent."""
        self.entry, effects = self.LEDGER_ENTRY.step(self.entry, Received(name))
        for effect in effects:
            if isinstance(effect, AcceptResult):
                self.owed = self.stands = effect.receipt
                self.body = True
            elif isinstance(effect, OweAcknowledgement):
                self.wire |= {("acknowledge", effect.receipt)}
                self.acknowledged |= {effect.receipt}

    def _active(self, server: Snapshot[Handoff, Kept] | None) -> int:
        """How much at this server moves: an execution until it ends, whatever becomes of its result."""
        return 1 if server is not None and server.state is Handoff.RUNNING else 0

    def _is_quiet(self, server: Snapshot[Handoff, Kept] | None) -> bool:
        """Whether it becomes quiet when it is closed; an execution that runs stands at its boundary then."""
        gate, _ = GATE.step(GATE.start(GateData(active=self._active(server))), CloseRequested())
        if server is not None and server.state is Handoff.RUNNING:
            gate, _ = GATE.step(gate, Quieted())
        return gate.state is GateState.QUIET

    def _ledger(self) -> Ledger:
        """The ledger, as the one that runs."""
        rollout = Rollout(dispatch=Dispatch("rollout", TASK, "environment"), digest=task_digest(TASK), entry=self.entry)
        if self.stands:
            rollout = evolve(rollout, receipt=receipt(self.stands), body=self.stands if self.body else None)
        return Ledger({"rollout": rollout})

    def _contradicts(self) -> bool:
        """Whether ledger and trainer cannot be in one checkpoint: the trainer's state lacks what nobody else keeps."""
        consumed = frozenset({"rollout"}) if self.trained else frozenset()
        return bool(self._ledger().contradiction(consumed))

    def _row(self) -> LedgerRow:
        """The ledger's row in a checkpoint."""
        (row,) = self._ledger().ledger_rows()
        return row

    def _plan(self) -> str:
        """The result that is to be delivered again, "" for none; CheckpointRejected as a restart decides it."""
        if self.disk is None:
            return ""
        registry = RegistryRow(
            rollout_id="rollout", attempt=0, task=TASK, task_digest=task_digest(TASK), target="environment",
            disposition=self.disk.disposition,
        )  # fmt: skip
        consumed = frozenset({"rollout"}) if self.disk.consumed else frozenset()
        plan = plan_restore(Found(registry=(registry,), ledger=(self.disk.row,), parts=(), consumed=consumed))
        return self.disk.result if plan.redeliver else ""

    def _is_saved(self) -> bool:
        """Whether a copy exists outside the servers that outlives everybody."""
        return self.disk is not None and bool(self.disk.result)

    # --- what must be true

    @always(covers="I66")
    def kept_until_its_exact_receipt(self) -> bool:
        return all(
            server is None or server.state is not Handoff.RELEASED or server.data.receipt in self.acknowledged
            for server in self.servers
        )

    @always(covers=("I67", "I87"))
    def released_only_when_saved_outside(self) -> bool:
        kept = all(server is None or server.state is not Handoff.RELEASED for server in self.servers)
        return kept or self._is_saved()

    @always(covers="I68")
    def consumed_once(self) -> bool:
        return len(self.trained) + bool(self.owed) <= 1

    @always(covers=("I88", "S52"))
    def the_trainer_never_misses_what_is_saved(self) -> bool:
        if self.disk is None or not self.disk.result or not self.running:
            return True
        return (*self.trained, *filter(None, (self.owed,))) == (self.disk.result,)

    @always(covers=("I87", "S52"))
    def the_newest_checkpoint_can_be_used(self) -> bool:
        return not self.rejected

    @recoverable(covers=("I69", "S2"))
    def saved(self) -> bool:
        return self._is_saved()

    @recoverable(covers=("I69", "S63", "S35"))
    def nothing_is_retained_for_ever(self) -> bool:
        return all(server is None or server.state is Handoff.RELEASED for server in self.servers)

    @recoverable(covers=("I68", "S33"))
    def consumed(self) -> bool:
        return len(self.trained) == 1

    @final
    def nothing_is_left_to_do(self) -> bool:
        return self.disk is not None and bool(self.disk.consumed)

    @sometimes
    def both_attempts_have_a_result(self) -> bool:
        return len(self.servers) == 2 and all(each and each.state is Handoff.RETAINED for each in self.servers)

    @sometimes
    def the_second_attempt_wins(self) -> bool:
        return self.disk is not None and self.disk.result == "r1"

    @sometimes
    def saved_but_not_acknowledged(self) -> bool:
        return self.disk is not None and bool(self.disk.result) and not self.acknowledged

    @sometimes
    def the_loser_is_released(self) -> bool:
        first = self.servers[0]
        won = self.disk is not None and self.disk.result == "r1"
        return won and first is not None and first.state is Handoff.RELEASED

    @sometimes(covers="S2")
    def checkpointed_with_a_result_that_did_not_arrive(self) -> bool:
        return self.disk is not None and self._is(0, Handoff.RETAINED) and not self.disk.result

    @sometimes(covers="I87")
    def delivered_again(self) -> bool:
        return self.disk is not None and bool(self.disk.result) and not self.disk.consumed and bool(self.owed)


class StoreOutside(HandoffWorld):
    """The same with a framework that keeps results in a store of its own: saved and acknowledged at once."""

    store: str = slot("")  # what it keeps
    arrived: str = slot("")  # the result that it is asked about; the ledger does not have it yet
    asked: bool = slot(False)  # it has answered for the result that is owed
    late: str = slot("")  # a call of it that outlived its coordinator

    @action
    def save_result(self) -> object:
        """The store answers which result stands; that one is in the ledger now, and saved."""
        if not (self.arrived or self.owed) or self.asked:
            return False
        standing = self._keep(self.arrived or self.owed)
        if self.arrived:
            self._take(standing)
        self.entry, _ = self.LEDGER_ENTRY.step(self.entry, Saved())
        self.owed = self.stands = standing
        self.arrived, self.body, self.asked = "", True, True
        return None

    @action
    def accept(self) -> object:
        """The result that stands becomes part of the trainer's state."""
        if not self.asked:
            return False
        self.asked = False
        return HandoffWorld.accept.function(self)

    @action(fault=True)
    def crash(self) -> object:
        """As before; a call to the store may be on its way.

        A result that only the store has is not looked for there: another attempt gets it as the answer of its own. So
        there must be an attempt left.
        """
        if len(self.servers) == self.attempts and not HandoffWorld._is_saved(self):
            return False
        if self.arrived or (self.owed and not self.asked):
            self.late = self.arrived or self.owed
        self.arrived, self.asked = "", False
        return HandoffWorld.crash.function(self)

    @action(fault=True)
    def save_result_late(self) -> object:
        """What was on its way arrives at the store."""
        if not self.late:
            return False
        self._keep(self.late)
        self.late = ""
        return None

    def _arrive(self, name: str) -> None:
        """The first result waits until the store has answered; what comes meanwhile is asked for again."""
        if self.entry.state is not Entry.LIVE:
            self._take(name)
        else:
            self.arrived = self.arrived or name

    def _keep(self, name: str) -> str:
        """What stands after this call: create-only, so the first result does."""
        self.store = self.store or name
        return self.store

    def _is_saved(self) -> bool:
        return bool(self.store) or HandoffWorld._is_saved(self)

    @always(covers="I11")
    def what_is_kept_outside_is_what_was_trained_on(self) -> bool:
        return not (self.disk and self.disk.consumed) or self.disk.consumed == (self.store,)

    @sometimes
    def another_result_stood_already(self) -> bool:
        return self.asked and self._is(1, Handoff.RETAINED) and self.owed == "r0" and self.acknowledged == {"r0"}
