"""Where a session's state stands: revision, history and incarnation, compared whole.

Rules (docs/reference/protocol.md section 13.1): the history is a chain over the operations applied, so that equal
positions mean equal histories (I81); a revision alone is not enough, since after a crash revision 1 of the lost history
and revision 1 of the new one are the same number (S46). Only a seed makes a new incarnation; a restore keeps all three.
A wire peer gives only the integer: that compares as *weak*, and the caller counts it.
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from typing import Final

from attrs import field, frozen

from statecore.seams import Entropy

HISTORY_BYTES: Final = 16
SEED_HISTORY: Final = "0" * (2 * HISTORY_BYTES)
_HEX32 = re.compile(r"[0-9a-f]{32}\Z")
_HEADER = re.compile(r"(0|[1-9][0-9]*)\.([0-9a-f]{32})\.([0-9a-f]{32})\Z")


class Agreement(StrEnum):
    """How two positions compare."""

    EQUAL = "equal"
    WEAK = "weak"
    DIFFERENT = "different"


def _hex32_or_empty(_instance: object, attribute: object, value: str) -> None:
    if value and not _HEX32.match(value):
        raise ValueError(f"{getattr(attribute, 'name', 'it')} is 32 hex digits, not {value!r}")


def _not_negative(_instance: object, attribute: object, value: int) -> None:
    if value < 0:
        raise ValueError(f"{getattr(attribute, 'name', 'it')} is 0 or more, not {value}")


@frozen
class Position:
    """The exact state of one session: `revision` counts its mutations, `history` and `incarnation` are 32 hex digits.

    Both are empty for a wire peer that gives only its integer (*weak*). Raises ValueError when one of them is malformed
    or only one is there.
    """

    revision: int = field(validator=_not_negative)
    history: str = field(default="", validator=_hex32_or_empty)
    incarnation: str = field(default="", validator=_hex32_or_empty)

    def __attrs_post_init__(self) -> None:
        if bool(self.history) is not bool(self.incarnation):
            raise ValueError("a position has both a history and an incarnation, or neither")

    @property
    def weak(self) -> bool:
        """Only the revision is known."""
        return not self.history

    @property
    def header(self) -> str:
        """The value of `x-statecore-position`; of a weak position just the revision."""
        return str(self.revision) if self.weak else f"{self.revision}.{self.history}.{self.incarnation}"

    @classmethod
    def from_header(cls, text: str) -> Position:
        """The position that `x-statecore-position` names; ValueError when it names none."""
        found = _HEADER.match(text)
        if found is None:
            raise ValueError(f"{text!r} is no <revision>.<history>.<incarnation>")
        return cls(int(found.group(1)), found.group(2), found.group(3))

    def compared(self, other: Position) -> Agreement:
        """EQUAL when all three are equal; WEAK when the revisions are and one side has nothing more (I35, I81)."""
        if self.revision != other.revision:
            return Agreement.DIFFERENT
        if self.weak or other.weak:
            return Agreement.WEAK
        return Agreement.EQUAL if self == other else Agreement.DIFFERENT


class OtherSession(ValueError):
    """A position that is no later or earlier one of the session that was known: that session is gone."""


def later(known: Position | None, heard: Position) -> Position:
    """Where a session stands, for a caller that knew it at `known` and now hears `heard`; replies may overtake another.

    Raises OtherSession when the two are not of one history: another incarnation, or one revision with two histories.
    """
    if known is None or known == heard:
        return heard
    if not (known.weak or heard.weak):
        if known.incarnation != heard.incarnation:
            raise OtherSession(f"the session at {known.header} is gone: what answers now is at {heard.header}")
        if known.revision == heard.revision:
            raise OtherSession(f"two histories: it stood at {known.header} and is said to stand at {heard.header}")
    return heard if heard.revision >= known.revision else known


def seed_position(entropy: Entropy) -> Position:
    """The position of a session that was just seeded: nothing applied, an incarnation of its own."""
    return Position(0, SEED_HISTORY, entropy.token_hex(HISTORY_BYTES))


def next_history(history: str, operation_id: str, revision: int) -> str:
    """The history after `operation_id` made `revision`: 32 hex digits.

    The first 16 bytes of the sha256 over the previous 16, the new revision as 8 bytes big-endian, the operation id in
    UTF-8. The lineage head is the same chain over model call ids.
    """
    previous = bytes.fromhex(history)
    if len(previous) != HISTORY_BYTES:
        raise ValueError(f"a history has {HISTORY_BYTES} bytes, not {len(previous)}")
    chained = previous + revision.to_bytes(8, "big") + operation_id.encode()
    return hashlib.sha256(chained).digest()[:HISTORY_BYTES].hex()


def advance(position: Position, operation_id: str) -> Position:
    """The position after one successful mutation: revision + 1 (I36), the history chained on, the same incarnation."""
    if position.weak:
        raise ValueError("a weak position has no history to go on from")
    revision = position.revision + 1
    return Position(revision, next_history(position.history, operation_id, revision), position.incarnation)
