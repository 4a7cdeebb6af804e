"""A Gymnasium environment in words, for a model that reads text: where it stands, and which actions it has.

Pure reading: nothing here steps an environment or draws from a generator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from .codec import GymnasiumSession

ACTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "Blackjack": ("stick", "hit"),
    "FrozenLake": ("left", "down", "right", "up"),
    "Taxi": ("south", "north", "east", "west", "pick up", "drop off"),
}
"""The names of the actions, in the order of their numbers, by the start of an environment's id."""

_STANDS: Final = ("red", "green", "yellow", "blue")
_TILES: Final = {"S": "the start", "F": "ice", "H": "a hole", "G": "the goal"}


def family(env_id: str) -> str:
    """Which of the environments in `ACTIONS` an id names; ValueError for none."""
    for name in ACTIONS:
        if env_id.startswith(name):
            return name
    raise ValueError(f"{env_id!r} is none of {', '.join(ACTIONS)}")


def actions(session: GymnasiumSession) -> dict[str, int]:
    """The actions that do something here, by name; all of them where the environment does not say; none when over."""
    if session.over:
        return {}
    names = ACTIONS[family(session.env_id)]
    mask = session.info.get("action_mask") if type(session.info) is dict else None
    if type(mask) is not list or len(mask) != len(names) or not any(mask):
        mask = [1] * len(names)
    return {name: number for number, (name, may) in enumerate(zip(names, mask, strict=True)) if may}


def describe(session: GymnasiumSession) -> str:
    """One sentence: what the player sees now."""
    sentence = _SENTENCES[family(session.env_id)](session)
    if session.terminated:
        return f"{sentence} The episode is over."
    return f"{sentence} The step limit is reached." if session.truncated else sentence


def _taxi(session: GymnasiumSession) -> str:
    inner: Any = session.env.unwrapped
    row, column, passenger, goal = inner.decode(session.observation)
    where = "in the taxi" if passenger == len(_STANDS) else f"at {_STANDS[passenger]}"
    return f"Taxi at row {row}, column {column}; passenger {where}, to be taken to {_STANDS[goal]}."


def _frozen_lake(session: GymnasiumSession) -> str:
    inner: Any = session.env.unwrapped
    row, column = divmod(session.observation, int(inner.ncol))
    tile = inner.desc[row][column].decode()
    return f"Row {row}, column {column}, on {_TILES[tile]}."


def _blackjack(session: GymnasiumSession) -> str:
    mine, dealer, ace = session.observation
    return f"Your hand is {mine}{' with a usable ace' if ace else ''}; the dealer shows {dealer}."


_SENTENCES: Final[Mapping[str, Callable[[GymnasiumSession], str]]] = {
    "Blackjack": _blackjack,
    "FrozenLake": _frozen_lake,
    "Taxi": _taxi,
}
