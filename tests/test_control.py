"""The participant machine by the sequences that matter (protocol.md section 5); test_tables.py walks its table."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from participants.machines.control import (
    PARTICIPANT,
    AnswerAgain,
    ArmLease,
    AwaitReadiness,
    Broke,
    CloseAdmission,
    CommitRequested,
    Control,
    DisarmLease,
    LeaseExpired,
    OpenAdmission,
    PartInstalled,
    PartWritten,
    Phase,
    PrepareFailed,
    PrepareRequested,
    ReadinessReached,
    ReadPart,
    RenewRequested,
    Reopened,
    RestoreFailed,
    RestoreRequested,
    ResumeRequested,
    RetireRequested,
    StopWriting,
    WritePart,
    was_never_open,
)
from statecore import Refused, Snapshot

NOW = 1000.0
IDLE = PARTICIPANT.start(Control(incarnation="this"))
BORN = PARTICIPANT.start(Control(incarnation="this", epoch=2, epoch_required=True), state=Phase.BORN)

Machine = Snapshot[Phase, Control]


def call(kind: Any, checkpoint_id: str = "ck-1", **fields: Any) -> Any:
    """A call of `kind` at NOW with a deadline a minute away."""
    return kind(checkpoint_id, **({"deadline_ts": NOW + 60, "now": NOW} | fields))


def after(machine: Machine, *events: Any) -> Machine:
    """The machine after all of `events`, none of them refused."""
    for event in events:
        machine, _ = PARTICIPANT.step(machine, event)
    return machine


def owed(machine: Machine, event: Any) -> list[Any]:
    return list(PARTICIPANT.step(machine, event)[1])


def code(machine: Machine, event: Any) -> str:
    """The code with which `event` is refused."""
    with pytest.raises(Refused) as caught:
        PARTICIPANT.step(machine, event)
    return caught.value.code


PREPARING = after(IDLE, call(PrepareRequested))
PREPARED = after(PREPARING, ReadinessReached("ck-1", "ready"))
WRITING = after(PREPARED, call(CommitRequested, arguments="here"))
COMMITTED = after(WRITING, PartWritten("ck-1", "here", "written"))
READING = after(IDLE, call(RestoreRequested, "rs-1", arguments="here"))
RESTORED = after(READING, PartInstalled("rs-1", "here", "installed", NOW + 60))
RESUMED = after(COMMITTED, call(ResumeRequested))
OPEN = {"preparing": PREPARING, "prepared": PREPARED, "writing": WRITING, "committed": COMMITTED}
each_open = pytest.mark.parametrize("machine", OPEN.values(), ids=OPEN.keys())


def test_a_whole_checkpoint_in_order() -> None:
    """Prepare closes and waits, commit writes, resume stops the write and opens: effects in the order they are owed."""
    assert owed(IDLE, call(PrepareRequested)) == [CloseAdmission(), ArmLease(1660.0), AwaitReadiness("ck-1")]
    assert owed(PREPARED, call(CommitRequested, arguments="here")) == [ArmLease(1660.0), WritePart("ck-1", "here")]
    assert owed(COMMITTED, call(ResumeRequested)) == [
        StopWriting("ck-1"),
        OpenAdmission(),
        DisarmLease(),
        Reopened(idempotent=False),
    ]
    assert RESUMED.state is Phase.IDLE
    assert RESUMED.data == evolve(IDLE.data, ended=IDLE.data.ended.with_id("ck-1"))


def test_prepare_commit_and_restore_leave_it_closed() -> None:
    """Only resume and the end of the lease owe an opening; no other accepted call does. Covers: I17"""
    for machine in (IDLE, PREPARING, PREPARED, WRITING, COMMITTED, READING, RESTORED, BORN):
        for kind in (PrepareRequested, CommitRequested, RestoreRequested, RenewRequested, RetireRequested):
            try:
                _, effects = PARTICIPANT.step(machine, call(kind, epoch=2))
            except Refused:
                continue
            assert OpenAdmission() not in effects


@each_open
def test_one_checkpoint_is_open_at_a_time(machine: Machine) -> None:
    """While an id is open every call of another one is a conflict, resume and retire too. Covers: I13"""
    for kind in (PrepareRequested, CommitRequested, RestoreRequested, ResumeRequested, RenewRequested, RetireRequested):
        assert code(machine, call(kind, "other")) == "checkpoint_conflict"


def test_another_id_does_not_get_the_answer_of_the_one_that_is_open() -> None:
    """Not even with the very arguments of what is committed, or restored. Covers: I13"""
    assert code(COMMITTED, call(CommitRequested, "ck-2", arguments="here")) == "checkpoint_conflict"
    assert code(RESTORED, call(RestoreRequested, "rs-2", arguments="here")) == "checkpoint_conflict"


def test_an_ended_id_is_answered_while_another_one_is_read() -> None:
    """A resume that comes again is answered as before and stops no restore. Covers: I15"""
    reading = after(IDLE, call(ResumeRequested, "ck-1"), call(RestoreRequested, "rs-1", arguments="here"))
    assert PARTICIPANT.step(reading, call(ResumeRequested, "ck-1")) == (reading, (Reopened(idempotent=True),))


@pytest.mark.parametrize("how", [call(ResumeRequested), LeaseExpired("ck-1")], ids=["resume", "lease"])
@each_open
def test_an_ended_id_never_acts_again(machine: Machine, how: Any) -> None:
    """After resume, abort or lease expiry the id can neither close, write, restore nor be renewed. Covers: I14, I48"""
    ended = after(machine, how)
    assert ended.state is Phase.IDLE
    for kind in (PrepareRequested, CommitRequested, RestoreRequested, RenewRequested):
        assert code(ended, call(kind)) == "stale_checkpoint"
    assert code(ended, PartWritten("ck-1", "here", "written")) == "checkpoint_ended"
    assert owed(ended, call(ResumeRequested)) == [Reopened(idempotent=True)]
    reopened = after(ended, call(PrepareRequested, "ck-2"))
    assert owed(reopened, call(ResumeRequested)) == [Reopened(idempotent=True)]
    assert after(reopened, call(ResumeRequested)) == reopened


def test_an_id_resumed_before_it_was_seen_is_stale() -> None:
    """The abort that overtakes its prepare fences the id; the late prepare closes nothing. Covers: I14"""
    aborted, effects = PARTICIPANT.step(IDLE, call(ResumeRequested))
    assert list(effects) == [Reopened(idempotent=True)]
    assert code(aborted, call(PrepareRequested)) == "stale_checkpoint"


def test_one_mark_fences_all_older_ids_of_our_coordinator() -> None:
    """After ck-000001-000007 every older checkpoint id is stale, and restore ids have a mark of their own."""
    machine = after(IDLE, call(ResumeRequested, "ck-000001-000007"))
    assert code(machine, call(PrepareRequested, "ck-000001-000006")) == "stale_checkpoint"
    assert after(machine, call(PrepareRequested, "ck-000001-000008")).state is Phase.PREPARING
    assert after(machine, call(PrepareRequested, "ck-000002-000001")).state is Phase.PREPARING
    assert after(machine, call(RestoreRequested, "rs-000001-000001", arguments="x")).data.reading == "rs-000001-000001"


def test_the_same_call_gets_the_same_answer() -> None:
    """Prepare, commit and restore repeated with equal arguments: the recorded reply, nothing else owed. Covers: I15"""
    late: dict[str, Any] = {"deadline_ts": NOW - 1}
    for machine in (PREPARED, WRITING, COMMITTED):
        assert owed(machine, call(PrepareRequested, "ck-1", **late)) == [AnswerAgain("ready")]
    assert owed(COMMITTED, call(CommitRequested, "ck-1", arguments="here", **late)) == [AnswerAgain("written")]
    assert owed(RESTORED, call(RestoreRequested, "rs-1", arguments="here", **late)) == [AnswerAgain("installed")]
    for machine, event in (
        (COMMITTED, call(PrepareRequested, deadline_ts=NOW + 900)),
        (COMMITTED, call(CommitRequested, arguments="here", deadline_ts=NOW + 900)),
        (RESTORED, call(RestoreRequested, "rs-1", arguments="here", deadline_ts=NOW + 900)),
    ):
        assert after(machine, event) == machine, "a replay does not extend the lease"


def test_s07_readiness_after_the_checkpoint_ended_closes_nothing() -> None:
    """A prepare that still waits when its checkpoint ends finds out and changes nothing. Covers: S7"""
    ended = after(PREPARING, call(ResumeRequested))
    assert code(ended, ReadinessReached("ck-1", "ready")) == "checkpoint_ended"
    again = after(ended, call(PrepareRequested, "ck-2"))
    assert code(again, ReadinessReached("ck-1", "ready")) == "checkpoint_ended"


def test_s18_nothing_of_an_aborted_checkpoint_outlives_it() -> None:
    """The abort of a prepare forgets everything but the fence; the next checkpoint starts from nothing. Covers: S18"""
    aborted = after(PREPARED, call(ResumeRequested))
    assert aborted.data == evolve(IDLE.data, ended=aborted.data.ended)
    assert after(aborted, call(PrepareRequested, "ck-2")).data.prepared is None


def test_s25_a_failed_restore_leaves_no_server_closed() -> None:
    """It opens, its id is not fenced, and the same restore may be tried again. Covers: S25, I51"""
    failed, effects = PARTICIPANT.step(READING, RestoreFailed("rs-1"))
    assert list(effects) == [OpenAdmission()]
    assert failed == IDLE
    assert after(failed, call(RestoreRequested, "rs-1", arguments="here")) == READING


def test_a_failed_restore_of_a_born_server_stays_closed_until_resume() -> None:
    """Nothing was restored, so nothing may run; resume opens it. Covers: I51"""
    reading = after(BORN, call(RestoreRequested, "rs-1", epoch=2, arguments="here"))
    failed, effects = PARTICIPANT.step(reading, RestoreFailed("rs-1"))
    assert (failed, list(effects)) == (BORN, [])
    assert OpenAdmission() in owed(failed, call(ResumeRequested, "rs-1", epoch=2))


@pytest.mark.parametrize("start", [IDLE, BORN], ids=["idle", "born"])
def test_a_restore_under_way_keeps_the_server_to_itself(start: Machine) -> None:
    """Until it is installed or has failed no other restore, prepare or resume gets in. Covers: I13, I17"""
    reading = after(start, call(RestoreRequested, "rs-1", epoch=2, arguments="here"))
    assert code(reading, call(RestoreRequested, "rs-2", epoch=2)) == "checkpoint_conflict"
    assert code(reading, call(ResumeRequested, "rs-2", epoch=2)) == "checkpoint_conflict"
    assert code(reading, call(ResumeRequested, "rs-1", epoch=2)) == "checkpoint_conflict"
    expected = "checkpoint_conflict" if start is IDLE else "invalid_phase"
    assert code(reading, call(PrepareRequested, epoch=2)) == expected
    assert code(reading, PartInstalled("rs-2", "here", "installed")) == "checkpoint_ended"
    assert code(start, PartInstalled("rs-1", "here", "installed")) == "checkpoint_ended"
    assert owed(start, call(RestoreRequested, "rs-1", epoch=2, arguments="here")) == [
        CloseAdmission(),
        ReadPart("rs-1", "here"),
    ]


def test_s26_a_second_commit_with_another_directory_is_a_conflict() -> None:
    """Whether the first is still being written or done; the same one is awaited or answered again. Covers: S26"""
    assert code(WRITING, call(CommitRequested, arguments="there")) == "checkpoint_conflict"
    assert code(COMMITTED, call(CommitRequested, arguments="there")) == "checkpoint_conflict"
    assert WritePart("ck-1", "here") in owed(WRITING, call(CommitRequested, arguments="here"))
    assert code(WRITING, PartWritten("ck-1", "there", "written")) == "checkpoint_ended"


def test_s29_restore_needs_an_idle_server() -> None:
    """With a checkpoint open a restore is refused, and so is a prepare or commit between restore and resume."""
    for machine in OPEN.values():
        assert code(machine, call(RestoreRequested, arguments="here")) == "invalid_phase"
    assert code(RESTORED, call(PrepareRequested, "rs-1")) == "invalid_phase"
    assert code(RESTORED, call(CommitRequested, "rs-1")) == "invalid_phase"
    assert code(RESTORED, call(RestoreRequested, "rs-1", arguments="there")) == "checkpoint_conflict"


@each_open
def test_lease_expiry_reopens_and_fences(machine: Machine) -> None:
    """The server opens by itself, whatever phase it is in; an expiry of another checkpoint does nothing. Covers: I21"""
    expired, effects = PARTICIPANT.step(machine, LeaseExpired("ck-1"))
    assert list(effects) == [StopWriting("ck-1"), OpenAdmission(), DisarmLease()]
    assert expired.state is Phase.IDLE and "ck-1" in expired.data.ended
    assert code(machine, LeaseExpired("another")) == "checkpoint_ended"
    assert code(expired, LeaseExpired("ck-1")) == "checkpoint_ended"


def test_the_lease_never_shrinks_while_open() -> None:
    """An earlier deadline leaves the lease as it is, a later one extends it; renew owes the timer."""
    assert PREPARING.data.lease_until == 1660.0
    assert after(PREPARING, call(RenewRequested, deadline_ts=NOW + 1)).data.lease_until == 1660.0
    assert owed(COMMITTED, call(RenewRequested, deadline_ts=NOW + 90)) == [ArmLease(1690.0)]
    assert after(PREPARING, call(PrepareRequested, deadline_ts=NOW + 90)).data.lease_until == 1690.0
    assert code(IDLE, call(RenewRequested)) == "invalid_phase"


@pytest.mark.parametrize("kind", [CommitRequested, RestoreRequested, RetireRequested])
def test_a_late_commit_restore_or_retire_is_refused(kind: Any) -> None:
    """Past its deadline such a call does nothing; a late prepare or resume is answered. Covers: I18"""
    machine = PREPARED if kind is CommitRequested else IDLE
    assert code(machine, call(kind, deadline_ts=NOW)) == "deadline_exceeded"
    assert after(IDLE, call(PrepareRequested, deadline_ts=NOW - 5)).state is Phase.PREPARING
    assert after(PREPARED, call(ResumeRequested, deadline_ts=NOW - 5)).state is Phase.IDLE


def test_retire_and_forget_work_for_an_ended_id_but_not_while_one_is_open() -> None:
    """They never look at the fence; an open checkpoint has to be resumed first; after a restore they keep the lease."""
    assert after(RESUMED, call(RetireRequested)) == RESUMED
    for machine in OPEN.values():
        assert code(machine, call(RetireRequested)) == "invalid_phase"
    assert after(RESTORED, call(RetireRequested, "rs-1", deadline_ts=NOW + 90)).data.lease_until == 1690.0


def test_a_prepare_that_broke_reopens_and_may_be_tried_again() -> None:
    """Its id is not fenced. Covers: I20"""
    broke, effects = PARTICIPANT.step(PREPARING, PrepareFailed("ck-1"))
    assert (broke, list(effects)) == (IDLE, [OpenAdmission(), DisarmLease()])


@pytest.mark.parametrize("machine", [IDLE, PREPARED, COMMITTED, RESTORED, RESUMED])
@pytest.mark.parametrize(
    "kind", [PrepareRequested, CommitRequested, RestoreRequested, ResumeRequested, RenewRequested, RetireRequested]
)
def test_s59_a_message_for_another_process_has_no_effect(machine: Machine, kind: Any) -> None:
    """The call that was meant for a predecessor is refused before anything else is looked at. Covers: S59"""
    assert code(machine, call(kind, incarnation="the one before")) == "stale_incarnation"


def test_epochs_are_checked_where_they_are_sent() -> None:
    """A born server takes its own epoch only; others remember the highest and refuse any lower one. Covers: S44"""
    for wrong in (None, 1, 3):
        assert code(BORN, call(ResumeRequested, epoch=wrong)) == "stale_epoch"
    heard = after(IDLE, call(PrepareRequested, epoch=5))
    assert heard.data.epoch == 5
    assert code(heard, call(RenewRequested, epoch=4)) == "stale_epoch"
    assert after(heard, call(RenewRequested)).data.epoch == 5
    assert after(heard, call(RenewRequested, epoch=6)).data.epoch == 6


def test_a_born_server_is_closed_until_its_first_restore_or_resume() -> None:
    """It prepares, commits and renews nothing, calls itself idle, and opens by resume alone. Covers: S23"""
    assert BORN.state.wire == "idle"
    for kind in (PrepareRequested, CommitRequested, RenewRequested):
        assert code(BORN, call(kind, epoch=2)) == "invalid_phase"
    opened, effects = PARTICIPANT.step(BORN, call(ResumeRequested, "rs-000002-000001", epoch=2))
    assert opened.state is Phase.IDLE and OpenAdmission() in effects
    restored = after(
        BORN,
        call(RestoreRequested, "rs-000002-000001", epoch=2, arguments="here"),
        PartInstalled("rs-000002-000001", "here", "installed", NOW + 60),
    )
    assert restored.state is Phase.RESTORED


def test_a_server_whose_lease_timer_died_refuses_everything_and_holds_nobody() -> None:
    """It opens what it closed and answers every call with its reason; a born one stays shut."""
    broken, effects = PARTICIPANT.step(COMMITTED, Broke("the timer died"))
    assert list(effects) == [StopWriting("ck-1"), OpenAdmission()]
    for kind in (PrepareRequested, CommitRequested, RestoreRequested, ResumeRequested, RenewRequested, RetireRequested):
        assert code(broken, call(kind)) == "participant_broken"
    assert owed(BORN, Broke("the timer died")) == []


def test_a_server_that_breaks_publishes_nothing_it_was_writing() -> None:
    """It opens, things move again, and a part of that is no part of any moment. Covers: I48"""
    writing = after(PREPARED, call(CommitRequested, arguments="here"))
    assert owed(writing, Broke("the timer died")) == [StopWriting("ck-1"), OpenAdmission()]


def test_a_server_that_breaks_while_it_restores_opens() -> None:
    """The restore had closed it, and what comes of it is refused from now on: else nobody ever opened it.

    Covers: I20, S25
    """
    broken, effects = PARTICIPANT.step(READING, Broke("the timer died"))
    assert list(effects) == [OpenAdmission()]
    assert code(broken, RestoreFailed("rs-1")) == "participant_broken"


def test_a_born_server_that_breaks_goes_on_refusing() -> None:
    """It stays shut, so what it held it would hold for ever; one that had opened serves. Covers: S23"""
    assert [phase for phase in Phase if was_never_open(phase, is_open=False)] == [Phase.BORN, Phase.BROKEN]
    assert not any(was_never_open(phase, is_open=True) for phase in Phase)


def test_a_refusal_says_what_was_tried_and_what_is_allowed() -> None:
    """The words carry id, phase and state, so that whoever reads a log knows what to do."""
    with pytest.raises(Refused) as caught:
        PARTICIPANT.step(PREPARED, call(PrepareRequested, "other"))
    assert "checkpoint_conflict" in str(caught.value) and "'ck-1' is active" in str(caught.value)
    assert "ResumeRequested" in caught.value.allowed
    with pytest.raises(Refused, match="not valid in phase prepared; resume first"):
        PARTICIPANT.step(PREPARED, call(RetireRequested))
