"""What a seed makes of a job: its rollouts, how long they think, when it is saved, and what is done to it.

And what every rollout must come to: players and game are pure functions, so nothing has to be run for that.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from attrs import evolve, frozen

from statecore.simulate import Dice

from ..coordination.stragglers import Stragglers
from ..demo.agent_server import Chat
from ..demo.moments import Moment
from ..demo.plan import Plan, RolloutPlan
from ..demo.players import judge_says, policy_says
from .game import Walk, step_seen, verdict
from .network import Weather

ROLLOUTS: Final = (1, 2, 2, 3)
TURNS: Final = (2, 4)
THINKS_S: Final = (0.05, 1.0)
ENV_ID: Final = "walk"
BLOWS: Final = (1, 4)
MAX_SKEW_S: Final = 2.0
MAX_DRIFT: Final = 1e-4


class Blow(StrEnum):
    """What is done to a job, at one moment.

    ALL: power is lost everywhere. COORDINATOR: it alone dies. SERVER: one of them dies. ZOMBIE: the coordinator is cut
    off for a while, is taken for dead, and comes back beside its successor. CUT: two processes do not hear each other
    for a while. ALONE: one server is heard by nobody for a while.
    """

    ALL = "all"
    COORDINATOR = "coordinator"
    SERVER = "server"
    ZOMBIE = "zombie"
    CUT = "cut"
    ALONE = "alone"


CRASHES: Final = (Blow.ALL, Blow.COORDINATOR, Blow.SERVER)
OFTEN: Final = (*CRASHES, Blow.ZOMBIE, *Blow)


class Trigger(StrEnum):
    """What a blow waits for: so many messages, so many operations of disks, or a moment of a checkpoint."""

    MESSAGES = "messages"
    DISK = "disk"
    MOMENT = "moment"


@frozen(kw_only=True)
class Strike:
    """One blow. `number` counts from the blow before: messages or operations, or checkpoints begun until `moment`."""

    blow: Blow
    trigger: Trigger
    number: int
    moment: Moment = Moment.FREEZE
    seconds: float = 0.0


class Supervision(StrEnum):
    """What becomes of a server that died alone.

    TOLD: the launcher knows. SILENT: nobody is told. BROUGHT_BACK: somebody starts it again, empty, and tells nobody.
    """

    TOLD = "told"
    SILENT = "silent"
    BROUGHT_BACK = "brought back"


class Mistake(StrEnum):
    """What is wrong with one participant of the first start; it is set right when that start has failed.

    NO_TOKEN: its configuration has none. CLOCK: its clock is an hour off.
    """

    NO_TOKEN = "no token"
    CLOCK = "clock"


MISTAKES: Final = (None,) * 8 + tuple(Mistake)


@frozen(kw_only=True)
class Adversity:
    """All that is done to one job."""

    weather: Weather
    strikes: tuple[Strike, ...]
    disk_fails: float
    supervision: Supervision
    keeps_results: bool
    saves_s: float
    looks_for_marks: bool
    max_running: int
    keep_checkpoints: int | None
    every_s: tuple[float, float]
    stragglers: tuple[Stragglers, ...]


def draw_plan(dice: Dice) -> Plan:
    """The rollouts, in groups of one to three; one in five has a turn that takes long."""
    rollouts: list[RolloutPlan] = []
    wanted = dice.pick(ROLLOUTS)
    while len(rollouts) < wanted:
        group, game_seed = f"p{len(rollouts)}", dice.whole(0, 1 << 20)
        for member in range(min(dice.pick((1, 1, 2, 3)), wanted - len(rollouts))):
            slow = dice.pick((1.0, 1.0, 1.0, 1.0, 10.0))
            think = tuple(round(slow * dice.between(*THINKS_S), 3) for _ in range(dice.whole(*TURNS)))
            name = f"{group}_g{member}"
            rollouts.append(
                RolloutPlan(rollout_id=name, group=group, env_id=ENV_ID, game_seed=game_seed, think_s=think)
            )
    return Plan(
        seed=dice.whole(0, 1 << 20), rollouts=tuple(rollouts), checkpoints_at=(1,), stagger_s=dice.pick((0.0, 1.0, 5.0))
    )


def draw_adversity(dice: Dice) -> Adversity:
    """Whatever the blows are: a job that comes to its end without any crash has one there."""
    strikes = [_strike(dice, dice.pick(OFTEN)) for _ in range(dice.whole(*BLOWS))]
    choices = (Stragglers.ABORT, Stragglers.LEAVE_OUT, Stragglers.RETIRE)
    shortest = dice.between(1.0, 8.0)
    return Adversity(
        weather=Weather.drawn(dice),
        strikes=tuple(strikes),
        disk_fails=dice.pick((0.0, 0.0, 0.002, 0.01)),
        supervision=dice.pick(tuple(Supervision)),
        keeps_results=dice.chance(0.3),
        saves_s=dice.pick((0.0, 0.0, 0.4, 4.0)),
        looks_for_marks=dice.chance(0.25),
        max_running=dice.pick((1, 99, 99)),
        keep_checkpoints=dice.pick((None, 2, 3)),
        every_s=(shortest, shortest * dice.pick((1.0, 3.0))),
        stragglers=(Stragglers.ABORT,) if dice.chance(0.5) else choices,
    )


def _strike(dice: Dice, blow: Blow) -> Strike:
    trigger = dice.pick(tuple(Trigger))
    number = {Trigger.MESSAGES: (1, 70), Trigger.DISK: (1, 120), Trigger.MOMENT: (1, 2)}[trigger]
    return Strike(
        blow=blow,
        trigger=trigger,
        number=dice.whole(*number),
        moment=dice.pick(tuple(Moment)),
        seconds=dice.between(0.5, dice.pick((6.0, 40.0))) if blow in (Blow.ZOMBIE, Blow.CUT, Blow.ALONE) else 0.0,
    )


# --- what must come of it


def expected(plan: Plan) -> dict[str, Any]:
    """The result of every rollout, as the environment of an undisturbed job gives it."""
    return {each.rollout_id: _result(plan, each) for each in plan.rollouts}


def _result(plan: Plan, rollout: RolloutPlan) -> dict[str, Any]:
    walk, name = Walk(rollout.game_seed), rollout.rollout_id
    chat = Chat.start({"env_id": rollout.env_id, "seen": walk.seen()})
    for _ in range(rollout.turns):
        said = policy_says(plan.seed, {"user": name, "messages": chat.messages})
        before, walk = walk, walk.after(chat.actions[said])
        seen = step_seen(before, walk)
        told = f"Reward {seen['reward']:g}. {seen['text']}"
        if walk.over:
            walk = evolve(walk, resets=walk.resets + 1)
            seen = walk.seen()
            told = f"{told} Another one begins. {seen['text']}"
        chat = chat.after(said, told, seen["actions"])
    score, last = int(judge_says(plan.seed, {"user": name, "messages": chat.messages})), verdict(walk)
    return {
        "reward": last["reward"] + score / 10,
        "score": score,
        "turns": chat.turns,
        "messages": chat.messages,
        "state": last["state"],
    }
