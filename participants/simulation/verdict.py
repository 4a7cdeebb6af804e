"""What must hold of a simulated job, whatever was done to it. Each check names the invariant that it is about."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Final

from statecore.errors import StatecoreError
from statecore.simulate import ProcessEnded
from statecore.wire import parse

from ..demo.counting import WORK, differences, held_by
from ..demo.lines import Event
from ..demo.trainer import STATE_FILE
from ..files.draft import CHECKPOINT, FRAMEWORK, GYM_MANIFEST, LEDGER, REGISTRY
from ..journals.replaying import replayed
from ..machines.control import Phase
from ..records.records import Disposition
from .continuations import Found, continued, whole_units
from .fleet import Site
from .life import End, Life
from .plan import expected
from .truth import Truth

NOT_FRESH: Final = " restore requires a "
FINISHED: Final = "its result did not arrive in time"
MAY_START_OVER: Final = (
    "left out:",
    FINISHED,
    "no boundary yet",
    "participant_lost",
    "participant lost",
    "turned away",
    "it shares state with",
)
"""Parts of the reasons for which a rollout may be *fresh* in a checkpoint; that its parts do not agree is none, unless
one of its calls got no answer. And nobody has `FINISHED` who has begun, and of whom no result was ever made.
"""

DIGEST: Final = re.compile(r"-[0-9a-f]{64}")
FIXED_FILES: Final = (CHECKPOINT, GYM_MANIFEST, REGISTRY, LEDGER)


def results(site: Site, life: Life) -> Found:
    """Every rollout has its result in the trainer, once, and the undisturbed one. Covers: I11, I57, I63, I68, I74."""
    trainer = life.trainer
    for rollout in trainer.lost():
        yield "I11", f"{rollout} has no result"
    for rollout in sorted(set(trainer.doubled())):
        yield "I68", f"{rollout} was accepted more than once"
    for rollout, what in differences(trainer.results(), expected(site.plan)).items():
        if rollout not in trainer.lost():
            yield "I57", f"{rollout} differs from the undisturbed run: {what}"


def held_turns(truth: Truth) -> Found:
    """No start redoes what it went on from, and none fails to without a fault. Covers: I51, I57, I61."""
    for start in truth.starts:
        failed = truth.not_restored.get(start.epoch)
        if failed is not None:
            if NOT_FRESH in failed:
                yield "I53", f"epoch {start.epoch}: somebody was there before its restore: {failed}"
            if start.calm:
                yield "I57", f"epoch {start.epoch} could not be restored, and there is no fault: {failed}"
            continue
        for done in truth.done:
            held = done.rollout in start.consumed or (done.turn or 0) <= start.turns.get(done.rollout, 0)
            if held and done.epoch == start.epoch and done.event in WORK:
                yield "I57", f"epoch {start.epoch} does {done.event} {done.turn} of {done.rollout} again: it was held"


def done_once(truth: Truth) -> Found:
    """Within one start no step and no turn of an attempt is done twice. Covers: I9, I10, I15."""
    times = Counter(
        (done.epoch, done.rollout, done.attempt, done.event, done.turn)
        for done in truth.done
        if done.event in (Event.STEP, Event.TURN)
    )
    for (epoch, rollout, attempt, event, turn), number in times.items():
        if number > 1:
            yield "I10", f"epoch {epoch}: {event} {turn} of {rollout}-{attempt} was done {number} times"


def generated(truth: Truth) -> Found:
    """No turn is taken, and no step done, but on a generation: what a closed server says is none. Covers: I10, I74."""
    made: set[tuple[int, str, int | None]] = set()
    for done in truth.done:
        turn = done.epoch, done.rollout, done.turn
        if done.event is Event.GENERATION:
            made.add(turn)
        elif done.event in WORK and turn not in made:
            rule = "I74" if done.event is Event.TURN else "I10"
            yield rule, f"epoch {done.epoch}: {done.event} {done.turn} of {done.rollout}, and nobody had generated it"


def attempts(truth: Truth) -> Found:
    """Within one start nothing is done for an attempt once a later one has done something. Covers: I3, I6, I11."""
    newest: dict[tuple[int, str], int] = {}
    for done in truth.done:
        if done.attempt is None or done.event not in (Event.STEP, Event.TURN):
            continue
        key = done.epoch, done.rollout
        if done.attempt < newest.get(key, 0):
            told = f"{done.event} {done.turn} of {done.rollout}-{done.attempt}"
            yield "I6", f"epoch {done.epoch}: {told}, and a later attempt had run"
        newest[key] = max(done.attempt, newest.get(key, 0))


def epochs(truth: Truth) -> Found:
    """Two starts never share an epoch. Covers: I96."""
    for epoch, number in Counter(start.epoch for start in truth.starts).items():
        if number > 1:
            yield "I96", f"epoch {epoch} was started {number} times"


def stood_still(truth: Truth) -> Found:
    """While a checkpoint that came about was being written, nothing moved. Covers: I17, I24, I32."""
    for checkpoint_id, end in truth.moved.items():
        begin, epoch = truth.still[checkpoint_id], int(checkpoint_id.split("-")[1])
        for done in truth.done[begin:end]:
            if done.epoch == epoch and done.event in (Event.STEP, Event.TURN):
                yield "I24", f"{checkpoint_id}: {done.event} {done.turn} of {done.rollout} while it was written"


def checkpoints(site: Site) -> Found:
    """What could be gone on from is whole, and lacks no turn that was finished when everything stood still.

    That no rollout is completed and resumable (I65) is a part of being whole: the reader refuses one that is.

    Covers: I34, I35, I41, I42, I43, I44, I49, I59, I65, I81, I82, I86, I99.
    """
    truth, store = site.truth, site.reader()
    try:
        candidates = store.survey().candidates
    except StatecoreError as error:
        yield "I44", str(error)
        return
    for checkpoint_id in candidates:
        name = str(checkpoint_id)
        try:
            checkpoint = store.read(checkpoint_id)
        except StatecoreError as error:
            yield "I44", f"{name} cannot be read: {error}"
            continue
        yield from continued(name, checkpoint, site.network.heard)
        yield from whole_units(name, checkpoint)
        held = held_by(checkpoint)
        attempts = {row.rollout_id: row.attempt for row in checkpoint.registry}
        fresh = [row for row in checkpoint.registry if row.disposition is Disposition.FRESH]
        before = [done for done in truth.done[: truth.moved.get(name)] if done.epoch == checkpoint_id.epoch]
        begun = {(done.rollout, done.attempt) for done in before}
        finished = {(done.rollout, done.attempt) for done in before if done.event is Event.RESULT}
        for row in fresh:
            excused = any(each in row.reason for each in MAY_START_OVER)
            if FINISHED in row.reason and (row.rollout_id, row.attempt) in begun - finished:
                excused = False
            if not excused and row.episode.key not in site.network.disturbed:
                yield "I35", f"{name}: {row.rollout_id} starts over: {row.reason}"
        for done in truth.done[: truth.still.get(name, 0)]:
            if done.epoch == checkpoint_id.epoch and done.event is Event.TURN and done.turn is not None:
                if done.attempt != attempts.get(done.rollout):
                    continue
                over = any(row.rollout_id == done.rollout for row in fresh)
                if not over and not held.has((done.rollout, done.turn)):
                    yield "I34", f"{name} lacks turn {done.turn} of {done.rollout}, finished before it was written"
    for name, files in truth.contents.items():
        for path, content in truth.files(name, store).items():
            if files.get(path) != content:
                yield "I43", f"{path} of {name} has changed since its publication"


def one_moment(truth: Truth) -> Found:
    """No trainer's state that was published has a result which the ledger beside it lacks. Covers: I84."""
    for name, files in truth.contents.items():
        held = {path.partition(f"/{name}/")[2]: content for path, content in files.items()}
        rows = map(parse, held[LEDGER].splitlines())
        results = {row["rollout_id"] for row in rows if row["receipt"] is not None}
        accepted = {each["rollout_id"] for each in parse(held[f"{FRAMEWORK}/{STATE_FILE}"])["accepted"]}
        for rollout in sorted(accepted - results):
            yield "I84", f"the trainer's state of {name} has consumed {rollout}, and the ledger has no result of it"


def few_files(truth: Truth) -> Found:
    """A checkpoint has two files for each server, and a fixed number beside the trainer's. Covers: I50.

    Where a disk has failed, what a failed commit has left over is no file more: a digest or a dot in its name.
    """
    failed = truth.simulation.counts["disk faults"]
    for name, files in truth.contents.items():
        held = {path.partition(f"/{name}/")[2]: content for path, content in files.items()}
        servers = len(parse(held[CHECKPOINT])["participants"])
        others = {path for path in held if not path.startswith(f"{FRAMEWORK}/")}
        if failed:
            others = {DIGEST.sub("", path) for path in others if "/." not in f"/{path}"}
        if len(others) > len(FIXED_FILES) + 2 * servers:
            yield "I50", f"{name} has {len(others)} files of {servers} servers: {', '.join(sorted(others))}"


def weights(lives: list[Life]) -> Found:
    """A policy version names one set of weights, over all lives of the trainer. Covers: I89."""
    known: dict[tuple[int, int], tuple[str, ...]] = {}
    for life in lives:
        for version, trained_on in sorted(life.trainer.weights):
            if known.setdefault(version, trained_on) != trained_on:
                yield "I89", f"{life.process.name} has other weights of version {version} than there were"


def coordinators(truth: Truth, lives: list[Life]) -> Found:
    """The last life finishes the job; whoever was overtaken by it does not end as if it had finished. Covers: I98."""
    if lives[-1].end is not End.FINISHED:
        yield "I20", f"the last life, {lives[-1].process.name}, ended {lives[-1].end}: {lives[-1].why}"
    for each in lives:
        if each.end is End.FINISHED and each.published in truth.too_late:
            yield "I98", f"{each.process.name} was overtaken before {each.published}, and ended as if it were not"


def journals(site: Site) -> Found:
    """What all processes wrote down is what their tables allow, and no invariant is broken in it.

    A process that somebody else has brought back begins in the epoch of the one before it, and is found out by that.

    Covers: I3, I6, I8, I11, I13, I14, I16, I17, I24, I33, I36, I41, I54, I65, I67, I68, I96.
    """
    written = {f"{who}.jsonl": b"".join(lines) for who, lines in site.simulation.history.journals.items()}
    for finding in replayed(written).findings:
        if finding.rule == "I96" and finding.place.file.removesuffix(".jsonl") in site.brought_back:
            continue
        yield finding.rule, f"in the journal {finding.place}: {finding.problem}"


def of_their_start(site: Site) -> Found:
    """No server changes its phase for another start's checkpoint; one that somebody brought back, empty, stays shut.

    Unless nothing is lost: the processes before it had not been opened yet. Covers: S59, S66.
    """
    opened: set[str] = set()
    for process, lines in site.simulation.history.journals.items():
        for line in map(parse, (each for each in lines if b'"machine":"participant"' in each)):
            if line["state"] == line["next"]:
                continue
            named, epoch = line["ids"]["checkpoint_id"], line["ids"]["epoch"]
            told = f"{process}, of epoch {epoch}, is {line['next']} for {named}"
            if named is not None and int(named.split("-")[1]) != epoch:
                yield "S59", told
            place = process.partition(".")[0]
            if process in site.brought_back and line["state"] == Phase.BORN.value and place in opened:
                yield "S66", f"{told}, and was brought back with nothing in it"
            if line["next"] == Phase.IDLE.value:
                opened.add(place)


def servers(site: Site) -> Found:
    """No server lets an exception out."""
    for each in site.network.inner.errors:
        if not isinstance(each.error, ProcessEnded):
            yield "exception", f"{each.server}, {each.where}: {type(each.error).__name__}: {each.error}"


OF_TRUTH: Final[tuple[Callable[[Truth], Found], ...]] = (
    held_turns,
    done_once,
    generated,
    attempts,
    epochs,
    stood_still,
    one_moment,
    few_files,
)


def examine(site: Site, lives: list[Life]) -> Found:
    """All that is not as it must be."""
    if lives[-1].end is End.FINISHED:
        yield from results(site, lives[-1])
    for check in OF_TRUTH:
        yield from check(site.truth)
    yield from checkpoints(site)
    yield from weights(lives)
    yield from coordinators(site.truth, lives)
    yield from journals(site)
    yield from of_their_start(site)
    yield from servers(site)
