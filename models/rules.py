"""The protective rules of RULES.toml, and what MANIFEST.toml says of each: twins that break without it, or why none."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

HERE = Path(__file__).parent
MANIFEST = HERE / "MANIFEST.toml"
RULES = HERE / "RULES.toml"


@frozen
class Twin:
    """A failing twin that takes a rule out: the property that breaks, and in how many steps."""

    world: str
    removes: str
    breaks: str
    steps: int


@frozen
class Rule:
    """A rule, its section of the protocol, and who validates it. `awaited`: its twin is still to be written."""

    key: str
    section: str
    text: str
    twins: tuple[Twin, ...]
    unvalidated: str | None
    awaited: bool


def load(manifest: Path = MANIFEST, listed: Path = RULES) -> tuple[Rule, ...]:
    """All rules. ValueError for a rule that is named and not listed, or that is both validated and said not to be."""
    pinned, told = (tomllib.loads(path.read_text(encoding="utf-8")) for path in (manifest, listed))
    twins: dict[str, list[Twin]] = {}
    for key, entry in _named(pinned):
        twins.setdefault(key, []).append(
            Twin(entry["world"], entry["removes"], entry["breaks"], entry["steps"]),
        )
    why = {entry["rule"]: entry["why"] for entry in pinned.get("unvalidated", ())}
    if len(why) != len(pinned.get("unvalidated", ())):
        raise ValueError("a rule is said to be unvalidated twice")
    if unknown := (twins.keys() | why.keys() | set(told.get("awaited", ()))) - told["rules"].keys():
        raise ValueError(f"not in {listed.name}: {', '.join(sorted(unknown))}")
    if both := twins.keys() & why.keys():
        raise ValueError(f"both validated and unvalidated: {', '.join(sorted(both))}")
    return tuple(
        Rule(
            key,
            each["section"],
            each["text"],
            tuple(twins.get(key, ())),
            why.get(key),
            key in told.get("awaited", ()),
        )
        for key, each in told["rules"].items()
    )


def open_rules(rules: tuple[Rule, ...]) -> list[str]:
    """The rules of which nothing is said, and that nobody is known to be writing a twin for."""
    return [rule.key for rule in rules if not (rule.twins or rule.unvalidated or rule.awaited)]


def _named(pinned: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for entry in pinned["twin"]:
        for key in entry.get("rules", ()):
            yield key, entry
