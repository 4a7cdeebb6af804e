"""Sendings of one call: which of them are answered, wait, or are refused for good (protocol.md section 6; S61)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from participants.identity import (
    EPOCH_HEADER,
    OPERATION_HEADER,
    REFUSED_HEADER,
    REVISION_HEADER,
    TRY_HEADER,
    EpisodeId,
)
from participants.machines.resource_session import RESOURCE_SESSION, Operation
from participants.machines.sendings import MAX_TRY, Fate, Sending, fate, tried_from
from participants.servers.refusals import Refusals
from participants.servers.resources import Mode, Verify
from participants.servers.session_book import CLOSES_KEPT, Session, SessionBook
from statecore import Refused
from tests.scenario_fleet import R1, Callers
from tests.served_kinds import Fleet, run, settle
from tests.small_job import counter_resources

ONE, NEXT = EpisodeId("r1"), EpisodeId("r1", 1)


def counted(operation_id: str, tried: int) -> dict[str, str]:
    return {OPERATION_HEADER: operation_id, TRY_HEADER: str(tried)}


class Tools:
    """The tools server of a test, with room for one held call, and calls to it that are under way."""

    def __init__(self, fleet: Fleet, nursery: trio.Nursery) -> None:
        self.fleet = fleet
        self.callers = Callers(fleet, nursery)
        self.server: Any = None

    async def start(self, *, max_held: int = 1, **options: Any) -> None:
        app: Any = counter_resources(self.fleet.config(max_held=max_held), self.fleet.seams("tools"), **options)
        self.server = app.server
        await self.fleet.start("tools", app)

    async def call(self, operation_id: str, tried: int, path: str = f"{R1}/increment", by: int = 1) -> httpx.Response:
        return await self.fleet.post("tools", path, {"by": by}, headers=counted(operation_id, tried))

    def begin(self, name: str, operation_id: str, tried: int) -> None:
        """An increment by 1 is under way; its reply is called `name`."""
        self.callers.post(name, "tools", f"{R1}/increment", {"by": 1}, headers=counted(operation_id, tried))

    async def close(self, *, full: bool = True) -> None:
        """The server is closed; `full`: and holds all that it can, seeds called `held`."""
        await self.fleet.control("tools", "prepare", within_s=1)
        if full:
            for number in range(self.server.settings.max_held):
                self.callers.post("held", "tools", f"/ng-rollout/held{number}/seed_session")
            await settle()

    async def open(self) -> None:
        assert (await self.fleet.control("tools", "resume")).status_code == 200
        await settle()

    @property
    def replies(self) -> dict[str, httpx.Response]:
        return self.callers.replies


def with_tools(test: Any, **options: Any) -> None:
    """Runs `test(tools)`: r1 is seeded, nothing else has happened."""

    async def main(fleet: Fleet) -> None:
        async with trio.open_nursery() as nursery:
            tools = Tools(fleet, nursery)
            await tools.start(**options)
            assert (await tools.call("seed", 1, f"{R1}/seed_session")).status_code == 200
            await test(tools)

    run(main)


def refused(reply: httpx.Response) -> tuple[str, int]:
    """The code of a refusal, and up to which sending it is final (0 for one that is not)."""
    return reply.json()["error"]["code"], int(reply.headers.get(REFUSED_HEADER, 0))


# --- the rule


@pytest.mark.parametrize(
    ("is_open", "applied", "inside", "becomes"),
    [
        (True, False, False, Fate.ENTER),
        (True, True, True, Fate.ENTER),
        (False, True, False, Fate.ANSWER),
        (False, True, True, Fate.ANSWER),
        (False, False, True, Fate.WAIT),
        (False, False, False, Fate.ENTER),
    ],
)
def test_what_becomes_of_a_sending(*, is_open: bool, applied: bool, inside: bool, becomes: Fate) -> None:
    """Closed, what was applied is answered and what runs is waited for; all else goes to the gate. Covers: I92, S61."""
    assert fate(is_open=is_open, applied=applied, inside=inside) is becomes


@pytest.mark.parametrize("text", ["", "0", "01", "-1", "+1", "1.0", "1 ", "one", "٣", str(MAX_TRY + 1), "9" * 5000])
def test_a_try_that_is_no_number_of_a_sending(text: str) -> None:
    """Only plain numbers from 1 to the greatest one are, and a long text is not repeated whole."""
    with pytest.raises(ValueError, match="from 1 to 999999999") as caught:
        tried_from(text)
    assert len(str(caught.value)) < 120


def test_the_least_and_the_greatest_try() -> None:
    assert (tried_from("1"), tried_from(str(MAX_TRY))) == (1, MAX_TRY)


sendings = st.builds(
    Sending,
    st.sampled_from([None, ONE, NEXT, EpisodeId("r2")]),
    st.sampled_from(["a", "b", "c"]),
    st.integers(1, 4),
)


@given(st.lists(sendings, max_size=30), st.integers(1, 4), sendings)
def test_a_refusal_is_final_in_bounded_memory(refusals: list[Sending], limit: int, asked: Sending) -> None:
    """Whatever is remembered of them: a refused sending, and each before it, is never accepted again, and a caller
    that counts on is. Covers: I75, I92, S61.
    """
    kept = Refusals(limit)
    for sending in refusals:
        assert kept.refuse(sending) >= sending.tried
        assert len(kept) <= limit
    for sending in refusals:
        for tried in range(1, sending.tried + 1):
            with pytest.raises(Refused, match="admission_closed"):
                kept.check(Sending(sending.owner, sending.operation_id, tried))
    kept.check(Sending(asked.owner, asked.operation_id, kept.highest(asked) + 1))


def test_what_is_done_or_over_is_forgotten() -> None:
    """A call that has its reply, and an attempt that is fenced, need no refusals; others keep theirs. Covers: I75."""
    kept = Refusals(9)
    calls = [Sending(owner, name, 2) for owner in (ONE, NEXT, EpisodeId("r2"), None) for name in ("a", "b")]
    for sending in calls:
        kept.refuse(sending)
    kept.done(NEXT, "a")
    kept.done(None, "b")
    kept.done(NEXT, "never refused")
    kept.over(ONE)
    kept.over(EpisodeId("r3"))
    left = [sending for sending in calls if kept.highest(sending)]
    assert [(sending.owner, sending.operation_id) for sending in left] == [
        (NEXT, "b"),
        (EpisodeId("r2"), "a"),
        (EpisodeId("r2"), "b"),
        (None, "a"),
    ]
    assert len(kept) == 4
    kept.over(NEXT)
    kept.over(EpisodeId("r2", 3))
    kept.done(None, "a")
    assert (len(kept), kept.floor) == (0, 0)


# --- at a server


def test_a_server_that_was_never_open_refuses_for_good_as_well() -> None:
    """Closed since its start, it refuses who names a rollout; what it refused stays refused. Covers: I92, S61."""

    async def main(fleet: Fleet) -> None:
        config = fleet.config(epoch=3, epoch_required=True)
        await fleet.start("tools", counter_resources(config, fleet.seams("tools")))
        seed = f"{R1}/seed_session"
        assert refused(await fleet.post("tools", seed, headers=counted("seed", 2))) == ("admission_closed", 2)
        assert refused(await fleet.post("tools", seed, headers={OPERATION_HEADER: "seed"})) == ("admission_closed", 0)
        await fleet.control("tools", "resume", "ck-000003-000001", headers={EPOCH_HEADER: "3"})
        assert refused(await fleet.post("tools", seed, headers=counted("seed", 1))) == ("admission_closed", 2)
        assert (await fleet.post("tools", seed, headers=counted("seed", 3))).status_code == 200

    run(main)


def test_what_was_applied_is_answered_while_the_server_is_closed() -> None:
    """The same tool call, seed, and close sent again get the replies that they had, at once, and nothing changes.

    Covers: I92, S61.
    """

    async def test(tools: Tools) -> None:
        first = await tools.call("op", 1, by=5)
        await tools.call("seed-r3", 1, "/ng-rollout/r3/seed_session")
        await tools.call("close", 1, "/ng-rollout/r3/close_session")
        await tools.close()
        again = await tools.call("op", 2, by=99)
        assert (again.json(), again.headers[REVISION_HEADER]) == (first.json(), "1") == ({"value": 5}, "1")
        seeded = await tools.call("seed", 2, f"{R1}/seed_session")
        assert (seeded.status_code, seeded.headers[REVISION_HEADER]) == (200, "1")
        assert (await tools.call("close", 2, "/ng-rollout/r3/close_session")).json() == {}
        assert tools.server.report().counts == {"inflight": 0, "sessions": 1}
        await tools.open()

    with_tools(test)


def test_a_verdict_is_given_again_while_the_server_is_closed() -> None:
    """A verification that ended its session is answered from its record. Covers: I92, S61."""

    async def test(tools: Tools) -> None:
        await tools.call("op", 1, by=4)
        await tools.call("verify", 1, f"{R1}/verify")
        await tools.close()
        assert (await tools.call("verify", 2, f"{R1}/verify")).json() == {"reward": 4}
        await tools.open()

    with_tools(test, verify=Verify.WAIT)


def test_a_refusal_counts_for_all_sendings_before_it() -> None:
    """The first sending is late, the second is refused: the first is never applied, the third is. Covers: I92, S61."""

    async def test(tools: Tools) -> None:
        await tools.close()
        assert refused(await tools.call("op", 2)) == ("too_many_held", 2)
        assert refused(await tools.call("op", 1)) == ("admission_closed", 2)
        await tools.open()
        assert refused(await tools.call("op", 1)) == ("admission_closed", 2)
        assert refused(await tools.call("op", 2)) == ("admission_closed", 2)
        applied = await tools.call("op", 3)
        assert (applied.json(), applied.headers[REVISION_HEADER]) == ({"value": 1}, "1")
        assert (await tools.call("op", 1)).json() == {"value": 1}, "it has its record now"
        assert len(tools.server.refusals) == 0

    with_tools(test)


def test_an_earlier_sending_that_is_held_is_refused_when_the_server_opens() -> None:
    """It came before the one that was refused, and is not applied behind the back of its caller. Covers: I92, S61."""

    async def test(tools: Tools) -> None:
        await tools.close(full=False)
        tools.begin("first", "op", 1)
        await settle()
        assert refused(await tools.call("op", 2)) == ("too_many_held", 2)
        assert "first" not in tools.replies
        await tools.open()
        assert refused(tools.replies["first"]) == ("admission_closed", 2)
        assert (await tools.call("op", 3)).headers[REVISION_HEADER] == "1"

    with_tools(test)


def slow(entered: trio.Event, go_on: trio.Event, *, fails: bool = False) -> Any:
    async def before() -> None:
        entered.set()
        await go_on.wait()
        if fails:
            raise RuntimeError("the tool broke")

    return before


def test_a_call_that_runs_is_waited_for_and_not_refused() -> None:
    """An earlier sending was admitted: the later one gets its reply, however full the server is. Covers: I92, S61."""
    entered, go_on = trio.Event(), trio.Event()

    async def test(tools: Tools) -> None:
        tools.begin("first", "op", 1)
        await entered.wait()
        await tools.close()
        tools.begin("second", "op", 2)
        await settle()
        assert not {"first", "second"} & set(tools.replies)
        go_on.set()
        await settle()
        assert [tools.replies[name].json() for name in ("first", "second")] == [{"value": 1}] * 2
        assert "held" not in tools.replies, "the server is still closed"
        assert (await tools.fleet.control("tools", "prepare")).json()["phase"] == "prepared"
        await tools.open()

    with_tools(test, before=slow(entered, go_on))


def test_a_call_whose_first_sending_fails_is_refused_after_it() -> None:
    """It was not applied and runs no more: now the later sending is refused, for good. Covers: I92, S61."""
    entered, go_on = trio.Event(), trio.Event()

    async def test(tools: Tools) -> None:
        tools.begin("first", "op", 1)
        await entered.wait()
        await tools.close()
        tools.begin("second", "op", 2)
        go_on.set()
        await settle()
        assert tools.replies["first"].status_code == 500
        assert refused(tools.replies["second"]) == ("too_many_held", 2)
        await tools.open()
        assert [type(error.error).__name__ for error in tools.fleet.network.errors] == ["RuntimeError"]
        tools.fleet.network.errors.clear()

    with_tools(test, before=slow(entered, go_on, fails=True))


def test_a_caller_that_leaves_while_an_earlier_sending_runs() -> None:
    """It gets nothing, and what runs is applied once. Covers: I23."""
    entered, go_on = trio.Event(), trio.Event()

    async def test(tools: Tools) -> None:
        tools.begin("first", "op", 1)
        await entered.wait()
        await tools.close()
        with trio.move_on_after(5):
            await tools.call("op", 2)
        go_on.set()
        await settle()
        assert tools.replies["first"].headers[REVISION_HEADER] == "1"
        await tools.open()
        assert (await tools.call("op", 3)).headers[REVISION_HEADER] == "1"

    with_tools(test, before=slow(entered, go_on))


def test_a_sending_that_waits_is_told_when_its_attempt_is_retired() -> None:
    """What runs is stopped, and whoever waits for it hears that the attempt is over. Covers: I6, I7."""
    entered = trio.Event()

    async def test(tools: Tools) -> None:
        tools.begin("first", "op", 1)
        await entered.wait()
        await tools.close()
        tools.begin("second", "op", 2)
        await settle()
        await tools.open()
        await tools.fleet.control("tools", "retire", "rt", episode_ids=[{"rollout_id": "r1"}])
        await settle()
        assert [refused(tools.replies[name]) for name in ("first", "second")] == [("stale_attempt", 0)] * 2

    with_tools(test, before=slow(entered, trio.Event()))


@pytest.mark.parametrize("mode", [Mode.EXPORT_RESTORE, Mode.DRAIN_ONLY])
def test_a_record_that_is_asked_for_elsewhere_changes_nothing(mode: Mode) -> None:
    """What a closed server lets through for its record finds none on another route, and does nothing. Covers: I24."""

    async def test(tools: Tools) -> None:
        await tools.call("op", 1, by=3)
        await tools.close()
        verdict = await tools.call("op", 2, f"{R1}/verify")
        assert verdict.json()["error"]["code"] == "admission_closed"
        assert (await tools.call("op", 2, f"{R1}/seed_session")).status_code == 409
        await tools.open()
        assert (await tools.call("other", 1)).json() == {"value": 4}

    with_tools(test, verify=Verify.WAIT, mode=mode)


@pytest.mark.parametrize("text", ["0", "two", "1000000000", "-1", "1.5"])
def test_a_try_that_says_nothing_is_a_fault_of_the_request(text: str) -> None:
    """422 with the header's name and what it must be; nothing was done."""

    async def test(tools: Tools) -> None:
        headers = counted("op", 1) | {TRY_HEADER: text}
        reply = await tools.fleet.post("tools", f"{R1}/increment", {"by": 1}, headers=headers)
        assert reply.status_code == 422
        (fault,) = reply.json()["detail"]
        assert (fault["type"], fault["loc"]) == ("int_parsing", ["header", TRY_HEADER])
        assert fault["msg"] == f"a try is a plain number from 1 to {MAX_TRY}, not {text!r}"
        assert (await tools.call("op", 1)).json() == {"value": 1}

    with_tools(test)


def test_a_try_without_an_operation_is_a_fault_of_the_request() -> None:
    """There is nothing that it would be a sending of."""

    async def test(tools: Tools) -> None:
        for more in ({}, {OPERATION_HEADER: ""}):
            reply = await tools.fleet.post("tools", f"{R1}/increment", {"by": 1}, headers={TRY_HEADER: "1"} | more)
            (fault,) = reply.json()["detail"]
            assert (reply.status_code, fault["type"], fault["loc"]) == (422, "missing", ["header", OPERATION_HEADER])

    with_tools(test)


def test_a_caller_that_does_not_count_is_served_as_before() -> None:
    """Without a try a call is held even if it was applied, and a refusal says nothing of other sendings."""

    async def test(tools: Tools) -> None:
        headers = {OPERATION_HEADER: "op"}
        path = f"{R1}/increment"
        assert (await tools.fleet.post("tools", path, {"by": 2}, headers=headers)).json() == {"value": 2}
        await tools.close(full=False)
        tools.callers.post("again", "tools", path, {"by": 2}, headers=headers)
        await settle()
        assert "again" not in tools.replies
        assert refused(await tools.fleet.post("tools", path, {"by": 2}, headers=headers)) == ("too_many_held", 0)
        await tools.open()
        assert tools.replies["again"].json() == {"value": 2}
        assert len(tools.server.refusals) == 0

    with_tools(test)


def test_refusals_are_bounded_and_nobody_is_locked_out() -> None:
    """More calls than are remembered were refused: all stay refused, and each is accepted when its caller counts on.

    Covers: I75, I92.
    """

    async def test(tools: Tools) -> None:
        await tools.close()
        names = [f"op-{number}" for number in range(5)]
        for name in names:
            assert refused(await tools.call(name, 1))[1] == 1
        assert (len(tools.server.refusals), tools.server.refusals.floor) == (1, 1)
        await tools.open()
        for name in (*names, "another"):
            assert refused(await tools.call(name, 1)) == ("admission_closed", 1)
        values = [(await tools.call(name, 2)).json()["value"] for name in names]
        assert values == [1, 2, 3, 4, 5]

    with_tools(test)


def test_a_seed_that_comes_after_its_session_was_closed_makes_none() -> None:
    """A late sending of it is told that the session is gone; a seed of its own is another matter. Covers: S60."""

    async def test(tools: Tools) -> None:
        assert (await tools.call("close", 1, f"{R1}/close_session")).json() == {}
        assert refused(await tools.call("seed", 1, f"{R1}/seed_session")) == ("session_lost", 0)
        assert tools.server.report().counts["sessions"] == 0
        assert (await tools.call("close", 2, f"{R1}/close_session")).json() == {}
        assert (await tools.call("another", 1, f"{R1}/seed_session")).status_code == 200

    with_tools(test)


def test_closed_sessions_are_remembered_in_bounded_memory() -> None:
    """The last ones are. Covers: I75."""
    book: SessionBook[None] = SessionBook()
    for number in range(CLOSES_KEPT):
        session = Session(f"s{number}", EpisodeId(f"r{number}"), None, RESOURCE_SESSION.start())
        session.seeded = Operation("seed", "{}")
        book.note_closed(session, "close")
    last, first_kept, last_gone = CLOSES_KEPT - 1, CLOSES_KEPT // 2, CLOSES_KEPT // 2 - 1
    for number, kept in ((last, True), (first_kept, True), (last_gone, False), (0, False)):
        assert {book.has_closed(EpisodeId(f"r{number}"), name) for name in ("seed", "close")} == {kept}


def test_a_session_that_is_over_leaves_no_refusals() -> None:
    """Closed, retired, or passed by the next attempt: what was refused of it is forgotten. Covers: I75."""

    async def test(tools: Tools) -> None:
        for rollout in ("r3", "r4", "r5"):
            await tools.call("seed", 1, f"/ng-rollout/{rollout}/seed_session")
        await tools.close()
        for rollout in ("r3", "r4", "r5"):
            assert refused(await tools.call("op", 1, f"/ng-rollout/{rollout}/increment")) == ("too_many_held", 1)
        assert len(tools.server.refusals) == 3
        await tools.open()
        await tools.call("close", 1, "/ng-rollout/r3/close_session")
        assert len(tools.server.refusals) == 2
        await tools.fleet.control("tools", "retire", "rt", episode_ids=[{"rollout_id": "r4"}])
        assert len(tools.server.refusals) == 1
        await tools.call("seed", 1, "/ng-rollout/r5-a1/seed_session")
        assert len(tools.server.refusals) == 0

    with_tools(test, max_held=3)


def test_a_server_without_sessions_refuses_for_good_as_well() -> None:
    """Nothing that it answers changes anything, so that is kept until the call was served. Covers: I75, I92."""

    async def test(tools: Tools) -> None:
        await tools.close()
        assert refused(await tools.call("seed", 2, f"{R1}/seed_session")) == ("too_many_held", 2)
        await tools.open()
        assert refused(await tools.call("seed", 1, f"{R1}/seed_session")) == ("admission_closed", 2)
        assert len(tools.server.refusals) == 1
        assert (await tools.call("seed", 3, f"{R1}/seed_session")).status_code == 200
        assert len(tools.server.refusals) == 0

    with_tools(test, mode=Mode.STATELESS, codec=None)
