"""Servers of every kind keep the protocol as the conformance suite asks for it, and each broken one is found."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import trio
from attrs import evolve

from participants.commands.console import show
from participants.conformance import (
    AuxiliarySuite,
    ConformanceSuite,
    Driver,
    Group,
    InUse,
    NotConforming,
    NotTried,
    Report,
    Result,
    Subject,
    Target,
    conform,
    every_check,
)
from participants.conformance.prediction import EVENTS
from participants.conformance.report import as_json, summary, tell
from participants.identity import EpisodeId
from participants.machines.control import PARTICIPANT, Call
from participants.servers.calls import VERBS
from participants.servers.modes import Mode
from tests.conform_broken import BROKEN, Broken, NamesNobody, behind
from tests.conform_kinds import RULES, Kind, Tools, conformance, standing
from tests.served_kinds import Fleet, fleet, run
from tests.small_job import ROOT

NOT_RESTARTED = {"export-restore/a-restart-is-named": "its executions do not start over"}
KEEPS_NO_RESULTS = {"bad-input/acknowledgements-that-are-none": "it keeps no results"}
NEEDS_EXPORT = {
    "export-restore/comes-back-equal",
    "export-restore/a-live-server-refuses",
    "export-restore/only-what-is-named",
    "tombstones/leave-out-nobody-else",
}
ASKED_OF_EACH_KIND = set(Group) - {Group.AUTHENTICATION, Group.BAD_INPUT}
AFTER_WHICH_SOMETHING_IS_LEFT = set(Group) - {Group.AUTHENTICATION, Group.PHASES, Group.BAD_INPUT}
NEEDS_BLOCKERS = {
    "phases/preparing",
    "deadlines/a-wait-ends-at-its-deadline",
    "deadlines/what-comes-while-a-prepare-waits",
    "lease/ends-in-a-waiting-server",
    "blockers/are-named",
    "lost-replies/of-a-prepare-that-waits",
}


def text(report: Report, *, verbose: bool = False) -> str:
    out = io.StringIO()
    show(tell(report, verbose=verbose), out, plain=True)
    return out.getvalue()


def names(report: Report, result: Result) -> set[str]:
    return {row.check.full_name for row in report.rows if row.result is result}


# --- right servers


@pytest.mark.parametrize("kind", ["policy model", "agent", "environment"])
def test_a_server_of_each_kind_conforms(kind: str) -> None:
    """Everything is tried, and everything is as it is written, but for what is asked of servers that export nothing.

    What no kind has of its own, tokens and bad input, is asked of one here, and of every kind by `make conform`.
    """
    report = conformance(kind, *(Group if kind == "policy model" else ASKED_OF_EACH_KIND))
    assert report.failed == () and report.untried == (), text(report)
    reasons = {row.check.full_name: row.reason for row in report.rows if row.result is Result.DOES_NOT_APPLY}
    assert reasons == NOT_RESTARTED | ({} if kind in ("agent", "environment") else KEEPS_NO_RESULTS)
    assert report.conforms and len(names(report, Result.OK)) == len(report.rows) - len(reasons)


class TestResources(ConformanceSuite):
    """The resources server, as a user would have it asked: every check is a test, with a server of its own."""

    test_export_restore_a_restart_is_named = None  # it exports
    test_bad_input_acknowledgements_that_are_none = None  # and keeps no results

    @asynccontextmanager
    async def server(self) -> AsyncIterator[Target]:
        async with fleet() as made:
            yield (await standing(made, "resources")).target()
            assert not made.network.errors


def test_a_server_that_exports_nothing_conforms_as_such() -> None:
    """Its executions are named as restarts and block nobody; what asks for more does not apply, and is not called ok.

    Covers: I39.
    """
    asked = ("export-restore", "tombstones", *NEEDS_BLOCKERS)
    report = conformance("resources", *asked, options={"mode": Mode.RESTART_ONLY})
    assert report.failed == () and report.untried == (), text(report)
    assert names(report, Result.DOES_NOT_APPLY) == NEEDS_EXPORT | NEEDS_BLOCKERS
    assert "export-restore/a-restart-is-named" in names(report, Result.OK)


def test_a_stateless_server_conforms_as_such() -> None:
    """It has blockers, and nothing to give back."""
    report = conformance("stateless resources", "export-restore", "blockers", "tombstones")
    assert report.failed == () and report.untried == (), text(report)
    assert names(report, Result.DOES_NOT_APPLY) == NEEDS_EXPORT | set(NOT_RESTARTED)


class TestJudge(AuxiliarySuite):
    """A judge conforms by taking no part. Covers: I73, S1."""

    @asynccontextmanager
    async def server(self) -> AsyncIterator[Target]:
        async with fleet() as made:
            yield (await standing(made, "judge")).target()


def test_of_a_judge_nothing_else_is_asked() -> None:
    """The report of an auxiliary has that row alone, and that of a participant all others."""
    report = conformance("judge")
    assert report.conforms and [row.check.auxiliary for row in report.rows] == [True], text(report)
    numbers = [sum(name.startswith("test_") for name in vars(each)) for each in (AuxiliarySuite, ConformanceSuite)]
    assert numbers == [1, len(every_check()) - 1]


# --- broken servers


@pytest.mark.parametrize("broken", BROKEN, ids=lambda each: each.what.replace(" ", "-"))
def test_a_broken_server_is_found(broken: Broken) -> None:
    """By the check that is for it, which says what was sent, what came, what was expected and where that is written."""
    report = conformance("resources", broken.found_by, make=broken.make)
    (row,) = report.rows
    assert row.result is Result.FAILED and row.finding is not None, broken.what
    assert row.finding.sent and row.finding.came and row.finding.expected
    assert not report.conforms
    told = text(report)
    assert "does not conform: 1 of 1 check failed" in told
    for part in (row.check.says, f"written  docs/reference/{row.check.written}", f"FAILED {broken.found_by}"):
        assert part in told


def test_each_broken_server_has_a_fault_of_its_own() -> None:
    """So that nothing is counted twice, and every group finds something."""
    assert len({broken.what for broken in BROKEN}) == len(BROKEN) >= 15
    found = {every_check()[broken.found_by].group for broken in BROKEN}
    assert found == set(Group)


def test_a_finding_in_the_suite_is_a_failed_test_with_its_story() -> None:
    """What pytest shows is the story, and not the inside of the suite."""

    class Nameless(TestResources):
        @asynccontextmanager
        async def server(self) -> AsyncIterator[Target]:
            async with fleet() as made:
                yield (await standing(made, "resources", make=behind(NamesNobody))).target()

    with pytest.raises(pytest.fail.Exception, match=r"sent: +POST prepare .*\n.*\n.*among the blockers"):
        getattr(Nameless(), "test_blockers_are_named")()  # noqa: B009 (made by the base class)


def test_an_untried_check_in_the_suite_is_a_skipped_test_with_its_reason() -> None:
    """It is never a passed one."""

    class Undriven(TestResources):
        @asynccontextmanager
        async def server(self) -> AsyncIterator[Target]:
            async with fleet() as made:
                yield evolve((await standing(made, "resources")).target(), driver=None)

    with pytest.raises(pytest.skip.Exception, match=r"not tried: needs a driver with blocking\(\)"):
        getattr(Undriven(), "test_blockers_are_named")()  # noqa: B009 (made by the base class)


# --- what is tried, and what is said of it


def asked(test: Any) -> None:
    """Runs `test(fleet, kind)` with a resources server that stands."""

    async def main(made: Fleet) -> None:
        await test(made, await standing(made, "resources"))

    run(main)


def test_without_a_driver_what_needs_one_is_not_tried() -> None:
    """It is said what it needs, in the row of its group and below, and never `ok`; the rest is tried."""

    async def test(_made: Fleet, kind: Kind) -> None:
        target = evolve(kind.target(), root=None, driver=None)
        report = await conform(target, rules=RULES, only=ASKED_OF_EACH_KIND)
        assert report.failed == ()
        assert {row.reason.split("(")[0] for row in report.untried} == {
            "needs a driver with start", "needs a driver with touch", "needs a driver with blocking",
            "needs a driver with fresh", "needs --root: the server's checkpoint root, where its files can be read",
        }  # fmt: skip
        told = text(report)
        assert summary(report).startswith("resources 'tools' conforms in ") and "not tried" in summary(report)
        assert "  export-restore       7" in told
        row = next(line for line in told.splitlines() if line.strip().startswith("blockers"))
        assert row.endswith("1 ok, 1 not tried")
        said = as_json(report)
        assert json.loads(json.dumps(said)) == said
        results = {each["group"]: each["result"] for each in said["checks"] if each["name"] == "are-named"}
        assert results == {"blockers": "not tried"}

    asked(test)


def test_a_group_that_is_not_tried_at_all_says_why() -> None:
    """And a report of which nothing was tried does not conform."""

    async def test(_made: Fleet, kind: Kind) -> None:
        report = await conform(evolve(kind.target(), driver=None), rules=RULES, only=["tombstones"])
        assert not report.conforms and not report.failed
        assert summary(report) == "resources 'tools': nothing was tried; 3 checks not tried"

    asked(test)


def test_one_check_can_be_asked_alone() -> None:
    """By its full name."""
    report = conformance("resources", "blockers/are-named")
    assert [row.check.full_name for row in report.rows] == ["blockers/are-named"]


def test_a_driver_that_cannot_says_so() -> None:
    """A NotTried of the driver's is the reason of the row; any other exception is a mistake and is raised."""

    class Cannot(Tools):
        async def touch(self, server: Subject, episode: EpisodeId) -> httpx.Response:
            raise NotTried("the moon is full")

    class Wrong(Tools):
        async def touch(self, server: Subject, episode: EpisodeId) -> httpx.Response:
            raise ZeroDivisionError

    async def test(made: Fleet, kind: Kind) -> None:
        report = await conform(kind.target(), Cannot(made, "tools"), rules=RULES, only=["tombstones/are-never-lowered"])
        assert [row.reason for row in report.rows] == ["the moon is full"]
        with pytest.raises(ZeroDivisionError):
            await conform(kind.target(), Wrong(made, "tools"), rules=RULES, only=["tombstones/are-never-lowered"])

    asked(test)


def test_a_connection_of_the_drivers_that_fails_is_told() -> None:
    """What makes it wait is a call of the server under test, which failed; without a fresh process nothing is tried."""

    class Cut(Tools):
        def blocking(self, server: Subject, episode: EpisodeId) -> Any:
            raise httpx.ReadError("cut")

        def fresh(self) -> Any:
            raise httpx.ConnectError("nobody there")

    async def test(made: Fleet, kind: Tools) -> None:
        cut = Cut(made, "tools")
        await cut.up()
        report = await conform(cut.target(), cut, rules=RULES, only=["blockers/are-named", "export-restore"])
        came = [row.finding.came for row in report.rows if row.finding is not None]
        assert came == ["ReadError: cut"], text(report)
        reasons = {row.reason for row in report.rows if row.result is Result.NOT_TRIED}
        assert reasons == {"the driver's fresh() failed: ConnectError: nobody there"}, text(report)

    asked(test)


# --- the server is left as it was found


def test_the_server_and_its_files_are_as_they_were() -> None:
    """Open, nothing held, no mark, no session, no file; what others had there is there."""

    class Alone(Tools):
        def fresh(self) -> Any:
            """Another process would have nothing of what others had."""
            return Driver.fresh(self)

    async def test(made: Fleet) -> None:
        kind = Alone(made, "tools")
        await kind.up()
        await made.post("tools", "/ng-rollout/somebody/seed_session")
        await made.control("tools", "retire", episode_ids=[{"rollout_id": "gone"}])
        with made.disk.create(ROOT / "note") as file:
            file.write(b"mine")
        before = await made.status("tools")
        report = await conform(kind.target(), kind, rules=RULES, live=True, only=AFTER_WHICH_SOMETHING_IS_LEFT)
        assert report.failed == (), text(report)
        after = await made.status("tools")
        assert {name: after[name] for name in before if name != "server_ts"} == {
            name: before[name] for name in before if name != "server_ts"
        }
        assert made.disk.listdir(ROOT) == ["note"]
        assert (await made.post("tools", "/ng-rollout/somebody/increment", {"by": 1})).json() == {"value": 1}

    run(test)


def test_who_interrupts_it_leaves_the_server_open() -> None:
    """Ctrl-C while a checkpoint is open: it is resumed, and what was made is gone, before the command ends."""

    class Interrupts(Tools):
        async def touch(self, server: Subject, episode: EpisodeId) -> httpx.Response:
            if (await server.standing()).phase == "prepared":
                raise KeyboardInterrupt
            return await super().touch(server, episode)

    async def test(made: Fleet) -> None:
        kind = Interrupts(made, "tools")
        await kind.up()
        before = (await made.status("tools"))["report"]
        with pytest.raises(BaseExceptionGroup) as raised:
            await conform(kind.target(), kind, rules=RULES, only=["phases/closed-until-the-resume"])
        assert raised.group_contains(KeyboardInterrupt)
        after = await made.status("tools")
        assert (after["phase"], after["report"], after["retired_rollouts"]) == ("idle", before, 0)

    run(test)


def test_of_a_server_that_dies_no_file_is_left() -> None:
    """It dies when it has written: that is a finding, and what the check had it write is removed all the same."""

    class Dies(Tools):
        async def touch(self, server: Subject, episode: EpisodeId) -> httpx.Response:
            if (await server.standing()).phase == "committed":
                written.extend(self.fleet.disk.listdir(ROOT))
                self.fleet.network.kill(self.name)
            return await super().touch(server, episode)

    written: list[str] = []

    async def test(made: Fleet) -> None:
        kind = Dies(made, "tools")
        await kind.up()
        report = await conform(kind.target(), kind, rules=RULES, only=["phases/closed-until-the-resume"])
        assert report.failed and report.failed[0].finding is not None
        assert "ConnectError" in report.failed[0].finding.came, report
        assert written and made.disk.listdir(ROOT) == []

    run(test)


def test_a_server_in_use_is_not_touched() -> None:
    """With rollouts on it only if that is asked for; with a checkpoint open, never."""

    async def test(made: Fleet, kind: Kind) -> None:
        await made.post("tools", "/ng-rollout/somebody/seed_session")
        with pytest.raises(InUse, match=r"rollouts are on it \(sessions 1\).* or give --yes"):
            await conform(kind.target(), rules=RULES)
        await made.control("tools", "prepare", "c1")
        with pytest.raises(InUse, match="checkpoint c1 is open there"):
            await conform(kind.target(), rules=RULES, live=True)
        assert (await made.status("tools"))["checkpoint_id"] == "c1"

    asked(test)


def test_a_server_that_was_never_opened_is_opened_only_if_asked() -> None:
    """It waits for its coordinator. Opened, it conforms, epoch and all."""

    async def test(made: Fleet) -> None:
        kind = await standing(made, "resources", config={"epoch": 3, "epoch_required": True})
        with pytest.raises(InUse, match="it was never opened"):
            await conform(kind.target(), rules=RULES)
        report = await conform(kind.target(), rules=RULES, live=True, only=["fencing", "authentication", "lease"])
        assert report.failed == (), text(report)
        assert "fencing/a-call-of-an-older-epoch" in names(report, Result.OK)

    run(test)


def test_a_check_that_leaves_the_server_shut_is_the_last() -> None:
    """What is unknown is not judged: the rest is not tried, and says why."""

    async def test(made: Fleet) -> None:
        kind = await standing(made, "resources")
        server = made.network._servers["tools"]._app.server  # type: ignore[attr-defined]

        async def refuses(_call: Any, _address: Any) -> Any:
            raise RuntimeError("it will not")

        server.participant._resume = refuses
        report = await conform(kind.target(), rules=RULES, only=["idempotency"])
        assert len(report.failed) == 1 and report.rows[-1].result is Result.NOT_TRIED
        assert "left the server in a state that is not known" in report.rows[-1].reason

    run(test)


def test_who_does_not_speak_the_protocol_is_no_server_of_it() -> None:
    """Asked in Python that is an exception; the command has words for each case."""

    with pytest.raises(NotConforming, match="expected an answer"):
        trio.run(conform, Target(url="http://127.0.0.1:1", token="x"))


def test_the_table_is_what_is_asked() -> None:
    """Every verb's event is one of the table's, so that no cell of a call is left out."""
    assert set(EVENTS) == set(VERBS)
    calls = {event for cells in PARTICIPANT.cells.values() for event in cells if issubclass(event, Call)}
    assert set(EVENTS.values()) == calls
