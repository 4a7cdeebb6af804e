"""One checkpoint as its coordinator sees it: all or the one before (protocol.md sections 4 to 6 and 11)."""

from __future__ import annotations

from typing import Any

import pytest

from participants.machines.transaction import (
    TRANSACTION,
    Aborted,
    AcknowledgeResults,
    AllCommitted,
    AllPrepared,
    AllSettled,
    CheckpointRequested,
    ClaimsRead,
    CollectProofs,
    CommitServers,
    DirectoryPublished,
    DispatchFrozen,
    Failed,
    FreezeDispatch,
    HalfSaved,
    PrepareServers,
    ProofGiven,
    ReadClaims,
    ResumeServers,
    SaveHalf,
    ServersResumed,
    SettleExecutions,
    ThawDispatch,
    Transaction,
    TransactionState,
)
from statecore import Refused, Snapshot

ID = "ck-000001-000001"
MEMBERS = frozenset({("agent", "i1"), ("tools", "i2")})
STEPS = (
    CheckpointRequested(ID),
    DispatchFrozen(),
    AllPrepared(),
    AllCommitted(MEMBERS),
    AllSettled(),
    HalfSaved(),
    ProofGiven("agent", "i1"),
    ProofGiven("tools", "i2"),
    DirectoryPublished(),
    ClaimsRead(),
    ServersResumed(),
)
Machine = Snapshot[TransactionState, Transaction]


def after(*events: Any) -> Machine:
    """The transaction after all of `events`, none of them refused."""
    machine = TRANSACTION.start()
    for event in events:
        machine, _ = TRANSACTION.step(machine, event)
    return machine


def code(machine: Machine, event: Any) -> str:
    with pytest.raises(Refused) as caught:
        TRANSACTION.step(machine, event)
    return caught.value.code


def test_a_whole_checkpoint_owes_its_steps_in_order() -> None:
    """Freeze, prepare, commit, settle, save, prove, publish, read the claims, acknowledge, resume, thaw."""
    machine = TRANSACTION.start()
    owed: list[Any] = []
    for event in STEPS:
        machine, effects = TRANSACTION.step(machine, event)
        owed += effects
    assert machine == TRANSACTION.start()
    assert owed == [
        FreezeDispatch(ID),
        PrepareServers(ID),
        CommitServers(ID),
        SettleExecutions(ID),
        SaveHalf(ID),
        CollectProofs(ID),
        ReadClaims(),
        AcknowledgeResults(),
        ResumeServers(ID),
        ThawDispatch(),
    ]


@pytest.mark.parametrize("done", range(1, 9))
def test_s03_before_publishing_any_failure_aborts(done: int) -> None:
    """Whatever fails, the servers are resumed and dispatch goes on; the next checkpoint may begin. Covers: I20, S3"""
    failed, effects = TRANSACTION.step(after(*STEPS[:done]), Failed("a server is gone"))
    assert failed.state is TransactionState.ABORTING and failed.data.reason == "a server is gone"
    assert list(effects) == [ResumeServers(ID), ThawDispatch()]
    assert TRANSACTION.step(failed, Failed("one more"))[0] == failed
    assert TRANSACTION.step(failed, Aborted())[0] == TRANSACTION.start()


@pytest.mark.parametrize("done", [9, 10])
def test_after_publishing_nothing_is_given_up(done: int) -> None:
    """A published checkpoint is not aborted; it only goes on. Covers: S3"""
    assert code(after(*STEPS[:done]), Failed("too late")) == "published"


def test_s32_nothing_is_published_without_every_proof() -> None:
    """Each participant that committed, in the process that committed, after the half was captured. Covers: S32"""
    saved = after(*STEPS[:6])
    assert code(saved, DirectoryPublished()) == "unproved"
    assert code(after(*STEPS[:7]), DirectoryPublished()) == "unproved"
    assert code(saved, ProofGiven("agent", "a successor")) == "not_a_member"
    assert code(saved, ProofGiven("a stranger", "i1")) == "not_a_member"
    assert code(saved, ProofGiven("agent", "i1", "preparing")) == "not_committed"
    assert after(*STEPS[:9]).state is TransactionState.PUBLISHED


@pytest.mark.parametrize("done", range(6))
def test_s32_a_proof_asked_for_earlier_does_not_count(done: int) -> None:
    """Before the framework's half is captured a proof is out of order. Covers: S32"""
    assert code(after(*STEPS[:done]), ProofGiven("agent", "i1")) == "out_of_order"


def test_the_proofs_of_the_checkpoint_before_are_forgotten() -> None:
    """Each checkpoint starts with nothing proved."""
    again = after(*STEPS, *STEPS[:6])
    assert again.data.proved == frozenset() and code(again, DirectoryPublished()) == "unproved"


def test_a_checkpoint_of_no_participant_is_not_one() -> None:
    """With nobody committed there is nothing to prove, so it goes no further."""
    assert code(after(*STEPS[:3]), AllCommitted()) == "nobody_committed"


def test_one_checkpoint_at_a_time() -> None:
    """While one is under way, aborting or resuming, another is refused. Covers: I13"""
    for done in range(1, len(STEPS)):
        assert code(after(*STEPS[:done]), CheckpointRequested("ck-000001-000002")) == "checkpoint_running"
    assert code(after(*STEPS[:3], Failed()), CheckpointRequested("ck-000001-000002")) == "checkpoint_running"


def test_steps_out_of_order_are_refused() -> None:
    """No phase is skipped and none comes back."""
    phases = (DispatchFrozen(), AllPrepared(), AllCommitted(MEMBERS), AllSettled(), HalfSaved(), ServersResumed())
    for done in range(len(STEPS)):
        for event in phases:
            if type(event) is not type(STEPS[done]):
                assert code(after(*STEPS[:done]), event) == "out_of_order"


def test_s67_an_overtaken_coordinator_does_nothing_more() -> None:
    """It neither acknowledges nor resumes, and takes nothing up again. Covers: I98, S44, S62, S67"""
    overtaken, effects = TRANSACTION.step(after(*STEPS[:9]), ClaimsRead(overtaken=True))
    assert (overtaken.state, list(effects)) == (TransactionState.STOPPED, [])
    for event in (*STEPS, Failed(), Aborted()):
        assert code(overtaken, event) == "overtaken"
