"""The page of protective rules: each with its section of the protocol and the failing twins that validate it."""

from __future__ import annotations

from typing import Final

from models.rules import Rule, Twin, load

HEAD: Final = ("rule", "what it says", "section", "without it")


def page() -> str:
    """The page."""
    rules = load()
    validated = sum(bool(rule.twins) for rule in rules)
    unvalidated = sum(rule.unvalidated is not None for rule in rules)
    waiting = len(rules) - validated - unvalidated
    counted = f"{validated} of {len(rules)} rules are validated, {unvalidated} are not" + (
        f", {waiting} are still to be looked at." if waiting else "."
    )
    return "\n\n".join([
        "# Protective rules",
        "What keeps the protocol from going wrong. For each rule there is a *failing twin*: a world of `models/`\n"
        "without it, explored breadth first, so that the counterexample is the shortest. The last column names the\n"
        "twin, the property that breaks and the number of steps to it; `models/MANIFEST.toml` pins them and the suite\n"
        "finds them again. Rules cover each other, so a twin may be without several. **unvalidated**: no set of\n"
        "removals was found that breaks anything, and why. Sections are those of the [protocol](protocol.md); a rule\n"
        "that one of the [scenarios](scenarios.md) stands for has its number.",
        counted,
        _table(rules),
    ]) + "\n"  # fmt: skip


def _table(rules: tuple[Rule, ...]) -> str:
    lines = [f"| {' | '.join(HEAD)} |", "|" + " --- |" * len(HEAD)]
    lines += [f"| {rule.key} | {rule.text} | {rule.section} | {_without(rule)} |" for rule in rules]
    return "\n".join(lines)


def _without(rule: Rule) -> str:
    if rule.unvalidated is not None:
        return f"**unvalidated**: {rule.unvalidated}"
    return "; ".join(map(_twin, rule.twins)) or "not looked at yet"


def _twin(twin: Twin) -> str:
    module, _, name = twin.world.partition(":")
    steps = "1 step" if twin.steps == 1 else f"{twin.steps} steps"
    return f"[{name}](../../{module.replace('.', '/')}.py): `{twin.breaks}` in {steps}"
