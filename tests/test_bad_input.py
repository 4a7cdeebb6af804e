"""Bad input at the border: a clear error, and nothing changed. Every kind of server, every control verb."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from participants.servers.policy_model import PolicyModel
from participants.serving.testing import InMemoryNetwork
from participants.settings import Seams, Settings, SettingsError
from statecore.seams import LoopClock, SeededEntropy, SystemDisk
from tests.served_kinds import AUTH, CONTROL, Fleet, run
from tests.small_job import (
    ROOT,
    TOKEN,
    WALL,
    answer,
    counter_resources,
    counting_agent,
    counting_environment,
    settings,
)

KINDS = ("policy_model", "tools", "simple_agent", "env")
VERBS = ("prepare", "commit", "restore", "resume", "renew", "retire", "forget")


async def started(fleet: Fleet, **changes: Any) -> None:
    """All four kinds, idle."""
    config = fleet.config(*KINDS, **changes)
    policy = PolicyModel("policy_model", config, answer, seams=fleet.seams("policy_model")).app()
    await fleet.start("policy_model", policy)
    await fleet.start("tools", counter_resources(config, fleet.seams("tools")))
    await fleet.start("simple_agent", counting_agent(config, fleet.seams("agent")))
    await fleet.start("env", counting_environment(config, fleet.seams("env")))


async def untouched(fleet: Fleet, before: dict[str, Any]) -> None:
    """No server's status has changed, and nothing was written."""
    for kind in KINDS:
        assert (await fleet.status(kind)) == before[kind]
    assert fleet.disk.listdir(ROOT) == []


async def statuses(fleet: Fleet) -> dict[str, Any]:
    return {kind: await fleet.status(kind) for kind in KINDS}


EXTRAS = {
    "commit": b',"checkpoint_dir":"/job/ck"}',
    "restore": b',"checkpoint_dir":"/job/ck","episode_ids":[]}',
    "retire": b',"episode_ids":[{"rollout_id":"r1"}]}',
    "forget": b',"rollout_ids":["r1"]}',
}


def complete(body: bytes, verb: str) -> bytes:
    """The body with the further fields of its verb, so that its one fault is the one that is tested."""
    return body[:-1] + EXTRAS.get(verb, b"}") if body.endswith(b"}") else body


BODIES: dict[str, tuple[bytes, tuple[Any, ...]]] = {
    "no JSON": (b"{", (1,)),
    "a list": (b"[]", ()),
    "NaN": (b'{"checkpoint_id":"c","deadline_ts":NaN}', ()),
    "no deadline": (b'{"checkpoint_id":"c"}', ("deadline_ts",)),
    "an unknown field": (b'{"checkpoint_id":"c","deadline_ts":1.0,"more":1}', ("more",)),
    "an id with a slash": (b'{"checkpoint_id":"a/b","deadline_ts":1.0}', ("checkpoint_id",)),
    "an empty id": (b'{"checkpoint_id":"","deadline_ts":1.0}', ("checkpoint_id",)),
    "a number as id": (b'{"checkpoint_id":7,"deadline_ts":1.0}', ("checkpoint_id",)),
    "a repeated key": (b'{"checkpoint_id":"c","checkpoint_id":"d","deadline_ts":1.0}', ()),
    "a byte order mark": (b'\xef\xbb\xbf{"checkpoint_id":"c","deadline_ts":1.0}', (0,)),
    "a deadline that is no number": (b'{"checkpoint_id":"c","deadline_ts":"soon"}', ("deadline_ts",)),
    "a deadline years ahead": (b'{"checkpoint_id":"c","deadline_ts":9990000000}', ("deadline_ts",)),
}


@pytest.mark.parametrize("case", BODIES)
def test_a_body_that_does_not_fit_is_422_and_names_the_place(case: str) -> None:
    """Each faulty body is refused by every verb of every kind with its place, and no status changes."""
    body, loc = BODIES[case]

    async def test(fleet: Fleet) -> None:
        await started(fleet)
        before = await statuses(fleet)
        for kind in KINDS:
            for verb in VERBS:
                url = fleet.network.url(kind) + CONTROL + verb
                reply = await fleet.client.post(url, content=complete(body, verb), headers=AUTH)
                assert reply.status_code == 422, (kind, verb, reply.text)
                places = [tuple(each["loc"]) for each in reply.json()["detail"]]
                assert ("body", *loc) in places or (not loc and places), (kind, verb, places)
        await untouched(fleet, before)

    run(test)


@pytest.mark.parametrize("token", [None, "Bearer wrong", "bearer tok", "tok", "Bearer ", "Bearer t\u00f6k"])
def test_no_token_or_a_wrong_one_is_401_whatever_the_body(token: str | None) -> None:
    """Every control route refuses before it reads the body. Covers: I19."""

    async def test(fleet: Fleet) -> None:
        await started(fleet)
        before = await statuses(fleet)
        headers = [] if token is None else [(b"authorization", token.encode("latin-1"))]
        for kind in KINDS:
            base = fleet.network.url(kind)
            for verb in VERBS:
                reply = await fleet.client.post(base + CONTROL + verb, content=b"{", headers=headers)
                assert (reply.status_code, reply.json()["error"]["code"]) == (401, "unauthorized")
            for path in (CONTROL + "status", "/ng-control/v1/capabilities"):
                assert (await fleet.client.get(base + path, headers=headers)).status_code == 401
        await untouched(fleet, before)

    run(test)


@pytest.mark.parametrize("rollout", ["r1-a3", "a/b", "", "-r", "r 1", "r" * 129, "r\u00e9"])
def test_ids_that_are_none_are_refused_in_control_calls(rollout: str) -> None:
    """A rollout id with a slash, an attempt suffix or a wrong character is 422 and retires nothing. Covers: I4."""

    async def test(fleet: Fleet) -> None:
        await started(fleet)
        before = await statuses(fleet)
        for kind in KINDS:
            reply = await fleet.control(kind, "retire", episode_ids=[{"rollout_id": rollout}])
            assert reply.status_code == 422, reply.text
            assert reply.json()["detail"][0]["loc"] == ["body", "episode_ids", 0, "rollout_id"]
        await untouched(fleet, before)

    run(test)


@pytest.mark.parametrize("key", ["bad!id", "a%2Fb", "-r", "r" * 140])
def test_ids_that_are_none_are_refused_in_paths(key: str) -> None:
    """A malformed capture key in a path is 400 invalid_rollout_id on every kind."""

    async def test(fleet: Fleet) -> None:
        await started(fleet)
        paths = {
            "policy_model": "/v1/chat/completions",
            "tools": "/seed_session",
            "simple_agent": "/run",
            "env": "/run",
        }
        for kind, path in paths.items():
            reply = await fleet.post(kind, f"/ng-rollout/{key}{path}")
            assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_rollout_id"), reply.text

    run(test)


def test_identities_that_disagree_are_refused_and_never_rewritten() -> None:
    """Prefix, headers and body must name one execution. Covers: I5."""

    async def test(fleet: Fleet) -> None:
        await started(fleet)
        body = {"episode_id": {"rollout_id": "r1"}, "task": {"turns": 1, "question": "q"}}
        for path, headers in (
            ("/ng-rollout/r2/run", {}),
            ("/ng-rollout/r1-a1/run", {}),
            ("/run", {"x-nemo-gym-rollout-id": "r1", "x-nemo-gym-attempt-index": "4"}),
        ):
            for kind in ("env", "simple_agent"):
                reply = await fleet.post(kind, path, body, headers=headers)
                assert (reply.status_code, reply.json()["error"]["code"]) == (409, "execution_identity_mismatch")
        assert (await fleet.status("env"))["report"]["counts"]["episodes"] == 0

    run(test)


def test_a_body_over_the_limit_is_413() -> None:
    """A body over max_body_bytes is refused, in control calls and in data calls, before anything is done with it."""

    async def test(fleet: Fleet) -> None:
        await started(fleet, max_body_bytes=1000)
        before = await statuses(fleet)
        large: dict[str, Any] = {"checkpoint_id": "c" * 2000, "deadline_ts": WALL + 10}
        for kind in KINDS:
            reply = await fleet.control(kind, "prepare", **large)
            assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")
        data = await fleet.post("tools", "/ng-rollout/r1/seed_session", {"x": "y" * 2000})
        assert (data.status_code, data.json()["error"]["code"]) == (413, "body_too_large")
        await untouched(fleet, before)

    run(test)


@pytest.mark.parametrize("where", ["/elsewhere", "/job/../elsewhere", "../elsewhere", "/job/ck/../../x", "/jobs"])
def test_a_directory_outside_the_root_is_422(where: str) -> None:
    """A participant writes and reads only below the root that its own configuration names."""

    async def test(fleet: Fleet) -> None:
        await started(fleet)
        for kind in KINDS:
            restore = await fleet.control(kind, "restore", "rs", checkpoint_dir=where, episode_ids=[])
            assert (restore.status_code, restore.json()["error"]["code"]) == (422, "invalid_checkpoint_state")
            await fleet.control(kind, "prepare")
            commit = await fleet.control(kind, "commit", checkpoint_dir=where, episode_ids=[])
            assert (commit.status_code, commit.json()["error"]["code"]) == (422, "invalid_checkpoint_state")
            assert (await fleet.status(kind))["phase"] == "prepared"
            await fleet.control(kind, "resume")
        assert fleet.disk.listdir("/") == ["job"]

    run(test)


def test_a_symbolic_link_on_the_way_is_422(tmp_path: Path) -> None:
    """A link below the root that leads out of it is not followed, neither for writing nor for reading."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "link").symlink_to(outside)

    async def main() -> None:
        async with InMemoryNetwork() as network:
            seams = Seams(clock=LoopClock(WALL), disk=SystemDisk(), entropy=SeededEntropy(1))
            await network.start("tools", counter_resources(settings(root=root), seams))
            client = network.client()
            base = {"checkpoint_id": "c1", "deadline_ts": WALL + 60}
            for verb in ("prepare", "commit", "restore"):
                extra = {} if verb == "prepare" else {"checkpoint_dir": str(root / "link" / "ck"), "episode_ids": []}
                body = base | extra | ({"checkpoint_id": "rs"} if verb == "restore" else {})
                reply = await client.post(network.url("tools") + CONTROL + verb, json=body, headers=AUTH)
                if verb == "commit":
                    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "invalid_checkpoint_state")
                    await client.post(network.url("tools") + CONTROL + "resume", json=base, headers=AUTH)
                elif verb == "restore":
                    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "invalid_checkpoint_state")

    trio.run(main, clock=trio.testing.MockClock())
    assert list(outside.iterdir()) == []


def damage(fleet: Fleet, how: str) -> None:
    """Damages the tools' part of the checkpoint in /job/ck."""
    files = fleet.disk._files
    part = "/job/ck/gym/resources/tools/"
    records = next(name for name in files if name.startswith(part + "records-"))
    manifest = part + "manifest.json"
    if how == "wrong digest":
        files[records] += b" "
    elif how == "records missing":
        del files[records]
    elif how == "manifest missing":
        del files[manifest]
    elif how == "other schema":
        value = json.loads(bytes(files[manifest])) | {"schema_version": 99}
        files[manifest] = bytearray(json.dumps(value).encode())
    elif how == "manifest is no JSON":
        files[manifest] = bytearray(b"{")
    elif how == "other instance":
        value = json.loads(bytes(files[manifest])) | {"instance": "other"}
        files[manifest] = bytearray(json.dumps(value).encode())


@pytest.mark.parametrize(
    "how",
    ["wrong digest", "records missing", "manifest missing", "other schema", "manifest is no JSON", "other instance"],
)
def test_damaged_files_are_422_and_nothing_is_restored(how: str) -> None:
    """A restore of a damaged part leaves the server idle, open and empty; it may be tried again. Covers: I51, I52,
    S25.
    """

    async def test(fleet: Fleet) -> None:
        await started(fleet)
        await fleet.post("tools", "/ng-rollout/r1/seed_session")
        await fleet.control("tools", "prepare")
        scope = [{"rollout_id": "r1"}]
        done = await fleet.control("tools", "commit", checkpoint_dir="/job/ck", episode_ids=scope)
        assert done.status_code == 200, done.text
        await fleet.start("tools", counter_resources(fleet.config(), fleet.seams("tools")))
        kept = {name: bytes(content) for name, content in fleet.disk._files.items()}
        damage(fleet, how)
        reply = await fleet.control("tools", "restore", "rs", checkpoint_dir="/job/ck", episode_ids=scope)
        assert (reply.status_code, reply.json()["error"]["code"]) == (422, "invalid_checkpoint_state"), reply.text
        status = await fleet.status("tools")
        assert (status["phase"], status["report"]["counts"]["sessions"]) == ("idle", 0)
        assert (await fleet.post("tools", "/ng-rollout/r9/seed_session")).status_code == 200
        await fleet.post("tools", "/ng-rollout/r9/close_session")
        fleet.disk._files.update({name: bytearray(content) for name, content in kept.items()})
        again = await fleet.control("tools", "restore", "rs", checkpoint_dir="/job/ck", episode_ids=scope)
        assert again.json()["restored"] == ["r1-a1"], again.text

    run(test)


def test_unknown_routes_and_wrong_methods() -> None:
    """An unknown control route is 404, a wrong method 405, and neither needs to be understood."""

    async def test(fleet: Fleet) -> None:
        await started(fleet)
        base = fleet.network.url("env")
        assert (await fleet.client.post(base + CONTROL + "stop", headers=AUTH)).status_code == 404
        assert (await fleet.client.get(base + CONTROL + "prepare", headers=AUTH)).status_code == 405
        assert (await fleet.client.post(base + CONTROL + "status", headers=AUTH)).status_code == 405

    run(test)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"control_auth_token": None}, "NEMO_GYM_CHECKPOINT_CONTROL_TOKEN"),
        ({"root": None}, "checkpoint.root"),
        ({"epoch_required": True, "epoch": None}, "epoch"),
        ({"closed_answer": "refuse"}, "closed_answer"),
        ({"max_held": 0}, "max_held"),
    ],
)
def test_a_configuration_that_cannot_work_refuses_to_start_and_names_the_setting(
    changes: dict[str, Any], named: str
) -> None:
    """A server is not made with checkpointing on and something missing. Covers: S28."""
    values: dict[str, Any] = {"enabled": True, "control_auth_token": TOKEN, "root": ROOT}
    with pytest.raises(SettingsError, match=named):
        Settings(**(values | changes)).checked()


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"enabeld": True}, "enabeld: unknown setting; known are closed_answer"),
        ({"enabled": "yes"}, "enabled must be true or false, not of type str"),
        ({"max_held": 1.5}, "max_held must be an integer, not of type float"),
        ({"lease_grace_seconds": "5"}, "lease_grace_seconds must be a number, not of type str"),
        ({"control_auth_token": 5}, "control_auth_token must be a string, not of type int"),
        ({"servers": {"a": 1}}, "servers must be an object of names and URLs"),
    ],
)
def test_a_configuration_section_with_a_wrong_key_or_type_is_refused(values: dict[str, Any], named: str) -> None:
    """Unknown keys and wrong types are named, not dropped, with what would be right."""
    with pytest.raises(SettingsError, match=named):
        Settings.from_mapping(values)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("STATECORE_MAX_HELD=many", "cannot be read"),
        ("STATECORE_ENABLED=maybe", "write one of true, 1, false, 0"),
        ("STATECORE_SERVERS=[", "cannot be read"),
        ("STATECORE_SERVERS=[]", "checkpoint.servers must be an object"),
    ],
)
def test_an_environment_variable_that_cannot_be_read_is_named(text: str, says: str) -> None:
    """The variable and its value are in the message, or the setting and what it must be."""
    name, _, value = text.partition("=")
    with pytest.raises(SettingsError, match=says):
        Settings.from_env({name: value})
