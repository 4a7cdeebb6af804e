"""One life of a coordinator: its epoch, its servers, its ledger, and the few things that all of its tasks share.

Rules (docs/reference/protocol.md sections 6, 9 and 11): ids of a life strictly increase; while the door is closed
nothing is dispatched; the framework's hooks are called one at a time, so no result enters its state between the reading
of the ledger and the end of its save (I84); acknowledging is decided by what is saved, from the servers' lists (S35).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx
import trio
from attrs import define, evolve, field, frozen, validators

from statecore.errors import StatecoreError
from statecore.journal import Journal
from statecore.seams import on_disk
from statecore.wire import structure

from ..files.store import Store
from ..journals.observers import COORDINATOR
from ..journals.recorder import StepRecorder
from ..machines.fencing import own_id
from ..net.client import ControlError, Retries
from ..records.manifests import CheckpointId
from ..records.records import Receipt
from ..settings import Seams
from .deployment import Deployment, Member
from .failure_detector import FailureDetector
from .housekeeping import Housekeeping
from .ledger import Ledger
from .retirement import Retirements
from .stragglers import Stragglers
from .trainer import Trainer

log = logging.getLogger("statecore.coordinator")

T = TypeVar("T")


@frozen(kw_only=True)
class CoordinatorSettings:
    """The bounds of a coordinator. Times are in seconds; every wait in a checkpoint is below one of them.

    `settle_share`: which part of the time left to a checkpoint may be spent on waiting for results that are on their
    way. `run_patience_s`: how long a `/run` is sent again without getting anywhere, outside of checkpoints; longer than
    the servers' lease grace. `loud_after`: so many failed checkpoints in a row are reported as an error.
    `probe_every_s`: how often each participant is asked whether it lives; after `probe_misses` such periods without an
    answer it is dead. `restart_tries`: how often a restart of the servers is tried, `restart_delay_s` apart. After
    `restart_limit` restarts in a row, with no result and no checkpoint in between, the job is given up.
    `stragglers`: what a checkpoint does about rollouts that do not stand after `soft_share` of its time, if it is not
    told otherwise. `fall_back`: when the newest checkpoint is damaged, the one before it is taken; off, the start is
    refused. `keep_checkpoints`: how many of its own chain are kept, at least two; None keeps all of them.
    """

    max_clock_skew_s: float = field(default=5.0, validator=validators.ge(0))
    discover_timeout_s: float = field(default=60.0, validator=validators.gt(0))
    restore_timeout_s: float = field(default=600.0, validator=validators.gt(0))
    resume_timeout_s: float = field(default=30.0, validator=validators.gt(0))
    acknowledge_timeout_s: float = field(default=30.0, validator=validators.gt(0))
    stop_timeout_s: float = field(default=30.0, validator=validators.gt(0))
    renew_every_s: float = field(default=10.0, validator=validators.gt(0))
    settle_share: float = field(default=0.5, validator=validators.and_(validators.gt(0), validators.lt(1)))
    run_first_delay_s: float = field(default=0.05, validator=validators.gt(0))
    run_max_delay_s: float = field(default=2.0, validator=validators.gt(0))
    run_patience_s: float = field(default=900.0, validator=validators.gt(0))
    max_running: int = field(default=10_000, validator=validators.ge(1))
    max_result_bytes: int = field(default=256 << 20, validator=validators.ge(1))
    retire_batch: int = field(default=500, validator=validators.ge(1))
    loud_after: int = field(default=3, validator=validators.ge(1))
    probe_every_s: float = field(default=10.0, validator=validators.gt(0))
    probe_misses: int = field(default=3, validator=validators.ge(1))
    restart_tries: int = field(default=3, validator=validators.ge(1))
    restart_limit: int = field(default=10, validator=validators.ge(1))
    restart_delay_s: float = field(default=1.0, validator=validators.ge(0))
    stragglers: Stragglers = field(default=Stragglers.ABORT, converter=Stragglers)
    soft_share: float = field(default=0.8, validator=validators.and_(validators.gt(0), validators.lt(1)))
    fall_back: bool = field(default=True, validator=validators.instance_of(bool))
    keep_checkpoints: int | None = field(
        default=None, validator=validators.optional(validators.and_(validators.instance_of(int), validators.ge(2)))
    )
    control_retries: Retries = field(factory=Retries)


class Door:
    """Open or closed; whoever waits goes on when it opens."""

    def __init__(self) -> None:
        self._opened = trio.Event()
        self._opened.set()

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    def close(self) -> None:
        if self.is_open:
            self._opened = trio.Event()

    def open(self) -> None:
        self._opened.set()

    async def wait(self) -> None:
        """Returns when the door is open; it may be closed again by then."""
        await self._opened.wait()


class Serving:
    """The time of one deployment: from the opening of its servers until all of them are stopped."""

    def __init__(self) -> None:
        self.over = False
        self._calls: set[trio.CancelScope] = set()
        self._ended = trio.Event()

    @contextmanager
    def call(self) -> Iterator[None]:
        """What is awaited inside is given up when the time is over."""
        with trio.CancelScope() as scope:
            self._calls.add(scope)
            try:
                if self.over:
                    scope.cancel()
                yield
            finally:
                self._calls.discard(scope)

    def end(self) -> None:
        """From now on nothing that its servers say counts, also if it was said before."""
        self.over = True
        self._ended.set()
        for scope in tuple(self._calls):
            scope.cancel()

    async def ended(self) -> None:
        """Returns when it is over."""
        await self._ended.wait()


@define(eq=False)
class Life:
    """What the tasks of one coordinator share. `ledger` is replaced as a whole, through `note`.

    `epoch`, `deployment`, `detector` and `serving` change with each restart of the servers; `up` is closed while there
    are none. `published` is the newest checkpoint of this life.
    """

    epoch: int
    store: Store
    trainer: Trainer
    settings: CoordinatorSettings
    seams: Seams
    data_client: httpx.AsyncClient
    incarnation: str = ""
    journal: Journal | None = None
    deployment: Deployment = field(factory=lambda: Deployment({}, ()))
    ledger: Ledger = field(init=False)
    door: Door = field(factory=Door)
    up: Door = field(factory=Door)
    serving: Serving = field(factory=Serving)
    detector: FailureDetector = field(init=False)
    steps: StepRecorder = field(init=False)
    stopped: trio.Event = field(factory=trio.Event)
    hooks: trio.Lock = field(factory=trio.Lock)
    housekeeping: Housekeeping = field(factory=Housekeeping)
    retirements: Retirements = field(factory=Retirements)
    why_stopped: StatecoreError | None = None
    published: str = ""
    _sequence: int = 0
    _changed: trio.Event = field(factory=trio.Event)
    _no_results: set[str] = field(factory=set)

    def __attrs_post_init__(self) -> None:
        self.steps = StepRecorder(
            self.journal,
            lambda: {"process": COORDINATOR, "incarnation": self.incarnation, "epoch": self.epoch},
        )
        self.ledger = Ledger(made=() if self.journaled else None)

    @property
    def journaled(self) -> bool:
        """Whether the steps of this life are written down."""
        return self.journal is not None

    def next_id(self, kind: str) -> str:
        """A checkpoint id (`ck`) or restore id (`rs`) that is higher than every one before (I14)."""
        self._sequence += 1
        return own_id(kind, self.epoch, self._sequence)

    def next_checkpoint_id(self) -> CheckpointId:
        checkpoint_id = CheckpointId.parse(self.next_id("ck"))
        assert checkpoint_id is not None
        return checkpoint_id

    def stop(self, why: StatecoreError) -> None:
        """Nothing is dispatched or checkpointed any more; whoever tries, or waits to, gets `why`."""
        self.why_stopped = why
        self.stopped.set()
        self.door.open()
        self.up.open()

    def check_running(self) -> None:
        """Raises why this life has stopped, if it has."""
        if self.why_stopped is not None:
            raise self.why_stopped

    def meet(self, deployment: Deployment, launcher: object = None) -> None:
        """These are the servers from now on; nothing is known of what any before them kept, or had retired."""
        self.deployment = deployment
        self.housekeeping = Housekeeping()
        self.retirements = Retirements()
        self._no_results.clear()
        self.detector = FailureDetector(
            deployment.members,
            every_s=self.settings.probe_every_s,
            misses=self.settings.probe_misses,
            launcher=launcher,
            steps=self.steps,
        )

    def note(self, ledger: Ledger) -> None:
        """The ledger is `ledger` now, and whoever waits for a change of it looks again."""
        if ledger.made:
            for made in ledger.made:
                self.steps.write(made)
            ledger = evolve(ledger, made=())
        self.ledger = ledger
        self._changed.set()
        self._changed = trio.Event()

    async def change(self) -> None:
        """Returns at the next change of the ledger."""
        await self._changed.wait()

    async def disk(self, work: Callable[[], T]) -> T:
        """What `work` returns; it may block on the disk."""
        return await on_disk(self.seams.disk, work)

    async def tidy(self, checkpoint_id: str) -> None:
        """The servers keep nothing of rollouts that are saved (I75); what fails is tried after the next checkpoint."""
        deadline_ts = self.seams.clock.time() + self.settings.resume_timeout_s
        problem = await self.housekeeping.run(
            self.ledger, self.deployment, checkpoint_id, deadline_ts, self.settings.retire_batch
        )
        if problem:
            log.warning("%s: servers still keep rollouts that are saved: %s", checkpoint_id, problem)

    async def acknowledge(self, members: tuple[Member, ...] | None = None) -> tuple[str, ...]:
        """Every retained result whose rollout is saved is released (I67); returns why some could not be.

        From the servers' lists, never from memory: a crash between save and acknowledgement is mended by asking again.
        """
        problems: list[str] = []
        async with trio.open_nursery() as nursery:
            for member in self.deployment.members if members is None else members:
                if member.name not in self._no_results:
                    nursery.start_soon(self._acknowledge, member, problems)
        return tuple(sorted(problems))

    async def _acknowledge(self, member: Member, problems: list[str]) -> None:
        timeout_s = self.settings.acknowledge_timeout_s
        try:
            listed = await member.control.results(timeout_s=timeout_s)
            owed = [receipt for receipt in _receipts(listed) if self.ledger.is_saved(receipt.rollout_id)]
            if owed:
                answer = await member.control.acknowledge([receipt.to_json() for receipt in owed], timeout_s=timeout_s)
                if answer["mismatched"]:
                    problems.append(f"{member.name}: {len(answer['mismatched'])} receipts do not match")
        except ControlError as error:
            if error.status == 404:  # a server without results, or of another make
                self._no_results.add(member.name)
            else:
                problems.append(str(error))


def _receipts(listed: dict[str, Any]) -> list[Receipt]:
    """The receipts of a list that can be read; what cannot is left where it is and said."""
    receipts = []
    raw = listed.get("receipts")
    for value in raw if isinstance(raw, list) else []:
        try:
            receipts.append(structure(value, Receipt))
        except StatecoreError as error:
            log.warning("a receipt in a list of results cannot be read: %s", error)
    return receipts
