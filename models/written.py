"""What a checkpoint says of one rollout, in the types that production reads and writes.

A world keeps small values in its slots: positions, and what the coordinator knows. Here they become rows, records and
parts, so that what decides in a job decides in a world too: which executions are in scope, what the registry says of
each, whether a directory validates, and what a restart does with it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from participants.coordination.cut import Cut
from participants.coordination.ledger import Ledger, Rollout, recovered
from participants.coordination.recovery import CheckpointRejected, Found, Verdict, plan_restore
from participants.coordination.trainer import Dispatch
from participants.files.checkpoint import check_ledger, check_registry
from participants.files.files import InvalidCheckpointState
from participants.identity import EpisodeId
from participants.records.positions import SEED_HISTORY, Position, advance
from participants.records.records import (
    AgentBoundary,
    Disposition,
    LedgerRow,
    Manifest,
    Part,
    PartRef,
    Receipt,
    RegistryRow,
    ResourcesState,
    task_digest,
)
from statecore.wire import digest

TASK = "task"
BODY = "result"
LEDGER, _ = Ledger().registered([Dispatch("rollout", TASK, "agent")])


@frozen(cache_hash=True)
class Known:
    """What the coordinator knows of a rollout, by the ledger that runs; and of the checkpoint under way: whether the
    rollout is cut, whether a server retains its result, and whether one cannot export it.
    """

    rollout: Rollout = LEDGER["rollout"]
    in_scope: bool = False
    retained: bool = False
    restart: bool = False

    @property
    def sent(self) -> bool:
        return self.rollout.sent

    @property
    def received(self) -> bool:
        return self.rollout.has_result

    @property
    def lost(self) -> bool:
        return bool(self.rollout.ended)

    @property
    def ledger(self) -> Ledger:
        return Ledger({"rollout": self.rollout})

    def now(self, ledger: Ledger) -> Known:
        """What is known with this ledger."""
        return evolve(self, rollout=ledger["rollout"])

    def dispatched(self) -> Known:
        return self.now(self.ledger.dispatched(["rollout"]))

    def turned_away(self) -> Known:
        return self.now(self.ledger.turned_away("rollout"))

    def given_up(self) -> Known:
        return self.now(self.ledger.lost("rollout", "participant lost"))

    def with_result(self) -> Known:
        return self.now(self.ledger.received(receipt(self.rollout.attempt), BODY)[0])

    def released(self) -> Known:
        return self.now(self.ledger.released())

    def cut(self) -> Cut:
        episode = self.rollout.episode
        return Cut(
            scope=frozenset({episode}) if self.in_scope else frozenset(),
            retained={episode} if self.retained else set(),
            restarts={episode: "another"} if self.restart else {},
        )


@frozen(cache_hash=True)
class Kept:
    """What a checkpoint holds of a rollout: its row, the positions of its records (None: no record), its result.

    `whole`: every file that the checkpoint names is there.
    """

    attempt: int
    disposition: Disposition
    turn: int | None
    revision: int | None
    saved: bool
    whole: bool = True

    @property
    def episode(self) -> EpisodeId:
        return EpisodeId("rollout", self.attempt)

    @property
    def registry(self) -> RegistryRow:
        rollout = evolve(LEDGER["rollout"], attempt=self.attempt)
        (row,) = Ledger({"rollout": rollout}).registry_rows({"rollout": (self.disposition, "")})
        return row

    @property
    def ledger(self) -> LedgerRow:
        rollout = evolve(LEDGER["rollout"], attempt=self.attempt)
        if self.saved:
            rollout = evolve(rollout, receipt=receipt(self.attempt), body=BODY)
        (row,) = Ledger({"rollout": rollout}).ledger_rows()
        return row


def receipt(attempt: int) -> Receipt:
    """The receipt of this attempt's result."""
    return Receipt(
        rollout_id="rollout", attempt=attempt, epoch=1, result_identity="0" * 32, result_sha256=digest(BODY)
    )


@cache
def position(revision: int) -> Position:
    """The position of a session after so many calls."""
    if revision == 0:
        return Position(0, SEED_HISTORY, "a" * 32)
    return advance(position(revision - 1), f"call {revision}")


@cache
def parts(attempt: int, turn: int | None, revision: int | None) -> tuple[Part, ...]:
    """An agent's part with a boundary after `turn`, and a tools server's with a session at `revision`."""
    episode_id = {"rollout_id": "rollout", "attempt": attempt}
    found = []
    if turn is not None:
        reference = PartRef(kind="resources", instance="tools", key="session", position=position(turn))
        boundary = AgentBoundary(
            boundary_index=turn, previous=None, task_digest=task_digest(TASK), data_position=None,
            last_model_call_id=None, lineage_head=None, parts=(reference,), items=[], usage={}, cookies={},
            steps_used=turn, elapsed_s=0.0, state=None,
        )  # fmt: skip
        record: dict[str, Any] = {
            "episode_id": episode_id, "session_key": "key", "boundary": boundary.to_json(), "episode": {},
            "session": None,
        }  # fmt: skip
        found.append(_part("agent", record))
    if revision is not None:
        state = ResourcesState(codec="json", position=position(revision), operations={}, data=None)
        found.append(_part("resources", {"episode_id": episode_id, "session_id": "session", "state": state.to_json()}))
    return tuple(found)


@cache
def in_scope(known: Known) -> bool:
    """Whether the participants are told to save it (section 6, step 3)."""
    return bool(known.cut().choose_scope(known.ledger))


def _cut(known: Known, turn: int | None, revision: int | None) -> tuple[Cut, Known]:
    """The cut after the parts were read back, and the ledger that knows who stands in one."""
    cut = known.cut()
    cut.note_parts(parts(known.rollout.attempt, turn, revision))
    standing = cut.note_agreements(known.ledger, frozenset())
    return cut, known.now(known.ledger.parked(standing))


@cache
def read_back(known: Known, turn: int | None, revision: int | None) -> Known:
    """What is known when the parts were read back (section 6, step 5)."""
    return _cut(known, turn, revision)[1]


@cache
def settled(known: Known, turn: int | None, revision: int | None) -> Disposition:
    """What the registry says of it, when its records stand there (section 6, steps 5, 6 and 8)."""
    return _cut(known, turn, revision)[0].dispositions(known.ledger)["rollout"].disposition


@cache
def is_valid(kept: Kept) -> bool:
    """Whether the directory validates when it is read (section 6, step 10, and section 7)."""
    owners = [kept.episode] if kept.turn is not None else []
    try:
        check_registry(Path("registry"), [kept.registry], owners)
        check_ledger(Path("ledger"), [kept.ledger], [kept.registry])
    except InvalidCheckpointState:
        return False
    return kept.whole


@cache
def restarted(kept: Kept) -> Verdict:
    """What a restart does with it (section 7); CheckpointRejected where it uses nothing of that checkpoint.

    The trainer rolls back with the checkpoint, and its state holds what the ledger has as saved.
    """
    if not is_valid(kept):
        raise CheckpointRejected(["it is damaged"])
    found = Found(
        registry=(kept.registry,),
        ledger=(kept.ledger,),
        parts=parts(kept.attempt, kept.turn, kept.revision),
        consumed=frozenset({"rollout"}) if kept.saved else frozenset(),
    )
    (verdict,) = plan_restore(found).verdicts
    return verdict


@cache
def known_again(kept: Kept) -> Known:
    """What a coordinator knows after a restart."""
    return Known().now(recovered([kept.registry], [kept.ledger], [restarted(kept)]))


def _part(kind: str, record: dict[str, Any]) -> Part:
    instance = "agent" if kind == "agent" else "tools"
    manifest = Manifest(
        kind=kind, instance=instance, checkpoint_id="ck-000001-000001", records_file="records.jsonl",
        records_sha256="0" * 64, record_count=1,
    )  # fmt: skip
    return Part(manifest, (record,))
