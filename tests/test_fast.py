"""The fast search gives what the reference gives: on random worlds, on the models, at any width; mistakes are named."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import statecore.explore
from models.checkpoint import CheckpointWorld
from models.checkpoint_twins import TWINS as CHECKPOINT_TWINS
from models.handoff import HandoffWorld
from models.handoff_twins import TWINS as HANDOFF_TWINS
from models.many_slots import ManySlots
from models.two_phase_commit import AbortsAfterPrepare, TwoPhaseCommit
from models.two_phase_slots import two_phase
from statecore import DefinitionError, Verdict, check, fast, reference
from statecore.cli import _Told, main
from statecore.errors import InvariantBroken
from statecore.explore import Engine
from statecore.fast import expand, recover, search, trie
from statecore.findings import Exploration, Limits, Progress, Violation, verdict
from statecore.properties import Kind, always, final, recoverable
from statecore.seams import FixedClock
from statecore.world import World, action, param, slot
from tests.random_worlds import Plan, plans, world_of

MOST = Limits(states=10_000_000)


def replayed(world: World, violation: Violation) -> None:
    """The steps are enabled one after the other, lead through the states given, and the end breaks the property."""
    assert world.values == violation.states[0]
    for number, step in enumerate(violation.steps, start=1):
        act = world.actions_[step.name]
        if number == len(violation.states):
            with pytest.raises(InvariantBroken, match=violation.name):
                world.act(act, step.args)
            return
        assert world.act(act, step.args)
        assert world.values == violation.states[number]
    broken = world.properties_.get(violation.name)
    if broken is not None:
        assert not world.holds(broken)


def agreed(world: type[World], **params: Any) -> Exploration:
    """What the fast search finds, which is what the reference finds."""
    one = reference.explore(world(**params), MOST)
    two = fast.explore(world(**params), MOST)
    assert verdict(two) is verdict(one)
    if one.violation is None:
        assert two.violation is None
        counts = ("distinct", "generated", "depth", "fired", "unseen", "never_fired", "checked", "unchecked", "limit")
        assert {name: getattr(two, name) for name in counts} == {name: getattr(one, name) for name in counts}
        return two
    assert two.violation is not None
    assert (len(two.violation.steps), two.depth) == (len(one.violation.steps), one.depth)
    replayed(world(**params), two.violation)
    return two


@settings(max_examples=120, deadline=None)
@given(plan=plans())
def test_both_searches_agree_on_random_worlds(plan: Plan) -> None:
    """Verdict, counts, levels, what fired and what was seen; or a counterexample as short, which replays."""
    agreed(world_of(plan))


@settings(max_examples=60, deadline=None)
@given(plan=plans(), chunk=st.integers(1, 7), flat=st.integers(0, 30))
def test_both_searches_agree_in_small_pieces_and_with_sparse_tables(plan: Plan, chunk: int, flat: int) -> None:
    """Chunks of a few states and tables with hardly any room change nothing."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (expand, recover, search):
            patch.setattr(module, "CHUNK", chunk)
        patch.setattr(expand, "BATCH", chunk * 2)
        patch.setattr(trie, "FLAT_MOST", flat)
        agreed(world_of(plan))


@settings(max_examples=60, deadline=None)
@given(plan=plans(), bits=st.integers(3, 8))
def test_both_searches_agree_when_words_are_short(plan: Plan, bits: int) -> None:
    """With words of a few bits a state takes several words, and nothing else changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("statecore.fast.intern.WORD_BITS", bits)
        agreed(world_of(plan))


@pytest.mark.parametrize(
    ("n", "distinct", "generated"), [(3, 288, 1146), (4, 1568, 8258), (5, 8832, 58146), (6, 50816, 402306)]
)
def test_two_phase_commit_has_the_published_counts(n: int, distinct: int, generated: int) -> None:
    """Distinct and generated states of TLA+'s TwoPhase, and 3N + 2 levels, from the same file as the reference."""
    report = check(TwoPhaseCommit, n=n, engine="fast").assert_holds()
    assert (report.distinct, report.generated, report.depth) == (distinct, generated, 3 * n + 2)


@pytest.mark.parametrize("world", [CheckpointWorld, HandoffWorld, *CHECKPOINT_TWINS, *HANDOFF_TWINS])
def test_both_searches_agree_on_our_models(world: type[World]) -> None:
    """Counts of what holds, lengths of what is broken: the models and each failing twin. With one turn and nothing that
    dies or is lost, to be quick: models/MANIFEST.toml pins what is found with more."""
    small = {"turns": 1, "faults": 0, "crashes": 0} if issubclass(world, CheckpointWorld) else {}
    agreed(world, **small)


def test_slots_of_one_value_each_do_not_stop_a_search() -> None:
    """A slot that nothing ever changes takes a bit and no more."""

    class Still(World):
        here: int = slot(0)
        there: str = slot("x")

        @action
        def stay(self) -> None:
            self.here = 0

        @always
        def fine(self) -> bool:
            return True

    found = agreed(Still)
    assert (found.distinct, found.generated, found.depth) == (1, 2, 1)


def test_a_world_wider_than_64_bits_is_exact() -> None:
    """41 slots, three words a state: the count is the one that the formula gives, and a state takes at most 50 bytes
    more than its tables."""
    found = fast.explore(ManySlots(), MOST)
    assert verdict(found) is Verdict.HOLDS
    assert found.distinct == 1 + 40 * 8 + 780 * 64
    assert found.depth == 17
    assert found.bytes is not None and found.bytes <= 50 * found.distinct + 1_500_000


def test_a_counterexample_of_a_wide_world_is_shortest() -> None:
    """It is rebuilt backwards from states of three words."""

    class Low(ManySlots):  # type: ignore[misc]
        @always
        def below(self) -> bool:
            return self.c39 < 5 or self.c07 == 0  # type: ignore[no-any-return]

    found = fast.explore(Low(), MOST)
    assert found.violation is not None and len(found.violation.steps) == 6
    replayed(Low(), found.violation)


@pytest.mark.parametrize(("n", "steps"), [(3, 9), (5, 13)])
def test_the_planted_bug_is_found_by_a_shortest_trace(n: int, steps: int) -> None:
    """A resource manager that aborts after it has prepared: 2N + 3 steps."""
    report = check(AbortsAfterPrepare, n=n, engine="fast")
    assert len(report.trace) == steps
    assert report.violation is not None
    replayed(AbortsAfterPrepare(n=n), report.violation)


@pytest.mark.parametrize(
    ("n", "distinct", "generated"),
    [(3, 288, 1146), (4, 1568, 8258), (5, 8832, 58146), (6, 50816, 402306), (7, 296448, 2744706)],
)
def test_a_slot_for_each_manager_gives_the_same_counts(n: int, distinct: int, generated: int) -> None:
    """The published counts again, of a world made to be explored fast; a state takes at most 50 bytes."""
    found = fast.explore(two_phase(n)(), MOST)
    assert (found.violation, found.limit, found.unseen, found.never_fired) == (None, None, (), ())
    assert (found.distinct, found.generated, found.depth) == (distinct, generated, 3 * n + 2)
    assert found.bytes is not None
    assert n < 6 or found.bytes <= 50 * distinct


@pytest.mark.parametrize(("n", "steps"), [(3, 9), (5, 13), (6, 15), (8, 19)])
def test_the_planted_bug_is_found_by_a_shortest_trace_in_large_worlds(n: int, steps: int) -> None:
    """2N + 3 steps, up to millions of states."""
    world = two_phase(n, planted=True)
    found = fast.explore(world(), MOST)
    assert found.violation is not None and len(found.violation.steps) == steps
    replayed(world(), found.violation)


class Late(World):
    """A hundred states of one level, the last of which lead to values that the layout had no room for."""

    last: int = slot(0)
    first: int = slot(0)

    @action(over=range(1, 101))
    def choose(self, number: int) -> bool:
        chosen, self.first = self.first, number
        return chosen == 0

    @action
    def on(self) -> bool:
        self.last = max(0, self.first - 50)
        return self.first > 0

    @always
    def fine(self) -> bool:
        return self.first >= self.last


def test_a_layout_that_grows_in_the_middle_of_a_level_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found before and not looked up yet is there in the new layout too."""
    for module in (expand, recover, search):
        monkeypatch.setattr(module, "CHUNK", 8)
    assert agreed(Late).distinct == 1 + 100 + 50


class Ticks(World):
    """Up to three, and seven flags beside it."""

    last: int = slot(0)


def _flag(name: str) -> Callable[[Any], bool]:
    def step(world: Any) -> bool:
        was = bool(getattr(world, name))
        setattr(world, name, True)
        return not was

    step.__name__ = f"set_{name}"
    return step


FLAGS = [f"flag{number}" for number in range(7)]
Flags = type("Flags", (Ticks,), {n: slot(False) for n in FLAGS} | {f"set_{n}": action(_flag(n)) for n in FLAGS})


def test_a_property_of_many_slots_is_true_in_all_states_or_named() -> None:
    """It is asked once for states that are alike in what it looks at, and yet no state is overlooked."""

    class Counted(Flags):  # type: ignore[misc, valid-type]
        @action
        def tick(self) -> bool:
            self.last += 1
            return bool(self.last < 4)

        @always
        def few(self) -> bool:
            return bool(sum(getattr(self, name) for name in FLAGS) < 8)

        @final
        def over(self) -> bool:
            return True

    assert agreed(Counted).distinct == 4 * 2**7

    class Broken(Counted):
        @always
        def few(self) -> bool:
            return sum(getattr(self, name) for name in FLAGS) < 7 or bool(self.last != 3)

    found = agreed(Broken)
    assert found.violation is not None and len(found.violation.steps) == 10


class Chain(World):
    """Up and down a ladder, and off it at the top by a fault only."""

    end: int = param(300)
    at: int = slot(0)
    off: bool = slot(False)

    @action
    def up(self) -> bool:
        self.at += 1
        return not self.off and self.at <= self.end

    @action
    def down(self) -> bool:
        self.at -= 1
        return self.at >= 0

    @action(fault=True)
    def fall(self) -> bool:
        fell = self.at == self.end and not self.off
        self.off = True
        return fell

    @recoverable
    def home(self) -> bool:
        return self.at == 0


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_recoverable_goes_back_as_far_as_need_be(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ways against and along the order in which states were found, within and across chunks; faults do not help."""
    for module in (expand, recover, search):
        monkeypatch.setattr(module, "CHUNK", chunk)
    agreed(Chain)

    class Zigzag(Chain):
        """The way home leads to and fro."""

        @action
        def down(self) -> bool:
            was, self.at = self.at, self.at * 7 % (self.end + 1)
            return was > 0

    agreed(Zigzag, end=150)

    class Stays(Chain):
        @final
        def ended(self) -> bool:
            return self.at == 0

        @recoverable
        def on(self) -> bool:
            return not self.off

    found = agreed(Stays)
    assert found.violation is not None and found.violation.name == "on"


class Count(World):
    """A counter without an end."""

    at: int = slot(0)
    log: Any = slot(())

    @action
    def up(self) -> None:
        self.at += 1

    @always
    def fine(self) -> bool:
        return self.at >= 0


def test_limits_of_the_fast_search() -> None:
    """States, levels, seconds, bytes: named, and never *holds*; what lies within the bound is found."""
    limits: list[tuple[dict[str, Any], str]] = [
        ({"max_states": 700}, "700 states"),
        ({"max_depth": 600}, "depth 600"),
        ({"max_memory": 100_000}, "100000 bytes of memory"),
    ]
    for engine in ("auto", "fast", "reference"):
        for limit, named in limits:
            report = check(Count, engine=engine, **limit)
            assert (report.verdict, report.found.limit) == (Verdict.NOT_FINISHED, named)

    class Ticking(FixedClock):
        def monotonic(self) -> float:
            self.advance(1.0)
            return super().monotonic()

    for engine in ("auto", "fast", "reference"):
        report = check(Count, engine=engine, max_seconds=2000.0, clock=Ticking(0.0))
        assert (report.verdict, report.found.limit) == (Verdict.NOT_FINISHED, "2000.0 seconds")
    assert check(AbortsAfterPrepare, max_depth=10, engine="fast").verdict is Verdict.VIOLATED
    assert check(AbortsAfterPrepare, max_depth=9, engine="fast").verdict is Verdict.NOT_FINISHED


def test_a_slot_that_grows_without_bound_is_named() -> None:
    """Which one, how many values, the newest; and a slot with very many stops the search by itself."""
    story = check(Count, max_states=700).story()
    assert "slot 'at' has 701 values and seems to grow without bound; the newest: 698, 699, 700" in story
    assert "slot 'log'" not in story
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expand, "MOST_VALUES", 800)
        report = check(Count)
    assert report.verdict is Verdict.NOT_FINISHED
    assert "800 values of slot 'at'" in str(report.found.limit)


def test_an_action_that_is_no_function_of_the_slots_is_named() -> None:
    """It does one thing and then another, or reads one thing and then another, from the same state."""
    seen: list[int] = []

    class Counting(Count):
        @action
        def up(self) -> bool:
            seen.append(0)
            self.at = len(seen) % 5
            return True

    class Peeking(Count):
        other: int = slot(0)

        @action
        def up(self) -> bool:
            seen.append(0)
            self.at = (self.at if len(seen) % 2 else self.other) + 1
            return self.at < 5

    for world in (Counting, Peeking):
        with pytest.raises(DefinitionError, match="action up is not a function of the slots that it reads"):
            check(world, engine="fast")
        with pytest.raises(DefinitionError, match="action up is not a function of the slots that it reads"):
            check(world)


def test_an_action_that_changes_with_time_is_named_at_the_end() -> None:
    """Twice in a row it does the same; when all is explored it does not do any more what it did first."""
    runs: list[int] = []

    class Wearing(Count):
        @action
        def up(self) -> bool:
            runs.append(0)
            self.at += 1
            return self.at < 6 and len(runs) < 12

    with pytest.raises(DefinitionError, match="action up is not a function of the slots that it reads"):
        fast.explore(Wearing())


class Box:
    """Hashed by what it holds, and yet it can be changed."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and other.value == self.value

    def __repr__(self) -> str:
        return f"Box({self.value})"


def test_values_that_are_changed_in_place_or_cannot_be_hashed_are_named() -> None:
    """The slot and the action that does it."""

    class Mutates(World):
        box: Box = slot(make=lambda _: Box(0))

        @action
        def shake(self) -> None:
            self.box.value += 1

        @always
        def fine(self) -> bool:
            return True

    for engine in ("fast", "auto"):
        with pytest.raises(DefinitionError, match="action shake changes the value of slot 'box' in place"):
            check(Mutates, engine=engine)

    class Lists(Count):
        @action
        def write(self) -> None:
            self.log = ["x"]

    with pytest.raises(DefinitionError, match=r"slot 'log' holds \['x'\], which cannot be hashed"):
        check(Lists, engine="fast")


def test_a_property_that_raises_says_where() -> None:
    """The error comes through as it is, with the property and the state in a note; so does an action's."""

    class Buggy(Count):
        @always
        def fine(self) -> bool:
            return 1 // (self.at - 2) > -9

    for engine in ("fast", "auto", "reference"):
        with pytest.raises(ZeroDivisionError) as caught:
            check(Buggy, engine=engine)
        assert caught.value.__notes__ == ["in property 'fine' of Buggy, in the state at = 2, log = ()"]

    class Bad(Count):
        @action
        def jump(self) -> bool:
            return self.log[self.at] is None

    for engine in ("fast", "auto", "reference"):
        with pytest.raises(IndexError) as other:
            check(Bad, engine=engine)
        assert other.value.__notes__ == ["in action jump of Bad, in the state at = 0, log = ()"]


def test_properties_only_read() -> None:
    """One that assigns a slot is refused, as by the reference."""

    class Writes(Count):
        @always
        def fine(self) -> bool:
            self.at = 3
            return True

    for engine in ("fast", "reference"):
        with pytest.raises(DefinitionError, match="a property assigns slot 'at'"):
            check(Writes, engine=engine)


def test_ctrl_c_gives_a_partial_report() -> None:
    """What was found until then, not finished, saying why."""
    for engine in ("auto", "fast", "reference"):
        calls: list[Progress] = []

        def told(now: Progress, calls: list[Progress] = calls) -> None:
            calls.append(now)
            if now.distinct >= 2_000:
                raise KeyboardInterrupt

        report = check(Count, engine=engine, progress=told)
        assert (report.verdict, report.found.limit) == (Verdict.NOT_FINISHED, "Ctrl-C")
        assert report.distinct >= 2_000
        assert "stopped at the limit of Ctrl-C" in report.story()
        assert calls[-1].bytes > 0 and calls[-1].depth >= 1_900


def test_without_numpy_the_reference_is_used_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast engine asked for by name is an error then."""
    monkeypatch.setattr(statecore.explore, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "statecore.fast", None)
    report = check(TwoPhaseCommit, n=4)
    assert (report.verdict, report.distinct, report.found.engine) == (Verdict.HOLDS, 1568, "reference")
    assert "explored by the reference search, since numpy is not installed" in report.story()
    with pytest.raises(DefinitionError, match="the fast engine needs numpy"):
        check(TwoPhaseCommit, engine=Engine.FAST)


def test_the_engine_is_chosen_by_size_and_named() -> None:
    """Small worlds by the reference, larger ones by the fast search; an engine that is none is refused."""
    assert check(TwoPhaseCommit, n=3).found.engine == "reference"
    report = check(TwoPhaseCommit, n=4)
    assert report.found.engine == "fast" and "bytes a state" in report.story()
    assert report.to_json()["engine"] == "fast"
    with pytest.raises(DefinitionError, match="there is no engine 'slow'; choose one of auto, fast, reference"):
        check(TwoPhaseCommit, engine="slow")


def test_the_command_line_takes_an_engine(capsys: pytest.CaptureFixture[str]) -> None:
    """--engine, and a bound for memory in megabytes."""
    target = ["check", "models.two_phase_commit:TwoPhaseCommit", "--set", "n=4"]
    for engine in Engine:
        assert main([*target, "--engine", engine]) == 0
    assert capsys.readouterr().out.count("1,568 distinct states, 8,258 generated") == 3
    assert main([*target, "--engine", "fast", "--max-memory", "0"]) == 3


def test_a_long_run_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """A line on standard error every two seconds, and none in a short run."""
    told = _Told("Wide")
    for seconds in (0.5, 1.9, 2.5, 3.0, 4.6):
        told(Progress(1_000_000, 70_000, 12, seconds, 24_000_000))
    assert capsys.readouterr().err.splitlines() == [
        "Wide: 1,000,000 states after 2 s (400,000/s), level 12 with 70,000, 24 MB",
        "Wide: 1,000,000 states after 5 s (217,391/s), level 12 with 70,000, 24 MB",
    ]


def test_every_kind_of_property_is_known_to_the_random_worlds() -> None:
    """What is searched for here is tried at random above; liveness is another module's."""
    assert set(Kind) - {Kind.EVENTUALLY, Kind.LEADS_TO} == {Kind.ALWAYS, Kind.SOMETIMES, Kind.RECOVERABLE, Kind.FINAL}
