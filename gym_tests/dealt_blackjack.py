"""Gym's blackjack with cards that the task decides: its field `deal` is the seed of the generator that deals.

Gym's own deals from a generator that nobody seeds, so that two runs of one task cannot be compared. Everything else is
Gym's: the game goes on by its own `step`, and its session is what it ever was.
"""

from __future__ import annotations

import importlib
import random
from typing import Any, Final

from participants.gym.codecs import blackjack_sessions
from participants.gym.embedding import checkpointable

_gym: Any = importlib.import_module("resources_servers.blackjack.app")
_base: Any = _gym.BlackjackEnv
STANDS_AT: Final = 17


class Dealt(_base):  # type: ignore[misc]
    """Blackjack whose cards are those of `deal`."""

    async def reset(self, metadata: dict[str, Any], session_id: str | None = None) -> tuple[str | None, dict[str, Any]]:
        """A new hand."""
        state = hand(metadata["deal"])
        self.session_state[session_id] = state
        shown, value = _gym._fmt(state["player"]), _gym._hand_value(state["player"])
        return f"Your hand: {shown} = {value}. The dealer shows {state['dealer'][0]}.", {}


DealtBlackjack: Final = checkpointable(Dealt, codec=blackjack_sessions())


def hand(deal: int) -> dict[str, Any]:
    """What a session is after its first four cards."""
    dealer = random.Random(deal)
    cards = [_gym._deal(dealer) for _ in range(4)]
    return {"player": cards[:2], "dealer": cards[2:], "rng": dealer}


def turns(deal: int) -> int:
    """How many turns a player has who hits below 17."""
    state = hand(deal)
    made = 1
    while _gym._hand_value(state["player"]) < STANDS_AT:
        state["player"].append(_gym._deal(state["rng"]))
        made += _gym._hand_value(state["player"]) <= 21
    return made


def long_deals(number: int, at_least: int) -> list[int]:
    """The first deals in which such a player has so many turns."""
    found: list[int] = []
    deal = 0
    while len(found) < number:
        if turns(deal) >= at_least:
            found.append(deal)
        deal += 1
    return found
