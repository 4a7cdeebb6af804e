"""The reference exploration: published counts, shortest counterexamples, and verdicts that never claim too much."""

from __future__ import annotations

import json
from typing import Any

import pytest

from models.two_phase_commit import AbortsAfterPrepare, TwoPhaseCommit
from statecore import DefinitionError, InvariantBroken, StatecoreError, Verdict, check
from statecore.explore import Limits, explore, verdict
from statecore.properties import always, eventually, final, leads_to, recoverable, sometimes
from statecore.report import NotShown
from statecore.seams import FixedClock
from statecore.world import World, action, param, slot


@pytest.mark.parametrize(("n", "distinct", "generated"), [(3, 288, 1146), (4, 1568, 8258)])
def test_two_phase_commit_has_the_published_counts(n: int, distinct: int, generated: int) -> None:
    """Distinct and generated states of TLA+'s TwoPhase, and 3N + 2 levels with the initial state counted as one."""
    report = check(TwoPhaseCommit, n=n).assert_holds()
    assert (report.distinct, report.generated, report.depth) == (distinct, generated, 3 * n + 2)


@pytest.mark.parametrize("n", [3, 4])
def test_the_planted_bug_is_found_by_a_shortest_trace(n: int) -> None:
    """A resource manager that aborts after it has prepared: 2N + 3 steps, and no fewer are possible."""
    report = check(AbortsAfterPrepare, n=n)
    assert report.verdict is Verdict.VIOLATED
    assert len(report.trace) == 2 * n + 3
    w = AbortsAfterPrepare(n=n)
    assert report.violation is not None
    for step in report.violation.steps:
        assert w.holds(AbortsAfterPrepare.properties_["consistent"])
        assert w.act(w.actions_[step.name], step.args)
    assert not w.holds(AbortsAfterPrepare.properties_["consistent"])


class Walk(World):
    """A walker on a line from 0 to `end`, who may fall back to 0 by a fault."""

    end: int = param(3)
    at: int = slot(0)
    fallen: bool = slot(False)

    @action
    def walk(self) -> bool:
        self.at += 1
        return self.at <= self.end

    @action(fault=True)
    def fall(self) -> bool:
        self.at, fell = 0, self.at > 0
        self.fallen = True
        return fell

    @always
    def on_the_line(self) -> bool:
        return 0 <= self.at <= self.end

    @sometimes
    def arrived(self) -> bool:
        return self.at == self.end


def test_a_world_that_holds_says_so_with_its_counts() -> None:
    """Distinct, generated with the initial state, levels, and how often each action fired."""
    report = check(Walk)
    assert report.verdict is Verdict.HOLDS
    assert (report.distinct, report.generated, report.depth) == (8, 13, 6)
    assert report.found.fired == {"walk": 6, "fall": 6}
    assert report.assert_holds() is report
    assert report.story().startswith("Walk(end=3): holds; 8 distinct states, 13 generated, depth 6, ")


def test_a_deadlock_is_a_violation_unless_declared_final() -> None:
    """No enabled step, and not said to be an end: the shortest way there; with `final` it is an end."""

    class Ends(Walk):
        fall = None

    report = check(Ends)
    assert (report.verdict, report.trace) == (Verdict.VIOLATED, ("walk", "walk", "walk"))
    assert report.violation is not None and report.violation.name == "deadlock"

    class EndsWell(Ends):
        @final
        def home(self) -> bool:
            return self.at == self.end

    assert check(EndsWell).verdict is Verdict.HOLDS


def test_an_initial_state_that_breaks_a_property_has_an_empty_trace() -> None:
    """The violation is there before any step."""

    class Wrong(Walk):
        @always
        def moved(self) -> bool:
            return self.at > 0

    report = check(Wrong)
    assert (report.verdict, report.trace, report.distinct) == (Verdict.VIOLATED, (), 1)
    assert "moved is broken after 0 steps" in report.story()


def test_a_step_may_break_a_property_of_the_transition() -> None:
    """`fail` names it; the trace ends with the step that did it."""

    class Jumps(Walk):
        @action
        def jump(self) -> bool:
            if self.at == 2:
                self.fail("I48")
            return False

    report = check(Jumps)
    assert (report.verdict, report.trace) == (Verdict.VIOLATED, ("walk", "walk", "jump"))
    assert report.violation is not None
    assert (report.violation.name, report.violation.covers) == ("I48", ("I48",))
    assert "jump: the step itself is the fault" in report.story()


def test_recoverable_does_not_count_on_faults() -> None:
    """At the end only a fall leads back to the start, so the start is not recoverable; the nearest stuck state is
    shown. Covers: I20"""

    class Home(Walk):
        @recoverable(covers="I20")
        def home(self) -> bool:
            return self.at == 0

    report = check(Home)
    assert (report.verdict, report.trace) == (Verdict.VIOLATED, ("walk",))
    assert report.violation is not None and report.violation.covers == ("I20",)

    class Returns(Home):
        @action
        def go_back(self) -> bool:
            self.at -= 1
            return self.at >= 0

    assert check(Returns).verdict is Verdict.HOLDS


def test_recoverable_by_names_who_may_act() -> None:
    """By other actions than those named it does not count."""

    class Returns(Walk):
        @action
        def go_back(self) -> bool:
            self.at -= 1
            return self.at >= 0

        @recoverable(by="walk")
        def home(self) -> bool:
            return self.at == 0

    assert check(Returns).trace == ("walk",)

    class ReturnsByItself(Returns):
        @recoverable(by=["go_back"])
        def home(self) -> bool:
            return self.at == 0

    assert check(ReturnsByItself).verdict is Verdict.HOLDS


def test_vacuous_is_its_own_verdict() -> None:
    """A `sometimes` unseen, an action that never fired, or nothing to check at all is not *holds*."""

    class Unseen(Walk):
        @sometimes
        def flies(self) -> bool:
            return self.at > 99

    class NeverFires(Walk):
        @action
        def fly(self) -> bool:
            return False

    class Nothing(Walk):
        on_the_line = None  # type: ignore[assignment]

    for world, why in (
        (Unseen, "sometimes flies: never seen"),
        (NeverFires, "action fly: never fired"),
        (Nothing, "nothing is declared that must hold"),
    ):
        report = check(world)
        assert report.verdict is Verdict.VACUOUS
        assert why in report.story()
        with pytest.raises(NotShown, match=why):
            report.assert_holds()


def test_stopped_early_is_not_finished() -> None:
    """By states, by levels or by time: never *holds*, and the limit is named."""

    class Ticking(FixedClock):
        def monotonic(self) -> float:
            self.advance(1.0)
            return super().monotonic()

    limits: list[tuple[dict[str, Any], str]] = [
        ({"max_states": 100}, "100 states"),
        ({"max_depth": 5}, "depth 5"),
        ({"max_seconds": 20.0, "clock": Ticking(0.0)}, "20.0 seconds"),
    ]
    for limit, named in limits:
        report = check(TwoPhaseCommit, **limit)
        assert (report.verdict, report.found.limit) == (Verdict.NOT_FINISHED, named)
        assert f"stopped at the limit of {named}" in report.story()
        with pytest.raises(NotShown):
            report.assert_holds()
    assert check(TwoPhaseCommit, max_depth=5).depth == 5
    assert check(TwoPhaseCommit, max_depth=12).verdict is Verdict.HOLDS
    assert issubclass(NotShown, StatecoreError) and not issubclass(NotShown, InvariantBroken)


def test_a_violation_within_the_limit_is_found() -> None:
    """A bounded search still finds what lies within the bound, in the last level too."""
    assert check(AbortsAfterPrepare, max_depth=10).verdict is Verdict.VIOLATED
    assert check(AbortsAfterPrepare, max_depth=9).verdict is Verdict.NOT_FINISHED


def test_liveness_that_is_not_checked_keeps_the_verdict_open() -> None:
    """The search itself checks no `eventually` and no `leads_to`, and says so; a check goes on and does."""

    class Lives(Walk):
        @eventually
        def arrives(self) -> bool:
            return self.at == self.end

        @leads_to(lambda w: w.at == 0)
        def falls(self) -> bool:
            return self.fallen

    found = explore(Lives())
    assert (verdict(found), found.unchecked) == (Verdict.NOT_FINISHED, ("arrives", "falls"))
    report = check(Lives)
    assert (report.verdict, report.trace) == (Verdict.VIOLATED, ())
    assert report.violation is not None and (report.violation.name, report.violation.loop) == ("arrives", 0)
    assert "arrives never comes: nothing need happen after 0 steps" in report.story()


def test_mistakes_are_named() -> None:
    """A value that cannot be hashed, a limit in seconds without a clock, a bug in a predicate."""

    class Lists(Walk):
        log: Any = slot(())

        @action
        def write(self) -> None:
            self.log = ["x"]

    with pytest.raises(DefinitionError, match=r"slot 'log' holds \['x'\], which cannot be hashed"):
        check(Lists)
    with pytest.raises(DefinitionError, match="a limit in seconds needs a clock"):
        explore(Walk(), Limits(seconds=1.0))

    class Buggy(Walk):
        @always
        def fine(self) -> bool:
            return 1 // self.at > 0

    with pytest.raises(ZeroDivisionError):
        check(Buggy)


def test_the_report_is_plain_json_too() -> None:
    """What a machine reads: verdict, counts, what was missed, the broken property and the trace."""
    report = check(AbortsAfterPrepare, clock=FixedClock(0.0))
    value = json.loads(json.dumps(report.to_json()))
    assert value["verdict"] == "violated"
    assert value["violation"] == {"property": "consistent", "covers": []}
    assert value["trace"] == list(report.trace)
    assert (value["world"], value["params"], value["seconds"]) == ("AbortsAfterPrepare", {"n": "3"}, 0.0)
    assert check(Walk).to_json()["violation"] is None


def test_the_story_shows_what_each_step_changed() -> None:
    """The start in full, then only differences, faults marked, sets in a steady order."""

    class Falls(Walk):
        marks: frozenset[str] = slot(frozenset({"b", "a"}))

        @always
        def never_back(self) -> bool:
            return not (self.fallen and self.at == 1)

    story = check(Falls, end=2, clock=FixedClock(0.0)).story()
    assert story.splitlines() == [
        "Falls(end=2): violated; 5 distinct states, 6 generated, depth 4, 0.00 s, at once",
        "  never_back is broken after 3 steps, and no fewer:",
        "     0  start: at = 0, fallen = False, marks = {'a', 'b'}",
        "     1  walk: at = 1",
        "     2  fall [fault]: at = 0, fallen = True",
        "     3  walk: at = 1",
    ]
