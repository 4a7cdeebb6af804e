"""Whether a clock explains why a checkpoint failed: deadlines are absolute, so setting one ends leases early (S30).

Hints for the reason that people read; nothing is decided by them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from .deployment import Member


def clock_trouble(members: Iterable[Member], set_by_s: float, bound_s: float) -> str:
    """Whose clock is off by more than `bound_s`, or "". `set_by_s`: how far our wall clock was set since it began."""
    found = []
    if abs(set_by_s) > bound_s:
        found.append(f"the wall clock here was set by {set_by_s:+.0f} s meanwhile")
    for member in members:
        offset_s = member.control.clock_offset_s
        if offset_s is not None and abs(offset_s) > bound_s:
            found.append(f"the clock of {member.name} is off by {offset_s:+.0f} s")
    return "; ".join(found)
