"""The page of what is asked of a running server, from the checks themselves, and which numbers they ask for."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from participants.conformance import Group, every_check

ABOUT: Final = """
What `statecore conform` asks, group by group; [how to ask it](../how-to/conform.md). Each check is sent over HTTP to a
server that runs, and leaves it as it was. The last columns say where it is written, and which
[invariants](invariants.md) and [scenarios](scenarios.md) it is about.
"""


def page() -> str:
    """The page."""
    parts = ["# Checks of a running server", ABOUT.strip()]
    for group in Group:
        rows = [each for each in every_check().values() if each.group is group]
        lines = ["| check | what is true of a server that passes | written | about |", "| --- | --- | --- | --- |"]
        lines += [
            f"| `{each.name}` | {each.says} | {_written(each.written)} | {', '.join(each.covers)} |" for each in rows
        ]
        parts += [f"## {group}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def _written(place: str) -> str:
    page, _, rest = place.partition(" ")
    return f"[{place}]({page})" if rest else f"[{page}]({page})"


def asked() -> dict[str, list[str]]:
    """number -> the checks of a running server that are about it."""
    found: dict[str, list[str]] = defaultdict(list)
    for each in every_check().values():
        for number in each.covers:
            found[number].append(each.full_name)
    return dict(found)
