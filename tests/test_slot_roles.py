"""Slots with a role: what a crash takes, what it leaves, and that nothing depends on a ghost."""

from __future__ import annotations

from typing import Any

import pytest

from statecore import DefinitionError
from statecore.properties import always, final, sometimes
from statecore.report import check
from statecore.world import World, action, crash, durable, ghost, param, slot, volatile, wire


class Writer(World):
    """A server that counts, syncs what it has counted, and may die."""

    most: int = param(2)
    count: int = volatile(0, of="server")
    begun: bool = volatile(of="server", make=lambda w: w.most > 0)
    disk: int = durable(0)
    sent: frozenset[int] = wire(frozenset())
    crashes: int = slot(1)
    ever: frozenset[int] = ghost(frozenset())

    @action
    def work(self) -> object:
        if self.count == self.most:
            return False
        self.count += 1
        self.ever |= {self.count}
        return None

    @action
    def sync(self) -> object:
        if self.disk >= self.count:
            return False
        self.disk = self.count
        self.sent |= {self.count}
        return None

    server_dies = crash("server", budget="crashes")

    @action
    def come_back(self) -> object:
        if self.count or not self.disk:
            return False
        self.count = self.disk
        return None

    @always(covers="I34")
    def sent_is_on_disk(self) -> bool:
        return all(each <= self.disk for each in self.sent)

    @final
    def all_synced(self) -> bool:
        return self.disk == self.most

    @sometimes
    def lost_what_was_not_synced(self) -> bool:
        return self.count == 0 and self.disk < max(self.ever, default=0)


def test_a_crash_takes_what_is_volatile_and_nothing_else() -> None:
    """What is durable, on the wire or a ghost stays; a volatile slot has its first value again, made or given."""
    w: Any = Writer()
    w.work()
    w.sync()
    w.work()
    assert w.server_dies() is True
    assert (w.count, w.begun, w.disk, w.sent, w.ever, w.crashes) == (0, True, 1, frozenset({1}), frozenset({1, 2}), 0)


def test_a_crash_has_a_budget() -> None:
    """Once it is spent there is no crash any more."""
    w: Any = Writer()
    assert (w.server_dies(), w.server_dies()) == (True, False)


@pytest.mark.parametrize("engine", ["reference", "fast"])
def test_a_world_with_roles_is_explored(engine: str) -> None:
    """Roles change nothing of what is explored: both searches find the same states, and the crash among the faults."""
    report = check(Writer, engine=engine).assert_holds()
    assert report.found.fired["server_dies"] > 0
    assert report.distinct == 24
    assert next(step for step, _ in Writer().steps() if step.name == "server_dies").fault


def test_what_else_comes_of_a_crash() -> None:
    """`then` does more in the same step, or says that the process cannot die now, and then nothing is lost."""

    def forget(w: Any) -> object:
        if not w.disk:
            return False
        w.sent = frozenset()
        return None

    class Two(Writer):
        server_dies = crash("server", then=forget)

    w: Any = Two()
    w.work()
    assert (w.server_dies(), w.count) == (False, 1)
    w.sync()
    assert (w.server_dies(), w.count, w.sent) == (True, 0, frozenset())


def test_a_crash_of_nobody_is_a_mistake() -> None:
    """A process without volatile slots has nothing to lose; the message says who has."""

    class Misspelt(Writer):
        server_dies = crash("sever")

    with pytest.raises(DefinitionError, match=r"Misspelt has no volatile slot of 'sever' \(some of: server\)"):
        Misspelt()
    with pytest.raises(DefinitionError, match=r"no volatile slot of 'disk'"):
        Writer().wipe("disk")


def test_a_budget_is_a_slot() -> None:
    """A name that is none is said at once, not when the crash is first tried."""

    class Misspelt(Writer):
        server_dies = crash("server", budget="crash")

    with pytest.raises(DefinitionError, match=r"Misspelt.server_dies uses slot 'crash', which is none"):
        Misspelt()


@pytest.mark.parametrize("of", ["", None, 3])
def test_a_volatile_slot_belongs_to_a_process(of: Any) -> None:
    """Without a name nobody could lose it."""
    with pytest.raises(DefinitionError, match="name the process"):
        volatile(0, of=of)


class Peeks(Writer):
    """Goes on only as long as a ghost allows it."""

    @action
    def work(self) -> object:
        if self.count == self.most or 2 in self.ever:
            return False
        self.count += 1
        self.ever |= {self.count}
        return None


class PeeksAndWrites(Writer):
    """What it writes comes from a ghost."""

    @action
    def sync(self) -> object:
        if self.disk >= self.count:
            return False
        self.disk = max(self.ever)
        return None


class PeeksFirst(Writer):
    """Looks at a ghost before anything else, and then at something or at nothing."""

    @action
    def come_back(self) -> object:
        if 2 in self.ever:
            return False
        if self.count or not self.disk:
            return False
        self.count = self.disk
        return None


@pytest.mark.parametrize(
    ("world", "name"), [(Peeks, "work"), (PeeksAndWrites, "sync"), (PeeksFirst, "come_back")]
)
def test_an_action_that_depends_on_a_ghost_is_named(world: type[World], name: str) -> None:
    """A guard or a write that follows from a ghost would make the world prove what the servers cannot know."""
    with pytest.raises(DefinitionError, match=rf"action {name} depends on a ghost slot \(ever\)"):
        check(world)


def test_failing_by_a_ghost_is_no_mistake() -> None:
    """`fail` may look at ghosts: it is a property of the step."""

    class Fails(Writer):
        @action
        def sync(self) -> object:
            if self.disk >= self.count:
                return False
            if 2 in self.ever and self.count < 2:
                self.fail("I57")
            self.disk = self.count
            return None

    report = check(Fails)
    assert report.violation is not None
    assert report.violation.name == "I57"
