"""The policy model server's part: what a commit writes, what a restore accepts, and one chain across attempts."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing

from participants.files.snapshots import write_part
from participants.identity import EpisodeId
from participants.settings import Seams
from statecore.seams import MemoryDisk, SeededEntropy
from tests.policy_server import Generator, Policy, assistant, disk, episode, running, user, written

R1 = [episode("r1")]


async def committed(
    policy: Policy, directory: str = "ck", scope: Any = None, checkpoint_id: str = "c1"
) -> dict[str, Any]:
    """The commit reply of a whole checkpoint, the server closed and the checkpoint open."""
    await policy.done("prepare", checkpoint_id)
    return await policy.done(
        "commit", checkpoint_id, checkpoint_dir=directory, episode_ids=R1 if scope is None else scope
    )


def foreign_part(files: MemoryDisk, directory: str, *records: dict[str, Any]) -> None:
    """A part as another make of server writes it."""
    files.mkdir(f"/ckpt/{directory}")
    write_part(
        files, Seams(disk=files).disk.resolve(f"/ckpt/{directory}"),
        kind="model", instance="policy", checkpoint_id="c1", records=records, entropy=SeededEntropy(9),
    )  # fmt: skip


def record(rollout_id: str, rows: list[Any], attempt: int = 0, cuts: Any = ()) -> dict[str, Any]:
    return {"episode_id": episode(rollout_id, attempt), "generation_cuts": list(cuts), "rows": rows}


# --- status and commit


@pytest.mark.trio
async def test_status_of_a_fresh_server() -> None:
    """Kind, counts and the empty list of restored cuts are as recorded (row 2); capabilities say policy."""
    async with running(Generator()) as policy:
        status = await policy.status()
        counts = {"inflight": 0, "held": 0, "cut": 0, "cut_failed": 0, "cut_skipped": 0}
        expected: dict[str, Any] = {
            "kind": "model", "instance": "policy", "phase": "idle", "checkpoint_id": None, "lease_expires_at": None,
            "retired_rollouts": 0, "restored_generation_cuts": [],
        }  # fmt: skip
        assert status == status | expected
        assert (status["report"]["ready"], status["report"]["counts"], status["report"]["restarts"]) == (
            True,
            counts,
            [],
        )
        reply = await policy.client.get(
            f"{policy.url}/ng-control/v1/capabilities", headers={"authorization": "Bearer tok"}
        )
        assert (reply.json()["kind"], reply.json()["instance_role"]) == ("model", "policy")


@pytest.mark.trio
async def test_a_commit_writes_the_executions_in_scope_that_it_knows() -> None:
    """One record for each listed execution with rows; others, unknown ones and nobody's calls are not in the part."""
    files = disk()
    async with running(Generator(), on=files) as policy:
        for key in ("r1", "r1", "r2", "other", None):
            await policy.chat(key, [user("a")])
        reply = await committed(policy, scope=[episode("r2"), episode("r1"), episode("r2", 1), episode("unknown")])
        assert (reply["phase"], reply["episode_ids"], reply["manifest"]["record_count"]) == (
            "committed",
            ["r1", "r2"],
            2,
        )
        assert (reply["staging_keys"], reply["staging_keys_by_episode"]) == ([], {"r1": [], "r2": []})
        records = written(files, "ck")
        assert [list(each) for each in records] == [["episode_id", "generation_cuts", "rows"]] * 2
        assert [each["episode_id"] for each in records] == [episode("r1"), episode("r2")]
        assert records[0]["rows"] == policy.rows("r1") and len(records[0]["rows"]) == 2


@pytest.mark.trio
async def test_an_empty_scope_writes_an_empty_part() -> None:
    """A checkpoint that continues nobody has a part without records."""
    files = disk()
    async with running(Generator(), on=files) as policy:
        await policy.chat("r1", [user("a")])
        reply = await committed(policy, scope=[])
        assert (reply["episode_ids"], reply["staging_keys_by_episode"], written(files, "ck")) == ([], {}, [])


@pytest.mark.trio
async def test_a_commit_names_the_token_rows() -> None:
    """Staging keys come sorted and unique, all of them and by execution; a failed call has none (row 57)."""
    files = disk()
    calls = iter(["b", "a", "a"])

    def staging_key(episode: EpisodeId, call: str) -> str:
        return f"{episode.key}/{next(calls)}"

    async with running(Generator(), on=files, staging_key=staging_key) as policy:
        for key in ("r1", "r1", "r2"):
            await policy.chat(key, [user("a")])
        reply = await committed(policy, scope=[episode("r1"), episode("r2")])
        assert reply["staging_keys"] == ["r1/a", "r1/b", "r2/a"]
        assert reply["staging_keys_by_episode"] == {"r1": ["r1/a", "r1/b"], "r2": ["r2/a"]}


@pytest.mark.trio
async def test_a_commit_needs_its_scope() -> None:
    """A commit without episode_ids is refused in the recorded words and changes nothing: a corrected one is written.

    Recorded rows 99 to 103; there the corrected one was refused until resume.
    """
    files = disk()
    async with running(Generator(), on=files) as policy:
        await policy.chat("r1", [user("a")])
        await policy.done("prepare", "c4")
        bodies: list[dict[str, Any]] = [{}, {"episode_ids": None}]
        for body in bodies:
            reply = await policy.control("commit", "c4", checkpoint_dir="ck4", **body)
            detail = "model commit needs the episode_ids the controller continues from this checkpoint"
            assert (reply.status_code, reply.json()) == (409, {"error": {"code": "checkpoint_error", "detail": detail}})
        assert (await policy.status())["phase"] == "prepared" and files.kind("/ckpt/ck4") is None
        assert (await policy.done("commit", "c4", checkpoint_dir="ck4", episode_ids=R1))["episode_ids"] == ["r1"]


# --- restore


@pytest.mark.trio
async def test_rows_come_back_under_the_next_attempt() -> None:
    """Restored under N+1 as they were, each with the key of its call; the server stays closed (row 127).

    Covers: I54.
    """
    files = disk()
    async with running(Generator(), on=files) as first:
        await first.chat("r1", [user("a")])
        await committed(first)
        rows = first.rows("r1")
    async with running(Generator(), on=files, seed=2) as policy:
        reply = await policy.done("restore", "rst1", checkpoint_dir="ck", episode_ids=[*R1, episode("r2")])
        assert (reply["phase"], reply["source_checkpoint_id"], reply["restored"]) == ("restored", "c1", ["r1-a1"])
        assert await policy.done("restore", "rst1", checkpoint_dir="ck", episode_ids=[episode("r2"), *R1]) == reply
        assert policy.rows("r1-a1") == rows and rows[0]["capture_key"] == "r1"
        assert policy.rows("r1") == []
        await policy.done("resume", "rst1")
        stale = await policy.chat("r1", [])
        assert (stale.status_code, stale.json()["error"]["code"]) == (409, "stale_attempt")
        stale = await policy.chat("r2", [])
        assert stale.status_code == 409, "the scope names it, so its attempt N is over, record or not"
        assert (await policy.status())["retired_rollouts"] == 0


@pytest.mark.trio
async def test_s12_the_chain_is_one_across_attempts() -> None:
    """The first call of N+1 has the last call of N as its parent, whether its caller names it or not. Covers: I59."""
    files = disk()
    async with running(Generator(), on=files) as first:
        await first.chat("r1", [user("a")])
        parent = (await first.chat("r1", [user("a"), assistant("1: a"), user("b")])).headers["x-nemo-gym-model-call-id"]
        await committed(first)
    for named in (False, True):
        async with running(Generator(), on=files, seed=2) as policy:
            await policy.done("restore", "rst1", checkpoint_dir="ck", episode_ids=R1)
            await policy.done("resume", "rst1")
            chat = [user("a"), assistant("1: a"), user("b"), assistant("2: b"), user("c")]
            await policy.chat("r1-a1", chat, **({"x_nemo_gym_parent_call_id": parent} if named else {}))
            assert [row["parent_call_id"] for row in policy.rows("r1-a1")][2:] == [parent]
            assert [row["capture_key"] for row in policy.rows("r1-a1")] == ["r1", "r1", "r1-a1"]


@pytest.mark.trio
async def test_what_was_restored_and_not_used_is_saved_again() -> None:
    """Rows that nobody has gone on from are in the next checkpoint under N+1, if in scope. Covers: I61, I62."""
    files = disk()
    async with running(Generator(), on=files) as first:
        await first.chat("r1", [user("a")])
        await first.chat("r2", [user("a")])
        await committed(first, scope=[*R1, episode("r2")])
        rows = first.rows("r1")
    for directory in ("ck-2", "ck-3"):
        async with running(Generator(), on=files, seed=2) as policy:
            await policy.done("restore", "rst1", checkpoint_dir="ck", episode_ids=[*R1, episode("r2")])
            await policy.done("resume", "rst1")
            reply = await committed(policy, directory, scope=[episode("r1", 1)])
            assert reply["episode_ids"] == ["r1-a1"]
            assert written(files, directory) == [record("r1", rows, attempt=1)]


@pytest.mark.trio
async def test_a_server_that_has_served_restores_nothing() -> None:
    """One generation served, whoever's, and restore is refused (row 109); admission is open again. Covers: I53."""
    files = disk()
    async with running(Generator(), on=files) as first:
        await first.chat("r1", [user("a")])
        await committed(first)
    async with running(Generator(), on=files) as policy:
        await policy.chat(None, [user("a")])
        reply = await policy.control("restore", "x1", checkpoint_dir="ck", episode_ids=R1)
        detail = "model restore requires a freshly started model server; this one has served calls"
        assert (reply.status_code, reply.json()) == (409, {"error": {"code": "checkpoint_error", "detail": detail}})
        assert (await policy.chat("r1", [user("a")])).status_code == 200


@pytest.mark.trio
async def test_a_held_generation_is_not_a_served_one(autojump_clock: trio.testing.MockClock) -> None:
    """What waits for a server that was born closed does not keep it from being restored."""
    files = disk()
    async with running(Generator(), on=files, epoch=1, epoch_required=True) as policy, trio.open_nursery() as nursery:
        foreign_part(files, "ck", record("r1", [{"model_call_id": "m1"}]))
        nursery.start_soon(policy.chat, None, [user("a")])
        await trio.sleep(1)
        await policy.done("restore", "rs-000001-000001", checkpoint_dir="ck", episode_ids=R1, epoch=1)
        await policy.done("resume", "rs-000001-000001", epoch=1)


@pytest.mark.trio
async def test_rows_of_another_make_come_back_as_they_were() -> None:
    """Unknown fields stay, a missing capture key is the source's, a generation cut is dropped: its call runs again."""
    files = disk()
    cut = {"model_call_id": "m3", "request_digest": "0" * 64, "continuation": {"schema_version": 2}}
    rows: list[dict[str, Any]] = [
        {"model_call_id": "m1", "staging_key": "r1/m1", "capture_key": "older", "prev_len": 7},
        {"model_call_id": "m2", "failure_reason": "timeout", "conversation": "not ours"},
    ]
    foreign_part(files, "ck", record("r1", rows, cuts=[cut]), record("r2", []))
    async with running(Generator(), on=files) as policy:
        reply = await policy.done("restore", "rst1", checkpoint_dir="ck", episode_ids=[*R1, episode("r2")])
        assert reply["restored"] == ["r1-a1", "r2-a1"]
        restored = policy.rows("r1-a1")
        for before, after in zip(rows, restored, strict=True):
            assert after == {"capture_key": "r1", "parent_call_id": None, "request_digest": None} | before
        assert (await policy.status())["restored_generation_cuts"] == []
        await policy.done("resume", "rst1")
        reply = await committed(policy, "ck-2", scope=[episode("r1", 1), episode("r2", 1)])
        assert reply["staging_keys_by_episode"] == {"r1-a1": ["r1/m1"], "r2-a1": []}
        assert written(files, "ck-2") == [record("r1", restored, attempt=1), record("r2", [], attempt=1)]


@pytest.mark.trio
@pytest.mark.parametrize(
    "rows",
    [
        [["m1"]],
        [{"staging_key": "a"}],
        [{"model_call_id": 1}],
        [{"model_call_id": "m1", "staging_key": 3}],
        [{"model_call_id": "m1", "policy_version": [1]}],
        [{"model_call_id": "m1"}, {"model_call_id": "m1"}],
    ],
)
async def test_a_damaged_row_is_refused_and_nothing_changes(rows: list[Any]) -> None:
    """A row that cannot be one, or a call twice, is 422; the server stays fresh, open, restorable. Covers: I51, I52."""
    files = disk()
    foreign_part(files, "ck", record("r0", [{"model_call_id": "m0"}]), record("r1", rows))
    async with running(Generator(), on=files) as policy:
        reply = await policy.control("restore", "x1", checkpoint_dir="ck", episode_ids=[episode("r0"), *R1])
        assert (reply.status_code, reply.json()["error"]["code"]) == (422, "invalid_checkpoint_state")
        assert len(policy.model.ledger) == 0
        reply2 = await policy.done("restore", "x2", checkpoint_dir="ck", episode_ids=[episode("r0")])
        assert reply2["restored"] == ["r0-a1"]


@pytest.mark.trio
async def test_records_read_back_equal() -> None:
    """What a commit wrote is what the ledger exports after a restore, byte for byte. Covers: I49."""
    files = disk()
    async with running(Generator(), on=files) as first:
        for text in ("ä", "\u2028", "b"):
            await first.chat("r1", [user(text)])
        await committed(first)
        before = written(files, "ck")
    async with running(Generator(), on=files) as policy:
        await policy.done("restore", "rst1", checkpoint_dir="ck", episode_ids=R1)
        await policy.done("resume", "rst1")
        await committed(policy, "ck-2", scope=[episode("r1", 1)])
        after = written(files, "ck-2")
        assert json.dumps(after[0]["rows"]) == json.dumps(before[0]["rows"])
