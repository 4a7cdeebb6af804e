"""An agent with its model calls over checkpoints and restarts, by the tables that run. Executable specification.

Every accepted call is disposed of at the cut. The deployment dies once; what a restart continues is the newest
published checkpoint, and then the chain of calls that training sees is the conversation that the agent goes on with.

What servers and coordinator decide without I/O is theirs: the parent of a call (`placed`), which conversation a reply
makes (`continuations`), what an answer is to a loop (`heard`), what a cut disposes of (`is_left_out`), whether a
boundary and a lineage agree (`agree`) and what the registry says of it (`settle`). The coordinator is as much of it as
opens, closes and publishes: its machine is in `models.checkpoint`. docs/reference/protocol.md sections 4, 6, 7 and 14.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen

from models.said import TASK, Row, Talk, chain, pieces_of
from models.server import DEADLINE_TS, server
from models.talking import NAMES, TalkingWorld
from participants.coordination.agreement import Pieces, agree
from participants.coordination.recovery import settle
from participants.machines.attempt import AttemptState, Restored
from participants.machines.control import (
    CommitRequested,
    PartInstalled,
    Phase,
    PrepareRequested,
    RestoreRequested,
    ResumeRequested,
)
from participants.machines.fencing import own_id
from participants.records.records import Disposition
from statecore.properties import always, sometimes
from statecore.world import action, crash, durable, param, slot


@frozen(cache_hash=True)
class Published:
    """What a checkpoint says of the rollout, and the records behind it."""

    row: Disposition
    boundary: Talk | None
    rows: tuple[Row, ...]


class HoldWorld(TalkingWorld):
    """One rollout, one agent, one model, and as much of a coordinator as opens, closes and publishes."""

    checkpoints = param(1)
    crashes = param(1)

    coordinator: str = slot("idle")  # open, ending, restoring or recovering
    begun: int = durable(0)
    resumed: frozenset[str] = slot(frozenset())
    disk: Published | None = durable(None)
    crashes_left: int = slot(make=lambda w: w.crashes)

    @action
    def begin(self) -> object:
        if self.coordinator != "idle" or self.begun == self.checkpoints:
            return False
        self.coordinator, self.begun = "open", self.begun + 1
        return None

    @action(over=NAMES)
    def prepare(self, name: str) -> object:
        """In any order: the protocol's is for latency, not for correctness (section 6, step 2)."""
        if self.coordinator != "open" or self._server(name).open_id is not None:
            return False
        self._tell(name, self._to(name, PrepareRequested))
        return None

    @action(over=NAMES)
    def commit(self, name: str) -> object:
        """When both are prepared; a server whose readiness has regressed refuses it."""
        if self.coordinator != "open" or not all(self._stands(each, Phase.PREPARED, Phase.COMMITTED) for each in NAMES):
            return False
        where = self._server(name)
        if not where.is_quiet or where.phase is Phase.COMMITTED or where.control.data.writing is not None:
            return False
        self._tell(name, self._to(name, CommitRequested, arguments="all"))
        if name == "model":
            for number, call in self._present:
                if call.cut is not None:
                    self._put(number, evolve(call, cut=self._dispose(call.cut)))
        return None

    @action
    def publish(self) -> object:
        """Both have proved that they stand where they committed (S32); the registry decides what the rollout is."""
        if self.coordinator != "open" or not all(self._stands(each, Phase.COMMITTED) for each in NAMES):
            return False
        assert self.agent_part is not None and self.model_part is not None
        row = self._classify(pieces_of(self.agent_part, self.model_part.rows))
        self.disk = Published(row, self.agent_part.boundary, self.model_part.rows)
        self._end_open()
        return None

    @action
    def give_up(self) -> object:
        """A deadline, a refusal: the checkpoint is aborted, the one before stays in force."""
        if self.coordinator != "open":
            return False
        self._end_open()
        return None

    @action(over=NAMES)
    def resume(self, name: str) -> object:
        """In any order; what is not reached opens by its lease."""
        if self.coordinator != "ending" or name in self.resumed:
            return False
        self._tell(name, self._to(name, ResumeRequested))
        self._note_resumed(name)
        return None

    def _start_again(self) -> None:
        """A claim of its own, and fresh servers, born closed (section 11)."""
        self.life += 1
        self.coordinator, self.resumed, self.model_part, self.agent_part = "restoring", frozenset(), None, None
        self.model = server(f"model-{self.life}", born_with_epoch=self.life, max_held=self.max_held)
        self.agent = server(f"agent-{self.life}", born_with_epoch=self.life)

    die = crash("deployment", budget="crashes_left", then=_start_again, by="deployment")

    @action
    def restore(self) -> object:
        """Fresh servers have installed what is published: lineage and boundary under the next attempt."""
        if self.coordinator != "restoring":
            return False
        self.coordinator = "recovering"
        if self.disk is not None:
            for name in NAMES:
                self._tell(name, self._to(name, RestoreRequested, self._restore_id))
                self._tell(name, PartInstalled(self._restore_id, deadline_ts=DEADLINE_TS))
        if self.disk is not None and self.disk.row is Disposition.CONTINUE:
            self.attempt, _ = self.ATTEMPT.step(self.attempt, Restored())
            self.talk, self.boundary = self.disk.boundary or Talk(), self.disk.boundary
            self.rows = self.disk.rows
        elif self.disk is not None and self.disk.row is Disposition.COMPLETED:
            self.loop = "done"  # never dispatched
        return None

    @action(over=NAMES)
    def open_restored(self, name: str) -> object:
        """All are restored, or there is nothing to restore: resume opens them, in any order."""
        if self.coordinator != "recovering" or name in self.resumed:
            return False
        self._tell(name, self._to(name, ResumeRequested, self._restore_id))
        self._note_resumed(name)
        return None

    # --- helpers

    def _classify(self, pieces: Pieces) -> Disposition:
        """The rollout's row in the registry."""
        settled = settle(
            received=self.attempt.state is AttemptState.COMPLETED,
            sent=self.loop != "new",
            retained=False,
            restarted_by="",
            pieces=pieces,
            agreed=agree(pieces, TASK),
        )
        return settled.disposition

    def _stands(self, name: str, *phases: Phase) -> bool:
        where = self._server(name)
        return where.phase in phases and where.open_id == self._checkpoint_id

    @property
    def _checkpoint_id(self) -> str:
        return own_id("ck", self.life, self.begun)

    @property
    def _restore_id(self) -> str:
        return own_id("rs", self.life, 1)

    def _to(self, name: str, kind: Any, checkpoint_id: str | None = None, **fields: Any) -> Any:
        return kind(
            checkpoint_id or self._checkpoint_id,
            deadline_ts=DEADLINE_TS,
            epoch=self.life,
            incarnation=self._server(name).incarnation,
            **fields,
        )

    def _end_open(self) -> None:
        self.coordinator, self.model_part, self.agent_part = "ending", None, None

    def _note_resumed(self, name: str) -> None:
        self.resumed |= {name}
        if self.resumed == frozenset(NAMES):
            self.coordinator, self.resumed = "idle", frozenset()

    # --- what must be true

    @always(covers=("I59", "S12"))
    def the_chain_is_the_conversation(self) -> bool:
        """What training sees of a rollout that is done, and of one that is continued, is what its agent has."""
        if self.disk is not None and self.disk.row is Disposition.CONTINUE:
            boundary = self.disk.boundary
            if boundary is None or chain(self.disk.rows, boundary.last) != boundary.said:
                return False
        return self.loop != "done" or not self.talk.said or chain(self.rows, self.talk.last) == self.talk.said

    @always(covers="I57")
    def a_boundary_that_was_cut_is_continued(self) -> bool:
        """No finished turn is paid for again because parts do not fit."""
        return self.disk is None or self.disk.boundary is None or self.disk.row is Disposition.CONTINUE

    # --- what must be possible

    @sometimes(covers="I59")
    def one_chain_goes_across_a_restore(self) -> bool:
        return any(row.call[0] != row.parent[0] for row in self.rows if row.parent is not None)

    @sometimes
    def a_restored_call_was_generated_before(self) -> bool:
        """Two generations of one conversation, one on either side of a restore."""
        return any(a.asked == b.asked and a.call[0] != b.call[0] for a in self.rows for b in self.rows)
