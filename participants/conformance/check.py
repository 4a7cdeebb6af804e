"""Checks by group, each an async function of a server that raises if the server is not as it is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from importlib import import_module
from typing import Final

from attrs import frozen

from .subject import Subject


class Group(StrEnum):
    """What is asked, in the order in which it is asked."""

    AUTHENTICATION = "authentication"
    PHASES = "phases"
    IDEMPOTENCY = "idempotency"
    FENCING = "fencing"
    DEADLINES = "deadlines"
    LEASE = "lease"
    BLOCKERS = "blockers"
    LOST_REPLIES = "lost-replies"
    EXPORT_RESTORE = "export-restore"
    TOMBSTONES = "tombstones"
    BAD_INPUT = "bad-input"


@frozen
class Check:
    """One question. `says` is what is true of a server that passes; `written` is where that is demanded.

    `auxiliary` is true for what is asked of a judge or a simulator, which has no checkpoint routes; of all others the
    rest is asked.
    """

    group: Group
    name: str
    says: str
    written: str
    covers: tuple[str, ...]
    auxiliary: bool
    run: Callable[[Subject], Awaitable[None]]

    @property
    def full_name(self) -> str:
        return f"{self.group}/{self.name}"


_CHECKS: Final[dict[str, Check]] = {}


def check(
    group: Group, written: str, *covers: str, auxiliary: bool = False
) -> Callable[[Callable[[Subject], Awaitable[None]]], Callable[[Subject], Awaitable[None]]]:
    """Registers a function under its own name; its docstring is what the check says."""

    def register(function: Callable[[Subject], Awaitable[None]]) -> Callable[[Subject], Awaitable[None]]:
        name = getattr(function, "__name__").replace("_", "-")  # noqa: B009 (a Callable has no name for mypy)
        says = " ".join((function.__doc__ or "").split())
        made = Check(group, name, says, written, covers, auxiliary, function)
        assert made.full_name not in _CHECKS and says, made.full_name
        _CHECKS[made.full_name] = made
        return function

    return register


def every_check() -> Mapping[str, Check]:
    """All checks by their full names, group by group."""
    import_module(".checks", __package__)
    return {each.full_name: each for group in Group for each in _CHECKS.values() if each.group is group}
