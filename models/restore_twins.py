"""Failing twins of the world of restores: each without one protective rule, or the few that cover each other."""

from __future__ import annotations

from models.restore import RestoreWorld
from models.restore_parts import NOTHING, Plan, Run
from models.server import Server
from participants.servers.peers import Heard
from statecore.world import action, param


class NobodyAsks(RestoreWorld):
    """S66: nobody asks the servers who they are. One comes back closed, and the execution's next call is held there.

    Calls that are refused by another process would find it too, so there is none here: no checkpoint is due.
    """

    checkpoints = param(0)
    crashes = param(0)
    faults = param(0)

    @action
    def ask_status(self) -> object:
        return False


class LostServerIsAnAnswer(RestoreWorld):
    """S65: an agent takes the loss of a server for an answer, and its rollout for done."""

    def _meaning(self, code: str) -> Heard:
        return Heard.REPLY


class TriedAgainUnretired(RestoreWorld):
    """I11: the next attempt begins while the one before, which was taken for lost, still runs."""

    @property
    def _is_retired(self) -> bool:
        return True


class OnlyTheScopeIsFenced(RestoreWorld):
    """I6: only what is continued is fenced, and calls of another life are not refused (either is enough).

    Without either a late `/run` of an attempt that starts over begins a second execution. In this life only: what is
    left of a life before it, of rollouts that no checkpoint knows, is held off by epochs alone.
    """

    crashes = param(0)

    def _fenced(self) -> tuple[int, ...]:
        return ()

    def _is_of_other_life(self, where: Server, epoch: int) -> bool:
        return False


class FencedAfterRestoring(RestoreWorld):
    """I6: what a restore does not fence is retired after it, when a lease may have opened the server already.

    Epochs are not looked at either, as for callers that send none.
    """

    crashes = param(0)

    def _fenced(self) -> tuple[int, ...]:
        return RestoreWorld._fenced(self) if self.disk is None else ()

    def _undone(self) -> tuple[int, ...]:
        return self.plan.retired + RestoreWorld._undone(self)

    def _is_of_other_life(self, where: Server, epoch: int) -> bool:
        return False


class DurableLedgerInForce(RestoreWorld):
    """I57: a deployment that restarts under a living coordinator is planned from the ledger of its checkpoint."""

    def _plan(self, *, live: bool) -> Plan:
        return RestoreWorld._plan(self, live=False)


class FencesExcludeFromCommits(RestoreWorld):
    """S13: what has a fence is left out of a checkpoint, and a restore sets fences."""

    def _in_scope(self, name: str, attempt: int) -> bool:
        marks = self.agent_marks if name == "agent" else self.tools_marks
        return RestoreWorld._in_scope(self, name, attempt) and marks == NOTHING


class ContinuationIsHidden(RestoreWorld):
    """S15: a dispatch under another attempt starts from the input, over a continuation that waits to be claimed."""

    def _claim(self, attempt: int, mine: Run | None) -> None:
        return


class LeftClosedAfterFailure(RestoreWorld):
    """S25: a restore that failed ends there, and nobody opens the servers."""

    @action
    def end_restoring(self) -> object:
        return False if self.failed else RestoreWorld.end_restoring.function(self)


class KeptAfterFailure(RestoreWorld):
    """S25, I51: what one server has installed stays there when another one fails."""

    def _undone(self) -> tuple[int, ...]:
        return ()


TWINS = (
    NobodyAsks,
    LostServerIsAnAnswer,
    TriedAgainUnretired,
    OnlyTheScopeIsFenced,
    FencedAfterRestoring,
    DurableLedgerInForce,
    FencesExcludeFromCommits,
    ContinuationIsHidden,
    LeftClosedAfterFailure,
    KeptAfterFailure,
)
