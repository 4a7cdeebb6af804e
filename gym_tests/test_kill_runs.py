"""Kill runs on real Gym servers: what is drawn, that the verdict finds what it is there to find, and ten runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gym_tests import kill_runs
from gym_tests.dealt_blackjack import long_deals
from gym_tests.kill_plan import DEALS, WHENS, Blow, Game, Run, Victim, draw, names, product, rollouts, servers
from gym_tests.kill_verdict import Begun, Log, Taken, accounts, examine, of_results, of_turns
from tests.kill_plan import Start, put

TEN = range(10)


def test_a_number_draws_the_same_run_again() -> None:
    """`--seed 17 --runs 1` does what run 17 of a long series did."""
    assert [draw(seed) for seed in range(50)] == [draw(seed) for seed in range(50)]
    assert len({draw(seed) for seed in range(50)}) == 50


def test_ten_runs_meet_each_environment_each_kind_of_server_and_each_moment() -> None:
    """Turns, every phase of a checkpoint, a restart; all runs together are the product."""
    runs = [draw(seed) for seed in TEN]
    blows = [blow for run in runs for blow in run.blows]
    assert {run.game for run in runs} == set(Game)
    assert {blow.victim for blow in blows} == set(Victim)
    assert {run.when for run in runs} | {blow.when for blow in blows} >= set(WHENS)
    assert any(blow.when in set(Start) for blow in blows)
    every = product()
    assert len(every) == len(set(every)) == (3 * 4 + 5) * len(WHENS)
    drawn = [draw(seed) for seed in range(len(every))]
    assert {(run.game, run.when) for run in drawn} == {(game, when) for game, _, when in every}


def test_only_an_episode_has_an_environment_server_to_hit() -> None:
    """And a restart is hit only after something was, so that there is one."""
    for run in (draw(seed) for seed in range(len(product()))):
        assert all(blow.victim in (*servers(run.game), Victim.ALL) for blow in run.blows)
        assert all(blow.when not in set(Start) for blow in run.blows[:1])


def test_a_life_gets_the_blows_up_to_the_one_that_ends_it() -> None:
    """Servers that die alone leave their coordinator going."""
    victims = (Victim.AGENT, Victim.ALL, Victim.MODEL)
    blows = tuple(Blow(victim=each, when="prepare") for each in victims)
    run = Run(seed=0, game=Game.COUNTER, when="prepare", blows=blows, every_turns=5)
    assert [[blow.victim for blow in life] for life in run.lives] == [[Victim.AGENT, Victim.ALL], [Victim.MODEL]]


def test_tasks_differ_and_their_hands_are_long() -> None:
    """The model's log tells rollouts apart, and a hand of blackjack is not over before it was saved."""
    for game in Game:
        assert sorted(names(game).values()) == sorted(rollouts(game))
    assert set(DEALS) <= set(long_deals(len(DEALS) + 4, 4))


# --- the verdict

NAMES = {"one": "a", "two": "b"}


def log_of(*calls: tuple[str, int]) -> tuple[Log, list[int]]:
    """A log of these calls, and where each line of it begins and the last one ends."""
    lines = [json.dumps({"items": 1, "task": task, "turns": turn}).encode() + b"\n" for task, turn in calls]
    return Log(b"".join(lines), NAMES), [sum(map(len, lines[:n])) for n in range(len(lines) + 1)]


def told(begun: Sequence[Begun], taken: Sequence[Taken], log: Log) -> list[str]:
    return list(of_turns(accounts(begun, {each.checkpoint_id: each for each in taken}, log)))


def test_a_held_turn_that_the_model_is_asked_for_again_is_found() -> None:
    """Of a rollout under way and of one that was over; the turn under way at the checkpoint may run again."""
    log, at = log_of(("one", 0), ("two", 0), ("one", 1), ("one", 1), ("one", 2))
    taken = Taken("ck", 1, at[3], {"a": 1}, frozenset({"b"}))
    begun = [Begun(1, None, 0), Begun(2, "ck", at[3])]
    assert told(begun, [taken], log) == []
    log, at = log_of(("one", 0), ("two", 0), ("one", 1), ("two", 0), ("one", 0))
    assert told(begun, [taken], log) == ["held turns redone by epoch 2: a turn 0, b turn 0"]


def test_a_checkpoint_that_lacks_a_finished_turn_is_found() -> None:
    """Also one that its base had and it has no longer."""
    log, at = log_of(("one", 0), ("one", 1), ("one", 2), ("two", 0))
    first = Taken("first", 1, at[3], {"a": 1}, frozenset())
    assert told([Begun(1, None, 0)], [first], log) == ["first lacks finished turns: a turn 1"]
    first = Taken("first", 1, at[3], {"a": 2}, frozenset())
    second = Taken("second", 2, at[4], {}, frozenset())
    found = told([Begun(1, None, 0), Begun(2, "first", at[3])], [first, second], log)
    assert found == ["second lacks finished turns: a turn 0, a turn 1"]


def test_a_turn_that_is_made_twice_in_one_life_of_the_servers_is_found() -> None:
    """Whether it was held or not."""
    log, _ = log_of(("one", 0), ("one", 0))
    assert told([Begun(1, None, 0)], [], log) == ["turns made twice by epoch 1: a turn 0"]


def ended(**changes: Any) -> dict[str, Any]:
    results = {"a": {"reward": 1.0}, "b": {"result": {"reward": 1.0}}}
    return {"ended": "finished", "published": True, "stories": [], "results": results, "lost": {}} | changes


def test_results_that_are_lost_without_a_reward_or_other_ones_are_found() -> None:
    """And a job whose last checkpoint did not come about."""
    good = ended()
    planned = set(NAMES.values())
    assert list(of_results(good, planned, good["results"])) == []
    assert list(of_results(ended(results={"a": {"reward": 1.0}}), planned, None)) == ["results lost: b"]
    without = {"a": {"reward": 1.0}, "b": {"failure": "no"}}
    assert list(of_results(ended(results=without), planned, None)) == ["ended without a reward: b"]
    other = {**good["results"], "a": {"reward": 0.0}}
    assert list(of_results(good, planned, other)) == ["NOT equal to the undisturbed run: a"]
    assert list(of_results(ended(published=False, stories=["no"]), planned, None)) == [
        "the last checkpoint did not come about: ['no']"
    ]


def test_a_life_that_does_not_come_to_its_end_is_found(tmp_path: Path) -> None:
    """It left nothing behind, or says that it was not started."""
    assert examine(tmp_path, 1, NAMES, None).found == ("the last life did not come to the end of its rollouts",)
    put(tmp_path / "ended-1.json", {"ended": "not started", "why": ["no port"]})
    assert examine(tmp_path, 1, NAMES, None).found == ("the last life ended not started: ['no port']",)


def test_a_wrong_command_line_is_refused() -> None:
    """Before anything is started."""
    for wrong in (["--runs", "-1"], ["--seed", "-1"], ["--at-once", "0"], ["--runs", "many"]):
        with pytest.raises(SystemExit) as refused:
            kill_runs.main(wrong)
        assert refused.value.code == 2


# --- on real servers


def test_ten_runs_on_real_servers(tmp_path: Path) -> None:
    """Rewards and transcripts equal the undisturbed run's, no held turn is redone, nothing is lost or doubled.

    Covers: I54, I61
    """
    came = list(kill_runs.series(TEN.start, len(TEN), tmp_path))
    assert not [each.line() for each in came if each.verdict.found]
    assert sum(each.verdict.held for each in came) > 0
