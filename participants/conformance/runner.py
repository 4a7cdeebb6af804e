"""Checks of one server, one after the other, each of which leaves the server as it found it: open, nothing held. trio.

A server that somebody uses is not touched: with a checkpoint open nothing is begun at all, with rollouts on it only if
that was asked for. If a check leaves it closed, or with more on it than before, that is a finding, and no further check
is made of a server whose state is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from attrs import evolve, frozen

from statecore.errors import StatecoreError
from statecore.exception_groups import exceptions_in

from ..coordination.introduction import Role
from .check import Check, every_check
from .report import Finding, Report, Result, Row
from .said import DoesNotApply, NotConforming, NotTried
from .subject import Rules, Standing, subject, told
from .target import Driver, Target

UNKNOWN: Final = "an earlier check has left the server in a state that is not known"


class InUse(StatecoreError):
    """Somebody uses the server; `str()` says how, and what to do."""


@frozen
class Found:
    """Who the server is, and where it stood before anything was done; no standing where it takes no part."""

    kind: str
    instance: str
    standing: Standing | None

    def concerns(self, each: Check) -> bool:
        return each.auxiliary is (self.standing is None)


async def conform(
    target: Target,
    driver: Driver | None = None,
    *,
    only: Iterable[str] = (),
    rules: Rules | None = None,
    live: bool = False,
    on_row: Callable[[Row], None] = lambda row: None,
) -> Report:
    """The report of all checks that concern this kind of server, or of `only` these groups and checks, by full name.

    `live`: rollouts that are on it may be disturbed. Raises InUse, and NotConforming if it does not answer at all as a
    server of this protocol.
    """
    driver, rules, wanted = driver or target.driver or Driver(), rules or Rules(), frozenset(only)
    found = await look(target, driver, rules, live=live)
    rows: list[Row] = []
    known = True
    for each in every_check().values():
        if not found.concerns(each) or (wanted and not wanted & {str(each.group), each.full_name}):
            continue
        if known:
            row = await made(each, target, driver, rules, found)
            known = row.finding is None or await _untidy(target, driver, rules, found, "") is None
        else:
            row = Row(each, Result.NOT_TRIED, reason=UNKNOWN)
        rows.append(row)
        on_row(row)
    return Report(url=target.url, kind=found.kind, instance=found.instance, rows=tuple(rows))


async def look(target: Target, driver: Driver, rules: Rules, *, live: bool) -> Found:
    """Who is there. A server that was never opened is opened if it may be disturbed. Raises InUse and NotConforming."""
    async with subject(target, driver, rules) as server:
        if server.role is Role.AUXILIARY:
            return Found(server.kind, server.instance, None)
        standing = await server.standing()
        if standing.phase != "idle":
            raise InUse(f"checkpoint {standing.checkpoint_id} is open there ({told(standing)}): wait for its end")
        holds = {name: number for name, number in standing.counts.items() if number}
        if holds and not live:
            what = ", ".join(f"{name} {number}" for name, number in sorted(holds.items()))
            raise InUse(f"rollouts are on it ({what}), and would be held and parked: wait for their end, or give --yes")
        if server.state == "born":
            if not live:
                raise InUse("it was never opened, a coordinator is to do that: give --yes to open it all the same")
            await server.resumed(server.new_id())
        return Found(server.kind, server.instance, await server.standing())


async def made(each: Check, target: Target, driver: Driver, rules: Rules, found: Found) -> Row:
    """The row of one check. One that went well and leaves the server otherwise than it was found, did not."""
    calls = 0
    row = Row(each, Result.OK)
    try:
        async with subject(target, driver, rules) as server:
            try:
                await each.run(server)
            finally:
                calls = server.calls
    except Exception as error:
        row = _row(each, error)
    if row.finding is None:
        finding = await _untidy(target, driver, rules, found, f"{each.full_name}, and all it had made was ended")
        row = row if finding is None else Row(each, Result.FAILED, finding=finding)
    return evolve(row, calls=calls)


def _row(each: Check, error: Exception) -> Row:
    """What an exception means for a check; one that is none of ours is a mistake here or in a driver, and raised."""
    leaves = list(exceptions_in(error))
    for leaf in leaves:
        if isinstance(leaf, NotConforming):
            return Row(each, Result.FAILED, finding=Finding(leaf.sent, leaf.came, leaf.expected))
    for leaf in leaves:
        if isinstance(leaf, NotTried | DoesNotApply):
            result = Result.NOT_TRIED if isinstance(leaf, NotTried) else Result.DOES_NOT_APPLY
            return Row(each, result, reason=str(leaf.args[0]))
    raise error


async def _untidy(target: Target, driver: Driver, rules: Rules, found: Found, after: str) -> Finding | None:
    """None if the server is open and holds no more than before; else what it is."""
    if found.standing is None:
        return None
    try:
        async with subject(target, driver, rules) as server:
            now = await server.standing()
    except NotConforming as error:
        return Finding(error.sent, error.came, error.expected)
    more = any(number > found.standing.counts.get(name, 0) for name, number in now.counts.items())
    if now.phase != "idle" or now.checkpoint_id is not None or more or now.retired > found.standing.retired:
        return Finding(after, told(now), f"as it was found: {told(found.standing)}")
    return None
