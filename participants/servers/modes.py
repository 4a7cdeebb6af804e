"""What a checkpoint can do with a server's state: declared, never guessed (docs/reference/protocol.md section 2)."""

from __future__ import annotations

from enum import StrEnum, auto


class Mode(StrEnum):
    """What a checkpoint can do with a server's sessions; undeclared means RESTART_ONLY (section 2)."""

    EXPORT_RESTORE = auto()
    STATELESS = auto()
    DRAIN_ONLY = auto()
    RESTART_ONLY = auto()

    @property
    def wire(self) -> str:
        return {Mode.EXPORT_RESTORE: "exported", Mode.STATELESS: "stateless"}.get(self, "restart_only")
