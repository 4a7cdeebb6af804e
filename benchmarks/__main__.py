"""``make bench``: overhead per turn, then time per phase of a checkpoint. ``--short`` for a quick look."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import trio

from . import overhead, phases
from .measure import machine, write


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--short", action="store_true", help="small sizes and few repeats: shows that it runs")
    parser.add_argument("--json", type=Path, default=Path(".bench"), help="where the figures go (default: .bench)")
    parser.add_argument("--only", choices=("overhead", "phases"), help="one of the two")
    options = parser.parse_args()
    print("machine:", ", ".join(f"{name} {value}" for name, value in machine().items()), flush=True)
    for name, part in (("overhead", overhead), ("phases", phases)):
        if options.only not in (None, name):
            continue
        print(f"\n{(part.__doc__ or '').splitlines()[0]}", flush=True)
        with tempfile.TemporaryDirectory(prefix="statecore-bench-") as directory:
            results = await part.run(Path(directory), short=options.short)
        print(part.show(results), flush=True)
        write(options.json, name, results)


if __name__ == "__main__":
    trio.run(main)
