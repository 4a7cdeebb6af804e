"""pytest collects worlds: each is a test that explores every reachable state and fails with the story.

Nothing is collected that did not ask for it:

* files that match a pattern of the ini option `statecore_worlds` (`models/*.py`): every world that they define;
* in a module that pytest collects anyway: a world that says `__test__ = True` itself.

A world that says `__test__ = False` is left out (one to inherit from, a failing twin that a test of its own expects).
`pytest_sizes = ({"n": 3}, {"n": 4})` makes one test for each set of parameters. `statecore_max_states` and
`statecore_max_seconds` are the limits; reached, they fail the test, since *not finished* is not *holds*.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

__all__ = ["WorldFile", "WorldItem"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("statecore_worlds", "patterns of files whose worlds are checked", type="args", default=[])
    parser.addini("statecore_max_states", "distinct states at most, for each world", default="")
    parser.addini("statecore_max_seconds", "seconds at most, for each world", default="")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> WorldFile | None:
    """The worlds of a file that matches, beside whatever tests pytest finds in it."""
    return WorldFile.from_parent(parent, path=file_path) if _matches(parent.config, file_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> list[WorldItem] | None:
    """A world in a module of tests; whatever it is called, it is no class of test methods."""
    if not _is_world(obj):
        return None
    asked = vars(obj).get("__test__") is True and _defined_here(collector, obj)
    return list(_items(collector, obj)) if asked and not _matches(collector.config, collector.path) else []


class WorldFile(pytest.Module):
    """A file of worlds, imported as pytest imports modules of tests."""

    def collect(self) -> Iterable[WorldItem]:
        for obj in dict.fromkeys(filter(_is_world, vars(self.obj).values())):  # a world of two names is one
            if obj.actions_ and _defined_here(self, obj) and vars(obj).get("__test__") is not False:
                yield from _items(self, obj)


class WorldItem(pytest.Item):
    """One world with one set of parameters. What was counted is in its properties, and so in JUnit's report."""

    def __init__(self, *, world: Any, params: Mapping[str, Any], **more: Any) -> None:
        super().__init__(**more)
        self.world = world
        self.params = dict(params)

    def runtest(self) -> None:
        """The world holds in every reachable state; raises InvariantBroken or NotShown."""
        from .findings import CTRL_C
        from .report import check

        limits: dict[str, Any] = {}
        for name, kind in (("max_states", int), ("max_seconds", float)):
            if given := self.config.getini(f"statecore_{name}"):
                limits[name] = _number(f"statecore_{name}", given, kind)
        report = check(self.world, **limits, **self.params)
        self.user_properties += [
            ("verdict", report.verdict.value),
            ("distinct", report.distinct),
            ("generated", report.generated),
            ("depth", report.depth),
        ]
        if report.violation is None and report.found.limit == CTRL_C:
            raise KeyboardInterrupt(report.story())  # meant for the whole run of tests
        report.assert_holds()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The story alone where it says everything; a bug in the world with its traceback."""
        from .errors import DefinitionError, InvariantBroken
        from .report import NotShown

        if isinstance(excinfo.value, InvariantBroken | NotShown | DefinitionError):
            return "\n".join([str(excinfo.value), *getattr(excinfo.value, "__notes__", ())])
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        import inspect

        try:
            line = inspect.getsourcelines(self.world)[1] - 1
        except OSError:  # the class was made by a call, and no line of the file begins it
            line = None
        return self.path, line, f"world {self.name}"


def _items(parent: pytest.Collector, world: Any) -> Iterator[WorldItem]:
    """One for each set of parameters."""
    sizes: Any = getattr(world, "pytest_sizes", ({},))
    if not isinstance(sizes, tuple | list) or not all(isinstance(each, Mapping) for each in sizes) or not sizes:
        raise pytest.Collector.CollectError(
            f"{world.__name__}.pytest_sizes is {sizes!r}; give a tuple of dicts of parameters, ({{'n': 3}},)"
        )
    for params in sizes:
        named = ",".join(f"{name}={value}" for name, value in params.items())
        name = f"{world.__name__}[{named}]" if named else world.__name__
        # Given as text, so that pytest takes brackets for parameters; else --last-failed does not know the test again.
        yield WorldItem.from_parent(parent, name=name, nodeid=f"{parent.nodeid}::{name}", world=world, params=params)


def _matches(config: pytest.Config, path: Path) -> bool:
    """Whether the worlds of the file are asked for; `conftest.py` and `__init__.py` are no models."""
    if path.suffix != ".py" or path.name in ("conftest.py", "__init__.py"):
        return False
    return any(path.match(pattern) for pattern in config.getini("statecore_worlds"))


def _is_world(obj: object) -> bool:
    """Whether it is a class of worlds; where nobody has imported that module there are none, and it is left alone."""
    module: Any = sys.modules.get("statecore.world")
    return module is not None and isinstance(obj, type) and issubclass(obj, module.World)


def _defined_here(collector: pytest.Collector, world: Any) -> bool:
    """Whether the module does not only import it."""
    module = collector.getparent(pytest.Module)
    return module is not None and world.__module__ == module.obj.__name__


def _number(name: str, given: str, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(given)
    except ValueError:
        raise pytest.UsageError(f"{name} = {given}: give a number") from None
