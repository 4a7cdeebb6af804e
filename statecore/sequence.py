"""A counterexample as a Mermaid sequence diagram: who acts, and which slots change to what.

The lifelines are the slots that the trace changes, and those who act, where actions say so (`@action(by="agent")`). An
action that does not say so is drawn at the first slot that it changes.
"""

from __future__ import annotations

from typing import Final

from .declare import printable
from .report import Report
from .trace import changes
from .world import Step, World

__all__ = ["sequence"]

LONGEST: Final = 60
SYNTAX: Final = str.maketrans({"#": "#35;", ";": "#59;", "%": "#37;", "<": "#lt;", ">": "#gt;"})


def sequence(world: type[World], report: Report) -> str:
    """The diagram of the report's violation; empty if there is none."""
    broken = report.violation
    if broken is None:
        return ""
    changed = [changes(report.slots, *pair) for pair in zip(broken.states, broken.states[1:], strict=False)]
    changed += [{}] * (len(broken.steps) - len(changed))
    actors = [_actor(world, step, each) for step, each in zip(broken.steps, changed, strict=True)]
    moving = {name for each in changed for name in each}
    lifelines = [*dict.fromkeys(name for name in actors if name and name not in report.slots)]
    lifelines += [name for name in report.slots if name in moving or name in actors] or [report.slots[0]]
    ids = {name: f"p{number}" for number, name in enumerate(lifelines)}
    everywhere = f"{ids[lifelines[0]]},{ids[lifelines[-1]]}" if len(lifelines) > 1 else ids[lifelines[0]]

    lines = ["sequenceDiagram"]
    lines += [f"    participant {ids[name]} as {_text(name)}" for name in lifelines]
    for name, value in changes(report.slots, None, broken.states[0]).items():
        if name in ids:
            lines.append(f"    Note over {ids[name]}: {_text(value)}")
    for number, (step, actor, after) in enumerate(zip(broken.steps, actors, changed, strict=True), start=1):
        if broken.loop == number - 1:
            lines.append("    loop for ever")
        fault = " [fault]" if step.fault else ""
        lines.append(f"    Note over {ids.get(actor, everywhere)}: {number}. {_text(step.label)}{fault}")
        arrow = "-x" if step.fault else "->>"
        for name, value in after.items():
            lines.append(f"    {ids[actor]}{arrow}{ids[name]}: {_text(f'{name} = {value}')}")
    if broken.loop is not None and broken.loop < len(broken.steps):
        lines.append("    end")
    elif broken.loop is not None:
        lines.append(f"    Note over {everywhere}: for ever: nothing happens any more")
    outcome = "is broken" if broken.loop is None else "never comes"
    lines.append(f"    Note over {everywhere}: {_text(broken.name)} {outcome}")
    return "\n".join(lines) + "\n"


def _actor(world: type[World], step: Step, changed: dict[str, str]) -> str:
    """Who is said to act, or the first slot that changes; empty if nobody is and nothing does."""
    return world.actions_[step.name].by or next(iter(changed), "")


def _text(given: str) -> str:
    """Text as Mermaid takes it: one line, not too long, without what it would read as syntax."""
    flat = printable(" ".join(given.split()))
    short = flat if len(flat) <= LONGEST else flat[: LONGEST - 1] + "…"
    return f"({short})" if short.lower() == "end" else short.translate(SYNTAX)
