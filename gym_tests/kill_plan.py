"""What is done to rollouts on Gym servers in one kill run, drawn from a number. Pure.

The first blow of each run is taken from a list of all games, victims and moments, gone through one after the other in
an order in which neighbours have little in common; all else is drawn.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Any, Final

from attrs import frozen

from participants.demo.moments import Moment
from tests.kill_plan import Start

from .job import WORK, asked_of, blackjack_task, counter_task, weather_task, workplace_task

SERIES: Final = 422
"""Runs 0 to 9 of this series meet all moments."""
ROLLOUTS: Final = 4
DEALS: Final = (15, 59, 143, 149)
"""Hands of blackjack that take a player who hits below 17 four turns or more."""


class Game(StrEnum):
    """The environments: WEATHER is an episode that an environment server drives."""

    COUNTER = "counter"
    BLACKJACK = "blackjack"
    WORKPLACE = "workplace"
    WEATHER = "weather"


class Victim(StrEnum):
    """Who is hit: one server, or ALL of them and the coordinator."""

    MODEL = "policy model"
    AGENT = "agent"
    RESOURCES = "resources"
    ENVIRONMENT = "environment"
    ALL = "all"


def servers(game: Game) -> dict[Victim, str]:
    """The servers that a game needs, by what they are."""
    found = {Victim.MODEL: "policy_model", Victim.RESOURCES: str(game), Victim.AGENT: f"{game}_agent"}
    return found | ({Victim.ENVIRONMENT: f"{game}_env"} if game is Game.WEATHER else {})


TURNS: Final = "turns"
RESTART: Final = "restart"
PHASES: Final = tuple(each.value for each in Moment if each is not Moment.IDLE)
WHENS: Final = (TURNS, *PHASES, RESTART)


@frozen(kw_only=True)
class Blow:
    """SIGKILL to `victim` at `when`: a Moment, a Start, or TURNS.

    Of a checkpoint: after so many of its life's `checkpoint`s were published. TURNS: so many `turns` after that
    checkpoint. `late_s`: so much later than the moment.
    """

    victim: Victim
    when: str
    checkpoint: int = 0
    turns: int = 0
    late_s: float = 0.0

    def __str__(self) -> str:
        if self.when == TURNS:
            return f"{self.victim}, {self.turns} turns after checkpoint {self.checkpoint + 1}"
        which = "of the start" if self.when in set(Start) else f"of checkpoint {self.checkpoint + 1}"
        late = f" and {1000 * self.late_s:.0f} ms" if self.late_s else ""
        return f"{self.victim} at {self.when}{late} {which}"


@frozen(kw_only=True)
class Run:
    """One kill run: its blows in order. `every_turns`: so many turns are made between two checkpoints."""

    seed: int
    game: Game
    when: str
    blows: tuple[Blow, ...]
    every_turns: int

    @property
    def lives(self) -> tuple[tuple[Blow, ...], ...]:
        """The blows by the life that they fall into: each life but the last has one that ends it, its last one."""
        lives: list[tuple[Blow, ...]] = [()]
        for blow in self.blows:
            lives[-1] = (*lives[-1], blow)
            if blow.victim is Victim.ALL:
                lives.append(())
        return tuple(lives)


First = tuple[Game, Victim, str]


@cache
def product() -> tuple[First, ...]:
    """Each game with each victim that it has and each moment, spread: all of each are met soon after the beginning."""
    left = [(game, victim, when) for game in Game for victim in (*servers(game), Victim.ALL) for when in WHENS]
    random.Random("games, victims and moments").shuffle(left)
    met: Counter[str] = Counter()
    ordered: list[First] = []
    while left:
        best = min(left, key=lambda each: [sum(met[part] > 0 for part in each), _share(each, met)])
        left.remove(best)
        ordered.append(best)
        met.update(map(str, best))
        if len(met) == len(Game) + len(Victim) + len(WHENS):
            met.clear()  # a new round
    return tuple(ordered)


def _share(first: First, met: Mapping[str, int]) -> float:
    game, victim, when = first
    return met[game] * len(Game) + met[victim] * len(Victim) + met[when] * len(WHENS)


def draw(seed: int) -> Run:
    """The run of this number; the same for the same number."""
    dice = random.Random(f"gym kill run {SERIES}:{seed}")
    every = product()
    game, victim, when = every[seed % len(every)]
    another = _blow(dice.choice((*servers(game), Victim.ALL)), dice.choice(PHASES), dice)
    if when == RESTART:
        blows = [another, _in_start(victim, dice)]
    elif when == TURNS:
        blows = [_blow(victim, when, dice), another]
    else:
        blows = [_blow(victim, when, dice)]
    return Run(seed=seed, game=game, when=when, blows=tuple(blows), every_turns=dice.randrange(5, 8))


def _blow(victim: Victim, when: str, dice: random.Random) -> Blow:
    late_s = dice.choice((0.0, 0.0, 0.01, 0.1)) * dice.uniform(0.5, 1.0)
    turns = dice.randrange(1, 4)
    if when == TURNS:
        return Blow(victim=victim, when=when, turns=turns)
    return Blow(victim=victim, when=when, checkpoint=dice.randrange(2), late_s=round(late_s, 4))


def _in_start(victim: Victim, dice: random.Random) -> Blow:
    when = dice.choice(list(Start))
    late_s = dice.uniform(0.2, 3.0) if when is Start.CLAIMED else dice.choice((0.0, 0.05))
    return Blow(victim=victim, when=when.value, late_s=round(late_s, 2))


def tasks(game: Game) -> list[dict[str, Any]]:
    """The tasks of a game's rollouts, each with words of its own for the model."""
    return [_task(game, number) for number in range(ROLLOUTS)]


def _task(game: Game, number: int) -> dict[str, Any]:
    if game is Game.BLACKJACK:
        return {**blackjack_task(number), "deal": DEALS[number]}
    if game is Game.WORKPLACE:
        return _office(number)
    if game is Game.WEATHER:
        return weather_task(number)
    task = counter_task() | {"initial_count": number, "expected_count": number + 3}
    said = f"Counter {number}: add one, add two, look."
    task["responses_create_params"]["input"] = [{"role": "user", "content": said}]
    return task


def _office(number: int) -> dict[str, Any]:
    """The work of the workplace's task, with a name of its own."""
    task = workplace_task()
    work = [{**each, "arguments": _renamed(each["arguments"], number)} for each in WORK]
    task["ground_truth"] = [{**each, "arguments": json.dumps(each["arguments"])} for each in work]
    task["responses_create_params"]["input"] = [{"role": "user", "content": json.dumps(work)}]
    return task


def _renamed(arguments: Mapping[str, Any], number: int) -> dict[str, Any]:
    return {name: f"review {number}" if value == "a review" else value for name, value in arguments.items()}


def rollouts(game: Game) -> dict[str, dict[str, Any]]:
    """The tasks by the name of their rollout."""
    return {f"{game}-{number}": task for number, task in enumerate(tasks(game))}


def target(game: Game) -> str:
    """The server that the rollouts of a game go to."""
    return servers(game).get(Victim.ENVIRONMENT, servers(game)[Victim.AGENT])


def names(game: Game) -> dict[str, str]:
    """The rollouts by what the model is asked first."""
    return {asked_of(task): name for name, task in rollouts(game).items()}
