"""A table as Markdown: every cell is shown, and what it says."""

from __future__ import annotations

from functools import partial

from models.two_phase_commit import MANAGER
from statecore import Table, go, stay
from statecore.diagram import cell_text, grid, page
from statecore.engine import mermaid
from tests.sample_tables import ACCOUNT, HANDOFF, Account, Lamp, Pressed, Withdrawn


def test_the_grid_shows_every_cell() -> None:
    """Rows are events, columns states; go, stay and refuse are told apart, with guards, `do` and codes."""
    assert grid(HANDOFF) == (
        "| event | running (start) | retained | released (final) |\n"
        "| --- | --- | --- | --- |\n"
        "| Finished | go retained / keep | stay / send_again | refuse(result_released) |\n"
        "| Acknowledged | refuse(not_finished) | if is_exact: go released; else refuse(receipt_mismatch) | stay |\n"
    )


def test_the_grid_has_a_cell_for_each_state_and_event() -> None:
    """No cell is left empty, in any table."""
    for table in (HANDOFF, ACCOUNT, MANAGER):
        rows = [line.strip("| ").split(" | ") for line in grid(table).splitlines()]
        assert len(rows) == len(table.events) + 2
        assert all(len(row) == len(table.states) + 1 and all(row) for row in rows)


def test_nested_guards_are_written_out() -> None:
    """A guard within a guard reads from the outside in."""
    assert cell_text(ACCOUNT.cells[Account.OPEN][Withdrawn]) == (
        "if is_positive: if is_covered: stay / pay; else go frozen; else refuse(not_positive)"
    )


def test_names_come_through_partials_and_pipes_are_escaped() -> None:
    """A partial shows the function in it; a pipe in a name does not break the grid."""

    def shine(brightness: int, data: None, event: Pressed) -> tuple[None, tuple[()]]:
        return None, ()

    assert cell_text(stay(partial(shine, 3))) == "stay / shine"
    shine.__name__ = "a|b"
    cells = {Lamp.OFF: {Pressed: go(Lamp.ON, partial(shine, 3))}, Lamp.ON: {Pressed: go(Lamp.OFF)}}
    table = Table("odd", initial=Lamp.OFF, cells=cells)
    assert "| Pressed | go on / a\\|b | go off |" in grid(table)


def test_a_page_holds_heading_documentation_grid_and_diagram() -> None:
    """The section for the documentation: all that there is to see of a table."""
    text = page(HANDOFF, level=3)
    assert text.startswith("### handoff\n\nOne result, kept until its exact receipt comes back.\n\n| event |")
    assert grid(HANDOFF) in text
    assert text.endswith(f"```mermaid\n{mermaid(HANDOFF)}\n```\n")
    assert page(MANAGER).startswith("## resource manager\n\n| event |")
