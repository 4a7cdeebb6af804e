"""What every cell of every table of the protocol does, in one line for each way in which it can end.

The lines are in `data/steps.txt`, which `python -m tests.pinned_steps` writes anew. They are made of real steps: each
reached snapshot of a walk with each sample event. A changed cell is a changed line, to be looked at in review.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from statecore import Refused
from tests.table_walks import Walk, walks

FILE: Final = Path(__file__).with_name("data") / "steps.txt"


def lines_of(walk: Walk) -> list[str]:
    """``table state Event: next state or !code, effects in order, + if the data changed``, sorted, each once."""
    return sorted(set(_lines(walk)))


def _lines(walk: Walk) -> Iterator[str]:
    for snapshot, event in walk.steps():
        try:
            after, effects = walk.table.step(snapshot, event)
        except Refused as refused:
            came = f"!{refused.code}"
        else:
            changed = " +" if after.data != snapshot.data else ""
            owed = "".join(f" {type(each).__name__}" for each in effects)
            came = f"{after.state.value}{owed}{changed}"
        yield f"{walk.table.name} {snapshot.state.value} {type(event).__name__}: {came}"


def pinned(table: str) -> list[str]:
    """The lines of one table."""
    return [each for each in FILE.read_text(encoding="utf-8").splitlines() if each.startswith(f"{table} ")]


def main() -> int:
    text = "".join(f"{line}\n" for walk in walks().values() for line in lines_of(walk))
    FILE.write_text(text, encoding="utf-8")
    print(f"{text.count(chr(10))} lines in {FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
