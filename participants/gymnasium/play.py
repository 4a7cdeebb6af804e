"""What a Gymnasium resources server keeps of a session: an environment, and what came before its last reset.

Rules (docs/reference/protocol.md section 14, S11): it is carried whole, with its wrappers and random generators, by the
codec of `gymnasium_codec`; what is not declared is refused.
"""

from __future__ import annotations

from typing import Final

from attrs import define, frozen

from statecore.errors import WireError

from ..servers.codecs import JSON, Codec, CodecError
from .codec import GymnasiumSession, gymnasium_codec
from .values import integer, keys, number

SCHEMA_VERSION: Final = 1
_KEYS: Final = frozenset({"schema_version", "episodes", "earlier_reward", "earlier_steps", "game"})


@define(eq=False)
class Play:
    """An environment and the episodes it has played: `episodes` counts them, the running one included.

    `earlier_reward` and `earlier_steps` are of the episodes before the running one.
    """

    game: GymnasiumSession
    episodes: int = 1
    earlier_reward: float = 0.0
    earlier_steps: int = 0

    @property
    def reward(self) -> float:
        """Of all episodes since the seed."""
        return self.earlier_reward + self.game.total_reward

    @property
    def steps(self) -> int:
        return self.earlier_steps + self.game.steps

    def reset(self, seed: int | None) -> None:
        """Another episode has begun; without a seed the generator goes on. ValueError for a seed that is none."""
        reward, steps = self.reward, self.steps
        self.game.reset(seed)
        self.earlier_reward, self.earlier_steps = reward, steps
        self.episodes += 1


@frozen
class PlayCodec(Codec[Play]):
    """Carries a Play; with `env_id` only one of that environment, else of all supported ones."""

    env_id: str | None = None

    @property
    def name(self) -> str:
        return "gymnasium" if self.env_id is None else f"gymnasium:{self.env_id}"

    def export(self, state: Play, /) -> JSON:
        if type(state) is not Play:
            raise CodecError(self.name, "$", f"the state is a {type(state).__qualname__}, not a Play")
        game = gymnasium_codec().export(state.game)
        self._check(game)
        return {
            "schema_version": SCHEMA_VERSION,
            "episodes": state.episodes,
            "earlier_reward": state.earlier_reward,
            "earlier_steps": state.earlier_steps,
            "game": game,
        }

    def load(self, data: JSON, /) -> Play:
        try:
            fields = keys(data, (), _KEYS)
            integer(SCHEMA_VERSION, SCHEMA_VERSION)(fields["schema_version"], ("schema_version",))
            episodes = integer(1)(fields["episodes"], ("episodes",))
            earlier_reward = number(fields["earlier_reward"], ("earlier_reward",))
            earlier_steps = integer(0)(fields["earlier_steps"], ("earlier_steps",))
        except WireError as error:
            raise CodecError(self.name, error.path, error.problem) from error
        self._check(fields["game"])
        return Play(gymnasium_codec().load(fields["game"]), episodes, earlier_reward, earlier_steps)

    def _check(self, game: JSON) -> None:
        found = game.get("env_id") if type(game) is dict else None
        if self.env_id is not None and found != self.env_id:
            raise CodecError(self.name, "$.game.env_id", f"{found!r} is not the {self.env_id!r} of this server")
