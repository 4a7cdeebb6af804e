"""`statecore mutate TABLE TESTS`: is there a test that notices, whatever one cell of a table does wrongly?

pytest collects the tests once; then they run in this process once for each mutation of the table, until one fails. So
it is for tests that are pure and quick. A test that notices a mutation is asked first about the next one. With nothing
changed all of them must pass. What no test notices is a survivor; those that are known are listed in a file, each with
a reason, and the list must be right: a survivor that is noticed after all is a finding too.
"""

from __future__ import annotations

import argparse
import io
import json
import signal
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from fnmatch import fnmatchcase
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final

from attrs import define, field, frozen

from .machine import Table
from .mutation import CellMutation, applied, mutations
from .targets import UsageError, load_module

__all__ = ["Known", "Survey", "read_known", "register", "survey"]

TEST_S: Final = 30.0
"""A test that runs longer under a mutation has noticed it: the mutated machine may never come to an end."""
EVERY: Final = 100
QUIETLY: Final = ("-q", "-s", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist")


@frozen
class Known:
    """Mutations that no test notices, and why not; `mutation` is a key or a pattern of keys (``*`` for anything)."""

    mutation: str
    reason: str

    def fits(self, key: str) -> bool:
        return key == self.mutation or fnmatchcase(key, self.mutation.replace("[", "[[]"))


@frozen(kw_only=True)
class Survey:
    """What came of all mutations: `noticed` by which test (its node id), by the key of the mutation; `survivors`."""

    noticed: dict[str, str]
    survivors: tuple[str, ...]
    known: tuple[Known, ...] = ()

    @property
    def unknown(self) -> tuple[str, ...]:
        """Survivors that are not known."""
        return tuple(key for key in self.survivors if not any(each.fits(key) for each in self.known))

    @property
    def wrong(self) -> tuple[Known, ...]:
        """Those said to be known that no survivor fits."""
        return tuple(each for each in self.known if not any(map(each.fits, self.survivors)))

    @property
    def good(self) -> bool:
        return not self.unknown and not self.wrong

    def story(self) -> str:
        """In lines, the verdict last."""
        lines = [f"survives: {key}" for key in self.unknown]
        lines += [f"known as a survivor, and it is none: {each.mutation}" for each in self.wrong]
        known = len(self.survivors) - len(self.unknown)
        total = len(self.noticed) + len(self.survivors)
        lines.append(f"{total} mutations: {len(self.noticed)} noticed, {known} known, {len(self.unknown)} not noticed")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "noticed": self.noticed,
            "known": [key for key in self.survivors if key not in self.unknown],
            "survivors": list(self.unknown),
            "wrongly_known": [each.mutation for each in self.wrong],
        }


def survey(
    tables: Sequence[Table[Any, Any]] | Callable[[], Sequence[Table[Any, Any]]],
    tests: Sequence[str],
    known: Sequence[Known] = (),
    *,
    only: Collection[str] | None = None,
) -> Survey:
    """Each mutation of each table, and whether one of these tests (as pytest names them) notices.

    `tables` may be a function that finds them: it is called once the tests have run with nothing changed. `only` are
    the keys of the mutations that are asked about; without it, all. Of `known`, what is not about these
    tables is left out. Raises UsageError when pytest is not there, finds no test, or a test fails with nothing changed;
    KeyboardInterrupt when it is interrupted.
    """
    try:
        import pytest
    except ImportError as error:
        raise UsageError(f"pytest runs the tests, and it is not installed: {error}") from error
    found: list[Table[Any, Any]] = []

    def chosen() -> Sequence[CellMutation]:
        found.extend(tables() if callable(tables) else tables)
        every = (each for table in found for each in mutations(table))
        return [each for each in every if only is None or each.key in only]

    run = _Run(chosen)
    said = io.StringIO()
    with redirect_stdout(said):
        code = pytest.main([*QUIETLY, *tests], plugins=[run])
    if run.interrupted:
        raise KeyboardInterrupt
    if run.problem is not None or not run.finished:
        raise UsageError(run.problem or f"pytest ended with {int(code)} before the tests ran\n{said.getvalue()}")
    names = {table.name for table in found}
    about = tuple(each for each in known if each.mutation.partition(" ")[0] in names)
    return Survey(noticed=run.noticed, survivors=tuple(run.survivors), known=about)


@define(eq=False)
class _Run:
    """A pytest plugin that runs the collected tests once for each mutation, and not as pytest would."""

    chosen: Callable[[], Sequence[CellMutation]]
    noticed: dict[str, str] = field(factory=dict)
    survivors: list[str] = field(factory=list)
    problem: str | None = None
    finished: bool = False
    interrupted: bool = False

    def pytest_keyboard_interrupt(self, excinfo: Any) -> None:
        self.interrupted = type(excinfo.value) is KeyboardInterrupt  # what could not be collected is a subclass of it

    def pytest_runtestloop(self, session: Any) -> bool:
        items = list(session.items)
        if session.testsfailed:
            raise session.Interrupted("not every test could be collected")
        if not items:
            self.problem = "no test was collected"
            return True
        if failed := self._first_that_fails(items):
            self.problem = f"{failed.nodeid} fails with nothing changed"
            return True
        try:
            chosen = self.chosen()
        except UsageError as error:
            self.problem = str(error)
            return True
        for number, mutation in enumerate(chosen, start=1):
            with applied(mutation):
                noticing = self._first_that_fails(items)
            if noticing is None:
                self.survivors.append(mutation.key)
            else:
                self.noticed[mutation.key] = noticing.nodeid
                items.remove(noticing)
                items.insert(0, noticing)
            if number % EVERY == 0:
                print(f"{number} of {len(chosen)}, {len(self.survivors)} survive", file=sys.stderr, flush=True)
        self.finished = True
        return True

    def _first_that_fails(self, items: Sequence[Any]) -> Any | None:
        from _pytest.runner import runtestprotocol

        for item, following in zip(items, [*items[1:], None], strict=True):
            with _at_most(TEST_S):
                reports = runtestprotocol(item, nextitem=following, log=False)
            if any(report.failed for report in reports):
                item.session._setupstate.teardown_exact(None)
                return item
        return None


class TooLong(BaseException):
    """A test has had its time. No test catches it."""


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """A test inside that takes longer fails."""

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise TooLong(f"not at an end after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def read_known(path: Path) -> tuple[Known, ...]:
    """The survivors listed in a TOML file: tables ``[[survivor]]`` with `mutation` and `reason`. Raises UsageError."""
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8")).get("survivor", [])
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error
    for row in rows:
        if set(row) != {"mutation", "reason"} or not all(isinstance(each, str) and each for each in row.values()):
            raise UsageError(f"{path}: {row} is no survivor: it needs a mutation and a reason, both text")
    return tuple(Known(row["mutation"], row["reason"]) for row in rows)


# --- the command


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "mutate",
        help="break a table cell by cell, and ask whether a test notices",
        description="Makes every cell of a table wrong, one at a time: another target, another code, a refusal or a "
        "guard left out, an effect not owed. The tests run in this process until one fails; what none notices is said.",
        epilog="Exit code: 0 every mutation is noticed or known, 1 one is not, 2 wrong command line, or a test fails "
        "with nothing changed.",
    )
    parser.add_argument("target", metavar="MODULE[:TABLE]", help="without a name, every table of the module or file")
    parser.add_argument("tests", nargs="+", metavar="TEST", help="files or ids, as pytest takes them")
    parser.add_argument("--known", type=Path, metavar="FILE.toml", help="survivors that are known, each with a reason")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=_mutate)


def _mutate(args: argparse.Namespace) -> int:
    module, name = load_module(args.target)
    if not _tables(module, name):
        raise UsageError(f"{args.target}: there is no table" + (f" {name!r}" if name else ""))
    known = () if args.known is None else read_known(args.known)
    is_file = args.target.partition(":")[0].endswith(".py")
    found = survey(lambda: _tables(_as_tested(module) if is_file else module, name), args.tests, known)
    print(json.dumps(found.to_json()) if args.json else found.story())
    return 0 if found.good else 1


def _tables(module: ModuleType, name: str | None) -> list[Table[Any, Any]]:
    every = vars(module).values() if name is None else (getattr(module, name, None),)
    return [each for each in every if isinstance(each, Table)]


def _as_tested(loaded: ModuleType) -> ModuleType:
    """The module that the tests have of this file: they import it by its name, so that it is not the one loaded here.

    Raises UsageError if they have none.
    """
    path = Path(str(loaded.__file__)).resolve()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if module is not loaded and file and Path(file).resolve() == path:
            return module
    raise UsageError(f"{path.name}: no test imports it, so that none can notice what is wrong with its table")
