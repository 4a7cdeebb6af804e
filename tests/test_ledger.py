"""The one ledger: what is known of each rollout, and that every change of it goes through the tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from participants.coordination.ledger import KnownRollout, Ledger, recovered
from participants.coordination.recovery import Verdict
from participants.coordination.trainer import Dispatch, Result
from participants.identity import EpisodeId
from participants.machines.attempt import AttemptState
from participants.machines.handoff import AcceptResult, Entry, OweAcknowledgement
from participants.records.records import Disposition, LedgerStatus, Receipt, RegistryRow, task_digest
from statecore import Refused
from statecore.errors import WireError


def a_dispatch(rollout_id: str = "p1", task: Any = "task", **more: Any) -> Dispatch:
    return Dispatch(rollout_id, task, "env", **more)


def a_receipt(rollout_id: str = "p1", attempt: int = 0, identity: str = "1") -> Receipt:
    return Receipt(rollout_id=rollout_id, attempt=attempt, result_identity=identity * 32, result_sha256="2" * 64)


def a_ledger(*rollout_ids: str) -> Ledger:
    """These rollouts, dispatched."""
    ledger, _ = Ledger().registered([a_dispatch(each) for each in rollout_ids or ("p1",)])
    return ledger.dispatched(rollout_ids or ("p1",))


def test_registered_before_anything_is_sent() -> None:
    """A dispatch record is in the registry before its request leaves, so a crash cannot drop it (S37, S40)."""
    ledger, episodes = Ledger().registered([a_dispatch(group="g1", data_position=[3, 1])])
    assert episodes == (EpisodeId("p1"),)
    (row,) = ledger.registry_rows({})
    assert row == RegistryRow(
        rollout_id="p1",
        attempt=0,
        group="g1",
        task="task",
        task_digest=task_digest("task"),
        data_position=[3, 1],
        target="env",
        disposition=Disposition.QUEUED,
        reason="never started",
    )
    assert ledger.candidates() == ()


def test_steps_of_many_rollouts_are_in_the_order_of_their_ids() -> None:
    """A set of ids has an order that no two processes share; what is written down of them has not."""
    names = {f"p{number}" for number in range(20)}
    ledger, _ = Ledger(made=()).registered([a_dispatch(each) for each in names])
    before = len(ledger.made or ())
    steps = (ledger.dispatched(names).made or ())[before:]
    assert [each.episode.rollout_id for each in steps] == sorted(names)


def test_a_known_rollout_is_left_out() -> None:
    """A cursor that rolled back hands the same dispatch out again; it does not run twice. Covers: I12."""
    ledger, _ = Ledger().registered([a_dispatch()])
    again, new = ledger.registered([a_dispatch(), a_dispatch("p2")])
    assert new == (EpisodeId("p2"),)
    assert again["p1"] is ledger["p1"]


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        ([a_dispatch(task="other")], "is known with another task"),
        ([a_dispatch("p2"), a_dispatch("p2")], "comes twice in one batch"),
    ],
)
def test_a_reused_rollout_id_is_refused(batch: list[Dispatch], problem: str) -> None:
    """An id names one logical rollout for life: nothing of such a batch is registered. Covers: I2, I12."""
    ledger, _ = Ledger().registered([a_dispatch()])
    with pytest.raises(KnownRollout, match=problem):
        ledger.registered([a_dispatch("p3"), *batch])
    assert "p3" not in ledger


@pytest.mark.parametrize("dispatch", [a_dispatch(task=float("nan")), a_dispatch(data_position=(1, 2))])
def test_what_is_no_json_is_refused(dispatch: Dispatch) -> None:
    """A task or data position that would not read back equal is refused before it is in any checkpoint. Covers: I49."""
    with pytest.raises(WireError):
        Ledger().registered([dispatch])


@pytest.mark.parametrize("rollout_id", ["", "a/b", "p1-a3", "-x", "x" * 129])
def test_a_bad_rollout_id_is_refused(rollout_id: str) -> None:
    """A dispatch under an id that is none cannot even be made."""
    with pytest.raises(ValueError, match=r"rollout"):
        a_dispatch(rollout_id)


def test_a_ledger_never_changes() -> None:
    """Reading it in one piece is taking a reference: what happens later is not in it. Covers: I84."""
    before = a_ledger("p1", "p2")
    after, _ = before.received(a_receipt(), {"reward": 1})
    assert before.finished == frozenset()
    assert after.finished == {"p1"}
    assert before["p2"] is after["p2"]


def test_each_result_is_accepted_once() -> None:
    """The first result of a rollout stands; a repeat, or another one, owes nothing to the framework. Covers: I68."""
    ledger, owed = a_ledger().received(a_receipt(), {"reward": 1})
    assert owed == (AcceptResult(a_receipt().header),)
    assert ledger["p1"].execution.state is AttemptState.COMPLETED
    again, owed = ledger.received(a_receipt(identity="9"), {"reward": 2})
    assert owed == ()
    assert again["p1"].body == {"reward": 1}


def test_a_late_result_of_a_saved_rollout_may_be_acknowledged() -> None:
    """Two attempts, two results: the loser is released as well (S63)."""
    ledger, _ = a_ledger().received(a_receipt(), 1)
    saved = ledger.saved(["p1"])
    assert saved.is_saved("p1")
    other = a_receipt(identity="9")
    _, owed = saved.received(other, 2)
    assert owed == (OweAcknowledgement(other.header),)


def test_saved_only_after_received() -> None:
    """Nothing is acknowledged that has no durable copy outside the server. Covers: I67."""
    ledger = a_ledger("p1", "p2")
    with pytest.raises(Refused, match="not_received"):
        ledger.saved(["p1"])
    received, _ = ledger.received(a_receipt(), 1)
    assert not received.is_saved("p1")
    assert not received.is_saved("p2")
    assert not received.is_saved("never heard of")


def test_turned_away_is_no_dispatch_yet() -> None:
    """`admission_closed` never started: queued again, under the same number. Covers: I3."""
    ledger = a_ledger().turned_away("p1")
    assert ledger["p1"].execution.state is AttemptState.QUEUED
    assert ledger.candidates() == ()
    again = ledger.dispatched(["p1"])
    assert again["p1"].episode == EpisodeId("p1", 0)
    assert [each.episode for each in again.candidates()] == [EpisodeId("p1", 0)]


def test_a_lost_run_is_no_result() -> None:
    """A dead server is not a reward of 0: the rollout stays without a result and says why. Covers: I97."""
    ledger = a_ledger().lost("p1", "env is gone")
    assert not ledger["p1"].has_result
    assert ledger["p1"].ended == "env is gone"
    assert ledger.ledger_rows()[0].status is LedgerStatus.LIVE


def test_parked_in_a_written_part_and_released() -> None:
    """A checkpoint passes over a running rollout: committed, then running again. Covers: I65."""
    ledger = a_ledger("p1", "p2").parked(["p1"])
    assert ledger["p1"].execution.state is AttemptState.COMMITTED
    assert ledger["p2"].execution.state is AttemptState.RUNNING
    assert ledger.released()["p1"].execution.state is AttemptState.RUNNING


def test_a_result_while_its_part_is_written() -> None:
    """Leases expired and the last turn ran: the rollout is completed, and not resumable as well. Covers: I65."""
    ledger, owed = a_ledger().parked(["p1"]).received(a_receipt(), 1)
    assert len(owed) == 1
    assert ledger["p1"].execution.state is AttemptState.COMPLETED


def test_a_body_is_kept_until_the_trainer_has_it() -> None:
    """Whoever saved a result keeps it until a durable trainer checkpoint contains it (S52). Covers: I87."""
    ledger, _ = a_ledger("p1", "p2").received(a_receipt(), {"reward": 1})
    saved = ledger.saved(["p1"])
    assert saved.ledger_rows()[0].body == {"reward": 1}
    contained = saved.contained(["p1", "p2", "another"])
    assert contained.ledger_rows()[0].body is None
    assert contained.is_saved("p1")


def test_what_stands_replaces_what_came() -> None:
    """`save_result` answers which result stands; it is the one that the ledger has, and it is saved."""
    ledger, _ = a_ledger().received(a_receipt(), 1)
    earlier = Result("p1", 0, 7, a_receipt(identity="5"), a_dispatch())
    stands = ledger.standing(earlier)
    assert stands["p1"].result == earlier
    assert stands.is_saved("p1")


# --- after a restart


def a_row(rollout_id: str, disposition: Disposition, attempt: int = 2) -> RegistryRow:
    return RegistryRow(
        rollout_id=rollout_id,
        attempt=attempt,
        task="task",
        task_digest=task_digest("task"),
        target="env",
        disposition=disposition,
    )


def after_restart() -> Ledger:
    """One rollout to continue, one fresh, one completed."""
    done, _ = a_ledger("p3").received(a_receipt("p3"), {"reward": 3})
    return recovered(
        [a_row("p1", Disposition.CONTINUE), a_row("p2", Disposition.FRESH), a_row("p3", Disposition.COMPLETED)],
        done.ledger_rows(),
        [
            Verdict("p1", Disposition.CONTINUE, 2, 3),
            Verdict("p2", Disposition.FRESH, 2, 3),
            Verdict("p3", Disposition.COMPLETED, 2, None),
        ],
    )


def test_recovered_attempts_are_one_more() -> None:
    """Continued and fresh rollouts run under a number that nobody used; completed ones are saved. Covers: I3, I54."""
    ledger = after_restart()
    assert [each.attempt for each in ledger.rollouts.values()] == [3, 3, 2]
    assert ledger["p1"].execution.state is AttemptState.RESTORED
    assert ledger["p2"].execution.state is AttemptState.QUEUED
    assert ledger["p3"].entry.state is Entry.SAVED
    assert ledger.finished == {"p3"}


def test_a_result_that_was_received_only_is_not_saved_by_a_restart() -> None:
    """A living coordinator's ledger keeps it, and acknowledges nothing before a copy exists. Covers: I67."""
    done, _ = a_ledger("p3").received(a_receipt("p3"), {"reward": 3})
    live = [evolve(row, status=LedgerStatus.RECEIVED) for row in done.ledger_rows()]
    verdicts = [Verdict("p3", Disposition.COMPLETED, 2, None)]
    ledger = recovered([a_row("p3", Disposition.COMPLETED)], live, verdicts)
    assert ledger["p3"].entry.state is Entry.RECEIVED
    assert ledger.finished == {"p3"}
    assert not ledger.is_saved("p3")


def test_an_unclaimed_continuation_is_in_the_next_scope() -> None:
    """State restored but not yet claimed is exported again by the next checkpoint. Covers: I62."""
    ledger = after_restart()
    assert [each.episode for each in ledger.candidates()] == [EpisodeId("p1", 3)]
    committed = ledger.parked(["p1"]).released()
    assert committed["p1"].execution.state is AttemptState.RESTORED
    assert committed.dispatched(["p1"])["p1"].execution.state is AttemptState.RUNNING


def test_a_continuation_that_was_turned_away_stays_one() -> None:
    """Its record is in the next part although its `/run` was refused in between. Covers: I60, I62."""
    ledger = after_restart().dispatched(["p1"]).turned_away("p1")
    assert [each.episode for each in ledger.candidates()] == [EpisodeId("p1", 3)]
    assert ledger.parked(["p1"])["p1"].execution.state is AttemptState.RESTORED
    standing = after_restart().dispatched(["p1"]).parked(["p1"]).turned_away("p1")
    assert standing.parked(["p1"])["p1"].restored


def test_a_rollout_is_never_both_completed_and_resumable() -> None:
    """Whatever the order of events, no attempt state is both (checked over every pair of events). Covers: I65."""
    start = a_ledger()

    def result(ledger: Ledger) -> Ledger:
        return ledger.received(a_receipt(), 1)[0]

    changes: list[Callable[[Ledger], Ledger]] = [
        result,
        lambda each: each.parked(["p1"]),
        Ledger.released,
        lambda each: each.turned_away("p1"),
    ]
    for first in changes:
        for second in changes:
            ledger = start
            for change in (first, second):
                try:
                    ledger = change(ledger)
                except Refused:
                    continue
            rollout = ledger["p1"]
            assert rollout.has_result == (rollout.execution.state is AttemptState.COMPLETED)
            assert not (rollout.has_result and rollout.execution.state.resumable)


def test_rows_of_equal_ledgers_are_equal() -> None:
    """The files depend on nothing but the ledger."""
    one, other = after_restart(), after_restart()
    assert one.ledger_rows() == other.ledger_rows()
    settled = {"p1": (Disposition.CONTINUE, "all parts agree")}
    assert one.registry_rows(settled) == other.registry_rows(settled)
    assert evolve(one) == other
