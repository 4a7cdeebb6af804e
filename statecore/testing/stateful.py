"""A Hypothesis state machine whose rules may be async: one trio run per example.

    class Mailbox(AsyncRuleBasedStateMachine):
        @initialize()
        async def open(self) -> None:
            self.send, self.receive = trio.open_memory_channel[int](5)
            self.nursery.start_soon(self.forward)

        @rule(n=st.integers())
        async def put(self, n: int) -> None: ...

    TestMailbox = Mailbox.TestCase

`rule`, `initialize` and `invariant` are taken from here; bundles, `precondition`, `consumes`, `multiple`, settings,
`TestCase` and `run_state_machine_as_test` are Hypothesis's own, and shrinking, replay and printed steps are as ever.
docs/how-to/test-running-code.md shows it at work.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Sequence
from typing import Any, ClassVar, TypeVar

import trio
from hypothesis import stateful
from hypothesis import strategies as st
from hypothesis.stateful import INITIALIZE_RULE_MARKER, INVARIANT_MARKER, RULE_MARKER, Bundle, RuleBasedStateMachine
from trio.testing import MockClock

from ..errors import DefinitionError
from .standing_run import NeverEnded, StandingRun

__all__ = ["AsyncRuleBasedStateMachine", "NeverEnded", "initialize", "invariant", "rule"]

F = TypeVar("F", bound=Callable[..., Any])


def rule(
    *, targets: Sequence[Bundle[Any]] | None = None, target: Bundle[Any] | None = None, **arguments: Any
) -> Callable[[F], F]:
    """Hypothesis's `rule`, for a method that may be async."""
    return _decorator(stateful.rule(**_where_to(targets, target), **arguments))


def initialize(
    *, targets: Sequence[Bundle[Any]] | None = None, target: Bundle[Any] | None = None, **arguments: Any
) -> Callable[[F], F]:
    """Hypothesis's `initialize`, for a method that may be async."""
    return _decorator(stateful.initialize(**_where_to(targets, target), **arguments))


def invariant(*, check_during_init: bool = False) -> Callable[[F], F]:
    """Hypothesis's `invariant`, for a method that may be async."""
    return _decorator(stateful.invariant(check_during_init=check_during_init))


def _ending(teardown: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(teardown)
    def ending(machine: Any) -> Any:
        __tracebackhide__ = True
        if machine._standing_run.turning:
            return teardown(machine)
        try:
            machine._standing_run.do("teardown", functools.partial(teardown, machine), last=True)
        finally:
            machine._standing_run.close()
        return None

    ending.ends_the_run = True  # type: ignore[attr-defined]
    return ending


class AsyncRuleBasedStateMachine(RuleBasedStateMachine):
    """A machine whose rules, initializers, invariants and teardown run in the main task of one trio run, async or not.

    The run starts with the first of them and ends with teardown. In between `nursery` is open: tasks that are started
    there live on from step to step, and one that dies fails the example with its own exception. Nothing runs between
    two steps. `clock` jumps when all tasks wait. Preconditions are evaluated outside the run, so they cannot be async.
    """

    step_limit_s: ClassVar[float] = 600.0
    """A step that takes longer, in the time of `clock`, fails with NeverEnded."""
    autojump_threshold: ClassVar[float] = 0.0
    """Real seconds that all tasks wait before the clock jumps; more than 0 if what is tested has threads or sockets."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for name in dir(cls):
            method = getattr(cls, name, None)
            if callable(method) and _is_unawaited(method):
                raise DefinitionError(
                    f"{cls.__name__}.{name} is async, and Hypothesis's own decorator does not await it; take `rule`, "
                    f"`initialize` and `invariant` from {__name__}"
                )
        if not getattr(cls.teardown, "ends_the_run", False):
            cls.teardown = _ending(cls.teardown)  # type: ignore[method-assign]

    def __init__(self) -> None:
        super().__init__()
        self._standing_run = StandingRun(self.step_limit_s, self.autojump_threshold)

    @property
    def nursery(self) -> trio.Nursery:
        """Tasks that are started here live until the end of the example."""
        return self._standing_run.nursery

    @property
    def clock(self) -> MockClock:
        """The clock of the run."""
        return self._standing_run.clock

    @property
    def failed(self) -> bool:
        """Whether a step of this example has failed, so that teardown need not look for what should have come of it."""
        return self._standing_run.failed

    @stateful.initialize(seed=st.random_module())
    def seed_task_order(self, seed: object) -> None:
        """Tasks that could run at the same time take turns as the seed says; another example, another seed."""

    @_ending
    def teardown(self) -> Any:
        """Called at the end of each example; one that is async is awaited. Then all tasks are cancelled."""
        return _Nothing()


class _Nothing:
    """What may be awaited or not, so that an async teardown and one that is not can both call their parent's."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


def _where_to(targets: Sequence[Bundle[Any]] | None, target: Bundle[Any] | None) -> dict[str, Any]:
    """Only what was given: Hypothesis tells an argument that is absent from one that is None."""
    given: dict[str, Any] = {"targets": targets, "target": target}
    return {name: value for name, value in given.items() if value is not None}


def _decorator(decorate: Callable[[Any], Any]) -> Callable[[F], F]:
    def accept(method: F) -> F:
        decorated: F = decorate(_step(method))
        return decorated

    return accept


def _step(method: Callable[..., Any]) -> Callable[..., Any]:
    """Called from outside, it is run in the machine's task; called from there, it is what it was."""

    @functools.wraps(method)
    def step(*arguments: Any, **named: Any) -> Any:
        __tracebackhide__ = True
        machine = arguments[0]
        if not isinstance(machine, AsyncRuleBasedStateMachine):
            raise DefinitionError(
                f"{method.__qualname__} has a decorator of {__name__}, so {type(machine).__name__} must be an "
                f"AsyncRuleBasedStateMachine"
            )
        if machine._standing_run.turning:
            return method(*arguments, **named)
        return machine._standing_run.do(method.__name__, functools.partial(method, *arguments, **named))

    step.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
    step.is_step = True  # type: ignore[attr-defined]
    return step


def _is_unawaited(method: Callable[..., Any]) -> bool:
    """Whether it is async, and a rule, an initializer or an invariant by a decorator that is not from here."""
    marked = any(hasattr(method, each) for each in (RULE_MARKER, INITIALIZE_RULE_MARKER, INVARIANT_MARKER))
    return marked and not hasattr(method, "is_step") and inspect.iscoroutinefunction(inspect.unwrap(method))
