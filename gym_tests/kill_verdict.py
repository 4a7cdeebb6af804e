"""What must hold at the end of a kill run on Gym servers, from its files: results, checkpoints, and the model's log.

Turns are counted where they are paid for, at the model. A turn is finished when the next one of its rollout has begun:
whoever goes on from a checkpoint must not ask the model again for one that was finished when the servers stood still,
nor for one that the checkpoint says it holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from participants.files.store import Store
from participants.gym.demo import held_by
from participants.journals.observers import COORDINATOR
from participants.journals.reading import files_in
from participants.journals.replaying import replayed
from participants.records.manifests import CheckpointId
from statecore.seams import SystemClock, SystemDisk, SystemEntropy
from statecore.wire import parse

from .kill_life import CHECKPOINTS, MODEL_LOG, STEPS

Turn = tuple[str, int]
"""A rollout and one of its turns, from 0."""


@frozen
class Begun:
    """One start of the servers: the checkpoint that it went on from, and the model's log by then, in bytes."""

    epoch: int
    base: str | None
    asked: int


@frozen
class Taken:
    """A checkpoint: the model's log, in bytes, when its servers stood still, and what it holds, as it says itself.

    `turns`: of each rollout under way so many. `completed`: the rollouts whose result it has.
    """

    checkpoint_id: str
    epoch: int
    asked: int
    turns: Mapping[str, int]
    completed: frozenset[str]

    def holds(self, done: Iterable[Turn]) -> frozenset[Turn]:
        """What it holds of the turns that were begun."""
        return frozenset(each for each in done if each[0] in self.completed or each[1] < self.turns.get(each[0], 0))


@frozen
class Verdict:
    """All that is not as it must be, in words, and how many held turns the starts went on from, together."""

    found: tuple[str, ...]
    held: int = 0


def examine(home: Path, lives: int, names: Mapping[str, str], expected: Mapping[str, Any] | None) -> Verdict:
    """What came of a run.

    `names` are the rollouts by what the model is asked first, `expected` their results when nothing happens to them.
    """
    path = home / f"ended-{lives}.json"
    if not path.exists():
        return Verdict(("the last life did not come to the end of its rollouts",))
    ended = parse(path.read_bytes())
    if ended["ended"] != "finished":
        return Verdict((f"the last life ended {ended['ended']}: {ended['why']}",))
    log = Log((home / MODEL_LOG).read_bytes(), names)
    found = accounts(starts(home), checkpoints(home), log)
    wrong = (*of_results(ended, set(names.values()), expected), *of_turns(found), *of_steps(home))
    return Verdict(wrong, sum(len(each.held) for each in found))


def of_steps(home: Path) -> Iterator[str]:
    """What coordinator and servers wrote down of their machines' steps is allowed, and both did."""
    disk = SystemDisk()
    done = replayed(files_in(disk, home / STEPS) | files_in(disk, home, COORDINATOR))
    yield from (f"a step that is not allowed: {finding}" for finding in done.findings)
    wrote = {name for name, _ in done.processes}
    if COORDINATOR not in wrote or len(wrote) == 1:
        yield f"of coordinator and servers only {', '.join(sorted(wrote)) or 'nobody'} wrote down what it did"


@frozen
class Log:
    """The model's log: which turns it was asked for between two points of it, given in bytes."""

    text: bytes
    names: Mapping[str, str]

    def between(self, begin: int, end: int | None = None) -> list[Turn]:
        calls = [parse(line) for line in self.text[begin:end].splitlines()]
        return [(self.names[call["task"]], call["turns"]) for call in calls]


def starts(home: Path) -> list[Begun]:
    """The starts of this run, by epoch."""
    found = []
    for path in sorted(home.glob("start-*.json")):
        said = parse(path.read_bytes())
        found.append(Begun(int(path.stem.rpartition("-")[2]), said["base"], said["asked"]))
    return found


def checkpoints(home: Path) -> dict[str, Taken]:
    """The published checkpoints of this run by their ids, each read from its files with every digest checked."""
    store = Store(home / CHECKPOINTS, SystemDisk(), SystemEntropy(), SystemClock())
    return {str(each): _taken(home, store, each) for each in store.published()}


def _taken(home: Path, store: Store, checkpoint_id: CheckpointId) -> Taken:
    stood = parse((home / f"stood-{checkpoint_id}.json").read_bytes())
    turns, completed = held_by(store.read(checkpoint_id))
    return Taken(str(checkpoint_id), checkpoint_id.epoch, stood["asked"], turns, completed)


def of_results(ended: Mapping[str, Any], planned: set[str], expected: Mapping[str, Any] | None) -> Iterator[str]:
    """Each rollout has one result, and it is that of the undisturbed run."""
    results = ended["results"]
    if lost := sorted({*ended["lost"], *planned} - results.keys()):
        yield f"results lost: {', '.join(lost)}"
    if failed := sorted(name for name, each in results.items() if "reward" not in of_episode(each)):
        yield f"ended without a reward: {', '.join(failed)}"
    if not ended["published"]:
        yield f"the last checkpoint did not come about: {ended['stories']}"
    if expected is not None and (other := sorted(name for name in results if results[name] != expected.get(name))):
        yield f"NOT equal to the undisturbed run: {', '.join(other)}"


def of_episode(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a result says of its rollout: an environment server puts it one level down."""
    inner = result.get("result", result)
    return inner if isinstance(inner, dict) else {}


@frozen
class Account:
    """One start: the turns that it went on from, those that it made, and what its checkpoints lack of both."""

    epoch: int
    held: frozenset[Turn]
    made: tuple[Turn, ...]
    lacking: Mapping[str, frozenset[Turn]]


def accounts(begun: Sequence[Begun], taken: Mapping[str, Taken], log: Log) -> list[Account]:
    """The starts one after the other."""
    has: dict[str | None, frozenset[Turn]] = {None: frozenset()}
    found = []
    for start, following in zip(begun, [*begun[1:], None], strict=True):
        lacking = {}
        for each in (each for each in taken.values() if each.epoch == start.epoch):
            begun_by_then = has[start.base] | frozenset(log.between(start.asked, each.asked))
            has[each.checkpoint_id] = each.holds(begun_by_then)
            finished = has[start.base] | {(name, turn - 1) for name, turn in begun_by_then if turn}
            lacking[each.checkpoint_id] = finished - has[each.checkpoint_id]
        made = log.between(start.asked, None if following is None else following.asked)
        found.append(Account(start.epoch, has[start.base], tuple(made), lacking))
    return found


def of_turns(found: Sequence[Account]) -> Iterator[str]:
    """No start redoes what it went on from, none makes a turn twice, and no checkpoint lacks a finished turn."""
    for each in found:
        if again := each.held.intersection(each.made):
            yield f"held turns redone by epoch {each.epoch}: {_told(again)}"
        if twice := {turn for turn, times in Counter(each.made).items() if times > 1}:
            yield f"turns made twice by epoch {each.epoch}: {_told(twice)}"
        for checkpoint_id, turns in each.lacking.items():
            if turns:
                yield f"{checkpoint_id} lacks finished turns: {_told(turns)}"


def _told(turns: Iterable[Turn]) -> str:
    return ", ".join(f"{name} turn {turn}" for name, turn in sorted(turns))
