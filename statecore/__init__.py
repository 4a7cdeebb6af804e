"""Declared state machines that run, are explored, drawn and held against what really happened: one table, all of it.

Declaring and stepping is imported at once; what needs more (cattrs, trio, transitions) when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import DefinitionError, InvariantBroken, JournalError, Refused, StatecoreError, WireError, WireErrors
from .machine import Snapshot, Table
from .table import Cell, Go, Refuse, Stay, When, go, refuse, stay, when

if TYPE_CHECKING:
    from .diagram import grid
    from .driver import Driver
    from .engine import Live, mermaid
    from .explore import Verdict
    from .journal import Journal, replay
    from .properties import always, eventually, final, leads_to, recoverable, sometimes
    from .report import Report, check
    from .seams import Clock, Disk, Entropy
    from .world import World, action, interchangeable, param, slot

__version__ = "0.1.0"

__all__ = [
    "Cell",
    "Clock",
    "DefinitionError",
    "Disk",
    "Driver",
    "Entropy",
    "Go",
    "InvariantBroken",
    "Journal",
    "JournalError",
    "Live",
    "Refuse",
    "Refused",
    "Report",
    "Snapshot",
    "StatecoreError",
    "Stay",
    "Table",
    "Verdict",
    "When",
    "WireError",
    "WireErrors",
    "World",
    "action",
    "always",
    "check",
    "eventually",
    "final",
    "go",
    "grid",
    "interchangeable",
    "leads_to",
    "mermaid",
    "param",
    "recoverable",
    "refuse",
    "replay",
    "slot",
    "sometimes",
    "stay",
    "when",
]

_LATER = {
    "diagram": ("grid",),
    "driver": ("Driver",),
    "engine": ("Live", "mermaid"),
    "explore": ("Verdict",),
    "journal": ("Journal", "replay"),
    "properties": ("always", "eventually", "final", "leads_to", "recoverable", "sometimes"),
    "report": ("Report", "check"),
    "seams": ("Clock", "Disk", "Entropy"),
    "world": ("World", "action", "interchangeable", "param", "slot"),
}
_HOME = {name: module for module, names in _LATER.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value
