"""Writes the generated pages of docs/ anew: `python docs/generate.py` (or `make docs`); `--check` only compares.

Whole pages: the machines, the codes, the invariants and scenarios with where they are checked, the protective rules
with what breaks without them, the planted faults, the checks of running servers, the spans and metrics, what was tried
of NeMo Gym. In `files.md` the examples between `<!-- begin NAME -->` and `<!-- end NAME -->` are written anew, the rest
is left alone.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
REFERENCE: Final = ROOT / "docs" / "reference"


def pages() -> dict[Path, str]:
    """Every generated page and what belongs into it."""
    from docs.generators import codes, conformance, files, gym_compatibility, machines, marks, planted, rules, telemetry

    found = {REFERENCE / "machines" / name: text for name, text in machines.pages().items()}
    found[REFERENCE / "codes.md"] = codes.page()
    found[REFERENCE / "conformance.md"] = conformance.page()
    found[REFERENCE / "invariants.md"] = marks.invariants()
    found[REFERENCE / "scenarios.md"] = marks.scenarios()
    found[REFERENCE / "planted-faults.md"] = planted.page()
    found[REFERENCE / "rules.md"] = rules.page()
    found[REFERENCE / "telemetry.md"] = telemetry.page()
    found[REFERENCE / "gym-compatibility.md"] = gym_compatibility.page()
    path = REFERENCE / "files.md"
    found[path] = filled(path.read_text(encoding="utf-8"), files.blocks())
    return found


def filled(text: str, blocks: Mapping[str, str]) -> str:
    """`text` with every block in its place; ValueError when a block has no place or a place no block."""
    places = re.findall(r"<!-- begin ([a-z-]+) -->", text)
    if sorted(places) != sorted(blocks):
        raise ValueError(f"places and blocks differ: {sorted(set(places) ^ set(blocks))}")
    for name, block in blocks.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        before, rest = text.split(begin, 1)
        if end not in rest:
            raise ValueError(f"{begin} has no {end}")
        text = f"{before}{begin}\n{block}\n{end}{rest.split(end, 1)[1]}"
    return text


def differing() -> list[Path]:
    """The generated pages that are missing, are not what they should be, or should not be there."""
    wanted = pages()
    wrong = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    return wrong + [path for path in (REFERENCE / "machines").glob("*.md") if path not in wanted]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a page is not what it should be")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if args.check:
        wrong = differing()
        for path in wrong:
            print(f"{path.relative_to(ROOT)} is not what `make docs` writes", file=sys.stderr)
        return 1 if wrong else 0
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(f"{len(pages())} pages written below {REFERENCE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
