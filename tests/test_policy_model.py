"""The policy model server's data plane: who is served, who is held, who runs on, what blocks, what retire ends."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import trio
import trio.testing

from participants.identity import EpisodeId
from participants.machines.model_call import CallState, ResponseState
from participants.servers.policy_model import PolicyModel
from participants.settings import Settings
from statecore import DefinitionError
from tests.policy_server import CHAT, Calls, Generator, completion, disk, episode, running, settings, user

RESPONSES = "/v1/responses"
R1 = EpisodeId("r1")


def code(reply: httpx.Response) -> tuple[int, str]:
    """Status and `error.code` of a refusal."""
    return reply.status_code, reply.json()["error"]["code"]


# --- generations and rows


@pytest.mark.trio
async def test_a_call_of_a_rollout_leaves_one_row_whose_id_its_reply_names() -> None:
    """The reply is the upstream's, with the id of a row that names call, execution, conversation and policy version."""
    async with running(Generator()) as policy:
        policy.model.policy_version = (2, 7)
        reply = await policy.chat("r1-a2", [user("hello")])
        assert (reply.status_code, reply.json()) == (200, completion("1: hello"))
        (row,) = policy.rows("r1-a2")
        assert row["model_call_id"] == reply.headers["x-nemo-gym-model-call-id"]
        assert (row["capture_key"], row["parent_call_id"], row["policy_version"]) == ("r1-a2", None, [2, 7])
        assert len(row["request_digest"]) == 64 and "staging_key" not in row and "failure_reason" not in row
        assert reply.headers["x-statecore-incarnation"] == (await policy.status())["incarnation"]


@pytest.mark.trio
async def test_a_call_without_identity_is_served_and_leaves_no_row() -> None:
    """A call that names no rollout is generated, belongs to nobody and is no row (routes.md section 3)."""
    async with running(Generator()) as policy:
        reply = await policy.chat(None, [user("hello")])
        assert reply.status_code == 200
        assert "x-nemo-gym-model-call-id" not in reply.headers
        assert len(policy.model.ledger) == 0


@pytest.mark.trio
@pytest.mark.parametrize("path", [CHAT, RESPONSES, "/v1/messages"])
async def test_all_three_generation_paths_are_gated(path: str, autojump_clock: trio.testing.MockClock) -> None:
    """Each of the three dialects is held while the server is closed."""
    async with running(Generator()) as policy, trio.open_nursery() as nursery:
        await policy.done("prepare")
        calls = Calls(nursery, policy)
        calls.start("one", "r1", path=path)
        await trio.sleep(5)
        assert calls.replies == {}
        await policy.done("resume")
        assert (await calls.reply("one")).status_code == 200


@pytest.mark.trio
async def test_other_paths_are_never_gated() -> None:
    """Tokenizers and probes are served while the server is closed, and leave no row."""

    async def upstream(path: str, body: Any) -> Any:
        return {"path": path}

    async with running(upstream) as policy:
        await policy.done("prepare")
        reply = await policy.client.post(f"{policy.url}/ng-rollout/r1/tokenize", json={"text": "a"})
        assert reply.json() == {"path": "/tokenize"}
        assert (await policy.client.get(f"{policy.url}/healthz")).json() == {"status": "ok"}
        assert len(policy.model.ledger) == 0


@pytest.mark.trio
async def test_s20_callers_without_identity_get_no_refusal() -> None:
    """Probes, docs and generations that name no rollout are served: only what mutates a rollout needs an identity."""
    async with running(Generator()) as policy:
        for path in ("/", "/livez", "/readyz", "/health"):
            assert (await policy.client.get(policy.url + path)).status_code == 200
        assert (await policy.client.get(f"{policy.url}/docs")).status_code == 404
        assert (await policy.chat(None, [user("a")])).status_code == 200


@pytest.mark.trio
async def test_a_malformed_rollout_id_is_refused() -> None:
    """A prefix that is no capture key gets 400 with the recorded text, also while closed (recorded row 47)."""
    async with running(Generator()) as policy:
        await policy.done("prepare")
        reply = await policy.chat("bad!id", [])
        detail = "'bad!id' is not a valid rollout id"
        assert (reply.status_code, reply.json()) == (400, {"error": {"code": "invalid_rollout_id", "detail": detail}})


@pytest.mark.trio
async def test_a_malformed_parent_is_refused_and_generates_nothing() -> None:
    """A parent header that is no call id gets 422 naming the header, before anything is generated."""
    generator = Generator()
    async with running(generator) as policy:
        for parent in ("", "a b", "x" * 129, "-a"):
            reply = await policy.chat("r1", [user("a")], x_nemo_gym_parent_call_id=parent)
            assert reply.status_code == 422
            assert reply.json()["detail"][0]["loc"] == ["header", "x-nemo-gym-parent-call-id"]
        assert generator.calls == []


@pytest.mark.trio
async def test_a_failed_generation_leaves_a_failure_row() -> None:
    """A generation that breaks is a row with its reason, without a staging key; its caller gets the error."""

    async def upstream(path: str, body: Any) -> Any:
        raise LookupError("no weights")

    async with running(upstream, staging_key=lambda episode, call: f"{episode.key}/{call}") as policy:
        reply = await policy.chat("r1", [user("a")])
        assert code(reply) == (500, "upstream_failed")
        assert reply.headers["x-statecore-incarnation"]
        (row,) = policy.rows("r1")
        assert row["failure_reason"] == "HTTP 500" and "staging_key" not in row
        assert row["model_call_id"] == reply.headers["x-nemo-gym-model-call-id"]


@pytest.mark.trio
async def test_what_names_the_token_row_may_fail() -> None:
    """A staging_key callable that raises fails its one call: a failure row, a plain 500; the next one is served."""
    asked: list[str] = []

    def staging_key(episode: EpisodeId, call: str) -> str:
        asked.append(call)
        if len(asked) == 1:
            raise OSError("no store")
        return f"{episode.key}/{call}"

    async with running(Generator(), staging_key=staging_key) as policy:
        assert (await policy.chat("r1", [user("a")])).status_code == 500
        assert (await policy.chat("r1", [user("a")])).status_code == 200
        failed, completed = policy.rows("r1")
        assert failed["failure_reason"] == "OSError: no store"
        assert completed["staging_key"] == f"r1/{completed['model_call_id']}"


def test_a_policy_version_is_a_pair() -> None:
    """A bare step number, or anything but two counts, is no policy version. Covers: S51"""
    model = PolicyModel("policy", Settings(), Generator())
    for wrong in ((1,), (1, -1), (1, 2.0), (True, 1)):
        with pytest.raises(ValueError, match="trainer life, step"):
            model.policy_version = wrong  # type: ignore[assignment]
    model.policy_version = (0, 0)
    assert model.policy_version == (0, 0)
    model.policy_version = None


def test_a_server_is_defined_with_an_upstream_that_can_be_one() -> None:
    """A URL that is none, an object that cannot be called, a key without a URL, and no upstream at all are named."""
    for upstream in ("127.0.0.1:9000", "ftp://host/v1", "http:///v1", 7):
        with pytest.raises(DefinitionError, match="base URL"):
            PolicyModel("policy", Settings(), upstream)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="brings its own key"):
        PolicyModel("policy", Settings(), Generator(), upstream_api_key="k")
    with pytest.raises(DefinitionError, match="give upstream="):
        PolicyModel("policy", settings()).app()


# --- held before admission


@pytest.mark.trio
async def test_a_new_generation_is_held_until_resume(autojump_clock: trio.testing.MockClock) -> None:
    """A generation that arrives while the server is closed waits, however long, and counts as nothing (row 49)."""
    generator = Generator()
    async with running(generator) as policy, trio.open_nursery() as nursery:
        calls = Calls(nursery, policy)
        await policy.done("prepare")
        for number in range(3):
            calls.start(f"call {number}", "r1" if number else None)
        await trio.sleep(600)
        assert calls.replies == {} and generator.calls == []
        assert await policy.counts() == (0, 0)
        await policy.done("resume")
        for number in range(3):
            assert (await calls.reply(f"call {number}")).status_code == 200


@pytest.mark.trio
async def test_a_held_generation_whose_attempt_is_retired_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    """Retire wakes what is held for that attempt, which gets stale_attempt; others go on waiting."""
    files = disk()
    async with running(Generator(), on=files) as first:
        for key in ("r1", "r2"):
            await first.chat(key, [user("a")])
        await first.done("prepare")
        await first.done("commit", checkpoint_dir="ck", episode_ids=[episode("r1"), episode("r2")])
    generator = Generator()
    async with running(generator, on=files) as policy, trio.open_nursery() as nursery:
        await policy.done("restore", checkpoint_dir="ck", episode_ids=[episode("r1"), episode("r2")])
        calls = Calls(nursery, policy)
        for key in ("r1-a1", "r2-a1"):
            calls.start(key, key)
        await trio.sleep(1)
        assert calls.replies == {}
        await policy.done("retire", episode_ids=[episode("r1", 1)])
        assert code(await calls.reply("r1-a1")) == (409, "stale_attempt")
        await trio.sleep(1)
        assert list(calls.replies) == ["r1-a1"] and generator.calls == []
        assert policy.rows("r1-a1") == []
        await policy.done("resume")
        assert (await calls.reply("r2-a1")).status_code == 200


@pytest.mark.trio
async def test_a_caller_that_leaves_while_held_was_never_admitted(autojump_clock: trio.testing.MockClock) -> None:
    """A held generation whose caller leaves is never generated, also not after resume."""
    generator = Generator()
    async with running(generator) as policy:
        await policy.done("prepare")
        with trio.move_on_after(1):
            await policy.chat("r1", [user("gone")])
        await policy.done("resume")
        await trio.sleep(1)
        assert generator.calls == [] and policy.rows("r1") == []


@pytest.mark.trio
async def test_no_more_than_max_held_are_held(autojump_clock: trio.testing.MockClock) -> None:
    """One generation more than max_held gets 503 too_many_held; the held ones are served at resume."""
    async with running(Generator(), max_held=2) as policy, trio.open_nursery() as nursery:
        await policy.done("prepare")
        calls = Calls(nursery, policy)
        calls.start("one", "r1")
        calls.start("two", "r2")
        await trio.sleep(1)
        assert code(await policy.chat("r3", [user("three")])) == (503, "too_many_held")
        await policy.done("resume")
        assert [(await calls.reply(name)).status_code for name in ("one", "two")] == [200, 200]


@pytest.mark.trio
async def test_a_server_born_closed_holds_what_names_nobody(autojump_clock: trio.testing.MockClock) -> None:
    """Until its first resume a server with an epoch refuses calls of rollouts and holds the others."""
    async with running(Generator(), epoch=3, epoch_required=True) as policy, trio.open_nursery() as nursery:
        assert code(await policy.chat("r1", [user("a")])) == (409, "admission_closed")
        calls = Calls(nursery, policy)
        calls.start("untagged", None)
        await trio.sleep(1)
        assert calls.replies == {}
        await policy.done("resume", "rs-000003-000001", epoch=3)
        assert (await calls.reply("untagged")).status_code == 200
        assert (await policy.chat("r1", [user("a")])).status_code == 200
        assert policy.rows("r1")[0]["epoch"] == 3


# --- admitted before the closing


@pytest.mark.trio
async def test_a_generation_does_not_block_and_its_response_is_held(autojump_clock: trio.testing.MockClock) -> None:
    """Prepare is ready while a call generates; its row is there when it ends, its response leaves at resume (row 34).

    Covers: I24, I73.
    """
    generator = Generator()
    async with running(generator) as policy, trio.open_nursery() as nursery:
        calls = Calls(nursery, policy)
        calls.start("hold", "r1")
        await generator.generating(1)
        assert await policy.counts() == (1, 0)
        reply = await policy.done("prepare")
        counts = {"inflight": 1, "held": 1, "cut": 0, "cut_failed": 0, "cut_skipped": 0}
        assert (reply["phase"], reply["report"]["ready"], reply["report"]["counts"]) == ("prepared", True, counts)
        generator.finish()
        await trio.sleep(600)
        assert len(policy.rows("r1")) == 1 and calls.replies == {}
        assert await policy.counts() == (1, 1)
        await policy.done("resume")
        assert (await calls.reply("hold")).json() == completion("1: hold")
        assert await policy.counts() == (0, 0)


@pytest.mark.trio
async def test_every_call_is_before_the_closing_or_after_it(autojump_clock: trio.testing.MockClock) -> None:
    """Each of the calls around a closing is generated once: either it is counted, or it waits for resume.

    Covers: I23.
    """
    generator = Generator()
    async with running(generator) as policy, trio.open_nursery() as nursery:
        calls = Calls(nursery, policy)
        for number in range(8):
            calls.start(f"hold {number}", f"r{number}")
        counts = (await policy.done("prepare"))["report"]["counts"]
        for number in range(8, 12):
            calls.start(f"hold {number}", f"r{number}")
        await trio.sleep(1)
        before = len(generator.calls)
        assert counts["inflight"] == counts["held"] == len(generator.stuck) == before <= 8
        assert await policy.counts() == (before, before)
        await policy.done("resume")
        await generator.generating(12)
        generator.finish()
        for number in range(12):
            assert (await calls.reply(f"hold {number}")).status_code == 200
        assert sorted(body["messages"][0]["content"] for body in generator.calls) == sorted(calls.replies)


@pytest.mark.trio
async def test_each_frozen_call_has_one_disposition(autojump_clock: trio.testing.MockClock) -> None:
    """At commit a call that has ended is in the part, one that has not is left out; its row comes with the opening.

    Covers: I25.
    """
    generator, files = Generator(), disk()
    async with running(generator, on=files) as policy, trio.open_nursery() as nursery:
        calls = Calls(nursery, policy)
        calls.start("hold early", "r1")
        calls.start("hold late", "r2")
        calls.start("hold nobody", None)
        await generator.generating(3)
        await policy.done("prepare")
        assert states(policy.model) == {"r1": CallState.FROZEN, "r2": CallState.FROZEN, "": CallState.FROZEN}
        generator.finish("hold early")
        await trio.sleep(1)
        scope = [episode("r1"), episode("r2")]
        reply = await policy.done("commit", checkpoint_dir="ck", episode_ids=scope)
        assert (reply["episode_ids"], reply["left_out_calls"]) == (["r1"], 2)
        left_out = CallState.EXCLUDED
        assert states(policy.model) == {"r1": CallState.COMPLETED_DURABLE, "r2": left_out, "": left_out}
        generator.finish()
        await trio.sleep(1)
        assert policy.rows("r2") == [] and calls.replies == {}
        assert await policy.done("commit", checkpoint_dir="ck", episode_ids=scope) == reply
        await policy.done("resume")
        late = await calls.reply("hold late")
        assert [row["model_call_id"] for row in policy.rows("r2")] == [late.headers["x-nemo-gym-model-call-id"]]
        for name in ("hold early", "hold nobody"):
            assert (await calls.reply(name)).status_code == 200
        assert policy.model.report().counts["inflight"] == 0


def states(model: PolicyModel) -> dict[str, CallState]:
    """The cut safety of each admitted call, by its execution ("" for nobody's)."""
    return {call.episode.key if call.episode else "": call.cut.state for call in model._calls.values()}


@pytest.mark.trio
async def test_an_aborted_checkpoint_leaves_no_trace_on_calls(autojump_clock: trio.testing.MockClock) -> None:
    """After an abort a call that was frozen, or left out, is as it was before; the next checkpoint freezes it again."""
    generator, files = Generator(), disk()
    async with running(generator, on=files) as policy, trio.open_nursery() as nursery:
        calls = Calls(nursery, policy)
        calls.start("hold", "r1")
        await generator.generating(1)
        for checkpoint_id in ("c1", "c2"):
            await policy.done("prepare", checkpoint_id)
            if checkpoint_id == "c2":
                await policy.done("commit", checkpoint_id, checkpoint_dir="ck", episode_ids=[episode("r1")])
                assert states(policy.model) == {"r1": CallState.EXCLUDED}
            await policy.done("resume", checkpoint_id)
            assert states(policy.model) == {"r1": CallState.ADMITTED}
        generator.finish()
        assert (await calls.reply("hold")).status_code == 200
        assert len(policy.rows("r1")) == 1


@pytest.mark.trio
async def test_a_failure_after_the_cut_is_no_part_of_it(autojump_clock: trio.testing.MockClock) -> None:
    """A left-out call that then fails gets its failure row at the opening, and its caller the error then."""
    started, go_on = trio.Event(), trio.Event()

    async def upstream(path: str, body: Any) -> Any:
        started.set()
        await go_on.wait()
        raise LookupError("no weights")

    async with running(upstream) as policy, trio.open_nursery() as nursery:
        calls = Calls(nursery, policy)
        calls.start("one", "r1")
        await started.wait()
        await policy.done("prepare")
        await policy.done("commit", checkpoint_dir="ck", episode_ids=[episode("r1")])
        go_on.set()
        await trio.sleep(1)
        assert policy.rows("r1") == [] and states(policy.model) == {"r1": CallState.EXCLUDED}
        await policy.done("resume")
        assert code(await calls.reply("one")) == (500, "upstream_failed")
        assert [row["failure_reason"] for row in policy.rows("r1")] == ["HTTP 500"]


@pytest.mark.trio
async def test_a_caller_that_leaves_while_its_response_is_held(autojump_clock: trio.testing.MockClock) -> None:
    """Its row stays, its call is over at once, and nothing is left of it at resume."""
    generator = Generator()
    async with running(generator) as policy, trio.open_nursery() as nursery:
        calls = Calls(nursery, policy)
        calls.start("hold", "r1")
        await generator.generating(1)
        await policy.done("prepare")
        generator.finish()
        await trio.sleep(1)
        assert await policy.counts() == (1, 1)
        calls.leave("hold")
        await trio.sleep(1)
        assert await policy.counts() == (0, 0)
        assert len(policy.rows("r1")) == 1
        await policy.done("resume")
        assert policy.network.errors == []


@pytest.mark.trio
async def test_a_lost_lease_lets_held_responses_out(autojump_clock: trio.testing.MockClock) -> None:
    """When the coordinator goes away, the held response and the held newcomer leave with the lease."""
    generator = Generator()
    async with running(generator, lease_grace_seconds=30.0) as policy, trio.open_nursery() as nursery:
        calls = Calls(nursery, policy)
        calls.start("hold", "r1")
        await generator.generating(1)
        await policy.done("prepare", within_s=10)
        generator.finish()
        calls.start("new", "r1")
        await trio.sleep(35)
        assert calls.replies == {}
        await trio.sleep(10)
        assert {name: reply.status_code for name, reply in calls.replies.items()} == {"hold": 200, "new": 200}


# --- retire


@pytest.mark.trio
async def test_retire_ends_running_calls(autojump_clock: trio.testing.MockClock) -> None:
    """The generation is cancelled, its caller gets stale_attempt, and nothing is kept of the attempt (row 153)."""
    generator = Generator()
    async with running(generator) as policy, trio.open_nursery() as nursery:
        await policy.chat("r1", [user("a")])
        calls = Calls(nursery, policy)
        calls.start("hold", "r1")
        calls.start("hold other", "r2")
        await generator.generating(2)
        reply = await policy.done("retire", "ret1", episode_ids=[episode("r1")])
        assert reply["retired"] == ["r1"]
        assert list(generator.stuck) == ["hold other"]
        detail = {"code": "stale_attempt", "detail": "rollout 'r1' attempt 0 was retired"}
        assert ((await calls.reply("hold")).status_code, calls.replies["hold"].json()["error"]) == (409, detail)
        late = await policy.chat("r1", [])
        assert (late.status_code, late.json()["error"]) == (409, detail)
        assert policy.model.ledger.of(R1) is None
        assert (await policy.status())["retired_rollouts"] == 1
        generator.finish()
        assert (await calls.reply("hold other")).status_code == 200
        assert len(policy.rows("r2")) == 1 and policy.network.errors == []


@pytest.mark.trio
async def test_retire_waits_until_its_calls_have_ended(autojump_clock: trio.testing.MockClock) -> None:
    """When retire is answered nothing of the attempt runs any more, however long its end took."""
    ended: list[float] = []

    async def upstream(path: str, body: Any) -> Any:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(5)
            ended.append(trio.current_time())

    async with running(upstream) as policy, trio.open_nursery() as nursery:
        calls = Calls(nursery, policy)
        calls.start("one", "r1")
        await trio.sleep(1)
        (call,) = policy.model._calls.values()
        await policy.done("retire", "ret1", episode_ids=[episode("r1")])
        assert ended == [trio.current_time()] and policy.model._calls == {}
        assert call.delivery is not None and call.delivery.state is ResponseState.ABANDONED
        assert code(await calls.reply("one")) == (409, "stale_attempt")


@pytest.mark.trio
async def test_retire_covers_earlier_attempts_and_not_later_ones() -> None:
    """The highest attempt named counts, in any order; what is above it goes on."""
    async with running(Generator()) as policy:
        await policy.chat("r1-a1", [user("a")])
        await policy.chat("r2-a3", [user("a")])
        await policy.done("retire", "ret1", episode_ids=[episode("r1", 1), episode("r1"), episode("r2", 2)])
        assert code(await policy.chat("r1", [user("a")])) == (409, "stale_attempt")
        assert code(await policy.chat("r1-a1", [user("a")])) == (409, "stale_attempt")
        assert (await policy.chat("r1-a2", [user("a")])).status_code == 200
        assert (await policy.chat("r2-a3", [user("a")])).status_code == 200
        assert (len(policy.rows("r1-a1")), len(policy.rows("r2-a3"))) == (0, 2)


@pytest.mark.trio
async def test_forget_drops_marks_and_no_rows() -> None:
    """After forget the attempt may act again; rows of an attempt that was not retired stay."""
    async with running(Generator()) as policy:
        await policy.done("retire", "ret1", episode_ids=[episode("r1")])
        await policy.chat("r1-a1", [user("a")])
        assert (await policy.done("forget", "ret1", rollout_ids=["r1"]))["forgotten"] == ["r1"]
        assert len(policy.rows("r1-a1")) == 1
        assert (await policy.chat("r1", [user("a")])).status_code == 200


@pytest.mark.trio
async def test_the_first_call_of_an_attempt_ends_the_earlier_ones(autojump_clock: trio.testing.MockClock) -> None:
    """A newer attempt fences the older: its rows go, its running call ends as stale_attempt and leaves no row."""
    generator = Generator()
    async with running(generator) as policy, trio.open_nursery() as nursery:
        await policy.chat("r1", [user("a")])
        calls = Calls(nursery, policy)
        calls.start("hold", "r1")
        await generator.generating(1)
        assert (await policy.chat("r1-a1", [user("a")])).status_code == 200
        assert code(await policy.chat("r1", [user("a")])) == (409, "stale_attempt")
        generator.finish()
        assert code(await calls.reply("hold")) == (409, "stale_attempt")
        assert policy.model.ledger.of(R1) is None and len(policy.model.ledger) == 1


@pytest.mark.trio
async def test_the_ledger_is_bounded_by_what_is_live() -> None:
    """After many rollouts were served, retired and forgotten, nothing is kept of them. Covers: I75."""
    async with running(Generator()) as policy:
        for number in range(50):
            await policy.chat(f"r{number}", [user("a")])
            await policy.done("retire", f"ret{number}", episode_ids=[episode(f"r{number}")])
            await policy.done("forget", f"ret{number}", rollout_ids=[f"r{number}"])
        assert len(policy.model.ledger) == 0 and policy.model._calls == {}
        assert policy.model.fences.retired == {} and policy.model.fences.passed == {}
