"""Restart and settlement, pure: a test for each row of the table of protocol.md section 7, and each clause in it."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from participants.coordination.agreement import NO_PIECES, Agreed, Pieces, agree, gather
from participants.coordination.recovery import CheckpointRejected, Found, Server, Verdict, plan_restore, settle
from participants.identity import EpisodeId
from participants.records.positions import SEED_HISTORY, Position, advance
from participants.records.records import (
    AgentBoundary,
    Disposition,
    EnvironmentBoundary,
    LedgerRow,
    LedgerStatus,
    Manifest,
    ModelRow,
    Part,
    PartRef,
    Receipt,
    RegistryRow,
    ResourcesState,
    task_digest,
)

TASK = {"question": "how many?"}
DIGEST = task_digest(TASK)
ONE = advance(Position(0, SEED_HISTORY, "a" * 32), "op-1")
OTHER_LIFE = advance(Position(0, SEED_HISTORY, "b" * 32), "op-1")
DEPLOYMENT = frozenset(
    {
        Server("environment", "env", "exported"),
        Server("agent", "agent", "exported"),
        Server("model", "policy", "exported"),
        Server("resources", "tools", "exported"),
    }
)


def a_boundary(**changes: Any) -> Any:
    boundary = AgentBoundary(
        boundary_index=1,
        previous=None,
        task_digest=DIGEST,
        data_position=7,
        last_model_call_id="m2",
        lineage_head=None,
        parts=(PartRef(kind="resources", instance="tools", key="s1", position=ONE),),
        items=[],
        usage={},
        cookies={},
        steps_used=2,
        elapsed_s=1.0,
        state={"turn": 2},
    )
    return evolve(boundary, **changes).to_json()


STEP = EnvironmentBoundary(step_index=1, results=["seeded"], state={}, sessions={}).to_json()


def a_part(kind: str, instance: str, *records: dict[str, Any], checkpoint_id: str = "ck-000001-000002") -> Part:
    manifest = Manifest(
        kind=kind,
        instance=instance,
        checkpoint_id=checkpoint_id,
        records_file="records.jsonl",
        records_sha256="0" * 64,
        record_count=len(records),
    )
    return Part(manifest, records)


def env_record(boundary: Any = STEP, rollout: str = "p1", attempt: int = 0, digest: str = DIGEST) -> dict[str, Any]:
    return {
        "episode_id": {"rollout_id": rollout, "attempt": attempt},
        "task_digest": digest,
        "boundary": boundary,
    }


def agent_record(
    boundary: Any = None, rollout: str = "p1", attempt: int = 0, key: str = "k1", episode: Any = None
) -> dict[str, Any]:
    return {
        "episode_id": {"rollout_id": rollout, "attempt": attempt},
        "session_key": key,
        "boundary": boundary,
        "episode": episode,
        "session": {},
    }


def resources_record(
    position: Position = ONE, session: str = "s1", rollout: str = "p1", attempt: int = 0, state: Any = None
) -> dict[str, Any]:
    ours = ResourcesState(codec="json", position=position, operations={}, data={}).to_json()
    return {
        "episode_id": {"rollout_id": rollout, "attempt": attempt},
        "session_id": session,
        "state": ours if state is None else state,
    }


def model_record(*rows: ModelRow, rollout: str = "p1", attempt: int = 0) -> dict[str, Any]:
    rows = rows or (ModelRow(model_call_id="m1"), ModelRow(model_call_id="m2", parent_call_id="m1"))
    return {
        "episode_id": {"rollout_id": rollout, "attempt": attempt},
        "generation_cuts": [],
        "rows": [row.to_json() for row in rows],
    }


def parts(
    env: list[dict[str, Any]] | None = None,
    agents: list[dict[str, Any]] | None = None,
    resources: list[dict[str, Any]] | None = None,
    models: list[dict[str, Any]] | None = None,
) -> tuple[Part, ...]:
    """The four parts of one rollout that agrees; each list of records can be replaced."""
    return (
        a_part("environment", "env", *([env_record()] if env is None else env)),
        a_part("agent", "agent", *([agent_record(a_boundary())] if agents is None else agents)),
        a_part("resources", "tools", *([resources_record()] if resources is None else resources)),
        a_part("model", "policy", *([model_record()] if models is None else models)),
    )


def agreed(*changed: Part, **options: Any) -> Agreed:
    pieces = gather(changed).get(EpisodeId("p1"), NO_PIECES)
    return agree(pieces, DIGEST, **options)


def row(
    disposition: Disposition = Disposition.CONTINUE, rollout: str = "p1", attempt: int = 0, reason: str = ""
) -> RegistryRow:
    return RegistryRow(
        rollout_id=rollout,
        attempt=attempt,
        task=TASK,
        task_digest=DIGEST,
        target="env",
        disposition=disposition,
        reason=reason,
    )


def result(rollout: str = "p1", attempt: int = 0, body: Any = "done", status: str = "saved") -> LedgerRow:
    receipt = Receipt(rollout_id=rollout, attempt=attempt, result_identity="1" * 32, result_sha256="2" * 64)
    return LedgerRow(rollout_id=rollout, attempt=attempt, status=LedgerStatus(status), receipt=receipt, body=body)


def live(rollout: str = "p1", attempt: int = 0) -> LedgerRow:
    return LedgerRow(rollout_id=rollout, attempt=attempt, status=LedgerStatus.LIVE)


def found(**changes: Any) -> Found:
    """A checkpoint with one rollout that may be continued."""
    checkpoint = Found(registry=(row(),), ledger=(live(),), parts=parts(), recorded=DEPLOYMENT, present=DEPLOYMENT)
    return evolve(checkpoint, **changes)


def verdict(**changes: Any) -> Verdict:
    (only,) = plan_restore(found(**changes)).verdicts
    return only


# --- row 1: reject


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"ledger": (result(),)}, "both saved and to be continued"),
        ({"present": DEPLOYMENT - {Server("agent", "agent", "exported")}}, "agent agent (exported) took part in it"),
        (
            {
                "present": (DEPLOYMENT - {Server("agent", "agent", "exported")})
                | {Server("agent", "agent", "stateless")}
            },
            "agent agent (stateless) is here and took no part",
        ),
        ({"present": DEPLOYMENT | {Server("model", "second", "exported")}}, "model second (exported) is here"),
        ({"unreconciled": {"p1": "a payment"}}, "p1: a payment cannot be reconciled"),
        ({"consumed": {"p1"}}, "the trainer has consumed p1, of which the ledger has no result"),
        ({"consumed": {"p9"}}, "the trainer has consumed p9"),
        ({"registry": (row(Disposition.COMPLETED),)}, "p1 is completed and has no result"),
        (
            {"registry": (row(Disposition.COMPLETED),), "ledger": (result(body=None),)},
            "the result of p1 is in nobody's keeping",
        ),
        ({"ledger": (live(), result("p9"))}, "p9 has a result and was never dispatched"),
        (
            {"parts": parts(agents=[agent_record({**a_boundary(), "schema_version": 2})])},
            "p1: a payload cannot be read",
        ),
        ({"parts": parts(env=[{"episode_id": {"rollout_id": "p1"}, "boundary": None}])}, "a record cannot be read"),
    ],
)
def test_reject(changes: dict[str, Any], problem: str) -> None:
    """What contradicts itself is not used at all, not even for the rollouts that look whole. Covers: I65, I88."""
    whole = row(rollout="p2")
    registry = (*changes.pop("registry", (row(),)), whole)
    with pytest.raises(CheckpointRejected) as rejected:
        plan_restore(found(registry=registry, **changes))
    assert problem in str(rejected.value)


def test_every_reason_of_a_rejection_is_told() -> None:
    """All problems are listed, and a long list says how long it is."""
    missing = {f"p{n}" for n in range(20, 40)}
    with pytest.raises(CheckpointRejected) as rejected:
        plan_restore(found(consumed=missing))
    assert len(rejected.value.problems) == 20
    assert "and 10 more" in str(rejected.value)


# --- row 2: completed


def test_completed_when_the_ledger_has_saved_it() -> None:
    """A saved result is never dispatched again; it goes to a trainer that lacks it. Covers: I65, I87."""
    plan = plan_restore(found(registry=(row(Disposition.COMPLETED),), ledger=(result(),), parts=parts([], [], [], [])))
    (only,) = plan.verdicts
    assert only.disposition is Disposition.COMPLETED
    assert only.next_attempt is None
    assert plan.scope == ()
    assert plan.retire == (EpisodeId("p1"),)
    assert [each.rollout_id for each in plan.redeliver] == ["p1"]


def test_completed_when_the_trainer_has_consumed_it() -> None:
    """A consumed result is not delivered again, also where its body is no longer kept. Covers: I88."""
    changes = {"registry": (row(Disposition.COMPLETED),), "ledger": (result(body=None),), "consumed": {"p1"}}
    plan = plan_restore(found(**changes))
    assert plan.verdicts[0].disposition is Disposition.COMPLETED
    assert plan.redeliver == ()


def test_a_continuation_of_a_completed_rollout_is_left_out_and_counted() -> None:
    """The live ledger outranks the checkpoint: what it has received is completed, its records stay unused."""
    changes = {"ledger": (result(status="received"),), "live": True}
    plan = plan_restore(found(**changes))
    assert plan.verdicts[0].disposition is Disposition.COMPLETED
    assert plan.verdicts[0].continuation_dropped
    assert plan.scope == ()


def test_received_counts_only_in_a_living_ledger() -> None:
    """A result that was received and in no checkpoint when its coordinator died has to be made again (9 steps)."""
    assert verdict(ledger=(result(status="received"),)).disposition is Disposition.CONTINUE


# --- row 3: continue


def test_continue_when_the_parts_agree() -> None:
    """All parts at one boundary: attempt N goes on as N+1 and is in the scope of the restore. Covers: I54, I55."""
    plan = plan_restore(found(registry=(row(attempt=3),), parts=_at_attempt(3)))
    (only,) = plan.verdicts
    assert (only.disposition, only.attempt, only.next_attempt) == (Disposition.CONTINUE, 3, 4)
    assert plan.scope == (EpisodeId("p1", 3),)
    assert plan.retire == ()
    assert (only.weak, only.untracked) == (0, 0)


def _at_attempt(attempt: int) -> tuple[Part, ...]:
    return parts(
        env=[env_record(attempt=attempt)],
        agents=[agent_record(a_boundary(), attempt=attempt)],
        resources=[resources_record(attempt=attempt)],
        models=[model_record(attempt=attempt)],
    )


def test_a_record_without_a_continue_row_is_ignored() -> None:
    """The registry decides, records alone never do: foreign peers export whatever is alive (section 6.6)."""
    plan = plan_restore(found(registry=(row(Disposition.FRESH, reason="restart: env"),)))
    assert plan.verdicts[0].disposition is Disposition.FRESH
    assert plan.scope == ()


# --- row 4: fresh


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"registry": (row(Disposition.FRESH, reason="restart: tools cannot export it"),)}, "restart: tools"),
        ({"registry": (row(Disposition.QUEUED, reason="never started"),)}, "never started"),
        ({"parts": parts(env=[env_record(None)])}, "env has no boundary yet"),
        ({"parts": parts(agents=[agent_record(None)])}, "agent has no boundary yet"),
        ({"parts": parts(resources=[resources_record(OTHER_LIFE)])}, "agent stands at 1."),
        ({"parts": parts(env=[])}, "no server holds a record that owns it"),
    ],
)
def test_fresh_from_the_input(changes: dict[str, Any], reason: str) -> None:
    """No boundary, a restart, or parts that do not agree: it starts over as 1 + the highest attempt, and says why."""
    plan = plan_restore(found(**changes))
    (only,) = plan.verdicts
    assert (only.disposition, only.next_attempt) == (Disposition.FRESH, 1)
    assert reason in only.reason
    assert plan.scope == ()
    assert plan.retire == (EpisodeId("p1"),)


def test_fresh_takes_the_number_after_the_highest_known_one() -> None:
    """A record of a later attempt than the registry's counts: its number is not given twice. Covers: I3."""
    only = verdict(parts=(*parts(), *_at_attempt(5)))
    assert (only.disposition, only.attempt, only.next_attempt) == (Disposition.FRESH, 5, 6)
    assert "a record of attempt 5 is there" in only.reason


def test_a_failed_restore_uses_its_number_up() -> None:
    """N+1 may have run somewhere, so the rollout goes fresh as N+2; others keep their number (section 7)."""
    assert verdict().restarted("restore failed") == Verdict("p1", Disposition.FRESH, 0, 2, "restore failed")
    fresh = Verdict("p1", Disposition.FRESH, 0, 1, "restart")
    assert fresh.restarted("restore failed") is fresh


def test_all_known_rollouts_are_tombstoned() -> None:
    """Every attempt <= N of every rollout is fenced before resume, by restore or by retire (17 steps)."""
    registry = (
        row(),
        row(Disposition.FRESH, "p2", 4),
        row(Disposition.COMPLETED, "p3", 1),
        row(Disposition.QUEUED, "p4"),
    )
    plan = plan_restore(found(registry=registry, ledger=(live(), result("p3", 1))))
    assert {*plan.scope, *plan.retire} == {each.episode for each in registry}


def test_an_empty_checkpoint_is_a_plan_with_nothing_in_it() -> None:
    """No rollouts: nothing to restore, nothing to retire."""
    plan = plan_restore(found(registry=(), ledger=(), parts=()))
    assert (plan.verdicts, plan.scope, plan.retire, plan.redeliver) == ((), (), (), ())


# --- agree


def test_parts_agree() -> None:
    """The straight case: nothing weak, nothing untracked."""
    assert agreed(*parts()) == Agreed(True)


def test_s46_same_number_other_history() -> None:
    """Revision 1 of another life is not revision 1 of this one: positions are compared whole.

    A comparison of the integers alone, as the fault has it, finds them equal. Covers: I35, I81.
    """
    assert ONE.revision == OTHER_LIFE.revision
    assert not agreed(*parts(resources=[resources_record(OTHER_LIFE)])).agrees
    assert agreed(*parts(resources=[resources_record(ONE)])).agrees


def test_s55_image_newer_than_its_boundary() -> None:
    """A session that is one late mutation ahead of the boundary does not agree. Covers: I35, I82.

    A boundary that names no positions, as the fault has it, cannot tell.
    """
    newer = [resources_record(advance(ONE, "late"))]
    assert agreed(*parts(agents=[agent_record(a_boundary(parts=None))], resources=newer)).agrees
    assert not agreed(*parts(resources=newer)).agrees


def test_a_weak_position_is_accepted_and_counted() -> None:
    """A wire peer that gives only the integer is compared by it; another integer still differs."""
    weak = PartRef(kind="resources", instance="tools", key="s1", position=Position(1))
    boundary = a_boundary(parts=(weak,))
    assert agreed(*parts(agents=[agent_record(boundary)])) == Agreed(True, weak=1)
    opaque = [resources_record(state={"board": []})]
    assert agreed(*parts(agents=[agent_record(boundary)], resources=opaque)) == Agreed(True, weak=1)
    elsewhere = a_boundary(parts=(evolve(weak, position=Position(2)),))
    assert not agreed(*parts(agents=[agent_record(elsewhere)])).agrees


def test_a_full_position_is_not_met_by_a_record_without_one() -> None:
    """A server that gave its position in a header and not in its record is not believed."""
    outcome = agreed(*parts(resources=[resources_record(state={"board": []})]))
    assert outcome.reason == "tools does not say where session 's1' stands"


def test_untracked_parts_are_accepted_and_counted() -> None:
    """`parts: null`, a boundary of another make, and an episode without agents name no parts: counted, not refused."""
    assert agreed(*parts(agents=[agent_record(a_boundary(parts=None))])) == Agreed(True, untracked=1)
    assert agreed(*parts(agents=[agent_record({"turn": 2})])) == Agreed(True, untracked=1)
    assert agreed(*parts(agents=[])) == Agreed(True, untracked=1)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (parts(resources=[]), "agent names session 's1' of tools, which has no record"),
        (
            parts(resources=[resources_record(), resources_record(session="s2")]),
            "session 's2' of tools is named by no boundary",
        ),
        (parts(agents=[agent_record(a_boundary(parts=()))]), "session 's1' of tools is named by no boundary"),
        (parts(models=[]), "its last model call, 'm2', is in no model record"),
        (
            parts(models=[model_record(ModelRow(model_call_id="m2", parent_call_id="m1"))]),
            "a parent of its last model call, 'm1', is in no model record",
        ),
        (
            parts(models=[model_record(ModelRow(model_call_id="m2", parent_call_id="m2"))]),
            "model call 'm2' is its own ancestor",
        ),
        (parts(env=[env_record(digest=task_digest("another"))]), "env has another task"),
        (
            parts(env=[], agents=[agent_record(a_boundary(task_digest="0" * 64), episode={"task": 1})]),
            "agent has another task",
        ),
        (
            parts(agents=[agent_record(a_boundary(), episode={"task": 1})]),
            "more than one server owns it: agent, env",
        ),
    ],
)
def test_parts_that_do_not_agree(changed: tuple[Part, ...], reason: str) -> None:
    """Each missing or contradicting part is told by name. Covers: I34, I35, I55."""
    outcome = agreed(*changed)
    assert not outcome.agrees
    assert reason in outcome.reason


def test_a_stateless_server_needs_no_record() -> None:
    """A resources server with nothing to save has no records, and what names its sessions is not refused for it."""
    assert agreed(*parts(resources=[]), stateless={"tools"}).agrees


def test_s14_rows_whose_tokens_are_not_in_the_store() -> None:
    """A row whose staging key the store's receipt does not cover: not continued. Covers: I56."""
    rows = [ModelRow(model_call_id="m1", staging_key="t1"), ModelRow(model_call_id="m2", staging_key="t2")]
    changed = parts(models=[model_record(*rows)])
    assert agreed(*changed, covered={"t1", "t2"}).agrees
    assert agreed(*changed).agrees, "without a store the call ledger stands alone"
    assert agreed(*changed, covered={"t1"}).reason == "the token store does not hold 't2'"


def test_an_agent_that_owns_its_episode_needs_no_environment() -> None:
    """Agent-driven rollouts: a record with an episode of its own is the owner."""
    assert agreed(*parts(env=[], agents=[agent_record(a_boundary(), episode={"task": 1})])).agrees


def test_a_call_without_rows_needs_no_lineage() -> None:
    """No model call yet: nothing to look for."""
    assert agreed(*parts(agents=[agent_record(a_boundary(last_model_call_id=None))], models=[])).agrees


# --- settle


def settled(**changes: Any) -> tuple[Disposition, str]:
    pieces = gather(parts())[EpisodeId("p1")]
    given: dict[str, Any] = {
        "received": False,
        "sent": True,
        "retained": False,
        "restarted_by": "",
        "pieces": pieces,
        "agreed": Agreed(True),
    }
    outcome = settle(**{**given, **changes})
    return outcome.disposition, outcome.reason


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"received": True}, (Disposition.COMPLETED, "its result is in the ledger")),
        ({"retained": True}, (Disposition.FRESH, "finished, but its result did not arrive in time")),
        ({"restarted_by": "tools"}, (Disposition.FRESH, "restart: tools cannot export it")),
        ({"pieces": Pieces(), "sent": False}, (Disposition.QUEUED, "never started")),
        ({"pieces": Pieces()}, (Disposition.FRESH, "finished, but its result did not arrive in time")),
        ({"pieces": Pieces(), "ended": "lost: env"}, (Disposition.FRESH, "lost: env")),
        ({"agreed": Agreed(False, "env has no boundary yet")}, (Disposition.FRESH, "env has no boundary yet")),
        ({}, (Disposition.CONTINUE, "all parts agree")),
        ({"sent": False}, (Disposition.CONTINUE, "all parts agree")),
    ],
)
def test_settle(changes: dict[str, Any], expected: tuple[Disposition, str]) -> None:
    """Before publishing: each execution is completed, continue, fresh or queued, first match wins. Covers: I39, I62."""
    assert settled(**changes) == expected


def test_a_result_outranks_everything() -> None:
    """A record of a rollout whose result is there is never published as *continue* (14 steps). Covers: I65."""
    assert settled(received=True, restarted_by="tools", retained=True)[0] is Disposition.COMPLETED
