"""What goes wrong on real Gym servers where nobody looks, and does not go wrong behind the embedded layer.

Each test is one of the ways in which a plain hold corrupts, loses or doubles a rollout of Gym's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from .control import Hands, named, soon
from .job import counter_task, fleet_of, weather_task

SERVERS = ["policy_model", "counter", "counter_agent", "weather", "weather_agent", "weather_env"]
DEADLINE_S = 15  # far more than an episode needs, so that only parked time can use it up


@pytest.fixture(scope="module")
def hands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hands]:
    """One fleet for all of these tests: each leaves it open, and every rollout has a name of its own."""
    limits = {"default_episode_timeout_seconds": DEADLINE_S, "max_concurrent_episodes": 2}
    overrides = {"weather_env": limits}
    with fleet_of(SERVERS, tmp_path_factory.mktemp("traps"), overrides=overrides) as fleet:
        fleet.up()
        with Hands(fleet) as held:
            yield held


def reward(reply: httpx.Response) -> float:
    assert reply.status_code == 200, reply.text
    return float(reply.json()["reward"])


def test_a_tool_call_is_held_and_never_refused(hands: Hands) -> None:
    """A refusal of a tool call would enter the conversation and cost the reward: a closed resources server holds it.

    Covers: I24, I74
    """
    fleet, made = hands.fleet, len(hands.fleet.model_calls())
    with fleet.standing(1):
        run = hands.later("counter_agent", "/run", named(counter_task(), "tool-held"))
        soon(lambda: len(fleet.model_calls()) == made + 2)
        with hands.held("counter"):
            fleet.allow(None)
            time.sleep(1.5)  # its next tool call comes meanwhile
            assert not run.done()
    assert reward(run.result()) == 1.0


def test_a_model_call_of_an_agent_that_knows_nothing_is_held(tmp_path: Path) -> None:
    """A refusal by the model server would fail a plain agent's rollout with a 500: it is held, and the rollout goes on
    when the server opens; so is a tool call of a plain agent, which names its session by the cookie alone.
    """
    names = ["policy_model", "counter", "counter_agent"]
    with fleet_of(names, tmp_path, plain=["counter_agent"]) as fleet:
        fleet.up()
        with Hands(fleet) as hands, fleet.standing(1):
            run = hands.later("counter_agent", "/run", named(counter_task(), "plain"))
            soon(lambda: len(fleet.model_calls()) == 2)
            with hands.held("policy_model"):
                fleet.allow(2)
                time.sleep(1.5)  # the reply comes meanwhile, and is held
                assert not run.done() and len(fleet.model_calls()) == 2
            soon(lambda: len(fleet.model_calls()) == 3)
            with hands.held("counter"):
                fleet.allow(None)
                time.sleep(1.5)  # and now a tool call
                assert not run.done() and len(fleet.model_calls()) == 3
            assert reward(run.result()) == 1.0


def test_a_resources_server_that_was_killed_makes_no_result(hands: Hands) -> None:
    """Gym's agent asks a server that is gone for ever, and then a fresh one without the session, and returns reward 0
    with status 200. Behind ours the rollout has no result.

    Covers: I97
    """
    fleet, made = hands.fleet, len(hands.fleet.model_calls())
    with fleet.standing(1):
        run = hands.later("counter_agent", "/run", named(counter_task(), "killed"))
        soon(lambda: len(fleet.model_calls()) == made + 2)
        fleet.kill("counter")
        fleet.spawn("counter")
        fleet.wait("counter")
    reply = run.result()
    assert reply.status_code in (409, 502), reply.text
    assert reply.json()["error"]["code"] in ("participant_lost", "session_lost")


def test_time_that_is_spent_parked_is_not_the_episodes(hands: Hands) -> None:
    """An episode with a deadline stands for longer than that while its servers are closed, and ends well.

    Covers: I64
    """
    episode = {"episode_id": {"rollout_id": "slow"}, "task": weather_task()}
    fleet, made = hands.fleet, len(hands.fleet.model_calls())
    with fleet.standing(1):
        run = hands.later("weather_env", "/run", episode)
        soon(lambda: len(fleet.model_calls()) == made + 2)
        with hands.held("weather_env", "policy_model", "weather_agent"):
            fleet.allow(None)
            time.sleep(DEADLINE_S + 1)
            assert not run.done()
    assert run.result().json()["result"]["reward"] == 1.0


def test_an_episode_that_waits_for_its_turn_holds_up_no_checkpoint(hands: Hands) -> None:
    """Gym lets so many episodes in at once and the others wait inside; those in front of them stand, so they would wait
    for ever. They count as standing, and have their turn afterwards.
    """
    fleet, made = hands.fleet, len(hands.fleet.model_calls())
    episodes = [{"episode_id": {"rollout_id": f"queued-{index}"}, "task": weather_task()} for index in range(4)]
    with fleet.standing(1):
        runs = [hands.later("weather_env", "/run", each) for each in episodes]
        soon(lambda: hands.status("weather_env")["report"]["counts"]["episodes"] == len(episodes))
        soon(lambda: len(fleet.model_calls()) == made + 4)  # two of them are in
        with hands.held("weather_env", "policy_model", "weather_agent"):
            fleet.allow(None)
            time.sleep(0.5)
            assert not any(run.done() for run in runs)
    assert [run.result().json()["result"]["reward"] for run in runs] == [1.0] * len(runs)


def test_a_deadline_still_ends_an_episode_that_runs_for_too_long(tmp_path: Path) -> None:
    """Gym's own answer to an episode beyond its deadline is given as before: the failure that it calls not terminal."""
    overrides = {"weather_env": {"default_episode_timeout_seconds": 1}}
    with fleet_of(SERVERS[:1] + SERVERS[3:], tmp_path, delay_s=2.0, overrides=overrides) as fleet:
        fleet.up()
        with Hands(fleet) as hands:
            reply = hands.post("weather_env", "/run", {"episode_id": {"rollout_id": "late"}, "task": weather_task()})
            failure = reply.json()["failure"]
            assert (failure["failure_reason"], failure["terminal"]) == ("Episode timed out", False)
            soon(lambda: hands.status("weather_agent")["report"]["counts"]["sessions"] == 0)


def test_several_workers_are_refused(tmp_path: Path) -> None:
    """One hold would reach one worker, and a worker would not be embedded at all: the server does not start."""
    refused = pytest.raises(RuntimeError, match="checkpointing needs one worker, not 2")
    with fleet_of(["counter"], tmp_path, overrides={"counter": {"num_workers": 2}}) as fleet, refused:
        fleet.up()


def test_a_caller_that_leaves_while_it_is_held_was_never_admitted(hands: Hands) -> None:
    """The seed of a caller that has gone makes no session when the server opens.

    Covers: I28
    """
    sessions = hands.status("counter")["report"]["counts"]["sessions"]
    with hands.held("counter"):
        caller = hands.leaving("counter", "/seed_session", {"initial_count": 3}, "gone")
        time.sleep(1.0)
        caller.close()
        time.sleep(2.0)
    time.sleep(0.5)
    assert hands.status("counter")["report"]["counts"]["sessions"] == sessions
    assert hands.post("counter", "/ng-rollout/gone/seed_session", {"initial_count": 3}).status_code == 200


def test_an_agent_that_is_closed_costs_no_episode(hands: Hands) -> None:
    """Gym's environment server makes a terminal failure of an agent's 409: behind ours it asks again until the agent
    is open.
    """
    with hands.held("weather_agent"):
        run = hands.later("weather_env", "/run", {"episode_id": {"rollout_id": "patient"}, "task": weather_task()})
        time.sleep(1.5)
        assert not run.done()
    assert run.result().json()["result"]["reward"] == 1.0


def test_a_run_that_is_turned_away_has_not_begun(hands: Hands) -> None:
    """Gym's collector counts a 409 of `/run` as a rollout that ran and failed. It has not run: nothing was seeded, and
    the same `/run` sent again is the first.

    Covers: I3
    """
    task = named(counter_task(), "turned-away")
    sessions = hands.status("counter")["report"]["counts"]["sessions"]
    with hands.held("counter_agent"):
        reply = hands.post("counter_agent", "/run", task)
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "admission_closed")
        assert hands.status("counter")["report"]["counts"]["sessions"] == sessions
    assert reward(hands.post("counter_agent", "/run", task)) == 1.0


def test_a_session_is_the_rollouts_by_its_prefix_and_by_its_cookie(hands: Hands) -> None:
    """The layer sees the path as it was sent, and Gym's session inside of it: the same session answers to both, a call
    of another rollout with its cookie is refused.

    Covers: I5
    """
    client = hands.at("counter")
    seeded = client.post("/ng-rollout/both/seed_session", json={"initial_count": 5})
    assert seeded.headers["x-nemo-gym-resource-state-revision"] == "0"
    by_cookie = client.post("/increment_counter", json={"count": 1})
    assert by_cookie.headers["x-nemo-gym-resource-state-revision"] == "1"
    by_both = client.post("/ng-rollout/both/get_counter_value", json={})
    assert by_both.json() == {"count": 6}
    strange = client.post("/ng-rollout/other/get_counter_value", json={})
    assert (strange.status_code, strange.json()["error"]["code"]) == (409, "execution_identity_mismatch")


def test_an_operation_that_is_sent_again_is_applied_once(hands: Hands) -> None:
    """A tool call, and a seed, that come twice under one operation id are answered by the recorded reply.

    Covers: I36
    """
    client = hands.at("counter")
    operation = {"x-nemo-gym-operation-id": "op-seed"}
    first = client.post("/ng-rollout/twice/seed_session", json={"initial_count": 0}, headers=operation)
    client.cookies.clear()
    second = client.post("/ng-rollout/twice/seed_session", json={"initial_count": 0}, headers=operation)
    assert first.headers["set-cookie"] == second.headers["set-cookie"]
    for _ in range(2):
        again = client.post("/increment_counter", json={"count": 4}, headers={"x-nemo-gym-operation-id": "op-1"})
        assert again.json() == {"success": True}
    assert client.post("/get_counter_value", json={}).json() == {"count": 4}
