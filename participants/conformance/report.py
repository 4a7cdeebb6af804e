"""What came of all checks of one server: as values, as text for people, as JSON. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final

from attrs import frozen

from ..commands.console import Block, Grid, count
from ..commands.doctor import WIDTH, printable
from .check import Check, Group

LABEL: Final = 9


class Result(StrEnum):
    OK = "ok"
    FAILED = "failed"
    NOT_TRIED = "not tried"
    DOES_NOT_APPLY = "does not apply"


@frozen
class Finding:
    """What was sent, what came, what was expected."""

    sent: str
    came: str
    expected: str


@frozen
class Row:
    """One check and what came of it; `reason` says why it was not tried or does not apply."""

    check: Check
    result: Result
    calls: int = 0
    finding: Finding | None = None
    reason: str = ""


@frozen(kw_only=True)
class Report:
    """All rows, in order. `conforms`: nothing failed, and something was tried."""

    url: str
    kind: str
    instance: str
    rows: tuple[Row, ...]

    @property
    def failed(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.result is Result.FAILED)

    @property
    def conforms(self) -> bool:
        return not self.failed and any(row.result is Result.OK for row in self.rows)

    @property
    def untried(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.result is Result.NOT_TRIED)

    def of(self, group: Group) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.check.group is group)


def summary(report: Report) -> str:
    """The outcome in one line; what was not tried is never called right."""
    made = sum(row.result in (Result.OK, Result.FAILED) for row in report.rows)
    name = f"{report.kind} {report.instance!r}" if report.instance else report.url
    left = f"; {count(len(report.untried), 'check')} not tried" if report.untried else ""
    if report.failed:
        return f"{name} does not conform: {len(report.failed)} of {count(made, 'check')} failed{left}"
    if not made:
        return f"{name}: nothing was tried{left}"
    return f"{name} conforms in {count(made, 'check')}{left}"


def tell(report: Report, *, verbose: bool = False) -> Iterator[Block]:
    """The report for people: a line, a row for each group, then every finding and what was not tried."""
    yield printable(summary(report))
    columns = ("group", "checks", "calls", "result")
    rows = tuple(_group_row(group, report.of(group)) for group in Group if report.of(group))
    yield Grid("conformance", columns, rows, right=frozenset({1, 2}))
    for row in report.failed:
        assert row.finding is not None
        yield ""
        yield f"FAILED {row.check.full_name}: {row.check.says}"
        for label, text in (
            ("sent", row.finding.sent),
            ("came", row.finding.came),
            ("expected", row.finding.expected),
            ("written", f"docs/reference/{row.check.written}{_numbers(row.check)}"),
        ):
            yield f"  {label:{LABEL}}{printable(text)}"
    quiet: dict[str, list[str]] = {}
    for row in report.rows:
        if row.result is Result.NOT_TRIED or (verbose and row.reason):
            quiet.setdefault(f"{row.result}: {row.reason}", []).append(row.check.full_name)
    for reason, names in quiet.items():
        yield ""
        yield printable(reason)
        yield textwrap.indent(textwrap.fill(", ".join(names), WIDTH - 2, break_on_hyphens=False), "  ")


def _numbers(check: Check) -> str:
    return f" ({', '.join(check.covers)})" if check.covers else ""


def _group_row(group: Group, rows: tuple[Row, ...]) -> tuple[str, ...]:
    """What a group came to. It is `ok` only where all that applies was tried."""
    numbers = {result: sum(row.result is result for row in rows) for result in Result}
    order = (Result.FAILED, Result.OK, Result.NOT_TRIED, Result.DOES_NOT_APPLY)
    there = [result for result in order if numbers[result]]
    (first, *more) = there
    if not more:
        reasons = {row.reason for row in rows}
        said = f"{first}: {reasons.pop()}" if len(reasons) == 1 and first is not Result.FAILED else str(first)
        said = said.removesuffix(": ")
    elif numbers[Result.FAILED] or numbers[Result.NOT_TRIED]:
        said = ", ".join(f"{numbers[result]} {result}" for result in there)
    else:
        said = f"ok ({numbers[Result.DOES_NOT_APPLY]} of them {Result.DOES_NOT_APPLY})"
    return str(group), str(len(rows)), str(sum(row.calls for row in rows)), printable(said)


def as_json(report: Report) -> dict[str, Any]:
    """The whole report as one JSON object."""
    return {
        "type": "conform",
        "conforms": report.conforms,
        "url": report.url,
        "kind": report.kind,
        "instance": report.instance,
        "checks": [
            {
                "group": str(row.check.group),
                "name": row.check.name,
                "says": row.check.says,
                "written": row.check.written,
                "covers": list(row.check.covers),
                "result": str(row.result),
                "calls": row.calls,
                "reason": row.reason,
                "finding": None
                if row.finding is None
                else {"sent": row.finding.sent, "came": row.finding.came, "expected": row.finding.expected},
            }
            for row in report.rows
        ],
    }
