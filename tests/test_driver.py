"""The driver: one event at a time, effects in order, a bounded mailbox, timers on the loop's clock, and an end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum, auto
from typing import Any

import pytest
import trio
import trio.testing
from attrs import frozen

from statecore import DefinitionError, Refused, Snapshot, StatecoreError, Table, go, refuse, stay
from statecore.driver import Driver, DriverStopped, MailboxFull
from statecore.journal import Journal, replay
from statecore.seams import LoopClock
from tests.sample_tables import HANDOFF, LAMP, Acknowledged, Finished, Handoff, Lamp, Pressed, Removed, SendResult


class Lease(StrEnum):
    FREE = auto()
    HELD = auto()


@frozen
class Taken:
    until_s: float


@frozen
class Expired:
    pass


@frozen
class Say:
    word: str


def take(words: tuple[str, ...], event: Taken) -> tuple[tuple[str, ...], list[Say]]:
    return (*words, "taken"), [Say("one"), Say("two")]


LEASE = Table(
    "lease",
    data=tuple[str, ...],
    initial=Lease.FREE,
    cells={
        Lease.FREE: {Taken: go(Lease.HELD, do=take), Expired: refuse("not_held")},
        Lease.HELD: {Taken: stay(do=take), Expired: go(Lease.FREE)},
    },
)


def state(driver: Driver[Any, Any]) -> Any:
    return driver.snapshot.state


@asynccontextmanager
async def running(driver: Driver[Any, Any]) -> AsyncIterator[trio.Nursery]:
    """The driver runs within the block, and is stopped at its end."""
    async with trio.open_nursery() as nursery:
        await nursery.start(driver.run)
        yield nursery
        driver.stop()


class Performer:
    """Writes down what it performs; each effect takes `seconds`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.done: list[Any] = []

    async def __call__(self, effect: Any) -> None:
        await trio.sleep(self.seconds)
        self.done.append(effect)


@pytest.mark.trio
async def test_send_returns_when_the_effects_have_been_performed(autojump_clock: trio.testing.MockClock) -> None:
    """The next snapshot comes back, and what was owed has been done by then, in order."""
    perform = Performer(1.0)
    driver = Driver(LEASE, perform)
    async with running(driver):
        after = await driver.send(Taken(5.0))
        assert after == driver.snapshot == Snapshot(Lease.HELD, ("taken",))
        assert perform.done == [Say("one"), Say("two")]
        assert trio.current_time() == pytest.approx(2.0)


@pytest.mark.trio
async def test_one_event_is_finished_before_the_next_begins(autojump_clock: trio.testing.MockClock) -> None:
    """However many send at once: a step, all its effects, then the next step."""
    order: list[str] = []

    async def perform(effect: Say) -> None:
        order.append(f"begin {effect.word}")
        await trio.sleep(1.0)
        order.append(f"end {effect.word}")

    driver = Driver(LEASE, perform)
    async with running(driver), trio.open_nursery() as senders:
        for _ in range(3):
            senders.start_soon(driver.send, Taken(1.0))
    assert order == ["begin one", "end one", "begin two", "end two"] * 3
    assert driver.snapshot.data == ("taken",) * 3


@pytest.mark.trio
async def test_a_refusal_is_raised_in_its_sender_and_changes_nothing() -> None:
    """The driver goes on."""
    driver = Driver(HANDOFF, Performer())
    async with running(driver):
        with pytest.raises(Refused, match="not_finished"):
            await driver.send(Acknowledged("r1"))
        assert driver.snapshot == HANDOFF.start()
        await driver.send(Finished("r1"))
    assert driver.snapshot == Snapshot(Handoff.RETAINED, "r1")


@pytest.mark.trio
async def test_a_posted_event_that_is_refused_goes_to_its_handler() -> None:
    """Nobody waits for it, so a handler is told; without one it is an error of the driver."""
    told: list[Refused] = []
    driver = Driver(LAMP, on_refused=told.append)
    async with running(driver):
        driver.post(Removed())
        await driver.send(Pressed())
    assert [refused.code for refused in told] == ["fixed_to_the_wall"]
    strict = Driver(LAMP)
    strict.post(Removed())
    with pytest.raises(Refused, match="fixed_to_the_wall"):
        await strict.run()


@pytest.mark.trio
async def test_the_mailbox_has_a_bound(autojump_clock: trio.testing.MockClock) -> None:
    """post refuses what it has no room for, send waits for room; nothing is lost."""
    driver = Driver(LEASE, Performer(1.0), mailbox=2)
    async with running(driver) as nursery:
        nursery.start_soon(driver.send, Taken(0.0))
        await trio.testing.wait_all_tasks_blocked()  # the first is being performed
        driver.post(Taken(0.0))
        driver.post(Taken(0.0))
        with pytest.raises(MailboxFull, match="Taken was not taken: the mailbox is full"):
            driver.post(Taken(0.0))
        await driver.send(Taken(0.0))
        assert trio.current_time() == pytest.approx(8.0)
    assert driver.snapshot.data == ("taken",) * 4
    with pytest.raises(DefinitionError, match="mailbox=0"):
        Driver(LEASE, mailbox=0)


@pytest.mark.trio
async def test_a_timer_brings_its_event_at_its_time(autojump_clock: trio.testing.MockClock) -> None:
    """By a delay or a deadline on the loop's clock; once it has rung it is no longer armed."""
    driver = Driver(LEASE, Performer())
    async with running(driver):
        await driver.send(Taken(0.0))
        driver.arm("lease", 30.0, Expired())
        assert "lease" in driver.armed
        await trio.sleep(29.0)
        assert state(driver) is Lease.HELD
        await trio.sleep(1.5)
        assert state(driver) is Lease.FREE
        assert not driver.armed
        await driver.send(Taken(0.0))
        driver.arm_at("lease", trio.current_time() - 5.0, Expired())
        await trio.testing.wait_all_tasks_blocked()
        assert state(driver) is Lease.FREE


@pytest.mark.trio
async def test_arming_again_replaces_and_disarming_takes_away(autojump_clock: trio.testing.MockClock) -> None:
    """A renewed lease has one end; a released one has none."""
    driver = Driver(LEASE, Performer())
    async with running(driver):
        await driver.send(Taken(0.0))
        driver.arm("lease", 10.0, Expired())
        driver.arm("lease", 100.0, Expired())
        await trio.sleep(50.0)
        assert state(driver) is Lease.HELD
        assert driver.disarm("lease") is True
        assert driver.disarm("lease") is False
        await trio.sleep(1000.0)
        assert state(driver) is Lease.HELD


@pytest.mark.trio
async def test_a_timer_is_not_lost_to_a_full_mailbox(autojump_clock: trio.testing.MockClock) -> None:
    """It waits for room as a sender does."""
    driver = Driver(LEASE, Performer(10.0), mailbox=1)
    async with running(driver):
        driver.post(Taken(0.0))
        await trio.testing.wait_all_tasks_blocked()
        driver.post(Taken(0.0))
        driver.arm("lease", 1.0, Expired())
        await trio.sleep(100.0)
        assert state(driver) is Lease.FREE


@pytest.mark.trio
async def test_timers_need_a_running_driver_and_a_number() -> None:
    """Otherwise the event would never come."""
    driver = Driver(LEASE, Performer())
    with pytest.raises(DriverStopped, match="timer 'lease' was not armed"):
        driver.arm("lease", 1.0, Expired())
    async with running(driver):
        with pytest.raises(DefinitionError, match="the deadline is no number"):
            driver.arm("lease", float("nan"), Expired())


@pytest.mark.trio
async def test_an_effect_may_post_and_arm_but_not_send() -> None:
    """A performer that waited for its own driver would wait for ever: refused by name."""
    words: list[str] = []

    async def perform(effect: Say) -> None:
        words.append(effect.word)
        if effect.word == "one":
            with pytest.raises(StatecoreError, match="would wait for itself"):
                await driver.send(Expired())
            driver.post(Expired())

    driver: Driver[Lease, tuple[str, ...]] = Driver(LEASE, perform)
    async with running(driver):
        await driver.send(Taken(0.0))
        await trio.testing.wait_all_tasks_blocked()
        assert (words, driver.snapshot.state) == (["one", "two"], Lease.FREE)


@pytest.mark.trio
async def test_a_failing_effect_stops_the_driver_and_is_raised_as_it_is() -> None:
    """It is the performer's bug: run raises it, in no group; who waits learns that it will not be done."""

    async def perform(effect: Say) -> None:
        raise ZeroDivisionError("a bug")

    driver = Driver(LEASE, perform)
    outcomes: list[str] = []

    async def send() -> None:
        with pytest.raises(DriverStopped) as caught:
            await driver.send(Taken(0.0))
        outcomes.append(str(caught.value))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await driver.run()
    assert sorted(outcomes) == [
        "Taken was not finished: ZeroDivisionError",
        "Taken was not finished: the driver has stopped",
    ]
    with pytest.raises(DriverStopped, match="the driver has stopped"):
        await driver.send(Taken(0.0))


@pytest.mark.trio
async def test_an_effect_without_a_performer_is_a_mistake() -> None:
    """Nothing that is owed is dropped silently."""
    driver = Driver(HANDOFF)
    driver.post(Finished("r1"))
    with pytest.raises(DefinitionError, match=r"effect SendResult\(receipt='r1'\) is owed, and no performer was given"):
        await driver.run()


@pytest.mark.trio
async def test_stop_finishes_what_was_taken_and_takes_no_more(autojump_clock: trio.testing.MockClock) -> None:
    """Events in the mailbox are finished, timers are disarmed, later ones are told that it has stopped."""
    driver = Driver(LEASE, Performer(1.0))
    async with running(driver):
        driver.arm("lease", 1.0, Expired())
        driver.post(Taken(0.0))
        driver.post(Taken(0.0))
        driver.stop()
        driver.stop()
        assert driver.armed == ()
        with pytest.raises(DriverStopped):
            driver.post(Taken(0.0))
        with pytest.raises(DriverStopped):
            await driver.send(Taken(0.0))
        with pytest.raises(DriverStopped):
            driver.arm("lease", 1.0, Expired())
    assert driver.snapshot == Snapshot(Lease.HELD, ("taken", "taken"))


@pytest.mark.trio
async def test_a_sender_that_waits_for_room_is_told_when_it_stops(autojump_clock: trio.testing.MockClock) -> None:
    """Its event was never taken, and it does not wait for ever."""
    driver = Driver(LEASE, Performer(1.0), mailbox=1)
    told: list[str] = []

    async def send() -> None:
        try:
            await driver.send(Taken(0.0))
        except DriverStopped as stopped:
            told.append(str(stopped))

    async with running(driver) as nursery:
        for _ in range(3):
            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked()
        driver.stop()
    assert told == ["Taken was not taken: the driver has stopped"]
    assert driver.snapshot.data == ("taken", "taken")


@pytest.mark.trio
async def test_cancelling_the_driver_tells_the_waiting(autojump_clock: trio.testing.MockClock) -> None:
    """A coordinator that is abandoned leaves nobody waiting for ever."""
    driver = Driver(LEASE, Performer(1000.0))
    told: list[str] = []

    async def send() -> None:
        with pytest.raises(DriverStopped) as caught:
            await driver.send(Taken(0.0))
        told.append(str(caught.value))

    async with trio.open_nursery() as senders, trio.open_nursery() as nursery:
        await nursery.start(driver.run)
        senders.start_soon(send)
        senders.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert sorted(told) == ["Taken was not finished: Cancelled", "Taken was not finished: the driver has stopped"]


@pytest.mark.trio
async def test_a_cancelled_sender_does_not_take_its_event_back(autojump_clock: trio.testing.MockClock) -> None:
    """Once taken, the event is finished, whoever waits for it."""
    perform = Performer(5.0)
    driver = Driver(LEASE, perform)
    async with running(driver):
        with trio.move_on_after(1.0) as scope:
            await driver.send(Taken(0.0))
        assert scope.cancelled_caught
        await trio.sleep(20.0)
        assert perform.done == [Say("one"), Say("two")]


@pytest.mark.trio
async def test_its_journal_is_allowed_by_its_table(autojump_clock: trio.testing.MockClock) -> None:
    """Every event is written with its ids and the clock, refused ones with their code, before its effects begin."""
    journal = Journal(None, LoopClock(1000.0))
    seen: list[int] = []

    async def perform(effect: SendResult) -> None:
        seen.append(len(journal.lines))

    driver = Driver(HANDOFF, perform, journal=journal, ids={"rollout_id": "p7_g2", "attempt": 1})
    async with running(driver):
        await trio.sleep(7.0)
        await driver.send(Finished("r1"))
        with pytest.raises(Refused):
            await driver.send(Acknowledged("r2"))
        await driver.send(Acknowledged("r1"))
    assert replay(journal.lines, [HANDOFF], ["rollout_id", "attempt"]).lines == 3
    assert seen == [1]
    assert b'"clock":1007.0' in journal.lines[0] and b'"attempt":1' in journal.lines[0]
    assert b'"refused":"receipt_mismatch"' in journal.lines[1]


@pytest.mark.trio
async def test_an_undeclared_event_is_a_bug_of_the_sender_and_stops_the_driver() -> None:
    """It is no refusal: the mistake is raised by run."""
    driver = Driver(LAMP)
    driver.post(Finished("r1"))
    with pytest.raises(DefinitionError, match="is not declared"):
        await driver.run()
    assert driver.snapshot == Snapshot(Lamp.OFF, None)
