"""A counterexample as a test: the steps are taken again by hand in the same world, which breaks the same property.

`statecore check FILE.py --pytest OUT.py` writes such a test. It fails while the steps still break the property; once
the world is mended it passes, since a step is not possible any more or since nothing breaks.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import DefinitionError, InvariantBroken
from .findings import Violation
from .liveness import fair_actions
from .properties import Kind, Property
from .report import Report
from .targets import UsageError, load_module
from .trace import lines, shown
from .world import Action, State, Step, World

__all__ = ["retrace", "step_names", "world_at", "written_test"]


def world_at(place: str | Path, name: str) -> type[World]:
    """The world of that name in a file `something.py` or in a module that can be imported. Raises UsageError."""
    module, _ = load_module(str(place))
    found = getattr(module, name, None)
    if not isinstance(found, type) or not issubclass(found, World):
        raise UsageError(f"{place} has no world {name!r}")
    return found


def step_names(world: World) -> dict[str, tuple[Step, Action]]:
    """Each step by a name that is the same in every run; equal names are told apart by a number."""
    found: dict[str, tuple[Step, Action]] = {}
    for step, act in world.steps():
        name = f"{step.name}({', '.join(map(shown, step.args))})" if step.args else step.name
        number = 2
        plain = name
        while name in found:
            name = f"{plain} #{number}"
            number += 1
        found[name] = step, act
    return found


def retrace(
    world: type[World],
    steps: Sequence[str],
    *,
    breaks: str,
    loop: int | None = None,
    by_step: bool = False,
    params: Mapping[str, Any] | None = None,
) -> bool:
    """Whether all the steps were possible; raises InvariantBroken, with the story, if they break a property.

    `breaks` names the property that they broke when they were found, or "deadlock"; `by_step`: the last step said so
    itself (`fail`); `loop`: from this state on they go round for ever. A property or a step that the world does not
    have (any more) is a DefinitionError: then the test says nothing, and must be written anew.
    """
    made = world(**(params or {}))
    walked = _Walk(made)
    for name in steps:
        if name not in walked.known:
            raise DefinitionError(f"{world.__name__} has no step {name!r}; check it again and write this test anew")
    declared = made.properties_.get(breaks)
    if declared is None and not by_step and breaks != "deadlock":
        raise DefinitionError(f"{world.__name__} has no property {breaks!r}; check it again and write this test anew")
    if loop is not None and not 0 <= loop <= len(steps):
        raise DefinitionError(f"loop={loop}: there are {len(steps)} steps")
    for name in steps:
        walked.look()
        if not walked.take(name):
            return False
    walked.look()
    if breaks == "deadlock":
        walked.look_for_a_next_step()
    elif declared is not None and loop is not None:
        walked.look_round(declared, loop)
    elif declared is not None and declared.kind is Kind.RECOVERABLE:
        walked.look_for_a_way_back(declared)
    return True


class _Walk:
    """A world on its way, and what has happened to it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.known = step_names(world)
        self.taken: list[str] = []
        self.states: list[State] = [world.values]

    def broken(self, name: str, covers: tuple[str, ...] = (), loop: int | None = None) -> InvariantBroken:
        steps = tuple(self.known[each][0] for each in self.taken)
        violation = Violation(name, covers, steps, tuple(self.states), loop)
        params = ", ".join(f"{key}={value}" for key, value in self.world.params.items())
        head = f"{type(self.world).__name__}({params}):"
        return InvariantBroken(name, "\n".join([head, *lines(tuple(self.world.slots_), violation)]))

    def take(self, name: str) -> bool:
        """Whether the step was enabled."""
        step, act = self.known[name]
        try:
            if not self.world.act(act, step.args):
                return False
        except InvariantBroken as failure:
            self.taken.append(name)
            raise self.broken(failure.property_name, (failure.property_name,)) from None
        self.taken.append(name)
        self.states.append(self.world.values)
        return True

    def look(self) -> None:
        """What must always hold holds here."""
        for each in self.world.properties_.values():
            if each.kind is Kind.ALWAYS and not self.world.holds(each):
                raise self.broken(each.name, each.covers)

    def look_for_a_next_step(self) -> None:
        finals = [p for p in self.world.properties_.values() if p.kind is Kind.FINAL]
        if not any(map(self.world.holds, finals)) and not any(self._after(self.states[-1])):
            raise self.broken("deadlock")

    def look_for_a_way_back(self, declared: Property) -> None:
        """Some state with the property can be reached from here by what may be used for it."""
        found = {self.states[-1]}
        todo = [self.states[-1]]
        while todo:
            state = todo.pop()
            self.world.put(state)
            if self.world.holds(declared):
                return
            for name, after in self._after(state):
                step, _ = self.known[name]
                allowed = not step.fault and (declared.by is None or step.name in declared.by)
                if allowed and after not in found:
                    found.add(after)
                    todo.append(after)
        raise self.broken(declared.name, declared.covers)

    def look_round(self, declared: Property, loop: int) -> None:
        """The steps from state `loop` on lead back to it, and going round for ever is fair and never what must come."""
        wanted = [self._holds(declared.to or declared, state) for state in self.states]
        begun = [not there for there in wanted]
        if declared.kind is Kind.LEADS_TO:
            begun = [self._holds(declared, state) and now for state, now in zip(self.states, begun, strict=True)]
        start = max((number for number, now in enumerate(begun[: loop + 1]) if now), default=None)
        if declared.kind is Kind.EVENTUALLY:
            start = 0
        if self.states[loop] != self.states[-1] or start is None or any(wanted[start:]):
            return
        owed = {name for name, (step, _) in self.known.items() if step.name in fair_actions(self.world, declared)}
        owed -= set(self.taken[loop:])
        for state in self.states[loop:]:
            owed &= {name for name, after in self._after(state) if after != state}
        if not owed:
            raise self.broken(declared.name, declared.covers, loop)

    def _holds(self, predicate: Any, state: State) -> bool:
        self.world.put(state)
        return self.world.holds(predicate)

    def _after(self, state: State) -> list[tuple[str, State]]:
        """The steps that are enabled in a state, with where they lead; one that breaks a property leads back to it."""
        found = []
        for name, (step, act) in self.known.items():
            self.world.put(state)
            try:
                if self.world.act(act, step.args):
                    found.append((name, self.world.values))
            except InvariantBroken:
                found.append((name, state))
        self.world.put(state)
        return found


# --- the test as text


def written_test(place: str, cases: Sequence[tuple[type[World], Report]], out: Path) -> str:
    """The source of a module with one test for each violated world of `place` (a file or a module), to stand at `out`.

    Raises UsageError for a parameter that cannot be written down.
    """
    where = _quoted(place)
    if place.endswith(".py"):
        where = f"Path(__file__).parent / {_quoted(_relative(Path(place).resolve(), out.resolve().parent))}"
    imports = ["from statecore.retrace import retrace, world_at", ""]
    if place.endswith(".py"):
        imports = ["from pathlib import Path", "", *imports]
    head = '"""Counterexamples of `statecore check`, replayed: a test fails as long as its steps break the property."""'
    names: list[str] = []
    for world, report in cases:
        assert report.violation is not None
        names.append(_unlike(re.sub(r"\W", "_", f"test_{world.__name__}_{report.violation.name}"), names))
    tests = (_case(*case, name, where) for case, name in zip(cases, names, strict=True))
    return "\n".join([head, "", *imports, *(line for test in tests for line in test)])


def _unlike(name: str, others: Sequence[str]) -> str:
    """The name, with a number if another test has it already, which would be lost."""
    number = 2
    plain = name
    while name in others:
        name, number = f"{plain}_{number}", number + 1
    return name


def _case(world: type[World], report: Report, function: str, where: str) -> list[str]:
    broken = report.violation
    assert broken is not None
    made = world(**report.params)
    known = step_names(made)
    given = {key: value for key, value in report.params.items() if value != world.params_[key].default}
    body = [f"        world_at({where}, {_quoted(world.__name__)}),"]
    body += ["        ["]
    body += [f"            {_quoted(_name_of(known, step))}," for step in broken.steps]
    body += ["        ],", f"        breaks={_quoted(broken.name)},"]
    body += [f"        loop={broken.loop},"] if broken.loop is not None else []
    body += ["        by_step=True,"] if len(broken.states) == len(broken.steps) else []
    body += [f"        params={_literal(given)},"] if given else []
    told = [line.rstrip() for text in lines(report.slots, broken) for line in text.splitlines()]
    comment = [f"    # {line.removeprefix('  ')}".rstrip() for line in told]
    return ["", f"def {function}() -> None:", *comment, "    retrace(", *body, "    )", ""]


def _quoted(text: str) -> str:
    """The text as a Python string in double quotes, in ASCII."""
    return json.dumps(text, ensure_ascii=False).encode("ascii", "backslashreplace").decode()


def _name_of(known: Mapping[str, tuple[Step, Action]], step: Step) -> str:
    return next(name for name, (each, _) in known.items() if each == step and each.label == step.label)


def _literal(params: Mapping[str, Any]) -> str:
    """The parameters as source text."""
    for name, value in params.items():
        try:
            same = ast.literal_eval(repr(value)) == value
        except (ValueError, SyntaxError):
            same = False
        if not same:
            raise UsageError(f"--pytest: parameter {name}={value!r} cannot be written down as a literal")
    return repr(dict(params))


def _relative(path: Path, start: Path) -> str:
    """`path` as seen from the directory `start`."""
    shared = 0
    for ours, theirs in zip(path.parts, start.parts, strict=False):
        if ours != theirs:
            break
        shared += 1
    return "/".join([*[".."] * (len(start.parts) - shared), *path.parts[shared:]])
