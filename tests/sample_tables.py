"""Small tables for the tests of statecore: each shows something that a table can say."""

from __future__ import annotations

from enum import StrEnum, auto

from attrs import frozen

from statecore import Table, go, refuse, stay, when


class Handoff(StrEnum):
    """One result, kept until its exact receipt comes back."""

    RUNNING = auto()
    RETAINED = auto()
    RELEASED = auto()


@frozen
class Finished:
    receipt: str


@frozen
class Acknowledged:
    receipt: str


@frozen
class SendResult:
    receipt: str


def keep(held: str, event: Finished) -> tuple[str, list[SendResult]]:
    return event.receipt, [SendResult(event.receipt)]


def send_again(held: str, event: Finished) -> tuple[str, list[SendResult]]:
    return held, [SendResult(held)]


def is_exact(held: str, event: Acknowledged) -> bool:
    return event.receipt == held


HANDOFF = Table(
    "handoff",
    data=str,
    initial=Handoff.RUNNING,
    final={Handoff.RELEASED},
    cells={
        Handoff.RUNNING: {Finished: go(Handoff.RETAINED, do=keep), Acknowledged: refuse("not_finished")},
        Handoff.RETAINED: {
            Finished: stay(do=send_again),
            Acknowledged: when(is_exact, go(Handoff.RELEASED), otherwise=refuse("receipt_mismatch")),
        },
        Handoff.RELEASED: {Finished: refuse("result_released"), Acknowledged: stay()},
    },
    doc="One result, kept until its exact receipt comes back.",
)


class Lamp(StrEnum):
    """No data, no guard, no end."""

    OFF = auto()
    ON = auto()


@frozen
class Pressed:
    pass


@frozen
class Removed:
    """Refused everywhere."""


LAMP = Table(
    "lamp",
    initial=Lamp.OFF,
    cells={
        Lamp.OFF: {Pressed: go(Lamp.ON), Removed: refuse("fixed_to_the_wall")},
        Lamp.ON: {Pressed: go(Lamp.OFF), Removed: refuse("fixed_to_the_wall")},
    },
)


class Account(StrEnum):
    """Guards within guards, and details that tell numbers."""

    OPEN = auto()
    FROZEN = auto()
    CLOSED = auto()


@frozen
class Withdrawn:
    amount: int


@frozen
class Closed:
    pass


@frozen
class Pay:
    amount: int


def pay(balance: int, event: Withdrawn) -> tuple[int, tuple[Pay, ...]]:
    return balance - event.amount, (Pay(event.amount),)


def is_positive(balance: int, event: Withdrawn) -> bool:
    return event.amount > 0


def is_covered(balance: int, event: Withdrawn) -> bool:
    return event.amount <= balance


def is_empty(balance: int, event: Closed) -> bool:
    return balance == 0


def shortfall(balance: int, event: Withdrawn) -> str:
    return f"{event.amount - balance} missing"


ACCOUNT = Table(
    "account",
    data=int,
    initial=Account.OPEN,
    final={Account.CLOSED},
    cells={
        Account.OPEN: {
            Withdrawn: when(
                is_positive,
                when(is_covered, stay(do=pay), otherwise=go(Account.FROZEN)),
                otherwise=refuse("not_positive"),
            ),
            Closed: when(is_empty, go(Account.CLOSED), otherwise=refuse("not_empty")),
        },
        Account.FROZEN: {
            Withdrawn: when(is_covered, go(Account.OPEN, do=pay), otherwise=refuse("not_covered", shortfall)),
            Closed: refuse("frozen", "settle it first"),
        },
        Account.CLOSED: {Withdrawn: refuse("closed"), Closed: stay()},
    },
)
