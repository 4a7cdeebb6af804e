"""The page of what was tried of NeMo Gym: versions, components and modes, from the answers of `statecore doctor`.

The answers are in `gym_compatibility.json`; `python -m gym_tests.compatibility` writes it, in an environment with Gym.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from participants.gym.components import AGENTS, ENVIRONMENTS, RESOURCES

DATA: Final = Path(__file__).with_name("gym_compatibility.json")
CELLS: Final = {
    "continues": "continued",
    "starts_over": "starts over",
    "no_participant": "takes no part",
    "cannot_take_part": "**cannot take part**",
    "not up": "does not start",
    "absent": "-",
}
ABOUT: Final = """
Each component of the first table was started embedded, as a server of its own, and `statecore doctor` was asked what a
crash would mean for its rollouts: **continued** from their last finished turn, or they **start over**. A component that
*takes no part* relays to one that does. `-`: that version of Gym does not ship it. *Never tried* in this table: it is
known ([NeMo Gym servers](gym-embedding.md#which-components-continue)), and the doctor has not been asked about it yet.
"""
AGAIN: Final = """
Written by `python -m gym_tests.compatibility` in an environment with that version of Gym (`GYM_VERSION=0.6.0 bash
.ci/gym_env.sh DEST PYTHON` makes one), which adds its answers to `docs/generators/gym_compatibility.json`; `make docs`
makes this page of it. That a component starts and says *continued* is what this page shows. That its rollouts do
continue is shown on real servers, for 0.7.0, by `make test-gym` ([NeMo Gym servers](gym-embedding.md)); in older
versions it was not tried. Before 0.7 every server of Gym starts Ray, or joins the one that the configuration names.
"""
NEVER: Final = """
Every other component was never tried. Embedded, its rollouts start over and hold up no checkpoint, unless whoever
embeds it says where its sessions are ([NeMo Gym servers](gym-embedding.md#which-components-continue)).
"""


def page() -> str:
    """The page."""
    return made_of(json.loads(DATA.read_bytes()))


def made_of(versions: Mapping[str, Any]) -> str:
    """The page of these answers; KeyError for an outlook that has no words here."""
    newest = sorted(versions, key=lambda each: tuple(map(int, each.split("."))), reverse=True)
    parts = [
        "# NeMo Gym: versions and components",
        ABOUT.strip(),
        _table(["component", *newest], (_row(each, newest, versions) for each in _components(newest, versions))),
        *_why_not(newest, versions),
        "## Never tried",
        NEVER.strip(),
        _table(["kind", *newest], (_never(kind, newest, versions) for kind in versions[newest[0]]["shipped"])),
        "## Where this is from",
        AGAIN.strip(),
    ]
    return "\n\n".join(parts) + "\n"


def _components(newest: Iterable[str], versions: Mapping[str, Any]) -> list[str]:
    """Those that were tried, and those that are known."""
    modules = [name.partition(":")[0] for table in (RESOURCES, AGENTS, ENVIRONMENTS) for name in table]
    known = {each.removesuffix(".app").replace(".", "/") for each in modules}
    return sorted(known.union(*(versions[version]["components"] for version in newest)))


def _row(component: str, newest: Iterable[str], versions: Mapping[str, Any]) -> list[str]:
    return [f"`{component}`", *(_cell(versions[version]["components"].get(component)) for version in newest)]


def _cell(said: Mapping[str, str] | None) -> str:
    if said is None:
        return "never tried"
    mode = said.get("mode")
    return CELLS[said["outlook"]] + (f" ({mode})" if mode else "")


def _why_not(newest: Iterable[str], versions: Mapping[str, Any]) -> list[str]:
    """What those said last that did not start."""
    told = [
        f"- `{component}` of {version}: `{said['why']}`"
        for version in newest
        for component, said in sorted(versions[version]["components"].items())
        if said["outlook"] == "not up"
    ]
    return ["Those that do not start say last:", "\n".join(told)] if told else []


def _never(kind: str, newest: Iterable[str], versions: Mapping[str, Any]) -> list[str]:
    """How many components of a kind a version ships, and how many of these were not started."""
    cells = []
    for version in newest:
        shipped = versions[version]["shipped"][kind]
        asked = versions[version]["components"].items()
        tried = sum(name.startswith(f"{kind}/") and said["outlook"] != "absent" for name, said in asked)
        cells.append(f"{shipped - tried} of {shipped}")
    return [f"`{kind}`", *cells]


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
