"""Looks anew for every planted fault, or for those that are named, and says after how many each is found.

`python -m stateful_tests.planted [S3 S34 ...]`: a line for each; 1 if one is not found, or not after as
many as it says, 2 if none has that number. All of them take some minutes.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from stateful_tests.planted.faults import FAULTS


def main(names: Sequence[str]) -> int:
    """One line for each fault whose number is among `names`, or for all."""
    if unknown := set(names) - {each.scenario for each in FAULTS}:
        print(f"there is no planted fault of {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    logging.disable(logging.CRITICAL)
    wrong = 0
    for fault in FAULTS:
        if names and fault.scenario not in names:
            continue
        found = fault.look()
        told = "not found" if found is None else f"{', '.join(sorted(found[1]))} after {found[0]}"
        if found is None or found[0] != fault.after:
            wrong += 1
            told += f"; it says after {fault.after}"
        print(f"{fault.scenario}: {fault.says}: {fault.weapon.value}: {told}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
