"""The tables together, at random: never both completed and resumable, and an ended checkpoint never acts again.

The rules and what they are held against are in `control_rules` (a participant) and `fleet` (rollouts, results and a
coordinator on top). The second half shows that the checks can fail: one cell is changed, and it is found out.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from attrs import evolve
from hypothesis import HealthCheck, settings
from hypothesis import Phase as HypothesisPhase
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from models.twins import without_rule
from participants.machines.attempt import ATTEMPT, AttemptState, Completed, TurnedAway
from participants.machines.control import (
    ENDED_MEANWHILE,
    PARTICIPANT,
    STALE,
    ArmLease,
    CommitRequested,
    LeaseExpired,
    OpenAdmission,
    Phase,
    PrepareRequested,
    RestoreFailed,
    ResumeRequested,
    already_reopened,
    committed_again,
    expire,
    fresh,
    is_current,
    is_ended,
    meant,
    open_checkpoint,
    prepared_again,
    this,
    unless_reading,
)
from participants.machines.gate import GATE, Arrived, GateState, Stirred, admit, stir
from participants.machines.handoff import HANDOFF, LEDGER_ENTRY, Acknowledged, Entry, Handoff, Received, drop, owe, take
from participants.machines.resource_session import RESOURCE_SESSION, Mutated, SessionState, advance
from participants.machines.transaction import TRANSACTION, Aborted, DirectoryPublished, TransactionState, read_claims
from statecore import go, stay, when
from stateful_tests.control_rules import ControlRules, Tables
from stateful_tests.fleet import Draft, Fleet
from stateful_tests.rollout_rules import Execution, Rollout


def test_control_calls_in_any_order() -> None:
    """Three servers under any calls at all keep their promises. Covers: I13, I14, I15, I16, I17, I20, I21, I23, S59"""
    run_state_machine_as_test(ControlRules)


def test_rollouts_results_and_checkpoints_in_any_order() -> None:
    """Rollouts, results, checkpoints and crashes in any order: never both completed and resumable.

    Covers: I3, I6, I10, I11, I13, I14, I15, I16, I17, I20, I23, I24, I35, I36, I60, I65, I66, I67, I68, I69, I70
    Covers: S3, S32
    """
    run_state_machine_as_test(Fleet)


UNTIL_FOUND = settings(
    max_examples=2000,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[HypothesisPhase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


class Watched(Fleet):
    """The fleet, with what its runs have come to written down."""

    seen: ClassVar[set[str]] = set()

    def decide(self, event: object) -> bool:
        taken = super().decide(event)
        if isinstance(event, DirectoryPublished) and self.draft is not None:
            self.seen.add("published" if taken else "not proved")
            self.seen.update(f"{row} is published" for row in self.draft.rows.values() if taken)
            if taken and any(each.excused for _, each in self.everything()):
                self.seen.add("published while a straggler moves")
        elif isinstance(event, Aborted):
            self.seen.add("aborted")
        return taken

    def _recover(self, name: str, rollout: Rollout, base: Draft | None) -> None:
        super()._recover(name, rollout, base)
        self.seen.add(f"{rollout.newest.at.state} after a crash")

    def _acknowledge(self, each: Execution, receipt: str) -> None:
        super()._acknowledge(each, receipt)
        self.seen.add("acknowledged")


def test_the_rules_get_somewhere() -> None:
    """The runs are not empty: checkpoints are published with all kinds of rows, aborted, unproved, gone on from."""
    run_state_machine_as_test(Watched, settings=settings(UNTIL_FOUND, max_examples=150))
    assert Watched.seen >= {
        "published",
        "not proved",
        "aborted",
        "continue is published",
        "completed is published",
        "queued is published",
        "restored after a crash",
        "queued after a crash",
        "acknowledged",
        "published while a straggler moves",
    }


def _open_unfenced(data: Any, _event: Any) -> Any:
    gone = dict.fromkeys(["checkpoint_id", "lease_until", "writing", "prepared", "committed"])
    return evolve(data, **gone, left_out=frozenset()), [OpenAdmission()]


def _open_without_closing(data: Any, event: Any) -> Any:
    data, effects = open_checkpoint(data, event)
    return data, [effect for effect in effects if isinstance(effect, ArmLease)]


def _expire_with_its_list(data: Any, event: Any) -> Any:
    after, effects = expire(data, event)
    return evolve(after, left_out=data.left_out), effects


EXPIRED_WITH_ITS_LIST = when(is_current, go(Phase.IDLE, do=_expire_with_its_list), otherwise=ENDED_MEANWHILE)
FOR_ANYBODY = when(is_ended, STALE, otherwise=unless_reading(go(Phase.PREPARING, do=open_checkpoint)))
OPEN_PHASES = (Phase.PREPARING, Phase.PREPARED, Phase.COMMITTED)
MUTANTS = {
    "a lease ends without a fence": (
        "I14",
        Tables(participant=without_rule(
            PARTICIPANT, {(phase, LeaseExpired): go(Phase.IDLE, do=_open_unfenced) for phase in OPEN_PHASES}
        )),
    ),
    "an unseen abort leaves no fence": (
        "I14",
        Tables(participant=without_rule(
            PARTICIPANT, {(Phase.IDLE, ResumeRequested): meant(stay(do=already_reopened))}
        )),
    ),
    "another id is answered while one is open": (
        "I13",
        Tables(participant=without_rule(
            PARTICIPANT,
            {(phase, PrepareRequested): fresh(stay(do=prepared_again)) for phase in (Phase.PREPARED, Phase.COMMITTED)},
        )),
    ),
    "another commit gets the old answer": (
        "S26",
        Tables(participant=without_rule(
            PARTICIPANT, {(Phase.COMMITTED, CommitRequested): this(stay(do=committed_again))}
        )),
    ),
    "prepare leaves it open": (
        "I16",
        Tables(participant=without_rule(
            PARTICIPANT, {(Phase.IDLE, PrepareRequested): fresh(go(Phase.PREPARING, do=_open_without_closing))}
        )),
    ),
    "a repeated prepare is not answered again": (
        "I15",
        Tables(participant=without_rule(PARTICIPANT, {(Phase.COMMITTED, PrepareRequested): this(stay())})),
    ),
    "a call for its predecessor is taken": (
        "S44|S59",
        Tables(participant=without_rule(
            PARTICIPANT, {(Phase.IDLE, PrepareRequested): FOR_ANYBODY}
        )),
    ),
    "who was left out stays so": (
        "S18",
        Tables(participant=without_rule(
            PARTICIPANT, {(phase, LeaseExpired): EXPIRED_WITH_ITS_LIST for phase in OPEN_PHASES}
        )),
    ),
    "a failed restore stays closed": (
        "I16",
        Tables(participant=without_rule(PARTICIPANT, {(Phase.IDLE, RestoreFailed): stay()})),
    ),
    "a closed gate admits": (
        "I23",
        Tables(gate=without_rule(GATE, {(GateState.QUIET, Arrived): go(GateState.DRAINING, do=admit)})),
    ),
    "what is quiet stirs while it is closed": (
        "I24",
        Tables(gate=without_rule(GATE, {(GateState.QUIET, Stirred): go(GateState.DRAINING, do=stir)})),
    ),
    "a committed attempt completes": (
        "I65",
        Tables(attempt=without_rule(ATTEMPT, {(AttemptState.COMMITTED, Completed): go(AttemptState.COMPLETED)})),
    ),
    "a continuation is forgotten when it is turned away": (
        "turned away",
        Tables(attempt=without_rule(ATTEMPT, {(AttemptState.RUNNING, TurnedAway): go(AttemptState.QUEUED)})),
    ),
    "a repeated operation is applied again": (
        "I36",
        Tables(session=without_rule(RESOURCE_SESSION, {(SessionState.LIVE, Mutated): stay(do=advance)})),
    ),
    "it is published without proof": (
        "S32",
        Tables(transaction=without_rule(
            TRANSACTION,
            {(TransactionState.VALIDATING, DirectoryPublished): go(TransactionState.PUBLISHED, do=read_claims)},
        )),
    ),
    "any receipt releases": (
        "I66",
        Tables(handoff=without_rule(HANDOFF, {(Handoff.RETAINED, Acknowledged): go(Handoff.RELEASED, do=drop)})),
    ),
    "a result is taken twice": (
        "I68",
        Tables(ledger_entry=without_rule(LEDGER_ENTRY, {(Entry.RECEIVED, Received): stay(do=take)})),
    ),
    "a result is acknowledged before it is saved": (
        "I67",
        Tables(ledger_entry=without_rule(LEDGER_ENTRY, {(Entry.RECEIVED, Received): stay(do=owe)})),
    ),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda name: name.replace(" ", "_"))
def test_one_changed_cell_is_found_out(mutant: str) -> None:
    """With one cell changed the same rules fail, and say which promise is broken."""
    broken, tables = MUTANTS[mutant]
    rules: type[ControlRules] = Fleet if tables.participant is PARTICIPANT else ControlRules
    machine: type[RuleBasedStateMachine] = type("Mutant", (rules,), {"tables": tables})
    with pytest.raises(AssertionError, match=broken):
        run_state_machine_as_test(machine, settings=UNTIL_FOUND)
