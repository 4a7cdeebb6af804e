"""Whether a running server keeps the protocol: it is driven over HTTP, own or foreign, and nothing else is known of it.

`statecore conform URL` asks from the command line, `ConformanceSuite` from a test. docs/how-to/conform.md shows both.
"""

from __future__ import annotations

from .check import Check, Group, every_check
from .report import Report, Result, Row
from .runner import InUse, conform
from .said import DoesNotApply, NotConforming, NotTried, Said
from .subject import Rules, Subject
from .suite import AuxiliarySuite, ConformanceSuite
from .target import Driver, Target

__all__ = [
    "AuxiliarySuite",
    "Check",
    "ConformanceSuite",
    "DoesNotApply",
    "Driver",
    "Group",
    "InUse",
    "NotConforming",
    "NotTried",
    "Report",
    "Result",
    "Row",
    "Rules",
    "Said",
    "Subject",
    "Target",
    "conform",
    "every_check",
]
