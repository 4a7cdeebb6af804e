"""What must happen in the end: fair worlds hold, unfair twins fail with a lasso, and no verdict claims too much."""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.peterson import At, Peterson
from statecore import DefinitionError, InvariantBroken, Verdict, check
from statecore.explore import Limits, explore, verdict
from statecore.liveness import components, explored, fair_actions, never, settle
from statecore.properties import always, eventually, final, leads_to, sometimes
from statecore.seams import FixedClock
from statecore.world import World, action, param, slot


class Message(World):
    """One message: sent, lost at most `losses` times and sent again, received; meanwhile somebody hums."""

    losses: int = param(1)
    where: str = slot("unsent")
    lost: int = slot(0)
    humming: bool = slot(False)

    @action(fair=True)
    def send(self) -> object:
        if self.where != "unsent":
            return False
        self.where = "wire"
        return None

    @action(fair=True)
    def receive(self) -> object:
        if self.where != "wire":
            return False
        self.where = "received"
        return None

    @action(fault=True)
    def lose(self) -> object:
        if self.where != "wire" or self.lost == self.losses:
            return False
        self.where, self.lost = "unsent", self.lost + 1
        return None

    @action
    def hum(self) -> None:
        self.humming = not self.humming

    @eventually
    def arrives(self) -> bool:
        return self.where == "received"

    @sometimes
    def is_lost(self) -> bool:
        return self.lost == 1


def test_a_fair_world_holds_and_its_unfair_twin_fails() -> None:
    """Bounded losses and fair actions: it arrives. If receiving may be put off for ever, it need not."""
    report = check(Message).assert_holds()
    assert (report.found.checked, report.found.unchecked) == (("arrives",), ())

    class NeverReceives(Message):
        @action
        def receive(self) -> object:
            if self.where != "wire":
                return False
            self.where = "received"
            return None

    report = check(NeverReceives)
    assert (report.verdict, report.trace) == (Verdict.VIOLATED, ("send",))
    assert report.violation is not None
    assert (report.violation.name, report.violation.loop) == ("arrives", 1)
    with pytest.raises(InvariantBroken, match="arrives never comes: nothing need happen after 1 step:"):
        report.assert_holds()


@pytest.mark.parametrize("engine", ["auto", "fast", "reference"])
def test_whatever_search_went_before_liveness_is_checked_after_it(engine: str) -> None:
    """More states than the auto engine leaves to the reference search; the same verdicts, and the same lasso."""
    report = check(Message, losses=200, engine=engine)
    assert (report.verdict, report.found.checked, report.distinct) == (Verdict.HOLDS, ("arrives",), 1206)

    class Unfair(Message):
        @eventually(fair="receive")
        def arrives(self) -> bool:
            return self.where == "received"

    assert check(Unfair, losses=200, engine=engine).violation == check(Unfair, losses=200).violation is not None


class Philosophers(World):
    """Two that take turns by a flag; weak fairness is not enough for one whose action is enabled only now and then."""

    busy: bool = slot(False)
    served: bool = slot(False)

    @action(fair=True)
    def occupy(self) -> bool:
        was, self.busy = self.busy, True
        return not was

    @action(fair=True)
    def leave(self) -> bool:
        was, self.busy = self.busy, False
        return was

    @action(fair=True)
    def serve(self) -> object:
        if self.busy or self.served:
            return False
        self.served = True
        return None

    @eventually(covers="I69")
    def gets_served(self) -> bool:
        return self.served


def test_a_lasso_goes_round_past_what_fairness_owes() -> None:
    """`serve` is enabled again and again but never for ever: weakly fair behaviours starve it; shown as text."""
    report = check(Philosophers, clock=FixedClock(0.0))
    assert report.story().splitlines()[1:] == [
        "  gets_served (I69) never comes: the last 2 steps of 2 repeat for ever:",
        "     0  start: busy = False, served = False",
        "        for ever:",
        "     1  occupy: busy = True",
        "     2  leave: busy = False",
        "        and this is the state after 0 steps again",
    ]
    assert report.violation is not None
    assert report.violation.states[report.violation.loop or 0] == report.violation.states[-1]


def test_nothing_is_bound_to_happen_that_is_not_fair() -> None:
    """Without fair actions the world may stop where it is: at once, if what must come is not there yet."""

    class Lazy(Message):
        @eventually(fair=())
        def arrives(self) -> bool:
            return self.where == "received"

    report = check(Lazy)
    assert (report.trace, report.violation and report.violation.loop) == ((), 0)
    assert report.story().splitlines()[-2:] == ["        for ever:", "        nothing happens any more"]

    class ThereAlready(Lazy):
        @eventually(fair=())
        def arrives(self) -> bool:
            return self.where == "unsent"

    assert check(ThereAlready).verdict is Verdict.HOLDS


def test_a_property_names_its_own_fair_actions() -> None:
    """`fair` of a property stands in place of what the actions declare; a wrong name is a mistake."""

    class OnlySends(Message):
        @eventually(fair="send")
        def arrives(self) -> bool:
            return self.where == "received"

        @eventually(fair=["send"])
        def is_sent(self) -> bool:
            return self.where != "unsent"

    assert check(OnlySends).trace == ("send",)

    class Misspelt(Message):
        @eventually(fair="recieve")
        def arrives(self) -> bool:
            return self.where == "received"

    with pytest.raises(DefinitionError, match=r"arrives: fair='recieve' is no action of Misspelt \(send, receive,"):
        check(Misspelt)
    assert fair_actions(Message(), Message.properties_["arrives"]) == {"send", "receive"}


def test_an_end_stutters_for_ever() -> None:
    """A final state without a next step is a behaviour too; one that is not final is a deadlock, as before."""

    class Ends(World):
        at: int = slot(0)

        @action(fair=True, over=(1, 2))
        def jump(self, to: int) -> object:
            if self.at:
                return False
            self.at = to
            return None

        @eventually
        def at_two(self) -> bool:
            return self.at == 2

    report = check(Ends)
    assert report.violation is not None and report.violation.name == "deadlock"

    class EndsWell(Ends):
        @final
        def over(self) -> bool:
            return self.at > 0

    report = check(EndsWell)
    assert (report.trace, report.violation and report.violation.name) == (("jump(1)",), "at_two")


def test_leads_to_waits_from_each_time_it_begins() -> None:
    """Whenever P holds, Q follows; also when it held before, and what happened before P does not count."""

    class Calls(World):
        asked: bool = slot(False)
        answers: int = slot(0)

        @action
        def ask(self) -> object:
            if self.asked:
                return False
            self.asked = True
            return None

        @action(fair=True)
        def answer(self) -> object:
            if not self.asked or self.answers == 2:
                return False
            self.asked, self.answers = False, self.answers + 1
            return None

        @leads_to(lambda w: not w.asked, covers="I9")
        def is_answered(self) -> bool:
            return self.asked

        @final
        def waits(self) -> bool:
            return True

    report = check(Calls)
    assert (report.trace, report.violation and report.violation.covers) == (
        ("ask", "answer", "ask", "answer", "ask"),
        ("I9",),
    )

    class Answers(Calls):
        @action(fair=True)
        def answer(self) -> object:
            if not self.asked:
                return False
            self.asked = False
            return None

    assert check(Answers).verdict is Verdict.HOLDS
    assert check(Answers).found.checked == ("is_answered",)


def test_each_value_of_an_action_is_fair_by_itself() -> None:
    """Two queues served by one action over both: neither starves, since each value is an action of its own."""

    class Queues(World):
        served: frozenset[int] = slot(frozenset())
        turn: int = slot(0)

        @action(fair=True, over=(0, 1))
        def serve(self, queue: int) -> None:
            self.served |= {queue}
            self.turn = queue

        @eventually
        def both(self) -> bool:
            return len(self.served) == 2

    assert check(Queues).verdict is Verdict.HOLDS


def test_a_step_that_changes_nothing_is_not_owed() -> None:
    """A fair action that may be taken for ever without effect is as good as none: the behaviour stands still."""

    class Knocks(Message):
        @action(fair=True)
        def knock(self) -> None:
            self.humming = False

        @action
        def receive(self) -> bool:
            return False

    report = check(Knocks)
    assert (report.trace, report.violation and report.violation.loop) == (("send",), 1)


class FairPeterson(Peterson):
    """Who is awake goes on; nobody has to wake up."""

    @leads_to(lambda w: w.at[0] is At.CRITICAL, fair=("raise_flag", "give_way", "enter", "leave", "lower_flag"))
    def who_waits_gets_in(self) -> bool:
        return self.at[0] is At.WAIT


class StaysInside(FairPeterson):
    """The unfair twin: whoever is inside may stay there."""

    @leads_to(lambda w: w.at[0] is At.CRITICAL, fair=("raise_flag", "give_way", "enter", "lower_flag"))
    def who_waits_gets_in(self) -> bool:
        return self.at[0] is At.WAIT


def test_nobody_starves_in_peterson_s_algorithm() -> None:
    """Free of starvation, as is known, if who is inside leaves; and not if it need not."""
    assert check(FairPeterson).assert_holds().distinct == 42
    report = check(StaysInside)
    assert report.trace[-1] == "enter(1)" and report.violation is not None
    assert report.violation.loop == len(report.trace)


def test_limits_keep_the_verdict_open() -> None:
    """What was not explored to its end says nothing about liveness, nor does a graph that is too large to keep."""
    report = check(Message, max_depth=2)
    assert (report.verdict, report.found.unchecked) == (Verdict.NOT_FINISHED, ("arrives",))
    assert "arrives: not checked, since not all was explored" in report.story()
    world = Message()
    found = explore(world)
    assert verdict(found) is Verdict.NOT_FINISHED
    settle(world, found, Limits(states=3), None)
    assert (found.limit, verdict(found)) == ("3 states while liveness was checked", Verdict.NOT_FINISHED)

    class Ticking(FixedClock):
        def monotonic(self) -> float:
            self.advance(1.0)
            return super().monotonic()

    found = explore(world)
    settle(world, found, Limits(seconds=3.0), Ticking(0.0))
    assert (found.limit, verdict(found)) == ("3.0 seconds while liveness was checked", Verdict.NOT_FINISHED)


def test_the_search_before_has_used_its_share_of_the_limits() -> None:
    """Seconds that are gone already count; bytes are reckoned per state; Ctrl-C leaves what was found."""
    found = explore(Message())
    settle(Message(), found, Limits(seconds=3.0), FixedClock(0.0), spent=3.0)
    assert found.limit == "3.0 seconds while liveness was checked"
    found = explore(Message())
    settle(Message(), found, Limits(memory=5_000), None)
    assert found.limit == "5 states while liveness was checked"

    class Interrupted(Message):
        @eventually
        def arrives(self) -> bool:
            raise KeyboardInterrupt

    report = check(Interrupted)
    assert (report.verdict, report.found.limit, report.distinct) == (Verdict.NOT_FINISHED, "Ctrl-C", 12)


def test_a_broken_safety_property_is_told_first() -> None:
    """Liveness is not looked at where something worse is wrong; it stays unchecked."""

    class Worse(Message):
        @always
        def never_lost(self) -> bool:
            return not self.lost

    report = check(Worse)
    assert report.violation is not None and report.violation.name == "never_lost"
    assert report.found.unchecked == ("arrives",)


def test_a_bug_in_a_predicate_comes_through() -> None:
    """As it does for `always`; and a predicate that assigns is a mistake."""

    class Buggy(Message):
        @eventually
        def arrives(self) -> bool:
            return 1 // self.lost > 0

    with pytest.raises(ZeroDivisionError) as caught:
        check(Buggy)
    assert caught.value.__notes__[0].startswith("in property 'arrives' of Buggy, in the state where = 'unsent',")

    class Writes(Message):
        @eventually
        def arrives(self) -> bool:
            self.where = "received"
            return True

    with pytest.raises(DefinitionError, match="properties only read"):
        check(Writes)


@given(st.integers(1, 7).flatmap(lambda n: st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)))))
@settings(max_examples=200, deadline=None)
def test_components_are_what_reaches_one_another(edges: list[tuple[int, int]]) -> None:
    """Against the definition: two nodes are together if and only if each reaches the other."""
    nodes = sorted({node for edge in edges for node in edge})
    reach = {node: {node} for node in nodes}
    for _ in nodes:
        for a, b in edges:
            reach[a] |= reach[b]
    for _ in nodes:
        reach = {a: set().union(*(reach[b] for b in reach[a])) for a in nodes}
    found = list(components(nodes, lambda node: [b for a, b in edges if a == node]))
    assert sorted(chain.from_iterable(found)) == nodes
    for a in nodes:
        assert next(each for each in found if a in each) == {b for b in nodes if b in reach[a] and a in reach[b]}


def test_a_long_thin_graph_needs_no_recursion() -> None:
    """Fifty thousand states in a line."""
    assert len(list(components([0], lambda node: [node + 1] if node < 50_000 else []))) == 50_001


class Table(World):
    """Any small graph: `moves` maps (action, state) to the next state."""

    moves: dict[tuple[str, int], int] = param({})
    at: int = slot(0)

    def _go(self, name: str) -> object:
        if (name, self.at) not in self.moves:
            return False
        self.at = self.moves[name, self.at]
        return None

    @action
    def a(self) -> object:
        return self._go("a")

    @action
    def b(self) -> object:
        return self._go("b")

    @action
    def c(self) -> object:
        return self._go("c")


STATES = 5
MOVES = st.dictionaries(st.tuples(st.sampled_from("abc"), st.integers(0, STATES - 1)), st.integers(0, STATES - 1))
SOME = st.frozensets(st.integers(0, STATES - 1))


def is_fair(moves: dict[tuple[str, int], int], members: frozenset[int], fair: frozenset[str]) -> bool:
    return all(
        any((name, s) not in moves for s in members) or any(moves.get((name, s)) in members for s in members)
        for name in fair
    )


def reachable(moves: dict[tuple[str, int], int], start: int, within: frozenset[int]) -> frozenset[int]:
    found = {start}
    for _ in range(STATES):
        found |= {to for (_, s), to in moves.items() if s in found and to in within}
    return frozenset(found)


def has_fair_behaviour(
    moves: dict[tuple[str, int], int], begins: frozenset[int], bad: frozenset[int], fair: frozenset[str]
) -> bool:
    """By trying every set of states in which a behaviour could stay for ever."""
    there = [reachable(moves, start, bad) for start in begins]
    for members in map(frozenset, chain.from_iterable(combinations(sorted(bad), n) for n in range(1, STATES + 1))):
        strongly = all(reachable(moves, s, members) == members for s in members)
        if strongly and is_fair(moves, members, fair) and any(members <= each for each in there):
            return True
    return False


@given(moves=MOVES, p=SOME, q=SOME, fair=st.frozensets(st.sampled_from("abc")), is_leads_to=st.booleans())
@settings(max_examples=500, deadline=None)
def test_verdict_and_lasso_agree_with_the_definition(
    moves: dict[tuple[str, int], int], p: frozenset[int], q: frozenset[int], fair: frozenset[str], is_leads_to: bool
) -> None:
    """On random graphs: a lasso is found if and only if some set of states can be stayed in fairly; and it is one."""
    world = Table(moves=moves)
    predicate: Any = lambda w: w.at in p  # noqa: E731
    declared = leads_to(lambda w: w.at in q)(predicate) if is_leads_to else eventually(predicate)
    bad = frozenset(range(STATES)) - (q if is_leads_to else p)
    from_start = reachable(moves, 0, frozenset(range(STATES)))
    begins = (p if is_leads_to else frozenset({0})) & bad & from_start
    graph = explored(world)
    assert graph is not None
    found = never(world, graph, declared, fair)
    assert (found is not None) == has_fair_behaviour(moves, begins, bad, fair)
    if found is None:
        return
    assert found.loop is not None and found.states[0] == (0,) and found.states[-1] == found.states[found.loop]
    for step, (before,), (after,) in zip(found.steps, found.states, found.states[1:], strict=False):
        assert moves[step.name, before] == after
    places = [at for (at,) in found.states]
    begun = max((n for n, at in enumerate(places[: found.loop + 1]) if at in begins), default=None)
    assert begun is not None
    assert all(at in bad for at in places[begun:])
    taken = {step.name for step in found.steps[found.loop :]}
    assert all(name in taken or any(moves.get((name, at), at) == at for at in places[found.loop :]) for name in fair)
