"""What the demo's job is: which rollouts, how long each of their turns thinks, when checkpoints are taken. Pure data.

Everything derives from the seed, so that the same job can be run a second time, undisturbed. The plan is written to
``demo.json`` beside the checkpoints, where the servers find it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from statecore.errors import StatecoreError
from statecore.seams import Disk, Entropy, SeededEntropy
from statecore.wire import canonical, parse, structure, unstructure

from ..coordination.trainer import Dispatch
from .moments import BEFORE_PUBLICATION, Moment

PLAN_FILE: Final = "demo.json"
GROUP_SIZE: Final = 4
MAX_ROLLOUTS: Final = 400
MAX_TURNS: Final = 60
DEFAULT_TURNS: Final = (5, 8)
THINK_S: Final = (0.12, 0.36)
STRAGGLER: Final = 2.5
"""How many times as long as the others a straggler thinks."""
STAGGER_S: Final = 0.45
"""How much later than the one before each group starts."""
ENVIRONMENTS: Final[Mapping[str, str]] = {
    "taxi": "Taxi-v4",
    "frozenlake": "FrozenLake-v1",
    "blackjack": "Blackjack-v1",
}
MIXED: Final = "mixed"


class Kill(StrEnum):
    """What dies, with SIGKILL. ALL: every server and the coordinator. COORDINATOR: it alone, its servers live on.

    The others are one server each; the coordinator lives, notices, and starts all servers anew.
    """

    ALL = "all"
    COORDINATOR = "coordinator"
    POLICY = "policy"
    AGENT = "agent"
    RESOURCES = "resources"
    ENVIRONMENT = "environment"

    @property
    def server(self) -> str:
        """The one server that dies; "" where it is not one alone."""
        return {"all": "", "coordinator": "", "resources": "game"}.get(self.value, self.value)


class When(StrEnum):
    """Where the crash falls: in a phase of a checkpoint, or between two.

    Up to `PROVE` it is the second checkpoint, so that the first is in force (BEFORE_PUBLISH is VALIDATE by another
    name); from PUBLISHED on it is the first. IDLE: it is just over. LATER: two turns after that.
    """

    PUBLISHED = "published"
    BEFORE_PUBLISH = "before-publish"
    LATER = "later"
    FREEZE = "freeze"
    PREPARE = "prepare"
    COMMIT = "commit"
    SETTLE = "settle"
    SAVE = "save"
    VALIDATE = "validate"
    PROVE = "prove"
    ACKNOWLEDGE = "acknowledge"
    RESUME = "resume"
    IDLE = "idle"

    @property
    def moment(self) -> Moment | None:
        """The moment of the crash; None if it hangs on turns."""
        if self is When.LATER:
            return None
        return Moment.VALIDATE if self is When.BEFORE_PUBLISH else Moment(self.value)

    @property
    def checkpoint(self) -> int:
        """Which checkpoint it belongs to, from 0."""
        return 1 if self.moment in BEFORE_PUBLICATION else 0


class PlanError(StatecoreError):
    """The demo cannot run like that; the message says what to change."""


@frozen(kw_only=True)
class Options:
    """What a user chooses. `turns` None: between 5 and 8, different for each rollout."""

    rollouts: int = 12
    turns: int | None = None
    seed: int = 0
    env: str = MIXED
    kill: Kill = Kill.ALL
    when: When = When.PUBLISHED

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.rollouts <= MAX_ROLLOUTS:
            raise PlanError(f"--rollouts {self.rollouts}: between 1 and {MAX_ROLLOUTS}")
        if self.turns is not None and not 2 <= self.turns <= MAX_TURNS:
            raise PlanError(f"--turns {self.turns}: between 2 and {MAX_TURNS} (a single turn has no boundary)")
        if self.env != MIXED and self.env not in ENVIRONMENTS:
            raise PlanError(f"--env {self.env}: one of {MIXED}, {', '.join(ENVIRONMENTS)}")


@frozen(kw_only=True)
class RolloutPlan:
    """One rollout: `think_s` is how long the policy thinks in each of its turns, in seconds."""

    rollout_id: str
    group: str
    env_id: str
    game_seed: int
    think_s: tuple[float, ...]

    @property
    def turns(self) -> int:
        return len(self.think_s)

    def dispatch(self, position: int) -> Dispatch:
        """The rollout as a trainer hands it out."""
        task = {"env_id": self.env_id, "seed": self.game_seed, "turns": self.turns}
        return Dispatch(self.rollout_id, task, "environment", group=self.group, data_position=position)


@frozen(kw_only=True)
class Plan:
    """The whole job. `checkpoints_at` counts finished turns of the first life: a checkpoint is taken at each.

    `pace` scales all waiting: 1 as planned, 0 without any. `fault`: the number of a rule that is taken out (`faults`).
    """

    seed: int
    rollouts: tuple[RolloutPlan, ...]
    checkpoints_at: tuple[int, ...]
    kill: Kill = Kill.ALL
    when: When = When.PUBLISHED
    stagger_s: float = STAGGER_S
    pace: float = 1.0
    fault: str = ""

    @property
    def groups(self) -> tuple[tuple[RolloutPlan, ...], ...]:
        """The rollouts by group, in the order in which the trainer hands them out."""
        found: dict[str, list[RolloutPlan]] = {}
        for each in self.rollouts:
            found.setdefault(each.group, []).append(each)
        return tuple(map(tuple, found.values()))

    @property
    def turns(self) -> int:
        """Of all rollouts."""
        return sum(each.turns for each in self.rollouts)

    def by_id(self) -> dict[str, RolloutPlan]:
        return {each.rollout_id: each for each in self.rollouts}

    def think_s(self, rollout_id: str, turn: int) -> float:
        """How long the policy thinks in this turn (from 1); nothing for what is not planned."""
        planned = self.by_id().get(rollout_id)
        if planned is None or not 1 <= turn <= planned.turns:
            return 0.0
        return planned.think_s[turn - 1] * self.pace


def make_plan(options: Options) -> Plan:
    """The job of these options; the same for the same options."""
    dice = SeededEntropy(f"demo {options.seed}")
    rollouts: list[RolloutPlan] = []
    for number in range(0, options.rollouts, GROUP_SIZE):
        members = range(min(GROUP_SIZE, options.rollouts - number))
        rollouts += _group(number // GROUP_SIZE, members, options, dice)
    total = sum(each.turns for each in rollouts)
    shares = (0.35, 0.65) if options.when.checkpoint else (0.45,) if options.when is When.LATER else (0.5,)
    at = tuple(max(1, round(total * share)) for share in shares)
    return Plan(seed=options.seed, rollouts=tuple(rollouts), checkpoints_at=at, kill=options.kill, when=options.when)


def _group(number: int, members: Sequence[int], options: Options, dice: Entropy) -> list[RolloutPlan]:
    """One prompt group: the same game with the same start for all members, one of them slower than the others."""
    names = list(ENVIRONMENTS.values())
    env_id = names[number % len(names)] if options.env == MIXED else ENVIRONMENTS[options.env]
    game_seed = int(dice.token_hex(3), 16)
    straggler = int(dice.random() * len(members)) if len(members) > 1 else None
    made = []
    for member in members:
        low, high = DEFAULT_TURNS
        drawn = low + int(dice.random() * (high - low + 1))
        slow = STRAGGLER if member == straggler else 1.0
        shortest, longest = THINK_S
        think = tuple(
            round(slow * (shortest + dice.random() * (longest - shortest)), 3) for _ in range(options.turns or drawn)
        )
        made.append(
            RolloutPlan(
                rollout_id=f"p{number}_g{member}", group=f"p{number}", env_id=env_id, game_seed=game_seed, think_s=think
            )
        )
    return made


# --- in a file


def write_plan(disk: Disk, directory: Path, plan: Plan) -> None:
    """The plan is in `directory`, which exists."""
    with disk.create(directory / PLAN_FILE) as file:
        file.write(canonical(unstructure(plan)) + b"\n")


def read_plan(disk: Disk, directory: Path) -> Plan:
    """The plan that was written there; OSError or a WireError when there is none."""
    value: Any = parse(disk.read(directory / PLAN_FILE))
    return structure(value, Plan)
