"""Every planted fault is found where docs/reference/planted-faults.md says so, and no scenario is forgotten."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from docs.generators.marks import told
from stateful_tests.planted.__main__ import main
from stateful_tests.planted.fault import Fault, Weapon
from stateful_tests.planted.faults import FAULTS, NOT_PLANTED
from stateful_tests.profiles import PROFILE, SEED


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Whoever is killed or overtaken says so; nobody reads it here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


LOOKED_FOR = [each for each in FAULTS if each.quick or (PROFILE != "dev" and not SEED)]


@pytest.mark.parametrize(
    "fault", LOOKED_FOR, ids=lambda each: f"{each.scenario} {each.says} {each.weapon.name}".replace(" ", "_")
)
def test_a_planted_fault_is_found(fault: Fault) -> None:
    """By the last of as many seeds as it says, or by examples; those that take many of these only beyond `dev`."""
    assert fault.found_again(), f"{fault.says}: none of {sorted(fault.broken)}"


def test_every_scenario_is_planted_or_it_is_said_why_not() -> None:
    """One or the other, for each of the numbered scenarios."""
    planted = {each.scenario for each in FAULTS if each.scenario.startswith("S")}
    assert planted | set(NOT_PLANTED) == set(told()["scenarios"])
    assert not planted & set(NOT_PLANTED)


@pytest.mark.parametrize("weapon", [Weapon.SIMULATION, Weapon.RESOURCES])
def test_what_is_not_planted_is_not_found(weapon: Weapon) -> None:
    """A fault that plants nothing is not found: the words alone do not make a finding."""
    nothing = Fault("S0", "nothing", lambda _: None, weapon, ["I10", "I14", "I57"], 1)
    assert nothing.look(1) is None


def test_a_number_that_nobody_has_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing is looked for."""
    assert main(["S1", "S999"]) == 2
    assert capsys.readouterr() == ("", "there is no planted fault of S999\n")
