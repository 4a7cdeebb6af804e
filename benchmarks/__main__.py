"""``make bench``: a turn, a checkpoint by phase, checking, steps of test machines. ``--short`` for a quick look."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import trio

from . import checking, overhead, phases, rules
from .measure import machine, markdown, write


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--short", action="store_true", help="small sizes and few repeats: shows that it runs")
    parser.add_argument("--json", type=Path, default=Path(".bench"), help="where the figures go (default: .bench)")
    parser.add_argument("--only", choices=("overhead", "phases", "checking", "rules"), help="one of them")
    parser.add_argument("--markdown", action="store_true", help="tables as Markdown (of checking)")
    options = parser.parse_args()
    print("machine:", ", ".join(f"{name} {value}" for name, value in machine().items()), flush=True)
    parts: dict[str, Any] = {"overhead": overhead, "phases": phases, "checking": checking, "rules": rules}
    for name, part in parts.items():
        if options.only not in (None, name):
            continue
        print(f"\n{(part.__doc__ or '').splitlines()[0]}", flush=True)
        with tempfile.TemporaryDirectory(prefix="statecore-bench-") as directory:
            results = await part.run(Path(directory), short=options.short)
        shown = {"form": markdown} if options.markdown and part is checking else {}
        print(part.show(results, **shown), flush=True)
        write(options.json, name, results)


if __name__ == "__main__":
    trio.run(main)
