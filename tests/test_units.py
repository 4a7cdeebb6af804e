"""Rollouts that share state are decided as one: who is in a unit, and who starts over or is left out with whom."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from participants.coordination.ledger import Ledger
from participants.coordination.recovery import Settled, Verdict, classify_units, settle_units
from participants.coordination.trainer import Dispatch
from participants.coordination.units import EVERYBODY, Sharing, torn, unit_of, whole_units, widest
from participants.records.records import Disposition, RegistryRow

COMPLETED, CONTINUE, FRESH, QUEUED = Disposition.COMPLETED, Disposition.CONTINUE, Disposition.FRESH, Disposition.QUEUED


def row(rollout_id: str, unit: str | None, disposition: Disposition = CONTINUE) -> RegistryRow:
    return RegistryRow(
        rollout_id=rollout_id, attempt=2, task={}, task_digest="d", target="env", unit=unit, disposition=disposition
    )


def verdict(rollout_id: str, disposition: Disposition, reason: str = "as found") -> Verdict:
    following = None if disposition is COMPLETED else 3
    return Verdict(rollout_id, disposition, 2, following, reason, weak=1, untracked=1)


# --- who shares with whom


@pytest.mark.parametrize(
    ("declared", "shared"),
    [
        ([], Sharing.PRIVATE),
        (["", "private"], Sharing.PRIVATE),
        (["private", "episode"], Sharing.EPISODE),
        (["group", "", "episode"], Sharing.GROUP),
        (["group", "global"], Sharing.GLOBAL),
        (["group", "tenant"], Sharing.GLOBAL),
    ],
)
def test_who_shares_most_decides(declared: list[str], shared: Sharing) -> None:
    """The widest of all servers counts; a word that nobody here knows may mean everybody. Covers: I86."""
    assert widest(declared) is shared


def test_the_unit_of_a_rollout() -> None:
    """Its group where groups share, everybody where all do, else it is alone. Covers: I86."""
    units = {each: (unit_of("g1", each), unit_of(None, each)) for each in Sharing}
    assert units == {
        Sharing.PRIVATE: (None, None),
        Sharing.EPISODE: (None, None),
        Sharing.GROUP: ("g1", None),
        Sharing.GLOBAL: (EVERYBODY, EVERYBODY),
    }


# --- decided as one


@pytest.mark.parametrize(
    ("others", "becomes"),
    [
        ([CONTINUE], CONTINUE),
        ([FRESH], FRESH),
        ([CONTINUE, FRESH], FRESH),
        ([COMPLETED], CONTINUE),
        ([QUEUED], CONTINUE),
        ([COMPLETED, QUEUED, FRESH], FRESH),
    ],
)
def test_s69_one_fresh_member_makes_all_fresh(others: list[Disposition], becomes: Disposition) -> None:
    """Whoever is completed or has not begun yet tears nothing. Covers: I86."""
    settled = {"p0": Settled(CONTINUE, "all parts agree", weak=2)}
    settled |= {f"p{number}": Settled(each) for number, each in enumerate(others, 1)}
    decided = settle_units(settled, dict.fromkeys(settled, "g1"))
    assert decided["p0"].disposition is becomes
    assert [decided[f"p{number}"].disposition for number, _ in enumerate(others, 1)] == [
        FRESH if each is CONTINUE and FRESH in others else each for each in others
    ]


def test_a_torn_unit_says_who_is_to_blame() -> None:
    """The reason names the member that starts over; nothing that was accepted on trust is counted for it."""
    settled = {"p1": Settled(CONTINUE, "all parts agree", weak=2, untracked=1), "p2": Settled(FRESH, "restart: tools")}
    decided = settle_units(settled, {"p1": "g1", "p2": "g1"})
    assert decided["p1"] == Settled(FRESH, "it shares state with p2, which starts fresh")
    assert decided["p2"] == settled["p2"]


@pytest.mark.parametrize("units", [{"p1": "g1", "p2": "g2"}, {"p1": None, "p2": None}, {}])
def test_a_unit_does_not_depend_on_another(units: Mapping[str, str | None]) -> None:
    """What becomes of one says nothing of the others; a rollout that is alone is not one unit with another such."""
    settled = {"p1": Settled(CONTINUE, "all parts agree"), "p2": Settled(FRESH)}
    assert settle_units(settled, units) == settled
    assert torn({}) == {}


def test_s69_a_restart_decides_units_as_one() -> None:
    """A record that turns out not to agree takes its whole unit with it: they start fresh under N+1. Covers: I86."""
    rows = [row("p1", "g1"), row("p2", "g1"), row("p3", "g2"), row("p4", None)]
    verdicts = [verdict("p1", CONTINUE), verdict("p2", FRESH), verdict("p3", CONTINUE), verdict("p4", CONTINUE)]
    decided = classify_units(verdicts, rows)
    assert decided[0] == Verdict("p1", FRESH, 2, 3, "it shares state with p2, which starts fresh")
    assert decided[1:] == tuple(verdicts[1:])


def test_a_restart_knows_who_was_queued() -> None:
    """A rollout that had not begun is fresh after a restart, and that is no reason for others. Covers: I86."""
    rows = [row("p1", "g1"), row("p2", "g1", QUEUED), row("p3", "g1", COMPLETED)]
    verdicts = (verdict("p1", CONTINUE), verdict("p2", FRESH), verdict("p3", COMPLETED))
    assert classify_units(verdicts, rows) == verdicts


def test_the_registry_names_units() -> None:
    """A row holds the unit, so that a restart can decide as the checkpoint did."""
    ledger, _ = Ledger().registered([Dispatch("p1", {}, "env", group="g1"), Dispatch("p2", {}, "env")])
    assert [each.unit for each in ledger.registry_rows({}, Sharing.GROUP)] == ["g1", None]
    assert [each.unit for each in ledger.registry_rows({}, Sharing.GLOBAL)] == [EVERYBODY, EVERYBODY]
    assert [each.unit for each in ledger.registry_rows({})] == [None, None]


# --- left out as one


@pytest.mark.parametrize(
    ("stragglers", "left_out"),
    [([], ""), (["p1"], "p1 p2"), (["p3"], "p3"), (["p4"], "p4"), (["p2", "p3"], "p1 p2 p3"), (["unknown"], "unknown")],
)
def test_a_straggler_is_left_out_with_its_unit(stragglers: list[str], left_out: str) -> None:
    """And with nobody else; one that is alone is left out alone. Covers: I86."""
    units = {"p1": "g1", "p2": "g1", "p3": "g2", "p4": None, "p5": None}
    assert whole_units(stragglers, units) == frozenset(left_out.split())
