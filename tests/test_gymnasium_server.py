"""The Gymnasium resources server: its routes, and that an exported session goes on as the undisturbed one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from participants.gymnasium.codec import SUPPORTED, GymnasiumSession
from participants.gymnasium.play import Play, PlayCodec
from participants.gymnasium.server import Applied, blackjack, frozen_lake, gymnasium_resources, taxi
from participants.gymnasium.text import ACTIONS, actions, describe, family
from participants.identity import OPERATION_HEADER, REVISION_HEADER, VERIFY_HEADER
from participants.net.http import ASGIApp
from participants.servers.codecs import CodecError, check_codec
from participants.servers.resources import Verify
from participants.settings import Settings
from statecore.seams import SeededEntropy
from tests.served_kinds import Fleet, run
from tests.small_job import ROOT

GAMES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Taxi-v4", {"is_rainy": True, "fickle_passenger": True}),
    ("FrozenLake-v1", {}),
    ("FrozenLake8x8-v1", {}),
    ("Blackjack-v1", {"natural": True}),
)
R1 = "/ng-rollout/r1"
R1_AGAIN = "/ng-rollout/r1-a1"


async def started(fleet: Fleet, env_id: str | None = None, **options: Any) -> None:
    await fleet.start("game", gymnasium_resources("game", fleet.config(), env_id, seams=fleet.seams("game"), **options))


async def ask(fleet: Fleet, path: str, body: Any = None, **options: Any) -> Any:
    """The reply's JSON; the call must have succeeded."""
    reply = await fleet.post("game", path, body, **options)
    assert reply.status_code == 200, (path, reply.text)
    return reply.json()


async def play_on(fleet: Fleet, prefix: str, seen: Any, dice: SeededEntropy, steps: int) -> list[Any]:
    """So many steps with seeded actions, a reset after each episode; everything that the server said."""
    said = []
    for _ in range(steps):
        if not seen["actions"]:
            seen = await ask(fleet, f"{prefix}/reset")
            said.append(seen)
        choices = sorted(seen["actions"].values())
        seen = await ask(fleet, f"{prefix}/step", {"action": choices[int(dice.random() * len(choices))]})
        said.append(seen)
    said.append(await ask(fleet, f"{prefix}/verify", {"export": True}))
    return said


@pytest.mark.parametrize(("env_id", "options"), GAMES, ids=[env_id for env_id, _ in GAMES])
def test_a_restored_session_goes_on_as_the_undisturbed_one(env_id: str, options: dict[str, Any]) -> None:
    """After commit, kill and restore the same actions give the same observations, rewards, resets and state.

    Covers: S11.
    """

    async def test(fleet: Fleet) -> None:
        await started(fleet, env_id)
        seeded = await ask(fleet, f"{R1}/seed_session", {"seed": 7, "options": options})
        before = await play_on(fleet, R1, seeded, SeededEntropy("before"), 9)
        assert (await fleet.control("game", "prepare")).json()["phase"] == "prepared"
        fleet.disk.mkdir(ROOT / "c1")
        scope = [{"rollout_id": "r1", "attempt": 0}]
        committed = await fleet.control("game", "commit", checkpoint_dir=str(ROOT / "c1"), episode_ids=scope)
        assert committed.status_code == 200, committed.text
        assert (await fleet.control("game", "resume")).status_code == 200
        undisturbed = await play_on(fleet, R1, before[-1], SeededEntropy("after"), 60)

        fleet.network.kill("game")
        await started(fleet, env_id)
        restored = await fleet.control("game", "restore", "c2", checkpoint_dir=str(ROOT / "c1"), episode_ids=scope)
        assert restored.status_code == 200, restored.text
        assert (await fleet.control("game", "resume", "c2")).status_code == 200
        assert await ask(fleet, f"{R1_AGAIN}/verify", {"export": True}) == before[-1]
        assert await play_on(fleet, R1_AGAIN, before[-1], SeededEntropy("after"), 60) == undisturbed

    run(test)


def test_the_step_limit_is_carried() -> None:
    """A session restored one step before its limit is truncated by its next step. Covers: S11."""

    async def test(fleet: Fleet) -> None:
        await started(fleet, "Taxi-v4")
        await ask(fleet, f"{R1}/seed_session", {"seed": 1})
        for _ in range(199):
            assert not (await ask(fleet, f"{R1}/step", {"action": 4}))["truncated"]
        await fleet.control("game", "prepare")
        fleet.disk.mkdir(ROOT / "c1")
        scope = [{"rollout_id": "r1", "attempt": 0}]
        await fleet.control("game", "commit", checkpoint_dir=str(ROOT / "c1"), episode_ids=scope)
        fleet.network.kill("game")
        await started(fleet, "Taxi-v4")
        await fleet.control("game", "restore", "c2", checkpoint_dir=str(ROOT / "c1"), episode_ids=scope)
        await fleet.control("game", "resume", "c2")
        last = await ask(fleet, f"{R1_AGAIN}/step", {"action": 4})
        assert last["truncated"]
        assert last["text"].endswith("The step limit is reached.")
        assert last["actions"] == {}

    run(test)


def test_verify_gives_the_reward_of_all_episodes() -> None:
    """The verdict counts every episode since the seed, and may be asked for again; it holds the state if asked to."""

    async def test(fleet: Fleet) -> None:
        await started(fleet, "FrozenLake-v1")
        seeded = await fleet.post("game", f"{R1}/seed_session", {"seed": 3, "options": {"is_slippery": False}})
        assert seeded.headers[VERIFY_HEADER] == "replay"
        assert seeded.json()["text"] == "Row 0, column 0, on the start."
        to_the_goal = [1, 1, 2, 2, 1, 2]
        for episode in range(2):
            if episode:
                await ask(fleet, f"{R1}/reset")
            for action in to_the_goal:
                seen = await ask(fleet, f"{R1}/step", {"action": action})
            assert (seen["reward"], seen["terminated"]) == (1.0, True)
            assert seen["text"] == "Row 3, column 3, on the goal. The episode is over."
        verdicts = [await ask(fleet, f"{R1}/verify") for _ in range(2)]
        assert verdicts[0] == verdicts[1]
        assert [verdicts[0][name] for name in ("reward", "steps", "episodes")] == [2.0, 12, 2]
        assert "state" not in verdicts[0]
        exported = (await ask(fleet, f"{R1}/verify", {"export": True}))["state"]
        assert PlayCodec("FrozenLake-v1").load(exported).reward == 2.0
        await ask(fleet, f"{R1}/close_session")
        gone = await fleet.post("game", f"{R1}/verify")
        assert gone.json()["error"]["code"] == "session_lost"

    run(test)


def test_a_verification_that_waits_ends_the_session() -> None:
    """With Verify.WAIT the session ends with its verdict, and the same verification gets it again."""

    async def test(fleet: Fleet) -> None:
        await started(fleet, "Blackjack-v1", verify=Verify.WAIT)
        await ask(fleet, f"{R1}/seed_session", {"seed": 3})
        same = {"headers": {OPERATION_HEADER: "v"}}
        assert await ask(fleet, f"{R1}/verify", **same) == await ask(fleet, f"{R1}/verify", **same)
        after = await fleet.post("game", f"{R1}/step", {"action": 0})
        assert after.json()["error"]["code"] == "session_lost"

    run(test)


def test_each_applied_change_is_told_once() -> None:
    """A repeated operation is answered alike and told only once, with position, action and the state's digest."""
    told: list[Applied] = []

    async def test(fleet: Fleet) -> None:
        await started(fleet, "Blackjack-v1", on_applied=told.append)
        await ask(fleet, f"{R1}/seed_session", {"seed": 5})
        same = {"headers": {OPERATION_HEADER: "op"}}
        first = await ask(fleet, f"{R1}/step", {"action": 0}, **same)
        assert await ask(fleet, f"{R1}/step", {"action": 0}, **same) == first
        assert first["terminated"]
        await ask(fleet, f"{R1}/reset")

    run(test)
    assert [(each.action, each.position.revision, each.steps) for each in told] == [(0, 1, 1), (None, 2, 1)]
    assert all(each.episode is not None and each.episode.key == "r1" for each in told)
    assert len({each.digest for each in told}) == 2


BAD: list[tuple[str, Any, list[str]]] = [
    ("/step", {"action": 6}, ["body", "action"]),
    ("/step", {"action": "1"}, ["body", "action"]),
    ("/step", {"action": True}, ["body", "action"]),
    ("/step", {}, ["body", "action"]),
    ("/step", {"action": 1, "extra": 1}, ["body", "extra"]),
    ("/step", [1], ["body"]),
    ("/reset", {"seed": -1}, ["body", "seed"]),
    ("/reset", {"seed": "x"}, ["body", "seed"]),
    ("/verify", {"export": 1}, ["body", "export"]),
]


@pytest.mark.parametrize(("path", "body", "loc"), BAD)
def test_a_bad_body_is_refused_and_changes_nothing(path: str, body: Any, loc: list[str]) -> None:
    """A body that does not fit is a 422 naming the place; state, position and generators are the ones before."""

    async def test(fleet: Fleet) -> None:
        await started(fleet, "Taxi-v4")
        await ask(fleet, f"{R1}/seed_session", {"seed": 1})
        before = await fleet.post("game", f"{R1}/verify", {"export": True})
        refused = await fleet.post("game", R1 + path, body)
        assert (refused.status_code, refused.json()["detail"][0]["loc"]) == (422, loc)
        after = await fleet.post("game", f"{R1}/verify", {"export": True})
        assert after.json() == before.json()
        assert after.headers.get(REVISION_HEADER) == before.headers.get(REVISION_HEADER)

    run(test)


@pytest.mark.parametrize(
    ("env_id", "body", "loc"),
    [
        ("Taxi-v4", {}, ["body", "seed"]),
        ("Taxi-v4", {"seed": -1}, ["body", "seed"]),
        ("Taxi-v4", {"seed": 1.0}, ["body", "seed"]),
        ("Taxi-v4", {"seed": 1, "env_id": "Blackjack-v1"}, ["body", "env_id"]),
        ("Taxi-v4", {"seed": 1, "options": {"no_such": 1}}, ["body", "options"]),
        ("Taxi-v4", {"seed": 1, "options": [1]}, ["body", "options"]),
        (None, {"seed": 1}, ["body", "env_id"]),
        (None, {"seed": 1, "env_id": "CartPole-v1"}, ["body", "env_id"]),
    ],
)
def test_a_bad_seed_makes_no_session(env_id: str | None, body: Any, loc: list[str]) -> None:
    """A seed that cannot be used is a 422 naming the place, and the rollout has no session."""

    async def test(fleet: Fleet) -> None:
        await started(fleet, env_id)
        refused = await fleet.post("game", f"{R1}/seed_session", body)
        assert (refused.status_code, refused.json()["detail"][0]["loc"]) == (422, loc), refused.text
        assert (await fleet.status("game"))["report"]["counts"]["sessions"] == 0

    run(test)


def test_a_step_after_the_end_is_refused_by_name() -> None:
    """An episode that is over takes no action; the refusal says so and the revision stays."""

    async def test(fleet: Fleet) -> None:
        await started(fleet, "Blackjack-v1")
        await ask(fleet, f"{R1}/seed_session", {"seed": 3})
        ended = await fleet.post("game", f"{R1}/step", {"action": 0})
        refused = await fleet.post("game", f"{R1}/step", {"action": 0})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "episode_over")
        assert (ended.headers[REVISION_HEADER], ended.json()["terminated"]) == ("1", True)
        assert (await fleet.post("game", f"{R1}/reset")).headers[REVISION_HEADER] == "2"

    run(test)


def test_with_checkpointing_off_it_plays_all_the_same() -> None:
    """Off, a session is found by its cookie, and refusals and bad bodies are answered by name. Covers: I76."""

    async def test(fleet: Fleet) -> None:
        app = gymnasium_resources("game", Settings(), "Blackjack-v1", seams=fleet.seams("game"))
        await fleet.network.start("game", app, lifespan=False)
        seeded = await fleet.post("game", "/seed_session", {"seed": 3})
        assert not [name for name in seeded.headers if name.startswith(("x-nemo", "x-statecore"))]
        cookie = {"headers": {"cookie": seeded.headers["set-cookie"].split(";")[0]}}
        assert (await ask(fleet, "/step", {"action": 0}, **cookie))["terminated"]
        over = await fleet.post("game", "/step", {"action": 0}, **cookie)
        assert (over.status_code, over.json()["error"]["code"]) == (409, "episode_over")
        assert (await fleet.post("game", "/reset", {"seed": "x"}, **cookie)).status_code == 422
        nobody = await fleet.post("game", "/step", {"action": 0})
        assert (nobody.status_code, nobody.json()["error"]["code"]) == (409, "session_lost")
        assert (await ask(fleet, "/verify", **cookie))["steps"] == 1

    run(test)


def test_a_server_of_all_environments_takes_them_side_by_side() -> None:
    """Without an id each seed names its own; identity fields of a body are not the application's."""

    async def test(fleet: Fleet) -> None:
        await started(fleet)
        for number, env_id in enumerate(SUPPORTED):
            body = {"seed": 1, "env_id": env_id, "_ng_rollout_id": f"r{number}", "_ng_attempt_index": 0}
            seen = await ask(fleet, f"/ng-rollout/r{number}/seed_session", body)
            assert seen["env_id"] == env_id
            assert set(seen["actions"]) <= set(ACTIONS[family(env_id)])

    run(test)


@pytest.mark.parametrize("env_id", SUPPORTED)
def test_the_codec_carries_what_was_before_the_reset(env_id: str) -> None:
    """A Play after a reset is carried whole. Covers: S11."""
    play = Play(GymnasiumSession.start(env_id, seed=11))
    play.game.step(1)
    play.reset(None)
    play.game.step(0)
    check_codec(PlayCodec(), play)
    loaded = PlayCodec(env_id).load(PlayCodec(env_id).export(play))
    assert (loaded.episodes, loaded.steps, loaded.reward) == (2, 2, play.reward)
    assert describe(loaded.game) == describe(play.game)
    assert actions(loaded.game) == actions(play.game)


def test_the_codec_refuses_what_is_not_its_own() -> None:
    """Another environment, another class, a field too many or a wrong type is a CodecError with the place."""
    codec = PlayCodec("Taxi-v4")
    play = Play(GymnasiumSession.start("Taxi-v4", seed=1))
    other = PlayCodec().export(Play(GymnasiumSession.start("Blackjack-v1", seed=1)))
    good = codec.export(play)
    bad: list[tuple[Callable[[], Any], str]] = [
        (lambda: codec.load(other), "$.game.env_id"),
        (lambda: codec.export(PlayCodec().load(other)), "$.game.env_id"),
        (lambda: codec.export(play.game), "$"),  # type: ignore[arg-type]
        (lambda: codec.load({**good, "more": 1}), "$.more"),
        (lambda: codec.load({**good, "episodes": 0}), "$.episodes"),
        (lambda: codec.load({**good, "earlier_reward": "1"}), "$.earlier_reward"),
        (lambda: codec.load({**good, "earlier_steps": 1.5}), "$.earlier_steps"),
        (lambda: codec.load({**good, "schema_version": 2}), "$.schema_version"),
        (lambda: codec.load([]), "$"),
    ]
    for call, path in bad:
        with pytest.raises(CodecError) as raised:
            call()
        assert raised.value.path == path


def test_words_for_what_a_player_sees() -> None:
    """Each environment is described in a sentence, with the actions that do something there."""
    taxi_session = GymnasiumSession.start("Taxi-v4", seed=1)
    assert describe(taxi_session).startswith("Taxi at row ")
    assert 0 < len(actions(taxi_session)) < 6
    hand = GymnasiumSession.start("Blackjack-v1", seed=3)
    assert describe(hand).startswith("Your hand is ")
    assert actions(hand) == {"stick": 0, "hit": 1}
    with pytest.raises(ValueError, match="none of Blackjack"):
        family("CartPole-v1")


@pytest.mark.parametrize("factory", [taxi, frozen_lake, blackjack])
def test_the_factories_take_their_settings_from_the_environment(
    factory: Callable[[], ASGIApp], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A launcher's variables are all that they need."""
    monkeypatch.setenv("STATECORE_ENABLED", "true")
    monkeypatch.setenv("STATECORE_ROOT", str(tmp_path))
    monkeypatch.setenv("STATECORE_CONTROL_AUTH_TOKEN", "t")
    assert callable(factory())


def test_an_environment_that_is_not_supported_is_refused_at_once() -> None:
    """A server of an id that cannot be carried does not come up."""

    async def test(fleet: Fleet) -> None:
        make = partial(gymnasium_resources, "game", fleet.config(), "CartPole-v1", seams=fleet.seams("game"))
        with pytest.raises(ValueError, match="none of Blackjack-v1"):
            make()

    run(test)
