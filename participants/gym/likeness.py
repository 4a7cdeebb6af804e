"""Whether a call that a handler makes again is the one that it made before, where it draws new names each time. Pure.

Gym's environment servers name the sessions that they open at random. A handler that runs again after a restore draws
other names than those that the other servers know, so its calls say the old names, and the answers that it gets the
new ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

DRAWN: Final = re.compile(r"(?P<kind>.*?)(?P<drawn>[0-9a-f]{32})\Z", re.DOTALL)
"""A name with a random half: words, then 32 hexadecimal digits."""
EXECUTION: Final = "episode_id"
OURS: Final = "_ng_"


SERVER: Final = "statecore-server:"


def without_addresses(body: bytes, servers: Mapping[str, str]) -> bytes:
    """`body` with the name of each server where its address was: a restored one has another address."""
    for name, url in sorted(servers.items(), key=lambda each: -len(each[1])):  # one may begin like another
        body = body.replace(url.rstrip("/").encode(), f"{SERVER}{name}".encode())
    return body


def server_of(address: str) -> str | None:
    """The server that stands where an address was, None for an address of nobody that is known."""
    found = address.rstrip("/")
    return found.removeprefix(SERVER) if found.startswith(SERVER) else None


def new_names(recorded: Any, asked: Any) -> dict[str, str] | None:
    """The names in `asked` that stand for others in `recorded`, or None when the two differ in anything else.

    What names the execution (`episode_id`, fields of ours) may differ: it is another attempt.
    """
    names: dict[str, str] = {}
    alike = _alike(recorded, asked, names) and len(set(names.values())) == len(names)
    return names if alike else None


def _alike(recorded: Any, asked: Any, names: dict[str, str]) -> bool:
    if type(recorded) is not type(asked):
        return False
    if isinstance(recorded, dict):
        if list(recorded) != list(asked):
            return False
        told = (name for name in recorded if name != EXECUTION and not name.startswith(OURS))
        return all(_alike(recorded[name], asked[name], names) for name in told)
    if isinstance(recorded, list):
        return len(recorded) == len(asked) and all(
            _alike(one, other, names) for one, other in zip(recorded, asked, strict=True)
        )
    one, other = (DRAWN.match(each) if isinstance(each, str) else None for each in (recorded, asked))
    if one is not None and other is not None and one["kind"] == other["kind"]:
        return bool(names.setdefault(asked, recorded) == recorded)
    return bool(recorded == asked)


def renamed(text: str, names: Mapping[str, str]) -> str:
    """`text` with each name replaced by the one that it stands for."""
    for new, old in names.items():
        text = text.replace(new, old)
    return text
