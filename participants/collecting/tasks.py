"""What is to be collected: a file with one task in a line, each of them run as often as is asked for.

A line is a JSON object as Gym's datasets have it. Which server runs it: the line's own `agent_ref` or
`_ng_environment_server`, else the target that was given. The rollout id is ``<line>-<repeat>``, both from 0, as Gym's
own collector counts; so it derives from the data position, and is the same in every life (S40). Values only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from attrs import field, frozen

from statecore.errors import StatecoreError, WireError
from statecore.wire import digest, parse

from ..coordination.trainer import Dispatch

TASK_INDEX: Final = "_ng_task_index"
ROLLOUT_INDEX: Final = "_ng_rollout_index"
ROLLOUT_ID: Final = "_ng_rollout_id"
ATTEMPT_INDEX: Final = "_ng_attempt_index"
TASK_ID: Final = "_ng_task_id"
AGENT_REF: Final = "agent_ref"
ENVIRONMENT_SERVER: Final = "_ng_environment_server"
RESERVED: Final = frozenset({TASK_INDEX, ROLLOUT_INDEX, ROLLOUT_ID, ATTEMPT_INDEX})
"""The collector numbers the tasks; a line that has one of these was numbered by somebody else."""


class InputError(StatecoreError):
    """The tasks cannot be collected as they are; the message says which line, and why. Nothing has run."""


@frozen
class Tasks:
    """All that is to be run, in order: each line `repeats` times, one after the other.

    `relays` are names that a line may have for a server, and the server that is meant.
    """

    lines: tuple[Mapping[str, Any], ...]
    repeats: int
    target: str
    relays: Mapping[str, str] = field(factory=dict)

    def __len__(self) -> int:
        return len(self.lines) * self.repeats

    def position(self, number: int) -> tuple[int, int]:
        """The line and the repeat that rollout `number` is."""
        return divmod(number, self.repeats)

    def rollout_id(self, number: int) -> str:
        """Its id, for life."""
        index, repeat = self.position(number)
        return f"{index}-{repeat}"

    def dispatch(self, number: int) -> Dispatch:
        """What the coordinator is told of it. An episode request has two keys only; all else is sent as the line is."""
        index, repeat = self.position(number)
        line = self.lines[index]
        task = (
            {"task_id": line["task_id"], "task_input": line["task_input"]}
            if is_episode_task(line)
            else {**line, TASK_INDEX: index, ROLLOUT_INDEX: repeat}
        )
        position = {"task": index, "repeat": repeat}
        return Dispatch(self.rollout_id(number), task, self.target_of(line), data_position=position)

    def target_of(self, line: Mapping[str, Any]) -> str:
        """The server that runs it."""
        target = named_target(line) or self.target
        return self.relays.get(target, target)

    @property
    def digest(self) -> str:
        """Names these tasks; `relays` are no part of it."""
        return digest([list(self.lines), self.repeats, self.target])

    @property
    def targets(self) -> tuple[str, ...]:
        """The servers that tasks go to, each once, in order."""
        return tuple(dict.fromkeys(map(self.target_of, self.lines)))


def is_episode_task(line: Mapping[str, Any]) -> bool:
    """Whether a line is a task of Gym's episode form, which environment servers take."""
    return "task_id" in line and "task_input" in line


def named_target(line: Mapping[str, Any]) -> str:
    """The server that the line itself names, or ""."""
    named = line.get(ENVIRONMENT_SERVER)
    if named is None and isinstance(agent := line.get(AGENT_REF), Mapping):
        named = agent.get("name")
    return named if isinstance(named, str) else ""


def read_tasks(
    text: bytes,
    *,
    repeats: int = 1,
    limit: int | None = None,
    target: str = "",
    relays: Mapping[str, str] | None = None,
) -> Tasks:
    """The tasks in `text`; `limit` takes the first so many lines. InputError names the first line that is none."""
    if repeats < 1 or (limit is not None and limit < 1):
        raise InputError("a task is run at least once, and at least one task is taken")
    lines: list[Mapping[str, Any]] = []
    for number, line in enumerate(_lines(text), start=1):
        if limit is not None and len(lines) == limit:
            break
        lines.append(_task(line, number, target))
    if not lines:
        raise InputError("there is no task in it")
    return Tasks(tuple(lines), repeats, target, dict(relays or {}))


def _lines(text: bytes) -> Iterator[bytes]:
    return (line for line in text.split(b"\n") if line.strip())


def _task(line: bytes, number: int, target: str) -> Mapping[str, Any]:
    try:
        task = parse(line)
    except WireError as error:
        raise InputError(f"task {number} is no JSON: {error}") from error
    if not isinstance(task, dict):
        raise InputError(f"task {number} is no JSON object")
    if numbered := sorted(RESERVED & task.keys()):
        raise InputError(f"task {number} has {', '.join(numbered)}, which the collector gives")
    if not (named_target(task) or target):
        raise InputError(f"task {number} names no server ({AGENT_REF} or {ENVIRONMENT_SERVER}), and no target is given")
    return task

