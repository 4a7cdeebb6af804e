"""Failing twins of the world of model calls: each without one protective rule, each with a counterexample."""

from __future__ import annotations

from models.model_hold import HoldWorld
from models.said import Call, Row
from models.twins import without_rule
from participants.machines.gate import GATE, GateState, Stirred, stir
from participants.machines.model_call import RESPONSE, CallData, CallState, ResponseReady, ResponseState
from participants.servers.peers import Heard
from statecore import Snapshot, go, stay
from statecore.properties import always
from statecore.world import action, volatile

UNHELD = without_rule(
    GATE, {(GateState.QUIET, Stirred): go(GateState.DRAINING, do=stir), (GateState.DRAINING, Stirred): stay(do=stir)}
)
"""A gate that lets everything through that stirs."""


class ReplyTakenWhileClosed(HoldWorld):
    """I24: the agent takes a reply that comes while it is closed. The model's hold does not help: it came before."""

    REPLY_GATE = UNHELD


class ReplyTakenWhileClosedSeenByItsHarm(ReplyTakenWhileClosed):
    """I34: the same, with nothing said about moving. The model's lease ends and its reply leaves, and a boundary is
    written whose call was left out of the model's part.
    """

    @always
    def nothing_moves_between_prepare_and_resume(self) -> bool:
        return True


class RepliesLeaveAClosedModel(HoldWorld):
    """I59: the model holds no reply. A call that was left out gets its row at the opening, and its reply is out before:
    an agent whose lease has ended takes it, and is done with a chain that nobody has.
    """

    RESPONSE = without_rule(RESPONSE, {(ResponseState.AWAITED, ResponseReady): go(ResponseState.SENDING)})
    RESPONSE_GATE = UNHELD


class LedgerWrittenBehind(HoldWorld):
    """I99, I34: a row is queued when its response leaves, and written some time later."""

    queued: tuple[Row, ...] = volatile((), of="deployment")

    def _keep(self, row: Row) -> None:
        self.queued = (*self.queued, row)

    @action
    def write_rows(self) -> object:
        """What is queued is in the ledger."""
        if not self.queued:
            return False
        self.rows, self.queued = self.rows + self.queued, ()
        return None


class LastCallIsTheParent(HoldWorld):
    """S68: the parent of a call is the newest row of its execution."""

    def _place(self, call: Call) -> str | None:
        return self.rows[-1].call if self.rows else None


class LastCallIsTheParentAfterARestart(LastCallIsTheParent):
    """S68 once more, without a mishap: the other generation is of the same call, before the restart."""


class RefusalIsATurn(HoldWorld):
    """S9: what a closed model answers is taken for its reply."""

    def _heard(self, code: str) -> Heard:
        return Heard.REPLY


class NothingIsDisposedOf(HoldWorld):
    """I25: a call that is frozen at a cut stays so."""

    def _dispose(self, cut: Snapshot[CallState, CallData]) -> Snapshot[CallState, CallData]:
        return cut


TWINS = (
    ReplyTakenWhileClosed,
    ReplyTakenWhileClosedSeenByItsHarm,
    RepliesLeaveAClosedModel,
    LedgerWrittenBehind,
    LastCallIsTheParent,
    LastCallIsTheParentAfterARestart,
    RefusalIsATurn,
    NothingIsDisposedOf,
)
