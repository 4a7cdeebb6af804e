"""A table with one thing wrong in one cell, and the command that asks whether tests notice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from statecore import Refused
from statecore.cli import UsageError, main
from statecore.mutate import Known, Survey, read_known, survey
from statecore.mutation import applied, mutations
from tests import cell_mutations
from tests.sample_tables import HANDOFF, Acknowledged, Finished, Handoff
from tests.table_walks import walks

GOOD = """
from tests.sample_tables import HANDOFF, Acknowledged, Finished, Handoff, SendResult
from statecore import Refused
import pytest

def refused(machine, event):
    with pytest.raises(Refused) as caught:
        HANDOFF.step(machine, event)
    return caught.value.code

@pytest.mark.parametrize("receipt", ["r1", "r2"])
def test_all(receipt):
    start = HANDOFF.start()
    assert refused(start, Acknowledged(receipt)) == "not_finished"
    kept, owed = HANDOFF.step(start, Finished(receipt))
    assert (kept.state, kept.data, owed) == (Handoff.RETAINED, receipt, (SendResult(receipt),))
    assert HANDOFF.step(kept, Finished("other")) == (kept, (SendResult(receipt),))
    assert refused(kept, Acknowledged("other")) == "receipt_mismatch"
    released, owed = HANDOFF.step(kept, Acknowledged(receipt))
    assert (released.state, owed) == (Handoff.RELEASED, ())
    assert refused(released, Finished(receipt)) == "result_released"
    assert HANDOFF.step(released, Acknowledged(receipt)) == (released, ())
"""
WEAK = GOOD.replace('    assert refused(released, Finished(receipt)) == "result_released"\n', "")


def written(folder: Path, text: str) -> str:
    path = folder / "test_handoff_here.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_every_cell_is_mutated_in_every_way() -> None:
    """Targets, codes, refusals, guards and what is done; each under a key of its own, none the table's own cell."""
    found = {each.key.removeprefix("handoff "): each for each in mutations(HANDOFF)}
    assert len(found) == len(mutations(HANDOFF))
    assert [key for key in found if key.startswith("retained Acknowledged")] == [
        "retained Acknowledged: as if is_exact always held",
        "retained Acknowledged: as if is_exact never held",
        "retained Acknowledged: leads to running instead of released (is_exact)",
        "retained Acknowledged: leads to retained instead of released (is_exact)",
        "retained Acknowledged: refuses with result_released instead of receipt_mismatch (not is_exact)",
        "retained Acknowledged: accepts what it refuses with receipt_mismatch (not is_exact)",
    ]
    assert "running Finished: does not do keep" in found
    assert {(each.state, each.event) for each in found.values()} == {
        (state, event) for state, row in HANDOFF.cells.items() for event in row
    }
    cells: Any = HANDOFF.cells
    assert all(each.cell != cells[each.state][each.event] for each in found.values())


def test_a_mutation_is_in_force_inside_only() -> None:
    """Everybody who has the table sees it, whatever comes out of the block; afterwards it is what it was."""
    (mutation,) = (each for each in mutations(HANDOFF) if "always held" in each.says)
    kept, _ = HANDOFF.step(HANDOFF.start(), Finished("r1"))
    own = HANDOFF.cells[Handoff.RETAINED][Acknowledged]
    with pytest.raises(ZeroDivisionError), applied(mutation):
        assert HANDOFF.step(kept, Acknowledged("wrong"))[0].state is Handoff.RELEASED
        assert HANDOFF.cells[Handoff.RETAINED][Acknowledged] is mutation.cell
        raise ZeroDivisionError
    assert HANDOFF.cells[Handoff.RETAINED][Acknowledged] is own
    with pytest.raises(Refused):
        HANDOFF.step(kept, Acknowledged("wrong"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, in a process of its own: pytest in pytest would be confused."""
    command = [sys.executable, "-m", "statecore.cli", "mutate", *arguments]
    root = Path(__file__).parents[1]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=root)


def test_the_command_says_what_no_test_notices(tmp_path: Path) -> None:
    """A suite that sees everything passes; one that forgot a cell is told which mutations it lets through."""
    good = run("tests.sample_tables:HANDOFF", written(tmp_path, GOOD))
    assert (good.returncode, good.stdout) == (0, "18 mutations: 18 noticed, 0 known, 0 not noticed\n"), good.stderr
    weak = run("tests/sample_tables.py:HANDOFF", written(tmp_path, WEAK))  # by its file: the one that the tests import
    assert weak.returncode == 1
    assert weak.stdout.splitlines() == [
        "survives: handoff released Finished: refuses with not_finished instead of result_released",
        "survives: handoff released Finished: accepts what it refuses with result_released",
        "18 mutations: 16 noticed, 0 known, 2 not noticed",
    ]


def test_a_suite_that_fails_by_itself_shows_nothing(tmp_path: Path) -> None:
    """So it is a wrong command line, and so are no tests at all, a file that is not there, and a module of no table."""
    failing = run("tests.sample_tables:HANDOFF", written(tmp_path, GOOD.replace('"not_finished"', '"finished"')))
    assert (failing.returncode, failing.stdout) == (2, "")
    assert "test_all[r1] fails with nothing changed" in failing.stderr
    empty = written(tmp_path, "x = 1")
    apart = tmp_path / "test_apart.py"
    apart.write_text("def test_one(): pass", encoding="utf-8")
    for target, test, why in (
        ("tests.sample_tables:HANDOFF", empty, "no test was collected"),
        ("tests.sample_tables:HANDOFF", str(tmp_path / "nowhere.py"), "nowhere.py"),
        ("tests.sample_tables:NOTHING", empty, "there is no table 'NOTHING'"),
        ("tests/sample_tables.py:HANDOFF", str(apart), "no test imports it"),
    ):
        done = run(target, test)
        assert done.returncode == 2 and why in done.stderr, done.stderr


def test_what_is_known_must_be_right(tmp_path: Path) -> None:
    """A known survivor is none of the findings; one that is noticed after all is a finding; of other tables none is."""
    first = "handoff released Finished: refuses with not_finished instead of result_released"
    found = Survey(noticed={"a": "t"}, survivors=(first, "handoff x"), known=(Known("handoff released *", "why"),))
    assert found.unknown == ("handoff x",) and not found.wrong and not found.good
    found = Survey(noticed={}, survivors=(first,), known=(Known(first, "why"), Known("handoff running *", "why")))
    assert [each.mutation for each in found.wrong] == ["handoff running *"]
    assert found.story().splitlines()[0] == "known as a survivor, and it is none: handoff running *"
    path = tmp_path / "known.toml"
    path.write_text("[[survivor]]\nmutation = 'handoff x'\n", encoding="utf-8")
    with pytest.raises(UsageError, match="needs a mutation and a reason"):
        read_known(path)
    with pytest.raises(UsageError, match=r"nowhere\.toml"):
        read_known(tmp_path / "nowhere.toml")


def test_the_survivors_of_the_protocol_name_tables_that_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Each has a mutation that it fits; `make mutate-cells` asks all of them, of every table."""
    known = read_known(cell_mutations.SURVIVORS)
    every = [each.key for walk in walks().values() for each in mutations(walk.table)]
    assert [each.mutation for each in known if not any(map(each.fits, every))] == []
    assert sorted(cell_mutations.BEHAVIOUR) == sorted(walks())
    assert cell_mutations.main(["nothing"]) == 2
    assert "no table is named nothing" in capsys.readouterr().err


def test_the_command_needs_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A module that cannot be imported is said."""
    assert main(["mutate", "no.such.module", "tests/test_mutation.py"]) == 2
    assert "cannot import no.such.module" in capsys.readouterr().err


def test_a_survey_needs_tests_that_can_be_collected(tmp_path: Path) -> None:
    """In this process too: what pytest said is in the error."""
    broken: Any = written(tmp_path, "import no_such_module_here")
    with pytest.raises(UsageError, match="no_such_module_here"):
        survey([HANDOFF], [broken])


def test_ctrl_c_ends_the_survey(tmp_path: Path) -> None:
    """It is no test that notices, and no mistake of the command line."""
    done = run("tests.sample_tables:HANDOFF", written(tmp_path, "def test_one(): raise KeyboardInterrupt"))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "statecore: interrupted\n")
