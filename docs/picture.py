"""Runs the demo and draws its end: `python docs/picture.py` writes docs/images/demo.svg. Not part of `make docs`.

The picture is of a real run with real processes; its times are that run's.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
from pathlib import Path
from typing import Final

import trio
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT: Final = Path(__file__).resolve().parent.parent
IMAGE: Final = ROOT / "docs" / "images" / "demo.svg"
WIDTH: Final = 98


def drawn_run() -> str:
    """The demo has run; its end as SVG. RuntimeError when it did not end well."""
    with tempfile.TemporaryDirectory() as directory:
        return trio.run(_run, Path(directory))


async def _run(directory: Path) -> str:
    from participants.demo.picture import Picture
    from participants.demo.plan import Options, make_plan
    from participants.demo.story import tell
    from participants.demo.view import drawn
    from participants.demo.worlds import ProcessWorld

    plan = make_plan(Options())
    picture = Picture(plan, title=f"statecore demo: {len(plan.rollouts)} rollouts, {plan.turns} turns")
    ending = await tell(plan, ProcessWorld(), directory, picture)
    if not ending.verdict.good:
        raise RuntimeError(ending.verdict.line())
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
    console.print(drawn(picture, WIDTH, None))
    console.print(Text(f"\n{ending.verdict.line()}", style="bold"))
    return quiet(console.export_svg(title="make demo", theme=MONOKAI, unique_id="demo"))


def quiet(svg: str) -> str:
    """The picture without fonts from elsewhere."""
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    IMAGE.write_text(drawn_run(), encoding="utf-8")
    print(f"{IMAGE.relative_to(ROOT)} written")
