"""A result, from the server that made it to the one ledger. Two machines, pure.

The server keeps a result until its exact receipt comes back (I66); the ledger takes each rollout's result once (I68)
and counts it as saved when a durable copy exists outside the server (I67). docs/reference/protocol.md section 9.
"""

from __future__ import annotations

from enum import StrEnum, auto

from attrs import evolve, frozen

from statecore import Table, go, refuse, stay, when


class Handoff(StrEnum):
    RUNNING = auto()
    RETAINED = auto()
    RELEASED = auto()


@frozen
class Kept:
    """`task_digest` of the execution, and the receipt of its result ("" before it has one)."""

    task_digest: str = ""
    receipt: str = ""


@frozen
class Asked:
    """`/run` came again for this attempt."""

    task_digest: str = ""


@frozen
class Finished:
    receipt: str


@frozen
class Acknowledged:
    receipt: str


@frozen
class JoinExecution:
    """The caller gets the response of the one execution (I10)."""


@frozen
class SendResult:
    receipt: str


@frozen
class DropResult:
    receipt: str


def is_same_task(held: Kept, event: Asked) -> bool:
    return event.task_digest == held.task_digest


def is_exact(held: Kept, event: Acknowledged) -> bool:
    return event.receipt == held.receipt


def is_same_result(held: Kept, event: Finished) -> bool:
    return event.receipt == held.receipt


def keep(held: Kept, event: Finished) -> tuple[Kept, list[object]]:
    return evolve(held, receipt=event.receipt), [SendResult(event.receipt)]


def join(held: Kept, _event: Asked) -> tuple[Kept, list[object]]:
    return held, [JoinExecution()]


def send_again(held: Kept, _event: Asked | Finished) -> tuple[Kept, list[object]]:
    return held, [SendResult(held.receipt)]


def drop(held: Kept, _event: Acknowledged) -> tuple[Kept, list[object]]:
    return held, [DropResult(held.receipt)]


OTHER_TASK = refuse("duplicate_execution", detail="this attempt runs another task")
WRONG_RECEIPT = refuse("receipt_mismatch", detail="the receipt is not the one that was issued")
GONE = refuse("result_released", detail="the result was acknowledged and is gone")

HANDOFF = Table(
    "handoff",
    data=Kept,
    initial=Handoff.RUNNING,
    final={Handoff.RELEASED},
    doc="A result at the server that made it: protocol.md section 9.",
    cells={
        Handoff.RUNNING: {
            Asked: when(is_same_task, stay(do=join), otherwise=OTHER_TASK),
            Finished: go(Handoff.RETAINED, do=keep),
            Acknowledged: refuse("not_finished"),
        },
        Handoff.RETAINED: {
            Asked: when(is_same_task, stay(do=send_again), otherwise=OTHER_TASK),
            Finished: when(is_same_result, stay(do=send_again), otherwise=refuse("already_finished")),  # I68
            Acknowledged: when(is_exact, go(Handoff.RELEASED, do=drop), otherwise=WRONG_RECEIPT),  # I66
        },
        Handoff.RELEASED: {
            Asked: GONE,
            Finished: GONE,
            Acknowledged: when(is_exact, stay(), otherwise=WRONG_RECEIPT),
        },
    },
)


class Entry(StrEnum):
    LIVE = auto()
    RECEIVED = auto()
    SAVED = auto()


@frozen
class Received:
    receipt: str


@frozen
class Saved:
    """A durable copy of the received result exists outside the server."""


@frozen
class AcceptResult:
    """The one result of this rollout goes to the framework."""

    receipt: str


@frozen
class OweAcknowledgement:
    """This receipt may be acknowledged, winner or not (S63)."""

    receipt: str


def take(_held: str, event: Received) -> tuple[str, list[object]]:
    return event.receipt, [AcceptResult(event.receipt)]


def owe(held: str, event: Received) -> tuple[str, list[object]]:
    return held, [OweAcknowledgement(event.receipt)]


def owe_held(held: str, _event: Saved) -> tuple[str, list[object]]:
    return held, [OweAcknowledgement(held)]


LEDGER_ENTRY = Table(
    "ledger_entry",
    data=str,
    initial=Entry.LIVE,
    final={Entry.SAVED},
    doc="A rollout's result in the coordinator's ledger: protocol.md section 9.",
    cells={
        Entry.LIVE: {Received: go(Entry.RECEIVED, do=take), Saved: refuse("not_received")},
        Entry.RECEIVED: {Received: stay(), Saved: go(Entry.SAVED, do=owe_held)},  # I68: the first result stands
        Entry.SAVED: {Received: stay(do=owe), Saved: stay()},
    },
)
