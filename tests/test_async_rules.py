"""A Hypothesis machine with async rules: one trio run per example, and everything else as Hypothesis has it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest
import trio
from hypothesis import HealthCheck, Phase, assume, note, reproduce_failure, seed, settings
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    multiple,
    precondition,
    run_state_machine_as_test,
)
from hypothesis.stateful import rule as plain_rule
from trio.testing import wait_all_tasks_blocked

from statecore import DefinitionError
from statecore.testing.stateful import AsyncRuleBasedStateMachine, NeverEnded, initialize, invariant, rule

ROOT = Path(__file__).resolve().parent.parent
QUICK = settings(
    max_examples=30,
    stateful_step_count=15,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.reuse, Phase.generate, Phase.shrink],
)
LONG = settings(QUICK, max_examples=500)


def failure(machine: type[RuleBasedStateMachine], how: settings = LONG) -> tuple[BaseException, list[str]]:
    """What the machine fails with, and the steps that are printed with it."""
    with pytest.raises(BaseException) as caught:
        run_state_machine_as_test(machine, settings=how)
    return caught.value, printed("\n".join(getattr(caught.value, "__notes__", [])))


def printed(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if "state." in line or line.startswith(("state =", "noted"))]


ORDER = "state.seed_task_order(seed=RandomSeeder(0))"


class Counter(AsyncRuleBasedStateMachine):
    """Adds in a task in the background, and is wrong from 25 on."""

    wrong_from = 25

    @initialize()
    async def open(self) -> None:
        self.total = 0
        self.send, self.receive = trio.open_memory_channel[int](0)
        self.nursery.start_soon(self._adds)

    async def _adds(self) -> None:
        async for n in self.receive:
            await trio.sleep(3600)  # of the example's own clock
            self.total += n

    @rule(n=st.integers(0, 100))
    async def add(self, n: int) -> None:
        await self.send.send(n)

    @rule()
    async def wait(self) -> None:
        await trio.sleep(4000)

    @rule()
    def stand(self) -> None:
        trio.current_time()  # one that is not async is in the run too

    @invariant()
    async def is_small(self) -> None:
        await trio.lowlevel.checkpoint()
        assert self.total < self.wrong_from, "too large"


class Patient(Counter):
    """Steps may take as long as it does."""

    step_limit_s = 100_000.0


def test_a_failure_is_shrunk_and_its_steps_are_printed() -> None:
    """The failing example is the least one, with its steps and the exception as it was raised."""
    error, steps = failure(Patient)
    assert type(error) is AssertionError
    assert str(error).startswith("too large")
    assert [line for line in steps if "is_small" not in line] == [
        "state = Patient()",
        *sorted(["state.open()", ORDER], key=steps.index),
        "state.add(n=25)",
        "state.wait()",
        "state.teardown()",
    ]


def test_the_printed_steps_are_a_program() -> None:
    """The steps of a failure fail in the same way where they are called one by one, without Hypothesis."""
    state: Any = Patient()
    state.open()
    state.add(n=25)
    state.wait()
    with pytest.raises(AssertionError, match="too large"):
        state.is_small()
    state.teardown()
    with pytest.raises(RuntimeError, match="no step after teardown"):
        state.wait()
    with pytest.raises(RuntimeError, match="no nursery"):
        _ = state.nursery
    trio.run(trio.lowlevel.checkpoint)  # and the thread is free for another run


class Racing(AsyncRuleBasedStateMachine):
    """Two tasks that can run at the same time; it fails if the second one does."""

    @rule()
    async def race(self) -> None:
        order: list[str] = []
        for name in ("first", "second"):
            self.nursery.start_soon(self._append, order, name)
        await wait_all_tasks_blocked()
        assert order[0] == "first"

    async def _append(self, order: list[str], name: str) -> None:
        order.append(name)
        await trio.sleep_forever()


def test_tasks_take_turns_by_a_seed_that_is_drawn() -> None:
    """What depends on the order of tasks is found, is printed with its seed, and is the same every time."""
    _, steps = failure(Racing)
    assert steps[1].startswith("state.seed_task_order(seed=RandomSeeder(")
    assert [failure(Racing)[1] for _ in range(2)] == [steps, steps]


def test_a_failure_is_replayed_from_its_blob_and_from_the_database(capsys: pytest.CaptureFixture[str]) -> None:
    """@reproduce_failure and the example database bring the same failure back, at once."""
    database = InMemoryExampleDatabase()
    error, steps = failure(Racing, settings(LONG, print_blob=True, derandomize=False, database=database))
    found = re.search(r"@reproduce_failure\('(.*)', (b'.*')\)", "\n".join(error.__notes__))
    assert found is not None

    @reproduce_failure(found[1], eval(found[2]))
    class Again(Racing):
        pass

    capsys.readouterr()
    failure(Again, settings(QUICK, derandomize=False))
    assert [line.replace("Again", "Racing") for line in printed(capsys.readouterr().out)] == steps
    from_database = settings(QUICK, derandomize=False, database=database, phases=[Phase.reuse])
    assert failure(Racing, from_database)[1] == steps


def test_a_seed_and_settings_are_as_in_any_other_machine() -> None:
    """@seed and @settings on the class, TestCase and its settings are Hypothesis's."""

    @seed(4)
    @settings(QUICK, derandomize=False, max_examples=7)
    class Seeded(AsyncRuleBasedStateMachine):
        drawn: ClassVar[list[int]] = []

        @rule(n=st.integers(0, 1000))
        async def draw(self, n: int) -> None:
            self.drawn.append(n)

    assert Seeded.TestCase.settings.max_examples == 7
    for _ in range(2):
        Seeded.TestCase("runTest").debug()
    half = len(Seeded.drawn) // 2
    assert Seeded.drawn[:half] == Seeded.drawn[half:] != []


class Posted(AsyncRuleBasedStateMachine):
    """Letters in two bundles, taken out again under a precondition."""

    letters: Any = Bundle("letters")
    drawers: Any = Bundle("drawers")
    burnt: ClassVar[list[str]] = []

    @initialize(target=drawers)
    async def furnish(self) -> str:
        self.count = 0
        return "drawer"

    @rule(targets=(letters,), drawer=drawers)
    async def write(self, drawer: str) -> Any:
        self.count += 2
        await trio.lowlevel.checkpoint()
        return multiple(f"{drawer} {self.count - 1}", f"{drawer} {self.count}")

    @precondition(lambda self: self.count > 2)
    @rule(letter=consumes(letters))
    async def burn(self, letter: str) -> None:
        assert letter.startswith("drawer ")
        assert self.count > 2
        await trio.lowlevel.checkpoint()
        self.burnt.append(letter)

    @rule(data=st.data())
    @precondition(lambda self: self.count == 4)
    async def assume_and_draw(self, data: st.DataObject) -> None:
        assert self.count == 4
        n = data.draw(st.integers(0, 3), label="so many")
        await trio.sleep(n)
        assume(n != 2)
        note(f"noted {n}")
        assert not self.burnt_all, "stop here"

    burnt_all = False


def test_bundles_preconditions_notes_and_draws_work_in_async_rules() -> None:
    """Targets, consumes, multiple, preconditions on either side, assume, note and data.draw."""
    run_state_machine_as_test(Posted, settings=QUICK)
    assert Posted.burnt

    class Stopped(Posted):
        burnt_all = True

    error, steps = failure(Stopped)
    assert str(error).startswith("stop here")
    assert [line for line in steps if "seed_" not in line] == [
        "state = Stopped()",
        "drawers_0 = state.furnish()",
        "letters_0, letters_1 = state.write(drawer=drawers_0)",
        "letters_2, letters_3 = state.write(drawer=drawers_0)",
        "noted 0",
        "state.assume_and_draw(data=data(...))",
        "state.teardown()",
    ]


class Lives(AsyncRuleBasedStateMachine):
    """Writes down which run each step is in, and what becomes of its tasks."""

    seen: ClassVar[list[str]] = []
    runs: ClassVar[list[trio.lowlevel.TrioToken]] = []

    @initialize()
    async def begin(self) -> None:
        self.token = trio.lowlevel.current_trio_token()
        self.runs.append(self.token)
        self.nursery.start_soon(self._live)

    async def _live(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.seen.append("cancelled")

    @rule()
    async def step(self) -> None:
        assert trio.lowlevel.current_trio_token() is self.token
        assert anyio.current_time() == trio.current_time()

    @rule()
    def step_that_is_not_async(self) -> None:
        assert trio.lowlevel.current_trio_token() is self.token

    async def teardown(self) -> None:  # type: ignore[override]
        assert trio.lowlevel.current_trio_token() is self.token
        await trio.sleep(1)
        self.seen.append("torn down")
        await super().teardown()


class LivesOn(Lives):
    """Its teardown comes before the one that it inherits."""

    def teardown(self) -> Any:
        self.seen.append("first")
        return super().teardown()


def test_an_example_is_one_run_and_teardown_ends_it() -> None:
    """All steps of an example and its teardown are in one run, each example in another, and then its tasks end."""
    run_state_machine_as_test(LivesOn, settings=QUICK)
    assert len(set(Lives.runs)) == len(Lives.runs) >= QUICK.max_examples
    assert Lives.seen == ["first", "torn down", "cancelled"] * len(Lives.runs)


class Dying(AsyncRuleBasedStateMachine):
    """A task in the background dies a while after it was started."""

    torn_down = False

    @rule(n=st.integers(1, 5))
    async def start(self, n: int) -> None:
        self.nursery.start_soon(self._die, n)
        await wait_all_tasks_blocked()

    async def _die(self, n: int) -> None:
        await trio.sleep(n)
        raise LookupError("a task is dead")

    @rule()
    async def wait(self) -> None:
        await trio.sleep(3)

    async def teardown(self) -> None:  # type: ignore[override]
        await trio.lowlevel.checkpoint()
        type(self).torn_down = True


def test_a_task_that_dies_fails_the_example() -> None:
    """The step under way is stopped and fails with the task's own exception, not with a group; teardown still runs."""
    error, steps = failure(Dying)
    assert type(error) is LookupError
    assert "raised by a task in the background" in error.__notes__
    assert steps[-3:] == ["state.start(n=1)", "state.wait()", "state.teardown()"]
    assert Dying.torn_down


def test_a_task_that_dies_between_steps_fails_the_next_one() -> None:
    """A death that no step has noticed is told by the next step, or by teardown."""
    state: Any = Dying()
    state.start(n=1)
    state.clock.jump(2)
    with pytest.raises(LookupError, match="a task is dead"):
        state.wait()
    state.teardown()
    state = Dying()
    state.start(n=1)
    state.clock.jump(2)
    with pytest.raises(LookupError, match="a task is dead"):
        state.teardown()


def test_two_tasks_that_die_at_once_are_a_group() -> None:
    """Only what is several exceptions is an exception group."""

    class DyingTogether(AsyncRuleBasedStateMachine):
        @rule()
        async def start(self) -> None:
            for _ in range(2):
                self.nursery.start_soon(self._die)
            await trio.sleep(1)

        async def _die(self) -> None:
            raise LookupError("a task is dead")

    state: Any = DyingTogether()
    with pytest.raises(ExceptionGroup) as caught:
        state.start()
    state.teardown()
    assert [str(each) for each in caught.value.exceptions] == ["a task is dead"] * 2


class Troubled(AsyncRuleBasedStateMachine):
    """What fails, and what fails after it."""

    @rule()
    async def start(self) -> None:
        self.nursery.start_soon(self._fail_at_the_end)

    async def _fail_at_the_end(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise LookupError("cannot clean up")

    @rule()
    async def fail(self) -> None:
        raise KeyError("the rule")

    @rule()
    async def interrupt(self) -> None:
        signal.raise_signal(signal.SIGINT)
        await trio.sleep_forever()


def test_what_failed_first_is_what_is_raised() -> None:
    """A task that fails when it is cancelled at the end fails the example, or is noted with what failed before."""
    state: Any = Troubled()
    state.start()
    with pytest.raises(LookupError, match="cannot clean up"):
        state.teardown()
    state = Troubled()
    state.start()
    with pytest.raises(KeyError, match="the rule") as caught:
        state.fail()
    state.teardown()
    assert "LookupError was raised in the background: cannot clean up" in caught.value.__notes__[0]


def test_an_interrupt_ends_the_test() -> None:
    """Control-C in the middle of a step is a KeyboardInterrupt, and the run is closed."""
    state: Any = Troubled()
    with pytest.raises(KeyboardInterrupt):
        state.interrupt()
    state.teardown()
    trio.run(trio.lowlevel.checkpoint)


class Endless(AsyncRuleBasedStateMachine):
    """Steps that do not end, each in a way of its own."""

    step_limit_s = 50.0

    async def _reply(self) -> None:
        await trio.sleep_forever()

    @rule()
    async def wait(self) -> None:
        await self._reply()

    @rule()
    async def spin(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()

    @rule()
    async def shield(self) -> None:
        self.nursery.start_soon(self._reply)
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()


def test_a_step_that_never_ends_is_an_error_that_names_its_place() -> None:
    """Waiting for ever and never waiting are found without real time passing, and the example can be torn down."""
    state: Any = Endless()
    with pytest.raises(NeverEnded, match=r"wait never ended: it was waiting after 50 s, in wait .* > _reply \(test_"):
        state.wait()
    with pytest.raises(NeverEnded, match=r"spin never ended: it kept the loop turning .*, in spin \(test_async_rules"):
        state.spin()
    state.teardown()


SHIELDED = """
from typing import Any
from tests.test_async_rules import Endless
state: Any = Endless()
for _ in range(2):
    try:
        state.shield()
    except AssertionError as error:
        print(error)
    state = Endless()
"""


def test_a_step_that_cannot_be_cancelled_is_an_error_too() -> None:
    """What is shielded and never ends cannot be closed: the error says so, and every later run says it again."""
    command = [sys.executable, "-W", "ignore", "-c", SHIELDED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith("shield does not end, not even when it is cancelled (is something shielded?); still in the")
    assert first == second


def test_threads_can_be_waited_for() -> None:
    """With a threshold the clock waits for a worker thread in real time."""

    class Threaded(AsyncRuleBasedStateMachine):
        autojump_threshold = 0.05

        @rule()
        async def work(self) -> None:
            assert await trio.to_thread.run_sync(lambda: 5) == 5
            assert trio.current_time() < began[0] + 1

    state: Any = Threaded()
    began = [state.clock.current_time()]
    state.work()
    state.teardown()


def test_hypothesis_own_decorators_are_refused_for_async_methods() -> None:
    """The mistake that would go unnoticed, a coroutine that nobody awaits, is one when the class is made."""
    with pytest.raises(DefinitionError, match=r"Wrong\.step is async, and Hypothesis's own decorator"):

        class Wrong(AsyncRuleBasedStateMachine):
            @plain_rule()  # type: ignore[arg-type]
            async def step(self) -> None: ...


def test_async_rules_are_refused_by_a_plain_machine() -> None:
    """Our decorators need our machine, and say so."""

    class Plain(RuleBasedStateMachine):
        @rule()
        async def step(self) -> None: ...

    with pytest.raises(DefinitionError, match="so Plain must be an AsyncRuleBasedStateMachine"):
        run_state_machine_as_test(Plain, settings=QUICK)


def test_a_plain_rule_of_hypothesis_still_works() -> None:
    """Rules that need no run may have either decorator."""

    class Mixed(AsyncRuleBasedStateMachine):
        n = 0

        @plain_rule()
        def plain(self) -> None:
            assert not trio.lowlevel.in_trio_task()
            self.n += 1

        @rule()
        async def both(self) -> None:
            before = self.n
            await self.other(1)
            assert self.n == before + 1

        @rule(by=st.integers(0, 5))
        async def other(self, by: int) -> None:
            self.n += by

    run_state_machine_as_test(Mixed, settings=QUICK)


def test_a_machine_in_an_async_test_says_where_it_belongs() -> None:
    """A run in a run is refused with the way out."""

    async def main() -> None:
        run_state_machine_as_test(Lives, settings=QUICK)

    with pytest.raises(RuntimeError, match="call it from a sync test"):
        trio.run(main)


def test_a_machine_without_rules_is_refused_as_ever() -> None:
    """What Hypothesis refuses stays refused."""

    class Empty(AsyncRuleBasedStateMachine):
        pass

    with pytest.raises(Exception, match="defines no rules"):
        run_state_machine_as_test(Empty, settings=QUICK)
