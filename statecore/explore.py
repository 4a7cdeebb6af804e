"""Explore every reachable state of a world."""

from __future__ import annotations

from .findings import Exploration, Limits, Verdict, Violation, verdict
from .reference import explore

__all__ = ["Exploration", "Limits", "Verdict", "Violation", "explore", "verdict"]
