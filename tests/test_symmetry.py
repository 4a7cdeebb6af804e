"""Interchangeable slots: fewer states, the same verdicts, counterexamples that really happen; mistakes are named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.two_phase_slots import two_phase
from statecore import DefinitionError, InvariantBroken, Verdict, check, interchangeable
from statecore.cli import load_module, main
from statecore.explore import explore
from statecore.fast import expand, search, symmetry
from statecore.fast.intern import Layout
from statecore.fast.symmetry import Canonical
from statecore.findings import Exploration, Limits, verdict
from statecore.properties import always, eventually, final, recoverable, sometimes
from statecore.symmetry import Symmetry
from statecore.world import World, action, param, slot
from tests.symmetric_worlds import Plan, orbits, plans, world_of
from tests.test_fast import replayed
from tests.test_pytest_plugin import run

MOST = Limits(states=10_000_000)


def agreed(world: type[World]) -> Exploration:
    """What both searches find with symmetry; the verdict, and how long a counterexample is, are those without it."""
    plain = explore(world(), MOST, engine="reference", symmetry=False)
    one = explore(world(), MOST, engine="reference")
    two = explore(world(), MOST, engine="fast")
    assert (one.symmetry, plain.symmetry) == (two.symmetry, ())
    for found in (one, two):
        assert verdict(found) is verdict(plain)
        assert found.depth == plain.depth
        assert (found.violation is None) is (plain.violation is None)
        if found.violation is not None and plain.violation is not None:
            assert len(found.violation.steps) == len(plain.violation.steps)
            replayed(world(), found.violation)
    if plain.violation is None:
        counts = ("distinct", "generated", "never_fired", "unseen", "checked", "limit")
        assert {name: getattr(one, name) for name in counts} == {name: getattr(two, name) for name in counts}
        assert (one.never_fired, one.unseen) == (plain.never_fired, plain.unseen)
    return two


@settings(max_examples=100, deadline=None)
@given(plan=plans)
def test_symmetry_changes_no_verdict(plan: Plan) -> None:
    """On random worlds: both searches, with and without; states are counted once for all arrangements of them."""
    world = world_of(plan)
    found = agreed(world)
    if found.violation is None:
        assert found.distinct == orbits(plan, world)


@settings(max_examples=60, deadline=None)
@given(plan=plans, bits=st.integers(4, 9), chunk=st.integers(1, 7), most=st.integers(0, 4))
def test_symmetry_in_small_pieces(plan: Plan, bits: int, chunk: int, most: int) -> None:
    """States of several words, chunks of a few states, sorting by columns or by rows: no difference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("statecore.fast.intern.WORD_BITS", bits)
        patch.setattr(symmetry, "NETWORK_MOST", most)
        for module in (expand, search):
            patch.setattr(module, "CHUNK", chunk)
        agreed(world_of(plan))


@settings(max_examples=150, deadline=None)
@given(data=st.data(), groups=st.integers(2, 20), slots=st.integers(1, 9), by_group=st.booleans())
def test_packed_states_are_sorted_by_group(data: st.DataObject, groups: int, slots: int, by_group: bool) -> None:
    """However many groups there are, however wide they are and wherever their slots lie: by their last slots first."""
    widths = data.draw(st.lists(st.integers(1, 20), min_size=slots, max_size=slots))
    named = [[f"g{group}_{place}" for place in range(slots)] for group in range(groups)]
    ordered = named if by_group else [list(column) for column in zip(*named, strict=True)]
    names = ["first", *(name for part in ordered for name in part), "last"]
    made: dict[str, Any] = {name: slot(0) for name in names} | {"same": interchangeable(*named)}
    world = type("Packed", (World,), made | {"step": action(lambda world: None)})
    layout = Layout([3, *(widths[int(name.partition("_")[2])] for name in names[1:-1]), 5])
    number = st.sampled_from((0, 0, 0, 0, 1, 2**20)) | st.integers(0, 2**20)
    most = [layout.capacity(index) - 1 for index in range(len(names))]
    rows = [tuple(min(data.draw(number), each) for each in most) for _ in range(data.draw(st.integers(1, 4)))]
    packed = [np.array(words, np.uint64) for words in zip(*map(layout.pack, rows), strict=True)]
    found = Canonical(Symmetry(world()))(packed, layout)
    for index, row in enumerate(rows):
        held = dict(zip(names, row, strict=True))
        keys = sorted(tuple(held[name] for name in reversed(group)) for group in named)
        for group, key in zip(named, keys, strict=True):
            held |= dict(zip(reversed(group), key, strict=True))
        assert layout.unpack([int(word[index]) for word in found]) == tuple(held.values())


class Workers(World):
    """Three workers take a lock in turns, and each is done when it has had it."""

    wanted: int = param(3)
    state0: str = slot("idle")
    runs0: int = slot(0)
    state1: str = slot("idle")
    runs1: int = slot(0)
    state2: str = slot("idle")
    runs2: int = slot(0)
    locked: bool = slot(False)
    workers = interchangeable(("state0", "runs0"), ("state1", "runs1"), ("state2", "runs2"))

    @action(over=range(3))
    def take(self, n: int) -> bool:
        if self.locked or getattr(self, f"state{n}") == "done":
            return False
        setattr(self, f"state{n}", "busy")
        self.locked = True
        return True

    @action(over=range(3))
    def give(self, n: int) -> bool:
        if getattr(self, f"state{n}") != "busy":
            return False
        setattr(self, f"state{n}", "done" if getattr(self, f"runs{n}") == 1 else "idle")
        setattr(self, f"runs{n}", getattr(self, f"runs{n}") + 1)
        self.locked = False
        return True

    @always
    def one_at_a_time(self) -> bool:
        return [self.state0, self.state1, self.state2].count("busy") == self.locked

    @final
    def all_done(self) -> bool:
        return bool(self.state0 == self.state1 == self.state2 == "done")

    @sometimes
    def two_are_done(self) -> bool:
        return [self.state0, self.state1, self.state2].count("done") == 2


def test_a_report_says_that_symmetry_was_used_and_over_what(capsys: pytest.CaptureFixture[str]) -> None:
    """In text and as JSON; `symmetry=False` and `--no-symmetry` tell the groups apart, and then nothing is said."""
    report = check(Workers).assert_holds()
    plain = check(Workers, symmetry=False).assert_holds()
    assert (report.distinct, plain.distinct, report.depth) == (22, 81, plain.depth)
    told = "  symmetry: workers, 3 groups like (state0, runs0), in any order count as one"
    assert report.story().splitlines()[1:] == [told]
    assert report.to_json()["symmetry"] == {"workers": "3 groups like (state0, runs0)"}
    assert plain.to_json()["symmetry"] == {} and "symmetry" not in plain.story()
    target = ["check", "models.two_phase_slots:AGAIN", "--json"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("models.two_phase_slots.AGAIN", two_phase(3), raising=False)
        assert main(target) == 0
        assert main([*target, "--no-symmetry"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["distinct"] for each in found] == [80, 288]
    assert [each["symmetry"] for each in found] == [{"managers": "3 groups like (manager0, sent0, heard0)"}, {}]


FILE = '''
from statecore import World, action, always, interchangeable, slot

class Bets(World):
    """The second who raises may not raise the third time."""
    a0 = slot(0); a1 = slot(0); a2 = slot(0)
    players = interchangeable("a0", "a1", "a2")

    @action(over=(2, 1, 0), by="player")
    def bet(self, n):
        now = getattr(self, f"a{n}")
        if now == 3 or (now == 0 and 0 < sorted((self.a0, self.a1, self.a2))[1] < 2):
            return False
        setattr(self, f"a{n}", now + 1)

    @action
    def over(self):
        self.a0 = self.a1 = self.a2 = 0

    @always
    def low(self):
        return sorted((self.a0, self.a1, self.a2)) != [1, 2, 3]
'''


def test_a_counterexample_is_one_of_the_world_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Found in canonical states, shown in real ones: each step changes one player; the written test replays it."""
    path = tmp_path / "bets.py"
    path.write_text(FILE)
    out = tmp_path / "test_found.py"
    for engine in ("fast", "reference", "auto"):
        command = ["check", f"{path}:Bets", "--engine", engine]
        assert main([*command, "--json", "--pytest", str(out)]) == 1
        found = json.loads(capsys.readouterr().out)
        changed = [name for step in found["steps"] for name in step["changes"]]
        assert len(changed) == len(found["steps"]) == 6
        assert [step["args"] for step in found["steps"]] == [[name[1]] for name in changed]
        assert sorted(map(changed.count, ("a0", "a1", "a2"))) == [1, 2, 3]
        namespace: dict[str, Any] = {"__file__": str(out)}
        exec(compile(out.read_text(), str(out), "exec"), namespace)
        with pytest.raises(InvariantBroken, match="low is broken by"):
            namespace["test_Bets_low"]()
        assert main([*command, "--mermaid"]) == 1
        drawn = re.findall(r"p0->>\w+: (a\d) = ", capsys.readouterr().out)
        assert drawn == changed


def test_worlds_that_pytest_collects_use_symmetry(tmp_path: Path) -> None:
    """As declared: what JUnit's report counts are canonical states."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nstatecore_worlds = bets.py\n")
    (tmp_path / "bets.py").write_text(FILE.replace("[1, 2, 3]", "[3, 1, 2]"))
    assert run(tmp_path, "bets.py", "--junit-xml=out.xml").returncode == 0
    world = load_module(str(tmp_path / "bets.py"))[0].Bets
    few, many = check(world).distinct, check(world, symmetry=False).distinct
    assert few < many
    assert f'<property name="distinct" value="{few}" />' in (tmp_path / "out.xml").read_text()


def named(function: Any, name: str) -> Any:
    function.__name__ = name
    return function


def counters(members: int) -> type[World]:
    """Counters up to two, of which one may be there, each set back by an action of its own."""
    names = [f"c{number}" for number in range(members)]

    def clear(name: str) -> Any:
        def act(world: World) -> bool:
            full: bool = getattr(world, name) == 2
            setattr(world, name, 0)
            return full

        return action(named(act, f"clear_{name}"))

    def count(world: World, name: str) -> bool:
        setattr(world, name, getattr(world, name) + 1)
        return bool(getattr(world, name) <= 2 and world.values.count(2) <= 1)

    made: Any = {name: slot(0) for name in names} | {f"clear_{name}": clear(name) for name in names}
    made |= {"count": action(over=names)(count), "members": interchangeable(*names)}
    made |= {"empty": recoverable(named(lambda world: sum(world.values) == 0, "empty"))}
    made |= {"fine": always(named(lambda world: True, "fine")), "end": final(named(lambda world: True, "end"))}
    return type("Counters", (World,), made)


@pytest.mark.parametrize("members", [2, 3, 7])
@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_an_action_of_one_member_alone_fires_too(members: int, engine: str) -> None:
    """In canonical states perhaps only another member's does: the verdict is *holds* all the same; but if no order of
    the groups lets it fire, it never fires."""
    report = check(counters(members), engine=engine)
    assert report.verdict is Verdict.HOLDS, report.story()
    assert min(report.found.fired.values()) == 0

    class Silent(counters(members)):  # type: ignore[misc]
        @action
        def never(self) -> bool:
            return bool(self.c0 == 2 == self.c1)

    assert check(Silent, engine=engine).found.never_fired == ("never",)


def by_name(world: type[World], action_: str, members: int, **faults: bool) -> dict[str, Any]:
    """Actions with names of their own in place of one that is over numbers."""
    function = world.actions_[action_].function

    def one(number: int) -> Any:
        name = f"{action_}{number}"
        return action(fault=faults.get(name, False))(named(lambda self: function(self, number), name))

    return {action_: None} | {f"{action_}{number}": one(number) for number in range(members)}


def test_two_searches_agree_though_each_has_an_order_of_its_own() -> None:
    """Which of several like actions fires in a canonical state depends on the order, and so may differ."""
    world = type("ByName", (Workers,), by_name(Workers, "take", 3) | by_name(Workers, "give", 3))
    one, two = (check(world, engine=engine).assert_holds() for engine in ("fast", "reference"))
    assert one.found.fired != two.found.fired
    assert sum(one.found.fired.values()) == sum(two.found.fired.values())
    assert check(world, engine="auto").verdict is Verdict.HOLDS


def interrupted(*args: Any) -> None:
    raise KeyboardInterrupt


def test_limits_and_liveness_under_symmetry() -> None:
    """Limits count canonical states; what must happen in the end is looked at without symmetry, which is said."""
    report = check(two_phase(6), max_states=100, engine="fast")
    assert report.verdict is Verdict.NOT_FINISHED and report.found.symmetry
    assert check(two_phase(6), max_states=600).verdict is Verdict.HOLDS
    assert check(two_phase(6), max_depth=9).distinct < 553
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("statecore.symmetry.Symmetry.check", interrupted)
        report = check(Workers)
    assert (report.verdict, report.found.limit) == (Verdict.NOT_FINISHED, "Ctrl-C")

    class Ends(Workers):
        @eventually(fair=("take", "give"))
        def ends(self) -> bool:
            return bool(self.all_done(self))

    report = check(Ends).assert_holds()
    assert report.distinct == 22
    assert "eventually and leads_to were checked without symmetry, in 81 states" in report.story()

    class Unfair(Workers):
        @eventually
        def ends(self) -> bool:
            return bool(self.all_done(self))

    assert check(Unfair).verdict is Verdict.VIOLATED


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ((), "give at least two groups"),
        ((("state0", "runs0"),), "give at least two groups"),
        ((("state0", "runs0"), ("state1",)), "('state1',) and ('state0', 'runs0') differ in length"),
        ((("state0", "runs0"), ("state1", "runs0")), "slot 'runs0' is in two groups"),
        (((), ()), "() is no group; give names of slots"),
        (((0,), (1,)), "(0,) is no group; give names of slots"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(groups: tuple[Any, ...], says: str) -> None:
    """Where it is written."""
    with pytest.raises(DefinitionError, match=re.escape(says)):
        interchangeable(*groups)


def test_a_declaration_that_does_not_fit_the_world_is_refused() -> None:
    """Slots that are not there, that begin differently, that are in two declarations; a name that World uses."""

    class Unknown(Workers):
        workers = interchangeable("state0", "state7")

    class Begins(Workers):
        state1 = slot(make=lambda world: "busy" if world.wanted == 2 else "idle")

    class Twice(Workers):
        locks = interchangeable("state0", "locked")
        locked = slot("idle")  # type: ignore[assignment]

    with pytest.raises(DefinitionError, match=r"Unknown.workers: there is no slot 'state7' \(there are: state0, "):
        check(Unknown)
    says = "slots 'state0' and 'state1' begin with different values ('idle' and 'busy')"
    with pytest.raises(DefinitionError, match=re.escape(says)):
        check(Begins, wanted=2)
    check(Begins).assert_holds()
    with pytest.raises(DefinitionError, match="Twice: workers, locks: slot 'state0' is in two groups"):
        check(Twice, symmetry=False)
    with pytest.raises(DefinitionError, match="World uses this name itself"):
        type("Bad", (Workers,), {"values": interchangeable("state0", "state1")})


class Numbered(Workers):
    """Who was last is kept by number: such a value does not change places with its group."""

    last: int = slot(0)

    @action(over=range(3))
    def take(self, n: int) -> Any:
        taken = Workers.take.function(self, n)
        self.last = n
        return taken

    @sometimes
    def the_last_is_done(self) -> bool:
        return bool(getattr(self, f"state{self.last}") == "done")


class Favoured(Workers):
    @action(over=range(3))
    def take(self, n: int) -> Any:
        if n == 2 and self.state0 == self.state1 == "idle" and self.runs0 + self.runs1 == 2:
            return False
        return Workers.take.function(self, n)


class FirstIsSeen(Workers):
    @sometimes
    def first_is_done(self) -> bool:
        return self.state0 == "done"


class SecondIsBound(Workers):
    @always
    def second_rests(self) -> bool:
        return self.state1 != "done" or self.runs0 > 0


class FirstBreaks(Workers):
    @action(over=range(3))
    def give(self, n: int) -> Any:
        if n == 1 and self.runs1 == 1 and self.state1 == "busy":
            self.fail("I14")
        return Workers.give.function(self, n)


class OneEnds(Workers):
    @action(fault=True)
    def reset(self) -> bool:
        ended, self.state0 = self.state0 == "done", "idle"
        self.runs0 = 0
        return ended

    @action
    def reset_others(self) -> bool:
        ended, self.state1, self.state2 = self.state1 == "done" == self.state2, "idle", "idle"
        self.runs1 = self.runs2 = 0
        return ended

    @recoverable
    def idle(self) -> bool:
        return self.state0 == "idle"


OneIsAFault: Any = type("OneIsAFault", (Workers,), by_name(Workers, "take", 3, take1=True))
OneIsAllowed: Any = type(
    "OneIsAllowed",
    (Workers,),
    by_name(Workers, "give", 3) | {"ends": recoverable(by=["take", "give0", "give1"])(Workers.properties_["all_done"])},
)


@pytest.mark.parametrize(
    ("world", "says"),
    [
        (OneIsAFault, r"action take\d can be taken in the state"),
        (OneIsAllowed, r"action give\d can be taken in the state"),
        (Numbered, "action take"),
        (Favoured, r"action take\(\d\) can be taken in the state state0 = .*, but has no match in the same with"),
        (FirstIsSeen, "property 'first_is_done' holds in the state state0 = 'done', .*, but not in the same"),
        (SecondIsBound, "property 'second_rests' holds in the state"),
        (FirstBreaks, r"action give\(1\) breaks 'I14' in the state"),
        (OneEnds, "(action reset|property 'idle')"),
    ],
)
def test_a_world_that_is_not_symmetric_is_refused(world: type[World], says: str) -> None:
    """The action or property and the state are named; it is explored if the groups are told apart, or not declared."""
    for engine in ("auto", "fast", "reference"):
        with pytest.raises(DefinitionError) as caught:
            check(world, engine=engine)
        text = str(caught.value)
        head = f"{world.__name__} says that workers (3 groups like (state0, runs0)) are interchangeable, but it tells"
        assert text.startswith(head)
        assert re.search(says, text), text
    plain = check(world, symmetry=False)
    left = type(world.__name__, (world,), {"workers": None})
    assert (check(left).distinct, check(left).verdict) == (plain.distinct, plain.verdict)


class InOrder(Workers):
    @always
    def not_in_order(self) -> bool:
        return (self.runs0, self.runs1, self.runs2) != (0, 1, 2)


class ByTheThird(Workers):
    @action(over=range(3))
    def give(self, n: int) -> Any:
        if n == 2 and self.runs2 == 1 and self.runs1 == 1:
            self.fail("I14")
        return Workers.give.function(self, n)


class EndsWithTheThird(Workers):
    @action(over=range(3))
    def take(self, n: int) -> Any:
        return (self.runs0, self.runs1, self.runs2) != (0, 0, 1) and Workers.take.function(self, n)


@pytest.mark.parametrize("engine", ["fast", "reference"])
@pytest.mark.parametrize(
    ("world", "broken"), [(InOrder, "not_in_order"), (ByTheThird, "I14"), (EndsWithTheThird, "deadlock")]
)
def test_a_counterexample_that_is_none_of_the_world_is_refused(
    world: type[World], broken: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the sample did not show that the world is not symmetric, the way to the violation does."""
    monkeypatch.setattr("statecore.symmetry.Symmetry.check", lambda *args: None)
    says = f"{broken!r} is broken with groups in one order, and not with groups in another (in the state state0 = "
    with pytest.raises(DefinitionError, match=re.escape(says)):
        check(world, engine=engine)
    assert check(world, symmetry=False).verdict is Verdict.VIOLATED
