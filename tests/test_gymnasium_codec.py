"""Gymnasium sessions: after a restore each step equals the undisturbed twin's; what cannot be carried is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

from participants.gymnasium.codec import SUPPORTED, GymnasiumCodec, GymnasiumSession, gymnasium_codec
from participants.gymnasium.layers import stack
from participants.servers.codecs import JSON, CodecError, check_codec
from statecore.wire import canonical, exact

ENVIRONMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "taxi": ("Taxi-v4", {}),
    "taxi-fickle-rainy": ("Taxi-v4", {"fickle_passenger": True, "is_rainy": True}),
    "lake-4x4": ("FrozenLake-v1", {}),
    "lake-8x8": ("FrozenLake8x8-v1", {}),
    "lake-dry-short": ("FrozenLake-v1", {"is_slippery": False, "max_episode_steps": 9}),
    "blackjack": ("Blackjack-v1", {}),
    "blackjack-natural": ("Blackjack-v1", {"natural": True, "sab": False}),
}
ROUNDS = 30
STEPS_AFTER = 300

each_environment = pytest.mark.parametrize("which", ENVIRONMENTS)


def start(which: str, seed: int = 0) -> tuple[GymnasiumCodec, GymnasiumSession]:
    env_id, kwargs = ENVIRONMENTS[which]
    return gymnasium_codec(env_id, **kwargs), GymnasiumSession.start(env_id, seed=seed, **kwargs)


def go_on(session: GymnasiumSession, dice: Random, steps: int) -> Iterator[Any]:
    """Steps with random actions, half of them drawn from the space's own generator; resets, some with a seed."""
    for _ in range(steps):
        if session.over or dice.random() < 0.01:
            yield "reset", session.reset(dice.choice([None, None, dice.randrange(2**40)])), session.info
            continue
        drawn = int(session.env.action_space.sample())
        thrown = dice.randrange(int(session.env.action_space.n))  # type: ignore[attr-defined]
        yield session.step(dice.choice([drawn, thrown])), session.total_reward, session.steps
        yield session.env.unwrapped.np_random.bit_generator.state


def a_random_point(which: str, seed: int) -> tuple[GymnasiumCodec, GymnasiumSession]:
    codec, session = start(which, seed)
    session.env.action_space.seed(seed)
    dice = Random(f"{which} {seed} before")
    for _ in go_on(session, dice, dice.randrange(1, 250)):
        pass
    return codec, session


def through_a_file(codec: GymnasiumCodec, session: GymnasiumSession) -> JSON:
    """The export as it comes back from a record: written and read with the standard json."""
    data = codec.export(session)
    exact(data)
    return json.loads(json.dumps(data))


def differs(restored: GymnasiumSession, twin: GymnasiumSession, seed: int) -> bool:
    """Whether the two part within STEPS_AFTER steps, or the restored one cannot even go on."""
    theirs = list(go_on(twin, Random(f"{seed} after"), STEPS_AFTER))
    try:
        ours = list(go_on(restored, Random(f"{seed} after"), STEPS_AFTER))
    except (gymnasium.error.ResetNeeded, TypeError):
        return True
    return ours != theirs


@each_environment
def test_a_restored_session_equals_its_undisturbed_twin(which: str) -> None:
    """30 restores from random points: 300 random steps later all that was seen and all generators are still equal."""
    for seed in range(ROUNDS):
        codec, twin = a_random_point(which, seed)
        restored = codec.load(through_a_file(codec, twin))
        assert restored.env is not twin.env
        assert not differs(restored, twin, seed), f"seed {seed}"
        assert canonical(codec.export(restored)) == canonical(codec.export(twin)), f"seed {seed}"


def without_wrappers(data: JSON) -> None:
    as_made = {"_elapsed_steps": None, "_has_reset": False, "_previous_data": None, "checked_reset": False}
    for layer in data["layers"]:
        layer.update({name: value for name, value in as_made.items() if name in layer})


def without_generator(data: JSON) -> None:
    data["layers"][-1]["_np_random"]["state"]["state"] ^= 2**90


def without_half_word(data: JSON) -> None:
    data["layers"][-1]["_np_random"] |= {"has_uint32": 0, "uinteger": 0}


def without_space_generator(data: JSON) -> None:
    data["layers"][-1]["action_space"]["state"]["state"] ^= 2**90


@pytest.mark.parametrize(
    ("which", "leave_out", "at_least"),
    [
        ("taxi", without_wrappers, 25),
        ("lake-4x4", without_wrappers, 10),
        ("lake-8x8", without_wrappers, 10),
        ("blackjack", without_wrappers, 5),
        ("taxi", without_generator, ROUNDS),
        ("taxi-fickle-rainy", without_generator, ROUNDS),
        ("lake-4x4", without_generator, ROUNDS),
        ("lake-8x8", without_generator, ROUNDS),
        ("blackjack", without_generator, 15),
        ("blackjack", without_half_word, 5),
        ("taxi", without_space_generator, ROUNDS),
        ("blackjack-natural", without_space_generator, ROUNDS),
    ],
)
def test_the_comparison_can_fail(which: str, leave_out: Callable[[JSON], None], at_least: int) -> None:
    """With the wrappers' state, a generator or half a word of it left out, restored sessions part from their twins."""
    parted = 0
    for seed in range(ROUNDS):
        codec, twin = a_random_point(which, seed)
        data = through_a_file(codec, twin)
        leave_out(data)
        parted += differs(codec.load(data), twin, seed)
    assert parted >= at_least


@pytest.mark.parametrize(
    ("env_id", "kwargs", "action", "limit"),
    [
        ("Taxi-v4", {}, 5, 200),
        ("FrozenLake8x8-v1", {"is_slippery": False}, 0, 200),
        ("FrozenLake-v1", {"is_slippery": False}, 0, 100),
        ("FrozenLake-v1", {"is_slippery": False, "max_episode_steps": 3}, 0, 3),
    ],
)
def test_the_step_limit_comes_on_time(env_id: str, kwargs: dict[str, Any], action: int, limit: int) -> None:
    """Restored one step before the limit, the next step truncates the episode; the one before did not."""
    codec = gymnasium_codec(env_id, **kwargs)
    session = GymnasiumSession.start(env_id, seed=5, **kwargs)
    for _ in range(limit - 2):
        session.step(action)
    before = codec.load(through_a_file(codec, session))
    assert not before.step(action).truncated
    restored = codec.load(through_a_file(codec, before))
    assert restored.step(action).truncated
    with pytest.raises(ValueError, match=f"over after {limit} steps"):
        restored.step(action)


@each_environment
def test_the_check_passes_from_start_to_end(which: str) -> None:
    """Export-import-compare holds after the first reset, after every step and at the end (S11)."""
    codec, session = start(which, 11)
    check_codec(codec, session)
    for _ in range(10):
        if session.over:
            break
        session.step(0)
        check_codec(codec, session)
    check_codec(gymnasium_codec(), session)


@pytest.mark.parametrize("which", ["taxi", "taxi-fickle-rainy", "lake-8x8"])
def test_the_transition_table_is_shared_and_cannot_change(which: str) -> None:
    """All sessions of one configuration hold one read-only table, equal to Gymnasium's own in every entry."""
    codec, first = start(which, 1)
    second = codec.load(through_a_file(codec, first))
    shared: Any = first.env.unwrapped
    other: Any = second.env.unwrapped
    env_id, kwargs = ENVIRONMENTS[which]
    own: Any = gymnasium.make(env_id, **kwargs).unwrapped
    assert shared.P is other.P
    assert shared.desc is other.desc
    assert {state: {action: list(moves) for action, moves in row.items()} for state, row in shared.P.items()} == own.P
    with pytest.raises(TypeError):
        shared.P[0] = {}
    with pytest.raises(TypeError):
        shared.P[0][0] = ()
    with pytest.raises(AttributeError):
        shared.P[0][0].append(())
    with pytest.raises(ValueError, match="read-only"):
        shared.desc[0, 0] = b"X"


def test_configurations_do_not_share() -> None:
    """Rain changes the table of Taxi; two configurations have a table each."""
    dry: Any = start("taxi")[1].env.unwrapped
    rainy: Any = start("taxi-fickle-rainy")[1].env.unwrapped
    assert dry.P is not rainy.P
    assert dry.P != rainy.P


def test_the_export_holds_plain_values_only() -> None:
    """numpy's scalars, strings and arrays are plain JSON in every environment, also after a fickle passenger's move."""
    for which in ENVIRONMENTS:
        for seed in range(10):
            codec, session = a_random_point(which, seed)
            exact(codec.export(session))
            assert type(session.observation) in (int, list)


def test_an_unused_space_generator_is_none() -> None:
    """A space that nobody sampled from has no generator in the record and none after a load."""
    codec, session = start("blackjack")
    data = through_a_file(codec, session)
    assert data["layers"][-1]["action_space"] is None
    assert data["layers"][-1]["observation_space"] == {"own": None, "parts": [None, None, None]}
    assert codec.load(data).env.unwrapped.action_space._np_random is None


def test_generators_inside_a_composite_space_are_carried() -> None:
    """The parts of Blackjack's observation space draw on where they stood."""
    codec, session = start("blackjack")
    session.env.observation_space.seed(4)
    restored = codec.load(through_a_file(codec, session))
    assert [session.env.observation_space.sample() for _ in range(5)] == [
        restored.env.observation_space.sample() for _ in range(5)
    ]


# --- refusals


def refused(codec: GymnasiumCodec, session: GymnasiumSession) -> str:
    with pytest.raises(CodecError) as caught:
        codec.export(session)
    return str(caught.value)


def test_an_unknown_wrapper_is_refused_by_name() -> None:
    """A wrapper that is not declared may hold anything: the export names it and where it sits."""
    codec, session = start("taxi")
    session.env = RecordEpisodeStatistics(session.env)
    assert "$.layers[0]: gymnasium.wrappers.common.RecordEpisodeStatistics is no layer" in refused(codec, session)


def test_a_subclass_of_a_known_wrapper_is_refused_by_name() -> None:
    """A subclass may hold more than its parent; only the exact class is known."""

    class Stricter(TimeLimit[Any, Any]):
        pass

    codec, session = start("blackjack")
    session.env = Stricter(session.env, 10)
    assert "Stricter is no layer that is declared here" in refused(codec, session)


def test_a_known_wrapper_at_another_place_is_refused() -> None:
    """A second step limit would be lost, since a load makes the environment by id and kwargs."""
    codec, session = start("taxi")
    session.env = TimeLimit(session.env, 10)
    message = refused(codec, session)
    assert "TimeLimit > TimeLimit > OrderEnforcing" in message
    assert "is made with TimeLimit > OrderEnforcing" in message


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_an_undeclared_attribute_is_refused_by_name(depth: int) -> None:
    """A new attribute on any layer is refused by the names of attribute and layer."""
    codec, session = start("taxi")
    layer: Any = stack(session.env)[depth]
    layer.luck = 3
    assert f"$.layers[{depth}].luck: is an attribute of {type(layer).__name__} that is not" in refused(codec, session)


@pytest.mark.parametrize(
    ("which", "name", "value"),
    [
        ("taxi", "fickle_probability", 0.9),
        ("taxi", "P", {}),
        ("taxi", "locs", [(0, 0)]),
        ("lake-4x4", "desc", np.zeros((4, 4), dtype="S1")),
        ("blackjack", "natural", True),
    ],
)
def test_a_changed_constant_is_refused_by_name(which: str, name: str, value: Any) -> None:
    """What `make` sets from the kwargs is not exported, so a change of it would be lost: refused."""
    codec, session = start(which)
    setattr(session.env.unwrapped, name, value)
    assert f".{name}: is a constant" in refused(codec, session)


def test_a_changed_space_is_refused() -> None:
    """A space that is not the environment's own, or of a kind not declared, is refused."""
    codec, session = start("taxi")
    session.env.unwrapped.action_space = gymnasium.spaces.Discrete(7)
    assert "Discrete(7) is not the Discrete(6)" in refused(codec, session)
    session.env.unwrapped.action_space = gymnasium.spaces.MultiBinary(6)
    assert "a MultiBinary is no space that is declared here" in refused(codec, session)


def test_another_bit_generator_is_refused_by_name() -> None:
    """Only PCG64 is declared; MT19937 has another state."""
    codec, session = start("taxi")
    session.env.unwrapped.np_random = np.random.Generator(np.random.MT19937(1))
    assert "_np_random: a MT19937 is no PCG64" in refused(codec, session)


def test_one_generator_in_two_places_is_refused() -> None:
    """An environment and a space that draw from one stream would draw from two after a load."""
    codec, session = start("taxi")
    session.env.unwrapped.action_space._np_random = session.env.unwrapped.np_random
    assert "_np_random and action_space draw from one random generator" in refused(codec, session)


def test_an_environment_that_was_never_reset_is_refused() -> None:
    """Before its first reset an environment has no state to carry, and its generator none that could be repeated."""
    codec, session = start("taxi")
    session.env = gymnasium.make("Taxi-v4")
    assert "$.layers[3].s: is not there yet" in refused(codec, session)


def test_a_codec_refuses_other_sessions() -> None:
    """A session of another environment, of other kwargs, and a state that is no session are refused by name."""
    codec = gymnasium_codec("Taxi-v4")
    assert "'Blackjack-v1' is not the 'Taxi-v4'" in refused(codec, start("blackjack")[1])
    assert "kwargs" in refused(codec, start("taxi-fickle-rainy")[1])
    state: Any = {"s": 1}
    assert "the state is a dict, not a GymnasiumSession" in refused(codec, state)


@pytest.mark.parametrize(
    ("env_id", "kwargs", "problem"),
    [
        ("CartPole-v1", {}, "'CartPole-v1' is not supported; the environments are Blackjack-v1"),
        ("os:Taxi-v4", {}, "not supported"),
        ("Taxi-v4", {"colour": 1}, "cannot be made with"),
        ("Taxi-v4", {"render_mode": "human"}, "opens a window"),
        ("FrozenLake-v1", {"map_name": "9x9"}, "cannot be made with"),
        ("FrozenLake-v1", {"desc": ["SF", "G"]}, "cannot be made with"),
        ("FrozenLake-v1", {"map_name": None}, "desc is random; give it in the kwargs"),
        ("Taxi-v4", {"max_episode_steps": -2}, "cannot be made with"),
        ("Taxi-v4", {"is_rainy": b"yes"}, r"\$\.kwargs\.is_rainy"),
    ],
)
def test_what_cannot_be_made_is_refused(env_id: str, kwargs: dict[str, Any], problem: str) -> None:
    """Ids that are not supported never reach `gymnasium.make`; bad kwargs are named."""
    with pytest.raises(ValueError, match=problem):
        GymnasiumSession.start(env_id, seed=1, **kwargs)


def test_kwargs_without_an_id_are_refused() -> None:
    """A codec for all environments has no kwargs of its own."""
    with pytest.raises(ValueError, match="is_rainy"):
        gymnasium_codec(None, is_rainy=True)
    assert gymnasium_codec().name == "gymnasium"
    assert gymnasium_codec("Taxi-v4", is_rainy=True).name == "gymnasium:Taxi-v4"


@pytest.mark.parametrize("action", [6, -1, 1.0, True, "2", None])
def test_a_bad_action_changes_nothing(action: Any) -> None:
    """An action that is none of the environment's is refused before anything moved."""
    codec, session = start("taxi")
    before = canonical(codec.export(session))
    with pytest.raises(ValueError, match="is not an action"):
        session.step(action)
    assert canonical(codec.export(session)) == before


@pytest.mark.parametrize("seed", [-1, 1.5, "7", True])
def test_a_bad_seed_changes_nothing(seed: Any) -> None:
    """A seed that is no non-negative integer is refused before anything moved."""
    codec, session = start("blackjack")
    before = canonical(codec.export(session))
    with pytest.raises(ValueError, match="seed"):
        session.reset(seed)
    assert canonical(codec.export(session)) == before


def at(*path: str | int) -> Callable[[JSON, Any], None]:
    def put(data: JSON, value: Any) -> None:
        *way, last = path
        for part in way:
            data = data[part]
        data[last] = value

    return put


def drop(*path: str | int) -> Callable[[JSON, Any], None]:
    def remove(data: JSON, _: Any) -> None:
        *way, last = path
        for part in way:
            data = data[part]
        del data[last]

    return remove


GENERATOR = ("layers", 3, "_np_random")
CORRUPTIONS: list[tuple[Callable[[JSON, Any], None], Any, str]] = [
    (drop("layers"), None, "$.layers: is missing"),
    (at("more"), 1, "$.more: is not known here"),
    (at("schema_version"), 2, "$.schema_version: 2 is not in 1..1"),
    (at("gymnasium"), "0.29.1", "'0.29.1' is not of the installed release"),
    (at("env_id"), "CartPole-v1", "$.env_id: 'CartPole-v1'"),
    (at("env_id"), "FrozenLake-v1", "$.env_id: 'FrozenLake-v1' is not the 'Taxi-v4'"),
    (at("kwargs"), {"is_rainy": True}, "$.kwargs"),
    (at("kwargs"), [], "$.kwargs: is not an object"),
    (at("layers"), [], "$.layers: is not a list of the 4 layers"),
    (at("layers", 0, "layer"), "OrderEnforcing", "$.layers[0].layer: 'OrderEnforcing' is none of TimeLimit"),
    (at("layers", 0, "_elapsed_steps"), -1, "$.layers[0]._elapsed_steps: -1"),
    (at("layers", 0, "_elapsed_steps"), "12", "$.layers[0]._elapsed_steps: '12' is not an integer"),
    (at("layers", 0, "_elapsed_steps"), True, "$.layers[0]._elapsed_steps: True is not an integer"),
    (drop("layers", 1, "_has_reset"), None, "$.layers[1]._has_reset: is missing"),
    (at("layers", 1, "_has_reset"), 1, "$.layers[1]._has_reset: 1 is not true or false"),
    (at("layers", 2, "_previous_data"), [1], "$.layers[2]._previous_data: is not [observation, info]"),
    (at("layers", 3, "s"), 500, "$.layers[3].s: 500 is not in 0..499"),
    (drop("layers", 3, "s"), None, "$.layers[3].s: is missing"),
    (at("layers", 3, "lastaction"), 6, "$.layers[3].lastaction: 6"),
    (at("layers", 3, "P"), {}, "$.layers[3].P: is not known here"),
    (at(*GENERATOR, "bit_generator"), "MT19937", "bit_generator: 'MT19937' is none of PCG64"),
    (at(*GENERATOR, "state", "state"), 2**128, "_np_random.state.state"),
    (at(*GENERATOR, "state", "state"), 1.5e38, "1.5e+38 is not an integer"),
    (at(*GENERATOR, "state", "inc"), 2, "2 is even"),
    (at(*GENERATOR, "has_uint32"), 2, "has_uint32: 2 is not in 0..1"),
    (at(*GENERATOR, "uinteger"), 2**32, "uinteger"),
    (drop(*GENERATOR, "uinteger"), None, "uinteger: is missing"),
    (at("layers", 3, "action_space"), [], "$.layers[3].action_space: [] is not an object"),
    (at("total_reward"), "1", "$.total_reward: '1' is not a float"),
    (at("steps"), -1, "$.steps: -1"),
    (at("terminated"), None, "$.terminated: None is not true or false"),
    (at("info"), [], "$.info: is not an object"),
    (at("total_reward"), float("nan"), "$.total_reward"),
]


@pytest.mark.parametrize(("corrupt", "value", "problem"), CORRUPTIONS, ids=[problem for *_, problem in CORRUPTIONS])
def test_corrupted_data_is_refused_and_nothing_changed(
    corrupt: Callable[[JSON, Any], None], value: Any, problem: str
) -> None:
    """A record with one thing wrong is refused by path; the live session and the data itself stay as they were."""
    codec, session = start("taxi", 2)
    session.step(0)
    before = canonical(codec.export(session))
    data = through_a_file(codec, session)
    corrupt(data, value)
    kept = copy.deepcopy(data)
    with pytest.raises(CodecError) as caught:
        codec.load(data)
    assert problem in str(caught.value)
    assert repr(data) == repr(kept)
    assert canonical(codec.export(session)) == before


@pytest.mark.parametrize(
    ("corrupt", "value", "problem"),
    [
        (at("layers", 2, "player"), [10], "$.layers[2].player: has 1 items, not 2 or more"),
        (at("layers", 2, "dealer"), [1, 11], "$.layers[2].dealer[1]: 11 is not in 1..10"),
        (at("layers", 2, "dealer"), "ab", "$.layers[2].dealer: 'ab' is not a list"),
        (at("layers", 2, "dealer_top_card_suit"), "X", "'X' is none of C, D, H, S"),
        (at("layers", 2, "observation_space"), None, "$.layers[2].observation_space: None is not an object"),
        (at("layers", 2, "observation_space", "parts"), [None], "parts: is not a list of 3"),
    ],
)
def test_corrupted_cards_are_refused(corrupt: Callable[[JSON, Any], None], value: Any, problem: str) -> None:
    """Hands that no game can hold, and generators that no space has, are refused by path."""
    codec, session = start("blackjack", 2)
    data = through_a_file(codec, session)
    corrupt(data, value)
    with pytest.raises(CodecError) as caught:
        gymnasium_codec().load(data)
    assert problem in str(caught.value)


def test_data_that_is_no_object_is_refused() -> None:
    """A list, a number and nothing at all are no session."""
    anything: list[Any] = [[], 7, None, "Taxi-v4"]
    for data in anything:
        with pytest.raises(CodecError, match="is not an object"):
            gymnasium_codec().load(data)


def test_every_supported_id_is_tested_here() -> None:
    """The list of supported ids and the environments of this file are the same set."""
    assert {env_id for env_id, _ in ENVIRONMENTS.values()} == set(SUPPORTED)
