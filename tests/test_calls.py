"""`rpc`: one declaration of a call, and every way in which it can go."""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Any

import pytest
from attrs import frozen

from statecore import DefinitionError, Refused, Table, refuse, stay, when
from statecore.properties import always, sometimes
from statecore.report import check
from statecore.world import Late, World, action, param, rpc, slot, wire


class Account(StrEnum):
    """Where an account can be."""

    OPEN = auto()


@frozen
class Withdrawn:
    """So much is taken out."""

    amount: int


def _enough(left: int, event: Withdrawn) -> bool:
    return event.amount <= left


def _take(left: int, event: Withdrawn) -> tuple[int, tuple[()]]:
    return left - event.amount, ()


ACCOUNT = Table(
    "account",
    data=int,
    initial=Account.OPEN,
    final={Account.OPEN},
    cells={Account.OPEN: {Withdrawn: when(_enough, stay(do=_take), otherwise=refuse("not_enough"))}},
)


class Bank(World):
    """A caller withdraws money, one at a time, and asks again until it hears; the account is a production table."""

    withdrawals: int = param(2)
    account: Any = slot(ACCOUNT.start(3))
    heard: int = slot(0)
    refused: bool = slot(False)
    late: Late | None = wire(None)
    faults: int = slot(1)

    def _ask(self) -> object:
        return Withdrawn(2) if self.heard < self.withdrawals and not self.refused else False

    def _pay(self, request: Withdrawn) -> str:
        self.account, _ = ACCOUNT.step(self.account, request)
        return "paid"

    def _hear(self, answer: object) -> None:
        self.refused = isinstance(answer, Refused)
        self.heard += not self.refused

    withdraw = rpc(_ask, _pay, _hear, late="late", budget="faults", by="caller")


def bank() -> Any:
    return Bank()


def test_a_call_is_handled_and_answered() -> None:
    """The plain action: the callee's step and the caller's, in one."""
    w = bank()
    assert w.withdraw() is True
    assert (w.account.data, w.heard, w.refused) == (1, 1, False)


def test_a_refusal_is_an_answer() -> None:
    """It reaches the caller, and the callee is as it was."""
    w = bank()
    w.withdraw()
    assert w.withdraw() is True
    assert (w.account.data, w.heard, w.refused) == (1, 1, True)
    assert w.withdraw() is False, "the caller has stopped asking"


def test_a_reply_is_lost() -> None:
    """The callee has done it, the caller does not know, and a fault is spent."""
    w = bank()
    assert w.withdraw_reply_lost() is True
    assert (w.account.data, w.heard, w.faults) == (1, 0, 0)
    assert w.withdraw_reply_lost() is False, "no fault is left"


def test_a_request_is_delayed_and_arrives() -> None:
    """Nothing happens until the copy arrives; then the callee does it and nobody hears."""
    w = bank()
    assert w.withdraw_late() is False
    assert w.withdraw_delayed() is True
    assert (w.account.data, w.late) == (3, Late("withdraw", (), Withdrawn(2)))
    assert w.withdraw_late() is True
    assert (w.account.data, w.heard, w.late) == (1, 0, None)


def test_a_copy_is_left_behind_and_arrives_again() -> None:
    """Done and heard; the copy that arrives later is refused here, and stays where it is."""
    w = bank()
    assert w.withdraw_left_behind() is True
    assert (w.account.data, w.heard) == (1, 1)
    assert w.withdraw_late() is False
    assert w.late is not None
    w.account = ACCOUNT.start(9)
    assert w.withdraw_late() is True
    assert (w.account.data, w.heard, w.late) == (7, 1, None)


def test_a_newer_copy_takes_the_place_of_the_older() -> None:
    """The slot holds one; what was in it is lost. The same copy again is no step."""

    class Numbered(World):
        done: frozenset[int] = slot(frozenset())
        late: Late | None = wire(None)

        def _call(self, number: int) -> object:
            return number

        def _handle(self, number: int, request: int) -> None:
            self.done |= {request}

        note = rpc(_call, _handle, over=(1, 2), late="late")

    w: Any = Numbered()
    assert (w.note_delayed(1), w.note_delayed(1)) == (True, False)
    assert w.note_delayed(2) is True
    assert (w.note_late(1), w.note_late(2), w.done) == (False, True, frozenset({2}))


def test_without_a_late_slot_nothing_is_late() -> None:
    """Then there are two ways only."""

    class Short(World):
        done: bool = slot(False)

        def _call(self) -> object:
            return not self.done

        def _handle(self, request: object) -> None:
            self.done = True

        call = rpc(_call, _handle)

    assert list(Short.actions_) == ["call", "call_reply_lost"]
    assert [step.fault for step, _ in Short().steps()] == [False, True]


def test_slots_of_a_call_are_looked_up_when_a_world_is_made() -> None:
    """A misspelt slot is named at once."""

    class Misspelt(World):
        done: bool = slot(False)
        call = rpc(lambda w: True, lambda w, request: None, late="later")

    with pytest.raises(DefinitionError, match=r"Misspelt.call uses slot 'later', which is none \(done\)"):
        Misspelt()


class AsksOnce(Bank):
    """Every way in which it can go is reachable, and money is neither made nor paid twice for one answer."""

    @action
    def done(self) -> object:
        return None

    @always
    def never_overdrawn(self) -> bool:
        return bool(self.account.data >= 0)

    @sometimes
    def paid_and_not_heard(self) -> bool:
        return bool(self.account.data == 1 and not self.heard)


@pytest.mark.parametrize("engine", ["reference", "fast"])
def test_both_searches_take_every_way(engine: str) -> None:
    """The ways of a call are actions as any other; none of them never fires."""
    report = check(AsksOnce, engine=engine)
    assert report.found.never_fired == ()
    report.assert_holds()
    assert set(report.found.fired) == {
        "withdraw",
        "withdraw_reply_lost",
        "withdraw_delayed",
        "withdraw_left_behind",
        "withdraw_late",
        "done",
    }


def test_what_a_refused_handler_wrote_is_dropped() -> None:
    """A handler that is refused half way leaves nothing behind, in either search."""

    class Half(World):
        sums: int = slot(0)
        account: Any = slot(ACCOUNT.start(1))
        said: str = slot("")

        def _call(self) -> object:
            return Withdrawn(5) if not self.said else False

        def _handle(self, request: Withdrawn) -> None:
            self.sums += 1
            self.account, _ = ACCOUNT.step(self.account, request)

        def _reply(self, answer: object) -> None:
            self.said = type(answer).__name__

        call = rpc(_call, _handle, _reply)

        @action
        def rest(self) -> object:
            return None

        @always
        def nothing_is_added(self) -> bool:
            return self.sums == 0

    for engine in ("reference", "fast"):
        report = check(Half, engine=engine)
        assert (report.violation, report.distinct) == (None, 2)
