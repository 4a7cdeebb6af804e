"""A pytest base class: every check is a test of its own.

    class TestNotes(ConformanceSuite):
        @asynccontextmanager
        async def server(self):
            async with InMemoryNetwork() as network:
                ...
                yield Target(url=..., token=..., transport=network.transport(), driver=NotesDriver())

Each test has a server of its own, for as long as its check takes. `virtual_time` runs it on a clock that jumps over
every wait; switch it off where the server is a real process.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar

import trio
import trio.testing

from .check import Check, every_check
from .report import Row
from .runner import look, made
from .subject import Rules
from .target import Driver, Target


class Suite:
    """What suites share. Derive from one, by a name that pytest collects, and say what `server` is and who drives it.

    What cannot be tried, or does not apply, is skipped with the reason; a finding is a failed assertion.
    """

    rules: ClassVar[Rules] = Rules(max_wait_s=3600.0)
    virtual_time: ClassVar[bool] = True

    def server(self) -> AbstractAsyncContextManager[Target]:
        """Inside of the block a server runs that nobody else uses."""
        raise NotImplementedError("say what is tested: override server()")

    def clock(self) -> trio.abc.Clock | None:
        """The clock of one test; None is the machine's."""
        return trio.testing.MockClock(autojump_threshold=0) if self.virtual_time else None

    def _tested(self, each: Check) -> None:
        import pytest

        row = trio.run(self._row, each, clock=self.clock())
        if row.reason:
            pytest.skip(f"{row.result}: {row.reason}")
        if row.finding is not None:
            found = row.finding
            lines = (f"sent:     {found.sent}", f"came:     {found.came}", f"expected: {found.expected}")
            pytest.fail("\n".join((each.says, *lines, f"written:  docs/reference/{each.written}")), pytrace=False)

    async def _row(self, each: Check) -> Row:
        async with self.server() as target:
            driver = target.driver or Driver()
            found = await look(target, driver, self.rules, live=True)
            return await made(each, target, driver, self.rules, found)


def _test_of(each: Check) -> Any:
    def test(self: ConformanceSuite) -> None:
        self._tested(each)

    test.__doc__ = each.says
    return test


class ConformanceSuite(Suite):
    """All that is asked of a participant."""


class AuxiliarySuite(Suite):
    """All that is asked of a judge or a simulator, which takes no part."""


for _each in every_check().values():
    _name = f"test_{_each.full_name}".replace("/", "_").replace("-", "_")
    setattr(AuxiliarySuite if _each.auxiliary else ConformanceSuite, _name, _test_of(_each))
