"""A Gymnasium environment that goes on after a restore as if nothing had happened.

Rules (docs/reference/protocol.md section 14, S11): the state of a session is the environment with all its wrappers and
random generators, and what was last seen of it. It is exported layer by layer from a declared list
(`gymnasium_layers`), and made anew from id and kwargs without `reset()`. What is not declared is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import gymnasium
from attrs import define, field, frozen

from statecore.errors import WireError
from statecore.wire import exact

from ..servers.codecs import JSON, Codec, CodecError
from .layers import SUPPORTED, AnyEnv, Configuration, configuration
from .values import flag, integer, keys, number, plain

__all__ = ["SUPPORTED", "GymnasiumCodec", "GymnasiumSession", "StepOutcome", "gymnasium_codec"]

SCHEMA_VERSION: Final = 1
_SESSION_KEYS: Final = frozenset(
    {"schema_version", "gymnasium", "env_id", "kwargs", "layers"}
    | {"observation", "info", "total_reward", "terminated", "truncated", "steps"}
)


@frozen
class StepOutcome:
    """What one step gave, as plain JSON: arrays and tuples of Gymnasium are lists."""

    observation: JSON
    reward: float
    terminated: bool
    truncated: bool
    info: JSON


@define(eq=False)
class GymnasiumSession:
    """One environment and what was last seen of it; `steps` and `total_reward` count since the last reset."""

    env_id: str
    kwargs: Mapping[str, JSON]
    env: AnyEnv
    observation: JSON = None
    info: JSON = field(factory=dict)
    total_reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    steps: int = 0

    @classmethod
    def start(cls, env_id: str, *, seed: int, **kwargs: Any) -> GymnasiumSession:
        """A session whose environment was made from id and kwargs (plain JSON) and reset with the seed.

        Raises ValueError for an id, kwargs or a seed that cannot be used.
        """
        made = configuration(env_id, _plain_kwargs(kwargs))
        session = cls(env_id, dict(made.kwargs), made.make())
        session.reset(seed)
        return session

    @property
    def over(self) -> bool:
        """Whether the episode has ended, by itself or by its step limit."""
        return self.terminated or self.truncated

    def reset(self, seed: int | None = None) -> JSON:
        """A new episode has begun and its first observation is returned; without a seed the generator goes on.

        Raises ValueError, and nothing changes, for a seed that is no non-negative integer.
        """
        if seed is not None and (type(seed) is not int or seed < 0):
            raise ValueError(f"the seed {seed!r} is not a non-negative integer")
        observation, info = self.env.reset(seed=seed)
        self.observation = plain(observation, ("observation",))
        self.info = plain(info, ("info",))
        self.total_reward, self.terminated, self.truncated, self.steps = 0.0, False, False, 0
        return self.observation

    def step(self, action: int) -> StepOutcome:
        """The action was taken once. Raises ValueError, and nothing changes, if it is none or the episode is over."""
        if self.over:
            raise ValueError(f"the episode is over after {self.steps} steps; reset it first")
        if type(action) is not int or not self.env.action_space.contains(action):
            raise ValueError(f"{action!r} is not an action of {self.env.action_space}")
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.observation = plain(observation, ("observation",))
        self.info = plain(info, ("info",))
        self.terminated, self.truncated = bool(terminated), bool(truncated)
        self.total_reward += float(reward)
        self.steps += 1
        return StepOutcome(self.observation, float(reward), self.terminated, self.truncated, self.info)


@frozen
class GymnasiumCodec(Codec[GymnasiumSession]):
    """Carries a GymnasiumSession; `made` is the one configuration it is for, or None for all supported ones."""

    name: str
    made: Configuration | None = None

    def export(self, state: GymnasiumSession, /) -> JSON:
        """The session as plain JSON with the generators' 128-bit integers (so it is read with the standard json)."""
        if type(state) is not GymnasiumSession:
            raise CodecError(self.name, "$", f"the state is a {type(state).__qualname__}, not a GymnasiumSession")
        try:
            self._check_configuration(state.env_id, state.kwargs)
            return {
                "schema_version": SCHEMA_VERSION,
                "gymnasium": gymnasium.__version__,
                "env_id": state.env_id,
                "kwargs": plain(state.kwargs, ("kwargs",)),
                "layers": configuration(state.env_id, state.kwargs).dump(state.env),
                "observation": plain(state.observation, ("observation",)),
                "info": plain(state.info, ("info",)),
                "total_reward": state.total_reward,
                "terminated": state.terminated,
                "truncated": state.truncated,
                "steps": state.steps,
            }
        except WireError as error:
            raise CodecError(self.name, error.path, error.problem) from error

    def load(self, data: JSON, /) -> GymnasiumSession:
        """A new session that stands where the exported one stood; no reset, nothing drawn from any generator."""
        try:
            exact(data)
            return self._load(data)
        except WireError as error:
            raise CodecError(self.name, error.path, error.problem) from error

    def _load(self, data: JSON) -> GymnasiumSession:
        fields = keys(data, (), _SESSION_KEYS)
        integer(SCHEMA_VERSION, SCHEMA_VERSION)(fields["schema_version"], ("schema_version",))
        _check_release(fields["gymnasium"])
        self._check_configuration(fields["env_id"], fields["kwargs"])
        try:
            made = self.made or configuration(fields["env_id"], fields["kwargs"])
            env = made.load(fields["layers"], ("layers",))
        except ValueError as error:
            raise WireError.at(("env_id",), str(error)) from error
        if type(fields["info"]) is not dict:
            raise WireError.at(("info",), "is not an object", "dict_type")
        return GymnasiumSession(
            made.env_id,
            plain(fields["kwargs"], ("kwargs",)),
            env,
            observation=plain(fields["observation"], ("observation",)),
            info=plain(fields["info"], ("info",)),
            total_reward=number(fields["total_reward"], ("total_reward",)),
            terminated=flag(fields["terminated"], ("terminated",)),
            truncated=flag(fields["truncated"], ("truncated",)),
            steps=integer(0)(fields["steps"], ("steps",)),
        )

    def _check_configuration(self, env_id: JSON, kwargs: JSON) -> None:
        if type(env_id) is not str or env_id not in SUPPORTED:
            raise WireError.at(("env_id",), f"{env_id!r} is none of {', '.join(SUPPORTED)}")
        if not isinstance(kwargs, Mapping):
            raise WireError.at(("kwargs",), "is not an object", "dict_type")
        if self.made is not None and env_id != self.made.env_id:
            raise WireError.at(("env_id",), f"{env_id!r} is not the {self.made.env_id!r} of this codec")
        if self.made is not None and kwargs != self.made.kwargs:
            raise WireError.at(("kwargs",), f"{dict(kwargs)} are not the {dict(self.made.kwargs)} of this codec")


def gymnasium_codec(env_id: str | None = None, **kwargs: Any) -> GymnasiumCodec:
    """A codec for sessions of one environment id with these kwargs, or without an id for those of all supported ones.

    Raises ValueError for an id that is not supported or kwargs that it cannot be made with.
    """
    if env_id is None:
        if kwargs:
            raise ValueError(f"kwargs ({', '.join(sorted(kwargs))}) without an environment id")
        return GymnasiumCodec("gymnasium")
    return GymnasiumCodec(f"gymnasium:{env_id}", configuration(env_id, _plain_kwargs(kwargs)))


def _plain_kwargs(kwargs: Mapping[str, Any]) -> dict[str, JSON]:
    try:
        plain_kwargs: dict[str, JSON] = plain(dict(kwargs), ("kwargs",))
        exact(plain_kwargs, "$.kwargs")
    except WireError as error:
        raise ValueError(f"{error.path}: {error.problem}") from error
    return plain_kwargs


def _check_release(version: JSON) -> None:
    """The attributes of a layer are declared for one minor version; data of another one may mean something else."""
    if type(version) is not str or version.split(".")[:2] != gymnasium.__version__.split(".")[:2]:
        raise WireError.at(("gymnasium",), f"{version!r} is not of the installed release {gymnasium.__version__}")
