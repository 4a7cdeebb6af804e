"""S7, S16, S22, S25, S26, S38, S45: calls that fail, come late or twice, or of another life. Wrong, then right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import httpx
import pytest
import trio
from attrs import frozen

from participants.files.files import InvalidCheckpointState
from participants.files.snapshots import find_manifest
from participants.identity import EPOCH_HEADER, OPERATION_HEADER, EpisodeId
from participants.machines.control import is_data_of_other_life
from participants.net.http import Incoming
from participants.servers import resources
from participants.servers.admission import Activity
from participants.servers.calls import Commit, VerbCall
from participants.servers.part import Json
from participants.servers.resources import Resources
from tests.scenario_fleet import R1, Callers, commit, done, scope, seen, start
from tests.served_kinds import Fleet, settle
from tests.small_job import ROOT, Counter, counter_resources
from tests.whole_job import Turnstile

Tools = type[Resources[Counter]]
R1_A1 = "/ng-rollout/r1-a1"


def outcome(reply: httpx.Response) -> str:
    return "done" if reply.is_success else str(reply.json()["error"]["code"])


# --- S7


class ReadyAnyhow(Resources[Counter]):
    """The fault: a prepare that waited closes the server when all is quiet, whatever has become of its checkpoint."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        assert self.participant is not None
        self.participant._readiness = self._when_quiet  # type: ignore[method-assign]

    async def _when_quiet(self, checkpoint_id: str, deadline_ts: float) -> Json:
        assert self.participant is not None
        while self._inflight:  # noqa: ASYNC110 (in virtual time)
            await trio.sleep(1)
        self.admission.close()
        return {"phase": "prepared", "report": self.participant.report_json()}


async def ended_meanwhile(fleet: Fleet, kind: Tools) -> tuple[str, str]:
    """A prepare waits for a slow tool, its checkpoint is given up, the tool ends: the prepare's answer, a next call."""
    slow = trio.Event()
    await start(fleet, Turnstile(), "tools", tools=partial(counter_resources, kind=kind, before=slow.wait))
    await fleet.post("tools", f"{R1}/seed_session")
    answers: list[Any] = []

    async def prepare() -> None:
        answers.append(await done(fleet.control("tools", "prepare")))

    async with trio.open_nursery() as nursery:
        callers = Callers(fleet, nursery)
        callers.post("slow", "tools", f"{R1}/increment", {"by": 1})
        await settle()
        nursery.start_soon(prepare)
        await settle()
        await done(fleet.control("tools", "resume"))
        slow.set()
        await trio.sleep(60)
        callers.post("next", "tools", f"{R1}/increment", {"by": 1})
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    return answers[0]["phase"], outcome(callers.replies["next"]) if "next" in callers.replies else "held"


def test_s07_prepare_answers_after_its_checkpoint_ended() -> None:
    """S7: a prepare whose checkpoint has ended meanwhile says idle, and the server stays open.

    One that closes when all is quiet closes for a checkpoint that nobody will ever resume. Covers: I14, I20.
    """
    assert seen(ended_meanwhile, ReadyAnyhow) == ("prepared", "held")
    assert seen(ended_meanwhile, Resources) == ("idle", "done")


# --- S16


class NeverForgets(Resources[Counter]):
    """The fault: a mark that was set is kept, also when everybody has been told that it may go."""

    def forget(self, rollout_ids: Sequence[str]) -> None:
        pass


async def kept(fleet: Fleet, kind: Tools) -> list[int]:
    """What the server keeps of rollouts, after 10 and after 30 of them that were played, retired and forgotten."""
    await start(fleet, Turnstile(), "tools", tools=partial(counter_resources, kind=kind))
    counted = []
    for number in range(30):
        name = f"p{number}"
        await fleet.post("tools", f"/ng-rollout/{name}/seed_session")
        await fleet.post("tools", f"/ng-rollout/{name}/increment", {"by": 1})
        episodes = [{"rollout_id": name, "attempt": 0}]
        await done(fleet.control("tools", "retire", f"ck-000001-{number:06}", episode_ids=episodes))
        await done(fleet.control("tools", "forget", f"ck-000001-{number:06}", rollout_ids=[name]))
        if number in (9, 29):
            status = await fleet.status("tools")
            counted.append(
                status["retired_rollouts"] + status["retired_sessions"] + status["report"]["counts"]["sessions"]
            )
    return counted


def test_s16_memory_grows_with_history() -> None:
    """S16: what was played, retired and forgotten has left nothing, however many there were.

    Marks that are never dropped grow with all that was ever played. Covers: I75.
    """
    ten, thirty = seen(kept, NeverForgets)
    assert 10 <= ten < 30 <= thirty
    assert seen(kept, Resources) == [0, 0]


# --- S22


class CountsForEver(Resources[Counter]):
    """The fault: what was let in is counted out when its session hears of it, and a seed that failed made none."""

    async def admitted(self, request: Incoming, owner: EpisodeId | None = None, **options: Any) -> Activity:
        activity = await super().admitted(request, owner, **options)
        end = activity.end

        def if_there() -> None:
            if self._book.of(owner) is not None:
                end()

        activity.end = if_there  # type: ignore[method-assign]
        return activity


async def after_a_failure(fleet: Fleet, kind: Tools) -> list[str]:
    """A call fails since it has no session, then two checkpoints are tried: how far each prepare gets."""
    await start(fleet, Turnstile(), "tools", tools=partial(counter_resources, kind=kind))
    early = await fleet.post("tools", "/ng-rollout/r9/increment", {"by": 1})
    assert outcome(early) == "session_lost"
    phases = []
    for number in (1, 2):
        prepared = await done(fleet.control("tools", "prepare", f"ck-000001-{number:06}", within_s=60))
        await done(fleet.control("tools", "resume", f"ck-000001-{number:06}"))
        phases.append(prepared["phase"])
    return phases


def test_s22_one_early_failure_poisons_all_later_prepares() -> None:
    """S22: whatever was let in is counted out when it ends, however it ends.

    Counted out by a session that was never made, it keeps every later checkpoint from getting ready. Covers: I18.
    """
    assert seen(after_a_failure, CountsForEver) == ["preparing", "preparing"]
    assert seen(after_a_failure, Resources) == ["prepared", "prepared"]


# --- S25


class ClosedByFailure(Resources[Counter]):
    """The fault: a restore closes the server, and only its success says when it opens."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        assert self.participant is not None
        install = self.participant._install

        async def and_stay(*args: Any) -> Json:
            try:
                return await install(*args)
            except InvalidCheckpointState:
                self.admission.open = lambda: None  # type: ignore[method-assign]
                raise

        self.participant._install = and_stay  # type: ignore[method-assign, assignment]


async def damaged(fleet: Fleet, kind: Tools) -> tuple[str, str]:
    """A restore from a checkpoint that is not there: its answer, and that of a seed an hour later."""
    await start(fleet, Turnstile(), "tools", tools=partial(counter_resources, kind=kind))
    body: Any = {"checkpoint_dir": str(ROOT / "nowhere"), "episode_ids": scope()}
    restored = await fleet.control("tools", "restore", "rs", **body)
    async with trio.open_nursery() as nursery:
        callers = Callers(fleet, nursery)
        callers.post("seed", "tools", "/ng-rollout/r2/seed_session")
        await trio.sleep(3600)
        nursery.cancel_scope.cancel()
    return outcome(restored), outcome(callers.replies["seed"]) if "seed" in callers.replies else "held"


def test_s25_failed_restore_leaves_a_server_closed_for_ever() -> None:
    """S25: a server whose restore failed is as it was before, and open if it was open.

    Where only a restore that succeeds says when it opens, nothing ever does. Covers: I20, I51.
    """
    assert seen(damaged, ClosedByFailure) == ("invalid_checkpoint_state", "held")
    assert seen(damaged, Resources) == ("invalid_checkpoint_state", "done")


# --- S26


class AnswersById(Resources[Counter]):
    """The fault: a commit that was made under an id is the answer to every commit under that id."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        assert self.participant is not None
        perform, answered = self.participant.perform, dict[str, Json]()

        async def by_id(call: VerbCall, **address: Any) -> Json:
            if isinstance(call, Commit) and call.checkpoint_id in answered:
                return answered[call.checkpoint_id]
            reply = await perform(call, **address)
            if isinstance(call, Commit):
                answered[call.checkpoint_id] = reply
            return reply

        self.participant.perform = by_id  # type: ignore[method-assign]


@frozen
class Second:
    """What a second commit was answered, and whether what it asked for is there."""

    answer: str
    there: bool


async def committed_twice(fleet: Fleet, kind: Tools, where: str, episode_ids: list[Any]) -> Second:
    """r1 is committed to `ck`, then the same checkpoint is committed there or elsewhere, with this scope."""
    await start(fleet, Turnstile(), "tools", tools=partial(counter_resources, kind=kind))
    await fleet.post("tools", f"{R1}/seed_session")
    await commit(fleet, "ck", "tools")
    body: Any = {"checkpoint_dir": str(ROOT / where), "episode_ids": episode_ids}
    again = await fleet.control("tools", "commit", **body)
    manifest = find_manifest(fleet.disk, ROOT / where, "resources", "tools")
    return Second(outcome(again), manifest is not None and manifest.record_count == len(episode_ids))


def test_s26_commit_retry_ignores_what_changed_since() -> None:
    """S26: the same commit again is a success; with another directory or another scope it is a conflict.

    Answered by its id alone, a commit elsewhere is a success, and nothing was written there. Covers: I15, I43.
    """
    assert seen(committed_twice, AnswersById, "elsewhere", scope()) == Second("done", there=False)
    assert seen(committed_twice, AnswersById, "ck", []) == Second("done", there=False)
    for where, episode_ids in (("elsewhere", scope()), ("ck", [])):
        refused = Second("checkpoint_conflict", there=False)
        assert seen(committed_twice, Resources, where, episode_ids) == refused
    assert seen(committed_twice, Resources, "ck", scope()) == Second("done", there=True)


# --- S38


def of_its_own(_request: Incoming) -> None:
    """The fault: every sending is a call of its own."""
    return


async def taken_for_dead(fleet: Fleet, operation: Callable[[Incoming], str | None]) -> tuple[list[int], int]:
    """A slow call is sent again while it runs: the values answered, and the count in the end."""
    slow = trio.Event()
    await start(fleet, Turnstile(), "tools", tools=partial(counter_resources, before=slow.wait))
    await fleet.post("tools", f"{R1}/seed_session")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resources, "_operation", operation)
        async with trio.open_nursery() as nursery:
            callers = Callers(fleet, nursery)
            for name in ("first", "again"):
                callers.post(name, "tools", f"{R1}/increment", {"by": 3}, headers={OPERATION_HEADER: "op-1"})
                await settle()
            slow.set()
    count = await fleet.post("tools", f"{R1}/increment", {"by": 0})
    return sorted(each.json()["value"] for each in callers.replies.values()), count.json()["value"]


def test_s38_the_slow_call_that_is_taken_for_dead() -> None:
    """S38: one operation id has one effect: whoever comes second waits for its turn, and gets the first one's reply.

    Where each sending is a call of its own, both finish. Covers: I57.
    """
    assert seen(taken_for_dead, of_its_own) == ([3, 6], 6)
    assert seen(taken_for_dead, resources._operation) == ([3, 3], 3)


# --- S45


def of_no_life(_data: object, _epoch: int | None) -> bool:
    """The fault: an attempt's number is its whole name, in whichever life it was given."""
    return False


async def two_lives(fleet: Fleet, is_of_other_life: Callable[..., bool]) -> tuple[str, int]:
    """One checkpoint is restored in two lives; a late call of the first comes in the second: its answer, the count."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("participants.servers.asgi.is_data_of_other_life", is_of_other_life)
        await start(fleet, Turnstile(), "tools")
        await fleet.post("tools", f"{R1}/seed_session")
        await fleet.post("tools", f"{R1}/increment", {"by": 4})
        await commit(fleet, "ck", "tools")
        for epoch in (2, 3):
            fleet.network.kill("tools")
            config = fleet.config(epoch=epoch, epoch_required=True)
            await fleet.start("tools", counter_resources(config, fleet.seams("tools")))
            life: Any = {"headers": {EPOCH_HEADER: str(epoch)}}
            body: Any = {"checkpoint_dir": str(ROOT / "ck"), "episode_ids": scope()}
            await done(fleet.control("tools", "restore", "rs", **life, **body))
            await done(fleet.control("tools", "resume", "rs", **life))
        late = await fleet.post("tools", f"{R1_A1}/increment", {"by": 100}, headers={EPOCH_HEADER: "2"})
        value = await fleet.post("tools", f"{R1_A1}/increment", {"by": 1}, headers={EPOCH_HEADER: "3"})
    return outcome(late), value.json()["value"]


def test_s45_same_attempt_two_lives() -> None:
    """S45: attempt 1 of one life is not attempt 1 of the next: what the first left over is refused, without effect.

    Told apart by their attempt alone, the dead life's last call is a turn of the living one. Covers: I4, I6.
    """
    assert seen(two_lives, of_no_life) == ("done", 105)
    assert seen(two_lives, is_data_of_other_life) == ("stale_epoch", 5)
