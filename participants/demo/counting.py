"""The numbers at the end of the demo: counted from the servers' journals and the checkpoint in force. Pure.

A turn is *held* when the checkpoint in force has it, *redone* when any server's journal shows it in a later life than
the one that crashed: the policy answered it, the game took its step or the agent finished it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from statecore.wire import canonical, parse

from ..coordination import recovery
from ..files.checkpoint import Checkpoint
from ..records.records import AgentBoundary, AgentRecord, Disposition, EnvironmentBoundary, EnvironmentRecord
from .lines import Event, Line

Turn = tuple[str, int]
"""A rollout and one of its turns, from 1."""

WORK = frozenset({Event.GENERATION, Event.STEP, Event.TURN})


@frozen
class Held:
    """What the checkpoint in force has: finished turns of each rollout it knows, and whose result it has."""

    turns: Mapping[str, int]
    completed: frozenset[str]

    def has(self, turn: Turn) -> bool:
        return turn[1] <= self.turns.get(turn[0], 0)


NOTHING_HELD = Held({}, frozenset())


@frozen
class Numbers:
    """What a crash cost.

    `held_redone`: held turns that ran again. `lost`: turns that were finished and not held. `without`: finished turns
    of rollouts whose result was not safe, all to be redone had there been no checkpoint.
    """

    held_redone: tuple[Turn, ...]
    lost: tuple[Turn, ...]
    without: tuple[Turn, ...]


def numbers(at_crash: Iterable[Line], in_the_end: Iterable[Line], held: Held) -> Numbers:
    """The numbers, from the journals as they were at the crash and as they are in the end.

    What servers of the first life, left to themselves, did after the crash counts for nothing: nobody asked for it.
    """
    at_crash = tuple(at_crash)
    crashed_epoch = max((line.epoch for line in at_crash), default=0)
    before = {_turn(line) for line in at_crash if line.event is Event.TURN}
    after = {_turn(line) for line in in_the_end if line.event in WORK and line.epoch > crashed_epoch}
    return Numbers(
        held_redone=tuple(sorted(turn for turn in after if held.has(turn))),
        lost=tuple(sorted(turn for turn in before if not held.has(turn))),
        without=tuple(sorted(turn for turn in before if turn[0] not in held.completed)),
    )


def with_live(held: Held, verdicts: Iterable[recovery.Verdict], turns: Mapping[str, int]) -> Held:
    """What a restart under a living coordinator goes on from: a result that it has counts, whenever it came."""
    completed = {each.rollout_id for each in verdicts if each.disposition is Disposition.COMPLETED}
    return Held({**held.turns, **{name: turns[name] for name in completed}}, held.completed | completed)


def _turn(line: Line) -> Turn:
    if line.turn is None:
        raise ValueError(f"a line of {line.server} about {line.rollout} names no turn")
    return line.rollout, line.turn


def held_by(checkpoint: Checkpoint | None) -> Held:
    """What a checkpoint, read with its records, has; nothing without one."""
    if checkpoint is None:
        return NOTHING_HELD
    agents = _by_rollout(checkpoint, "agent", AgentRecord)
    environments = _by_rollout(checkpoint, "environment", EnvironmentRecord)
    turns: dict[str, int] = {}
    for row in checkpoint.registry:
        name = row.rollout_id
        if row.disposition is Disposition.COMPLETED:
            turns[name] = int(row.task["turns"])  # its body is let go once the trainer has saved it
        elif row.disposition is Disposition.CONTINUE:
            turns[name] = _continued(agents.get(name), environments.get(name))
    completed = frozenset(row.rollout_id for row in checkpoint.registry if row.disposition is Disposition.COMPLETED)
    return Held(turns, completed)


def _by_rollout(checkpoint: Checkpoint, kind: str, cls: type[Any]) -> dict[str, Any]:
    records = (record for part in checkpoint.of_kind(kind) for record in part.typed)
    return {record.episode_id.rollout_id: record for record in records if isinstance(record, cls)}


def _continued(agent: AgentRecord | None, environment: EnvironmentRecord | None) -> int:
    """The turns at the boundary that a rollout goes on from: in the agent's state, or in an answer already given."""
    if agent is not None:
        boundary = None if agent.boundary is None else AgentBoundary.read(agent.boundary)
        if boundary is not None and boundary.state is not None:
            return int(boundary.state["turns"])
        if agent.session is not None and agent.session.get("reply") is not None:
            return int(parse(agent.session["reply"]["body"])["turns"])
    steps = None if environment is None else EnvironmentBoundary.read(parse(canonical(environment.boundary)))
    for done in () if steps is None else steps.results:
        if done["step"] == "activate agent":
            return int(done["result"]["turns"])
    return 0


# --- equal


def differences(results: Mapping[str, Any], undisturbed: Mapping[str, Any]) -> dict[str, str]:
    """By rollout, what differs from the undisturbed run: the reward, the conversation, the environment's state.

    A result holds no generated id, so that everything in it is compared, as canonical JSON.
    """
    found: dict[str, str] = {}
    for name in sorted({*results, *undisturbed}):
        ours, theirs = results.get(name), undisturbed.get(name)
        if ours is None or theirs is None:
            found[name] = f"no result {'here' if ours is None else 'in the undisturbed run'}"
        elif canonical(ours) != canonical(theirs):
            found[name] = _difference(ours, theirs)
    return found


def _difference(ours: Any, theirs: Any) -> str:
    if ours["reward"] != theirs["reward"]:
        return f"reward {ours['reward']:g} instead of {theirs['reward']:g}"
    if ours["messages"] != theirs["messages"]:
        at = next(
            (i for i, (a, b) in enumerate(zip(ours["messages"], theirs["messages"], strict=False)) if a != b),
            min(len(ours["messages"]), len(theirs["messages"])),
        )
        return f"conversation from message {at + 1} on"
    return "environment state" if ours["state"] != theirs["state"] else "result"


# --- in words


@frozen(kw_only=True)
class Verdict:
    """What the demo shows in the end."""

    numbers: Numbers
    lost_results: tuple[str, ...] = ()
    doubled_results: tuple[str, ...] = ()
    differences: Mapping[str, str]
    not_allowed: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """No held turn ran again, no result is lost or doubled, all is equal, and every step was allowed."""
        results = self.lost_results or self.doubled_results or self.differences
        return not (self.numbers.held_redone or results or self.not_allowed)

    def line(self) -> str:
        """The last line."""
        numbers = self.numbers
        equal = "equal to the undisturbed run"
        if self.differences:
            told = [f"{name}: {what}" for name, what in self.differences.items()]
            more = f"; and {len(told) - 3} more" if len(told) > 3 else ""
            equal = f"NOT {equal}: {'; '.join(told[:3])}{more}"
        return (
            f"turns redone: {len(numbers.held_redone)} held by the checkpoint, {len(numbers.lost)} finished after it "
            f"(without checkpoints: {len(numbers.without)}); results lost {len(self.lost_results)}, "
            f"doubled {len(self.doubled_results)}; {equal}"
            + (f"; a step that is NOT allowed: {self.not_allowed[0]}" if self.not_allowed else "")
        )
