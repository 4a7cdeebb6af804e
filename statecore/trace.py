"""A counterexample as text and as plain data: what each step is called, and which slots it changed to what.

A trace either ends in the state (or with the step) that breaks its property, or it goes round for ever: from the state
numbered `loop` to the last one, which is the same. A loop without steps means that nothing happens any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import attrs

from .declare import printable
from .findings import Violation
from .machine import Snapshot

__all__ = ["changes", "lines", "plain", "shown"]

Values = tuple[Any, ...]


def shown(value: object) -> str:
    """The value as short text: sets in a steady order, snapshots as state and data."""
    if isinstance(value, frozenset):
        return "{" + ", ".join(sorted(map(shown, value))) + "}"
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return "(" + ", ".join(map(shown, value)) + ")"
    if isinstance(value, Snapshot):
        return str(value.state) if value.data is None else f"{value.state} {shown(value.data)}"
    if isinstance(value, Enum):
        return str(value)
    cls: Any = type(value)
    if attrs.has(cls) and cls.__repr__.__code__.co_filename.startswith("<attrs generated"):
        fields = (f"{each.name}={shown(getattr(value, each.name))}" for each in attrs.fields(cls) if each.repr)
        return f"{cls.__name__}({', '.join(fields)})"
    return printable(repr(value))


def changes(slots: Sequence[str], before: Values | None, after: Values) -> dict[str, str]:
    """The slots whose values differ, each with its new value as text; all of them if there is nothing before."""
    old = before if before is not None else (object(),) * len(after)
    return {name: shown(new) for name, was, new in zip(slots, old, after, strict=True) if was != new}


def lines(slots: Sequence[str], broken: Violation) -> list[str]:
    """The trace as indented lines: the start in full, then one line for each step."""
    covers = f" ({printable(', '.join(broken.covers))})" if broken.covers else ""
    told = [f"  {printable(broken.name)}{covers} {_how(broken)}:"]
    told.append(f"     0  start: {_list(changes(slots, None, broken.states[0]))}")
    for number, step in enumerate(broken.steps, start=1):
        if broken.loop == number - 1:
            told.append("        for ever:")
        fault = " [fault]" if step.fault else ""
        told.append(f"  {number:>4}  {step.label}{fault}: {_change(slots, broken, number)}")
    if broken.loop is not None and broken.loop == len(broken.steps):
        told += ["        for ever:", "        nothing happens any more"]
    elif broken.loop is not None:
        told.append(f"        and this is the state after {_steps(broken.loop)} again")
    return told


def plain(slots: Sequence[str], broken: Violation | None) -> dict[str, Any]:
    """`start`, `steps` and `loop` as plain JSON: values as text, steps with their number, action and changed slots."""
    if broken is None:
        return {"start": None, "steps": [], "loop": None}
    steps = [
        {
            "number": number,
            "label": step.label,
            "action": step.name,
            "args": [shown(each) for each in step.args],
            "fault": step.fault,
            "changes": _changed(slots, broken, number),
        }
        for number, step in enumerate(broken.steps, start=1)
    ]
    return {"start": changes(slots, None, broken.states[0]), "steps": steps, "loop": broken.loop}


def _how(broken: Violation) -> str:
    if broken.loop is None:
        return f"is broken after {_steps(len(broken.steps))}, and no fewer"
    last = len(broken.steps) - broken.loop
    if not last:
        return f"never comes: nothing need happen after {_steps(len(broken.steps))}"
    return f"never comes: the last {_steps(last)} of {len(broken.steps)} repeat for ever"


def _steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number} steps"


def _changed(slots: Sequence[str], broken: Violation, number: int) -> dict[str, str] | None:
    """What step `number` changed; None if it has no state after it, since it is itself the fault."""
    return None if number >= len(broken.states) else changes(slots, *broken.states[number - 1 : number + 1])


def _change(slots: Sequence[str], broken: Violation, number: int) -> str:
    changed = _changed(slots, broken, number)
    return "the step itself is the fault" if changed is None else _list(changed)


def _list(changed: dict[str, str]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in changed.items()) or "nothing changes"
