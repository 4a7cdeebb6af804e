"""Every cell of every table of the protocol does what `data/steps.txt` says, and nothing else."""

from __future__ import annotations

import pytest

from tests.pinned_steps import lines_of, pinned
from tests.table_walks import Walk, walks

WALKS = walks()


@pytest.mark.parametrize("walk", WALKS.values(), ids=WALKS.keys())
def test_every_cell_does_what_is_pinned(walk: Walk) -> None:
    """State or code, effects in order, and whether the data changes, for all that the walk's samples meet."""
    walk.reached  # noqa: B018 - found once, by the table as it is when it is first asked
    assert lines_of(walk) == pinned(walk.table.name), "a cell changed: look at it, and run python -m tests.pinned_steps"
