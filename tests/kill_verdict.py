"""What must hold at the end of a kill run, from its files: journals, checkpoints and results; and who still answers."""

from __future__ import annotations

import json
import math
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from participants.demo.counting import WORK, Held, differences, held_by
from participants.demo.lines import Event, Line, read_journals
from participants.demo.servers import JOURNALS, MODULES, STEPS
from participants.demo.worlds import CHECKPOINTS
from participants.files.store import Store
from participants.identity import EPOCH_HEADER
from participants.journals.observers import COORDINATOR
from participants.journals.reading import files_in
from participants.journals.replaying import replayed
from participants.net.client import CONTROL_PREFIX
from statecore.errors import StatecoreError
from statecore.seams import SystemClock, SystemDisk, SystemEntropy
from statecore.wire import parse
from tests.kill_life import DEADLINE_S, LEASE_GRACE_S, OPEN

SLACK_S: Final = 5.0
"""For a machine that has other things to do than to run a server's timer."""


@frozen
class Begun:
    """One start of the servers: what its checkpoint holds, and what the trainer had before it."""

    epoch: int
    turns: Mapping[str, int]
    consumed: frozenset[str]


def examine(home: Path, lives: int, expected: Mapping[str, Any]) -> tuple[str, ...]:
    """All that is not as it must be, in words; nothing if everything is."""
    ended_file = home / f"ended-{lives}.json"
    if not ended_file.exists():
        return ("the last life did not come to the end of its job",)
    ended = parse(ended_file.read_bytes())
    if ended["ended"] != "finished":
        return (f"the last life ended {ended['ended']}: {ended.get('why')}",)
    disk = SystemDisk()
    lines = read_journals(disk, home / JOURNALS)
    return (
        *of_the_end(ended, expected),
        *of_journals(lines, starts(home)),
        *of_checkpoints(
            Store(home / CHECKPOINTS, disk, SystemEntropy(), SystemClock()), starts(home), lines, stood_still(home)
        ),
        *of_zombies(home, lives),
        *of_steps(home),
    )


def of_steps(home: Path) -> Iterator[str]:
    """What the processes wrote down of their machines' steps is allowed, and there is something of every server."""
    disk = SystemDisk()
    done = replayed(files_in(disk, home / STEPS) | files_in(disk, home, COORDINATOR))
    yield from (f"a step that is not allowed: {finding}" for finding in done.findings)
    silent = {COORDINATOR, *MODULES} - {"judge"} - {name for name, _ in done.processes}
    if silent:
        yield f"nothing was written down by {', '.join(sorted(silent))}"


def starts(home: Path) -> list[Begun]:
    """The starts of this run, by epoch."""
    found = []
    for path in sorted(home.glob("start-*.json")):
        said = parse(path.read_bytes())
        found.append(Begun(int(path.stem.rpartition("-")[2]), said["turns"], frozenset(said["consumed"])))
    return found


def of_the_end(ended: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    """Results and servers, as the last life left them."""
    if ended["lost"]:
        yield f"results lost: {', '.join(ended['lost'])}"
    if ended["doubled"]:
        yield f"results doubled: {', '.join(ended['doubled'])}"
    different = differences(ended["results"], expected)
    if different:
        yield "NOT equal: " + "; ".join(f"{name}: {what}" for name, what in different.items())
    if not ended["published"]:
        yield f"the last checkpoint did not come about: {ended['stories']}"
    closed = {name: phase for name, phase in ended["servers"].items() if phase != OPEN}
    if closed:
        yield f"servers left closed: {closed}"


def of_journals(lines: Iterable[Line], begun: Iterable[Begun]) -> Iterator[str]:
    """No start redoes what it went on from; within one start no step of a game and no turn is done twice."""
    lines = tuple(lines)
    for each in begun:
        again = sorted(
            {
                f"{line.rollout} turn {line.turn}"
                for line in lines
                if line.epoch == each.epoch
                and line.event in WORK
                and (line.rollout in each.consumed or (line.turn or 0) <= each.turns.get(line.rollout, 0))
            }
        )
        if again:
            yield f"held turns redone by epoch {each.epoch}: {', '.join(again)}"
    done = Counter(
        (line.epoch, line.event.value, line.rollout, line.attempt, line.turn)
        for line in lines
        if line.event in (Event.STEP, Event.TURN)
    )
    twice = sorted(str(key) for key, times in done.items() if times > 1)
    if twice:
        yield f"done twice: {', '.join(twice)}"


def of_checkpoints(
    store: Store, begun: Iterable[Begun], lines: Iterable[Line], stood: Mapping[str, float]
) -> Iterator[str]:
    """The newest checkpoint is the last start's, whatever might be gone on from can be read, and lacks nothing."""
    survey, lines = store.survey(), tuple(lines)
    last = max(each.epoch for each in begun)
    if not survey.candidates or survey.candidates[0].epoch != last:
        yield f"in force is {survey.candidates[:1]}, not one of epoch {last}"
    for each in survey.candidates:
        try:
            held = held_by(store.read(each))
        except StatecoreError as error:
            yield f"{each} cannot be read: {error}"
        else:
            yield from lacking(str(each), held, [line for line in lines if line.epoch == each.epoch], stood[str(each)])


def stood_still(home: Path) -> dict[str, float]:
    """When each checkpoint began to be written, by id: its participants were closed and quiet by then."""
    found = {}
    for path in home.glob("coordinator-*.jsonl"):
        for said in journal_of(path):
            if said["machine"] == "transaction" and (said["state"], said["next"]) == ("preparing", "committing"):
                found[said["ids"]["checkpoint_id"]] = float(said["clock"])
    return found


def lacking(checkpoint: str, held: Held, lines: Iterable[Line], stood: float) -> Iterator[str]:
    """The turns that its life had finished when everything stood still, and that it does not hold."""
    done = {(line.rollout, line.turn or 0) for line in lines if line.event is Event.TURN and line.ts < stood}
    lacks = sorted(f"{rollout} turn {turn}" for rollout, turn in done if not held.has((rollout, turn)))
    if lacks:
        yield f"{checkpoint} lacks finished turns: {', '.join(lacks)}"


def of_zombies(home: Path, lives: int) -> Iterator[str]:
    """Whoever was stopped and woken says that it was overtaken, unless it had done its last checkpoint before that."""
    for number in range(1, lives):
        path = home / f"ended-{number}.json"
        if not path.exists() or parse(path.read_bytes())["ended"] != "finished":
            continue
        said = [each for each in journal_of(home / f"coordinator-{number}.jsonl") if each["machine"] == "transaction"]
        own = max((each["ids"]["epoch"] for each in said), default=0)
        last = max((float(each["clock"]) for each in said), default=0.0)
        if last > claimed_after(home / CHECKPOINTS, own):
            yield f"life {number} was stopped, had a successor, and ended as if it had none"


def claimed_after(root: Path, epoch: int) -> float:
    """When the first claim after this epoch was made; infinity if there is none."""
    claims = (parse(path.read_bytes()) for path in root.glob("epoch-[0-9]*[0-9].json"))
    return min((float(each["claimed_ts"]) for each in claims if each["epoch"] > epoch), default=math.inf)


def journal_of(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a coordinator's journal; what follows the last newline is nothing, or torn."""
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
        yield parse(line)


@frozen
class Orphans:
    """The servers of a life whose coordinator was killed; they open by their leases, all by themselves."""

    home: Path
    life: int
    since: float

    def closed(self, token: str) -> Iterator[str]:
        """Those that have not opened within deadline and grace of their coordinator's death."""
        newest = max(
            (path for path in self.home.glob("start-*.json") if parse(path.read_bytes())["life"] == self.life),
            default=None,
        )
        if newest is None:
            return
        epoch = newest.stem.rpartition("-")[2]
        urls = parse((self.home / f"servers-{epoch}.json").read_bytes())
        end = self.since + DEADLINE_S + LEASE_GRACE_S + SLACK_S
        left = dict(urls)
        while left:
            phases = {name: _phase(url, token, int(epoch)) for name, url in left.items()}
            left = {name: url for name, url in left.items() if phases[name] not in (OPEN, "gone")}
            if left and time.monotonic() > end:
                yield f"servers of life {self.life} still closed after deadline and grace: " + str(
                    {name: phases[name] for name in left}
                )
                return
            time.sleep(0.1 if left else 0)


def _phase(url: str, token: str, epoch: int) -> str:
    headers = {"authorization": f"Bearer {token}", EPOCH_HEADER: str(epoch)}
    request = urllib.request.Request(f"{url}{CONTROL_PREFIX}/checkpoint/status", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as reply:
            return str(json.loads(reply.read()).get("phase"))
    except urllib.error.HTTPError as error:
        return OPEN if error.code == 404 else f"status {error.code}"
    except (OSError, ValueError) as error:
        return "gone" if "refused" in str(error) else str(error)
