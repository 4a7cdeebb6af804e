"""A model call at the policy model server: two lifetimes, two machines. Pure.

*Cut safety*: each call that was accepted before admission closed reaches exactly one disposition for that checkpoint
(I25), without waiting for HTTP delivery. *Response lifetime*: a reply that is ready while the server is closed is held
until it opens; a lineage row exists before its response leaves. docs/reference/protocol.md sections 4, 6 and 10.
"""

from __future__ import annotations

from enum import StrEnum, auto

from attrs import frozen

from statecore import Cell, Snapshot, Table, go, refuse, stay, when


class CallState(StrEnum):
    ADMITTED = auto()
    FROZEN = auto()  # accepted before the closing, no disposition yet
    NEVER_STARTED = auto()
    DURABLE_PREFIX = auto()
    EXCLUDED = auto()  # left out, to be generated again from its boundary
    COMPLETED_DURABLE = auto()
    FAILED_DURABLE = auto()


@frozen
class CallData:
    """Whether the generation ended, and how, after its disposition for the open checkpoint was fixed."""

    ended_after_cut: bool = False
    failed_after_cut: bool = False


@frozen
class AdmissionClosed:
    pass


@frozen
class AdmissionOpened:
    pass


@frozen
class Completed:
    """Its row is in the ledger."""


@frozen
class Failed:
    """Its failure row is in the ledger."""


@frozen
class PrefixFrozen:
    """The backend acknowledged a durable prefix."""


@frozen
class NeverStarted:
    """The backend had not begun it."""


@frozen
class LeftOut:
    """It is regenerated after a restore: always correct."""


def ended_later(_data: CallData, _event: Completed) -> tuple[CallData, list[object]]:
    return CallData(ended_after_cut=True), []


def failed_later(_data: CallData, _event: Failed) -> tuple[CallData, list[object]]:
    return CallData(ended_after_cut=True, failed_after_cut=True), []


def forget_cut(_data: CallData, _event: AdmissionOpened) -> tuple[CallData, list[object]]:
    return CallData(), []


def has_failed(data: CallData, _event: object) -> bool:
    return data.failed_after_cut


def has_ended(data: CallData, _event: object) -> bool:
    return data.ended_after_cut


_C = CallState
DISPOSED = refuse("already_disposed", detail="a frozen call has exactly one disposition (I25)")
NOT_FROZEN = refuse("not_frozen")
OVER = refuse("call_ended")

_DISPOSED_CELLS: dict[type, Cell] = {
    AdmissionClosed: stay(),
    AdmissionOpened: when(
        has_failed, go(_C.FAILED_DURABLE, do=forget_cut),
        otherwise=when(has_ended, go(_C.COMPLETED_DURABLE, do=forget_cut), otherwise=go(_C.ADMITTED)),
    ),
    Completed: when(has_ended, OVER, otherwise=stay(do=ended_later)),
    Failed: when(has_ended, OVER, otherwise=stay(do=failed_later)),
    PrefixFrozen: DISPOSED,
    NeverStarted: DISPOSED,
    LeftOut: DISPOSED,
}  # fmt: skip
_ENDED_CELLS: dict[type, Cell] = {
    AdmissionClosed: stay(),
    AdmissionOpened: stay(),
    Completed: OVER,
    Failed: OVER,
    PrefixFrozen: DISPOSED,
    NeverStarted: DISPOSED,
    LeftOut: DISPOSED,
}

MODEL_CALL = Table(
    "model_call",
    data=CallData,
    initial=_C.ADMITTED,
    final={_C.COMPLETED_DURABLE, _C.FAILED_DURABLE},
    doc="Cut safety of one model call: protocol.md sections 4 and 10.",
    cells={
        _C.ADMITTED: {
            AdmissionClosed: go(_C.FROZEN),
            AdmissionOpened: stay(),
            Completed: go(_C.COMPLETED_DURABLE),
            Failed: go(_C.FAILED_DURABLE),
            PrefixFrozen: NOT_FROZEN,
            NeverStarted: NOT_FROZEN,
            LeftOut: NOT_FROZEN,
        },
        _C.FROZEN: {
            AdmissionClosed: stay(),
            AdmissionOpened: go(_C.ADMITTED),
            Completed: go(_C.COMPLETED_DURABLE),
            Failed: go(_C.FAILED_DURABLE),
            PrefixFrozen: go(_C.DURABLE_PREFIX),
            NeverStarted: go(_C.NEVER_STARTED),
            LeftOut: go(_C.EXCLUDED),
        },
        _C.NEVER_STARTED: _DISPOSED_CELLS,
        _C.DURABLE_PREFIX: _DISPOSED_CELLS,
        _C.EXCLUDED: _DISPOSED_CELLS,
        _C.COMPLETED_DURABLE: _ENDED_CELLS,
        _C.FAILED_DURABLE: _ENDED_CELLS,
    },
)


def is_left_out(cut: Snapshot[CallState, CallData]) -> bool:
    """Whether a commit leaves the call out: it was frozen and has no row by now; the others have theirs."""
    return cut.state is CallState.FROZEN


class ResponseState(StrEnum):
    AWAITED = auto()
    HELD = auto()
    SENDING = auto()
    DELIVERED = auto()
    ABANDONED = auto()


@frozen
class ResponseReady:
    closed: bool = False


@frozen
class ResponseReleased:
    """Its server opened."""


@frozen
class ResponseSent:
    pass


@frozen
class CallerLeft:
    """The caller went away, or its attempt was retired."""


def is_closed(_data: None, event: ResponseReady) -> bool:
    return event.closed


_R = ResponseState
NOT_READY = refuse("not_ready")
DONE = refuse("response_ended")

RESPONSE = Table(
    "response",
    initial=_R.AWAITED,
    final={_R.DELIVERED, _R.ABANDONED},
    doc="Response lifetime of one model call: protocol.md sections 4 and 6.",
    cells={
        _R.AWAITED: {
            ResponseReady: when(is_closed, go(_R.HELD), otherwise=go(_R.SENDING)),
            ResponseReleased: stay(),
            ResponseSent: NOT_READY,
            CallerLeft: go(_R.ABANDONED),
        },
        _R.HELD: {
            ResponseReady: stay(),
            ResponseReleased: go(_R.SENDING),
            ResponseSent: refuse("held"),  # nothing leaves while the server is closed
            CallerLeft: go(_R.ABANDONED),
        },
        _R.SENDING: {
            ResponseReady: stay(),
            ResponseReleased: stay(),
            ResponseSent: go(_R.DELIVERED),
            CallerLeft: go(_R.ABANDONED),
        },
        _R.DELIVERED: {ResponseReady: DONE, ResponseReleased: stay(), ResponseSent: stay(), CallerLeft: stay()},
        _R.ABANDONED: {ResponseReady: DONE, ResponseReleased: stay(), ResponseSent: DONE, CallerLeft: stay()},
    },
)
