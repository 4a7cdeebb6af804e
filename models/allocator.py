"""An allocator of resources with a schedule, for calibration.

Written anew after the TLA+ example SchedulingAllocator (allocator/SchedulingAllocator.tla with
SchedulingAllocator.cfg: three clients, two resources). Published: 1690 distinct states, 5854 generated, depth 7.
One initial state, no constraint, deadlock checked; its configuration leaves symmetry out on purpose, and so is it
here.

`SkipsTheSchedule` is the failing twin: a resource goes to a client though one before it in the schedule asked for
it.
"""

from __future__ import annotations

from itertools import chain, combinations, permutations

from statecore.properties import always, recoverable, sometimes
from statecore.world import World, action, param, slot

Resources = frozenset[int]
NONE: Resources = frozenset()


def chosen(w: Allocator) -> list[tuple[int, Resources]]:
    """Each client with each set of resources that is not empty."""
    sizes = (combinations(range(w.resources), size) for size in range(1, w.resources + 1))
    sets = [frozenset(each) for each in chain.from_iterable(sizes)]
    return [(client, each) for client in range(w.clients) for each in sets]


def orders(w: Allocator) -> list[tuple[int, ...]]:
    """Every order of every set of clients that is not empty."""
    return [each for size in range(1, w.clients + 1) for each in permutations(range(w.clients), size)]


def replaced(values: tuple[Resources, ...], client: int, value: Resources) -> tuple[Resources, ...]:
    return (*values[:client], value, *values[client + 1 :])


class Allocator(World):
    """Clients ask for sets of resources; whoever asks is put at the end of the schedule, together in any order."""

    clients: int = param(3)
    resources: int = param(2)
    asked: tuple[Resources, ...] = slot(make=lambda w: (NONE,) * w.clients)
    held: tuple[Resources, ...] = slot(make=lambda w: (NONE,) * w.clients)
    schedule: tuple[int, ...] = slot(())

    def free(self) -> Resources:
        return frozenset(range(self.resources)).difference(*self.held)

    def unscheduled(self) -> frozenset[int]:
        return frozenset(client for client in range(self.clients) if self.asked[client]) - set(self.schedule)

    def asked_before(self, client: int) -> Resources:
        """What those ask for who are in the schedule before a client that is in it."""
        earlier = self.schedule[: self.schedule.index(client)]
        return NONE.union(*(self.asked[each] for each in earlier))

    @action(over=chosen)
    def request(self, choice: tuple[int, Resources]) -> bool:
        client, wanted = choice
        if self.asked[client] or self.held[client]:
            return False
        self.asked = replaced(self.asked, client, wanted)
        return True

    def may_have(self, client: int, given: Resources) -> bool:
        return not given & self.asked_before(client)

    @action(over=chosen)
    def allocate(self, choice: tuple[int, Resources]) -> bool:
        """What is free and asked for goes to a scheduled client, all of it or a part."""
        client, given = choice
        if client not in self.schedule or not given <= self.free() & self.asked[client]:
            return False
        if not self.may_have(client, given):
            return False
        if given == self.asked[client]:
            self.schedule = tuple(each for each in self.schedule if each != client)
        self.held = replaced(self.held, client, self.held[client] | given)
        self.asked = replaced(self.asked, client, self.asked[client] - given)
        return True

    @action(over=chosen)
    def give_back(self, choice: tuple[int, Resources]) -> bool:
        client, returned = choice
        if not returned <= self.held[client]:
            return False
        self.held = replaced(self.held, client, self.held[client] - returned)
        return True

    @action(over=orders)
    def put_in_schedule(self, order: tuple[int, ...]) -> bool:
        """All that wait to be scheduled, in any order."""
        if frozenset(order) != self.unscheduled():
            return False
        self.schedule += order
        return True

    @always
    def held_by_one(self) -> bool:
        """No resource is held by two clients."""
        return sum(map(len, self.held)) == len(NONE.union(*self.held))

    @always
    def scheduled_clients_ask(self) -> bool:
        return all(self.asked[client] for client in self.schedule)

    @always
    def the_first_in_the_schedule_comes_first(self) -> bool:
        """Nobody holds what one before it in the schedule asks for."""
        return all(not self.held[client] & self.asked_before(client) for client in self.schedule)

    @always
    def who_is_scheduled_can_be_served(self) -> bool:
        """What a client asks for is free, or with those before it, or with those that owe nothing to the schedule."""
        idle = [self.held[client] for client in range(self.clients) if client not in self.schedule]
        for place, client in enumerate(self.schedule):
            earlier = [self.asked[each] | self.held[each] for each in self.schedule[:place]]
            if not self.asked[client] <= self.free().union(*earlier, *idle):
                return False
        return True

    @sometimes
    def holds_while_it_asks(self) -> bool:
        return any(self.held[client] and self.asked[client] for client in range(self.clients))

    @sometimes
    def all_scheduled(self) -> bool:
        return len(self.schedule) == self.clients

    @recoverable
    def satisfied(self) -> bool:
        return not any(self.asked) and not any(self.held)


class SkipsTheSchedule(Allocator):
    """The failing twin: whoever is in the schedule is served, in any order."""

    def may_have(self, client: int, given: Resources) -> bool:
        return True
