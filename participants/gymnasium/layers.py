"""What each layer of a Gymnasium environment holds: declared attribute by attribute, and nothing else is believed.

Rules (docs/reference/protocol.md section 14, S11). An attribute is *carried* (goes into the record), *constant* (made
by `gymnasium.make` from id and kwargs, and unchanged since), or a *cache* of the renderer (left out). Any other
attribute, a constant that changed, or a layer that is not declared here is refused by name.

Written against Gymnasium 1.4. Errors are `WireError` with the place; the codec adds its name.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import gymnasium
import numpy as np
from attrs import frozen
from gymnasium.envs.toy_text.blackjack import BlackjackEnv
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from gymnasium.envs.toy_text.taxi import TaxiEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from statecore.errors import WireError

from ..servers.codecs import JSON, Loc
from .values import (
    Check,
    dump_generator,
    dump_space,
    flag,
    integer,
    keys,
    list_of,
    load_generator,
    load_space,
    maybe,
    one_of,
    plain,
)

AnyEnv: TypeAlias = gymnasium.Env[Any, Any]

SUPPORTED: Final = ("Blackjack-v1", "FrozenLake-v1", "FrozenLake8x8-v1", "Taxi-v4")
"""The environment ids that are made, from a request or from a record; no other id reaches `gymnasium.make`."""


@frozen
class Layer:
    """What one class of wrapper or environment holds; `carried` maps an attribute to the check of its exported form."""

    cls: type
    carried: Mapping[str, Check]
    constant: frozenset[str]
    cache: frozenset[str] = frozenset()
    generators: frozenset[str] = frozenset()
    spaces: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return self.cls.__qualname__


def _previous_data(value: JSON, loc: Loc) -> JSON:
    """[observation, info] of the last call, or None.

    The checker only asks whether the next call returns *the same objects*; those of another process are never the same,
    so that there was a call is what matters after a load.
    """
    if value is None:
        return None
    if type(value) is not list or len(value) != 2:
        raise WireError.at(loc, "is not [observation, info]")
    return value


def _environment(cls: type, carried: Mapping[str, Check], constant: set[str], cache: set[str]) -> Layer:
    return Layer(
        cls,
        carried={**carried, "_np_random_seed": maybe(integer(-1))},
        constant=frozenset(constant | {"render_mode", "spec"}),
        cache=frozenset(cache),
        generators=frozenset({"_np_random"}),
        spaces=frozenset({"action_space", "observation_space"}),
    )


def _wrapper(cls: type, carried: Mapping[str, Check], constant: frozenset[str] = frozenset()) -> Layer:
    made = {"_saved_kwargs", "_action_space", "_observation_space", "_metadata"}
    return Layer(cls, carried, constant | made, cache=frozenset({"_cached_spec"}))


_CARDS: Final = list_of(integer(1, 10), at_least=2)
_VALUES: Final = ("A", "2", "3", "4", "5", "6", "7", "8", "9", "J", "Q", "K")

LAYERS: Final[tuple[Layer, ...]] = (
    _wrapper(TimeLimit, {"_elapsed_steps": maybe(integer(0))}, frozenset({"_max_episode_steps"})),
    _wrapper(OrderEnforcing, {"_has_reset": flag}, frozenset({"_disable_render_order_enforcing"})),
    _wrapper(
        PassiveEnvChecker,
        {
            "checked_reset": flag,
            "checked_step": flag,
            "checked_render": flag,
            "checked_data_reuse": flag,
            "close_called": flag,
            "_previous_data": _previous_data,
        },
    ),
    _environment(
        TaxiEnv,
        {
            "s": integer(0),
            "lastaction": maybe(integer(0, 5)),
            "fickle_step": flag,
            "taxi_orientation": integer(0, 3),
        },
        {"desc", "locs", "locs_colors", "max_row", "max_col", "cell_size", "P", "initial_state_distrib"}
        | {"rainy_probability", "_rainy_lateral_probability", "fickle_passenger", "fickle_probability"},
        {"window", "clock", "taxi_imgs", "taxi_full_imgs", "passenger_img", "destination_img", "house_img"}
        | {"background_img"},
    ),
    _environment(
        FrozenLakeEnv,
        {"s": integer(0), "lastaction": maybe(integer(0, 3))},
        {"desc", "nrow", "ncol", "reward_range", "initial_state_distrib", "P", "window_size", "cell_size"},
        {"window_surface", "clock", "ice_img", "ice_crack_imgs", "hole_img", "agent_img", "goal_flag_img"}
        | {"letter_s_img", "letter_g_img"},
    ),
    _environment(
        BlackjackEnv,
        {
            "dealer": _CARDS,
            "player": _CARDS,
            "dealer_top_card_suit": one_of("C", "D", "H", "S"),
            "dealer_top_card_value_str": one_of(*_VALUES),
        },
        {"natural", "sab"},
        {"screen", "clock"},
    ),
)

_BY_CLASS: Final[Mapping[type, Layer]] = {layer.cls: layer for layer in LAYERS}


# --- one configuration: an id and kwargs, and what every environment made from them has in common


def stack(env: AnyEnv) -> list[AnyEnv]:
    """The environment and what it wraps, from the outermost wrapper to the environment itself."""
    layers = [env]
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
        layers.append(env)
    return layers


@frozen(eq=False)
class Configuration:
    """The declared layers of an environment id with kwargs, outermost first, and the constants each was made with.

    Arrays among the constants are made read-only and the transition table `P` a read-only mapping, and every
    environment is given these same ones: else each Taxi session would hold 0.7 MB of its own. Nothing can change them.
    """

    env_id: str
    kwargs: Mapping[str, JSON]
    layers: tuple[tuple[Layer, Mapping[str, Any]], ...]

    def make(self) -> AnyEnv:
        """A new environment, not reset, on the shared constants. ValueError if two makes are not alike."""
        env = _make(self.env_id, self.kwargs)
        for object_, (layer, constants) in zip(stack(env), self.layers, strict=True):
            for name, made in constants.items():
                value = getattr(object_, name)
                if not _same(value, made):
                    raise ValueError(f"{self.env_id}: {layer.name}.{name} is random; give it in the kwargs")
                if isinstance(made, np.ndarray | MappingProxyType):
                    setattr(object_, name, made)
        return env

    def dump(self, env: AnyEnv) -> JSON:
        """What each layer of `env` carries, outermost first. Raises WireError for whatever is not declared."""
        objects = stack(env)
        for index, object_ in enumerate(objects):
            if type(object_) not in _BY_CLASS:
                raise WireError.at(("layers", index), f"{_full_name(object_)} is no layer that is declared here")
        found, made = [type(object_) for object_ in objects], [layer.cls for layer, _ in self.layers]
        if found != made:
            raise WireError.at(("layers",), f"are {_names(found)}, but {self.env_id} is made with {_names(made)}")
        pairs = zip(objects, self.layers, strict=True)
        dumped = [_dump_layer(object_, *pair, ("layers", index)) for index, (object_, pair) in enumerate(pairs)]
        _check_no_shared_generator(env)
        return dumped

    def load(self, data: JSON, loc: Loc) -> AnyEnv:
        """A new environment that stands where the dumped one stood, without a reset. Raises WireError for bad data."""
        if type(data) is not list or len(data) != len(self.layers):
            raise WireError.at(loc, f"is not a list of the {len(self.layers)} layers of {self.env_id}")
        env = self.make()
        for index, (object_, (layer, _)) in enumerate(zip(stack(env), self.layers, strict=True)):
            _load_layer(object_, layer, data[index], (*loc, index))
        return env


def configuration(env_id: str, kwargs: Mapping[str, JSON]) -> Configuration:
    """The one configuration of this id and these kwargs (plain JSON). Raises ValueError for what cannot be made."""
    if env_id not in SUPPORTED:
        raise ValueError(f"{env_id!r} is not supported; the environments are {', '.join(SUPPORTED)}")
    if kwargs.get("render_mode") == "human":
        raise ValueError("render_mode 'human' opens a window, which no server session has")
    return _configuration(env_id, json.dumps(dict(kwargs), sort_keys=True))


@functools.lru_cache(maxsize=256)
def _configuration(env_id: str, kwargs_json: str) -> Configuration:
    kwargs = json.loads(kwargs_json)
    layers = []
    for object_ in stack(_make(env_id, kwargs)):
        layer = _BY_CLASS.get(type(object_))
        if layer is None:
            raise ValueError(f"{env_id}: {_full_name(object_)} is no layer that is declared here")
        constants = {name: _frozen(value) for name, value in vars(object_).items() if name in layer.constant}
        layers.append((layer, {**constants, **{name: getattr(object_, name) for name in layer.spaces}}))
    return Configuration(env_id, kwargs, tuple(layers))


def _make(env_id: str, kwargs: Mapping[str, JSON]) -> AnyEnv:
    try:
        return gymnasium.make(env_id, **json.loads(json.dumps(dict(kwargs))))
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError, gymnasium.error.Error) as error:
        raise ValueError(f"{env_id} cannot be made with {dict(kwargs)}: {type(error).__name__}: {error}") from error


def _frozen(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value.setflags(write=False)
        return value
    if isinstance(value, dict) and all(isinstance(row, dict) for row in value.values()) and value:
        rows = {state: {action: tuple(moves) for action, moves in row.items()} for state, row in value.items()}
        return MappingProxyType({state: MappingProxyType(row) for state, row in rows.items()})
    return value


def _same(value: Any, made: Any) -> bool:
    if value is made:
        return True
    if isinstance(made, np.ndarray):
        return isinstance(value, np.ndarray) and value.dtype == made.dtype and np.array_equal(value, made)
    if isinstance(made, MappingProxyType):
        return bool(_frozen(value) == made)
    return type(value) is type(made) and bool(value == made)


def _dump_layer(object_: AnyEnv, layer: Layer, constants: Mapping[str, Any], loc: Loc) -> JSON:
    held = vars(object_)
    declared = layer.carried.keys() | layer.constant | layer.cache | layer.generators | layer.spaces | {"env"}
    if unknown := sorted(held.keys() - declared):
        raise WireError.at((*loc, unknown[0]), f"is an attribute of {layer.name} that is not declared here")
    data: dict[str, JSON] = {"layer": layer.name}
    for name, made in constants.items():
        if name in layer.spaces:
            data[name] = dump_space(held.get(name), made, (*loc, name))
        elif name not in held or not _same(held[name], made):
            raise WireError.at((*loc, name), f"is a constant of {layer.name} and was changed")
    for name in layer.generators:
        data[name] = dump_generator(held.get(name), (*loc, name))
    for name in layer.carried:
        if not hasattr(object_, name):
            raise WireError.at((*loc, name), f"is not there yet; a {layer.name} is carried once it was reset")
        data[name] = _checked(object_, layer, name, getattr(object_, name), loc)
    return data


def _load_layer(object_: AnyEnv, layer: Layer, data: JSON, loc: Loc) -> None:
    fields = keys(data, loc, frozenset({"layer"} | layer.carried.keys()) | layer.generators | layer.spaces)
    one_of(layer.name)(fields["layer"], (*loc, "layer"))
    for name in layer.spaces:
        for space, generator in load_space(getattr(object_, name), fields[name], (*loc, name)):
            space._np_random = generator
    for name in layer.generators:
        setattr(object_, name, load_generator(fields[name], (*loc, name)))
    for name in layer.carried:
        value = _checked(object_, layer, name, fields[name], loc)
        setattr(object_, name, tuple(value) if name == "_previous_data" and value is not None else value)


def _checked(object_: AnyEnv, layer: Layer, name: str, value: object, loc: Loc) -> JSON:
    place = (*loc, name)
    checked = layer.carried[name](plain(value, place), place)
    if name == "s":
        states: Any = object_.observation_space
        integer(0, int(states.n) - 1)(checked, place)
    return checked


def _check_no_shared_generator(env: AnyEnv) -> None:
    """Two places that draw from one stream would draw from two after a load: refused."""
    base = env.unwrapped
    owners: dict[int, str] = {}
    found: list[tuple[str, Any]] = [("_np_random", vars(base).get("_np_random"))]
    waiting: list[tuple[str, Any]] = [(name, getattr(base, name)) for name in ("action_space", "observation_space")]
    while waiting:
        name, space = waiting.pop()
        found.append((name, space._np_random))
        waiting += [(f"{name}[{i}]", part) for i, part in enumerate(getattr(space, "spaces", ()))]
    for name, generator in found:
        if generator is not None:
            other = owners.setdefault(id(generator.bit_generator), name)
            if other != name:
                raise WireError.at(("layers",), f"{other} and {name} draw from one random generator")


def _full_name(object_: object) -> str:
    return f"{type(object_).__module__}.{type(object_).__qualname__}"


def _names(classes: list[type]) -> str:
    return " > ".join(cls.__qualname__ for cls in classes)
