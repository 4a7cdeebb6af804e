"""The sendings of one call, and what becomes of each at a server that is closed. Pure.

A caller that sends a call again counts its sendings, so that the server can say which of them it refuses: a refusal is
final for that sending and for all before it. It is given only where no sending of the call was applied and none is
inside, so whoever is refused stands where the server stands (docs/reference/protocol.md section 6; S61, I92).
"""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Final

from attrs import frozen

from ..identity import EpisodeId

MAX_TRY: Final = 999_999_999


@frozen
class Sending:
    """One sending of a call of `owner`: of which operation, and the how manieth, from 1."""

    owner: EpisodeId | None
    operation_id: str
    tried: int


class Fate(StrEnum):
    """What a server does with a sending."""

    ENTER = auto()  # to the gate, which admits it, holds it, or turns it away
    WAIT = auto()  # until an earlier sending of the call, which was admitted, has ended
    ANSWER = auto()  # from the record: the call was applied


def fate(*, is_open: bool, applied: bool, inside: bool) -> Fate:
    """What becomes of a sending that was not refused before.

    While the server is open every sending enters: one of a call that runs waits for the lock of its session, and then
    finds the record.
    """
    if is_open:
        return Fate.ENTER
    if applied:
        return Fate.ANSWER
    return Fate.WAIT if inside else Fate.ENTER


def tried_from(text: str) -> int:
    """The number of a sending off the wire; ValueError unless it is a plain number from 1 to `MAX_TRY`."""
    if not text.isascii() or not text.isdigit() or text.startswith("0") or len(text) > len(str(MAX_TRY)):
        raise ValueError(f"a try is a plain number from 1 to {MAX_TRY}, not {text[:40]!r}")
    return int(text)
