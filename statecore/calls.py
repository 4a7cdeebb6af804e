"""Calls between processes and the death of one, each declared once and made into all the steps that it can take.

In a world the unit is the call, not the message. `rpc` makes these actions of one declaration named `prepare`:

* `prepare`: the request arrives, is handled, and its answer arrives;
* `prepare_reply_lost` (fault): it is handled, and the caller never hears of it;
* `prepare_delayed` (fault): the request does not arrive now: it is on the way, or lost;
* `prepare_left_behind` (fault): it is handled and answered, and a copy of it is still on the way;
* `prepare_late` (fault): the copy arrives and is handled; nobody waits for its answer.

The copy on the way lies in a slot of capacity one. A newer one takes its place, and then the older is lost for good.
`crash` sets a process's volatile slots back to their first values. Faults can be bounded by a slot that counts down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen

from .declare import Action
from .errors import DefinitionError, Refused

__all__ = ["Call", "Crash", "Declared", "Late", "crash", "rpc"]

Function = Callable[..., Any]


@frozen(cache_hash=True)
class Late:
    """A request on the way: of which call, with which arguments."""

    call: str
    args: tuple[Any, ...]
    request: Any


class Declared(Action):
    """An action that gets its name from the class that declares it, and uses slots by their names."""

    uses: tuple[str, ...] = ()
    named = False
    wrong: str | None = None
    """What the world that declares it says instead: an exception in `__set_name__` would not come through as it is."""

    def __set_name__(self, owner: type, name: str) -> None:
        if self.named:
            self.wrong = f"{name}: it is declared as {self.name} already; declare it once more"
        else:
            self.name, self.named = name, True

    def check(self, world: Any) -> None:
        """DefinitionError if a slot that it uses is none of the world's."""
        for name in self.uses:
            if name not in world.slots_:
                known = ", ".join(world.slots_)
                raise DefinitionError(f"{type(world).__name__}.{self.name} uses slot {name!r}, which is none ({known})")


class Crash(Declared):
    """What `crash` declares."""

    def __init__(self, process: str, budget: str | None, then: Function | None, by: str | None) -> None:
        super().__init__(self._dies, fault=True, over=None, by=by or process)
        self.process = process
        self.budget = budget
        self.then = then
        self.uses = () if budget is None else (budget,)

    def check(self, world: Any) -> None:
        super().check(world)
        world.memory_of(self.process)

    def _dies(self, world: Any) -> object:
        if not _spend(world, self.budget):
            return False
        world.wipe(self.process)
        return None if self.then is None else self.then(world)


def crash(process: str, *, budget: str | None = None, then: Function | None = None, by: str | None = None) -> Any:
    """Declare the fault action in which `process` dies: what it held in volatile slots is gone.

    `budget` names a slot with a number: each crash takes one, and there is none when it is 0. `then(world)` does what
    else comes of it, and answers False if the process cannot die now.
    """
    return Crash(process, budget, then, by)


class Call(Declared):
    """What `rpc` declares: the call as it should go; `__set_name__` puts what else may come of it beside it."""

    def __init__(
        self, functions: tuple[Function, Function, Function | None], late: str | None, budget: str | None, **more: Any
    ) -> None:
        super().__init__(self._done, fault=False, **more)
        self.call, self.handle, self.reply = functions
        self.late = late
        self.budget = budget
        self.uses = tuple(name for name in (late, budget) if name is not None)
        self.ways: list[str] = []

    def __set_name__(self, owner: type, name: str) -> None:
        super().__set_name__(owner, name)
        if self.wrong is not None:
            return
        ways = {"reply_lost": self._reply_lost}
        if self.late is not None:
            ways |= {"delayed": self._delayed, "left_behind": self._left_behind, "late": self._late}
        for suffix, function in ways.items():
            one = Action(function, fault=True, over=self.over, by=self.by)
            one.name = f"{name}_{suffix}"
            one.__doc__ = function.__doc__
            if one.name in vars(owner):
                self.wrong = f"{one.name}: rpc {name} makes an action of this name; choose another"
            else:
                setattr(owner, one.name, one)
                self.ways.append(one.name)

    def _done(self, world: Any, *args: Any) -> object:
        """The request is handled, and its answer arrives."""
        request = self.call(world, *args)
        if request is False or request is None:
            return False
        return self._take(world, args, self._handled(world, args, request))

    def _reply_lost(self, world: Any, *args: Any) -> object:
        """The request is handled, and its answer is lost."""
        if not _spend(world, self.budget):  # first: most states of a bounded world have no fault left
            return False
        request = self.call(world, *args)
        if request is False or request is None:
            return False
        return None if not isinstance(self._handled(world, args, request), Refused) else False

    def _delayed(self, world: Any, *args: Any) -> object:
        """The request does not arrive now: it is on the way, or lost."""
        if not _spend(world, self.budget):  # first: most states of a bounded world have no fault left
            return False
        request = self.call(world, *args)
        if request is False or request is None:
            return False
        return self._leave(world, args, request)

    def _left_behind(self, world: Any, *args: Any) -> object:
        """The request is handled and answered, and a copy of it is still on the way."""
        if not _spend(world, self.budget):  # first: most states of a bounded world have no fault left
            return False
        request = self.call(world, *args)
        if request is False or request is None:
            return False
        if self._take(world, args, self._handled(world, args, request)) is False:
            return False
        return self._leave(world, args, request)

    def _late(self, world: Any, *args: Any) -> object:
        """The copy arrives and is handled; nobody waits for its answer, and one that is refused changes nothing."""
        copy = getattr(world, str(self.late))
        if not isinstance(copy, Late) or (copy.call, copy.args) != (self.name, args):
            return False
        setattr(world, str(self.late), None)
        return None if not isinstance(self._handled(world, args, copy.request), Refused) else False

    def _handled(self, world: Any, args: tuple[Any, ...], request: Any) -> Any:
        """The answer; a refusal is one too, and then the callee is as it was."""
        try:
            return world.whole(self.handle, *args, request)
        except Refused as refusal:
            return refusal

    def _take(self, world: Any, args: tuple[Any, ...], answer: Any) -> object:
        """What the caller makes of the answer; one that takes no answers hears no refusals either."""
        if self.reply is None:
            return False if isinstance(answer, Refused) else None
        return False if self.reply(world, *args, answer) is False else None

    def _leave(self, world: Any, args: tuple[Any, ...], request: Any) -> object:
        copy = Late(self.name, args, request)
        if getattr(world, str(self.late)) == copy:
            return False  # there is one like it already
        setattr(world, str(self.late), copy)
        return None


def rpc(
    call: Function,
    handle: Function,
    reply: Function | None = None,
    *,
    over: Any = None,
    late: str | None = None,
    budget: str | None = None,
    fair: bool = False,
    by: str | None = None,
) -> Any:
    """Declare a call and all that may come of it, as actions (see the module).

    * `call(world, *args)` is the caller's side: the request, or False if none is sent now. It may write what the
      caller notes of it.
    * `handle(world, *args, request)` is the callee's: what the tables that run make of it. A `Refused` that escapes is
      an answer too, and drops what was written.
    * `reply(world, *args, answer)` is the caller's again: what it makes of the answer (maybe a `Refused`), or False if
      that is no step. Without it the call is not made where it is refused.

    `over` repeats it like an action. `late` names the (wire) slot, None at first, for the copy on the way; several
    calls may share it, and without it none is late. `budget` names a slot that says how many faults may still come.
    """
    return Call((call, handle, reply), late, budget, over=over, fair=fair, by=by)


def _spend(world: Any, budget: str | None) -> bool:
    """Whether there was one more fault to come; it is taken."""
    if budget is None:
        return True
    left = getattr(world, budget)
    if not left:
        return False
    setattr(world, budget, left - 1)
    return True
