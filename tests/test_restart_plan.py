"""What becomes of each rollout when the servers start anew and their coordinator lives."""

from __future__ import annotations

import pytest
from attrs import evolve

from participants.coordination.ledger import Ledger
from participants.coordination.recovery import CheckpointRejected, RestorePlan, Server
from participants.coordination.restart_plan import above, plan_restart
from participants.coordination.trainer import Dispatch
from participants.identity import EpisodeId
from participants.machines.handoff import Entry
from participants.records.records import Receipt
from statecore.wire import digest

HERE = frozenset({Server("environment", "env", "exported")})


def receipt(rollout_id: str, attempt: int = 0) -> Receipt:
    return Receipt(
        rollout_id=rollout_id, attempt=attempt, epoch=1, result_identity="7" * 32, result_sha256=digest({"reward": 1})
    )


def live(*rollouts: str, sent: bool = True) -> Ledger:
    ledger, _ = Ledger().registered(Dispatch(each, {"q": each}, "env", group="g") for each in rollouts)
    return ledger.dispatched(rollouts) if sent else ledger


def done(ledger: Ledger, rollout_id: str) -> Ledger:
    return ledger.received(receipt(rollout_id), {"reward": 1})[0]


def plan(ledger: Ledger, consumed: set[str] | None = None) -> RestorePlan:
    """Without a checkpoint."""
    return plan_restart(None, ledger, consumed=consumed or set(), present=HERE)


def told(plan: RestorePlan) -> dict[str, tuple[str, int | None]]:
    return {each.rollout_id: (each.disposition.value, each.next_attempt) for each in plan.verdicts}


def test_without_a_checkpoint_whoever_has_no_result_starts_over() -> None:
    """Under the next number, with the one before fenced; a result that came stays, saved or not. Covers: I3, I67."""
    ledger = done(live("p1", "p2"), "p1")
    assert ledger["p1"].entry.state is Entry.RECEIVED
    found = plan(ledger, {"p1"})
    assert told(found) == {"p1": ("completed", None), "p2": ("fresh", 1)}
    assert (found.scope, found.redeliver) == ((), ())
    assert set(found.retire) == {EpisodeId("p1"), EpisodeId("p2")}


def test_a_result_that_waits_to_be_taken_is_not_delivered_twice() -> None:
    """Whoever waits for it in this life hands it over, so nothing is delivered again. Covers: I68, I87."""
    assert plan(done(live("p1"), "p1")).redeliver == ()


def test_a_fresh_start_is_above_every_number_of_this_life() -> None:
    """Attempt 3 was given already: the next one is 4, whatever the checkpoint knows. Covers: I3."""
    ledger = live("p1")
    for _ in range(3):
        found = plan(ledger)
        ledger = ledger.restarted(found.verdicts).dispatched(["p1"])
    assert ledger["p1"].attempt == 3
    assert told(plan(ledger)) == {"p1": ("fresh", 4)}
    old = evolve(found.verdicts[0], attempt=0, next_attempt=1)
    (risen,) = above([old], ledger)
    assert (risen.attempt, risen.next_attempt) == (3, 4)


def test_a_trainer_that_has_what_never_came_is_refused() -> None:
    """It contradicts the live ledger; nothing is guessed."""
    with pytest.raises(CheckpointRejected, match="the trainer has consumed p2, of which the ledger has no result"):
        plan(done(live("p1", "p2"), "p1"), {"p1", "p2"})


def test_the_live_ledger_after_a_restart() -> None:
    """Only those that have no result change; what was registered after the plan is untouched. Covers: I12, I67."""
    ledger = done(live("p1", "p2", "lost"), "p1").lost("lost", "HTTP 500 execution_failed")
    found = plan(ledger, {"p1"})
    later, _ = ledger.registered([Dispatch("p3", {"q": 3}, "env")])
    after = later.restarted(found.verdicts)
    assert after["p1"] is later["p1"] and after["p3"] is later["p3"]
    assert (after["p2"].attempt, after["p2"].sent, after["p2"].has_result) == (1, False, False)
    assert after["lost"].ended == "HTTP 500 execution_failed"


def test_a_result_that_came_before_and_was_being_saved_completes_its_rollout() -> None:
    """Its rollout waits under the next attempt by then, which nobody runs. Covers: I68."""
    ledger = live("p1")
    ledger = ledger.restarted(plan(ledger).verdicts)
    assert ledger["p1"].attempt == 1
    ledger = done(ledger, "p1")
    assert ledger["p1"].has_result and ledger["p1"].receipt == receipt("p1")
    (row,) = ledger.ledger_rows()
    assert (row.rollout_id, row.attempt) == ("p1", 0)
