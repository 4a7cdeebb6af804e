"""Two-phase commit once more, with a slot for each manager and each message: a world written to be explored fast.

An action is tabulated by the slots that it reads, so it pays to read few and small ones. `two_phase(n)` is the world of
n resource managers, with the states and steps of `models.two_phase_commit.TwoPhaseCommit`; `two_phase(n, planted=True)`
is its failing twin, whose shortest counterexample has 2N + 3 steps. Nothing tells one manager from another, so they are
declared interchangeable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from models.two_phase_commit import (
    MANAGER,
    AbortReceived,
    ChoseToAbort,
    CommitReceived,
    Manager,
    Prepared,
    Transaction,
)
from statecore import Snapshot
from statecore.properties import always, final, recoverable
from statecore.world import World, action, interchangeable, slot


def two_phase(n: int, *, planted: bool = False) -> type[World]:
    """The class of the world of `n` resource managers."""
    slots = {f"{what}{rm}": slot(first) for rm in range(n) for what, first in _EACH.items()}
    slots |= {"transaction": slot(Transaction.OPEN), "decided": slot(Transaction.OPEN)}
    aborts = aborts_after_prepare if planted else choose_to_abort
    steps = [receive_prepared, prepare, aborts, receive_commit, receive_abort]
    actions: dict[str, Any] = {step.__name__: action(over=range(n))(step) for step in steps}
    for decide in (decide_commit, decide_abort):
        actions[decide.__name__] = action(_for(n, decide))
    properties: dict[str, Any] = {
        "consistent": always(_for(n, consistent)),
        "all_decided": recoverable(_for(n, all_decided)),
        "done": final(_for(n, all_decided)),
    }
    managers = interchangeable(*([f"{what}{rm}" for what in _EACH] for rm in range(n)))
    return type(f"TwoPhase{n}", (World,), slots | actions | properties | {"managers": managers})


_EACH: dict[str, Any] = {"manager": MANAGER.start(), "sent": False, "heard": False}


def _for(n: int, function: Callable[[Any, int], object]) -> Callable[[Any], object]:
    """The function for a world of n managers, under its own name."""

    def given(w: Any) -> object:
        return function(w, n)

    given.__name__ = function.__name__
    return given


def _step(w: Any, rm: int, event: object) -> None:
    after, _ = MANAGER.step(getattr(w, f"manager{rm}"), event)
    setattr(w, f"manager{rm}", after)


def decide_commit(w: Any, n: int) -> bool:
    if w.transaction is not Transaction.OPEN or not all(getattr(w, f"heard{rm}") for rm in range(n)):
        return False
    w.transaction = w.decided = Transaction.COMMITTED
    return True


def decide_abort(w: Any, n: int) -> bool:
    if w.transaction is not Transaction.OPEN:
        return False
    w.transaction = w.decided = Transaction.ABORTED
    return True


def receive_prepared(w: Any, rm: int) -> bool:
    if w.transaction is not Transaction.OPEN or not getattr(w, f"sent{rm}"):
        return False
    setattr(w, f"heard{rm}", True)
    return True


def prepare(w: Any, rm: int) -> None:
    _step(w, rm, Prepared())
    setattr(w, f"sent{rm}", True)


def choose_to_abort(w: Any, rm: int) -> None:
    _step(w, rm, ChoseToAbort())


def aborts_after_prepare(w: Any, rm: int) -> bool:
    if getattr(w, f"manager{rm}").state not in (Manager.WORKING, Manager.PREPARED):
        return False
    setattr(w, f"manager{rm}", Snapshot(Manager.ABORTED, None))
    return True


def receive_commit(w: Any, rm: int) -> bool:
    if w.decided is not Transaction.COMMITTED:
        return False
    _step(w, rm, CommitReceived())
    return True


def receive_abort(w: Any, rm: int) -> bool:
    if w.decided is not Transaction.ABORTED:
        return False
    _step(w, rm, AbortReceived())
    return True


def consistent(w: Any, n: int) -> bool:
    """No resource manager commits while another aborts."""
    committed = any(getattr(w, f"manager{rm}").state is Manager.COMMITTED for rm in range(n))
    return not (committed and any(getattr(w, f"manager{rm}").state is Manager.ABORTED for rm in range(n)))


def all_decided(w: Any, n: int) -> bool:
    return all(getattr(w, f"manager{rm}").state in MANAGER.final for rm in range(n))
