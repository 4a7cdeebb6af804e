"""What was really done in a simulated job, in order, whatever anybody says of it.

Servers tell it of each piece of work as they do it, launchers of each start, coordinators of each checkpoint. No part
of the product reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from statecore.simulate import CrashDisk, Process, Simulation, Survives

from ..demo.lines import Event, ServerJournal
from ..files.store import Store
from ..identity import EpisodeId
from ..records.manifests import CheckpointId
from ..records.records import Disposition


@frozen(kw_only=True)
class Done:
    """One piece of work. `order` counts all of them from 1, `turn` the turns of the rollout over all attempts."""

    order: int
    at: float
    event: Event
    server: str
    epoch: int
    rollout: str
    attempt: int | None
    turn: int | None


@frozen(kw_only=True)
class Begun:
    """One start of the servers: by which life, from which checkpoint, with which turns held and results consumed; and
    whether the weather was calm.
    """

    epoch: int
    life: str
    start: str | None
    turns: Mapping[str, int]
    consumed: frozenset[str]
    calm: bool


@define(eq=False)
class Truth:
    """All of one run. `still` says, for each checkpoint, how much was done when its participants were closed and quiet,
    `moved` how much when it was published. `contents` are the files of the published ones as they were then, `in_force`
    is the newest that was published by a coordinator which nobody had overtaken, `too_late` are the others, and `saved`
    is whose result was in one. `not_restored` are the epochs whose restore failed, and why: there everything starts
    over (docs/reference/protocol.md section 7).
    """

    simulation: Simulation
    done: list[Done] = field(factory=list)
    starts: list[Begun] = field(factory=list)
    still: dict[str, int] = field(factory=dict)
    moved: dict[str, int] = field(factory=dict)
    contents: dict[str, dict[str, bytes]] = field(factory=dict)
    in_force: CheckpointId | None = None
    too_late: set[str] = field(factory=set)
    saved: set[str] = field(factory=set)
    not_restored: dict[int, str] = field(factory=dict)

    def journal(self, process: Process, server: str, epoch: int) -> ServerJournal:
        """What a server of the demo writes to."""
        return _Told(self, process, server, epoch)

    def begun(self, start: Begun) -> None:
        """Servers are being started."""
        self.starts.append(start)
        base = None if start.start is None else CheckpointId.parse(start.start)
        if self.in_force is not None and (base is None or base < self.in_force):
            self.simulation.violated("I85", f"epoch {start.epoch} starts from {base}; {self.in_force} was published")
        self.simulation.history.tell(
            start.life, "starts servers", epoch=start.epoch, base=start.start, held=dict(start.turns)
        )

    def published(self, checkpoint_id: str, store: Store) -> None:
        """A coordinator holds this checkpoint for published."""
        parsed = CheckpointId.parse(checkpoint_id)
        assert parsed is not None
        self.moved[checkpoint_id] = len(self.done)
        self.contents[checkpoint_id] = self.files(checkpoint_id, store)
        registry = store.read(parsed).registry
        self.saved |= {row.rollout_id for row in registry if row.disposition is Disposition.COMPLETED}
        if self._after_a_power_cut(checkpoint_id, store) != self.contents[checkpoint_id]:
            self.simulation.violated("I44", f"{checkpoint_id} is published, and would not survive the loss of power")
        if max(store.claims()) > parsed.epoch:
            self.too_late.add(checkpoint_id)
        else:
            self.in_force = parsed

    def _after_a_power_cut(self, checkpoint_id: str, store: Store) -> dict[str, bytes]:
        """What would be left of it if power were lost now."""
        return dict(_below(self.simulation.disk.now.after_crash(Survives.NOTHING), store.root / checkpoint_id))

    def set_aside(self, who: str, checkpoint_id: CheckpointId, store: Store) -> None:
        """`who` gives up a checkpoint; no other life that has started since may stand on it (I77)."""
        own = max((start.epoch for start in self.starts if start.life == who), default=0)
        bases = {epoch: claim.base for epoch, claim in store.claims().items() if claim.base is not None and epoch > own}
        if bases and bases[max(bases)].start == checkpoint_id:
            self.simulation.violated("I77", f"{who} deletes {checkpoint_id}, the base of epoch {max(bases)}")

    def files(self, checkpoint_id: str, store: Store) -> dict[str, bytes]:
        """What a checkpoint consists of, by path; nothing if it is not there."""
        return dict(_below(self.simulation.disk.now, store.root / checkpoint_id))

    def work(
        self, process: Process, server: str, epoch: int, event: Event, rollout: str, attempt: int | None, **more: Any
    ) -> None:
        """One piece more, unless the process has ended and only does not know it yet."""
        if not process.alive:
            return
        done = Done(
            order=len(self.done) + 1,
            at=self.simulation.now,
            event=event,
            server=server,
            epoch=epoch,
            rollout=rollout,
            attempt=attempt,
            turn=more.get("turn"),
        )
        self.done.append(done)
        self.simulation.history.tell(
            process.name, event.value, rollout=rollout, attempt=attempt, turn=done.turn, epoch=epoch
        )


class _Told(ServerJournal):
    """A server's journal that is nothing but told."""

    def __init__(self, truth: Truth, process: Process, server: str, epoch: int) -> None:
        self._truth, self._process, self._name, self._of = truth, process, server, epoch

    def write(self, event: Event, rollout: str, attempt: int | None = None, **more: Any) -> None:
        self._truth.work(self._process, self._name, self._of, event, rollout, attempt, **more)

    def about(self, event: Event, episode: EpisodeId | None, **more: Any) -> None:
        if episode is not None:
            self.write(event, episode.rollout_id, episode.attempt, **more)


def _below(disk: CrashDisk, path: Path) -> Iterator[tuple[str, bytes]]:
    if disk.kind(path) == "file":
        yield str(path), disk.read(path)
    elif disk.kind(path) == "dir":
        for name in disk.listdir(path):
            yield from _below(disk, path / name)
