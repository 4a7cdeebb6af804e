"""Declared state machines that run, are explored, drawn and held against what really happened: one table, all of it."""

from __future__ import annotations

from .errors import DefinitionError, InvariantBroken, JournalError, Refused, StatecoreError, WireError, WireErrors
from .machine import Snapshot, Table
from .table import Cell, Go, Refuse, Stay, When, go, refuse, stay, when

__version__ = "0.1.0"

__all__ = [
    "Cell",
    "DefinitionError",
    "Go",
    "InvariantBroken",
    "JournalError",
    "Refuse",
    "Refused",
    "Snapshot",
    "StatecoreError",
    "Stay",
    "Table",
    "When",
    "WireError",
    "WireErrors",
    "go",
    "refuse",
    "stay",
    "when",
]
